/* router/kv/kv_frame.c - see the header. */
#include "router/kv/kv_frame.h"

#include <endian.h>
#include <string.h>

#include "common/text/json.h"

#define CONTROL_BYTES_MAX 65536u

static const struct json_limits limits = {
    .max_bytes = CONTROL_BYTES_MAX, .max_depth = 8, .max_values = 512};

/* The last eight bytes of a hash in hexadecimal digits. */
static enum status read_digest(struct str hex, uint64_t *out) {
    uint64_t v = 0;

    if (hex.len < 16) return ST_INVALID;
    for (size_t i = hex.len - 16; i < hex.len; i++) {
        char c = hex.ptr[i];

        if (c >= '0' && c <= '9')
            v = v << 4 | (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            v = v << 4 | (uint64_t)(c - 'a' + 10);
        else
            return ST_INVALID;
    }
    *out = v;
    return ST_OK;
}

static enum status read_set(const struct json *item, struct kv_frame_set *set, struct error *err) {
    struct str medium = STR_NULL, xor_of = STR_NULL;
    enum status st;

    *set = (struct kv_frame_set){.tier = KV_TIER_COUNT, .group = KV_GROUP_NONE};
    if (json_type(item) != JSON_OBJECT) return error_set(err, ST_INVALID, "a set is no object");
    st = json_get_str(item, "medium", 64, &medium, NULL, err);
    if (st == ST_OK) st = json_get_i64(item, "group_idx", 0, INT32_MAX, &set->group, NULL, err);
    if (st == ST_OK) st = json_get_u64(item, "blocks", 0, UINT64_MAX, &set->n_blocks, NULL, err);
    if (st == ST_OK) st = json_get_str(item, "xor", 128, &xor_of, NULL, err);
    if (st != ST_OK) return st;
    set->tier = kv_tier_of(medium);
    if (read_digest(xor_of, &set->digest) == ST_OK) return ST_OK;
    return error_set(err, ST_INVALID, "a set has no 'xor' of hashes");
}

static enum status read_sets(const struct json *root, struct kv_frame *out, struct error *err) {
    const struct json *sets = NULL;
    enum status st = json_get_array(root, "sets", &sets, err);

    if (st != ST_OK) return st;
    JSON_FOR_EACH(item, sets) {
        if (out->n_sets == KV_FRAME_SETS_MAX)
            return error_set(err, ST_INVALID, "more than %u sets", KV_FRAME_SETS_MAX);
        if ((st = read_set(item, &out->sets[out->n_sets], err)) != ST_OK) return st;
        out->n_sets++;
    }
    return ST_OK;
}

static enum status read_text(const struct json *root, const char *name, char *out, size_t cap,
                             struct error *err) {
    struct str s = STR_NULL;
    enum status st = json_get_str(root, name, cap - 1, &s, NULL, err);

    if (st == ST_OK && s.len) memcpy(out, s.ptr, s.len);
    return st;
}

/* A run's name becomes part of a URL. */
static bool is_plain(const char *text) {
    return text[strspn(
               text, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-")] == '\0';
}

static enum status read_state(const struct json *root, const char *next, struct kv_frame *out,
                              struct error *err) {
    bool has_next = false;
    enum status st = json_get_u64(root, next, 0, UINT64_MAX - 1, &out->next, &has_next, err);

    if (st == ST_OK && !has_next) st = error_set(err, ST_INVALID, "no member '%s'", next);
    if (st != ST_OK) return st;
    st = read_text(root, "generation", out->generation, sizeof(out->generation), err);
    if (st == ST_OK && !is_plain(out->generation))
        st = error_set(err, ST_INVALID, "'generation' is no name");
    return st;
}

/* The reason for a person: as much of it as there is room for. */
static void read_why(const struct json *root, struct kv_frame *out) {
    struct str why = STR_NULL;

    if (json_to_str(json_get(root, "reason"), &why) != ST_OK) why = STR("the worker closed it");
    memcpy(out->why, why.ptr, MIN(why.len, sizeof(out->why) - 1));
}

static enum status read_control(struct str name, const struct json *root, struct kv_frame *out,
                                struct error *err) {
    enum status st;

    out->kind = KV_FRAME_OTHER;
    if (json_type(root) != JSON_OBJECT) return error_set(err, ST_INVALID, "not a JSON object");
    if (str_eq(name, STR("gap"))) {
        out->kind = KV_FRAME_GAP;
        return read_state(root, "resume", out, err);
    }
    if (str_eq(name, STR("digest"))) {
        out->kind = KV_FRAME_DIGEST;
        st = read_state(root, "next", out, err);
        return st == ST_OK ? read_sets(root, out, err) : st;
    }
    if (str_eq(name, STR("closed"))) {
        out->kind = KV_FRAME_CLOSED;
        read_why(root, out);
    }
    return ST_OK;
}

static enum status take_control(struct str payload, struct kv_frame *out, struct error *err) {
    struct msgpack_reader r = msgpack_reader_of(payload);
    struct msgpack_value pairs, name, text;
    struct json *root = NULL;
    enum status st;

    if (msgpack_expect(&r, MSGPACK_MAP, &pairs) != ST_OK || pairs.n != 1 ||
        msgpack_expect(&r, MSGPACK_STR, &name) != ST_OK ||
        msgpack_expect(&r, MSGPACK_STR, &text) != ST_OK) {
        return error_set(err, ST_INVALID, "a frame about the stream is no map of one text");
    }
    if (json_parse(&root, text.bytes, &limits, err) != ST_OK) return ST_INVALID;
    st = read_control(name.bytes, root, out, err);
    json_destroy(root);
    return st;
}

enum status kv_frame_read(struct str bytes, struct kv_frame *out, size_t *n_bytes,
                          struct error *err) {
    struct kv_frame frame = {0};
    uint32_t length;
    enum status st;

    *n_bytes = KV_FRAME_HEAD;
    if (bytes.len < KV_FRAME_HEAD) return ST_OK;
    memcpy(&length, bytes.ptr, sizeof(length));
    memcpy(&frame.number, bytes.ptr + sizeof(length), sizeof(frame.number));
    length = be32toh(length);
    frame.number = be64toh(frame.number);
    if (length > KV_FRAME_MAX)
        return error_set(err, ST_INVALID, "a frame of %u bytes is above the limit", length);
    *n_bytes = KV_FRAME_HEAD + length;
    if (bytes.len < *n_bytes) return ST_OK;
    frame.batch = (struct str){bytes.ptr + KV_FRAME_HEAD, length};
    if (frame.number == UINT64_MAX && (st = take_control(frame.batch, &frame, err)) != ST_OK) {
        error_prefix(err, "not the stream of /kv_events");
        return ST_INVALID;
    }
    *out = frame;
    return ST_OK;
}

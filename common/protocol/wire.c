/* common/protocol/wire.c - formatting and strict parsing of the router-worker contract. */
#include "common/protocol/wire.h"

#include <stdio.h>

#include "common/text/json.h"

enum load_field { RUNNING, WAITING, QUEUED_TOKENS, KV_FREE, KV_TOTAL, DRAINING, N_LOAD_FIELDS };

static const char *const load_names[N_LOAD_FIELDS] = {
    [RUNNING] = "running", [WAITING] = "waiting",   [QUEUED_TOKENS] = "queued_tokens",
    [KV_FREE] = "kv_free", [KV_TOTAL] = "kv_total", [DRAINING] = "draining",
};

size_t wire_format_load(const struct wire_load *load, char out[WIRE_LOAD_MAX]) {
    int n =
        snprintf(out, WIRE_LOAD_MAX,
                 "running=%u waiting=%u queued_tokens=%llu kv_free=%llu kv_total=%llu draining=%d",
                 load->running, load->waiting, (unsigned long long)load->queued_tokens,
                 (unsigned long long)load->kv_free, (unsigned long long)load->kv_total,
                 load->draining ? 1 : 0);

    return (size_t)n; /* the six longest numbers fit */
}

/* Cuts the first space-separated word off. */
static struct str next_word(struct str *rest) {
    const char *space = rest->len ? memchr(rest->ptr, ' ', rest->len) : NULL;
    struct str word = {rest->ptr, space ? (size_t)(space - rest->ptr) : rest->len};

    rest->ptr += word.len + (space ? 1 : 0);
    rest->len -= word.len + (space ? 1 : 0);
    return word;
}

static int load_field_of(struct str name) {
    for (int i = 0; i < N_LOAD_FIELDS; i++) {
        if (str_eq(name, str_of(load_names[i]))) return i;
    }
    return -1;
}

enum status wire_parse_load(struct str value, struct wire_load *out) {
    uint64_t v[N_LOAD_FIELDS] = {0}, number;
    unsigned seen = 0;

    if (value.len == 0 || value.ptr[value.len - 1] == ' ') return ST_INVALID;
    while (value.len) {
        struct str word = next_word(&value), name = word;
        const char *eq = word.len ? memchr(word.ptr, '=', word.len) : NULL;
        int field;

        if (!eq || eq == word.ptr) return ST_INVALID;
        name.len = (size_t)(eq - word.ptr);
        if (str_to_u64((struct str){eq + 1, word.len - name.len - 1}, &number) != ST_OK) {
            return ST_INVALID;
        }
        field = load_field_of(name);
        if (field < 0) continue; /* a newer worker's */
        if (seen & (1u << field)) return ST_INVALID;
        seen |= 1u << field;
        v[field] = number;
    }
    if (seen != (1u << N_LOAD_FIELDS) - 1) return ST_INVALID;
    if (v[RUNNING] > UINT32_MAX || v[WAITING] > UINT32_MAX || v[DRAINING] > 1 ||
        v[KV_FREE] > v[KV_TOTAL]) {
        return ST_INVALID;
    }
    *out = (struct wire_load){
        .running = (uint32_t)v[RUNNING],
        .waiting = (uint32_t)v[WAITING],
        .queued_tokens = v[QUEUED_TOKENS],
        .kv_free = v[KV_FREE],
        .kv_total = v[KV_TOTAL],
        .draining = v[DRAINING] != 0,
    };
    return ST_OK;
}

enum status wire_parse_tokens(struct str value, uint32_t *out) {
    uint64_t n;

    if (str_to_u64(value, &n) != ST_OK || n > INT32_MAX) return ST_INVALID;
    *out = (uint32_t)n;
    return ST_OK;
}

enum status wire_parse_tiers(struct str value, uint32_t *out) {
    uint64_t sum = 0, n;

    if (value.len == 0 || value.ptr[value.len - 1] == ' ') return ST_INVALID;
    while (value.len) {
        struct str word = next_word(&value);
        const char *eq = word.len ? memchr(word.ptr, '=', word.len) : NULL;
        size_t n_name = eq ? (size_t)(eq - word.ptr) : 0;

        if (n_name == 0 || n_name >= WIRE_TIER_NAME_MAX) return ST_INVALID;
        if (str_to_u64((struct str){eq + 1, word.len - n_name - 1}, &n) != ST_OK) return ST_INVALID;
        if (n > INT32_MAX || (sum += n) > INT32_MAX) return ST_INVALID;
    }
    *out = (uint32_t)sum;
    return ST_OK;
}

bool wire_is_salt(struct str value) {
    for (size_t i = 0; i < value.len; i++) {
        char c = value.ptr[i];

        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
    }
    return value.len == WIRE_SALT_CHARS;
}

/* --- /server_info ----------------------------------------------------------------------------- */

uint64_t wire_tier_blocks(const struct wire_server_info *info) {
    uint64_t n = 0;

    for (uint32_t i = 0; i < info->n_tiers; i++)
        n += info->tiers[i].n_blocks;
    return n;
}

double wire_restore_tokens_per_s(const struct wire_server_info *info) {
    double n_blocks = 0, block_s = 0;

    for (uint32_t i = 0; i < info->n_tiers; i++) {
        const struct wire_tier *tier = &info->tiers[i];

        if (!(tier->restore_tokens_per_s > 0)) continue;
        n_blocks += (double)tier->n_blocks;
        block_s += (double)tier->n_blocks / tier->restore_tokens_per_s;
    }
    return block_s > 0 ? n_blocks / block_s : 0;
}

void wire_put_tiers(struct json_writer *w, const struct wire_server_info *info) {
    json_put_key(w, "tiers");
    json_begin_array(w);
    for (uint32_t i = 0; i < info->n_tiers; i++) {
        json_begin_object(w);
        json_field_z(w, "name", info->tiers[i].name);
        json_field_z(w, "medium", info->tiers[i].name);
        json_field_u64(w, "n_blocks", info->tiers[i].n_blocks);
        json_field_u64(w, "capacity_tokens", info->tiers[i].n_blocks * info->block_size);
        json_field_f64(w, "restore_tokens_per_s", info->tiers[i].restore_tokens_per_s);
        json_field_bool(w, "inclusive", info->tiers[i].is_inclusive);
        json_end_object(w);
    }
    json_end_array(w);
}

/* Names lie one behind the other, a line end after each. */
void wire_names_add(char names[WIRE_NAMES_MAX], struct str name) {
    size_t n = strlen(names);

    if (name.len == 0 || name.len >= WIRE_MODEL_MAX || n + name.len + 2 > WIRE_NAMES_MAX) return;
    if (memchr(name.ptr, '\n', name.len) || memchr(name.ptr, '\0', name.len)) return;
    memcpy(names + n, name.ptr, name.len);
    memcpy(names + n + name.len, "\n", 2);
}

struct str wire_names_next(const char **cursor) {
    const char *at = *cursor;
    size_t n = strcspn(at, "\n");

    if (n == 0) return STR_NULL;
    *cursor = at + n + (at[n] == '\n');
    return (struct str){at, n};
}

static void put_names(struct json_writer *w, const char *names) {
    struct str name;

    json_put_key(w, "other_names");
    json_begin_array(w);
    while ((name = wire_names_next(&names)).len)
        json_put_str(w, name);
    json_end_array(w);
}

static enum status read_names(const struct json *root, struct wire_server_info *info,
                              struct error *err) {
    const struct json *names = json_get(root, "other_names");
    struct str name;

    if (!names) return ST_OK;
    if (json_type(names) != JSON_ARRAY)
        return error_set(err, ST_INVALID, "%s: 'other_names' is not an array", WIRE_INFO_PATH);
    JSON_FOR_EACH(item, names) {
        if (json_to_str(item, &name) != ST_OK)
            return error_set(err, ST_INVALID, "%s: a name is not a string", WIRE_INFO_PATH);
        wire_names_add(info->other_names, name);
    }
    return ST_OK;
}

static void put_kv_peer(struct json_writer *w, const struct wire_kv_peer *peer) {
    json_put_key(w, "kv_peer");
    json_begin_object(w);
    json_field_z(w, "generation", peer->generation);
    json_field_z(w, "fingerprint", peer->fingerprint);
    json_field_u64(w, "bytes_per_token", peer->bytes_per_token);
    json_field_bool(w, "is_encrypted", peer->is_encrypted);
    json_end_object(w);
}

void wire_append_server_info(struct buf *out, const struct wire_server_info *info) {
    struct json_writer w;

    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_u64(&w, "wire", info->wire);
    json_field_z(&w, "model", info->model);
    if (info->other_names[0]) put_names(&w, info->other_names);
    json_field_z(&w, "backend", info->backend);
    json_field_z(&w, "path", info->path);
    json_field_z(&w, "device", info->device);
    json_field_z(&w, "uuid", info->uuid);
    json_field_z(&w, "dtype", info->dtype);
    json_field_z(&w, "quantization", info->quantization);
    json_field_z(&w, "kv_cache_dtype", info->kv_dtype);
    json_field_u64(&w, "tensor_parallel_size", info->tensor_parallel_size);
    json_field_u64(&w, "block_size", info->block_size);
    json_field_u64(&w, "n_blocks", info->n_blocks);
    wire_put_tiers(&w, info);
    json_field_u64(&w, "max_model_len", info->max_model_len);
    json_field_u64(&w, "max_num_seqs", info->max_num_seqs);
    json_field_bool(&w, "trusts_router", info->trusts_router);
    json_field_u64(&w, "request_events", info->publishes_events ? 1 : 0); /* their version */
    json_field_f64(&w, "prefill_tokens_per_s", info->prefill_tokens_per_s);
    json_field_f64(&w, "attn_context", info->attn_context);
    if (info->kv_bytes_per_token)
        json_field_u64(&w, "kv_bytes_per_token", info->kv_bytes_per_token);
    if (info->kv_peer.fingerprint[0]) put_kv_peer(&w, &info->kv_peer);
    if (info->role[0]) json_field_z(&w, "role", info->role);
    if (info->schedule_policy[0]) json_field_z(&w, "schedule_policy", info->schedule_policy);
    if (info->tool_calls[0]) json_field_z(&w, "tool_call_parser", info->tool_calls);
    if (info->reasoning[0]) json_field_z(&w, "reasoning_parser", info->reasoning);
    if (info->chunk_tokens) json_field_u64(&w, "chunk_tokens", info->chunk_tokens);
    json_field_f64(&w, "itl_target_ms", info->itl_target_ms);
    json_field_z(&w, "generation", info->generation);
    if (info->response_mark[0]) json_field_z(&w, "response_mark", info->response_mark);
    json_end_object(&w);
}

static enum status get_text(const struct json *object, const char *name, char *out, size_t cap,
                            struct error *err) {
    struct str s = STR_NULL;
    enum status st = json_get_str(object, name, cap - 1, &s, NULL, err);

    if (st != ST_OK) return st;
    if (s.len) memcpy(out, s.ptr, s.len);
    out[s.len] = '\0';
    return ST_OK;
}

#define TIER_BLOCKS_MAX (UINT64_C(1) << 40)
#define RATE_MAX        1e15 /* tokens/s */

static enum status read_tiers(const struct json *root, struct wire_server_info *info,
                              struct error *err) {
    const struct json *tiers = json_get(root, "tiers");
    enum status st;

    if (!tiers) return ST_OK;
    if (json_type(tiers) != JSON_ARRAY) {
        return error_set(err, ST_INVALID, "%s: 'tiers' is not an array", WIRE_INFO_PATH);
    }
    JSON_FOR_EACH(item, tiers) {
        struct wire_tier tier = {0}, *last;

        if (json_type(item) != JSON_OBJECT) {
            return error_set(err, ST_INVALID, "%s: a tier is not an object", WIRE_INFO_PATH);
        }
        if ((st = get_text(item, "name", tier.name, sizeof(tier.name), err)) != ST_OK) return st;
        st = json_get_u64(item, "n_blocks", 0, TIER_BLOCKS_MAX, &tier.n_blocks, NULL, err);
        if (st != ST_OK) return st;
        st = json_get_f64(item, "restore_tokens_per_s", 0, RATE_MAX, &tier.restore_tokens_per_s,
                          NULL, err);
        if (st != ST_OK) return st;
        st = json_get_bool(item, "inclusive", &tier.is_inclusive, NULL, err);
        if (st != ST_OK) return st;
        if (info->n_tiers < WIRE_TIERS_MAX) {
            info->tiers[info->n_tiers++] = tier;
        } else {
            last = &info->tiers[WIRE_TIERS_MAX - 1];
            last->n_blocks = MIN(last->n_blocks + tier.n_blocks, TIER_BLOCKS_MAX);
        }
    }
    return ST_OK;
}

static enum status read_kv_peer(const struct json *root, struct wire_kv_peer *out,
                                struct error *err) {
    const struct json *peer = json_get(root, "kv_peer");
    enum status st;

    if (json_is_null(peer)) return ST_OK;
    if (json_type(peer) != JSON_OBJECT)
        return error_set(err, ST_INVALID, "%s: 'kv_peer' is not an object", WIRE_INFO_PATH);
    st = get_text(peer, "generation", out->generation, sizeof(out->generation), err);
    if (st != ST_OK) return st;
    st = get_text(peer, "fingerprint", out->fingerprint, sizeof(out->fingerprint), err);
    if (st != ST_OK) return st;
    st = json_get_u64(peer, "bytes_per_token", 0, UINT64_C(1) << 40, &out->bytes_per_token, NULL,
                      err);
    if (st != ST_OK) return st;
    return json_get_bool(peer, "is_encrypted", &out->is_encrypted, NULL, err);
}

static enum status read_info(const struct json *root, struct wire_server_info *info,
                             struct error *err) {
    const double huge = RATE_MAX;
    uint32_t request_events = 0;
    bool has_wire = false;
    enum status st;

    if (json_type(root) != JSON_OBJECT) {
        return error_set(err, ST_INVALID, "%s is not a JSON object", WIRE_INFO_PATH);
    }
    st = json_get_u32(root, "wire", 1, UINT32_MAX, &info->wire, &has_wire, err);
    if (st != ST_OK) return st;
    if (!has_wire) return error_set(err, ST_INVALID, "%s has no member 'wire'", WIRE_INFO_PATH);
    if ((st = get_text(root, "model", info->model, sizeof(info->model), err)) != ST_OK) return st;
    if ((st = read_names(root, info, err)) != ST_OK) return st;
    if ((st = get_text(root, "backend", info->backend, sizeof(info->backend), err)) != ST_OK) {
        return st;
    }
    if ((st = get_text(root, "path", info->path, sizeof(info->path), err)) != ST_OK) return st;
    if ((st = get_text(root, "device", info->device, sizeof(info->device), err)) != ST_OK) {
        return st;
    }
    if ((st = get_text(root, "uuid", info->uuid, sizeof(info->uuid), err)) != ST_OK) return st;
    if ((st = get_text(root, "dtype", info->dtype, sizeof(info->dtype), err)) != ST_OK) return st;
    st = get_text(root, "quantization", info->quantization, sizeof(info->quantization), err);
    if (st != ST_OK) return st;
    if ((st = get_text(root, "kv_cache_dtype", info->kv_dtype, sizeof(info->kv_dtype), err)) !=
        ST_OK) {
        return st;
    }
    st = json_get_u32(root, "tensor_parallel_size", 0, 1u << 16, &info->tensor_parallel_size, NULL,
                      err);
    if (st != ST_OK) return st;
    st = json_get_u32(root, "block_size", 0, 1u << 20, &info->block_size, NULL, err);
    if (st != ST_OK) return st;
    st = json_get_u64(root, "n_blocks", 0, UINT64_C(1) << 40, &info->n_blocks, NULL, err);
    if (st != ST_OK) return st;
    if ((st = read_tiers(root, info, err)) != ST_OK) return st;
    st = json_get_u32(root, "max_model_len", 0, INT32_MAX, &info->max_model_len, NULL, err);
    if (st != ST_OK) return st;
    st = json_get_u32(root, "max_num_seqs", 0, INT32_MAX, &info->max_num_seqs, NULL, err);
    if (st != ST_OK) return st;
    st = json_get_bool(root, "trusts_router", &info->trusts_router, NULL, err);
    if (st != ST_OK) return st;
    st = json_get_u32(root, "request_events", 0, UINT32_MAX, &request_events, NULL, err);
    if (st != ST_OK) return st;
    info->publishes_events = request_events > 0;
    st =
        json_get_f64(root, "prefill_tokens_per_s", 0, huge, &info->prefill_tokens_per_s, NULL, err);
    if (st != ST_OK) return st;
    st = json_get_f64(root, "attn_context", 0, huge, &info->attn_context, NULL, err);
    if (st != ST_OK) return st;
    st = json_get_u64(root, "kv_bytes_per_token", 0, UINT64_C(1) << 40, &info->kv_bytes_per_token,
                      NULL, err);
    if (st != ST_OK) return st;
    if ((st = read_kv_peer(root, &info->kv_peer, err)) != ST_OK) return st;
    if ((st = get_text(root, "role", info->role, sizeof(info->role), err)) != ST_OK) return st;
    st = get_text(root, "schedule_policy", info->schedule_policy, sizeof(info->schedule_policy),
                  err);
    if (st != ST_OK) return st;
    st = get_text(root, "tool_call_parser", info->tool_calls, sizeof(info->tool_calls), err);
    if (st != ST_OK) return st;
    st = get_text(root, "reasoning_parser", info->reasoning, sizeof(info->reasoning), err);
    if (st != ST_OK) return st;
    st = json_get_u32(root, "chunk_tokens", 0, INT32_MAX, &info->chunk_tokens, NULL, err);
    if (st != ST_OK) return st;
    st = json_get_f64(root, "itl_target_ms", 0, huge, &info->itl_target_ms, NULL, err);
    if (st != ST_OK) return st;
    st = get_text(root, "generation", info->generation, sizeof(info->generation), err);
    if (st != ST_OK) return st;
    return get_text(root, "response_mark", info->response_mark, sizeof(info->response_mark), err);
}

enum status wire_parse_server_info(struct str json, struct wire_server_info *out,
                                   struct error *err) {
    const struct json_limits limits = {.max_bytes = 65536, .max_depth = 16, .max_values = 1024};
    struct wire_server_info info = {0};
    struct json *root = NULL;
    enum status st = json_parse(&root, json, &limits, err);

    if (st != ST_OK) return ST_INVALID;
    st = read_info(root, &info, err);
    json_destroy(root);
    if (st != ST_OK) return st;
    *out = info;
    return ST_OK;
}

/* router/kv/kv_batch.c - see the header.
 *
 * An event is read in one pass, each field where it lies. A field of the wrong type ends that pass:
 * the event is then stepped over as a whole, from its beginning. */
#include "router/kv/kv_batch.h"

#define FIELDS_MAX 64u /* of an event: three times what any engine has */

const char *const kv_tier_names[KV_TIER_COUNT] = {"device", "host", "disk", "remote"};

enum field {
    F_OTHER, /* stepped over */
    F_TYPE,
    F_HASHES,
    F_TOKENS,
    F_BLOCK_SIZE,
    F_MEDIUM,
    F_GROUP,
    F_KIND,
    F_COPIES,
};

static const struct {
    struct str name;
    enum field field;
} names[] = {
    {STR("type"), F_TYPE},
    {STR("block_hashes"), F_HASHES},
    {STR("token_ids"), F_TOKENS},
    {STR("block_size"), F_BLOCK_SIZE},
    {STR("medium"), F_MEDIUM},
    {STR("group_idx"), F_GROUP},
    {STR("kv_cache_spec_kind"), F_KIND},
    {STR("remaining_copy_counts"), F_COPIES},
};

/* Of arrays, by place. */
static const uint8_t stored_fields[] = {F_TYPE,
                                        F_HASHES,
                                        F_OTHER /* parent */,
                                        F_TOKENS,
                                        F_BLOCK_SIZE,
                                        F_OTHER /* lora */,
                                        F_MEDIUM,
                                        F_OTHER /* lora name */,
                                        F_OTHER /* extra keys */,
                                        F_GROUP,
                                        F_KIND};
static const uint8_t removed_fields[] = {F_TYPE, F_HASHES, F_MEDIUM, F_GROUP, F_COPIES};

static const struct {
    struct str name;
    enum kv_event_kind kind;
    const uint8_t *fields;
    uint32_t n_fields;
} tags[] = {
    {STR("BlockStored"), KV_STORED, stored_fields, ARRAY_LEN(stored_fields)},
    {STR("BlockRemoved"), KV_REMOVED, removed_fields, ARRAY_LEN(removed_fields)},
    {STR("AllBlocksCleared"), KV_CLEARED, stored_fields, 1},
};
#define N_TAGS ((uint32_t)ARRAY_LEN(tags))

static const struct {
    struct str name;
    enum kv_tier tier;
} media[] = {
    {STR("GPU"), KV_DEVICE},      {STR("DEVICE"), KV_DEVICE},   {STR("CPU"), KV_HOST},
    {STR("CPU_PINNED"), KV_HOST}, {STR("CPU_TIER1"), KV_HOST},  {STR("CPU_TIER2"), KV_DISK},
    {STR("DISK"), KV_DISK},       {STR("NVME"), KV_DISK},       {STR("FS"), KV_DISK},
    {STR("STORAGE"), KV_DISK},    {STR("EXTERNAL"), KV_REMOTE}, {STR("OBJ"), KV_REMOTE},
    {STR("NETWORK"), KV_REMOTE},  {STR("REMOTE"), KV_REMOTE},   {STR("SHARED"), KV_REMOTE},
};

/* --- fields ----------------------------------------------------------------------------------- */

/* Engines write the number of each token: most of the bytes. Small integers are the usual form. */
static enum status skip_values(struct msgpack_reader *r, uint32_t n) {
    while (n > 0) {
        uint8_t head;

        if (r->at == r->end) return ST_INVALID;
        head = *r->at;
        if (head < 0x80) {
            r->at++;
        } else if (head >= 0xcc && head <= 0xce && (size_t)(r->end - r->at) > 4) {
            r->at += 1u + (1u << (head - 0xcc));
        } else if (msgpack_skip(r) != ST_OK) {
            return ST_INVALID;
        }
        n--;
    }
    return ST_OK;
}

static bool is_hash(const struct msgpack_value *v, uint32_t *kinds) {
    bool is_integer = v->type == MSGPACK_U64 || v->type == MSGPACK_I64;
    bool is_bytes = (v->type == MSGPACK_BIN || v->type == MSGPACK_STR) && v->bytes.len >= 8;

    *kinds |= is_integer ? KV_HASH_INTEGER : KV_HASH_BYTES;
    return is_integer || is_bytes;
}

static enum status read_hashes(struct kv_event *e, struct msgpack_reader *r) {
    struct msgpack_value v;

    if (msgpack_expect(r, MSGPACK_ARRAY, &v) != ST_OK) return ST_INVALID;
    e->hashes = *r;
    e->n_hashes = v.n;
    for (uint32_t i = 0; i < e->n_hashes; i++) {
        if (msgpack_next(r, &v) != ST_OK || !is_hash(&v, &e->hash_kinds)) return ST_INVALID;
    }
    return ST_OK;
}

static enum status read_tokens(struct kv_event *e, struct msgpack_reader *r) {
    struct msgpack_reader first;
    struct msgpack_value v, token;

    if (msgpack_next(r, &v) != ST_OK) return ST_INVALID;
    if (v.type == MSGPACK_NIL) return ST_OK;
    if (v.type != MSGPACK_ARRAY) return ST_INVALID;
    first = *r;
    e->has_pairs = v.n > 0 && msgpack_next(&first, &token) == ST_OK && token.type == MSGPACK_ARRAY;
    return skip_values(r, v.n);
}

static enum status read_copies(struct kv_event *e, struct msgpack_reader *r) {
    struct msgpack_value v;

    if (msgpack_next(r, &v) != ST_OK) return ST_INVALID;
    if (v.type == MSGPACK_NIL) return ST_OK;
    if (v.type != MSGPACK_ARRAY) return ST_INVALID;
    e->copies = *r;
    e->n_copies = v.n;
    return skip_values(r, v.n);
}

enum kv_tier kv_tier_of(struct str medium) {
    for (size_t i = 0; i < ARRAY_LEN(media); i++) {
        if (str_eq_nocase(medium, media[i].name)) return media[i].tier;
    }
    return KV_TIER_COUNT;
}

/* Layers that keep all of a sequence. Others, as those with a sliding window, keep a part. */
static bool is_full_kind(struct str kind) {
    return str_eq(kind, STR("full_attention")) || str_eq(kind, STR("mla_attention"));
}

static uint32_t tag_of(struct str tag) {
    for (uint32_t i = 0; i < N_TAGS; i++) {
        if (str_eq(tag, tags[i].name)) return i;
    }
    return N_TAGS;
}

/* A field that is one value, which may be nil: then it is as if it were not there. */
static enum status read_scalar(struct kv_event *e, enum field field, struct msgpack_reader *r,
                               uint32_t *tag) {
    struct msgpack_value v;

    if (msgpack_next(r, &v) != ST_OK) return ST_INVALID;
    if (v.type == MSGPACK_NIL && field != F_TYPE) return ST_OK;
    switch (field) {
    case F_BLOCK_SIZE:
        if (v.type != MSGPACK_U64 || v.u64 == 0 || v.u64 > KV_BLOCK_TOKENS_MAX) return ST_INVALID;
        e->block_tokens = (uint32_t)v.u64;
        return ST_OK;
    case F_GROUP:
        if (v.type != MSGPACK_U64 || v.u64 > INT32_MAX) return ST_INVALID;
        e->group = (int64_t)v.u64;
        return ST_OK;
    default: break;
    }
    if (v.type != MSGPACK_STR) return ST_INVALID;
    if (field == F_TYPE) *tag = tag_of(v.bytes);
    if (field == F_MEDIUM) e->tier = kv_tier_of(v.bytes);
    if (field == F_KIND) e->is_full = is_full_kind(v.bytes);
    return ST_OK;
}

static enum status read_field(struct kv_event *e, enum field field, struct msgpack_reader *r,
                              uint32_t *tag) {
    switch (field) {
    case F_OTHER: return msgpack_skip(r);
    case F_HASHES: return read_hashes(e, r);
    case F_TOKENS: return read_tokens(e, r);
    case F_COPIES: return read_copies(e, r);
    default: return read_scalar(e, field, r, tag);
    }
}

/* --- events ----------------------------------------------------------------------------------- */

static enum field field_named(struct str name) {
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (str_eq(name, names[i].name)) return names[i].field;
    }
    return F_OTHER;
}

static enum status read_map(struct kv_event *e, struct msgpack_reader *r, uint32_t n,
                            uint32_t *tag) {
    struct msgpack_value name;

    for (uint32_t i = 0; i < n; i++) {
        if (msgpack_expect(r, MSGPACK_STR, &name) != ST_OK ||
            read_field(e, field_named(name.bytes), r, tag) != ST_OK) {
            return ST_INVALID;
        }
    }
    return ST_OK;
}

static enum status read_array(struct kv_event *e, struct msgpack_reader *r, uint32_t n,
                              uint32_t *tag) {
    if (n == 0 || read_field(e, F_TYPE, r, tag) != ST_OK) return ST_INVALID;
    for (uint32_t i = 1; i < n; i++) {
        bool is_known = *tag < N_TAGS && i < tags[*tag].n_fields;

        if (read_field(e, is_known ? tags[*tag].fields[i] : F_OTHER, r, tag) != ST_OK)
            return ST_INVALID;
    }
    return ST_OK;
}

/* ST_OK with *tag == N_TAGS: well formed, of an unknown kind. */
static enum status read_event(struct kv_event *e, struct msgpack_reader *r, uint32_t *tag) {
    struct msgpack_value v;
    enum status st = ST_INVALID;

    *tag = N_TAGS;
    *e = (struct kv_event){.tier = KV_DEVICE, .group = KV_GROUP_NONE, .is_full = true};
    if (msgpack_next(r, &v) != ST_OK) return ST_INVALID;
    if (v.type == MSGPACK_MAP && v.n <= FIELDS_MAX) st = read_map(e, r, v.n, tag);
    if (v.type == MSGPACK_ARRAY && v.n <= FIELDS_MAX) st = read_array(e, r, v.n, tag);
    if (st != ST_OK || *tag == N_TAGS) return st;
    e->kind = tags[*tag].kind;
    return e->kind == KV_STORED && e->block_tokens == 0 ? ST_INVALID : ST_OK;
}

enum status kv_batch_next(struct kv_batch *b, struct kv_event *out) {
    for (; b->n_left > 0; b->n_left--) {
        struct msgpack_reader r = b->at;
        uint32_t tag;

        if (read_event(out, &r, &tag) != ST_OK) {
            b->n_malformed++;
            if (msgpack_skip(&b->at) != ST_OK) return ST_INVALID;
        } else if (tag == N_TAGS) {
            b->n_unknown++;
            b->at = r;
        } else {
            b->at = r;
            b->n_left--;
            return ST_OK;
        }
    }
    return ST_NOT_FOUND;
}

/* --- batches ---------------------------------------------------------------------------------- */

/* Steps to the value of "events". */
static enum status find_events(struct msgpack_reader *r, uint32_t n_pairs) {
    struct msgpack_value name;

    for (uint32_t i = 0; i < n_pairs; i++) {
        if (msgpack_expect(r, MSGPACK_STR, &name) != ST_OK) return ST_INVALID;
        if (str_eq(name.bytes, STR("events"))) return ST_OK;
        if (msgpack_skip(r) != ST_OK) return ST_INVALID;
    }
    return ST_INVALID;
}

enum status kv_batch_open(struct kv_batch *out, struct str payload) {
    struct msgpack_reader r = msgpack_reader_of(payload);
    struct msgpack_value v;
    enum status st = ST_INVALID;

    if (msgpack_next(&r, &v) != ST_OK) return ST_INVALID;
    if (v.type == MSGPACK_MAP && v.n <= FIELDS_MAX) st = find_events(&r, v.n);
    if (v.type == MSGPACK_ARRAY && v.n >= 2) st = msgpack_skip(&r); /* the time */
    if (st != ST_OK || msgpack_expect(&r, MSGPACK_ARRAY, &v) != ST_OK) return ST_INVALID;
    *out = (struct kv_batch){.at = r, .n_left = v.n};
    return ST_OK;
}

static uint64_t hash_of(const struct msgpack_value *v) {
    uint64_t hash = 0;

    if (v->type == MSGPACK_U64) return v->u64;
    if (v->type == MSGPACK_I64) return (uint64_t)v->i64;
    for (size_t i = v->bytes.len - 8; i < v->bytes.len; i++)
        hash = hash << 8 | (uint8_t)v->bytes.ptr[i];
    return hash;
}

bool kv_event_hash(struct kv_event *e, uint64_t *hash, bool *is_gone) {
    struct msgpack_value v;

    if (e->n_hashes == 0 || msgpack_next(&e->hashes, &v) != ST_OK) return false;
    e->n_hashes--;
    *hash = hash_of(&v);
    *is_gone = true;
    if (e->n_copies == 0) return true;
    e->n_copies--;
    if (msgpack_next(&e->copies, &v) == ST_OK) *is_gone = v.type != MSGPACK_U64 || v.u64 == 0;
    return true;
}

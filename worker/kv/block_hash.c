/* worker/kv/block_hash.c - canonical CBOR (RFC 8949, section 4.2.1) of one block, and its digest.
 *
 * Only four kinds of CBOR item occur: byte string, text string, integer, array; each begins with a
 * head of one to five bytes, the shortest that holds its number. */
#include "worker/kv/block_hash.h"

#include "common/hash.h"
#include "common/mem.h"

#include <assert.h>
#include <string.h>

#define CBOR_HEAD_MAX 5
#define CBOR_NULL     0xf6
enum cbor_major {
    CBOR_UINT = 0x00,
    CBOR_NEGATIVE = 0x20,
    CBOR_BYTES = 0x40,
    CBOR_TEXT = 0x60,
    CBOR_ARRAY = 0x80
};

#define DEFAULT_SEED      "vllm-none-hash"
#define RANDOM_SEED_BYTES 32

struct block_hasher {
    enum block_hash_algo algo;
    uint32_t block_size, truncate_bits;
    struct hash_key key; /* xxh3_128 */
    struct sha256 *sha;  /* sha256_cbor, and digests of extra keys */
    struct block_hash root;
    uint8_t *message; /* scratch: what is hashed for one block */
};

static const struct {
    const char *name;
    enum block_hash_algo algo;
    bool is_alias;
} algo_names[] = {
    {"xxh3_128", BLOCK_HASH_XXH3_128, false},       {"sha256_cbor", BLOCK_HASH_SHA256_CBOR, false},
    {"xxhash_cbor", BLOCK_HASH_XXHASH_CBOR, false}, {"sha256", BLOCK_HASH_SHA256_CBOR, true},
    {"xxhash", BLOCK_HASH_XXHASH_CBOR, true},
};

enum status block_hash_algo_parse(struct str name, enum block_hash_algo *out, bool *is_alias,
                                  struct error *err) {
    for (size_t i = 0; i < ARRAY_LEN(algo_names); i++) {
        if (!str_eq(name, str_of(algo_names[i].name))) continue;
        *out = algo_names[i].algo;
        if (is_alias) *is_alias = algo_names[i].is_alias;
        return ST_OK;
    }
    return error_set(err, ST_INVALID,
                     "unknown prefix-caching hash '" STR_FMT
                     "': use xxh3_128, sha256_cbor or xxhash_cbor",
                     STR_ARG(name));
}

const char *block_hash_algo_name(enum block_hash_algo algo) {
    return algo_names[algo].name;
}

/* --- CBOR ------------------------------------------------------------------------------------ */

static uint8_t *cbor_head(uint8_t *p, enum cbor_major major, uint32_t value) {
    if (value < 24) {
        *p++ = (uint8_t)(major | value);
    } else if (value <= UINT8_MAX) {
        *p++ = (uint8_t)(major | 24);
        *p++ = (uint8_t)value;
    } else if (value <= UINT16_MAX) {
        *p++ = (uint8_t)(major | 25);
        *p++ = (uint8_t)(value >> 8);
        *p++ = (uint8_t)value;
    } else {
        uint32_t big_endian = __builtin_bswap32(value);

        *p++ = (uint8_t)(major | 26);
        memcpy(p, &big_endian, 4);
        p += 4;
    }
    return p;
}

static uint8_t *cbor_string(uint8_t *p, enum cbor_major major, const void *data, size_t n) {
    p = cbor_head(p, major, (uint32_t)n);
    memcpy(p, data, n);
    return p + n;
}

static uint8_t *cbor_text(uint8_t *p, struct str s) {
    return cbor_string(p, CBOR_TEXT, s.ptr, s.len);
}

static uint8_t *cbor_int(uint8_t *p, int64_t value) {
    if (value < 0) return cbor_head(p, CBOR_NEGATIVE, (uint32_t)(-1 - value));
    return cbor_head(p, CBOR_UINT, (uint32_t)value);
}

/* --- extra keys ------------------------------------------------------------------------------ */

bool block_extras_is_empty(const struct block_extras *x) {
    return !x || (x->lora.len == 0 && x->cache_salt.len == 0 && x->n_items == 0);
}

enum status block_extras_validate(const struct block_extras *x, struct error *err) {
    size_t n = CBOR_HEAD_MAX + x->lora.len + x->cache_salt.len + 2 * CBOR_HEAD_MAX;

    for (uint32_t i = 0; i < x->n_items; i++) {
        if (i > 0 && x->items[i].offset < x->items[i - 1].offset) {
            return error_set(err, ST_INVALID, "multimodal item %u at token %u precedes item %u", i,
                             x->items[i].offset, i - 1);
        }
        n += x->items[i].id.len + 3 * CBOR_HEAD_MAX;
    }
    if (n <= BLOCK_EXTRAS_MAX_BYTES) return ST_OK;
    return error_set(err, ST_TOO_LARGE,
                     "adapter name, cache_salt and item identifiers take %zu bytes, at most %u are "
                     "allowed: shorten them",
                     n, BLOCK_EXTRAS_MAX_BYTES);
}

static uint64_t item_end(const struct block_mm_item *item) {
    return (uint64_t)item->offset + item->n_tokens;
}

size_t block_extras_encode(const struct block_extras *x, uint32_t start, uint32_t end,
                           uint32_t *cursor, uint8_t *out) {
    bool has_lora = x->lora.len > 0, has_salt = x->cache_salt.len > 0 && start == 0;
    uint32_t first = *cursor, stop = first, n_items = 0;
    uint8_t *p = out;

    for (; stop < x->n_items && x->items[stop].offset < end; stop++) {
        n_items += item_end(&x->items[stop]) > start;
    }
    while (*cursor < stop && item_end(&x->items[*cursor]) <= end)
        (*cursor)++;
    if (!has_lora && !has_salt && n_items == 0) return 0;

    p = cbor_head(p, CBOR_ARRAY, has_lora + n_items + has_salt);
    if (has_lora) p = cbor_text(p, x->lora);
    for (uint32_t i = first; i < stop; i++) {
        if (item_end(&x->items[i]) <= start) continue;
        p = cbor_head(p, CBOR_ARRAY, 2);
        p = cbor_text(p, x->items[i].id);
        p = cbor_int(p, (int64_t)x->items[i].offset - start);
    }
    if (has_salt) p = cbor_text(p, x->cache_salt);
    return (size_t)(p - out);
}

/* --- the chain ------------------------------------------------------------------------------- */

static void digest_sha256(struct block_hasher *h, const uint8_t *data, size_t n,
                          struct block_hash *out) {
    sha256_begin(h->sha);
    sha256_add(h->sha, data, n);
    sha256_end(h->sha, out->bytes);
}

static void digest_xxh_canonical(const uint8_t *data, size_t n, struct block_hash *out) {
    memset(out, 0, sizeof(*out));
    hash_128_canonical(hash_128(data, n), out->bytes);
}

static void digest_xxh_keyed(const struct block_hasher *h, const uint8_t *data, size_t n,
                             struct block_hash *out) {
    struct hash128 x = hash_keyed_128(&h->key, data, n);

    memset(out, 0, sizeof(*out));
    memcpy(out->bytes, &x, sizeof(x));
}

static void digest(struct block_hasher *h, const uint8_t *data, size_t n, struct block_hash *out) {
    switch (h->algo) {
    case BLOCK_HASH_XXH3_128: digest_xxh_keyed(h, data, n, out); break;
    case BLOCK_HASH_SHA256_CBOR: digest_sha256(h, data, n, out); break;
    case BLOCK_HASH_XXHASH_CBOR: digest_xxh_canonical(data, n, out); break;
    }
    if (UNLIKELY(h->truncate_bits)) {
        out->bytes[0] &= (uint8_t)((1u << h->truncate_bits) - 1);
        memset(out->bytes + 1, 0, sizeof(out->bytes) - 1);
    }
}

static size_t parent_bytes(const struct block_hasher *h) {
    return h->algo == BLOCK_HASH_SHA256_CBOR ? SHA256_BYTES : sizeof(struct hash128);
}

static void root_from_seed(struct block_hasher *h, struct str seed) {
    uint8_t random[RANDOM_SEED_BYTES];
    uint8_t *message;

    if (!seed.ptr && h->algo == BLOCK_HASH_SHA256_CBOR) seed = STR(DEFAULT_SEED);
    if (!seed.ptr) {
        hash_random(random, sizeof(random));
        seed = (struct str){(const char *)random, sizeof(random)};
    }
    hash_key_init(&h->key, seed.ptr, seed.len);
    message = mem_alloc(CBOR_HEAD_MAX + seed.len);
    digest(h, message, (size_t)(cbor_text(message, seed) - message), &h->root);
    mem_free(message);
}

struct block_hasher *block_hasher_create(const struct block_hasher_config *config) {
    struct block_hasher *h = mem_zalloc(sizeof(*h));
    size_t token_bytes = (size_t)config->block_size * CBOR_HEAD_MAX;

    assert(config->block_size >= 1 && config->truncate_bits <= 8);
    h->algo = config->algo;
    h->block_size = config->block_size;
    h->truncate_bits = config->truncate_bits;
    h->sha = sha256_create();
    h->message =
        mem_alloc(3 * CBOR_HEAD_MAX + BLOCK_HASH_BYTES + token_bytes + BLOCK_EXTRAS_MAX_BYTES);
    root_from_seed(h, config->seed);
    return h;
}

void block_hasher_destroy(struct block_hasher *h) {
    if (!h) return;
    sha256_destroy(h->sha);
    mem_free(h->message);
    mem_free(h);
}

struct block_hash block_hasher_root(const struct block_hasher *h) {
    return h->root;
}

void block_hasher_digest(struct block_hasher *h, const uint8_t *extra, size_t n,
                         struct block_hash *out) {
    digest_sha256(h, extra, n, out);
}

static uint8_t *encode_cbor(const struct block_hasher *h, const struct block_hash *parent,
                            const uint32_t *tokens) {
    uint8_t *p = cbor_head(h->message, CBOR_ARRAY, 3);

    p = cbor_string(p, CBOR_BYTES, parent->bytes, parent_bytes(h));
    p = cbor_head(p, CBOR_ARRAY, h->block_size);
    for (uint32_t i = 0; i < h->block_size; i++)
        p = cbor_head(p, CBOR_UINT, tokens[i]);
    return p;
}

/* The same three parts without heads: the first two have a fixed size. */
static uint8_t *encode_plain(const struct block_hasher *h, const struct block_hash *parent,
                             const uint32_t *tokens) {
    size_t n_parent = parent_bytes(h), n_tokens = h->block_size * sizeof(*tokens);

    memcpy(h->message, parent->bytes, n_parent);
    memcpy(h->message + n_parent, tokens, n_tokens);
    return h->message + n_parent + n_tokens;
}

void block_hasher_next(struct block_hasher *h, const struct block_hash *parent,
                       const uint32_t *tokens, const uint8_t *extra, size_t n_extra,
                       struct block_hash *out) {
    bool is_cbor = h->algo != BLOCK_HASH_XXH3_128;
    uint8_t *p = is_cbor ? encode_cbor(h, parent, tokens) : encode_plain(h, parent, tokens);

    assert(n_extra <= BLOCK_EXTRAS_MAX_BYTES);
    if (n_extra > 0) {
        memcpy(p, extra, n_extra);
        p += n_extra;
    } else if (is_cbor) {
        *p++ = CBOR_NULL;
    }
    digest(h, h->message, (size_t)(p - h->message), out);
}

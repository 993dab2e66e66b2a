/* worker/kv/block/block_hash.c - canonical CBOR (RFC 8949, section 4.2.1) of one block, and its
 * digest.
 *
 * Only four kinds of CBOR item occur: byte string, text string, integer, array; each begins with a
 * head of one to five bytes, the shortest that holds its number. */
#include "worker/kv/block/block_hash.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"

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
    uint8_t *message;   /* scratch: what is hashed for one block */
    uint8_t *parent_at; /* the CBOR forms: where in it the parent goes, */
    size_t n_frame;     /* and how many bytes come before the first token; the others stay */
};

const char *block_hash_algo_name(enum block_hash_algo algo) {
    static const char *const names[] = {"xxh3_128", "sha256_cbor", "xxhash_cbor"};

    return names[algo];
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

/* How an integer of 24 or more is written, by the number of its highest bit. */
static const struct {
    uint8_t head, n_bytes, shift;
} cbor_widths[32] = {
    [0 ... 7] = {CBOR_UINT | 24, 2, 24},
    [8 ... 15] = {CBOR_UINT | 25, 3, 16},
    [16 ... 31] = {CBOR_UINT | 26, 5, 0},
};

/* cbor_head of a token id with one predictable branch: ids have all widths in no order, and to
 * guess the width wrong costs more than the digest. Writes eight bytes; the next item overwrites
 * those that are too much. */
static inline uint8_t *cbor_token(uint8_t *p, uint32_t token) {
    unsigned bit = 31 - (unsigned)__builtin_clz(token | 1);
    uint64_t number = __builtin_bswap32(token << cbor_widths[bit].shift);
    uint64_t word = htole64(cbor_widths[bit].head | number << 8);

    if (UNLIKELY(token < 24)) {
        *p = (uint8_t)token;
        return p + 1;
    }
    memcpy(p, &word, sizeof(word));
    return p + cbor_widths[bit].n_bytes;
}

static uint8_t *cbor_text(uint8_t *p, struct str s) {
    p = cbor_head(p, CBOR_TEXT, (uint32_t)s.len);
    memcpy(p, s.ptr, s.len);
    return p + s.len;
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
        if (x->items[i].id.len == 0) {
            return error_set(err, ST_INVALID, "multimodal item %u has no identifier: give one", i);
        }
        if (i > 0 && x->items[i].offset < x->items[i - 1].offset) {
            return error_set(
                err, ST_INVALID,
                "multimodal item %u at token %u precedes item %u: sort the items by position", i,
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

static struct hash128 get_128(const struct block_hash *h) {
    struct hash128 x;

    memcpy(&x, h->bytes, sizeof(x));
    return x;
}

static void put_128(struct block_hash *out, struct hash128 x) {
    memcpy(out->bytes, &x, sizeof(x));
    memset(out->bytes + sizeof(x), 0, sizeof(out->bytes) - sizeof(x));
}

static void digest_sha256(struct block_hasher *h, const uint8_t *data, size_t n,
                          struct block_hash *out) {
    sha256_begin(h->sha);
    sha256_add(h->sha, data, n);
    sha256_end(h->sha, out->bytes);
}

static void digest_xxh_canonical(const uint8_t *data, size_t n, struct block_hash *out) {
    *out = (struct block_hash){0};
    hash_128_canonical(hash_128(data, n), out->bytes);
}

static void truncate_hash(const struct block_hasher *h, struct block_hash *out) {
    if (LIKELY(h->truncate_bits == 0)) return;
    out->bytes[0] &= (uint8_t)((1u << h->truncate_bits) - 1);
    memset(out->bytes + 1, 0, sizeof(out->bytes) - 1);
}

/* The root is the digest of the seed as a CBOR text; the fast hash takes it under its key. */
static void root_from_seed(struct block_hasher *h, const struct block_hasher_config *config) {
    uint8_t random[RANDOM_SEED_BYTES];
    struct str seed = config->seed;
    struct buf text;
    uint8_t *message;
    size_t n;

    if (!seed.ptr && h->algo == BLOCK_HASH_SHA256_CBOR) seed = STR(DEFAULT_SEED);
    if (!seed.ptr) {
        hash_random(random, sizeof(random));
        seed = (struct str){(const char *)random, sizeof(random)};
    }
    buf_init(&text, 0);
    if (config->kind.len > 0) {
        buf_append_str(&text, seed);
        buf_append_str(&text, STR("+"));
        buf_append_str(&text, config->kind);
        seed = buf_str(&text);
    }
    hash_key_init(&h->key, seed.ptr, seed.len);
    message = mem_alloc(CBOR_HEAD_MAX + seed.len);
    n = (size_t)(cbor_text(message, seed) - message);
    switch (h->algo) {
    case BLOCK_HASH_XXH3_128: put_128(&h->root, hash_keyed_128(&h->key, message, n)); break;
    case BLOCK_HASH_SHA256_CBOR: digest_sha256(h, message, n, &h->root); break;
    case BLOCK_HASH_XXHASH_CBOR: digest_xxh_canonical(message, n, &h->root); break;
    }
    truncate_hash(h, &h->root);
    mem_free(message);
    buf_fini(&text);
}

static void write_frame(struct block_hasher *h) {
    uint32_t n_parent = h->algo == BLOCK_HASH_SHA256_CBOR ? SHA256_BYTES : 16;
    uint8_t *p = cbor_head(h->message, CBOR_ARRAY, 3);

    h->parent_at = cbor_head(p, CBOR_BYTES, n_parent);
    p = cbor_head(h->parent_at + n_parent, CBOR_ARRAY, h->block_size);
    h->n_frame = (size_t)(p - h->message);
}

struct block_hasher *block_hasher_create(const struct block_hasher_config *config) {
    struct block_hasher *h = mem_zalloc(sizeof(*h));
    size_t token_bytes = (size_t)config->block_size * CBOR_HEAD_MAX;

    assert(config->block_size >= 1 && config->truncate_bits <= 8);
    h->algo = config->algo;
    h->block_size = config->block_size;
    h->truncate_bits = config->truncate_bits;
    h->sha = sha256_create();
    h->message = mem_alloc(3 * CBOR_HEAD_MAX + BLOCK_HASH_BYTES + token_bytes + sizeof(uint64_t) +
                           BLOCK_EXTRAS_MAX_BYTES);
    root_from_seed(h, config);
    write_frame(h);
    return h;
}

void block_hasher_destroy(struct block_hasher *h) {
    if (!h) return;
    sha256_destroy(h->sha);
    mem_free(h->message);
    mem_free(h);
}

const struct block_hash *block_hasher_root(const struct block_hasher *h) {
    return &h->root;
}

void block_hasher_digest(struct block_hasher *h, const uint8_t *extra, size_t n,
                         struct block_hash *out) {
    digest_sha256(h, extra, n, out);
}

/* H(parent, H(tokens, extra keys)): the inner hash reads the tokens where they are, and does not
 * wait for the parent's. */
static struct hash128 next_xxh3(struct block_hasher *h, struct hash128 parent,
                                const uint32_t *tokens, const uint8_t *extra, size_t n_extra) {
    size_t n_tokens = h->block_size * sizeof(*tokens);
    const void *content = tokens;

    if (n_extra > 0) {
        content = h->message;
        memcpy(h->message, tokens, n_tokens);
        memcpy(h->message + n_tokens, extra, n_extra);
    }
    return hash_keyed_128_pair(&h->key, parent,
                               hash_keyed_128(&h->key, content, n_tokens + n_extra));
}

static void next_cbor(struct block_hasher *h, const struct block_hash *parent,
                      const uint32_t *tokens, const uint8_t *extra, size_t n_extra,
                      struct block_hash *out) {
    uint8_t *p = h->message + h->n_frame;
    size_t n;

    if (h->algo == BLOCK_HASH_SHA256_CBOR)
        memcpy(h->parent_at, parent->bytes, 32);
    else
        memcpy(h->parent_at, parent->bytes, 16);
    for (uint32_t i = 0; i < h->block_size; i++)
        p = cbor_token(p, tokens[i]);
    if (n_extra > 0) {
        memcpy(p, extra, n_extra);
        p += n_extra;
    } else {
        *p++ = CBOR_NULL;
    }
    n = (size_t)(p - h->message);
    if (h->algo == BLOCK_HASH_SHA256_CBOR)
        digest_sha256(h, h->message, n, out);
    else
        digest_xxh_canonical(h->message, n, out);
}

void block_hasher_next(struct block_hasher *h, const struct block_hash *parent,
                       const uint32_t *tokens, const uint8_t *extra, size_t n_extra,
                       struct block_hash *out) {
    assert(n_extra <= BLOCK_EXTRAS_MAX_BYTES);
    if (h->algo == BLOCK_HASH_XXH3_128) {
        put_128(out, next_xxh3(h, get_128(parent), tokens, extra, n_extra));
    } else {
        next_cbor(h, parent, tokens, extra, n_extra, out);
    }
    truncate_hash(h, out);
}

void block_hasher_run(struct block_hasher *h, const struct block_hash *parent,
                      const uint32_t *tokens, uint32_t n_blocks, struct block_hash *out) {
    struct hash128 x = get_128(parent);

    if (h->algo == BLOCK_HASH_XXH3_128 && h->truncate_bits == 0) {
        for (uint32_t i = 0; i < n_blocks; i++) { /* each link from register to register */
            x = next_xxh3(h, x, tokens + (size_t)i * h->block_size, NULL, 0);
            put_128(&out[i], x);
        }
        return;
    }
    for (uint32_t i = 0; i < n_blocks; i++) {
        block_hasher_next(h, i > 0 ? &out[i - 1] : parent, tokens + (size_t)i * h->block_size, NULL,
                          0, &out[i]);
    }
}

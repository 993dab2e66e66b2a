/* router/prompt/prompt_hash.c - each field of the scope is hashed with its position and length, so
 * that different scopes never yield equal bytes. */
#include "router/prompt/prompt_hash.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/rng.h"
#include "router/prompt/body_scan.h"
#include "router/prompt/prompt_text.h"

#define HASHING_VERSION 1 /* changes when equal bytes get different hashes */

static struct str first_of(const struct body_scan *scan, enum body_key a, enum body_key b) {
    return scan->spans[a].ptr ? scan->spans[a] : scan->spans[b];
}

struct prompt_scope prompt_scope_of(const struct body_scan *scan) {
    return (struct prompt_scope){
        .model = scan->spans[BODY_MODEL],
        .adapter = first_of(scan, BODY_LORA_PATH, BODY_ADAPTER),
        .tools = scan->spans[BODY_TOOLS],
        .cache_salt = first_of(scan, BODY_CACHE_SALT, BODY_EXTRA_KEY),
    };
}

uint64_t prompt_hash_seed(const struct prompt_scope *scope, uint64_t secret) {
    const struct str fields[] = {scope->model, scope->adapter, scope->tools, scope->cache_salt,
                                 scope->tenant};
    uint64_t h = rng_mix(secret);

    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        if (fields[i].len)
            h = hash_64(fields[i].ptr, fields[i].len, rng_mix(h ^ (fields[i].len << 8 | i)));
    }
    return h;
}

uint64_t prompt_hash_seed_memo(struct prompt_seed_memo *memo, const struct prompt_scope *scope,
                               uint64_t secret) {
    bool is_plain =
        !(scope->adapter.len | scope->tools.len | scope->cache_salt.len | scope->tenant.len);

    if (!is_plain || scope->model.len > PROMPT_MEMO_MODEL_MAX)
        return prompt_hash_seed(scope, secret);
    if (!memo->is_set || !str_eq((struct str){memo->model, memo->model_len}, scope->model)) {
        *memo = (struct prompt_seed_memo){.is_set = true, .model_len = scope->model.len};
        if (scope->model.len) memcpy(memo->model, scope->model.ptr, scope->model.len);
        memo->seed = prompt_hash_seed(scope, secret);
    }
    return memo->seed;
}

uint64_t prompt_hash_scheme(uint64_t secret, uint32_t block_bytes) {
    uint64_t parts[] = {secret, block_bytes, HASHING_VERSION};

    return hash_64(parts, sizeof(parts), 0) | 1; /* 0: none */
}

uint32_t prompt_hash_n_blocks(size_t n, uint32_t block_bytes, uint32_t max_blocks) {
    size_t n_blocks = n / block_bytes + (n % block_bytes != 0);

    return (uint32_t)MIN(n_blocks, (size_t)max_blocks);
}

/* --- the chain -------------------------------------------------------------------------------- */

void prompt_hasher_init(struct prompt_hasher *c, uint64_t seed, uint32_t block_bytes,
                        uint64_t *chain, uint32_t n_max) {
    hash_key_from_seed(&c->key, seed);
    c->hash = seed;
    c->chain = chain;
    c->n_max = n_max;
    c->block_bytes = block_bytes;
    c->n_blocks = c->n_in_block = c->n_kept = 0;
    c->n_bytes = 0;
}

/* A piece, which ends with the block or before it. */
static void add_piece(struct prompt_hasher *c, const char *p, uint32_t n) {
    c->hash = rng_mix(c->hash ^ hash_keyed_64(&c->key, p, n));
    c->n_in_block += n;
    if (c->n_in_block < c->block_bytes) return;
    c->chain[c->n_blocks++] = c->hash & PROMPT_HASH_MASK;
    c->n_in_block = 0;
}

/* Whole blocks, where one begins: how many bytes of `bytes` they have. */
static size_t add_blocks(struct prompt_hasher *c, struct str bytes) {
    size_t n_whole = MIN(bytes.len / c->block_bytes, (size_t)(c->n_max - c->n_blocks));
    const char *p = bytes.ptr;
    uint64_t h = c->hash;

    for (size_t i = 0; i < n_whole; i++) {
        for (size_t left = c->block_bytes, n; left; left -= n, p += n) {
            n = MIN(left, (size_t)PROMPT_PIECE_BYTES);
            h = rng_mix(h ^ hash_keyed_64(&c->key, p, n));
        }
        c->chain[c->n_blocks++] = h & PROMPT_HASH_MASK;
    }
    c->hash = h;
    return n_whole * c->block_bytes;
}

/* Keeps bytes until a piece of `want` is whole. */
static size_t keep_bytes(struct prompt_hasher *c, struct str bytes, uint32_t want) {
    uint32_t n = (uint32_t)MIN(bytes.len, (size_t)(want - c->n_kept));

    memcpy(c->kept + c->n_kept, bytes.ptr, n);
    c->n_kept += n;
    if (c->n_kept == want) {
        c->n_kept = 0;
        add_piece(c, c->kept, want);
    }
    return n;
}

/* Some of the bytes, at least one: how many. */
static size_t add_some(struct prompt_hasher *c, struct str bytes) {
    uint32_t want = MIN(c->block_bytes - c->n_in_block, PROMPT_PIECE_BYTES);

    if (c->n_kept || bytes.len < want) return keep_bytes(c, bytes, want);
    if (!c->n_in_block && bytes.len >= c->block_bytes) return add_blocks(c, bytes);
    add_piece(c, bytes.ptr, want);
    return want;
}

void prompt_hasher_add(struct prompt_hasher *c, struct str bytes) {
    c->n_bytes += bytes.len;
    while (bytes.len && c->n_blocks < c->n_max) {
        size_t n = add_some(c, bytes);

        bytes.ptr += n;
        bytes.len -= n;
    }
}

uint32_t prompt_hasher_end(struct prompt_hasher *c) {
    if (c->n_kept) c->hash = rng_mix(c->hash ^ hash_keyed_64(&c->key, c->kept, c->n_kept));
    if (c->n_kept || c->n_in_block) c->chain[c->n_blocks++] = c->hash & PROMPT_HASH_MASK;
    c->n_kept = c->n_in_block = 0;
    return c->n_blocks;
}

void prompt_hash_chain(struct str prompt, uint64_t seed, uint32_t block_bytes, uint64_t *chain,
                       uint32_t n_blocks) {
    struct prompt_hasher c;

    assert(prompt_hash_n_blocks(prompt.len, block_bytes, n_blocks) == n_blocks);
    prompt_hasher_init(&c, seed, block_bytes, chain, n_blocks);
    prompt_hasher_add(&c, prompt);
    prompt_hasher_end(&c);
}

static void take_piece(void *arg, struct str piece) {
    prompt_hasher_add(arg, piece);
}

void prompt_hash_text(const struct prompt_text *text, uint64_t seed, uint32_t block_bytes,
                      uint64_t *chain, uint32_t n_max, struct prompt_hashed *out) {
    struct prompt_hasher c;

    prompt_hasher_init(&c, seed, block_bytes, chain, n_max);
    out->n_system = prompt_text_read(text, take_piece, &c);
    out->n_blocks = prompt_hasher_end(&c);
    out->n_bytes = c.n_bytes;
}

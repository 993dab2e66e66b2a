/* router/prompt/prompt_hash.c - each field of the scope is hashed with its position and length, so
 * that different scopes never yield equal bytes. */
#include "router/prompt/prompt_hash.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/rng.h"
#include "router/prompt/body_scan.h"

#define HASHING_VERSION 1   /* changes when equal bytes get different hashes */
#define PIECE_BYTES     128 /* the longest that XXH3 hashes in one straight line */

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

void prompt_hash_chain(struct str prompt, uint64_t seed, uint32_t block_bytes, uint64_t *chain,
                       uint32_t n_blocks) {
    const char *p = prompt.ptr;
    struct hash_key key;
    uint64_t h = seed;

    assert(prompt_hash_n_blocks(prompt.len, block_bytes, n_blocks) == n_blocks);
    hash_key_from_seed(&key, seed);
    for (uint32_t i = 0; i < n_blocks; i++) {
        size_t left = MIN(prompt.len - (size_t)i * block_bytes, (size_t)block_bytes);

        for (size_t n; left; left -= n, p += n) {
            n = MIN(left, (size_t)PIECE_BYTES);
            h = rng_mix(h ^ hash_keyed_64(&key, p, n));
        }
        chain[i] = h & PROMPT_HASH_MASK;
    }
}

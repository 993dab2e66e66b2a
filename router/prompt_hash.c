/* router/prompt_hash.c - each field of the scope enters with its length, so that no two scopes
 * are the same bytes differently cut. */
#include "router/prompt_hash.h"

#include "common/hash.h"
#include "common/rng.h"

#include <assert.h>

uint64_t prompt_hash_seed(const struct prompt_scope *scope, uint64_t secret) {
    const struct str fields[] = {scope->model, scope->adapter, scope->tools, scope->cache_salt,
                                 scope->tenant};
    uint64_t h = rng_mix(secret);

    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        h = hash_64(fields[i].ptr ? fields[i].ptr : "", fields[i].len, rng_mix(h ^ fields[i].len));
    return h;
}

uint32_t prompt_hash_n_blocks(size_t n, uint32_t block_bytes, uint32_t max_blocks) {
    size_t n_blocks = n / block_bytes + (n % block_bytes != 0);

    return (uint32_t)MIN(n_blocks, (size_t)max_blocks);
}

void prompt_hash_chain(struct str prompt, uint64_t seed, uint32_t block_bytes, uint64_t *chain,
                       uint32_t n_blocks) {
    const char *p = prompt.ptr;
    uint64_t h = seed;

    assert(prompt_hash_n_blocks(prompt.len, block_bytes, n_blocks) == n_blocks);
    for (uint32_t i = 0; i < n_blocks; i++) {
        size_t left = prompt.len - (size_t)i * block_bytes;

        chain[i] = h = hash_64(p + (size_t)i * block_bytes, MIN(left, (size_t)block_bytes), h);
    }
}

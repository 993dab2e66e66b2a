/* tests/support/unit_fixture.h - blocks of chains made from numbers, for tests of units and
 * tiers. */
#ifndef TESTS_SUPPORT_UNIT_FIXTURE_H
#define TESTS_SUPPORT_UNIT_FIXTURE_H

#include <string.h>

#include "common/base/rng.h"
#include "worker/kv/tiers/unit.h"

#define UNIT_TEST_TOKENS 16

struct unit_block {
    struct unit_identity id; /* its tokens are `tokens` */
    uint32_t tokens[UNIT_TEST_TOKENS];
};

/* The block behind `parent`: block at - 1 of the chain, or the root. A block that was made may not
 * be copied: its identity points into it. */
static inline void unit_block_follow(struct unit_block *b, const struct unit_key *parent,
                                     const uint8_t *fleet_key, uint64_t chain, uint32_t at) {
    struct unit_key before = *parent;

    memset(b, 0, sizeof(*b));
    for (uint32_t t = 0; t < UNIT_TEST_TOKENS; t++)
        b->tokens[t] = (uint32_t)(rng_at(chain, at * UNIT_TEST_TOKENS + t) % 50000);
    b->id.parent = before;
    unit_chain_next(fleet_key, &before, b->tokens, UNIT_TEST_TOKENS, b->id.extras, &b->id.key);
    b->id.position = at * UNIT_TEST_TOKENS;
    b->id.n_tokens = UNIT_TEST_TOKENS;
    b->id.tokens = b->tokens;
}

/* Block `at` of chain `chain`, whose salt is none. */
static inline void unit_block_make(struct unit_block *b, const uint8_t *fleet_key,
                                   const uint8_t fingerprint[UNIT_DIGEST_BYTES], uint64_t chain,
                                   uint32_t at) {
    uint8_t salt[UNIT_KEY_BYTES] = {0};

    unit_chain_root(fleet_key, fingerprint, salt, &b->id.key);
    for (uint32_t i = 0; i <= at; i++)
        unit_block_follow(b, &b->id.key, fleet_key, chain, i);
}

/* The bytes that this content has, wherever it was computed. */
static inline void unit_block_fill(const struct unit_block *b, void *payload, size_t n) {
    uint64_t seed = 0, word;
    uint8_t *to = payload;

    memcpy(&seed, b->id.key.bytes, sizeof(seed));
    for (size_t i = 0; i < n; i += sizeof(word)) {
        word = rng_at(seed, i);
        memcpy(to + i, &word, n - i < sizeof(word) ? n - i : sizeof(word));
    }
}

#endif

/* router/routing/policy/simhash.c - similar prompts have a common home, without remembering any.
 *
 * Follows the proposal in the prefix-routing RFC of production-stack (issue 59; AIBrix issue 672
 * is its sister): a SimHash of the prompt as the key of a consistent-hash ring. SimHash: Charikar,
 * Similarity Estimation Techniques from Rounding Algorithms, 2002. Each shingle of the prompt
 * votes with the bits of its hash on the bits of the result, so that prompts which share most
 * shingles differ in few bits.
 *
 * Here a shingle is a block, and its hash is that of the chain: two prompts share exactly the
 * votes of their common opening. The first 128 blocks vote (32 KiB), on the top 8 bits alone, and
 * these are the key: prompts that agree in them meet. Two that share 100 of 102 blocks do so two
 * times in three, strangers one time in 256. The ring and its load bound are those of chwbl
 * (--prefix-hash-load-factor 1.25, --chwbl-replication 256).
 *
 * Differs: the RFC shingles characters and fixes neither the number of bits nor a load bound.
 * Known weakness, reported there too: a long common system prompt outvotes everything else and
 * sends all to one home; the bound then spreads them blindly. */
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/routing/policy/choose.h"
#include "router/routing/policy/hash_ring.h"

#define SIMHASH_BLOCKS   128
#define SIMHASH_KEY_BITS 8

struct simhash {
    struct hash_ring *ring;
    double bounded_load;
};

static void simhash_configure(void *self, const struct policy_options *options) {
    struct simhash *p = self;

    p->bounded_load = options->bounded_load;
}

static void *simhash_create(const struct policy_options *options, uint32_t n_workers) {
    struct simhash *p = mem_zalloc(sizeof(*p));

    simhash_configure(p, options);
    p->ring = hash_ring_create(n_workers, options->ring_replication);
    if (p->ring) return p;
    mem_free(p);
    return NULL;
}

static void simhash_destroy(void *self) {
    struct simhash *p = self;

    hash_ring_destroy(p->ring);
    mem_free(p);
}

/* Bit b of the key is set when more than half of the blocks have it set. */
static uint64_t simhash_key(const uint64_t *chain, uint32_t n) {
    uint32_t votes[SIMHASH_KEY_BITS] = {0};
    uint64_t key = 0;

    n = MIN(n, (uint32_t)SIMHASH_BLOCKS);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t b = 0; b < SIMHASH_KEY_BITS; b++)
            votes[b] += (uint32_t)(chain[i] >> (63 - b)) & 1;
    }
    for (uint32_t b = 0; b < SIMHASH_KEY_BITS; b++)
        key |= (uint64_t)(2 * votes[b] > n) << b;
    return key;
}

static uint32_t simhash_pick(void *self, const struct route_request *rq,
                             const struct policy_view *view, struct policy_term *terms) {
    struct simhash *p = self;
    uint64_t key = rq->n_blocks ? simhash_key(rq->chain, rq->n_blocks) : rq->session_key;

    choose_mark(view, terms);
    return hash_ring_find(p->ring, rng_mix(key), view, p->bounded_load);
}

static void simhash_worker_up(void *self, uint32_t w, const struct worker_spec *spec) {
    hash_ring_add(((struct simhash *)self)->ring, w, spec->identity);
}

static void simhash_worker_down(void *self, uint32_t w) {
    hash_ring_remove(((struct simhash *)self)->ring, w);
}

const struct policy_ops policy_simhash = {
    .name = "simhash",
    .create = simhash_create,
    .destroy = simhash_destroy,
    .configure = simhash_configure,
    .pick = simhash_pick,
    .worker_up = simhash_worker_up,
    .worker_down = simhash_worker_down,
};

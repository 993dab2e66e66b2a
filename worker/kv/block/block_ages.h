/* worker/kv/block/block_ages.h - how long blocks stay in the cache, and how long they stay unused.
 *
 * Three times are measured for a sample of the blocks that are handed out:
 *
 *      acquired          hit         hit                evicted
 *      |-----------------|-----------|------------------|
 *                        | reuse gap |  idle            |
 *      | lifetime                                       |
 *
 * Long lifetimes and short gaps mean that the cache could be smaller; idle times hardly longer than
 * the gaps mean that it evicts blocks that would have been hit again. Names and meanings are
 * vLLM's, with one difference: a gap is observed when it ends, not at eviction, so blocks that are
 * never evicted count too.
 *
 * Whether a residency is in the sample depends only on the block's number and on how often it was
 * handed out: equal calls give equal samples. 24 bytes per block, allocated at creation. Thread:
 * engine. */
#ifndef WORKER_KV_BLOCK_BLOCK_AGES_H
#define WORKER_KV_BLOCK_BLOCK_AGES_H

#include "common/base/base.h"

enum block_age {
    BLOCK_AGE_LIFETIME,  /* handed out until evicted */
    BLOCK_AGE_IDLE,      /* last hit, or handed out, until evicted */
    BLOCK_AGE_REUSE_GAP, /* between two hits */
};

struct block_ages_config {
    double share; /* of the residencies, 0..1; 0: disabled */
    void (*on_age)(void *arg, enum block_age age, uint64_t us);
    void *arg;
};
struct block_ages;

struct block_ages *block_ages_create(uint32_t n_blocks, const struct block_ages_config *config);
void block_ages_destroy(struct block_ages *ages); /* NULL is fine */

/* The time of what follows. Monotonic microseconds. */
void block_ages_set_now(struct block_ages *ages, uint64_t now_us);

void block_ages_acquired(struct block_ages *ages, uint32_t block); /* its residency begins */
void block_ages_hit(struct block_ages *ages, uint32_t block);
void block_ages_evicted(struct block_ages *ages, uint32_t block); /* it held something findable */

/* Forgets the residencies under way: the cache was emptied. */
void block_ages_reset(struct block_ages *ages);

#endif

/* worker/kv/block/block_ages.h - how long blocks live in the cache, and how long they lie unused.
 *
 * Of a sample of the blocks handed out, three times are told:
 *
 *      acquired          hit         hit                evicted
 *      |-----------------|-----------|------------------|
 *                        | reuse gap |  idle            |
 *      | lifetime                                       |
 *
 * Long lives and short gaps say that the cache could be smaller; idle times that are hardly longer
 * than the gaps say that it evicts what would have been asked for again. The names and meanings are
 * vLLM's, but for one thing: a gap is told when it ends, not when its block is evicted, so that
 * blocks which are never evicted count too.
 *
 * Whether a life is in the sample depends on the block's number and how often it was handed out, on
 * nothing else: the same calls give the same sample. 24 bytes for each block, nothing later.
 * Thread: engine. */
#ifndef WORKER_KV_BLOCK_BLOCK_AGES_H
#define WORKER_KV_BLOCK_BLOCK_AGES_H

#include "common/base/base.h"

enum block_age {
    BLOCK_AGE_LIFETIME,  /* handed out until evicted */
    BLOCK_AGE_IDLE,      /* last hit, or handed out, until evicted */
    BLOCK_AGE_REUSE_GAP, /* between two hits */
};

struct block_ages_config {
    double share; /* of all lives that are followed, 0..1; 0: switched off */
    void (*on_age)(void *arg, enum block_age age, uint64_t us);
    void *arg;
};
struct block_ages;

struct block_ages *block_ages_create(uint32_t n_blocks, const struct block_ages_config *config);
void block_ages_destroy(struct block_ages *ages); /* NULL is fine */

/* The time of what follows. Monotonic microseconds. */
void block_ages_set_now(struct block_ages *ages, uint64_t now_us);

void block_ages_acquired(struct block_ages *ages, uint32_t block); /* a new life begins */
void block_ages_hit(struct block_ages *ages, uint32_t block);
void block_ages_evicted(struct block_ages *ages, uint32_t block); /* it held something findable */

/* The lives under way are forgotten: the cache was emptied. */
void block_ages_reset(struct block_ages *ages);

#endif

/* worker/kv/block/block_retain.h - cached blocks that clients have asked to keep for a time.
 *
 * A client marks the beginning of its prompt with a time to live. When a marked block is free it
 * waits on a ring of its time instead of the queue of the others, which are evicted first:
 *
 *      free blocks      | others ... | marked: the one first whose time is over soonest, | held
 *                       evicted first  as a share of that time
 *
 * A mark is a bias, not a pin: an allocation takes marked blocks when nothing else is free, and
 * counts them as free. It ends, and the block goes behind the others, when
 *
 *      expired     no request has hit it for its time: a hit starts the time again
 *      displaced   more marked blocks are free than the budget allows: the one goes that has been
 *                  idle for the largest share of its time
 *
 * Where all prompts are marked alike the whole is thus least recently used, as without marks. A
 * tenant's marks are at most half of the budget: what it marks beyond is not marked. (Tenants are
 * counted in RETAIN_TENANTS places by their hash; those of one place share its half.)
 *
 * Chains stay whole: a prompt is marked from its first block on, and for no shorter a time before
 * than behind; a request that holds a block holds those before it, and releases them later. So a
 * block's mark never ends before that of the block behind it.
 *
 * Held blocks (block_holds.h), marked or not, are taken when nothing else at all is free. They have
 * no time and no budget here: who holds them has both.
 *
 * The rings are those of the pool's free queue. Thread: engine; nothing is allocated after
 * creation. Time is an argument, monotonic. */
#ifndef WORKER_KV_BLOCK_BLOCK_RETAIN_H
#define WORKER_KV_BLOCK_BLOCK_RETAIN_H

#include "common/base/base.h"

struct free_queue;

enum retention { RETAIN_NONE, RETAIN_5M, RETAIN_30M, RETAIN_1H, RETAIN_12H, RETAIN_24H };
#define RETENTIONS     6          /* NONE included */
#define RETAIN_RINGS   RETENTIONS /* one for each time, and one of what is held */
#define RETAIN_TENANTS 64u

/* The longest that is not longer than that. */
enum retention retention_of_seconds(uint32_t ttl_s);

struct block_retain_stats {
    uint32_t n_free, n_max; /* marked blocks that are free, and the budget */
    uint64_t n_hit;         /* marked blocks that were hit while they were free */
    uint64_t n_expired;     /* marks that ended: after their time, */
    uint64_t n_displaced;   /* for the budget, */
    uint64_t n_evicted;     /* and because the block was needed, or the cache was reset */
    uint64_t n_refused;     /* blocks that were not marked, for their tenant's share */
};
struct block_retain;

/* `queue`: of the pool, with RETAIN_RINGS rings from first_ring on; borrowed. */
struct block_retain *block_retain_create(uint32_t n_blocks, uint32_t max_free,
                                         struct free_queue *queue, uint32_t first_ring);
void block_retain_destroy(struct block_retain *r); /* NULL is fine */

void block_retain_set_now(struct block_retain *r, uint64_t now_us);

/* Marks a block in use, for the longer of its time and this one. tenant 0: of no tenant. False:
 * the tenant has its share, and the block is not marked. */
bool block_retain_mark(struct block_retain *r, uint32_t id, enum retention time, uint64_t tenant);

/* A block that is not on the queue is held from now on, or no more. */
void block_retain_hold(struct block_retain *r, uint32_t id);
void block_retain_unhold(struct block_retain *r, uint32_t id);

/* A block has lost its last user: true, and it is on its ring, if it is marked or held. */
bool block_retain_push(struct block_retain *r, uint32_t id);

/* A free block is about to leave the queue: for a user, who hits it; or for another place there. */
void block_retain_hit(struct block_retain *r, uint32_t id);
void block_retain_leave(struct block_retain *r, uint32_t id);

/* A block that is in use, or off the queue, loses its mark with its content. */
void block_retain_forget(struct block_retain *r, uint32_t id);

/* Takes a free block whose mark has ended off its ring: FREE_QUEUE_NONE if there is none. Call it
 * until then, after block_retain_set_now and after block_retain_push. */
uint32_t block_retain_pop_ended(struct block_retain *r);

/* Takes the block that goes first off its ring: there must be one, marked or held. */
uint32_t block_retain_evict(struct block_retain *r);

/* Walks over the free blocks that are marked or held, a block before those that its chain has
 * before it. FREE_QUEUE_NONE: the first, or there is no more. */
uint32_t block_retain_next(const struct block_retain *r, uint32_t id);

bool block_retain_is_marked(const struct block_retain *r, uint32_t id);
bool block_retain_is_held(const struct block_retain *r, uint32_t id);
struct block_retain_stats block_retain_stats(const struct block_retain *r);
void block_retain_check(const struct block_retain *r); /* asserts the invariants */

#endif

/* worker/kv/block/block_holds.h - prefixes that clients hold in the cache.
 *
 * A mark (block_retain.h) is a wish. A hold is an agreement: it has an id, an owner, a time to live
 * and a place in a budget, and as long as it lasts its blocks are the last to go from the pool that
 * they are in. How is for the pool's owner, whose callbacks get each block that is held from now
 * on, or no more.
 *
 *      hold 7   | b0 | b1 | b2 | b3 |        each hold counts all of its blocks against the budget;
 *      hold 9   | b0 | b1 | b8 |             b0 and b1 are held once, until both are over
 *
 *      used            a request took at least half of its blocks: the time begins again
 *      expires         when no request has used it for its time
 *      decays          an unused hold is worth half as much after half of its time: from then on it
 *                      makes room for a new one that finds none, the one that is worth least first
 *      cut             its pool had to evict a block: it ends before that block
 *
 * Below the pool there may be a place that keeps blocks by name, with a budget of its own. A hold
 * whose blocks have names is kept there too, while that budget has room. Once all of its blocks
 * are there it need not stay in the pool: the one that was not used for longest leaves the pool
 * when a new one needs its room, and nothing of it is lost.
 *
 * A holder (a tenant, an API key) has at most half of each budget. An id is of use to its owner
 * alone: to all others the hold does not exist.
 *
 * Thread: engine. Time is an argument, monotonic. Memory: 36 bytes per block of the budget, 48 of
 * the one below. */
#ifndef WORKER_KV_BLOCK_BLOCK_HOLDS_H
#define WORKER_KV_BLOCK_BLOCK_HOLDS_H

#include "worker/kv/block/block_hash.h"

#define BLOCK_HOLDS_MAX   1024u         /* holds at a time */
#define BLOCK_HOLDS_MAX_S (24u * 3600u) /* longest time to live */

enum hold_place { HOLD_HERE, HOLD_BELOW, HOLD_PLACES };

/* Of a block's content, for the place below. */
struct block_name {
    uint8_t bytes[16];
};

struct block_hold {
    uint64_t id;
    uint64_t owner;  /* who may see and release it */
    uint64_t holder; /* whose share it counts against; 0: of no one's */
    uint32_t ttl_s;
    uint32_t n_blocks; /* of the chain, from its first */
    uint64_t made_us, used_us;
    uint64_t n_hits;           /* requests that used it */
    uint64_t n_saved;          /* blocks that they took */
    uint32_t *ids;             /* (n_blocks) */
    struct block_hash *hashes; /* (n_blocks) of the chain */
    struct block_name *names;  /* (n_blocks) NULL: a block has none */
    uint32_t n_made;           /* blocks at first: the length of the arrays */
    bool is_in[HOLD_PLACES];   /* it has its blocks here; it keeps them below, or will */
};

enum hold_end { HOLD_RELEASED, HOLD_EXPIRED, HOLD_DISPLACED, HOLD_EVICTED, HOLD_RESET, HOLD_ENDS };

struct block_holds_stats {
    uint32_t n_holds;
    uint32_t n_blocks; /* distinct ones that are held here */
    /* Sum over the holds: what counts against the budgets. */
    uint32_t n_charged[HOLD_PLACES], max_blocks[HOLD_PLACES];
    uint64_t n_left;             /* holds that left the pool, and are below alone */
    double block_s;              /* blocks held, each hold's, times seconds */
    uint64_t n_hits, n_saved;    /* requests that used a hold, and blocks that they took */
    uint64_t n_refused;          /* for the budget, a holder's share, or BLOCK_HOLDS_MAX */
    uint64_t n_ended[HOLD_ENDS]; /* holds, by why */
};

struct block_holds_config {
    uint32_t n_blocks;   /* of the pool: ids are below */
    uint32_t max_blocks; /* the budget */
    /* A hold begins, its last block first; is_first: no other hold has the block. And: the last
     * hold of the block is over. They must not evict. */
    void (*take)(void *arg, uint32_t id, bool is_first);
    void (*give)(void *arg, uint32_t id);
    /* The place below is to keep these once more, or once less. And: how many of them, from the
     * first on, are there? Not called while its budget is 0. */
    void (*keep_below)(void *arg, const struct block_name *names, uint32_t n, bool is_kept);
    uint32_t (*count_below)(void *arg, const struct block_name *names, uint32_t n);
    void *arg;
};
struct block_holds;

struct block_holds *block_holds_create(const struct block_holds_config *config);
void block_holds_destroy(struct block_holds *h); /* gives nothing back; NULL is fine */

/* Ends what has expired, and what is cut is cut. Call it before the pool's blocks change hands, at
 * least once a step. */
void block_holds_set_now(struct block_holds *h, uint64_t now_us);

/* The budget of the place below, 0 at first. What is held stays. */
void block_holds_set_below(struct block_holds *h, uint32_t max_blocks);

/* The owner's hold of exactly this chain, or NULL: to hold it again starts its time again. */
struct block_hold *block_holds_twin(struct block_holds *h, uint64_t owner,
                                    const struct block_hash *hashes, uint32_t n_blocks);
void block_holds_renew(struct block_holds *h, struct block_hold *hold, uint32_t ttl_s);

/* Makes room here for a hold of n blocks: others that are below leave, then decayed ones end.
 * Below, decayed ones end where that gives it room. ST_BUSY, and none left or ended: all that would
 * not be enough; the error has the figures. */
MUST_USE enum status block_holds_make_room(struct block_holds *h, uint64_t holder,
                                           uint32_t n_blocks, struct error *err);

/* After that. ids, hashes and names are copied; the id must be new. */
struct block_hold *block_holds_insert(struct block_holds *h, const struct block_hold *like);

/* ST_NOT_FOUND: the owner has no such hold. */
MUST_USE enum status block_holds_release(struct block_holds *h, uint64_t id, uint64_t owner);

/* A request was admitted with the chain `hashes`, and took its first n_hit blocks from the cache:
 * counts for the holds that it used. */
void block_holds_note(struct block_holds *h, const struct block_hash *hashes, uint32_t n_hit);

/* The pool evicts a held block now. Gives nothing back before block_holds_set_now. */
void block_holds_evicted(struct block_holds *h, uint32_t id);

void block_holds_reset(struct block_holds *h); /* ends all */

bool block_holds_has(const struct block_holds *h, uint32_t id); /* is the block held? */
const struct block_hold *block_holds_at(const struct block_holds *h, uint32_t i); /* i < n_holds */
/* Blocks of it that are below, from the first on. */
uint32_t block_holds_n_below(const struct block_holds *h, const struct block_hold *hold);
double block_holds_value(const struct block_holds *h, const struct block_hold *hold); /* 1: used */
struct block_holds_stats block_holds_stats(const struct block_holds *h);
void block_holds_check(const struct block_holds *h); /* asserts the invariants */

#endif

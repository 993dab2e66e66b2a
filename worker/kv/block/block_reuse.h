/* worker/kv/block/block_reuse.h - how likely a block is hit again, by the kind of its prompt.
 *
 * A prompt is of a kind by its turn in its session and by how much of it was not cached, compared
 * with the mean prompt; what a request generated is a kind of its own. Sessions are known by
 * lineage: the last full block of each prompt, and of each answer, is remembered by its hash, and a
 * later prompt that contains it is the next turn.
 *
 *      p(kind)   =  share of the kind's remembered ends that a later prompt contained
 *      cost      =  (time since release + 60 s) / p(kind)^1.5   the highest is evicted first
 *
 * Within a kind the cost grows with age alone, so that a queue per kind in order of release has
 * its victim at its head. What is remembered does not depend on what was evicted: a kind whose
 * blocks go early is not taken for one that never returns. The last REUSE_ENDS ends, about, are
 * remembered; a kind's counts halve at REUSE_COUNT_MAX, so that old behaviour fades.
 *
 * Thread: engine. No clock; nothing is allocated after create. */
#ifndef WORKER_KV_BLOCK_BLOCK_REUSE_H
#define WORKER_KV_BLOCK_BLOCK_REUSE_H

#include "common/base/base.h"
#include "worker/kv/block/block_hash.h"

#define REUSE_TURNS     4
#define REUSE_FRESH     4                           /* steps of how much was not cached */
#define REUSE_GENERATED (REUSE_TURNS * REUSE_FRESH) /* the kind of what was generated */
#define REUSE_KINDS     (REUSE_GENERATED + 1)       /* a kind is below it */
#define REUSE_ENDS      65536u
#define REUSE_COUNT_MAX 4096

struct block_reuse;

struct block_reuse *block_reuse_create(void);
void block_reuse_destroy(struct block_reuse *r); /* NULL is fine */

/* The time of what follows. Monotonic microseconds. */
void block_reuse_set_now(struct block_reuse *r, uint64_t now_us);
uint64_t block_reuse_now_us(const struct block_reuse *r);

/* The kind of a prompt whose full blocks have these hashes, n_hit of them found. Learns from the
 * earlier ends that it contains. O(n). */
uint32_t block_reuse_arrived(struct block_reuse *r, const struct block_hash *hashes, uint32_t n,
                             uint32_t n_hit);

/* A request of that kind ended; its prompt's and its answer's last full block (NULL: none). */
void block_reuse_ended(struct block_reuse *r, uint32_t kind, const struct block_hash *prompt,
                       const struct block_hash *answer);

/* Of a block of that kind, released then. */
double block_reuse_cost(const struct block_reuse *r, uint32_t kind, uint64_t released_us);

#endif

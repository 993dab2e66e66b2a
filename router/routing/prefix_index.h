/* router/routing/prefix_index.h - which workers hold which prefix blocks: 16 bytes for each pair.
 *
 * A hash table of records, four to a cache line; each record is complete in itself. A block that
 * one worker holds, as most are, is one record. When a second worker gets it, the record becomes
 * the block's set of workers, and each worker has a record of its own elsewhere, at a place that
 * follows from block and worker:
 *
 *     line   | tag  what | tag  what | tag  what | tag  what |      64 bytes, 4 records
 *
 *     LONE   tag | worker, pins ... | prev | next              the block, on that worker alone
 *     SET    tag |                  |     set                  the block, on several
 *     PART   tag | worker, pins ... | prev | next              one worker of a SET
 *     RUN    tag | worker, length   | prev | next              output: blocks without a hash
 *
 *     block of hash h ──▶ home line or its other line ──▶ LONE: that worker
 *                                                     └─▶ SET ──▶ PART of w, if w is in the set
 *
 * A block's key is the first 44 bits of its hash: 32 of them are in the record, the rest follow
 * from its place, wherever it is moved. Blocks with equal keys are taken for one: with 100 million
 * records every 170,000th absent block counts as present, which costs that block a wrong
 * prediction. prev and next are the links of prefix_lru.h's rings; the index updates them when a
 * record moves.
 *
 * The table begins with half a megabyte or less, and 64 bytes of ring heads per possible worker. It
 * grows by a few lines at each insertion, so that a small fleet's walks stay in the caches. It
 * never shrinks.
 *
 * A set is a mask of up to 64 workers in one word. In larger fleets up to four ids share the word,
 * and a larger set is a row in a pool of masks; when the pool is exhausted the insertion is
 * refused, which costs a hit.
 *
 * Dropping a worker's cache is O(1): its records become dead because their epoch bit differs from
 * the worker's. Dead records match nothing and are removed later, a few at a time.
 *
 * No lock; no allocation after creation. Follows: cuckoo hashing with two lines of four
 * (Dietzfelbinger and Weidling, 2007), which stays short at 89 % full; linear hashing (Litwin,
 * 1980). */
#ifndef ROUTER_ROUTING_PREFIX_INDEX_H
#define ROUTER_ROUTING_PREFIX_INDEX_H

#include "common/base/base.h"
#include "router/routing/worker_mask.h"

#define PREFIX_NONE     UINT32_MAX
#define PREFIX_PINS_MAX INT16_MAX

enum prefix_kind { PREFIX_FREE, PREFIX_RUN, PREFIX_PART, PREFIX_LONE, PREFIX_SET };

/* prefix_lru reads and writes pins, has_copy, is_computed, prev and next; the index alone the
 * rest. */
struct prefix_record {
    union {
        struct {
            uint32_t tag;
            uint32_t kind : 3;        /* enum prefix_kind */
            uint32_t is_alt : 1;      /* in its other line, not at home */
            uint32_t epoch : 1;       /* dead unless it is its worker's */
            uint32_t is_computed : 1; /* the worker's device has it */
            uint32_t worker : 10;
            uint32_t has_copy : 1; /* below the device too */
            uint32_t pins : 15;    /* open requests that use it; of a RUN: its blocks */
        };
        uint64_t head; /* all of the above, compared at once */
    };
    union {
        struct {
            uint32_t prev, next; /* record numbers */
        };
        uint64_t set;
    };
};

struct prefix_index;

/* Room for n_records (a shared block takes one more than it has workers) of n_workers workers, and
 * for four ring heads per worker. NULL when memory is refused. */
struct prefix_index *prefix_index_create(uint32_t n_records, uint32_t n_workers) MUST_USE;
void prefix_index_destroy(struct prefix_index *x);

/* Bytes that prefix_index_create reserves, and bytes in use. From 128 MiB on all of it is resident
 * at once, because it is in huge pages (mem_try_pages). */
uint64_t prefix_index_bytes(uint32_t n_records, uint32_t n_workers);
uint64_t prefix_index_bytes_used(const struct prefix_index *x);

/* Valid until the next insert or remove. */
struct prefix_record *prefix_index_at(const struct prefix_index *x, uint32_t number);
/* The number of worker w's i-th ring head, i < 4; it never moves. */
uint32_t prefix_index_head(const struct prefix_index *x, uint32_t w, uint32_t i);

/* The record of (block, w), dead or alive; PREFIX_NONE when there is none. */
uint32_t prefix_index_find(const struct prefix_index *x, uint64_t hash, uint32_t w);

/* A walk prefetches a block twice: early its home line, and when that has arrived, its other line
 * or the PART of w if needed (WORKER_NONE: no PART). */
#define PREFIX_ASK_EARLY 16u /* blocks ahead; 12 to 24 measure alike */
#define PREFIX_ASK_LATE  8u
void prefix_index_ask_early(const struct prefix_index *x, uint64_t hash);
void prefix_index_ask_late(const struct prefix_index *x, uint64_t hash, uint32_t w);

/* A new record of (block, w), which must have none: alive, no pins, not computed, and on no ring:
 * the caller links it before the next call. PREFIX_NONE: no room. */
uint32_t prefix_index_insert(struct prefix_index *x, uint64_t hash, uint32_t w) MUST_USE;
/* A new run of n_blocks <= PREFIX_PINS_MAX without hashes, computed, on no ring. PREFIX_NONE: no
 * room. */
uint32_t prefix_index_insert_run(struct prefix_index *x, uint32_t w, uint32_t n_blocks) MUST_USE;
/* The record must be on no ring. */
void prefix_index_remove(struct prefix_index *x, uint32_t number);

/* Makes all records of w dead; there must be no dead ones of w. */
void prefix_index_drop(struct prefix_index *x, uint32_t w);
/* The last dead record of w was removed or revived. */
void prefix_index_drop_done(struct prefix_index *x, uint32_t w);
bool prefix_index_is_dead(const struct prefix_index *x, const struct prefix_record *r);
/* Makes a dead record as if newly inserted. */
void prefix_index_revive(struct prefix_index *x, struct prefix_record *r);

/* A hash that stands for the block of a record (LONE or PART) in any index: its high 44 bits.
 * Tables that begin with fewer than 4096 lines, which only tests create, return fewer bits. */
uint64_t prefix_index_name(const struct prefix_index *x, uint32_t number);
uint64_t prefix_index_hash_named(uint64_t name);

bool prefix_index_has(const struct prefix_index *x, uint64_t hash, uint32_t w); /* and alive */
uint32_t prefix_index_n_blocks(const struct prefix_index *x); /* distinct, dead records included */
bool prefix_index_is_full(const struct prefix_index *x);      /* insertions may be refused */

/* Writes depth[w], the leading blocks of the chain that w holds, for each w of `mask`. Returns how
 * many leading blocks more than half of `mask` hold. One prefetched walk. `guesses`, if not NULL,
 * has room for n and receives where the blocks were found, for prefix_lru: a worker's record, a
 * SET, or PREFIX_NONE. */
uint32_t prefix_index_match(const struct prefix_index *x, const uint64_t *chain, uint32_t n,
                            const uint64_t *mask, uint32_t *depth, uint32_t *guesses);

void prefix_index_check(const struct prefix_index *x); /* asserts the invariants; O(size) */

#endif

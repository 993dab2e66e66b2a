/* router/routing/prefix_index.h - which workers hold which prefix blocks: 16 bytes for each pair.
 *
 * A hash table of records, four to a cache line, and a record never needs another one to be
 * understood. A block that one worker holds, and most are, is one record. When a second worker
 * gets it, the record becomes the block's set of workers and each of them has a record of its
 * own elsewhere, at a place that follows from the block and the worker:
 *
 *     line   | tag  what | tag  what | tag  what | tag  what |      64 bytes, 4 records
 *
 *     LONE   tag | worker, pins ... | prev | next              the block, on that worker alone
 *     SET    tag |                  |     set                  the block, on several
 *     PART   tag | worker, pins ... | prev | next              one of those
 *     RUN    tag | worker, length   | prev | next              output: blocks without a name
 *
 *     block of hash h ──▶ home line or its other line ──▶ LONE: that worker
 *                                                     └─▶ SET ──▶ PART of w, if w is in the set
 *
 * A block's key is the first 44 bits of its hash, of which the record has 32 and its place the
 * rest, wherever it has been moved to. Two blocks with the same key are taken for one: of 100
 * million records, every 170,000th block that nobody holds is believed to be held, which costs that
 * block of one prediction. prev and next are the links of prefix_lru.h's rings; the index keeps
 * them right when a record moves, and looks at them for nothing else.
 *
 * The table begins with half a megabyte or less, besides 48 bytes of ring heads for each worker that
 * there may be, and grows with what is held, a few lines at each insertion, so that a small fleet's
 * walks stay in the caches. It never shrinks.
 *
 * The set is a mask of up to 64 workers in one word. In larger fleets up to four ids share that
 * word, and a larger set is a row of a pool of masks; when the pool is exhausted the insertion is
 * refused, which costs a hit and nothing else.
 *
 * A worker whose cache is gone is dropped at once: its records turn dead because their epoch, one
 * bit, is no longer the worker's. They match nothing and are removed later, a few at a time.
 *
 * No lock; no allocation after creation. Follows: cuckoo hashing with two lines of four (Dietz-
 * felbinger and Weidling, 2007), which stays short at 89 % full; linear hashing (Litwin, 1980). */
#ifndef ROUTER_ROUTING_PREFIX_INDEX_H
#define ROUTER_ROUTING_PREFIX_INDEX_H

#include "common/base/base.h"
#include "router/routing/worker_mask.h"

#define PREFIX_NONE     UINT32_MAX
#define PREFIX_PINS_MAX UINT16_MAX

enum prefix_kind { PREFIX_FREE, PREFIX_RUN, PREFIX_PART, PREFIX_LONE, PREFIX_SET };

/* Read and written by prefix_lru: pins, is_computed, prev and next. The rest is the index's. */
struct prefix_record {
    union {
        struct {
            uint32_t tag;
            uint32_t kind : 3;        /* enum prefix_kind */
            uint32_t is_alt : 1;      /* in its other line, not at home */
            uint32_t epoch : 1;       /* dead unless it is its worker's */
            uint32_t is_computed : 1; /* the worker has it */
            uint32_t worker : 10;
            uint32_t pins : 16; /* open requests that use it; of a RUN: its blocks */
        };
        uint64_t head; /* all of that, to compare at once */
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
 * for three ring heads per worker. NULL when memory is refused. */
struct prefix_index *prefix_index_create(uint32_t n_records, uint32_t n_workers) MUST_USE;
void prefix_index_destroy(struct prefix_index *x);

/* What prefix_index_create will reserve, and how much of that is in use. From 128 MiB on all is
 * resident at once, since huge pages are (mem_try_pages). */
uint64_t prefix_index_bytes(uint32_t n_records, uint32_t n_workers);
uint64_t prefix_index_bytes_used(const struct prefix_index *x);

/* A record's number stays its own until the next insert or remove. */
struct prefix_record *prefix_index_at(const struct prefix_index *x, uint32_t number);
/* The number of worker w's i-th ring head, i < 3; it never moves. */
uint32_t prefix_index_head(const struct prefix_index *x, uint32_t w, uint32_t i);

/* The record of (block, w), dead or alive; PREFIX_NONE when there is none. */
uint32_t prefix_index_find(const struct prefix_index *x, uint64_t hash, uint32_t w);

/* A walk over blocks asks for their memory twice: early for the home line, and when that has come,
 * for what it shows to be needed besides: the other line, or the PART of w (WORKER_NONE: none). */
#define PREFIX_ASK_EARLY 16u /* blocks ahead; 12 to 24 measure alike */
#define PREFIX_ASK_LATE  8u
void prefix_index_ask_early(const struct prefix_index *x, uint64_t hash);
void prefix_index_ask_late(const struct prefix_index *x, uint64_t hash, uint32_t w);

/* A new record of (block, w), which must have none: alive, no pins, not computed, and on no ring:
 * the caller links it before the next call. PREFIX_NONE: no room. */
uint32_t prefix_index_insert(struct prefix_index *x, uint64_t hash, uint32_t w) MUST_USE;
/* Likewise a run of n_blocks <= PREFIX_PINS_MAX without a name, computed. */
uint32_t prefix_index_insert_run(struct prefix_index *x, uint32_t w, uint32_t n_blocks) MUST_USE;
/* The record must be on no ring. */
void prefix_index_remove(struct prefix_index *x, uint32_t number);

/* All records of w are dead from now on; there must be no dead ones. */
void prefix_index_drop(struct prefix_index *x, uint32_t w);
/* The last dead record of w was removed or revived. */
void prefix_index_drop_done(struct prefix_index *x, uint32_t w);
bool prefix_index_is_dead(const struct prefix_index *x, const struct prefix_record *r);
/* A dead record is as if newly inserted. */
void prefix_index_revive(struct prefix_index *x, struct prefix_record *r);

/* A hash that any index takes for that of the block which a record (LONE or PART) stands for: only
 * the high 44 bits of it are not zero. Of tables that begin with fewer than 4096 lines not even
 * those: they are for tests. */
uint64_t prefix_index_name(const struct prefix_index *x, uint32_t number);
uint64_t prefix_index_hash_named(uint64_t name);

bool prefix_index_has(const struct prefix_index *x, uint64_t hash, uint32_t w); /* and alive */
uint32_t prefix_index_n_blocks(const struct prefix_index *x);  /* distinct, dead ones too */
uint32_t prefix_index_n_records(const struct prefix_index *x); /* in use, of any kind */
bool prefix_index_is_full(const struct prefix_index *x);       /* an insertion may find no room */

/* depth[w] = leading blocks of the chain that w holds, for each w of `mask`. Returns how many
 * leading blocks are widely held: by more than half of `mask`. One walk, prefetched. `guesses`, if
 * not NULL, has room for n and learns where the blocks were seen, which prefix_lru.c profits from:
 * a worker's record, the SET of several, or PREFIX_NONE. */
uint32_t prefix_index_match(const struct prefix_index *x, const uint64_t *chain, uint32_t n,
                            const uint64_t *mask, uint32_t *depth, uint32_t *guesses);

void prefix_index_check(const struct prefix_index *x); /* asserts the invariants; O(size) */

#endif

/* worker/kv/kv_manager.h - which blocks a sequence has, shares and gets.
 *
 * The scheduler's only door to KV memory. Life of a sequence, as the manager sees it:
 *
 *      kv_seq_init
 *        -> kv_manager_lookup      longest cached prefix, the last token left out
 *        -> kv_manager_allocate    take the hits and new blocks, publish what this step fills
 *        -> kv_manager_allocate    ... once per step with the tokens of that step
 *        -> kv_manager_free        finished, cancelled or preempted: last block first
 *        (preempted: lookup again) -> kv_seq_fini
 *      kv_manager_fork               a second sequence over the same tokens: all blocks shared
 *
 * Blocks are published when they are scheduled, before the device has run: a second request of the
 * same step may hit them, which is right because within a step every layer writes all its KV
 * before it attends. Only full blocks are published, and never drafts. Equal blocks are shared
 * only behind equal prefixes.
 *
 * With `dedup`, a sequence that fills a block another one already holds switches to that block and
 * gives its own back; without it both copies stay, and the first inserted is the one found.
 *
 * Layout of the tokens in one call:   | computed | hit | external | new | lookahead |
 *                                       in table  found  from afar  this step, drafts
 *
 * A block that two sequences hold is read-only. Before a step writes into it, allocate replaces it
 * by a fresh block and requests a copy (kv_manager_moves). So a fork costs only references until
 * the branches differ, and then one block per branch, except the last branch.
 *
 * With host memory (kv_host.h) an evicted block's content moves there and comes back on a hit, and
 * a whole sequence can be swapped out. Subscribers follow the cache by its events (kv_events.h);
 * why a prompt hit no further is computed at admission (kv_explain.h).
 *
 * Layers with different attention (kv_group.h) have a table each, all over one pool; a hit is what
 * all of them have (kv_coordinator.h).
 *
 * Thread: engine. No clock, no I/O; nothing is allocated after kv_seq_init. */
#ifndef WORKER_KV_KV_MANAGER_H
#define WORKER_KV_KV_MANAGER_H

#include "common/base/list.h"
#include "worker/kv/block/block_ages.h"
#include "worker/kv/block/block_hash.h"
#include "worker/kv/block/block_holds.h"
#include "worker/kv/block/block_pool.h"
#include "worker/kv/block/block_table.h"
#include "worker/kv/kv_events.h"
#include "worker/kv/kv_explain.h"
#include "worker/kv/kv_group.h"
#include "worker/kv/kv_host.h"
#include "worker/kv/kv_moves.h"
#include "worker/kv/kv_stats.h"
#include "worker/kv/tiers/kv_names.h"

struct kv_manager_config {
    uint32_t n_blocks;        /* physical, the null block included */
    uint32_t block_size;      /* tokens, >= 1 */
    uint32_t max_model_len;   /* tokens of the longest sequence */
    uint32_t max_step_tokens; /* most tokens of one sequence in a step; 0: max_model_len. Bounds
                               * what a window holds at a time (full_sequence_must_fit) */
    uint32_t n_groups;        /* kinds of attention, <= KV_GROUPS_MAX; 0: one, full */
    struct kv_group_config group[KV_GROUPS_MAX];
    double watermark; /* share of the blocks kept free when admitting; 0..1 */
    enum free_order order;
    enum block_hash_algo hash_algo;
    struct str hash_seed, hash_kind; /* see block_hasher_config */
    uint32_t hash_block_size;        /* tokens of one link of the chain, a divisor of block_size; 0:
                                  * block_size. A block goes by the hash of its last link */
    uint32_t hash_truncate_bits;     /* tests: force collisions; 0: none */
    uint32_t n_host_blocks;          /* of host memory; 0: no second tier, no swapping */
    bool no_host_cache;              /* they are for swapping only */
    uint32_t max_reserved;           /* of them, for tiers below to bring contents into */
    const struct kv_names_config *names; /* contents get names for tiers below: one full group and
                                          * host memory only. Read by create; NULL: no names */
    struct generation *host_generations; /* (n_host_blocks) see kv_host.h; NULL: none */
    struct kv_event_log *events;         /* borrowed; NULL: no events */
    bool no_explain;                     /* causes of misses are not worked out */
    bool no_caching;                     /* nothing is looked up or published */
    bool no_null;                        /* block 0 is handed out too; full attention only */
    bool no_stats;
    bool dedup;
    double retained_share;    /* of the blocks: most that clients keep from eviction; 0: none */
    uint32_t max_held_blocks; /* by clients (block_holds.h): of host memory if it caches, else of
                               * the device; 0: none */
    struct block_ages_config ages; /* of the device's blocks; zeros: not followed */
};
struct kv_manager;

/* The beginning of a prompt that its client asks to keep. */
#define KV_RETAIN_MAX 4
struct kv_retain {
    uint32_t n_tokens;
    enum retention time;
};

/* The KV side of one request; embedded in it, its fields read by the scheduler and written here
 * only. */
struct kv_seq {
    struct list link; /* on the manager's list exactly while it holds blocks */
    struct block_table table[KV_GROUPS_MAX]; /* (n_groups) one per kind of attention */
    const struct block_extras *extras;       /* borrowed from the request; NULL for none */
    struct block_hash *hashes;        /* (table capacity) the chain, kept across preemption */
    struct block_hash *extra_digests; /* (table capacity), NULL without extras */
    struct block_hash *witnesses;     /* (table capacity), NULL where all attention is full */
    uint32_t n_hashes;
    uint32_t n_published;  /* leading blocks of each table that are findable, or null */
    uint32_t extra_cursor; /* see block_extras_encode */
    uint32_t n_prompt;     /* tokens; set after init where KV_REFERENCE is used, else not read */
    uint32_t n_idle_slots; /* in its blocks, without a token */
    uint8_t n_groups;
    const struct kv_retain *retain; /* (n_retain) set after init, with the tenant; borrowed */
    uint32_t n_retain;
    uint64_t tenant;        /* whose share of what is retained; 0: of no tenant */
    uint32_t prefix_tokens; /* set after init: blocks behind them get no names; 0: all do */
    bool skip_reading;      /* never looks up, still publishes (prompt_logprobs) */
    uint16_t kind;          /* of its prompt, with FREE_ORDER_REUSE; from its first admission on */
    bool has_kind, has_ended; /* its end is remembered */
    uint32_t n_prompt_blocks; /* full ones; with a kind */
    bool has_used_holds; /* its first admission has counted for the holds that it used; set after
                          * init: it does not count */
    bool is_explained;   /* why it found no more was counted, at its first admission */
    struct kv_explanation *explanation; /* set after init: filled in then; NULL: not wanted */
    block_id *host_ids;        /* (n_groups, table capacity) while it is swapped out, else not
                                 * read; BLOCK_NONE where the table had a null block */
    uint32_t n_swapped_blocks; /* of each group; 0: it is not swapped out */
    uint32_t n_swapped_tokens;
};

/* A result of lookup, valid until the next call to the manager. */
struct kv_hit {
    const block_id *ids[KV_GROUPS_MAX]; /* (n_groups, n_blocks); null where none is needed */
    uint32_t n_blocks;                  /* of each group, the next field included */
    uint32_t n_host_blocks;             /* the number of trailing blocks in host memory; they have
                                         * no ids */
    uint32_t n_tokens;                  /* n_blocks * block_size */
};

struct kv_alloc {
    uint32_t n_computed;         /* tokens of the sequence computed or in flight before this call */
    struct kv_hit hit;           /* of an admission; zero for a running sequence */
    uint32_t n_external;         /* tokens another store will deliver, behind the hits */
    uint32_t n_new;              /* tokens to compute in this step, drafts included; may be 0 if
                                  * another store delivers or host memory has a part of the hit */
    uint32_t n_lookahead;        /* slots for drafts still to come */
    uint32_t n_unsettled;        /* of n_computed: drafts that may yet be refused */
    uint32_t reserved_blocks;    /* kept free for others */
    bool delay_publish;          /* the KV arrives later: kv_manager_publish when it is there */
    bool full_sequence_must_fit; /* refuse unless all known tokens would fit, not only this chunk */
    bool has_scheduled;          /* something runs in this step already: the watermark holds for a
                                  * sequence without blocks */
};

struct kv_manager *kv_manager_create(const struct kv_manager_config *config);
void kv_manager_destroy(struct kv_manager *mgr); /* NULL is fine; no sequence may hold blocks */

/* `max_tokens`: most tokens, lookahead included, the sequence will ever need slots for (cut to
 * max_model_len); to need more later is asserted against. `extras` may be NULL. ST_NOMEM, or the
 * status of block_extras_validate. Reads the manager's settings only: any thread may create a
 * request. */
MUST_USE enum status kv_seq_init(struct kv_seq *seq, const struct kv_manager *mgr,
                                 uint32_t max_tokens, const struct block_extras *extras,
                                 bool skip_reading, struct error *err);
void kv_seq_fini(struct kv_seq *seq); /* after kv_manager_free; zeroed or failed ones are fine */

/* Hashes the full blocks of tokens[0, n_tokens) that are not yet: all tokens whose ids are known,
 * prompt and output. Lookup, allocate and publish call it; call it earlier to have the work done
 * elsewhere. */
void kv_seq_extend_hashes(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                          uint32_t n_tokens);

/* Its tokens are about to change: the chain restarts. It holds no blocks. */
void kv_seq_forget_hashes(struct kv_seq *seq);

/* The longest cached prefix of tokens[0, n_tokens), at most n_tokens - 1 tokens: the last one must
 * be computed to have logits. After the device's blocks it continues in host memory (one full group
 * only). Changes no reference and no order. */
struct kv_hit kv_manager_lookup(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                                uint32_t n_tokens);

/* Makes the tables cover every token up to the lookahead and publishes the blocks that are full
 * once this step has run (of tokens whose ids are known). ST_BUSY when the blocks are not there:
 * then nothing has changed, except that what has left a window is given back in any case.
 * block_table_take_dirty returns the new table entries, hits and copies included. */
MUST_USE enum status kv_manager_allocate(struct kv_manager *mgr, struct kv_seq *seq,
                                         const uint32_t *tokens, uint32_t n_tokens,
                                         const struct kv_alloc *alloc);

/* Publishes the full blocks among the first n_ready tokens, whose KV is there or scheduled. */
void kv_manager_publish(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                        uint32_t n_tokens, uint32_t n_ready);

/* Gives all blocks back, last first, and what is swapped out. What its client asks to keep is
 * marked (block_retain.h). Hashes stay: a resumed sequence hits what is left. */
void kv_manager_free(struct kv_manager *mgr, struct kv_seq *seq);

/* Makes `child`, which is initialised and holds nothing, a second holder of all blocks with the
 * parent's first n_computed tokens, the last partial one included; both have the same tokens and
 * extra keys up to there, and neither changes them. These tokens must lie in steps that are
 * submitted already: a copy made in the step that computes them would be taken too early.
 * ST_NOT_FOUND, and nothing done, when a window has moved on and the parent no longer has all that
 * token n_computed looks back at: treat the child as any new sequence. */
MUST_USE enum status kv_manager_fork(struct kv_manager *mgr, struct kv_seq *child,
                                     const struct kv_seq *parent, uint32_t n_computed);

/* Why the lookup that gave `hit` found no more, at this moment. Costs a walk over the
 * neighbours. */
void kv_manager_explain(struct kv_manager *mgr, const struct kv_seq *seq, const uint32_t *tokens,
                        uint32_t n_tokens, const struct kv_hit *hit, struct kv_explanation *out);

/* --- holds */

struct kv_hold {
    uint64_t id, owner, holder; /* see block_holds.h */
    uint32_t ttl_s;
};

/* Holds what is cached of the full blocks of tokens[0, n_tokens): the caller has just computed
 * them, and tokens has one more. *out is valid until the next call. ST_BUSY, with what to do: the
 * budget, or no room in host memory. ST_INVALID: nothing is cached. The owner's hold of the same
 * blocks is renewed, and keeps its id. */
MUST_USE enum status kv_manager_hold(struct kv_manager *mgr, struct kv_seq *seq,
                                     const uint32_t *tokens, uint32_t n_tokens,
                                     const struct kv_hold *ask, const struct block_hold **out,
                                     struct error *err);
MUST_USE enum status kv_manager_release_hold(struct kv_manager *mgr, uint64_t id, uint64_t owner);
const struct block_holds *kv_manager_holds(const struct kv_manager *mgr); /* NULL: there are none */
bool kv_manager_holds_on_host(const struct kv_manager *mgr);

/* Writes everything that is cached into the event log once more, in batches of its own. Takes as
 * long as encoding it, some 0.5 us a block; for the rare subscriber that missed events. */
void kv_manager_report_all(struct kv_manager *mgr, uint64_t wall_us);

/* The time of what happens from now on: evictions, hits. Monotonic microseconds. */
void kv_manager_set_now(struct kv_manager *mgr, uint64_t now_us);

/* The KV of the sequence's first n_computed tokens, which must lie in steps that are submitted,
 * goes to host memory; all its device blocks are given back. Blocks that are in host memory already
 * do not move. ST_BUSY, and nothing done, when there is no room (or no host memory at all). Then it
 * may be swapped in, or freed. */
MUST_USE enum status kv_manager_swap_out(struct kv_manager *mgr, struct kv_seq *seq,
                                         uint32_t n_computed);
static inline bool kv_seq_is_swapped(const struct kv_seq *seq) {
    return seq->n_swapped_blocks > 0;
}
/* And back; what the device still has is shared, the rest moves in. ST_BUSY, and nothing done, when
 * there are not enough free blocks. */
MUST_USE enum status kv_manager_swap_in(struct kv_manager *mgr, struct kv_seq *seq);
/* Device blocks that would take, to compare with what is free. */
uint32_t kv_manager_swap_in_need(const struct kv_manager *mgr, const struct kv_seq *seq);

/* --- tiers below host memory (tiers/kv_names.h, kv_host.h) ------------------------------------ */

/* For the blocks of a sequence behind `hit`, the last lookup's: the outer key of the block before
 * them and its prefix number. False: they are nameless, or must be computed. */
bool kv_manager_keys_behind(const struct kv_manager *mgr, const struct kv_seq *seq,
                            const struct kv_hit *hit, struct unit_key *parent, uint64_t *number);
const struct kv_names *kv_manager_names(const struct kv_manager *mgr); /* NULL: there are none */
/* The host block with the content of this key: it is there, or the device has it and it goes there
 * with this step's moves. BLOCK_NONE: neither, or there is no room. */
block_id kv_manager_bring_named(struct kv_manager *mgr, const struct unit_key *key);
/* Of the contents to come; those that are cached must have been forgotten. */
void kv_manager_set_root(struct kv_manager *mgr, const struct unit_key *root);

/* The reserved host block `id` has the verified bytes of block `index` of a sequence that was
 * looked up; *number is the prefix number of the block before it, and becomes this one's. Publishes
 * it; false: host memory had the content already, `id` is unchanged. */
bool kv_manager_restored(struct kv_manager *mgr, const struct kv_seq *seq, const uint32_t *tokens,
                         uint32_t index, const struct kv_name *name, block_id id, uint64_t *number);

/* The worker is about to end: gives tiers below the next contents that they lack, beginnings of
 * prompts first, wanted ones before all others. At most n of them go from the device to host
 * memory. Those that were met once leave only if `also_once`. Nothing is computed any more. False:
 * no more are left. The first call allocates. */
bool kv_manager_leave(struct kv_manager *mgr, uint32_t n, bool also_once);

/* What the device must do before the first write of the step that is being put together, in this
 * order: all since the last clear. Valid until the next call that allocates. */
const struct kv_move *kv_manager_moves(const struct kv_manager *mgr, uint32_t *n);
/* They were handed to the device, and the step is: call it once per step, moves or not. What was
 * published for this step counts as computed from now on. */
void kv_manager_clear_moves(struct kv_manager *mgr);

/* ST_BUSY, and nothing done, while a sequence holds blocks. Clears the hit-rate window too. */
MUST_USE enum status kv_manager_reset_prefix_cache(struct kv_manager *mgr);

/* Once per admission, after allocate succeeded. */
void kv_manager_record_admission(struct kv_manager *mgr, uint32_t n_tokens, uint32_t n_hit_tokens,
                                 bool was_preempted);
const struct kv_stats *kv_manager_stats(const struct kv_manager *mgr); /* NULL when switched off */

double kv_manager_usage(const struct kv_manager *mgr); /* 0..1; cached blocks count as free */

/* Slots in the blocks in use that hold no token: the end of each sequence's last block, and what
 * was taken ahead for drafts. As a number, and as a share of all slots in use (0 when none is). A
 * tail that a fork shares counts once. */
uint64_t kv_manager_idle_slots(const struct kv_manager *mgr);
double kv_manager_waste(const struct kv_manager *mgr);

/* Most blocks a sequence of n_tokens holds at a time, all groups together. */
uint64_t kv_manager_most_blocks(const struct kv_manager *mgr, uint32_t n_tokens);

/* Does a sequence find all full blocks that another one with the same prefix holds? */
bool kv_manager_shares_prefixes(const struct kv_manager *mgr);

uint32_t kv_manager_block_size(const struct kv_manager *mgr);
const struct block_pool *kv_manager_pool(const struct kv_manager *mgr);
struct kv_host *kv_manager_host(const struct kv_manager *mgr); /* NULL: none */

void kv_manager_check(const struct kv_manager *mgr); /* asserts every invariant; for tests */

#endif

/* router/kv/kv_picture.h - what a worker's events add up to: its cache now, and what it can hold.
 *
 *      batch ─▶ kv_batch ─▶ group? ─▶ kv_ledger ─▶ blocks and tokens per tier
 *                                        └─▶ capacity: what was held when a block was dropped
 *
 * Which events count. A model with several kinds of attention has a group of blocks per kind, and
 * one event for each; only the first group of full attention seen is counted, whose blocks stand
 * for all of a sequence. A speculative decoder's own blocks, and tiers of unknown name, are not.
 *
 * Complete or not. A picture that was begun in the middle of a stream lacks older blocks. It is
 * complete when it begins with the first batch of the process, once as many blocks were removed in
 * a row, all of them known, as it holds (the cache has been turned over), and when it equals the
 * digest that a worker of ours sends.
 *
 * LIMITS. vLLM announces a block twice when two requests compute it at once, and its removal twice
 * too; it leaves the picture with the first, so the picture has less than the engine, never more.
 *
 * Pure: no clock, no I/O. Thread: that of its owner. */
#ifndef ROUTER_KV_KV_PICTURE_H
#define ROUTER_KV_KV_PICTURE_H

#include "router/kv/kv_frame.h"
#include "router/kv/kv_ledger.h"

struct kv_picture_counts {
    uint64_t n_batches, n_events[KV_EVENT_KINDS]; /* that were understood */
    uint64_t n_ignored;                           /* events that do not count, or are malformed */
    uint64_t n_refused;                           /* blocks that found no room */
};

struct kv_picture {
    struct kv_ledger ledger;
    bool is_complete;
    bool lacks_room;        /* a block was refused since the last reset */
    int64_t group;          /* that counts; KV_GROUP_NONE: those without a group */
    bool has_group;         /* it is known */
    uint32_t hash_kind;     /* enum kv_hash_kind; 0: none seen */
    uint64_t n_known_run;   /* removals since the last of a block that was not known */
    uint64_t n_evictions;   /* blocks that left their last tier, since the process's start */
    double capacity_tokens; /* of all tiers, as seen at evictions; 0: none yet */
    uint64_t stored_tokens; /* of blocks that no tier had, in all */
    struct kv_picture_counts counts; /* of the stream, whatever happened to the picture */
};

/* What a batch did. */
struct kv_picture_change {
    bool was_cleared; /* the engine has dropped all of its cache */
    bool is_other;    /* hashes of another kind: another engine writes this stream */
};

void kv_picture_init(struct kv_picture *p, struct kv_budget *budget, uint64_t seed);
void kv_picture_fini(struct kv_picture *p);

/* Forgets the blocks. is_first: what follows is all that the process ever did. is_new: it is
 * another process, whose capacity is not known. */
void kv_picture_reset(struct kv_picture *p, bool is_first, bool is_new);

/* ST_INVALID: the batch is unreadable from some event on, and the picture no longer right; what
 * came before that event has been taken. */
MUST_USE enum status kv_picture_take(struct kv_picture *p, struct str batch,
                                     struct kv_picture_change *change);

/* Compares with a digest of all batches taken so far: equal, and the picture is complete. False: it
 * is wrong, and neither a lack of room nor a model without full attention explains that. */
bool kv_picture_compare(struct kv_picture *p, const struct kv_frame *digest);

/* Tokens that the worker can keep, once that is certain enough; else 0. */
double kv_picture_capacity(const struct kv_picture *p);

void kv_picture_check(const struct kv_picture *p);

#endif

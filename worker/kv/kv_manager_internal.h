/* worker/kv/kv_manager_internal.h - the manager itself, for the files that are its parts. */
#ifndef WORKER_KV_KV_MANAGER_INTERNAL_H
#define WORKER_KV_KV_MANAGER_INTERNAL_H

#include "worker/kv/kv_manager.h"

struct kv_manager {
    struct kv_manager_config config;
    struct block_pool *pool;
    struct block_ages *ages;   /* the pool's; NULL: not followed */
    struct block_reuse *reuse; /* the pool's; NULL: blocks are evicted in another order */
    struct block_hasher *hasher;
    struct kv_group group[KV_GROUPS_MAX]; /* (n_groups) */
    uint32_t n_groups;
    bool has_windows;    /* a group that is not full: witnesses are kept */
    struct list holders; /* sequences with blocks, through kv_seq.link */
    uint32_t n_holders;
    uint32_t watermark_blocks;
    uint32_t table_capacity;          /* blocks of the longest sequence */
    block_id *hit_ids[KV_GROUPS_MAX]; /* (table_capacity) result of the last lookup */
    block_id *moving_ids;             /* blocks on their way in or out of a table */
    uint32_t n_links;                 /* hashes of the chain per block */
    struct block_hash *links; /* (2 * n_links) of the block being hashed, and its extra digests */
    uint8_t *extra_bytes;     /* (BLOCK_EXTRAS_MAX_BYTES) of the block being hashed */
    uint8_t *witness_bytes;   /* what a witness is the digest of; NULL without windows */
    uint64_t n_idle_slots;    /* sum over the holders */
    struct kv_moves moves;
    uint32_t n_reserved_moves; /* room in `moves` that the call under way has counted on */

    struct kv_host *host;         /* NULL: no host memory */
    block_id *host_hit_ids;       /* (table_capacity) where the last lookup's host hits are */
    struct kv_host_slot *slots;   /* (n_groups, table_capacity) a sequence on its way out */
    struct prefix_key *slot_keys; /* as above */
    uint32_t *published_step;     /* (n_blocks) in which step a block was published */
    uint32_t step;
    struct kv_names names; /* zeros: there are none */
    uint64_t *leaving;     /* (n_leaving) kv_manager_leave; NULL: not called yet */
    uint32_t n_leaving, next_leaving;
    struct kv_explain *explain;    /* NULL: switched off */
    struct block_holds *holds;     /* NULL: nothing can be held */
    block_id *held_ids;            /* (table_capacity) a hold that is being made */
    struct block_name *held_names; /* as above */
    uint64_t now_us;
    struct kv_stats stats;
};

/* The sequence's content for the groups. */
struct kv_chain kv_seq_chain(const struct kv_seq *seq, const uint32_t *tokens);

/* A sequence got its first blocks, or has given back its last. */
void kv_manager_add_holder(struct kv_manager *mgr, struct kv_seq *seq);
void kv_manager_remove_holder(struct kv_manager *mgr, struct kv_seq *seq);

/* Before a sequence releases its tables: which kind its blocks go to. */
void kv_manager_set_kinds(struct kv_manager *mgr, struct kv_seq *seq);

/* And which of them its client asks to keep. */
void kv_manager_retain(struct kv_manager *mgr, const struct kv_seq *seq);

/* --- kv_manager_events.c: KV events and explanations */

void kv_manager_on_evict(void *mgr, block_id id);      /* of the device's pool */
void kv_manager_on_host_evict(void *mgr, block_id id); /* of the host's */
void kv_manager_on_host_store(void *mgr, block_id id);

/* Block `index` of group g was just published: once for each. Then for a run of such blocks;
 * `tokens` are the run's. */
void kv_manager_note_published(struct kv_manager *mgr, const struct kv_seq *seq, uint32_t g,
                               uint32_t index);
void kv_manager_report_stored(struct kv_manager *mgr, const struct kv_seq *seq,
                              const uint32_t *tokens, uint32_t g, uint32_t from, uint32_t to);
void kv_manager_note_reset(struct kv_manager *mgr); /* before everything is forgotten */

/* The first admission of a sequence: counts why it hit no further, and fills the explanation on
 * request. */
void kv_manager_note_admission(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                               uint32_t n_tokens, const struct kv_hit *hit);

/* --- kv_manager_hold.c: prefixes that clients hold */

static inline bool kv_manager_can_hold(const struct kv_manager_config *c) {
    return c->max_held_blocks > 0 && !c->no_caching &&
           (c->n_groups == 0 || (c->n_groups == 1 && c->group[0].kind == KV_FULL));
}
void kv_manager_create_holds(struct kv_manager *mgr);
/* A sequence is admitted with these hits. */
void kv_manager_note_hold_hits(struct kv_manager *mgr, struct kv_seq *seq,
                               const struct kv_hit *hit);
void kv_manager_check_holds(const struct kv_manager *mgr);

/* --- kv_manager_host.c: the second tier and swapping */

bool kv_manager_has_tier(const struct kv_manager *mgr); /* contents are cached in host memory */

void kv_manager_find_on_host(struct kv_manager *mgr, const struct kv_chain *chain, uint32_t n_max,
                             struct kv_hit *hit);
void kv_manager_bring_in(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                         const struct kv_hit *hit);
/* The device is about to forget the last block with this content. True when host memory has it. */
bool kv_manager_keep_on_host(struct kv_manager *mgr, block_id id, const struct prefix_key *key);
void kv_manager_drop_swapped(struct kv_manager *mgr, struct kv_seq *seq);

/* --- kv_manager_tiers.c: names for tiers below. Nothing where there are none. */

/* Block `index` was published on the device; its content went to a host block, or was there; the
 * host's pool is about to forget one. */
void kv_manager_name(struct kv_manager *mgr, const struct kv_seq *seq, uint32_t index);
void kv_manager_name_host(struct kv_manager *mgr, block_id device, block_id host, bool was_there);
void kv_manager_forget_host_name(struct kv_manager *mgr, block_id host);
/* An admission takes what the last lookup found. */
void kv_manager_want_hits(struct kv_manager *mgr, const struct kv_hit *hit);
/* The sequence is about to give its blocks back: what is wanted below goes to host memory. */
void kv_manager_keep_ended(struct kv_manager *mgr, const struct kv_seq *seq);

/* The sequence has KV for n_filled tokens; counts the slots behind them in its blocks. */
void kv_manager_count_idle(struct kv_manager *mgr, struct kv_seq *seq, uint64_t n_filled);

#endif

/* worker/kv/kv_manager_internal.h - the manager itself, for the files that are its parts. */
#ifndef WORKER_KV_KV_MANAGER_INTERNAL_H
#define WORKER_KV_KV_MANAGER_INTERNAL_H

#include "worker/kv/kv_manager.h"

struct kv_manager {
    struct kv_manager_config config;
    struct block_pool *pool;
    struct block_hasher *hasher;
    struct kv_group group[KV_GROUPS_MAX]; /* (n_groups) */
    uint32_t n_groups;
    bool has_windows;    /* a group that is not full: witnesses are kept */
    bool has_forked;     /* a shared block may have been published by another than its holder */
    struct list holders; /* sequences with blocks, through kv_seq.link */
    uint32_t n_holders;
    uint32_t watermark_blocks;
    uint32_t table_capacity;          /* blocks of the longest sequence */
    block_id *hit_ids[KV_GROUPS_MAX]; /* (table_capacity) result of the last lookup */
    block_id *moving_ids;             /* blocks on their way in or out of a table */
    uint8_t *extra_bytes;             /* (BLOCK_EXTRAS_MAX_BYTES) of the block being hashed */
    uint8_t *witness_bytes;           /* what a witness is the digest of; NULL without windows */
    uint64_t n_idle_slots;            /* sum over the holders */
    struct kv_moves moves;
    struct kv_stats stats;
};

/* The sequence's content for the groups. */
struct kv_chain kv_seq_chain(const struct kv_seq *seq, const uint32_t *tokens);

/* A sequence got its first blocks, or has given back its last. */
void kv_manager_add_holder(struct kv_manager *mgr, struct kv_seq *seq);
void kv_manager_remove_holder(struct kv_manager *mgr, struct kv_seq *seq);

/* The sequence has KV for n_filled tokens; counts the slots behind them in its blocks. */
void kv_manager_count_idle(struct kv_manager *mgr, struct kv_seq *seq, uint64_t n_filled);

#endif

/* worker/kv/kv_group.h - the layers of one kind of attention, and what they need of a sequence.
 *
 * Layers with the same window form a group. Each group has one table per sequence, all groups share
 * one pool, and equal tokens in two groups are two blocks (the key contains the group's number).
 *
 *      KV_FULL       every token so far                    |xxxxxxxxxxxxxxxxxxxx|q
 *      KV_SLIDING    the last `window`, its own included   |.............xxxxxxx|q
 *      KV_CHUNKED    those of its own chunk of `window`    |..........|xxxxxxxxx|q
 *      KV_REFERENCE  the prompt and the last `window`      |xxxxxx.......xxxxxxx|q
 *                                                           prompt
 *
 * What is not needed any more (a dot) is given back block by block as the sequence grows, and the
 * null block stands in the table instead. A prefix hits when the blocks that its *next* token needs
 * are there; the others need not be, and are null in the hit.
 *
 * In a full group a block is found through its parent (see prefix_cache.h). A window has lost the
 * parents, so there the identity of the whole prefix is a `witness`: a SHA-256 chain over tokens
 * and extra keys, compared beside hash and tokens. It is computed only where such groups exist.
 *
 * All groups have one block size. Thread: engine. Follows: vLLM's hybrid KV cache manager. */
#ifndef WORKER_KV_KV_GROUP_H
#define WORKER_KV_KV_GROUP_H

#include "worker/kv/block/block_pool.h"
#include "worker/kv/block/block_table.h"
#include "worker/kv/kv_host.h"

#define KV_GROUPS_MAX 4

enum kv_attention { KV_FULL, KV_SLIDING, KV_CHUNKED, KV_REFERENCE };

struct kv_group_config {
    enum kv_attention kind;
    uint32_t window; /* tokens, >= 1; of KV_FULL not read */
};

struct kv_group {
    struct kv_group_config config;
    uint32_t number, block_size;
    struct block_pool *pool; /* borrowed, shared by all groups */
    struct kv_host *host;    /* as above; NULL: none */
    bool has_forked;         /* some sequence was: only then can a write meet a shared block */
};

/* The full blocks of one sequence, as keys of the cache. Borrowed arrays, by block. */
struct kv_chain {
    const struct block_hash *hashes;
    const struct block_hash *extras;    /* NULL: no extra keys */
    const struct block_hash *witnesses; /* NULL where every group is full */
    const uint32_t *tokens;             /* (blocks, block_size) */
    uint32_t n_prompt;                  /* tokens; 0: not known, a KV_REFERENCE keeps everything */
};

/* Blocks [from, to) of a sequence. */
struct kv_range {
    uint32_t from, to;
};

/* The blocks whose tokens no token from position n_computed on looks at. from == to: none. */
struct kv_range kv_group_skipped(const struct kv_group *g, uint32_t n_computed, uint32_t n_prompt);

/* Most blocks one sequence of n_tokens holds at a time, given at most step_tokens per step. */
uint32_t kv_group_most_blocks(const struct kv_group_config *config, uint32_t block_size,
                              uint32_t n_tokens, uint32_t step_tokens);

/* The longest hit of at most n_max blocks. Writes ids[0, result): null where the block is not
 * needed behind the hit. Changes nothing. */
uint32_t kv_group_find(const struct kv_group *g, const struct kv_chain *chain, uint32_t n_max,
                       block_id *ids);

/* The free blocks a table takes until it covers n_slots tokens, n_before of them computed or
 * remote, `hits` (n_hits) included: new blocks, copies of shared blocks that the write behind
 * n_before needs, and unused hits, which leave the queue too. */
struct kv_need {
    uint32_t n_new, n_copies, n_revived;
};
struct kv_need kv_group_need(const struct kv_group *g, const struct block_table *t,
                             const block_id *hits, uint32_t n_hits, uint32_t n_before,
                             uint32_t n_slots);

/* The free blocks that all n_tokens of a sequence need when it is computed step by step, at most
 * step_tokens at a time: a window releases blocks behind it as it takes new ones. */
struct kv_need kv_group_need_whole(const struct kv_group *g, const struct block_table *t,
                                   const block_id *hits, uint32_t n_hits, uint32_t n_before,
                                   uint32_t n_tokens, uint32_t step_tokens);

/* True when a write into this entry must go to a copy: another sequence holds the block, or the
 * block is published. Only inherited entries can be published and still be written into. */
bool kv_group_is_shared(const struct kv_group *g, const struct block_table *t, uint32_t index);

/* Puts hits into an empty table, with a reference each; those not needed behind n_before tokens
 * become null, as do the entries of remote tokens that are not needed. Without hits, only that. */
void kv_group_attach(const struct kv_group *g, struct block_table *t, const block_id *hits,
                     uint32_t n_hits, uint32_t n_before);

/* Gives back what no token from n_computed on needs, highest block first. `scratch` has room for
 * the whole table. */
void kv_group_drop_skipped(const struct kv_group *g, struct block_table *t, uint32_t n_computed,
                           uint32_t n_prompt, block_id *scratch);

/* Gives everything back, last block first, and empties the table. */
void kv_group_release(const struct kv_group *g, struct block_table *t, block_id *scratch);

/* What full block `index` is published as, or looked up by; `parent` is the prefix number of the
 * block before it. */
struct prefix_key kv_group_key(const struct kv_group *g, const struct kv_chain *chain,
                               uint32_t index, uint64_t parent);

/* Makes full block `index` findable, under the number that its content has in host memory if it is
 * there too. False, and nothing done, for a null block and for one that a fork has published
 * already. With `dedup` a block that is there already takes the place of ours,
 * unless others hold ours too: false as well. */
bool kv_group_publish(const struct kv_group *g, struct block_table *t, const struct kv_chain *chain,
                      uint32_t index, bool dedup);

#endif

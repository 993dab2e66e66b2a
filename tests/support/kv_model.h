/* tests/support/kv_model.h - the KV manager as one would explain it, for tests to compare with.
 *
 * No hashes, no links, no counts it could get wrong: a block remembers all tokens of its prefix,
 * the free queue is an array, a lookup compares everything with everything, and what a kind of
 * attention needs is asked token by token. */
#ifndef TESTS_SUPPORT_KV_MODEL_H
#define TESTS_SUPPORT_KV_MODEL_H

#include "worker/kv/kv_manager.h"

#define MODEL_MAX_BLOCKS 64
#define MODEL_MAX_LEN    24 /* tokens of a sequence */
#define MODEL_MAX_MOVES  512

struct model_block {
    uint32_t ref_cnt;
    uint32_t n_prefix; /* tokens of the published prefix, this block included; 0: not published */
    uint32_t prefix[MODEL_MAX_LEN];
    uint32_t salt, group;
    uint64_t published_at;
};

struct model {
    struct kv_manager_config config; /* n_groups >= 1 */
    struct model_block blocks[MODEL_MAX_BLOCKS];
    block_id queue[MODEL_MAX_BLOCKS];
    uint32_t n_queue;
    struct kv_move moves[MODEL_MAX_MOVES];
    uint32_t n_moves;
    uint64_t clock, n_switched;
};

/* A sequence: its tokens are the caller's to fill in. */
struct model_seq {
    uint32_t salt; /* 0: none */
    uint32_t tokens[MODEL_MAX_LEN];
    uint32_t n_tokens, n_prompt;
    block_id table[KV_GROUPS_MAX][MODEL_MAX_LEN];
    uint32_t n_table, n_published, n_idle;
};

void model_init(struct model *m, const struct kv_manager_config *config);

/* Blocks of the longest common hit; ids[g] are group g's. */
uint32_t model_lookup(const struct model *m, const struct model_seq *s,
                      block_id ids[KV_GROUPS_MAX][MODEL_MAX_LEN]);
enum status model_allocate(struct model *m, struct model_seq *s, const struct kv_alloc *a);
void model_publish(struct model *m, struct model_seq *s, uint32_t n_ready);
enum status model_fork(struct model *m, struct model_seq *child, const struct model_seq *parent,
                       uint32_t n_computed);
void model_free(struct model *m, struct model_seq *s);
void model_forget_cached(struct model *m);

#endif

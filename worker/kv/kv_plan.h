/* worker/kv/kv_plan.h - how many blocks the memory is worth.
 *
 * A block id means the same block on every device that holds a part of the model, so all have
 * equally many: the device with the least memory decides. The groups of one device share its
 * blocks. Refused when one sequence of max_model_len does not fit, because no request of that
 * length could ever run; the message names the longest that fits. Pure. */
#ifndef WORKER_KV_KV_PLAN_H
#define WORKER_KV_KV_PLAN_H

#include "common/base/status.h"
#include "worker/kv/kv_group.h"

/* One device and its part of the model. */
struct kv_rank {
    uint64_t memory_bytes; /* for KV */
    uint64_t block_bytes;  /* of one block: all its layers of one group, K and V */
};

struct kv_plan {
    const struct kv_rank *ranks;
    uint32_t n_ranks;
    uint32_t block_size, max_model_len; /* tokens */
    uint32_t max_step_tokens;           /* of one sequence; 0: max_model_len */
    uint32_t n_groups;                  /* 0: one, full */
    struct kv_group_config group[KV_GROUPS_MAX];
};

/* Blocks for every rank, the null block included; or ST_NOMEM. */
MUST_USE enum status kv_plan_blocks(const struct kv_plan *plan, uint32_t *n_blocks,
                                    struct error *err);

#endif

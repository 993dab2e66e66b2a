/* worker/kv/kv_coordinator.h - the longest prefix that all groups hit.
 *
 * A prefix helps only if every layer has it, so the hit is the longest one that all groups agree
 * on. Each group computes its longest hit within a bound. Full groups go first, because any shorter
 * hit of theirs is valid; then the window groups lower the bound in turn until a round changes
 * nothing. The result is the greatest common hit, because a length that a group rejects stays
 * rejected. One group, or one window beside full groups, needs a single round.
 *
 * Thread: engine. */
#ifndef WORKER_KV_KV_COORDINATOR_H
#define WORKER_KV_KV_COORDINATOR_H

#include "worker/kv/kv_group.h"

/* The longest common hit of at most n_max blocks. ids[g][0, result) are group g's blocks, null
 * where it needs none; ids[g] has room for n_max. Changes nothing. */
uint32_t kv_coordinator_find(const struct kv_group *groups, uint32_t n_groups,
                             const struct kv_chain *chain, uint32_t n_max, block_id *const *ids);

#endif

/* worker/kv/kv_coordinator.h - the longest prefix that all groups hit.
 *
 * A prefix helps only if every layer has it, so the hit is the longest one that all groups agree
 * on. Each group can say, for any bound, which is its longest hit within it. Full groups go first,
 * for they can only be cut; then the windows in turn lower the bound until a round changes nothing.
 * That is the greatest common hit: what a group refuses above its answer, it refuses for good.
 * With one group, or one window beside full groups, a single round does.
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

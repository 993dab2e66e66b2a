/* worker/kv/kv_coordinator.c - a fixed point from above. */
#include "worker/kv/kv_coordinator.h"

uint32_t kv_coordinator_find(const struct kv_group *groups, uint32_t n_groups,
                             const struct kv_chain *chain, uint32_t n_max, block_id *const *ids) {
    uint32_t n = n_max, n_before, n_windows = 0;

    for (uint32_t g = 0; g < n_groups; g++) {
        bool is_full = groups[g].config.kind == KV_FULL;

        n_windows += !is_full;
        if (is_full) n = kv_group_find(&groups[g], chain, n, ids[g]);
    }
    do {
        n_before = n;
        for (uint32_t g = 0; g < n_groups; g++) {
            if (groups[g].config.kind != KV_FULL) n = kv_group_find(&groups[g], chain, n, ids[g]);
        }
    } while (n < n_before && n_windows > 1);
    return n;
}

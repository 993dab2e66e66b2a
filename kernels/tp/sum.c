/* kernels/tp/sum.c - see sum.h: `size` meetings for a sum; rank r works between r and r + 1. */
#include "kernels/tp/sum.h"

#include <string.h>

enum status tp_sum_join(struct tp_sum *s, struct tp_group *group, uint32_t rank,
                        float *const sums[2]) {
    *s = (struct tp_sum){.group = group, .rank = rank, .size = group->size};
    if (rank == 0) memcpy(s->sums, sums, sizeof(s->sums));
    return group->share(group, rank, (void *)s->sums, sizeof(s->sums));
}

static bool meet_times(struct tp_sum *s, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (s->group->meet(s->group, s->rank) != ST_OK) return false;
    }
    return true;
}

float *tp_sum_begin(struct tp_sum *s) {
    return meet_times(s, s->rank) ? s->sums[s->next] : NULL;
}

const float *tp_sum_end(struct tp_sum *s) {
    const float *sums = s->sums[s->next];

    s->next ^= 1;
    return meet_times(s, s->size - s->rank) ? sums : NULL;
}

/* worker/sched/thinking.c - see thinking.h. */
#include "worker/sched/thinking.h"

void thinking_init(struct thinking *t, const struct thinking_limit *limit) {
    *t = (struct thinking){.phase = THINKING_AFTER};
    if (limit->n_end > 0) t->phase = limit->is_open ? THINKING_INSIDE : THINKING_BEFORE;
}

bool thinking_forces(const struct thinking *t, const struct thinking_limit *limit,
                     uint32_t *token) {
    if (t->phase != THINKING_INSIDE || t->n_tokens < limit->budget) return false;
    *token = limit->end[t->n_matched];
    return true;
}

/* The longest beginning of the marker that the output ends with, after one token more. It was
 * `n_matched` before: those tokens are the beginning of the marker itself. */
static uint32_t match(const uint32_t *marker, uint32_t n_matched, uint32_t token) {
    for (uint32_t n = n_matched + 1; n > 0; n--) {
        uint32_t i = 0;

        if (marker[n - 1] != token) continue;
        while (i + 1 < n && marker[i] == marker[n_matched + 1 - n + i])
            i++;
        if (i + 1 == n) return n;
    }
    return 0;
}

void thinking_take(struct thinking *t, const struct thinking_limit *limit, uint32_t token) {
    bool is_inside = t->phase == THINKING_INSIDE;
    uint32_t n_marker = is_inside ? limit->n_end : limit->n_begin;

    if (t->phase == THINKING_AFTER || n_marker == 0) return;
    if (is_inside && limit->has_other_end && token == limit->other_end) {
        t->phase = THINKING_AFTER;
        return;
    }
    t->n_matched = match(is_inside ? limit->end : limit->begin, t->n_matched, token);
    t->n_tokens += is_inside;
    if (t->n_matched < n_marker) return;
    t->phase = is_inside ? THINKING_AFTER : THINKING_INSIDE;
    t->n_matched = 0;
}

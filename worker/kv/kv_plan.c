/* worker/kv/kv_plan.c - a minimum and a search. */
#include "worker/kv/kv_plan.h"

static uint64_t blocks_needed(const struct kv_plan *p, uint32_t n_tokens) {
    static const struct kv_group_config full = {.kind = KV_FULL};
    uint32_t step = p->max_step_tokens ? p->max_step_tokens : n_tokens;
    uint64_t n = 1; /* null */

    if (p->n_groups == 0) return n + kv_group_most_blocks(&full, p->block_size, n_tokens, step);
    for (uint32_t g = 0; g < p->n_groups; g++)
        n += kv_group_most_blocks(&p->group[g], p->block_size, n_tokens, step);
    return n;
}

/* The longest sequence that n blocks hold. */
static uint32_t longest_within(const struct kv_plan *p, uint64_t n) {
    uint32_t fits = 0, too_long = p->max_model_len;

    while (too_long - fits > 1) {
        uint32_t middle = fits + (too_long - fits) / 2;

        if (blocks_needed(p, middle) <= n)
            fits = middle;
        else
            too_long = middle;
    }
    return fits;
}

enum status kv_plan_blocks(const struct kv_plan *p, uint32_t *n_blocks, struct error *err) {
    uint64_t n = INT32_MAX, n_needed = blocks_needed(p, p->max_model_len);
    const struct kv_rank *poorest = p->ranks;

    for (uint32_t r = 0; r < p->n_ranks; r++) {
        uint64_t n_here = p->ranks[r].memory_bytes / p->ranks[r].block_bytes;

        if (n_here >= n) continue;
        n = n_here;
        poorest = &p->ranks[r];
    }
    if (n >= n_needed) {
        *n_blocks = (uint32_t)n;
        return ST_OK;
    }
    return error_set(
        err, ST_NOMEM,
        "one sequence of max-model-len %u needs %llu bytes of KV cache, but %llu are "
        "available: the longest that fits is %u tokens; lower max-model-len or provide "
        "more memory",
        p->max_model_len, (unsigned long long)(n_needed * poorest->block_bytes),
        (unsigned long long)poorest->memory_bytes, longest_within(p, n));
}

/* router/routing/policy.c - the policies by name. */
#include "router/routing/policy.h"

#define SURELY_QUICKER 2 /* times: by less, the worker may decide otherwise than is predicted */

#define POLICY_OPS(name)  &policy_##name,
#define POLICY_NAME(name) #name,

static const struct policy_ops *const policies[] = {POLICIES(POLICY_OPS)};

const char *const policy_names[] = {POLICIES(POLICY_NAME) NULL};

const struct policy_ops *policy_find(struct str name) {
    for (size_t i = 0; i < ARRAY_LEN(policies); i++) {
        if (str_eq(name, str_of(policies[i]->name))) return policies[i];
    }
    return NULL;
}

double policy_whole_tokens(const struct policy_view *view, uint32_t w, uint32_t n_blocks) {
    uint32_t block_size = view->load->workers[w].block_size;
    double tokens;

    if (!n_blocks) return 0;
    tokens = n_blocks * view->tokens_per_block;
    tokens = MIN(tokens, view->prompt_tokens - 1);
    return (double)((int64_t)(tokens + 0.5) / block_size *
                    block_size); /* prompt_tokens is an estimate */
}

double policy_matched_tokens(const struct policy_view *view, uint32_t w) {
    return policy_whole_tokens(view, w, view->matched_blocks[w]);
}

/* Without what others hold. */
static struct policy_prefill prefill_of_tiers(const struct policy_view *view, uint32_t w) {
    const struct load_worker *k = &view->load->workers[w];
    double cached = policy_matched_tokens(view, w), device, restore_s, compute_s;
    struct policy_prefill p = {.cached_tokens = cached,
                               .work_s = load_prefill_s(k, cached, view->prompt_tokens),
                               .fetch = FETCH_NONE};

    if (!view->device_blocks || view->device_blocks[w] == view->matched_blocks[w]) return p;
    device = policy_whole_tokens(view, w, view->device_blocks[w]);
    restore_s = load_restore_s(k, cached - device);
    compute_s = load_prefill_s(k, device, cached);
    p.may_recompute = restore_s > compute_s / SURELY_QUICKER;
    p.work_s += MIN(restore_s, compute_s);
    if (restore_s <= compute_s)
        p.below_tokens = cached - device;
    else
        p.cached_tokens = device;
    return p;
}

struct policy_prefill policy_prefill_of_all(const struct policy_view *view, uint32_t w) {
    struct policy_prefill p = prefill_of_tiers(view, w);

    if (!view->fetch) return p;
    p.fetch = fetch_plan(view->fetch, view, w, p.cached_tokens);
    if (p.fetch.source == WORKER_NONE) return p;
    p.work_s -= p.fetch.saved_s;
    p.cached_tokens = p.fetch.tokens;
    return p;
}

/* router/routing/policy.c - the policies by name. */
#include "router/routing/policy.h"

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

double policy_matched_tokens(const struct policy_view *view, uint32_t w) {
    uint32_t block_size = view->load->workers[w].block_size;
    double tokens;

    if (!view->matched_blocks[w]) return 0;
    tokens = view->matched_blocks[w] * view->tokens_per_block;
    tokens = MIN(tokens, view->prompt_tokens - 1);
    return (double)((int64_t)(tokens + 0.5) / block_size *
                    block_size); /* prompt_tokens is an estimate */
}

/* router/policy.c - the policies by name. */
#include "router/policy.h"

static const struct policy_ops *const policies[] = {
    &policy_prefix,
    &policy_least_load,
    &policy_round_robin,
};

const struct policy_ops *policy_find(struct str name) {
    for (size_t i = 0; i < ARRAY_LEN(policies); i++) {
        if (str_eq(name, str_of(policies[i]->name))) return policies[i];
    }
    return NULL;
}

const char *policy_name_at(uint32_t i) {
    return i < ARRAY_LEN(policies) ? policies[i]->name : NULL;
}

void policy_options_default(struct policy_options *options) {
    *options = (struct policy_options){
        .beta = 2,
        .kappa = 0.05,
        .delta_s = 0.01,
        .max_load_factor = 2,
        .load_floor = 16,
    };
}

double policy_matched_tokens(const struct policy_view *view, uint32_t w) {
    uint32_t block_size = view->load->workers[w].block_size;
    double tokens;

    if (!view->matched_blocks || !view->matched_blocks[w]) return 0;
    tokens = view->matched_blocks[w] * view->tokens_per_block;
    tokens = MIN(tokens, view->prompt_tokens - 1);
    return (double)((uint64_t)tokens / block_size * block_size);
}

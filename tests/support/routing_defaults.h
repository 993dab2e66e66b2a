/* tests/support/routing_defaults.h - routing with the defaults of the router's option table. */
#ifndef TESTS_SUPPORT_ROUTING_DEFAULTS_H
#define TESTS_SUPPORT_ROUTING_DEFAULTS_H

#include <stdlib.h>

#include "router/options/router_options.h"
#include "router/routing/routing.h"

static inline void routing_options_default(struct routing_options *out) {
    char *argv[] = {(char[]){"router"}, NULL};
    struct router_options o = {0};
    struct options *parsed;
    bool wants_exit;

    if (options_parse(&parsed, &router_program, &o, 1, argv, &wants_exit, NULL) != ST_OK) abort();
    *out = (struct routing_options){.policy = policy_find(str_of(policy_names[o.policy])),
                                    .policy_options = o.policy_options,
                                    .max_workers = 64,
                                    .max_index_bytes = o.max_index_bytes,
                                    .prefix_block_bytes = o.prefix_block_bytes,
                                    .bytes_per_token = ROUTING_BYTES_PER_TOKEN};
    options_destroy(parsed);
}

static inline void policy_options_default(struct policy_options *out) {
    struct routing_options o;

    routing_options_default(&o);
    *out = o.policy_options;
    out->block_bytes = 128; /* of the prompts in tests */
}

#endif

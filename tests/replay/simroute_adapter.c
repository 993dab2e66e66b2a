/* tests/replay/simroute_adapter.c - our routing library inside an independent simulator.
 *
 * simroute, a discrete-event simulator of workers with its own policies, asks seven functions of
 * its router. This file answers them: a policy named lib_NAME is policy NAME of this library, told
 * what a proxy would tell it and nothing more; every other name goes on to the simulator's own
 * policy.c, whose functions `make replay-cross` renames to proto_*. So both run in one program, on
 * the same workers and the same arrivals.
 *
 * lib_NAME:key=BYTES,tree=FACTOR overrides what simulator and library take differently: the length
 * of chwbl's key, and how many published trees fit into the one of cache_aware and hash_trie.
 * home=WEIGHT is --home-weight.
 *
 *     simroute          here                                        library
 *     router_pick  ──▶  chain from block ids, 4 bytes per token ──▶ routing_route
 *     router_first ──▶  cached tokens, with --learn 1           ──▶ routing_first_token
 *     router_end   ──▶  output tokens                           ──▶ routing_ended
 *
 * Weights are the library's defaults: the simulator's --beta, --kappa and --delta are for its own
 * policies. --capfac declares a wrong capacity. A prompt is 4 bytes per token and hashed in blocks
 * of the simulator's size, so the library predicts tokens and never sees a block id. */
#include "common/base.h"
#include "common/mem.h"
#include "common/rng.h"
#include "router/routing.h"

#include "sim.h" /* of the simulator */

#include <stdlib.h>
#include <string.h>

#define BYTES_PER_TOKEN 4
#define INDEX_BYTES     (UINT64_C(256) << 20) /* more than any run fills */

struct proto; /* the simulator's own router */
struct proto *proto_new(sim *s);
void proto_free(struct proto *p);
void proto_reset(struct proto *p);
int proto_pick(struct proto *p, int32_t ri);
void proto_sent(struct proto *p, int32_t ri, int w);
void proto_first(struct proto *p, int32_t ri);
void proto_end(struct proto *p, int32_t ri);

struct router {
    struct proto *proto; /* or NULL, and the rest is ours */
    sim *sim;
    struct routing *routing;
    struct route_ticket *tickets; /* by request */
    uint64_t **chains;            /* of open requests */
};

static void announce_workers(struct router *p) {
    const config *c = &p->sim->c;
    struct worker_spec spec = {
        .generation = 1,
        .block_size = (uint32_t)c->block,
        .n_blocks = (uint64_t)(c->cap_tokens / c->block * c->capfac),
        .prefill_tokens_per_s = c->prefill_rate,
        .attn_context = c->attn_ctx,
    };

    for (uint32_t w = 0; w < (uint32_t)c->n_workers; w++) {
        spec.identity = rng_at(c->seed, w);
        routing_worker_up(p->routing, w, &spec);
    }
}

/* "NAME:key=8193,tree=16" */
static const struct policy_ops *read_policy(const char *text, struct policy_options *options) {
    struct str name = {text, strcspn(text, ":")};
    const char *key = strstr(text, "key="), *tree = strstr(text, "tree=");
    const char *home = strstr(text, "home=");

    if (key) options->chwbl_prefix_bytes = (uint32_t)strtoul(key + strlen("key="), NULL, 10);
    if (tree) options->max_tree_bytes *= strtoul(tree + strlen("tree="), NULL, 10);
    if (home) options->home_weight = strtod(home + strlen("home="), NULL);
    return policy_find(name);
}

static void start_routing(struct router *p) {
    const config *c = &p->sim->c;
    struct routing_options options;
    struct error err = {0};

    routing_options_default(&options);
    options.policy = read_policy(c->policy + strlen("lib_"), &options.policy_options);
    options.policy_options.seed = c->seed;
    options.max_workers = (uint32_t)c->n_workers;
    options.max_index_bytes = INDEX_BYTES;
    options.prefix_block_bytes = (uint32_t)c->block * BYTES_PER_TOKEN;
    options.bytes_per_token = BYTES_PER_TOKEN;
    if (!options.policy) {
        fprintf(stderr, "no policy %s in the library\n", c->policy + strlen("lib_"));
        exit(2);
    }
    if (routing_create(&p->routing, &options, &err) != ST_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(2);
    }
    announce_workers(p);
}

router *router_new(sim *s) {
    struct router *p = mem_zalloc(sizeof(*p));

    p->sim = s;
    if (strncmp(s->c.policy, "lib_", strlen("lib_")) != 0) {
        p->proto = proto_new(s);
        return p;
    }
    start_routing(p);
    p->tickets = mem_calloc((size_t)s->n, sizeof(*p->tickets));
    p->chains = mem_calloc((size_t)s->n, sizeof(*p->chains));
    return p;
}

void router_free(router *p) {
    if (p->proto) proto_free(p->proto);
    if (p->routing) {
        routing_check(p->routing);
        routing_destroy(p->routing);
    }
    mem_free(p->tickets);
    mem_free(p->chains);
    mem_free(p);
}

/* A restart of the router: open requests are forgotten, as their connections would be. */
void router_reset(router *p) {
    if (p->proto) {
        proto_reset(p->proto);
        return;
    }
    for (int32_t i = 0; i < p->sim->n; i++) {
        if (!p->tickets[i].load.is_open) continue;
        routing_ended(p->routing, &p->tickets[i],
                      &(struct route_end){.is_aborted = true, .feedback = {-1, -1}});
        mem_free(p->chains[i]);
        p->chains[i] = NULL;
    }
    routing_destroy(p->routing);
    start_routing(p);
}

static uint64_t now_us(const struct router *p) {
    return (uint64_t)(p->sim->now * 1e6);
}

int router_pick(router *p, int32_t ri) {
    const req *q = &p->sim->r[ri];
    uint64_t *chain;
    struct route_request rq = {
        .n_blocks = (uint32_t)q->nb,
        .prompt_bytes = (uint64_t)q->in * BYTES_PER_TOKEN,
        .session_key = (uint64_t)ri,
        .now_us = now_us(p),
    };

    if (p->proto) return proto_pick(p->proto, ri);
    rq.chain = chain = mem_calloc((size_t)q->nb + 1, sizeof(*chain));
    for (int b = 0; b < q->nb; b++)
        chain[b] = rng_mix(q->id[b] + UINT64_C(1));
    p->chains[ri] = chain;
    if (routing_route(p->routing, &rq, &p->tickets[ri], NULL) != ST_OK) abort();
    return (int)p->tickets[ri].load.worker;
}

void router_sent(router *p, int32_t ri, int w) {
    if (p->proto) proto_sent(p->proto, ri, w);
}

void router_first(router *p, int32_t ri) {
    const req *q = &p->sim->r[ri];
    struct route_feedback feedback = {q->in, p->sim->c.learn ? q->cached : -1};

    if (p->proto) {
        proto_first(p->proto, ri);
        return;
    }
    if (p->tickets[ri].load.is_open)
        routing_first_token(p->routing, &p->tickets[ri], &feedback, now_us(p));
}

void router_end(router *p, int32_t ri) {
    const req *q = &p->sim->r[ri];
    struct route_end end = {.output_tokens = q->out, .feedback = {-1, -1}, .now_us = now_us(p)};

    if (p->proto) {
        proto_end(p->proto, ri);
        return;
    }
    if (!p->tickets[ri].load.is_open) return;
    routing_ended(p->routing, &p->tickets[ri], &end);
    mem_free(p->chains[ri]);
    p->chains[ri] = NULL;
}

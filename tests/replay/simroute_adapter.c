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
 * lib_NAME:share=1,delay_ms=MS,late_ms=MS: several --replicas hear of each other's requests from the
 * workers, as router/sharing/follow.c does: within delay_ms, or late_ms of what is not a request accepted. One
 * that is restarted (--restart) replays what they still have. Every router keeps books of its own.
 *
 *     simroute          here                                        library
 *     router_pick  ──▶  chain from block ids, 4 bytes per token ──▶ routing_route
 *     router_first ──▶  cached tokens, with --learn 1           ──▶ routing_first_token
 *     router_end   ──▶  output tokens                           ──▶ routing_ended
 *         each also ──▶ event_ring of the worker ── before a pick ──▶ routing_add_remote ... of the others
 *
 * Weights are the library's defaults: the simulator's --beta, --kappa and --delta are for its own
 * policies. --capfac declares a wrong capacity. A prompt is 4 bytes per token and hashed in blocks
 * of the simulator's size, so the library predicts tokens and never sees a block id. */
#include "common/base/base.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/prompt/prompt_hash.h"
#include "router/routing/routing.h"
#include "tests/replay/event_ring.h"

#include "sim.h" /* of the simulator */
#include "tests/support/routing_defaults.h"

#include <stdlib.h>
#include <string.h>

#define BYTES_PER_TOKEN 4
#define INDEX_BYTES     (UINT64_C(256) << 20) /* more than any run fills */

/* A worker's ring of 16 MiB, for chains of blocks of 256 bytes; ours are longer, chains shorter. */
#define RING_BYTES       (UINT64_C(16) << 20)
#define RING_BLOCK_BYTES 256

struct proto; /* the simulator's own router */
struct proto *proto_new(sim *s);
void proto_free(struct proto *p);
void proto_reset(struct proto *p);
int proto_pick(struct proto *p, int32_t ri);
void proto_sent(struct proto *p, int32_t ri, int w);
void proto_first(struct proto *p, int32_t ri);
void proto_end(struct proto *p, int32_t ri);

/* What the workers tell, of all routers: this program simulates one fleet. */
struct fleet_log {
    struct event_ring *rings[MAXW];
    uint32_t n_routers; /* that use it */
};
static struct fleet_log fleet_log;

/* A request that another router has sent. */
struct mirrored {
    struct route_ticket ticket;
    uint64_t chain[];
};

struct router {
    struct proto *proto; /* or NULL, and the rest is ours */
    sim *sim;
    struct routing *routing;
    struct route_ticket *tickets; /* by request */
    uint64_t **chains;            /* of open requests */
    bool shares;
    uint64_t delay_us, late_us, origin;
    uint64_t heard[MAXW];       /* sequence of the next event of each worker */
    struct mirrored **mirrored; /* by request */
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

static double number_of(const char *text, const char *key, double otherwise) {
    const char *at = strstr(text, key);

    return at ? strtod(at + strlen(key), NULL) : otherwise;
}

/* "NAME:key=8193,tree=16" */
static const struct policy_ops *read_policy(const char *text, struct policy_options *options) {
    struct str name = {text, strcspn(text, ":")};

    options->chwbl_prefix_bytes = (uint32_t)number_of(text, "key=", options->chwbl_prefix_bytes);
    options->max_tree_bytes *= (uint64_t)number_of(text, "tree=", 1);
    options->home_weight = number_of(text, "home=", options->home_weight);
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

/* --- what the workers tell ------------------------------------------------------------------------*/

static uint64_t now_us(const struct router *p) {
    return (uint64_t)(p->sim->now * 1e6);
}

static void begin_life(struct router *p) {
    static uint64_t n_lives;

    p->origin = ++n_lives;
    for (int w = 0; w < p->sim->c.n_workers; w++)
        p->heard[w] = event_ring_oldest(fleet_log.rings[w]);
}

static void start_sharing(struct router *p) {
    const config *c = &p->sim->c;

    p->shares = number_of(c->policy, "share=", 0) != 0;
    if (!p->shares) return;
    p->delay_us = (uint64_t)(number_of(c->policy, "delay_ms=", 0) * 1000);
    p->late_us = MAX((uint64_t)(number_of(c->policy, "late_ms=", 0) * 1000), p->delay_us);
    p->mirrored = mem_calloc((size_t)p->sim->n, sizeof(*p->mirrored));
    if (fleet_log.n_routers++ == 0) {
        for (int w = 0; w < c->n_workers; w++)
            fleet_log.rings[w] = event_ring_create(RING_BYTES * RING_BLOCK_BYTES /
                                                   ((uint64_t)c->block * BYTES_PER_TOKEN));
    }
    begin_life(p);
}

static void tell(struct router *p, int32_t ri, struct request_event e) {
    if (!p->shares) return;
    e.t_us = now_us(p);
    e.request = (uint64_t)ri;
    event_ring_put(fleet_log.rings[p->sim->r[ri].w], &e);
}

static void adopt(struct router *p, uint32_t w, const struct request_event *e) {
    const struct request_chain *chain = &e->chain;
    struct mirrored *m = mem_zalloc(sizeof(*m) + chain->n_blocks * sizeof(*m->chain));
    struct route_request rq = {.chain = m->chain,
                               .n_blocks = chain->n_blocks,
                               .prompt_bytes = chain->prompt_bytes,
                               .now_us = e->t_us};

    memcpy(m->chain, chain->blocks, chain->n_blocks * sizeof(*m->chain));
    routing_add_remote(p->routing, w, &rq, &m->ticket);
    p->mirrored[e->request] = m;
}

static void end_mirrored(struct router *p, uint64_t request, const struct route_end *end) {
    routing_ended(p->routing, &p->mirrored[request]->ticket, end);
    mem_free(p->mirrored[request]);
    p->mirrored[request] = NULL;
}

static void hear(struct router *p, uint32_t w, const struct request_event *e) {
    struct mirrored *m = p->mirrored[e->request];
    struct route_feedback feedback = {e->prompt_tokens, e->cached_tokens};
    struct route_end end = {
        .output_tokens = e->output_tokens, .feedback = {-1, -1}, .now_us = e->t_us};

    if (e->kind == REQUEST_ACCEPTED && e->chain.origin != p->origin) adopt(p, w, e);
    if (m && e->kind == REQUEST_FIRST)
        routing_first_token(p->routing, &m->ticket, &feedback, e->t_us);
    if (m && e->kind == REQUEST_ENDED) end_mirrored(p, e->request, &end);
}

/* Everything that has come until now. */
static void listen_to_workers(struct router *p) {
    static uint64_t blocks[CHAIN_BLOCKS_MAX];
    struct request_event e;

    for (int w = 0; p->shares && w < p->sim->c.n_workers; w++) {
        struct event_ring *ring = fleet_log.rings[w];
        uint64_t end = event_ring_sent(ring, p->heard[w], now_us(p), p->delay_us, p->late_us);

        while (event_ring_next(ring, &p->heard[w], end, blocks, &e))
            hear(p, (uint32_t)w, &e);
    }
}

/* What is not ours is not open here any more. */
static void drop_mirrored(struct router *p) {
    struct route_end end = {.is_aborted = true, .output_tokens = -1, .feedback = {-1, -1}};

    for (int32_t i = 0; p->shares && i < p->sim->n; i++) {
        if (p->mirrored[i]) end_mirrored(p, (uint64_t)i, &end);
    }
}

static void stop_sharing(struct router *p) {
    if (!p->shares) return;
    drop_mirrored(p);
    mem_free(p->mirrored);
    if (--fleet_log.n_routers) return;
    for (int w = 0; w < p->sim->c.n_workers; w++)
        event_ring_destroy(fleet_log.rings[w]);
}

/* --- the simulator's seven questions --------------------------------------------------------------*/

router *router_new(sim *s) {
    struct router *p = mem_zalloc(sizeof(*p));

    p->sim = s;
    if (strncmp(s->c.policy, "lib_", strlen("lib_")) != 0) {
        p->proto = proto_new(s);
        return p;
    }
    start_routing(p);
    start_sharing(p);
    p->tickets = mem_calloc((size_t)s->n, sizeof(*p->tickets));
    p->chains = mem_calloc((size_t)s->n, sizeof(*p->chains));
    return p;
}

void router_free(router *p) {
    if (p->proto) proto_free(p->proto);
    if (p->routing) {
        listen_to_workers(p);
        stop_sharing(p);
        routing_check(p->routing);
        routing_destroy(p->routing);
    }
    mem_free(p->tickets);
    mem_free(p->chains);
    mem_free(p);
}

/* A restart of the router: open requests are forgotten, as their connections would be; their workers
 * may still tell of them. */
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
    drop_mirrored(p);
    routing_destroy(p->routing);
    start_routing(p);
    if (p->shares) begin_life(p);
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
        chain[b] = rng_mix(q->id[b] + UINT64_C(1)) & PROMPT_HASH_MASK;
    p->chains[ri] = chain;
    listen_to_workers(p);
    if (routing_route(p->routing, &rq, &p->tickets[ri], NULL) != ST_OK) abort();
    return (int)p->tickets[ri].load.worker;
}

void router_sent(router *p, int32_t ri, int w) {
    const req *q = &p->sim->r[ri];

    if (p->proto) {
        proto_sent(p->proto, ri, w);
        return;
    }
    tell(p, ri,
         (struct request_event){.kind = REQUEST_ACCEPTED,
                                .chain = {.origin = p->origin,
                                          .scheme = 1,
                                          .prompt_bytes = (uint64_t)q->in * BYTES_PER_TOKEN,
                                          .n_blocks = (uint32_t)q->nb,
                                          .blocks = p->chains[ri]}});
}

void router_first(router *p, int32_t ri) {
    const req *q = &p->sim->r[ri];
    struct route_feedback feedback = {q->in, p->sim->c.learn ? q->cached : -1};

    if (p->proto) {
        proto_first(p->proto, ri);
        return;
    }
    tell(p, ri,
         (struct request_event){.kind = REQUEST_FIRST,
                                .prompt_tokens = feedback.prompt_tokens,
                                .cached_tokens = feedback.cached_tokens});
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
    tell(p, ri, (struct request_event){.kind = REQUEST_ENDED, .output_tokens = q->out});
    if (!p->tickets[ri].load.is_open) return;
    routing_ended(p->routing, &p->tickets[ri], &end);
    mem_free(p->chains[ri]);
    p->chains[ri] = NULL;
}

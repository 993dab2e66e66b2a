/* router/registry/explain.h - why a request was routed to its worker.
 *
 * A decision is explained by pricing it a second time, as a dry run, just before it is made: the
 * choice and the closest others, each with the terms of its cost (policy/prefix.c). Only for
 * requests that carry x-incipit-route and are permitted to, because it reveals load and index
 * (--explain-to-clients, or an admin key in x-incipit-admin-key). POST /debug/route explains a body
 * in full without sending it:
 *
 *      curl 127.0.0.1:29000/debug/route -d '{"model":"m","prompt":"..."}'
 *
 * LIMITS. Another request may be routed in between, so the choice need not be the cheapest of its
 * explanation. /debug/route ignores headers that name a session. */
#ifndef ROUTER_REGISTRY_EXPLAIN_H
#define ROUTER_REGISTRY_EXPLAIN_H

#include "router/prompt/session_name.h"
#include "router/registry/registry_route.h"

struct http_request;

#define EXPLANATION_TOP 4

struct explanation {
    uint32_t n_candidates;
    uint32_t n;                                     /* of `top`; 0: no explanation */
    struct registry_candidate top[EXPLANATION_TOP]; /* the choice, then the cheapest first */
};

/* Prices the request. `scratch` has room for `max` candidates, the largest number of workers. */
void explain(struct registry *registry, struct str model, const struct route_request *rq,
             struct registry_candidate *scratch, uint32_t max, struct explanation *out);

/* "candidates=8 why=cheapest wait_s=0.01 mem_s=0 u_s=0.2 L=3 cost_s=0.8 next=5 next_cost_s=0.9
 * ..."; `worker` is the one chosen. Writes nothing without an explanation. */
void explain_append(struct buf *out, const struct explanation *e, uint32_t worker);

/* "cost_s":0.8,"wait_s":0.01, ... as members of an object. */
struct json_writer;
void explain_put_terms(struct json_writer *w, const struct registry_candidate *c);

/* --- /debug/route ----------------------------------------------------------------------------- */

struct dry_run {
    struct registry *registry;
    uint32_t prefix_block_bytes, max_prefix_blocks, max_workers;
    uint64_t hash_secret;
    struct session_headers session_headers;
    bool is_isolated;         /* x-incipit-tenant names the tenant */
    _Atomic bool keeps_noise; /* of clients, in the hash; changes while loops answer */
};

/* Answers it. Any thread. */
void dry_run_answer(const struct dry_run *d, struct http_request *req);

#endif

/* router/registry/registry_pair.h - a prompt is computed on one worker and decoded on another.
 *
 * A request has its ticket at the worker d that answers it, as always. If its prompt is computed
 * apart, a second ticket, the leg, is open at the worker p meanwhile:
 *
 *      registry_enter ──▶ ticket at d ──registry_pair──▶ parked at d, leg open at p
 *                                                          │ leg: first_token, ended
 *                              ┌── registry_unpair ◀───────┤ failed
 *                              ▼                           ▼ handed over
 *                          pending at d              first_token, ended
 *
 * So prefill seconds count at p, memory and decode at d, and each worker has the request in flight
 * once, while it works for it. The request is one of --max-concurrent-requests. Threads: router
 * loops. */
#ifndef ROUTER_REGISTRY_REGISTRY_PAIR_H
#define ROUTER_REGISTRY_REGISTRY_PAIR_H

#include "router/registry/registry_route.h"

/* Opens *leg at *p and parks *ticket, if that pays or d's handover is required; `price` then has
 * both ways. ST_AGAIN: it does not pay. ST_UNAVAILABLE: no worker prefills for d's. rq->exclude
 * names the workers that p may not be. */
MUST_USE enum status registry_pair(struct registry *r, const struct registry_target *d,
                                   const struct route_request *rq, struct route_ticket *ticket,
                                   struct route_ticket *leg, struct registry_target *p,
                                   struct pair_price *price);

/* The engine of `p` that computes the next prompt, each in turn, and how many it has. False: they
 * are unknown, or another worker has its place. */
MUST_USE bool registry_next_engine(struct registry *r, const struct registry_target *p,
                                   struct worker_engine *out, uint32_t *n);

/* The leg has failed: d computes the prompt. For a handover that is not required. */
void registry_unpair(struct registry *r, const struct registry_target *d,
                     struct route_ticket *ticket, uint64_t now_us);

/* The leg at p, still open, has computed the prompt and has `tokens` of it, `computed` of them for
 * this request: p becomes *d's source of KV. False: d cannot use its blocks any more. */
bool registry_hand_over(struct registry *r, struct registry_target *d, struct route_ticket *ticket,
                        const struct registry_target *p, uint32_t tokens, uint32_t computed,
                        uint64_t now_us);

/* A second leg had its first token after so many seconds. */
void registry_learn_fetch(struct registry *r, const struct registry_target *d, double tokens,
                          double seconds, uint64_t now_us);

#endif

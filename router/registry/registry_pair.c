/* router/registry/registry_pair.c - legs, under the one lock. */
#include "router/registry/registry_pair.h"

#include "router/registry/registry_internal.h"

enum status registry_pair(struct registry *r, const struct registry_target *d,
                          const struct route_request *rq, struct route_ticket *ticket,
                          struct route_ticket *leg, struct registry_target *p,
                          struct pair_price *price) {
    struct route_request first = *rq;
    enum status st;

    first.guesses = NULL; /* they are of `ticket` */
    registry_lock(r);
    st = routing_offer_prefill(d->routing, &first, ticket, price);
    if (st == ST_OK && !handover_is_required(d->part.handover) && !pair_pays(price)) st = ST_AGAIN;
    if (st == ST_OK) {
        routing_accept(d->routing, &first, leg);
        routing_note_leg(d->routing, leg, rq->now_us);
        leg->is_leg = true;
        r->n_legs++;
        registry_fill_target(r, d->routing, leg, p);
        routing_park(d->routing, ticket, rq->now_us);
    }
    pthread_mutex_unlock(&r->lock);
    return st;
}

bool registry_next_engine(struct registry *r, const struct registry_target *p,
                          struct worker_engine *out, uint32_t *n) {
    struct worker *w = &r->workers[p->worker];
    bool is_there;

    registry_lock(r);
    is_there = w->is_used && w->incarnation == p->incarnation && w->engines.n;
    if (is_there) {
        *out = w->engines.engines[w->next_engine++ % w->engines.n];
        *n = w->engines.n;
    }
    pthread_mutex_unlock(&r->lock);
    return is_there;
}

void registry_unpair(struct registry *r, const struct registry_target *d,
                     struct route_ticket *ticket, uint64_t now_us) {
    registry_lock(r);
    routing_unpark(d->routing, ticket, now_us);
    pthread_mutex_unlock(&r->lock);
}

bool registry_hand_over(struct registry *r, struct registry_target *d, struct route_ticket *ticket,
                        const struct registry_target *p, uint32_t tokens, uint32_t computed,
                        uint64_t now_us) {
    bool is_named;

    registry_lock(r);
    is_named = routing_hand_over(d->routing, ticket, p->worker, tokens, now_us);
    registry_fill_source(r, ticket, d);
    if (is_named) d->source_computed = computed;
    pthread_mutex_unlock(&r->lock);
    return is_named;
}

void registry_learn_fetch(struct registry *r, const struct registry_target *d, double tokens,
                          double seconds, uint64_t now_us) {
    registry_lock(r);
    routing_learn_handover(d->routing, tokens, seconds, now_us);
    pthread_mutex_unlock(&r->lock);
}

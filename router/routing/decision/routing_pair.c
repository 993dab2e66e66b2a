/* router/routing/decision/routing_pair.c - prompts that one worker computes and another decodes.
 *
 * The request has been sent to a worker, d, that answers it (routing_route). Whether another, p, is
 * to compute its prompt is decided by the prices of both ways (router/pairing/pair.h); p gets a
 * ticket of its own, and d's is parked meanwhile. */
#include <assert.h>

#include "router/routing/decision/routing_internal.h"

/* One protocol, and blocks that are of use. */
static bool is_pair(const struct routing *r, uint32_t p, uint32_t d) {
    uint8_t handover = r->load.workers[d].spec.handover;

    return r->load.workers[p].spec.handover == handover &&
           (handover != HANDOVER_PEER || fetch_may_use(&r->fetch, d, p));
}

/* Workers that prefill for d, with room. */
static bool find_prefills(const struct routing *r, const struct route_request *rq, uint32_t d,
                          struct worker_mask *mask) {
    *mask = r->load.prefills;
    worker_mask_drop(mask->words, d);
    for (uint32_t i = 0; i < rq->n_exclude; i++) {
        if (rq->exclude[i] < r->load.n_workers) worker_mask_drop(mask->words, rq->exclude[i]);
    }
    WORKER_MASK_FOR_EACH(w, mask->words, r->load.n_words) {
        if (!is_pair(r, w, d)) worker_mask_drop(mask->words, w);
    }
    load_drop_ramping(&r->load, mask->words, rq->now_us);
    load_drop_full(&r->load, mask->words);
    return !worker_mask_is_empty(mask->words, r->load.n_words);
}

/* The share of its speed that decoding loses while its worker prefills. */
static double decode_loss(const struct load *l) {
    return l->speed.quiet > 0 ? 1 - l->speed.busy / l->speed.quiet : 0;
}

enum status routing_offer_prefill(struct routing *r, const struct route_request *rq,
                                  const struct route_ticket *d, struct pair_price *out) {
    uint32_t w = d->load.worker;
    const struct load_worker *k = &r->load.workers[w];

    assert(!rq->guesses);
    if (!find_prefills(r, rq, w, &r->candidates)) return ST_UNAVAILABLE;
    r->view = routing_look(r, rq, &r->candidates, NULL);
    r->chosen = r->options.policy->pick(r->policy, rq, &r->view, NULL);
    *out = (struct pair_price){
        .wait_d_s = d->wait_s,
        .work_d_s = d->load.work_s,
        .decodes = k->in_flight - k->n_pending,
        .delta = decode_loss(&r->load),
        .work_p_s = policy_prefill(&r->view, r->chosen).work_s,
        .fetch_s = pair_fetch_s(&r->pair_fetch, d->prompt_tokens - d->cached_tokens, rq->now_us),
    };
    out->decodes_p = load_held_up(&r->load, r->chosen, out->work_p_s);
    out->wait_p_s = load_wait_in_order_s(&r->load, r->chosen, out->work_p_s, rq->now_us);
    if (pair_is_dear(out) && out->work_d_s >= LOAD_LEG_LEAST_S) load_end_legs(&r->load, r->chosen);
    return ST_OK;
}

void routing_note_leg(struct routing *r, const struct route_ticket *leg, uint64_t now_us) {
    load_note_leg(&r->load, leg->load.worker, leg->load.work_s, now_us);
}

void routing_park(struct routing *r, struct route_ticket *t, uint64_t now_us) {
    uint32_t w = t->load.worker;
    bool is_oldest = list_first(&r->load.workers[w].pending) == &t->load.link;

    speed_aborted(&r->speeds[w], t->is_measured, is_oldest, now_us);
    t->is_measured = false;
    t->has_feedback = true;
    load_park(&r->load, &t->load, now_us);
}

void routing_unpark(struct routing *r, struct route_ticket *t, uint64_t now_us) {
    t->has_feedback = false;
    load_unpark(&r->load, &t->load, now_us);
}

bool routing_hand_over(struct routing *r, struct route_ticket *t, uint32_t source, double tokens,
                       uint64_t now_us) {
    uint32_t w = t->load.worker;

    if (t->fetch.source != WORKER_NONE && !t->is_fetch_over) fetch_dropped(&r->fetch, &t->fetch);
    t->fetch = fetch_plan_from(&r->fetch, &r->load, source, w, tokens,
                               MIN(t->cached_tokens, tokens - 1), now_us);
    t->is_fetch_over = t->fetch.source == WORKER_NONE;
    if (!t->is_fetch_over) fetch_sent(&r->fetch, &t->fetch, w, now_us);
    return !t->is_fetch_over;
}

void routing_learn_handover(struct routing *r, double tokens, double seconds, uint64_t now_us) {
    pair_fetch_learn(&r->pair_fetch, tokens, seconds, now_us);
}

/* router/routing/decision/routing_look.c - what workers hold of a prompt, and what that costs. */
#include <math.h>
#include <string.h>

#include "router/routing/decision/routing_internal.h"

/* Splits what matched into device and below, on the workers that have blocks there. */
static void look_below(struct routing *r, const struct route_request *rq,
                       const struct worker_mask *mask, const uint32_t *guesses) {
    struct worker_mask below = {0};

    for (uint32_t k = 0; k < r->load.n_words; k++)
        below.words[k] = mask->words[k] & prefix_lru_below(r->lru)[k];
    memcpy(r->on_device, r->matched, r->load.n_workers * sizeof(*r->matched));
    WORKER_MASK_FOR_EACH(w, below.words, r->load.n_words)
    prefix_lru_ask_device(r->lru, w, rq->chain, r->matched[w], guesses);
    WORKER_MASK_FOR_EACH(w, below.words, r->load.n_words)
    r->on_device[w] = prefix_lru_on_device(r->lru, w, rq->chain, r->matched[w], guesses);
}

struct policy_view routing_look(struct routing *r, const struct route_request *rq,
                                const struct worker_mask *mask, uint32_t *guesses) {
    double tokens = (double)(int64_t)rq->prompt_bytes / r->bytes_per_token;
    bool has_below = !worker_mask_is_empty(prefix_lru_below(r->lru), r->load.n_words);
    uint32_t n_shared =
        prefix_index_match(r->index, rq->chain, rq->n_blocks, mask->words, r->matched, guesses);

    if (UNLIKELY(has_below)) look_below(r, rq, mask, guesses);
    return (struct policy_view){
        .load = &r->load,
        .candidates = mask->words,
        .matched_blocks = r->matched,
        .device_blocks = has_below ? r->on_device : NULL,
        .n_shared_blocks = n_shared,
        .prompt_tokens = MAX(tokens, 1),
        .tokens_per_block = r->tokens_per_block,
    };
}

/* --- sources ---------------------------------------------------------------------------------- */

/* Workers that the request may fetch from; false: none. */
static bool find_sources(const struct routing *r, const struct route_request *rq,
                         struct worker_mask *sources) {
    if (!fetch_is_possible(&r->fetch) || rq->is_light || rq->is_continued) return false;
    for (uint32_t i = 0; i < r->load.n_words; i++)
        sources->words[i] = r->load.eligible.words[i] & r->fetch.peers.words[i];
    for (uint32_t i = 0; i < rq->n_exclude && !rq->may_fetch_from_excluded; i++) {
        if (rq->exclude[i] < r->load.n_workers) worker_mask_drop(sources->words, rq->exclude[i]);
    }
    return true;
}

struct asked_source {
    const struct routing *r;
    const struct route_request *rq;
};

/* A pending request computes what it did not find there: from that block on the prefix it shares
 * with this one is still to come. */
static uint32_t ready_blocks(const void *ctx, uint32_t s, uint32_t n) {
    const struct asked_source *asked = ctx;

    LIST_FOR_EACH(it, &asked->r->load.workers[s].pending) {
        struct load_ticket *load = LIST_ENTRY(it, struct load_ticket, link);
        const struct route_ticket *t = CONTAINER_OF(load, struct route_ticket, load);
        uint32_t at = t->matched_blocks;

        if (at < n && at < t->n_blocks && t->chain[at] == asked->rq->chain[at]) n = at;
    }
    return n;
}

struct policy_view routing_look_wider(struct routing *r, const struct route_request *rq,
                                      const struct worker_mask *mask, uint32_t *guesses) {
    struct worker_mask sources, all = *mask;
    struct policy_view view;

    if (!find_sources(r, rq, &sources)) return routing_look(r, rq, mask, guesses);
    for (uint32_t i = 0; i < r->load.n_words; i++)
        all.words[i] |= sources.words[i];
    view = routing_look(r, rq, &all, guesses);
    view.candidates = mask->words;
    if (fetch_find(&r->fetch, &view, sources.words, ready_blocks, &(struct asked_source){r, rq},
                   rq->now_us))
        view.fetch = &r->fetch;
    return view;
}

/* --- prices ----------------------------------------------------------------------------------- */

/* One that holds no more than another and is not quicker is passed over: workers of a model differ
 * in speed, and tiers make more of what is held, not less. */
double routing_least_prefill_s(const struct routing *r, const struct policy_view *view) {
    double least_s = HUGE_VAL, speed = 0;
    uint32_t n_held = 0;

    WORKER_MASK_FOR_EACH(w, view->candidates, r->load.n_words) {
        double work_s;

        if (r->matched[w] <= n_held && r->load.tokens_per_s[w] <= speed && !view->device_blocks)
            continue;
        work_s = policy_prefill(view, w).work_s;
        if (work_s >= least_s) continue;
        least_s = work_s;
        n_held = r->matched[w];
        speed = r->load.tokens_per_s[w];
    }
    return isinf(least_s) ? 0 : least_s;
}

double routing_price(struct routing *r, const struct route_request *rq, uint32_t *home) {
    struct worker_mask mask = r->load.eligible;
    struct policy_view view = routing_look(r, rq, &mask, NULL);
    uint32_t n_best = view.n_shared_blocks;

    *home = WORKER_NONE;
    WORKER_MASK_FOR_EACH(w, mask.words, r->load.n_words) {
        if (r->matched[w] > n_best) {
            n_best = r->matched[w];
            *home = w;
        }
    }
    return routing_least_prefill_s(r, &view);
}

uint32_t routing_known_blocks(struct routing *r, const struct route_request *rq) {
    struct worker_mask mask = r->load.eligible;
    uint32_t n_known = routing_look(r, rq, &mask, NULL).n_shared_blocks;

    WORKER_MASK_FOR_EACH(w, mask.words, r->load.n_words)
    n_known = MAX(n_known, r->matched[w]);
    return n_known;
}

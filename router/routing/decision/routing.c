/* router/routing/decision/routing.c - prefix index, LRUs, load and policy, changed together.
 *
 * What each event does to each part:
 *
 *                 prefix_lru                    load              policy
 *     route       pinned as pending             in flight, wait   pick, sent
 *     add_remote  pinned as pending             in flight, wait   sent
 *     first token computed                      wait less         first_token
 *     ended       cold, output counted          in flight less    ended
 *     aborted     pending blocks removed        in flight less    ended
 *     worker down all entries dropped           -                 worker_down
 *
 * A ticket carries the epoch of its worker's cache. After a restart of the worker the index no
 * longer has the ticket's blocks, and the events of the ticket reach load and policy alone. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/routing/decision/routing_internal.h"
#include "router/routing/routing.h"

#define INDEX_BYTES_MIN (UINT64_C(1) << 20)
#define ENTRIES_MAX     (UINT32_MAX / 2) /* slots are an eighth more and still fit 32 bits */
#define OUTPUT_MAX      1e6              /* tokens: more than any context has */

/* --- creation -------------------------------------------------------------------------------- */

/* The most entries whose index and LRUs fit into `bytes`. */
static uint32_t entries_within(uint64_t bytes, uint32_t n_workers) {
    uint64_t low = 1, high = MIN(bytes / 16, (uint64_t)ENTRIES_MAX);

    while (low < high) {
        uint32_t mid = (uint32_t)((low + high + 1) / 2);

        if (prefix_index_bytes(mid, n_workers) + prefix_lru_bytes(n_workers) <= bytes)
            low = mid;
        else
            high = mid - 1;
    }
    return (uint32_t)low;
}

static enum status check_options(const struct routing_options *o, struct error *err) {
    if (!o->max_workers || o->max_workers > WORKERS_MAX)
        return error_set(err, ST_INVALID, "max-workers %u is out of range: use 1 to %u",
                         o->max_workers, WORKERS_MAX);
    if (o->max_index_bytes < INDEX_BYTES_MIN)
        return error_set(err, ST_INVALID, "max-index-bytes %llu is too small: use at least %llu",
                         (unsigned long long)o->max_index_bytes,
                         (unsigned long long)INDEX_BYTES_MIN);
    if (!o->prefix_block_bytes)
        return error_set(err, ST_INVALID, "prefix-block-bytes 0 makes no blocks: use 256");
    if (!(o->bytes_per_token > 0))
        return error_set(err, ST_INVALID, "bytes-per-token %g is not positive: use 4",
                         o->bytes_per_token);
    return ST_OK;
}

enum status routing_create(struct routing **out, const struct routing_options *options,
                           struct error *err) {
    enum status st = check_options(options, err);
    struct routing *r;

    if (st != ST_OK) return st;
    r = mem_zalloc(sizeof(*r));
    r->options = *options;
    r->n_entries_max = entries_within(options->max_index_bytes, options->max_workers);
    load_init(&r->load, options->max_workers);
    r->load.slow_start_us = options->slow_start_us;
    fetch_init(&r->fetch, options->max_workers);
    r->caches = mem_calloc(options->max_workers, sizeof(*r->caches));
    r->matched = mem_calloc(options->max_workers, sizeof(*r->matched));
    r->on_device = mem_calloc(options->max_workers, sizeof(*r->on_device));
    r->speeds = mem_calloc(options->max_workers, sizeof(*r->speeds));
    r->terms = mem_calloc(options->max_workers, sizeof(*r->terms));
    routing_learn_ratio(r, ROUTING_FIRST_RATIO_TOKENS * options->bytes_per_token,
                        ROUTING_FIRST_RATIO_TOKENS, 0);
    for (uint32_t w = 0; w < options->max_workers; w++)
        routing_reset_cache(&r->caches[w], 0);
    r->options.policy_options.block_bytes = options->prefix_block_bytes;
    r->policy = options->policy->create(&r->options.policy_options, options->max_workers);
    if (!r->policy) {
        st = error_set(err, ST_NOMEM, "no memory for the policy %s: lower max-tree-size",
                       options->policy->name);
        routing_destroy(r);
        return st;
    }
    r->index = prefix_index_create(r->n_entries_max, options->max_workers);
    if (r->index) r->lru = prefix_lru_create(r->index, options->max_workers);
    if (!r->lru) {
        st = error_set(err, ST_NOMEM,
                       "no memory for a prefix index of %llu bytes: lower max-index-bytes",
                       (unsigned long long)options->max_index_bytes);
        routing_destroy(r);
        return st;
    }
    *out = r;
    return ST_OK;
}

void routing_destroy(struct routing *r) {
    if (!r) return;
    assert(!r->load.n_open);
    prefix_lru_destroy(r->lru);
    prefix_index_destroy(r->index);
    if (r->policy) r->options.policy->destroy(r->policy);
    mem_free(r->matched);
    mem_free(r->on_device);
    mem_free(r->speeds);
    mem_free(r->terms);
    mem_free(r->caches);
    fetch_fini(&r->fetch);
    load_fini(&r->load);
    mem_free(r);
}

void routing_configure(struct routing *r, const struct policy_options *options,
                       uint64_t slow_start_us) {
    struct policy_options *o = &r->options.policy_options;
    uint64_t seed = o->seed;

    *o = *options;
    o->seed = seed;
    o->block_bytes = r->options.prefix_block_bytes;
    r->load.slow_start_us = slow_start_us;
    if (r->options.policy->configure) r->options.policy->configure(r->policy, o);
}

/* --- learning -------------------------------------------------------------------------------- */

/* --- workers --------------------------------------------------------------------------------- */

void routing_worker_up(struct routing *r, uint32_t w, const struct worker_spec *spec) {
    const struct load_worker *k;

    assert(w < r->load.n_workers);
    k = &r->load.workers[w];
    if (!(k->reasons & WORKER_ABSENT) && k->spec.generation != spec->generation)
        routing_drop_cache(r, w);
    load_worker_up(&r->load, w, spec);
    r->speeds[w].declared = k->spec.prefill_tokens_per_s / ROUTING_REFERENCE_TOKENS_PER_S;
    r->speeds[w].is_declared = spec->prefill_tokens_per_s > 0;
    routing_settle_speeds(r);
    if (!(load_below_tokens(k) > 0)) prefix_lru_set_below(r->lru, w, 0, false);
    routing_fit_cache(r, w, 0);
    if (r->options.policy->worker_up) r->options.policy->worker_up(r->policy, w, &k->spec);
}

void routing_worker_down(struct routing *r, uint32_t w) {
    assert(w < r->load.n_workers);
    routing_drop_cache(r, w);
    r->caches[w].stored_tokens = 0;
    speed_reset(&r->speeds[w]);
    load_worker_down(&r->load, w);
    fetch_set_peer(&r->fetch, w, &(struct fetch_peer){0});
    if (r->options.policy->worker_down) r->options.policy->worker_down(r->policy, w);
}

void routing_set_peer(struct routing *r, uint32_t w, const struct fetch_peer *peer) {
    fetch_set_peer(&r->fetch, w, peer);
}

void routing_slow_start(struct routing *r, uint32_t w, uint64_t now_us) {
    load_begin_slow_start(&r->load, w, now_us);
}

void routing_set_reason(struct routing *r, uint32_t w, uint32_t reasons, bool is_set) {
    load_set_reason(&r->load, w, reasons, is_set);
}

/* --- requests -------------------------------------------------------------------------------- */

/* Workers that are eligible, not excluded, within their slow start, and below their admission limit
 * unless all have reached it; or the one that has stored what the request continues. The slow
 * start is applied first: a new worker does not receive
 * everything because all others are full. */
static bool find_candidates(const struct routing *r, const struct route_request *rq,
                            struct worker_mask *mask) {
    *mask = r->load.eligible;
    for (uint32_t i = 0; i < rq->n_exclude; i++) {
        if (rq->exclude[i] < r->load.n_workers) worker_mask_drop(mask->words, rq->exclude[i]);
    }
    if (rq->is_continued && rq->stored_at < r->load.n_workers &&
        worker_mask_has(mask->words, rq->stored_at)) {
        *mask = (struct worker_mask){0};
        worker_mask_add(mask->words, rq->stored_at);
        return true;
    }
    load_drop_ramping(&r->load, mask->words, rq->now_us);
    load_drop_full(&r->load, mask->words);
    return !worker_mask_is_empty(mask->words, r->load.n_words);
}

void routing_open_light(struct routing *r, uint32_t w, uint64_t now_us, struct route_ticket *t) {
    *t = (struct route_ticket){0};
    t->fetch = FETCH_NONE;
    load_open_light(&r->load, &t->load, w, now_us);
}

/* Counts the request as sent to w and opens *t. The view holds what matched at w. */
static void open_ticket(struct routing *r, uint32_t w, const struct route_request *rq,
                        const struct policy_view *view, struct route_ticket *t) {
    const struct load_worker *k = &r->load.workers[w];
    struct policy_prefill p;
    double new_tokens;

    if (rq->is_light) {
        routing_open_light(r, w, rq->now_us, t);
        return;
    }
    p = policy_prefill(view, w);
    new_tokens = view->prompt_tokens - p.cached_tokens;

    *t = (struct route_ticket){
        .chain = rq->chain,
        .guesses = rq->guesses,
        .n_blocks = rq->n_blocks,
        .matched_blocks = r->matched[w],
        .prompt_bytes = rq->prompt_bytes,
        .epoch = r->caches[w].epoch,
        .wait_s = MAX(load_wait_s(k, rq->now_us), p.fetch.fetch_s),
        .prompt_tokens = view->prompt_tokens,
        .cached_tokens = p.cached_tokens,
        .below_tokens = p.below_tokens,
        .may_recompute = p.may_recompute,
        .fetch = p.fetch,
        .has_feedback = rq->is_continued, /* nothing follows from the length of a part */
    };
    load_open(&r->load, &t->load, w, p.work_s, new_tokens + p.below_tokens + p.fetch.fetch_tokens,
              rq->now_us);
    if (p.fetch.source != WORKER_NONE)
        fetch_sent(&r->fetch, &p.fetch, w, rq->now_us);
    else
        t->is_measured = speed_sent(&r->speeds[w], new_tokens, rq->now_us);
    t->n_recorded = prefix_lru_sent(r->lru, w, rq->chain, rq->n_blocks, rq->guesses);
    r->caches[w].unrecorded_bytes += routing_unrecorded_bytes(r, t);
    routing_fit_cache(r, w, rq->now_us);
    if (r->options.policy->sent) r->options.policy->sent(r->policy, rq, w);
}

static enum status choose(struct routing *r, const struct route_request *rq, struct error *err) {
    uint32_t w;

    if (!find_candidates(r, rq, &r->candidates))
        return error_set(err, ST_UNAVAILABLE,
                         rq->n_exclude
                             ? "all available workers have failed this request: retry later"
                             : "no worker is available: retry later, or check GET /workers");
    r->view = routing_look_wider(r, rq, &r->candidates, rq->guesses);
    w = r->options.policy->pick(r->policy, rq, &r->view, NULL);
    assert(w < r->load.n_workers && worker_mask_has(r->candidates.words, w));
    r->chosen = w;
    return ST_OK;
}

void routing_accept(struct routing *r, const struct route_request *rq, struct route_ticket *t) {
    open_ticket(r, r->chosen, rq, &r->view, t);
}

enum status routing_route(struct routing *r, const struct route_request *rq, struct route_ticket *t,
                          struct error *err) {
    enum status st = choose(r, rq, err);

    if (st == ST_OK) routing_accept(r, rq, t);
    return st;
}

enum status routing_offer(struct routing *r, const struct route_request *rq,
                          struct route_offer *out, struct error *err) {
    enum status st = choose(r, rq, err);

    if (st != ST_OK) return st;
    out->worker = r->chosen;
    out->work_s = policy_prefill(&r->view, r->chosen).work_s;
    out->wait_s = load_wait_in_order_s(&r->load, r->chosen, out->work_s, rq->now_us);
    return ST_OK;
}

/* --- one worker prefills, another decodes ---------------------------------------------------- */

bool routing_prefers(struct routing *r, const struct route_request *rq, uint32_t w, uint32_t v) {
    struct worker_mask pair = {0};
    struct policy_view view;

    worker_mask_add(pair.words, w);
    worker_mask_add(pair.words, v);
    view = routing_look_wider(r, rq, &pair, NULL);
    return r->options.policy->pick(r->policy, rq, &view, r->terms) == w;
}

double routing_offer_price(const struct routing *r) {
    return routing_least_prefill_s(r, &r->view);
}

void routing_set_hold(struct routing *r, double fcfs_s, double srpt_s) {
    load_set_hold(&r->load, fcfs_s, srpt_s);
}

void routing_take_eased(struct routing *r, struct worker_mask *eased) {
    load_take_eased(&r->load, eased);
}

void routing_add_remote(struct routing *r, uint32_t w, const struct route_request *rq,
                        struct route_ticket *t) {
    struct worker_mask mask = {0};
    struct policy_view view;

    assert(w < r->load.n_workers);
    worker_mask_add(mask.words, w);
    view = routing_look(r, rq, &mask, rq->guesses);
    open_ticket(r, w, rq, &view, t);
}

void routing_first_token(struct routing *r, struct route_ticket *t,
                         const struct route_feedback *feedback, uint64_t now_us) {
    uint32_t w = t->load.worker;
    bool is_handed = t->load.is_parked;

    if (t->load.is_light) return;
    if (t->load.is_pending || is_handed) {
        if (t->load.is_pending) routing_learn_delay(r, t, feedback != NULL, now_us);
        if (t->load.is_pending) routing_learn_speed(r, t, feedback, now_us);
        load_first_token(&r->load, &t->load, now_us);
        if (t->epoch == r->caches[w].epoch) {
            routing_fit_cache(r, w, now_us);
            routing_count_sent(r, t, is_handed);
        }
        if (r->options.policy->first_token) r->options.policy->first_token(r->policy, w);
    }
    routing_learn_fetch(r, t, feedback, now_us);
    routing_learn_answer(r, t, feedback);
}

void routing_ended(struct routing *r, struct route_ticket *t, const struct route_end *end) {
    uint32_t w = t->load.worker;
    double output_tokens =
        end->output_tokens >= 0 ? (double)end->output_tokens : r->load.mean_output_tokens;
    bool was_pending, had_first;

    if (t->load.is_light) {
        load_close(&r->load, &t->load, 0, true, end->now_us);
        return;
    }
    output_tokens = MIN(output_tokens, OUTPUT_MAX);
    if (!end->is_aborted) routing_first_token(r, t, NULL, end->now_us);
    was_pending = t->load.is_pending;
    had_first = !was_pending && !t->load.is_parked;
    if (t->fetch.source != WORKER_NONE && !t->is_fetch_over) fetch_dropped(&r->fetch, &t->fetch);
    t->is_fetch_over = true;
    routing_learn_answer(r, t, &end->feedback);
    if (was_pending) {
        bool is_oldest = list_first(&r->load.workers[w].pending) == &t->load.link;

        speed_aborted(&r->speeds[w], t->is_measured, is_oldest, end->now_us);
    }
    load_close(&r->load, &t->load, output_tokens, end->is_aborted, end->now_us);
    if (t->epoch == r->caches[w].epoch) {
        r->caches[w].unrecorded_bytes -= routing_unrecorded_bytes(r, t);
        if (!had_first) {
            prefix_lru_aborted(r->lru, w, t->chain, t->n_recorded, t->guesses);
        } else {
            prefix_lru_ended(r->lru, w, t->chain, t->n_recorded, t->guesses,
                             routing_anonymous_blocks(r, t, output_tokens));
        }
        routing_fit_cache(r, w, end->now_us);
    }
    if (r->options.policy->ended) r->options.policy->ended(r->policy, w, end->is_aborted);
}

/* --- looking in ------------------------------------------------------------------------------ */

uint32_t routing_explain(struct routing *r, const struct route_request *rq,
                         struct policy_term *terms) {
    struct worker_mask mask;
    struct policy_view view;

    memset(terms, 0, r->load.n_workers * sizeof(*terms));
    if (!find_candidates(r, rq, &mask)) return WORKER_NONE;
    view = routing_look_wider(r, rq, &mask, NULL);
    WORKER_MASK_FOR_EACH(w, mask.words, r->load.n_words) {
        struct policy_prefill p = policy_prefill(&view, w);

        terms[w].matched_tokens = p.cached_tokens;
        terms[w].below_tokens = p.below_tokens;
        terms[w].fetch_tokens = p.fetch.fetch_tokens;
        terms[w].fetch_s = p.fetch.fetch_s;
        terms[w].source = p.fetch.source;
    }
    return r->options.policy->pick(r->policy, rq, &view, terms);
}

void routing_worker_stats(const struct routing *r, uint32_t w, uint64_t now_us,
                          struct routing_worker_stats *out) {
    const struct load_worker *k = &r->load.workers[w];

    *out = (struct routing_worker_stats){
        .wait_s = load_wait_s(k, now_us),
        .memory_s = load_memory_wait_s(&r->load, k, r->load.mean_output_tokens),
        .n_held_blocks = prefix_lru_n_held(r->lru, w),
        .n_below_blocks = prefix_lru_n_below(r->lru, w),
        .capacity_factor = r->caches[w].device.factor,
        .below_factor = r->caches[w].below.factor,
        .tokens_per_s = r->load.tokens_per_s[w],
    };
}

/* --- taken along ----------------------------------------------------------------------------- */

double routing_bytes_per_token(const struct routing *r) {
    return r->bytes_per_token;
}

const struct load *routing_load(const struct routing *r) {
    return &r->load;
}

void routing_stats(const struct routing *r, struct routing_stats *stats) {
    uint32_t n_workers = r->load.n_workers;

    *stats = (struct routing_stats){
        .index_bytes = prefix_index_bytes_used(r->index) + prefix_lru_bytes(n_workers),
        .index_bytes_max =
            prefix_index_bytes(r->n_entries_max, n_workers) + prefix_lru_bytes(n_workers),
        .n_entries = prefix_lru_n_entries(r->lru),
        .n_entries_max = r->n_entries_max,
        .n_blocks = prefix_index_n_blocks(r->index),
        .n_refused = prefix_lru_n_refused(r->lru),
        .n_evicted = prefix_lru_n_evicted(r->lru),
        .n_open = r->load.n_open,
        .bytes_per_token = r->bytes_per_token,
    };
}

void routing_check(const struct routing *r) {
    load_check(&r->load);
    fetch_check(&r->fetch);
    for (int p = 0; p < FETCH_N_PATHS; p++)
        assert(r->load.n_open || !r->fetch.trust[p].n_open);
    prefix_lru_check(r->lru);
    for (uint32_t w = 0; w < r->load.n_workers; w++) {
        const struct cache_state *c = &r->caches[w];

        capacity_check(&c->device);
        capacity_check(&c->below);
        assert(fabs(c->rest_bytes) <=
               ROUTING_BLOCKS_OVERCOUNTED_MAX * (double)r->options.prefix_block_bytes);
        assert(r->load.workers[w].in_flight || !c->unrecorded_bytes);
        assert(r->load.workers[w].in_flight || !prefix_lru_n_pinned(r->lru, w));
        (void)c;
    }
    assert(r->bytes_per_token > 0 && isfinite(r->bytes_per_token));
}

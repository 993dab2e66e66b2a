/* router/routing/routing.c - prefix index, LRUs, load and policy, changed together.
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
 * longer has the ticket's blocks, and the events of the ticket reach load and policy alone.
 *
 * Learning uses answers that report cached tokens, or else the worker's counters (reports).
 * One ratio per model, a running quotient of sums, predicts tokens from bytes.
 * A worker's capacity in blocks is the declared one times a factor (capacity.h), learned from its
 * answers or, worked out here, from a report: 20 requests were sent and 20 first tokens counted, so
 * no other router sends there; after it all sums are multiplied by REPORT_DECAY^20 = 0.668, so that
 * later reports weigh more.
 *
 * On a modelled fleet (make replay-bars) learning changes nothing where the declared capacity is
 * right, and saves nearly all of what a capacity declared several times too large or small would
 * cost. */
#include "router/routing/routing.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/routing/capacity.h"
#include "router/routing/prefix_index.h"
#include "router/routing/prefix_lru.h"
#include "router/routing/speed.h"

#define INDEX_BYTES_MIN (UINT64_C(1) << 20)
#define ENTRIES_MAX     (UINT32_MAX / 2) /* slots are an eighth more and still fit 32 bits */

#define HIT_TOLERANCE          0.03 /* share: parts of a prompt differ in bytes per token */
#define BLOCKS_MAX             1e15 /* blocks: keeps the product within 64 bits */
#define OUTPUT_MAX             1e6  /* tokens: more than any context has */
#define ROUNDING               1e-6 /* blocks: by which a whole quotient may be too small */
#define BLOCKS_OVERCOUNTED_MAX 16.0 /* blocks of ended requests carried as a debt */

/* Speeds. The reference is the default of load.c. */
#define REFERENCE_TOKENS_PER_S 10000.0
#define SPEED_PERIOD_US        UINT64_C(1000000)
#define SPEED_SUM_MAX          1e6 /* seconds, in what is carried over */

/* Bytes per token. */
#define BYTES_PER_TOKEN_MIN 0.25 /* answers outside these two are ignored */
#define BYTES_PER_TOKEN_MAX 32.0
#define RATIO_DECAY         0.99 /* per request: about the last hundred count */
#define FIRST_RATIO_TOKENS  256  /* weight of the first guess in tokens */

/* Reports of a worker's counters. */
#define REPORT_REQUESTS_MIN 16   /* requests before the sums are used */
#define REPORT_DECAY        0.98 /* per request: about the last fifty count */
#define REPORT_TOLERANCE    0.01 /* share of the prompts */
#define UNPREDICTED_DIVISOR 32   /* one request in so many may have blocks that are not hashed */

#define UNSTORED_SHARE (1.0 / 32) /* of the cache: what is stored in some ticks of its events */

/* What was sent to a worker, beside what the worker counts. An engine counts a request somewhat
 * before its first token arrives here, so single reports never match; sums do. */
struct report_sums {
    double n_sent, n_with_usage; /* first tokens; of those, answers with cached tokens */
    double n_first_tokens;       /* as the worker counts them */
    double n_unpredicted;        /* requests whose blocks are not all hashed */
    double predicted_tokens, predicted_cached, queried, hits;
    double fresh_n, fresh_bytes, fresh_tokens; /* since the last use; not decayed */
};

struct cache_state {
    uint32_t epoch; /* changes when the worker's cache is lost */
    struct capacity device, below;
    int64_t unrecorded_bytes;   /* prompt bytes of open requests without a record */
    double rest_bytes;          /* of ended requests: less than one block */
    struct report_sums reports; /* decayed */

    /* By routing_note_stored. */
    double stored_tokens; /* counted */
    uint64_t n_entered;   /* blocks, by prefix_lru, at that time */
    double excess_tokens; /* stored less entered; negative: entered, and not yet stored */
};

struct routing {
    struct routing_options options;
    struct load load;
    struct fetch fetch;
    struct prefix_index *index;
    struct prefix_lru *lru;
    void *policy; /* the state of options.policy */
    struct cache_state *caches;
    uint32_t *matched;    /* by worker id, for the current request; */
    uint32_t *on_device;  /* of these */
    struct speed *speeds; /* by worker id */
    uint64_t speeds_as_of_us;
    struct worker_mask candidates; /* of the last choice, like the next two */
    struct policy_view view;
    uint32_t chosen;
    struct policy_term *terms;    /* by worker id, of routing_prefers */
    double sum_bytes, sum_tokens; /* of prompts, decayed */
    double bytes_per_token;       /* sum_bytes / sum_tokens */
    double tokens_per_block;
    uint32_t n_entries_max;       /* of the index */
    struct pair_fetch pair_fetch; /* of second legs */
};

/* What was learned before counts `keep` of its weight. */
static void learn_ratio(struct routing *r, double bytes, double tokens, double keep) {
    r->sum_bytes = r->sum_bytes * keep + bytes;
    r->sum_tokens = r->sum_tokens * keep + tokens;
    r->bytes_per_token = r->sum_bytes / r->sum_tokens;
    r->tokens_per_block = r->options.prefix_block_bytes / r->bytes_per_token;
}

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

static void reset_cache(struct cache_state *c, uint32_t epoch) {
    *c = (struct cache_state){.epoch = epoch};
    capacity_init(&c->device);
    capacity_init(&c->below);
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
    learn_ratio(r, FIRST_RATIO_TOKENS * options->bytes_per_token, FIRST_RATIO_TOKENS, 0);
    for (uint32_t w = 0; w < options->max_workers; w++)
        reset_cache(&r->caches[w], 0);
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

static uint64_t blocks_of(const struct routing *r, double tokens) {
    return (uint64_t)(int64_t)MIN(MAX(tokens / r->tokens_per_block, 1), BLOCKS_MAX);
}

/* Sets the blocks that w can keep: on its device beside what its open requests fill. now_us 0:
 * unknown. */
static void fit_cache(struct routing *r, uint32_t w, uint64_t now_us) {
    const struct load_worker *k = &r->load.workers[w];
    const struct cache_state *c = &r->caches[w];
    double tokens = k->capacity_tokens * c->device.factor;

    tokens -= load_growing_tokens(&r->load, k, now_us);
    tokens -= (double)c->unrecorded_bytes / r->bytes_per_token;
    if (load_below_tokens(k) > 0)
        prefix_lru_set_below(r->lru, w, blocks_of(r, load_below_tokens(k) * c->below.factor),
                             k->spec.keeps_copies);
    prefix_lru_set_capacity(r->lru, w, blocks_of(r, tokens));
    worker_mask_set(r->fetch.full.words, w, prefix_lru_is_full(r->lru, w));
}

/* True when a block or more of the prompt lies beyond the chain's limit, where no hit is
 * predicted. */
static bool is_cut_short(const struct routing *r, const struct route_ticket *t) {
    return t->prompt_bytes >= ((uint64_t)t->n_blocks + 1) * r->options.prefix_block_bytes;
}

/* Compares shares of the prompt; its tokens were predicted too, with an error of their own. What is
 * below the device proves nothing when the worker may as well have computed it. */
static void learn_capacity(struct routing *r, const struct route_ticket *t,
                           const struct route_feedback *f) {
    const struct load_worker *k = &r->load.workers[t->load.worker];
    struct cache_state *c = &r->caches[t->load.worker];
    double prompt = (double)f->prompt_tokens, device = t->cached_tokens - t->below_tokens;
    double predicted = t->cached_tokens / t->prompt_tokens;
    double found = MIN((double)f->cached_tokens / prompt, 1);
    /* one block of the worker and one of the index */
    double tolerance = MAX((k->block_size + r->tokens_per_block) / prompt, HIT_TOLERANCE);

    if (load_below_tokens(k) > 0 && !t->may_recompute)
        capacity_weigh_prompt(&c->below, predicted, found, tolerance);
    if (load_below_tokens(k) > 0 && f->has_below)
        capacity_weigh_prompt(&c->device, device / t->prompt_tokens,
                              found - (double)f->below_tokens / prompt, tolerance);
    else
        capacity_weigh_prompt(&c->device, predicted, found, tolerance);
}

/* What came of a fetch, once per request. What is cached then proves nothing of the worker's own
 * capacity. */
static void learn_fetch(struct routing *r, struct route_ticket *t, const struct route_feedback *f,
                        uint64_t now_us) {
    if (!f || t->fetch.source == WORKER_NONE || t->is_fetch_over || f->prompt_tokens <= 0) return;
    t->is_fetch_over = true;
    if (f->restored_tokens)
        fetch_done(&r->fetch, &t->fetch, f->restored_tokens, (double)f->restore_us * 1e-6, now_us);
    else
        fetch_missed(&r->fetch, &t->fetch, now_us);
}

/* Learns from an answer, once per request. A prompt that is not mostly text (images: many bytes,
 * few tokens) and a worker that counts wrongly are ignored. */
static void learn(struct routing *r, struct route_ticket *t, const struct route_feedback *f) {
    double ratio;

    if (!f || t->has_feedback || f->prompt_tokens <= 0) return;
    t->has_feedback = true;
    ratio = (double)t->prompt_bytes / (double)f->prompt_tokens;
    if (ratio < BYTES_PER_TOKEN_MIN || ratio > BYTES_PER_TOKEN_MAX) return;
    learn_ratio(r, (double)t->prompt_bytes, (double)f->prompt_tokens, RATIO_DECAY);
    if (f->cached_tokens >= 0 && t->epoch == r->caches[t->load.worker].epoch) {
        r->caches[t->load.worker].reports.n_with_usage++;
        if (t->n_blocks && !is_cut_short(r, t) && t->fetch.source == WORKER_NONE)
            learn_capacity(r, t, f);
    }
}

/* Of a prompt that was handed over, the worker's counters have what no prediction has. */
static void note_sent(const struct routing *r, const struct route_ticket *t, bool is_handed) {
    struct report_sums *sums = &r->caches[t->load.worker].reports;

    sums->n_sent++;
    sums->n_unpredicted += is_handed || !t->n_blocks || is_cut_short(r, t);
    if (is_handed) return;
    sums->predicted_tokens += t->prompt_tokens;
    sums->predicted_cached += t->cached_tokens;
    sums->fresh_n++;
    sums->fresh_bytes += (double)t->prompt_bytes;
}

static void learn_ratio_of_many(struct routing *r, double bytes, double tokens, double n) {
    if (bytes < BYTES_PER_TOKEN_MIN * tokens || bytes > BYTES_PER_TOKEN_MAX * tokens) return;
    learn_ratio(r, bytes, tokens, pow(RATIO_DECAY, n));
}

static void learn_from_sums(struct routing *r, uint32_t w, const struct report_sums *sums) {
    double n = sums->n_sent;

    if (fabs(sums->n_first_tokens - n) > 4 + n / 4) return; /* other routers send to it too */
    learn_ratio_of_many(r, sums->fresh_bytes, sums->fresh_tokens, sums->fresh_n);
    if (sums->queried <= 0 || sums->n_with_usage * 2 > n) return;
    if (sums->n_unpredicted * UNPREDICTED_DIVISOR > n) return;
    for (int i = 0; i < 2; i++)
        capacity_weigh(i ? &r->caches[w].below : &r->caches[w].device, (uint32_t)sums->fresh_n,
                       sums->predicted_cached / sums->predicted_tokens,
                       fmin(sums->hits / sums->queried, 1), REPORT_TOLERANCE);
    fit_cache(r, w, 0);
}

static void decay(struct report_sums *sums) {
    double keep = pow(REPORT_DECAY, sums->fresh_n);

    *sums = (struct report_sums){
        .n_sent = sums->n_sent * keep,
        .n_with_usage = sums->n_with_usage * keep,
        .n_first_tokens = sums->n_first_tokens * keep,
        .n_unpredicted = sums->n_unpredicted * keep,
        .predicted_tokens = sums->predicted_tokens * keep,
        .predicted_cached = sums->predicted_cached * keep,
        .queried = sums->queried * keep,
        .hits = sums->hits * keep,
    };
}

void routing_worker_report(struct routing *r, uint32_t w, const struct route_report *report) {
    struct report_sums *sums = &r->caches[w].reports;

    assert(w < r->load.n_workers);
    if (report->n_first_tokens < 0 || report->prompt_tokens < 0) return; /* incomplete */
    sums->n_first_tokens += report->n_first_tokens;
    sums->queried += fmax(report->queried_tokens, 0);
    sums->hits += fmax(report->hit_tokens, 0);
    sums->fresh_tokens += report->prompt_tokens;
    if (sums->n_sent < REPORT_REQUESTS_MIN || sums->fresh_n < 1) return;
    learn_from_sums(r, w, sums);
    decay(sums);
}

/* --- workers --------------------------------------------------------------------------------- */

static void forget_cache(struct routing *r, uint32_t w) {
    struct cache_state *c = &r->caches[w];
    double stored_tokens = c->stored_tokens;

    prefix_lru_drop_worker(r->lru, w);
    reset_cache(c, c->epoch + 1);
    c->stored_tokens = stored_tokens;
    c->n_entered = prefix_lru_n_entered(r->lru, w);
}

void routing_note_capacity(struct routing *r, uint32_t w, double tokens) {
    const struct load_worker *k = &r->load.workers[w];
    double declared = k->capacity_tokens + load_below_tokens(k);

    capacity_count(&r->caches[w].device, declared > 0 ? tokens / declared : 0);
    capacity_count(&r->caches[w].below, declared > 0 ? tokens / declared : 0);
    fit_cache(r, w, 0);
}

/* Tokens that requests have entered here and the worker has not stored yet, at most: those of open
 * requests, and of those that ended since it was last heard of. The bound also forgets what was
 * entered while no events came. */
static double most_unstored(const struct load_worker *k, const struct cache_state *c) {
    return k->resident_tokens + k->capacity_tokens * c->device.factor * UNSTORED_SHARE;
}

/* Tokens that open requests may have stored and that are entered when they end: output, and what of
 * their prompts has no record. */
static double most_unentered(const struct routing *r, uint32_t w, uint64_t now_us) {
    const struct cache_state *c = &r->caches[w];

    return load_growing_tokens(&r->load, &r->load.workers[w], now_us) +
           (double)MAX(c->unrecorded_bytes, 0) / r->bytes_per_token;
}

bool routing_note_stored(struct routing *r, uint32_t w, double tokens, uint64_t now_us) {
    const struct load_worker *k = &r->load.workers[w];
    struct cache_state *c = &r->caches[w];
    uint64_t n_entered = prefix_lru_n_entered(r->lru, w);
    double n_foreign;

    assert(w < r->load.n_workers);
    c->excess_tokens += MAX(tokens - c->stored_tokens, 0);
    c->excess_tokens -= (double)(n_entered - c->n_entered) * r->tokens_per_block;
    c->excess_tokens = MAX(c->excess_tokens, -most_unstored(k, c));
    c->excess_tokens = MIN(c->excess_tokens, k->capacity_tokens * c->device.factor);
    c->stored_tokens = tokens;
    c->n_entered = n_entered;
    n_foreign = floor((c->excess_tokens - most_unentered(r, w, now_us)) / r->tokens_per_block);
    if (n_foreign < 1) return false;
    prefix_lru_fill(r->lru, w, (uint32_t)MIN(n_foreign, ROUTING_FILL_MAX));
    c->excess_tokens -= MIN(n_foreign, ROUTING_FILL_MAX) * r->tokens_per_block;
    return n_foreign > ROUTING_FILL_MAX;
}

/* Declared speeds, corrected by what was learned. */
static void settle_speeds(struct routing *r) {
    struct speed_groups groups = {0};
    double level, mean = speed_mean(r->speeds, r->load.n_workers, &level);

    for (uint32_t w = 0; w < r->load.n_workers; w++) {
        const struct load_worker *k = &r->load.workers[w];
        double ratio = speed_ratio(&r->speeds[w], mean) * level / mean;

        if (k->reasons & WORKER_ABSENT) continue;
        load_set_speed(&r->load, w, speed_join(&groups, k->spec.prefill_tokens_per_s * ratio));
    }
}

void routing_worker_up(struct routing *r, uint32_t w, const struct worker_spec *spec) {
    const struct load_worker *k;

    assert(w < r->load.n_workers);
    k = &r->load.workers[w];
    if (!(k->reasons & WORKER_ABSENT) && k->spec.generation != spec->generation) forget_cache(r, w);
    load_worker_up(&r->load, w, spec);
    r->speeds[w].declared = k->spec.prefill_tokens_per_s / REFERENCE_TOKENS_PER_S;
    r->speeds[w].is_declared = spec->prefill_tokens_per_s > 0;
    settle_speeds(r);
    if (!(load_below_tokens(k) > 0)) prefix_lru_set_below(r->lru, w, 0, false);
    fit_cache(r, w, 0);
    if (r->options.policy->worker_up) r->options.policy->worker_up(r->policy, w, &k->spec);
}

void routing_worker_down(struct routing *r, uint32_t w) {
    assert(w < r->load.n_workers);
    forget_cache(r, w);
    r->caches[w].stored_tokens = 0;
    speed_reset(&r->speeds[w]);
    load_worker_down(&r->load, w);
    fetch_set_peer(&r->fetch, w, &(struct fetch_peer){0});
    if (r->options.policy->worker_down) r->options.policy->worker_down(r->policy, w);
}

void routing_set_peer(struct routing *r, uint32_t w, const struct fetch_peer *peer) {
    fetch_set_peer(&r->fetch, w, peer);
}

void routing_forget_cache(struct routing *r, uint32_t w) {
    assert(w < r->load.n_workers);
    forget_cache(r, w);
    fit_cache(r, w, 0);
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

/* `mask` must outlive the view. `guesses`: of the request being sent, else NULL. */
static struct policy_view look(struct routing *r, const struct route_request *rq,
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

/* Workers that the request may fetch from; false: none. */
static bool find_sources(const struct routing *r, const struct route_request *rq,
                         struct worker_mask *sources) {
    if (!fetch_is_possible(&r->fetch) || rq->is_light || rq->is_continued) return false;
    for (uint32_t i = 0; i < r->load.n_words; i++)
        sources->words[i] = r->load.eligible.words[i] & r->fetch.peers.words[i];
    for (uint32_t i = 0; i < rq->n_exclude; i++) {
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

/* look() for a request that may fetch. */
static struct policy_view look_wider(struct routing *r, const struct route_request *rq,
                                     const struct worker_mask *mask, uint32_t *guesses) {
    struct worker_mask sources, all = *mask;
    struct policy_view view;

    if (!find_sources(r, rq, &sources)) return look(r, rq, mask, guesses);
    for (uint32_t i = 0; i < r->load.n_words; i++)
        all.words[i] |= sources.words[i];
    view = look(r, rq, &all, guesses);
    view.candidates = mask->words;
    if (fetch_find(&r->fetch, &view, sources.words, ready_blocks, &(struct asked_source){r, rq},
                   rq->now_us))
        view.fetch = &r->fetch;
    return view;
}

/* One that holds no more than another and is not quicker is passed over: workers of a model differ
 * in speed, and tiers make more of what is held, not less. */
static double least_prefill_s(const struct routing *r, const struct policy_view *view) {
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
    struct policy_view view = look(r, rq, &mask, NULL);
    uint32_t n_best = view.n_shared_blocks;

    *home = WORKER_NONE;
    WORKER_MASK_FOR_EACH(w, mask.words, r->load.n_words) {
        if (r->matched[w] > n_best) {
            n_best = r->matched[w];
            *home = w;
        }
    }
    return least_prefill_s(r, &view);
}

uint32_t routing_known_blocks(struct routing *r, const struct route_request *rq) {
    struct worker_mask mask = r->load.eligible;
    uint32_t n_known = look(r, rq, &mask, NULL).n_shared_blocks;

    WORKER_MASK_FOR_EACH(w, mask.words, r->load.n_words)
    n_known = MAX(n_known, r->matched[w]);
    return n_known;
}

/* Bytes of the prompt without a recorded block; negative when the last, short block counts in
 * full. */
static int64_t unrecorded_bytes(const struct routing *r, const struct route_ticket *t) {
    return (int64_t)t->prompt_bytes - (int64_t)t->n_recorded * r->options.prefix_block_bytes;
}

/* Blocks that a request leaves in the cache beside those of its chain: its output and the part of
 * its prompt beyond the chain's limit. The worker keeps its own full blocks, which are smaller than
 * ours; the remainder, positive or negative, is carried to the next request. */
static uint32_t anonymous_blocks(struct routing *r, const struct route_ticket *t,
                                 double output_tokens) {
    uint32_t w = t->load.worker;
    double block_bytes = r->options.prefix_block_bytes;
    double tokens = (double)(int64_t)t->prompt_bytes / r->bytes_per_token + output_tokens;
    double kv_block_bytes = r->load.workers[w].block_size * r->bytes_per_token;
    double kept_bytes = floor(tokens / r->load.workers[w].block_size + ROUNDING) * kv_block_bytes;
    double rest = r->caches[w].rest_bytes + kept_bytes - t->n_blocks * block_bytes;
    double n = floor(MAX(rest, 0) / block_bytes + ROUNDING);

    r->caches[w].rest_bytes = MAX(rest - n * block_bytes, -BLOCKS_OVERCOUNTED_MAX * block_bytes);
    return (uint32_t)MIN(n, (double)UINT32_MAX);
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
    r->caches[w].unrecorded_bytes += unrecorded_bytes(r, t);
    fit_cache(r, w, rq->now_us);
    if (r->options.policy->sent) r->options.policy->sent(r->policy, rq, w);
}

static enum status choose(struct routing *r, const struct route_request *rq, struct error *err) {
    uint32_t w;

    if (!find_candidates(r, rq, &r->candidates))
        return error_set(err, ST_UNAVAILABLE,
                         rq->n_exclude
                             ? "all available workers have failed this request: retry later"
                             : "no worker is available: retry later, or check GET /workers");
    r->view = look_wider(r, rq, &r->candidates, rq->guesses);
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

/* Workers that prefill for d, with room. */
static bool find_prefills(const struct routing *r, const struct route_request *rq, uint32_t d,
                          struct worker_mask *mask) {
    *mask = r->load.prefills;
    worker_mask_drop(mask->words, d);
    for (uint32_t i = 0; i < rq->n_exclude; i++) {
        if (rq->exclude[i] < r->load.n_workers) worker_mask_drop(mask->words, rq->exclude[i]);
    }
    WORKER_MASK_FOR_EACH(w, mask->words, r->load.n_words) {
        if (r->load.workers[w].spec.handover != r->load.workers[d].spec.handover)
            worker_mask_drop(mask->words, w);
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
    r->view = look(r, rq, &r->candidates, NULL);
    r->chosen = r->options.policy->pick(r->policy, rq, &r->view, NULL);
    *out = (struct pair_price){
        .wait_d_s = d->wait_s,
        .work_d_s = d->load.work_s,
        .decodes = k->in_flight - k->n_pending,
        .delta = decode_loss(&r->load),
        .work_p_s = policy_prefill(&r->view, r->chosen).work_s,
        .fetch_s = pair_fetch_s(&r->pair_fetch, d->prompt_tokens - d->cached_tokens, rq->now_us),
    };
    out->wait_p_s = load_wait_in_order_s(&r->load, r->chosen, out->work_p_s, rq->now_us);
    return ST_OK;
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

void routing_learn_handover(struct routing *r, double tokens, double seconds, uint64_t now_us) {
    pair_fetch_learn(&r->pair_fetch, tokens, seconds, now_us);
}

bool routing_prefers(struct routing *r, const struct route_request *rq, uint32_t w, uint32_t v) {
    struct worker_mask pair = {0};
    struct policy_view view;

    worker_mask_add(pair.words, w);
    worker_mask_add(pair.words, v);
    view = look_wider(r, rq, &pair, NULL);
    return r->options.policy->pick(r->policy, rq, &view, r->terms) == w;
}

double routing_offer_price(const struct routing *r) {
    return least_prefill_s(r, &r->view);
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
    view = look(r, rq, &mask, rq->guesses);
    open_ticket(r, w, rq, &view, t);
}

static void learn_delay(struct routing *r, const struct route_ticket *t, bool is_seen,
                        uint64_t now_us) {
    double took_s = (double)(int64_t)(now_us - t->load.sent_us) * 1e-6;

    load_learn_report(&r->load, t->load.worker, is_seen, t->wait_s > 0,
                      took_s - t->wait_s - t->load.work_s);
}

/* What a first token reports as computed and brought back, else what was predicted. */
static void learn_speed(struct routing *r, const struct route_ticket *t,
                        const struct route_feedback *f, uint64_t now_us) {
    uint32_t w = t->load.worker;
    const struct load_worker *k = &r->load.workers[w];
    double prompt = f && f->prompt_tokens > 0 ? (double)f->prompt_tokens : t->prompt_tokens;
    double cached = f && f->cached_tokens >= 0 ? (double)f->cached_tokens : t->cached_tokens;
    double below = f && f->has_below ? (double)f->below_tokens : t->below_tokens, work_s;

    cached = MIN(cached, prompt);
    work_s = load_prefill_s(k, cached, prompt) + load_restore_s(k, MIN(below, cached));
    work_s /= k->s_per_token * REFERENCE_TOKENS_PER_S;
    speed_first_token(&r->speeds[w], t->is_measured, prompt - cached, work_s,
                      f && t->epoch == r->caches[w].epoch, now_us);
}

void routing_apply_speeds(struct routing *r, uint64_t now_us) {
    if (now_us < r->speeds_as_of_us + SPEED_PERIOD_US) return;
    r->speeds_as_of_us = now_us;
    settle_speeds(r);
}

void routing_first_token(struct routing *r, struct route_ticket *t,
                         const struct route_feedback *feedback, uint64_t now_us) {
    uint32_t w = t->load.worker;
    bool is_handed = t->load.is_parked;

    if (t->load.is_light) return;
    if (t->load.is_pending || is_handed) {
        if (t->load.is_pending) learn_delay(r, t, feedback != NULL, now_us);
        if (t->load.is_pending) learn_speed(r, t, feedback, now_us);
        load_first_token(&r->load, &t->load, now_us);
        if (t->epoch == r->caches[w].epoch) {
            fit_cache(r, w, now_us);
            note_sent(r, t, is_handed);
        }
        if (r->options.policy->first_token) r->options.policy->first_token(r->policy, w);
    }
    learn_fetch(r, t, feedback, now_us);
    learn(r, t, feedback);
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
    learn(r, t, &end->feedback);
    if (was_pending) {
        bool is_oldest = list_first(&r->load.workers[w].pending) == &t->load.link;

        speed_aborted(&r->speeds[w], t->is_measured, is_oldest, end->now_us);
    }
    load_close(&r->load, &t->load, output_tokens, end->is_aborted, end->now_us);
    if (t->epoch == r->caches[w].epoch) {
        r->caches[w].unrecorded_bytes -= unrecorded_bytes(r, t);
        if (!had_first) {
            prefix_lru_aborted(r->lru, w, t->chain, t->n_recorded, t->guesses);
        } else {
            prefix_lru_ended(r->lru, w, t->chain, t->n_recorded, t->guesses,
                             anonymous_blocks(r, t, output_tokens));
        }
        fit_cache(r, w, end->now_us);
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
    view = look_wider(r, rq, &mask, NULL);
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

void routing_get_learned(const struct routing *r, uint32_t w, struct routing_learned *out) {
    *out = (struct routing_learned){
        .prompt_bytes = r->sum_bytes,
        .prompt_tokens = r->sum_tokens,
        .capacity_factor = r->caches[w].device.factor,
        .below_factor = r->caches[w].below.factor,
        .speed_work_s = r->speeds[w].work_s,
        .speed_busy_s = r->speeds[w].busy_s,
    };
}

void routing_set_learned(struct routing *r, uint32_t w, const struct routing_learned *learned) {
    double ratio = learned->prompt_bytes / learned->prompt_tokens;

    if (r->sum_tokens == FIRST_RATIO_TOKENS && learned->prompt_tokens >= 1 &&
        ratio >= BYTES_PER_TOKEN_MIN && ratio <= BYTES_PER_TOKEN_MAX) {
        learn_ratio(r, learned->prompt_bytes, learned->prompt_tokens, 0);
    }
    capacity_take(&r->caches[w].device, learned->capacity_factor);
    capacity_take(&r->caches[w].below, learned->below_factor);
    if (learned->speed_work_s > 0 && learned->speed_work_s <= SPEED_SUM_MAX &&
        learned->speed_busy_s > 0 && learned->speed_busy_s <= SPEED_SUM_MAX) {
        r->speeds[w].work_s = learned->speed_work_s;
        r->speeds[w].busy_s = learned->speed_busy_s;
    }
    fit_cache(r, w, 0);
}

uint32_t routing_walk(const struct routing *r, uint32_t w, struct prefix_walk *walk,
                      uint64_t *items, uint32_t max) {
    return prefix_lru_walk(r->lru, w, walk, items, max);
}

uint32_t routing_restore(struct routing *r, uint32_t w, const uint64_t *items, uint32_t n) {
    return prefix_lru_restore(r->lru, w, items, n);
}

double routing_bytes_per_token(const struct routing *r) {
    return r->bytes_per_token;
}

const struct load *routing_load(const struct routing *r) {
    return &r->load;
}

double routing_capacity_factor(const struct routing *r, uint32_t w) {
    assert(w < r->load.n_workers);
    return r->caches[w].device.factor;
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
               BLOCKS_OVERCOUNTED_MAX * (double)r->options.prefix_block_bytes);
        assert(r->load.workers[w].in_flight || !c->unrecorded_bytes);
        assert(r->load.workers[w].in_flight || !prefix_lru_n_pinned(r->lru, w));
        (void)c;
    }
    assert(r->bytes_per_token > 0 && isfinite(r->bytes_per_token));
}

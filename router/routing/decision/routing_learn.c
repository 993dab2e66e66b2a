/* router/routing/decision/routing_learn.c - tokens, capacities, speeds, by answers and counters.
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
#include <assert.h>
#include <math.h>

#include "router/routing/decision/routing_internal.h"

#define HIT_TOLERANCE   0.03 /* share: parts of a prompt differ in bytes per token */
#define SPEED_PERIOD_US UINT64_C(1000000)
#define SPEED_SUM_MAX   1e6 /* seconds, in what is carried over */

/* Bytes per token. */
#define BYTES_PER_TOKEN_MIN 0.25 /* answers outside these two are ignored */
#define BYTES_PER_TOKEN_MAX 32.0
#define RATIO_DECAY         0.99 /* per request: about the last hundred count */

/* Reports of a worker's counters. */
#define REPORT_REQUESTS_MIN 16   /* requests before the sums are used */
#define REPORT_DECAY        0.98 /* per request: about the last fifty count */
#define REPORT_TOLERANCE    0.01 /* share of the prompts */
#define UNPREDICTED_DIVISOR 32   /* one request in so many may have blocks that are not hashed */

void routing_learn_ratio(struct routing *r, double bytes, double tokens, double keep) {
    r->sum_bytes = r->sum_bytes * keep + bytes;
    r->sum_tokens = r->sum_tokens * keep + tokens;
    r->bytes_per_token = r->sum_bytes / r->sum_tokens;
    r->tokens_per_block = r->options.prefix_block_bytes / r->bytes_per_token;
}

/* --- answers ---------------------------------------------------------------------------------- */

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
void routing_learn_fetch(struct routing *r, struct route_ticket *t, const struct route_feedback *f,
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
void routing_learn_answer(struct routing *r, struct route_ticket *t,
                          const struct route_feedback *f) {
    double ratio;

    if (!f || t->has_feedback || f->prompt_tokens <= 0) return;
    t->has_feedback = true;
    ratio = (double)t->prompt_bytes / (double)f->prompt_tokens;
    if (ratio < BYTES_PER_TOKEN_MIN || ratio > BYTES_PER_TOKEN_MAX) return;
    routing_learn_ratio(r, (double)t->prompt_bytes, (double)f->prompt_tokens, RATIO_DECAY);
    if (f->cached_tokens >= 0 && t->epoch == r->caches[t->load.worker].epoch) {
        r->caches[t->load.worker].reports.n_with_usage++;
        if (t->n_blocks && !is_cut_short(r, t) && t->fetch.source == WORKER_NONE)
            learn_capacity(r, t, f);
    }
}

/* --- first tokens ----------------------------------------------------------------------------- */

void routing_learn_delay(struct routing *r, const struct route_ticket *t, bool is_seen,
                         uint64_t now_us) {
    double took_s = (double)(int64_t)(now_us - t->load.sent_us) * 1e-6;

    load_learn_report(&r->load, t->load.worker, is_seen, t->wait_s > 0,
                      took_s - t->wait_s - t->load.work_s);
}

/* What a first token reports as computed and brought back, else what was predicted. */
void routing_learn_speed(struct routing *r, const struct route_ticket *t,
                         const struct route_feedback *f, uint64_t now_us) {
    uint32_t w = t->load.worker;
    const struct load_worker *k = &r->load.workers[w];
    double prompt = f && f->prompt_tokens > 0 ? (double)f->prompt_tokens : t->prompt_tokens;
    double cached = f && f->cached_tokens >= 0 ? (double)f->cached_tokens : t->cached_tokens;
    double below = f && f->has_below ? (double)f->below_tokens : t->below_tokens, work_s;

    cached = MIN(cached, prompt);
    work_s = load_prefill_s(k, cached, prompt) + load_restore_s(k, MIN(below, cached));
    work_s /= k->s_per_token * ROUTING_REFERENCE_TOKENS_PER_S;
    speed_first_token(&r->speeds[w], t->is_measured, prompt - cached, work_s,
                      f && t->epoch == r->caches[w].epoch, now_us);
}

void routing_settle_speeds(struct routing *r) {
    struct speed_groups groups = {0};
    double level, mean = speed_mean(r->speeds, r->load.n_workers, &level);

    for (uint32_t w = 0; w < r->load.n_workers; w++) {
        const struct load_worker *k = &r->load.workers[w];
        double ratio = speed_ratio(&r->speeds[w], mean) * level / mean;

        if (k->reasons & WORKER_ABSENT) continue;
        load_set_speed(&r->load, w, speed_join(&groups, k->spec.prefill_tokens_per_s * ratio));
    }
}

void routing_apply_speeds(struct routing *r, uint64_t now_us) {
    if (now_us < r->speeds_as_of_us + SPEED_PERIOD_US) return;
    r->speeds_as_of_us = now_us;
    routing_settle_speeds(r);
    load_look_at_legs(&r->load, now_us);
}

/* --- counters --------------------------------------------------------------------------------- */

/* Of a prompt that was handed over, the worker's counters have what no prediction has. */
void routing_count_sent(const struct routing *r, const struct route_ticket *t, bool is_handed) {
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
    routing_learn_ratio(r, bytes, tokens, pow(RATIO_DECAY, n));
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
    routing_fit_cache(r, w, 0);
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

/* --- taken along ------------------------------------------------------------------------------ */

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

    if (r->sum_tokens == ROUTING_FIRST_RATIO_TOKENS && learned->prompt_tokens >= 1 &&
        ratio >= BYTES_PER_TOKEN_MIN && ratio <= BYTES_PER_TOKEN_MAX) {
        routing_learn_ratio(r, learned->prompt_bytes, learned->prompt_tokens, 0);
    }
    capacity_take(&r->caches[w].device, learned->capacity_factor);
    capacity_take(&r->caches[w].below, learned->below_factor);
    if (learned->speed_work_s > 0 && learned->speed_work_s <= SPEED_SUM_MAX &&
        learned->speed_busy_s > 0 && learned->speed_busy_s <= SPEED_SUM_MAX) {
        r->speeds[w].work_s = learned->speed_work_s;
        r->speeds[w].busy_s = learned->speed_busy_s;
    }
    routing_fit_cache(r, w, 0);
}

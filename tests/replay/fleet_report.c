/* tests/replay/fleet_report.c - sums over the requests and the workers of a replay. */
#include "tests/replay/fleet_report.h"

#include <math.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "tests/replay/workload/crowd.h"

#define WINDOW_S     300
#define GOOD_TTFT_S  2
#define GOOD_ITL_S   0.05
#define SHORT_TOKENS 30000
#define LONG_TOKENS  120000
#define TENANTS_MAX  (TENANT_FLOOD + 1)

/* Values whose mean and quantiles are reported. */
struct sample {
    double *values, sum;
    uint32_t n;
};

struct tenants {
    double sum_s[TENANTS_MAX];
    uint32_t n[TENANTS_MAX];
};

static void sample_init(struct sample *s, uint32_t n_max) {
    *s = (struct sample){.values = mem_calloc((size_t)n_max + 1, sizeof(double))};
}

static void sample_add(struct sample *s, double value) {
    s->values[s->n++] = value;
    s->sum += value;
}

static int by_size(const void *a, const void *b) {
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void sample_sort(struct sample *s) {
    qsort(s->values, s->n, sizeof(*s->values), by_size);
}

static double sample_mean(const struct sample *s) {
    return s->sum / MAX(s->n, 1u);
}

static double sample_at(const struct sample *s, double share) {
    return s->n ? s->values[MIN((uint32_t)(s->n * share), s->n - 1)] : 0;
}

/* --- requests -------------------------------------------------------------------------------- */

static double ttft_s(const struct model_request *q) {
    return q->first_s - q->arrival_s;
}

/* Mean time between tokens. */
static double itl_s(const struct model_request *q) {
    return q->in->n_output > 1 ? (q->end_s - q->first_s) / (q->in->n_output - 1) : 0;
}

static void count_tenant(struct tenants *t, const struct model_request *q) {
    uint32_t tenant = MIN(q->in->tenant, TENANTS_MAX - 1);

    t->sum_s[tenant] += ttft_s(q);
    t->n[tenant]++;
}

static void report_tenants(const struct tenants *t, struct fleet_result *r) {
    r->flood_ttft_s = t->sum_s[TENANT_FLOOD] / MAX(t->n[TENANT_FLOOD], 1u);
    for (uint32_t i = 0; i < TENANT_FLOOD; i++)
        r->worst_tenant_ttft_s = fmax(r->worst_tenant_ttft_s, t->sum_s[i] / MAX(t->n[i], 1u));
}

static void report_times(struct sample *ttft, struct sample *itl, struct fleet_result *r) {
    sample_sort(ttft);
    sample_sort(itl);
    r->n = ttft->n;
    r->mean_ttft_s = sample_mean(ttft);
    r->p50_ttft_s = sample_at(ttft, 0.5);
    r->p99_ttft_s = sample_at(ttft, 0.99);
    r->longest_ttft_s = sample_at(ttft, 1);
    r->mean_itl_s = sample_mean(itl);
    r->p90_itl_s = sample_at(itl, 0.9);
}

static void report_requests(const struct fleet_record *f, struct fleet_result *r) {
    double warm_s = f->options->warm_share * workload_span_s(f->workload);
    double prompt = 0, hit = 0, fetched = 0, pooled = 0, e2e_s = 0, n_good = 0;
    struct tenants tenants = {0};
    struct sample ttft, itl;

    sample_init(&ttft, f->workload->n);
    sample_init(&itl, f->workload->n);
    for (uint32_t i = 0; i < f->workload->n; i++) {
        const struct model_request *q = &f->requests[i];

        if (!q->in || q->arrival_s < warm_s || q->is_refused) continue;
        sample_add(&ttft, ttft_s(q));
        if (q->in->n_output > 1) sample_add(&itl, itl_s(q));
        count_tenant(&tenants, q);
        e2e_s += q->end_s - q->arrival_s;
        r->n_lost += q->is_lost;
        n_good += ttft_s(q) <= GOOD_TTFT_S && itl_s(q) <= GOOD_ITL_S;
        prompt += q->in->n_prompt;
        hit += q->cached;
        fetched += q->fetched;
        if (f->bound) pooled += (double)f->bound->cached_blocks[i] * f->workload->block_tokens;
    }
    report_times(&ttft, &itl, r);
    report_tenants(&tenants, r);
    r->mean_e2e_s = e2e_s / MAX(r->n, 1u);
    r->good_share = n_good / MAX(r->n, 1u);
    r->hit_share = hit / fmax(prompt, 1);
    r->fetched_share = fetched / fmax(prompt, 1);
    r->pooled_hit_share = pooled / fmax(prompt, 1);
    mem_free(ttft.values);
    mem_free(itl.values);
}

/* --- waiting --------------------------------------------------------------------------------- */

static void report_held(const struct fleet_record *f, struct fleet_result *r) {
    double end_s = workload_span_s(f->workload), warm_s = f->options->warm_share * end_s;
    double prefill_s[2] = {0};
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->workload->n; i++) {
        const struct model_request *q = &f->requests[i];

        if (!q->in) continue;
        if (q->is_refused) continue;
        if (q->first_s >= warm_s && q->first_s <= end_s)
            prefill_s[q->in->tenant % 2] += worker_prefill_s(q->cached, q->in->n_prompt);
        if (q->arrival_s < warm_s || !(q->held_s > 0)) continue;
        n++;
        r->mean_held_s += q->held_s;
        r->longest_held_s = fmax(r->longest_held_s, q->held_s);
    }
    r->held_share = (double)n / MAX(r->n, 1u);
    r->mean_held_s /= MAX(n, 1u);
    r->odd_by_even = prefill_s[1] / fmax(prefill_s[0], 1e-9);
}

/* --- deadlines ------------------------------------------------------------------------------- */

static void report_deadlines(const struct fleet_record *f, struct fleet_result *r) {
    double warm_s = f->options->warm_share * workload_span_s(f->workload);
    double n = 0, n_refused = 0, n_missed = 0, n_again = 0, n_accepted = 0;

    for (uint32_t i = 0; i < f->workload->n; i++) {
        const struct model_request *q = &f->requests[i];

        if (!q->in || !(q->by_s > 0) || q->arrival_s < warm_s) continue;
        n++;
        n_refused += q->is_refused;
        n_missed += !q->is_refused && q->first_s > q->by_s;
        n_again += q->n_refused > 0 && f->options->comes_again;
        n_accepted += q->n_refused == 1 && !q->is_refused;
    }
    r->refused_share = n_refused / fmax(n, 1);
    r->missed_share = n_missed / fmax(n - n_refused, 1);
    r->due_share = (n - n_refused - n_missed) / fmax(n, 1);
    r->again_share = n_accepted / fmax(n_again, 1);
}

/* --- sessions -------------------------------------------------------------------------------- */

struct mean {
    double sum;
    uint32_t n;
};

static void count(struct mean *m, double value) {
    m->sum += value;
    m->n++;
}

static double mean_of(const struct mean *m) {
    return m->sum / MAX(m->n, 1u);
}

static void report_sessions(const struct fleet_record *f, struct fleet_sessions *r) {
    double end_s = f->workload->end_s, warm_s = f->options->warm_share * end_s;
    double hit = 0, known = 0, n_turns = 0, prompt = 0;
    struct mean turns = {0}, singles = {0}, shorts = {0}, longs = {0}, held = {0};

    for (uint32_t i = 0; end_s > 0 && i < f->workload->n; i++) {
        const struct model_request *q = &f->requests[i];

        if (!q->in) continue;
        n_turns += q->in->session && q->end_s >= warm_s && q->end_s <= end_s;
        if (q->arrival_s < warm_s) continue;
        count(q->in->session ? &turns : &singles, ttft_s(q));
        prompt += q->in->session ? q->in->n_prompt : 0;
        hit += q->cached;
        known += (double)q->in->n_known * f->workload->block_tokens;
        if (q->in->session && q->held_s > 0) {
            count(&held, q->held_s);
            r->longest_held_s = fmax(r->longest_held_s, q->held_s);
        }
        if (q->in->session && q->in->n_prompt < SHORT_TOKENS) count(&shorts, ttft_s(q));
        if (q->in->session && q->in->n_prompt > LONG_TOKENS) count(&longs, ttft_s(q));
    }
    r->turns_per_s = n_turns / fmax(end_s - warm_s, 1);
    r->hit_of_known = hit / fmax(known, 1);
    r->mean_prompt_tokens = prompt / MAX(turns.n, 1u);
    r->ttft_s = mean_of(&turns);
    r->held_share = (double)held.n / MAX(turns.n, 1u);
    r->mean_held_s = mean_of(&held);
    r->single_ttft_s = mean_of(&singles);
    r->short_ttft_s = mean_of(&shorts);
    r->long_ttft_s = mean_of(&longs);
}

/* --- a window -------------------------------------------------------------------------------- */

double fleet_window_s(const struct workload *workload, const struct fleet_options *options) {
    double share = options->window_share;

    return share > 0 ? share * workload_span_s(workload) : INFINITY;
}

static void report_window(const struct fleet_record *f, struct fleet_result *r) {
    double begin_s = fleet_window_s(f->workload, f->options), hit = 0, pooled = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; f->bound && i < f->workload->n; i++) {
        const struct model_request *q = &f->requests[i];
        double after_s = q->arrival_s - begin_s;

        if (!(after_s >= 0 && after_s < WINDOW_S)) continue;
        hit += q->cached;
        pooled += (double)f->bound->cached_blocks[i] * f->workload->block_tokens;
        r->window_ttft_s += ttft_s(q);
        n++;
    }
    r->window_hit_of_pooled = hit / fmax(pooled, 1);
    r->window_ttft_s /= MAX(n, 1u);
}

/* --- workers --------------------------------------------------------------------------------- */

static void report_workers(const struct fleet_record *f, struct fleet_result *r) {
    double busy_s = 0, end_s = 0, prefill = 0, requests = 0, most_prefill = 0, most_requests = 0;
    uint32_t n_workers = f->options->n_workers;

    for (uint32_t i = 0; i < f->workload->n; i++)
        end_s = fmax(end_s, f->requests[i].end_s);
    for (uint32_t i = 0; i < n_workers; i++) {
        const struct worker_model *w = &f->workers[i];

        busy_s += w->busy_s;
        prefill += w->prefill_tokens;
        requests += w->n_requests;
        most_prefill = fmax(most_prefill, w->prefill_tokens);
        most_requests = fmax(most_requests, w->n_requests);
    }
    r->busy_share = busy_s / n_workers / end_s;
    r->imbalance = most_prefill * n_workers / prefill;
    r->request_imbalance = most_requests * n_workers / requests;
}

void fleet_report(const struct fleet_record *f, struct fleet_result *r) {
    *r = (struct fleet_result){0};
    report_requests(f, r);
    report_held(f, r);
    report_deadlines(f, r);
    report_sessions(f, &r->sessions);
    report_window(f, r);
    report_workers(f, r);
}

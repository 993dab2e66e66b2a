/* router/routing/fetch.c - the best sources of a request, and what a sink saves by one. */
#include "router/routing/fetch.h"

#include <assert.h>
#include <math.h>

#include "common/base/mem.h"
#include "router/routing/policy.h"

/* First guesses: shared memory, and a network of 10 Gb/s. */
#define SAME_HOST_LATENCY_S   2e-3
#define SAME_HOST_BYTES_PER_S 5e9
#define APART_LATENCY_S       5e-3
#define APART_BYTES_PER_S     1.25e9

/* Computing must take that much longer than the transfer: what is close is not worth one. */
#define MARGIN 0.05

/* Share of what a full cache pushes out that will be asked for again. */
#define ASKED_AGAIN 0.5

/* A source that had nothing: the first pause, and doublings at most (32 s). */
#define PAUSE_US      UINT64_C(250000)
#define DOUBLINGS_MAX 7u
#define PATH_MISSES   3u /* in a row: sources differ, and a cache may have turned over */

static const struct fetch_source no_source = {.worker = WORKER_NONE, .value_s = -HUGE_VAL};

void fetch_init(struct fetch *f, uint32_t n_workers) {
    *f = (struct fetch){
        .n_workers = n_workers,
        .workers = mem_calloc(n_workers, sizeof(*f->workers)),
        .of_host = mem_calloc(n_workers, sizeof(*f->of_host)),
        .of_fabric = mem_calloc(n_workers, sizeof(*f->of_fabric)),
    };
    for (uint32_t w = 0; w < n_workers; w++)
        f->of_host[w] = f->of_fabric[w] = no_source;
    fetch_rate_init(&f->rates[FETCH_SAME_HOST], SAME_HOST_LATENCY_S, SAME_HOST_BYTES_PER_S);
    fetch_rate_init(&f->rates[FETCH_APART], APART_LATENCY_S, APART_BYTES_PER_S);
}

void fetch_fini(struct fetch *f) {
    mem_free(f->workers);
    mem_free(f->of_host);
    mem_free(f->of_fabric);
    *f = (struct fetch){0};
}

/* The sources of the last request are no longer those of their groups. */
static void forget_sources(struct fetch *f) {
    WORKER_MASK_FOR_EACH(s, f->found.words, CEIL_DIV(f->n_workers, 64)) {
        f->of_host[f->workers[s].host_id] = no_source;
        f->of_fabric[f->workers[s].fabric_id] = no_source;
    }
    f->found = (struct worker_mask){0};
}

/* --- workers --------------------------------------------------------------------------------- */

static bool is_of_fabric(const struct fetch_worker *a, const struct fetch_worker *b) {
    return a->peer.fabric == b->peer.fabric;
}

static bool is_of_host(const struct fetch_worker *a, const struct fetch_worker *b) {
    return is_of_fabric(a, b) && a->peer.host == b->peer.host;
}

static void join(struct fetch *f, uint32_t w) {
    struct fetch_worker *k = &f->workers[w];

    k->fabric_id = k->host_id = w;
    WORKER_MASK_FOR_EACH(v, f->peers.words, CEIL_DIV(f->n_workers, 64)) {
        const struct fetch_worker *other = &f->workers[v];

        if (is_of_fabric(k, other)) k->fabric_id = other->fabric_id;
        if (is_of_host(k, other)) k->host_id = other->host_id;
    }
    worker_mask_add(f->peers.words, w);
    f->n_peers++;
}

/* Groups that have its id get that of another member. */
static void leave(struct fetch *f, uint32_t w) {
    uint32_t fabric_id = WORKER_NONE, host_id = WORKER_NONE;

    worker_mask_drop(f->peers.words, w);
    f->n_peers--;
    WORKER_MASK_FOR_EACH(v, f->peers.words, CEIL_DIV(f->n_workers, 64)) {
        struct fetch_worker *other = &f->workers[v];

        if (other->fabric_id == w) other->fabric_id = fabric_id = MIN(fabric_id, v);
        if (other->host_id == w) other->host_id = host_id = MIN(host_id, v);
    }
}

void fetch_set_peer(struct fetch *f, uint32_t w, const struct fetch_peer *peer) {
    struct fetch_worker *k = &f->workers[w];
    struct fetch_peer now = *peer;

    assert(w < f->n_workers);
    if (!now.fabric || !(now.bytes_per_token > 0)) now = (struct fetch_peer){0};
    if (now.fabric == k->peer.fabric && now.host == k->peer.host) {
        k->peer = now;
        return;
    }
    forget_sources(f);
    if (k->peer.fabric) leave(f, w);
    *k = (struct fetch_worker){.peer = now};
    if (now.fabric) join(f, w);
}

/* --- sources --------------------------------------------------------------------------------- */

static double seconds_until(uint64_t then_us, uint64_t now_us) {
    return then_us > now_us ? (double)(int64_t)(then_us - now_us) * 1e-6 : 0;
}

/* What a sink that holds nothing saves by so many tokens at s, less what depends on the sink. */
static double worth_s(const struct fetch *f, const struct policy_view *view, uint32_t s,
                      double tokens, enum fetch_path path) {
    return load_prefill_s(&view->load->workers[s], 0, tokens) -
           tokens * f->workers[s].peer.bytes_per_token * f->rates[path].s_per_byte;
}

static struct fetch_source source_of(const struct fetch *f, const struct policy_view *view,
                                     uint32_t s, uint32_t n_blocks, enum fetch_path path) {
    double tokens = policy_whole_tokens(view, s, n_blocks);
    double queue_s = seconds_until(f->workers[s].busy_until_us, f->now_us);

    return (struct fetch_source){s, tokens, worth_s(f, view, s, tokens, path) - queue_s};
}

/* Blocks that each sink has on its device: a source of no more is of use to none. */
static uint32_t held_by_all(const struct fetch *f, const struct policy_view *view) {
    const uint32_t *held = view->device_blocks ? view->device_blocks : view->matched_blocks;
    uint32_t least = UINT32_MAX;

    WORKER_MASK_FOR_EACH(w, view->candidates, view->load->n_words) {
        if (worker_mask_has(f->peers.words, w)) least = MIN(least, held[w]);
    }
    return least;
}

/* What a search is for. */
struct search {
    const struct policy_view *view;
    uint32_t n_held; /* blocks that each sink has */
    fetch_ready_fn *ready;
    const void *ctx;
};

/* Makes s the source of its group, if none there is worth more. What it has to transfer before may
 * take longer than the sinks save beside what each of them has: then it is none, though a sink may
 * wait for its turn as long. */
static void offer(struct fetch *f, const struct search *q, uint32_t s, enum fetch_path path,
                  struct fetch_source *best) {
    uint32_t n = q->view->matched_blocks[s];
    struct fetch_source source = source_of(f, q->view, s, n, path);
    double least_s = best->value_s;

    if (q->n_held > 0)
        least_s =
            MAX(least_s, worth_s(f, q->view, s, policy_whole_tokens(q->view, s, q->n_held), path));
    if (source.value_s <= least_s) return;
    if (q->view->load->workers[s].n_pending) {
        n = q->ready(q->ctx, s, n);
        source = source_of(f, q->view, s, n, path);
        if (n <= q->n_held || source.value_s <= least_s) return;
    }
    *best = source;
    worker_mask_add(f->found.words, s);
}

bool fetch_find(struct fetch *f, const struct policy_view *view, const uint64_t *mask,
                fetch_ready_fn *ready, const void *ctx, uint64_t now_us) {
    const struct search q = {view, held_by_all(f, view), ready, ctx};

    f->now_us = now_us;
    for (int p = 0; p < FETCH_N_PATHS; p++)
        fetch_rate_forget(&f->rates[p], now_us);
    forget_sources(f);
    WORKER_MASK_FOR_EACH(s, mask, view->load->n_words) {
        const struct fetch_worker *k = &f->workers[s];

        if (view->matched_blocks[s] <= q.n_held || k->away_until_us > now_us) continue;
        offer(f, &q, s, FETCH_SAME_HOST, &f->of_host[k->host_id]);
        offer(f, &q, s, FETCH_APART, &f->of_fabric[k->fabric_id]);
    }
    return !worker_mask_is_empty(f->found.words, view->load->n_words);
}

static bool is_usable(const struct fetch *f, enum fetch_path path) {
    const struct fetch_trust *t = &f->trust[path];

    return t->until_us <= f->now_us && (f->rates[path].n > 0 || !t->n_open);
}

bool fetch_may_use(const struct fetch *f, uint32_t w, uint32_t source) {
    return f->workers[w].peer.fabric && is_of_fabric(&f->workers[w], &f->workers[source]);
}

struct fetch_plan fetch_plan_from(const struct fetch *f, const struct load *load, uint32_t source,
                                  uint32_t w, double tokens, double cached, uint64_t now_us) {
    const struct fetch_worker *k = &f->workers[w], *s = &f->workers[source];
    struct fetch_plan p = {.source = source, .tokens = tokens, .fetch_tokens = tokens - cached};

    if (source == w || tokens <= cached || !fetch_may_use(f, w, source)) return FETCH_NONE;
    p.path = s->host_id == k->host_id ? FETCH_SAME_HOST : FETCH_APART;
    p.queue_s = seconds_until(MAX(k->busy_until_us, s->busy_until_us), now_us);
    p.fetch_s =
        p.queue_s + fetch_rate_s(&f->rates[p.path], p.fetch_tokens * k->peer.bytes_per_token);
    p.saved_s = load_prefill_s(&load->workers[w], cached, tokens);
    return p;
}

/* The plan by one source, if it saves more than *plan. */
static void consider(const struct fetch *f, const struct policy_view *view, uint32_t w,
                     double cached, const struct fetch_source *source, struct fetch_plan *plan) {
    struct fetch_plan p;

    if (source->worker == WORKER_NONE) return;
    p = fetch_plan_from(f, view->load, source->worker, w, source->tokens, cached, f->now_us);
    if (p.source == WORKER_NONE || !is_usable(f, p.path)) return;
    if (plan->source == WORKER_NONE || p.saved_s - p.fetch_s > plan->saved_s - plan->fetch_s)
        *plan = p;
}

/* Is the first token sooner? What is behind earlier prompts waits anyhow. */
static bool is_sooner(const struct fetch *f, const struct policy_view *view, uint32_t w,
                      double cached, const struct fetch_plan *plan) {
    double delay_s = plan->fetch_s, compute_s;

    if (delay_s * (1 + MARGIN) <= plan->saved_s) return true;
    compute_s = load_prefill_s(&view->load->workers[w], cached, view->prompt_tokens);
    delay_s -= load_wait_in_order_s(view->load, w, compute_s, f->now_us);
    return delay_s * (1 + MARGIN) <= plan->saved_s;
}

/* The first token needs memory for the rest of the prompt anyhow; where that is scarce, a copy
 * would push out what others will ask for. */
static bool has_memory(const struct policy_view *view, uint32_t w, double cached) {
    double need = view->prompt_tokens - cached + view->load->mean_output_tokens;

    return load_memory_wait_s(view->load, &view->load->workers[w], need) <= 0;
}

struct fetch_plan fetch_plan(const struct fetch *f, const struct policy_view *view, uint32_t w,
                             double cached) {
    const struct fetch_worker *k = &f->workers[w];
    const struct fetch_source *near = &f->of_host[k->host_id], *any = &f->of_fabric[k->fabric_id];
    struct fetch_plan plan = FETCH_NONE;

    if (!k->peer.fabric) return plan;
    consider(f, view, w, cached, near, &plan);
    if (any->worker != near->worker) consider(f, view, w, cached, any, &plan);
    if (plan.source == WORKER_NONE) return plan;
    if (!is_sooner(f, view, w, cached, &plan) || !has_memory(view, w, cached)) return FETCH_NONE;
    if (worker_mask_has(f->full.words, w)) plan.displaced_s = ASKED_AGAIN * plan.saved_s;
    return plan;
}

/* --- transfers ------------------------------------------------------------------------------- */

/* The next try on a path that brings nothing, after this one. */
static void pause_path(struct fetch *f, enum fetch_path path, double fetch_s, uint64_t now_us) {
    struct fetch_trust *p = &f->trust[path];
    uint64_t pause_us;

    if (p->n_missed < PATH_MISSES) return;
    pause_us = PAUSE_US << MIN(p->n_missed - PATH_MISSES, DOUBLINGS_MAX);
    p->until_us = now_us + pause_us + (uint64_t)(fetch_s * 1e6);
}

void fetch_sent(struct fetch *f, const struct fetch_plan *plan, uint32_t w, uint64_t now_us) {
    uint64_t until_us = now_us + (uint64_t)(plan->fetch_s * 1e6);

    f->workers[w].busy_until_us = MAX(f->workers[w].busy_until_us, until_us);
    f->workers[plan->source].busy_until_us = MAX(f->workers[plan->source].busy_until_us, until_us);
    f->trust[plan->path].n_open++;
    pause_path(f, plan->path, plan->fetch_s, now_us);
}

void fetch_dropped(struct fetch *f, const struct fetch_plan *plan) {
    assert(f->trust[plan->path].n_open);
    f->trust[plan->path].n_open--;
}

void fetch_done(struct fetch *f, const struct fetch_plan *plan, double tokens, double seconds,
                uint64_t now_us) {
    struct fetch_worker *s = &f->workers[plan->source];
    double own_s = MAX(seconds - plan->queue_s, seconds / 2);

    s->n_missed = 0;
    s->away_until_us = 0;
    fetch_dropped(f, plan);
    f->trust[plan->path].n_missed = 0;
    f->trust[plan->path].until_us = 0;
    fetch_rate_learn(&f->rates[plan->path], tokens * s->peer.bytes_per_token, own_s, now_us);
}

void fetch_missed(struct fetch *f, const struct fetch_plan *plan, uint64_t now_us) {
    struct fetch_worker *s = &f->workers[plan->source];
    struct fetch_trust *t = &f->trust[plan->path];

    s->away_until_us = now_us + (PAUSE_US << MIN(s->n_missed, DOUBLINGS_MAX));
    s->n_missed = MIN(s->n_missed + 1, DOUBLINGS_MAX);
    fetch_dropped(f, plan);
    t->n_missed = MIN(t->n_missed + 1, PATH_MISSES + DOUBLINGS_MAX);
    pause_path(f, plan->path, 0, now_us);
}

/* A member of the group gives it its id, and all members have it. */
static void check_groups(const struct fetch *f, const struct fetch_worker *k) {
    const struct fetch_worker *fabric = &f->workers[k->fabric_id], *host = &f->workers[k->host_id];

    assert(is_of_fabric(fabric, k) && fabric->fabric_id == k->fabric_id);
    assert(is_of_host(host, k) && host->host_id == k->host_id);
    (void)fabric;
    (void)host;
}

void fetch_check(const struct fetch *f) {
    uint32_t n = 0;

    for (uint32_t w = 0; w < f->n_workers; w++) {
        const struct fetch_worker *k = &f->workers[w];

        assert(worker_mask_has(f->peers.words, w) == (k->peer.fabric != 0));
        assert(k->n_missed <= DOUBLINGS_MAX);
        if (k->peer.fabric) check_groups(f, k);
        assert(f->of_host[w].worker == WORKER_NONE ||
               worker_mask_has(f->found.words, f->of_host[w].worker));
        assert(f->of_fabric[w].worker == WORKER_NONE ||
               worker_mask_has(f->found.words, f->of_fabric[w].worker));
        n += k->peer.fabric != 0;
    }
    assert(n == f->n_peers);
    for (int p = 0; p < FETCH_N_PATHS; p++)
        fetch_rate_check(&f->rates[p]);
    (void)n;
}

/* tests/replay/worker_model.c - the batching loop over the KV manager. */
#include "tests/replay/worker_model.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "common/base/rng.h"

#define REREAD 16 /* queued prompts whose hits are looked up again in a step */

static struct kv_manager *create_cache(const struct worker_options *options) {
    uint32_t bt = options->block_tokens, n_blocks = options->cache_tokens / bt;

    return kv_manager_create(&(struct kv_manager_config){.n_blocks = n_blocks + 1,
                                                         .n_host_blocks = options->host_tokens / bt,
                                                         .block_size = 1,
                                                         .max_model_len = n_blocks,
                                                         .order = options->eviction,
                                                         .hash_seed = STR("replay"),
                                                         .no_explain = true,
                                                         .no_stats = true});
}

void worker_model_init(struct worker_model *w, const struct worker_options *options) {
    *w = (struct worker_model){
        .options = *options, .block_tokens = options->block_tokens, .step_end_s = INFINITY};
    if (!(w->options.slow > 0)) w->options.slow = 1;
    w->kv = create_cache(options);
    list_init(&w->queue);
    map_init(&w->pending, 1);
}

void worker_model_fini(struct worker_model *w) {
    if (!w->kv) return;
    assert(!w->n_running && !w->n_queued && !w->n_prefilling && !w->pending.n);
    assert(!worker_model_n_used(w));
    map_fini(&w->pending);
    kv_manager_destroy(w->kv);
    *w = (struct worker_model){0};
}

/* --- a request's blocks ---------------------------------------------------------------------- */

/* The KV manager hashes a token together with all before it, so a name's upper half is enough. */
static void name_tokens(struct model_request *q) {
    q->tokens = mem_calloc(q->n_units, sizeof(*q->tokens));
    for (uint32_t i = 0; i < q->n_units; i++)
        q->tokens[i] = i < MAX(q->in->n_blocks, q->in->n_after) ? (uint32_t)(q->in->chain[i] >> 32)
                                                                : (uint32_t)rng_at(q->number, i);
}

void model_request_init(struct model_request *q, const struct workload_request *in, uint32_t number,
                        const struct worker_model *any) {
    struct error err = {0};

    *q = (struct model_request){.in = in, .number = number};
    q->n_prompt = CEIL_DIV(in->n_prompt, any->block_tokens);
    q->n_units = CEIL_DIV(in->n_prompt + in->n_output, any->block_tokens);
    name_tokens(q);
    if (kv_seq_init(&q->seq, any->kv, q->n_units, NULL, false, &err) != ST_OK) abort();
    q->seq.n_prompt = MAX(in->n_blocks, 1u);
}

void model_request_fini(struct model_request *q) {
    kv_seq_fini(&q->seq);
    mem_free(q->tokens);
    q->tokens = NULL;
}

static struct kv_hit look_up(struct worker_model *w, struct model_request *q) {
    return kv_manager_lookup(w->kv, &q->seq, q->tokens, q->n_prompt);
}

/* Seconds to bring back what the hit has in host memory; what is computed sooner is left there. */
static double restore(const struct worker_model *w, struct kv_hit *hit) {
    double n = hit->n_blocks, n_host = hit->n_host_blocks, bt = w->block_tokens, s;

    if (!(w->options.restore_tokens_per_s > 0)) return 0;
    s = n_host * bt / w->options.restore_tokens_per_s;
    if (s <= worker_prefill_s((n - n_host) * bt, n * bt)) return s;
    hit->n_blocks -= hit->n_host_blocks;
    hit->n_host_blocks = 0;
    hit->n_tokens = hit->n_blocks;
    return 0;
}

/* The first n tokens are computed when this step is over. */
static void publish(struct worker_model *w, struct model_request *q, uint32_t n) {
    kv_manager_publish(w->kv, &q->seq, q->tokens, q->n_units, n / w->block_tokens);
}

/* All blocks that the request will ever need, or nothing. */
static bool admit(struct worker_model *w, struct model_request *q) {
    struct kv_alloc alloc = {.hit = look_up(w, q), .delay_publish = true};
    double restore_s = restore(w, &alloc.hit);

    alloc.n_new = q->n_units - alloc.hit.n_blocks;
    if (kv_manager_allocate(w->kv, &q->seq, q->tokens, q->n_units, &alloc) != ST_OK) return false;
    q->done = q->cached = alloc.hit.n_blocks * w->block_tokens;
    if (q->fetch_to > q->done) {
        q->fetched = q->fetch_to - q->done;
        q->done = q->cached = q->fetch_to;
        publish(w, q, q->done);
    }
    q->restored = alloc.hit.n_host_blocks * w->block_tokens;
    w->prefill_tokens += q->in->n_prompt - q->cached;
    w->restore_s += restore_s;
    return true;
}

static void give_back(struct worker_model *w, struct model_request *q) {
    kv_manager_free(w->kv, &q->seq);
    kv_seq_fini(&q->seq);
    mem_free(q->tokens);
    q->tokens = NULL;
}

/* --- blocks that are awaited ----------------------------------------------------------------- */

static void count_pending(struct worker_model *w, const struct model_request *q, int change) {
    for (uint32_t i = 0; i < q->in->n_blocks; i++) {
        uint64_t name = q->in->chain[i];
        uintptr_t n = (uintptr_t)map_find(&w->pending, name) + (uintptr_t)change;

        if (n)
            map_insert(&w->pending, name, (void *)n);
        else
            map_erase(&w->pending, name);
    }
}

uint32_t worker_model_cached(struct worker_model *w, struct model_request *q) {
    return look_up(w, q).n_blocks;
}

uint32_t worker_model_found(struct worker_model *w, struct model_request *q) {
    uint32_t most = (q->in->n_prompt - 1) / w->block_tokens, n = worker_model_cached(w, q);

    while (n < MIN(most, q->in->n_blocks) && map_find(&w->pending, q->in->chain[n]))
        n++;
    return n;
}

/* --- steps ----------------------------------------------------------------------------------- */

static double decode_s(const struct worker_model *w) {
    return WORKER_STEP_S + WORKER_SEQ_S * w->n_running + WORKER_CONTEXT_S * w->context_tokens;
}

/* Of two prompts the one with less is first. A queued one's `done` is what was found last. */
static double rank(const struct worker_model *w, const struct model_request *q, double now_s) {
    return worker_prefill_s(q->done, q->in->n_prompt) - w->options.aging * (now_s - q->added_s);
}

/* What it need not compute when it is admitted. */
static uint32_t found_tokens(struct worker_model *w, struct model_request *q) {
    return MAX(worker_model_cached(w, q) * w->block_tokens, q->fetch_to);
}

static void reread_queue(struct worker_model *w) {
    uint32_t turns = w->n_queued / REREAD + 1;

    LIST_FOR_EACH(it, &w->queue) {
        struct model_request *q = LIST_ENTRY(it, struct model_request, queue);

        if ((q->number + w->n_steps) % turns == 0) q->done = found_tokens(w, q);
    }
}

static struct model_request *shortest(struct model_request *a, struct model_request *b,
                                      const struct worker_model *w, double now_s) {
    return !a || rank(w, b, now_s) < rank(w, a, now_s) ? b : a;
}

static struct model_request *next_started(const struct worker_model *w, double now_s) {
    struct model_request *q = NULL;

    for (uint32_t i = 0; i < w->n_prefilling; i++)
        q = shortest(q, w->prefilling[i], w, now_s);
    return q;
}

static struct model_request *first_ready(const struct worker_model *w, double now_s) {
    LIST_FOR_EACH(it, &w->queue) {
        struct model_request *q = LIST_ENTRY(it, struct model_request, queue);

        if (q->ready_s <= now_s) return q;
    }
    return NULL;
}

/* The next of the queue, if it goes before `started`. */
static struct model_request *next_queued(const struct worker_model *w,
                                         struct model_request *started, double now_s) {
    struct model_request *q = started, *first = first_ready(w, now_s);

    if (!first || w->n_running + w->n_completing + w->n_prefilling >= WORKER_SEQS_MAX) return NULL;
    if (w->options.order == WORKER_FCFS) return started ? NULL : first;
    if (w->n_prefilling == WORKER_PREFILLS_MAX) return NULL;
    LIST_FOR_EACH(it, &w->queue) {
        struct model_request *other = LIST_ENTRY(it, struct model_request, queue);

        if (other->ready_s <= now_s) q = shortest(q, other, w, now_s);
    }
    return q == started ? NULL : q;
}

/* NULL: there is none, or the one that is next has no memory. */
static struct model_request *next_prompt(struct worker_model *w, double now_s) {
    struct model_request *started = next_started(w, now_s);
    struct model_request *queued = next_queued(w, started, now_s);

    if (!queued || !admit(w, queued)) return started;
    list_remove(&queued->queue);
    w->n_queued--;
    w->prefilling[w->n_prefilling++] = queued;
    return queued;
}

static void complete(struct worker_model *w, struct model_request *q) {
    uint32_t i = 0;

    while (w->prefilling[i] != q)
        i++;
    w->prefilling[i] = w->prefilling[--w->n_prefilling];
    w->completing[w->n_completing++] = q;
}

/* Returns the seconds that the next n tokens of the prompt take. */
static double prefill_chunk(struct worker_model *w, struct model_request *q, uint32_t n) {
    uint32_t first = q->done;

    q->done += n;
    publish(w, q, q->done);
    if (q->done == q->in->n_prompt) complete(w, q);
    return worker_prefill_s(first, q->done);
}

/* Prompt tokens at most of q in a step that takes step_s so far and has n_before prompt tokens. */
static uint32_t most_tokens(const struct worker_model *w, const struct model_request *q,
                            double step_s, uint32_t n_before) {
    double target_s = w->options.itl_s / w->options.slow, token_s;
    uint32_t least = n_before < WORKER_CHUNK_MIN ? WORKER_CHUNK_MIN - n_before : 0;

    if (!(target_s > 0) || !w->n_running) return WORKER_CHUNK;
    token_s = WORKER_PREFILL_S * (1 + q->done / WORKER_ATTN_CONTEXT);
    return MAX((uint32_t)fmax(0, (target_s - step_s) / token_s), least);
}

/* Returns the seconds of the step. */
static double fill_step(struct worker_model *w, double now_s) {
    uint32_t budget = WORKER_CHUNK - w->n_running, n_before = 0;
    double step_s = decode_s(w);
    struct model_request *q;

    while (n_before < budget && (q = next_prompt(w, now_s))) {
        uint32_t n = MIN(budget - n_before, q->in->n_prompt - q->done);
        uint32_t most = most_tokens(w, q, step_s + w->restore_s, n_before);

        if (!most) break;
        step_s += prefill_chunk(w, q, MIN(n, most));
        n_before += MIN(n, most);
    }
    return step_s + w->restore_s;
}

static bool is_computing(const struct worker_model *w) {
    return w->n_running || w->n_completing || w->n_prefilling;
}

/* When the first of those that are not ready will be. */
static double next_ready_s(const struct worker_model *w, double now_s) {
    double first_s = INFINITY;

    LIST_FOR_EACH(it, &w->queue) {
        double ready_s = LIST_ENTRY(it, struct model_request, queue)->ready_s;

        if (ready_s > now_s) first_s = fmin(first_s, ready_s);
    }
    return first_s;
}

static void begin_step(struct worker_model *w, double now_s) {
    double step_s;

    w->n_completing = 0;
    w->restore_s = 0;
    w->n_steps++;
    if (w->options.order == WORKER_SRPT) reread_queue(w);
    step_s = w->options.slow * fill_step(w, now_s);
    kv_manager_clear_moves(w->kv);
    w->step_end_s = next_ready_s(w, now_s);
    if (!is_computing(w)) return;
    w->step_end_s = now_s + step_s;
    w->busy_s += step_s;
}

static void finish(struct worker_model *w, struct model_request *q,
                   const struct worker_model_events *events, double now_s) {
    q->end_s = now_s;
    publish(w, q, q->in->n_prompt + q->in->n_output);
    give_back(w, q);
    count_pending(w, q, -1);
    events->on_ended(events->ctx, q);
}

static void decode_token(struct worker_model *w, uint32_t i,
                         const struct worker_model_events *events, double now_s) {
    struct model_request *q = w->running[i];

    if (--q->left) return;
    w->running[i] = w->running[--w->n_running];
    w->context_tokens -= q->in->n_prompt + q->in->n_output;
    finish(w, q, events, now_s);
}

static void first_token(struct worker_model *w, struct model_request *q,
                        const struct worker_model_events *events, double now_s) {
    q->first_s = now_s;
    q->left = q->in->n_output - 1;
    events->on_first_token(events->ctx, q);
    if (!q->left) {
        finish(w, q, events, now_s);
        return;
    }
    w->running[w->n_running++] = q;
    w->context_tokens += q->in->n_prompt + 1;
}

void worker_model_step(struct worker_model *w, const struct worker_model_events *events,
                       double now_s) {
    kv_manager_set_now(w->kv, (uint64_t)(now_s * 1e6));
    w->context_tokens += w->n_running;
    for (uint32_t i = w->n_running; i-- > 0;)
        decode_token(w, i, events, now_s);
    for (uint32_t i = 0; i < w->n_completing; i++)
        first_token(w, w->completing[i], events, now_s);
    begin_step(w, now_s);
}

static void lose(struct worker_model *w, struct model_request *q, bool is_begun,
                 const struct worker_model_events *events, double now_s) {
    give_back(w, q);
    count_pending(w, q, -1);
    if (!is_begun) {
        events->on_back(events->ctx, q);
        return;
    }
    q->end_s = now_s;
    q->is_lost = true;
    events->on_ended(events->ctx, q);
}

void worker_model_crash(struct worker_model *w, const struct worker_model_events *events,
                        double now_s) {
    uint32_t n_running = w->n_running, n_completing = w->n_completing, n = w->n_prefilling;

    w->n_running = w->n_completing = w->n_prefilling = w->n_queued = 0;
    w->context_tokens = 0;
    w->step_end_s = INFINITY;
    for (uint32_t i = 0; i < n_running; i++)
        lose(w, w->running[i], true, events, now_s);
    for (uint32_t i = 0; i < n_completing; i++)
        lose(w, w->completing[i], false, events, now_s);
    for (uint32_t i = 0; i < n; i++)
        lose(w, w->prefilling[i], false, events, now_s);
    for (struct list *it; (it = list_pop_front(&w->queue));)
        lose(w, LIST_ENTRY(it, struct model_request, queue), false, events, now_s);
    kv_manager_destroy(w->kv);
    w->kv = create_cache(&w->options);
}

void worker_model_add(struct worker_model *w, struct model_request *q, double now_s) {
    list_push_back(&w->queue, &q->queue);
    q->added_s = now_s;
    q->done = found_tokens(w, q);
    w->n_queued++;
    w->n_requests++;
    count_pending(w, q, 1);
    if (!is_computing(w)) begin_step(w, now_s);
}

/* --- what an oracle sees --------------------------------------------------------------------- */

uint32_t worker_model_n_live(const struct worker_model *w) {
    return w->n_running + w->n_queued + w->n_completing + w->n_prefilling;
}

uint32_t worker_model_n_used(const struct worker_model *w) {
    const struct block_pool *pool = kv_manager_pool(w->kv);

    return block_pool_n_usable(pool) - block_pool_n_free(pool);
}

/* Until running requests have given back so many blocks. */
static double memory_wait_s(const struct worker_model *w, double n_lacking) {
    double left = 0, step_s = decode_s(w);

    if (n_lacking <= 0 || !w->n_running) return 0;
    for (uint32_t i = 0; i < w->n_running; i++)
        left += w->running[i]->left;
    if (w->n_queued) step_s += WORKER_CHUNK * WORKER_PREFILL_S / 2;
    return n_lacking / (worker_model_n_used(w) + 1) * left / w->n_running * 2 * step_s;
}

double worker_model_slowdown(const struct worker_model *w) {
    return w->options.slow * (1 + decode_s(w) / (WORKER_CHUNK * WORKER_PREFILL_S));
}

double worker_model_wait_s(struct worker_model *w, uint32_t n_blocks, double now_s) {
    double wait_s = is_computing(w) ? w->step_end_s - now_s : 0, n_needed = n_blocks;
    double slow = worker_model_slowdown(w);

    for (uint32_t i = 0; i < w->n_prefilling; i++)
        wait_s += slow * worker_prefill_s(w->prefilling[i]->done, w->prefilling[i]->in->n_prompt);
    LIST_FOR_EACH(it, &w->queue) {
        struct model_request *other = LIST_ENTRY(it, struct model_request, queue);
        uint32_t n_cached = worker_model_cached(w, other);

        wait_s += slow * worker_prefill_s(n_cached * w->block_tokens, other->in->n_prompt);
        n_needed += other->n_units - n_cached;
    }
    n_needed += worker_model_n_used(w);
    return wait_s + memory_wait_s(w, n_needed - block_pool_n_usable(kv_manager_pool(w->kv)));
}

/* --- invariants ------------------------------------------------------------------------------ */

void worker_model_check(const struct worker_model *w) {
    double context_tokens = 0;
    uint32_t n_queued = 0;

    LIST_FOR_EACH(it, &w->queue) {
        const struct model_request *q = LIST_ENTRY(it, struct model_request, queue);

        assert(!q->seq.table[0].n_blocks);
        n_queued++;
    }
    assert(w->n_prefilling <= (w->options.order == WORKER_FCFS ? 1 : WORKER_PREFILLS_MAX));
    for (uint32_t i = 0; i < w->n_running; i++) {
        const struct model_request *q = w->running[i];

        assert(q->left && q->seq.table[0].n_blocks == q->n_units);
        context_tokens += q->in->n_prompt + q->in->n_output - q->left;
    }
    assert(n_queued == w->n_queued && context_tokens == w->context_tokens);
    assert(!is_computing(w) || !isinf(w->step_end_s));
    assert(is_computing(w) || isinf(w->step_end_s) == list_is_empty(&w->queue));
    map_check(&w->pending);
    kv_manager_check(w->kv);
}

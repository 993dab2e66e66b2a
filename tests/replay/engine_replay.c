/* tests/replay/engine_replay.c - the two event loops in one.
 *
 * Time goes from step to step. Requests that arrive during a step are routed and queued before its
 * outcome is reported, as they would be on a real worker. */
#include "tests/replay/engine_replay.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/routing/routing.h"
#include "tests/replay/worker_model.h"
#include "tests/support/routing_defaults.h"
#include "worker/kv/kv_manager.h"
#include "worker/sched/scheduler.h"

#define BYTES_PER_TOKEN 4
#define VOCAB           (1u << 30)
#define OUTPUT_TOKEN    (1u << 29) /* + the request: no two answers are alike */
#define INDEX_BYTES     (UINT64_C(64) << 20)

struct exchange {
    const struct replay_request *in;
    struct request *request;
    struct route_ticket ticket;
    uint64_t *chain;
    bool had_first;
};

struct replay {
    const struct replay_options *options;
    struct kv_manager *kv;
    struct scheduler *scheduler;
    struct schedule step;
    struct request_limits limits;
    struct routing *routing;
    struct exchange *exchanges;
    struct replay_result *result;
    double idle_slot_us, used_slot_us; /* both, each over time */
    double *ttft_s;                    /* (n) in order of their ends */
    uint32_t n_ended;
};

static void must(enum status st, const struct error *err) {
    if (st == ST_OK) return;
    fprintf(stderr, "replay: %s\n", err->message);
    abort();
}

static uint32_t kv_block(const struct replay_options *o) {
    return o->kv_block ? o->kv_block : o->block_size;
}

static uint32_t chain_block(const struct replay_options *o) {
    return o->chain_block ? o->chain_block : o->block_size;
}

static uint32_t chain_length(const struct replay_options *o, const struct replay_request *q) {
    uint32_t n = o->chain_tokens ? MIN(q->n_prompt, o->chain_tokens) : q->n_prompt;

    return o->chain_block ? CEIL_DIV(n, o->chain_block) : n / o->block_size;
}

/* A short last block is named by its length too: it is another one than a full one. */
static uint64_t *make_chain(const struct replay_options *o, const struct replay_request *q) {
    uint32_t n = chain_length(o, q), size = chain_block(o);
    uint64_t *chain = mem_calloc(n + 1, sizeof(*chain));

    for (uint32_t i = 0; i < n; i++) {
        uint64_t n_tokens = MIN(q->n_prompt - i * size, size);

        chain[i] = rng_mix(q->blocks[i * size / o->block_size] | (uint64_t)i << 32) ^ n_tokens;
    }
    return chain;
}

/* --- both sides ------------------------------------------------------------------------------ */

static void open_worker(struct replay *p) {
    const struct replay_options *o = p->options;
    struct scheduler_options so = scheduler_options_default;
    struct error err = {0};

    so.max_num_seqs = WORKER_SEQS_MAX;
    so.max_num_batched_tokens = WORKER_CHUNK;
    so.max_model_len = o->cache_tokens;
    so.policy = o->policy;
    so.itl_target_s = o->itl_target_s;
    so.prefill_tokens_per_s = 1 / WORKER_PREFILL_S;
    so.attn_context = WORKER_ATTN_CONTEXT;
    p->kv =
        kv_manager_create(&(struct kv_manager_config){.n_blocks = o->cache_tokens / kv_block(o) + 1,
                                                      .n_host_blocks = o->host_tokens / kv_block(o),
                                                      .block_size = kv_block(o),
                                                      .max_model_len = o->cache_tokens,
                                                      .hash_seed = STR("replay")});
    must(scheduler_create(&p->scheduler, &so, p->kv, &err), &err);
    schedule_init(&p->step, p->scheduler);
    p->limits =
        (struct request_limits){.vocab = VOCAB, .max_model_len = o->cache_tokens, .kv = p->kv};
}

static void open_router(struct replay *p) {
    struct routing_options o;
    struct error err = {0};

    routing_options_default(&o);
    o.max_workers = 1;
    o.max_index_bytes = INDEX_BYTES;
    o.prefix_block_bytes = chain_block(p->options) * BYTES_PER_TOKEN;
    o.bytes_per_token = BYTES_PER_TOKEN;
    must(routing_create(&p->routing, &o, &err), &err);
    routing_worker_up(p->routing, 0,
                      &(struct worker_spec){
                          .identity = 1,
                          .generation = 1,
                          .block_size = kv_block(p->options),
                          .n_blocks = block_pool_n_usable(kv_manager_pool(p->kv)),
                          .n_tier_blocks = p->options->host_tokens / kv_block(p->options),
                          .prefill_tokens_per_s = 1 / WORKER_PREFILL_S,
                          .attn_context = WORKER_ATTN_CONTEXT,
                      });
}

static void arrive(struct replay *p, struct exchange *e) {
    const struct replay_request *q = e->in;
    uint32_t *tokens = mem_calloc(q->n_prompt, sizeof(*tokens)), bs = p->options->block_size;
    struct request_params params = request_params_default;
    struct route_request rq = {.n_blocks = chain_length(p->options, q),
                               .prompt_bytes = (uint64_t)q->n_prompt * BYTES_PER_TOKEN,
                               .now_us = q->arrival_us};
    struct error err = {0};

    rq.chain = e->chain = make_chain(p->options, q);
    must(routing_route(p->routing, &rq, &e->ticket, &err), &err);
    for (uint32_t i = 0; i < q->n_prompt; i++)
        tokens[i] = q->blocks[i / bs] + 1;
    params.prompt = tokens;
    params.n_prompt = q->n_prompt;
    params.max_tokens = q->n_output;
    params.ignore_eos = true;
    must(request_create(&e->request, &params, &p->limits, &err), &err);
    e->request->owner = e;
    e->request->arrival_us = q->arrival_us;
    must(scheduler_add(p->scheduler, e->request, &err), &err);
    mem_free(tokens);
}

static void tally(struct replay *p, const struct exchange *e) {
    struct replay_result *r = p->result;
    int64_t cached = e->request->cached_tokens, off = (int64_t)e->ticket.cached_tokens - cached,
            limit = p->options->off_tokens;
    const struct request *q = e->request;
    double arrival_us = (double)q->arrival_us;

    p->ttft_s[p->n_ended++] = 1e-6 * ((double)q->first_token_us - arrival_us);
    r->mean_e2e_s += 1e-6 * ((double)q->finished_us - arrival_us) / r->n_requests;
    r->longest_wait_s = MAX(r->longest_wait_s, 1e-6 * ((double)q->scheduled_us - arrival_us));
    r->prompt_tokens += e->in->n_prompt;
    r->cached_tokens += (uint64_t)cached;
    r->predicted_tokens += (uint64_t)e->ticket.cached_tokens;
    r->n_exact += off == 0;
    if (e->request->n_preemptions) {
        r->n_preempted++;
        return;
    }
    r->n_off += llabs(off) > limit;
    if (llabs(off) <= llabs(r->worst_tokens)) return;
    r->worst_tokens = off;
    r->worst = (uint32_t)(e - p->exchanges);
}

static void take(struct replay *p, const struct schedule_entry *s, uint64_t now_us) {
    struct exchange *e = s->request->owner;
    uint32_t token = OUTPUT_TOKEN + (uint32_t)(e - p->exchanges);
    bool is_sampled = s->is_sampled, is_done = scheduler_take(p->scheduler, s, token, now_us);
    struct route_feedback feedback = {e->in->n_prompt, e->request->cached_tokens};

    if (is_sampled && !e->had_first) {
        e->had_first = true;
        routing_first_token(p->routing, &e->ticket, &feedback, now_us);
    }
    if (!is_done) return;
    tally(p, e);
    routing_ended(p->routing, &e->ticket,
                  &(struct route_end){
                      .output_tokens = e->in->n_output, .feedback = {-1, -1}, .now_us = now_us});
    request_unref(e->request);
    mem_free(e->chain);
}

/* --- time ------------------------------------------------------------------------------------ */

static uint64_t step_us(const struct schedule *step) {
    double s = WORKER_STEP_S + WORKER_SEQ_S * step->n_entries;

    for (uint32_t i = 0; i < step->n_entries; i++) {
        double first = step->entry[i].first, n = step->entry[i].n_tokens;

        s += n == 1 ? WORKER_CONTEXT_S * first : worker_prefill_s(first, first + n);
    }
    return (uint64_t)(s * 1e6);
}

static void weigh_waste(struct replay *p, double us) {
    const struct block_pool *pool = kv_manager_pool(p->kv);
    uint32_t n_used = block_pool_n_usable(pool) - block_pool_n_free(pool);

    p->idle_slot_us += us * (double)kv_manager_idle_slots(p->kv);
    p->used_slot_us += us * n_used * kv_manager_block_size(p->kv);
    if (n_used >= block_pool_n_usable(pool) / 100)
        p->result->worst_waste = MAX(p->result->worst_waste, kv_manager_waste(p->kv));
}

static void run(struct replay *p, uint32_t n) {
    uint64_t now_us = p->exchanges[0].in->arrival_us, began_us = now_us, busy_us = 0;

    for (uint32_t next = 0;;) {
        for (; next < n && p->exchanges[next].in->arrival_us <= now_us; next++)
            arrive(p, &p->exchanges[next]);
        scheduler_step(p->scheduler, &p->step, now_us);
        kv_manager_clear_moves(p->kv);
        if (!p->step.n_entries) {
            if (next == n) break;
            now_us = MAX(now_us, p->exchanges[next].in->arrival_us);
            continue;
        }
        uint64_t us = step_us(&p->step);
        now_us += us;
        busy_us += us;
        weigh_waste(p, (double)us);
        if (p->step.n_decoding > 0)
            p->result->longest_step_s = MAX(p->result->longest_step_s, 1e-6 * (double)us);
        scheduler_learn(p->scheduler, &p->step, 1e-6 * (double)us);
        for (; next < n && p->exchanges[next].in->arrival_us < now_us; next++)
            arrive(p, &p->exchanges[next]);
        for (uint32_t i = 0; i < p->step.n_entries; i++)
            take(p, &p->step.entry[i], now_us);
    }
    p->result->busy_share = (double)busy_us / (double)MAX(now_us - began_us, UINT64_C(1));
    p->result->waste = p->used_slot_us > 0 ? p->idle_slot_us / p->used_slot_us : 0;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void count_ttft(struct replay *p, uint32_t n) {
    qsort(p->ttft_s, n, sizeof(*p->ttft_s), by_value);
    for (uint32_t i = 0; i < n; i++)
        p->result->mean_ttft_s += p->ttft_s[i] / n;
    p->result->p99_ttft_s = p->ttft_s[(uint64_t)n * 99 / 100];
}

void replay_on_engine(const struct replay_request *requests, uint32_t n,
                      const struct replay_options *options, struct replay_result *result) {
    struct replay p = {.options = options, .result = result};

    *result = (struct replay_result){.n_requests = n};
    p.exchanges = mem_calloc(n, sizeof(*p.exchanges));
    p.ttft_s = mem_calloc(n, sizeof(*p.ttft_s));
    for (uint32_t i = 0; i < n; i++)
        p.exchanges[i].in = &requests[i];
    open_worker(&p);
    open_router(&p);
    run(&p, n);
    scheduler_check(p.scheduler);
    routing_check(p.routing);
    count_ttft(&p, n);
    result->prefill_rate = scheduler_prefill_rate(p.scheduler);
    result->capacity_factor = routing_capacity_factor(p.routing, 0);
    routing_destroy(p.routing);
    schedule_fini(&p.step);
    scheduler_destroy(p.scheduler);
    kv_manager_destroy(p.kv);
    mem_free(p.ttft_s);
    mem_free(p.exchanges);
}

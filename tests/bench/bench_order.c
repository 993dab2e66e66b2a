/* tests/bench/bench_order.c - what the order of prompts costs the host: the scheduler's part of a
 * step, under fcfs and srpt, with up to 10,000 requests waiting. Rows are full of requests that
 * decode, or 64 decode while prompts of 4,000 tokens, ten families with 2,000 in common, are
 * computed in chunks. The median of five runs. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "worker/kv/kv_manager.h"
#include "worker/sched/scheduler.h"

#define N_RUNS   5
#define STEPS    300u
#define N_PROMPT 4000u
#define N_COMMON 2000u
#define ROWS     256u
#define FEW      64u

struct bench {
    struct kv_manager *kv;
    struct scheduler *s;
    struct schedule step;
    struct request_limits limits;
    struct request **r;
    uint32_t n;
};

static void must(enum status st, const struct error *err) {
    if (st == ST_OK) return;
    fprintf(stderr, "bench_order: %s\n", err->message);
    exit(1);
}

static void open_bench(struct bench *b, enum scheduler_policy policy, uint32_t n_max) {
    struct scheduler_options o = scheduler_options_default;
    struct kv_manager_config kv = {
        .n_blocks = 200000, .block_size = 16, .max_model_len = 8192, .hash_seed = STR("bench")};
    struct error err = {0};

    *b = (struct bench){.kv = kv_manager_create(&kv)};
    o.policy = policy;
    o.max_num_seqs = ROWS;
    o.max_model_len = 8192;
    o.max_num_batched_tokens = 2048;
    o.prefill_tokens_per_s = 20000;
    o.attn_context = 30000;
    must(scheduler_create(&b->s, &o, b->kv, &err), &err);
    schedule_init(&b->step, b->s);
    b->limits = (struct request_limits){
        .vocab = 1u << 30, .max_model_len = 8192, .max_num_seqs = ROWS, .kv = b->kv};
    b->r = mem_calloc(n_max, sizeof(*b->r));
}

static void add(struct bench *b, uint32_t n_prompt, uint32_t n_tenants) {
    static uint32_t prompt[N_PROMPT];
    struct request_params p = request_params_default;
    struct error err = {0};

    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = i < N_COMMON ? b->n % 10 : b->n;
    p.prompt = prompt;
    p.n_prompt = n_prompt;
    p.max_tokens = 4000;
    p.ignore_eos = true;
    p.tenant = b->n % n_tenants;
    must(request_create(&b->r[b->n], &p, &b->limits, &err), &err);
    b->r[b->n]->arrival_us = b->n * 1000;
    must(scheduler_add(b->s, b->r[b->n], &err), &err);
    b->n++;
}

static double step_us(struct bench *b) {
    uint64_t began_us = clock_now_us(), us;

    scheduler_step(b->s, &b->step, began_us);
    us = clock_now_us() - began_us;
    kv_manager_clear_moves(b->kv);
    for (uint32_t i = 0; i < b->step.n_entries; i++)
        (void)scheduler_take(b->s, &b->step.entry[i], 7, 1);
    scheduler_learn(b->s, &b->step, 0.1);
    return (double)us;
}

static void close_bench(struct bench *b) {
    for (uint32_t i = 0; i < b->n; i++) {
        scheduler_end(b->s, b->r[i], FINISH_ABORT, 0);
        request_unref(b->r[i]);
    }
    mem_free(b->r);
    schedule_fini(&b->step);
    scheduler_destroy(b->s);
    kv_manager_destroy(b->kv);
}

static double run_once(enum scheduler_policy policy, uint32_t n_rows, uint32_t n_waiting,
                       uint32_t n_tenants) {
    struct bench b;
    double us = 0;

    open_bench(&b, policy, n_rows + n_waiting);
    while (b.n < n_rows)
        add(&b, 16, n_tenants);
    while (scheduler_counts(b.s).queued_tokens > n_rows)
        step_us(&b);
    while (b.n < n_rows + n_waiting)
        add(&b, N_PROMPT, n_tenants);
    for (uint32_t i = 0; i < STEPS; i++)
        us += step_us(&b);
    close_bench(&b);
    return us / STEPS;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double run(enum scheduler_policy policy, uint32_t n_rows, uint32_t n_waiting,
                  uint32_t n_tenants) {
    double us[N_RUNS];

    for (int i = 0; i < N_RUNS; i++)
        us[i] = run_once(policy, n_rows, n_waiting, n_tenants);
    qsort(us, N_RUNS, sizeof(*us), by_value);
    return us[N_RUNS / 2];
}

int main(void) {
    static const uint32_t waiting[] = {0, 100, 1000, 10000};

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (uint32_t i = 0; i < ARRAY_LEN(waiting); i++) {
        uint32_t n = waiting[i];

        printf("%5u waiting, us a step   rows full: fcfs %5.1f srpt %5.1f", n,
               run(POLICY_FCFS, ROWS, n, 1), run(POLICY_SRPT, ROWS, n, 1));
        printf("   chunks: fcfs %5.1f srpt %5.1f of 1,000 tenants %5.1f\n",
               run(POLICY_FCFS, FEW, n, 1), run(POLICY_SRPT, FEW, n, 1),
               run(POLICY_SRPT, FEW, n, 1000));
    }
    return 0;
}

/* tests/bench/bench_step.c - what a step costs the host: schedule, blocks, arrays, sampling
 * parameters, outputs, telling. A whole engine on the sim backend, whose device takes no time and
 * whose part of the work (checking the step, making up tokens) is in the figure. All rows decode;
 * the processor time of the process over some thousand steps is read, while its other thread
 * sleeps. The system accounts for a running thread at its ticks of some milliseconds, so a window
 * must be long; the median of five engines counts. The bar is 50 us at 256 rows on a quiet core. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "worker/engine/engine.h"
#include "worker/model/model.h"
#include "worker/sched/beam_group.h"

#define N_PROMPT 1000u
#define N_RUNS   5
#define STEPS    2400u
#define MAX_LEN  4096u
#define BAR_US   50.0

struct bench {
    struct loop *loop;
    struct engine *e;
    struct model *model;
    struct request *open[512]; /* ours until their end is reported */
    uint32_t n_open;
};

static void must(enum status st, const struct error *err) {
    if (st == ST_OK) return;
    fprintf(stderr, "bench_step: %s\n", err->message);
    exit(1);
}

static void on_progress(void *arg, struct request *r, const struct request_progress *progress) {
    struct bench *w = arg;

    if (!progress->is_finished) return;
    for (uint32_t i = 0; i < w->n_open; i++)
        if (w->open[i] == r) w->open[i] = w->open[--w->n_open];
    request_unref(r);
}

static void fixture_open(struct bench *w, uint32_t n_rows) {
    struct engine_options o = engine_options_default;
    struct error err = {0};

    *w = (struct bench){.model = model_create_synthetic(0)};
    must(loop_create(&w->loop, &err), &err);
    o.backend = &backend_sim;
    o.device.sim_profile = "instant";
    engine_options_set_model(&o, w->model);
    o.weight_bytes = 0;
    o.max_model_len = MAX_LEN;
    o.n_blocks = (n_rows + 1) * (MAX_LEN / 16) + 1;
    o.scheduler.max_num_seqs = n_rows;
    o.scheduler.max_num_batched_tokens = 4096;
    o.callbacks = (struct engine_callbacks){.on_progress = on_progress, .arg = w};
    must(engine_create(&w->e, &o, w->loop, &err), &err);
}

static struct request_params params_of(uint32_t *prompt, uint32_t row) {
    struct request_params p = request_params_default;

    for (uint32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = 'a' + (i * 7 + row * (i / 100)) % 26;
    p.prompt = prompt;
    p.n_prompt = N_PROMPT;
    p.max_tokens = MAX_LEN - N_PROMPT;
    p.ignore_eos = true;
    p.seed = row;
    return p;
}

static void submit(struct bench *w, struct request *r) {
    struct error err = {0};

    must(engine_submit(w->e, r, &err), &err);
    w->open[w->n_open++] = r;
}

static void submit_rows(struct bench *w, uint32_t n_rows, uint32_t width) {
    static uint32_t prompt[N_PROMPT];
    const struct request_limits *limits = &engine_info(w->e)->limits;
    struct error err = {0};

    for (uint32_t row = 0; row < n_rows; row += MAX(width, 1u)) {
        struct request_params p = params_of(prompt, row);
        struct beam_params beams = {.width = width, .n = 1, .length_penalty = 1};
        struct request *r;

        must(width ? beam_group_create(&r, &p, &beams, limits, &err)
                   : request_create(&r, &p, limits, &err),
             &err);
        submit(w, r);
    }
}

static struct engine_stats stats_after(struct bench *w, uint64_t n_steps) {
    struct engine_stats s;

    do {
        struct timespec pause = {.tv_nsec = 2000000};

        nanosleep(&pause, NULL);
        engine_stats(w->e, &s);
    } while (s.steps < n_steps && s.finished[FINISH_LENGTH] == 0);
    return s;
}

static double cpu_us(void) {
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Of one engine. Counts from when all rows decode; no request ends before STEPS more. */
static double step_us(uint32_t n_rows, uint32_t width) {
    struct bench w;
    struct engine_stats before, after;
    double began_us, us;

    fixture_open(&w, n_rows);
    submit_rows(&w, n_rows, width);
    do {
        before = stats_after(&w, 1);
    } while (before.finished[FINISH_LENGTH] == 0 &&
             (before.waiting > 0 || before.queued_tokens > n_rows || before.running < n_rows));
    began_us = cpu_us();
    after = stats_after(&w, before.steps + STEPS);
    us = (cpu_us() - began_us) / (double)MAX(after.steps - before.steps, 1u);
    engine_destroy(w.e);
    while (w.n_open > 0)
        request_unref(w.open[--w.n_open]);
    loop_destroy(w.loop);
    model_close(w.model);
    return us;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double run(const char *what, uint32_t n_rows, uint32_t width) {
    double us[N_RUNS];

    for (int i = 0; i < N_RUNS; i++)
        us[i] = step_us(n_rows, width);
    qsort(us, N_RUNS, sizeof(*us), by_value);
    printf("%-24s %4u rows  %7.1f us a step  %5.0f ns a row   (%.1f to %.1f)\n", what, n_rows,
           us[N_RUNS / 2], us[N_RUNS / 2] * 1000 / n_rows, us[0], us[N_RUNS - 1]);
    return us[N_RUNS / 2];
}

int main(void) {
    double us;

    setvbuf(stdout, NULL, _IOLBF, 0);
    run("decode", 64, 0);
    us = run("decode", 256, 0);
    printf("%-24s bar %.0f us: %s\n", "", BAR_US, us <= BAR_US ? "kept" : "MISSED");
    run("beam search, width 4", 256, 4);
    return 0;
}

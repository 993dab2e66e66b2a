/* tests/gpu/gpu_steps.c - how long a step takes, through the backend's own table of functions.
 *
 *      gpu_steps MODEL [SECONDS [MATRICES CACHE]]
 *
 * MODEL: a name of random_model.h; "tiny" is a rehearsal. MATRICES: bf16, e4m3 or int4; CACHE:
 * bf16, e4m3 or int8. Where one is not bf16, only decode steps on the shorter context are measured.
 *
 * One line of JSON per measurement, on standard output. Decode steps run as the engine runs them:
 * two in flight, the next one's tokens fed back on the device. `us` is the median over rounds of
 * the wall time per step, `host_us` what staging and submitting cost the engine's thread,
 * `device_us` what the device reports of the last one. After SECONDS (100) what is left is named
 * and skipped. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/gpu/random_model.h"

#define BLOCK      16u
#define ROUNDS     3u
#define WARM_STEPS 4u

extern const struct backend_ops backend_cuda;

struct fixture {
    struct random_model m;
    struct rng rng;
    uint32_t *blocks; /* of all rows, shuffled: (n_blocks - 1) */
    uint32_t *prompt; /* (max_context) random tokens */
    uint32_t per_row; /* blocks of each row now bound */
    uint32_t n_rows, context;
    bool is_bound_new; /* tables have not been sent yet */
    double deadline_s;
    char model[64]; /* in each row: the name, and what is quantised */
};

struct plan {
    uint32_t batches[6], contexts[2], prefills[2];
    uint32_t cached, fresh; /* a prefix hit: so many new tokens on so many cached */
    uint32_t n_steps, n_blocks, n_swapped, max_step_tokens;
    struct {
        uint32_t rows, prompt, output;
    } session; /* short prompts, answered in full */
};

static const struct plan full_plan = {.batches = {1, 2, 8, 32, 128, 256},
                                      .contexts = {1024, 8192},
                                      .prefills = {1024, 8192},
                                      .cached = 8192,
                                      .fresh = 128,
                                      .n_steps = 48,
                                      .n_blocks = 20480,
                                      .n_swapped = 512,
                                      .max_step_tokens = 8192,
                                      .session = {8, 32, 128}};
static const struct plan tiny_plan = {.batches = {1, 2, 5},
                                      .contexts = {24, 50},
                                      .prefills = {17, 40},
                                      .cached = 32,
                                      .fresh = 7,
                                      .n_steps = 3,
                                      .n_blocks = 64,
                                      .n_swapped = 4,
                                      .max_step_tokens = 64,
                                      .session = {2, 5, 4}};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n) {
    qsort(values, n, sizeof(*values), by_value);
    return values[n / 2];
}

static bool is_late(struct fixture *w, const char *what, uint32_t batch, uint32_t context) {
    if (clock_s() < w->deadline_s) return false;
    printf("{\"row\":\"%s\",\"model\":\"%s\",\"batch\":%u,\"context\":%u,\"skipped\":\"out of "
           "time\"}\n",
           what, w->model, batch, context);
    return true;
}

/* --- steps ------------------------------------------------------------------------------------ */

/* Rows 0 .. n_rows - 1 with `context` tokens each, room for `more`. */
static void bind(struct fixture *w, uint32_t n_rows, uint32_t context, uint32_t more) {
    w->per_row = CEIL_DIV(context + more, BLOCK);
    w->n_rows = n_rows;
    w->context = context;
    w->is_bound_new = true;
    for (uint32_t row = 0; row < n_rows; row++) {
        enum status st = w->m.ops->row_bind(w->m.model, row, w->prompt, context, NULL, 0);

        if (st != ST_OK) random_fail("row_bind", st, NULL);
    }
}

static uint32_t block_of(const struct fixture *w, uint32_t row, uint32_t position) {
    return w->blocks[row * w->per_row + position / BLOCK];
}

static void put_tables(struct fixture *w, struct backend_stage *s, struct backend_step *step) {
    if (!w->is_bound_new) return;
    w->is_bound_new = false;
    for (uint32_t row = 0; row < w->n_rows; row++)
        for (uint32_t i = 0; i < w->per_row; i++)
            s->update[step->n_updates++] =
                (struct backend_table_update){row, i, w->blocks[row * w->per_row + i]};
}

/* `n` tokens of each row, with an output at the last. Fed back, or random. */
static void put_tokens(struct fixture *w, struct backend_stage *s, struct backend_step *step,
                       uint32_t n, bool is_fed_back) {
    for (uint32_t row = 0; row < w->n_rows; row++) {
        s->row[step->n_rows++] = (struct backend_row){row, step->n_tokens, n, w->context + n};
        for (uint32_t i = 0; i < n; i++) {
            uint32_t at = step->n_tokens++, position = w->context + i;

            s->token[at] =
                is_fed_back ? -1 - (int32_t)row : (int32_t)rng_below(&w->rng, w->m.shape->vocab);
            s->position[at] = position;
            s->kv_slot[at] = (int64_t)block_of(w, row, position) * BLOCK + position % BLOCK;
        }
        s->output[step->n_outputs++] = (struct backend_output){.row = row,
                                                               .token_index = step->n_tokens - 1,
                                                               .position = w->context + n,
                                                               .seed = row,
                                                               .temperature = row % 2 ? 0.8f : 0,
                                                               .top_p = 1,
                                                               .repetition_penalty = 1,
                                                               .mask = BACKEND_NO_MASK};
    }
    w->context += n;
}

static backend_fence submit(struct fixture *w, uint32_t slot, uint32_t n, bool is_fed_back) {
    struct backend_step step = {0};
    struct error err;
    backend_fence fence;
    enum status st;

    put_tables(w, &w->m.stage[slot], &step);
    put_tokens(w, &w->m.stage[slot], &step, n, is_fed_back);
    st = w->m.ops->submit(w->m.model, slot, &step, &fence, &err);
    if (st != ST_OK) random_fail("submit", st, &err);
    return fence;
}

static void wait_for(struct fixture *w, backend_fence fence) {
    enum status st = w->m.ops->wait(w->m.dev, fence, UINT64_C(60000000));

    if (st != ST_OK) random_fail("wait", st, NULL);
}

/* Wall seconds of n decode steps, two in flight; what the host spent on them in *host_s. */
static double run_steps(struct fixture *w, uint32_t n, bool is_first_fed_back, double *host_s) {
    backend_fence fence[2] = {0, 0};
    double start_s = clock_s(), before_s;

    *host_s = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (fence[i % 2]) wait_for(w, fence[i % 2]);
        before_s = clock_s();
        fence[i % 2] = submit(w, i % 2, 1, is_first_fed_back || i > 0);
        *host_s += clock_s() - before_s;
    }
    for (uint32_t i = 0; i < 2; i++)
        if (fence[(n + i) % 2]) wait_for(w, fence[(n + i) % 2]);
    return clock_s() - start_s;
}

/* --- what is measured ------------------------------------------------------------------------- */

static void measure_decode(struct fixture *w, const struct plan *p, uint32_t batch,
                           uint32_t context) {
    double us[ROUNDS], host_s, host_us[ROUNDS], middle_us, device_us;
    uint32_t room = WARM_STEPS + ROUNDS * p->n_steps;

    if ((uint64_t)batch * CEIL_DIV(context + room, BLOCK) > p->n_blocks - 1) {
        printf("{\"row\":\"decode\",\"model\":\"%s\",\"batch\":%u,\"context\":%u,\"skipped\":"
               "\"more KV than this test's pool\"}\n",
               w->model, batch, context);
        return;
    }
    if (is_late(w, "decode", batch, context)) return;
    bind(w, batch, context, room);
    (void)run_steps(w, WARM_STEPS, false, &host_s);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        us[i] = run_steps(w, p->n_steps, true, &host_s) * 1e6 / p->n_steps;
        host_us[i] = host_s * 1e6 / p->n_steps;
    }
    device_us = w->m.ops->step_us ? w->m.ops->step_us(w->m.model, (p->n_steps - 1) % 2) : 0;
    middle_us = median(us, ROUNDS);
    printf("{\"row\":\"decode\",\"model\":\"%s\",\"batch\":%u,\"context\":%u,\"us\":%.1f,"
           "\"us_min\":%.1f,\"us_max\":%.1f,\"host_us\":%.1f,\"device_us\":%.1f,"
           "\"tokens_per_s\":%.1f}\n",
           w->model, batch, context, middle_us, us[0], us[ROUNDS - 1], median(host_us, ROUNDS),
           device_us, batch * 1e6 / middle_us);
}

/* `fresh` tokens of one row on `cached` ones, in one step. */
static void measure_prefill(struct fixture *w, const char *name, uint32_t cached, uint32_t fresh) {
    double us[ROUNDS + 1], device_us = 0, middle_us;

    if (is_late(w, name, 1, cached + fresh)) return;
    for (uint32_t i = 0; i <= ROUNDS; i++) { /* the first warms up */
        double start_s;

        bind(w, 1, cached, fresh);
        start_s = clock_s();
        wait_for(w, submit(w, 0, fresh, false));
        us[i] = (clock_s() - start_s) * 1e6;
        if (w->m.ops->step_us) device_us = w->m.ops->step_us(w->m.model, 0);
    }
    middle_us = median(us + 1, ROUNDS);
    printf("{\"row\":\"%s\",\"model\":\"%s\",\"fresh\":%u,\"cached\":%u,\"us\":%.1f,"
           "\"us_min\":%.1f,\"us_max\":%.1f,\"device_us\":%.1f}\n",
           name, w->model, fresh, cached, middle_us, us[1], us[ROUNDS], device_us);
}

/* Short prompts together, then all their output. */
static void measure_session(struct fixture *w, const struct plan *p) {
    double us[ROUNDS], host_s, start_s, middle_us;

    if (is_late(w, "session", p->session.rows, p->session.prompt)) return;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        bind(w, p->session.rows, 0, p->session.prompt + p->session.output);
        start_s = clock_s();
        wait_for(w, submit(w, 0, p->session.prompt, false));
        (void)run_steps(w, p->session.output - 1, true, &host_s);
        us[i] = (clock_s() - start_s) * 1e6 / p->session.output;
    }
    middle_us = median(us, ROUNDS);
    printf("{\"row\":\"session\",\"model\":\"%s\",\"batch\":%u,\"prompt\":%u,\"output\":%u,"
           "\"us\":%.1f,\"us_min\":%.1f,\"us_max\":%.1f}\n",
           w->model, p->session.rows, p->session.prompt, p->session.output, middle_us, us[0],
           us[ROUNDS - 1]);
}

static double moved_s(struct fixture *w, const struct backend_copy *pairs, uint32_t n,
                      bool is_out) {
    double start_s = clock_s();
    backend_fence fence = 0;
    enum status st = is_out ? w->m.ops->kv_swap_out(w->m.model, pairs, n, &fence)
                            : w->m.ops->kv_swap_in(w->m.model, pairs, n, &fence);

    if (st != ST_OK) random_fail("swap", st, NULL);
    wait_for(w, fence);
    return clock_s() - start_s;
}

static void measure_swap(struct fixture *w, const struct plan *p) {
    struct backend_copy *pairs = mem_calloc(p->n_swapped, sizeof(*pairs));
    double bytes = (double)p->n_swapped * (double)w->m.kv.block_bytes, gbs[2][ROUNDS + 1];

    if (is_late(w, "swap", p->n_swapped, 0)) return;
    for (uint32_t round = 0; round <= ROUNDS; round++)
        for (uint32_t is_out = 0; is_out < 2; is_out++) {
            for (uint32_t i = 0; i < p->n_swapped; i++) {
                uint32_t block = w->blocks[i];

                pairs[i] =
                    is_out ? (struct backend_copy){block, i} : (struct backend_copy){i, block};
            }
            gbs[is_out][round] = bytes / moved_s(w, pairs, p->n_swapped, is_out) / 1e9;
        }
    printf("{\"row\":\"swap\",\"model\":\"%s\",\"blocks\":%u,\"out_gbs\":%.2f,\"in_gbs\":%.2f}\n",
           w->model, p->n_swapped, median(gbs[1] + 1, ROUNDS), median(gbs[0] + 1, ROUNDS));
    mem_free(pairs);
}

/* --- */

static void shuffle(uint32_t *v, uint32_t n, struct rng *rng) {
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)rng_below(rng, i), t = v[i - 1];

        v[i - 1] = v[j];
        v[j] = t;
    }
}

static void fixture_open(struct fixture *w, const struct random_shape *shape, const struct plan *p,
                         enum dtype matrices, enum dtype kv) {
    uint32_t longest = MAX(p->contexts[1], p->cached + p->fresh) + 256;
    struct random_limits limits = {.max_rows = 256,
                                   .max_step_tokens = p->max_step_tokens,
                                   .max_context = longest,
                                   .n_blocks = p->n_blocks,
                                   .n_host_blocks = p->n_swapped,
                                   .matrices = matrices,
                                   .kv = kv};

    if (p == &tiny_plan) limits.max_rows = 8;
    rng_seed(&w->rng, 7);
    random_model_open(&w->m, &backend_cuda, shape, &limits, 1);
    random_model_fill_pool(&w->m, w->m.kv.n_blocks, 2);
    w->blocks = mem_calloc(w->m.kv.n_blocks, sizeof(*w->blocks));
    for (uint32_t i = 0; i + 1 < w->m.kv.n_blocks; i++)
        w->blocks[i] = i + 1;
    shuffle(w->blocks, w->m.kv.n_blocks - 1, &w->rng);
    w->prompt = mem_calloc(longest, sizeof(*w->prompt));
    for (uint32_t i = 0; i < longest; i++)
        w->prompt[i] = (uint32_t)rng_below(&w->rng, shape->vocab);
    printf("{\"row\":\"load\",\"model\":\"%s\",\"load_s\":%.3f,\"alloc_s\":%.3f}\n", w->model,
           w->m.load_s, w->m.alloc_s);
}

static void measure_all(struct fixture *w, const struct plan *p) {
    measure_prefill(w, "prefix_hit", p->cached, p->fresh);
    measure_session(w, p);
    for (uint32_t c = 0; c < 2; c++) {
        for (uint32_t b = 0; b < ARRAY_LEN(p->batches) && p->batches[b]; b++)
            measure_decode(w, p, p->batches[b], p->contexts[c]);
        measure_prefill(w, "prefill", 0, p->prefills[c]);
    }
    measure_swap(w, p);
}

/* Of most interest first: one row, many, those between. */
static void measure_quantised(struct fixture *w, const struct plan *p) {
    uint32_t n = 0;

    while (n < ARRAY_LEN(p->batches) && p->batches[n])
        n++;
    measure_decode(w, p, p->batches[0], p->contexts[0]);
    while (--n > 0)
        measure_decode(w, p, p->batches[n], p->contexts[0]);
}

#define USAGE "usage: gpu_steps MODEL [SECONDS [bf16|e4m3|int4 bf16|e4m3|int8]]"

int main(int argc, char **argv) {
    enum dtype matrices = argc > 3 ? random_dtype(argv[3], USAGE) : DTYPE_BF16;
    enum dtype kv = argc > 4 ? random_dtype(argv[4], USAGE) : DTYPE_BF16;
    bool is_plain = matrices == DTYPE_BF16 && kv == DTYPE_BF16;
    const struct random_shape *shape = argc > 1 ? random_shape_find(argv[1]) : NULL;
    const struct plan *p;
    struct fixture w;

    if (!shape) {
        fprintf(stderr, "gpu_steps: name a model: llama-3.1-8b, qwen2.5-1.5b, slice or tiny\n");
        return 2;
    }
    memset(&w, 0, sizeof(w));
    p = strcmp(shape->name, "tiny") == 0 ? &tiny_plan : &full_plan;
    w.deadline_s = clock_s() + (argc > 2 ? strtod(argv[2], NULL) : 100);
    setvbuf(stdout, NULL, _IOLBF, 0);
    snprintf(w.model, sizeof(w.model), "%s%s%s%s%s", shape->name, is_plain ? "" : " ",
             is_plain ? "" : argv[3], is_plain ? "" : "/", is_plain || argc < 5 ? "" : argv[4]);
    fixture_open(&w, shape, p, matrices, kv);
    if (is_plain)
        measure_all(&w, p);
    else
        measure_quantised(&w, p);
    random_model_close(&w.m);
    mem_free(w.blocks);
    mem_free(w.prompt);
    return 0;
}

/* tests/bench/bench_cuda_host.c - what a step costs the host, without the driver.
 *
 * The CUDA backend on a device that does nothing: every door of kernels/cuda/device/gpu.h and
 * gemm.h is here, counts its calls and returns. What is measured is the backend's own work for a
 * step of one-token rows, of the shape of an 8B model: checks, packing, the list of attention,
 * fences. The calls to the driver are counted beside it; each costs one to three microseconds on a
 * GPU machine, a graph six to ten. The goal is 50 us for 256 rows, all together. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "kernels/cuda/cuda_internal.h"
#include "tests/shim/internal.h"
#include "tests/support/tiny_model.h"

#define ROUNDS 7
#define STEPS  4000

/* --- a device that does nothing --------------------------------------------------------------- */

static struct { uint64_t copies, launches, graphs, events, others; } calls;

struct gpu {
    struct gpu_properties p;
};
struct gpu_stream {
    int unused;
};
struct gpu_event {
    int unused;
};
struct gpu_graph {
    int unused;
};
struct gemm {
    int unused;
};
static struct gpu the_gpu = {.p = {.name = "nothing",
                                   .uuid = "GPU-0",
                                   .sm = 90,
                                   .n_sm = 132,
                                   .memory_total = 1ull << 40,
                                   .memory_free = 1ull << 40}};
static struct gpu_stream the_stream;
static struct gpu_event the_event;
static struct gpu_graph the_graph;
static struct gemm the_gemm;

enum status gpu_count(uint32_t *n, struct error *err) {
    (void)err;
    *n = 1;
    return ST_OK;
}
enum status gpu_describe(uint32_t ordinal, struct gpu_properties *out, struct error *err) {
    (void)ordinal, (void)err;
    *out = the_gpu.p;
    return ST_OK;
}
enum status gpu_open(struct gpu **out, uint32_t ordinal, struct error *err) {
    (void)ordinal, (void)err;
    *out = &the_gpu;
    return ST_OK;
}
void gpu_close(struct gpu *g) {
    (void)g;
}
const struct gpu_properties *gpu_properties(const struct gpu *g) {
    return &g->p;
}
uint64_t gpu_memory_free(struct gpu *g) {
    return g->p.memory_free;
}
bool gpu_reach(struct gpu *g, uint32_t ordinal) {
    (void)g, (void)ordinal;
    return false;
}
void gpu_list_kernel(struct gpu_kernel *kernel) { /* nothing loads them */
    (void)kernel;
}
enum status gpu_status(struct gpu *g, struct error *err) {
    (void)g, (void)err;
    return ST_OK;
}
enum status gpu_alloc(struct gpu *g, void **out, uint64_t n, const char *what, struct error *err) {
    (void)g, (void)what, (void)err;
    *out =
        mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *out == MAP_FAILED ? ST_NOMEM : ST_OK;
}
enum status gpu_alloc_pinned(struct gpu *g, void **out, uint64_t n, const char *what,
                             struct error *err) {
    return gpu_alloc(g, out, n, what, err);
}
void gpu_free(struct gpu *g, void *p) { /* the process ends soon */
    (void)g, (void)p;
}
enum status gpu_stream_open(struct gpu *g, struct gpu_stream **out, struct error *err) {
    (void)g, (void)err;
    *out = &the_stream;
    return ST_OK;
}
void gpu_stream_close(struct gpu_stream *s) {
    (void)s;
}
struct gpu *gpu_stream_gpu(struct gpu_stream *s) {
    (void)s;
    return &the_gpu;
}
void *gpu_stream_handle(struct gpu_stream *s) {
    return s;
}
void *gpu_stream_launches(struct gpu_stream *s, bool *overlaps) {
    *overlaps = false;
    return s;
}
void gpu_copy(struct gpu_stream *s, void *dst, const void *src, uint64_t n) {
    (void)s, (void)dst, (void)src, (void)n;
    calls.copies++;
}
void gpu_copy_2d(struct gpu_stream *s, void *dst, uint64_t dst_pitch, const void *src,
                 uint64_t src_pitch, uint64_t row_bytes, uint64_t n_rows) {
    (void)s, (void)dst, (void)src, (void)dst_pitch, (void)src_pitch, (void)row_bytes, (void)n_rows;
    calls.copies++;
}
void gpu_copy_many(struct gpu_stream *s, void *const *dst, const void *const *src, uint64_t n_bytes,
                   uint32_t n) {
    (void)s, (void)dst, (void)src, (void)n_bytes, (void)n;
    calls.copies++;
}
void gpu_fill(struct gpu_stream *s, void *dst, uint8_t value, uint64_t n) {
    (void)s, (void)dst, (void)value, (void)n;
    calls.copies++;
}
enum status gpu_stream_wait(struct gpu_stream *s, struct error *err) {
    (void)s, (void)err;
    return ST_OK;
}
enum status gpu_event_open(struct gpu *g, struct gpu_event **out, struct error *err) {
    (void)g, (void)err;
    *out = &the_event;
    return ST_OK;
}
void gpu_event_close(struct gpu_event *e) {
    (void)e;
}
void gpu_event_record(struct gpu_event *e, struct gpu_stream *s) {
    (void)e, (void)s;
    calls.events++;
}
void gpu_stream_wait_event(struct gpu_stream *s, struct gpu_event *e) {
    (void)e, (void)s;
    calls.events++;
}
enum status gpu_event_poll(struct gpu_event *e) {
    (void)e;
    calls.others++;
    return ST_OK;
}
enum status gpu_event_wait(struct gpu_event *e, uint64_t timeout_us) {
    (void)e, (void)timeout_us;
    calls.others++;
    return ST_OK;
}
double gpu_event_elapsed_us(struct gpu_event *from, struct gpu_event *to) {
    (void)from, (void)to;
    return 1;
}
int gpu_event_fd(struct gpu *g) {
    (void)g;
    return -1;
}
void gpu_event_announce(struct gpu_event *e) {
    (void)e;
}
void gpu_capture_begin(struct gpu_stream *s) {
    (void)s;
}
enum status gpu_capture_end(struct gpu_stream *s, struct gpu_graph **out, struct error *err) {
    (void)s, (void)err;
    *out = &the_graph;
    return ST_OK;
}
void gpu_graph_launch(struct gpu_graph *g, struct gpu_stream *s) {
    (void)g, (void)s;
    calls.graphs++;
}
void gpu_graph_close(struct gpu_graph *g) {
    (void)g;
}
enum status gemm_open(struct gemm **out, struct gpu *g, const struct gemm_own *own,
                      bool is_deterministic, struct error *err) {
    (void)g, (void)own, (void)is_deterministic, (void)err;
    *out = &the_gemm;
    return ST_OK;
}
void gemm_close(struct gemm *g) {
    (void)g;
}
const char *gemm_note(const struct gemm *g) {
    (void)g;
    return NULL;
}
uint32_t gemm_n_own(const struct gemm *g) {
    (void)g;
    return 0;
}
enum status gemm_tune(struct gemm *g, struct gpu_stream *s, const struct gemm_args *a, uint32_t m,
                      struct error *err) {
    (void)g, (void)s, (void)a, (void)m, (void)err;
    return ST_OK;
}
void gemm_run(struct gemm *g, struct gpu_stream *s, const struct gemm_args *a) {
    (void)g, (void)s, (void)a;
    calls.launches++;
}
bool gemm_takes_codes(const struct gemm *g, const struct gemm_shape *shape) {
    (void)g, (void)shape;
    return false;
}
void gemm_leave_codes(struct gemm *g, const struct gemm_shape *shape) {
    (void)g, (void)shape;
}
bool gemm_has_plan(const struct gemm *g, const struct gemm_shape *shape) {
    (void)g, (void)shape;
    return false;
}

bool gemm_try(struct gemm *g, struct gpu_stream *s, const struct gemm_args *a) {
    (void)g, (void)s, (void)a;
    return false;
}
void gemm_run_grouped(struct gemm *g, struct gpu_stream *s, const struct gemm_grouped_args *a) {
    (void)g, (void)s, (void)a;
    calls.launches++;
}
enum status comm_open(struct comm **out, struct gpu *g, struct tp_group *group, uint32_t rank,
                      struct error *err) {
    (void)out, (void)g, (void)group, (void)rank;
    return error_set(err, ST_UNSUPPORTED, "one rank here");
}
void comm_close(struct comm *c) {
    (void)c;
}
void comm_sum(struct comm *c, struct gpu_stream *s, uint16_t *x, uint64_t n) {
    (void)c, (void)s, (void)x, (void)n;
}
void comm_gather(struct comm *c, struct gpu_stream *s, const void *mine, void *all, uint64_t n) {
    (void)c, (void)s, (void)mine, (void)all, (void)n;
}
void shim_launch_on(struct gpu_stream *s, const struct shim_launch *launch) {
    (void)s, (void)launch;
    calls.launches++;
}
void shim_launch_together(struct gpu_stream *s, const struct shim_launch *launch, const void *place,
                          uint32_t rank, uint32_t size) {
    (void)s, (void)launch, (void)place, (void)rank, (void)size;
    calls.launches++;
}
volatile int shim_peer_fault; /* no kernel runs */
uint32_t shim_faulty_load(const uint32_t *p) {
    return *p;
}
void shim_faulty_store(uint32_t *p, uint32_t x) {
    *p = x;
}
const void *shim_faulty_line(const void *p) {
    return p;
}

/* --- steps ------------------------------------------------------------------------------------ */

static const struct tiny_shape shape = {.n_layers = 2,
                                        .d_model = 4096,
                                        .n_heads = 32,
                                        .n_kv_heads = 8,
                                        .head_dim = 128,
                                        .d_ff = 64,
                                        .vocab = 4096,
                                        .max_context = 8192,
                                        .weight_dtype = DTYPE_BF16,
                                        .kv_dtype = DTYPE_BF16};

struct side {
    struct backend_device *dev;
    struct backend_model *m;
    struct backend_stage stage[2];
};

static void must(enum status st, const struct error *err) {
    if (st == ST_OK) return;
    fprintf(stderr, "%s\n", err->message);
    exit(1);
}

static void start(struct side *s) {
    float inv_freq[128];
    uint8_t kind[64];
    struct geometry g = tiny_geometry(&shape, inv_freq, kind);
    struct backend_limits l = {.max_rows = 256,
                               .max_step_tokens = 2048,
                               .max_blocks_per_row = 512,
                               .max_outputs = 256,
                               .max_logprobs = 5,
                               .n_slots = 2,
                               .block_size = 16,
                               .max_bias = 256,
                               .max_masks = 4};
    struct backend_kv_info kv;
    struct error err = {0};

    must(backend_cuda.open(&s->dev, &(struct backend_config){0}, &err), &err);
    must(backend_cuda.load_begin(s->dev, &s->m, &g, &l, &err), &err);
    must(tiny_load(&backend_cuda, s->m, &shape, 1, ROLE_COUNT, &err), &err);
    must(backend_cuda.load_end(s->m, &err), &err);
    must(backend_cuda.kv_alloc(s->m, 40000, 0, &kv, &err), &err);
    for (uint32_t i = 0; i < 2; i++)
        backend_cuda.stage(s->m, i, &s->stage[i]);
}

/* Rows of different lengths around `context`; one in sixteen gets a block. */
static void fill(const struct backend_stage *t, struct backend_step *step, uint32_t n_rows,
                 uint32_t context) {
    *step = (struct backend_step){.n_tokens = n_rows, .n_rows = n_rows, .n_outputs = n_rows};
    for (uint32_t i = 0; i < n_rows; i++) {
        uint32_t position = context - i % (context / 2);

        t->token[i] = (int32_t)i;
        t->position[i] = position;
        t->kv_slot[i] = (int64_t)(1 + i) * 16 + position % 16;
        t->row[i] = (struct backend_row){i, i, 1, position + 1};
        t->output[i] = (struct backend_output){.row = i,
                                               .token_index = i,
                                               .position = position + 1,
                                               .temperature = 0.7f,
                                               .top_p = 1,
                                               .repetition_penalty = 1,
                                               .mask = BACKEND_NO_MASK};
        if (i % 16 == 0)
            t->update[step->n_updates++] = (struct backend_table_update){i, position / 16, 1 + i};
    }
}

static void measure(struct side *s, uint32_t n_rows, uint32_t context) {
    struct backend_step step;
    struct error err = {0};
    double best = 1e9;
    backend_fence f;

    for (int slot = 0; slot < 2; slot++)
        fill(&s->stage[slot], &step, n_rows, context);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t began_us = clock_now_us();

        memset(&calls, 0, sizeof(calls));
        for (uint32_t i = 0; i < STEPS; i++)
            must(backend_cuda.submit(s->m, i % 2, &step, &f, &err), &err);
        best = MIN(best, (double)(clock_now_us() - began_us) / STEPS);
    }
    printf(
        "  %3u rows at %4u tokens: %6.2f us; calls: %.1f copies, %.1f graphs, %.1f launches, %.1f "
        "events recorded, %.1f asked\n",
        n_rows, context, best, (double)calls.copies / STEPS, (double)calls.graphs / STEPS,
        (double)calls.launches / STEPS, (double)calls.events / STEPS, (double)calls.others / STEPS);
}

int main(void) {
    struct side s;

    start(&s);
    printf("the CUDA backend's own time in submit, best of %d rounds of %d:\n", ROUNDS, STEPS);
    measure(&s, 1, 1000);
    measure(&s, 32, 1000);
    measure(&s, 256, 1000);
    measure(&s, 256, 8000);
    return 0;
}

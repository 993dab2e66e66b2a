/* tests/bench/peer/llama.c - llama.cpp and ggml as the other engine. See peer.h.
 *
 * Their pool of threads lives as long as the object, as in llama-bench, and is paused between its
 * turns: it would spin otherwise. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-cpu.h>
#include <llama.h>

#include "common/base/mem.h"
#include "tests/bench/peer/peer.h"

#define MAX_LAYERS 16u
#define MAX_SHAPES 8u /* numbers of rows seen */

const char *peer_name(void) {
    return "llama.cpp";
}

static void *must(void *p, const char *what) {
    if (p) return p;
    fprintf(stderr, "llama.cpp: %s failed\n", what);
    abort();
}

static struct ggml_threadpool *new_threads(uint32_t n_threads) {
    struct ggml_threadpool_params params = ggml_threadpool_params_default((int)n_threads);

    params.paused = true;
    return must(ggml_threadpool_new(&params), "ggml_threadpool_new");
}

/* --- products -------------------------------------------------------------------------------- */

struct plan { /* of one layer at one number of rows */
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    struct ggml_cplan plan;
};

struct peer_products {
    struct ggml_context *weights;
    void *pages; /* huge ones, as ours */
    size_t n_bytes;
    struct ggml_tensor *w[MAX_LAYERS][4];
    struct ggml_threadpool *threads;
    uint32_t n_layers, n_threads, next_layer, n_shapes;
    uint32_t rows[MAX_SHAPES];
    struct plan plans[MAX_SHAPES][MAX_LAYERS];
};

const char *peer_type_name(enum peer_type type) {
    static const char *const names[PEER_TYPES] = {"bf16", "Q8_0", "Q4_K_M"};

    return names[type];
}

static enum ggml_type type_of(enum peer_type type, uint32_t layer, int product) {
    if (type == PEER_BF16) return GGML_TYPE_BF16;
    if (type == PEER_Q8_0) return GGML_TYPE_Q8_0;
    return product == 3 && layer % 2 == 0 ? GGML_TYPE_Q6_K : GGML_TYPE_Q4_K;
}

#define SAMPLE_ROWS 8 /* random rows that are rounded, and repeated */

static void fill_tensor(struct ggml_tensor *w, uint32_t *bits) {
    size_t k = (size_t)w->ne[0], row_bytes = ggml_row_size(w->type, w->ne[0]);
    float *x = mem_calloc(SAMPLE_ROWS * k, sizeof(*x));

    for (size_t e = 0; e < SAMPLE_ROWS * k; e++)
        x[e] = (float)((*bits = *bits * 1664525u + 1013904223u) >> 16) * 0x1p-20f - 0x1p-5f;
    ggml_quantize_chunk(w->type, x, w->data, 0, SAMPLE_ROWS, w->ne[0], NULL);
    for (int64_t r = SAMPLE_ROWS; r < w->ne[1]; r++)
        memcpy((char *)w->data + (size_t)r * row_bytes,
               (char *)w->data + (size_t)(r % SAMPLE_ROWS) * row_bytes, row_bytes);
    mem_free(x);
}

struct peer_products *peer_products_open(enum peer_type type, const uint32_t product[4][2],
                                         uint32_t n_layers, uint32_t n_threads) {
    struct peer_products *p = mem_zalloc(sizeof(*p));
    uint32_t bits = 1;

    p->n_layers = MIN(n_layers, MAX_LAYERS);
    p->n_threads = n_threads;
    p->threads = new_threads(n_threads);
    for (uint32_t l = 0; l < p->n_layers; l++) {
        for (int i = 0; i < 4; i++)
            p->n_bytes += ggml_row_size(type_of(type, l, i), product[i][1]) * product[i][0] + 4096;
    }
    p->pages = must(mem_try_pages(p->n_bytes), "memory");
    ggml_cpu_init();
    p->weights =
        must(ggml_init((struct ggml_init_params){.mem_size = p->n_bytes, .mem_buffer = p->pages}),
             "ggml_init");
    for (uint32_t l = 0; l < p->n_layers; l++) {
        for (int i = 0; i < 4; i++) {
            p->w[l][i] =
                ggml_new_tensor_2d(p->weights, type_of(type, l, i), product[i][1], product[i][0]);
            fill_tensor(p->w[l][i], &bits);
        }
    }
    return p;
}

static void make_plan(struct peer_products *p, struct plan *plan, uint32_t layer, uint32_t n_rows) {
    size_t n_bytes = 1 << 20;

    for (int i = 0; i < 4; i++)
        n_bytes += (size_t)(p->w[layer][i]->ne[0] + p->w[layer][i]->ne[1]) * n_rows * 4 + 4096;
    plan->ctx = must(ggml_init((struct ggml_init_params){.mem_size = n_bytes}), "ggml_init");
    plan->graph = ggml_new_graph(plan->ctx);
    for (int i = 0; i < 4; i++) {
        struct ggml_tensor *w = p->w[layer][i];
        struct ggml_tensor *x = ggml_new_tensor_2d(plan->ctx, GGML_TYPE_F32, w->ne[0], n_rows);

        for (int64_t e = 0; e < w->ne[0] * n_rows; e++)
            ((float *)x->data)[e] = (float)(e * 7919 % 1000) * 0.001f - 0.5f;
        ggml_build_forward_expand(plan->graph, ggml_mul_mat(plan->ctx, w, x));
    }
    plan->plan = ggml_graph_plan(plan->graph, (int)p->n_threads, p->threads);
    plan->plan.work_data = mem_alloc(plan->plan.work_size + 1);
}

void peer_products_prepare(struct peer_products *p, uint32_t n_rows) {
    if (p->n_shapes == MAX_SHAPES) must(NULL, "so many numbers of rows");
    p->rows[p->n_shapes] = n_rows;
    for (uint32_t l = 0; l < p->n_layers; l++)
        make_plan(p, &p->plans[p->n_shapes][l], l, n_rows);
    p->n_shapes++;
}

void peer_products_pass(struct peer_products *p, uint32_t n_rows) {
    uint32_t layer = p->next_layer++ % p->n_layers, s = 0;
    struct plan *plan;

    while (s < p->n_shapes && p->rows[s] != n_rows)
        s++;
    if (s == p->n_shapes) must(NULL, "a pass that was not prepared");
    plan = &p->plans[s][layer];
    ggml_graph_compute(plan->graph, &plan->plan); /* wakes the threads */
    if (p->n_threads > 1) ggml_threadpool_pause(p->threads);
}

void peer_products_close(struct peer_products *p) {
    for (uint32_t i = 0; i < MAX_SHAPES * MAX_LAYERS; i++) {
        struct plan *plan = &p->plans[i / MAX_LAYERS][i % MAX_LAYERS];

        if (!plan->ctx) continue;
        mem_free(plan->plan.work_data);
        ggml_free(plan->ctx);
    }
    ggml_free(p->weights);
    mem_free_pages(p->pages, p->n_bytes);
    ggml_threadpool_free(p->threads);
    mem_free(p);
}

/* --- a model --------------------------------------------------------------------------------- */

struct peer_model {
    struct llama_model *model;
    struct llama_context *ctx;
    struct ggml_threadpool *threads;
    struct llama_batch batch;
    uint32_t n_threads;
};

static void log_errors(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

struct peer_model *peer_model_open(const char *path, uint32_t n_threads, uint32_t n_context) {
    struct peer_model *m = mem_zalloc(sizeof(*m));
    struct llama_model_params mp = llama_model_default_params();
    struct llama_context_params cp = llama_context_default_params();

    llama_log_set(log_errors, NULL);
    llama_backend_init();
    cp.n_ctx = n_context;
    cp.n_batch = cp.n_ubatch = 512;
    cp.n_threads = cp.n_threads_batch = (int32_t)n_threads;
    m->n_threads = n_threads;
    m->model = must(llama_model_load_from_file(path, mp), "llama_model_load_from_file");
    m->ctx = must(llama_init_from_model(m->model, cp), "llama_init_from_model");
    m->threads = new_threads(n_threads);
    llama_attach_threadpool(m->ctx, m->threads, m->threads);
    m->batch = llama_batch_init(512, 0, 1);
    return m;
}

const float *peer_model_eval(struct peer_model *m, const int32_t *tokens, uint32_t n,
                             uint32_t first) {
    struct llama_batch *b = &m->batch;

    llama_memory_seq_rm(llama_get_memory(m->ctx), 0, (llama_pos)first, -1);
    b->n_tokens = (int32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        b->token[i] = tokens[i];
        b->pos[i] = (llama_pos)(first + i);
        b->n_seq_id[i] = 1;
        b->seq_id[i][0] = 0;
        b->logits[i] = i + 1 == n;
    }
    if (llama_decode(m->ctx, *b) != 0) must(NULL, "llama_decode");
    llama_synchronize(m->ctx);
    if (m->n_threads > 1) ggml_threadpool_pause(m->threads);
    return llama_get_logits_ith(m->ctx, (int32_t)n - 1);
}

void peer_model_close(struct peer_model *m) {
    llama_batch_free(m->batch);
    llama_free(m->ctx);
    llama_model_free(m->model);
    ggml_threadpool_free(m->threads);
    mem_free(m);
}

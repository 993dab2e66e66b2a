/* tests/unit/kernels/test_cpu_same_answer.c - "same answer, always", on every path of this machine.
 *
 * One request is run whole, in chunks, token by token, alone, beside seven others, on one and on
 * several threads, with several block sizes: tokens and logprobs must be equal to the bit. Then the
 * answer is compared with the reference backend's, and between paths, within a bound. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/dtype.h"
#include "tests/support/cm.h"
#include "tests/support/tiny_model.h"

#define N_PROMPT 170u
#define N_NEW    10u
#define N_ROWS   8u

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
#define N_SHAPES                                                                                   \
    1u /* instrumented or emulated tiles are fifty times as slow; the code is the same for each */
#else
#define N_SHAPES 8u
#endif

static const char *const paths[] = {"avx512bf16", "avx512", "avx2", "neon", "plain"};

static const struct tiny_shape llama = {.n_layers = 2,
                                        .d_model = 64,
                                        .n_heads = 4,
                                        .n_kv_heads = 2,
                                        .head_dim = 32,
                                        .d_ff = 80,
                                        .vocab = 211,
                                        .max_context = 256,
                                        .is_tied = true,
                                        .weight_dtype = DTYPE_BF16,
                                        .kv_dtype = DTYPE_BF16};

struct answer {
    int32_t token[N_NEW];
    float logprob[N_NEW];
};

static bool has_path(const char *path) {
    struct backend_info info;

    return backend_cpu.probe(&(struct backend_config){.path = path}, &info, NULL) == ST_OK;
}

/* Request `which` of a family; 0 is the one that is watched. Lengths differ, so that steps mix
 * prefill and decode. */
static void run_batch(struct tiny_model *m, uint32_t n, uint32_t chunk, struct answer *watched) {
    static uint32_t prompt[N_ROWS][N_PROMPT];
    static struct answer answers[N_ROWS];
    struct tiny_request q[N_ROWS];

    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < N_PROMPT; i++)
            prompt[r][i] = (i * i + 31 * i * (r + 1) + 7) % m->shape.vocab;
        q[r] = (struct tiny_request){.prompt = prompt[r],
                                     .n_prompt = N_PROMPT - r * 19,
                                     .n_new = N_NEW - r / 2,
                                     .token = answers[r].token,
                                     .logprob = answers[r].logprob};
        q[r].how = (struct backend_output){.temperature = r % 2 ? 0 : 0.7f,
                                           .top_p = 0.95f,
                                           .top_k = 40,
                                           .seed = 11 + r,
                                           .repetition_penalty = 1.1f,
                                           .mask = BACKEND_NO_MASK};
    }
    tiny_run(m, q, n, chunk);
    *watched = answers[0];
}

static void check_same(const struct answer *a, const struct answer *want, const char *what) {
    if (memcmp(a, want, sizeof(*a)) == 0) return;
    fail_msg("%s: first token %d for %d, logprob %a for %a", what, a->token[0], want->token[0],
             (double)a->logprob[0], (double)want->logprob[0]);
}

/* The first is what the others must equal. Those with the same pool and threads stand together:
 * they share a model. */
static const struct variant {
    uint32_t block_size, n_threads, chunk, n_rows;
} variants[] = {
    {16, 1, 512, 1}, {16, 1, 33, 1},  {16, 1, 16, 1},   {16, 1, 1, 1},   {16, 1, 64, 8},
    {16, 1, 512, 8}, {16, 2, 512, 1}, {16, 2, 64, 8},   {16, 2, 1, 8},   {16, 3, 512, 8},
    {1, 2, 512, 1},  {1, 2, 33, 8},   {128, 2, 512, 8}, {128, 2, 16, 1}, {5, 1, 64, 8},
};

static void check_shape(const char *path, const struct tiny_shape *shape) {
    struct answer want = {0}, got = {0};
    struct tiny_model m;

    for (size_t i = 0; i < ARRAY_LEN(variants); i++) {
        const struct variant *v = &variants[i], *before = i ? v - 1 : NULL;
        struct tiny_setup setup = {&backend_cpu, path, v->n_threads, v->block_size, N_ROWS, 512};
        char what[96];

        if (!before || before->block_size != v->block_size || before->n_threads != v->n_threads) {
            if (before) tiny_close(&m);
            tiny_open(&m, &setup, shape, 5);
        }
        run_batch(&m, v->n_rows, v->chunk, i ? &got : &want);
        snprintf(what, sizeof(what), "%s, block size %u, %u threads, chunks of %u, %u rows", path,
                 v->block_size, v->n_threads, v->chunk, v->n_rows);
        if (i) check_same(&got, &want, what);
    }
    tiny_close(&m);
}

static void same_answer_however_it_is_computed(void **state) {
    struct tiny_shape shapes[8] = {llama, llama, llama, llama, llama, llama, llama, llama};

    (void)state;
    shapes[1].has_qkv_bias = shapes[1].has_qk_norm = shapes[1].has_o_bias = true;
    shapes[1].is_tied = false;
    shapes[1].kv_dtype = DTYPE_F32;
    shapes[1].head_dim = 16;
    shapes[1].n_heads = 6;
    shapes[2].sliding_window = 50;
    shapes[2].head_dim = 80; /* panels with padding inside */
    shapes[2].d_model = 70;  /* and outside */
    shapes[3].weight_dtype = shapes[3].kv_dtype = DTYPE_F16;
    shapes[3].head_dim = 18; /* parts of vectors */
    shapes[3].n_heads = 6;
    shapes[4].weight_dtype = shapes[4].kv_dtype = DTYPE_F32;
    shapes[4].head_dim = 250;
    shapes[4].is_tied = false;
    shapes[5].kv_dtype = DTYPE_F8E4M3;
    shapes[6].kv_dtype = DTYPE_I8;
    shapes[6].has_qk_norm = true;
    shapes[7].kv_dtype = DTYPE_F8E4M3;
    shapes[7].head_dim = 22; /* parts of vectors, and of the words of four codes */
    shapes[7].sliding_window = 50;
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        for (size_t s = 0; s < N_SHAPES && has_path(paths[p]); s++)
            check_shape(paths[p], &shapes[s]);
    }
}

/* Scores of a fixed text, so that no choice can diverge. */
static void score_text(const struct backend_ops *ops, const char *path,
                       const struct tiny_shape *shape, float *logprob, uint32_t n) {
    struct tiny_setup setup = {ops, path, 2, 16, N_ROWS, 512};
    struct backend_step step = {.n_tokens = n, .n_rows = 1, .n_outputs = 0};
    struct tiny_model m;
    struct error err = {0};
    backend_fence fence;

    tiny_open(&m, &setup, shape, 5);
    for (uint32_t i = 0; i < m.blocks_per_row; i++)
        m.stage.update[step.n_updates++] = (struct backend_table_update){0, i, 1 + i};
    m.stage.row[0] = (struct backend_row){0, 0, n, n};
    for (uint32_t i = 0; i < n; i++) {
        m.stage.token[i] = (int32_t)(i * i * 7 % shape->vocab);
        m.stage.position[i] = i;
        m.stage.kv_slot[i] = 16 + i;
    }
    for (uint32_t i = 0; i < N_ROWS; i++)
        m.stage.output[step.n_outputs++] =
            (struct backend_output){.token_index = n - 1 - i * (n / N_ROWS),
                                    .want = WANT_SCORE,
                                    .score_token = i * 13,
                                    .mask = BACKEND_NO_MASK};
    assert_int_equal(ops->submit(m.model, 0, &step, &fence, &err), ST_OK);
    memcpy(logprob, m.stage.out_logprob, N_ROWS * sizeof(float));
    tiny_close(&m);
}

static void every_path_agrees_with_the_reference(void **state) {
    struct tiny_shape shapes[2] = {llama, llama};

    (void)state;
    shapes[1].has_qkv_bias = shapes[1].has_qk_norm = true;
    shapes[1].is_tied = false;
    shapes[1].sliding_window = 70;
    for (size_t s = 0; s < ARRAY_LEN(shapes); s++) {
        float want[N_ROWS], got[N_ROWS];

        score_text(&backend_ref, NULL, &shapes[s], want, 180);
        for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
            /* On the bf16 path every activation loses up to 2^-8, and layers add that up;
             * test_ops_diff holds each operator to its rounding. */
            float bound = p == 0 ? 0.12f : 0.001f;

            if (!has_path(paths[p])) continue;
            score_text(&backend_cpu, paths[p], &shapes[s], got, 180);
            for (uint32_t i = 0; i < N_ROWS; i++) {
                if (fabsf(got[i] - want[i]) > bound)
                    fail_msg("%s, output %u: logprob %g, reference %g", paths[p], i, (double)got[i],
                             (double)want[i]);
            }
        }
    }
}

/* Every kind of quantised matrix; the last shape has tensors of one product that differ. */
static struct tiny_shape quantised(size_t i) {
    struct tiny_shape shape = llama;

    shape.quant = &quant_kinds[i % QUANT_KINDS];
    shape.is_quant_mixed = i >= QUANT_KINDS;
    shape.is_tied = i % 2;
    shape.d_model = i % 3 ? 64 : 72;
    shape.d_ff = 144;
    shape.has_qkv_bias = i % 2;
    if (i % 4 == 3) shape.head_dim = 18, shape.n_heads = 6;
    return shape;
}

/* Cases 61, 66: threads, batches and chunks. */
static void quantised_weights_give_one_answer(void **state) {
    static const struct variant some[] = {{16, 1, 512, 1}, {16, 1, 1, 1},  {16, 1, 33, 8},
                                          {16, 2, 512, 8}, {16, 3, 16, 8}, {5, 3, 64, 8}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(paths) * QUANT_KINDS * 2; i++) {
        struct tiny_shape shape = quantised(i / ARRAY_LEN(paths));
        const char *path = paths[i % ARRAY_LEN(paths)];
        struct answer want = {0}, got = {0};

        if (!has_path(path) || (N_SHAPES == 1 && i / ARRAY_LEN(paths) % 5)) continue;
        if (shape.is_quant_mixed && i / ARRAY_LEN(paths) % 3) continue;
        for (size_t v = 0; v < ARRAY_LEN(some); v++) {
            struct tiny_setup setup = {&backend_cpu,       path,   some[v].n_threads,
                                       some[v].block_size, N_ROWS, 512};
            struct tiny_model m;

            tiny_open(&m, &setup, &shape, 5);
            run_batch(&m, some[v].n_rows, some[v].chunk, v ? &got : &want);
            tiny_close(&m);
            if (v) check_same(&got, &want, path);
        }
    }
}

static void quantised_models_agree_with_the_reference(void **state) {
    (void)state;
    for (size_t i = 0; i < QUANT_KINDS * 2; i++) {
        struct tiny_shape shape = quantised(i);
        float want[N_ROWS], got[N_ROWS];

        if (N_SHAPES == 1 && i % 5) continue;
        score_text(&backend_ref, NULL, &shape, want, 180);
        for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
            /* Inputs that are rounded to int8 fall to other codes where sums differ. */
            float bound = shape.quant->inputs == QUANT_INPUTS_I8 ? 0.2f
                          : p == 0                               ? 0.12f
                          : shape.quant->dtype == DTYPE_F8E4M3   ? 0.001f
                                                                 : 0.005f; /* in int16 */

            if (!has_path(paths[p])) continue;
            score_text(&backend_cpu, paths[p], &shape, got, 180);
            for (uint32_t o = 0; o < N_ROWS; o++) {
                if (!(fabsf(got[o] - want[o]) <= bound))
                    fail_msg("%s, kind %zu, output %u: logprob %g, reference %g", paths[p], i, o,
                             (double)got[o], (double)want[o]);
            }
        }
    }
}

/* Nothing is rounded but sums: weights in the file's type, or in a wider one. */
static void checkpoints_of_every_type_are_computed_as_they_are(void **state) {
    static const enum dtype files[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

    (void)state;
    for (size_t f = 0; f < ARRAY_LEN(files); f++) {
        for (uint32_t is_wide = 0; is_wide < 2; is_wide++) {
            struct tiny_shape exact = llama, kept;
            float want[N_ROWS], got[N_ROWS];

            exact.file_dtype = &files[f];
            exact.weight_dtype = exact.kv_dtype = DTYPE_F32;
            exact.is_tied = is_wide;
            kept = exact;
            kept.weight_dtype = is_wide ? DTYPE_F32 : files[f];
            if (kept.weight_dtype == DTYPE_BF16) continue; /* whose path may round activations */
            score_text(&backend_ref, NULL, &exact, want, 180);
            for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
                if (!has_path(paths[p])) continue;
                score_text(&backend_cpu, paths[p], &kept, got, 180);
                for (uint32_t i = 0; i < N_ROWS; i++) {
                    /* logprobs are up to 9 in size, and so are logits */
                    if (!(fabsf(got[i] - want[i]) <= 1e-5f * 9))
                        fail_msg("%s, %s kept as %s, output %u: logprob %.7g, reference %.7g",
                                 paths[p], dtype_name(files[f]), dtype_name(kept.weight_dtype), i,
                                 (double)got[i], (double)want[i]);
                }
            }
        }
    }
}

/* f16 in the pool loses 2^-11 of each K and V. */
static void a_pool_of_f16_is_near(void **state) {
    struct tiny_shape exact = llama, half = llama;
    float want[N_ROWS], got[N_ROWS];

    (void)state;
    exact.weight_dtype = half.weight_dtype = half.kv_dtype = DTYPE_F16;
    exact.kv_dtype = DTYPE_F32;
    score_text(&backend_ref, NULL, &exact, want, 180);
    score_text(&backend_ref, NULL, &half, got, 180);
    for (uint32_t i = 0; i < N_ROWS; i++)
        assert_true(fabsf(got[i] - want[i]) <= 0.01f && got[i] != want[i]);
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        if (!has_path(paths[p])) continue;
        score_text(&backend_cpu, paths[p], &half, want, 180);
        for (uint32_t i = 0; i < N_ROWS; i++)
            assert_true(fabsf(got[i] - want[i]) <= 2e-4f); /* a value beside a boundary may fall */
    }
}

/* The first `n` tokens of a row's blocks, as the pool keeps them. */
static void read_pool(struct tiny_model *m, uint8_t *bytes) {
    uint64_t n = m->setup.ops->kv_block_bytes(m->model);

    for (uint32_t i = 0; i < m->blocks_per_row; i++)
        assert_int_equal(m->setup.ops->kv_read(m->model,
                                               1 + (m->blocks_per_row - 1 - i) * m->setup.max_rows,
                                               bytes + i * n, n),
                         ST_OK);
}

/* Codes and scales too are the same however a prompt was cut, behind the last token as
 * well, because nothing was there before. Those of generated tokens are those of a prompt. */
static void a_quantised_pool_is_the_same_however_it_was_filled(void **state) {
    static const uint32_t chunks[] = {512, 1, 7, 16, 33};
    static const enum dtype types[] = {DTYPE_F8E4M3, DTYPE_I8};
    struct answer first, second;

    (void)state;
    for (size_t p = 0; p < ARRAY_LEN(paths) * ARRAY_LEN(types); p++) {
        struct tiny_setup setup = {&backend_cpu, paths[p / 2], 2, 16, N_ROWS, 512};
        struct tiny_shape shape = llama;
        uint8_t *want = NULL;

        shape.kv_dtype = types[p % 2];
        for (size_t i = 0; i < ARRAY_LEN(chunks) && has_path(setup.path); i++) {
            struct tiny_model m;
            uint64_t n;
            uint8_t *got, *zeros;

            tiny_open(&m, &setup, &shape, 5);
            n = backend_cpu.kv_block_bytes(m.model);
            got = mem_alloc(n * m.blocks_per_row);
            zeros = mem_calloc(1, n);
            for (uint32_t b = 0; b < N_ROWS * m.blocks_per_row; b++)
                assert_int_equal(backend_cpu.kv_write(m.model, b, zeros, n), ST_OK);
            run_batch(&m, i % 2 ? N_ROWS : 1, chunks[i], i ? &second : &first);
            if (i) check_same(&second, &first, "chunks of a quantised cache");
            read_pool(&m, got);
            if (want) assert_memory_equal(got, want, n * m.blocks_per_row);
            mem_free(zeros);
            tiny_close(&m);
            if (want) mem_free(got);
            if (!want) want = got;
        }
        mem_free(want);
    }
}

/* "path" is the one that computes, so that answers of equal paths are equal. */
static void the_path_that_computes_is_named(void **state) {
    struct tiny_setup setup = {&backend_cpu, "avx512bf16", 1, 16, 2, 64};
    struct tiny_shape shape = llama;
    struct backend_info info;
    struct tiny_model m;

    (void)state;
    if (!has_path(setup.path)) skip();
    for (int is_f32 = 0; is_f32 < 2; is_f32++) {
        shape.weight_dtype = is_f32 ? DTYPE_F32 : DTYPE_BF16;
        tiny_open(&m, &setup, &shape, 5);
        backend_cpu.info(m.dev, &info);
        assert_string_equal(info.path, is_f32 ? "avx512" : "avx512bf16");
        tiny_close(&m);
    }
}

static void a_path_that_is_not_there_is_refused_with_those_that_are(void **state) {
    struct backend_device *dev;
    struct error err = {0};

    (void)state;
    assert_int_equal(backend_cpu.open(&dev, &(struct backend_config){.path = "avx10"}, &err),
                     ST_UNSUPPORTED);
    assert_ptr_equal(strstr(err.message, "no such instruction set: avx10: this machine has "),
                     err.message);
    assert_non_null(strstr(err.message, "plain"));
}

static void an_unloadable_model_is_refused(void **state) {
    float inv_freq[64];
    uint8_t kind[8];
    struct tiny_setup setup = {&backend_cpu, NULL, 1, 16, 2, 64};
    struct geometry g = tiny_geometry(&llama, inv_freq, kind);
    struct backend_limits limits = tiny_limits(&setup, &llama);
    struct backend_config config = {.n_threads = 1, .memory_bytes = 300000};
    struct backend_device *dev;
    struct backend_model *m;
    struct error err = {0};

    (void)state;
    assert_int_equal(backend_cpu.open(&dev, &config, &err), ST_OK);
    assert_int_equal(backend_cpu.load_begin(dev, &m, &g, &limits, &err), ST_NOMEM);
    assert_non_null(strstr(err.message, "0.3 MiB allowed"));
    g.weight_dtype = DTYPE_I8;
    assert_int_equal(backend_cpu.load_begin(dev, &m, &g, &limits, &err), ST_UNSUPPORTED);
    g.weight_dtype = DTYPE_BF16;
    g.head_dim = 23;
    assert_int_equal(backend_cpu.load_begin(dev, &m, &g, &limits, &err), ST_UNSUPPORTED);
    assert_string_equal(err.message, "unsupported head_dim 23: RoPE turns the two halves of a "
                                     "head, so it must be even, from 2 to 512");
    g.head_dim = 514;
    assert_int_equal(backend_cpu.load_begin(dev, &m, &g, &limits, &err), ST_UNSUPPORTED);
    backend_cpu.close(dev);
}

/* check opens nothing, and reports of a model what load_begin reports. */
static void a_check_reports_what_loading_would(void **state) {
    static const uint32_t head_dims[] = {1, 2, 7, 18, 100, 255, 256, 510, 512, 513, 514, 1024};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8, DTYPE_F8E4M3};
    static const struct backend_ops *const backends[] = {&backend_cpu, &backend_ref};
    float inv_freq[512] = {0};
    uint8_t kind[8];
    struct tiny_setup setup = {&backend_cpu, NULL, 1, 16, 2, 64};
    struct geometry g = tiny_geometry(&llama, inv_freq, kind);
    struct backend_limits limits = tiny_limits(&setup, &llama);
    struct backend_config config = {.n_threads = 1};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(head_dims) * ARRAY_LEN(types) * 2; i++) {
        const struct backend_ops *ops = backends[i % 2];
        struct error checked = {0}, loaded = {0};
        struct backend_device *dev;
        struct backend_model *m = NULL;
        enum status st;

        g.head_dim = head_dims[i / 2 % ARRAY_LEN(head_dims)];
        g.weight_dtype = g.kv_dtype = types[i / 2 / ARRAY_LEN(head_dims)];
        assert_int_equal(ops->open(&dev, &config, NULL), ST_OK);
        st = ops->load_begin(dev, &m, &g, &limits, &loaded);
        assert_int_equal(ops->check(&config, &g, &limits, &checked), st);
        assert_string_equal(checked.message, loaded.message);
        assert_int_equal(st == ST_OK, g.head_dim % 2 == 0 && g.head_dim <= 512 &&
                                          types[i / 2 / ARRAY_LEN(head_dims)] <= DTYPE_BF16);
        if (st == ST_OK) ops->unload(m);
        ops->close(dev);
    }
}

static void every_refused_allocation_is_survived(void **state) {
    float inv_freq[64];
    uint8_t kind[8];
    struct tiny_setup setup = {&backend_cpu, NULL, 2, 16, 2, 64};
    struct geometry g = tiny_geometry(&llama, inv_freq, kind);
    struct backend_limits limits = tiny_limits(&setup, &llama);
    struct backend_config config = {.n_threads = 2};
    struct backend_kv_info kv;
    enum status st = ST_NOMEM;
    uint32_t n_failed = 0;

    (void)state;
    for (uint64_t n = 1; st != ST_OK; n++) {
        struct backend_device *dev = NULL;
        struct backend_model *m = NULL;

        mem_fail_at(n);
        st = backend_cpu.open(&dev, &config, NULL);
        if (st == ST_OK) st = backend_cpu.load_begin(dev, &m, &g, &limits, NULL);
        if (st == ST_OK) st = backend_cpu.kv_alloc(m, 4, 4, &kv, NULL);
        mem_fail_at(0);
        assert_true(st == ST_OK || st == ST_NOMEM);
        n_failed += st != ST_OK;
        backend_cpu.unload(m);
        backend_cpu.close(dev);
    }
    assert_in_range(n_failed, 20, 200);
}

/* A matrix gets its memory when it arrives. */
static void refused_memory_for_quantised_weights_is_survived(void **state) {
    float inv_freq[64];
    uint8_t kind[8];
    struct tiny_setup setup = {&backend_cpu, NULL, 2, 16, 2, 64};
    struct tiny_shape shape = quantised(11 + QUANT_KINDS); /* zeros, order, matrices apart */
    struct geometry g = tiny_geometry(&shape, inv_freq, kind);
    struct backend_limits limits = tiny_limits(&setup, &shape);
    struct backend_config config = {.n_threads = 2};
    enum status st = ST_NOMEM;
    uint32_t n_failed = 0;

    (void)state;
    for (uint64_t n = 1; st != ST_OK; n++) {
        struct backend_device *dev = NULL;
        struct backend_model *m = NULL;

        assert_int_equal(backend_cpu.open(&dev, &config, NULL), ST_OK);
        mem_fail_at(n);
        st = backend_cpu.load_begin(dev, &m, &g, &limits, NULL);
        if (st == ST_OK) st = tiny_load(&backend_cpu, m, &shape, 5, ROLE_COUNT, NULL);
        if (st == ST_OK) st = backend_cpu.load_end(m, NULL);
        mem_fail_at(0);
        assert_true(st == ST_OK || st == ST_NOMEM);
        n_failed += st != ST_OK;
        backend_cpu.unload(m);
        backend_cpu.close(dev);
    }
    assert_in_range(n_failed, 40, 400);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_answer_however_it_is_computed),
        cmocka_unit_test(every_path_agrees_with_the_reference),
        cmocka_unit_test(quantised_weights_give_one_answer),
        cmocka_unit_test(quantised_models_agree_with_the_reference),
        cmocka_unit_test(checkpoints_of_every_type_are_computed_as_they_are),
        cmocka_unit_test(a_pool_of_f16_is_near),
        cmocka_unit_test(a_quantised_pool_is_the_same_however_it_was_filled),
        cmocka_unit_test(the_path_that_computes_is_named),
        cmocka_unit_test(a_path_that_is_not_there_is_refused_with_those_that_are),
        cmocka_unit_test(an_unloadable_model_is_refused),
        cmocka_unit_test(a_check_reports_what_loading_would),
        cmocka_unit_test(every_refused_allocation_is_survived),
        cmocka_unit_test(refused_memory_for_quantised_weights_is_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

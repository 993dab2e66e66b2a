/* tests/unit/kernels/test_cpu_tiles.c - one row of a tile is that row alone, to the bit.
 *
 * What "same answer, always" rests on, held operation by operation and on every path of this
 * machine, for every type of weights and of the pool: a row of a matrix product in tiles of every
 * height and over several blocks of K, a query in a tile of queries, a window that leaves groups of
 * positions and whole blocks behind. Products are also compared with sums in float64. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/cpu/pack.h"
#include "kernels/dtype.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static const struct cpu_path *path_at(size_t i) {
    static const char *const names[] = {"avx512bf16", "avx512", "avx2", "plain", "neon"};
    const struct cpu_path *path = NULL;

    if (i < ARRAY_LEN(names) && cpu_path_find(&path, names[i], NULL) != ST_OK) path = NULL;
    return path;
}
#define N_PATHS 5u
#if defined(__x86_64__)
#define IS_EMULATED 0u
#else
#define IS_EMULATED 1u /* it may be: the longest products would take minutes */
#endif

static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};

static float *random_floats(struct rng *r, size_t n, float scale, float mean) {
    float *x = mem_calloc(n, sizeof(*x));

    for (size_t i = 0; i < n; i++)
        x[i] = mean + scale * (float)(rng_f64(r) + rng_f64(r) - 1);
    return x;
}

/* --- products -------------------------------------------------------------------------------- */

struct product {
    const struct cpu_path *path;
    struct cpu_matrix w;
    float *x;   /* (rows, width) as the path sees it */
    void *acts; /* the same */
    size_t width;
    float *alone, *tiled; /* (rows, n_panels * 64) */
};

static void check_float64(const struct product *p, uint32_t row) {
    for (uint32_t n = 0; n < p->w.n; n += 7) {
        float weights[5000];
        double sum = 0, size = 0;

        cpu_unpack_row(weights, &p->w, n);
        for (uint32_t k = 0; k < p->w.k; k++) {
            sum += (double)p->x[row * p->width + k] * weights[k];
            size += fabs((double)p->x[row * p->width + k] * weights[k]);
        }
        /* A chain of k fp32 additions: on random data far below k * 2^-24. */
        if (fabs(p->alone[(size_t)row * p->w.n_panels * PANEL + n] - sum) > 2e-6 * size + 1e-30)
            fail_msg("%s: k %u, row %u, output %u: %g, in float64 %g", p->path->name, p->w.k, row,
                     n, (double)p->alone[(size_t)row * p->w.n_panels * PANEL + n], sum);
    }
}

/* Inputs [first, first + k) of W as a matrix of its own. */
static struct cpu_matrix part_of(enum dtype dtype, const float *weights, uint32_t n,
                                 uint32_t whole_k, uint32_t first, uint32_t k) {
    struct cpu_matrix m = cpu_matrix_shape(dtype, n, k);
    float *part = mem_calloc((size_t)n * k, sizeof(*part));
    struct backend_tensor t = {
        .dtype = DTYPE_F32, .n_dims = 2, .shape = {n, k}, .data = part, .n_bytes = 4ull * n * k};

    for (uint32_t i = 0; i < n; i++)
        memcpy(part + (size_t)i * k, weights + (size_t)i * whole_k + first, k * sizeof(*part));
    m.w = mem_calloc(cpu_matrix_bytes(&m), 1);
    cpu_pack(&m, &t, 0, 1);
    mem_free(part);
    return m;
}

/* K in two calls, the second going on from the sums of the first, is K in one. */
static void check_continued(const struct product *p, const float *weights, uint32_t n_rows,
                            struct rng *r) {
    uint32_t k = p->w.k, first = k < 4 ? 0 : 2 * (uint32_t)rng_below(r, k / 2);
    struct cpu_matrix a, b = part_of(p->w.dtype, weights, p->w.n, k, first, k - first);
    size_t stride = (size_t)p->w.n_panels * PANEL;

    if (first == 0) {
        mem_free(b.w);
        return;
    }
    a = part_of(p->w.dtype, weights, p->w.n, k, 0, first);
    memset(p->tiled, 0xFF, n_rows * stride * sizeof(float));
    p->path->gemm[a.dtype](a.w, a.n_panels, a.k_pairs, p->acts, p->width, n_rows, p->tiled, stride,
                           false);
    p->path->gemm[b.dtype](b.w, b.n_panels, b.k_pairs, (char *)p->acts + first * p->path->act_bytes,
                           p->width, n_rows, p->tiled, stride, true);
    if (memcmp(p->tiled, p->alone, n_rows * stride * sizeof(float)) != 0)
        fail_msg("%s: (%u, %u): %u rows differ when K is cut at %u", p->path->name, p->w.n, k,
                 n_rows, first);
    mem_free(a.w);
    mem_free(b.w);
}

static void check_product_of(const struct cpu_path *path, enum dtype dtype, struct rng *r,
                             uint32_t n, uint32_t k, const uint32_t *heights, size_t n_heights) {
    uint32_t most = heights[n_heights - 1];
    struct product p = {
        .path = path, .w = cpu_matrix_shape(dtype, n, k), .width = ALIGN_UP(k, PANEL)};
    size_t stride = (size_t)p.w.n_panels * PANEL;
    float *weights = random_floats(r, (size_t)n * k, 1, 0);
    struct backend_tensor t = {
        .dtype = DTYPE_F32, .n_dims = 2, .shape = {n, k}, .data = weights, .n_bytes = 4ull * n * k};

    p.w.w = mem_calloc(cpu_matrix_bytes(&p.w), 1);
    cpu_pack(&p.w, &t, 0, 1);
    p.x = random_floats(r, most * p.width, 1, 0.1f);
    for (uint32_t i = 0; i < most; i++)
        memset(p.x + i * p.width + k, 0, (p.width - k) * sizeof(float));
    p.acts = mem_calloc(most * p.width, path->act_bytes);
    path->to_act(p.acts, p.x, (uint32_t)(most * p.width));
    path->from_act(p.x, p.acts, (uint32_t)(most * p.width));
    p.alone = mem_calloc(most * stride, sizeof(float));
    p.tiled = mem_calloc(most * stride, sizeof(float));
    for (uint32_t i = 0; i < most; i++)
        path->gemm[dtype](p.w.w, p.w.n_panels, p.w.k_pairs,
                          (char *)p.acts + i * p.width * path->act_bytes, p.width, 1,
                          p.alone + i * stride, stride, false);
    for (size_t h = 0; h < n_heights; h++) {
        memset(p.tiled, 0xFF, most * stride * sizeof(float));
        path->gemm[dtype](p.w.w, p.w.n_panels, p.w.k_pairs, p.acts, p.width, heights[h], p.tiled,
                          stride, false);
        for (uint32_t i = 0; i < heights[h]; i++) {
            if (memcmp(p.tiled + i * stride, p.alone + i * stride, stride * sizeof(float)) != 0)
                fail_msg("%s, %s: (%u, %u): row %u of %u differs from the row alone", path->name,
                         dtype_name(dtype), n, k, i, heights[h]);
        }
        if (h % 3 == 0 || h + 1 == n_heights) check_continued(&p, weights, heights[h], r);
    }
    check_float64(&p, 0);
    check_float64(&p, most - 1);
    void *all[] = {weights, p.w.w, p.x, p.acts, p.alone, p.tiled};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        mem_free(all[i]);
}

static void check_product(const struct cpu_path *path, struct rng *r, uint32_t n, uint32_t k,
                          const uint32_t *heights, size_t n_heights) {
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        if (path->gemm[types[t]]) check_product_of(path, types[t], r, n, k, heights, n_heights);
    }
}

static void a_row_of_a_product_is_the_same_in_every_tile(void **state) {
    static const uint32_t few[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                   16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 31, 32, 33},
                          many[] = {40, 47, 48, 49, 64, 95, 100, 129, 240};
    struct rng r;

    (void)state;
    rng_seed(&r, support_seed());
    for (size_t i = 0; i < N_PATHS; i++) {
        const struct cpu_path *path = path_at(i);

        if (!path) continue;
        check_product(path, &r, 64, 2, few, ARRAY_LEN(few));
        check_product(path, &r, 100, 129, few, ARRAY_LEN(few));
        check_product(path, &r, 65, 896, few, ARRAY_LEN(few));
        check_product(path, &r, 64, 700, many, ARRAY_LEN(many) - IS_EMULATED * 6);
        if (IS_EMULATED) continue;
        check_product(path, &r, 130, 2100, few, ARRAY_LEN(few)); /* several blocks of K */
        check_product(path, &r, 70, 4864, many, 3);
    }
}

/* --- attention ------------------------------------------------------------------------------- */

#define CONTEXT    330u
#define BLOCK_SIZE 16u
#define MAX_HEADS  6u

struct scene {
    const struct cpu_path *path;
    enum dtype dtype; /* of the pool */
    uint32_t heads, head_dim, window;
    float *q;   /* (CONTEXT, heads, head_dim) */
    void *pool; /* (n_blocks, K|V, BLOCK_SIZE, head_dim) */
    uint32_t table[CEIL_DIV(CONTEXT, BLOCK_SIZE)], position[CONTEXT];
    void *scratch;
};

/* Queries [first, first + n) in one tile. */
static void attend(const struct scene *s, uint32_t first, uint32_t n, void *out) {
    size_t row = (size_t)s->heads * s->head_dim;
    size_t plane = BLOCK_SIZE * s->head_dim * dtype_bytes(s->dtype);
    struct attend a = {.q = s->q + first * row,
                       .q_stride = row,
                       .out = (char *)out + first * row * s->path->act_bytes,
                       .out_stride = row,
                       .position = s->position + first,
                       .n_queries = n,
                       .heads = s->heads,
                       .head_dim = s->head_dim,
                       .window = s->window,
                       .k = s->pool,
                       .v = (uint8_t *)s->pool + plane,
                       .block_stride = 2 * plane,
                       .block_size = BLOCK_SIZE,
                       .table = s->table,
                       .scratch = s->scratch};

    s->path->attend[s->dtype](&a);
}

/* `sign` -1: all scores are far below zero, where a maximum that began at zero would show. */
static void scene_open(struct scene *s, struct rng *r, float sign) {
    uint32_t n_blocks = ARRAY_LEN(s->table) + 1;
    size_t n = (size_t)n_blocks * 2 * BLOCK_SIZE * s->head_dim;
    float *kv = random_floats(r, n, 0.5f, 0.4f);

    s->q = random_floats(r, (size_t)CONTEXT * s->heads * s->head_dim, 1, 0.7f * sign);
    s->pool = mem_calloc(n, dtype_bytes(s->dtype));
    for (size_t i = 0; i < n; i++) /* block 0, which has no owner, is poison */
        dtype_put(s->dtype, s->pool, i, i < 2ull * BLOCK_SIZE * s->head_dim ? NAN : kv[i]);
    for (uint32_t i = 0; i < ARRAY_LEN(s->table); i++)
        s->table[i] = n_blocks - 1 - i;
    for (uint32_t i = 0; i < CONTEXT; i++)
        s->position[i] = i;
    s->scratch = mem_calloc(attend_scratch_bytes(s->heads, s->head_dim), 1);
    mem_free(kv);
}

static void scene_close(struct scene *s) {
    mem_free(s->q);
    mem_free(s->pool);
    mem_free(s->scratch);
}

static void check_tiles(struct scene *s, struct rng *r) {
    size_t row = (size_t)s->heads * s->head_dim * s->path->act_bytes;
    char *alone = mem_calloc(CONTEXT, row), *tiled = mem_calloc(CONTEXT, row);

    for (uint32_t i = 0; i < CONTEXT; i++)
        attend(s, i, 1, alone);
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t i = 0, n; i < CONTEXT; i += n) {
            n = attend_queries(s->heads);
            if (round) n = 1 + (uint32_t)rng_below(r, n);
            n = MIN(n, CONTEXT - i);
            attend(s, i, n, tiled);
        }
        for (uint32_t i = 0; i < CONTEXT; i++) {
            if (memcmp(alone + i * row, tiled + i * row, row) != 0)
                fail_msg("%s, %s, %u heads of %u, window %u: query %u differs in a tile",
                         s->path->name, dtype_name(s->dtype), s->heads, s->head_dim, s->window, i);
        }
    }
    mem_free(alone);
    mem_free(tiled);
}

static void a_query_is_the_same_in_every_tile(void **state) {
    static const uint32_t heads[] = {1, 2, 6}, windows[] = {0, 1, 40, 64, 100};
    static const uint32_t head_dims[] = {64, 64, 64, 18, 2};
    const size_t n = N_PATHS * ARRAY_LEN(types) * ARRAY_LEN(heads) * ARRAY_LEN(windows);
    struct rng r;

    (void)state;
    rng_seed(&r, support_seed());
    for (size_t i = 0; i < n; i++) {
        struct scene s = {.path = path_at(i % N_PATHS),
                          .dtype = types[i / N_PATHS % 3],
                          .head_dim = head_dims[i / N_PATHS % 5]};

        if (!s.path) continue;
        s.heads = heads[i / N_PATHS / 3 % 3];
        s.window = windows[i / N_PATHS / 9];
        scene_open(&s, &r, i % 3 == 0 ? 1 : -1);
        check_tiles(&s, &r);
        scene_close(&s);
    }
}

/* The engine gives blocks below the window back and leaves null ids in the table. */
static void blocks_below_the_window_are_never_read(void **state) {
    static const uint32_t windows[] = {1, 17, 64, 90};
    struct rng r;

    (void)state;
    rng_seed(&r, support_seed());
    for (size_t i = 0; i < N_PATHS * ARRAY_LEN(windows) * ARRAY_LEN(types); i++) {
        struct scene s = {.path = path_at(i % N_PATHS),
                          .dtype = types[i / N_PATHS % 3],
                          .heads = 2,
                          .head_dim = i % 2 ? 64 : 50};
        uint32_t first = 297, n = CONTEXT - first;
        size_t row = 2 * s.head_dim;
        char *whole, *cut;

        if (!s.path) continue;
        s.window = windows[i / N_PATHS / 3];
        scene_open(&s, &r, -1);
        whole = mem_calloc(CONTEXT * row, s.path->act_bytes);
        cut = mem_calloc(CONTEXT * row, s.path->act_bytes);
        attend(&s, first, n, whole);
        for (uint32_t b = 0; (b + 1) * BLOCK_SIZE <= first + 1 - s.window; b++)
            s.table[b] = 0;
        attend(&s, first, n, cut);
        assert_memory_equal(whole, cut, CONTEXT * row * s.path->act_bytes);
        mem_free(whole);
        mem_free(cut);
        scene_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_of_a_product_is_the_same_in_every_tile),
        cmocka_unit_test(a_query_is_the_same_in_every_tile),
        cmocka_unit_test(blocks_below_the_window_are_never_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

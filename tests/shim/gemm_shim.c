/* tests/shim/gemm_shim.c - kernels/cuda/device/gemm.h in plain loops, on the pretended device.
 *
 * shim_refuse_product: the library refuses one, as often as it is asked; what follows is as in
 * kernels/cuda/device/gemm.c. shim_set_library(false): there is no library, and the own kernels run
 * as they would on a device.
 *
 * Products of e4m3 codes sum in fp32, those of blocks block by block; scales are as the library's
 * guide has them: of blocks of X column by column, of blocks of W row by row.
 *
 * Each element is one chain of fp32 sums in the order of k, so that it depends on its row and
 * column alone. What the library would refuse or be slow at ends the process with a sentence: a
 * shape that was not tuned, more rows than it was tuned for, buffers that are not aligned to 16
 * bytes, n or k that are no multiples of 8. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/cuda/device/gemm.h"
#include "kernels/dtype.h"
#include "tests/shim/device.h"
#include "tests/shim/shim_control.h"

enum { MAX_SHAPES = 64, COLUMNS = 4 };

struct tuned {
    struct gemm_shape shape;
    uint32_t max_m;
    bool is_own; /* refused, at load or in service */
};
struct gemm {
    struct gpu *gpu;
    const struct gemm_own *own;
    bool has_library, is_deterministic, has_left_codes;
    struct tuned tuned[MAX_SHAPES];
    uint32_t n_tuned;
};

static volatile bool has_no_library_, refuses_codes_, refuses_row_scales_;

void shim_set_library(bool is_there) {
    has_no_library_ = !is_there;
}
void shim_refuse_codes(bool are_refused) {
    refuses_codes_ = are_refused;
}
void shim_refuse_row_scales(bool are_refused) {
    refuses_row_scales_ = are_refused;
}
static uint64_t refuse_product_; /* how many more until one is refused; 0: none will */

void shim_refuse_product(uint64_t nth) {
    refuse_product_ = nth;
}

enum status gemm_open(struct gemm **out, struct gpu *gpu, const struct gemm_own *own,
                      bool is_deterministic, struct error *err) {
    if (has_no_library_ && !own) return error_set(err, ST_UNSUPPORTED, "no library of products");
    *out = mem_zalloc(sizeof(**out));
    (*out)->gpu = gpu;
    (*out)->own = own;
    (*out)->is_deterministic = is_deterministic; /* which these loops are in any case */
    if (own) own->prepare();
    (*out)->has_library = !has_no_library_;
    return ST_OK;
}
const char *gemm_note(const struct gemm *g) {
    if (!g->has_library) return "own kernels compute all matrix products: the shim has no library";
    return g->has_left_codes ? "own kernels compute matrix products of e4m3 codes" : NULL;
}
uint32_t gemm_n_own(const struct gemm *g) {
    return g->has_library ? 0 : g->n_tuned;
}
void gemm_close(struct gemm *g) {
    mem_free(g);
}

static struct tuned *find(struct gemm *g, const struct gemm_shape *s) {
    for (uint32_t i = 0; i < g->n_tuned; i++) {
        const struct gemm_shape *t = &g->tuned[i].shape;

        if (t->n == s->n && t->k == s->k && t->is_f32_out == s->is_f32_out &&
            t->has_bias == s->has_bias && t->accumulates == s->accumulates && t->codes == s->codes)
            return &g->tuned[i];
    }
    return NULL;
}

static void refuse(const struct gemm_args *a, const char *why) {
    fprintf(stderr, "shim: gemm of m %u, n %u, k %u%s%s%s: %s\n", a->m, a->shape.n, a->shape.k,
            a->shape.is_f32_out ? ", fp32" : "", a->shape.has_bias ? ", bias" : "",
            a->shape.accumulates ? ", accumulates" : "", why);
    abort();
}
static uint64_t y_bytes(const struct gemm_args *a) {
    uint64_t size = a->shape.is_f32_out ? 4 : 2;

    return ((uint64_t)(a->m - 1) * a->y_stride + a->shape.n) * size;
}
/* Whatever the scales are, all of them are there. */
static void check_codes(struct gemm *g, const struct gemm_args *a) {
    const struct gemm_shape *s = &a->shape;
    uint64_t n_x = s->codes == GEMM_F8_PLAIN ? 0 : a->m, n_w = s->codes == GEMM_F8_PLAIN ? 1 : s->n;

    if (s->codes == GEMM_F8_BLOCKS)
        n_x *= s->k / 128, n_w = (uint64_t)s->n / 128 * gemm_block_scales(s->k);
    if (((uintptr_t)a->x_codes | (uintptr_t)a->w_codes | (uintptr_t)a->y | (uintptr_t)a->x_scale) %
            16 ||
        (uintptr_t)a->w_scale % 4)
        refuse(a, "a buffer is not aligned to 16 bytes");
    if (s->n % 16 || s->k % 16 || a->x_stride % 16 || a->y_stride % 16 || a->m % GEMM_CODE_ROWS)
        refuse(a, "sizes of codes must be multiples of 16");
    if (a->x_stride < s->k || a->y_stride < s->n) refuse(a, "a stride is less than a row");
    shim_check_range(g->gpu, a->x_codes, (uint64_t)(a->m - 1) * a->x_stride + s->k, "gemm: x");
    shim_check_range(g->gpu, a->w_codes, (uint64_t)s->n * s->k, "gemm: w");
    shim_check_range(g->gpu, a->y, y_bytes(a), "gemm: y");
    shim_check_range(g->gpu, a->w_scale, n_w * sizeof(float), "gemm: scales of w");
    if (n_x) shim_check_range(g->gpu, a->x_scale, n_x * sizeof(float), "gemm: scales of x");
}
static void check(struct gemm *g, const struct gemm_args *a) {
    const struct gemm_shape *s = &a->shape;

    if (s->codes) {
        check_codes(g, a);
        return;
    }
    if (((uintptr_t)a->x | (uintptr_t)a->w | (uintptr_t)a->y) % 16)
        refuse(a, "a buffer is not aligned to 16 bytes");
    if (s->n % 8 || s->k % 8 || a->x_stride % 8 || a->y_stride % 8)
        refuse(a, "n, k and strides must be multiples of 8");
    if (a->x_stride < s->k || a->y_stride < s->n) refuse(a, "a stride is less than a row");
    shim_check_range(g->gpu, a->x, ((uint64_t)(a->m - 1) * a->x_stride + s->k) * 2, "gemm: x");
    shim_check_range(g->gpu, a->w, (uint64_t)s->n * s->k * 2, "gemm: w");
    shim_check_range(g->gpu, a->y, y_bytes(a), "gemm: y");
    if (s->has_bias) shim_check_range(g->gpu, a->bias, (uint64_t)s->n * 2, "gemm: bias");
}

enum status gemm_tune(struct gemm *g, struct gpu_stream *s, const struct gemm_args *args,
                      uint32_t max_m, struct error *err) {
    struct gemm_args rows = *args;
    struct tuned *t = find(g, &args->shape);

    rows.m = max_m;
    check(g, &rows);
    if (!t && g->n_tuned == MAX_SHAPES)
        return error_set(err, ST_INTERNAL, "more than %u shapes of matrix products", MAX_SHAPES);
    if (!t) {
        t = &g->tuned[g->n_tuned++];
        *t = (struct tuned){args->shape, 0,
                            refuses_row_scales_ && args->shape.codes == GEMM_F8_ROWS};
    }
    t->max_m = MAX(t->max_m, max_m);
    gpu_fill(s, args->y, 0xFF, y_bytes(&rows)); /* as tuning leaves it: not to be relied on */
    return ST_OK;
}

/* --- the product */
static void finish(const struct gemm_args *a, uint32_t row, uint32_t col, float sum) {
    float *f32 = (float *)a->y + (size_t)row * a->y_stride + col;
    uint16_t *bf16 = (uint16_t *)a->y + (size_t)row * a->y_stride + col;

    if (a->shape.has_bias) sum += f32_of_bf16(a->bias[col]);
    if (a->shape.accumulates) sum += a->shape.is_f32_out ? *f32 : f32_of_bf16(*bf16);
    if (a->shape.is_f32_out)
        *f32 = sum;
    else
        *bf16 = bf16_of_f32(sum);
}
/* COLUMNS elements of a row: chains that do not wait for one another. x (k) */
static void columns(const struct gemm_args *a, const float *x, uint32_t row, uint32_t col) {
    float sum[COLUMNS] = {0};
    uint32_t k = a->shape.k;

    for (uint32_t i = 0; i < k; i++)
        for (uint32_t c = 0; c < COLUMNS; c++)
            sum[c] += x[i] * f32_of_bf16(a->w[(size_t)(col + c) * k + i]);
    for (uint32_t c = 0; c < COLUMNS; c++)
        finish(a, row, col + c, sum[c]);
}
static bool run_gemm(struct gpu *gpu, void *p) {
    const struct gemm_args *a = p;
    uint32_t k = a->shape.k;
    float *x = mem_alloc(k * sizeof(*x)); /* (k) */

    for (uint32_t row = 0; row < a->m && !shim_has_failed(gpu); row++) {
        for (uint32_t i = 0; i < k; i++)
            x[i] = f32_of_bf16(a->x[(size_t)row * a->x_stride + i]);
        for (uint32_t col = 0; col < a->shape.n; col += COLUMNS)
            columns(a, x, row, col);
    }
    mem_free(x);
    return true;
}
static bool run_refusal(struct gpu *gpu, void *p) {
    (void)p;
    shim_fail(gpu, "the library refused a product, as asked for");
    return true;
}
void gemm_run(struct gemm *g, struct gpu_stream *s, const struct gemm_args *args) {
    struct tuned *t = find(g, &args->shape);

    if (!args->m) return;
    if (!t) refuse(args, "the shape was not tuned");
    if (args->m > t->max_m) refuse(args, "more rows than were tuned for");
    check(g, args);
    if (refuse_product_ && !--refuse_product_) {
        if (g->is_deterministic) {
            shim_put(s, "refusal", run_refusal, args, sizeof(*args));
            return;
        }
        t->is_own = true;
    }
    if (g->has_library && !t->is_own)
        shim_put(s, "gemm", run_gemm, args, sizeof(*args));
    else
        g->own->run(s, args);
}

/* --- codes */
bool gemm_takes_codes(const struct gemm *g, const struct gemm_shape *shape) {
    uint32_t sm = gpu_properties(g->gpu)->sm, whole = shape->codes == GEMM_F8_BLOCKS ? 128 : 16;

    if (!g->has_library || g->is_deterministic || shape->n % whole || shape->k % whole)
        return false;
    return shape->codes == GEMM_F8_PLAIN ? sm >= 89 : sm == 90;
}
void gemm_leave_codes(struct gemm *g, const struct gemm_shape *shape) {
    (void)shape;
    g->has_left_codes = !g->is_deterministic;
}
/* What element i of row `row` is multiplied by; for w the row is an output. */
static float x_scale_of(const struct gemm_args *a, uint32_t row, uint32_t i) {
    if (a->shape.codes == GEMM_F8_PLAIN) return 1;
    return a->x_scale[a->shape.codes == GEMM_F8_ROWS ? row : i / 128 * a->m + row];
}
static float w_scale_of(const struct gemm_args *a, uint32_t row, uint32_t i) {
    if (a->shape.codes == GEMM_F8_PLAIN) return a->w_scale[0];
    if (a->shape.codes == GEMM_F8_ROWS) return a->w_scale[row];
    return a->w_scale[row / 128 * gemm_block_scales(a->shape.k) + i / 128];
}
static float codes_element(const struct gemm_args *a, const float *of_code, uint32_t row,
                           uint32_t col) {
    const uint8_t *x = a->x_codes + (size_t)row * a->x_stride;
    const uint8_t *w = a->w_codes + (size_t)col * a->shape.k;
    uint32_t step = a->shape.codes == GEMM_F8_BLOCKS ? 128 : a->shape.k;
    float total = 0;

    for (uint32_t at = 0; at < a->shape.k; at += step) {
        float sum = 0;

        for (uint32_t i = at; i < at + step; i++)
            sum += of_code[x[i]] * of_code[w[i]];
        total += sum * x_scale_of(a, row, at) * w_scale_of(a, col, at);
    }
    return total;
}
static bool run_codes(struct gpu *gpu, void *p) {
    const struct gemm_args *a = p;
    float of_code[256];

    for (uint32_t i = 0; i < 256; i++)
        of_code[i] = f32_of_e4m3((uint8_t)i);
    for (uint32_t row = 0; row < a->m && !shim_has_failed(gpu); row++)
        for (uint32_t col = 0; col < a->shape.n; col++)
            finish(a, row, col, codes_element(a, of_code, row, col));
    return true;
}
bool gemm_has_plan(const struct gemm *g, const struct gemm_shape *shape) {
    const struct tuned *t = find((struct gemm *)(uintptr_t)g, shape);

    return t && !t->is_own;
}
bool gemm_try(struct gemm *g, struct gpu_stream *s, const struct gemm_args *args) {
    struct tuned *t = find(g, &args->shape);

    if (!t) refuse(args, "the shape was not tuned");
    if (args->m > t->max_m) refuse(args, "more rows than were tuned for");
    check(g, args);
    t->is_own |= refuses_codes_;
    if (t->is_own) return false;
    shim_put(s, "gemm", run_codes, args, sizeof(*args));
    return true;
}

/* --- grouped */
static bool run_grouped(struct gpu *gpu, void *p) {
    const struct gemm_grouped_args *a = p;
    uint64_t size = a->is_f32_out ? 4 : 2;

    for (uint32_t g = 0; g < a->n_groups; g++) {
        uint32_t first = a->first_row[g];
        struct gemm_args one = {.shape = {.n = a->n, .k = a->k, .is_f32_out = a->is_f32_out},
                                .m = a->first_row[g + 1] - first,
                                .x = a->x + (uint64_t)first * a->x_stride,
                                .x_stride = a->x_stride,
                                .w = a->w + (uint64_t)g * a->n * a->k,
                                .y = (uint8_t *)a->y + (uint64_t)first * a->y_stride * size,
                                .y_stride = a->y_stride};

        (void)run_gemm(gpu, &one);
    }
    return true;
}
void gemm_run_grouped(struct gemm *g, struct gpu_stream *s, const struct gemm_grouped_args *args) {
    if (!args->m) return;
    if (g->has_library)
        shim_put(s, "grouped gemm", run_grouped, args, sizeof(*args));
    else
        g->own->run_grouped(s, args);
}

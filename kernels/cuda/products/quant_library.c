/* kernels/cuda/products/quant_library.c - when and how cuBLASLt multiplies e4m3 codes; see
 * quant_library.h. */
#include "kernels/cuda/products/quant_library.h"

#include <assert.h>

#define PANEL_BYTES (UINT64_C(32) << 20) /* of codes, at most: what an H100's cache keeps of them */
#define PANEL_ROWS  128u                 /* a panel's outputs are a multiple, as tiles are */
#define TIMED_RUNS  2u                   /* the best counts */

/* --- which matrices --------------------------------------------------------------------------- */

/* Files with one scale for a matrix are read as one for each output. */
static bool is_one_scale(const struct backend_quant *q, uint32_t n) {
    for (uint32_t i = 1; i < CEIL_DIV(n, q->group_n); i++)
        if (q->scale[i] != q->scale[0]) return false;
    return true;
}

enum quant_grain quant_grain_of(const struct backend_quant *q, enum dtype t, uint32_t n,
                                uint32_t k) {
    bool has_blocks = q->inputs == QUANT_INPUTS_F8_GROUPS;

    if (t != DTYPE_F8E4M3 || q->order || q->zero) return QUANT_GRAIN_OTHER;
    if (has_blocks && q->group_n == 128 && q->group_k == 128) return QUANT_GRAIN_BLOCK;
    if ((q->inputs != QUANT_INPUTS_F8 && q->inputs != QUANT_INPUTS_F8_STATIC) || q->group_k < k)
        return QUANT_GRAIN_OTHER;
    return is_one_scale(q, n) ? QUANT_GRAIN_MATRIX : QUANT_GRAIN_ROW;
}

enum quant_grain quant_grain_join(enum quant_grain of, enum quant_grain other, uint32_t first) {
    if (of == QUANT_GRAIN_OTHER || other == QUANT_GRAIN_OTHER) return QUANT_GRAIN_OTHER;
    if (of == QUANT_GRAIN_BLOCK && first % 128) return QUANT_GRAIN_OTHER;
    if (of == other) return of;
    return of == QUANT_GRAIN_BLOCK || other == QUANT_GRAIN_BLOCK ? QUANT_GRAIN_OTHER
                                                                 : QUANT_GRAIN_ROW;
}

/* --- panels ----------------------------------------------------------------------------------- */

/* What the library is handed; a range of outputs is one matrix of PLAIN scales, else all. */
struct plan {
    enum gemm_codes codes;
    uint32_t n_ranges;
    uint32_t range_end[3];
};

/* Panels of equal size, except the last. */
static uint32_t panel_rows(uint32_t n, uint32_t k) {
    uint32_t most = (uint32_t)MAX(PANEL_BYTES / k / PANEL_ROWS, 1u) * PANEL_ROWS;

    return ALIGN_UP(CEIL_DIV(n, CEIL_DIV(n, most)), PANEL_ROWS);
}

/* The panel that begins at `first` within a range of outputs. */
static struct quant_panel next_panel(uint32_t first, uint32_t begin, uint32_t end, uint32_t k) {
    return (struct quant_panel){.first = first, .n = MIN(panel_rows(end - begin, k), end - first)};
}

/* Before tuning gemm_takes_codes, after it gemm_has_plan. */
typedef bool (*takes_shape)(const struct gemm *g, const struct gemm_shape *shape);

static bool takes_range(const struct gemm *g, takes_shape takes, const struct plan *p,
                        uint32_t begin, uint32_t end, uint32_t k) {
    for (uint32_t at = begin, n; at < end; at += n) {
        n = next_panel(at, begin, end, k).n;
        if (!takes(g, &(struct gemm_shape){.n = n, .k = k, .codes = p->codes})) return false;
    }
    return begin % QUANT_ROWS == 0;
}

static bool takes_all(const struct gemm *g, takes_shape takes, const struct plan *p, uint32_t k) {
    for (uint32_t i = 0, begin = 0; i < p->n_ranges; begin = p->range_end[i++])
        if (!takes_range(g, takes, p, begin, p->range_end[i], k)) return false;
    return true;
}

static struct plan whole(const struct packed_matrix *w) {
    return (struct plan){.codes = w->grain == QUANT_GRAIN_BLOCK ? GEMM_F8_BLOCKS : GEMM_F8_ROWS,
                         .n_ranges = 1,
                         .range_end = {w->n}};
}

static struct plan by_matrix(const struct packed_matrix *w) {
    struct plan p = {.codes = GEMM_F8_PLAIN};

    while (p.n_ranges < ARRAY_LEN(w->part_end) && w->part_end[p.n_ranges])
        p.range_end[p.n_ranges] = w->part_end[p.n_ranges], p.n_ranges++;
    return p;
}

/* Scales of rows where the library has them, since those of tokens need no kernel then. */
static bool make_plan(const struct gemm *g, takes_shape takes, const struct packed_matrix *w,
                      struct plan *out) {
    if (!w->codes || w->grain == QUANT_GRAIN_OTHER) return false;
    *out = whole(w);
    if (takes_all(g, takes, out, w->k)) return true;
    if (w->grain != QUANT_GRAIN_MATRIX) return false;
    *out = by_matrix(w);
    return takes_all(g, takes, out, w->k);
}

/* --- scratch ---------------------------------------------------------------------------------- */

struct places {
    uint64_t x_scale, w_codes, w_scale, n_bytes;
};

static struct places places_of(const struct packed_matrix *w, uint32_t rows) {
    uint64_t groups = w->grain == QUANT_GRAIN_BLOCK ? w->k / 128 : 1, outputs = 0;
    uint64_t block_scales = gemm_block_scales(w->k);
    struct places p;

    for (uint32_t i = 0; i < 3 && w->part_end[i]; i++) /* of all ways to cut it */
        outputs = MAX(outputs, panel_rows(w->part_end[i] - (i ? w->part_end[i - 1] : 0), w->k));
    outputs = MAX(outputs, panel_rows(w->n, w->k));
    p.x_scale = ALIGN_UP((uint64_t)rows * w->k, 256);
    p.w_codes = ALIGN_UP(p.x_scale + rows * groups * sizeof(float), 256);
    p.w_scale = ALIGN_UP(p.w_codes + outputs * w->k, 256);
    p.n_bytes = p.w_scale + MAX(outputs, CEIL_DIV(outputs, 128u) * block_scales) * sizeof(float);
    return p;
}

static uint32_t padded(uint32_t rows) {
    return ALIGN_UP(rows, GEMM_CODE_ROWS);
}

uint64_t quant_library_bytes(struct gemm *gemm, const struct packed_matrix *w, uint32_t max_rows) {
    struct plan p;

    if (make_plan(gemm, gemm_takes_codes, w, &p)) return places_of(w, padded(max_rows)).n_bytes;
    if (w->codes && w->grain != QUANT_GRAIN_OTHER)
        gemm_leave_codes(gemm, &(struct gemm_shape){.n = w->n, .k = w->k, .codes = p.codes});
    return 0;
}

/* --- products --------------------------------------------------------------------------------- */

/* A panel's product. */
static struct gemm_args product_of(const struct quant_library *l, const struct quant_args *a,
                                   const struct plan *plan, const struct quant_panel *panel,
                                   const struct places *at) {
    uint8_t *scratch = l->scratch;

    return (struct gemm_args){.shape = {.n = panel->n, .k = a->a.k, .codes = plan->codes},
                              .m = padded(a->a.m),
                              .x_codes = scratch,
                              .x_scale = plan->codes == GEMM_F8_PLAIN
                                             ? NULL
                                             : (const float *)(const void *)(scratch + at->x_scale),
                              .x_stride = a->a.k,
                              .w_codes = panel->codes,
                              .w_scale = panel->scale,
                              .y = (uint16_t *)a->a.y + panel->first,
                              .y_stride = a->a.y_stride};
}

static void place_panel(const struct quant_library *l, const struct places *at,
                        struct quant_panel *p) {
    p->codes = (uint8_t *)l->scratch + at->w_codes;
    p->scale = (float *)(void *)((uint8_t *)l->scratch + at->w_scale);
}

static bool run_panel(const struct quant_library *l, const struct quant_args *a,
                      const struct plan *plan, const struct places *at, struct quant_panel *panel) {
    struct gemm_args e;

    place_panel(l, at, panel);
    e = product_of(l, a, plan, panel, at);
    quant_unpack_panel(l->stream, &a->w, panel);
    if (!gemm_try(l->gemm, l->stream, &e)) return false;
    if (plan->codes == GEMM_F8_PLAIN)
        quant_scale_rows(l->stream, e.y, e.y_stride, a->a.m, panel->n,
                         (const float *)(const void *)((uint8_t *)l->scratch + at->x_scale));
    return true;
}

bool quant_library_run(const struct quant_library *l, const struct quant_args *a) {
    struct places at = places_of(&a->w, padded(a->a.m));
    struct quant_panel panel;
    struct plan plan;

    assert(!a->a.bias && !a->a.norm_weight && !a->a.accumulates && !a->a.is_f32_out);
    if (!make_plan(l->gemm, gemm_has_plan, &a->w, &plan)) return false;
    quant_round_f8(l->stream, a, padded(a->a.m), l->scratch,
                   (float *)(void *)((uint8_t *)l->scratch + at.x_scale));
    for (uint32_t i = 0, begin = 0; i < plan.n_ranges; begin = plan.range_end[i++]) {
        for (uint32_t n = begin; n < plan.range_end[i]; n += panel.n) {
            panel = next_panel(n, begin, plan.range_end[i], a->w.k);
            if (!run_panel(l, a, &plan, &at, &panel)) return false;
        }
    }
    return true;
}

/* --- the choice ------------------------------------------------------------------------------- */

/* Plans of the library for every panel; a->a.m is the most rows. */
static enum status tune_panels(const struct quant_library *l, const struct quant_args *a,
                               const struct plan *plan, struct error *err) {
    struct places at = places_of(&a->w, padded(a->a.m));
    struct quant_panel panel;
    enum status st = ST_OK;

    for (uint32_t i = 0, begin = 0; i < plan->n_ranges; begin = plan->range_end[i++]) {
        for (uint32_t n = begin; n < plan->range_end[i] && st == ST_OK; n += panel.n) {
            struct gemm_args e;

            panel = next_panel(n, begin, plan->range_end[i], a->w.k);
            place_panel(l, &at, &panel);
            e = product_of(l, a, plan, &panel, &at);
            st = gemm_tune(l->gemm, l->stream, &e, e.m, err);
        }
    }
    return st;
}

/* When the library refuses scales of rows while it is tuned, one scale may still do. */
static enum status make_plans(const struct quant_library *l, const struct quant_args *a,
                              uint32_t max_rows, struct error *err) {
    struct quant_args most = *a;
    struct plan plan;
    enum status st;

    most.a.m = max_rows;
    if (!make_plan(l->gemm, gemm_takes_codes, &a->w, &plan)) return ST_OK;
    st = tune_panels(l, &most, &plan, err);
    if (st != ST_OK || a->w.grain != QUANT_GRAIN_MATRIX ||
        make_plan(l->gemm, gemm_has_plan, &a->w, &plan))
        return st;
    plan = by_matrix(&a->w);
    if (!takes_all(l->gemm, gemm_takes_codes, &plan, a->w.k)) return ST_OK;
    return tune_panels(l, &most, &plan, err);
}

struct stopwatch {
    struct gpu_event *start, *stop;
};

/* The best of some runs; negative: the library refuses. */
static double time_way(const struct quant_library *l, const struct quant_args *a,
                       const struct stopwatch *watch, bool is_library) {
    double best_us = -1;

    for (uint32_t i = 0; i <= TIMED_RUNS; i++) { /* the first loads kernels */
        double us;

        gpu_event_record(watch->start, l->stream);
        if (!is_library)
            quant_run(l->stream, a);
        else if (!quant_library_run(l, a))
            return -1;
        gpu_event_record(watch->stop, l->stream);
        if (gpu_event_wait(watch->stop, UINT64_MAX) != ST_OK) return -1;
        us = gpu_event_elapsed_us(watch->start, watch->stop);
        if (i == 1 || (i > 1 && us < best_us)) best_us = us;
    }
    return best_us;
}

/* From many rows to few, until own kernels are faster. */
static uint32_t find_threshold(const struct quant_library *l, const struct quant_args *a,
                               uint32_t max_rows, const struct stopwatch *watch) {
    uint32_t from = 0;
    struct quant_args some = *a;

    for (uint32_t rows = max_rows; rows > GEMV_MAX_ROWS; rows /= 2) {
        double library_us;

        some.a.m = rows;
        library_us = time_way(l, &some, watch, true);
        if (library_us < 0 || library_us >= time_way(l, &some, watch, false)) break;
        from = rows;
    }
    return from;
}

enum status quant_library_tune(const struct quant_library *l, const struct quant_args *a,
                               uint32_t max_rows, uint32_t *from_rows, struct error *err) {
    struct gpu *gpu = gpu_stream_gpu(l->stream);
    struct stopwatch watch = {NULL, NULL};
    enum status st = make_plans(l, a, max_rows, err);

    *from_rows = 0;
    if (st != ST_OK || !gpu_properties(gpu)->is_timed) return st;
    st = gpu_event_open(gpu, &watch.start, err);
    if (st == ST_OK) st = gpu_event_open(gpu, &watch.stop, err);
    if (st == ST_OK) *from_rows = find_threshold(l, a, max_rows, &watch);
    gpu_event_close(watch.start);
    gpu_event_close(watch.stop);
    return st == ST_OK ? gpu_status(gpu, err) : st;
}

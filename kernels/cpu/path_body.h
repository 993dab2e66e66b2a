/* kernels/cpu/path_body.h - the inner loops of a path; included by path_*.c and by nothing else.
 *
 * Before: LANES, and ACT_BF16 where the dot product takes pairs of bf16. A tile keeps MR rows by NV
 * vectors of outputs in registers while it runs down K. MR and NV are constants at each call, every
 * loop over them is unrolled, so that the accumulators are registers: gcc puts an array on the stack
 * when a single loop that indexes it stays a loop, and that costs two thirds of the speed. */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/path.h"

#if LANES == 16
#define TILE_ROWS  6
#define TILE_VECS  4 /* 24 accumulators, 4 weights, a broadcast: of 32 registers */
#define THIN_VECS  4
#define PAIR_VECS  4
#elif LANES == 8
#define TILE_ROWS  6
#define TILE_VECS  2 /* 12 + 2 + 1 of 16 */
#define THIN_VECS  8
#define PAIR_VECS  4
#else
#define TILE_ROWS  6
#define TILE_VECS  2
#define THIN_VECS  8
#define PAIR_VECS  4
#endif

#define MAX_VECS   8
#define K_BLOCK    512u /* pairs: a panel's block (128 KiB) and the rows' fit the L2 cache */
#define AHEAD      4096 /* bytes prefetched ahead of a thin tile, which runs at memory speed */

#ifdef ACT_BF16
typedef uint16_t act;
#else
typedef float act;
#endif

INLINE void act_store(act *p, vf v) {
#ifdef ACT_BF16
    vf_store_bf16(p, v);
#else
    vf_store(p, v);
#endif
}

/* --- tiles: MR rows x NV vectors, chain along K ---------------------------------------------- */

/* x: (MR, ...) acts; w: pairs of bf16, 128 numbers from one pair of K to the next. */
INLINE void tile_weights(const int MR, const int NV, const uint16_t *w, uint32_t k_pairs, const act *x,
                         size_t x_stride, float *y, size_t y_stride, bool continues, bool prefetches) {
    vf c[TILE_ROWS][MAX_VECS];

    UNROLL for (int i = 0; i < MR; i++) {
        UNROLL for (int j = 0; j < NV; j++)
            c[i][j] = continues ? vf_load(y + i * y_stride + j * LANES) : vf_set1(0);
    }
    for (uint32_t k = 0; k < k_pairs; k++, w += 2 * PANEL) {
        if (prefetches) {
            UNROLL for (int j = 0; j < NV * LANES; j += 16)
                __builtin_prefetch((const char *)w + AHEAD + j * 4);
        }
#ifdef ACT_BF16
        __m512bh b[MAX_VECS];

        UNROLL for (int j = 0; j < NV; j++) b[j] = (__m512bh)_mm512_loadu_si512(w + j * LANES * 2);
        UNROLL for (int i = 0; i < MR; i++) {
            int32_t pair;

            memcpy(&pair, x + i * x_stride + 2 * k, sizeof(pair));
            __m512bh a = (__m512bh)_mm512_set1_epi32(pair);
            UNROLL for (int j = 0; j < NV; j++) c[i][j] = _mm512_dpbf16_ps(c[i][j], b[j], a);
        }
#else
        vf b[MAX_VECS];

        UNROLL for (int j = 0; j < NV; j++) b[j] = vf_low(vi_load(w + j * LANES * 2));
        UNROLL for (int i = 0; i < MR; i++) {
            vf a = vf_set1(x[i * x_stride + 2 * k]);

            UNROLL for (int j = 0; j < NV; j++) c[i][j] = vf_fma(a, b[j], c[i][j]);
        }
        UNROLL for (int j = 0; j < NV; j++) b[j] = vf_high(vi_load(w + j * LANES * 2));
        UNROLL for (int i = 0; i < MR; i++) {
            vf a = vf_set1(x[i * x_stride + 2 * k + 1]);

            UNROLL for (int j = 0; j < NV; j++) c[i][j] = vf_fma(a, b[j], c[i][j]);
        }
#endif
    }
    UNROLL for (int i = 0; i < MR; i++) {
        UNROLL for (int j = 0; j < NV; j++) vf_store(y + i * y_stride + j * LANES, c[i][j]);
    }
}

/* The same with f32 on both sides; w: 64 numbers from one k to the next. */
INLINE void tile_floats(const int MR, const int NV, const float *w, uint32_t k, const float *x,
                        size_t x_stride, float *y, size_t y_stride, bool continues) {
    vf c[TILE_ROWS][MAX_VECS];

    UNROLL for (int i = 0; i < MR; i++) {
        UNROLL for (int j = 0; j < NV; j++)
            c[i][j] = continues ? vf_load(y + i * y_stride + j * LANES) : vf_set1(0);
    }
    for (uint32_t at = 0; at < k; at++, w += PANEL) {
        vf b[MAX_VECS];

        UNROLL for (int j = 0; j < NV; j++) b[j] = vf_load(w + j * LANES);
        UNROLL for (int i = 0; i < MR; i++) {
            vf a = vf_set1(x[i * x_stride + at]);

            UNROLL for (int j = 0; j < NV; j++) c[i][j] = vf_fma(a, b[j], c[i][j]);
        }
    }
    UNROLL for (int i = 0; i < MR; i++) {
        UNROLL for (int j = 0; j < NV; j++) vf_store(y + i * y_stride + j * LANES, c[i][j]);
    }
}

/* Up to TILE_ROWS rows of one panel: the tile in the widths that its rows leave registers for. */
#define EACH_WIDTH(NV, call) \
    for (uint32_t n = 0; n < PANEL; n += (NV)*LANES) call

static void rows_weights(uint32_t n_rows, const uint16_t *w, uint32_t k, const act *x, size_t xs,
                         float *y, size_t ys, bool continues) {
#define TILE(MR, NV, ahead) \
    EACH_WIDTH(NV, tile_weights(MR, NV, w + 2 * n, k, x, xs, y + n, ys, continues, ahead)); \
    break
    switch (n_rows) {
    case 1: TILE(1, THIN_VECS, true);
    case 2: TILE(2, PAIR_VECS, true);
    case 3: TILE(3, TILE_VECS, true);
    case 4: TILE(4, TILE_VECS, true);
    case 5: TILE(5, TILE_VECS, false);
    case 6: TILE(6, TILE_VECS, false);
    default: break;
    }
#undef TILE
}

static void rows_floats(uint32_t n_rows, const float *w, uint32_t k, const float *x, size_t xs,
                               float *y, size_t ys, bool continues) {
#define TILE(MR, NV) \
    EACH_WIDTH(NV, tile_floats(MR, NV, w + n, k, x, xs, y + n, ys, continues)); \
    break
    switch (n_rows) {
    case 1: TILE(1, THIN_VECS);
    case 2: TILE(2, PAIR_VECS);
    case 3: TILE(3, TILE_VECS);
    case 4: TILE(4, TILE_VECS);
    case 5: TILE(5, TILE_VECS);
    case 6: TILE(6, TILE_VECS);
    default: break;
    }
#undef TILE
}

/* Rows are dealt evenly over the tiles: 8 rows are 4 + 4, not 6 + 2. */
INLINE uint32_t next_rows(uint32_t left) {
    uint32_t n_tiles = CEIL_DIV(left, TILE_ROWS);

    return CEIL_DIV(left, n_tiles);
}

#ifndef ACT_BF16
#define WIDE_ROWS  25u  /* from here on widening once costs less than widening in every tile */
#define WIDE_BLOCK 256u /* k at a time: 64 KiB of floats, on the stack */

/* Many rows: weights are widened to floats once per block of K, then met by all tiles. The chain of an
 * output is the same. */
static __attribute__((noinline)) void gemm_wide(const uint16_t *w, uint32_t k_pairs, const act *x,
                                                size_t x_stride, uint32_t n_rows, float *y,
                                                size_t y_stride) {
    _Alignas(CACHE_LINE) float wide[WIDE_BLOCK * PANEL];

    for (uint32_t k = 0; k < 2 * k_pairs; k += WIDE_BLOCK) {
        uint32_t n_k = MIN(WIDE_BLOCK, 2 * k_pairs - k);

        for (uint32_t i = 0; i < n_k * PANEL; i += 2 * PANEL, w += 2 * PANEL) {
            for (uint32_t n = 0; n < PANEL; n += LANES) {
                vf_store(wide + i + n, vf_low(vi_load(w + 2 * n)));
                vf_store(wide + i + PANEL + n, vf_high(vi_load(w + 2 * n)));
            }
        }
        for (uint32_t r = 0, n; r < n_rows; r += n) {
            n = next_rows(n_rows - r);
            rows_floats(n, wide, n_k, x + r * x_stride + k, x_stride, y + r * y_stride, y_stride, k > 0);
        }
    }
}
#endif

static void gemm(const uint16_t *w, uint32_t n_panels, uint32_t k_pairs, const void *x, size_t x_stride,
                 uint32_t n_rows, float *y, size_t y_stride) {
    uint32_t block = n_rows <= TILE_ROWS ? k_pairs : K_BLOCK;

    for (uint32_t p = 0; p < n_panels; p++) {
#ifndef ACT_BF16
        if (n_rows >= WIDE_ROWS) {
            gemm_wide(w + (size_t)p * k_pairs * 2 * PANEL, k_pairs, x, x_stride, n_rows, y + p * PANEL,
                      y_stride);
            continue;
        }
#endif
        for (uint32_t k = 0; k < k_pairs; k += block) {
            const uint16_t *wk = w + ((size_t)p * k_pairs + k) * 2 * PANEL;

            for (uint32_t r = 0, n; r < n_rows; r += n) {
                n = next_rows(n_rows - r);
                rows_weights(n, wk, MIN(block, k_pairs - k), (const act *)x + r * x_stride + 2 * k,
                             x_stride, y + r * y_stride + p * PANEL, y_stride, k > 0);
            }
        }
    }
}

/* --- rows of activations --------------------------------------------------------------------- */

static void rmsnorm(void *y, const float *x, const float *w, uint32_t width, uint32_t d, float eps) {
    vf sum[4] = {{0}}, scale;

    for (uint32_t i = 0; i < width; i += 4 * LANES) {
        for (int j = 0; j < 4; j++) {
            vf v = vf_load(x + i + j * LANES);

            sum[j] = vf_fma(v, v, sum[j]);
        }
    }
    scale = vf_set1(1.0f / __builtin_sqrtf(vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) / (float)d + eps));
    for (uint32_t i = 0; i < width; i += LANES)
        act_store((act *)y + i, vf_load(x + i) * scale * vf_load(w + i));
}

static void swiglu(void *y, const float *gate, const float *up, uint32_t n) {
    for (uint32_t i = 0; i < n; i += LANES) {
        vf g = vf_load(gate + i);

        act_store((act *)y + i, g / (vf_set1(1) + vf_exp(-g)) * vf_load(up + i));
    }
}

static void add(float *y, const float *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i += LANES) vf_store(y + i, vf_load(y + i) + vf_load(x + i));
}

static void to_act(void *y, const float *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i += LANES) act_store((act *)y + i, vf_load(x + i));
}

static void from_act(float *y, const void *x, uint32_t n) {
#ifdef ACT_BF16
    for (uint32_t i = 0; i < n; i += LANES) vf_store(y + i, vf_load_bf16((const act *)x + i));
#else
    memcpy(y, x, n * sizeof(float));
#endif
}

/* --- attention, once per element type -------------------------------------------------------- */

#define ATTEND  attend_f32
#define KV_BF16 0
#include "kernels/cpu/attend_body.h"

#define ATTEND  attend_bf16
#define KV_BF16 1
#include "kernels/cpu/attend_body.h"

/* --- the roof -------------------------------------------------------------------------------- */

static double peak(uint32_t n) {
    enum { CHAINS = LANES == 16 ? 24 : 12 };
    vf c[CHAINS], a = vf_set1(1.0f), b = vf_set1(0.5f);
    float sink;

    UNROLL for (int i = 0; i < CHAINS; i++) c[i] = vf_set1((float)i);
    for (uint32_t k = 0; k < n; k++) {
        UNROLL for (int i = 0; i < CHAINS; i++) {
#ifdef ACT_BF16
            c[i] = _mm512_dpbf16_ps(c[i], (__m512bh)a, (__m512bh)b);
#else
            c[i] = vf_fma(c[i], a, b);
#endif
        }
        __asm__ volatile("" : "+x"(a), "+x"(b));
    }
    UNROLL for (int i = 1; i < CHAINS; i++) c[0] += c[i];
    sink = vf_sum(c[0]);
    __asm__ volatile("" : : "x"(sink));
    return 2.0 * n * CHAINS * LANES * (sizeof(act) == 2 ? 2 : 1);
}

#define PATH_TABLE(path_name, available, slow)                                                     \
    {                                                                                              \
        .name = path_name, .act_bytes = sizeof(act), .is_available = available, .is_slow = slow,   \
        .gemm = gemm,                                                                              \
        .rmsnorm = rmsnorm, .swiglu = swiglu, .add = add, .to_act = to_act, .from_act = from_act,  \
        .attend_bf16 = attend_bf16, .attend_f32 = attend_f32, .peak = peak                         \
    }

/* kernels/cpu/path.h - one instruction path: the inner loops, compiled for one kind of machine.
 *
 * The loops are written once (path_body.inc, attend_body.inc) and compiled for each machine; struct
 * cpu_path is the table of what came out, chosen once when the device is opened. `act` below is
 * the type in which activations travel between operations: bf16 on the path whose dot product
 * takes bf16, f32 on the others.
 *
 * Weights are packed once into panels of 64 outputs. bf16 goes in pairs, which one instruction
 * takes; f16 and f32 one input behind the other:
 *
 *      bf16       panel p, pair k, output n, which:   w[((p * k_pairs + k) * 64 + n) * 2 + which]
 *                                                     = W[p * 64 + n][2 * k + which]
 *      f16, f32   panel p, input k, output n:         w[(p * 2 * k_pairs + k) * 64 + n]
 *                                                     = W[p * 64 + n][k]
 *
 * so that decode (one row) and prefill (tiles of rows) read the same bytes in the same order.
 * Outputs are padded with zero rows to a multiple of 64, inputs to an even number.
 *
 * WHAT IS ROUNDED. Nothing but sums, in fp32, where `act` is f32: weights of 16 bits are widened,
 * which is exact. A path whose `act` is bf16 rounds every activation, as its instruction requires,
 * so it computes with bf16 weights alone; its `exact` names the path that takes the others. K and V
 * are rounded to the type of the pool by the function that writes them there; codes of a quantised
 * pool (kernels/kv_quant.h) are exact in bf16, and K's scale multiplies the score, V's the weight.
 *
 * WHY AN ANSWER IS THE SAME EVERY TIME (within one path):
 *   1. Each output of a matrix is one chain of fp32 operations along K, whatever the tile: blocks
 *      of K continue the chain through memory, rows and columns never mix.
 *   2. Sums over a row (norm, softmax) use a fixed number of lanes and a fixed tree.
 *   3. Attention reads K and V from the paged pool only, in their stored type. Positions are taken
 *      in groups of 64 from absolute position 0, whatever the block size, and merged left to right;
 *      a masked position contributes an exact zero. Prefill and decode run the same code.
 *   4. The exponential is ours, and fusing is written, never left to the compiler.
 *   5. Threads only decide who computes an element, never how.
 *   6. A quantised weight is code times scale; the scale is applied to the sum over a group of
 *      inputs, and groups are added in order. Inputs of int4 and int8 codes are whole numbers, int16
 *      with a scale for each block of a group, or int8 where the checkpoint demands it, and sums of
 *      a block are exact; so all paths give the same bits for the same inputs (plain, without an fma, nearly).
 *      With e4m3 a group is a chain, whose codes are exact in bf16 and f32.
 * LIMITS. An infinity or NaN in a later position's V may reach earlier rows of its tile as a NaN;
 * such answers are flagged as not finite anyway. */
#ifndef KERNELS_CPU_PATH_H
#define KERNELS_CPU_PATH_H

#include "common/base/base.h"
#include "common/base/status.h"
#include "kernels/backend.h"

#define PANEL               64u  /* outputs in a panel */
#define CPU_FEW_ROWS        24u  /* up to here a product runs at memory speed, or should */
#define ATTEND_ROWS         96u  /* (query, head) rows that share one load of K and V, at least */
#define GROUP               64u  /* positions of K and V taken together */
#define ATTEND_MAX_HEAD_DIM 512u /* even numbers up to here */

/* One tile of attention: some query tokens of one sequence, all heads of one KV head. */
struct attend {
    const float *q;            /* (n_queries, ...) first head of this KV head, after RoPE */
    size_t q_stride;           /* floats from token to token */
    void *out;                 /* act */
    size_t out_stride;         /* acts */
    const uint32_t *position;  /* (n_queries) rising */
    uint32_t n_queries, heads; /* heads per KV head */
    uint32_t head_dim;         /* even, 2 to ATTEND_MAX_HEAD_DIM */
    uint32_t window;           /* positions seen, 0: all */
    const uint8_t *k, *v;      /* this layer and KV head of block 0 */
    const uint8_t *k_scales, *v_scales; /* the same, of a quantised pool */
    uint64_t block_stride;              /* bytes */
    uint32_t block_size;
    const uint32_t *table; /* block ids of the sequence */
    void *scratch;         /* attend_scratch_bytes */
};

struct cpu_matrix;

/* y[r][n] = sum over k of x[r][k] * W[n][k], for n_panels panels from w. `continues`: the chains go
 * on from what y holds, so that K in two calls gives the bits of K in one. */
typedef void cpu_gemm_fn(const void *w, uint32_t n_panels, uint32_t k_pairs,
                         const void *x /* act */, size_t x_stride, uint32_t n_rows, float *y,
                         size_t y_stride, bool continues);

/* Products with quantised matrices; kernels/cpu/pack.h has their panels. Rows of inputs are
 * prepared once for all panels: put into the matrix's order, rounded to int8 or int16, and summed
 * over blocks for the zeros. `y` as above, for n_panels panels from `panel` on.
 * n_panels at most QUANT_PANELS, n_rows at most QUANT_ROWS; scratch: QUANT_SCRATCH bytes. */
typedef void cpu_prepare_fn(void *row, const struct cpu_matrix *w, const void *x /* act */);
typedef void cpu_quant_fn(const struct cpu_matrix *w, uint32_t panel, uint32_t n_panels,
                          const void *rows, uint32_t n_rows, float *y, size_t y_stride,
                          bool continues, void *scratch);
#define QUANT_PANELS  4u
#define QUANT_ROWS    240u
#define QUANT_BLOCK   128u /* inputs that are unpacked at a time, and have one scale in int16 */
#define QUANT_SCRATCH ((QUANT_BLOCK + QUANT_ROWS * QUANT_PANELS) * PANEL * sizeof(float))

struct cpu_path {
    const char *name;
    size_t act_bytes; /* 2 or 4 */
    bool (*is_available)(void);
    bool (*is_slow)(void); /* there, and another one is faster: "auto" passes it by; NULL: never */
    const struct cpu_path *exact; /* takes the weights that this one has no product for; or NULL */

    cpu_gemm_fn *gemm[DTYPE_COUNT]; /* by the type of the weights */
    cpu_prepare_fn *prepare;
    cpu_quant_fn *quant;
    bool takes_quads; /* of e4m3 codes */
    /* y = x / sqrt(sum(x^2) / d + eps) * w; widths are multiples of 64, padded with zeros. */
    void (*rmsnorm)(void *y /* act */, const float *x, const float *w, uint32_t width, uint32_t d,
                    float eps);
    void (*swiglu)(void *y /* act */, const float *gate, const float *up, uint32_t n /* 16s */);
    void (*add)(float *y, const float *x, uint32_t n /* 16s */); /* y += x */
    void (*to_act)(void *y /* act */, const float *x, uint32_t n /* 16s */);
    void (*from_act)(float *y, const void *x /* act */, uint32_t n /* 16s */);
    void (*attend[DTYPE_COUNT])(const struct attend *a); /* by the type of the pool */

    double (*peak)(
        uint32_t n); /* n rounds of independent multiply-adds: operations done; for benches */
};

/* Rows of a tile: every query brings `heads` rows, and tiles are filled up to ATTEND_ROWS. */
static inline uint32_t attend_queries(uint32_t heads) {
    return heads >= ATTEND_ROWS ? 1 : ATTEND_ROWS / heads;
}
uint64_t attend_scratch_bytes(uint32_t heads, uint32_t head_dim);

/* The path that computes with such weights where `path` was chosen: it, or its exact one. */
const struct cpu_path *cpu_path_for(const struct cpu_path *path, enum dtype weights);

/* The named path, or the best one for NULL and "auto". ST_UNSUPPORTED names what the
 * machine has. */
MUST_USE enum status cpu_path_find(const struct cpu_path **out, const char *name,
                                   struct error *err);

extern const struct cpu_path cpu_path_plain;
#if defined(__x86_64__)
extern const struct cpu_path cpu_path_avx2, cpu_path_avx512, cpu_path_avx512bf16;
#elif defined(__aarch64__)
extern const struct cpu_path cpu_path_neon;
#endif

#endif

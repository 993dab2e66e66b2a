/* kernels/cuda/products/quant.h - products with quantised matrices: e4m3, int8 and int4 codes.
 *
 *      Y (m, n) = X (m, k) ((code - zero) * scale) (n, k)^T [+ bias (n)] [+ Y]
 *
 * The rule is that of kernels/ref: within a group of inputs the fp32 sum of x * (code - zero),
 * which is exact in bf16; the sum times the group's scale; groups added in order. With
 * QUANT_INPUTS_I8, x is rounded to int8 for each token, and a group's sum is whole and exact. e4m3
 * codes take x as it is, whatever the checkpoint's rule for inputs.
 *
 * Packed codes: units of 512 bytes, 16 bytes for each lane of a warp, so that a lane reads at once
 * what the tensor cores want of it. A unit holds 16 rows and 32 inputs (of int4 64); units of a row
 * block follow each other by rising k. Lane l has of rows l / 4 and l / 4 + 8 the inputs 8 * (l %
 * 4) to 8 * (l % 4) + 7 of each 32:
 *
 *      e4m3   row: k0 k2 k1 k3  k4 k6 k5 k7,  row + 8: the same     halves of a word are pairs
 *      int8   row: k0 ... k7,                 row + 8: the same
 *      int4   row, row + 8, then both 32 inputs on; nibble i is k(2i), nibble 4 + i is k(2i + 1)
 *
 * Rows beyond the last are 0, inputs beyond the last too. Scales and zeros lie by row block, group,
 * row: (ceil(n / 16), groups, 16), or one for all 16 rows where groups of outputs allow it.
 *
 * Two kernels read this: quant_gemv.cu for up to GEMV_MAX_ROWS rows, with the fusions of ops_gemv;
 * quant_tile.cu for more, whose rows have the same bits for every m. */
#ifndef KERNELS_CUDA_PRODUCTS_QUANT_H
#define KERNELS_CUDA_PRODUCTS_QUANT_H

#include "kernels/backend.h"
#include "kernels/cuda/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUANT_ROWS       16u  /* of a unit */
#define QUANT_UNIT_BYTES 512u /* of codes */
#define QUANT_STEP       32u  /* inputs of a step; groups begin and end at steps */

/* What shares a scale, of e4m3 codes whose checkpoint has rounded inputs too: those matrices may be
 * multiplied by the library (quant_library.h). */
enum quant_grain {
    QUANT_GRAIN_OTHER,  /* by own kernels alone */
    QUANT_GRAIN_MATRIX, /* of the matrices that lie under each other, each */
    QUANT_GRAIN_ROW,    /* an output */
    QUANT_GRAIN_BLOCK   /* 128 outputs and 128 inputs; matrices begin at multiples of 128 */
};

struct packed_matrix {     /* all pointers of the device */
    const uint8_t *codes;  /* NULL: the matrix is not quantised */
    const float *scale;    /* (row blocks, groups, 16), or (row blocks, groups) */
    const int16_t *zero;   /* (row blocks, groups, 16) or NULL */
    const uint32_t *order; /* (k) or NULL */
    enum dtype dtype;
    enum quant_inputs inputs; /* QUANT_INPUTS_I8, or as they are */
    uint32_t n, k;            /* n of all matrices that lie under each other; k a multiple of 8 */
    uint32_t group_k;         /* a multiple of QUANT_STEP, or at least k */
    bool has_row_scales;      /* 16 scales in a row block and group, else one */
    uint64_t order_hash;      /* of who loads it */
    enum quant_grain grain;
    uint32_t part_end[3];  /* outputs up to the end of each matrix that lies here; 0: there are no
                           * more */
    uint32_t library_rows; /* from so many on the library multiplies; 0: never */
};

struct quant_args {
    struct gemv_args a; /* w is not looked at; norm_weight and is_swiglu only where
                         * quant_takes_fusions() */
    struct packed_matrix w;
    void *scratch;         /* quant_scratch_bytes() */
    bool is_deterministic; /* the same bits for every m */
};

/* May norm and SwiGLU be folded in? */
bool quant_takes_fusions(const struct packed_matrix *w, uint32_t m, bool is_deterministic);
/* What inputs need that are gathered or rounded: 0 for others. */
uint64_t quant_scratch_bytes(const struct packed_matrix *w, uint64_t m);

/* On each device before the first product. */
void quant_prepare(void);
void quant_run(struct gpu_stream *s, const struct quant_args *a);

/* --- the parts of quant_run */
void quant_run_gemv(struct gpu_stream *s, const struct quant_args *a); /* m <= GEMV_MAX_ROWS */
/* Of QUANT_INPUTS_I8 with one group, from codes and scales of the inputs; as quant_run_tiles to the
 * bit, for sums are whole. */
void quant_run_whole_gemv(struct gpu_stream *s, const struct quant_args *a, const int8_t *codes,
                          const float *scale);
/* codes and scale: of QUANT_INPUTS_I8, else NULL. */
void quant_run_tiles(struct gpu_stream *s, const struct quant_args *a, const int8_t *codes,
                     const float *scale);
void quant_gather_inputs(struct gpu_stream *s, const struct quant_args *a, uint16_t *gathered);
/* codes (m, quant_code_stride(k)), scale (m) */
void quant_round_inputs(struct gpu_stream *s, const struct quant_args *a, int8_t *codes,
                        float *scale);

/* --- on the host */
static inline uint32_t quant_unit_k(enum dtype t) {
    return t == DTYPE_U4 ? 64 : 32;
}
static inline uint32_t quant_groups(uint32_t k, uint32_t group_k) {
    return CEIL_DIV(k, MIN(group_k, k));
}
static inline uint32_t quant_code_stride(uint32_t k) {
    return ALIGN_UP(k, 64u);
}
/* Bytes of one row block of codes. */
static inline uint64_t quant_block_bytes(enum dtype t, uint32_t k) {
    return (uint64_t)CEIL_DIV(k, quant_unit_k(t)) * QUANT_UNIT_BYTES;
}
/* One row block: n_rows (16 or, the last, fewer) rows of k codes as struct backend_tensor has them,
 * `pitch` bytes from row to row. */
void quant_pack_codes(uint8_t *dst, enum dtype t, const uint8_t *src, uint64_t pitch,
                      uint32_t n_rows, uint32_t k);
/* May the rows of a row block, which begins at a multiple of 16, share a scale? */
static inline bool quant_has_row_scales(const struct backend_quant *q) {
    return q->group_n % QUANT_ROWS != 0;
}
/* Scales of the row block of rows [first, first + n_rows): (groups, 16), or (groups). */
void quant_pack_scales(float *dst, const struct backend_quant *q, bool has_row_scales,
                       uint64_t first, uint32_t n_rows, uint32_t k);
/* Zeros alike, (groups, 16); those of `t` where q has none. */
void quant_pack_zeros(int16_t *dst, const struct backend_quant *q, enum dtype t, uint64_t first,
                      uint32_t n_rows, uint32_t k);

#ifdef __cplusplus
}
#endif
#endif

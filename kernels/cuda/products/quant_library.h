/* kernels/cuda/products/quant_library.h - products of many rows with e4m3 codes, by cuBLASLt.
 *
 *      Y (m, n) = X (m, k) (code * scale) (n, k)^T          bf16, nothing is added
 *
 * X is rounded to e4m3 for each token, scale = max|x| / 448 (1 of a token that is 0 or below 2^-100
 * throughout); of blocks of 128 x 128 for each token and 128 inputs. A token with an input that is
 * not finite has codes and scales that are NaN. So a row depends on its token alone, but has other
 * bits than by own kernels, which do not round X: never in deterministic mode.
 *
 * The library wants codes row by row; they lie packed, once, for the own kernels (quant.h). A panel
 * of outputs, which the cache holds, is unpacked, then multiplied, then the next one:
 *
 *      scratch  | codes of X (rows, k) | its scales | codes of a panel (outputs, k) | its scales |
 *
 * Which scales the library takes depends on the device (gemm_takes_codes). Where it takes one for a
 * whole matrix only, a panel lies in one matrix, and a kernel multiplies Y by the scales of tokens
 * afterwards. Nothing is requantised: each matrix of a fused one keeps its scales.
 *
 * Up to which number of rows own kernels are faster is measured at load. Thread: the device's. */
#ifndef KERNELS_CUDA_PRODUCTS_QUANT_LIBRARY_H
#define KERNELS_CUDA_PRODUCTS_QUANT_LIBRARY_H

#include "kernels/cuda/device/gemm.h"
#include "kernels/cuda/products/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quant_library {
    struct gemm *gemm;
    struct gpu_stream *stream;
    void *scratch;
};

/* Of a matrix (n, k), or of a rank's part of it: equal scales are one, however many there are. */
enum quant_grain quant_grain_of(const struct backend_quant *q, enum dtype t, uint32_t n,
                                uint32_t k);
/* The grain of a fused matrix with another one from output `first` on. */
enum quant_grain quant_grain_join(enum quant_grain of, enum quant_grain other, uint32_t first);

/* The scratch for up to max_rows rows, in bytes; 0: the library does not take the matrix. */
uint64_t quant_library_bytes(struct gemm *gemm, const struct packed_matrix *w, uint32_t max_rows);

/* Makes the plans, and times both ways on real buffers of max_rows rows, whose Y is overwritten
 * (and has room for a multiple of GEMM_CODE_ROWS rows, as in quant_library_run). From *from_rows
 * rows on the library is faster; 0: it is not, or there is no clock to time with. Of a matrix that
 * the library takes. */
MUST_USE enum status quant_library_tune(const struct quant_library *l, const struct quant_args *a,
                                        uint32_t max_rows, uint32_t *from_rows, struct error *err);

/* false: the library has refused it, and Y is undefined; once it has, nothing is launched. Can be
 * captured into a graph. */
MUST_USE bool quant_library_run(const struct quant_library *l, const struct quant_args *a);

/* --- its kernels */
struct quant_panel {
    uint32_t first, n; /* outputs: first is a multiple of 16, of 128 when scales are of blocks */
    uint8_t *codes;    /* (n, k) */
    float *scale;      /* (n), or (CEIL_DIV(n, 128), gemm_block_scales(k)) of blocks */
};
void quant_unpack_panel(struct gpu_stream *s, const struct packed_matrix *w,
                        const struct quant_panel *p);
/* codes (rows, k), zeros from row m on; scale (rows), or (k / 128, rows) when w's are of blocks;
 * rows beyond m have 1. */
void quant_round_f8(struct gpu_stream *s, const struct quant_args *a, uint32_t rows, uint8_t *codes,
                    float *scale);
/* Row i of y (m, n) times scale[i]; n and the stride are multiples of 8. */
void quant_scale_rows(struct gpu_stream *s, uint16_t *y, uint32_t y_stride, uint32_t m, uint32_t n,
                      const float *scale);

#ifdef __cplusplus
}
#endif
#endif

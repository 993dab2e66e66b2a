/* tests/unit/cuda/shim/toy.h - small kernels, right and wrong ones, to try the shim itself with. */
#ifndef TESTS_UNIT_CUDA_SHIM_TOY_H
#define TESTS_UNIT_CUDA_SHIM_TOY_H

#include "kernels/cuda/device/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c (16, 8) = a (16, 16) b (16, 8) by one warp; a and b bf16, row-major. Planted: late_wait. */
struct toy_product {
    const uint16_t *a, *b;
    float *c;
};
void toy_product(struct gpu_stream *s, const struct toy_product *p);

/* out[i] = the sum of the block's 128 numbers in, taken over rounds of 128, each through the same
 * shared array. Planted: no_barrier (a write-after-read race), no_first_barrier. */
struct toy_rounds {
    const float *in; /* (n_rounds, 128) */
    float *out;      /* (128) */
    uint32_t n_rounds;
};
void toy_rounds(struct gpu_stream *s, const struct toy_rounds *p);

/* y[i] = x[i] + add for n numbers. */
struct toy_add {
    const float *x;
    float *y;
    float add;
    uint32_t n;
};
void toy_add(struct gpu_stream *s, const struct toy_add *p);

/* Reads 16 x 64 bf16 by load_matrix4 and sums all its bits; rows swizzled or not. */
struct toy_tile {
    const uint16_t *tile; /* (16, 64) */
    uint32_t *sums;       /* (32) */
    bool is_swizzled;
};
void toy_tile(struct gpu_stream *s, const struct toy_tile *p);

/* What shuffles and ballots give: lane l stores at out[op * 32 + l]. */
struct toy_shuffles {
    uint32_t *out; /* (5, 32) */
};
void toy_shuffles(struct gpu_stream *s, const struct toy_shuffles *p);

/* Each does one thing that no kernel may. */
enum toy_crime {
    TOY_BARRIER_BY_SOME, /* half of a block's warps */
    TOY_BARRIER_BY_HALF, /* of a warp */
    TOY_SHUFFLE_BY_HALF,
    TOY_SHUFFLES_APART, /* both halves shuffle, at different lines */
    TOY_PARTIAL_MASK,
    TOY_MISALIGNED, /* an int4 at 8 */
    TOY_COPY_MISALIGNED,
    TOY_MATRIX_ELSEWHERE, /* not in shared memory */
    TOY_BEHIND_SHARED,
    TOY_TOO_MUCH_SHARED, /* 48 KiB, and SHARED beside it */
    TOY_CRIMES
};
struct toy_crime_args {
    enum toy_crime crime;
    float *memory; /* 64 floats, aligned to 16 */
};
void toy_commit(struct gpu_stream *s, const struct toy_crime_args *p);

/* out[i] = element i of uninitialised shared memory, both kinds: 2 x 64. */
struct toy_poison {
    float *out;
};
void toy_poison(struct gpu_stream *s, const struct toy_poison *p);

/* Uses n_bytes of dynamic shared memory. */
struct toy_big {
    uint32_t *out;
};
void toy_big(struct gpu_stream *s, const struct toy_big *p, uint32_t n_bytes);
int toy_big_allow(uint32_t n_bytes);

#ifdef __cplusplus
}
#endif
#endif

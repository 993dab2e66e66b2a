/* tests/unit/cuda/shim/trial_kernels.h - small kernels, right and wrong ones, to try the shim
 * itself with. */
#ifndef TESTS_UNIT_CUDA_SHIM_TRIAL_KERNELS_H
#define TESTS_UNIT_CUDA_SHIM_TRIAL_KERNELS_H

#include "kernels/cuda/device/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c (16, 8) = a (16, 16) b (16, 8) by one warp; a and b bf16, row-major. Planted: late_wait. */
struct trial_product {
    const uint16_t *a, *b;
    float *c;
};
void trial_product(struct gpu_stream *s, const struct trial_product *p);

/* out[i] = the sum of the block's 128 numbers in, taken over rounds of 128, each through the same
 * shared array. Planted: no_barrier (a write-after-read race), no_first_barrier. */
struct trial_rounds {
    const float *in; /* (n_rounds, 128) */
    float *out;      /* (128) */
    uint32_t n_rounds;
};
void trial_rounds(struct gpu_stream *s, const struct trial_rounds *p);

/* y[i] = x[i] + add for n numbers. */
struct trial_add {
    const float *x;
    float *y;
    float add;
    uint32_t n;
};
void trial_add(struct gpu_stream *s, const struct trial_add *p);

/* y[i] = x[i] + before[i], where x is what the kernel before has written. Planted: early_read (x
 * before the wait), early_write (y), early_dependents, no_wait_at_the_tail (threads from n on). */
struct trial_behind {
    const float *before, *x;
    float *y;
    uint32_t n;
};
void trial_behind(struct gpu_stream *s, const struct trial_behind *p);

/* Reads 16 x 64 bf16 by load_matrix4 and sums all its bits; rows swizzled or not. */
struct trial_tile {
    const uint16_t *tile; /* (16, 64) */
    uint32_t *sums;       /* (32) */
    bool is_swizzled;
};
void trial_tile(struct gpu_stream *s, const struct trial_tile *p);

/* The same, launched past LAUNCH: no list has the kernel. */
void trial_unlisted(struct gpu_stream *s, const struct trial_add *p);

/* What shuffles and ballots give: lane l stores at out[op * 32 + l]. */
struct trial_shuffles {
    uint32_t *out; /* (5, 32) */
};
void trial_shuffles(struct gpu_stream *s, const struct trial_shuffles *p);

/* Each does one thing that no kernel may. */
enum trial_fault {
    TRIAL_BARRIER_BY_SOME, /* half of a block's warps */
    TRIAL_BARRIER_BY_HALF, /* of a warp */
    TRIAL_SHUFFLE_BY_HALF,
    TRIAL_SHUFFLES_APART, /* both halves shuffle, at different lines */
    TRIAL_PARTIAL_MASK,
    TRIAL_MISALIGNED, /* an int4 at 8 */
    TRIAL_COPY_MISALIGNED,
    TRIAL_MATRIX_ELSEWHERE, /* not in shared memory */
    TRIAL_BEHIND_SHARED,
    TRIAL_TOO_MUCH_SHARED, /* 48 KiB, and SHARED beside it */
    TRIAL_FAULTS
};
struct trial_fault_args {
    enum trial_fault fault;
    float *memory; /* 64 floats, aligned to 16 */
};
void trial_commit(struct gpu_stream *s, const struct trial_fault_args *p);

/* out[i] = element i of uninitialised shared memory, both kinds: 2 x 64. */
struct trial_poison {
    float *out;
};
void trial_poison(struct gpu_stream *s, const struct trial_poison *p);

/* Uses n_bytes of dynamic shared memory. */
struct trial_big {
    uint32_t *out;
};
void trial_big(struct gpu_stream *s, const struct trial_big *p, uint32_t n_bytes);
int trial_big_allow(uint32_t n_bytes);

#ifdef __cplusplus
}
#endif
#endif

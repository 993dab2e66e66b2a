/* tests/unit/shim/toy.h - small kernels, right and wrong ones, to try the shim itself with. */
#ifndef TESTS_UNIT_SHIM_TOY_H
#define TESTS_UNIT_SHIM_TOY_H

#include "kernels/cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c (16, 8) = a (16, 16) b (16, 8) by one warp; a and b bf16, row-major. */
struct toy_product {
    const uint16_t *a, *b;
    float *c;
};
void toy_product(struct gpu_stream *s, const struct toy_product *p);

#ifdef __cplusplus
}
#endif
#endif

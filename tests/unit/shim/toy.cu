/* tests/unit/shim/toy.cu - see toy.h. */
#include "kernels/cuda/simt.h"
#include "tests/unit/shim/toy.h"

__global__ void product(const __grid_constant__ struct toy_product p) {
    SHARED(bf16, a, 16 * 16);
    SHARED(bf16, b, 16 * 8);
    int lane = threadIdx.x & 31;
    uint32_t fragment_a[4], fragment_b[4];
    float c[4] = {0, 0, 0, 0};

    copy_async16(a + lane * 8, p.a + lane * 8);
    if (lane < 16) copy_async16(b + lane * 8, p.b + lane * 8);
    copy_commit();
    copy_wait<0>();
    __syncwarp();
    load_matrix4(fragment_a, a + (lane & 15) * 16 + (lane >> 4) * 8);
    load_matrix4_transposed(fragment_b, b + (lane & 15) * 8);
    multiply_add(c, fragment_a, fragment_b[0], fragment_b[1]);
    for (int i = 0; i < 4; i++)
        p.c[(lane / 4 + (i >> 1) * 8) * 8 + lane % 4 * 2 + (i & 1)] = c[i];
}

void toy_product(struct gpu_stream *s, const struct toy_product *p) {
    LAUNCH(product, dim3(1), 32, 0, s, *p);
}

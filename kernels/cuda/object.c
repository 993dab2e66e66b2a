/* kernels/cuda/object.c - the one symbol of incipit_cuda.so. */
#include "kernels/cuda/cuda_internal.h"

const struct backend_ops *incipit_backend(void) {
    return &backend_cuda;
}

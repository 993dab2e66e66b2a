/* kernels/cuda/device/gpu_internal.h - what gpu.c and gpu_library.c offer to the two modules that
 * call the vendor's libraries themselves: gemm*.c and comm.c. */
#ifndef KERNELS_CUDA_DEVICE_GPU_INTERNAL_H
#define KERNELS_CUDA_DEVICE_GPU_INTERNAL_H

#include "kernels/cuda/device/gpu.h"

/* A library refused work that had been put on a stream: sticks to the device, unless something did
 * before. */
void gpu_fail(struct gpu *gpu, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Opens the first of `names` (ended by NULL) that is in $INCIPIT_CUDA_LIBRARIES, the loader's path,
 * PyTorch's wheels, a toolkit or the distribution's folders. When there is none, `err` lists where
 * was looked, and has `remedy`. The handle is never closed: the library keeps threads and device
 * memory of its own. */
MUST_USE enum status gpu_library_open(void **out, const char *const *names, const char *what,
                                      const char *remedy, struct error *err);
/* ST_UNSUPPORTED when the library is too old to have the function. */
MUST_USE enum status gpu_library_find(void *library, void *function, const char *name,
                                      struct error *err);

#endif

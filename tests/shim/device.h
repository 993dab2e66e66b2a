/* tests/shim/device.h - what gpu_shim.c offers to gemm_shim.c and comm_shim.c. */
#ifndef TESTS_SHIM_DEVICE_H
#define TESTS_SHIM_DEVICE_H

#include "kernels/cuda/device/gpu.h"

/* Puts work on a stream; `args` are copied. `run` is called when its turn has come; when it cannot
 * be done yet, because another rank has not come, it returns false and is called again. */
typedef bool shim_work(struct gpu *gpu, void *args);
void shim_put(struct gpu_stream *s, const char *what, shim_work *run, const void *args,
              uint32_t args_bytes);

/* The device fails: gpu_status reports it from now on. */
void shim_fail(struct gpu *gpu, const char *fmt, ...) PRINTF_LIKE(2, 3);
bool shim_has_failed(const struct gpu *gpu);

/* Before work touches the memory of another device than its own. */
void shim_memory_enter(struct gpu *gpu);

/* Aborts, naming `what`, unless n_bytes from p lie in one allocation of the device's. */
void shim_check_range(struct gpu *gpu, const void *p, uint64_t n_bytes, const char *what);

#endif

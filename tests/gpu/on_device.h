/* tests/gpu/on_device.h - included before a test of kernels, so that it runs on the device.
 *
 * The tests hand host memory to kernels. What they allocate is here memory that host and device
 * both see: on a GPU mapped host memory (tests/gpu/on_device.c), on the shim memory that it knows
 * (tests/shim/rooms.c), so that a test which hands a kernel anything else fails without a GPU too.
 * With CUDA_LAUNCH_BLOCKING=1 a launch on a GPU has ended when it returns, as on the shim. Kernels
 * run on the default stream. */
#ifndef TESTS_GPU_ON_DEVICE_H
#define TESTS_GPU_ON_DEVICE_H

#include <stdlib.h>

#include "common/base/mem.h"

void *device_room(size_t n_bytes); /* zeroed; aligned to 256 bytes */
void device_release(void *p);      /* also what was allocated elsewhere */

#define malloc(n)             device_room(n)
#define calloc(n, size)       device_room((size_t)(n) * (size))
#define aligned_alloc(a, n)   device_room(n)
#define free(p)               device_release(p)
#define mem_alloc(n)          device_room(n)
#define mem_zalloc(n)         device_room(n)
#define mem_calloc(n, size)   device_room((size_t)(n) * (size))
#define mem_try_aligned(a, n) device_room(n)
#define mem_free(p)           device_release(p)

#endif

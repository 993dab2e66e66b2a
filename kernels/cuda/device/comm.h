/* kernels/cuda/device/comm.h - what the ranks of a tensor-parallel model exchange on their devices.
 *
 * NCCL, opened with dlopen when there is more than one rank (comm.c); on the shim, memory of the
 * same process (tests/shim). Every rank makes the same calls in the same order; each call is put on
 * a stream and can be captured into a graph. */
#ifndef KERNELS_CUDA_DEVICE_COMM_H
#define KERNELS_CUDA_DEVICE_COMM_H

#include "kernels/cuda/device/gpu.h"
#include "kernels/tp/group.h"

#ifdef __cplusplus
extern "C" {
#endif

struct comm;

/* Blocks until all ranks of the group have called. */
MUST_USE enum status comm_open(struct comm **out, struct gpu *gpu, struct tp_group *group,
                               uint32_t rank, struct error *err);
void comm_close(struct comm *c); /* NULL is fine */

/* x (n) bf16 becomes, at every rank, the sum over the ranks. */
void comm_sum(struct comm *c, struct gpu_stream *s, uint16_t *x, uint64_t n);
/* all (size, n_bytes): every rank's `mine` (n_bytes), in order of rank. */
void comm_gather(struct comm *c, struct gpu_stream *s, const void *mine, void *all,
                 uint64_t n_bytes);

#ifdef __cplusplus
}
#endif
#endif

/* kernels/tp/group.h - what the ranks of one tensor-parallel model share in this process.
 *
 * Ranks are threads, each with a device of its own. A group is how they meet: a table of functions,
 * so that a backend loaded from a shared object needs nothing of the program that loads it. On the
 * CPU the group also carries the sums between the ranks (kernels/tp/sum.h); on GPUs it only hands
 * out the name under which NCCL's communicator is found (kernels/cuda/device/comm.h).
 *
 * Every rank makes the same calls in the same order. One that cannot go on must not leave the
 * others waiting for it: the rank that learns of it stops the group, and every meeting, present and
 * future, ends with ST_CLOSED. */
#ifndef KERNELS_TP_GROUP_H
#define KERNELS_TP_GROUP_H

#include "common/base/base.h"
#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TP_MAX_RANKS 16u

struct tp_group {
    uint32_t size;

    /* Waits for all ranks. After `stop`, at once and ever after: ST_CLOSED. */
    enum status (*meet)(struct tp_group *g, uint32_t rank);
    /* Rank 0's bytes become everyone's. */
    enum status (*share)(struct tp_group *g, uint32_t rank, void *data, uint64_t n_bytes);
    /* all (size, n_bytes): every rank's `mine`, in order of rank; host memory. */
    enum status (*gather)(struct tp_group *g, uint32_t rank, const void *mine, void *all,
                          uint64_t n_bytes);
};

/* A group of threads of this process, 1 to TP_MAX_RANKS of them. What ST_OK of share and gather has
 * brought is complete; with ST_CLOSED no rank's memory is touched any more. */
struct tp_group *tp_group_create(uint32_t size);
void tp_group_destroy(struct tp_group *g); /* when no rank is in it; NULL is fine */
void tp_group_stop(struct tp_group *g);    /* from any thread */

#ifdef __cplusplus
}
#endif
#endif

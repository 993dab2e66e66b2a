/* kernels/tp/tp.h - a tensor-parallel model as one backend.
 *
 * `backend_tp` wraps another backend: struct backend_config names it (`ranks`) and how many ranks
 * there are (`tp_size`, 1 to TP_MAX_RANKS). Each rank is a thread with a device and a model of that
 * backend; the engine sees one device.
 *
 *      engine ──▶ tp ──▶ rank 0's thread ──▶ ops of device 0 ┐
 *                   ├──▶ rank 1's thread ──▶ ops of device 1 ┤ kernels/tp/group.h, NCCL
 *                   └──▶ ...                                 ┘
 *
 * A call is made on every rank and answered when all have answered. The engine fills rank 0's
 * stage; submit copies what counts of it to the others, so that all run the same step, and only
 * rank 0's outputs are looked at. Blocks, rows and tables are the same on all; K and V of a block
 * are divided by KV head, and kv_read and kv_write speak of the whole block.
 *
 * DEVICES. Rank r takes `ordinal` + r, or the r-th name of `device_id`, a list with commas
 * of as many UUIDs and numbers as there are ranks. Threads and memory of a CPU are divided. info()
 * adds up threads and, of devices with memory of their own, as much from each as the poorest has.
 *
 * FAILURE. A rank that fails stops the group, so that none waits for it; the call returns its
 * error, with its rank before it, and the model can only be unloaded.
 *
 * LIMITS. One process, one machine. CPU ranks are not bound to a socket; a rank touches its weights
 * first, so they lie where its threads ran then. The embedding is whole on every rank.
 *
 * Thread: the engine's, as for every backend. A call costs two hand-overs between threads. */
#ifndef KERNELS_TP_TP_H
#define KERNELS_TP_TP_H

#include "kernels/backend.h"

/* The backend that computes: `ranks` of a tensor-parallel device, else `ops` itself. */
const struct backend_ops *tp_computing(const struct backend_ops *ops,
                                       const struct backend_config *config);

#endif

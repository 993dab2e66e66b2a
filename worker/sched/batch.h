/* worker/sched/batch.h - a schedule, laid out as the arrays that a backend runs.
 *
 *      schedule                         stage
 *      r3: token 17           ──▶  row      r3 | r1 | r7           one-token rows first
 *      r7: tokens 0..399           token    17 | 5  | 0 ............ 399
 *      r1: token 5                 position, kv_slot              in step with token
 *                                  update   only the block table entries the device has not got
 *                                  output   where a token is sampled or scored, in row order
 *
 * A row of the device belongs to one stay of one request among the running. When the scheduler
 * gives a row to another stay, the batch binds it again, with the tokens that penalties count. The
 * sampling parameters of the outputs are the sampler's to fill in. Thread: engine. */
#ifndef WORKER_SCHED_BATCH_H
#define WORKER_SCHED_BATCH_H

#include "common/base/base.h"
#include "common/base/status.h"
#include "kernels/backend.h"
#include "worker/sched/scheduler.h"

/* A row of the step: whose it is, and where its outputs begin: first its scores, then its
 * sample. */
struct batch_row {
    const struct schedule_entry *entry;
    uint32_t first_output;
};

/* One step, laid out in the arrays of its slot. */
struct batch_step {
    struct batch_row *row; /* (max_rows) as in the stage */
    struct backend_stage stage;
    struct backend_step counts;
};

struct batch {
    const struct backend_ops *ops;
    struct backend_model *model;
    uint32_t max_rows, block_size;
    struct batch_binding *bound; /* (max_rows) what each row of the device holds */
    struct batch_step slot[2];
};

void batch_init(struct batch *b, const struct backend_ops *ops, struct backend_model *model,
                uint32_t max_rows, uint32_t block_size);
void batch_fini(struct batch *b); /* frees the rows of the device; a zeroed batch is fine */

/* Lays out a schedule with at least one entry. b->slot[slot] describes it until that slot is laid
 * out again; the schedule must stay as it is for as long. Tokens that are still being sampled are
 * named by their output in the step laid out before. Fails only if the device refuses a row. */
MUST_USE enum status batch_lay_out(struct batch *b, const struct schedule *sched, uint32_t slot);

#endif

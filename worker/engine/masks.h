/* worker/engine/masks.h - the masks of one step that have to be computed.
 *
 *      engine thread   known masks ─▶ stage | submit: the device begins | masks_compute | ...
 *      threads                                                          | masks_compute |
 *      device                               | forward ..................................| sample
 *
 * A grammar is used by one thread at a time: all masks of one grammar are one part of the work, and
 * are computed in the order in which they were added. While masks_compute runs the engine's thread
 * does nothing else, so that no request ends, and none is cancelled, under it. Thread: engine. */
#ifndef WORKER_ENGINE_MASKS_H
#define WORKER_ENGINE_MASKS_H

#include "common/base/base.h"
#include "common/base/status.h"
#include "worker/engine/constrain.h"

struct mask_threads;

struct masks {
    struct constrain_ends ends;
    uint32_t vocab;
    struct mask_threads *threads;
    struct constrain_stats stats; /* of all, also of those that were known */
    struct mask_job {
        struct request *request;
        uint32_t *mask; /* (ceil(vocab / 32)) of the stage */
        uint32_t number;
    } * job; /* (n_jobs), at most max_masks */
    struct mask_part {
        uint32_t first, n; /* jobs of one grammar */
        struct constrain_stats stats;
    } * part; /* (n_parts) */
    uint32_t n_jobs, n_parts;
};

/* `n_threads` as mask_threads_start has it. The caller has set ends, vocab and stats.seconds of a
 * struct of zeros. */
MUST_USE enum status masks_init(struct masks *m, uint32_t max_masks, uint32_t n_threads,
                                struct error *err);
void masks_fini(struct masks *m); /* a zeroed one is fine */

/* The mask of the request's next token, if that only copies; false, and nothing is done, if not. */
bool masks_fill(struct masks *m, struct request *r, uint32_t *mask);

/* masks_compute is to fill it. */
void masks_add(struct masks *m, struct request *r, uint32_t *mask);

void masks_compute(void *masks); /* fills all that were added since the last call */

#endif

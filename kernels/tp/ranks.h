/* kernels/tp/ranks.h - a thread for each rank, and one call made on all of them.
 *
 * A backend wants every call on a device to come from one thread; ranks must run at the same time,
 * for they wait for each other. So each rank has a thread that only carries out calls, and the
 * caller waits until all have answered. A rank that fails in a call in which ranks meet stops their
 * group at once, so that the others answer too; the group stays stopped. Thread: one caller. */
#ifndef KERNELS_TP_RANKS_H
#define KERNELS_TP_RANKS_H

#include "kernels/tp/group.h"

struct tp_ranks;

/* On the thread of `rank`. `err` is that rank's own. */
typedef enum status tp_rank_fn(uint32_t rank, void *arg, struct error *err);

MUST_USE enum status tp_ranks_create(struct tp_ranks **out, uint32_t size, struct error *err);
void tp_ranks_destroy(struct tp_ranks *r); /* joins; NULL is fine */

struct tp_group *tp_ranks_group(struct tp_ranks *r);

/* Calls fn on every rank. ST_OK when all gave it; else the error of the first rank at fault, with
 * its rank before it: one that is late (ST_AGAIN, ST_TIMEOUT) or was left alone (ST_CLOSED) comes
 * last. */
MUST_USE enum status tp_ranks_call(struct tp_ranks *r, tp_rank_fn *fn, void *arg,
                                   struct error *err);
/* The same for calls in which the ranks do not meet: one that fails does not stop the group. */
MUST_USE enum status tp_ranks_call_apart(struct tp_ranks *r, tp_rank_fn *fn, void *arg,
                                         struct error *err);
/* On rank 0 alone. */
MUST_USE enum status tp_ranks_call_first(struct tp_ranks *r, tp_rank_fn *fn, void *arg,
                                         struct error *err);

#endif

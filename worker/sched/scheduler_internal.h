/* worker/sched/scheduler_internal.h - what the files of the scheduler share.
 *
 *      scheduler.c    options, creation, one step under its budgets, outputs
 *      queues.c       the lists and the only functions that move a request between them
 *      beam_scheduling.c  beam searches: offers come in, beams are forked and dropped
 *
 * `running`, `waiting` and `swapped` are in one order each: by arrival, under the priority policy
 * by (priority, arrival). So the head of a waiting list runs next, the last running request is
 * preempted first, and a preempted request comes before all later arrivals. */
#ifndef WORKER_SCHED_SCHEDULER_INTERNAL_H
#define WORKER_SCHED_SCHEDULER_INTERNAL_H

#include "worker/sched/scheduler.h"

struct scheduler {
    struct scheduler_options options;
    uint32_t *eos_ids;
    struct kv_manager *kv;
    struct list waiting, running, swapped, searching;
    struct list ended; /* answers of searches, until scheduler_pop_ended */
    uint32_t n_waiting, n_running, n_swapped, n_searching;
    uint64_t waiting_tokens; /* sum of n_tokens over waiting and swapped */
    uint32_t *free_rows;     /* (max_num_seqs) a stack */
    uint32_t n_free_rows;
    uint64_t n_added, n_steps, n_in_flight; /* in flight: entries whose outcome has not come */
    struct scheduler_counts counts;         /* since creation; scheduler_counts fills the rest */
};

static inline struct request *request_of(struct list *link) {
    return link ? LIST_ENTRY(link, struct request, link) : NULL;
}

/* --- queues.c --------------------------------------------------------------------------------- */

/* Takes a request off its list, if it is on one; its blocks stay. Its state becomes REQUEST_NEW. */
void scheduler_leave(struct scheduler *s, struct request *r);
void scheduler_enter_waiting(struct scheduler *s, struct request *r);
void scheduler_enter_running(struct scheduler *s, struct request *r); /* there must be a free row */
void scheduler_enter_searching(struct scheduler *s, struct request *r);
/* Frees its blocks and forgets its parent. */
void scheduler_enter_done(struct scheduler *s, struct request *r, uint64_t now_us);

/* Takes a running request's blocks: to host memory if the options allow it and there is room, else
 * they are recomputed. */
void scheduler_preempt(struct scheduler *s, struct request *r, bool may_swap);

/* --- beam_scheduling.c ------------------------------------------------------------------------ */

MUST_USE enum status scheduler_add_answer(struct scheduler *s, struct request *r,
                                          struct error *err);
/* An answer has ended before its search: the last one takes the beams with it. */
void scheduler_drop_answer(struct scheduler *s, struct request *r, uint64_t now_us);
/* Its first beam runs for the first time. */
void scheduler_start_search(struct schedule *sched, struct request *leader, uint32_t n_hit_tokens,
                            uint64_t now_us);

#endif

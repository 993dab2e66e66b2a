/* worker/sched/scheduler_internal.h - what the files of the scheduler share.
 *
 *      scheduler.c        options, creation, one step under its budgets, outputs
 *      admission.c        a waiting request begins: cached, forked or other blocks
 *      by_remaining.c     POLICY_SRPT: one step, and the order of the waiting
 *      queues.c           the lists and the only functions that move a request between them
 *      beam_scheduling.c  beam searches: offers come in, beams are forked and dropped
 *
 * `running`, `waiting` and `swapped` are in one order each: by arrival, under the other policies by
 * (priority, arrival). So the head of a waiting list runs next (not under POLICY_SRPT), the last
 * running request is preempted first, and a preempted request comes before all later arrivals. */
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
    uint64_t n_started;                     /* requests admitted for the first time */
    struct scheduler_counts counts;         /* since creation; scheduler_counts fills the rest */
    struct pace pace;
    double restore_rate;     /* scheduler_set_restore_rate */
    uint32_t n_left_on_host; /* lookups whose hits in host memory were not taken */
    uint32_t n_awaiting;     /* of the waiting, with REMOTE_AWAITED */

    /* POLICY_SRPT; by_remaining.c. */
    struct fair_order order;        /* of the waiting requests that could be tried */
    struct list fresh, seen, aside; /* every waiting request is on one: its cached tokens are not
                                     * looked up yet; they are; it waits for something else */
    uint32_t n_aside;
    struct request **prefill; /* (max_num_seqs) of a step: running, more than one token lacking */
    uint32_t n_prefills;
    bool has_progress; /* prompt tokens were scheduled since the last look at `seen` */
};

/* What is left of a step. */
struct budget {
    const struct schedule *sched;
    uint64_t now_us;
    uint32_t tokens;
    uint32_t scores; /* sampled positions are never short: one per row is set aside for them */
    double left_s;   /* for prompts, by the ITL target; INFINITY: no limit, NAN: not known yet */
    uint32_t least;  /* prompt tokens that it leaves in any case */
};

static inline struct request *request_of(struct list *link) {
    return link ? LIST_ENTRY(link, struct request, link) : NULL;
}

/* --- scheduler.c ------------------------------------------------------------------------------ */

/* Tokens of r that can be computed from `first` on. */
uint32_t scheduler_count_ready(const struct scheduler *s, const struct request *r, uint32_t first);
/* How many tokens from `first` on this step can give to r; 0 when it must wait. */
uint32_t scheduler_fit(const struct scheduler *s, const struct request *r, uint32_t first,
                       struct budget *b);
void scheduler_give(struct scheduler *s, struct schedule *sched, struct budget *b,
                    struct request *r, uint32_t n);
/* Blocks for the next n tokens of a running request, if necessary by preempting others. False when
 * there are none; then the request itself may have been preempted. */
bool scheduler_make_room(struct scheduler *s, struct schedule *sched, struct request *r,
                         uint32_t n);
bool scheduler_has_room(const struct scheduler *s, const struct budget *b);
/* Back from host memory; false while anything must stay out. */
bool scheduler_resume_swapped(struct scheduler *s, struct schedule *sched, struct budget *b);
/* True: a request that held blocks without need has lost them. */
bool scheduler_break_deadlock(struct scheduler *s, const struct schedule *sched);

/* --- admission.c ------------------------------------------------------------------------------ */

enum admission_result {
    ADMISSION_DONE,
    ADMISSION_PASSED, /* it waits for something that is not room: others may pass it */
    ADMISSION_MOVED,  /* POLICY_SRPT: it lacks more than its key has; its place is another one */
    ADMISSION_FULL,   /* it must keep waiting, and so must all requests behind it */
};
enum admission_result scheduler_admit(struct scheduler *s, struct schedule *sched, struct budget *b,
                                      struct request *r);
/* It waits for its parent, a load, or the other beams of its search. Drops a parent that has
 * ended. */
bool scheduler_is_blocked(const struct scheduler *s, struct request *r);

/* --- by_remaining.c --------------------------------------------------------------------------- */

static inline bool scheduler_is_srpt(const struct scheduler *s) {
    return s->options.policy == POLICY_SRPT;
}
void scheduler_step_by_remaining(struct scheduler *s, struct schedule *sched, struct budget *b);
/* r has begun to wait, waits no longer, or ends. Nothing under other policies. */
void scheduler_order_enter(struct scheduler *s, struct request *r);
void scheduler_order_leave(struct scheduler *s, struct request *r);
void scheduler_order_end(struct scheduler *s, struct request *r);
/* n_have tokens of r need not be computed. False: it lacks more than its key has. */
bool scheduler_order_found(struct scheduler *s, struct request *r, uint32_t n_have);
/* r is about to run. */
void scheduler_order_begin(struct scheduler *s, struct request *r);
/* n more tokens of r, which is in progress, are scheduled. */
void scheduler_order_gave(struct scheduler *s, struct request *r, uint32_t n);
bool scheduler_order_may_begin(const struct scheduler *s, const struct request *r, uint32_t n_have,
                               uint32_t n);
/* Whose blocks `r` may have; NULL: no one's. */
struct request *scheduler_order_victim(const struct scheduler *s, const struct request *r);
/* Is the oldest prompt older than it may become under an ITL target? */
bool scheduler_order_is_overdue(const struct scheduler *s, uint64_t now_us);
void scheduler_order_check(const struct scheduler *s);

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

/* common/net/loop.h - one event loop: descriptors, timers, signals, and work put off to a safe
 * moment.
 *
 * A loop belongs to one thread, and everything made on it is used from that thread alone; other
 * threads reach it through a mailbox. It turns:
 *
 *      wait for descriptors and timers -> call what is due -> run what was deferred -> send -> again
 *
 * One turn has one time: loop_now_us reads the clock at the first question of a turn and gives the
 * same answer until the next, so a thousand timeouts cost one clock read.
 *
 * An object that a callback may still name is not freed in that callback but deferred: deferred
 * tasks run when all events of the turn are done, before the loop waits again. After them, last of
 * all, goes what the turn has to send (conn.h): many small writes leave as one, and the processes
 * that are written to find all their work at once. One that is sent a request in the middle of our
 * turn wakes, serves it and sleeps again before the next is sent: on a virtual machine each wake-up
 * costs the sender 1-2 us, 8 % of a proxied request of 1 KB.
 *
 * Underneath is a libevent base without locks; only loop.c knows it. */
#ifndef COMMON_NET_LOOP_H
#define COMMON_NET_LOOP_H

#include "common/base/list.h"
#include "common/base/status.h"
#include "common/net/timer_wheel.h"

struct event; /* libevent's; never looked into */
struct loop;
struct iobuf_slab;

MUST_USE enum status loop_create(struct loop **out, struct error *err);

/* Runs the tasks still deferred, then frees. Descriptors, timers and mailboxes on it must be
 * gone. */
void loop_destroy(struct loop *loop); /* NULL is fine */

/* Turns until loop_stop. May be called again afterwards. Ignore SIGPIPE before (main does). */
void loop_run(struct loop *loop);

/* One turn: waits at most max_wait_us for something to do (0: does not wait). For tests and for
 * threads that have other work as well. */
void loop_turn(struct loop *loop, uint64_t max_wait_us);

/* From the loop's own thread (a callback): the current turn is finished, then loop_run returns. */
void loop_stop(struct loop *loop);

uint64_t loop_now_us(struct loop *loop); /* monotonic; constant within one turn */

/* The longest turn, waiting not counted, since this was last asked: what everything else on the
 * loop had to wait for at once. */
uint64_t loop_longest_turn_us(struct loop *loop);

/* The buffers shared by the connections of this loop (iobuf.h). */
struct iobuf_slab *loop_slab(struct loop *loop);

/* --- descriptors ---------------------------------------------------------------------------- */

enum { LOOP_READ = 1, LOOP_WRITE = 2 };

/* `ready` has the reported bits; one call carries one of them. An error or hang-up of the
 * descriptor is reported as readable and writable: the next recv or send returns the error. */
typedef void loop_fd_fn(unsigned ready, void *arg);

/* Level-triggered: called in every turn in which a watched condition holds. Embedded. */
struct loop_fd {
    struct loop *loop;
    loop_fd_fn *fn;
    void *arg;
    struct event *events[2]; /* read, write; made when first watched */
    int fd;
    uint8_t watched; /* LOOP_READ | LOOP_WRITE */
};

/* Watches nothing yet. The descriptor stays the caller's: close it after loop_fd_fini. */
void loop_fd_init(struct loop_fd *w, struct loop *loop, int fd, loop_fd_fn *fn, void *arg);
void loop_fd_fini(struct loop_fd *w); /* no call after this; fine inside its own callback */

/* Sets what is watched, 0 for nothing. Costs a system call only when something changes. */
void loop_fd_watch(struct loop_fd *w, unsigned conditions);

/* --- timers --------------------------------------------------------------------------------- */

/* For timeouts: most are started, restarted and stopped again, none of which costs more than a few
 * instructions (timer_wheel.h). A timer rings up to a millisecond late, and never early by the time
 * of the turn. One that starts itself again with 0 rings about once a millisecond. A timer may be
 * finished, and its memory freed, in its own callback or in that of another. */
typedef void loop_timer_fn(void *arg);

struct loop_timer {
    struct timer_wheel_entry entry;
    struct loop *loop;
    loop_timer_fn *fn;
    void *arg;
};

void loop_timer_init(struct loop_timer *t, struct loop *loop, loop_timer_fn *fn, void *arg);
void loop_timer_fini(struct loop_timer *t);                     /* a zeroed one is fine */
void loop_timer_start(struct loop_timer *t, uint64_t after_us); /* once; restarts a running one */
void loop_timer_stop(struct loop_timer *t);
static inline bool loop_timer_is_running(const struct loop_timer *t) {
    return list_is_linked(&t->entry.link);
}

/* --- deferred work -------------------------------------------------------------------------- */

typedef void loop_task_fn(void *arg);

/* Embedded. A task is deferred exactly while it is linked. */
struct loop_task {
    struct list link;
    loop_task_fn *fn;
    void *arg;
};

void loop_task_init(struct loop_task *task, loop_task_fn *fn, void *arg);

/* Runs task->fn once, when the events of this turn are done. Deferring it again meanwhile changes
 * nothing. A task deferred by a task runs one turn later (the loop does not wait before it). The
 * function may free the memory that holds the task. */
void loop_defer(struct loop *loop, struct loop_task *task);

/* The same, but after all tasks that were deferred with loop_defer: for sending. One that comes
 * from a deferred task still runs in this turn. */
void loop_defer_last(struct loop *loop, struct loop_task *task);

void loop_defer_cancel(struct loop_task *task); /* fine when not deferred */
static inline bool loop_task_is_deferred(const struct loop_task *task) {
    return list_is_linked(&task->link);
}

/* --- signals -------------------------------------------------------------------------------- */

typedef void loop_signal_fn(int signo, void *arg);

/* Calls fn on the loop, as an ordinary event, for each delivery. Only one loop of a process may
 * have signals (the control loop). Lasts until loop_destroy. */
MUST_USE enum status loop_on_signal(struct loop *loop, int signo, loop_signal_fn *fn, void *arg,
                                    struct error *err);

#endif

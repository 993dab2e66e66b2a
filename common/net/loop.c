/* common/net/loop.c - the loop over one libevent base; the only file that knows libevent.
 *
 * One turn is one event_base_loop(EVLOOP_ONCE), so that there is a moment after all events of a
 * turn and before the next wait: that is where deferred tasks run.
 *
 * Timers lie on a wheel of our own; the kernel has one, the alarm, a timerfd that is set before
 * each wait to the moment that the wheel asks for. In most turns it is set to that already. It is
 * none of libevent's because these go by the kernel's coarse clock: up to four wake-ups, a
 * millisecond apart, for each time that something is due. */
#include "common/net/loop.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <event2/event.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/net/iobuf.h"

#define TRIM_US        1000000u /* how long a buffer may lie unused while many do */
#define ALARM_HAS_RUNG 0        /* alarm_us while its descriptor is watched, and readable still */

struct loop {
    struct event_base *base;
    struct event *wait_limit; /* ends the wait of loop_turn */
    struct event *alarm;      /* of the wheel: alarm_fd is readable */
    uint64_t alarm_us;        /* when it rings; TIMER_WHEEL_NEVER: it is not watched */
    int alarm_fd;
    struct iobuf_slab *slab;
    struct loop_timer trim;  /* runs while the slab is full */
    struct list tasks, last; /* struct loop_task, each in the order they were deferred */
    struct list signals;
    uint64_t now_us;     /* 0: not asked for in this turn */
    uint64_t longest_us; /* turn, since it was last asked for */
    bool is_turning, is_stopping;
    struct timer_wheel wheel;
};

struct loop_signal {
    struct list link;
    struct event *event;
    loop_signal_fn *fn;
    void *arg;
};

/* Small bookkeeping was refused: as in mem_alloc, there is nothing to go on with. */
static NORETURN void die(const char *what) {
    fprintf(stderr, "incipit: cannot %s: %s\n", what, strerror(errno));
    abort();
}

static void wait_is_over(evutil_socket_t fd, short what, void *arg) {
    (void)fd;
    (void)what;
    (void)arg;
}

static void alarm_rings(evutil_socket_t fd, short what, void *arg) {
    struct loop *loop = arg;
    uint64_t now_us = loop_now_us(loop);
    struct timer_wheel_entry *e;

    (void)fd;
    (void)what;
    loop->alarm_us = ALARM_HAS_RUNG;
    while ((e = timer_wheel_pop(&loop->wheel, now_us))) {
        struct loop_timer *t = CONTAINER_OF(e, struct loop_timer, entry);

        t->fn(t->arg);
    }
}

static struct timeval timeval_of(uint64_t us) {
    return (struct timeval){(time_t)(us / 1000000u), (suseconds_t)(us % 1000000u)};
}

/* Setting it cancels an earlier expiry, so that no read is needed. */
static void set_alarm(struct loop *loop) {
    uint64_t next_us = timer_wheel_next_us(&loop->wheel);
    struct itimerspec at = {
        .it_value = {(time_t)(next_us / 1000000u), (long)(next_us % 1000000u * 1000u)}};

    if (next_us == loop->alarm_us) return;
    if (next_us == TIMER_WHEEL_NEVER) {
        event_del(loop->alarm);
    } else if (timerfd_settime(loop->alarm_fd, TFD_TIMER_ABSTIME, &at, NULL) != 0 ||
               (loop->alarm_us == TIMER_WHEEL_NEVER && event_add(loop->alarm, NULL) != 0)) {
        die("set a timer");
    }
    loop->alarm_us = next_us;
}

static void trim(void *arg) {
    struct loop *loop = arg;

    if (iobuf_slab_trim(loop->slab)) loop_timer_start(&loop->trim, TRIM_US);
}

enum status loop_create(struct loop **out, struct error *err) {
    struct event_config *config = event_config_new();
    struct loop *loop = mem_zalloc(sizeof(*loop));

    loop->alarm_fd = -1;
    list_init(&loop->tasks);
    list_init(&loop->last);
    list_init(&loop->signals);
    if (!config || event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK) != 0) goto fail;
    loop->base = event_base_new_with_config(config);
    if (!loop->base) goto fail;
    loop->wait_limit = event_new(loop->base, -1, 0, wait_is_over, NULL);
    loop->alarm_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (!loop->wait_limit || loop->alarm_fd < 0) goto fail;
    loop->alarm = event_new(loop->base, loop->alarm_fd, EV_READ | EV_PERSIST, alarm_rings, loop);
    if (!loop->alarm) goto fail;
    timer_wheel_init(&loop->wheel, clock_now_us());
    loop->alarm_us = TIMER_WHEEL_NEVER;
    loop->slab = iobuf_slab_create();
    loop_timer_init(&loop->trim, loop, trim, loop);
    event_config_free(config);
    *out = loop;
    return ST_OK;
fail:
    if (config) event_config_free(config);
    loop_destroy(loop);
    return error_set(err, ST_IO,
                     "cannot create an event loop: raise the limit of open files (ulimit -n)");
}

static bool has_tasks(const struct loop *loop) {
    return !list_is_empty(&loop->tasks) || !list_is_empty(&loop->last);
}

static void run_all(struct list *tasks) {
    struct list batch, *link;

    list_init(&batch);
    list_splice_back(&batch, tasks); /* what they put there again runs in the next turn */
    while ((link = list_pop_front(&batch))) {
        struct loop_task *task = LIST_ENTRY(link, struct loop_task, link);

        task->fn(task->arg);
    }
}

static void run_tasks(struct loop *loop) {
    run_all(&loop->tasks);
    run_all(&loop->last);
}

void loop_destroy(struct loop *loop) {
    if (!loop) return;
    while (has_tasks(loop))
        run_tasks(loop);
    LIST_FOR_EACH(it, &loop->signals) {
        struct loop_signal *s = LIST_ENTRY(it, struct loop_signal, link);

        event_free(s->event);
        mem_free(s);
    }
    if (loop->wait_limit) event_free(loop->wait_limit);
    if (loop->alarm) event_free(loop->alarm);
    if (loop->alarm_fd >= 0) close(loop->alarm_fd);
    if (loop->base) event_base_free(loop->base);
    loop_timer_fini(&loop->trim);
    iobuf_slab_destroy(loop->slab);
    mem_free(loop);
}

/* Returns false when there was nothing to wait for and nothing to run. Always EVLOOP_ONCE: without
 * it libevent comes back when nothing is ready any more, which may be never. */
static bool turn(struct loop *loop, bool may_wait) {
    bool had_tasks = has_tasks(loop);
    int flags = may_wait && !had_tasks ? EVLOOP_ONCE : EVLOOP_ONCE | EVLOOP_NONBLOCK;
    int no_events;

    set_alarm(loop);
    loop->now_us = 0;
    loop->is_turning = true;
    no_events = event_base_loop(loop->base, flags);
    if (has_tasks(loop)) {
        (void)loop_now_us(loop);
        run_tasks(loop);
    }
    if (iobuf_slab_is_full(loop->slab) && !loop_timer_is_running(&loop->trim))
        loop_timer_start(&loop->trim, TRIM_US);
    loop->is_turning = false;
    if (loop->now_us) loop->longest_us = MAX(loop->longest_us, clock_now_us() - loop->now_us);
    return had_tasks || no_events == 0;
}

void loop_run(struct loop *loop) {
    loop->is_stopping = false;
    while (!loop->is_stopping && turn(loop, true)) {
    }
}

void loop_turn(struct loop *loop, uint64_t max_wait_us) {
    struct timeval tv = timeval_of(max_wait_us);

    if (max_wait_us == 0) {
        turn(loop, false);
        return;
    }
    event_add(loop->wait_limit, &tv);
    turn(loop, true);
    event_del(loop->wait_limit);
}

void loop_stop(struct loop *loop) {
    loop->is_stopping = true;
}

uint64_t loop_now_us(struct loop *loop) {
    if (loop->now_us == 0) loop->now_us = clock_now_us();
    return loop->now_us;
}

uint64_t loop_longest_turn_us(struct loop *loop) {
    uint64_t us = loop->longest_us;

    loop->longest_us = 0;
    return us;
}

struct iobuf_slab *loop_slab(struct loop *loop) {
    return loop->slab;
}

/* --- descriptors ---------------------------------------------------------------------------- */

static void fd_is_ready(evutil_socket_t fd, short what, void *arg) {
    struct loop_fd *w = arg;

    (void)fd;
    (void)loop_now_us(w->loop); /* the turn begins here, if nothing was before */
    w->fn(what & EV_READ ? LOOP_READ : LOOP_WRITE, w->arg);
}

void loop_fd_init(struct loop_fd *w, struct loop *loop, int fd, loop_fd_fn *fn, void *arg) {
    *w = (struct loop_fd){.loop = loop, .fn = fn, .arg = arg, .fd = fd};
}

void loop_fd_fini(struct loop_fd *w) {
    for (int i = 0; i < 2; i++) {
        if (w->events[i]) event_free(w->events[i]);
        w->events[i] = NULL;
    }
    w->watched = 0;
}

static void watch_one(struct loop_fd *w, int i, short what, bool on) {
    if (!on) {
        event_del(w->events[i]);
        return;
    }
    if (!w->events[i]) {
        w->events[i] = event_new(w->loop->base, w->fd, (short)(what | EV_PERSIST), fd_is_ready, w);
    }
    if (!w->events[i] || event_add(w->events[i], NULL) != 0) die("watch a descriptor");
}

void loop_fd_watch(struct loop_fd *w, unsigned conditions) {
    unsigned change = conditions ^ w->watched;

    if (change & LOOP_READ) watch_one(w, 0, EV_READ, conditions & LOOP_READ);
    if (change & LOOP_WRITE) watch_one(w, 1, EV_WRITE, conditions & LOOP_WRITE);
    w->watched = (uint8_t)conditions;
}

/* --- timers --------------------------------------------------------------------------------- */

void loop_timer_init(struct loop_timer *t, struct loop *loop, loop_timer_fn *fn, void *arg) {
    *t = (struct loop_timer){.loop = loop, .fn = fn, .arg = arg};
}

void loop_timer_fini(struct loop_timer *t) {
    timer_wheel_stop(&t->entry);
    *t = (struct loop_timer){0};
}

void loop_timer_start(struct loop_timer *t, uint64_t after_us) {
    /* Between turns, the time of the last one may be long ago. */
    uint64_t now_us = t->loop->is_turning ? loop_now_us(t->loop) : clock_now_us();

    timer_wheel_start(&t->loop->wheel, &t->entry, now_us + MIN(after_us, UINT64_MAX - now_us));
}

void loop_timer_stop(struct loop_timer *t) {
    timer_wheel_stop(&t->entry);
}

/* --- deferred work -------------------------------------------------------------------------- */

void loop_task_init(struct loop_task *task, loop_task_fn *fn, void *arg) {
    *task = (struct loop_task){.fn = fn, .arg = arg};
}

void loop_defer(struct loop *loop, struct loop_task *task) {
    if (!list_is_linked(&task->link)) list_push_back(&loop->tasks, &task->link);
}

void loop_defer_last(struct loop *loop, struct loop_task *task) {
    if (!list_is_linked(&task->link)) list_push_back(&loop->last, &task->link);
}

void loop_defer_cancel(struct loop_task *task) {
    if (list_is_linked(&task->link)) list_remove(&task->link);
}

/* --- signals -------------------------------------------------------------------------------- */

static void signal_came(evutil_socket_t signo, short what, void *arg) {
    struct loop_signal *s = arg;

    (void)what;
    s->fn((int)signo, s->arg);
}

enum status loop_on_signal(struct loop *loop, int signo, loop_signal_fn *fn, void *arg,
                           struct error *err) {
    struct loop_signal *s = mem_zalloc(sizeof(*s));

    s->fn = fn;
    s->arg = arg;
    s->event = event_new(loop->base, signo, EV_SIGNAL | EV_PERSIST, signal_came, s);
    if (!s->event || event_add(s->event, NULL) != 0) {
        if (s->event) event_free(s->event);
        mem_free(s);
        return error_set(err, ST_IO, "cannot handle signal %d on this loop", signo);
    }
    list_push_back(&loop->signals, &s->link);
    return ST_OK;
}

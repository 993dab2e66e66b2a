/* tests/unit/common/net/test_loop.c - turns, deferred tasks, timers, descriptors, signals. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "tests/support/cm.h"

struct fixture {
    struct loop *loop;
    char log[256];
    struct loop_task a, b;
    struct loop_timer timer;
    struct loop_fd fd;
    int pipe[2];
    int n_rings;
};

static void note(struct fixture *fx, const char *what) {
    strncat(fx->log, what, sizeof(fx->log) - strlen(fx->log) - 1);
}

static void start(struct fixture *fx) {
    memset(fx, 0, sizeof(*fx));
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    assert_int_equal(pipe(fx->pipe), 0);
}

static void finish(struct fixture *fx) {
    close(fx->pipe[0]);
    close(fx->pipe[1]);
    loop_destroy(fx->loop);
}

static void note_a(void *arg) {
    note(arg, "a");
}

static void note_b_then_defer_a(void *arg) {
    struct fixture *fx = arg;

    note(fx, "b");
    loop_defer(fx->loop, &fx->a);
}

static void note_and_stop(void *arg) {
    struct fixture *fx = arg;

    note(fx, "t");
    loop_stop(fx->loop);
}

static void deferred_tasks_run_once_in_order_and_theirs_a_turn_later(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx);
    loop_task_init(&fx.a, note_a, &fx);
    loop_task_init(&fx.b, note_b_then_defer_a, &fx);
    loop_defer(fx.loop, &fx.a);
    loop_defer(fx.loop, &fx.b);
    loop_defer(fx.loop, &fx.a);
    loop_turn(fx.loop, 0);
    assert_string_equal(fx.log, "ab");
    loop_turn(fx.loop, 1000000); /* does not wait: a task is there */
    assert_string_equal(fx.log, "aba");
    loop_defer(fx.loop, &fx.a);
    loop_defer_cancel(&fx.a);
    loop_turn(fx.loop, 0);
    assert_string_equal(fx.log, "aba");
    loop_defer(fx.loop, &fx.b);
    loop_destroy(fx.loop); /* runs what is left, and what that defers */
    assert_string_equal(fx.log, "ababa");
    fx.loop = NULL;
    finish(&fx);
}

static void defer_b_last(void *arg) {
    struct fixture *fx = arg;

    note(fx, "c");
    loop_defer_last(fx->loop, &fx->b);
}

static void note_d_and_defer_it_again(void *arg) {
    struct fixture *fx = arg;

    note(fx, "d");
    loop_defer_last(fx->loop, &fx->b);
}

static void the_last_run_after_all_others_of_the_turn(void **state) {
    struct loop_task c;
    struct fixture fx;

    (void)state;
    start(&fx);
    loop_task_init(&fx.a, note_a, &fx);
    loop_task_init(&fx.b, note_d_and_defer_it_again, &fx);
    loop_task_init(&c, defer_b_last, &fx);
    loop_defer_last(fx.loop, &fx.a);
    loop_defer(fx.loop, &c);
    loop_turn(fx.loop, 0);
    assert_string_equal(fx.log, "cad"); /* that of a task: in the same turn */
    loop_turn(fx.loop, 1000000);        /* that of a last one: in the next, without waiting */
    assert_string_equal(fx.log, "cadd");
    assert_true(loop_task_is_deferred(&fx.b));
    loop_defer_cancel(&fx.b);
    loop_turn(fx.loop, 0);
    assert_string_equal(fx.log, "cadd");
    finish(&fx);
}

static void a_run_ends_when_stopped_and_can_go_on(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx);
    loop_timer_init(&fx.timer, fx.loop, note_and_stop, &fx);
    for (int i = 0; i < 2; i++) {
        loop_timer_start(&fx.timer, 1000);
        assert_true(loop_timer_is_running(&fx.timer));
        loop_run(fx.loop);
        assert_false(loop_timer_is_running(&fx.timer));
    }
    assert_string_equal(fx.log, "tt");
    loop_run(fx.loop); /* nothing to wait for: returns */
    loop_timer_start(&fx.timer, 1000);
    loop_timer_stop(&fx.timer);
    loop_turn(fx.loop, 5000);
    assert_string_equal(fx.log, "tt");
    loop_timer_fini(&fx.timer);
    finish(&fx);
}

static void timers_restart_and_keep_their_time(void **state) {
    struct fixture fx;
    uint64_t began_us, took_us;

    (void)state;
    start(&fx);
    loop_timer_init(&fx.timer, fx.loop, note_and_stop, &fx);
    loop_timer_start(&fx.timer, 60000000);
    loop_timer_start(&fx.timer, 30000);
    began_us = clock_now_us();
    loop_run(fx.loop);
    took_us = clock_now_us() - began_us;
    assert_in_range(took_us, 20000, 50000000); /* early by the coarse clock at most */
    loop_timer_fini(&fx.timer);
    finish(&fx);
}

/* Timers of one moment, each in memory of its own, so that a look at one that is gone shows. */
struct ringer {
    struct loop_timer timer;
    struct fixture *fx;
    struct ringer *victim; /* is destroyed when this one rings */
    char name[2];
};

static struct ringer *ringer_create(struct fixture *fx, char name, loop_timer_fn *fn) {
    struct ringer *r = mem_zalloc(sizeof(*r));

    r->fx = fx;
    r->name[0] = name;
    loop_timer_init(&r->timer, fx->loop, fn, r);
    return r;
}

static void ringer_destroy(struct ringer *r) {
    loop_timer_fini(&r->timer);
    mem_free(r);
}

static void note_and_destroy(void *arg) {
    struct ringer *r = arg;

    note(r->fx, r->name);
    if (r->victim) ringer_destroy(r->victim);
}

static void note_and_finish_itself(void *arg) {
    struct ringer *r = arg;

    note(r->fx, r->name);
    loop_timer_fini(&r->timer);
    assert_false(loop_timer_is_running(&r->timer));
}

static void start_all(void *arg) {
    struct ringer **rs = arg;

    for (; *rs; rs++)
        loop_timer_start(&(*rs)->timer, 2000); /* in one turn: at the same moment */
}

static void timers_may_go_while_those_of_their_moment_ring(void **state) {
    struct ringer *rs[6] = {NULL};
    struct loop_task task;
    struct fixture fx;

    (void)state;
    start(&fx);
    for (int i = 0; i < 5; i++)
        rs[i] =
            ringer_create(&fx, (char)('a' + i), i == 1 ? note_and_finish_itself : note_and_destroy);
    rs[0]->victim = rs[0]; /* itself */
    rs[2]->victim = rs[3]; /* the next */
    rs[4]->victim = rs[2]; /* one that has rung */
    loop_task_init(&task, start_all, rs);
    loop_defer(fx.loop, &task);
    for (int i = 0; i < 200 && !strchr(fx.log, 'e'); i++)
        loop_turn(fx.loop, 10000);
    assert_string_equal(fx.log, "abce");
    ringer_destroy(rs[1]);
    ringer_destroy(rs[4]);
    finish(&fx);
}

static void stopping_the_earliest_leaves_the_others(void **state) {
    struct ringer *first, *second;
    struct fixture fx;

    (void)state;
    start(&fx);
    first = ringer_create(&fx, 'a', note_and_destroy);
    second = ringer_create(&fx, 'b', note_and_destroy);
    loop_timer_init(&fx.timer, fx.loop, note_and_stop, &fx);
    loop_timer_start(&first->timer, 200000);
    loop_timer_start(&second->timer, 202000);
    loop_timer_start(&fx.timer, 204000);
    loop_turn(fx.loop, 0); /* the alarm is set to the first */
    loop_timer_stop(&first->timer);
    loop_run(fx.loop);
    assert_string_equal(fx.log, "bt");
    ringer_destroy(first);
    ringer_destroy(second);
    loop_timer_fini(&fx.timer);
    finish(&fx);
}

static void note_and_start_at_once(void *arg) {
    struct fixture *fx = arg;

    fx->n_rings++;
    loop_timer_start(&fx->timer, 0);
}

static void a_timer_that_starts_itself_at_once_rings_once_a_tick(void **state) {
    struct fixture fx;
    uint64_t began_us;

    (void)state;
    start(&fx);
    began_us = clock_now_us();
    loop_timer_init(&fx.timer, fx.loop, note_and_start_at_once, &fx);
    loop_timer_start(&fx.timer, 0);
    while (fx.n_rings < 50) {
        int before = fx.n_rings;

        loop_turn(fx.loop, 1000000);
        assert_in_range(fx.n_rings - before, 0,
                        2); /* the other events of the loop have their turn */
    }
    assert_true(clock_now_us() - began_us >=
                25 * TIMER_WHEEL_TICK_US); /* early by some, not by all */
    loop_timer_fini(&fx.timer);
    finish(&fx);
}

static void time_stands_still_within_a_turn(void **state) {
    struct fixture fx;
    uint64_t now_us;

    (void)state;
    start(&fx);
    now_us = loop_now_us(fx.loop);
    usleep(2000);
    assert_true(loop_now_us(fx.loop) == now_us);
    loop_turn(fx.loop, 0);
    assert_true(loop_now_us(fx.loop) >= now_us + 2000);
    finish(&fx);
}

static void read_one(unsigned ready, void *arg) {
    struct fixture *fx = arg;
    char c;

    assert_int_equal(ready, LOOP_READ);
    assert_int_equal(read(fx->pipe[0], &c, 1), 1);
    note(fx, "r");
    if (c == '!') loop_fd_fini(&fx->fd);
}

static void watched_descriptors_are_reported_while_ready(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx);
    loop_fd_init(&fx.fd, fx.loop, fx.pipe[0], read_one, &fx);
    loop_turn(fx.loop, 0);
    loop_fd_watch(&fx.fd, LOOP_READ);
    assert_int_equal(write(fx.pipe[1], "12", 2), 2);
    loop_turn(fx.loop, 0);
    loop_turn(fx.loop, 0);
    loop_turn(fx.loop, 0);
    assert_string_equal(fx.log, "rr");
    loop_fd_watch(&fx.fd, 0);
    assert_int_equal(write(fx.pipe[1], "!?", 2), 2);
    loop_turn(fx.loop, 0);
    assert_string_equal(fx.log, "rr");
    loop_fd_watch(&fx.fd, LOOP_READ);
    loop_turn(fx.loop, 0);
    loop_turn(fx.loop, 0); /* finished in its own callback: no call for the second */
    assert_string_equal(fx.log, "rrr");
    finish(&fx);
}

static void on_signal(int signo, void *arg) {
    struct fixture *fx = arg;

    assert_int_equal(signo, SIGUSR1);
    note(fx, "s");
    loop_stop(fx->loop);
}

static void signals_come_as_events(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx);
    assert_int_equal(loop_on_signal(fx.loop, SIGUSR1, on_signal, &fx, NULL), ST_OK);
    raise(SIGUSR1);
    assert_string_equal(fx.log, "");
    loop_run(fx.loop);
    assert_string_equal(fx.log, "s");
    finish(&fx);
}

struct self_freeing {
    struct loop_task task;
    char *freed;
};

static void free_self(void *arg) {
    struct self_freeing *s = arg;

    *s->freed = 'f';
    mem_free(s);
}

static void a_task_may_free_itself(void **state) {
    struct self_freeing *s = mem_zalloc(sizeof(*s));
    struct fixture fx;

    (void)state;
    start(&fx);
    s->freed = fx.log;
    loop_task_init(&s->task, free_self, s);
    loop_defer(fx.loop, &s->task);
    loop_turn(fx.loop, 0);
    assert_string_equal(fx.log, "f");
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deferred_tasks_run_once_in_order_and_theirs_a_turn_later),
        cmocka_unit_test(the_last_run_after_all_others_of_the_turn),
        cmocka_unit_test(a_run_ends_when_stopped_and_can_go_on),
        cmocka_unit_test(timers_restart_and_keep_their_time),
        cmocka_unit_test(timers_may_go_while_those_of_their_moment_ring),
        cmocka_unit_test(stopping_the_earliest_leaves_the_others),
        cmocka_unit_test(a_timer_that_starts_itself_at_once_rings_once_a_tick),
        cmocka_unit_test(time_stands_still_within_a_turn),
        cmocka_unit_test(watched_descriptors_are_reported_while_ready),
        cmocka_unit_test(signals_come_as_events),
        cmocka_unit_test(a_task_may_free_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

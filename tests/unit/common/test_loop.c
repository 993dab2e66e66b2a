/* tests/unit/common/test_loop.c - turns, deferred tasks, timers, descriptors, signals. */
#include "common/loop.h"

#include "common/clock.h"
#include "common/mem.h"
#include "tests/support/cm.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct fixture {
    struct loop *loop;
    char log[256];
    struct loop_task a, b;
    struct loop_timer timer;
    struct loop_fd fd;
    int pipe[2];
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

static void watched_descriptors_are_told_while_ready(void **state) {
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
    loop_turn(fx.loop, 0); /* finished in its own callback: not told of the second */
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
        cmocka_unit_test(time_stands_still_within_a_turn),
        cmocka_unit_test(watched_descriptors_are_told_while_ready),
        cmocka_unit_test(signals_come_as_events),
        cmocka_unit_test(a_task_may_free_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

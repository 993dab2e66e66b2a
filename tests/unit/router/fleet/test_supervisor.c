/* tests/unit/router/fleet/test_supervisor.c - children that are small shell scripts. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/net/loop.h"
#include "router/fleet/supervisor.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"

struct fixture {
    struct loop *loop;
    struct supervisor *supervisor;
    char dir[64], program[96], notes[96];
    int n_fatal, n_stopped;
    struct error fatal;
};

static void on_fatal(const struct error *err, void *arg) {
    struct fixture *fx = arg;

    fx->n_fatal++;
    fx->fatal = *err;
}

static void on_stopped(void *arg) {
    ((struct fixture *)arg)->n_stopped++;
}

/* The script is given its own notes file as $1. */
static void start_on(struct fixture *fx, const char *script, uint32_t n_children,
                     const char *const *devices) {
    const char *args[] = {fx->notes, NULL};
    struct supervisor_config config = {.program = fx->program,
                                       .args = args,
                                       .n_children = n_children,
                                       .devices = devices,
                                       .first_port = 45000,
                                       .n_threads = 3,
                                       .backoff_min_us = 20000,
                                       .backoff_max_us = 80000};
    FILE *f;

    memset(fx, 0, sizeof(*fx));
    snprintf(fx->dir, sizeof(fx->dir), "/tmp/test_supervisor.XXXXXX");
    assert_non_null(mkdtemp(fx->dir));
    snprintf(fx->program, sizeof(fx->program), "%s/worker", fx->dir);
    snprintf(fx->notes, sizeof(fx->notes), "%s/notes", fx->dir);
    f = fopen(fx->program, "w");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\n%s\n", script);
    fclose(f);
    assert_int_equal(chmod(fx->program, 0700), 0);
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    assert_int_equal(
        supervisor_create(&fx->supervisor, fx->loop, NULL, &config, on_fatal, fx, NULL), ST_OK);
}

static void start(struct fixture *fx, const char *script, uint32_t n_children) {
    start_on(fx, script, n_children, NULL);
}

static void finish(struct fixture *fx) {
    supervisor_destroy(fx->supervisor);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no zombie, no child */
    assert_int_equal(errno, ECHILD);
    loop_destroy(fx->loop);
    unlink(fx->notes);
    unlink(fx->program);
    rmdir(fx->dir);
}

/* What the children have written so far. */
static const char *notes(struct fixture *fx) {
    static char text[65536];
    FILE *f = fopen(fx->notes, "r");
    size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;

    text[n] = '\0';
    if (f) fclose(f);
    return text;
}

static int n_lines(struct fixture *fx, const char *line) {
    int n = 0;

    for (const char *p = notes(fx); (p = strstr(p, line)); p++)
        n++;
    return n;
}

static int n_open_descriptors(void) {
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void a_child_gets_its_arguments_and_a_clean_environment(void **state) {
    struct fixture fx;
    int leaky = dup2(2, 9); /* without O_CLOEXEC, as a library might */
    unsigned long long ignored;

    (void)state;
    setenv("INCIPIT_PORT", "1", 1);
    setenv("INCIPIT_API_KEY", "secret", 1);
    setenv("NOT_INCIPIT_PORT", "kept", 1);
    start(&fx,
          "echo \"args $*\" >> $1; env >> $1; \n"
          "for i in 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$i ] && echo leaked >> $1; done\n"
          "cut -d' ' -f5 /proc/$$/stat | sed \"s/^$$\\$/own group/\" >> $1\n"
          /* of grep itself, which inherits them: a shell that waits may block all signals */
          "grep -E 'Sig(Blk|Ign)' /proc/self/status >> $1; echo ready >> $1; exec sleep 60",
          1);
    TURN_UNTIL(fx.loop, n_lines(&fx, "ready") == 1);
    assert_int_equal(n_lines(&fx, "--port 450"), 1);
    assert_int_equal(n_lines(&fx, "--threads 3"), 1);
    assert_int_equal(n_lines(&fx, "\nINCIPIT_"), 0);
    assert_int_equal(n_lines(&fx, "NOT_INCIPIT_PORT=kept"), 1);
    assert_int_equal(n_lines(&fx, "own group"), 1);
    assert_int_equal(n_lines(&fx, "SigBlk:\t0000000000000000"), 1);
    /* 32 and 33 are the C library's own and cannot be set */
    ignored = strtoull(strstr(notes(&fx), "SigIgn:\t") + strlen("SigIgn:\t"), NULL, 16);
    assert_int_equal(ignored & 0x7FFFFFFF, 0);
    assert_int_equal(leaky, 9);
    assert_int_equal(n_lines(&fx, "leaked"), 0);
    close(leaky);
    finish(&fx);
    unsetenv("INCIPIT_PORT");
    unsetenv("INCIPIT_API_KEY");
}

static void a_dead_worker_restarts_after_a_doubling_pause(void **state) {
    struct fixture fx;
    uint64_t began_us = clock_now_us();
    int before;

    (void)state;
    before = n_open_descriptors();
    start(&fx, "echo started >> $1; exit 1", 1);
    TURN_UNTIL(fx.loop, n_lines(&fx, "started") == 5); /* 0, 20, 40, 80 ms between them */
    assert_true(clock_now_us() - began_us >= 120000);
    assert_true(supervisor_restarts(fx.supervisor) >= 4);
    assert_int_equal(fx.n_fatal, 0);
    finish(&fx);
    assert_int_equal(n_open_descriptors(), before);
}

static void a_killed_one_keeps_its_port(void **state) {
    struct fixture fx;
    uint16_t port;
    pid_t first;

    (void)state;
    start(&fx, "echo started >> $1; exec sleep 60", 2);
    TURN_UNTIL(fx.loop, n_lines(&fx, "started") == 2);
    assert_true(supervisor_port(fx.supervisor, 0) != supervisor_port(fx.supervisor, 1));
    port = supervisor_port(fx.supervisor, 0);
    first = supervisor_pid(fx.supervisor, 0);
    assert_int_equal(kill(first, SIGKILL), 0);
    TURN_UNTIL(fx.loop, n_lines(&fx, "started") == 3);
    assert_true(supervisor_pid(fx.supervisor, 0) != first);
    assert_int_equal(supervisor_port(fx.supervisor, 0), port);
    assert_int_equal(supervisor_restarts(fx.supervisor), 1);
    finish(&fx);
}

static void a_pinned_worker_restarts_on_its_device(void **state) {
    const char *const devices[] = {"GPU-0a", "GPU-1b", "GPU-2c"};
    struct fixture fx;

    (void)state;
    start_on(&fx, "echo \"$*\" >> $1; exec sleep 60", 3, devices);
    TURN_UNTIL(fx.loop, n_lines(&fx, "--device") == 3);
    for (int i = 0; i < 3; i++) /* each has its own */
        assert_int_equal(n_lines(&fx, devices[i]), 1);
    for (int round = 2; round <= 4; round++) {
        assert_int_equal(kill(supervisor_pid(fx.supervisor, 1), SIGKILL), 0);
        TURN_UNTIL(fx.loop, n_lines(&fx, "--device GPU-1b") == round);
    }
    assert_int_equal(n_lines(&fx, "--device"), 6);
    finish(&fx);
}

static void a_first_start_that_refuses_its_options_is_fatal_once(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, "echo started >> $1; exit 2", 2);
    TURN_UNTIL(fx.loop, n_lines(&fx, "started") == 2 && fx.n_fatal);
    for (int i = 0; i < 20; i++)
        loop_turn(fx.loop, 10000);
    assert_int_equal(fx.n_fatal, 1);
    assert_int_equal(n_lines(&fx, "started"), 2);
    assert_int_equal(fx.fatal.status, ST_INVALID);
    finish(&fx);
}

static void a_later_one_is_only_tried_again(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, "echo started >> $1; [ $(grep -c started $1 2>/dev/null) -gt 1 ] && exit 2; exit 1",
          1);
    TURN_UNTIL(fx.loop, n_lines(&fx, "started") == 4);
    assert_int_equal(fx.n_fatal, 0);
    finish(&fx);
}

static void stopping_is_reported_once_after_the_last_exit(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx,
          "trap 'echo ended >> $1; exit 0' TERM; echo started >> $1; while :; do sleep 0.01; done",
          2);
    TURN_UNTIL(fx.loop, n_lines(&fx, "started") == 2);
    supervisor_stop(fx.supervisor, on_stopped, &fx);
    assert_int_equal(fx.n_stopped, 0);
    TURN_UNTIL(fx.loop, fx.n_stopped == 1);
    assert_int_equal(n_lines(&fx, "ended"), 2);
    finish(&fx);
}

static void stopping_a_worker_that_waits_for_its_restart_ends_at_once(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, "echo started >> $1; exit 1", 1);
    TURN_UNTIL(fx.loop, n_lines(&fx, "started") >= 3 && !supervisor_pid(fx.supervisor, 0));
    supervisor_stop(fx.supervisor, on_stopped, &fx);
    assert_int_equal(fx.n_stopped, 1);
    finish(&fx);
}

static void a_worker_that_ignores_sigterm_is_killed(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, "trap '' TERM; echo started >> $1; while :; do sleep 0.01; done", 1);
    TURN_UNTIL(fx.loop, n_lines(&fx, "started") == 1);
    supervisor_stop(fx.supervisor, on_stopped, &fx);
    for (int i = 0; i < 10; i++)
        loop_turn(fx.loop, 10000);
    assert_int_equal(fx.n_stopped, 0);
    finish(&fx); /* asserts that nothing is left */
}

static void a_program_that_is_not_there_is_named(void **state) {
    struct supervisor_config config = {
        .program = "/nonexistent/incipit-worker", .n_children = 1, .first_port = 45000};
    struct supervisor *s = NULL;
    struct error err = {0};
    struct loop *loop;

    (void)state;
    assert_int_equal(loop_create(&loop, NULL), ST_OK);
    assert_int_equal(supervisor_create(&s, loop, NULL, &config, on_fatal, NULL, &err),
                     ST_NOT_FOUND);
    assert_non_null(strstr(err.message, "/nonexistent/incipit-worker"));
    assert_null(s);
    loop_destroy(loop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_gets_its_arguments_and_a_clean_environment),
        cmocka_unit_test(a_dead_worker_restarts_after_a_doubling_pause),
        cmocka_unit_test(a_killed_one_keeps_its_port),
        cmocka_unit_test(a_pinned_worker_restarts_on_its_device),
        cmocka_unit_test(a_first_start_that_refuses_its_options_is_fatal_once),
        cmocka_unit_test(a_later_one_is_only_tried_again),
        cmocka_unit_test(stopping_is_reported_once_after_the_last_exit),
        cmocka_unit_test(stopping_a_worker_that_waits_for_its_restart_ends_at_once),
        cmocka_unit_test(a_worker_that_ignores_sigterm_is_killed),
        cmocka_unit_test(a_program_that_is_not_there_is_named),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

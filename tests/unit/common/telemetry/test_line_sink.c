/* tests/unit/common/telemetry/test_line_sink.c - lines that other threads put, as they arrive in
 * files. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/telemetry/line_sink.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static int open_temporary(char path[64]) {
    int fd;

    snprintf(path, 64, "/tmp/incipit-sink-XXXXXX");
    fd = mkostemp(path, O_APPEND | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static size_t count_lines(const char *path, const char *needle) {
    FILE *f = fopen(path, "r");
    size_t n = 0, len = 0;
    char *line = NULL;

    assert_non_null(f);
    while (getline(&line, &len, f) > 0)
        n += strstr(line, needle) != NULL;
    free(line);
    fclose(f);
    return n;
}

struct writer {
    pthread_t thread;
    struct line_sink *sink;
    int id;
};

static void *put_many(void *arg) {
    struct writer *w = arg;
    char line[64];

    for (int i = 0; i < 2000; i++) {
        int n = snprintf(line, sizeof(line), "writer=%d line=%d end\n", w->id, i);

        (void)line_sink_put(w->sink, (struct str){line, (size_t)n});
    }
    return NULL;
}

static void lines_of_threads_arrive_whole_or_are_counted(void **state) {
    struct writer writers[4];
    struct line_sink *s;
    uint64_t n_dropped;
    char path[64];

    (void)state;
    s = line_sink_create(open_temporary(path), true, 64 * 1024);
    for (int i = 0; i < 4; i++) {
        writers[i] = (struct writer){.sink = s, .id = i};
        assert_int_equal(pthread_create(&writers[i].thread, NULL, put_many, &writers[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(writers[i].thread, NULL);
    n_dropped = line_sink_n_dropped(s);
    line_sink_destroy(s);
    assert_int_equal(count_lines(path, "writer=") + n_dropped, 8000);
    assert_int_equal(count_lines(path, " end\n"), count_lines(path, "writer="));
    unlink(path);
}

static void a_line_that_is_too_long_is_dropped(void **state) {
    char path[64], line[5000];
    struct line_sink *s;

    (void)state;
    memset(line, 'x', sizeof(line));
    line[sizeof(line) - 1] = '\n';
    s = line_sink_create(open_temporary(path), true, 2 * 4999);
    assert_false(line_sink_put(s, (struct str){line, sizeof(line)}));
    assert_true(line_sink_put(s, (struct str){line + 1, sizeof(line) - 1}));
    assert_int_equal(line_sink_n_dropped(s), 1);
    line_sink_destroy(s);
    assert_int_equal(count_lines(path, "xxx"), 1);
    unlink(path);
}

static void after_reopening_lines_go_to_the_new_file(void **state) {
    char before[64], after[64];
    struct line_sink *s;

    (void)state;
    s = line_sink_create(open_temporary(before), true, 64 * 1024);
    assert_true(line_sink_put(s, STR("one\n")));
    while (count_lines(before, "one") == 0)
        continue; /* written */
    line_sink_reopen(s, open_temporary(after));
    assert_true(line_sink_put(s, STR("two\n")));
    line_sink_destroy(s);
    assert_int_equal(count_lines(before, ""), 1);
    assert_int_equal(count_lines(after, "two"), 1);
    unlink(before);
    unlink(after);
}

static void reopening_without_lines_is_fine(void **state) {
    char before[64], between[64], after[64];
    struct line_sink *s;

    (void)state;
    s = line_sink_create(open_temporary(before), true, 4096);
    line_sink_reopen(s, open_temporary(between));
    line_sink_reopen(s, open_temporary(after));
    line_sink_destroy(s);
    line_sink_destroy(NULL);
    unlink(before);
    unlink(between);
    unlink(after);
}

static void limit_files(rlim_t bytes) {
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes == RLIM_INFINITY ? limit.rlim_max : bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* As when the disk is full for a while. */
static void a_line_that_was_cut_spoils_no_other(void **state) {
    struct line_sink *s;
    char path[64];

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    s = line_sink_create(open_temporary(path), true, 64 * 1024);
    limit_files(8);
    assert_true(line_sink_put(s, STR("0123456789\nlost\n")));
    WAIT_UNTIL(line_sink_n_dropped(s) >= 2);
    limit_files(RLIM_INFINITY);
    assert_true(line_sink_put(s, STR("whole\n")));
    line_sink_destroy(s);
    assert_int_equal(count_lines(path, "\n"), 2);
    assert_int_equal(count_lines(path, "01234567\n"), 1);
    assert_int_equal(count_lines(path, "whole\n"), 1);
    unlink(path);
}

/* As a restart finds it, or SIGHUP. */
static void a_file_that_ends_amid_a_line_gets_its_end_first(void **state) {
    struct line_sink *s;
    char path[64];
    int fd;

    (void)state;
    for (int is_reopened = 0; is_reopened < 2; is_reopened++) {
        int torn = open_temporary(path);

        assert_int_equal(write(torn, "{\"id\":1}\n{\"id", 13), 13);
        close(torn);
        fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
        s = line_sink_create(is_reopened ? open("/dev/null", O_WRONLY | O_CLOEXEC) : fd, true,
                             4096);
        if (is_reopened) line_sink_reopen(s, fd);
        assert_true(line_sink_put(s, STR("{\"id\":2}\n")));
        line_sink_destroy(s);
        assert_int_equal(count_lines(path, "\n"), 3);
        assert_int_equal(count_lines(path, "{\"id\n"), 1);
        assert_int_equal(count_lines(path, "{\"id\":2}\n"), 1);

        fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC); /* whole now: not another */
        s = line_sink_create(fd, true, 4096);
        assert_true(line_sink_put(s, STR("{\"id\":3}\n")));
        line_sink_destroy(s);
        assert_int_equal(count_lines(path, "\n"), 4);
        unlink(path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_of_threads_arrive_whole_or_are_counted),
        cmocka_unit_test(a_line_that_is_too_long_is_dropped),
        cmocka_unit_test(after_reopening_lines_go_to_the_new_file),
        cmocka_unit_test(reopening_without_lines_is_fine),
        cmocka_unit_test(a_line_that_was_cut_spoils_no_other),
        cmocka_unit_test(a_file_that_ends_amid_a_line_gets_its_end_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

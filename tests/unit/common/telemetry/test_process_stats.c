/* tests/unit/common/telemetry/test_process_stats.c - the figures follow what the process does. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/telemetry/process_stats.h"
#include "tests/support/cm.h"

#define MIB (1 << 20)

static void open_descriptors_are_counted(void **state) {
    struct process_stats before, after;
    struct rlimit limit;
    int fds[17];

    (void)state;
    process_stats_read(&before);
    for (int i = 0; i < 17; i++)
        assert_true((fds[i] = open("/dev/null", O_RDONLY)) >= 0);
    process_stats_read(&after);
    assert_int_equal((int)(after.open_fds - before.open_fds), 17);
    for (int i = 0; i < 17; i++)
        close(fds[i]);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(after.max_fds == (double)limit.rlim_cur);
}

static void memory_is_counted_where_it_is_touched(void **state) {
    struct process_stats before, asked, touched;
    char *p;

    (void)state;
    process_stats_read(&before);
    p = mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    process_stats_read(&asked);
    memset(p, 1, 32 * MIB);
    process_stats_read(&touched);
    assert_true(asked.virtual_bytes - before.virtual_bytes >= 32 * MIB);
    assert_true(touched.resident_bytes - asked.resident_bytes >= 24 * MIB);
    munmap(p, 32 * MIB);
}

static void processor_time_grows_and_the_start_was_before_now(void **state) {
    struct process_stats s;
    double first;

    (void)state;
    process_stats_read(&s);
    first = s.cpu_s;
    assert_true(s.start_time_s > 1e9 && s.start_time_s < (double)clock_wall_us() * 1e-6 + 2);
    while (s.cpu_s - first < 0.02)
        process_stats_read(&s);
}

static void the_page_is_prometheus_text(void **state) {
    struct buf page;

    (void)state;
    buf_init(&page, 0);
    process_stats_write(&page);
#define SHOWN(kind, name, help, value)                                                             \
    assert_true(str_find(buf_str(&page), STR("# HELP " #name " " help "\n# TYPE " #name)) >= 0);
    PROCESS_METRICS(SHOWN)
    assert_true(str_find(buf_str(&page), STR("\nprocess_open_fds ")) >= 0);
    buf_fini(&page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_descriptors_are_counted),
        cmocka_unit_test(memory_is_counted_where_it_is_touched),
        cmocka_unit_test(processor_time_grows_and_the_start_was_before_now),
        cmocka_unit_test(the_page_is_prometheus_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

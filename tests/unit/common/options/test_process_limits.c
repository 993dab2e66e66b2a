/* tests/unit/common/options/test_process_limits.c - memory as machines and containers limit it. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/options/process_limits.h"
#include "tests/support/cm.h"

#define GIB (UINT64_C(1) << 30)

static void put(const char *root, const char *path, const char *text) {
    char at[512], command[600];
    FILE *f;

    snprintf(at, sizeof(at), "%s/%s", root, path);
    snprintf(command, sizeof(command), "mkdir -p \"$(dirname '%s')\"", at);
    assert_int_equal(system(command), 0);
    f = fopen(at, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void make_root(char *root) {
    snprintf(root, 64, "/tmp/process_limits.XXXXXX");
    assert_non_null(mkdtemp(root));
    put(root, "proc/meminfo", "MemTotal:       67108864 kB\nMemFree: 1 kB\n");
}

static void end_root(const char *root) {
    char command[128];

    snprintf(command, sizeof(command), "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

static void without_a_group_it_is_the_machines(void **state) {
    char root[64];

    (void)state;
    make_root(root);
    assert_int_equal(process_memory_limit(root), 64 * GIB);
    end_root(root);
}

static void the_least_of_a_group_and_its_parents_counts(void **state) {
    char root[64];

    (void)state;
    make_root(root);
    put(root, "proc/self/cgroup", "0::/kubepods/pod1/c2\n");
    put(root, "sys/fs/cgroup/kubepods/pod1/c2/memory.max", "max\n");
    put(root, "sys/fs/cgroup/kubepods/pod1/memory.max", "2147483648\n");
    put(root, "sys/fs/cgroup/kubepods/memory.max", "4294967296\n");
    assert_int_equal(process_memory_limit(root), 2 * GIB);
    put(root, "sys/fs/cgroup/memory.max", "1073741824\n"); /* as a container sees its own */
    assert_int_equal(process_memory_limit(root), GIB);
    end_root(root);
}

static void groups_of_version_1_count(void **state) {
    char root[64];

    (void)state;
    make_root(root);
    put(root, "proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/docker/abc\n0::/\n");
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(process_memory_limit(root), 64 * GIB);
    put(root, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "268435456\n");
    assert_int_equal(process_memory_limit(root), GIB / 4);
    end_root(root);
}

static void descriptors_are_raised_to_what_is_allowed(void **state) {
    struct rlimit limit;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 100;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(process_descriptors(), 100);
    assert_int_equal(process_raise_descriptors(), MIN(limit.rlim_max, UINT32_MAX));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_group_it_is_the_machines),
        cmocka_unit_test(the_least_of_a_group_and_its_parents_counts),
        cmocka_unit_test(groups_of_version_1_count),
        cmocka_unit_test(descriptors_are_raised_to_what_is_allowed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

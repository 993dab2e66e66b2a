/* tests/unit/kernels/test_host_memory.c - what the machine and the control groups leave. */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "kernels/host/host_memory.h"
#include "tests/support/cm.h"

#define MIB ((uint64_t)1 << 20)

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static void write_file(const char *root, const char *name, const char *text) {
    char path[256];
    FILE *f;

    snprintf(path, sizeof(path), "%s%s", root, name);
    f = fopen(path, "we");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void the_least_of_machine_group_and_parents_is_left(void **state) {
    static const char *const folders[] = {"/proc",
                                          "/proc/self",
                                          "/sys",
                                          "/sys/fs",
                                          "/sys/fs/cgroup",
                                          "/sys/fs/cgroup/a",
                                          "/sys/fs/cgroup/a/b",
                                          "/sys/fs/cgroup/memory"};
    char root[] = "/tmp/test_host_memory.XXXXXX", path[256];

    (void)state;
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
        snprintf(path, sizeof(path), "%s%s", root, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    assert_true(host_memory_available(root) > 0); /* all there is */
    write_file(root, "/proc/meminfo", "MemTotal: 8192 kB\nMemAvailable:    4096 kB\n");
    assert_int_equal(host_memory_available(root), 4 * MIB);
    write_file(root, "/proc/self/cgroup", "1:cpu:/x\n0::/a/b\n");
    write_file(root, "/sys/fs/cgroup/a/b/memory.max", "max\n");
    write_file(root, "/sys/fs/cgroup/a/b/memory.current", "1048576\n");
    assert_int_equal(host_memory_available(root), 4 * MIB);
    write_file(root, "/sys/fs/cgroup/a/memory.max", "3145728\n");
    assert_int_equal(host_memory_available(root), 3 * MIB);
    write_file(root, "/sys/fs/cgroup/a/memory.current", "2097152\n");
    assert_int_equal(host_memory_available(root), MIB);
    write_file(root, "/sys/fs/cgroup/a/memory.stat", "file 5\ninactive_file 1048576\n");
    assert_int_equal(host_memory_available(root), 2 * MIB);
    write_file(root, "/sys/fs/cgroup/a/memory.current", "9999999\n"); /* over its limit */
    assert_int_equal(host_memory_available(root), 0);
    write_file(root, "/sys/fs/cgroup/a/memory.max", "max\n");
    write_file(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    write_file(root, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "1048576\n");
    assert_int_equal(host_memory_available(root), 4 * MIB);
    write_file(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "2097152\n");
    assert_int_equal(host_memory_available(root), MIB);
    assert_int_equal(nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_of_machine_group_and_parents_is_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

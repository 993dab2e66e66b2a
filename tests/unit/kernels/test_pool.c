/* tests/unit/kernels/test_pool.c - the CPU backend's threads: each chunk once, nothing lost. */
#include <ftw.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "kernels/cpu/pool.h"
#include "kernels/cpu/processors.h"
#include "tests/support/cm.h"

#define MAX_CHUNKS 1000u

struct region {
    uint32_t times[MAX_CHUNKS]; /* plain on purpose: a race would be seen by the thread sanitizer */
    uint32_t by_worker[8][16];  /* a line each */
    atomic_uint total;
};

static void count(void *arg, uint32_t chunk, uint32_t worker) {
    struct region *r = arg;

    r->times[chunk]++;
    r->by_worker[worker][0]++;
    atomic_fetch_add(&r->total, 1);
}

static void each_chunk_runs_once(void **state) {
    static struct region r;

    (void)state;
    for (uint32_t threads = 1; threads <= 4; threads++) {
        struct cpu_pool *p;

        assert_int_equal(cpu_pool_create(&p, threads, NULL), ST_OK);
        assert_int_equal(cpu_pool_threads(p), threads);
        for (uint32_t n = 0; n < 400; n++) {
            uint32_t n_chunks = n * 7919 % MAX_CHUNKS, by_workers = 0;

            memset(&r, 0, sizeof(r));
            cpu_pool_run(p, n_chunks, n % 5 == 4, count, &r);
            assert_int_equal(atomic_load(&r.total), n_chunks);
            for (uint32_t i = 0; i < n_chunks; i++)
                assert_int_equal(r.times[i], 1);
            for (uint32_t w = 0; w < threads; w++)
                by_workers += r.by_worker[w][0];
            assert_int_equal(by_workers, n_chunks);
        }
        cpu_pool_destroy(p);
    }
}

static void nap(void *arg, uint32_t chunk, uint32_t worker) {
    (void)arg, (void)chunk, (void)worker;
    nanosleep(&(struct timespec){0, 300000}, NULL);
}

static void sleepers_wake_and_the_caller_can_sleep(void **state) {
    struct cpu_pool *p;

    (void)state;
    assert_int_equal(cpu_pool_create(&p, 3, NULL), ST_OK);
    for (int i = 0; i < 100; i++) {
        cpu_pool_run(p, 3, false, nap, NULL); /* the caller waits for others' chunks */
        nap(NULL, 0, 0);                      /* the workers fall asleep */
    }
    cpu_pool_destroy(p);
}

static void threads_leave_and_come_back(void **state) {
    static struct region r;
    struct cpu_pool *p;

    (void)state;
    assert_int_equal(cpu_pool_create(&p, 4, NULL), ST_OK);
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t n = i * 7919 % 5;

        if (i % 3 == 0) cpu_pool_use(p, n);
        if (i % 50 == 0) nap(NULL, 0, 0);
        memset(&r, 0, sizeof(r));
        cpu_pool_run(p, 40, false, count, &r);
        for (uint32_t chunk = 0; chunk < 40; chunk++)
            assert_int_equal(r.times[chunk], 1);
    }
    cpu_pool_use(p, 1);
    nap(NULL, 0, 0);
    memset(&r, 0, sizeof(r));
    cpu_pool_run(p, 40, false, count, &r);
    assert_int_equal(r.by_worker[0][0], 40);
    assert_int_equal(cpu_pool_threads(p), 4);
    cpu_pool_destroy(p); /* while they are away */
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where) {
    (void)st, (void)kind, (void)where;
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

static void a_quota_is_the_least_of_a_group_and_its_parents(void **state) {
    static const char *const folders[] = {"/proc",
                                          "/proc/self",
                                          "/sys",
                                          "/sys/fs",
                                          "/sys/fs/cgroup",
                                          "/sys/fs/cgroup/a",
                                          "/sys/fs/cgroup/a/b",
                                          "/sys/fs/cgroup/cpu"};
    char root[] = "/tmp/test_pool.XXXXXX", path[256];
    uint32_t all = cpu_processors("/nowhere");

    (void)state;
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
        snprintf(path, sizeof(path), "%s%s", root, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    write_file(root, "/proc/self/cgroup", "1:cpu:/x\n0::/a/b\n");
    assert_int_equal(cpu_processors(root), all);
    write_file(root, "/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    write_file(root, "/sys/fs/cgroup/a/cpu.max", "1000000000 100000\n");
    assert_int_equal(cpu_processors(root), all);
    write_file(root, "/sys/fs/cgroup/a/cpu.max", "90000 100000\n");
    assert_int_equal(cpu_processors(root), 1);
    write_file(root, "/sys/fs/cgroup/a/cpu.max", "101000 100000\n");
    assert_int_equal(cpu_processors(root), MIN(2u, all));
    write_file(root, "/sys/fs/cgroup/cpu.max", "5 0\n"); /* nonsense is no limit */
    assert_int_equal(cpu_processors(root), MIN(2u, all));
    write_file(root, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    write_file(root, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpu_processors(root), MIN(2u, all));
    write_file(root, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "20000\n");
    assert_int_equal(cpu_processors(root), 1);
    assert_int_equal(nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static void a_pool_starts_and_ends(void **state) {
    struct error err = {0};
    struct cpu_pool *p;

    (void)state;
    for (int i = 0; i < 50; i++) {
        assert_int_equal(cpu_pool_create(&p, 4, &err), ST_OK);
        cpu_pool_destroy(p);
    }
    assert_int_equal(cpu_pool_create(&p, 257, &err), ST_INVALID);
    assert_string_equal(err.message, "257 threads: give 0 (all processors) to 256");
    assert_int_equal(cpu_pool_create(&p, 0, &err), ST_OK);
    assert_true(cpu_pool_threads(p) >= 1);
    cpu_pool_destroy(p);
    cpu_pool_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_chunk_runs_once),
        cmocka_unit_test(sleepers_wake_and_the_caller_can_sleep),
        cmocka_unit_test(threads_leave_and_come_back),
        cmocka_unit_test(a_quota_is_the_least_of_a_group_and_its_parents),
        cmocka_unit_test(a_pool_starts_and_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

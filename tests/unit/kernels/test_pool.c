/* tests/unit/kernels/test_pool.c - the CPU backend's threads: each chunk once, nothing lost. */
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/pool.h"
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
        cmocka_unit_test(a_pool_starts_and_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

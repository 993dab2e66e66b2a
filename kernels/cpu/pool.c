/* kernels/cpu/pool.c - see pool.h.
 *
 *      caller                                   worker
 *      job = ...; left = n  (release)           left: n -> n - 1  (acquire): claims a chunk
 *      epoch++, wake sleepers                   run it; finished++ (release)
 *      claim and run like a worker              none left: spin, then sleep on epoch
 *      spin, then sleep on finished == n
 *
 * The job's fields are plain: they are written before `left` becomes positive and read only by a
 * thread that has claimed a chunk, and the caller does not come back to write them before that
 * chunk is counted in `finished`. */
#include "kernels/cpu/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "kernels/cpu/processors.h"

#define SPIN_US 20
#define LOOK_US 1000000 /* from one look at the quota to the next */

struct worker {
    struct cpu_pool *pool;
    uint32_t number;
    pthread_t thread;
};

struct cpu_pool {
    uint32_t n_threads, n_started;
    bool adapts; /* the number of threads was left to us */
    uint64_t next_look_us;
    struct worker *workers; /* (n_threads - 1) */
    struct {
        void (*run)(void *arg, uint32_t chunk, uint32_t worker);
        void *arg;
        uint32_t n_chunks;
    } job;
    _Alignas(CACHE_LINE) atomic_uint left; /* chunks not yet claimed */
    _Alignas(CACHE_LINE) atomic_uint finished;
    atomic_uint caller_sleeps;
    _Alignas(CACHE_LINE) atomic_uint epoch; /* counts regions; sleepers wait for it to change */
    atomic_uint n_sleepers;
    atomic_bool is_stopping;
    _Alignas(CACHE_LINE) atomic_uint n_active; /* threads with a lower number take part */
};

static void futex_wait(atomic_uint *word, unsigned value) {
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, unsigned n) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spins until *word differs from `value` (or equals it, when `until_equal`), at most SPIN_US. */
static bool spin(atomic_uint *word, unsigned value, bool until_equal) {
    uint64_t end_us = 0;

    for (unsigned i = 0;; i++) {
        if ((atomic_load_explicit(word, memory_order_acquire) == value) == until_equal) return true;
        relax();
        if (i % 64 == 63) {
            uint64_t now_us = clock_now_us();

            if (!end_us) end_us = now_us + SPIN_US;
            if (now_us >= end_us) return false;
        }
    }
}

static bool claim_and_run(struct cpu_pool *p, uint32_t worker) {
    unsigned left = atomic_load_explicit(&p->left, memory_order_relaxed), n;

    do {
        if (left == 0) return false;
    } while (!atomic_compare_exchange_weak_explicit(&p->left, &left, left - 1, memory_order_acquire,
                                                    memory_order_relaxed));
    n = p->job.n_chunks;
    p->job.run(p->job.arg, n - left, worker);
    if (atomic_fetch_add(&p->finished, 1) + 1 == n && atomic_load(&p->caller_sleeps))
        futex_wake(&p->finished, 1);
    return true;
}

static void *work(void *arg) {
    struct worker *w = arg;
    struct cpu_pool *p = w->pool;

    for (;;) {
        unsigned epoch = atomic_load(&p->epoch), n_active = atomic_load(&p->n_active);

        if (w->number >= n_active && !atomic_load(&p->is_stopping)) {
            futex_wait(&p->n_active, n_active); /* a bed of its own: wake() is for the others */
            continue;
        }
        while (claim_and_run(p, w->number)) {
        }
        if (atomic_load(&p->is_stopping)) return NULL;
        if (spin(&p->epoch, epoch, false)) continue;
        atomic_fetch_add(&p->n_sleepers, 1);
        futex_wait(&p->epoch, epoch); /* returns at once when a region has begun since */
        atomic_fetch_sub(&p->n_sleepers, 1);
    }
}

static void wake(struct cpu_pool *p, unsigned n) {
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->n_sleepers) > 0) futex_wake(&p->epoch, n);
}

void cpu_pool_run(struct cpu_pool *p, uint32_t n_chunks, bool is_small,
                  void (*run)(void *arg, uint32_t chunk, uint32_t worker), void *arg) {
    unsigned done;

    if (is_small || n_chunks <= 1 ||
        atomic_load_explicit(&p->n_active, memory_order_relaxed) == 1) {
        for (uint32_t i = 0; i < n_chunks; i++)
            run(arg, i, 0);
        return;
    }
    p->job.run = run;
    p->job.arg = arg;
    p->job.n_chunks = n_chunks;
    atomic_store_explicit(&p->finished, 0, memory_order_relaxed);
    atomic_store_explicit(&p->left, n_chunks, memory_order_release);
    wake(p, n_chunks - 1);
    while (claim_and_run(p, 0)) {
    }
    if (spin(&p->finished, n_chunks, true)) return;
    atomic_store(&p->caller_sleeps, 1);
    while ((done = atomic_load(&p->finished)) != n_chunks)
        futex_wait(&p->finished, done);
    atomic_store(&p->caller_sleeps, 0);
}

void cpu_pool_use(struct cpu_pool *p, uint32_t n_threads) {
    unsigned n = MIN(MAX(n_threads, 1u), p->n_threads);

    if (atomic_exchange(&p->n_active, n) == n) return;
    futex_wake(&p->n_active, POOL_MAX_THREADS); /* those that may take part again */
    wake(p, POOL_MAX_THREADS);                  /* those that may not find their new place */
}

void cpu_pool_adapt(struct cpu_pool *p, uint64_t now_us) {
    if (!p->adapts || p->n_threads == 1 || now_us < p->next_look_us) return;
    p->next_look_us = now_us + LOOK_US;
    cpu_pool_use(p, cpu_processors(""));
}

enum status cpu_pool_create(struct cpu_pool **out, uint32_t n_threads, struct error *err) {
    struct cpu_pool *p;
    bool adapts;

    if (n_threads > POOL_MAX_THREADS)
        return error_set(err, ST_INVALID, "%u threads: give 0 (all processors) to %u", n_threads,
                         POOL_MAX_THREADS);
    adapts = n_threads == 0;
    if (adapts) n_threads = MIN(cpu_processors(""), POOL_MAX_THREADS);
    p = mem_try_aligned(CACHE_LINE, ALIGN_UP(sizeof(*p), (size_t)CACHE_LINE));
    if (!p) return error_set(err, ST_NOMEM, "no memory for a pool of %u threads", n_threads);
    memset(p, 0, sizeof(*p));
    p->n_threads = n_threads;
    p->adapts = adapts;
    atomic_init(&p->n_active, n_threads);
    p->workers = mem_calloc(n_threads, sizeof(*p->workers));
    while (p->n_started + 1 < n_threads) {
        struct worker *w = &p->workers[p->n_started];
        int failed;

        *w = (struct worker){.pool = p, .number = p->n_started + 1};
        failed = pthread_create(&w->thread, NULL, work, w);
        if (failed) {
            enum status st =
                error_set(err, ST_IO, "cannot start thread %u of %u: %s: use fewer threads",
                          w->number + 1, n_threads, strerror(failed));

            cpu_pool_destroy(p);
            return st;
        }
        p->n_started++;
    }
    *out = p;
    return ST_OK;
}

void cpu_pool_destroy(struct cpu_pool *p) {
    if (!p) return;
    atomic_store(&p->is_stopping, true);
    atomic_store(&p->n_active, p->n_threads + 1); /* a value that no thread sleeps on */
    futex_wake(&p->n_active, POOL_MAX_THREADS);
    wake(p, POOL_MAX_THREADS);
    for (uint32_t i = 0; i < p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    mem_free(p->workers);
    mem_free(p);
}

uint32_t cpu_pool_threads(const struct cpu_pool *p) {
    return p->n_threads;
}

/* tests/unit/worker/kv/tiers/test_file.c - a folder that keeps blocks: what was stored comes back,
 * also to the next process and to the one beside, within a budget. */
#include <sys/stat.h>

#include "tests/support/file_tier_fixture.h"
#include "worker/kv/tiers/file_internal.h"

#define PLACES 15 /* units of a segment */

static int setup(void **state) {
    struct file_desk *d = mem_alloc(sizeof(*d));

    file_desk_init(d, NULL);
    file_desk_open(d);
    *state = d;
    return 0;
}

static int teardown(void **state) {
    struct file_desk *d = *state;

    if (d->tier) tier_file_check(d->tier);
    file_desk_fini(d, true);
    mem_free(d);
    return 0;
}

static void what_is_stored_is_found_and_loaded(void **state) {
    struct file_desk *d = *state;
    enum tier_result then;
    struct tier_stats s;

    assert_int_equal(file_desk_find(d, 1, 20), 0);
    assert_int_equal(file_desk_store(d, 1, 0, 40), 40);
    assert_int_equal(file_desk_find(d, 1, 50), 40);
    assert_int_equal(file_desk_load(d, 1, 0, 40), 40);
    assert_int_equal(file_desk_load(d, 1, 7, 3), 3);
    assert_int_equal(file_desk_run(d, TIER_LOAD, 1, 30, 20, &then), 10);
    assert_int_equal(then, TIER_ABSENT);
    s = file_desk_stats(d);
    assert_int_equal(s.n_units, 40);
    assert_true(s.can_write && s.is_open && s.bytes <= s.max_bytes && s.stored_bytes > 0);
    assert_string_equal(d->tier->ops->name, "file");
}

/* A run is read with as few calls as chunks of a megabyte and ends of segments need. */
static void a_run_is_one_read(void **state) {
    struct file_desk *d = *state;
    unsigned before;

    assert_int_equal(file_desk_store(d, 1, 0, PLACES), PLACES);
    before = atomic_load(&d->seen[FILE_READ]);
    assert_int_equal(file_desk_load(d, 1, 0, PLACES), PLACES);
    assert_int_equal(atomic_load(&d->seen[FILE_READ]) - before, 1);
    assert_int_equal(file_desk_store(d, 1, PLACES, 2 * PLACES), 2 * PLACES);
    before = atomic_load(&d->seen[FILE_READ]);
    assert_int_equal(file_desk_load(d, 1, 0, 3 * PLACES), 3 * PLACES);
    assert_int_equal(atomic_load(&d->seen[FILE_READ]) - before, 3);
}

static void what_is_there_is_not_written_again(void **state) {
    struct file_desk *d = *state;
    unsigned before;

    assert_int_equal(file_desk_store(d, 1, 0, 10), 10);
    before = atomic_load(&d->seen[FILE_WRITE]);
    assert_int_equal(file_desk_store(d, 1, 0, 10), 10);
    assert_int_equal(atomic_load(&d->seen[FILE_WRITE]), before);
    assert_int_equal(file_desk_store(d, 1, 5, 10), 10);
    assert_int_equal(file_desk_load(d, 1, 0, 15), 15);
    assert_int_equal(file_desk_stats(d).n_units, 15);
}

static void the_next_process_finds_all(void **state) {
    struct file_desk *d = *state;

    for (uint64_t chain = 0; chain < 8; chain++)
        assert_int_equal(file_desk_store(d, chain, 0, 20), 20);
    for (int i = 0; i < 3; i++) {
        file_desk_reopen(d);
        assert_int_equal(file_desk_stats(d).n_units, 160 + i);
        for (uint64_t chain = 0; chain < 8; chain++)
            assert_int_equal(file_desk_load(d, chain, 0, 20), 20);
        assert_int_equal(file_desk_store(d, 100 + (uint64_t)i, 0, 1), 1);
    }
}

static void files_are_of_this_user_alone(void **state) {
    struct file_desk *d = *state;
    char path[256];
    struct stat st;

    assert_int_equal(file_desk_store(d, 1, 0, 1), 1);
    assert_int_equal(file_desk_segment(d, 0, path), 1);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    *strrchr(path, '/') = '\0';
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
}

/* --- what goes -------------------------------------------------------------------------------- */

static uint64_t bytes_on_disk(struct file_desk *d) {
    uint64_t bytes = 0;
    char path[256];
    struct stat st;

    for (int k = 0; k < file_desk_segment(d, -1, NULL); k++) {
        file_desk_segment(d, k, path);
        assert_int_equal(stat(path, &st), 0);
        bytes += (uint64_t)st.st_blocks * 512;
    }
    return bytes;
}

static void the_budget_holds_and_what_is_used_stays(void **state) {
    struct file_desk *d = *state;

    assert_int_equal(file_desk_store(d, 7, 0, 3), 3); /* an eighth of a quarter */
    for (uint64_t chain = 100; chain < 200; chain++) {
        assert_int_equal(file_desk_store(d, chain, 0, 10), 10);
        assert_int_equal(file_desk_load(d, 7, 0, 3), 3);
        assert_true(bytes_on_disk(d) <= d->config.max_bytes);
        assert_true(file_desk_stats(d).bytes <= d->config.max_bytes);
    }
    assert_true(file_desk_stats(d).n_dropped > 500);
    assert_int_equal(file_desk_find(d, 110, 10), 0);
    assert_int_equal(file_desk_find(d, 199, 10), 10);
    tier_file_check(d->tier);
}

/* Case 62. */
static void a_smaller_budget_holds_after_the_start(void **state) {
    struct file_desk *d = *state;

    for (uint64_t chain = 0; chain < 20; chain++)
        assert_int_equal(file_desk_store(d, chain, 0, 10), 10);
    d->config.max_bytes /= 4;
    file_desk_reopen(d);
    assert_true(bytes_on_disk(d) <= d->config.max_bytes);
    assert_int_equal(file_desk_store(d, 50, 0, 10), 10);
    assert_int_equal(file_desk_load(d, 50, 0, 10), 10);
    assert_true(bytes_on_disk(d) <= d->config.max_bytes);
}

/* Case 59. */
static void models_that_no_process_runs_go_first(void **state) {
    struct file_desk *d = *state;
    struct file_desk other;

    file_desk_init(&other, d->dir);
    other.codec.fingerprint[0] = 2;
    file_desk_open(&other);
    for (uint64_t chain = 0; chain < 8; chain++)
        assert_int_equal(file_desk_store(&other, chain, 0, PLACES), PLACES);
    file_desk_fini(&other, false);

    file_desk_reopen(d);
    for (uint64_t chain = 0; chain < 13; chain++)
        assert_int_equal(file_desk_store(d, chain, 0, PLACES), PLACES);
    for (uint64_t chain = 0; chain < 13; chain++)
        assert_int_equal(file_desk_load(d, chain, 0, PLACES), PLACES);
    assert_true(file_desk_stats(d).bytes <= d->config.max_bytes);

    file_desk_init(&other, d->dir);
    other.codec.fingerprint[0] = 2;
    file_desk_open(&other);
    assert_int_equal(file_desk_find(&other, 0, PLACES), 0);
    assert_true(file_desk_stats(&other).n_units < 8 * PLACES);
    file_desk_fini(&other, false);
}

/* --- beside others ---------------------------------------------------------------------------- */

/* Cases 54 and 55. */
static void a_worker_beside_reads_what_is_sealed(void **state) {
    struct file_desk *d = *state;
    struct file_desk other;

    file_desk_init(&other, d->dir);
    other.config.scan_us = 20000;
    file_desk_open(&other);
    assert_int_equal(file_desk_find(&other, 1, 1), 0);
    assert_int_equal(file_desk_store(d, 1, 0, 40), 40); /* two segments sealed, a third begun */
    WAIT_UNTIL(file_desk_find(&other, 1, 40) == 2 * PLACES);
    assert_int_equal(file_desk_load(&other, 1, 0, 2 * PLACES), 2 * PLACES);
    assert_int_equal(file_desk_store(&other, 1, 0, 40), 40);
    assert_int_equal(file_desk_stats(&other).n_units, 40);
    assert_int_equal(file_desk_stats(d).n_units, 40);
    /* Each writes its own files; the second knows both after a scan. */
    assert_int_equal(file_desk_store(&other, 2, 0, PLACES), PLACES);
    assert_int_equal(file_desk_store(&other, 3, 0, PLACES), PLACES);
    file_desk_reopen(d);
    assert_int_equal(file_desk_load(d, 2, 0, 5), 5);
    tier_file_check(other.tier);
    file_desk_fini(&other, false);
}

static void two_workers_share_one_budget(void **state) {
    struct file_desk *d = *state;
    struct file_desk other;

    file_desk_init(&other, d->dir);
    file_desk_open(&other);
    for (uint64_t chain = 0; chain < 16; chain++)
        assert_int_equal(file_desk_store(d, chain, 0, PLACES), PLACES);
    file_desk_reopen(&other); /* sees the other's; has less than its share, so takes from it */
    for (uint64_t chain = 100; chain < 108; chain++)
        assert_int_equal(file_desk_store(&other, chain, 0, PLACES), PLACES);
    assert_true(bytes_on_disk(d) <= d->config.max_bytes);
    for (uint64_t chain = 103; chain < 108; chain++)
        assert_int_equal(file_desk_load(&other, chain, 0, PLACES), PLACES);
    /* What was taken from the first is absent there, and no more than that. */
    for (uint64_t chain = 0; chain < 16; chain++)
        file_desk_load(d, chain, 0, PLACES);
    file_desk_fini(&other, false);
}

/* --- the queue -------------------------------------------------------------------------------- */

static void a_full_queue_is_busy_and_every_job_has_its_mail(void **state) {
    enum { N = 20 };
    struct file_desk *d = *state;
    uint32_t n_busy = 0, n_fine = 0;

    assert_int_equal(file_desk_store(d, 1, 0, 4), 4);
    d->config.max_jobs = 4;
    file_desk_reopen(d);
    d->delay_us = 2000;
    for (int i = 0; i < N; i++)
        file_desk_submit(d, file_batch_make(d, TIER_LOAD, 1, 0, 4));
    for (int i = 0; i < N; i++) {
        struct file_batch *b = file_desk_take(d);

        n_busy += b->job.units[0].result == TIER_BUSY;
        n_fine += file_batch_fine(b) == 4;
        mem_free(b);
    }
    assert_int_equal(n_busy + n_fine, N);
    assert_true(n_fine >= 4);
}

static void late_and_cancelled_jobs_do_nothing(void **state) {
    struct file_desk *d = *state;
    struct file_batch *b;
    unsigned before;

    assert_int_equal(file_desk_store(d, 1, 0, 4), 4);
    before = atomic_load(&d->seen[FILE_OPEN]) + atomic_load(&d->seen[FILE_WRITE]);
    for (int i = 0; i < 4; i++) {
        b = file_batch_make(d, i & 1 ? TIER_STORE : TIER_LOAD, i & 1 ? 2 : 1, 0, 4);
        if (i & 2)
            atomic_store(&b->job.is_cancelled, true);
        else
            b->job.deadline_us = 1;
        file_desk_submit(d, b);
        assert_ptr_equal(file_desk_take(d), b);
        for (int u = 0; u < 4; u++)
            assert_int_equal(b->job.units[u].result, i & 2 ? TIER_SKIPPED : TIER_LATE);
        mem_free(b);
    }
    assert_int_equal(atomic_load(&d->seen[FILE_OPEN]) + atomic_load(&d->seen[FILE_WRITE]), before);
}

static void *destroy(void *arg) {
    file_desk_close(arg);
    return NULL;
}

static bool is_stopping(struct file_tier *f) {
    bool is;

    pthread_mutex_lock(&f->lock);
    is = f->is_stopping;
    pthread_mutex_unlock(&f->lock);
    return is;
}

/* The two that a thread has begun are done, those that wait are skipped. */
static unsigned n_calls(struct file_desk *d) {
    unsigned n = 0;

    for (int op = 0; op <= FILE_UNLINK; op++)
        n += atomic_load(&d->seen[op]);
    return n;
}

static void destroying_ends_every_job(void **state) {
    enum { N = 60 };
    struct file_desk *d = *state;
    struct file_tier *f = (struct file_tier *)d->tier;
    uint32_t n_skipped = 0;
    pthread_t thread;
    unsigned before;

    assert_int_equal(file_desk_store(d, 1, 0, 4), 4);
    before = n_calls(d);
    atomic_store(&d->is_held, true);
    for (uint64_t i = 0; i < N; i++)
        file_desk_submit(d, i % 2 ? file_batch_make(d, TIER_STORE, 10 + i, 0, 4)
                                  : file_batch_make(d, TIER_LOAD, 1, 0, 4));
    WAIT_UNTIL(n_calls(d) == before + 2); /* both threads have a job */
    assert_int_equal(pthread_create(&thread, NULL, destroy, d), 0);
    WAIT_UNTIL(is_stopping(f));
    atomic_store(&d->is_held, false);
    assert_int_equal(pthread_join(thread, NULL), 0);
    for (int i = 0; i < N; i++) {
        struct file_batch *b = file_desk_take(d);

        n_skipped += b->job.units[0].result == TIER_SKIPPED;
        file_batch_fine(b);
        mem_free(b);
    }
    assert_int_equal(n_skipped, N - 2);
    file_desk_open(d);
}

/* --- against a model -------------------------------------------------------------------------- */

#define CHAINS 40
#define DEPTH  24

/* Random stores, loads and reopenings, several jobs at a time. Without eviction the tier has what
 * was stored, exactly; with it, what it has is right. */
static void run_random(struct file_desk *d, bool is_exact, int n_steps) {
    bool is_stored[CHAINS][DEPTH] = {{false}};
    uint32_t n_out = 0, n_loaded = 0;
    struct rng rng;

    rng_seed(&rng, support_seed());
    for (int step = 0; step < n_steps; step++) {
        uint64_t chain = rng_below(&rng, CHAINS);
        uint32_t from = (uint32_t)rng_below(&rng, DEPTH),
                 n = (uint32_t)rng_below(&rng, DEPTH - from) + 1;
        uint64_t what = rng_below(&rng, 100);

        if (what < 98) {
            file_desk_submit(
                d, file_batch_make(d, what < 40 ? TIER_STORE : TIER_LOAD, chain, from, n));
            n_out++;
        }
        while (n_out > 0 && (what >= 98 || n_out > 5 || rng_below(&rng, 2))) {
            struct file_batch *b = file_desk_take(d);
            uint32_t n_fine = file_batch_fine(b);
            bool *is_there = &is_stored[b->chain][b->from];

            if (b->job.op == TIER_STORE) {
                assert_int_equal(n_fine, b->n);
                for (uint32_t i = 0; i < n_fine; i++)
                    is_there[i] = true;
            } else {
                n_loaded += n_fine;
                for (uint32_t i = 0; i < n_fine; i++) /* or its store is not taken yet */
                    assert_true(is_there[i] || n_out > 1);
            }
            mem_free(b);
            n_out--;
        }
        if (what < 98) continue;
        if (what == 99) file_desk_reopen(d);
        tier_file_check(d->tier);
        for (chain = 0; is_exact && chain < CHAINS; chain++) {
            uint32_t held = 0;

            while (held < DEPTH && is_stored[chain][held])
                held++;
            assert_int_equal(file_desk_find(d, chain, DEPTH), held);
            if (held > 0) assert_int_equal(file_desk_load(d, chain, 0, held), held);
        }
        if (!is_exact) assert_true(file_desk_stats(d).bytes <= d->config.max_bytes);
    }
    while (n_out-- > 0)
        mem_free(file_desk_take(d));
    assert_true(n_loaded > 0);
}

static void random_steps_without_eviction_lose_nothing(void **state) {
    struct file_desk *d = *state;

    d->config.max_bytes = 1u << 30;
    file_desk_reopen(d);
    run_random(d, true, 1500);
}

static void random_steps_with_eviction_are_right(void **state) {
    struct file_desk *d = *state;

    d->config.max_bytes = 6 * 128 * 1024;
    file_desk_reopen(d);
    run_random(d, false, 1500);
}

/* Units that begin at no page, in segments whose end they do not meet. */
static void random_steps_with_odd_sizes(void **state) {
    static const uint64_t sizes[] = {1, 57, 1000, 4096, 5000, 7871};
    struct file_desk *d = *state;

    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        file_desk_close(d);
        d->codec.block_bytes = sizes[i];
        d->codec.fingerprint[1] = (uint8_t)i;
        d->config.max_bytes = i & 1 ? 1u << 30 : 6 * 128 * 1024;
        file_desk_open(d);
        run_random(d, i & 1, 300);
    }
}

/* A page of units and a page of summary: what was hot never takes the place of what is stored. */
static void random_steps_in_the_smallest_segments(void **state) {
    struct file_desk *d = *state;

    for (uint64_t n_pages = 2; n_pages < 5; n_pages++) {
        file_desk_close(d);
        d->codec.block_bytes = 600;
        d->codec.fingerprint[1] = (uint8_t)n_pages;
        d->config.segment_bytes = n_pages * FILE_PAGE;
        d->config.max_bytes = 40 * d->config.segment_bytes;
        file_desk_open(d);
        run_random(d, false, 300);
    }
}

static void random_steps_through_the_page_cache(void **state) {
    struct file_desk *d = *state;

    d->config.is_buffered = true;
    d->config.n_threads = 4;
    file_desk_reopen(d);
    run_random(d, false, 500);
}

#define CASE(f)                                                                                    \
    { #f, f, setup, teardown, NULL }

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(what_is_stored_is_found_and_loaded),
        CASE(a_run_is_one_read),
        CASE(what_is_there_is_not_written_again),
        CASE(the_next_process_finds_all),
        CASE(files_are_of_this_user_alone),
        CASE(the_budget_holds_and_what_is_used_stays),
        CASE(a_smaller_budget_holds_after_the_start),
        CASE(models_that_no_process_runs_go_first),
        CASE(a_worker_beside_reads_what_is_sealed),
        CASE(two_workers_share_one_budget),
        CASE(a_full_queue_is_busy_and_every_job_has_its_mail),
        CASE(late_and_cancelled_jobs_do_nothing),
        CASE(destroying_ends_every_job),
        CASE(random_steps_without_eviction_lose_nothing),
        CASE(random_steps_with_eviction_are_right),
        CASE(random_steps_with_odd_sizes),
        CASE(random_steps_in_the_smallest_segments),
        CASE(random_steps_through_the_page_cache),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

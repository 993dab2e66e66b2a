/* tests/unit/worker/grammar/test_grammar_thread.c - every job comes back once on the loop, or was
 * cancelled; equal specs are compiled once; the cache holds what was used last. */
#include <pthread.h>
#include <stdio.h>

#include "common/base/rng.h"
#include "common/net/loop.h"
#include "tests/support/cm.h"
#include "tests/support/grammar_fixture.h"
#include "tests/support/support.h"
#include "worker/grammar/grammar_cache.h"
#include "worker/grammar/grammar_thread.h"

#define N_JOBS 24u

struct harness {
    struct loop *loop;
    struct grammar_thread *thread;
    pthread_t home;
    uint32_t n_back, n_awaited;
};

struct job {
    struct grammar_job job;
    struct harness *h;
    uint32_t n_done;
    char text[64];
};

static struct str byte_of(const void *arg, uint32_t id) {
    static char bytes[256];

    (void)arg;
    bytes[id] = (char)id;
    return (struct str){bytes + id, 1};
}

static bool none_is_special(const void *arg, uint32_t id) {
    (void)arg;
    (void)id;
    return false;
}

static const struct vocabulary_source source = {
    .n_tokens = 256, .bytes = byte_of, .is_special = none_is_special};

static void harness_open(struct harness *h) {
    *h = (struct harness){.home = pthread_self()};
    assert_int_equal(loop_create(&h->loop, NULL), ST_OK);
    assert_int_equal(grammar_thread_start(&h->thread, h->loop, &source, NULL), ST_OK);
}

static void harness_close(struct harness *h) {
    grammar_thread_stop(h->thread);
    loop_destroy(h->loop);
}

static void on_done(struct grammar_job *job) {
    struct job *j = CONTAINER_OF(job, struct job, job);

    assert_true(pthread_equal(pthread_self(), j->h->home));
    j->n_done++;
    if (++j->h->n_back == j->h->n_awaited) loop_stop(j->h->loop);
}

static void submit(struct harness *h, struct job *j, const char *pattern) {
    struct grammar_spec spec = {.kind = GRAMMAR_REGEX};

    *j = (struct job){.h = h, .job = {.on_done = on_done}};
    snprintf(j->text, sizeof(j->text), "%s", pattern);
    spec.text = str_of(j->text);
    grammar_thread_submit(h->thread, &j->job, &spec);
    memset(j->text, 0, sizeof(j->text)); /* it was copied */
}

static void jobs_come_back_on_the_loop(void **state) {
    struct harness h;
    struct job jobs[N_JOBS];
    struct grammar_thread_stats stats;
    char pattern[32];

    (void)state;
    harness_open(&h);
    h.n_awaited = N_JOBS;
    for (uint32_t i = 0; i < N_JOBS; i++) {
        snprintf(pattern, sizeof(pattern), i % 6 == 5 ? "(%u" : "[ab]{%u}", i % 12 + 1);
        submit(&h, &jobs[i], pattern);
        assert_int_equal(jobs[i].n_done, 0);
    }
    loop_run(h.loop);
    for (uint32_t i = 0; i < N_JOBS; i++) {
        bool is_good = i % 6 != 5;

        assert_int_equal(jobs[i].n_done, 1);
        assert_int_equal(jobs[i].job.status, is_good ? ST_OK : ST_INVALID);
        assert_int_equal(jobs[i].job.grammar != NULL, is_good);
        if (is_good) assert_ptr_equal(jobs[i].job.grammar, jobs[i % 12].job.grammar);
        if (!is_good) assert_non_null(strstr(jobs[i].job.err.message, "without its )"));
        grammar_unref(jobs[i].job.grammar);
    }
    grammar_thread_stats(h.thread, &stats);
    assert_int_equal(stats.n_compiled, 10);
    assert_int_equal(stats.n_refused, 2);
    assert_int_equal(stats.n_hits, N_JOBS - 12);
    assert_int_equal(stats.n_cached, 10);
    harness_close(&h);
}

static void a_known_grammar_comes_back_at_once(void **state) {
    struct harness h;
    struct job first, again;

    (void)state;
    harness_open(&h);
    h.n_awaited = 1;
    submit(&h, &first, "a+");
    loop_run(h.loop);
    submit(&h, &again, "a+");
    assert_int_equal(again.n_done, 1);
    assert_ptr_equal(again.job.grammar, first.job.grammar);
    grammar_unref(first.job.grammar);
    grammar_unref(again.job.grammar);
    harness_close(&h);
}

/* Of three jobs with one spec two are cancelled: the third has its grammar, the others never hear.
 * */
static void a_cancelled_job_never_comes_back(void **state) {
    struct harness h;
    struct job jobs[3], alone, last;

    (void)state;
    harness_open(&h);
    h.n_awaited = 2;
    for (uint32_t i = 0; i < 3; i++)
        submit(&h, &jobs[i], "x{3}");
    submit(&h, &alone, "y{3}");
    assert_true(grammar_thread_cancel(&jobs[0].job));
    assert_true(grammar_thread_cancel(&jobs[2].job));
    assert_true(grammar_thread_cancel(&alone.job)); /* it is compiled for no job, and kept */
    assert_false(grammar_thread_cancel(&alone.job));
    submit(&h, &last, "z{3}");
    loop_run(h.loop);
    assert_int_equal(jobs[0].n_done + jobs[2].n_done + alone.n_done, 0);
    assert_int_equal(jobs[1].n_done, 1);
    assert_false(grammar_thread_cancel(&jobs[1].job));
    grammar_unref(jobs[1].job.grammar);
    grammar_unref(last.job.grammar);
    harness_close(&h);
}

static void stopping_hands_everything_back(void **state) {
    struct harness h;
    struct job jobs[N_JOBS];
    char pattern[32];

    (void)state;
    harness_open(&h);
    for (uint32_t i = 0; i < N_JOBS; i++) {
        snprintf(pattern, sizeof(pattern), "k{%u}", i + 1);
        submit(&h, &jobs[i], pattern);
    }
    harness_close(&h);
    for (uint32_t i = 0; i < N_JOBS; i++) {
        assert_int_equal(jobs[i].n_done, 1);
        assert_int_equal(jobs[i].job.status, ST_UNAVAILABLE);
        assert_null(jobs[i].job.grammar);
    }
}

static void too_many_wait_is_busy(void **state) {
    static struct job jobs[GRAMMAR_MAX_WAITING + 1];
    struct harness h;
    char pattern[32];
    uint32_t n_busy = 0;

    (void)state;
    harness_open(&h);
    for (uint32_t i = 0; i <= GRAMMAR_MAX_WAITING; i++) {
        snprintf(pattern, sizeof(pattern), "[ab]{%u}", i + 1);
        submit(&h, &jobs[i], pattern);
        n_busy += jobs[i].n_done;
    }
    assert_int_equal(n_busy, 1); /* mails are taken by the loop, which has not run */
    assert_int_equal(jobs[GRAMMAR_MAX_WAITING].job.status, ST_BUSY);
    harness_close(&h);
}

static void too_much_that_is_held_is_busy(void **state) {
    struct grammar_thread_stats stats;
    struct harness h;
    struct job held, again, more;

    (void)state;
    harness_open(&h);
    h.n_awaited = 1;
    submit(&h, &held, "a+");
    loop_run(h.loop);
    grammar_thread_stats(h.thread, &stats);
    assert_int_equal(stats.held_bytes, grammar_bytes(held.job.grammar));
    grammar_thread_set_held_max(h.thread, stats.held_bytes - 1);
    submit(&h, &more, "b+");
    assert_int_equal(more.job.status, ST_BUSY);
    submit(&h, &again, "a+"); /* which takes no more */
    assert_ptr_equal(again.job.grammar, held.job.grammar);
    grammar_thread_set_held_max(h.thread, stats.held_bytes);
    h.n_awaited = h.n_back + 1;
    submit(&h, &more, "b+");
    loop_run(h.loop);
    grammar_thread_stats(h.thread, &stats);
    assert_int_equal(stats.held_bytes,
                     grammar_bytes(held.job.grammar) + grammar_bytes(more.job.grammar));
    grammar_unref(held.job.grammar);
    grammar_unref(again.job.grammar);
    grammar_unref(more.job.grammar);
    harness_close(&h);
}

/* Its bytes are counted while it grows, and no more once it is freed. */
static void bytes_are_counted_until_they_are_freed(void **state) {
    struct vocabulary *v = vocabulary_create(&source);
    atomic_size_t total = 5;
    struct grammar_matcher m;
    const uint32_t *mask;
    bool is_new;
    struct grammar *g = fixture_grammar(GRAMMAR_REGEX, "[ab]*a[ab]{9}", false, v);
    size_t before = grammar_bytes(g);

    (void)state;
    grammar_count_in(g, &total);
    assert_int_equal(atomic_load(&total), before + 5);
    grammar_matcher_init(&m, g);
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(grammar_mask(&m, &mask, &is_new), ST_OK);
        assert_int_equal(grammar_take(&m, i % 3 ? 'a' : 'b'), ST_OK);
    }
    assert_true(grammar_bytes(g) > before);
    assert_int_equal(atomic_load(&total), grammar_bytes(g) + 5);
    grammar_matcher_fini(&m);
    grammar_unref(g);
    assert_int_equal(atomic_load(&total), 5);
    vocabulary_destroy(v);
}

/* --- the cache -------------------------------------------------------------------------------- */

#define N_SPECS 12u

/* The model: when each was used last, 0: it is not there. */
static void the_cache_drops_what_was_used_longest_ago(void **state) {
    struct vocabulary *v = vocabulary_create(&source);
    struct grammar *g[N_SPECS];
    struct hash128 key[N_SPECS];
    uint64_t used[N_SPECS] = {0}, now = 0;
    struct grammar_cache c;
    struct rng rng;
    size_t one;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t i = 0; i < N_SPECS; i++) {
        char text[16];
        struct grammar_spec spec = {.kind = GRAMMAR_REGEX};

        snprintf(text, sizeof(text), "[ab]{%u}", i + 10);
        g[i] = fixture_grammar(GRAMMAR_REGEX, text, false, v);
        spec.text = str_of(text);
        key[i] = grammar_cache_key(&spec);
        spec.is_closed = true;
        assert_true(grammar_cache_key(&spec).lo != key[i].lo);
    }
    one = grammar_bytes(g[0]);
    grammar_cache_init(&c, 5 * one + one / 2);
    for (uint32_t step = 0; step < 20000; step++) {
        uint32_t i = (uint32_t)rng_below(&rng, N_SPECS), oldest;
        struct grammar *found = grammar_cache_find(&c, key[i]);

        assert_int_equal(found != NULL, used[i] != 0);
        if (found) assert_ptr_equal(found, g[i]);
        grammar_unref(found);
        if (!found) grammar_cache_insert(&c, key[i], g[i]);
        used[i] = ++now;
        for (size_t n_bytes = SIZE_MAX; n_bytes > c.max_bytes;) {
            n_bytes = 0;
            oldest = i;
            for (uint32_t k = 0; k < N_SPECS; k++) {
                n_bytes += used[k] ? grammar_bytes(g[k]) : 0;
                if (used[k] && used[k] < used[oldest]) oldest = k;
            }
            if (n_bytes > c.max_bytes) used[oldest] = 0;
        }
        if (step % 100 == 0) grammar_cache_check(&c);
    }
    assert_true(grammar_cache_bytes(&c) <= c.max_bytes);
    grammar_cache_fini(&c);
    for (uint32_t i = 0; i < N_SPECS; i++)
        grammar_unref(g[i]);
    vocabulary_destroy(v);
}

static void grow(struct grammar *g, struct rng *rng) {
    struct grammar_matcher m;
    const uint32_t *mask;
    bool is_new;

    grammar_matcher_init(&m, g);
    for (uint32_t i = 0; i < 500; i++) {
        assert_int_equal(grammar_mask(&m, &mask, &is_new), ST_OK);
        assert_int_equal(grammar_take(&m, 'a' + (uint32_t)rng_below(rng, 2)), ST_OK);
    }
    grammar_matcher_fini(&m);
}

/* None is inserted any more, and those that are there grow while requests use them. */
static void the_cache_gives_up_what_has_grown(void **state) {
    struct vocabulary *v = vocabulary_create(&source);
    struct hash128 key[4];
    struct grammar_cache c;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    grammar_cache_init(&c, 0);
    for (uint32_t i = 0; i < ARRAY_LEN(key); i++) {
        char text[32];
        struct grammar_spec spec = {.kind = GRAMMAR_REGEX};
        struct grammar *g;

        snprintf(text, sizeof(text), "[ab]*a[ab]{%u}", i + 12);
        g = fixture_grammar(GRAMMAR_REGEX, text, false, v);
        spec.text = str_of(text);
        key[i] = grammar_cache_key(&spec);
        c.max_bytes += 2 * grammar_bytes(g);
        grammar_cache_insert(&c, key[i], g);
        grammar_unref(g);
    }
    assert_int_equal(c.n, ARRAY_LEN(key));
    for (uint32_t i = 0; i < 16; i++) {
        struct grammar *g = grammar_cache_find(&c, key[i % ARRAY_LEN(key)]);

        if (g) grow(g, &rng);
        grammar_unref(g);
    }
    for (uint32_t i = 0; i < 64; i++) /* requests go on, each with one that is known */
        grammar_unref(grammar_cache_find(&c, key[i % ARRAY_LEN(key)]));
    grammar_cache_check(&c);
    assert_true(c.n == 1 || grammar_cache_bytes(&c) <= c.max_bytes);
    assert_in_range(c.n, 1, ARRAY_LEN(key) - 1);
    grammar_cache_fini(&c);
    vocabulary_destroy(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_come_back_on_the_loop),
        cmocka_unit_test(a_known_grammar_comes_back_at_once),
        cmocka_unit_test(a_cancelled_job_never_comes_back),
        cmocka_unit_test(stopping_hands_everything_back),
        cmocka_unit_test(too_many_wait_is_busy),
        cmocka_unit_test(too_much_that_is_held_is_busy),
        cmocka_unit_test(bytes_are_counted_until_they_are_freed),
        cmocka_unit_test(the_cache_drops_what_was_used_longest_ago),
        cmocka_unit_test(the_cache_gives_up_what_has_grown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

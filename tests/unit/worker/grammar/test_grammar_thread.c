/* tests/unit/worker/grammar/test_grammar_thread.c - every job comes back once on the loop, or was
 * cancelled; equal specs are compiled once; the cache holds what was used last. */
#include <pthread.h>
#include <stdio.h>

#include "common/base/mem.h"
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
    assert_true(grammar_thread_cancel(&alone.job));
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

/* A vocabulary whose tokens, or whose spelling of a text, are there only when the test says so. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_open, is_reached;
};

static void pass(struct gate *g) {
    pthread_mutex_lock(&g->lock);
    g->is_reached = true;
    pthread_cond_broadcast(&g->changed);
    while (!g->is_open)
        pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void open_gate(struct gate *g, bool waits) {
    pthread_mutex_lock(&g->lock);
    while (waits && !g->is_reached)
        pthread_cond_wait(&g->changed, &g->lock);
    g->is_open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static struct str late_byte(const void *arg, uint32_t id) {
    struct gate *const *g = arg;

    pass(*g);
    return byte_of(NULL, id);
}

static uint32_t late_spelling(const void *arg, struct str text, uint32_t *ids, uint32_t max) {
    struct gate *const *g = arg;

    (void)text;
    (void)ids;
    (void)max;
    pass(*g);
    return 0;
}

static void open_gated(struct harness *h, const struct vocabulary_source *gated) {
    *h = (struct harness){.home = pthread_self()};
    assert_int_equal(loop_create(&h->loop, NULL), ST_OK);
    assert_int_equal(grammar_thread_start(&h->thread, h->loop, gated, NULL), ST_OK);
}

/* Clients that leave at once: however many come, none waits, and none is compiled. */
static void what_none_waits_for_leaves_the_queue(void **state) {
    struct gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct gate *arg = &gate;
    struct vocabulary_source gated = {
        .n_tokens = 256, .arg = &arg, .bytes = late_byte, .is_special = none_is_special};
    struct grammar_thread_stats stats;
    struct harness h;
    struct job job;
    char pattern[32];

    (void)state;
    open_gated(&h, &gated);
    for (uint32_t i = 0; i < 3 * GRAMMAR_MAX_WAITING; i++) {
        snprintf(pattern, sizeof(pattern), "[ab]{%u}", i + 1);
        submit(&h, &job, pattern);
        assert_int_equal(job.n_done, 0);
        assert_true(grammar_thread_cancel(&job.job));
    }
    h.n_awaited = 1;
    submit(&h, &job, "a+");
    open_gate(&gate, false);
    loop_run(h.loop);
    assert_int_equal(job.job.status, ST_OK);
    grammar_thread_stats(h.thread, &stats);
    assert_int_equal(stats.n_compiled, 1);
    assert_int_equal(stats.n_refused, 0);
    grammar_unref(job.job.grammar);
    harness_close(&h);
}

/* The client leaves while its grammar is compiled: the thread ends that, and another with the same
 * spec is compiled by itself. */
static void what_none_waits_for_is_stopped(void **state) {
    struct gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct gate *arg = &gate;
    struct vocabulary_source gated = {.n_tokens = 256,
                                      .arg = &arg,
                                      .bytes = byte_of,
                                      .is_special = none_is_special,
                                      .encode = late_spelling};
    struct grammar_thread_stats stats;
    struct harness h;
    struct job first, second;

    (void)state;
    open_gated(&h, &gated);
    submit(&h, &first, "abc");
    pthread_mutex_lock(&gate.lock);
    while (!gate.is_reached)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
    assert_true(grammar_thread_cancel(&first.job));
    h.n_awaited = 1;
    submit(&h, &second, "abc");
    open_gate(&gate, true);
    loop_run(h.loop);
    assert_int_equal(first.n_done, 0);
    assert_int_equal(second.job.status, ST_OK);
    grammar_thread_stats(h.thread, &stats);
    assert_int_equal(stats.n_compiled, 1);
    assert_int_equal(stats.n_refused, 0);
    assert_int_equal(stats.n_hits, 0);
    grammar_unref(second.job.grammar);
    harness_close(&h);
}

static void an_abandoned_grammar_is_none(void **state) {
    struct vocabulary *v = vocabulary_create(&source);
    atomic_bool is_abandoned = true;
    struct grammar_spec spec = {
        .kind = GRAMMAR_REGEX, .text = STR("abc"), .is_abandoned = &is_abandoned};
    struct grammar *g = NULL;
    struct error err = {0};

    (void)state;
    assert_int_equal(grammar_compile(&g, &spec, v, &err), ST_CLOSED);
    assert_null(g);
    vocabulary_destroy(v);
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
    atomic_size_t total = 5, most = SIZE_MAX;
    struct grammar_matcher m;
    const uint32_t *mask;
    bool is_new;
    struct grammar *g = fixture_grammar(GRAMMAR_REGEX, "[ab]*a[ab]{9}", false, v);
    size_t before = grammar_bytes(g);

    (void)state;
    grammar_count_in(g, &total, &most);
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

#define N_FORKS 20000u

/* One token more, by the mask. */
static enum status step(struct grammar_matcher *m, struct rng *rng) {
    const uint32_t *mask;
    bool is_new;
    enum status st = grammar_mask(m, &mask, &is_new);

    return st == ST_OK ? grammar_take(m, 'a' + (uint32_t)rng_below(rng, 2)) : st;
}

/* All together take more than their limit. What a grammar has and no answer needs is forgotten; but
 * if answers need more, one that goes on ends. Once there is room again it would not. */
static void growth_ends_where_all_take_too_much(void **state) {
    struct vocabulary *v = vocabulary_create(&source);
    atomic_size_t total = 0, most = SIZE_MAX;
    struct grammar_matcher m, *fork = mem_calloc(N_FORKS, sizeof(*fork));
    struct grammar *g = fixture_grammar(GRAMMAR_REGEX, "(a|b)*a(a|b){18}c", false, v);
    uint64_t n_collected;
    enum status st = ST_OK;
    struct rng rng;
    uint32_t n = 0;

    (void)state;
    rng_seed(&rng, support_seed());
    grammar_count_in(g, &total, &most);
    grammar_matcher_init(&m, g);
    while (grammar_bytes(g) <= GRAMMAR_CROWDED_BYTES)
        assert_int_equal(step(&m, &rng), ST_OK);
    n_collected = grammar_collections(g);
    atomic_store(&most, 1);
    for (uint32_t i = 0; i < 2000; i++) {
        assert_int_equal(step(&m, &rng), ST_OK);
        assert_true(grammar_bytes(g) <= GRAMMAR_CROWDED_BYTES);
    }
    assert_true(grammar_collections(g) > n_collected);
    atomic_store(&most, SIZE_MAX);
    for (; n < N_FORKS; n++) {
        grammar_matcher_fork(&fork[n], &m);
        assert_int_equal(step(&m, &rng), ST_OK);
    }
    atomic_store(&most, 1);
    for (uint32_t i = 0; i < 10 && st == ST_OK; i++)
        st = step(&m, &rng);
    assert_int_equal(st, ST_BUSY);
    assert_int_equal(atomic_load(&total), grammar_bytes(g));
    assert_true(grammar_bytes(g) <= 2 * GRAMMAR_CROWDED_BYTES);
    atomic_store(&most, SIZE_MAX);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(step(&m, &rng), ST_OK);
    grammar_check(g);
    for (uint32_t i = 0; i < n; i++)
        grammar_matcher_fini(&fork[i]);
    mem_free(fork);
    grammar_matcher_fini(&m);
    grammar_unref(g);
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
        cmocka_unit_test(what_none_waits_for_leaves_the_queue),
        cmocka_unit_test(what_none_waits_for_is_stopped),
        cmocka_unit_test(an_abandoned_grammar_is_none),
        cmocka_unit_test(stopping_hands_everything_back),
        cmocka_unit_test(too_many_wait_is_busy),
        cmocka_unit_test(too_much_that_is_held_is_busy),
        cmocka_unit_test(bytes_are_counted_until_they_are_freed),
        cmocka_unit_test(growth_ends_where_all_take_too_much),
        cmocka_unit_test(the_cache_drops_what_was_used_longest_ago),
        cmocka_unit_test(the_cache_gives_up_what_has_grown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/worker/text/test_text_thread.c - every job comes back exactly once, on the loop. */
#include "worker/text/text_thread.h"

#include <pthread.h>
#include <string.h>

#include "common/loop.h"
#include "common/mem.h"
#include "tests/support/cm.h"

#define N_JOBS    20
#define LONG_TEXT (64u << 10)

struct bench {
    struct loop *loop;
    struct tokenizer *tokenizer;
    struct text_thread *thread;
    pthread_t home;
    uint32_t n_back, n_awaited;
    char *text; /* LONG_TEXT */
};

struct job {
    struct text_job job;
    struct bench *bench;
    uint32_t n_done;
};

static struct bench bench_open(void) {
    struct bench b = {.tokenizer = tokenizer_create_bytes(), .home = pthread_self()};

    b.text = mem_alloc(LONG_TEXT);
    memset(b.text, 'a', LONG_TEXT);
    assert_int_equal(loop_create(&b.loop, NULL), ST_OK);
    assert_int_equal(text_thread_start(&b.thread, b.loop, b.tokenizer, NULL), ST_OK);
    return b;
}

static void bench_close(struct bench *b) {
    text_thread_stop(b->thread);
    loop_destroy(b->loop);
    tokenizer_destroy(b->tokenizer);
    mem_free(b->text);
}

static void on_done(struct text_job *job) {
    struct job *j = CONTAINER_OF(job, struct job, job);

    assert_true(pthread_equal(pthread_self(), j->bench->home));
    j->n_done++;
    if (++j->bench->n_back == j->bench->n_awaited) loop_stop(j->bench->loop);
}

static void submit(struct bench *b, struct job *j, struct str text) {
    *j = (struct job){.bench = b, .job = {.text = text, .on_done = on_done}};
    text_thread_submit(b->thread, &j->job);
}

static void a_short_text_is_done_at_once(void **state) {
    struct bench b = bench_open();
    struct job j;

    (void)state;
    submit(&b, &j, STR("hello"));
    assert_int_equal(j.n_done, 1);
    assert_int_equal(j.job.status, ST_OK);
    assert_int_equal(j.job.tokens.n, 5);
    token_list_fini(&j.job.tokens);
    submit(&b, &j, STR_NULL);
    assert_int_equal(j.n_done, 1);
    assert_int_equal(j.job.status, ST_OK);
    assert_int_equal(j.job.tokens.n, 0);
    bench_close(&b);
}

static void long_texts_travel_and_come_back(void **state) {
    struct bench b = bench_open();
    struct job jobs[N_JOBS];

    (void)state;
    b.n_awaited = N_JOBS;
    for (uint32_t i = 0; i < N_JOBS; i++) {
        submit(&b, &jobs[i], (struct str){b.text, LONG_TEXT - i});
        assert_int_equal(jobs[i].n_done, 0);
    }
    loop_run(b.loop);
    for (uint32_t i = 0; i < N_JOBS; i++) {
        assert_int_equal(jobs[i].n_done, 1);
        assert_int_equal(jobs[i].job.status, ST_OK);
        assert_int_equal(jobs[i].job.tokens.n, LONG_TEXT - i);
        token_list_fini(&jobs[i].job.tokens);
    }
    bench_close(&b);
}

static void a_text_that_is_none_says_why(void **state) {
    struct bench b = bench_open();
    struct job j;

    (void)state;
    b.n_awaited = 1;
    b.text[LONG_TEXT / 2] = '\xff';
    submit(&b, &j, (struct str){b.text, LONG_TEXT});
    loop_run(b.loop);
    assert_int_equal(j.job.status, ST_INVALID);
    assert_true(j.job.err.message[0] != 0);
    assert_int_equal(j.job.tokens.n, 0);
    token_list_fini(&j.job.tokens);
    bench_close(&b);
}

static void stopping_hands_every_job_back(void **state) {
    struct bench b = bench_open();
    struct job jobs[N_JOBS];

    (void)state;
    for (uint32_t i = 0; i < N_JOBS; i++) {
        submit(&b, &jobs[i], (struct str){b.text, LONG_TEXT});
    }
    text_thread_stop(b.thread);
    b.thread = NULL;
    assert_int_equal(b.n_back, N_JOBS);
    for (uint32_t i = 0; i < N_JOBS; i++) {
        assert_int_equal(jobs[i].n_done, 1);
        if (jobs[i].job.status == ST_OK) {
            assert_int_equal(jobs[i].job.tokens.n, LONG_TEXT);
        } else {
            assert_int_equal(jobs[i].job.status, ST_CLOSED);
        }
        token_list_fini(&jobs[i].job.tokens);
    }
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_text_is_done_at_once),
        cmocka_unit_test(long_texts_travel_and_come_back),
        cmocka_unit_test(a_text_that_is_none_says_why),
        cmocka_unit_test(stopping_hands_every_job_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

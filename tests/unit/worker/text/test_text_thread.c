/* tests/unit/worker/text/test_text_thread.c - every job comes back exactly once, on the loop. */
#include <pthread.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "tests/support/cm.h"
#include "worker/text/text_thread.h"

#define N_JOBS    20
#define LONG_TEXT (64u << 10)
#define BOOK_TEXT (4u << 20)
#define N_BOOKS   4

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
    uint32_t n_done, place; /* the place-th to come back */
    uint32_t n_texts;       /* that halve was asked about */
};

static struct bench bench_with(struct tokenizer *tokenizer, uint32_t n_threads,
                               uint64_t max_queue_bytes) {
    struct text_thread_config config = {n_threads, max_queue_bytes};
    struct bench b = {.tokenizer = tokenizer, .home = pthread_self()};

    b.text = mem_alloc(LONG_TEXT);
    memset(b.text, 'a', LONG_TEXT);
    assert_int_equal(loop_create(&b.loop, NULL), ST_OK);
    assert_int_equal(text_thread_start(&b.thread, b.loop, b.tokenizer, &config, NULL), ST_OK);
    return b;
}

static struct bench bench_open(void) {
    return bench_with(tokenizer_create_bytes(), 2, 1u << 30);
}

/* One that cuts text into words and merges them. */
static struct tokenizer *open_qwen(void) {
    struct tokenizer *t = NULL;
    char *text = NULL;
    size_t n;

    assert_int_equal(file_read("tests/unit/data/tokenizer_qwen2.json", 16 << 20, &text, &n, NULL),
                     ST_OK);
    assert_int_equal(tokenizer_parse(&t, (struct str){text, n}, STR_NULL, NULL), ST_OK);
    mem_free(text);
    return t;
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
    j->place = j->bench->n_back;
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

static void an_invalid_text_is_refused_with_the_reason(void **state) {
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

/* --- long texts and others -------------------------------------------------------------------- */
static char *write_book(void) {
    static const char words[] = "It was the best of times, it was the worst of times; ";
    char *text = mem_alloc(BOOK_TEXT);

    for (size_t i = 0; i < BOOK_TEXT; i++)
        text[i] = words[i % (sizeof(words) - 1)];
    return text;
}

/* One thread, books before the page: it is encoded in the middle of one. Where the machine let the
 * books be done before the page came, there is nothing to see, and it is tried again. */
static void page_overtakes_the_books_before_it(void **state) {
    char *book = write_book();
    bool was_seen = false;

    (void)state;
    while (!was_seen) {
        struct bench b = bench_with(open_qwen(), 1, 1u << 30);
        struct text_thread_stats stats;
        struct job books[N_BOOKS], page;

        b.n_awaited = N_BOOKS + 1;
        for (uint32_t i = 0; i < N_BOOKS; i++)
            submit(&b, &books[i], (struct str){book, BOOK_TEXT});
        submit(&b, &page, (struct str){book, 6000});
        text_thread_stats(b.thread, &stats);
        was_seen = stats.n_waiting >= N_BOOKS - 1; /* all but the one that is being read */
        loop_run(b.loop);
        for (uint32_t i = 0; i < N_BOOKS; i++) {
            assert_int_equal(books[i].job.status, ST_OK);
            token_list_fini(&books[i].job.tokens);
        }
        if (was_seen) assert_true(page.place <= 1);
        text_thread_stats(b.thread, &stats);
        assert_true(stats.n_slices >= (uint64_t)N_BOOKS * (BOOK_TEXT / TOKENIZE_SLICE) - N_BOOKS);
        assert_int_equal(stats.n_waiting, 0);
        assert_int_equal(stats.waiting_bytes, 0);
        token_list_fini(&page.job.tokens);
        bench_close(&b);
    }
    mem_free(book);
}

/* What is encoded between slices of another changes nothing of either. */
static void texts_of_all_lengths_are_as_they_are_alone(void **state) {
    static const size_t lengths[] = {6000, 2 << 20, 50000, 1 << 20, 9000, 300000, 4097, 3 << 20};
    char *book = write_book();

    (void)state;
    for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
        struct bench b = bench_with(open_qwen(), n_threads, 1u << 30);
        struct job jobs[ARRAY_LEN(lengths)];

        b.n_awaited = ARRAY_LEN(lengths);
        for (size_t i = 0; i < ARRAY_LEN(lengths); i++)
            submit(&b, &jobs[i], (struct str){book, lengths[i]});
        loop_run(b.loop);
        for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
            struct token_list want = {0};

            assert_int_equal(tokenizer_encode(b.tokenizer, jobs[i].job.text, 0, &want, NULL),
                             ST_OK);
            assert_int_equal(jobs[i].job.tokens.n, want.n);
            assert_memory_equal(jobs[i].job.tokens.ids, want.ids, want.n * sizeof(*want.ids));
            token_list_fini(&want);
            token_list_fini(&jobs[i].job.tokens);
        }
        bench_close(&b);
    }
    mem_free(book);
}

static void text_that_cannot_fit_is_refused_before_it_is_read(void **state) {
    struct bench b = bench_open();
    uint64_t most = tokenizer_max_bytes_per_token(b.tokenizer);
    struct text_thread_stats stats;
    struct job j = {.bench = &b, .job = {.on_done = on_done, .max_tokens = 10}};

    (void)state;
    assert_true(most > 0 && 10 * most + 1 < LONG_TEXT);
    j.job.text = (struct str){b.text, 10 * most + 1};
    text_thread_submit(b.thread, &j.job);
    assert_int_equal(j.n_done, 1); /* at once */
    assert_int_equal(j.job.status, ST_INVALID);
    assert_true(j.job.has_too_many);
    text_thread_stats(b.thread, &stats);
    assert_int_equal(stats.n_over_length, 1);
    assert_int_equal(stats.n_slices, 0);
    bench_close(&b);
}

/* Halves a text that is too long. */
static bool halve(struct text_job *job) {
    struct job *j = CONTAINER_OF(job, struct job, job);

    assert_false(pthread_equal(pthread_self(), j->bench->home));
    j->n_texts++;
    if (!job->has_too_many) return false;
    job->text.len /= 2;
    return true;
}

/* Two are refused, the third fits. */
static void job_goes_on_with_another_text_on_its_thread(void **state) {
    struct bench b = bench_open();
    uint64_t most = tokenizer_max_bytes_per_token(b.tokenizer);
    struct job j = {.bench = &b, .job = {.on_done = on_done, .next = halve, .max_tokens = 10}};

    (void)state;
    assert_true(most >= 1);
    b.n_awaited = 1;
    j.job.text = (struct str){b.text, 32};
    text_thread_submit(b.thread, &j.job);
    assert_int_equal(j.n_done, 0); /* short, but not on the loop */
    loop_run(b.loop);
    assert_int_equal(j.n_texts, 3);
    assert_int_equal(j.job.status, ST_OK);
    assert_int_equal(j.job.tokens.n, 8);
    assert_false(j.job.has_too_many);
    token_list_fini(&j.job.tokens);
    bench_close(&b);
}

static void job_without_another_text_is_refused(void **state) {
    struct bench b = bench_open();
    struct job j = {.bench = &b, .job = {.on_done = on_done, .max_tokens = 10}};

    (void)state;
    j.job.text = (struct str){b.text, 32};
    text_thread_submit(b.thread, &j.job);
    assert_int_equal(j.n_done, 1);
    assert_true(j.job.has_too_many);
    assert_int_equal(j.job.status, ST_INVALID);
    bench_close(&b);
}

static void text_of_too_many_tokens_is_not_read_to_its_end(void **state) {
    struct bench b = bench_with(open_qwen(), 1, 1u << 30);
    char *book = write_book();
    struct text_thread_stats stats;
    struct job j = {.bench = &b, .job = {.on_done = on_done, .max_tokens = 100000}};

    (void)state;
    b.n_awaited = 1;
    j.job.text = (struct str){book, BOOK_TEXT};
    text_thread_submit(b.thread, &j.job);
    loop_run(b.loop);
    assert_int_equal(j.job.status, ST_INVALID);
    assert_true(j.job.has_too_many);
    assert_int_equal(j.job.tokens.n, 0);
    text_thread_stats(b.thread, &stats);
    assert_int_equal(stats.n_over_tokens, 1);
    assert_true(stats.n_slices < BOOK_TEXT / TOKENIZE_SLICE / 2);
    token_list_fini(&j.job.tokens);
    mem_free(book);
    bench_close(&b);
}

static void full_queue_refuses_and_one_text_always_enters(void **state) {
    struct bench b = bench_with(open_qwen(), 1, 1000);
    struct text_thread_stats stats;
    char *book = write_book();
    struct job jobs[N_JOBS];
    uint32_t n_ok = 0, n_refused = 0;

    (void)state;
    b.n_awaited = N_JOBS;
    for (uint32_t i = 0; i < N_JOBS; i++)
        submit(&b, &jobs[i], (struct str){book, BOOK_TEXT / 4});
    if (b.n_back < N_JOBS) loop_run(b.loop);
    for (uint32_t i = 0; i < N_JOBS; i++) {
        n_ok += jobs[i].job.status == ST_OK;
        n_refused += jobs[i].job.status == ST_UNAVAILABLE;
        token_list_fini(&jobs[i].job.tokens);
    }
    text_thread_stats(b.thread, &stats);
    assert_int_equal(n_ok + n_refused, N_JOBS);
    assert_int_equal(stats.n_over_queue, n_refused);
    assert_true(n_ok >= 1);
    mem_free(book);
    bench_close(&b);
}

static void cancelled_text_comes_back_undone(void **state) {
    struct bench b = bench_with(open_qwen(), 1, 1u << 30);
    char *book = write_book();
    struct job books[N_BOOKS];

    (void)state;
    b.n_awaited = N_BOOKS;
    for (uint32_t i = 0; i < N_BOOKS; i++)
        submit(&b, &books[i], (struct str){book, BOOK_TEXT});
    for (uint32_t i = 1; i < N_BOOKS; i++)
        atomic_store(&books[i].job.is_cancelled, true);
    loop_run(b.loop);
    assert_int_equal(books[0].job.status, ST_OK);
    for (uint32_t i = 0; i < N_BOOKS; i++) {
        assert_true(books[i].job.status == ST_OK || books[i].job.status == ST_CLOSED);
        token_list_fini(&books[i].job.tokens);
    }
    mem_free(book);
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_text_is_done_at_once),
        cmocka_unit_test(long_texts_travel_and_come_back),
        cmocka_unit_test(an_invalid_text_is_refused_with_the_reason),
        cmocka_unit_test(stopping_hands_every_job_back),
        cmocka_unit_test(page_overtakes_the_books_before_it),
        cmocka_unit_test(texts_of_all_lengths_are_as_they_are_alone),
        cmocka_unit_test(text_that_cannot_fit_is_refused_before_it_is_read),
        cmocka_unit_test(job_goes_on_with_another_text_on_its_thread),
        cmocka_unit_test(job_without_another_text_is_refused),
        cmocka_unit_test(text_of_too_many_tokens_is_not_read_to_its_end),
        cmocka_unit_test(full_queue_refuses_and_one_text_always_enters),
        cmocka_unit_test(cancelled_text_comes_back_undone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

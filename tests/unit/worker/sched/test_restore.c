/* tests/unit/worker/sched/test_restore.c - a prompt found in host memory: brought back where that
 * is sooner than computing it. A token takes a millisecond. */
#include "tests/support/sched_fixture.h"

#define RATE       1000.0
#define BLOCK      16u
#define N_TOKENS   160u
#define HOST_FOUND 144u /* all but the block with the last token */

static void open_with_host(struct sched_fixture *f, double restore_rate) {
    struct fixture_options o = fixture_defaults();

    o.n_blocks = 20;
    o.n_host_blocks = 100;
    o.scheduler.max_model_len = 320;
    o.scheduler.prefill_tokens_per_s = RATE;
    fixture_open(f, &o);
    scheduler_set_restore_rate(f->s, restore_rate);
}

/* Runs a prompt whose answer is one token; the cached tokens, and of these the host's. */
static uint32_t run(struct sched_fixture *f, uint32_t n, uint32_t token, uint32_t *host) {
    struct request *r = fixture_add(f, n, token, NULL);
    uint32_t cached;

    fixture_step(f);
    kv_manager_clear_moves(f->kv);
    fixture_take(f, FIXTURE_EOS);
    cached = r->cached_tokens;
    *host = r->host_tokens;
    request_unref(r);
    return cached;
}

/* The same prompt before and after another has taken the device. */
static uint32_t after_a_turnover(struct sched_fixture *f, uint32_t *host) {
    uint32_t unused;

    (void)run(f, N_TOKENS, 7, &unused);
    (void)run(f, 300, 8, &unused);
    return run(f, N_TOKENS, 7, host);
}

static void what_is_restored_sooner_is_restored(void **state) {
    static const double rates[] = {0, RATE * 1.01, RATE * 100};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rates); i++) {
        struct sched_fixture f;
        uint32_t host;

        open_with_host(&f, rates[i]);
        assert_int_equal(after_a_turnover(&f, &host), HOST_FOUND);
        assert_true(host > 0 && host <= HOST_FOUND && host % BLOCK == 0);
        fixture_close(&f);
    }
}

static void what_is_computed_sooner_is_computed(void **state) {
    struct sched_fixture f;
    uint32_t host, cached;

    (void)state;
    open_with_host(&f, RATE * 0.99);
    cached = after_a_turnover(&f, &host);
    assert_int_equal(host, 0);
    assert_true(cached < HOST_FOUND);
    fixture_close(&f);
}

/* A measurement that was bad once is not kept for ever. */
static void now_and_then_it_is_tried_again(void **state) {
    struct sched_fixture f;
    uint32_t n_restored = 0, n = 3 * SCHEDULER_RESTORE_TRIALS;

    (void)state;
    open_with_host(&f, RATE / 10);
    for (uint32_t i = 0; i < n; i++) { /* each of two prompts evicts the other */
        uint32_t host;

        (void)run(&f, 300, 7 + i % 2, &host);
        n_restored += host > 0;
    }
    assert_int_equal(n_restored, 2); /* the first two found nothing */
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_restored_sooner_is_restored),
        cmocka_unit_test(what_is_computed_sooner_is_computed),
        cmocka_unit_test(now_and_then_it_is_tried_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

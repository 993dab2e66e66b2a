/* tests/unit/worker/engine/test_engine_async.c - two steps in flight: what goes behind the one that
 * runs, what does not, and what becomes of both when requests or the device end meanwhile. */
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/late_backend.h"
#include "tests/support/support.h"
#include "worker/grammar/core/vocabulary.h"

static const struct machine late = {.ops = &backend_late};

static struct request_params params_of(const uint32_t *prompt, uint32_t n, uint32_t max_tokens) {
    struct request_params p = request_params_default;

    p.prompt = prompt;
    p.n_prompt = n;
    p.max_tokens = max_tokens;
    p.temperature = 0;
    p.ignore_eos = true;
    return p;
}

static void await_submitted(uint64_t n) {
    WAIT_UNTIL(late_counts().n_submitted >= n);
}

static void fixture_open_late(struct engine_fixture *w, const struct late_plan *plan,
                              struct setup s) {
    late_plan_set(plan);
    s.machine = late;
    fixture_open(w, &s);
}

static void every_decode_step_goes_in_behind_the_one_before(void **state) {
    static uint32_t prompt[20];
    static struct answer a[3];
    struct request_params p = params_of(prompt, 20, 30);
    struct late_counts n;
    struct engine_fixture w;

    (void)state;
    memset(a, 0, sizeof(a));
    late_hold(true); /* all three arrive before the first step ends */
    fixture_open_late(&w, &(struct late_plan){.seed = 1, .done_percent = 1}, (struct setup){0});
    assert_int_equal(engine_info(w.e)->n_slots, 2);
    for (int i = 0; i < 3; i++)
        submit(&w, &p, &a[i]);
    await_submitted(2);
    late_hold(false);
    fixture_run(&w);
    n = late_counts();
    for (int i = 0; i < 3; i++)
        assert_int_equal(a[i].n, 30);
    assert_int_equal(n.n_submitted, n.n_done);
    assert_in_range(n.n_submitted, 30, 33);
    assert_true(n.n_behind >= n.n_submitted - 4);
    assert_in_range(n.n_references, 3 * 28, 3 * 29); /* all but the first, and the last step's */
    assert_int_equal(stats_of(&w).generated_tokens, 90);
    assert_int_equal(stats_of(&w).steps, n.n_done);
    assert_idle(&w);
    fixture_close(&w);
}

static void off_means_one_step_after_the_other(void **state) {
    static uint32_t prompt[20];
    static struct answer a;
    struct request_params p = params_of(prompt, 20, 10);
    struct engine_fixture w;

    (void)state;
    fixture_open_late(&w, &(struct late_plan){.seed = 1}, (struct setup){.async = ASYNC_OFF});
    assert_int_equal(engine_info(w.e)->n_slots, 1);
    submit(&w, &p, &a);
    fixture_run(&w);
    assert_int_equal(late_counts().n_behind, 0);
    assert_int_equal(late_counts().n_references, 0);
    fixture_close(&w);
    fixture_open_late(&w, &(struct late_plan){.seed = 1, .no_event_fd = true}, (struct setup){0});
    assert_int_equal(engine_info(w.e)->n_slots, 1); /* no notification would come */
    fixture_close(&w);
}

/* --- grammars --------------------------------------------------------------------------------- */

static struct str byte_of(const void *arg, uint32_t id) {
    static char bytes[131];

    (void)arg;
    bytes[id] = (char)id;
    return (struct str){bytes + id, 1};
}

static bool is_end(const void *arg, uint32_t id) {
    (void)arg;
    return id == EOS;
}

/* [ab]{20} for a model whose tokens are bytes. */
static struct grammar *grammar_of(struct vocabulary **v) {
    struct vocabulary_source source = {.n_tokens = 131, .bytes = byte_of, .is_special = is_end};
    struct grammar_spec spec = {.kind = GRAMMAR_REGEX, .text = STR("[ab]{20}")};
    struct grammar *g = NULL;

    *v = vocabulary_create(&source);
    assert_int_equal(grammar_compile(&g, &spec, *v, NULL), ST_OK);
    return g;
}

static void assert_obeys(const struct answer *a) {
    assert_int_equal(a->n, 20);
    assert_int_equal(a->finish, FINISH_STOP);
    for (uint32_t i = 0; i < a->n; i++)
        assert_in_range(a->token[i], 'a', 'b');
}

/* Ahead of others they cannot go: with half of the rows theirs, all go together. */
static void requests_with_grammars_keep_step_with_others(void **state) {
    static uint32_t prompt[20];
    static struct answer a[4];
    struct request_params p = params_of(prompt, 20, 20), free_p = p;
    struct engine_fixture w;
    struct vocabulary *v;

    (void)state;
    memset(a, 0, sizeof(a));
    p.grammar = grammar_of(&v);
    p.max_tokens = 40;
    late_hold(true);
    fixture_open_late(&w, &(struct late_plan){.seed = 1, .done_percent = 1}, (struct setup){0});
    for (int i = 0; i < 4; i++)
        submit(&w, i % 2 ? &free_p : &p, &a[i]);
    await_submitted(1);
    late_hold(false);
    fixture_run(&w);
    assert_obeys(&a[0]);
    assert_obeys(&a[2]);
    assert_int_equal(a[1].n, 20);
    assert_int_equal(a[3].n, 20);
    assert_in_range(late_counts().n_submitted, 20, 26);
    assert_idle(&w);
    fixture_close(&w);
    grammar_unref(p.grammar);
    vocabulary_destroy(v);
}

/* One among many does not hold the others up: they go behind the step that it waits for. */
static void a_single_grammar_holds_no_step_up(void **state) {
    static uint32_t prompt[20];
    static struct answer a[12];
    struct request_params p = params_of(prompt, 20, 20), free_p = params_of(prompt, 20, 40);
    struct engine_fixture w;
    struct vocabulary *v;

    (void)state;
    memset(a, 0, sizeof(a));
    p.grammar = grammar_of(&v);
    late_hold(true);
    fixture_open_late(&w, &(struct late_plan){.seed = 1, .done_percent = 1},
                      (struct setup){.max_seqs = 12});
    for (int i = 0; i < 12; i++)
        submit(&w, i == 0 ? &p : &free_p, &a[i]);
    await_submitted(1);
    late_hold(false);
    fixture_run(&w);
    assert_obeys(&a[0]);
    for (int i = 1; i < 12; i++)
        assert_int_equal(a[i].n, 40);
    assert_true(late_counts().n_behind >= 36);
    assert_idle(&w);
    fixture_close(&w);
    grammar_unref(p.grammar);
    vocabulary_destroy(v);
}

static bool is_reset_done;

static void note_reset_done(struct engine_reset *reset) {
    (void)reset;
    is_reset_done = true;
}

/* A request whose next token is banned by its last cannot go behind itself. Another one, that comes
 * while the engine sleeps, goes behind it before the device has finished anything. */
static void a_new_request_does_not_wait_for_the_step_in_flight(void **state) {
    static uint32_t prompt[20];
    static struct answer a[2];
    static const uint32_t banned[] = {2, 9, 10};
    struct engine_reset reset = {.on_done = note_reset_done};
    struct request_params careful = params_of(prompt, 20, 12), p = params_of(prompt, 20, 12);
    struct engine_fixture w;

    (void)state;
    memset(a, 0, sizeof(a));
    careful.bad_words = banned;
    careful.n_bad_words = ARRAY_LEN(banned);
    late_hold(true);
    fixture_open_late(&w, &(struct late_plan){.seed = 2}, (struct setup){0});
    submit(&w, &careful, &a[0]);
    await_submitted(1);
    engine_reset_prefix_cache(w.e, &reset);
    while (!is_reset_done)
        loop_turn(w.loop, 1000000);
    assert_int_equal(late_counts().n_submitted,
                     1); /* the mail has arrived, and no further step is queued */
    submit(&w, &p, &a[1]);
    await_submitted(2);
    assert_int_equal(late_counts().n_done, 0);
    late_hold(false);
    fixture_run(&w);
    assert_int_equal(a[0].n, 12);
    assert_int_equal(a[1].n, 12);
    fixture_close(&w);
}

/* Ends that depend on the token itself: a step computed behind it is for nothing, and dropped. */
static void tokens_behind_an_end_are_dropped(void **state) {
    static uint32_t prompt[6][30];
    static struct answer expected[6], got[6];
    struct request_params p[6];
    uint32_t stop[6];
    struct engine_fixture plain, w;
    struct rng rng;
    uint64_t n_received = 0;

    (void)state;
    memset(expected, 0, sizeof(expected));
    memset(got, 0, sizeof(got));
    rng_seed(&rng, 4);
    fixture_open(&plain, &(struct setup){0});
    for (uint32_t i = 0; i < 6; i++) {
        for (uint32_t k = 0; k < 30; k++)
            prompt[i][k] = 8 + (uint32_t)rng_below(&rng, 120);
        p[i] = params_of(prompt[i], 30, 40);
        p[i].n_logprobs = 2;
        submit(&plain, &p[i], &expected[i]);
        fixture_run(&plain);
        stop[i] = expected[i].token[3 + 5 * i];
        p[i].stop_ids = &stop[i];
        p[i].n_stop_ids = 1;
        memset(&expected[i], 0, sizeof(expected[i]));
        submit(&plain, &p[i], &expected[i]);
        fixture_run(&plain);
        assert_int_equal(expected[i].finish, FINISH_STOP);
    }
    fixture_close(&plain);
    fixture_open_late(&w, &(struct late_plan){.seed = 5}, (struct setup){.n_blocks = 16});
    for (uint32_t i = 0; i < 6; i++)
        submit(&w, &p[i], &got[i]);
    fixture_run(&w);
    for (uint32_t i = 0; i < 6; i++) {
        assert_same(&expected[i], &got[i], "two in flight", i);
        n_received += got[i].n;
    }
    assert_int_equal(stats_of(&w).generated_tokens, n_received);
    assert_int_equal(stats_of(&w).finished[FINISH_STOP], 6);
    assert_idle(&w);
    fixture_close(&w);
}

static void a_cancel_does_not_wait_for_the_steps_in_flight(void **state) {
    static uint32_t prompt[20];
    static struct answer a[2];
    struct request_params p = params_of(prompt, 20, MAX_OUT);
    static const uint32_t banned[] = {2, 9, 10};
    struct request *r;
    struct engine_fixture w;

    (void)state;
    memset(a, 0, sizeof(a));
    p.bad_words = banned; /* not computed ahead: the mail arrives while the step is in flight */
    p.n_bad_words = ARRAY_LEN(banned);
    late_hold(true);
    fixture_open_late(&w, &(struct late_plan){.seed = 3}, (struct setup){0});
    r = submit(&w, &p, &a[0]);
    await_submitted(1);
    engine_cancel(w.e, r);
    fixture_run(&w);
    assert_int_equal(a[0].finish, FINISH_ABORT);
    assert_int_equal(late_counts().n_done, 0);
    submit(&w, &p, &a[1]); /* into its blocks and its row */
    await_submitted(2);
    late_hold(false);
    fixture_run(&w);
    assert_int_equal(a[1].finish, FINISH_LENGTH);
    assert_int_equal(a[1].n, MAX_OUT);
    assert_idle(&w);
    fixture_close(&w);
}

static void a_lost_device_ends_both_flights_with_its_sentence(void **state) {
    static uint32_t prompt[20];
    struct request_params p = params_of(prompt, 20, MAX_OUT);

    (void)state;
    for (uint64_t lost_at = 1; lost_at < 12; lost_at++) {
        static struct answer a[5];
        struct engine_fixture w;

        memset(a, 0, sizeof(a));
        late_plan_set(&(struct late_plan){.seed = lost_at, .done_percent = 40, .lost_at = lost_at});
        late_hold(true);
        fixture_open(&w, &(struct setup){.machine = late, .max_seqs = 3});
        for (int i = 0; i < 5; i++)
            submit(&w, &p, &a[i]);
        late_hold(false);
        fixture_run(&w);
        while (!w.is_failed)
            loop_turn(w.loop, 1000000);
        for (int i = 0; i < 5; i++)
            assert_int_equal(a[i].finish, FINISH_ERROR);
        assert_non_null(strstr(w.failure.message, "fell off its bus"));
        assert_idle(&w);
        fixture_close(&w);
    }
}

/* The step behind has an output for it, too, which is dropped. */
static void numbers_that_are_not_finite_end_one_request(void **state) {
    static uint32_t prompt[20];
    struct request_params p = params_of(prompt, 20, 30);

    (void)state;
    for (uint64_t step = 1; step < 8; step++) {
        static struct answer a[3];
        uint32_t n_failed = 0, n_received = 0;
        struct engine_fixture w;

        memset(a, 0, sizeof(a));
        late_hold(true);
        fixture_open_late(&w, &(struct late_plan){.seed = step, .spoiled = step},
                          (struct setup){0});
        for (int i = 0; i < 3; i++)
            submit(&w, &p, &a[i]);
        late_hold(false);
        fixture_run(&w);
        for (int i = 0; i < 3; i++) {
            n_failed += a[i].finish == FINISH_ERROR;
            n_received += a[i].n;
            assert_true(a[i].n == 30 || a[i].finish == FINISH_ERROR);
        }
        assert_int_equal(n_failed, 1);
        assert_int_equal(stats_of(&w).generated_tokens, n_received);
        assert_idle(&w);
        fixture_close(&w);
    }
}

static void destroy_leaves_nothing_in_flight(void **state) {
    static uint32_t prompt[30];
    static struct answer a[6];
    struct request_params p = params_of(prompt, 30, MAX_OUT);
    struct request *r[6];
    struct engine_fixture w;

    (void)state;
    for (uint32_t turns = 0; turns < 8; turns++) {
        memset(a, 0, sizeof(a));
        fixture_open_late(&w, &(struct late_plan){.seed = turns, .done_percent = 10},
                          (struct setup){.max_seqs = 2});
        for (int i = 0; i < 6; i++)
            r[i] = submit(&w, &p, &a[i]);
        for (uint32_t i = 0; i < turns; i++)
            loop_turn(w.loop, 1000000);
        fixture_close(&w);
        assert_int_equal(late_counts().n_submitted, late_counts().n_done);
        for (int i = 0; i < 6; i++)
            if (a[i].finish == FINISH_NONE) request_unref(r[i]);
    }
}

static void drain_lands_every_flight(void **state) {
    static uint32_t prompt[30];
    static struct answer a[4];
    struct request_params p = params_of(prompt, 30, MAX_OUT);
    struct engine_fixture w;

    (void)state;
    memset(a, 0, sizeof(a));
    fixture_open_late(&w, &(struct late_plan){.seed = 9}, (struct setup){.max_seqs = 2});
    for (int i = 0; i < 4; i++)
        submit(&w, &p, &a[i]);
    engine_drain(w.e);
    while (!w.is_drained)
        loop_turn(w.loop, 1000000);
    for (int i = 0; i < 4; i++)
        assert_int_equal(a[i].n, MAX_OUT);
    fixture_close(&w);
}

/* Resets in the middle preempt requests whose tokens are under way, twice over. */
static void resets_in_flight_keep_the_answers(void **state) {
    static uint32_t prompt[3][40];
    static struct answer expected[3], got[3];
    struct request_params p[3];
    struct engine_fixture plain, w;
    struct rng rng;

    (void)state;
    memset(expected, 0, sizeof(expected));
    rng_seed(&rng, 6);
    fixture_open(&plain, &(struct setup){0});
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t k = 0; k < 40; k++)
            prompt[i][k] = 8 + (uint32_t)rng_below(&rng, 120);
        p[i] = params_of(prompt[i], 40, 50);
        p[i].temperature = 0.7f;
        p[i].repetition_penalty = 1.2f;
        p[i].seed = i;
        p[i].n_logprobs = 1;
        submit(&plain, &p[i], &expected[i]);
        fixture_run(&plain);
    }
    fixture_close(&plain);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct engine_reset reset = {.reset_running = true, .on_done = note_reset};

        memset(got, 0, sizeof(got));
        fixture_open_late(&w, &(struct late_plan){.seed = seed, .done_percent = 20},
                          (struct setup){0});
        late_hold(true);
        for (uint32_t i = 0; i < 3; i++)
            submit(&w, &p[i], &got[i]);
        await_submitted(2);
        engine_reset_prefix_cache(w.e, &reset); /* the mail arrives with a step in flight */
        late_hold(false);
        while (reset.reset_running)
            loop_turn(w.loop, 1000000);
        for (uint32_t k = 0; k < 5 && w.n_open > 0; k++) {
            uint32_t n = got[0].n;

            reset_cache(&w, 0);
            while (got[0].finish == FINISH_NONE && got[0].n < n + 4)
                loop_turn(w.loop, 1000000);
        }
        fixture_run(&w);
        for (uint32_t i = 0; i < 3; i++)
            assert_same(&expected[i], &got[i], "reset in flight", i);
        assert_true(got[0].n_preemptions > 0 && late_counts().n_behind > 0);
        assert_idle(&w);
        fixture_close(&w);
    }
}

int main(void) {
    gate_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_decode_step_goes_in_behind_the_one_before),
        cmocka_unit_test(requests_with_grammars_keep_step_with_others),
        cmocka_unit_test(a_single_grammar_holds_no_step_up),
        cmocka_unit_test(off_means_one_step_after_the_other),
        cmocka_unit_test(a_new_request_does_not_wait_for_the_step_in_flight),
        cmocka_unit_test(tokens_behind_an_end_are_dropped),
        cmocka_unit_test(a_cancel_does_not_wait_for_the_steps_in_flight),
        cmocka_unit_test(a_lost_device_ends_both_flights_with_its_sentence),
        cmocka_unit_test(numbers_that_are_not_finite_end_one_request),
        cmocka_unit_test(destroy_leaves_nothing_in_flight),
        cmocka_unit_test(drain_lands_every_flight),
        cmocka_unit_test(resets_in_flight_keep_the_answers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/worker/engine/test_engine_life.c - after a cancel, drain, reset or drop no block and
 * no reference is left, and each end is reported once. */
#include <stdio.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/telemetry/log.h"
#include "tests/support/cm.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/support.h"

static struct request_params long_params(const uint32_t *prompt, uint32_t n) {
    struct request_params p = request_params_default;

    p.prompt = prompt;
    p.n_prompt = n;
    p.max_tokens = MAX_OUT;
    p.ignore_eos = true;
    return p;
}

static void cancel_ends_once_and_frees(void **state) {
    static struct answer a[3];
    static uint32_t prompt[40];
    struct request *r[3];
    struct request_params p = long_params(prompt, 40);
    struct engine_fixture w;

    (void)state;
    memset(a, 0, sizeof(a));
    fixture_open(&w, &(struct setup){.max_seqs = 2, .is_gated = true});
    for (int i = 0; i < 3; i++)
        r[i] = submit(&w, &p, &a[i]);
    engine_cancel(w.e, r[2]); /* still waiting, or not yet received */
    permit_steps(4);
    while (a[0].n < 4)
        loop_turn(w.loop, 1000000);
    engine_cancel(w.e, r[0]); /* received after the fifth step at the latest */
    engine_cancel(w.e, r[0]); /* the second does nothing */
    permit_steps(1000);
    fixture_run(&w);
    assert_int_equal(a[0].finish, FINISH_ABORT);
    assert_true(a[0].n == 4 || a[0].n == 5);
    assert_int_equal(a[1].finish, FINISH_LENGTH);
    assert_int_equal(a[1].n, MAX_OUT);
    assert_int_equal(a[2].finish, FINISH_ABORT);
    assert_int_equal(a[2].n, 0);
    assert_idle(&w);
    assert_int_equal(stats_of(&w).finished[FINISH_ABORT], 2);
    assert_int_equal(stats_of(&w).finished[FINISH_LENGTH], 1);
    fixture_close(&w);
}

static void cancel_races_with_the_end(void **state) {
    static uint32_t prompt[4];
    struct request_params p = long_params(prompt, 4);
    struct rng rng;
    struct engine_fixture w;

    (void)state;
    rng_seed(&rng, 3);
    fixture_open(&w, &(struct setup){0});
    for (int i = 0; i < 300; i++) {
        struct request *r;

        p.max_tokens = 1 + (uint32_t)rng_below(&rng, 3);
        r = submit(&w, &p, NULL);
        for (uint64_t k = rng_below(&rng, 3); k > 0; k--)
            loop_turn(w.loop, 50);
        if (w.n_open > 0) engine_cancel(w.e, r);
        fixture_run(&w);
    }
    assert_idle(&w);
    fixture_close(&w);
}

static void completed_by_its_creator_counts_as_stopped(void **state) {
    static struct answer a;
    static uint32_t prompt[10];
    struct request_params p = long_params(prompt, 10);
    struct request *r;
    struct engine_fixture w;

    (void)state;
    memset(&a, 0, sizeof(a));
    fixture_open(&w, &(struct setup){.is_gated = true});
    r = submit(&w, &p, &a);
    engine_complete(w.e, r);
    engine_cancel(w.e, r); /* the first reason holds */
    permit_steps(1000);
    fixture_run(&w);
    assert_int_equal(a.finish, FINISH_STOP);
    assert_idle(&w);
    assert_int_equal(stats_of(&w).finished[FINISH_STOP], 1);
    assert_int_equal(stats_of(&w).finished[FINISH_ABORT], 0);
    fixture_close(&w);
}

/* The creator cancels and drops its reference at once, at any moment of a request. The end is still
 * reported; requests left at engine_destroy are freed with it. */
static void a_creator_may_let_go_at_any_time(void **state) {
    struct engine_reset reset = {.reset_running = true, .is_ok = true, .on_done = note_reset};
    static uint32_t prompt[40];
    struct request_params p = long_params(prompt, 40);
    struct rng rng;
    struct engine_fixture w;

    (void)state;
    rng_seed(&rng, 5);
    fixture_open(&w, &(struct setup){.max_seqs = 2});
    w.lets_go = true;
    for (int i = 0; i < 200; i++) {
        struct request *r = submit(&w, &p, NULL);

        for (uint64_t k = rng_below(&rng, 3); k > 0; k--)
            loop_turn(w.loop, 50);
        engine_cancel(w.e, r);
        request_unref(r);
    }
    fixture_run(&w);
    assert_idle(&w);
    for (int i = 0; i < 5; i++) {
        struct request *r = submit(&w, &p, NULL);

        if (i > 0) engine_cancel(w.e, r);
        request_unref(r);
    }
    engine_reset_prefix_cache(w.e, &reset);
    fixture_close(&w);
    assert_false(reset.reset_running); /* it was reported, too */
}

static void a_slow_reader_gets_many_tokens_at_once(void **state) {
    static struct answer a;
    static uint32_t prompt[10];
    struct request_params p = long_params(prompt, 10);
    struct engine_fixture w;

    (void)state;
    memset(&a, 0, sizeof(a));
    fixture_open(&w, &(struct setup){.is_gated = true});
    submit(&w, &p, &a);
    permit_steps(10);
    WAIT_UNTIL(stats_of(&w).steps >= 10);
    loop_turn(w.loop, 1000000);
    assert_true(a.n >= 9 && a.n_calls <= 2); /* the tenth may be reported after the statistics */
    permit_steps(1000);
    fixture_run(&w);
    assert_int_equal(a.n, MAX_OUT);
    fixture_close(&w);
}

static void a_lost_device_ends_everything(void **state) {
    static struct answer a[3];
    static uint32_t prompt[10];
    struct request_params p = long_params(prompt, 10);
    struct request *late;
    struct error err = {0};
    struct engine_fixture w;

    (void)state;
    memset(a, 0, sizeof(a));
    fixture_open(&w, &(struct setup){.is_gated = true, .max_seqs = 2});
    for (int i = 0; i < 3; i++)
        submit(&w, &p, &a[i]);
    permit_steps(2);
    while (a[0].n < 2)
        loop_turn(w.loop, 1000000);
    gate_breaks = true;
    permit_steps(1);
    fixture_run(&w);
    for (int i = 0; i < 3; i++)
        assert_int_equal(a[i].finish, FINISH_ERROR);
    while (!w.is_failed)
        loop_turn(w.loop, 1000000);
    assert_int_equal(request_create(&late, &p, &engine_info(w.e)->limits, NULL), ST_OK);
    assert_int_equal(engine_submit(w.e, late, &err), ST_UNAVAILABLE);
    request_unref(late);
    assert_idle(&w);
    assert_true(stats_of(&w).is_failed);
    fixture_close(&w);
}

static void numbers_that_are_not_finite_end_one_request(void **state) {
    static struct answer a[2];
    static uint32_t prompt[10];
    struct request_params p = long_params(prompt, 10);
    struct engine_fixture w;

    (void)state;
    memset(a, 0, sizeof(a));
    fixture_open(&w, &(struct setup){.is_gated = true});
    for (int i = 0; i < 2; i++)
        submit(&w, &p, &a[i]);
    while (a[0].n < 3 || a[1].n < 3) { /* the second may have missed the first step */
        permit_steps(1);
        loop_turn(w.loop, 1000000);
    }
    gate_spoils = true;
    permit_steps(1);
    while (w.n_open == 2)
        loop_turn(w.loop, 1000000);
    gate_spoils = false;
    permit_steps(1000);
    fixture_run(&w);
    assert_int_equal((a[0].finish == FINISH_ERROR) + (a[1].finish == FINISH_ERROR), 1);
    assert_int_equal((a[0].finish == FINISH_LENGTH) + (a[1].finish == FINISH_LENGTH), 1);
    assert_idle(&w);
    fixture_close(&w);
}

static void the_log_has_the_cached_tokens(void **state) {
    static struct answer a;
    static uint32_t prompt[8] = {1, 2, 3, 4, 5, 6, 8, 9};
    struct request_params p = long_params(prompt, 8);
    char line[4096];
    FILE *file = tmpfile();
    struct log *log = log_create(&(struct log_config){.fd = fileno(file), .level = LOG_INFO});
    struct engine_fixture w;
    uint32_t n_cold = 0, n_warm = 0;

    (void)state;
    fixture_open(&w, &(struct setup){.block_size = 1, .log = log});
    for (int i = 0; i < 3; i++) {
        submit(&w, &p, &a);
        fixture_run(&w);
    }
    fixture_close(&w);
    log_destroy(log);
    rewind(file);
    while (fgets(line, sizeof(line), file)) {
        if (!strstr(line, "prefill_batch")) continue;
        if (strstr(line, "new_tokens=8 cached_tokens=0")) n_cold++;
        if (strstr(line, "new_tokens=1 cached_tokens=7")) n_warm++;
    }
    assert_int_equal(n_cold, 1);
    assert_int_equal(n_warm, 2);
    fclose(file);
}

static void drain_finishes_present_requests(void **state) {
    static struct answer a[4];
    static uint32_t prompt[30];
    struct request_params p = long_params(prompt, 30);
    struct request *late;
    struct error err = {0};
    struct engine_fixture w;

    (void)state;
    memset(a, 0, sizeof(a));
    fixture_open(&w, &(struct setup){.max_seqs = 2});
    for (int i = 0; i < 4; i++)
        submit(&w, &p, &a[i]);
    engine_drain(w.e);
    engine_drain(w.e);
    assert_int_equal(request_create(&late, &p, &engine_info(w.e)->limits, NULL), ST_OK);
    assert_int_equal(engine_submit(w.e, late, &err), ST_UNAVAILABLE);
    request_unref(late);
    assert_false(w.is_drained);
    while (!w.is_drained)
        loop_turn(w.loop, 1000000);
    assert_int_equal(w.n_open, 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(a[i].n, MAX_OUT);
    assert_true(stats_of(&w).is_draining);
    fixture_close(&w);
}

static void destroy_drops_running_requests(void **state) {
    static uint32_t prompt[30];
    static struct answer a[6];
    struct request_params p = long_params(prompt, 30);
    struct request *r[6];
    struct engine_fixture w;

    (void)state;
    for (int turns = 0; turns < 4; turns++) {
        memset(a, 0, sizeof(a));
        fixture_open(&w, &(struct setup){.max_seqs = 2});
        for (int i = 0; i < 6; i++)
            r[i] = submit(&w, &p, &a[i]);
        for (int i = 0; i < turns; i++)
            loop_turn(w.loop, 1000000);
        fixture_close(&w);
        for (int i = 0; i < 6; i++) /* our references are still ours, unless their end was reported
                                     * */
            if (a[i].finish == FINISH_NONE) request_unref(r[i]);
    }
}

static void the_waiting_limit_is_kept(void **state) {
    static uint32_t prompt[30];
    struct request_params p = long_params(prompt, 30);
    struct request *r;
    struct error err = {0};
    struct engine_fixture w;
    uint32_t n = 0;

    (void)state;
    fixture_open(&w, &(struct setup){.max_seqs = 1, .max_waiting = 3});
    for (;;) {
        assert_int_equal(request_create(&r, &p, &engine_info(w.e)->limits, NULL), ST_OK);
        if (engine_submit(w.e, r, &err) != ST_OK) break;
        n++;
        w.n_open++;
    }
    assert_int_equal(err.status, ST_BUSY);
    request_unref(r);
    assert_true(n == 3 || n == 4); /* one may run already */
    fixture_run(&w);
    for (int i = 0; i < 10; i++) { /* the count comes back to where it was */
        submit(&w, &p, NULL);
        fixture_run(&w);
    }
    assert_idle(&w);
    fixture_close(&w);
}

static void reset_forgets_and_answers_stay_the_same(void **state) {
    static struct answer a[3];
    static uint32_t prompt[50];
    struct request_params p = long_params(prompt, 50);
    struct engine_fixture w;

    (void)state;
    memset(a, 0, sizeof(a));
    p.n_logprobs = 1;
    fixture_open(&w, &(struct setup){.is_gated = true});
    submit(&w, &p, &a[0]);
    permit_steps(1000);
    fixture_run(&w);
    withdraw_permits();
    reset_cache(&w, 0);
    submit(&w, &p, &a[1]);
    permit_steps(8);
    while (a[1].n < 5)
        loop_turn(w.loop, 1000000);
    reset_cache(&w, 1000); /* in the middle: it is preempted and recomputed */
    fixture_run(&w);
    submit(&w, &p, &a[2]);
    fixture_run(&w);
    assert_int_equal(a[1].n_preemptions, 1);
    assert_int_equal(a[1].cached_tokens, 0);
    assert_int_equal(a[2].cached_tokens, 48);
    assert_same(&a[0], &a[1], "reset while running", 1);
    assert_same(&a[0], &a[2], "warm", 2);
    fixture_close(&w);
}

static void case_73_too_little_memory_names_the_longest(void **state) {
    float inv_freq[8];
    uint8_t kinds[8];
    struct engine_options o =
        tiny_options(&(struct setup){.n_blocks = 6}, inv_freq, kinds); /* 5 usable: 80 tokens */
    struct engine *e = NULL;
    struct loop *loop;
    struct error err = {0};

    (void)state;
    assert_int_equal(loop_create(&loop, NULL), ST_OK);
    assert_int_equal(engine_create(&e, &o, loop, &err), ST_NOMEM);
    assert_non_null(strstr(err.message, "80"));
    o.max_model_len = 80;
    assert_int_equal(engine_create(&e, &o, loop, &err), ST_OK);
    assert_int_equal(engine_info(e)->n_blocks, 5);
    engine_destroy(e);
    memset(&err, 0, sizeof(err));
    o.n_blocks = 0;
    o.kv_bytes = 1;
    assert_int_equal(engine_create(&e, &o, loop, &err), ST_NOMEM);
    o.kv_bytes = 0;
    o.weight_bytes = 1ull << 60;
    assert_int_equal(engine_create(&e, &o, loop, &err), ST_NOMEM);
    assert_non_null(strstr(err.message, "weights take"));
    o.max_model_len = CONTEXT + 1;
    assert_int_equal(engine_create(&e, &o, loop, &err), ST_INVALID);
    assert_string_equal(err.param, "max-model-len");
    loop_destroy(loop);
}

static void own_memory_is_budgeted_from_the_total(void **state) {
    struct backend_info info = {.memory_total = 1000, .memory_free = 700};

    (void)state;
    assert_int_equal(engine_memory_budget(&info, 0.5), 350); /* of the host's: of what is free */
    info.flags = BACKEND_OWN_MEMORY;
    assert_int_equal(engine_memory_budget(&info, 0.5), 200); /* half of all, 300 of it taken */
    assert_int_equal(engine_memory_budget(&info, 0.3), 0);
    assert_int_equal(engine_memory_budget(&info, 0.1), 0);
    info.memory_free = 2000; /* nonsense does not wrap */
    assert_int_equal(engine_memory_budget(&info, 0.5), 500);
}

/* A device of its own memory, where a model takes scratch that makes it faster: the reference
 * backend's. */
enum { ALL_BYTES = 1 << 20, SCRATCH_BYTES = 1 << 19 };
static uint32_t n_given;
static uint64_t taken_bytes;

static void crowd(struct backend_info *info) {
    info->flags |= BACKEND_OWN_MEMORY;
    info->memory_total = ALL_BYTES;
    info->memory_free = ALL_BYTES - taken_bytes;
}
static enum status crowded_probe(const struct backend_config *config, struct backend_info *info,
                                 struct error *err) {
    enum status st = backend_ref.probe(config, info, err);

    if (st == ST_OK) crowd(info);
    return st;
}
static void crowded_info(struct backend_device *dev, struct backend_info *info) {
    backend_ref.info(dev, info);
    crowd(info);
}
static enum status crowded_load_end(struct backend_model *m, struct error *err) {
    taken_bytes = SCRATCH_BYTES;
    return backend_ref.load_end(m, err);
}
static bool crowded_give_room(struct backend_model *m) {
    (void)m;
    n_given++;
    taken_bytes = 0;
    return true;
}
static enum status open_crowded(uint32_t n_blocks, struct error *err) {
    float inv_freq[8];
    uint8_t kinds[8];
    struct engine_options o = tiny_options(&(struct setup){.n_blocks = n_blocks}, inv_freq, kinds);
    struct backend_ops crowded = backend_ref;
    struct engine *e = NULL;
    struct loop *loop;
    enum status st;

    crowded.probe = crowded_probe;
    crowded.info = crowded_info;
    crowded.load_end = crowded_load_end;
    crowded.give_room = crowded_give_room;
    o.backend = &crowded;
    taken_bytes = n_given = 0;
    assert_int_equal(loop_create(&loop, NULL), ST_OK);
    st = engine_create(&e, &o, loop, err);
    if (st == ST_OK) {
        assert_int_equal(engine_info(e)->n_blocks, n_blocks - 1);
        engine_destroy(e);
    }
    loop_destroy(loop);
    return st;
}
static void a_pool_that_does_not_fit_is_given_room(void **state) {
    uint32_t block_bytes = 2 * 2 * 16 * 16 * 2; /* layers, K and V, tokens, head, bf16 */
    struct error err = {0};

    (void)state;
    assert_int_equal(open_crowded(SCRATCH_BYTES / block_bytes, &err), ST_OK);
    assert_int_equal(n_given, 0); /* it fits */
    assert_int_equal(open_crowded(SCRATCH_BYTES / block_bytes + 1, &err), ST_OK);
    assert_int_equal(n_given, 1);
    assert_int_equal(open_crowded(ALL_BYTES / block_bytes + 1, &err), ST_NOMEM);
    assert_int_equal(n_given, 0); /* before the model is read */
}

static void a_stop_id_and_min_tokens_are_obeyed(void **state) {
    static struct answer a[2];
    static uint32_t prompt[20] = {9, 9, 9};
    struct request_params p = long_params(prompt, 20);
    uint32_t first;
    struct engine_fixture w;

    (void)state;
    memset(a, 0, sizeof(a));
    fixture_open(&w, &(struct setup){0});
    p.temperature = 0;
    submit(&w, &p, &a[0]);
    fixture_run(&w);
    first = a[0].token[0];
    p.stop_ids = &first;
    p.n_stop_ids = 1;
    memset(&a[0], 0, sizeof(a[0]));
    submit(&w, &p, &a[0]);
    p.min_tokens = 6;
    submit(&w, &p, &a[1]);
    fixture_run(&w);
    assert_int_equal(a[0].n, 1);
    assert_int_equal(a[0].finish, FINISH_STOP);
    assert_int_equal(a[0].stop_token, first);
    assert_true(a[1].n >= 6);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_not_equal(a[1].token[i], first); /* banned */
    fixture_close(&w);
}

int main(void) {
    gate_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancel_ends_once_and_frees),
        cmocka_unit_test(cancel_races_with_the_end),
        cmocka_unit_test(completed_by_its_creator_counts_as_stopped),
        cmocka_unit_test(a_creator_may_let_go_at_any_time),
        cmocka_unit_test(a_slow_reader_gets_many_tokens_at_once),
        cmocka_unit_test(a_lost_device_ends_everything),
        cmocka_unit_test(numbers_that_are_not_finite_end_one_request),
        cmocka_unit_test(the_log_has_the_cached_tokens),
        cmocka_unit_test(drain_finishes_present_requests),
        cmocka_unit_test(destroy_drops_running_requests),
        cmocka_unit_test(the_waiting_limit_is_kept),
        cmocka_unit_test(reset_forgets_and_answers_stay_the_same),
        cmocka_unit_test(case_73_too_little_memory_names_the_longest),
        cmocka_unit_test(a_pool_that_does_not_fit_is_given_room),
        cmocka_unit_test(own_memory_is_budgeted_from_the_total),
        cmocka_unit_test(a_stop_id_and_min_tokens_are_obeyed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

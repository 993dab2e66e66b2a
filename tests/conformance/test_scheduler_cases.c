/* tests/conformance/test_scheduler_cases.c - the scheduler against vLLM's published behaviour, case
 * by case, by the numbers of tests/conformance/README.md; 84 to 87 and 91 are in
 * test_scheduler_remote_cases.c. */
#include "tests/support/sched_fixture.h"

static void assert_tokens(const struct sched_fixture *f, uint32_t n, const uint32_t *tokens) {
    assert_int_equal(f->step.n_entries, n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(f->step.entry[i].n_tokens, tokens[i]);
}

static void unref_all(struct request **r, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        request_unref(r[i]);
}

static void case_74_add_and_abort_keep_count(void **state) {
    struct fixture_options o = fixture_defaults();
    struct sched_fixture f;
    struct request *r[10];

    (void)state;
    fixture_open(&f, &o);
    for (uint32_t i = 0; i < 10; i++) {
        r[i] = fixture_add(&f, 10, i, NULL);
        assert_int_equal(scheduler_counts(f.s).waiting, i + 1);
    }
    for (uint32_t i = 0; i < 10; i++) {
        scheduler_end(f.s, r[i], FINISH_ABORT, 0);
        assert_int_equal(scheduler_counts(f.s).waiting, 9 - i);
        assert_int_equal(r[i]->state, REQUEST_DONE);
        scheduler_check(f.s);
    }
    assert_null(scheduler_any(f.s));
    unref_all(r, 10);
    fixture_close(&f);
}

static void schedule_ten(bool is_scored) {
    struct fixture_options o = fixture_defaults();
    struct request_params p = request_params_default;
    struct sched_fixture f;
    struct request *r[10];

    p.prompt_logprobs = is_scored ? 5 : -1;
    fixture_open(&f, &o);
    for (uint32_t i = 0; i < 10; i++)
        r[i] = fixture_add(&f, 10, i, &p);
    fixture_step(&f);
    assert_int_equal(f.step.n_entries, 10);
    assert_int_equal(f.step.n_outputs, is_scored ? 10 * 9 + 10 : 10);
    for (uint32_t i = 0; i < 10; i++) {
        assert_ptr_equal(f.step.entry[i].request, r[i]);
        assert_int_equal(f.step.entry[i].n_tokens, 10);
        assert_ptr_equal(scheduler_running_at(f.s, i), r[i]);
        for (uint32_t k = 0; k < i; k++)
            assert_int_not_equal(r[i]->row, r[k]->row);
    }
    assert_int_equal(scheduler_counts(f.s).waiting, 0);
    fixture_take(&f, 7);
    fixture_close(&f);
    unref_all(r, 10);
}

static void case_75_all_new_requests_run_whole_in_order(void **state) {
    (void)state;
    schedule_ten(false);
    schedule_ten(true);
}

static void case_76_long_prompts_share_the_budget(void **state) {
    struct fixture_options o = fixture_defaults();
    struct sched_fixture f;
    struct request *r[3];

    (void)state;
    o.scheduler.max_num_batched_tokens = 1024;
    o.scheduler.long_prefill_token_threshold = 400;
    fixture_open(&f, &o);
    for (uint32_t i = 0; i < 3; i++)
        r[i] = fixture_add(&f, 800, i, NULL);
    fixture_step(&f);
    assert_tokens(&f, 3, (uint32_t[]){400, 400, 224});
    fixture_take(&f, 7);
    fixture_step(&f);
    assert_tokens(&f, 3, (uint32_t[]){400, 400, 224});
    fixture_take(&f, 7);
    assert_int_equal(request_n_output(r[0]), 1);
    assert_int_equal(request_n_output(r[2]), 0);
    fixture_step(&f);
    assert_tokens(&f, 3, (uint32_t[]){1, 1, 352});
    fixture_take(&f, 7);
    fixture_close(&f);
    unref_all(r, 3);
}

static void case_77_nothing_overtakes(void **state) {
    (void)state;
    for (int chunked = 0; chunked <= 1; chunked++) {
        struct fixture_options o = fixture_defaults();
        struct sched_fixture f;
        struct request *r[4];

        o.scheduler.max_num_batched_tokens = 1024;
        o.scheduler.max_model_len = 1024;
        o.scheduler.max_num_seqs = 3;
        o.scheduler.chunked_prefill = chunked;
        fixture_open(&f, &o);
        for (uint32_t i = 0; i < 4; i++)
            r[i] = fixture_add(&f, i < 2 ? 800 : 10, i, NULL);
        fixture_step(&f);
        assert_int_equal(f.step.n_entries, chunked ? 2 : 1);
        assert_int_equal(f.step.n_tokens, chunked ? 1024 : 800);
        fixture_take(&f, 7);
        fixture_close(&f);
        unref_all(r, 4);
    }
}

static void case_78_steps_in_flight(void **state) {
    struct fixture_options o = fixture_defaults();
    struct sched_fixture f;
    struct schedule first, second;
    struct request *r[2];

    (void)state;
    o.scheduler.max_num_batched_tokens = 1024;
    o.scheduler.max_num_seqs = 2;
    fixture_open(&f, &o);
    schedule_init(&first, f.s);
    schedule_init(&second, f.s);
    r[0] = fixture_add(&f, 512, 1, NULL);
    scheduler_step(f.s, &first, 1);
    assert_int_equal(first.n_tokens, 512);
    r[1] = fixture_add(&f, 512, 2, NULL);
    scheduler_step(f.s, &second, 1);
    assert_int_equal(second.n_entries, 1);
    assert_ptr_equal(second.entry[0].request, r[1]);
    assert_int_equal(second.n_tokens, 512);
    fixture_step(&f); /* both await their token */
    assert_int_equal(f.step.n_entries, 0);
    assert_false(scheduler_take(f.s, &first.entry[0], 7, 1));
    fixture_step(&f);
    assert_tokens(&f, 1, (uint32_t[]){1});
    assert_ptr_equal(f.step.entry[0].request, r[0]);
    assert_false(scheduler_take(f.s, &second.entry[0], 7, 1));
    fixture_take(&f, 7);
    schedule_fini(&first);
    schedule_fini(&second);
    fixture_close(&f);
    unref_all(r, 2);
}

static void case_79_late_output_of_a_preempted_request_counts(void **state) {
    struct fixture_options o = fixture_defaults();
    struct sched_fixture f;
    struct schedule first, second;
    struct request *r[2];

    (void)state;
    o.n_blocks = 10;
    o.scheduler.max_num_batched_tokens = 100;
    fixture_open(&f, &o);
    schedule_init(&first, f.s);
    schedule_init(&second, f.s);
    r[0] = fixture_add(&f, 80, 1, NULL);
    scheduler_step(f.s, &first, 1);
    assert_int_equal(first.n_tokens, 80);
    r[1] = fixture_add(&f, 80, 2, NULL);
    scheduler_step(f.s, &second, 1);
    assert_int_equal(second.n_tokens, 80);
    assert_int_equal(fixture_free_blocks(&f), 0);
    assert_false(scheduler_take(f.s, &first.entry[0], 1, 1));
    fixture_step(&f);
    assert_tokens(&f, 1, (uint32_t[]){1});
    assert_ptr_equal(f.step.entry[0].request, r[0]);
    assert_int_equal(r[1]->state, REQUEST_WAITING);
    assert_int_equal(r[1]->n_preemptions, 1);
    assert_int_equal(r[1]->n_computed, 0);
    assert_false(scheduler_take(f.s, &second.entry[0], 42, 1));
    assert_int_equal(request_n_output(r[1]), 1);
    assert_int_equal(request_output(r[1])[0], 42);
    scheduler_check(f.s);
    fixture_take(&f, 7);
    schedule_fini(&first);
    schedule_fini(&second);
    fixture_close(&f);
    unref_all(r, 2);
}

static void case_80_reset_with_running(void **state) {
    struct fixture_options o = fixture_defaults();
    struct sched_fixture f;
    struct request *r[5];

    (void)state;
    fixture_open(&f, &o);
    for (uint32_t i = 0; i < 5; i++)
        r[i] = fixture_add(&f, 40, i, NULL);
    fixture_step(&f);
    fixture_take(&f, 7);
    assert_int_equal(scheduler_reset_prefix_cache(f.s, false), ST_BUSY);
    assert_int_equal(scheduler_counts(f.s).running, 5);
    assert_int_equal(scheduler_reset_prefix_cache(f.s, true), ST_OK);
    assert_int_equal(scheduler_counts(f.s).running, 0);
    for (uint32_t i = 0; i < 5; i++)
        assert_ptr_equal(scheduler_waiting_at(f.s, i), r[i]);
    scheduler_check(f.s);
    fixture_step(&f); /* they resume, and find nothing cached */
    assert_int_equal(f.step.n_entries, 5);
    assert_int_equal(f.step.cached_tokens, 0);
    assert_int_equal(f.step.n_tokens, 5 * 41);
    fixture_take(&f, 7);
    fixture_close(&f);
    unref_all(r, 5);
}

/* Runs one request on the outputs given, one per step; returns how many were taken. */
static uint32_t run_outputs(const struct request_params *p, const uint32_t *outputs, uint32_t n,
                            enum finish_reason *finish, uint32_t *stop_token) {
    struct fixture_options o = fixture_defaults();
    struct sched_fixture f;
    struct request *r;
    uint32_t taken;

    fixture_open(&f, &o);
    r = fixture_add(&f, 10, 1, p);
    for (uint32_t i = 0; i < n && r->state != REQUEST_DONE; i++) {
        fixture_step(&f);
        assert_int_equal(f.step.n_entries, 1);
        fixture_take(&f, outputs[i]);
    }
    *finish = r->finish;
    *stop_token = r->stop_token;
    taken = request_n_output(r);
    if (*finish != FINISH_NONE)
        assert_int_equal(fixture_free_blocks(&f), block_pool_n_usable(kv_manager_pool(f.kv)));
    fixture_close(&f);
    request_unref(r);
    return taken;
}

static void case_81_stop_conditions(void **state) {
    struct request_params p = request_params_default;
    enum finish_reason finish;
    uint32_t stop;

    (void)state;
    assert_int_equal(run_outputs(&p, (uint32_t[]){9, FIXTURE_EOS, 9}, 3, &finish, &stop), 2);
    assert_int_equal(finish, FINISH_STOP);
    assert_int_equal(stop, REQUEST_NO_TOKEN);

    p.stop_ids = (uint32_t[]){42, 43};
    p.n_stop_ids = 2;
    assert_int_equal(run_outputs(&p, (uint32_t[]){10, 42, 12}, 3, &finish, &stop), 2);
    assert_int_equal(finish, FINISH_STOP);
    assert_int_equal(stop, 42);

    p.max_tokens = 2;
    assert_int_equal(run_outputs(&p, (uint32_t[]){10, 11, 12}, 3, &finish, &stop), 2);
    assert_int_equal(finish, FINISH_LENGTH);
    assert_int_equal(stop, REQUEST_NO_TOKEN);

    p.max_tokens = 3;
    p.ignore_eos = true;
    assert_int_equal(run_outputs(&p, (uint32_t[]){FIXTURE_EOS, 10, 11}, 3, &finish, &stop), 3);
    assert_int_equal(finish, FINISH_LENGTH);
}

static void case_82_min_tokens(void **state) {
    struct request_params p = request_params_default;
    const uint32_t eos_third[] = {10, 11, FIXTURE_EOS, 12, 13, 14};
    const uint32_t eos_fifth[] = {10, 11, 12, 13, FIXTURE_EOS, 14};
    const uint32_t id_third[] = {10, 11, 42, 12, 42, 14};
    enum finish_reason finish;
    uint32_t stop;

    (void)state;
    p.min_tokens = 5;
    assert_int_equal(run_outputs(&p, eos_third, 6, &finish, &stop), 6);
    assert_int_equal(finish, FINISH_NONE);
    assert_int_equal(run_outputs(&p, eos_fifth, 6, &finish, &stop), 5);
    assert_int_equal(finish, FINISH_STOP);
    p.stop_ids = (uint32_t[]){42};
    p.n_stop_ids = 1;
    assert_int_equal(run_outputs(&p, id_third, 6, &finish, &stop), 5);
    assert_int_equal(stop, 42);
    p.min_tokens = 0;
    assert_int_equal(run_outputs(&p, (uint32_t[]){FIXTURE_EOS}, 1, &finish, &stop), 1);
    assert_int_equal(finish, FINISH_STOP);
}

/* Requests with these priorities, added in this order; the order in which one step takes them. */
static void assert_priority_order(const int32_t *priority, const uint32_t *add_order, uint32_t n,
                                  const uint32_t *expected) {
    struct fixture_options o = fixture_defaults();
    struct request_params p = request_params_default;
    struct sched_fixture f;
    struct request *r[8];

    o.scheduler.policy = POLICY_PRIORITY;
    fixture_open(&f, &o);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = add_order[i];

        p.priority = priority[at];
        r[at] = fixture_add(&f, 10, at, &p);
    }
    fixture_step(&f);
    assert_int_equal(f.step.n_entries, n);
    for (uint32_t i = 0; i < n; i++)
        assert_ptr_equal(f.step.entry[i].request, r[expected[i]]);
    fixture_take(&f, 7);
    fixture_close(&f);
    unref_all(r, n);
}

static void case_88_priority_then_arrival(void **state) {
    (void)state;
    assert_priority_order((int32_t[]){2, 0, 1}, (uint32_t[]){0, 1, 2}, 3, (uint32_t[]){1, 2, 0});
    /* arrivals 3, 1, 2: requests are added in the order 1, 2, 0 */
    assert_priority_order((int32_t[]){1, 1, 1}, (uint32_t[]){1, 2, 0}, 3, (uint32_t[]){1, 2, 0});
    /* arrivals 1, 3, 2, 4 */
    assert_priority_order((int32_t[]){2, 1, 1, 0}, (uint32_t[]){0, 2, 1, 3}, 4,
                          (uint32_t[]){3, 2, 1, 0});
}

static void case_89_one_runs_the_best_first(void **state) {
    struct fixture_options o = fixture_defaults();
    struct request_params p = request_params_default;
    const int32_t priority[] = {3, 2, 0};
    struct sched_fixture f;
    struct request *r[3];

    (void)state;
    o.scheduler.policy = POLICY_PRIORITY;
    o.scheduler.max_num_seqs = 1;
    fixture_open(&f, &o);
    for (uint32_t i = 0; i < 3; i++) {
        p.priority = priority[i];
        r[i] = fixture_add(&f, 10, i, &p);
    }
    fixture_step(&f);
    assert_int_equal(f.step.n_entries, 1);
    assert_ptr_equal(f.step.entry[0].request, r[2]);
    assert_ptr_equal(scheduler_waiting_at(f.s, 0), r[1]);
    assert_ptr_equal(scheduler_waiting_at(f.s, 1), r[0]);
    fixture_take(&f, 7);
    fixture_close(&f);
    unref_all(r, 3);
}

static void case_90_no_preemption_while_there_is_room(void **state) {
    struct fixture_options o = fixture_defaults();
    struct request_params p = request_params_default;
    struct sched_fixture f;
    struct request *r[3];

    (void)state;
    o.scheduler.policy = POLICY_PRIORITY;
    fixture_open(&f, &o);
    for (uint32_t i = 0; i < 2; i++) {
        p.priority = 5;
        r[i] = fixture_add(&f, 10, i, &p);
    }
    fixture_step(&f);
    fixture_take(&f, 7);
    p.priority = 0;
    r[2] = fixture_add(&f, 10, 2, &p);
    fixture_step(&f);
    assert_int_equal(scheduler_counts(f.s).running, 3);
    assert_int_equal(f.step.n_entries, 3);
    assert_int_equal(scheduler_counts(f.s).preemptions, 0);
    fixture_take(&f, 7);
    fixture_close(&f);
    unref_all(r, 3);
}

static void priority_preempts_the_least_important(void **state) {
    struct fixture_options o = fixture_defaults();
    struct request_params p = request_params_default;
    struct sched_fixture f;
    struct request *low, *high;

    (void)state;
    o.scheduler.policy = POLICY_PRIORITY;
    o.n_blocks = 10;
    fixture_open(&f, &o);
    p.priority = 9;
    low = fixture_add(&f, 79, 1, &p);
    fixture_step(&f);
    fixture_take(&f, 7);
    p.priority = 1;
    high = fixture_add(&f, 80, 2, &p);
    fixture_step(&f); /* admitted later, yet first in order; low has token 80 to compute */
    assert_int_equal(scheduler_counts(f.s).running, 2);
    fixture_take(&f, 7);
    fixture_step(&f); /* both are at a block's end: the important one gets the other's */
    assert_int_equal(low->state, REQUEST_WAITING);
    assert_int_equal(high->state, REQUEST_RUNNING);
    fixture_take(&f, 7);
    fixture_close(&f);
    request_unref(low);
    request_unref(high);
}

static void case_97_watermark_only_beside_others(void **state) {
    struct fixture_options o = fixture_defaults();
    struct sched_fixture f;
    struct request *r[2];

    (void)state;
    o.n_blocks = 99; /* 100 with the null block: a watermark of 10 blocks */
    o.watermark = 0.1;
    fixture_open(&f, &o);
    r[0] = fixture_add(&f, 60 * 16, 1, NULL);
    r[1] = fixture_add(&f, 30 * 16, 2, NULL);
    fixture_step(&f); /* 39 are left, 30 wanted: fewer than 10 would stay free */
    assert_int_equal(f.step.n_entries, 1);
    assert_ptr_equal(f.step.entry[0].request, r[0]);
    fixture_take(&f, 7);
    scheduler_end(f.s, r[0], FINISH_ABORT, 3);
    request_unref(r[0]);
    r[0] = fixture_request(&f, 98 * 16, 3, NULL);
    assert_int_equal(scheduler_add(f.s, r[0], NULL), ST_OK);
    fixture_step(&f);
    assert_ptr_equal(f.step.entry[0].request, r[1]);
    assert_int_equal(f.step.n_entries, 1);
    fixture_take(&f, 7);
    scheduler_end(f.s, r[1], FINISH_ABORT, 3);
    fixture_step(&f); /* alone it may have them all */
    assert_int_equal(f.step.n_tokens, 98 * 16);
    fixture_take(&f, 7);
    fixture_close(&f);
    unref_all(r, 2);
}

static void case_98_the_whole_prompt_must_fit(void **state) {
    (void)state;
    for (int whole = 0; whole <= 1; whole++) {
        struct fixture_options o = fixture_defaults();
        struct sched_fixture f;
        struct request *r[2];

        o.n_blocks = 20;
        o.scheduler.max_num_batched_tokens = 20;
        o.scheduler.full_sequence_must_fit = whole;
        fixture_open(&f, &o);
        r[0] = fixture_add(&f, 10, 1, NULL);
        fixture_step(&f);
        fixture_take(&f, 7);
        r[1] = fixture_add(&f, 16 * 20 - 16, 2, NULL); /* 19 blocks, or 20 with its answer */
        fixture_step(&f);
        assert_int_equal(scheduler_counts(f.s).running, 2);
        fixture_take(&f, 7);
        scheduler_end(f.s, r[1], FINISH_ABORT, 3);
        request_unref(r[1]);
        r[1] = fixture_add(&f, 16 * 20 - 15, 3,
                           &(struct request_params){.max_tokens = 1,
                                                    .top_p = 1,
                                                    .repetition_penalty = 1,
                                                    .n_logprobs = -1,
                                                    .prompt_logprobs = -1});
        fixture_step(&f); /* its first chunk needs one block of 19, all of it 20 */
        assert_int_equal(scheduler_counts(f.s).running, whole ? 1 : 2);
        fixture_take(&f, 7);
        fixture_close(&f);
        unref_all(r, 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_74_add_and_abort_keep_count),
        cmocka_unit_test(case_75_all_new_requests_run_whole_in_order),
        cmocka_unit_test(case_76_long_prompts_share_the_budget),
        cmocka_unit_test(case_77_nothing_overtakes),
        cmocka_unit_test(case_78_steps_in_flight),
        cmocka_unit_test(case_79_late_output_of_a_preempted_request_counts),
        cmocka_unit_test(case_80_reset_with_running),
        cmocka_unit_test(case_81_stop_conditions),
        cmocka_unit_test(case_82_min_tokens),
        cmocka_unit_test(case_88_priority_then_arrival),
        cmocka_unit_test(case_89_one_runs_the_best_first),
        cmocka_unit_test(case_90_no_preemption_while_there_is_room),
        cmocka_unit_test(priority_preempts_the_least_important),
        cmocka_unit_test(case_97_watermark_only_beside_others),
        cmocka_unit_test(case_98_the_whole_prompt_must_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

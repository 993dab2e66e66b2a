/* tests/conformance/test_scheduler_remote_cases.c - cases 84 to 87: KV that another store has,
 * there at once or later; case 91: steps behind a token that is still being sampled. */
#include "tests/support/sched_fixture.h"

/* A store that has `n_matched` tokens behind whatever is found here. */
struct store {
    struct connector connector;
    uint32_t n_matched;
    enum connector_answer answer;
    uint32_t n_loads, n_loaded, n_cancels;
};

static enum connector_answer find(void *arg, struct request *r, const struct kv_hit *hit,
                                  uint32_t n_local, uint32_t *n_tokens) {
    const struct store *s = arg;

    assert_int_equal(hit->n_tokens, n_local);
    *n_tokens = MIN(s->n_matched, r->n_tokens - n_local);
    return s->answer;
}

static void load(void *arg, struct request *r, uint32_t first, uint32_t n) {
    struct store *s = arg;

    assert_int_equal(n, s->n_matched);
    assert_true(r->kv.table[0].n_blocks > 0 && first + n <= r->n_tokens);
    s->n_loads++;
    s->n_loaded += n;
}

static void cancel(void *arg, struct request *r) {
    struct store *s = arg;

    assert_true(r->kv.table[0].n_blocks > 0 ||
                r->remote == REMOTE_AWAITED); /* not given away yet */
    s->n_cancels++;
}

static void open_with(struct sched_fixture *f, struct fixture_options *o, struct store *s,
                      uint32_t n_matched, enum connector_answer answer) {
    *s = (struct store){.n_matched = n_matched, .answer = answer};
    s->connector = (struct connector){find, load, cancel, s};
    o->scheduler.connector = &s->connector;
    fixture_open(f, o);
}

static void assert_entries(const struct sched_fixture *f, uint32_t n, uint32_t first,
                           uint32_t n_tokens) {
    assert_int_equal(f->step.n_entries, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(f->step.entry[i].first, first);
        assert_int_equal(f->step.entry[i].n_tokens, n_tokens);
    }
}

static void end_all(struct sched_fixture *f, struct request **r, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        scheduler_end(f->s, r[i], FINISH_STOP, 3);
        request_unref(r[i]);
    }
    assert_int_equal(fixture_free_blocks(f), block_pool_n_usable(kv_manager_pool(f->kv)));
}

/* Two prompts of n tokens; n_local of them are cached here, 32 there. */
static void run_pair(struct sched_fixture *f, struct store *s, uint32_t n, uint32_t n_local) {
    struct request *r[2];

    for (uint32_t i = 0; i < 2; i++)
        r[i] = fixture_add(f, n, 1 + i, NULL);
    fixture_step(f);
    if (s->answer == CONNECTOR_LATER) {
        assert_int_equal(f->step.n_entries, 0);
        assert_int_equal(scheduler_counts(f->s).waiting, 2);
        assert_int_equal(r[0]->kv.n_published, n_local / 16); /* no other request may hit it yet */
        scheduler_remote_arrived(f->s, r[1], 32);
        fixture_step(f);
        assert_entries(f, 1, n_local + 32, n - n_local - 32);
        assert_ptr_equal(f->step.entry[0].request, r[1]); /* it passes the one that still waits */
        fixture_take(f, 7);
        scheduler_remote_arrived(f->s, r[0], 32);
        scheduler_end(f->s, r[1], FINISH_STOP, 3);
        fixture_step(f);
        assert_entries(f, 1, n_local + 32, n - n_local - 32);
    } else {
        assert_entries(f, 2, n_local + 32, n - n_local - 32);
    }
    assert_int_equal(r[0]->cached_tokens, n_local + 32);
    fixture_take(f, 7);
    end_all(f, r, 2);
}

static void case_84_external_tokens_now_and_later(void **state) {
    (void)state;
    for (int later = 0; later <= 1; later++) {
        struct fixture_options o = fixture_defaults();
        struct sched_fixture f;
        struct store s;

        open_with(&f, &o, &s, 32, later ? CONNECTOR_LATER : CONNECTOR_NOW);
        run_pair(&f, &s, 64, 0);
        run_pair(&f, &s, 128, 64);
        assert_int_equal(s.n_loads, 4);
        assert_int_equal(s.n_loaded, 4 * 32);
        assert_int_equal(s.n_cancels, 0);
        fixture_close(&f);
    }
}

static void case_85_external_statistics(void **state) {
    struct fixture_options o = fixture_defaults();
    struct sched_fixture f;
    struct store s;
    struct request *r[2];

    (void)state;
    o.block_size = 4;
    open_with(&f, &o, &s, 4, CONNECTOR_NOW);
    for (uint32_t i = 0; i < 2; i++)
        r[i] = fixture_add(&f, 8, 1 + i, NULL);
    fixture_step(&f);
    assert_int_equal(scheduler_counts(f.s).external.requests, 2);
    assert_int_equal(scheduler_counts(f.s).external.queries, 16);
    assert_int_equal(scheduler_counts(f.s).external.hits, 8);
    assert_int_equal(kv_manager_stats(f.kv)->preempted.requests, 0);
    assert_int_equal(kv_manager_stats(f.kv)->admitted.hits, 0); /* not found here */
    fixture_take(&f, 7);
    end_all(&f, r, 2);
    fixture_close(&f);
}

static void case_86_no_room_for_external_tokens(void **state) {
    (void)state;
    for (int later = 0; later <= 1; later++) {
        struct fixture_options o = fixture_defaults();
        struct sched_fixture f;
        struct store s;
        struct request *r[2];

        o.block_size = 4;
        o.n_blocks = 10;
        o.scheduler.full_sequence_must_fit = true;
        open_with(&f, &o, &s, 8, later ? CONNECTOR_LATER : CONNECTOR_NOW);
        for (uint32_t i = 0; i < 2; i++)
            r[i] = fixture_add(&f, 24, 1 + i, NULL);
        if (later) {
            fixture_step(&f);
            assert_int_equal(f.step.n_entries, 0);
            scheduler_remote_arrived(f.s, r[0], 8);
        }
        fixture_step(&f);
        assert_entries(&f, 1, 8, 16);
        assert_ptr_equal(f.step.entry[0].request, r[0]);
        assert_int_equal(scheduler_counts(f.s).waiting, 1);
        fixture_take(&f, 7);
        scheduler_end(f.s, r[0], FINISH_STOP, 3);
        fixture_step(&f);
        if (later) scheduler_remote_arrived(f.s, r[1], 8);
        if (later) fixture_step(&f);
        assert_entries(&f, 1, 8, 16);
        assert_ptr_equal(f.step.entry[0].request, r[1]);
        fixture_take(&f, 7);
        end_all(&f, r, 2);
        fixture_close(&f);
    }
}

static void case_87_preemption_asks_the_store_again(void **state) {
    struct fixture_options o = fixture_defaults();
    struct request_params p = request_params_default;
    struct sched_fixture f;
    struct store s;
    struct request *r[2];

    (void)state;
    o.block_size = 2;
    o.n_blocks = 7;
    p.max_tokens = 4;
    open_with(&f, &o, &s, 2, CONNECTOR_NOW);
    for (uint32_t i = 0; i < 2; i++)
        r[i] = fixture_add(&f, 5, 1 + i, &p);
    for (uint32_t i = 0; i < 40 && scheduler_any(f.s); i++) {
        fixture_step(&f);
        fixture_take(&f, 7);
    }
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(request_n_output(r[i]), 4);
        assert_int_equal(r[i]->finish, FINISH_LENGTH);
    }
    assert_int_equal(r[0]->n_preemptions, 0);
    assert_true(r[1]->n_preemptions > 0 && scheduler_counts(f.s).external.requests > 2);
    end_all(&f, r, 2);
    fixture_close(&f);
}

static void an_unknown_remote_length_delays_no_other_request(void **state) {
    struct fixture_options o = fixture_defaults();
    struct sched_fixture f;
    struct store s;
    struct request *r;

    (void)state;
    open_with(&f, &o, &s, 16, CONNECTOR_UNKNOWN);
    r = fixture_add(&f, 64, 1, NULL);
    fixture_step(&f);
    assert_int_equal(f.step.n_entries, 0);
    assert_int_equal(r->kv.table[0].n_blocks, 0);
    s.answer = CONNECTOR_NOW;
    fixture_step(&f);
    assert_entries(&f, 1, 16, 48);
    fixture_take(&f, 7);
    end_all(&f, &r, 1);
    fixture_close(&f);
}

static void one_that_awaits_holds_no_blocks_and_is_passed(void **state) {
    static const enum scheduler_policy policies[] = {POLICY_FCFS, POLICY_SRPT};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(policies); i++) {
        struct fixture_options o = fixture_defaults();
        struct sched_fixture f;
        struct store s;
        struct request *r[3];

        o.scheduler.policy = policies[i];
        open_with(&f, &o, &s, 0, CONNECTOR_AWAIT);
        r[0] = fixture_add(&f, 64, 1, NULL);
        r[1] = fixture_add(&f, 64, 2, NULL);
        fixture_step(&f);
        assert_int_equal(f.step.n_entries, 0);
        assert_int_equal(scheduler_n_awaiting(f.s), 2);
        assert_int_equal(r[0]->kv.table[0].n_blocks, 0);
        s.answer = CONNECTOR_NOW;
        r[2] = fixture_add(&f, 64, 3, NULL);
        fixture_step(&f);
        assert_entries(&f, 1, 0, 64);
        assert_ptr_equal(f.step.entry[0].request, r[2]);
        fixture_take(&f, 7);
        scheduler_end(f.s, r[1], FINISH_ABORT, 3);
        assert_int_equal(s.n_cancels, 1);
        assert_int_equal(scheduler_n_awaiting(f.s), 1);
        scheduler_wake(f.s, r[1]); /* too late: nothing happens */
        scheduler_wake(f.s, r[0]);
        assert_int_equal(scheduler_n_awaiting(f.s), 0);
        fixture_step(&f);
        assert_int_equal(r[0]->state, REQUEST_RUNNING);
        fixture_take(&f, 7);
        end_all(&f, r, 3);
        fixture_close(&f);
    }
}

static void a_load_that_falls_short_or_is_cancelled(void **state) {
    struct fixture_options o = fixture_defaults();
    struct sched_fixture f;
    struct store s;
    struct request *r[2];

    (void)state;
    open_with(&f, &o, &s, 64, CONNECTOR_LATER);
    for (uint32_t i = 0; i < 2; i++)
        r[i] = fixture_add(&f, 64, 1 + i, NULL);
    fixture_step(&f);
    scheduler_end(f.s, r[1], FINISH_ABORT, 3);
    assert_int_equal(s.n_cancels, 1);
    scheduler_remote_arrived(f.s, r[1], 64); /* too late: nothing happens */
    scheduler_remote_arrived(f.s, r[0], 20);
    assert_int_equal(r[0]->kv.n_published, 1);
    fixture_step(&f);
    assert_entries(&f, 1, 20, 44);
    fixture_take(&f, 7);
    end_all(&f, r, 2);
    fixture_close(&f);
}

static void case_91_a_step_behind_a_token_not_known_yet(void **state) {
    struct fixture_options o = fixture_defaults();
    struct request_params p = request_params_default;
    struct sched_fixture f;
    struct schedule step[3];
    struct request *r;

    (void)state;
    o.scheduler.async = true;
    p.max_tokens = 3;
    fixture_open(&f, &o);
    for (int i = 0; i < 3; i++)
        schedule_init(&step[i], f.s);
    r = fixture_add(&f, 10, 1, &p);
    scheduler_step(f.s, &step[0], 1);
    assert_int_equal(step[0].entry[0].n_tokens, 10);
    scheduler_step(f.s, &step[1], 1);
    assert_int_equal(step[1].n_entries, 1);
    assert_true(step[1].entry[0].is_ahead && step[1].entry[0].first == 10);
    scheduler_step(f.s, &step[2], 1);
    assert_int_equal(step[2].n_entries, 0); /* two tokens that are not known: no further */
    assert_false(scheduler_take(f.s, &step[0].entry[0], 7, 2));
    scheduler_step(f.s, &step[2], 1);
    assert_int_equal(step[2].n_entries, 0); /* the step before this one had none of it */
    assert_false(scheduler_take(f.s, &step[1].entry[0], 8, 2));
    scheduler_step(f.s, &step[2], 1);
    assert_false(step[2].entry[0].is_ahead);
    assert_true(scheduler_take(f.s, &step[2].entry[0], 9, 2)); /* three tokens */
    assert_int_equal(request_output(r)[1], 8);
    request_unref(r);

    r = fixture_add(&f, 10, 2, &p); /* it ends before what was computed behind its end comes back */
    scheduler_step(f.s, &step[0], 1);
    scheduler_step(f.s, &step[1], 1);
    assert_int_equal(step[1].n_entries, 1);
    assert_true(scheduler_take(f.s, &step[0].entry[0], FIXTURE_EOS, 2));
    assert_false(scheduler_take(f.s, &step[1].entry[0], 8, 2));
    assert_int_equal(request_n_output(r), 1);
    request_unref(r);
    for (int i = 0; i < 3; i++)
        schedule_fini(&step[i]);
    fixture_close(&f);
}

/* Each holds what was delivered for it, and none has room for the rest: the later gives it up. */
static void delivered_kv_never_locks_the_pool(void **state) {
    (void)state;
    for (int policy = POLICY_FCFS; policy <= POLICY_SRPT; policy++) {
        struct fixture_options o = fixture_defaults();
        struct request_params p = request_params_default;
        struct sched_fixture f;
        struct store s;
        struct request *r[2];

        p.max_tokens = 4;
        o.block_size = 4;
        o.n_blocks = 10;
        o.scheduler.full_sequence_must_fit = false;
        o.scheduler.policy = (enum scheduler_policy)policy;
        open_with(&f, &o, &s, 16, CONNECTOR_LATER);
        for (uint32_t i = 0; i < 2; i++)
            r[i] = fixture_add(&f, 36, 1 + i, &p);
        for (uint32_t n = 0; r[0]->state != REQUEST_DONE || r[1]->state != REQUEST_DONE; n++) {
            assert_true(n < 100);
            fixture_step(&f);
            fixture_take(&f, 7);
            for (uint32_t i = 0; i < 2; i++)
                scheduler_remote_arrived(f.s, r[i], 16);
        }
        assert_int_equal(s.n_loads, 3); /* once more for the one that gave it up */
        end_all(&f, r, 2);
        fixture_close(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_84_external_tokens_now_and_later),
        cmocka_unit_test(case_85_external_statistics),
        cmocka_unit_test(case_86_no_room_for_external_tokens),
        cmocka_unit_test(case_87_preemption_asks_the_store_again),
        cmocka_unit_test(an_unknown_remote_length_delays_no_other_request),
        cmocka_unit_test(one_that_awaits_holds_no_blocks_and_is_passed),
        cmocka_unit_test(a_load_that_falls_short_or_is_cancelled),
        cmocka_unit_test(case_91_a_step_behind_a_token_not_known_yet),
        cmocka_unit_test(delivered_kv_never_locks_the_pool),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/worker/sched/test_by_remaining.c - POLICY_SRPT step by step: against a model that
 * sorts by key, and the numbered cases for the order in a worker. A token takes a millisecond. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/sched_fixture.h"
#include "tests/support/support.h"

#define RATE 1000.0

static struct fixture_options srpt_options(uint32_t budget) {
    struct fixture_options o = fixture_defaults();

    o.scheduler.policy = POLICY_SRPT;
    o.scheduler.max_num_batched_tokens = budget;
    o.scheduler.prefill_tokens_per_s = RATE;
    return o;
}

static struct request *add_at(struct sched_fixture *f, uint32_t n, uint32_t token, double at_s,
                              const struct request_params *base) {
    struct request *r = fixture_request(f, n, token, base);

    r->arrival_us = (uint64_t)(at_s * 1e6);
    assert_int_equal(scheduler_add(f->s, r, NULL), ST_OK);
    return r;
}

static void step_at(struct sched_fixture *f, double now_s) {
    scheduler_step(f->s, &f->step, (uint64_t)(now_s * 1e6));
    scheduler_check(f->s);
}

static uint32_t given(const struct sched_fixture *f, const struct request *r) {
    for (uint32_t i = 0; i < f->step.n_entries; i++)
        if (f->step.entry[i].request == r) return f->step.entry[i].n_tokens;
    return 0;
}

static struct request_params answer_of(uint32_t n) {
    struct request_params p = request_params_default;

    p.max_tokens = n;
    p.ignore_eos = true;
    return p;
}

/* Ends all that is left, as a client that leaves. */
static void close_all(struct sched_fixture *f, struct request **r, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        scheduler_end(f->s, r[i], FINISH_ABORT, 0);
    for (uint32_t i = 0; i < n; i++)
        request_unref(r[i]);
    fixture_close(f);
}

/* --- against a model -------------------------------------------------------------------------- */

#define N_LIVE 24

struct model_request {
    struct request *r;
    uint32_t left; /* of the prompt */
    bool is_running;
};

static bool is_in_progress(const struct model_request *m) {
    return m->is_running && m->left > 1;
}

struct model {
    struct sched_fixture f;
    struct rng rng;
    struct model_request live[N_LIVE];
    uint32_t n_live, budget, next_token, most_in_progress;
    double now_s;
};

static double key(const struct model_request *m) {
    return m->left / RATE + FAIR_AGING * 1e-6 * (double)m->r->arrival_us;
}

static int by_key(const void *a, const void *b) {
    const struct model_request *x = a, *y = b;

    if (x->r->params.priority != y->r->params.priority)
        return x->r->params.priority < y->r->params.priority ? -1 : 1;
    if (key(x) < key(y) || key(x) > key(y)) return key(x) < key(y) ? -1 : 1;
    return x->r->seq < y->r->seq ? -1 : 1;
}

static void check_decoding(struct model *m, uint32_t *budget) {
    for (uint32_t i = 0; i < m->n_live; i++) {
        if (!m->live[i].is_running || m->live[i].left > 1) continue;
        m->live[i].left = 0; /* a last token of a prompt counts as decoding */
        assert_int_equal(given(&m->f, m->live[i].r), 1);
        --*budget;
    }
}

/* The prompts of a step, as the definition gives them. */
static void check_step(struct model *m) {
    uint32_t budget = m->budget, n_in_progress = 0;
    bool may_begin = true;

    check_decoding(m, &budget);
    for (uint32_t i = 0; i < m->n_live; i++)
        n_in_progress += is_in_progress(&m->live[i]);
    qsort(m->live, m->n_live, sizeof(m->live[0]), by_key);
    for (uint32_t i = 0; i < m->n_live; i++) {
        struct model_request *q = &m->live[i];
        uint32_t n = MIN(q->left, budget);

        if (q->is_running && q->left == 0) continue;
        if (!q->is_running) {
            may_begin =
                may_begin && n > 0 && (n_in_progress < SCHEDULER_PREFILLS_MAX || n + 1 >= q->left);
            if (!may_begin) n = 0;
        }
        assert_int_equal(given(&m->f, q->r), n);
        n_in_progress -= is_in_progress(q);
        q->left -= n;
        q->is_running = q->is_running || n > 0;
        n_in_progress += is_in_progress(q);
        budget -= n;
    }
    assert_true(n_in_progress <= SCHEDULER_PREFILLS_MAX);
    m->most_in_progress = MAX(m->most_in_progress, n_in_progress);
}

/* Often a little less than any other lacks, so that all are passed. */
static uint32_t draw_length(struct model *m) {
    uint32_t n = 1 + (uint32_t)rng_below(&m->rng, rng_below(&m->rng, 3) ? 80 : 2000);

    if (rng_below(&m->rng, 6) == 0) return n;
    for (uint32_t i = 0; i < m->n_live; i++)
        if (m->live[i].left > 100) n = MIN(n, m->live[i].left * 7 / 8);
    return n;
}

static void arrive(struct model *m) {
    struct request_params p = answer_of(1 + (uint32_t)rng_below(&m->rng, 6));
    uint32_t n = draw_length(m);

    p.priority = rng_below(&m->rng, 10) ? 0 : (int32_t)rng_below(&m->rng, 3) - 1;
    m->live[m->n_live++] = (struct model_request){
        .r = add_at(&m->f, n, 100 + m->next_token++, m->now_s, &p), .left = n};
}

static void bury(struct model *m) {
    for (uint32_t i = 0; i < m->n_live;) {
        if (m->live[i].r->state != REQUEST_DONE) {
            i++;
            continue;
        }
        request_unref(m->live[i].r);
        m->live[i] = m->live[--m->n_live];
    }
}

static void the_order_is_the_one_that_sorting_gives(void **state) {
    uint32_t most_in_progress = 0;

    (void)state;
    for (uint64_t run = 0; run < 20; run++) {
        struct model m = {.budget = 32 + 2 * (uint32_t)(run * 7 % 60)};
        struct fixture_options o = srpt_options(m.budget);

        rng_seed(&m.rng, support_seed() * 50 + run);
        o.scheduler.max_num_seqs = 32;
        fixture_open(&m.f, &o);
        for (uint32_t i = 0; i < 600; i++) {
            while (m.n_live < N_LIVE && rng_below(&m.rng, 2) == 0)
                arrive(&m);
            m.now_s += 0.1 * (double)rng_below(&m.rng, 20);
            step_at(&m.f, m.now_s);
            check_step(&m);
            fixture_take(&m.f, 7);
            bury(&m);
        }
        for (uint32_t i = 0; i < m.n_live; i++)
            scheduler_end(m.f.s, m.live[i].r, FINISH_ABORT, 0);
        bury(&m);
        fixture_close(&m.f);
        most_in_progress = MAX(most_in_progress, m.most_in_progress);
    }
    assert_true(most_in_progress >= 4);
}

/* What was forced is computed with what decodes, before prompts, and is no prompt itself. */
static void forced_tokens_decode(void **state) {
    struct fixture_options o = srpt_options(64);
    struct request_params p = answer_of(40);
    struct sched_fixture f;
    struct request *first, *long_one;

    (void)state;
    fixture_open(&f, &o);
    first = add_at(&f, 8, 1, 0, &p);
    step_at(&f, 1);
    fixture_take(&f, 7);
    long_one = add_at(&f, 500, 2, 1, &p);
    for (uint32_t i = 0; i < 9; i++)
        assert_false(scheduler_append(f.s, first, 8, 0));
    step_at(&f, 2);
    assert_int_equal(given(&f, first), 10);
    assert_int_equal(given(&f, long_one), 54);
    assert_int_equal(f.step.n_decoding, 1);
    fixture_take(&f, 7);
    step_at(&f, 3);
    assert_int_equal(given(&f, first), 1);
    fixture_take(&f, 7);
    scheduler_end(f.s, first, FINISH_ABORT, 0);
    scheduler_end(f.s, long_one, FINISH_ABORT, 0);
    request_unref(first);
    request_unref(long_one);
    fixture_close(&f);
}

/* Under a target that one token takes, the others of a forced run come one by one, as if they were
 * sampled, and a prompt has its least. */
static void forced_tokens_keep_to_the_target(void **state) {
    struct fixture_options o = srpt_options(1000);
    struct request_params p = answer_of(40);
    struct sched_fixture f;
    struct request *first, *prompt;

    (void)state;
    o.scheduler.itl_target_s = 1e-6;
    fixture_open(&f, &o);
    first = add_at(&f, 8, 1, 0, &p);
    step_at(&f, 0.1);
    fixture_take(&f, 7);
    prompt = add_at(&f, 5000, 2, 0.1, &p);
    for (uint32_t i = 0; i < 3; i++)
        assert_false(scheduler_append(f.s, first, 8, 0));
    for (uint32_t i = 0; i < 4; i++) {
        step_at(&f, 0.2 + 0.1 * i);
        assert_int_equal(given(&f, first), 1);
        assert_int_equal(given(&f, prompt), SCHEDULER_CHUNK_MIN);
        assert_int_equal(f.step.n_outputs, i == 3);
        fixture_take(&f, 7);
    }
    scheduler_end(f.s, first, FINISH_ABORT, 0);
    scheduler_end(f.s, prompt, FINISH_ABORT, 0);
    request_unref(first);
    request_unref(prompt);
    fixture_close(&f);
}

/* --- the numbered cases ----------------------------------------------------------------------- */

/* A computes what B begins with: B lacks 72 tokens then, and goes before C with its 100. */
static void order_41_a_prefix_that_becomes_cached_counts(void **state) {
    struct fixture_options o = srpt_options(64);
    struct request_params p = request_params_default;
    struct sched_fixture f;
    struct request *r[3];
    uint32_t prompt[200];

    (void)state;
    fixture_open(&f, &o);
    r[0] = add_at(&f, 128, 1, 0, NULL);
    step_at(&f, 1);
    for (uint32_t i = 0; i < 200; i++)
        prompt[i] = i < 128 ? 1 : 2;
    p.prompt = prompt;
    p.n_prompt = 200;
    assert_int_equal(request_create(&r[1], &p, &f.limits, NULL), ST_OK);
    assert_int_equal(scheduler_add(f.s, r[1], NULL), ST_OK);
    r[2] = add_at(&f, 100, 3, 0, NULL);
    fixture_take(&f, 7);
    step_at(&f, 2);
    assert_int_equal(given(&f, r[0]), 64);
    fixture_take(&f, 7);
    step_at(&f, 3);
    assert_int_equal(given(&f, r[1]), 63); /* one for the first, which decodes */
    assert_int_equal(r[1]->cached_tokens, 128);
    assert_int_equal(given(&f, r[2]), 0);
    fixture_take(&f, 7);
    close_all(&f, r, 3);
}

/* A thousand wait for one prefix: all find it, some steps later at most. */
static void order_41_with_a_thousand_waiting(void **state) {
    enum { N = 1000 };
    struct fixture_options o = srpt_options(64);
    static struct request *r[N + 2];
    struct request_params p = answer_of(1);
    struct sched_fixture f;
    uint32_t prompt[600], n_steps = 0;

    (void)state;
    o.scheduler.max_num_seqs = 64;
    o.n_blocks = 100000;
    fixture_open(&f, &o);
    r[0] = add_at(&f, 512, 1, 0, NULL);
    step_at(&f, 1);
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t k = 0; k < 600; k++)
            prompt[k] = k < 512 ? 1 : 10 + i;
        p.prompt = prompt;
        p.n_prompt = 600;
        assert_int_equal(request_create(&r[1 + i], &p, &f.limits, NULL), ST_OK);
        assert_int_equal(scheduler_add(f.s, r[1 + i], NULL), ST_OK);
    }
    fixture_take(&f, 7);
    while (r[0]->n_tokens == r[0]->n_prompt) {
        step_at(&f, 1);
        fixture_take(&f, 7);
    }
    r[N + 1] = add_at(&f, 150, 5, 1, NULL); /* more than the others lack, less than they have */
    while (r[N + 1]->n_admissions == 0) {
        step_at(&f, 1 + 0.001 * ++n_steps);
        fixture_take(&f, 7);
        assert_true(n_steps < 20000);
    }
    assert_int_equal(r[N + 1]->n_ahead, N);
    assert_true(r[N + 1]->n_went_before > 900);
    close_all(&f, r, N + 2);
}

/* Each passes those before it, which keep their blocks; then all must end. */
static void order_42_at_most_eight_are_in_progress(void **state) {
    struct fixture_options o = srpt_options(16);
    struct request_params p = answer_of(40);
    struct sched_fixture f;
    struct request *r[16];
    uint32_t n_in_progress = 0, n_steps = 0, n_done = 0;

    (void)state;
    o.n_blocks = 60; /* 960 tokens; the prompts together have 8,400 */
    fixture_open(&f, &o);
    for (uint32_t i = 0; i < 16; i++) {
        r[i] = add_at(&f, 900 - 50 * i, 100 + i, 0, &p);
        step_at(&f, 0);
        fixture_take(&f, 7);
        n_in_progress = 0;
        for (uint32_t k = 0; k <= i; k++)
            n_in_progress +=
                r[k]->state == REQUEST_RUNNING && r[k]->n_computed + 1 < r[k]->n_tokens;
        assert_int_equal(n_in_progress, MIN(i + 1, SCHEDULER_PREFILLS_MAX));
    }
    while (n_done < 16) {
        step_at(&f, 1);
        assert_true(f.step.n_entries > 0 && n_steps++ < 20000);
        fixture_take(&f, 7);
        n_done = 0;
        for (uint32_t i = 0; i < 16; i++)
            n_done += r[i]->state == REQUEST_DONE;
    }
    close_all(&f, r, 16);
}

static void order_43_what_decodes_is_in_every_step(void **state) {
    struct fixture_options o = srpt_options(32);
    struct request_params p = answer_of(200);
    struct sched_fixture f;
    struct request *r[20];

    (void)state;
    o.scheduler.max_num_seqs = 32;
    fixture_open(&f, &o);
    for (uint32_t i = 0; i < 20; i++)
        r[i] = add_at(&f, i < 10 ? 4 : 2000, 100 + i, 0, &p);
    for (uint32_t i = 0; i < 3; i++) {
        step_at(&f, i);
        fixture_take(&f, 7);
    }
    for (uint32_t n = 0; n < 100; n++) {
        step_at(&f, 3 + n);
        for (uint32_t i = 0; i < 10; i++)
            assert_int_equal(given(&f, r[i]), 1);
        assert_int_equal(f.step.n_tokens, 32);
        fixture_take(&f, 7);
    }
    close_all(&f, r, 20);
}

/* An answer that has begun comes back before new prompts, however short. */
static void order_44_the_preempted_come_before_new_ones(void **state) {
    struct fixture_options o = srpt_options(64);
    struct request_params p = answer_of(50);
    struct sched_fixture f;
    struct request *r[3];

    (void)state;
    fixture_open(&f, &o);
    r[0] = add_at(&f, 60, 1, 0, &p);
    step_at(&f, 0);
    fixture_take(&f, 7);
    r[1] = add_at(&f, 300, 2, 0, &p); /* its prompt is in progress */
    step_at(&f, 0);
    fixture_take(&f, 7);
    assert_int_equal(scheduler_reset_prefix_cache(f.s, true), ST_OK);
    r[2] = add_at(&f, 10, 3, 0, &p);
    step_at(&f, 0);
    assert_int_equal(given(&f, r[0]), 62);
    assert_int_equal(given(&f, r[2]), 2);
    assert_int_equal(given(&f, r[1]), 0);
    fixture_take(&f, 7);
    close_all(&f, r, 3);
}

static void order_45_bands_of_priority_are_above(void **state) {
    struct fixture_options o = srpt_options(64);
    struct request_params p = answer_of(4), urgent = p;
    struct sched_fixture f;
    struct request *r[3];

    (void)state;
    urgent.priority = -1;
    fixture_open(&f, &o);
    r[0] = add_at(&f, 20, 1, 0, &p);
    r[1] = add_at(&f, 500, 2, 100, &urgent);
    step_at(&f, 100);
    assert_int_equal(given(&f, r[1]), 64);
    assert_int_equal(given(&f, r[0]), 0);
    fixture_take(&f, 7);
    urgent.priority = -2;
    r[2] = add_at(&f, 30, 3, 100, &urgent);
    step_at(&f, 101);
    assert_int_equal(given(&f, r[2]), 30);
    assert_int_equal(given(&f, r[1]), 34);
    assert_int_equal(r[0]->n_ahead, 0);
    fixture_take(&f, 7);
    close_all(&f, r, 3);
}

/* A prompt of 10 s among new ones of 1 s, which alone keep the device busy: without aging it would
 * never be computed, with it after 180 s. */
static void a_long_prompt_does_not_starve(void **state) {
    struct fixture_options o = srpt_options(1000);
    struct request_params p = answer_of(1);
    struct sched_fixture f;
    struct request *r[400];
    uint32_t n = 1, t;

    (void)state;
    o.scheduler.max_model_len = 16384;
    fixture_open(&f, &o);
    r[0] = add_at(&f, 10000, 1, 0, &p);
    for (t = 0; r[0]->state != REQUEST_DONE; t++) {
        r[n] = add_at(&f, 1000, 10 + n, t, &p);
        n++;
        step_at(&f, t);
        assert_true(t < 300);
        fixture_take(&f, 7);
    }
    assert_true(t > 175 && t < 215);
    assert_true(r[0]->n_went_before > 170);
    close_all(&f, r, n);
}

/* Tenant 1 sends long prompts all the time; 2 waits with them no longer than the quantum asks. */
static void a_flood_does_not_keep_others_waiting(void **state) {
    struct fixture_options o = srpt_options(500);
    struct request_params flood = answer_of(1), other = flood;
    struct sched_fixture f;
    struct request *r[300];
    uint32_t n = 0, late = 0;

    (void)state;
    o.scheduler.max_num_seqs = 200;
    flood.tenant = 1;
    other.tenant = 2;
    fixture_open(&f, &o);
    for (uint32_t t = 0; t < 100; t++) { /* half a second each: the flood is twice what fits */
        r[n] = add_at(&f, 1000, 10 + n, 0.5 * t, &flood);
        n++;
        if (t >= 20 && t % 10 == 0) {
            r[n] = add_at(&f, 1400, 10 + n, 0.5 * t, &other);
            n++;
        }
        step_at(&f, 0.5 * t);
        fixture_take(&f, 7);
    }
    for (uint32_t i = 0; i < n; i++)
        if (r[i]->params.tenant == 2)
            late += r[i]->state != REQUEST_DONE && r[i]->arrival_us < 44u * 1000 * 1000;
    assert_int_equal(late, 0);
    close_all(&f, r, n);
}

/* --- an ITL target ---------------------------------------------------------------------------- */

/* 10 ms, 0.1 ms a row that decodes, 0.1 ms a token of a prompt: what the device takes. */
static double device_s(const struct schedule *step) {
    double n = 0;

    for (uint32_t i = 0; i < step->n_entries; i++)
        n += step->entry[i].n_tokens > 1 ? step->entry[i].n_tokens : 1;
    return 0.010 + 0.0001 * n;
}

static void run_with_target(double target_s, double age_s, double *longest_s, uint32_t *least) {
    struct fixture_options o = srpt_options(2048);
    struct request_params p = answer_of(2000), once = answer_of(1);
    struct sched_fixture f;
    struct request *r[24];
    double now_s = 100;

    o.scheduler.itl_target_s = target_s;
    o.scheduler.max_num_seqs = 64;
    o.scheduler.max_model_len = 100000;
    fixture_open(&f, &o);
    for (uint32_t i = 0; i < 20; i++)
        r[i] = add_at(&f, 16, 100 + i, now_s, &p);
    *longest_s = 0;
    *least = UINT32_MAX;
    for (uint32_t n = 0; n < 400; n++) {
        double s;

        if (n == 100)
            for (uint32_t i = 20; i < 24; i++)
                r[i] = add_at(&f, 20000, 100 + i, now_s - age_s, &once);
        step_at(&f, now_s);
        s = device_s(&f.step);
        now_s += s;
        if (n >= 110 && f.step.work > 0 && r[23]->state != REQUEST_DONE) {
            *longest_s = MAX(*longest_s, s);
            if (f.step.prefill_tokens > 0) *least = MIN(*least, f.step.prefill_tokens);
        }
        scheduler_learn(f.s, &f.step, s);
        fixture_take(&f, 7);
    }
    close_all(&f, r, 24);
}

static void order_48_no_step_is_longer_than_the_target(void **state) {
    double longest_s, least_s = 0.0001 * SCHEDULER_CHUNK_MIN;
    uint32_t least;

    (void)state;
    run_with_target(0, 0, &longest_s, &least);
    assert_true(longest_s > 0.2);
    run_with_target(0.05, 0, &longest_s, &least);
    assert_true(longest_s <= 0.05 + least_s);
    assert_true(least >= SCHEDULER_CHUNK_MIN);
    run_with_target(0.012, 0, &longest_s, &least); /* less than the rows alone take */
    assert_true(longest_s <= 0.012 + 2 * least_s);
    assert_int_equal(least, SCHEDULER_CHUNK_MIN);
    run_with_target(0.05, 90, &longest_s, &least); /* older than four times its own 20 s */
    assert_true(longest_s > 0.2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_order_is_the_one_that_sorting_gives),
        cmocka_unit_test(forced_tokens_decode),
        cmocka_unit_test(forced_tokens_keep_to_the_target),
        cmocka_unit_test(order_41_a_prefix_that_becomes_cached_counts),
        cmocka_unit_test(order_41_with_a_thousand_waiting),
        cmocka_unit_test(order_42_at_most_eight_are_in_progress),
        cmocka_unit_test(order_43_what_decodes_is_in_every_step),
        cmocka_unit_test(order_44_the_preempted_come_before_new_ones),
        cmocka_unit_test(order_45_bands_of_priority_are_above),
        cmocka_unit_test(a_long_prompt_does_not_starve),
        cmocka_unit_test(a_flood_does_not_keep_others_waiting),
        cmocka_unit_test(order_48_no_step_is_longer_than_the_target),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/router/routing/test_speed.c - speeds learned from first tokens, and who weighs
 * them. */
#include <math.h>
#include <string.h>

#include "common/base/rng.h"
#include "router/routing/decision/speed.h"
#include "router/routing/routing.h"
#include "tests/support/cm.h"
#include "tests/support/routing_defaults.h"

#define SECOND UINT64_C(1000000)

static uint64_t after(uint64_t now_us, double s) {
    return now_us + (uint64_t)(s * 1e6);
}

/* Back to back prompts of 1 s at the reference, for so many seconds; returns the time then. */
static uint64_t serve(struct speed *s, double speed, double seconds, uint64_t now_us) {
    for (double done = 0; done < seconds; done += 1 / speed) {
        bool is_measured = speed_sent(s, 10000, now_us);

        now_us = after(now_us, 1 / speed);
        speed_first_token(s, is_measured, 10000, 1, true, now_us);
    }
    return now_us;
}

static void a_worker_that_slows_down_is_seen_in_a_minute(void **state) { /* 52 */
    struct speed s[2] = {{.declared = 1}, {.declared = 1}};
    uint64_t now_us;
    double mean, level, before;
    (void)state;

    serve(&s[0], 1, 300, 0);
    now_us = serve(&s[1], 1, 300, 0);
    mean = speed_mean(s, 2, &level);
    assert_float_equal(speed_ratio(&s[1], mean), 1, 1e-6);
    before = speed_ratio(&s[0], mean);
    serve(&s[1], 1.0 / 3, 180, now_us);
    mean = speed_mean(s, 2, &level);
    assert_float_equal(speed_ratio(&s[1], mean), 1.0 / 3, 0.15);
    assert_float_equal(speed_ratio(&s[0], mean), before, 0.05);
}

static void a_declared_speed_is_where_it_starts(void **state) {
    struct speed s[3] = {{.declared = 4, .is_declared = true}, {.declared = 1}, {.declared = 1}};
    double declared, other, level;
    (void)state;

    assert_float_equal(speed_ratio(&s[0], speed_mean(s, 3, &level)), 1, 0);
    serve(&s[0], 2, 10, 0); /* half of what it declares */
    serve(&s[1], 0.5, 10, 0);
    declared = speed_ratio(&s[0], 1);
    other = speed_ratio(&s[1], 1);
    assert_true(other < 0.65 && declared > 0.85 && declared < 0.9); /* 30 s against 3 s of prior */
    serve(&s[0], 2, 600, 20 * SECOND);
    assert_true(speed_ratio(&s[0], 1) < 0.7);
    assert_float_equal(speed_ratio(&s[2], 0.6), 0.6, 1e-9); /* nothing known: the fleet's mean */
}

/* One worker has computed all, far from what it declares, or they declare and measure noise: their
 * speeds are equal to the bit, so that homes decide. */
static void speeds_that_are_alike_are_equal(void **state) {
    (void)state;

    for (int is_declared = 0; is_declared < 2; is_declared++) {
        struct speed s[3] = {{.declared = 1, .is_declared = is_declared},
                             {.declared = 1.03, .is_declared = is_declared},
                             {.declared = 0.98, .is_declared = is_declared}};
        struct speed_groups groups = {0}, later = {0};
        uint64_t now_us = serve(&s[0], 20, 0.3, 0);
        double level, mean = speed_mean(s, 3, &level), first, second;

        assert_true(mean > 19.9 && mean < 20.1 && level > 2 && level < 4);
        first = speed_join(&groups, speed_ratio(&s[0], mean));
        assert_true(speed_join(&groups, speed_ratio(&s[1], mean) * 1.03) == first);
        assert_true(speed_join(&groups, speed_ratio(&s[2], mean) * 0.98) == first);
        serve(&s[0], 20, 100, now_us);
        serve(&s[1], 20.6, 100, now_us);
        serve(&s[2], 30, 100, now_us);
        mean = speed_mean(s, 3, &level);
        first = speed_join(&later, speed_ratio(&s[0], mean));
        second = speed_join(&later, speed_ratio(&s[1], mean) * 1.03);
        assert_true(second == first);
        assert_true(speed_join(&later, speed_ratio(&s[2], mean) * 0.98) > 1.2 * first);
    }
}

static void cached_prompts_are_no_measure(void **state) { /* 53 */
    struct speed s = {.declared = 1};
    uint64_t now_us = serve(&s, 1, 120, 0);
    double before = speed_ratio(&s, 1);
    bool is_measured;
    (void)state;

    for (int i = 0; i < 1000; i++) { /* predicted */
        is_measured = speed_sent(&s, 2, now_us);
        assert_false(is_measured);
        now_us = after(now_us, 0.03);
        speed_first_token(&s, is_measured, 2, 0.0002, true, now_us);
    }
    for (int i = 0; i < 1000; i++) { /* found, against the prediction */
        is_measured = speed_sent(&s, 5000, now_us);
        now_us = after(now_us, 0.03);
        speed_first_token(&s, is_measured, 2, 0.0002, true, now_us);
    }
    assert_int_equal(s.n_pending, 0);
    assert_float_equal(speed_ratio(&s, 1), before, 1e-12);
}

static void what_is_predicted_proves_nothing(void **state) { /* 54 */
    struct speed s = {.declared = 1};
    uint64_t now_us = serve(&s, 1, 60, 0);
    double before = speed_ratio(&s, 1);
    (void)state;

    for (int i = 0; i < 100; i++) {
        bool is_measured = speed_sent(&s, 5000, now_us);

        now_us = after(now_us, 9);
        if (i % 2)
            speed_first_token(&s, is_measured, 5000, 0.5, false, now_us);
        else
            speed_aborted(&s, is_measured, true, now_us);
    }
    assert_int_equal(s.n_pending, 0);
    assert_float_equal(speed_ratio(&s, 1), before, 1e-12);
    speed_sent(&s, 5000, now_us);
    speed_sent(&s, 5000, now_us);
    speed_reset(&s); /* the worker crashed with two pending */
    speed_aborted(&s, true, true, after(now_us, 50));
    speed_aborted(&s, true, true, after(now_us, 60));
    assert_int_equal(s.n_pending, 0);
    assert_true(s.work_s == 0 && s.busy_s == 0);
    serve(&s, 0.5, 60, after(now_us, 70));
    assert_true(speed_ratio(&s, 0.5) > 0.49 && speed_ratio(&s, 0.5) < 0.51);
}

/* --- in routing ------------------------------------------------------------------------------ */

#define N_WORKERS 4
#define N_BLOCKS  64 /* of 256 bytes: 4096 tokens */

struct fleet {
    struct routing *r;
    struct route_ticket t[64];
    uint64_t chains[64][N_BLOCKS];
    struct rng rng;
    uint64_t now_us;
};

static void open_fleet(struct fleet *f, const struct worker_spec *spec) {
    struct routing_options o;

    memset(f, 0, sizeof(*f));
    f->now_us = SECOND;
    rng_seed(&f->rng, 3);
    routing_options_default(&o);
    o.max_workers = N_WORKERS;
    assert_int_equal(routing_create(&f->r, &o, NULL), ST_OK);
    for (uint32_t w = 0; w < N_WORKERS; w++) {
        struct worker_spec one = *spec;

        one.identity = rng_at(1, w);
        routing_worker_up(f->r, w, &one);
    }
}

static void close_fleet(struct fleet *f) {
    routing_check(f->r);
    routing_destroy(f->r);
}

/* Every worker but one, for route_request.exclude. */
static const uint32_t others[N_WORKERS][N_WORKERS - 1] = {
    {1, 2, 3}, {0, 2, 3}, {0, 1, 3}, {0, 1, 2}};

static struct route_ticket *send_to(struct fleet *f, uint32_t i, uint64_t name, uint32_t w) {
    struct route_request rq = {.chain = f->chains[i],
                               .n_blocks = N_BLOCKS,
                               .prompt_bytes = N_BLOCKS * 256,
                               .now_us = f->now_us};

    if (w != WORKER_NONE) {
        rq.exclude = others[w];
        rq.n_exclude = N_WORKERS - 1;
    }
    for (uint32_t b = 0; b < N_BLOCKS; b++)
        f->chains[i][b] = rng_at(name, b);
    assert_int_equal(routing_route(f->r, &rq, &f->t[i], NULL), ST_OK);
    return &f->t[i];
}

static struct route_ticket *send(struct fleet *f, uint32_t i, uint64_t name) {
    return send_to(f, i, name, WORKER_NONE);
}

static void end(struct fleet *f, struct route_ticket *t, bool is_aborted) {
    routing_ended(f->r, t,
                  &(struct route_end){.is_aborted = is_aborted,
                                      .output_tokens = 10,
                                      .feedback = {-1, -1},
                                      .now_us = f->now_us});
}

/* One at a time, on workers of which the odd ones are three times slower than they declare. */
static void slow_workers_are_learned_through_routing(void **state) {
    struct fleet f;
    struct routing_learned learned;
    struct routing_worker_stats stats[2];
    (void)state;

    open_fleet(&f, &(struct worker_spec){0});
    for (uint64_t i = 0; i < 2000; i++) {
        struct route_ticket *t = send_to(&f, 0, i + 10, i % N_WORKERS);
        struct route_feedback found = {N_BLOCKS * 64, 0};

        f.now_us += t->load.worker % 2 ? 1312000 : 437000; /* 4096 tokens and their attention */
        routing_first_token(f.r, t, &found, f.now_us);
        end(&f, t, false);
        routing_apply_speeds(f.r, f.now_us);
    }
    routing_worker_stats(f.r, 0, f.now_us, &stats[0]);
    routing_worker_stats(f.r, 1, f.now_us, &stats[1]);
    assert_float_equal(stats[0].tokens_per_s, 10000, 500);
    assert_float_equal(stats[0].tokens_per_s / stats[1].tokens_per_s, 3, 0.15);
    routing_get_learned(f.r, 1, &learned);
    routing_worker_down(f.r, 1);
    routing_worker_stats(f.r, 1, f.now_us, &stats[1]);
    assert_float_equal(stats[1].tokens_per_s, 10000, 0);
    routing_worker_up(f.r, 1, &(struct worker_spec){0});
    routing_set_learned(f.r, 1, &learned); /* after a restart of the router */
    f.now_us += 2 * SECOND;
    routing_apply_speeds(f.r, f.now_us);
    routing_worker_stats(f.r, 1, f.now_us, &stats[1]);
    assert_float_equal(stats[0].tokens_per_s / stats[1].tokens_per_s, 3, 0.15);
    close_fleet(&f);
}

/* 54: whatever happens to requests and workers, the pending ones are counted to the last. */
static void random_ends_leave_the_sums_consistent(void **state) {
    struct fleet f;
    (void)state;

    open_fleet(&f, &(struct worker_spec){0});
    for (uint32_t step = 0; step < 20000; step++) {
        uint32_t i = (uint32_t)rng_below(&f.rng, ARRAY_LEN(f.t)), w = step % N_WORKERS;
        struct route_ticket *t = &f.t[i];
        struct routing_learned learned;

        f.now_us += rng_below(&f.rng, 100000);
        if (!t->load.is_open)
            send(&f, i, rng_below(&f.rng, 200));
        else if (rng_below(&f.rng, 2))
            routing_first_token(
                f.r, t, rng_below(&f.rng, 4) ? &(struct route_feedback){4096, 5} : NULL, f.now_us);
        else
            end(&f, t, rng_below(&f.rng, 2));
        if (rng_below(&f.rng, 500) == 0) {
            routing_worker_down(f.r, w);
            routing_worker_up(f.r, w, &(struct worker_spec){.generation = step});
        }
        routing_apply_speeds(f.r, f.now_us);
        routing_get_learned(f.r, w, &learned);
        assert_true(learned.speed_busy_s >= 0 && learned.speed_busy_s <= 88);
        assert_true(learned.speed_work_s >= 0 && isfinite(learned.speed_work_s));
    }
    for (uint32_t i = 0; i < ARRAY_LEN(f.t); i++) {
        if (f.t[i].load.is_open) end(&f, &f.t[i], true);
    }
    close_fleet(&f);
}

/* --- the price ------------------------------------------------------------------------------- */

/* Equal speeds are weighed as if nothing were: the cost by its formula, to the bit. */
static void equal_workers_cost_the_same_to_the_bit(void **state) {
    const double rates[] = {0, 7, 12345.678, 9999.9};
    struct policy_options o;
    struct fleet f;
    (void)state;

    policy_options_default(&o);
    for (size_t n = 0; n < ARRAY_LEN(rates); n++) {
        open_fleet(&f, &(struct worker_spec){.prefill_tokens_per_s = rates[n]});
        for (uint32_t i = 0; i < ARRAY_LEN(f.t); i++) {
            const struct load *load = routing_load(f.r);
            struct route_request rq = {.chain = f.chains[i], .n_blocks = 0, .prompt_bytes = 16384};
            struct policy_term terms[N_WORKERS];

            rq.now_us = f.now_us += 1000;
            routing_explain(f.r, &rq, terms);
            for (uint32_t w = 0; w < N_WORKERS; w++) {
                const struct load_worker *k = &load->workers[w];
                double L = k->in_flight, Q = k->n_pending;
                double later = o.cost_later_arrivals +
                               o.cost_fleet_busy * load_least_in_flight(load, load->eligible.words);
                double weight = 1 + later + o.cost_decoding * L + o.cost_queued * Q;
                double cost_s = fmax(load_wait_s(k, rq.now_us), terms[w].memory_s) +
                                terms[w].prefill_s * weight + o.cost_batch_slot_s * L;

                if (terms[w].is_candidate) assert_true(terms[w].cost_s == cost_s);
            }
            send(&f, i, i + 1);
        }
        for (uint32_t i = 0; i < ARRAY_LEN(f.t); i++)
            end(&f, &f.t[i], true);
        close_fleet(&f);
    }
}

/* What delays others is weighed by the speed that they lose. */
static void others_lose_less_on_a_slow_worker(void **state) {
    struct policy_options o;
    struct policy_term terms[N_WORKERS];
    struct route_request rq = {.prompt_bytes = 16384, .now_us = SECOND};
    struct fleet f;
    double mean = (3 * 10000 + 2000) / 4.0;
    (void)state;

    policy_options_default(&o);
    open_fleet(&f, &(struct worker_spec){.prefill_tokens_per_s = 10000});
    routing_worker_up(f.r, 3, &(struct worker_spec){.prefill_tokens_per_s = 2000});
    routing_explain(f.r, &rq, terms);
    assert_float_equal(terms[3].cost_s,
                       terms[3].prefill_s * (1 + o.cost_later_arrivals * 2000 / mean), 1e-9);
    assert_float_equal(terms[0].cost_s,
                       terms[0].prefill_s * (1 + o.cost_later_arrivals * 10000 / mean), 1e-9);
    close_fleet(&f);
}

/* 49: the aware price is of workers that report srpt alone, and of them by the option. */
static void the_price_knows_the_order(void **state) {
    const enum worker_order orders[] = {WORKER_FCFS, WORKER_SRPT};
    struct policy_options o;
    struct policy_term terms[N_WORKERS];
    struct fleet f;
    (void)state;

    policy_options_default(&o);
    assert_int_equal(o.order_aware, ORDER_AWARE_OFF);
    o.order_aware = ORDER_AWARE_AUTO;
    for (size_t i = 0; i < ARRAY_LEN(orders); i++) {
        struct route_request rq = {.prompt_bytes = 400, .now_us = SECOND};

        open_fleet(&f, &(struct worker_spec){.order = orders[i]});
        for (uint32_t w = 1; w < N_WORKERS; w++)
            routing_set_reason(f.r, w, WORKER_DISABLED, true);
        send(&f, 0, 1);
        routing_configure(f.r, &o, 0);
        routing_explain(f.r, &rq, terms);
        assert_true((terms[0].wait_s == 0) == (orders[i] == WORKER_SRPT));
        o.order_aware = ORDER_AWARE_OFF;
        routing_configure(f.r, &o, 0);
        routing_explain(f.r, &rq, terms);
        assert_true(terms[0].wait_s > 0);
        o.order_aware = ORDER_AWARE_ON;
        routing_configure(f.r, &o, 0);
        routing_explain(f.r, &rq, terms);
        assert_true((terms[0].wait_s == 0) == (orders[i] == WORKER_SRPT));
        o.order_aware = ORDER_AWARE_AUTO; /* while requests are held too */
        routing_configure(f.r, &o, 0);
        routing_set_hold(f.r, 0.4, 4);
        routing_explain(f.r, &rq, terms);
        assert_true((terms[0].wait_s == 0) == (orders[i] == WORKER_SRPT));
        end(&f, &f.t[0], true);
        close_fleet(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_that_slows_down_is_seen_in_a_minute),
        cmocka_unit_test(a_declared_speed_is_where_it_starts),
        cmocka_unit_test(speeds_that_are_alike_are_equal),
        cmocka_unit_test(cached_prompts_are_no_measure),
        cmocka_unit_test(what_is_predicted_proves_nothing),
        cmocka_unit_test(slow_workers_are_learned_through_routing),
        cmocka_unit_test(random_ends_leave_the_sums_consistent),
        cmocka_unit_test(equal_workers_cost_the_same_to_the_bit),
        cmocka_unit_test(others_lose_less_on_a_slow_worker),
        cmocka_unit_test(the_price_knows_the_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

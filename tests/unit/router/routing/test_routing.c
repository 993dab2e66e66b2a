/* tests/unit/router/routing/test_routing.c - scenarios of whole requests, and random ones with
 * checks. */
#include <string.h>

#include "common/base/mem.h"
#include "tests/support/cm.h"
#include "tests/support/routing_defaults.h"
#include "tests/support/routing_fixture.h"

/* --- scenarios ------------------------------------------------------------------------------- */

static void the_same_prompt_sticks(void **state) {
    struct routing *r = fleet(2, "prefix");
    struct prompt p = prompt_of(1, 1, 0, 1); /* one short question */
    struct route_ticket t = {0};
    uint32_t first = send(r, &p, &t, 0);
    (void)state;

    finish(r, &t, SECOND);
    for (uint64_t i = 2; i < 6; i++) {
        assert_int_equal(send(r, &p, &t, i * SECOND), first);
        finish(r, &t, i * SECOND);
    }
    routing_check(r);
    routing_destroy(r);
}

static void a_conversation_stays_where_it_is(void **state) {
    struct routing *r = fleet(8, "prefix");
    struct route_ticket t = {0};
    (void)state;

    for (uint64_t chat = 0; chat < 20; chat++) {
        uint32_t home = WORKER_NONE;

        for (uint32_t turn = 1; turn <= 5; turn++) {
            struct prompt p = prompt_of(chat, 60, 0, turn * 10);
            uint32_t w = send(r, &p, &t, turn * SECOND);

            if (home == WORKER_NONE) home = w;
            assert_int_equal(w, home);
            assert_int_equal((int)t.cached_tokens, (int)(turn - 1) * 10 * 32);
            finish(r, &t, turn * SECOND + 1000);
        }
    }
    routing_check(r);
    routing_destroy(r);
}

/* As it chooses between two, it prefers; asking changes nothing. */
static void preferring_is_choosing_between_two(void **state) {
    struct routing *r = fleet(2, "prefix");
    static struct prompt p[200];
    struct route_ticket t[200] = {0};
    bool was_either[2] = {0};
    (void)state;

    for (uint32_t i = 0; i < ARRAY_LEN(t); i++) {
        struct route_request rq;
        uint32_t preferred;

        p[i] = prompt_of(i % 7, 20, i % 50, 20 + i % 30);
        rq = request_of(&p[i], i);
        preferred = routing_prefers(r, &rq, 1, 0);
        assert_int_equal(routing_prefers(r, &rq, 0, 1), !preferred);
        assert_int_equal(send(r, &p[i], &t[i], i), preferred);
        was_either[preferred] = true;
        if (i % 3 == 0) finish(r, &t[i], i);
    }
    assert_true(was_either[0] && was_either[1]);
    for (uint32_t i = 0; i < ARRAY_LEN(t); i++) {
        if (i % 3) give_up(r, &t[i], SECOND);
    }
    routing_check(r);
    routing_destroy(r);
}

/* A shared opening of 50 blocks: its worker takes the requests until computing it once more
 * elsewhere is cheaper than waiting. */
static void a_hot_worker_sheds(void **state) {
    struct routing *r = fleet(4, "prefix");
    struct route_ticket t[100] = {0};
    uint32_t count[4] = {0};
    (void)state;

    for (uint32_t i = 0; i < ARRAY_LEN(t); i++) {
        static struct prompt p[100];

        p[i] = prompt_of(7, 50, i, 52);
        count[send(r, &p[i], &t[i], i)]++;
    }
    for (uint32_t w = 0; w < 4; w++)
        assert_in_range(count[w], 10, 50);
    routing_check(r);
    for (uint32_t i = 0; i < ARRAY_LEN(t); i++)
        finish(r, &t[i], SECOND);
    assert_int_equal(routing_load(r)->n_open, 0);
    routing_check(r);
    routing_destroy(r);
}

/* With nothing to hit, requests in flight spread evenly. */
static void cold_requests_spread(void **state) {
    struct routing *r = fleet(4, "prefix");
    static struct prompt p[40];
    struct route_ticket t[40] = {0};
    (void)state;

    for (uint32_t i = 0; i < 40; i++) {
        p[i] = prompt_of(100 + i, 0, i, 20);
        send(r, &p[i], &t[i], 0);
    }
    for (uint32_t w = 0; w < 4; w++)
        assert_in_range(routing_load(r)->workers[w].in_flight, 9, 11);
    for (uint32_t i = 0; i < 40; i++)
        give_up(r, &t[i], 0);
    routing_destroy(r);
}

static void pending_counts_and_an_abort_takes_it_back(void **state) {
    struct routing *r = fleet(3, "prefix");
    struct prompt p = prompt_of(5, 40, 0, 40);
    struct route_ticket a = {0}, b = {0};
    struct routing_stats s;
    uint32_t w = send(r, &p, &a, 0);
    (void)state;

    assert_int_equal(send(r, &p, &b, 0), w); /* no token yet, and known all the same */
    assert_true(b.cached_tokens > 1000);
    give_up(r, &b, 1);
    give_up(r, &a, 1);
    routing_stats(r, &s);
    assert_int_equal(s.n_entries, 0);
    assert_int_equal(s.n_open, 0);
    send(r, &p, &a, 2);
    assert_true(a.cached_tokens == 0);
    finish(r, &a, 3);
    routing_check(r);
    routing_destroy(r);
}

static void a_restart_drops_the_workers_blocks(void **state) {
    struct routing *r = fleet(2, "prefix");
    struct prompt p = prompt_of(5, 40, 0, 40);
    struct route_ticket t = {0}, open = {0};
    struct worker_spec spec;
    uint32_t w = send(r, &p, &t, 0);
    (void)state;

    finish(r, &t, 1);
    send(r, &p, &open, 2); /* in flight across the restart */
    spec = routing_load(r)->workers[w].spec;
    routing_worker_up(r, w, &spec); /* the same generation: nothing happens */
    send(r, &p, &t, 2);
    assert_true(t.cached_tokens > 0);
    finish(r, &t, 3);
    spec.generation = 2;
    routing_worker_up(r, w, &spec);
    routing_check(r);
    finish(r, &open, 4);
    routing_check(r);
    send(r, &p, &t, 5);
    assert_true(t.cached_tokens == 0);
    finish(r, &t, 6);
    assert_int_equal(routing_load(r)->n_open, 0);
    routing_destroy(r);
}

static void a_removed_worker_is_not_picked_and_its_requests_still_count(void **state) {
    struct routing *r = fleet(2, "prefix");
    struct prompt p = prompt_of(5, 40, 0, 40);
    struct route_ticket t = {0}, u = {0};
    struct route_request rq = request_of(&p, 0);
    struct error err = {0};
    uint32_t w = send(r, &p, &t, 0);
    (void)state;

    routing_worker_down(r, w);
    assert_int_equal(send(r, &p, &u, 1), 1 - w);
    assert_int_equal(routing_load(r)->workers[w].in_flight, 1);
    routing_set_reason(r, 1 - w, WORKER_DRAINING, true);
    assert_int_equal(routing_route(r, &rq, &(struct route_ticket){0}, &err), ST_UNAVAILABLE);
    assert_non_null(strstr(err.message, "no worker is available"));
    give_up(r, &t, 2);
    finish(r, &u, 3);
    routing_check(r);
    routing_destroy(r);
}

static void a_retry_goes_elsewhere(void **state) {
    struct routing *r = fleet(3, "prefix");
    struct prompt p = prompt_of(5, 40, 0, 40);
    struct route_ticket t = {0};
    struct route_request rq = request_of(&p, 0);
    uint32_t tried[3], n = 0;
    (void)state;

    rq.exclude = tried;
    for (n = 0; n < 3; n++) {
        rq.n_exclude = n;
        assert_int_equal(routing_route(r, &rq, &t, NULL), ST_OK);
        tried[n] = t.load.worker;
        for (uint32_t i = 0; i < n; i++)
            assert_int_not_equal(tried[i], tried[n]);
        give_up(r, &t, 1);
    }
    rq.n_exclude = 3;
    assert_int_equal(routing_route(r, &rq, &t, NULL), ST_UNAVAILABLE);
    routing_check(r);
    routing_destroy(r);
}

static void two_instances_agree_on_cold_prompts(void **state) {
    struct routing *a = fleet(16, "prefix"), *b = fleet(16, "prefix");
    struct route_ticket t = {0}, u = {0};
    uint32_t count[16] = {0};
    (void)state;

    for (uint64_t i = 0; i < 400; i++) {
        struct prompt p = prompt_of(i, 3, 0, 3);
        uint32_t w = send(a, &p, &t, i);

        count[w]++;
        assert_int_equal(send(b, &p, &u, i), w);
        finish(a, &t, i);
        if (i % 3)
            finish(b, &u, i); /* their histories differ */
        else
            give_up(b, &u, i);
    }
    for (uint32_t w = 0; w < 16; w++)
        assert_in_range(count[w], 8, 50);
    routing_destroy(a);
    routing_destroy(b);
}

/* A system prompt on every worker: the home follows what comes after it. */
static void a_widely_held_opening_does_not_choose_the_home(void **state) {
    struct routing *r = fleet(8, "prefix");
    struct route_ticket t = {0};
    uint32_t n_homes = 0, seen = 0;
    (void)state;

    for (uint32_t w = 0; w < 8; w++) { /* one at a time, the others being unhealthy */
        struct prompt p = prompt_of(9, 4, 0, 4);

        for (uint32_t v = 0; v < 8; v++)
            routing_set_reason(r, v, WORKER_UNHEALTHY, v != w);
        assert_int_equal(send(r, &p, &t, w), w);
        finish(r, &t, w);
    }
    for (uint32_t v = 0; v < 8; v++)
        routing_set_reason(r, v, WORKER_UNHEALTHY, false);
    for (uint64_t i = 1; i < 60; i++) {
        struct prompt p = prompt_of(9, 4, i, 5);

        seen |= 1u << send(r, &p, &t, 100 + i);
        finish(r, &t, 100 + i);
    }
    for (; seen; seen &= seen - 1)
        n_homes++;
    assert_in_range(n_homes, 7, 8);
    routing_destroy(r);
}

/* --- the formula ----------------------------------------------------------------------------- */

static void the_terms_are_those_of_the_formula(void **state) {
    struct routing *r = fleet(2, "prefix");
    struct prompt p = prompt_of(5, 40, 0, 40), q = prompt_of(6, 40, 0, 40),
                  both = prompt_of(5, 40, 0, 50);
    struct route_ticket t = {0}, u = {0};
    struct policy_term terms[2];
    struct route_request rq;
    uint32_t w = send(r, &p, &t, 0);
    (void)state;

    finish(r, &t, 1);
    routing_set_reason(r, 1 - w, WORKER_DRAINING, true);
    send(r, &q, &u, SECOND); /* waits at w: 1280 tokens of prefill */
    routing_set_reason(r, 1 - w, WORKER_DRAINING, false);
    rq = request_of(&both, SECOND + 10000); /* 1600 tokens, 1280 of them held by w */
    assert_int_equal(routing_explain(r, &rq, terms), w);
    double u_w = (320 + (1600.0 * 1600 - 1280.0 * 1280) / 60000) / 10000;
    double u_other = (1600 + 1600.0 * 1600 / 60000) / 10000;
    double wait = (1280 + 1280.0 * 1280 / 60000) / 10000 - 0.01;
    assert_float_equal(terms[w].matched_tokens, 1280, 1e-9);
    assert_float_equal(terms[w].wait_s, wait, 1e-9);
    assert_float_equal(terms[w].prefill_s, u_w, 1e-9);
    assert_float_equal(terms[w].memory_s, 0, 0);
    assert_float_equal(terms[w].cost_s, wait + u_w * 4.82 + 0.005, 1e-9);
    assert_float_equal(terms[1 - w].cost_s, u_other * 4, 1e-9);
    assert_true(terms[0].is_candidate && terms[1].is_candidate);
    assert_int_equal(routing_load(r)->n_open, 1); /* a dry run sends nothing */
    finish(r, &u, 2 * SECOND);
    routing_destroy(r);
}

/* Worker 0 decodes for five, worker 1 has one short prompt waiting: that is where queues form. */
static void a_long_prompt_goes_to_an_idle_worker(void **state) {
    struct routing *r = fleet(2, "prefix");
    struct prompt shorts[6], large = prompt_of(50, 50, 0, 50);
    struct route_ticket t[6] = {0}, u = {0};
    (void)state;

    for (uint32_t i = 0; i < 6; i++) {
        shorts[i] = prompt_of(i + 1, 1, 0, 1);
        routing_set_reason(r, i < 5, WORKER_DRAINING, true);
        assert_int_equal(send(r, &shorts[i], &t[i], 0), i == 5);
        routing_set_reason(r, i < 5, WORKER_DRAINING, false);
        if (i < 5) routing_first_token(r, &t[i], NULL, 0);
    }
    assert_int_equal(send(r, &large, &u, 0), 0);
    give_up(r, &u, 0);
    routing_first_token(r, &t[5], NULL, 0);
    assert_int_equal(send(r, &large, &u, 0), 1); /* now it is only the less busy one */
    give_up(r, &u, 0);
    for (uint32_t i = 0; i < 6; i++)
        give_up(r, &t[i], 0);
    routing_destroy(r);
}

static void a_cached_prompt_still_computes_a_token(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct prompt p = prompt_of(5, 10, 0, 10);
    struct route_ticket t = {0};
    (void)state;

    send(r, &p, &t, 0);
    finish(r, &t, 1);
    send(r, &p, &t, 2);
    assert_float_equal(t.cached_tokens, 320 - 16, 0); /* whole KV blocks, and not the last */
    finish(r, &t, 3);
    routing_destroy(r);
}

/* --- thresholds, other policies -------------------------------------------------------------- */

static void no_worker_goes_far_above_the_mean(void **state) {
    struct routing *r = fleet(4, "prefix");
    static struct route_ticket t[400];
    struct prompt p = prompt_of(3, 60, 0, 60);
    (void)state;

    memset(t, 0, sizeof(t));
    for (uint32_t i = 0; i < ARRAY_LEN(t); i++) {
        send(r, &p, &t[i], i);
        routing_first_token(r, &t[i], NULL, i); /* decoding: no wait, only L grows */
        for (uint32_t w = 0; w < 4; w++)
            assert_true(routing_load(r)->workers[w].in_flight <= 2 * (i + 1.0) / 4 + 16 + 1);
    }
    for (uint32_t i = 0; i < ARRAY_LEN(t); i++)
        finish(r, &t[i], SECOND);
    routing_check(r);
    routing_destroy(r);
}

static void round_robin_takes_each_in_turn(void **state) {
    struct routing *r = fleet(3, "round_robin");
    struct prompt p = prompt_of(3, 6, 0, 6);
    struct route_request rq = request_of(&p, 0);
    struct policy_term terms[3];
    struct route_ticket t[7] = {0};
    (void)state;

    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(routing_explain(r, &rq, terms), i % 3);
        assert_int_equal(send(r, &p, &t[i], 0), i % 3);
    }
    routing_set_reason(r, 0, WORKER_EJECTED, true);
    assert_int_equal(send(r, &p, &t[6], 0), 1);
    for (uint32_t i = 0; i < 7; i++)
        finish(r, &t[i], 1);
    routing_destroy(r);
}

static void least_load_rotates_among_equals(void **state) {
    struct routing *r = fleet(3, "least_load");
    struct prompt p = prompt_of(3, 6, 0, 6);
    struct route_ticket t[5] = {0};
    (void)state;

    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(send(r, &p, &t[i], 0), i);
    finish(r, &t[1], 1);
    assert_int_equal(send(r, &p, &t[1], 1), 1);
    finish(r, &t[0], 2);
    finish(r, &t[1], 2);
    finish(r, &t[2], 2);
    assert_int_equal(send(r, &p, &t[0], 3), 2); /* idle again: the one after the last choice */
    assert_int_equal(send(r, &p, &t[1], 3), 0);
    finish(r, &t[0], 4);
    finish(r, &t[1], 4);
    routing_destroy(r);
}

static void options_are_checked(void **state) {
    struct routing_options o;
    struct routing *r = NULL;
    struct error err = {0};
    (void)state;

    routing_options_default(&o);
    o.max_workers = 1025;
    assert_int_equal(routing_create(&r, &o, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "max-workers 1025"));
    routing_options_default(&o);
    o.max_index_bytes = 1000;
    assert_int_equal(routing_create(&r, &o, &err), ST_INVALID);
    routing_options_default(&o);
    for (uint64_t i = 1; i <= 2; i++) {
        mem_fail_at(i);
        enum status st = routing_create(&r, &o, &err);
        mem_fail_at(0);
        assert_int_equal(st, i <= 1 ? ST_NOMEM : ST_OK);
    }
    routing_destroy(r);
    o.max_index_bytes = UINT64_C(1) << 40; /* more records than can be numbered */
    mem_fail_at(1);
    enum status st = routing_create(&r, &o, &err);
    mem_fail_at(0);
    assert_int_equal(st, ST_NOMEM);
    assert_null(policy_find(STR("best")));
    assert_string_equal(policy_names[0], "prefix");
}

/* Everything at once, in a small index: requests, aborts, restarts, reasons. */
static void random_traffic_keeps_the_invariants(void **state) {
    static struct route_ticket t[80];
    static struct prompt p[80];
    static uint32_t guesses[80][PROMPT_BLOCKS_MAX + 1];
    (void)state;

    for (uint32_t seed = 0; seed < 2; seed++) {
        uint32_t n_workers = seed ? 100 : 6;
        struct routing *r = fleet(n_workers, "prefix");
        struct rng rng;

        memset(t, 0, sizeof(t));
        rng_seed(&rng, seed);
        for (uint64_t step = 0; step < 60000; step++) {
            uint32_t i = (uint32_t)rng_below(&rng, ARRAY_LEN(t)),
                     w = (uint32_t)rng_below(&rng, n_workers);
            uint64_t what = rng_below(&rng, 1000);

            if (what == 0) {
                routing_worker_down(r, w);
            } else if (what < 5) {
                routing_worker_up(r, w,
                                  &(struct worker_spec){.identity = w,
                                                        .generation = rng_below(&rng, 3),
                                                        .n_blocks = 50 + rng_below(&rng, 5000)});
            } else if (what < 20) {
                routing_set_reason(r, w, 1u << (1 + rng_below(&rng, 5)), rng_below(&rng, 3) == 0);
            } else if (what < 22) {
                routing_forget_cache(r, w);
            } else if (what < 30) {
                routing_worker_report(
                    r, w,
                    &(struct route_report){.n_first_tokens = (double)rng_below(&rng, 40) - 1,
                                           .prompt_tokens = (double)rng_below(&rng, 40000) - 1,
                                           .queried_tokens = (double)rng_below(&rng, 40000) - 1,
                                           .hit_tokens = (double)rng_below(&rng, 40000) - 1});
            } else if (!t[i].load.is_open) {
                p[i] = prompt_of(rng_below(&rng, 50), (uint32_t)rng_below(&rng, PROMPT_BLOCKS_MAX),
                                 rng_below(&rng, 9), (uint32_t)rng_below(&rng, PROMPT_BLOCKS_MAX));
                struct route_request rq = request_of(&p[i], step * 1000);
                if (rng_below(&rng, 2)) rq.guesses = guesses[i];
                if (rng_below(&rng, 4) == 0) routing_price(r, &rq, &(uint32_t){0});
                rq.exclude = &w;
                rq.n_exclude = (uint32_t)rng_below(&rng, 2);
                enum status st = routing_route(r, &rq, &t[i], NULL);
                if (st != ST_OK)
                    assert_int_equal(st, ST_UNAVAILABLE);
                else if (rq.n_exclude)
                    assert_int_not_equal(t[i].load.worker, w);
            } else if (rng_below(&rng, 2)) {
                routing_first_token(r, &t[i],
                                    &(struct route_feedback){(int64_t)rng_below(&rng, 2000) - 1,
                                                             (int64_t)rng_below(&rng, 500) - 1},
                                    step * 1000);
            } else if (rng_below(&rng, 3)) {
                finish(r, &t[i], step * 1000);
            } else {
                give_up(r, &t[i], step * 1000);
            }
            if (step % 200 == 0) routing_check(r);
        }
        for (size_t i = 0; i < ARRAY_LEN(t); i++) {
            if (t[i].load.is_open) give_up(r, &t[i], 0);
        }
        assert_int_equal(routing_load(r)->n_open, 0);
        routing_check(r);
        routing_destroy(r);
    }
}

/* Two routers of one fleet, one sends and the other receives its events: their load tables are
 * the same, so a third request would go the same way and be priced the same. */
static void assert_same_books(struct routing *a, struct routing *b, const struct prompt *p,
                              uint64_t now_us) {
    static struct policy_term of_a[8], of_b[8];
    struct route_request rq = request_of(p, now_us);
    struct routing_stats sa, sb;

    assert_int_equal(routing_explain(a, &rq, of_a), routing_explain(b, &rq, of_b));
    for (size_t w = 0; w < ARRAY_LEN(of_a); w++) {
        assert_int_equal(of_a[w].is_candidate, of_b[w].is_candidate);
        assert_memory_equal(&of_a[w].matched_tokens, &of_b[w].matched_tokens,
                            sizeof(of_a[w]) - offsetof(struct policy_term, matched_tokens));
    }
    routing_stats(a, &sa);
    routing_stats(b, &sb);
    assert_int_equal(sa.n_open, sb.n_open);
    assert_int_equal(sa.n_entries, sb.n_entries);
    assert_int_equal(sa.n_blocks, sb.n_blocks);
    assert_int_equal(sa.n_evicted, sb.n_evicted);
    assert_true(sa.bytes_per_token == sb.bytes_per_token);
    for (uint32_t w = 0; w < routing_load(a)->n_workers; w++) {
        struct routing_worker_stats wa, wb;

        routing_worker_stats(a, w, now_us, &wa);
        routing_worker_stats(b, w, now_us, &wb);
        assert_true(wa.wait_s == wb.wait_s && wa.memory_s == wb.memory_s);
        assert_true(wa.capacity_factor == wb.capacity_factor);
        assert_int_equal(wa.n_held_blocks, wb.n_held_blocks);
        assert_int_equal(routing_load(a)->workers[w].in_flight,
                         routing_load(b)->workers[w].in_flight);
    }
}

static void adopting_requests_gives_equal_load_tables(void **state) {
    static struct route_ticket mine[60], theirs[60];
    static struct prompt p[60];
    static uint32_t guesses[60][PROMPT_BLOCKS_MAX + 1];
    struct routing *a = fleet(8, "prefix"), *b = fleet(8, "prefix");
    struct rng rng;
    (void)state;

    memset(mine, 0, sizeof(mine));
    memset(theirs, 0, sizeof(theirs));
    rng_seed(&rng, 5);
    for (uint64_t step = 1; step < 20000; step++) {
        uint32_t i = (uint32_t)rng_below(&rng, ARRAY_LEN(p)), w = (uint32_t)rng_below(&rng, 8);
        uint64_t now_us = step * 1000;

        if (rng_below(&rng, 300) == 0) {
            routing_forget_cache(a, w);
            routing_forget_cache(b, w);
        } else if (!mine[i].load.is_open) {
            struct route_request rq;

            p[i] = prompt_of(rng_below(&rng, 40), (uint32_t)rng_below(&rng, PROMPT_BLOCKS_MAX),
                             rng_below(&rng, 9), (uint32_t)rng_below(&rng, PROMPT_BLOCKS_MAX));
            rq = request_of(&p[i], now_us);
            assert_int_equal(routing_route(a, &rq, &mine[i], NULL), ST_OK);
            if (rng_below(&rng, 2)) rq.guesses = guesses[i];
            routing_add_remote(b, mine[i].load.worker, &rq, &theirs[i]);
            assert_int_equal(theirs[i].load.worker, mine[i].load.worker);
            assert_int_equal(theirs[i].matched_blocks, mine[i].matched_blocks);
        } else if (rng_below(&rng, 2)) {
            struct route_feedback f = {(int64_t)rng_below(&rng, 2000) - 1,
                                       (int64_t)rng_below(&rng, 500) - 1};

            routing_first_token(a, &mine[i], &f, now_us);
            routing_first_token(b, &theirs[i], &f, now_us);
        } else if (rng_below(&rng, 3)) {
            finish(a, &mine[i], now_us);
            finish(b, &theirs[i], now_us);
        } else {
            give_up(a, &mine[i], now_us);
            give_up(b, &theirs[i], now_us);
        }
        if (step % 100 == 0) {
            assert_same_books(a, b, &p[i], now_us);
            routing_check(b);
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(p); i++) {
        if (!mine[i].load.is_open) continue;
        give_up(a, &mine[i], 0);
        give_up(b, &theirs[i], 0);
    }
    routing_check(b);
    routing_destroy(a);
    routing_destroy(b);
}

/* Another process may report errors: a block twice in a chain, a worker that may not be picked,
 * times that lie back, no chain at all. */
static void strange_requests_are_adopted_all_the_same(void **state) {
    static struct route_ticket t[40];
    static struct prompt p[40];
    static uint32_t guesses[40][PROMPT_BLOCKS_MAX + 1];
    struct routing *r = fleet(2, "prefix");
    struct rng rng;
    (void)state;

    rng_seed(&rng, 6);
    routing_set_reason(r, 1, WORKER_DRAINING, true);
    for (uint64_t step = 1; step < 20000; step++) {
        uint32_t i = (uint32_t)rng_below(&rng, ARRAY_LEN(t));
        uint64_t now_us = rng_below(&rng, 1000 * SECOND);

        if (t[i].load.is_open) {
            if (rng_below(&rng, 2))
                finish(r, &t[i], now_us);
            else
                give_up(r, &t[i], now_us);
        } else {
            struct route_request rq;

            p[i] = prompt_of(0, PROMPT_BLOCKS_MAX, 0, (uint32_t)rng_below(&rng, PROMPT_BLOCKS_MAX));
            for (uint32_t k = 0; k < p[i].n; k++)
                p[i].chain[k] = p[i].chain[rng_below(&rng, p[i].n)];
            rq = request_of(&p[i], now_us);
            rq.prompt_bytes = rng_below(&rng, 3) ? rq.prompt_bytes : rng_below(&rng, 1u << 30);
            if (rng_below(&rng, 2)) rq.guesses = guesses[i];
            routing_add_remote(r, (uint32_t)rng_below(&rng, 2), &rq, &t[i]);
        }
        if (step % 100 == 0) routing_check(r);
    }
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        if (t[i].load.is_open) give_up(r, &t[i], 0);
    }
    routing_check(r);
    routing_destroy(r);
}

static void a_light_request_adds_no_load(void **state) {
    struct routing *r = fleet(2, "prefix");
    struct prompt p = prompt_of(5, 20, 0, 20);
    struct route_request light = {.is_light = true, .now_us = SECOND};
    struct route_ticket lights[40] = {0}, t = {0};
    uint32_t w = send(r, &p, &t, 0);
    struct routing_stats s;
    (void)state;

    for (int i = 0; i < 40; i++)
        assert_int_equal(routing_route(r, &light, &lights[i], NULL), ST_OK);
    for (uint32_t k = 0; k < 2; k++) {
        assert_int_equal(routing_load(r)->workers[k].in_flight, k == w);
        assert_int_equal(routing_load(r)->workers[k].n_pending, k == w);
    }
    routing_stats(r, &s);
    assert_int_equal(s.n_open, 41);
    assert_true(load_mean_in_flight(routing_load(r)) == 0.5);
    routing_check(r);
    for (int i = 0; i < 40; i++) {
        if (i % 2) routing_first_token(r, &lights[i], NULL, SECOND);
        give_up(r, &lights[i], SECOND);
        routing_check(r);
    }
    finish(r, &t, SECOND);
    assert_int_equal(routing_load(r)->n_open, 0);
    routing_destroy(r);
}

static void what_is_stored_is_continued_where_it_is(void **state) {
    struct routing *r = fleet(3, "prefix");
    struct prompt p = prompt_of(5, 20, 0, 20);
    struct route_request rq = {
        .prompt_bytes = 100, .is_continued = true, .stored_at = 2, .now_us = SECOND};
    struct route_ticket t = {0}, busy[20] = {0};
    struct routing_stats before, after;
    uint32_t tried = 2;
    (void)state;

    routing_worker_up(r, 2,
                      &(struct worker_spec){.identity = 1002,
                                            .generation = 1,
                                            .block_size = 16,
                                            .n_blocks = 4000,
                                            .prefill_tokens_per_s = 10000,
                                            .max_in_flight = 3});
    for (int i = 0; i < 20; i++) { /* full, and others are not */
        assert_int_equal(routing_route(r, &rq, &busy[i], NULL), ST_OK);
        assert_int_equal(busy[i].load.worker, 2);
    }
    routing_stats(r, &before);
    assert_int_equal(routing_route(r, &rq, &t, NULL), ST_OK);
    routing_first_token(r, &t, &(struct route_feedback){5000, 4900, -1, false}, SECOND);
    finish(r, &t, SECOND);
    routing_stats(r, &after);
    assert_true(before.bytes_per_token ==
                after.bytes_per_token); /* 100 bytes are not 5,000 tokens */
    rq.exclude = &tried;                /* it has failed there */
    rq.n_exclude = 1;
    assert_int_equal(routing_route(r, &rq, &t, NULL), ST_OK);
    assert_true(t.load.worker != 2);
    finish(r, &t, SECOND);
    rq.n_exclude = 0;
    routing_set_reason(r, 2, WORKER_UNHEALTHY, true);
    assert_int_equal(routing_route(r, &rq, &t, NULL), ST_OK);
    assert_true(t.load.worker != 2);
    finish(r, &t, SECOND);
    rq.stored_at = WORKER_NONE;
    assert_true(send(r, &p, &t, SECOND) != 2);
    finish(r, &t, SECOND);
    for (int i = 0; i < 20; i++)
        give_up(r, &busy[i], SECOND);
    routing_check(r);
    routing_destroy(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_prompt_sticks),
        cmocka_unit_test(a_conversation_stays_where_it_is),
        cmocka_unit_test(preferring_is_choosing_between_two),
        cmocka_unit_test(a_hot_worker_sheds),
        cmocka_unit_test(cold_requests_spread),
        cmocka_unit_test(pending_counts_and_an_abort_takes_it_back),
        cmocka_unit_test(a_restart_drops_the_workers_blocks),
        cmocka_unit_test(a_removed_worker_is_not_picked_and_its_requests_still_count),
        cmocka_unit_test(a_retry_goes_elsewhere),
        cmocka_unit_test(two_instances_agree_on_cold_prompts),
        cmocka_unit_test(a_widely_held_opening_does_not_choose_the_home),
        cmocka_unit_test(the_terms_are_those_of_the_formula),
        cmocka_unit_test(a_long_prompt_goes_to_an_idle_worker),
        cmocka_unit_test(a_cached_prompt_still_computes_a_token),
        cmocka_unit_test(no_worker_goes_far_above_the_mean),
        cmocka_unit_test(round_robin_takes_each_in_turn),
        cmocka_unit_test(least_load_rotates_among_equals),
        cmocka_unit_test(a_light_request_adds_no_load),
        cmocka_unit_test(what_is_stored_is_continued_where_it_is),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(random_traffic_keeps_the_invariants),
        cmocka_unit_test(adopting_requests_gives_equal_load_tables),
        cmocka_unit_test(strange_requests_are_adopted_all_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/router/test_routing.c - scenarios of whole requests, and random ones with checks. */
#include "tests/support/cm.h"

#include "common/mem.h"
#include "common/rng.h"
#include "router/routing.h"

#include <stdio.h>
#include <string.h>

#define SECOND UINT64_C(1000000)
#define N_MAX  64 /* blocks of a test prompt */

/* A fleet of equal workers that read 10,000 tokens a second; one token is four bytes. */
static struct routing *fleet(uint32_t n_workers, const char *policy) {
    struct routing_options o;
    struct routing *r = NULL;
    struct error err = {0};

    routing_options_default(&o);
    o.policy = policy_find(str_of(policy));
    o.max_workers = n_workers;
    o.max_index_bytes = 1 << 20;
    assert_int_equal(routing_create(&r, &o, &err), ST_OK);
    for (uint32_t w = 0; w < n_workers; w++)
        routing_worker_up(r, w,
                          &(struct worker_spec){.identity = 1000 + w,
                                                .generation = 1,
                                                .block_size = 16,
                                                .n_blocks = 4000,
                                                .prefill_tokens_per_s = 10000});
    return r;
}

/* The chain of a prompt: its first n_shared blocks are those of every prompt of `family`. */
struct prompt {
    uint64_t chain[N_MAX];
    uint32_t n;
};

static struct prompt prompt_of(uint64_t family, uint32_t n_shared, uint64_t own, uint32_t n) {
    struct prompt p = {.n = n};

    for (uint32_t i = 0; i < n; i++)
        p.chain[i] = rng_at(i < n_shared ? family : family * 1000003 + own + 1, i);
    return p;
}

static struct route_request request_of(const struct prompt *p, uint64_t now_us) {
    return (struct route_request){
        .chain = p->chain, .n_blocks = p->n, .prompt_bytes = p->n * 128ull, .now_us = now_us};
}

static uint32_t send(struct routing *r, const struct prompt *p, struct route_ticket *t,
                     uint64_t now_us) {
    struct route_request rq = request_of(p, now_us);

    assert_int_equal(routing_route(r, &rq, t, NULL), ST_OK);
    return t->load.worker;
}

static void finish(struct routing *r, struct route_ticket *t, uint64_t now_us) {
    struct route_end end = {.output_tokens = 10, .now_us = now_us, .feedback = {-1, -1}};

    routing_first_token(r, t, NULL, now_us);
    routing_ended(r, t, &end);
}

static void give_up(struct routing *r, struct route_ticket *t, uint64_t now_us) {
    routing_ended(
        r, t,
        &(struct route_end){
            .is_aborted = true, .output_tokens = -1, .now_us = now_us, .feedback = {-1, -1}});
}

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

static void a_restart_drops_what_the_worker_held(void **state) {
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

static void a_worker_that_left_is_not_picked_and_still_owes_its_requests(void **state) {
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
    assert_float_equal(terms[w].cost_s, wait + u_w * 3.77 + 0.005, 1e-9);
    assert_float_equal(terms[1 - w].cost_s, u_other * 3, 1e-9);
    assert_true(terms[0].is_candidate && terms[1].is_candidate);
    assert_int_equal(routing_load(r)->n_open, 1); /* a dry run sends nothing */
    finish(r, &u, 2 * SECOND);
    routing_destroy(r);
}

/* Worker 0 decodes for five, worker 1 has one short prompt waiting: that is where queues form. */
static void a_long_prompt_goes_where_nobody_waits(void **state) {
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

/* --- learning -------------------------------------------------------------------------------- */

static void bytes_per_token_are_learned(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct route_ticket t = {0};
    struct routing_stats s;
    (void)state;

    for (uint64_t i = 0; i < 600; i++) {
        struct prompt p = prompt_of(i, 1, 0, 20);

        send(r, &p, &t, i);
        routing_first_token(r, &t,
                            &(struct route_feedback){.prompt_tokens = 1280, .cached_tokens = 0}, i);
        finish(r, &t, i);
    }
    routing_stats(r, &s);
    assert_float_equal(s.bytes_per_token, 2.0, 0.02);
    routing_check(r);
    routing_destroy(r);
}

/* The worker says that it holds 4000 blocks and forgets everything after 20 prompts: by and by the
 * router expects no more of it than it keeps. */
static void capacity_follows_what_was_really_cached(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct route_ticket t = {0};
    uint32_t n_wrong_late = 0;
    (void)state;

    for (uint64_t i = 0; i < 4000; i++) {
        uint64_t age = 1 + rng_at(3, i) % 100, family = i >= age ? i - age : i;
        bool is_cached = i >= age && age <= 20;
        struct prompt p = prompt_of(family + 1, 50, 0, 50);

        if (i % 2)
            p = prompt_of(i + 1, 50, 0, 50);
        else if (family % 2 == 0)
            continue;
        send(r, &p, &t, i);
        if (i % 2 == 0 && !is_cached && t.cached_tokens > 0) n_wrong_late += i > 3000;
        routing_ended(r, &t,
                      &(struct route_end){.output_tokens = 0,
                                          .now_us = i,
                                          .feedback = {1600, i % 2 || !is_cached ? 0 : 1584}});
    }
    assert_true(n_wrong_late < 60);
    routing_check(r);
    routing_destroy(r);
}

/* An engine whose answers say nothing counts 1280 tokens for prompts of 2560 bytes. `n_others` is
 * what it counts for somebody else. */
static double ratio_learned_from_counters(double n_others) {
    struct routing *r = fleet(1, "prefix");
    struct route_ticket t = {0};
    struct routing_stats s;

    for (uint64_t i = 0; i < 600; i++) {
        struct prompt p = prompt_of(i, 1, 0, 20);

        send(r, &p, &t, i);
        finish(r, &t, i);
        if (i % 7 < 6) continue;
        routing_worker_report(r, 0,
                              &(struct route_report){.n_first_tokens = 7 + n_others,
                                                     .prompt_tokens = 7 * 1280 + n_others * 99,
                                                     .queried_tokens = -1,
                                                     .hit_tokens = -1});
    }
    routing_stats(r, &s);
    routing_check(r);
    routing_destroy(r);
    return s.bytes_per_token;
}

static void counters_teach_bytes_per_token(void **state) {
    (void)state;
    assert_float_equal(ratio_learned_from_counters(0), 2.0, 0.02);
}

static void counters_of_a_worker_that_others_use_teach_nothing(void **state) {
    (void)state;
    assert_float_equal(ratio_learned_from_counters(5), 4.0, 0.001);
}

/* As capacity_follows_what_was_really_cached, but only sums are told, now and then. */
static void counters_teach_the_capacity(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct route_report report = {0};
    struct route_ticket t = {0};
    uint32_t n_wrong_late = 0;
    (void)state;

    for (uint64_t i = 0; i < 4000; i++) {
        uint64_t age = 1 + rng_at(3, i) % 100, family = i >= age ? i - age : i;
        bool is_cached = i >= age && age <= 20 && i % 2 == 0;
        struct prompt p = prompt_of(family + 1, 50, 0, 50);

        if (i % 2)
            p = prompt_of(i + 1, 50, 0, 50);
        else if (family % 2 == 0)
            continue;
        send(r, &p, &t, i);
        if (i % 2 == 0 && !is_cached && t.cached_tokens > 0) n_wrong_late += i > 3000;
        routing_ended(r, &t, &(struct route_end){.now_us = i, .feedback = {-1, -1}});
        report.n_first_tokens++;
        report.prompt_tokens += 1600;
        report.queried_tokens += 1600;
        report.hit_tokens += is_cached ? 1584 : 0;
        if (report.n_first_tokens < 5) continue;
        routing_worker_report(r, 0, &report);
        report = (struct route_report){0};
    }
    assert_true(n_wrong_late < 60);
    routing_check(r);
    routing_destroy(r);
}

/* What was predicted of the cache that is gone says nothing of the one that is there. */
static void requests_older_than_the_cache_teach_no_capacity(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct prompt p = prompt_of(5, 50, 0, 50);
    struct route_ticket first = {0}, open[20] = {0};
    (void)state;

    send(r, &p, &first, 0);
    finish(r, &first, 1);
    for (uint32_t i = 0; i < ARRAY_LEN(open); i++)
        send(r, &p, &open[i], 2);
    assert_true(open[0].cached_tokens > 0);
    routing_forget_cache(r, 0);
    for (uint32_t i = 0; i < ARRAY_LEN(open); i++)
        finish(r, &open[i], 3);
    routing_worker_report(r, 0,
                          &(struct route_report){.n_first_tokens = 20,
                                                 .prompt_tokens = 20 * 1600,
                                                 .queried_tokens = 20 * 1600,
                                                 .hit_tokens = 0});
    assert_float_equal(routing_capacity_factor(r, 0), 1, 0);
    routing_check(r);
    routing_destroy(r);
}

/* A worker may declare anything: more than a count of blocks can say is much, not nothing. */
static void a_boundless_cache_forgets_nothing(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct prompt p = prompt_of(5, 50, 0, 50);
    struct route_ticket t = {0};
    (void)state;

    routing_worker_up(
        r, 0, &(struct worker_spec){.generation = 2, .block_size = 1u << 20, .n_blocks = 1ull << 60});
    send(r, &p, &t, 0);
    finish(r, &t, 1);
    send(r, &p, &t, 2);
    assert_int_equal(t.matched_blocks, 50);
    finish(r, &t, 3);
    routing_destroy(r);
}

/* Another tokenizer than expected is no reason to think that the cache is smaller. */
static void a_wrong_ratio_does_not_look_like_a_miss(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct prompt p = prompt_of(5, 50, 0, 50), q;
    struct route_ticket t = {0};
    struct route_feedback all = {800, 784}, none = {800, 0}, absurd = {INT64_MAX, INT64_MAX};
    struct routing_stats s;
    (void)state;

    send(r, &p, &t, 0);
    routing_first_token(r, &t, &none, 0);
    finish(r, &t, 1);
    for (uint64_t i = 0; i < 50; i++) { /* half of the tokens predicted, all of them cached */
        send(r, &p, &t, i);
        routing_first_token(r, &t, i % 2 ? &absurd : &all, i);
        routing_ended(r, &t, &(struct route_end){.output_tokens = i ? 10 : INT64_MAX, .now_us = i});
    }
    routing_stats(r, &s);
    assert_true(s.bytes_per_token > 4 && s.bytes_per_token < 8);
    for (uint64_t i = 0; i < 75; i++) { /* 4000 blocks hold 64,000 tokens: 80 such prompts */
        q = prompt_of(100 + i, 50, 0, 50);
        send(r, &q, &t, 100);
        routing_first_token(r, &t, &none, 100);
        routing_ended(r, &t, &(struct route_end){.now_us = 100, .feedback = none});
    }
    q = prompt_of(100, 50, 0, 50);
    send(r, &q, &t, 101);
    assert_true(t.matched_blocks == 50);
    finish(r, &t, 102);
    routing_check(r);
    routing_destroy(r);
}

/* One request of 50 blocks, 1600 tokens, which finds `cached` of them. Returns the prediction. */
static double report(struct routing *r, const struct prompt *p, int64_t cached) {
    struct route_ticket t = {0};

    send(r, p, &t, 0);
    routing_first_token(r, &t, &(struct route_feedback){1600, cached}, 0);
    finish(r, &t, 0);
    return t.cached_tokens;
}

/* Waiting costs hits at saturation: one prompt in ten that is not there any more is no news. */
static void rare_misses_leave_the_capacity_alone(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct prompt p = prompt_of(5, 50, 0, 50);
    (void)state;

    report(r, &p, 0);
    for (uint32_t i = 0; i < 1000; i++)
        assert_float_equal(report(r, &p, i % 10 == 9 ? 0 : 1584), 1584, 0);
    assert_float_equal(routing_capacity_factor(r, 0), 1, 0);
    routing_check(r);
    routing_destroy(r);
}

static void frequent_misses_shrink_the_capacity(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct prompt p = prompt_of(5, 50, 0, 50);
    (void)state;

    report(r, &p, 0);
    for (uint32_t i = 0; i < 200; i++)
        report(r, &p, i % 4 ? 1584 : 0);
    assert_true(routing_capacity_factor(r, 0) < 0.6);
    routing_worker_down(r, 0); /* what was learned goes with the cache */
    assert_float_equal(routing_capacity_factor(r, 0), 1, 0);
    routing_destroy(r);
}

static void a_hit_nobody_predicted_opens_a_search_that_a_miss_ends(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct prompt p = prompt_of(5, 50, 0, 50), unknown = prompt_of(6, 50, 0, 50);
    double found, searched;
    (void)state;

    report(r, &p, 0);
    assert_float_equal(report(r, &unknown, 1584), 0, 0);
    found = routing_capacity_factor(r, 0);
    assert_true(found > 1);
    for (uint32_t i = 0; i < 20; i++)
        report(r, &p, 1584);
    searched = routing_capacity_factor(r, 0);
    assert_true(searched > found);
    report(r, &p, 0);
    for (uint32_t i = 0; i < 20; i++)
        report(r, &p, 1584);
    assert_float_equal(routing_capacity_factor(r, 0), searched, 0);
    routing_destroy(r);
}

/* The engine makes room for a prompt when it begins with it, not when its first token is out. */
static void a_prompt_being_computed_takes_room_from_the_cache(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct prompt p = prompt_of(5, 50, 0, 50);
    struct route_ticket large = {0}, queued = {0};
    struct route_request rq = {.prompt_bytes = 4 * 40000};
    (void)state;

    for (uint64_t i = 0; i < 20; i++) { /* 32,000 of 64,000 tokens; p is the oldest of them */
        struct prompt other = prompt_of(100 + i, 50, 0, 50);

        report(r, i ? &other : &p, 0);
    }
    assert_float_equal(report(r, &p, 1584), 1584, 0); /* and now the youngest */
    assert_int_equal(routing_route(r, &rq, &large, NULL), ST_OK);
    p = prompt_of(101, 50, 0, 50);
    send(r, &p, &queued, 0);
    assert_int_equal(queued.matched_blocks, 0);
    give_up(r, &queued, 0);
    p = prompt_of(5, 50, 0, 50);
    send(r, &p, &queued, 0);
    assert_int_equal(queued.matched_blocks, 50);
    give_up(r, &queued, 0);
    give_up(r, &large, 0);
    routing_check(r);
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
    static uint32_t guesses[80][N_MAX];
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
                p[i] = prompt_of(rng_below(&rng, 50), (uint32_t)rng_below(&rng, N_MAX),
                                 rng_below(&rng, 9), (uint32_t)rng_below(&rng, N_MAX));
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_prompt_sticks),
        cmocka_unit_test(a_conversation_stays_where_it_is),
        cmocka_unit_test(a_hot_worker_sheds),
        cmocka_unit_test(cold_requests_spread),
        cmocka_unit_test(pending_counts_and_an_abort_takes_it_back),
        cmocka_unit_test(a_restart_drops_what_the_worker_held),
        cmocka_unit_test(a_worker_that_left_is_not_picked_and_still_owes_its_requests),
        cmocka_unit_test(a_retry_goes_elsewhere),
        cmocka_unit_test(two_instances_agree_on_cold_prompts),
        cmocka_unit_test(a_widely_held_opening_does_not_choose_the_home),
        cmocka_unit_test(the_terms_are_those_of_the_formula),
        cmocka_unit_test(a_long_prompt_goes_where_nobody_waits),
        cmocka_unit_test(a_cached_prompt_still_computes_a_token),
        cmocka_unit_test(bytes_per_token_are_learned),
        cmocka_unit_test(capacity_follows_what_was_really_cached),
        cmocka_unit_test(counters_teach_bytes_per_token),
        cmocka_unit_test(counters_of_a_worker_that_others_use_teach_nothing),
        cmocka_unit_test(counters_teach_the_capacity),
        cmocka_unit_test(requests_older_than_the_cache_teach_no_capacity),
        cmocka_unit_test(a_boundless_cache_forgets_nothing),
        cmocka_unit_test(a_wrong_ratio_does_not_look_like_a_miss),
        cmocka_unit_test(rare_misses_leave_the_capacity_alone),
        cmocka_unit_test(frequent_misses_shrink_the_capacity),
        cmocka_unit_test(a_hit_nobody_predicted_opens_a_search_that_a_miss_ends),
        cmocka_unit_test(a_prompt_being_computed_takes_room_from_the_cache),
        cmocka_unit_test(no_worker_goes_far_above_the_mean),
        cmocka_unit_test(round_robin_takes_each_in_turn),
        cmocka_unit_test(least_load_rotates_among_equals),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(random_traffic_keeps_the_invariants),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

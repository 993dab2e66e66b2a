/* tests/unit/router/sessions/test_sessions.c - which sessions wait, for how long, and who goes
 * first; random events against what each caller knows of its own turns. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/sessions/gaps.h"
#include "router/sessions/repeats.h"
#include "router/sessions/sessions.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#define KV       1000000 /* so that 900,000 tokens may be active */
#define SECOND   UINT64_C(1000000)
#define N_BLOCKS 4

struct bench {
    struct sessions *s;
    uint64_t now_us;
};

static struct bench bench_of(double kv_tokens) {
    struct bench b = {.s = sessions_create(1000), .now_us = 1000 * SECOND};

    sessions_set_capacity(b.s, kv_tokens, 0);
    return b;
}

static void bench_fini(struct bench *b) {
    assert_int_equal(sessions_n_held(b->s), 0);
    sessions_check(b->s);
    sessions_destroy(b->s);
}

static void pass(struct bench *b, double s) {
    b->now_us += (uint64_t)(s * 1e6);
}

/* Of the session that is named so; its prompt is its own. */
static struct session_arrival arrival_of(const struct bench *b, uint64_t id, double n_tokens,
                                         uint64_t chain[N_BLOCKS]) {
    for (uint64_t i = 0; i < N_BLOCKS; i++)
        chain[i] = rng_at(id, i) & ~UINT64_C(0xFFFF);
    return (struct session_arrival){
        .prompt = {.chain = chain, .n_blocks = N_BLOCKS, .id = id << 20, .tokens_per_block = 64},
        .prompt_tokens = n_tokens,
        .now_us = b->now_us};
}

static bool ask_marked(struct bench *b, uint64_t id, double n_tokens, struct session_turn *t,
                       bool is_final) {
    uint64_t chain[N_BLOCKS];
    struct session_arrival arrival = arrival_of(b, id, n_tokens, chain);

    arrival.is_final = is_final;
    return sessions_arrive(b->s, &arrival, t);
}

/* Another router has sent it. */
static void remote_held(struct bench *b, uint64_t id, double n_tokens, struct session_turn *t,
                        uint32_t held_s) {
    uint64_t chain[N_BLOCKS];
    struct session_arrival arrival = arrival_of(b, id, n_tokens, chain);

    arrival.held_s = held_s;
    sessions_arrive_remote(b->s, &arrival, t);
    assert_true(t->is_open);
}

static void remote(struct bench *b, uint64_t id, double n_tokens, struct session_turn *t) {
    remote_held(b, id, n_tokens, t, 0);
}

static bool ask(struct bench *b, uint64_t id, double n_tokens, struct session_turn *t) {
    return ask_marked(b, id, n_tokens, t, false);
}

static void end(struct bench *b, struct session_turn *t) {
    sessions_ended(b->s, t, 0, b->now_us);
}

static struct session_turn *next(struct bench *b) {
    return sessions_next(b->s, b->now_us);
}

/* An active session that is idle. */
static void live(struct bench *b, uint64_t id, double n_tokens) {
    struct session_turn t = {0};

    assert_true(ask(b, id, 100, &t)); /* the first turn of a small one always goes */
    end(b, &t);
    assert_true(ask(b, id, n_tokens, &t));
    end(b, &t);
}

static struct sessions_stats stats_of(const struct bench *b) {
    struct sessions_stats stats;

    sessions_stats(b->s, &stats);
    return stats;
}

static void a_session_that_does_not_fit_waits_until_another_ends(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t = {0}, u = {0};

    (void)state;
    live(&b, 1, 500000);
    live(&b, 2, 300000);
    assert_false(ask(&b, 3, 200000, &t));
    assert_null(next(&b));
    assert_true(ask(&b, 2, 310000, &u)); /* an active one goes on although another waits */
    end(&b, &u);
    assert_true(ask_marked(&b, 1, 510000, &u, true));
    assert_null(next(&b));
    end(&b, &u);
    assert_ptr_equal(next(&b), &t);
    assert_null(next(&b));
    assert_int_equal(stats_of(&b).n_final, 1);
    end(&b, &t);
    assert_int_equal(stats_of(&b).used_tokens, 510000);
    bench_fini(&b);
}

static void the_longest_idle_rest_when_another_waits_and_only_then(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t = {0}, u = {0}, single = {0};

    (void)state;
    assert_true(ask(&b, 9, 100, &single)); /* there is work */
    for (uint64_t id = 1; id <= 4; id++) {
        live(&b, id, 200000);
        pass(&b, 1);
    }
    pass(&b, GAPS_FIRST_S + 1);
    assert_null(next(&b));
    assert_int_equal(stats_of(&b).n_rested, 0);
    assert_false(ask(&b, 5, 300000, &t));
    assert_ptr_equal(next(&b), &t); /* 1 has rested; 2 need not */
    assert_int_equal(stats_of(&b).n_rested, 1);
    assert_true(ask(&b, 2, 200000, &u));
    end(&b, &u);
    assert_false(ask(&b, 1, 200000, &u)); /* as a new one; then 3 rests */
    assert_ptr_equal(next(&b), &u);
    end(&b, &u);
    end(&b, &t);
    end(&b, &single);
    bench_fini(&b);
}

static void one_idle_for_less_than_usual_is_left_alone(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t = {0}, single = {0};

    (void)state;
    assert_true(ask(&b, 9, 100, &single)); /* there is work */
    live(&b, 1, 800000);
    pass(&b, GAPS_FIRST_S - 1);
    assert_false(ask(&b, 2, 200000, &t));
    assert_null(next(&b));
    pass(&b, 0.5);
    assert_null(next(&b));
    pass(&b, 1);
    assert_ptr_equal(next(&b), &t);
    end(&b, &t);
    end(&b, &single);
    bench_fini(&b);
}

static void none_waits_for_long_where_there_is_no_work(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t = {0}, u = {0};

    (void)state;
    live(&b, 1, 800000);
    pass(&b, SESSION_STILL_S - 0.5);
    assert_false(ask(&b, 2, 600000, &t));
    assert_false(ask(&b, 3, 600000, &u));
    assert_null(next(&b));
    pass(&b, 0.6);
    assert_ptr_equal(next(&b), &t);
    pass(&b, SESSION_STILL_S + 1); /* there is work now */
    assert_null(next(&b));
    end(&b, &t);
    assert_null(next(&b));
    pass(&b, SESSION_STILL_S + 1);
    assert_ptr_equal(next(&b), &u);
    end(&b, &u);
    bench_fini(&b);
}

static void the_bound_of_idleness_follows_the_gaps(void **state) {
    struct gaps g = {{0}};

    (void)state;
    assert_true(gaps_long_s(&g) == GAPS_FIRST_S);
    for (int i = 0; i < 1000; i++)
        gaps_add(&g, i % 100 < 90 ? 1 : 100);
    assert_true(gaps_long_s(&g) > 90 && gaps_long_s(&g) < 120);
    for (int i = 0; i < 20000; i++)
        gaps_add(&g, 1);
    assert_true(gaps_long_s(&g) == GAPS_LEAST_S);
    for (int i = 0; i < 20000; i++)
        gaps_add(&g, 1e9);
    assert_true(gaps_long_s(&g) <= GAPS_MOST_S && gaps_long_s(&g) > 250);
}

static void a_session_without_a_turn_for_long_is_gone(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t = {0}, u = {0};

    (void)state;
    live(&b, 1, 800000);
    pass(&b, SESSION_TTL_S + 1);
    assert_true(ask(&b, 2, 800000, &t)); /* none has to rest */
    assert_int_equal(stats_of(&b).n_expired, 1);
    assert_false(ask(&b, 1, 800000, &u)); /* waits as a new one would */
    assert_int_equal(u.how, SESSION_BY_ID);
    end(&b, &t);
    pass(&b, SESSION_TTL_S + 1);
    assert_ptr_equal(next(&b), &u);
    end(&b, &u);
    bench_fini(&b);
}

static void the_longest_waiting_goes_first_and_the_small_do_not_pass_by(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t[3] = {{0}}, u = {0};

    (void)state;
    assert_true(ask(&b, 9, 800000, &u));
    assert_false(ask(&b, 1, 700000, &t[0]));
    pass(&b, 1);
    assert_false(ask(&b, 2, 50000, &t[1])); /* it would fit */
    pass(&b, 1);
    assert_false(ask(&b, 3, 40000, &t[2]));
    assert_null(next(&b));
    pass(&b, 1);
    end(&b, &u);
    pass(&b, GAPS_FIRST_S + 1);
    for (int i = 0; i < 3; i++)
        assert_ptr_equal(next(&b), &t[i]);
    for (int i = 0; i < 3; i++)
        end(&b, &t[i]);
    bench_fini(&b);
}

static void a_single_request_passes_by_and_its_second_turn_does_not(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t = {0}, u = {0}, v = {0};

    (void)state;
    live(&b, 1, 890000);
    assert_false(ask(&b, 2, 200000, &t));
    assert_true(ask(&b, 3, SESSION_SINGLE_TOKENS - 1, &u));
    assert_int_equal(stats_of(&b).used_tokens, 890000); /* it is not counted */
    assert_false(ask(&b, 4, SESSION_SINGLE_TOKENS, &v));
    sessions_leave(b.s, &v, b.now_us);
    end(&b, &u);
    assert_false(ask(&b, 3, 5000, &u));
    pass(&b, GAPS_FIRST_S + 1);
    assert_ptr_equal(next(&b), &t);
    assert_ptr_equal(next(&b), &u);
    end(&b, &t);
    end(&b, &u);
    bench_fini(&b);
}

static void one_that_gives_up_and_returns_soon_keeps_its_place(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t[2] = {{0}}, u = {0};

    (void)state;
    assert_true(ask(&b, 9, 900000, &u));
    assert_false(ask(&b, 1, 100000, &t[0]));
    pass(&b, 1);
    assert_false(ask(&b, 2, 900000, &t[1]));
    sessions_leave(b.s, &t[0], b.now_us);
    pass(&b, SESSION_GRACE_S - 1);
    assert_false(ask(&b, 1, 100000, &t[0]));
    end(&b, &u);
    pass(&b, SESSION_TTL_S + 1);
    assert_ptr_equal(next(&b), &t[0]);
    assert_null(next(&b));
    end(&b, &t[0]);
    sessions_leave(b.s, &t[1], b.now_us);
    assert_true(ask(&b, 9, 500000, &u));
    assert_false(ask(&b, 3, 900000, &t[0]));
    pass(&b, SESSION_GRACE_S + 1); /* too late */
    assert_false(ask(&b, 2, 900000, &t[1]));
    end(&b, &u);
    pass(&b, SESSION_TTL_S + 1);
    assert_ptr_equal(next(&b), &t[0]);
    end(&b, &t[0]);
    pass(&b, SESSION_TTL_S + 1);
    assert_ptr_equal(next(&b), &t[1]);
    end(&b, &t[1]);
    bench_fini(&b);
}

/* Single requests, each of a session of its own: nothing of them is repeated. */
static void ask_singles(struct bench *b, double n_tokens) {
    static uint64_t id = 1000000;
    struct session_turn t = {0};

    for (double asked = 0; asked < n_tokens; asked += 30000) {
        assert_true(ask(b, id++, 30000, &t));
        end(b, &t);
    }
}

static void ask_again(struct bench *b, uint64_t id, double n_tokens, int n_turns) {
    struct session_turn t = {0};

    for (int i = 0; i < n_turns; i++) {
        assert_true(ask(b, id, n_tokens, &t));
        end(b, &t);
    }
}

static void none_waits_while_little_is_repeated(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t[2] = {{0}}, u = {0};

    (void)state;
    ask_singles(&b, 10 * KV);
    assert_true(stats_of(&b).repeated_share < 0.1);
    assert_true(ask(&b, 1, 800000, &t[0]));
    assert_true(ask(&b, 2, 800000, &t[1])); /* it does not fit */
    end(&b, &t[1]);
    ask_again(&b, 2, 20000, 200);
    assert_true(stats_of(&b).repeated_share > REPEATS_WORTH);
    assert_false(ask(&b, 3, 500000, &u));
    end(&b, &t[0]);
    sessions_leave(b.s, &u, b.now_us);
    bench_fini(&b);
}

static void those_that_wait_go_when_little_is_repeated_any_more(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t[2] = {{0}}, u = {0};

    (void)state;
    assert_true(ask(&b, 1, 800000, &u));
    assert_false(ask(&b, 2, 800000, &t[0]));
    assert_false(ask(&b, 3, 800000, &t[1]));
    ask_singles(&b, KV / 2);
    assert_null(next(&b));
    ask_singles(&b, 3 * KV);
    assert_ptr_equal(next(&b), &t[0]);
    assert_ptr_equal(next(&b), &t[1]);
    for (int i = 0; i < 2; i++)
        end(&b, &t[i]);
    end(&b, &u);
    bench_fini(&b);
}

static double share_of(const struct bench *b) {
    return stats_of(b).repeated_share;
}

static void a_turn_repeats_what_its_session_sent_a_short_while_before(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t = {0};
    uint64_t other[N_BLOCKS] = {1 << 16, 2 << 16, 3 << 16, 4 << 16};
    double before;

    (void)state;
    ask_singles(&b, 10 * KV);
    live(&b, 1, 100000);
    before = share_of(&b);
    pass(&b, SESSION_TTL_S - 1);
    ask_again(&b, 1, 100000, 1);
    assert_true(share_of(&b) > before + 0.01);
    before = share_of(&b);
    pass(&b, SESSION_TTL_S + 1);
    ask_again(&b, 1, 100000, 1); /* too late */
    assert_true(share_of(&b) < before);
    before = share_of(&b);
    assert_true(sessions_arrive(
        b.s, /* a prompt beside the session's own */
        &(struct session_arrival){
            .prompt = {.chain = other, .n_blocks = N_BLOCKS, .id = 1 << 20, .tokens_per_block = 64},
            .prompt_tokens = 100000,
            .now_us = b.now_us},
        &t));
    assert_true(share_of(&b) < before);
    end(&b, &t);
    bench_fini(&b);
}

static void a_turn_counts_when_it_goes(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t = {0}, u = {0};

    (void)state;
    assert_true(ask(&b, 1, 900000, &u));
    assert_true(share_of(&b) < 1);
    double before = share_of(&b);
    assert_false(ask(&b, 2, 100000, &t));
    assert_true(share_of(&b) == before);
    sessions_leave(b.s, &t, b.now_us);
    assert_true(share_of(&b) == before);
    assert_false(ask(&b, 2, 100000, &t)); /* what gave up is not repeated */
    end(&b, &u);
    pass(&b, GAPS_FIRST_S + 1);
    assert_ptr_equal(next(&b), &t);
    assert_true(share_of(&b) < before);
    end(&b, &t);
    bench_fini(&b);
}

static void in_an_excess_sessions_that_are_between_two_turns_make_room(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn open = {0}, t = {0}, u = {0};

    (void)state;
    assert_true(ask(&b, 1, 400000, &open));
    live(&b, 2, 300000);
    live(&b, 3, 190000);
    sessions_set_capacity(b.s, 890000 / SESSION_KV_SHARE / SESSION_EXCESS + 1, 0);
    assert_true(ask(&b, 3, 190000, &u)); /* no excess yet */
    end(&b, &u);
    sessions_set_capacity(b.s, 890000 / SESSION_KV_SHARE / SESSION_EXCESS - 1, 0);
    assert_true(ask(&b, 1, 400000, &u)); /* it is in flight */
    end(&b, &u);
    assert_false(ask(&b, 3, 190000, &t));
    assert_null(next(&b)); /* 700,000 of 741,666 */
    assert_int_equal(stats_of(&b).n_excess, 1);
    assert_true(ask(&b, 2, 300000, &u)); /* the excess is gone */
    assert_null(next(&b));
    end(&b, &u);
    end(&b, &open);
    assert_true(ask_marked(&b, 1, 400000, &u, true));
    end(&b, &u);
    assert_ptr_equal(next(&b), &t);
    end(&b, &t);
    bench_fini(&b);
}

static void one_larger_than_all_memory_goes_alone(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t = {0}, u = {0};

    (void)state;
    live(&b, 1, 20000);
    assert_false(ask(&b, 2, 3000000, &t));
    assert_null(next(&b));
    pass(&b, GAPS_FIRST_S + 1);
    assert_ptr_equal(next(&b), &t);
    assert_false(ask(&b, 1, 20000, &u));
    end(&b, &t);
    pass(&b, SESSION_TTL_S + 1);
    assert_ptr_equal(next(&b), &u);
    end(&b, &u);
    bench_fini(&b);
}

static void turns_of_a_session_that_waits_go_together(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t[4] = {{0}}, u = {0};

    (void)state;
    assert_true(ask(&b, 9, 900000, &u));
    for (int i = 0; i < 4; i++)
        assert_false(ask(&b, 1, 100000, &t[i]));
    assert_int_equal(stats_of(&b).n_waiting, 1);
    assert_int_equal(stats_of(&b).n_held, 4);
    sessions_leave(b.s, &t[1], b.now_us);
    sessions_check(b.s);
    end(&b, &u);
    pass(&b, GAPS_FIRST_S + 1);
    assert_ptr_equal(next(&b), &t[0]);
    assert_ptr_equal(next(&b), &t[2]);
    assert_ptr_equal(next(&b), &t[3]);
    assert_null(next(&b));
    assert_int_equal(stats_of(&b).used_tokens, 100000);
    end(&b, &t[0]);
    end(&b, &t[2]);
    end(&b, &t[3]);
    bench_fini(&b);
}

static void without_a_known_capacity_none_waits_and_those_that_did_go(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t[3] = {{0}}, u = {0};

    (void)state;
    assert_true(ask(&b, 9, 900000, &u));
    assert_false(ask(&b, 1, 900000, &t[0]));
    assert_false(ask(&b, 2, 900000, &t[1]));
    sessions_set_capacity(b.s, 0, 0);
    assert_ptr_equal(next(&b), &t[0]);
    assert_ptr_equal(next(&b), &t[1]);
    assert_true(ask(&b, 3, 900000, &t[2]));
    for (int i = 0; i < 3; i++)
        end(&b, &t[i]);
    end(&b, &u);
    bench_fini(&b);
}

static void host_memory_counts_in_part(void **state) {
    struct bench b = bench_of(KV);

    (void)state;
    sessions_set_capacity(b.s, KV, 10 * KV);
    assert_int_equal(stats_of(&b).capacity_tokens, 0.9 * (KV + 0.6 * 10 * KV));
    bench_fini(&b);
}

static void a_lost_worker_makes_room(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t = {0}, u = {0};

    (void)state;
    assert_true(ask(&b, 1, 900000, &u));
    sessions_sent(b.s, &u, 3);
    assert_false(ask(&b, 2, 150000, &t));
    sessions_worker_lost(b.s, 3);
    assert_ptr_equal(next(&b), &t);
    end(&b, &u);
    end(&b, &t);
    assert_true(ask(&b, 1, 900000, &u)); /* it is active still */
    assert_int_equal(u.how, SESSION_BY_ID);
    end(&b, &u);
    bench_fini(&b);
}

static void a_full_table_forgets_what_rests_and_then_lets_turns_pass(void **state) {
    struct bench b = {.s = sessions_create(10), .now_us = 1000 * SECOND};
    struct session_turn open[10] = {{0}}, t = {0};

    (void)state;
    for (uint64_t id = 1; id <= 30; id++) {
        assert_true(ask(&b, id, 100, &t));
        end(&b, &t);
    }
    for (uint64_t id = 0; id < 10; id++)
        assert_true(ask(&b, 100 + id, 90000, &open[id]));
    assert_true(ask(&b, 200, 90000, &t)); /* nothing may be forgotten: it is not known */
    assert_int_equal(t.session, SESSION_NONE);
    assert_int_equal(stats_of(&b).n_unknown, 1);
    end(&b, &t);
    for (uint64_t id = 0; id < 10; id++)
        end(&b, &open[id]);
    bench_fini(&b);
}

static void what_rests_is_forgotten_in_the_end(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t = {0};

    (void)state;
    for (uint64_t id = 1; id <= 40; id++)
        live(&b, id, 1000);
    pass(&b, SESSION_AGE_S + 1);
    for (uint64_t id = 50; id < 60; id++) {
        assert_true(ask(&b, id, 100, &t));
        end(&b, &t);
    }
    assert_int_equal(stats_of(&b).n_resting, 10);
    assert_true(ask(&b, 1, 1000, &t));
    assert_int_equal(t.how, SESSION_BEGUN);
    end(&b, &t);
    bench_fini(&b);
}

/* --- several routers ------------------------------------------------------------------------- */

static void a_session_that_another_router_serves_counts(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t = {0}, u = {0};

    (void)state;
    remote(&b, 1, 100, &u); /* its first turn is a small one: not counted */
    assert_int_equal(stats_of(&b).n_active, 0);
    end(&b, &u);
    remote(&b, 1, 500000, &u);
    assert_int_equal(stats_of(&b).used_tokens, 500000);
    assert_false(ask(&b, 2, 500000, &t));
    sessions_ended(b.s, &u, 300000, b.now_us); /* it was smaller */
    assert_ptr_equal(next(&b), &t);
    assert_int_equal(stats_of(&b).used_tokens, 800000);
    assert_int_equal(stats_of(&b).n_joined[SESSION_BEGUN], 1); /* turns from here */
    end(&b, &t);
    bench_fini(&b);
}

/* Its turns come through any router: a session is active for all of them. */
static void a_session_that_is_active_elsewhere_goes_on_here(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t = {0}, u = {0}, waiting = {0};

    (void)state;
    remote(&b, 1, 500000, &u);
    end(&b, &u);
    live(&b, 2, 400000);
    assert_false(ask(&b, 3, 300000, &waiting));
    assert_true(ask(&b, 1, 510000, &t));
    assert_int_equal(t.how, SESSION_BY_ID);
    end(&b, &t);
    pass(&b, SESSION_TTL_S + 1); /* its router has died, or it has no more turns */
    assert_ptr_equal(next(&b), &waiting);
    assert_int_equal(stats_of(&b).used_tokens, 300000);
    end(&b, &waiting);
    bench_fini(&b);
}

static void those_idle_for_long_rest_when_others_were_let_in_elsewhere(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn u = {0}, v = {0};

    (void)state;
    live(&b, 1, 400000);
    pass(&b, 61);
    live(&b, 2, 400000);
    remote(&b, 3, 300000, &u); /* there the first was put to rest */
    assert_int_equal(stats_of(&b).n_rested, 1);
    assert_int_equal(stats_of(&b).used_tokens, 700000);
    remote(&b, 4, 400000, &v); /* two routers at once: it counts although there is no room */
    assert_int_equal(stats_of(&b).n_rested, 1);
    assert_int_equal(stats_of(&b).used_tokens, 1100000);
    end(&b, &u);
    end(&b, &v);
    bench_fini(&b);
}

/* What a turn waited elsewhere is no pause of its client. */
static void the_bound_of_idleness_does_not_follow_waits_elsewhere(void **state) {
    (void)state;
    for (uint32_t held_s = 0; held_s < 400; held_s += 199) {
        struct bench b = bench_of(KV);
        struct session_turn t = {0};

        for (int i = 0; i < 200; i++) {
            remote_held(&b, 1, 1000, &t, held_s);
            end(&b, &t);
            pass(&b, 200);
        }
        assert_true(held_s ? stats_of(&b).long_s < 30 : stats_of(&b).long_s > 150);
        bench_fini(&b);
    }
}

static void held_turns_go_when_their_session_was_let_in_elsewhere(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t[4] = {{0}}, u = {0};

    (void)state;
    live(&b, 1, 800000);
    for (uint64_t i = 0; i < 4; i++) {
        assert_false(ask(&b, i < 2 ? 2 : 3, 150000, &t[i]));
        pass(&b, 1);
    }
    remote(&b, 3, 150000, &u);
    assert_ptr_equal(next(&b), &t[2]);
    assert_ptr_equal(next(&b), &t[3]);
    assert_null(next(&b)); /* the other still waits */
    sessions_check(b.s);
    end(&b, &u);
    end(&b, &t[2]);
    end(&b, &t[3]);
    pass(&b, SESSION_TTL_S + 1);
    assert_ptr_equal(next(&b), &t[0]);
    assert_ptr_equal(next(&b), &t[1]);
    end(&b, &t[0]);
    end(&b, &t[1]);
    bench_fini(&b);
}

/* A small request of another router, whose first session has waited so long. */
static void tell_wait(struct bench *b, uint64_t origin, uint32_t waits_s) {
    uint64_t chain[N_BLOCKS];
    struct session_arrival arrival = arrival_of(b, 1000 + origin, 10, chain);
    struct session_turn t = {0};

    arrival.origin = origin;
    arrival.waits_s = waits_s;
    sessions_arrive_remote(b->s, &arrival, &t);
    t.is_final = true;
    end(b, &t);
}

static void one_that_waits_longer_elsewhere_goes_first(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t = {0}, u = {0};

    (void)state;
    live(&b, 1, 800000);
    assert_false(ask(&b, 2, 300000, &t));
    pass(&b, 10.5);
    assert_int_equal(sessions_wait_s(b.s, b.now_us), 10);
    tell_wait(&b, 7, 100);
    tell_wait(&b, 8, 5); /* shorter than ours */
    assert_true(ask_marked(&b, 1, 800000, &u, true));
    end(&b, &u);
    assert_null(next(&b));
    assert_false(ask(&b, 3, 100000, &u)); /* nor does another go */
    sessions_leave(b.s, &u, b.now_us);
    tell_wait(&b, 7, 0);
    assert_ptr_equal(next(&b), &t);
    assert_int_equal(sessions_wait_s(b.s, b.now_us), 0);
    tell_wait(&b, 7, 100);
    assert_false(ask(&b, 4, 100000, &u)); /* although none waits here */
    pass(&b, SESSION_HEARD_S + 1);
    assert_ptr_equal(next(&b), &u); /* that router has not been heard of since */
    end(&b, &t);
    end(&b, &u);
    bench_fini(&b);
}

/* Whatever others tell. */
static void a_session_lets_others_go_first_for_a_while_only(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t = {0};
    uint32_t n = 0;

    (void)state;
    tell_wait(&b, 7, 4095);
    assert_false(ask(&b, 1, 500000, &t));
    while (!next(&b)) {
        for (uint64_t origin = 1; origin <= 2 * SESSION_PEERS; origin++)
            tell_wait(&b, origin, 4095);
        pass(&b, 1);
        n++;
    }
    assert_in_range(n, SESSION_DEFER_S - 1, SESSION_DEFER_S + 1);
    end(&b, &t);
    bench_fini(&b);
}

/* Of the turns of one session, those that are about to go do not wait any more. */
static void a_session_that_was_let_in_is_not_reported_as_waiting(void **state) {
    struct bench b = bench_of(KV);
    struct session_turn t[2] = {{0}}, u = {0}, v = {0};

    (void)state;
    assert_true(ask(&b, 9, 900000, &u));
    for (int i = 0; i < 2; i++)
        assert_false(ask(&b, 1, 100000, &t[i]));
    pass(&b, 5.5);
    assert_false(ask(&b, 2, 900000, &v));
    pass(&b, 2.5);
    end(&b, &u);
    pass(&b, GAPS_FIRST_S + 1);
    assert_ptr_equal(next(&b), &t[0]);
    assert_int_equal(sessions_wait_s(b.s, b.now_us), GAPS_FIRST_S + 3); /* that of the other */
    sessions_leave(b.s, &v, b.now_us);
    assert_int_equal(sessions_wait_s(b.s, b.now_us), 0);
    assert_ptr_equal(next(&b), &t[1]);
    assert_null(next(&b));
    end(&b, &t[0]);
    end(&b, &t[1]);
    bench_fini(&b);
}

/* Times are of 32 bits: half of them lie ahead of 0. */
static void each_of_several_routers_is_remembered_whatever_the_time(void **state) {
    (void)state;
    for (uint64_t days = 0; days < 60; days += 6) {
        struct bench b = bench_of(KV);
        struct session_turn t = {0};

        pass(&b, (double)days * 86400);
        tell_wait(&b, 1, 100);
        for (uint64_t origin = 2; origin <= SESSION_PEERS; origin++)
            tell_wait(&b, origin, 0);
        assert_false(ask(&b, 1, 100000, &t));
        pass(&b, SESSION_HEARD_S + 1);
        assert_ptr_equal(next(&b), &t);
        end(&b, &t);
        bench_fini(&b);
    }
}

enum { PEERS = 3, AGENTS = 60, SESSION_MOST = 100000 };

/* An agent: its session has so many tokens in every turn, which comes through any router. */
struct agent {
    double n_tokens;
    uint32_t router; /* of its turn */
    struct session_turn turns[PEERS];
    bool is_open, is_held, is_told;
};

struct peers {
    struct bench b[PEERS];
    struct agent agents[AGENTS];
    bool is_telling, is_late; /* routers hear of each turn; when the next have been decided on */
    double used, most_used;   /* tokens of sessions with a turn in flight */
};

static void tell(struct peers *p, uint32_t i) {
    struct agent *a = &p->agents[i];

    if (!p->is_telling || a->is_told || !a->is_open) return;
    a->is_told = true;
    for (uint32_t r = 0; r < PEERS; r++)
        if (r != a->router) remote(&p->b[r], 1 + i, a->n_tokens, &a->turns[r]);
}

static void opened(struct peers *p, uint32_t i) {
    struct agent *a = &p->agents[i];

    a->is_open = true;
    a->is_held = false;
    p->used += a->n_tokens;
    p->most_used = fmax(p->most_used, p->used);
    if (!p->is_late) tell(p, i);
}

static void ended(struct peers *p, uint32_t i) {
    struct agent *a = &p->agents[i];

    tell(p, i);
    for (uint32_t r = 0; r < PEERS; r++)
        if (a->turns[r].is_open) end(&p->b[r], &a->turns[r]);
    a->is_open = a->is_told = false;
    p->used -= a->n_tokens;
}

static void let_agents_go(struct peers *p) {
    struct session_turn *t;

    for (uint32_t r = 0; r < PEERS; r++) {
        while ((t = next(&p->b[r])) != NULL)
            for (uint32_t i = 0; i < AGENTS; i++)
                if (t == &p->agents[i].turns[r]) opened(p, i);
    }
}

static void agent_acts(struct peers *p, uint32_t i, struct rng *rng) {
    struct agent *a = &p->agents[i];

    if (a->is_open && rng_below(rng, 8) == 0) {
        ended(p, i);
    } else if (!a->is_open && !a->is_held) {
        a->router = (uint32_t)rng_below(rng, PEERS);
        a->is_held = !ask(&p->b[a->router], 1 + i, a->n_tokens, &a->turns[a->router]);
        if (!a->is_held) opened(p, i);
    }
}

static void end_peers(struct peers *p) {
    for (uint32_t n = 0; n < AGENTS; n++) {
        for (uint32_t i = 0; i < AGENTS; i++)
            if (p->agents[i].is_open) ended(p, i);
        for (uint32_t r = 0; r < PEERS; r++)
            pass(&p->b[r], SESSION_TTL_S + 1);
        let_agents_go(p);
    }
    for (uint32_t r = 0; r < PEERS; r++)
        bench_fini(&p->b[r]);
}

/* Returns the most tokens that were in flight at a time. */
static double most_in_flight(bool is_telling, bool is_late) {
    struct peers *p = mem_zalloc(sizeof(*p));
    struct rng rng;
    double most;

    rng_seed(&rng, support_seed());
    p->is_telling = is_telling;
    p->is_late = is_late;
    for (uint32_t r = 0; r < PEERS; r++)
        p->b[r] = bench_of(KV);
    for (uint32_t i = 0; i < AGENTS; i++)
        p->agents[i].n_tokens =
            SESSION_SINGLE_TOKENS + (double)rng_below(&rng, SESSION_MOST - SESSION_SINGLE_TOKENS);
    for (uint32_t step = 0; step < 20000; step++) {
        for (uint32_t r = 0; r < PEERS; r++)
            pass(&p->b[r], 0.2);
        agent_acts(p, (uint32_t)rng_below(&rng, AGENTS), &rng);
        let_agents_go(p);
        for (uint32_t i = 0; i < AGENTS; i++)
            tell(p, i);
        if (step % 100 == 0) sessions_check(p->b[step / 100 % PEERS].s);
    }
    most = p->most_used;
    end_peers(p);
    mem_free(p);
    return most;
}

static void routers_together_keep_to_the_memory(void **state) {
    double limit = SESSION_KV_SHARE * KV, together = limit + (PEERS - 1) * SESSION_MOST;

    (void)state;
    assert_true(most_in_flight(false, false) > 1.5 * limit);
    assert_in_range(most_in_flight(true, false), 0.8 * limit, together);
    /* Late, each fills the same room: what an end leaves beside what was too little before it. */
    assert_in_range(most_in_flight(true, true), 0.8 * limit, together + (PEERS - 1) * SESSION_MOST);
}

/* --- random events --------------------------------------------------------------------------- */

#define TURNS 400
#define NAMES 150

enum { AWAY, HELD, OPEN };

struct crowd {
    struct bench b;
    struct session_turn turns[TURNS];
    int states[TURNS];
    uint32_t n_held;
};

static void let_go(struct crowd *c) {
    struct session_turn *t;

    while ((t = next(&c->b)) != NULL) {
        uint32_t i = (uint32_t)(t - c->turns);

        assert_int_equal(c->states[i], HELD);
        c->states[i] = OPEN;
        c->n_held--;
    }
}

static void arrive(struct crowd *c, uint32_t i, struct rng *rng) {
    uint64_t id = 1 + rng_below(rng, NAMES);
    double n_tokens = exp(3 + 10 * rng_f64(rng));
    bool goes = rng_below(rng, 4) == 0;

    if (rng_below(rng, 50) == 0)
        tell_wait(&c->b, 1 + rng_below(rng, 3), (uint32_t)rng_below(rng, 100));
    if (goes) {
        remote(&c->b, id, n_tokens, &c->turns[i]);
    } else {
        goes = ask_marked(&c->b, id, n_tokens, &c->turns[i], rng_below(rng, 20) == 0);
    }

    c->states[i] = goes ? OPEN : HELD;
    c->n_held += !goes;
    if (goes) sessions_sent(c->b.s, &c->turns[i], (uint32_t)rng_below(rng, 8));
}

static void happen(struct crowd *c, struct rng *rng) {
    uint32_t i = (uint32_t)rng_below(rng, TURNS);

    if (c->states[i] == AWAY) {
        if (rng_below(rng, 3)) arrive(c, i, rng);
    } else if (c->states[i] == OPEN) {
        sessions_ended(c->b.s, &c->turns[i], rng_below(rng, 2) ? rng_below(rng, 200000) : 0,
                       c->b.now_us);
        c->states[i] = AWAY;
    } else if (rng_below(rng, 4) == 0) {
        sessions_leave(c->b.s, &c->turns[i], c->b.now_us);
        c->states[i] = AWAY;
        c->n_held--;
    }
    if (rng_below(rng, 1000) == 0) sessions_worker_lost(c->b.s, (uint32_t)rng_below(rng, 8));
    if (rng_below(rng, 5000) == 0)
        sessions_set_capacity(c->b.s, rng_below(rng, 3) ? KV * rng_f64(rng) : 0, 0);
}

static void in_random_events_no_turn_is_lost(void **state) {
    struct crowd *c = mem_zalloc(sizeof(*c));
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    c->b = bench_of(KV);
    for (uint32_t n = 0; n < 1000000; n++) {
        if (rng_below(&rng, 3) == 0) pass(&c->b, -log(1 - rng_f64(&rng)));
        happen(c, &rng);
        let_go(c);
        assert_int_equal(sessions_n_held(c->b.s), c->n_held);
        if (n % 997 == 0) sessions_check(c->b.s);
    }
    for (uint32_t i = 0; i < TURNS; i++) /* what is held now goes when the others have ended */
        if (c->states[i] == OPEN) end(&c->b, &c->turns[i]);
    while (c->n_held) {
        struct session_turn *t;

        pass(&c->b, SESSION_TTL_S + 1);
        t = next(&c->b);
        assert_non_null(t);
        end(&c->b, t);
        c->n_held--;
    }
    pass(&c->b, SESSION_TTL_S + 1);
    assert_true(ask(&c->b, 9999, 1, &c->turns[0]));
    end(&c->b, &c->turns[0]);
    assert_int_equal(stats_of(&c->b).used_tokens, 0);
    assert_int_equal(stats_of(&c->b).n_active, 0);
    bench_fini(&c->b);
    mem_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_that_does_not_fit_waits_until_another_ends),
        cmocka_unit_test(the_longest_idle_rest_when_another_waits_and_only_then),
        cmocka_unit_test(one_idle_for_less_than_usual_is_left_alone),
        cmocka_unit_test(none_waits_for_long_where_there_is_no_work),
        cmocka_unit_test(the_bound_of_idleness_follows_the_gaps),
        cmocka_unit_test(a_session_without_a_turn_for_long_is_gone),
        cmocka_unit_test(the_longest_waiting_goes_first_and_the_small_do_not_pass_by),
        cmocka_unit_test(a_single_request_passes_by_and_its_second_turn_does_not),
        cmocka_unit_test(one_that_gives_up_and_returns_soon_keeps_its_place),
        cmocka_unit_test(none_waits_while_little_is_repeated),
        cmocka_unit_test(those_that_wait_go_when_little_is_repeated_any_more),
        cmocka_unit_test(a_turn_repeats_what_its_session_sent_a_short_while_before),
        cmocka_unit_test(a_turn_counts_when_it_goes),
        cmocka_unit_test(in_an_excess_sessions_that_are_between_two_turns_make_room),
        cmocka_unit_test(one_larger_than_all_memory_goes_alone),
        cmocka_unit_test(turns_of_a_session_that_waits_go_together),
        cmocka_unit_test(without_a_known_capacity_none_waits_and_those_that_did_go),
        cmocka_unit_test(host_memory_counts_in_part),
        cmocka_unit_test(a_lost_worker_makes_room),
        cmocka_unit_test(a_full_table_forgets_what_rests_and_then_lets_turns_pass),
        cmocka_unit_test(what_rests_is_forgotten_in_the_end),
        cmocka_unit_test(a_session_that_another_router_serves_counts),
        cmocka_unit_test(a_session_that_is_active_elsewhere_goes_on_here),
        cmocka_unit_test(those_idle_for_long_rest_when_others_were_let_in_elsewhere),
        cmocka_unit_test(the_bound_of_idleness_does_not_follow_waits_elsewhere),
        cmocka_unit_test(held_turns_go_when_their_session_was_let_in_elsewhere),
        cmocka_unit_test(one_that_waits_longer_elsewhere_goes_first),
        cmocka_unit_test(a_session_lets_others_go_first_for_a_while_only),
        cmocka_unit_test(a_session_that_was_let_in_is_not_reported_as_waiting),
        cmocka_unit_test(each_of_several_routers_is_remembered_whatever_the_time),
        cmocka_unit_test(routers_together_keep_to_the_memory),
        cmocka_unit_test(in_random_events_no_turn_is_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

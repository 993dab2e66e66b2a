/* tests/unit/router/routing/test_routing_tiers.c - workers with memory below their device: what is
 * found there, what it costs, and what is learned of its size. A block is 32 tokens. */
#include <string.h>

#include "tests/support/routing_fixture.h"

#define DEVICE_TOKENS 1280 /* 40 blocks */
#define CHAT_BLOCKS   30

/* One that has `restore` tokens a second from 10 times its device. */
static struct worker_spec tiered(uint64_t w, double restore) {
    return (struct worker_spec){.identity = 1000 + w,
                                .generation = 1,
                                .block_size = 16,
                                .n_blocks = DEVICE_TOKENS / 16,
                                .n_tier_blocks = 10 * DEVICE_TOKENS / 16,
                                .restore_tokens_per_s = restore,
                                .keeps_copies = true,
                                .prefill_tokens_per_s = 10000};
}

static struct routing *tiered_fleet(uint32_t n_workers, double restore) {
    struct routing *r = fleet(n_workers, "prefix");

    for (uint32_t w = 0; w < n_workers; w++) {
        struct worker_spec spec = tiered(w, restore);

        routing_worker_up(r, w, &spec);
    }
    return r;
}

/* Chats that fill more than the device. */
static void turn_over(struct routing *r, uint64_t n_chats) {
    struct route_ticket t = {0};

    for (uint64_t chat = 0; chat < n_chats; chat++) {
        struct prompt p = prompt_of(chat, CHAT_BLOCKS, 0, CHAT_BLOCKS);

        send(r, &p, &t, (chat + 1) * SECOND);
        finish(r, &t, (chat + 1) * SECOND + 1000);
    }
}

static struct policy_term explain(struct routing *r, uint64_t chat) {
    static struct policy_term terms[8];
    struct prompt p = prompt_of(chat, CHAT_BLOCKS, 0, CHAT_BLOCKS + 1);
    struct route_request rq = request_of(&p, 100 * SECOND);

    return terms[routing_explain(r, &rq, terms)];
}

static void no_prefix_is_unroutable_after_a_device_turnover(void **state) {
    struct routing *r = tiered_fleet(1, 400000);
    (void)state;

    turn_over(r, 8); /* 240 blocks, and 40 on the device */
    for (uint64_t chat = 0; chat < 8; chat++) {
        struct policy_term term = explain(r, chat);

        assert_float_equal(term.matched_tokens, CHAT_BLOCKS * 32, 0);
        assert_true(chat == 7 ? term.below_tokens < 64 : term.below_tokens > 0);
    }
    routing_check(r);
    routing_destroy(r);
}

static void a_restore_moves_a_prefix_up(void **state) {
    struct routing *r = tiered_fleet(1, 400000);
    struct prompt p = prompt_of(0, CHAT_BLOCKS, 0, CHAT_BLOCKS);
    struct route_ticket t = {0};
    (void)state;

    turn_over(r, 4);
    send(r, &p, &t, 50 * SECOND);
    assert_float_equal(t.below_tokens, t.cached_tokens, 0); /* all of it */
    assert_true(t.below_tokens > 900);
    finish(r, &t, 51 * SECOND);
    assert_float_equal(explain(r, 0).below_tokens, 0, 0);
    routing_check(r);
    routing_destroy(r);
}

static void a_restore_is_priced_as_prefill(void **state) {
    struct routing *r = tiered_fleet(1, 40000), *free_of_cost = tiered_fleet(1, 0);
    struct policy_term priced, unknown;
    (void)state;

    turn_over(r, 4);
    turn_over(free_of_cost, 4);
    priced = explain(r, 0);
    unknown = explain(free_of_cost, 0);
    assert_float_equal(priced.matched_tokens, unknown.matched_tokens, 0);
    assert_float_equal(priced.prefill_s, unknown.prefill_s + priced.below_tokens / 40000, 1e-9);
    routing_destroy(r);
    routing_destroy(free_of_cost);
}

static void a_restore_slower_than_computing_is_not_expected(void **state) {
    struct routing *r = tiered_fleet(1, 5000);
    struct policy_term old, new;
    (void)state;

    turn_over(r, 4);
    old = explain(r, 0);
    new = explain(r, 99);
    assert_float_equal(old.matched_tokens, 0, 0);
    assert_float_equal(old.below_tokens, 0, 0);
    assert_float_equal(old.prefill_s, new.prefill_s, 1e-9); /* never more than computing it */
    routing_destroy(r);
}

/* Two workers have the same prompt, one of them on its device. */
static void of_two_the_one_that_has_it_on_its_device_is_cheaper(void **state) {
    struct routing *r = tiered_fleet(2, 20000);
    struct prompt p = prompt_of(0, CHAT_BLOCKS, 0, CHAT_BLOCKS);
    struct route_request rq = request_of(&p, 60 * SECOND);
    struct route_ticket t = {0};
    static struct policy_term terms[2];
    (void)state;

    for (uint32_t w = 0; w < 2; w++) {
        routing_add_remote(r, w, &rq, &t);
        finish(r, &t, 60 * SECOND);
    }
    for (uint64_t chat = 1; chat < 4; chat++) { /* worker 1 alone turns over */
        struct prompt other = prompt_of(chat, CHAT_BLOCKS, 0, CHAT_BLOCKS);
        struct route_request more = request_of(&other, 61 * SECOND);

        routing_add_remote(r, 1, &more, &t);
        finish(r, &t, 61 * SECOND);
    }
    assert_int_equal(routing_explain(r, &rq, terms), 0);
    assert_float_equal(terms[0].matched_tokens, terms[1].matched_tokens, 0);
    assert_true(terms[0].below_tokens == 0 && terms[1].below_tokens > 0);
    assert_true(terms[1].prefill_s > terms[0].prefill_s);
    routing_destroy(r);
}

/* --- learning -------------------------------------------------------------------------------- */

static void report(struct routing *r, uint64_t chat, int64_t cached, int64_t below, bool has_below,
                   uint64_t now_us) {
    struct prompt p = prompt_of(chat, CHAT_BLOCKS, 0, CHAT_BLOCKS);
    struct route_feedback f = {.prompt_tokens = CHAT_BLOCKS * 32,
                               .cached_tokens = cached,
                               .below_tokens = below,
                               .has_below = has_below};
    struct route_end end = {.output_tokens = 10, .now_us = now_us, .feedback = {-1, -1}};
    struct route_ticket t = {0};

    send(r, &p, &t, now_us);
    routing_first_token(r, &t, &f, now_us);
    routing_ended(r, &t, &end);
}

static struct routing_worker_stats stats_of(struct routing *r) {
    struct routing_worker_stats s;

    routing_worker_stats(r, 0, 0, &s);
    return s;
}

/* What is in its host memory as predicted proves nothing; what is nowhere shrinks that alone. */
static void each_list_learns_from_its_own_tier(void **state) {
    struct routing *r = tiered_fleet(1, 400000);
    (void)state;

    turn_over(r, 8);
    for (uint64_t i = 0; i < 64; i++) /* found below, as predicted */
        report(r, i % 8, 944, 944, true, (20 + i) * SECOND);
    assert_float_equal(stats_of(r).capacity_factor, 1, 0.01);
    assert_float_equal(stats_of(r).below_factor, 1, 0.01);
    for (uint64_t i = 0; i < 64; i++)
        report(r, i % 8, 0, 0, true, (100 + i) * SECOND);
    assert_float_equal(stats_of(r).capacity_factor, 1, 0.01);
    assert_true(stats_of(r).below_factor < 0.7);
    routing_check(r);
    routing_destroy(r);
}

/* All is found on the device, although more than its capacity was sent. */
static void a_device_larger_than_declared_is_learned(void **state) {
    struct routing *r = tiered_fleet(1, 400000);
    (void)state;

    turn_over(r, 8);
    for (uint64_t i = 0; i < 8; i++)
        report(r, i, 944, 0, true, (20 + i) * SECOND);
    assert_true(stats_of(r).capacity_factor > 1.3);
    assert_float_equal(stats_of(r).below_factor, 1, 0.01);
    routing_destroy(r);
}

static void a_worker_that_reports_no_tiers_teaches_both(void **state) {
    struct routing *r = tiered_fleet(1, 400000);
    (void)state;

    turn_over(r, 8);
    for (uint64_t i = 0; i < 64; i++)
        report(r, i % 8, 0, 0, false, (20 + i) * SECOND);
    assert_true(stats_of(r).capacity_factor < 0.7);
    assert_true(stats_of(r).below_factor < 0.7);
    routing_destroy(r);
}

static void what_was_learned_of_both_is_carried(void **state) {
    struct routing *r = tiered_fleet(1, 400000), *next = tiered_fleet(1, 400000);
    struct routing_learned learned;
    (void)state;

    turn_over(r, 8);
    for (uint64_t i = 0; i < 64; i++)
        report(r, i % 8, 0, 0, true, (100 + i) * SECOND);
    routing_get_learned(r, 0, &learned);
    routing_set_learned(next, 0, &learned);
    assert_float_equal(stats_of(next).below_factor, stats_of(r).below_factor, 0);
    learned.below_factor = 0; /* of a router without it */
    routing_set_learned(next, 0, &learned);
    assert_float_equal(stats_of(next).below_factor, stats_of(r).below_factor, 0);
    routing_destroy(r);
    routing_destroy(next);
}

static void a_worker_that_gives_up_its_tier_keeps_its_device(void **state) {
    struct routing *r = tiered_fleet(1, 400000);
    struct worker_spec spec = tiered(0, 0);
    (void)state;

    turn_over(r, 4);
    assert_true(stats_of(r).n_below_blocks > 0);
    spec.n_tier_blocks = 0;
    for (uint64_t i = 0; i < 4; i++)
        routing_worker_up(r, 0, &spec);
    assert_int_equal(stats_of(r).n_below_blocks, 0);
    assert_float_equal(explain(r, 0).matched_tokens, 0, 0);
    assert_true(explain(r, 3).matched_tokens > 900);
    routing_check(r);
    routing_destroy(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_prefix_is_unroutable_after_a_device_turnover),
        cmocka_unit_test(a_restore_moves_a_prefix_up),
        cmocka_unit_test(a_restore_is_priced_as_prefill),
        cmocka_unit_test(a_restore_slower_than_computing_is_not_expected),
        cmocka_unit_test(of_two_the_one_that_has_it_on_its_device_is_cheaper),
        cmocka_unit_test(each_list_learns_from_its_own_tier),
        cmocka_unit_test(a_device_larger_than_declared_is_learned),
        cmocka_unit_test(a_worker_that_reports_no_tiers_teaches_both),
        cmocka_unit_test(what_was_learned_of_both_is_carried),
        cmocka_unit_test(a_worker_that_gives_up_its_tier_keeps_its_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

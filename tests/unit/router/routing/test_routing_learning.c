/* tests/unit/router/routing/test_routing_learning.c - bytes per token, and how much a worker really
 * keeps: from the usage in answers, and from the counters of workers. */
#include <math.h>

#include "router/routing/prefix_lru.h"
#include "tests/support/cm.h"
#include "tests/support/routing_fixture.h"

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

/* The worker reports 4000 blocks and forgets everything after 20 prompts: by and by the
 * router expects no more of it than it keeps. */
static void capacity_follows_the_reported_cached_tokens(void **state) {
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

/* An engine whose answers have no usage counts 1280 tokens for prompts of 2560 bytes. `n_others` is
 * its count of other routers' requests. */
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

/* As capacity_follows_the_reported_cached_tokens, but only sums are reported, now and then. */
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

/* What was predicted of the former cache does not apply to the present one. */
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

/* A worker may declare anything: more than a count of blocks can hold is much, not nothing. */
static void a_boundless_cache_forgets_nothing(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct prompt p = prompt_of(5, 50, 0, 50);
    struct route_ticket t = {0};
    (void)state;

    routing_worker_up(
        r, 0,
        &(struct worker_spec){.generation = 2, .block_size = 1u << 20, .n_blocks = 1ull << 60});
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

/* What the worker counts by its events is the most that it can keep, until it stops to count; what
 * others leave of that to us is learned. */
static void a_counted_capacity_bounds_what_is_learned(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct prompt p = prompt_of(5, 50, 0, 50), unknown = prompt_of(6, 50, 0, 50);
    double declared = routing_load(r)->workers[0].capacity_tokens, learned;
    (void)state;

    report(r, &unknown, 1584);
    assert_true(routing_capacity_factor(r, 0) > 1);
    routing_note_capacity(r, 0, declared * 0.75);
    assert_float_equal(routing_capacity_factor(r, 0), 0.75, 0);
    for (uint64_t i = 0; i < 20; i++) {
        unknown = prompt_of(7 + i, 50, 0, 50);
        report(r, &unknown, 1584);
    }
    assert_float_equal(routing_capacity_factor(r, 0), 0.75, 0);
    for (uint32_t i = 0; i < 200; i++)
        report(r, &p, i % 4 ? 1584 : 0);
    learned = routing_capacity_factor(r, 0);
    assert_true(learned < 0.45);
    routing_note_capacity(r, 0, declared * 0.75);
    assert_float_equal(routing_capacity_factor(r, 0), learned, 1e-9);
    routing_note_capacity(r, 0, declared * 1.5);
    assert_float_equal(routing_capacity_factor(r, 0), 2 * learned, 1e-9);
    for (uint64_t i = 0; i < 40; i++) {
        unknown = prompt_of(40 + i, 50, 0, 50);
        report(r, &unknown, 1584);
    }
    assert_float_equal(routing_capacity_factor(r, 0), 1.5, 0);
    routing_note_capacity(r, 0, declared * 1e9);
    assert_float_equal(routing_capacity_factor(r, 0), 64, 0);
    routing_note_capacity(r, 0, 0);
    report(r, &unknown, 1584);
    assert_float_equal(routing_capacity_factor(r, 0), 64, 0);
    routing_note_capacity(r, 0, declared / 2);
    routing_forget_cache(r, 0);
    assert_float_equal(routing_capacity_factor(r, 0), 1, 0);
    routing_check(r);
    routing_destroy(r);
}

static void an_unpredicted_hit_opens_a_search_that_a_miss_ends(void **state) {
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

/* Half of the prompt is in the books and the worker had nearly all of it: the edge of what it has
 * forgotten is in there, and was guessed wrong by that much. */
static void a_half_predicted_hit_leaves_the_capacity(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct prompt p = prompt_of(5, 50, 0, 50), half = prompt_of(5, 25, 1, 50);
    (void)state;

    report(r, &p, 0);
    assert_float_equal(report(r, &half, 1584), 800, 0);
    assert_float_equal(routing_capacity_factor(r, 0), 1, 0);
    routing_destroy(r);
}

/* Blocks of the books are 32 tokens, the worker's 16. `short_bytes` are missing from the last block
 * of the chain. */
static uint64_t held_after(struct routing *r, uint64_t family, uint64_t short_bytes,
                           int64_t output_tokens) {
    struct prompt p = prompt_of(family, 50, 0, 50);
    struct route_request rq = request_of(&p, 0);
    struct routing_worker_stats stats;
    struct route_ticket t = {0};

    rq.prompt_bytes -= short_bytes;
    assert_int_equal(routing_route(r, &rq, &t, NULL), ST_OK);
    routing_ended(r, &t, &(struct route_end){.output_tokens = output_tokens, .feedback = {-1, -1}});
    routing_check(r);
    routing_worker_stats(r, 0, 0, &stats);
    return stats.n_held_blocks;
}

static void a_partial_block_is_counted_with_the_next(void **state) {
    struct routing *r = fleet(1, "prefix");
    (void)state;

    assert_int_equal(held_after(r, 1, 0, 15), 50); /* no full block of the worker's either */
    assert_int_equal(held_after(r, 2, 0, 16), 100);
    assert_int_equal(held_after(r, 3, 0, 16), 151);
    assert_int_equal(held_after(r, 4, 64, 0), 201); /* half a block more than there is, */
    assert_int_equal(held_after(r, 5, 64, 0), 251); /* twice */
    assert_int_equal(held_after(r, 6, 0, 32), 301);
    assert_int_equal(held_after(r, 7, 0, 32), 352);
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

/* The numbers of the example at the top of routing_learn.c. */
static void the_worked_example_of_a_report_holds(void **state) {
    struct routing *seen = fleet(1, "prefix"), *r = fleet(1, "prefix");
    struct prompt opening = prompt_of(5, 5, 0, 5);
    struct route_ticket first = {0};
    struct prefix_walk walk = {0};
    uint64_t items[8];
    uint32_t n_items;
    (void)state;

    send(seen, &opening, &first, 0); /* r takes the opening over without having sent it */
    finish(seen, &first, 0);
    n_items = routing_walk(seen, 0, &walk, items, ARRAY_LEN(items));
    assert_int_equal(routing_restore(r, 0, items, n_items), n_items);
    for (uint64_t i = 1; i <= 20; i++) {
        struct prompt p = prompt_of(5, 5, i, 50);
        struct route_ticket t = {0};

        send(r, &p, &t, i);
        assert_float_equal(t.cached_tokens / t.prompt_tokens, 0.1, 1e-9);
        finish(r, &t, i);
    }
    routing_worker_report(r, 0,
                          &(struct route_report){.n_first_tokens = 20,
                                                 .prompt_tokens = 20 * 1600,
                                                 .queried_tokens = 20 * 1600,
                                                 .hit_tokens = 20 * 640});
    assert_float_equal(routing_capacity_factor(r, 0), pow(1.05, 6), 1e-9);
    routing_destroy(seen);
    routing_destroy(r);
}

static void the_worked_example_of_misses_holds(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct prompt opening = prompt_of(5, 30, 0, 30);
    struct route_ticket first = {0};
    (void)state;

    send(r, &opening, &first, 0);
    finish(r, &first, 0);
    for (uint64_t i = 1; i <= 6; i++) {
        struct prompt p = prompt_of(5, 30, i, 50);

        assert_float_equal(routing_capacity_factor(r, 0), 1, 0);
        assert_float_equal(report(r, &p, 320), 960, 0);
    }
    assert_float_equal(routing_capacity_factor(r, 0), 0.9, 1e-9);
    routing_destroy(r);
}

/* Requests of others come without their blocks when these are hashed in another way, and those of
 * clients that ask the worker themselves: no router predicted what was cached of them. */
static void prompts_without_blocks_teach_no_capacity(void **state) {
    struct routing *r = fleet(1, "prefix");
    struct routing_learned learned;
    (void)state;

    for (uint64_t i = 0; i < 200; i++) {
        const struct route_request rq = {.prompt_bytes = 6400, .now_us = i};
        struct route_ticket t = {0};

        routing_add_remote(r, 0, &rq, &t);
        routing_first_token(r, &t, &(struct route_feedback){1600, 1500}, i);
        finish(r, &t, i);
        routing_worker_report(r, 0,
                              &(struct route_report){.n_first_tokens = 1,
                                                     .prompt_tokens = 1600,
                                                     .queried_tokens = 1600,
                                                     .hit_tokens = 1500});
    }
    routing_get_learned(r, 0, &learned);
    assert_float_equal(learned.capacity_factor, 1, 1e-9);
    assert_float_equal(learned.prompt_bytes / learned.prompt_tokens, 4, 0.01);
    routing_check(r);
    routing_destroy(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_per_token_are_learned),
        cmocka_unit_test(capacity_follows_the_reported_cached_tokens),
        cmocka_unit_test(counters_teach_bytes_per_token),
        cmocka_unit_test(counters_of_a_worker_that_others_use_teach_nothing),
        cmocka_unit_test(counters_teach_the_capacity),
        cmocka_unit_test(requests_older_than_the_cache_teach_no_capacity),
        cmocka_unit_test(a_boundless_cache_forgets_nothing),
        cmocka_unit_test(a_wrong_ratio_does_not_look_like_a_miss),
        cmocka_unit_test(rare_misses_leave_the_capacity_alone),
        cmocka_unit_test(frequent_misses_shrink_the_capacity),
        cmocka_unit_test(a_counted_capacity_bounds_what_is_learned),
        cmocka_unit_test(an_unpredicted_hit_opens_a_search_that_a_miss_ends),
        cmocka_unit_test(a_half_predicted_hit_leaves_the_capacity),
        cmocka_unit_test(a_partial_block_is_counted_with_the_next),
        cmocka_unit_test(a_prompt_being_computed_takes_room_from_the_cache),
        cmocka_unit_test(prompts_without_blocks_teach_no_capacity),
        cmocka_unit_test(the_worked_example_of_a_report_holds),
        cmocka_unit_test(the_worked_example_of_misses_holds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/router/routing/test_fetch.c - prefixes that are fetched from other workers: groups,
 * rates, prices and what is learned. A block is 32 tokens; workers compute 10,000 tokens a second,
 * and have 32 KiB of KV per token: 10 Gb/s are 38,000 tokens a second. */
#include <math.h>
#include <string.h>

#include "router/routing/fetch.h"
#include "tests/support/routing_fixture.h"

#define LONG_BLOCKS     60
#define LONG_TOKENS     (LONG_BLOCKS * 32.0)
#define BYTES_PER_TOKEN 32768.0
#define CLOSE_S         5e-3 /* a fetch that saves less may not be worth it */

/* --- rates ----------------------------------------------------------------------------------- */

static void the_first_answers_set_the_rate(void **state) {
    const double gigabits[] = {0.1, 1, 10, 40};
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(gigabits); i++) {
        double s_per_byte = 8e-9 / gigabits[i];
        struct fetch_rate r;

        fetch_rate_init(&r, 5e-3, 1.25e9);
        for (uint64_t n = 1; n <= 5; n++)
            fetch_rate_learn(&r, (double)n * 16e6, 8e-3 + (double)n * 16e6 * s_per_byte,
                             n * SECOND);
        fetch_rate_check(&r);
        assert_float_equal(fetch_rate_s(&r, 40e6) / (8e-3 + 40e6 * s_per_byte), 1, 0.1);
        assert_float_equal(fetch_rate_s(&r, 400e6) / (8e-3 + 400e6 * s_per_byte), 1, 0.1);
    }
}

static void a_slow_network_is_tried_again_after_a_while(void **state) {
    struct fetch_rate r;
    double slow_s;
    (void)state;

    fetch_rate_init(&r, 5e-3, 1.25e9);
    for (uint64_t n = 1; n <= 5; n++)
        fetch_rate_learn(&r, 100e6, 10, n * SECOND);
    slow_s = fetch_rate_s(&r, 100e6);
    assert_float_equal(slow_s, 10, 1);
    fetch_rate_forget(&r, 60 * SECOND);
    assert_float_equal(fetch_rate_s(&r, 100e6), slow_s, 1);
    fetch_rate_forget(&r, 24 * 3600 * SECOND);
    assert_float_equal(fetch_rate_s(&r, 100e6), 5e-3 + 100e6 / 1.25e9, 1e-3);
    fetch_rate_check(&r);
}

static void rates_stay_in_range_whatever_is_reported(void **state) {
    const double odd[] = {0, -1, NAN, INFINITY, 1e-9, 1e300, 1};
    struct fetch_rate r;
    struct rng rng;
    (void)state;

    rng_seed(&rng, 1);
    fetch_rate_init(&r, 2e-3, 5e9);
    for (uint64_t n = 0; n < 20000; n++) {
        double bytes = rng_below(&rng, 8) ? exp(rng_f64(&rng) * 25) : odd[rng_below(&rng, 7)];
        double seconds =
            rng_below(&rng, 8) ? exp(rng_f64(&rng) * 20 - 12) : odd[rng_below(&rng, 7)];

        fetch_rate_learn(&r, bytes, seconds, n * rng_below(&rng, 3) * SECOND);
        fetch_rate_check(&r);
    }
}

/* --- groups ---------------------------------------------------------------------------------- */

static void groups_are_those_of_the_workers_whatever_comes_and_goes(void **state) {
    enum { N = 130 };
    struct fetch_peer peers[N] = {{0}};
    struct fetch f;
    struct rng rng;
    (void)state;

    rng_seed(&rng, 2);
    fetch_init(&f, N);
    for (int step = 0; step < 3000; step++) {
        uint32_t w = (uint32_t)rng_below(&rng, N), v = (uint32_t)rng_below(&rng, N);

        peers[w] = (struct fetch_peer){rng_below(&rng, 3), rng_below(&rng, 3), 1024};
        fetch_set_peer(&f, w, &peers[w]);
        fetch_check(&f);
        if (!peers[w].fabric || !peers[v].fabric) continue;
        assert_int_equal(f.workers[w].fabric_id == f.workers[v].fabric_id,
                         peers[w].fabric == peers[v].fabric);
        assert_int_equal(f.workers[w].host_id == f.workers[v].host_id,
                         peers[w].fabric == peers[v].fabric && peers[w].host == peers[v].host);
    }
    for (uint32_t w = 0; w < N; w++)
        fetch_set_peer(&f, w, &(struct fetch_peer){0});
    assert_int_equal(f.n_peers, 0);
    fetch_check(&f);
    fetch_fini(&f);
}

/* --- prices ---------------------------------------------------------------------------------- */

static void set_peer(struct routing *r, uint32_t w, uint64_t fabric, uint64_t host) {
    routing_set_peer(r, w, &(struct fetch_peer){fabric, host, BYTES_PER_TOKEN});
}

/* All on hosts of their own. */
static struct routing *fabric_of(uint32_t n_workers) {
    struct routing *r = fleet(n_workers, "prefix");

    for (uint32_t w = 0; w < n_workers; w++)
        set_peer(r, w, 7, w);
    return r;
}

static struct prompt long_prompt(uint64_t family) {
    return prompt_of(family, LONG_BLOCKS, 0, LONG_BLOCKS);
}

/* w has computed it. */
static void hold_at(struct routing *r, uint32_t w, uint64_t family, uint64_t now_us) {
    struct prompt p = long_prompt(family);
    struct route_request rq = request_of(&p, now_us);
    struct route_ticket t = {0};

    routing_add_remote(r, w, &rq, &t);
    finish(r, &t, now_us);
}

/* What one more prompt behind that costs on each worker; its choice. */
static uint32_t price(struct routing *r, uint64_t family, uint64_t now_us,
                      struct policy_term terms[8]) {
    struct prompt p = prompt_of(family, LONG_BLOCKS, 1, LONG_BLOCKS + 2);
    struct route_request rq = request_of(&p, now_us);

    memset(terms, 0, 8 * sizeof(*terms));
    return routing_explain(r, &rq, terms);
}

static void what_another_holds_is_fetched_where_that_is_quicker(void **state) {
    struct routing *r = fabric_of(2);
    struct policy_term terms[8];
    (void)state;

    hold_at(r, 0, 1, SECOND);
    price(r, 1, 2 * SECOND, terms);
    assert_true(terms[0].fetch_tokens == 0 && terms[0].fetch_s == 0);
    assert_int_equal(terms[1].source, 0);
    assert_float_equal(terms[1].fetch_tokens, LONG_TOKENS, 0);
    assert_float_equal(terms[1].matched_tokens, LONG_TOKENS, 0);
    assert_float_equal(terms[1].fetch_s, 5e-3 + LONG_TOKENS * BYTES_PER_TOKEN / 1.25e9, 1e-3);
    assert_float_equal(terms[1].prefill_s, terms[0].prefill_s, 1e-9); /* of the rest */
    routing_check(r);
    routing_destroy(r);
}

/* Requests that keep 0 busy for 6 s. */
struct crowd {
    struct prompt p[30];
    struct route_ticket t[30];
};

static void gather(struct routing *r, struct crowd *c, uint64_t now_us) {
    memset(c, 0, sizeof(*c));
    for (size_t i = 0; i < ARRAY_LEN(c->t); i++) {
        struct route_request rq;

        c->p[i] = prompt_of(1000000 * (i + 1) + now_us, 0, 0, 60);
        rq = request_of(&c->p[i], now_us);
        routing_add_remote(r, 0, &rq, &c->t[i]);
    }
}

static void disperse(struct routing *r, struct crowd *c, uint64_t now_us) {
    for (size_t i = 0; i < ARRAY_LEN(c->t); i++)
        give_up(r, &c->t[i], now_us);
}

static void a_request_goes_to_an_idle_worker_and_names_its_source(void **state) {
    struct routing *r = fabric_of(2);
    struct prompt p = prompt_of(1, LONG_BLOCKS, 1, LONG_BLOCKS + 2);
    struct route_ticket t = {0};
    struct crowd crowd;
    (void)state;

    hold_at(r, 0, 1, SECOND);
    gather(r, &crowd, 2 * SECOND);
    assert_int_equal(send(r, &p, &t, 2 * SECOND), 1);
    assert_int_equal(t.fetch.source, 0);
    assert_int_equal(t.fetch.path, FETCH_APART);
    assert_float_equal(t.fetch.tokens, LONG_TOKENS, 0);
    assert_float_equal(t.cached_tokens, LONG_TOKENS, 0);
    assert_true(t.wait_s >= t.fetch.fetch_s);
    finish(r, &t, 3 * SECOND);
    disperse(r, &crowd, 3 * SECOND);
    routing_check(r);
    routing_destroy(r);
}

static void of_two_sources_the_one_that_is_free_serves(void **state) {
    struct routing *r = fabric_of(4);
    struct prompt p = long_prompt(2);
    struct policy_term terms[8];
    struct route_ticket t = {0};
    struct crowd crowd;
    struct route_feedback report = {
        .prompt_tokens = 1920, .cached_tokens = 1888, .restored_tokens = 1888, .restore_us = 50000};
    (void)state;

    hold_at(r, 0, 1, SECOND);
    hold_at(r, 0, 2, SECOND);
    hold_at(r, 1, 1, SECOND);
    price(r, 1, 2 * SECOND, terms);
    assert_int_equal(terms[2].source, 0);
    gather(r, &crowd, 2 * SECOND);
    assert_true(send(r, &p, &t, 2 * SECOND) != 0);
    assert_int_equal(t.fetch.source, 0);
    routing_first_token(r, &t, &report, 2 * SECOND);
    price(r, 1, 2 * SECOND, terms);
    for (uint32_t w = 2; w < 4; w++)
        assert_int_equal(terms[w].source, 1);
    finish(r, &t, 3 * SECOND);
    disperse(r, &crowd, 3 * SECOND);
    routing_destroy(r);
}

static void a_source_of_the_same_host_is_quicker(void **state) {
    struct routing *r = fabric_of(3);
    struct policy_term terms[8];
    (void)state;

    set_peer(r, 2, 7, 1); /* as 1 */
    hold_at(r, 0, 1, SECOND);
    hold_at(r, 1, 1, SECOND);
    price(r, 1, 2 * SECOND, terms);
    assert_int_equal(terms[2].source, 1);
    assert_float_equal(terms[2].fetch_s, 2e-3 + LONG_TOKENS * BYTES_PER_TOKEN / 5e9, 1e-3);
    routing_destroy(r);
}

static void nothing_is_fetched_over_a_border(void **state) {
    struct policy_term terms[8];
    (void)state;

    for (int border = 0; border < 6; border++) {
        struct routing *r = fabric_of(2);

        hold_at(r, 0, 1, SECOND);
        if (border == 0) set_peer(r, 1, 8, 1); /* another fingerprint */
        if (border == 1) set_peer(r, 1, 0, 1); /* none */
        if (border == 2) routing_set_reason(r, 0, WORKER_DRAINING, true);
        if (border == 3) routing_set_reason(r, 0, WORKER_EJECTED, true);
        if (border == 4) routing_worker_up(r, 0, &(struct worker_spec){.generation = 2});
        if (border == 5) routing_worker_down(r, 0);
        price(r, 1, 2 * SECOND, terms);
        assert_true(terms[1].is_candidate && terms[1].fetch_tokens == 0 && terms[1].fetch_s == 0);
        routing_check(r);
        routing_destroy(r);
    }
}

static void a_scarce_pool_fetches_nothing(void **state) {
    struct routing *r = fabric_of(2);
    struct policy_term terms[8];
    struct route_ticket others[40] = {0};
    struct prompt prompts[40]; /* tickets keep their chains */
    (void)state;

    hold_at(r, 0, 1, SECOND);
    for (size_t i = 0; i < ARRAY_LEN(others); i++) { /* 40 x 1,500 of 64,000 tokens, and outputs */
        struct route_request rq;

        prompts[i] = prompt_of(100 + i, 0, 0, 47);
        rq = request_of(&prompts[i], 2 * SECOND);
        routing_add_remote(r, 1, &rq, &others[i]);
    }
    price(r, 1, 2 * SECOND, terms);
    assert_true(terms[1].memory_s > 0 && terms[1].fetch_tokens == 0);
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        give_up(r, &others[i], 2 * SECOND);
    price(r, 1, 2 * SECOND, terms);
    assert_true(terms[1].memory_s == 0 && terms[1].fetch_tokens > 0);
    routing_destroy(r);
}

/* The source is excluded for a request that failed there. */
static void a_worker_that_failed_the_request_is_no_source(void **state) {
    struct routing *r = fabric_of(2);
    struct prompt p = long_prompt(1);
    struct route_request rq = request_of(&p, 2 * SECOND);
    struct route_ticket t = {0};
    uint32_t failed = 0;
    (void)state;

    hold_at(r, 0, 1, SECOND);
    rq.exclude = &failed;
    rq.n_exclude = 1;
    assert_int_equal(routing_route(r, &rq, &t, NULL), ST_OK);
    assert_int_equal(t.load.worker, 1);
    assert_int_equal(t.fetch.source, WORKER_NONE);
    finish(r, &t, 3 * SECOND);
    routing_destroy(r);
}

/* One at a time, until something is known of the path. */
static void the_first_fetch_is_awaited(void **state) {
    struct routing *r = fabric_of(4);
    struct policy_term terms[8];
    struct prompt p = long_prompt(1);
    struct route_ticket t = {0};
    struct crowd crowd;
    (void)state;

    hold_at(r, 0, 1, SECOND);
    hold_at(r, 0, 2, SECOND);
    gather(r, &crowd, 2 * SECOND);
    assert_true(send(r, &p, &t, 2 * SECOND) != 0);
    assert_int_equal(t.fetch.source, 0);
    price(r, 2, 2 * SECOND, terms);
    assert_true(terms[3].fetch_tokens == 0);
    give_up(r, &t, 3 * SECOND);
    price(r, 2, 3 * SECOND, terms);
    assert_true(terms[3].fetch_tokens > 0);
    disperse(r, &crowd, 3 * SECOND);
    routing_check(r);
    routing_destroy(r);
}

/* What a request still computes at its worker cannot be fetched from there. */
static void what_is_pending_at_the_source_is_not_fetched(void **state) {
    struct routing *r = fabric_of(2);
    struct policy_term terms[8];
    struct prompt p = long_prompt(1);
    struct route_request rq = request_of(&p, SECOND);
    struct route_ticket t = {0};
    (void)state;

    routing_add_remote(r, 0, &rq, &t);
    price(r, 1, SECOND, terms);
    assert_true(terms[0].matched_tokens > 0 && terms[1].fetch_tokens == 0);
    routing_first_token(r, &t, NULL, 2 * SECOND);
    price(r, 1, 2 * SECOND, terms);
    assert_true(terms[1].fetch_tokens > 0);
    finish(r, &t, 3 * SECOND);
    routing_destroy(r);
}

/* What it has to transfer before would take longer than the sinks save beside what all of them
 * have. That a sink waits for its turn as long does not make it one: others want it too. */
static void a_source_busier_than_it_saves_is_none(void **state) {
    struct routing *r = fabric_of(4);
    struct prompt half = prompt_of(1, LONG_BLOCKS / 2, 9, LONG_BLOCKS / 2), others[2];
    struct route_feedback report = {
        .prompt_tokens = 1920, .cached_tokens = 1888, .restored_tokens = 1888, .restore_us = 50000};
    struct route_ticket tickets[2] = {0}, behind = {0};
    struct prompt first = prompt_of(77, 0, 0, LONG_BLOCKS);
    struct policy_term terms[8];
    struct route_request rq;
    struct crowd crowd;
    (void)state;

    hold_at(r, 0, 1, SECOND);
    for (uint32_t w = 1; w < 4; w++) {
        struct route_ticket t = {0};

        rq = request_of(&half, SECOND);
        routing_add_remote(r, w, &rq, &t);
        finish(r, &t, SECOND);
    }
    gather(r, &crowd, 2 * SECOND);
    rq = request_of(&first, 2 * SECOND);
    routing_add_remote(r, 1, &rq, &behind);
    for (uint64_t i = 0; i < 2; i++) { /* one after another, 0.05 s each; it would save 0.08 s */
        hold_at(r, 0, 2 + i, 2 * SECOND);
        others[i] = long_prompt(2 + i);
        send(r, &others[i], &tickets[i], 2 * SECOND);
        assert_int_equal(tickets[i].fetch.source, 0);
        routing_first_token(r, &tickets[i], &report, 2 * SECOND);
        price(r, 1, 2 * SECOND, terms);
        assert_true(terms[1].wait_s > 0.15);
        assert_float_equal(terms[1].fetch_tokens, i ? 0 : LONG_TOKENS / 2, 0);
    }
    give_up(r, &behind, 3 * SECOND);
    for (size_t i = 0; i < 2; i++)
        finish(r, &tickets[i], 3 * SECOND);
    disperse(r, &crowd, 3 * SECOND);
    routing_check(r);
    routing_destroy(r);
}

static uint32_t has_all(const void *ctx, uint32_t s, uint32_t n) {
    (void)ctx;
    (void)s;
    return n;
}

/* By the best of all sources, priced one by one. */
static double most_saved_s(const struct fetch *f, const struct policy_view *view, uint32_t w,
                           double cached) {
    const struct fetch_peer *sink = &f->workers[w].peer;
    double most_s = 0;

    WORKER_MASK_FOR_EACH(s, f->peers.words, view->load->n_words) {
        const struct fetch_peer *source = &f->workers[s].peer;
        double tokens = policy_matched_tokens(view, s), fetch_s;

        if (s == w || source->fabric != sink->fabric || tokens <= cached) continue;
        fetch_s =
            fetch_rate_s(&f->rates[source->host == sink->host ? FETCH_SAME_HOST : FETCH_APART],
                         (tokens - cached) * BYTES_PER_TOKEN);
        most_s = fmax(most_s, load_prefill_s(&view->load->workers[w], cached, tokens) - fetch_s);
    }
    return most_s;
}

static void the_best_source_is_found_whatever_workers_hold(void **state) {
    enum { N = 70 };
    struct rng rng;
    struct load load;
    struct fetch f;
    uint32_t n_fetches = 0;
    (void)state;

    rng_seed(&rng, 3);
    load_init(&load, N);
    fetch_init(&f, N);
    for (uint32_t w = 0; w < N; w++)
        load_worker_up(&load, w, &(struct worker_spec){.identity = w});
    for (int step = 0; step < 400; step++) {
        uint32_t matched[N], least = (uint32_t)rng_below(&rng, 40);
        struct worker_mask sinks = {0};
        struct policy_view view = {.load = &load,
                                   .candidates = sinks.words,
                                   .matched_blocks = matched,
                                   .prompt_tokens = 64 * 32,
                                   .tokens_per_block = 32};

        for (uint32_t w = 0; w < N; w++) {
            if (!rng_below(&rng, 8))
                fetch_set_peer(
                    &f, w,
                    &(struct fetch_peer){rng_below(&rng, 3), rng_below(&rng, 5), BYTES_PER_TOKEN});
            if (!rng_below(&rng, 4)) worker_mask_add(sinks.words, w);
            matched[w] = rng_below(&rng, 3) ? least : (uint32_t)rng_below(&rng, 64);
        }
        fetch_find(&f, &view, f.peers.words, has_all, NULL, SECOND);
        fetch_check(&f);
        WORKER_MASK_FOR_EACH(w, sinks.words, load.n_words) {
            double cached = policy_matched_tokens(&view, w), most_s;
            struct fetch_plan plan = fetch_plan(&f, &view, w, cached);

            most_s = worker_mask_has(f.peers.words, w) ? most_saved_s(&f, &view, w, cached) : 0;
            if (plan.source == WORKER_NONE) {
                assert_true(most_s < CLOSE_S);
                continue;
            }
            assert_float_equal(plan.saved_s - plan.fetch_s, most_s, 1e-9);
            n_fetches++;
        }
    }
    assert_true(n_fetches > 100);
    fetch_fini(&f);
    load_fini(&load);
}

/* --- learning -------------------------------------------------------------------------------- */

/* A request for what 0 alone holds, sent to 1, which reports this. Returns the predicted seconds;
 * 0: it had no source. */
static double fetch_once(struct routing *r, uint64_t family, uint64_t now_us, uint32_t restored,
                         double seconds) {
    struct prompt p = long_prompt(family);
    struct route_ticket t = {0};
    struct route_feedback f = {.prompt_tokens = (int64_t)LONG_TOKENS,
                               .cached_tokens = restored,
                               .restored_tokens = restored,
                               .restore_us = (uint64_t)(seconds * 1e6)};
    struct route_end end = {.output_tokens = 10, .now_us = now_us, .feedback = {-1, -1}};
    struct crowd crowd;

    hold_at(r, 0, family, now_us);
    gather(r, &crowd, now_us);
    assert_int_equal(send(r, &p, &t, now_us), 1);
    disperse(r, &crowd, now_us);
    routing_first_token(r, &t, &f, now_us);
    routing_ended(r, &t, &end);
    return t.fetch.fetch_s;
}

static void a_network_slower_than_computing_is_no_longer_used(void **state) {
    struct routing *r = fabric_of(2);
    uint64_t now_us = SECOND, n_fetched = 0;
    (void)state;

    for (uint64_t family = 1; family <= 50; family++, now_us += SECOND) /* 0.1 Gb/s: 5 s each */
        n_fetched += fetch_once(r, family, now_us, (uint32_t)LONG_TOKENS - 32, 5) > 0;
    assert_true(n_fetched >= 1 && n_fetched <= 2);
    assert_true(fetch_once(r, 99, now_us + 24 * 3600 * SECOND, 0, 0) > 0); /* after a while */
    routing_check(r);
    routing_destroy(r);
}

static void a_source_that_had_nothing_pauses(void **state) {
    struct routing *r = fabric_of(2);
    uint64_t now_us = SECOND, pause_us = 250000;
    uint64_t family = 1;
    (void)state;

    for (int i = 0; i < 5; i++, pause_us *= 2) {
        assert_true(fetch_once(r, family++, now_us, 0, 0) > 0);
        assert_true(fetch_once(r, family++, now_us + pause_us - 1, 0, 0) == 0);
        now_us += pause_us;
    }
    assert_true(fetch_once(r, family++, now_us, (uint32_t)LONG_TOKENS, 0.05) > 0);
    now_us += SECOND;
    assert_true(fetch_once(r, family++, now_us, 0, 0) > 0); /* the first again */
    assert_true(fetch_once(r, family++, now_us + 250000, 0, 0) > 0);
    routing_check(r);
    routing_destroy(r);
}

/* What is found of a fetched prompt says nothing of the sink's own cache. */
static void a_missed_fetch_does_not_shrink_the_cache(void **state) {
    struct routing *r = fabric_of(2);
    (void)state;

    for (uint64_t family = 1; family <= 20; family++)
        fetch_once(r, family, family * 60 * SECOND, 0, 0);
    assert_float_equal(routing_capacity_factor(r, 1), 1, 0);
    routing_destroy(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_answers_set_the_rate),
        cmocka_unit_test(a_slow_network_is_tried_again_after_a_while),
        cmocka_unit_test(rates_stay_in_range_whatever_is_reported),
        cmocka_unit_test(groups_are_those_of_the_workers_whatever_comes_and_goes),
        cmocka_unit_test(what_another_holds_is_fetched_where_that_is_quicker),
        cmocka_unit_test(a_request_goes_to_an_idle_worker_and_names_its_source),
        cmocka_unit_test(of_two_sources_the_one_that_is_free_serves),
        cmocka_unit_test(a_source_of_the_same_host_is_quicker),
        cmocka_unit_test(nothing_is_fetched_over_a_border),
        cmocka_unit_test(a_scarce_pool_fetches_nothing),
        cmocka_unit_test(a_worker_that_failed_the_request_is_no_source),
        cmocka_unit_test(the_first_fetch_is_awaited),
        cmocka_unit_test(what_is_pending_at_the_source_is_not_fetched),
        cmocka_unit_test(a_source_busier_than_it_saves_is_none),
        cmocka_unit_test(the_best_source_is_found_whatever_workers_hold),
        cmocka_unit_test(a_network_slower_than_computing_is_no_longer_used),
        cmocka_unit_test(a_source_that_had_nothing_pauses),
        cmocka_unit_test(a_missed_fetch_does_not_shrink_the_cache),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

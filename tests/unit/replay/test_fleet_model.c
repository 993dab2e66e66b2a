/* tests/unit/replay/test_fleet_model.c - the modelled fleet: steps by the formula, blocks
 * conserved; and on instances so small that every assignment can be tried, oracles are near. */
#include <math.h>

#include "common/base/mem.h"
#include "tests/replay/fleet_bound.h"
#include "tests/replay/fleet_model.h"
#include "tests/replay/worker_model.h"
#include "tests/replay/workload/generator.h"
#include "tests/support/cm.h"

#define BLOCK         64
#define N_REQUESTS    7
#define N_INSTANCES   40
#define N_ASSIGNMENTS (1u << N_REQUESTS) /* to two workers */

static struct fleet_options fleet_of(uint32_t n_workers, uint32_t cache_tokens, const char *name) {
    struct fleet_options o;

    fleet_options_default(&o);
    o.n_workers = n_workers;
    o.cache_tokens = cache_tokens;
    o.warm_share = 0;
    assert_true(fleet_choose_by_name(&o, name));
    return o;
}

/* Prompts of 1 to 40 blocks that begin with one of three texts, within two seconds. */
static void make_tiny(struct workload *w, uint64_t seed) {
    struct rng r;

    *w = (struct workload){.block_tokens = BLOCK};
    rng_seed(&r, seed);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        uint64_t text = rng_below(&r, 3), own = rng_u64(&r);
        uint32_t n_shared = (uint32_t)rng_below(&r, 80);
        uint32_t n_prompt = n_shared * BLOCK + 1 + (uint32_t)rng_below(&r, 40 * BLOCK);
        uint32_t n_blocks = n_prompt / BLOCK;
        uint64_t *chain = workload_new_chain(w, n_blocks);

        for (uint32_t b = 0; b < n_blocks; b++)
            chain[b] = workload_name(rng_at(b < n_shared ? text : own, b));
        workload_add(w, (struct workload_request){.arrival_s = 2 * rng_f64(&r),
                                                  .n_prompt = n_prompt,
                                                  .n_output = 1 + (uint32_t)rng_below(&r, 50),
                                                  .n_blocks = n_blocks,
                                                  .n_names = n_blocks,
                                                  .chain = chain});
    }
    workload_sort(w);
}

static double mean_ttft_s(const struct workload *w, const struct fleet_options *o) {
    struct fleet_result r;

    fleet_run(w, NULL, o, &r);
    assert_int_equal(r.n, w->n);
    return r.mean_ttft_s;
}

/* --- one worker ------------------------------------------------------------------------------ */

static void a_lone_request_takes_what_the_formula_says(void **state) {
    struct workload_request q = {.n_prompt = 3000, .n_output = 3};
    struct workload w = {.requests = &q, .n = 1, .block_tokens = BLOCK};
    struct fleet_options o = fleet_of(1, 100000, "prefix");
    double ttft_s = 2 * WORKER_STEP_S + worker_prefill_s(0, 3000), e2e_s;
    struct fleet_result r;
    (void)state;

    e2e_s = ttft_s + 2 * (WORKER_STEP_S + WORKER_SEQ_S) + WORKER_CONTEXT_S * (3001 + 3002);
    fleet_run(&w, NULL, &o, &r);
    assert_float_equal(r.mean_ttft_s, ttft_s, 1e-9);
    assert_float_equal(r.mean_e2e_s, e2e_s, 1e-9);
    assert_float_equal(r.busy_share, 1, 1e-9);
    assert_float_equal(worker_prefill_s(0, 3000), 3000 * 50e-6 * 1.05, 1e-9);
}

/* The second comes when the first has ended: all but the block of its last token is found. */
static void a_repeated_prompt_is_found_but_for_its_last_token(void **state) {
    uint64_t chain[4] = {1u << 16, 2u << 16, 3u << 16, 4u << 16};
    struct workload_request q = {
        .n_prompt = 4 * BLOCK, .n_output = 1, .n_blocks = 4, .n_names = 4, .chain = chain};
    struct workload_request both[2] = {q, q};
    struct workload w = {.requests = both, .n = 2, .block_tokens = BLOCK};
    struct fleet_options o = fleet_of(1, 100000, "prefix");
    struct fleet_result r;
    (void)state;

    both[1].arrival_s = 1;
    fleet_run(&w, NULL, &o, &r);
    assert_float_equal(r.hit_share, 3.0 / 8, 1e-9);
}

/* --- conservation ---------------------------------------------------------------------------- */

/* Twelve largest requests fill a cache. worker_model_check runs at every event and after the last
 * one worker_model_fini asserts that no block is in use. */
static void blocks_are_conserved_under_every_chooser(void **state) {
    static const char *const oracles[] = {"oracle", "oracle_selfish"};
    struct workload w;
    (void)state;

    generate(&w, generator_find("chats"), 2, 30, 12);
    workload_clip(&w, 8000);
    for (uint32_t i = 0; i < 2; i++) {
        struct fleet_options o = fleet_of(3, 8000, oracles[i]);

        o.is_checked = true;
        assert_true(mean_ttft_s(&w, &o) > 0);
    }
    for (const char *const *name = policy_names; *name; name++) {
        struct fleet_options o = fleet_of(3, 8000, *name);

        o.is_checked = true;
        assert_true(mean_ttft_s(&w, &o) > 0);
    }
    workload_free(&w);
}

static void shared_books_are_conserved_through_a_restart(void **state) {
    struct fleet_options o = fleet_of(3, 20000, "prefix");
    struct fleet_result apart, shared, restarted;
    struct workload_bound bound;
    struct workload w;
    (void)state;

    generate(&w, generator_find("chats"), 4, 200, 12);
    workload_bound(&w, 60000, &bound);
    o.n_routers = 4;
    o.window_share = 0.5;
    fleet_run(&w, &bound, &o, &apart);
    o.is_shared = true;
    o.delay_s = 2e-3;
    o.late_delay_s = 20e-3;
    fleet_run(&w, &bound, &o, &shared);
    o.is_restarted = true;
    fleet_run(&w, &bound, &o, &restarted);
    print_message("cached: apart %.3f, shared %.3f, restarted %.3f\n", apart.hit_share,
                  shared.hit_share, restarted.hit_share);
    assert_true(shared.hit_share > apart.hit_share);
    assert_true(restarted.window_hit_of_pooled > 0.9 * shared.window_hit_of_pooled);
    workload_bound_free(&bound);
    workload_free(&w);
}

/* --- what goes wrong ------------------------------------------------------------------------- */

/* Those without a token are answered elsewhere, those with one are lost; the cache is empty. */
static void a_crash_loses_only_what_had_its_first_token(void **state) {
    struct fleet_options o = fleet_of(4, 20000, "prefix");
    struct fleet_result whole, crashed;
    struct workload w;
    (void)state;

    generate(&w, generator_find("chats"), 4, 60, 8);
    o.is_checked = true;
    fleet_run(&w, NULL, &o, &whole);
    assert_int_equal(whole.n_lost, 0);
    o.n_crashes = 2;
    for (int order = WORKER_FCFS; order <= WORKER_SRPT; order++) {
        o.worker.order = (enum worker_order)order;
        fleet_run(&w, NULL, &o, &crashed);
        assert_int_equal(crashed.n, w.n);
        assert_true(crashed.n_lost > 0 && crashed.n_lost < w.n / 10);
        assert_true(crashed.hit_share < whole.hit_share);
    }
    workload_free(&w);
}

static void late_reports_of_first_tokens_are_harmless(void **state) {
    struct fleet_options o = fleet_of(3, 20000, "prefix");
    double prompt_s, late_s;
    struct workload w;
    (void)state;

    generate(&w, generator_find("chats"), 4, 200, 12);
    prompt_s = mean_ttft_s(&w, &o);
    o.late_first_s = 0.1;
    late_s = mean_ttft_s(&w, &o);
    assert_true(late_s != prompt_s && late_s < 1.5 * prompt_s);
    workload_free(&w);
}

/* --- waiting in a router --------------------------------------------------------------------- */

static void make_crowd(struct workload *w, double load, struct crowd crowd) {
    generate(w, generator_find("conversations"), 5, 300, 1);
    workload_load(w, &(struct workload_target){.n_workers = 4,
                                               .cache_tokens = 300000,
                                               .speed = 4,
                                               .load = load,
                                               .has_copies = true,
                                               .crowd = crowd});
}

static void nothing_waits_at_low_load(void **state) {
    struct fleet_options o = fleet_of(4, 300000, "prefix");
    struct fleet_result without, with;
    struct workload w;
    (void)state;

    make_crowd(&w, 0.2, (struct crowd){.draw = 1});
    fleet_run(&w, NULL, &o, &without);
    o.hold_s = 4;
    fleet_run(&w, NULL, &o, &with);
    assert_float_equal(with.mean_ttft_s, without.mean_ttft_s, 0.01 * without.mean_ttft_s);
    assert_true(with.held_share < 0.01);
    workload_free(&w);
}

static void those_that_wait_are_all_answered_and_sooner_on_average(void **state) {
    struct fleet_options o = fleet_of(4, 300000, "prefix");
    struct fleet_result without, with, crashed, spread;
    struct workload w;
    (void)state;

    make_crowd(&w, 0.8, (struct crowd){.draw = 1, .burst = 3});
    fleet_run(&w, NULL, &o, &without);
    o.hold_s = 0.4;
    o.walk_s = 0.05;
    fleet_run(&w, NULL, &o, &with);
    print_message("burst: mean %.2f s, with hold %.2f s, %.0f %% held, longest %.0f s\n",
                  without.mean_ttft_s, with.mean_ttft_s, 100 * with.held_share,
                  with.longest_held_s);
    assert_true(with.mean_ttft_s < 0.8 * without.mean_ttft_s);
    assert_true(with.held_share > 0.05 && with.longest_held_s > with.mean_held_s);
    o.n_routers = 3;
    o.is_shared = true;
    o.delay_s = 5e-3;
    o.late_delay_s = 25e-3;
    fleet_run(&w, NULL, &o, &spread);
    assert_true(spread.mean_ttft_s < without.mean_ttft_s);
    o = fleet_of(4, 300000, "prefix");
    o.hold_s = 0.4;
    o.walk_s = 0.05;
    o.n_crashes = 2;
    o.late_first_s = 0.1;
    fleet_run(&w, NULL, &o, &crashed);
    assert_int_equal(crashed.n, w.n);
    workload_free(&w);
}

static void a_flood_waits_for_itself_where_tenants_are_known(void **state) {
    struct fleet_options o = fleet_of(4, 300000, "prefix");
    struct fleet_result unknown, known;
    struct workload w;
    (void)state;

    make_crowd(&w, 0.95, (struct crowd){.draw = 1, .flood = 0.6});
    o.hold_s = 0.4;
    o.walk_s = 0.05;
    fleet_run(&w, NULL, &o, &unknown);
    o.has_tenants = true;
    fleet_run(&w, NULL, &o, &known);
    print_message("flood: others %.2f s, where tenants are known %.2f s; the flood %.1f, %.1f s\n",
                  unknown.worst_tenant_ttft_s, known.worst_tenant_ttft_s, unknown.flood_ttft_s,
                  known.flood_ttft_s);
    assert_true(known.worst_tenant_ttft_s < unknown.worst_tenant_ttft_s);
    assert_true(known.worst_tenant_ttft_s < 0.5 * known.flood_ttft_s);
    workload_free(&w);
}

/* Two tenants send 1.8 of what can be computed, and one of them has twice the weight. */
static double served_by_weight(uint32_t n_routers) {
    struct fleet_options o = fleet_of(4, 300000, "prefix");
    struct fleet_result r;
    struct workload w;

    make_crowd(&w, 1.8, (struct crowd){.draw = 1});
    for (uint32_t i = 0; i < w.n; i++)
        w.requests[i].tenant = i % 2;
    o.warm_share = 0.3;
    o.hold_s = 0.4;
    o.walk_s = 0.05;
    o.has_tenants = true;
    o.odd_weight = 2;
    o.n_routers = n_routers;
    o.is_shared = n_routers > 1;
    o.delay_s = 5e-3;
    o.late_delay_s = 25e-3;
    fleet_run(&w, NULL, &o, &r);
    print_message("weights 2:1, %u routers: prefill %.2f:1\n", n_routers, r.odd_by_even);
    workload_free(&w);
    return r.odd_by_even;
}

static void tenants_are_served_by_weight(void **state) {
    (void)state;
    assert_float_equal(served_by_weight(1), 2, 0.1);
    assert_float_equal(served_by_weight(2), 2, 0.2);
}

/* --- a closed loop --------------------------------------------------------------------------- */

static void run_agents(uint32_t n_sessions, enum router_sessions sessions, struct fleet_result *r) {
    struct fleet_options o = fleet_of(2, 700000, "prefix");
    struct workload w;

    generate(&w, generator_find("agents"), 3, 900, n_sessions);
    o.warm_share = 0.3;
    o.sessions = sessions;
    o.is_admitting = sessions != SESSIONS_OFF;
    fleet_run(&w, NULL, &o, r);
    print_message("%u sessions: %.2f turns/s, found %.3f of what is known\n", n_sessions,
                  r->sessions.turns_per_s, r->sessions.hit_of_known);
    workload_free(&w);
}

/* Two workers keep 18 sessions of 75,000 tokens. */
static void agents_thrash_when_they_do_not_fit(void **state) {
    struct fleet_result few, many;
    (void)state;

    run_agents(9, SESSIONS_OFF, &few);
    run_agents(54, SESSIONS_OFF, &many);
    assert_true(few.sessions.hit_of_known > 0.95);
    assert_true(many.sessions.hit_of_known < 0.5);
    assert_true(few.sessions.turns_per_s > 0.3 && few.sessions.ttft_s < 3);
    assert_true(many.sessions.turns_per_s < 2 * few.sessions.turns_per_s);
}

static void agents_that_wait_as_whole_sessions_do_not_thrash(void **state) {
    struct fleet_result few, many, unnamed, free_for_all;
    (void)state;

    run_agents(9, SESSIONS_NAMED, &few);
    run_agents(54, SESSIONS_OFF, &free_for_all);
    run_agents(54, SESSIONS_NAMED, &many);
    run_agents(54, SESSIONS_UNNAMED, &unnamed);
    assert_true(few.sessions.held_share == 0);
    assert_true(many.sessions.turns_per_s > 1.5 * free_for_all.sessions.turns_per_s);
    assert_true(unnamed.sessions.turns_per_s > 1.5 * free_for_all.sessions.turns_per_s);
    assert_true(many.sessions.hit_of_known > 0.8);
    print_message("single chats: %.2f s, %.2f s without\n", many.sessions.single_ttft_s,
                  free_for_all.sessions.single_ttft_s);
    assert_true(many.sessions.single_ttft_s < 0.1 * free_for_all.sessions.single_ttft_s);
    assert_true(many.sessions.longest_held_s < 2.5 * many.sessions.mean_held_s);
    assert_int_equal(unnamed.sessions.joined.n_false, 0);
    assert_int_equal(unnamed.sessions.joined.n_joined, unnamed.sessions.joined.n_turns);
}

/* Chats before a worker whose cache they turn over within a minute. */
static double chats_ttft_s(enum router_sessions sessions) {
    struct fleet_options o = fleet_of(1, 300000, "prefix");
    struct fleet_result r;
    struct workload w;

    generate(&w, generator_find("conversations"), 5, 1200, 0.4);
    o.sessions = sessions;
    o.is_admitting = sessions != SESSIONS_OFF;
    fleet_run(&w, NULL, &o, &r);
    print_message("chats: %.3f s, %u sessions put to rest\n", r.mean_ttft_s,
                  r.sessions.joined.n_rested);
    workload_free(&w);
    return r.mean_ttft_s;
}

static void chats_wait_for_no_session_however_small_the_caches(void **state) {
    double without = chats_ttft_s(SESSIONS_OFF);
    (void)state;

    assert_true(without > 3); /* there is a queue */
    assert_float_equal(chats_ttft_s(SESSIONS_NAMED), without, 1e-9);
    assert_float_equal(chats_ttft_s(SESSIONS_UNNAMED), without, 1e-9);
}

/* --- every assignment ------------------------------------------------------------------------ */

/* Mean times to the first token under each assignment of the requests to two workers. */
static double try_all(const struct workload *w, double *ttft_s) {
    struct fleet_options o = fleet_of(2, 40000, "prefix");
    uint32_t list[N_REQUESTS];
    double least = INFINITY;

    o.chooser = CHOOSER_LIST;
    o.list = list;
    for (uint32_t a = 0; a < N_ASSIGNMENTS; a++) {
        for (uint32_t i = 0; i < N_REQUESTS; i++)
            list[i] = a >> i & 1;
        ttft_s[a] = mean_ttft_s(w, &o);
        least = fmin(least, ttft_s[a]);
    }
    return least;
}

static bool is_among(double value, const double *ttft_s) {
    for (uint32_t a = 0; a < N_ASSIGNMENTS; a++) {
        if (fabs(ttft_s[a] - value) < 1e-12) return true;
    }
    return false;
}

/* What a chooser gets is what one of the assignments gets. An oracle cannot see what comes next, so
 * it may miss the best; over all instances it is near, and no policy is nearer. */
static void an_oracle_is_near_the_best_assignment_and_no_policy_nearer(void **state) {
    static const char *const names[] = {"oracle_selfish", "oracle",  "prefix",     "cache_aware",
                                        "prefix_scorer",  "aibrix",  "least_load", "round_robin",
                                        "power_of_two",   "session", "chwbl",      "random"};
    double ttft_s[N_ASSIGNMENTS], best_s = 0, sums_s[ARRAY_LEN(names)] = {0};
    (void)state;

    for (uint64_t seed = 1; seed <= N_INSTANCES; seed++) {
        struct workload w;

        make_tiny(&w, seed);
        best_s += try_all(&w, ttft_s);
        for (size_t i = 0; i < ARRAY_LEN(names); i++) {
            struct fleet_options o = fleet_of(2, 40000, names[i]);
            double mean_s = mean_ttft_s(&w, &o);

            assert_true(is_among(mean_s, ttft_s));
            sums_s[i] += mean_s;
        }
        workload_free(&w);
    }
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        print_message("%-15s %.3f of the best assignment\n", names[i], sums_s[i] / best_s);
    assert_true(sums_s[0] <= 1.05 * best_s);
    for (size_t i = 1; i < ARRAY_LEN(names); i++)
        assert_true(sums_s[i] >= sums_s[0]);
}

/* --- bounds ---------------------------------------------------------------------------------- */

static void a_lone_request_takes_its_bound(void **state) {
    struct workload_request q = {.n_prompt = 3000, .n_output = 3};
    struct workload w = {.requests = &q, .n = 1, .block_tokens = BLOCK};
    struct fleet_options o = fleet_of(2, 100000, "prefix");
    (void)state;

    assert_float_equal(fleet_bound_s(&w, &o), mean_ttft_s(&w, &o), 1e-9);
}

/* Eight equal prompts at once, without a common block: two workers end the last after four. */
static void what_waits_is_bounded_by_all_workers_together(void **state) {
    struct workload_request q[8];
    struct workload w = {.requests = q, .n = ARRAY_LEN(q), .block_tokens = BLOCK};
    struct fleet_options o = fleet_of(2, 100000, "prefix");
    double one_s = worker_prefill_s(0, 2 * WORKER_CHUNK) + 2 * WORKER_STEP_S;
    (void)state;

    for (uint32_t i = 0; i < ARRAY_LEN(q); i++)
        q[i] = (struct workload_request){.n_prompt = 2 * WORKER_CHUNK, .n_output = 1};
    assert_float_equal(fleet_bound_s(&w, &o), one_s / 2 * (1 + 8) / 2, 1e-9);
    assert_true(mean_ttft_s(&w, &o) >= one_s * (1 + 4) / 2 - 1e-9);
}

/* A rollout that sees all is no worse than the oracle that it tries workers for. */
static void a_rollout_is_between_the_oracle_and_the_bound(void **state) {
    double oracle_s = 0, rollout_s = 0;
    (void)state;

    for (uint64_t seed = 1; seed <= N_INSTANCES / 2; seed++) {
        struct fleet_options oracle = fleet_of(2, 30000, "oracle"),
                             rollout = fleet_of(2, 30000, "rollout");
        double least_s;
        struct workload w;

        make_tiny(&w, seed);
        least_s = fleet_bound_s(&w, &oracle);
        for (uint32_t order = WORKER_FCFS; order <= WORKER_SRPT; order++) {
            oracle.worker.order = rollout.worker.order = (enum worker_order)order;
            oracle_s += mean_ttft_s(&w, &oracle);
            rollout_s += mean_ttft_s(&w, &rollout);
            assert_true(mean_ttft_s(&w, &rollout) >= least_s - 1e-9);
            assert_true(mean_ttft_s(&w, &oracle) >= least_s - 1e-9);
        }
        workload_free(&w);
    }
    assert_true(rollout_s < oracle_s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lone_request_takes_what_the_formula_says),
        cmocka_unit_test(a_repeated_prompt_is_found_but_for_its_last_token),
        cmocka_unit_test(blocks_are_conserved_under_every_chooser),
        cmocka_unit_test(shared_books_are_conserved_through_a_restart),
        cmocka_unit_test(a_crash_loses_only_what_had_its_first_token),
        cmocka_unit_test(late_reports_of_first_tokens_are_harmless),
        cmocka_unit_test(nothing_waits_at_low_load),
        cmocka_unit_test(those_that_wait_are_all_answered_and_sooner_on_average),
        cmocka_unit_test(a_flood_waits_for_itself_where_tenants_are_known),
        cmocka_unit_test(tenants_are_served_by_weight),
        cmocka_unit_test(agents_thrash_when_they_do_not_fit),
        cmocka_unit_test(agents_that_wait_as_whole_sessions_do_not_thrash),
        cmocka_unit_test(chats_wait_for_no_session_however_small_the_caches),
        cmocka_unit_test(a_lone_request_takes_its_bound),
        cmocka_unit_test(what_waits_is_bounded_by_all_workers_together),
        cmocka_unit_test(a_rollout_is_between_the_oracle_and_the_bound),
        cmocka_unit_test(an_oracle_is_near_the_best_assignment_and_no_policy_nearer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

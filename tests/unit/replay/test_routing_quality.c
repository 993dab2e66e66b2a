/* tests/unit/replay/test_routing_quality.c - the routing gate: conversation-shaped traffic on eight
 * modelled workers, near saturation, in virtual time.
 *
 * The default policy is held against an oracle that sees what workers really hold and do, and
 * against policies that know less. Nothing is timed, so the figures are the same everywhere; they
 * are means over the seeds, and the bars leave about as much room as one seed differs from the
 * next. That the gate notices a broken policy is tested too: with --cost-later-arrivals 0 (hits and
 * end-to-end time go), with books that never forget, with prefill priced without attention, without
 * an index. */
#include <stdlib.h>

#include "common/base/map.h"
#include "common/base/mem.h"
#include "tests/replay/fleet_model.h"
#include "tests/replay/workload/generator.h"
#include "tests/support/cm.h"

#define N_SEEDS    3
#define DURATION_S 2000
#define CHATS_PER_S                                                                                \
    3.6 /* round robin just manages; least_load waits three times as long as prefix */

static struct workload traffic[N_SEEDS];
static struct fleet_result oracle, least_load, round_robin, prefix;

/* Means over the seeds. */
static struct fleet_result run(const char *name, const struct fleet_options *o) {
    struct fleet_result sum = {0}, r;

    for (uint32_t i = 0; i < N_SEEDS; i++) {
        fleet_run(&traffic[i], NULL, o, &r);
        sum.mean_ttft_s += r.mean_ttft_s / N_SEEDS;
        sum.p99_ttft_s += r.p99_ttft_s / N_SEEDS;
        sum.mean_e2e_s += r.mean_e2e_s / N_SEEDS;
        sum.hit_share += r.hit_share / N_SEEDS;
        sum.busy_share += r.busy_share / N_SEEDS;
        sum.imbalance += r.imbalance / N_SEEDS;
    }
    print_message(
        "%-28s TTFT mean %.3f p99 %.2f, end to end %.2f s, hits %.2f %%, imbalance %.2f\n", name,
        sum.mean_ttft_s, sum.p99_ttft_s, sum.mean_e2e_s, 100 * sum.hit_share, sum.imbalance);
    return sum;
}

static struct fleet_result run_policy(const char *name) {
    struct fleet_options o;

    fleet_options_default(&o);
    assert_true(fleet_choose_by_name(&o, name));
    return run(name, &o);
}

static int set_up(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N_SEEDS; i++)
        generate(&traffic[i], generator_find("conversations"), i + 1, DURATION_S, CHATS_PER_S);
    oracle = run_policy("oracle");
    prefix = run_policy("prefix");
    least_load = run_policy("least_load");
    round_robin = run_policy("round_robin");
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N_SEEDS; i++)
        workload_free(&traffic[i]);
    return 0;
}

/* The bars. Returns the first that does not hold, NULL when all do. */
static const char *breach(const struct fleet_result *r) {
    if (r->mean_ttft_s > 1.02 * oracle.mean_ttft_s) return "mean TTFT <= 1.02 x oracle";
    if (r->mean_e2e_s > 1.08 * oracle.mean_e2e_s) return "end to end <= 1.08 x oracle";
    if (r->hit_share < 0.97 * oracle.hit_share) return "hits >= 0.97 x oracle";
    if (r->p99_ttft_s > 1.10 * oracle.p99_ttft_s) return "p99 <= 1.10 x oracle";
    if (r->mean_ttft_s > 0.45 * least_load.mean_ttft_s) return "mean TTFT <= 0.45 x least_load";
    if (r->mean_ttft_s > 0.14 * round_robin.mean_ttft_s) return "mean TTFT <= 0.14 x round_robin";
    if (r->p99_ttft_s > 0.25 * round_robin.p99_ttft_s) return "p99 <= 0.25 x round_robin";
    if (r->imbalance > 1.2) return "prefill imbalance <= 1.2";
    return NULL;
}

static void expect_breach(const char *name, const struct fleet_options *o) {
    struct fleet_result r = run(name, o);
    const char *bar = breach(&r);

    if (!bar) fail_msg("%s: the gate did not notice", name);
    print_message("%-28s breaks: %s\n", "", bar);
}

/* --- the traffic ----------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
    const uint32_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Sorts the values. */
static void assert_distribution(uint32_t *values, uint32_t n, uint64_t mean, uint64_t median,
                                uint64_t p99) {
    uint64_t sum = 0;

    qsort(values, n, sizeof(*values), by_size);
    for (uint32_t i = 0; i < n; i++)
        sum += values[i];
    assert_in_range(sum / n, mean * 9 / 10, mean * 11 / 10);
    assert_in_range(values[n / 2], median * 9 / 10, median * 11 / 10);
    assert_in_range(values[n * 99 / 100], p99 * 8 / 10, p99 * 12 / 10);
}

/* An hour, as the published one. */
static void the_traffic_has_the_published_shape(void **state) {
    struct workload c;
    struct map seen;
    uint32_t *values;
    double prompt_tokens = 0, shared_tokens = 0;
    (void)state;

    generate(&c, generator_find("conversations"), 7, 3600, 2.05);
    assert_in_range(c.n, 10800, 13200);
    assert_in_range(c.n_chains, 6900, 7900);
    values = mem_calloc(c.n, sizeof(*values));
    map_init(&seen, 1);
    for (uint32_t i = 0; i < c.n; i++) {
        const struct workload_request *q = &c.requests[i];
        uint32_t n = 0;

        assert_true(!i || q->arrival_s >= q[-1].arrival_s);
        while (n < q->n_blocks && map_find(&seen, q->chain[n]))
            n++;
        for (uint32_t b = n; b < q->n_blocks; b++)
            map_insert(&seen, q->chain[b], &seen);
        prompt_tokens += q->n_prompt;
        shared_tokens += n * TRACE_BLOCK;
        values[i] = q->n_prompt;
    }
    assert_distribution(values, c.n, 12035, 6909, 85399);
    for (uint32_t i = 0; i < c.n; i++)
        values[i] = c.requests[i].n_output;
    assert_distribution(values, c.n, 343, 350, 1115);
    assert_float_equal(shared_tokens / prompt_tokens, 0.374, 0.04);
    map_fini(&seen);
    mem_free(values);
    workload_free(&c);
}

static void equal_seeds_give_equal_figures(void **state) {
    struct fleet_options o;
    struct fleet_result r, again;
    (void)state;

    fleet_options_default(&o);
    fleet_run(&traffic[0], NULL, &o, &r);
    fleet_run(&traffic[0], NULL, &o, &again);
    assert_memory_equal(&r, &again, sizeof(r));
}

/* --- the gate -------------------------------------------------------------------------------- */

static void prefix_is_as_good_as_an_oracle(void **state) {
    const char *bar = breach(&prefix);
    (void)state;

    if (bar) fail_msg("does not hold: %s", bar);
}

/* With feedback a wrong declaration costs at most 15 % of the mean. */
static void a_wrong_capacity_is_corrected(void **state) {
    static const double factors[] = {0.5, 2, 8};
    struct fleet_options o;
    (void)state;

    fleet_options_default(&o);
    for (size_t i = 0; i < ARRAY_LEN(factors); i++) {
        struct fleet_result r;

        o.declared_capacity = factors[i];
        r = run(i == 0 ? "half the capacity" : i == 1 ? "twice" : "eight times", &o);
        assert_true(r.mean_ttft_s <= 1.15 * prefix.mean_ttft_s);
    }
}

static void the_gate_notices_a_selfish_policy(void **state) {
    struct fleet_options o;
    (void)state;

    fleet_options_default(&o);
    o.policy_options.cost_later_arrivals = o.policy_options.cost_fleet_busy = 0;
    expect_breach("cost-later-arrivals 0, cost-fleet-busy 0", &o);
}

static void the_gate_notices_books_that_never_forget(void **state) {
    struct fleet_options o;
    (void)state;

    fleet_options_default(&o);
    o.declared_capacity = 100;
    o.has_feedback = false;
    expect_breach("nothing forgotten", &o);
}

static void the_gate_notices_prefill_without_attention(void **state) {
    struct fleet_options o;
    (void)state;

    fleet_options_default(&o);
    o.declared_attn_context = 1e12;
    expect_breach("linear prefill", &o);
}

static void the_gate_notices_a_missing_index(void **state) {
    (void)state;
    assert_non_null(breach(&least_load));
    assert_non_null(breach(&round_robin));
}

static struct fleet_result run_documents(const char *name, const struct workload *c,
                                         uint32_t hashed_tokens) {
    struct fleet_options o;
    struct fleet_result r;

    fleet_options_default(&o);
    o.hashed_tokens = hashed_tokens;
    fleet_run(c, NULL, &o, &r);
    print_message("%-28s TTFT mean %.3f p99 %.2f s, hits %.2f %%\n", name, r.mean_ttft_s,
                  r.p99_ttft_s, 100 * r.hit_share);
    return r;
}

/* The default of --max-prefix-bytes in tokens of four bytes, and what it was. */
static void documents_are_hashed_as_far_as_it_matters(void **state) {
    struct fleet_result all, now, before;
    struct workload c;
    (void)state;

    generate(&c, generator_find("documents"), 11, DURATION_S, 1.5);
    all = run_documents("documents, hashed whole", &c, 0);
    now = run_documents("documents, 8 MiB", &c, (8u << 20) / 4);
    before = run_documents("documents, 256 KiB", &c, (256u << 10) / 4);
    assert_true(now.mean_ttft_s <= 1.03 * all.mean_ttft_s);
    assert_true(before.mean_ttft_s > 1.03 * all.mean_ttft_s);
    workload_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_traffic_has_the_published_shape),
        cmocka_unit_test(equal_seeds_give_equal_figures),
        cmocka_unit_test(prefix_is_as_good_as_an_oracle),
        cmocka_unit_test(a_wrong_capacity_is_corrected),
        cmocka_unit_test(the_gate_notices_a_selfish_policy),
        cmocka_unit_test(the_gate_notices_books_that_never_forget),
        cmocka_unit_test(the_gate_notices_prefill_without_attention),
        cmocka_unit_test(the_gate_notices_a_missing_index),
        cmocka_unit_test(documents_are_hashed_as_far_as_it_matters),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}

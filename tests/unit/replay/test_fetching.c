/* tests/unit/replay/test_fetching.c - a modelled fleet whose workers bring KV from one another:
 * what it gains with hot prefixes, and whether choices are right at several rates. */
#include <math.h>

#include "common/base/rng.h"
#include "tests/replay/fleet_model.h"
#include "tests/support/cm.h"

#define BLOCK      64
#define N_WORKERS  4
#define N_TEXTS    60
#define N_REQUESTS 1500
#define SPAN_S     60

/* Prompts that begin with one of some hot texts of 100 to 300 blocks, the first the hottest. */
static void make_hot(struct workload *w) {
    struct rng r;

    *w = (struct workload){.block_tokens = BLOCK};
    rng_seed(&r, 5);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        uint64_t text = (uint64_t)(N_TEXTS * pow(rng_f64(&r), 2)), own = rng_u64(&r);
        uint32_t n_shared = 100 + (uint32_t)rng_at(text, 999) % 200;
        uint32_t n_prompt = n_shared * BLOCK + 1 + (uint32_t)rng_below(&r, 10 * BLOCK);
        uint32_t n_blocks = n_prompt / BLOCK;
        uint64_t *chain = workload_new_chain(w, n_blocks);

        for (uint32_t b = 0; b < n_blocks; b++)
            chain[b] = workload_name(rng_at(b < n_shared ? text : own, b));
        workload_add(w, (struct workload_request){.arrival_s = SPAN_S * rng_f64(&r),
                                                  .n_prompt = n_prompt,
                                                  .n_output = 1 + (uint32_t)rng_below(&r, 200),
                                                  .n_blocks = n_blocks,
                                                  .n_names = n_blocks,
                                                  .chain = chain});
    }
    workload_sort(w);
}

static struct fleet_result run(const struct workload *w, double fetch_tokens_per_s,
                               uint32_t judged) {
    struct fleet_options o;
    struct fleet_result r;

    fleet_options_default(&o);
    o.n_workers = N_WORKERS;
    o.cache_tokens = 2000000;
    o.warm_share = 0;
    o.fetch_tokens_per_s = fetch_tokens_per_s;
    o.kv_bytes_per_token = 8192;
    o.judged_fetches = judged;
    assert_true(fleet_choose_by_name(&o, "prefix"));
    fleet_run(w, NULL, &o, &r);
    assert_int_equal(r.n, w->n);
    return r;
}

static void hot_prefixes_are_fetched_and_first_tokens_are_sooner(void **state) {
    struct workload w;
    struct fleet_result alone, together;
    (void)state;

    make_hot(&w);
    alone = run(&w, 0, 0);
    together = run(&w, 200000, 0);
    assert_true(alone.fetched_share == 0 && together.fetched_share > 0.05);
    assert_true(together.mean_ttft_s < 0.9 * alone.mean_ttft_s);
    workload_free(&w);
}

static void a_network_that_is_too_slow_changes_nothing_for_long(void **state) {
    struct workload w;
    struct fleet_result alone, slow;
    (void)state;

    make_hot(&w);
    alone = run(&w, 0, 0);
    slow = run(&w, 500, 0);
    assert_true(slow.fetched_share < 0.02);
    assert_true(slow.mean_ttft_s < 1.1 * alone.mean_ttft_s);
    workload_free(&w);
}

static void choices_are_right_at_every_rate(void **state) {
    const double gigabits[] = {0.1, 1, 10};
    struct workload w;
    (void)state;

    make_hot(&w);
    for (size_t i = 0; i < ARRAY_LEN(gigabits); i++) {
        struct fleet_result r = run(&w, gigabits[i] * 1e9 / 8 / 8192, 1);

        assert_true(r.fetches.n > 0);
        assert_true(r.fetches.n_right_5pc >= 0.95 * r.fetches.n);
    }
    workload_free(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hot_prefixes_are_fetched_and_first_tokens_are_sooner),
        cmocka_unit_test(a_network_that_is_too_slow_changes_nothing_for_long),
        cmocka_unit_test(choices_are_right_at_every_rate),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

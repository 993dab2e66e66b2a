/* tests/unit/worker/engine/test_engine_restored.c - restored equals recomputed, bit for bit: random
 * prompts, with every place below the device and every type of KV, in batches, while others are
 * cancelled and preempted beside them.
 *
 * PROMPTS=10000 is the number for each pair of place and type (48). Prompts are drawn in rounds: an
 * engine without a cache computes the answers, a second one writes, and a third one with other room
 * and another budget restores; with host memory alone the third one does both. Two ranks are
 * compared with one; below host memory they keep nothing. What comes from other workers:
 * test_engine_fetched.c. */
#include <string.h>

#include "tests/support/support.h"
#include "tests/support/tier_place.h"
#include "tests/support/tier_prompts.h"

static const enum dtype kv_dtypes[] = {DTYPE_BF16, DTYPE_F32, DTYPE_F8E4M3};

/* Each prompt twice: what is met once is not written. */
static void write_below(const struct round *x, const struct tier_place *place) {
    struct setup s = {.machine = x->machine,
                      .n_blocks = 30,
                      .host_blocks = 300,
                      .tier = tier_place_source(place)};
    struct engine_fixture w;

    fixture_open(&w, &s);
    run_each(&w, x);
    run_each(&w, x);
    WAIT_UNTIL(stats_of(&w).tiers[0].stores[TIER_OK] >= x->n_blocks);
    fixture_close(&w);
}

static void restore(struct round *x, const struct tier_place *place, struct restored *t) {
    struct setup s = setup_to_restore(x);
    struct engine_fixture w;

    s.tier = tier_place_source(place);
    if (place->kind == PLACE_HOST) s.host_blocks = 300;
    fixture_open(&w, &s);
    if (place->kind == PLACE_HOST) run_each(&w, x);
    restore_all(x, &w, NULL, tier_place_names[place->kind], t);
    fixture_close(&w);
}

static void prove(enum tier_place_kind kind, const struct machine *m) {
    static struct round x;
    struct restored t = {0};
    struct tier_place place;

    if (!tier_place_init(&place, kind)) {
        print_message("SKIPPED a real Redis: make deps-test\n");
        return;
    }
    while (t.n_prompts < restored_wanted()) {
        draw_prompts(&x, m, support_seed() * 1000003 + t.n_prompts);
        compute(&x);
        if (kind != PLACE_HOST) write_below(&x, &place);
        restore(&x, &place, &t);
        tier_place_empty(&place);
    }
    tier_place_fini(&place);
    restored_report(&t, tier_place_names[kind], m->kv_dtype);
}

static void prove_all_types(enum tier_place_kind kind, struct machine m) {
    for (size_t k = 0; k < ARRAY_LEN(kv_dtypes); k++) {
        m.kv_dtype = kv_dtypes[k];
        prove(kind, &m);
    }
}

static const struct machine cpu = {.ops = &backend_cpu};
static const struct machine two_ranks = {.ops = &backend_tp, .ranks = &backend_cpu};

static void from_host_memory_come_the_bits_computed(void **state) {
    (void)state;
    prove_all_types(PLACE_HOST, cpu);
}

static void from_host_memory_of_two_ranks_come_the_bits_computed(void **state) {
    (void)state;
    prove_all_types(PLACE_HOST, two_ranks);
}

static void from_a_folder_come_the_bits_computed(void **state) {
    (void)state;
    prove_all_types(PLACE_FILE, cpu);
}

static void from_a_store_come_the_bits_computed(void **state) {
    (void)state;
    prove_all_types(PLACE_STORE, cpu);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_host_memory_come_the_bits_computed),
        cmocka_unit_test(from_host_memory_of_two_ranks_come_the_bits_computed),
        cmocka_unit_test(from_a_folder_come_the_bits_computed),
        cmocka_unit_test(from_a_store_come_the_bits_computed),
    };

    gate_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/worker/engine/test_engine_restored.c - restored equals recomputed, bit for bit: random
 * prompts, with every place below the device and every type of KV, in batches, while others are
 * cancelled and preempted beside them.
 *
 * PROMPTS=10000 is the number for each pair of place and type (48). Prompts are drawn in rounds: an
 * engine without a cache computes the answers, a second one writes, and a third one with other room
 * and another budget restores; with host memory alone the third one does both. Two ranks are
 * compared with one; below host memory they keep nothing. */
#include <string.h>

#include "tests/support/support.h"
#include "tests/support/tier_place.h"
#include "tests/support/tier_prompts.h"

static const enum dtype kv_dtypes[] = {DTYPE_BF16, DTYPE_F32, DTYPE_F8E4M3};

struct totals {
    uint64_t n_prompts, n_cancelled, preemptions, found_tokens, could_tokens;
};

static uint32_t n_prompts(void) {
    const char *s = getenv("PROMPTS");

    return s ? (uint32_t)atoi(s) : 3 * ROUND;
}

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

/* Little room on the device preempts, little in host memory restores in pieces. */
static struct setup setup_to_restore(struct round *x, const struct tier_place *place) {
    static const uint32_t device[] = {14, 30, 90}, host[] = {8, 60, 300}, budget[] = {24, 64, 512};
    static const enum preemption_mode modes[] = {PREEMPT_RECOMPUTE, PREEMPT_SWAP};

    return (struct setup){.machine = x->machine,
                          .n_blocks = device[draw(x, 3)],
                          .host_blocks = place->kind == PLACE_HOST ? 300 : host[draw(x, 3)],
                          .budget = budget[draw(x, 3)],
                          .max_seqs = 1 + draw(x, 8),
                          .preemption = modes[draw(x, 2)],
                          .tier = tier_place_source(place)};
}

/* All at once; some are cancelled at some time. What they had until then is right, too. */
static void restore(struct round *x, const struct tier_place *place, struct totals *t) {
    static struct answer answers[ROUND];
    struct setup s = setup_to_restore(x, place);
    struct request *r[ROUND];
    struct engine_fixture w;
    uint32_t order = draw(x, ROUND);

    memset(answers, 0, sizeof(answers));
    fixture_open(&w, &s);
    if (place->kind == PLACE_HOST) run_each(&w, x);
    w.lets_go = true;
    for (uint32_t i = 0; i < ROUND; i++) {
        uint32_t k = (i * 5 + order) % ROUND;
        struct request_params params = params_of(x, k);

        r[k] = submit(&w, &params, &answers[k]);
        if (draw(x, 4) == 0) loop_turn(w.loop, draw(x, 300));
        if (draw(x, 8) == 0) engine_cancel(w.e, r[draw(x, 2) || i == 0 ? k : (k + 11) % ROUND]);
    }
    fixture_run(&w);
    for (uint32_t i = 0; i < ROUND; i++) {
        t->n_prompts++;
        if (answers[i].finish == FINISH_ABORT) {
            t->n_cancelled++;
            assert_memory_equal(answers[i].token, x->computed[i].token,
                                answers[i].n * sizeof(answers[i].token[0]));
        } else {
            assert_same(&x->computed[i], &answers[i], tier_place_names[place->kind], i);
            t->found_tokens += answers[i].cached_tokens;
            t->could_tokens += (x->n[i] - 1) / BLOCK * BLOCK;
        }
        request_unref(r[i]);
    }
    t->preemptions += stats_of(&w).preemptions;
    WAIT_UNTIL(stats_of(&w).host_held == 0);
    assert_idle(&w);
    fixture_close(&w);
}

static void prove(enum tier_place_kind kind, const struct machine *m) {
    static struct round x;
    struct totals t = {0};
    struct tier_place place;

    if (!tier_place_init(&place, kind)) {
        print_message("SKIPPED a real Redis: make deps-test\n");
        return;
    }
    while (t.n_prompts < n_prompts()) {
        draw_prompts(&x, m, support_seed() * 1000003 + t.n_prompts);
        compute(&x);
        if (kind != PLACE_HOST) write_below(&x, &place);
        restore(&x, &place, &t);
        tier_place_empty(&place);
    }
    tier_place_fini(&place);
    print_message("%-6s %-8s %6llu prompts, %llu cancelled, %llu preemptions, %.0f%% restored\n",
                  tier_place_names[kind], dtype_name(m->kv_dtype), (unsigned long long)t.n_prompts,
                  (unsigned long long)t.n_cancelled, (unsigned long long)t.preemptions,
                  100.0 * (double)t.found_tokens / (double)t.could_tokens);
    assert_true(2 * t.found_tokens > t.could_tokens);
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

/* tests/unit/worker/engine/test_engine_fetched.c - fetched equals recomputed, bit for bit: random
 * prompts that one worker has computed and another one brings from its memory, with every type of
 * KV, plain and encrypted, in batches, while others are cancelled and preempted beside them.
 *
 * PROMPTS=10000 is the number for each type (48). Each round has an engine without a cache, which
 * computes the answers, a source, and a sink with other room and another budget. Workers of several
 * ranks fetch nothing (check_tiers in engine_tiers.c). */
#include "tests/support/engine_peer.h"
#include "tests/support/tier_prompts.h"

static const uint8_t fleet_key[1][32] = {{3}};

static void fetch(struct round *x, struct restored *t) {
    struct setup s = {.machine = x->machine, .n_blocks = 30, .host_blocks = 300};
    static struct peer_worker source, sink;
    const uint8_t(*key)[32] = draw(x, 2) ? fleet_key : NULL;

    s.fleet_key = key;
    peer_worker_open(&source, &s, 1, PEER_TEST_PATIENT);
    run_each(&source.engine, x);
    s = setup_to_restore(x);
    s.fleet_key = key;
    peer_worker_open(&sink, &s, 2, PEER_TEST_PATIENT);
    restore_all(x, &sink.engine, &source.door.source, "peer", t);
    assert_at_rest(&source.engine);
    peer_worker_close(&sink);
    peer_worker_close(&source);
}

static void prove(enum dtype kv_dtype) {
    struct machine m = {.ops = &backend_cpu, .kv_dtype = kv_dtype};
    struct restored t = {0};
    static struct round x;

    while (t.n_prompts < restored_wanted()) {
        draw_prompts(&x, &m, support_seed() * 1000003 + t.n_prompts);
        compute(&x);
        fetch(&x, &t);
    }
    restored_report(&t, "peer", kv_dtype);
}

static void from_a_worker_come_the_bits_computed_bf16(void **state) {
    (void)state;
    prove(DTYPE_BF16);
}

static void from_a_worker_come_the_bits_computed_f32(void **state) {
    (void)state;
    prove(DTYPE_F32);
}

static void from_a_worker_come_the_bits_computed_fp8(void **state) {
    (void)state;
    prove(DTYPE_F8E4M3);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_a_worker_come_the_bits_computed_bf16),
        cmocka_unit_test(from_a_worker_come_the_bits_computed_f32),
        cmocka_unit_test(from_a_worker_come_the_bits_computed_fp8),
    };

    gate_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/cuda/shim/test_cuda_graphs.c - recorded steps of prompts, prefix hits and mixed steps:
 * the bits of the same step launched call by call, and what the host is spared. */
#include "tests/unit/cuda/shim/cuda_fixture.h"

#define N_STEPS 8u

static const struct cuda_fixture_setup setup = {
    .max_rows = 12, .max_step_tokens = 100, .max_outputs = 12};

struct answers {
    uint32_t n[N_STEPS];
    int32_t token[N_STEPS][12];
    float top[N_STEPS][12 * CUDA_FIXTURE_TOP];
};

/* Steps beyond GEMV_MAX_ROWS tokens have no graph any more. */
static void drop_graphs(struct backend_model *m) {
    for (uint32_t i = 0; i < 2 * CUDA_MAX_SPANS; i++) {
        gpu_graph_close(m->span_graph[i % 2][i / 2]);
        m->span_graph[i % 2][i / 2] = NULL;
    }
}

/* Rows come and go; each step gives every row that is left some of its tokens. */
static void plan_random(struct cuda_fixture *s, struct rng *rng) {
    uint32_t n_left = setup.max_step_tokens;

    for (uint32_t q = 0; q < setup.max_rows; q++) {
        uint32_t n;

        if (s->seq[q].is_live && s->seq[q].n > 110) cuda_fixture_end(s, q);
        if (!s->seq[q].is_live && rng_below(rng, 3) == 0)
            cuda_fixture_start(s, q, 1 + (uint32_t)rng_below(rng, 90));
        if (!s->seq[q].is_live || n_left == 0) continue;
        n = MIN(cuda_fixture_left(s, q), n_left);
        if (n > 1 && rng_below(rng, 2)) n = 1 + (uint32_t)rng_below(rng, n);
        cuda_fixture_plan(s, q, n);
        n_left -= n;
    }
}

static void run(const struct tiny_shape *shape, const struct cuda_fixture_setup *how, uint64_t seed,
                bool has_graphs, struct answers *out) {
    struct cuda_fixture *s = cuda_fixture_open_alone(shape, how, 11);
    struct rng rng;

    memset(out, 0, sizeof(*out));
    rng_seed(&rng, 5);
    shim_set(seed, seed % 2 ? SHIM_COPIES_LATE : SHIM_COPIES_EARLY);
    if (!how->tp_size) cuda_fixture_poison(&s->cuda, s->setup.n_blocks);
    if (!has_graphs) drop_graphs(s->cuda.model);
    for (uint32_t i = 0; i < N_STEPS; i++) {
        plan_random(s, &rng);
        cuda_fixture_step(s);
        out->n[i] = s->step.n_outputs;
        memcpy(out->token[i], s->cuda.stage[0].out_token, s->step.n_outputs * sizeof(int32_t));
        memcpy(out->top[i], s->cuda.stage[0].out_top_logprob,
               s->step.n_outputs * CUDA_FIXTURE_TOP * sizeof(float));
    }
    cuda_fixture_close(s);
}

static void check_bits(const struct tiny_shape *shape, bool is_deterministic) {
    struct cuda_fixture_setup how = setup;
    struct shim_calls with, without;
    static struct answers got, want;

    how.is_deterministic = is_deterministic;
    for (uint64_t seed = 0; seed < 3; seed++) {
        shim_calls_clear();
        run(shape, &how, seed, false, &want);
        shim_calls(&without);
        shim_calls_clear();
        run(shape, &how, seed, true, &got);
        shim_calls(&with);
        assert_memory_equal(&got, &want, sizeof(got));
        assert_true(with.n_graphs > without.n_graphs + N_STEPS / 2);
    }
}

static void recorded_steps_have_the_bits_of_single_launches(void **state) {
    (void)state;
    check_bits(&cuda_fixture_llama, false);
    check_bits(&cuda_fixture_llama, true);
}

static void with_windows_and_groups_too(void **state) {
    struct tiny_shape shape = cuda_fixture_llama;

    (void)state;
    shape.sliding_window = 21;
    shape.n_heads = 8;
    shape.n_kv_heads = 2;
    shape.has_qk_norm = true;
    check_bits(&shape, false);
    check_bits(&shape, true);
}

/* A prefix hit and a mixed step: what the host calls for each. */
static void the_host_calls_once_for_a_layerful(void **state) {
    struct cuda_fixture *s = cuda_fixture_open_alone(&cuda_fixture_llama, &setup, 3);
    struct shim_calls calls;

    (void)state;
    s->how.n_logprobs = 0;
    cuda_fixture_start(s, 0, 40);
    cuda_fixture_plan(s, 0, 40);
    shim_calls_clear();
    cuda_fixture_step(s);
    shim_calls(&calls);
    print_message("prompt: %llu kernels, %llu products, %llu copies, %llu graphs of %llu nodes\n",
                  (unsigned long long)calls.n_kernels, (unsigned long long)calls.n_products,
                  (unsigned long long)calls.n_copies, (unsigned long long)calls.n_graphs,
                  (unsigned long long)calls.n_nodes);
    assert_int_equal(calls.n_graphs, 1);
    assert_int_equal(calls.n_copies, 0);
    assert_true(calls.n_kernels + calls.n_products <= 5); /* both ends, the head, sampling */
    cuda_fixture_start(s, 1, 30);
    cuda_fixture_plan(s, 0, 1);
    cuda_fixture_plan(s, 1, 30);
    shim_calls_clear();
    cuda_fixture_step(s);
    shim_calls(&calls);
    print_message("mixed: %llu kernels, %llu products, %llu copies, %llu graphs of %llu nodes\n",
                  (unsigned long long)calls.n_kernels, (unsigned long long)calls.n_products,
                  (unsigned long long)calls.n_copies, (unsigned long long)calls.n_graphs,
                  (unsigned long long)calls.n_nodes);
    assert_int_equal(calls.n_graphs, 1);
    cuda_fixture_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_steps_have_the_bits_of_single_launches),
        cmocka_unit_test(with_windows_and_groups_too),
        cmocka_unit_test(the_host_calls_once_for_a_layerful),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/cuda/shim/test_overlap.c - kernels that begin before the one before them has ended:
 * what the shim catches, and a backend whose bits do not depend on it. */
#include "tests/unit/cuda/shim/child.h"
#include "tests/unit/cuda/shim/cuda_fixture.h"
#include "tests/unit/cuda/shim/trial_kernels.h"

#define N       100u
#define N_STEPS 6u

/* --- two kernels, one behind the other */

struct pair {
    struct gpu *gpu;
    struct gpu_stream *s;
    float *host, *x, *y; /* (N); host is pinned */
};

static void pair_open(struct pair *r) {
    struct error err = {0};

    cuda_fixture_must(gpu_open(&r->gpu, 0, &err), &err, "open");
    cuda_fixture_must(gpu_stream_open(r->gpu, &r->s, &err), &err, "stream");
    cuda_fixture_must(gpu_alloc_pinned(r->gpu, (void **)&r->host, N * 4, "host", &err), &err, "");
    cuda_fixture_must(gpu_alloc(r->gpu, (void **)&r->x, N * 4, "x", &err), &err, "x");
    cuda_fixture_must(gpu_alloc(r->gpu, (void **)&r->y, N * 4, "y", &err), &err, "y");
    for (uint32_t i = 0; i < N; i++)
        r->host[i] = (float)i;
    gpu_copy(r->s, r->x, r->host, N * 4);
}

static void pair_close(struct pair *r) {
    gpu_stream_close(r->s);
    gpu_free(r->gpu, r->host);
    gpu_free(r->gpu, r->x);
    gpu_free(r->gpu, r->y);
    gpu_close(r->gpu);
}

/* y = i + (i + 1). The second kernel may read the host's numbers before its wait. */
static void run_pair(struct pair *r, bool has_copy_between) {
    pair_open(r);
    trial_add(r->s, &(struct trial_add){r->x, r->x, 1, N});
    if (has_copy_between) gpu_fill(r->s, r->y, 0, N * 4);
    trial_behind(r->s, &(struct trial_behind){r->host, r->x, r->y, N});
    gpu_copy(r->s, r->host, r->y, N * 4);
    assert_int_equal(gpu_stream_wait(r->s, NULL), ST_OK);
}

static bool pair_is_right(bool has_copy_between) {
    struct pair r;
    bool is_right = true;

    run_pair(&r, has_copy_between);
    for (uint32_t i = 0; i < N; i++)
        is_right &= r.host[i] == (float)(2 * i + 1);
    pair_close(&r);
    return is_right;
}

static void a_read_before_the_wait_is_poison(void **state) {
    (void)state;
    shim_set_overlap(true);
    assert_true(pair_is_right(false));
    shim_plant("early_read");
    for (uint64_t seed = 0; seed < 4; seed++) {
        shim_set(seed, SHIM_COPIES_LATE);
        assert_false(pair_is_right(false));
        assert_true(pair_is_right(true)); /* behind a copy nothing overlaps, */
    }
    shim_set_sm(80);
    assert_true(pair_is_right(false)); /* nor on an older device */
    shim_set_sm(90);
    shim_plant(NULL);
}

struct broken {
    const char *plant, *sentence;
};

static void run_planted(void *arg) {
    const struct broken *broken = arg;
    struct pair r;

    shim_set_overlap(true);
    shim_plant(broken->plant);
    run_pair(&r, false);
}

static void what_breaks_the_chain_ends_the_process(void **state) {
    struct broken all[] = {
        {"early_write", "the block has written to global memory"},
        {"early_dependents", "simt_launch_dependents before simt_wait_for_primary"},
        {"no_wait_at_the_tail", "simt_wait_for_primary"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        assert_true(child_prints(run_planted, &all[i], all[i].sentence));
}

/* --- the backend */

struct answers {
    int32_t token[N_STEPS][CUDA_FIXTURE_ROWS];
    float top[N_STEPS][CUDA_FIXTURE_ROWS * CUDA_FIXTURE_TOP];
};

/* Prompts, then one row, then many, then mixed steps; sampled with every filter. */
static void run_backend(uint32_t sm, bool is_deterministic, uint64_t seed, struct answers *out) {
    const struct cuda_fixture_setup setup = {
        .max_rows = 12, .max_step_tokens = 60, .is_deterministic = is_deterministic};
    struct cuda_fixture *s;

    memset(out, 0, sizeof(*out));
    shim_set_sm(sm);
    s = cuda_fixture_open_alone(&cuda_fixture_llama, &setup, 11);
    shim_set(seed, seed % 2 ? SHIM_COPIES_LATE : SHIM_COPIES_EARLY);
    s->how.temperature = 0.8f;
    s->how.top_p = 0.9f;
    s->how.top_k = 20;
    s->how.repetition_penalty = 1.2f;
    cuda_fixture_start(s, 0, 9);
    for (uint32_t i = 0; i < N_STEPS; i++) {
        for (uint32_t q = 1; i == 2 && q < 11; q++)
            cuda_fixture_start(s, q, 1 + q % 4);
        if (i == 4) cuda_fixture_start(s, 11, 30);
        for (uint32_t q = 0; q < 12; q++)
            if (s->seq[q].is_live) cuda_fixture_plan(s, q, cuda_fixture_left(s, q));
        cuda_fixture_step(s);
        memcpy(out->token[i], s->cuda.stage[0].out_token, s->step.n_outputs * sizeof(int32_t));
        memcpy(out->top[i], s->cuda.stage[0].out_top_logprob,
               s->step.n_outputs * CUDA_FIXTURE_TOP * sizeof(float));
    }
    cuda_fixture_close(s);
    shim_set_sm(90);
}

static void overlapping_launches_change_no_bit(void **state) {
    static struct answers want, got;

    (void)state;
    for (int is_deterministic = 0; is_deterministic < 2; is_deterministic++) {
        run_backend(80, is_deterministic, 0, &want);
        for (uint64_t seed = 0; seed < 3; seed++) {
            run_backend(90, is_deterministic, seed, &got);
            assert_memory_equal(&got, &want, sizeof(got));
        }
    }
}

static void a_kernel_that_reads_too_early_is_caught(void **state) {
    static const char *const plants[] = {"gemv_early_read", "norm_early_read"};
    static struct answers want, got;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(plants); i++) {
        run_backend(90, i == 1, 0, &want);
        shim_plant(plants[i]);
        run_backend(90, i == 1, 0, &got);
        shim_plant(NULL);
        assert_memory_not_equal(&got, &want, sizeof(got));
    }
}

static int always(void **state) {
    (void)state;
    shim_set_overlap(true);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_read_before_the_wait_is_poison),
        cmocka_unit_test(what_breaks_the_chain_ends_the_process),
        cmocka_unit_test(overlapping_launches_change_no_bit),
        cmocka_unit_test(a_kernel_that_reads_too_early_is_caught),
    };

    return cmocka_run_group_tests(tests, always, NULL);
}

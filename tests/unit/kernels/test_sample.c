/* tests/unit/kernels/test_sample.c - the sampler: exact filters, exact reports, fair draws. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/exp.h"
#include "kernels/sample.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#define V 60u /* small vocabulary of the drawing tests */

static const struct backend_output greedy = {
    .top_p = 1, .repetition_penalty = 1, .mask = BACKEND_NO_MASK};

static struct sample_result run(const float *logits, uint32_t vocab,
                                const struct sample_input *with, const struct backend_output *how) {
    static int32_t top[5];
    static float top_logprob[5];
    struct sample_scratch *s = sample_scratch_create(vocab);
    struct sample_result r = {.top_token = top, .top_logprob = top_logprob};
    struct sample_input in = with ? *with : (struct sample_input){0};

    assert_non_null(s);
    in.logits = logits;
    in.output = how;
    in.n_top = 5;
    sample(&in, s, &r);
    sample_scratch_destroy(s);
    return r;
}

static void exp_is_exact_enough(void **state) {
    (void)state;
    assert_true(exp_f32(0) == 1.0f && exp_f32(-0.0f) == 1.0f);
    assert_true(exp_f32(-INFINITY) == 0 && exp_f32(-88) == 0 && isfinite(exp_f32(1e9f)));
    for (float x = -87.2f; x < 88; x += 0.0137f) {
        double want = exp((double)x);

        assert_true(fabs((double)exp_f32(x) - want) <= 2.4e-7 * want);
    }
}

static void greedy_takes_the_best_and_the_smaller_id_of_two(void **state) {
    float x[V];

    (void)state;
    for (uint32_t i = 0; i < V; i++)
        x[i] = -(float)(i % 7);
    assert_int_equal(run(x, V, NULL, &greedy).token, 0);
    x[20] = x[33] = 3;
    assert_int_equal(run(x, V, NULL, &greedy).token, 20);
    x[0] = -0.0f;
    x[1] = 0.0f;
    for (uint32_t i = 2; i < V; i++)
        x[i] = -1;
    assert_int_equal(run(x, V, NULL, &greedy).token, 0);
}

static void reports_are_of_the_raw_logits(void **state) {
    float x[V];
    struct backend_bias bias[] = {{0, 7, 100}};
    struct sample_input in = {.bias = bias, .n_bias = 1};
    struct backend_output how = greedy;
    struct sample_result r;
    double sum = 0;

    (void)state;
    for (uint32_t i = 0; i < V; i++)
        sum += exp((double)(x[i] = (float)i / 10));
    how.n_logprobs = 3;
    r = run(x, V, &in, &how);
    assert_int_equal(r.token, 7);
    assert_int_equal(r.rank, V - 7);
    assert_true(fabs(r.logprob - (0.7 - log(sum))) < 1e-6);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(r.top_token[i], V - 1 - i);
        assert_true(fabs(r.top_logprob[i] - (x[V - 1 - i] - log(sum))) < 1e-6);
    }
    how.want = WANT_SCORE;
    how.score_token = 58;
    r = run(x, V, &in, &how);
    assert_int_equal(r.token, 58);
    assert_int_equal(r.rank, 2);
    x[59] = x[57]; /* ties rank by id */
    assert_int_equal(run(x, V, &in, &how).rank, 1);
    how.score_token = 59;
    assert_int_equal(run(x, V, &in, &how).rank, 3);
}

static void penalties_count_prompt_and_output_apart(void **state) {
    static const uint32_t history[] = {3, 3, 4, 5, 5, 5, 6};
    float x[V] = {0};
    struct sample_input in = {.history = history, .n_prompt = 4, .n_history = 7};
    struct backend_output how = greedy;

    (void)state;
    for (uint32_t i = 0; i < V; i++)
        x[i] = -5;
    x[3] = 4, x[4] = -4.9f, x[8] = 2.5f;
    how.repetition_penalty = 2; /* 3: 2; 4: -9.8 */
    assert_int_equal(run(x, V, &in, &how).token, 8);
    how.repetition_penalty = 1.5f; /* 3: 2.67 */
    assert_int_equal(run(x, V, &in, &how).token, 3);
    how.repetition_penalty = 1;
    how.frequency_penalty = 10; /* the prompt does not count */
    how.presence_penalty = 10;
    assert_int_equal(run(x, V, &in, &how).token, 3);
    x[5] = 20, x[6] = 15; /* 5: once in the prompt, twice in the output: 20 - 3 * ... */
    in.n_prompt = 3;      /* output: 5 5 5 6 */
    how.frequency_penalty = 3, how.presence_penalty = 0; /* 5: 11, 6: 12 */
    assert_int_equal(run(x, V, &in, &how).token, 6);
    how.frequency_penalty = 0, how.presence_penalty = 11; /* 5: 9, 6: 4, 3: 4 */
    assert_int_equal(run(x, V, &in, &how).token, 5);
}

static void a_mask_forbids_and_an_empty_one_is_flagged(void **state) {
    float x[V];
    uint32_t mask[CEIL_DIV(V, 32)] = {0};
    struct sample_input in = {.mask = mask};
    struct backend_output how = greedy;
    struct sample_result r;

    (void)state;
    for (uint32_t i = 0; i < V; i++)
        x[i] = (float)i;
    mask[1] = 1u << 3 | 1u << 9;
    assert_int_equal(run(x, V, &in, &how).token, 41);
    how.temperature = 100;
    for (how.seed = 0; how.seed < 50; how.seed++) {
        r = run(x, V, &in, &how);
        assert_true(r.token == 35 || r.token == 41);
    }
    mask[1] = 0;
    r = run(x, V, &in, &how);
    assert_int_equal(r.flags, OUT_NONE_ALLOWED);
    assert_int_equal(r.token, V - 1);
}

static void logits_that_are_not_finite_are_flagged_and_never_chosen(void **state) {
    float x[V] = {0};
    struct backend_output how = greedy;

    (void)state;
    x[5] = NAN, x[6] = INFINITY, x[7] = 1;
    assert_int_equal(run(x, V, NULL, &how).token, 7);
    assert_int_equal(run(x, V, NULL, &how).flags, OUT_NOT_FINITE);
    how.temperature = 1;
    for (how.seed = 0; how.seed < 300; how.seed++) {
        int32_t token = run(x, V, NULL, &how).token;

        assert_true(token != 5 && token != 6);
    }
    for (uint32_t i = 0; i < V; i++)
        x[i] = NAN;
    assert_int_equal(run(x, V, NULL, &how).token, 0);
    assert_int_equal(run(x, V, NULL, &how).flags & OUT_NOT_FINITE, OUT_NOT_FINITE);
}

/* --- filters against the obvious ------------------------------------------------------------- */

static const float *sorting_by;

static int by_rank(const void *a, const void *b) {
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

    if (sorting_by[i] != sorting_by[j]) return sorting_by[i] > sorting_by[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

/* The kept probabilities in doubles. Returns the distance of the nearest top-p or
 * min-p boundary. */
static double expected(double *p, const float *x, uint32_t vocab, const struct backend_output *o) {
    uint32_t *order = mem_calloc(vocab, sizeof(*order)), n = vocab, kept = 0;
    double mass = 0, run_mass = 0, near = 1, total = 0;

    for (uint32_t i = 0; i < vocab; i++)
        order[i] = i;
    sorting_by = x;
    qsort(order, vocab, sizeof(*order), by_rank);
    for (uint32_t i = 0; i < vocab; i++)
        p[i] = exp(((double)x[i] - x[order[0]]) / (double)o->temperature);
    if (o->top_k && o->top_k < n) n = o->top_k;
    for (uint32_t i = 0; i < n; i++)
        mass += p[order[i]];
    for (kept = 0; kept < n; kept++) {
        if (o->top_p < 1 && run_mass >= (double)o->top_p * mass) break;
        run_mass += p[order[kept]];
        if (o->top_p < 1) near = fmin(near, fabs(run_mass / mass - (double)o->top_p));
    }
    for (uint32_t i = 0; i < vocab; i++) {
        uint32_t id = order[i];

        if (o->min_p > 0) near = fmin(near, fabs(p[id] - (double)o->min_p));
        if (i >= kept || p[id] < (double)o->min_p) p[id] = 0;
        total += p[id];
    }
    for (uint32_t i = 0; i < vocab; i++)
        p[i] /= total;
    mem_free(order);
    return near;
}

static void filters_keep_exactly_the_right_tokens(void **state) {
    struct rng r;
    float *x = mem_calloc(3000, sizeof(*x));
    double *p = mem_calloc(3000, sizeof(*p));

    (void)state;
    rng_seed(&r, support_seed());
    for (int round = 0; round < 1500; round++) {
        uint32_t vocab =
            round % 3 ? 1 + (uint32_t)rng_below(&r, 80) : 1 + (uint32_t)rng_below(&r, 3000);
        struct backend_output o = greedy;
        struct sample_result got;
        double u, sum = 0, before = 0;

        for (uint32_t i = 0; i < vocab; i++) /* coarse, so that there are ties */
            x[i] = (float)((double)rng_below(&r, 200) / 16);
        o.temperature = 0.3f + (float)rng_f64(&r) * 2;
        o.top_k = rng_below(&r, 2) ? (uint32_t)rng_below(&r, vocab + 2) : 0;
        o.top_p = rng_below(&r, 2) ? (float)rng_f64(&r) : 1;
        o.min_p = rng_below(&r, 2) ? (float)rng_f64(&r) * 0.3f : 0;
        o.seed = rng_u64(&r);
        o.position = (uint32_t)round;
        if (expected(p, x, vocab, &o) < 1e-6) continue; /* on an edge: either answer is right */
        got = run(x, vocab, NULL, &o);
        assert_true(p[got.token] > 0);
        u = (double)(rng_at(o.seed, o.position) >> 11) * 0x1p-53;
        for (uint32_t i = 0; i < vocab; i++) {
            if ((int32_t)i < got.token) before += p[i];
            if ((int32_t)i <= got.token) sum += p[i];
        }
        assert_true(u >= before - 1e-5 && u <= sum + 1e-5);
    }
    mem_free(x);
    mem_free(p);
}

static void draws_are_fair(void **state) {
    enum { DRAWS = 40000 };
    struct backend_output o = greedy;
    uint32_t count[V] = {0}, cells = 0;
    double p[V], chi = 0;
    float x[V];

    (void)state;
    for (uint32_t i = 0; i < V; i++)
        x[i] = (float)((i * 37) % V) / 15;
    o.temperature = 0.9f, o.top_k = 50, o.top_p = 0.95f;
    expected(p, x, V, &o);
    for (uint32_t i = 0; i < DRAWS; i++) {
        o.seed = i / 200; /* both halves of the key must mix */
        o.position = i % 200;
        count[run(x, V, NULL, &o).token]++;
    }
    for (uint32_t i = 0; i < V; i++) {
        double want = p[i] * DRAWS;

        if (p[i] == 0) {
            assert_int_equal(count[i], 0);
            continue;
        }
        cells++;
        chi += (count[i] - want) * (count[i] - want) / want;
    }
    /* Mean cells - 1, deviation sqrt(2 (cells - 1)); the seeds are fixed, so this
     * never flickers. */
    assert_true(chi < cells - 1 + 4 * sqrt(2.0 * (cells - 1)));
    assert_true(chi > cells - 1 - 4 * sqrt(2.0 * (cells - 1)));
}

static void one_long_vocabulary(void **state) {
    enum { LONG = 151936 };
    float *x = mem_calloc(LONG, sizeof(*x));
    struct backend_output o = greedy;
    struct sample_result a, b;
    struct rng r;

    (void)state;
    rng_seed(&r, 3);
    for (uint32_t i = 0; i < LONG; i++)
        x[i] = (float)(rng_f64(&r) * 4);
    o.temperature = 1, o.top_p = 0.9f, o.seed = 9;
    a = run(x, LONG, NULL, &o);
    b = run(x, LONG, NULL, &o);
    assert_int_equal(a.token, b.token);
    assert_memory_equal(&a.logprob, &b.logprob, sizeof(float));
    o.top_p = 1;
    x[77777] = 40;
    assert_int_equal(run(x, LONG, NULL, &o).token, 77777);
    assert_int_equal(run(x, LONG, NULL, &o).rank, 1);
    mem_free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_exact_enough),
        cmocka_unit_test(greedy_takes_the_best_and_the_smaller_id_of_two),
        cmocka_unit_test(reports_are_of_the_raw_logits),
        cmocka_unit_test(penalties_count_prompt_and_output_apart),
        cmocka_unit_test(a_mask_forbids_and_an_empty_one_is_flagged),
        cmocka_unit_test(logits_that_are_not_finite_are_flagged_and_never_chosen),
        cmocka_unit_test(filters_keep_exactly_the_right_tokens),
        cmocka_unit_test(draws_are_fair),
        cmocka_unit_test(one_long_vocabulary),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

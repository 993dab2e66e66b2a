/* tests/unit/cuda/shim/test_sampling.c - the kernels of sampling choose what kernels/sample.c
 * chooses. */
#include "kernels/cuda/sampling/sampling_internal.h"
#include "kernels/exp.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "tests/unit/cuda/shim/sampling_fixture.h"

static void launch(struct kernel_fixture *s, uint32_t needs) {
    kernel_fixture_poison(s);
    sampling_launch(NULL, &s->args, needs);
}

static uint32_t needs_of(const struct kernel_fixture *s) {
    return sampling_needs(s->output, s->step.n_outputs, s->step.n_bias);
}

/* A step of everything, by the passes that it needs and perhaps others, in grids of any size. */
static void random_step(struct kernel_fixture *s, uint64_t seed) {
    s->step.n_outputs = kernel_fixture_below(s, KERNEL_FIXTURE_OUTPUTS + 1);
    s->args.n_bucket =
        s->step.n_outputs + kernel_fixture_below(s, KERNEL_FIXTURE_OUTPUTS + 1 - s->step.n_outputs);
    for (uint32_t k = 0; k < s->step.n_outputs; k++) {
        kernel_fixture_fill(s, k,
                            kernel_fixture_below(s, 2)
                                ? KERNEL_FIXTURE_NORMAL
                                : kernel_fixture_below(s, KERNEL_FIXTURE_KINDS));
        s->output[k] = kernel_fixture_output(s);
    }
    kernel_fixture_surroundings(s);
    if (kernel_fixture_below(s, 4) == 0) { /* a step that is served by less */
        s->step.n_bias = 0;
        for (uint32_t k = 0; k < s->step.n_outputs; k++) {
            struct backend_output *o = &s->output[k], asked = *o;

            *o = kernel_fixture_greedy();
            o->want = asked.want, o->score_token = asked.score_token, o->row = asked.row;
            o->seed = asked.seed, o->min_p = asked.min_p;
            if (seed % 2) o->temperature = asked.temperature;
        }
    }
    kernel_fixture_reference(s);
    shim_set(seed, seed % 2 ? SHIM_COPIES_EARLY : SHIM_COPIES_LATE);
    launch(s, needs_of(s) | (kernel_fixture_below(s, 2)
                                 ? kernel_fixture_below(s, SAMPLING_ALL + 1) | SAMPLING_RANK
                                 : 0));
}

static void everything_at_once_is_as_on_the_host(void **state) {
    static const uint32_t vocabs[] = {1, 31, 2048, 4095, 4096, 4097, 9001, 20000};

    (void)state;
    for (uint32_t round = 0; round < 32; round++) {
        struct kernel_fixture *s =
            kernel_fixture_create(vocabs[round % ARRAY_LEN(vocabs)], support_seed() + round);

        for (uint32_t step = 0; step < 4; step++) {
            random_step(s, round * 4 + step);
            assert_int_equal(kernel_fixture_difference(s, true), -1);
        }
        kernel_fixture_destroy(s);
    }
}

/* --- one thing at a time, over all kinds of logits */

enum alone {
    ALONE_GREEDY,
    ALONE_SCORE,
    ALONE_TEMPERATURE,
    ALONE_COLD,
    ALONE_TOP_K,
    ALONE_TOP_P,
    ALONE_TOP_K_AND_P,
    ALONE_MIN_P,
    ALONE_REPETITION,
    ALONE_FREQUENCY,
    ALONE_PRESENCE,
    ALONE_MASK,
    ALONE_EMPTY_MASK,
    ALONE_FEW_ALTERNATIVES,
    ALONE_MANY_ALTERNATIVES,
    ALONE_KINDS
};

static struct backend_output output_alone(struct kernel_fixture *s, enum alone what, uint32_t k) {
    struct backend_output o = kernel_fixture_greedy();

    o.row = k % KERNEL_FIXTURE_ROWS;
    o.seed = rng_u64(&s->rng);
    o.position = k;
    o.score_token = kernel_fixture_below(s, s->args.vocab);
    if (what >= ALONE_TEMPERATURE && what <= ALONE_MIN_P) o.temperature = 0.7f;
    switch (what) {
    case ALONE_SCORE: o.want = WANT_SCORE; break;
    case ALONE_COLD: o.temperature = (float[]){1e-30f, 1e-3f, 1e30f}[k % 3]; break;
    case ALONE_TOP_K: o.top_k = (uint32_t[]){1, 2, 50, 1000, 5000, 100000}[k % 6]; break;
    case ALONE_TOP_P: o.top_p = (float[]){0, 1e-9f, 0.5f, 0.9f, 0.99f, 0.99999994f}[k % 6]; break;
    case ALONE_TOP_K_AND_P: o.top_k = 1 + 300 * k, o.top_p = 0.05f + 0.08f * (float)k; break;
    case ALONE_MIN_P: o.min_p = (float[]){1e-9f, 0.01f, 0.5f, 1, 1.5f, 0}[k % 6]; break;
    case ALONE_REPETITION: o.repetition_penalty = k % 2 ? 1.7f : 0.6f; break;
    case ALONE_FREQUENCY: o.frequency_penalty = k % 2 ? 1.5f : -0.3f; break;
    case ALONE_PRESENCE: o.presence_penalty = k % 2 ? 2 : -1; break;
    case ALONE_MASK: o.mask = k % 2, o.temperature = (float)(k % 3); break;
    case ALONE_EMPTY_MASK: o.mask = 2, o.temperature = (float)(k % 2); break;
    case ALONE_FEW_ALTERNATIVES: o.n_logprobs = 1 + k; break;
    case ALONE_MANY_ALTERNATIVES: o.n_logprobs = KERNEL_FIXTURE_TOP - 20 * k; break;
    default: break;
    }
    return o;
}

static void each_setting_alone_over_all_kinds_of_logits(void **state) {
    enum { EACH = 6 };

    (void)state;
    for (uint32_t kind = 0; kind < KERNEL_FIXTURE_KINDS; kind++) {
        struct kernel_fixture *s = kernel_fixture_create(5003, support_seed() + 100 + kind);

        s->step.n_outputs = s->args.n_bucket = EACH;
        for (uint32_t k = 0; k < EACH; k++)
            kernel_fixture_fill(s, k, kind);
        for (uint32_t what = 0; what < ALONE_KINDS; what++) {
            kernel_fixture_surroundings(s);
            s->step.n_bias = 0;
            for (uint32_t k = 0; k < EACH; k++)
                s->output[k] = output_alone(s, what, k);
            kernel_fixture_reference(s);
            shim_set(what + 1, SHIM_COPIES_LATE);
            launch(s, needs_of(s));
            if (kernel_fixture_difference(s, true) >= 0)
                fail_msg("logits %u, setting %u", kind, what);
        }
        kernel_fixture_destroy(s);
    }
}

static void biases_add_up_in_their_order(void **state) {
    struct kernel_fixture *s = kernel_fixture_create(2100, support_seed());

    (void)state;
    s->step.n_outputs = 3;
    for (uint32_t k = 0; k < 3; k++) {
        kernel_fixture_fill(s, k, KERNEL_FIXTURE_NORMAL);
        s->output[k] = kernel_fixture_greedy();
    }
    s->logits[s->args.vocab_stride + 2099] = 7;
    s->logits[s->args.vocab_stride + 7] = 0.5f;
    s->output[2].mask = 0;
    s->step.n_bias = 6;
    memset(s->mask, 0x55, 4 * CEIL_DIV(2100u, 32u));
    memcpy(s->bias,
           (struct backend_bias[]){{1, 2099, 1e9f}, /* rounds the logit away */
                                   {1, 2099, -1e9f},
                                   {1, 2099, 90},
                                   {1, 7, 92}, /* 92.5 is above 90, and below 97 */
                                   {2, 1, 50}, /* masked */
                                   {2, 2, 40}},
           6 * sizeof(*s->bias));
    kernel_fixture_reference(s);
    launch(s, SAMPLING_ALL);
    assert_int_equal(kernel_fixture_difference(s, true), -1);
    assert_int_equal(s->token[1], 7);
    assert_int_equal(s->token[2], 2);
    kernel_fixture_destroy(s);
}

/* --- independence */

/* An output gives the same bits alone in a grid of one as anywhere among others. */
static void neither_row_nor_batch_changes_a_bit(void **state) {
    struct kernel_fixture *s = kernel_fixture_create(6000, support_seed()),
                          *alone = kernel_fixture_create(6000, 1);

    (void)state;
    s->step.n_outputs = KERNEL_FIXTURE_OUTPUTS;
    for (uint32_t k = 0; k < KERNEL_FIXTURE_OUTPUTS; k++) {
        kernel_fixture_fill(s, k, k % KERNEL_FIXTURE_KINDS);
        s->output[k] = kernel_fixture_output(s);
    }
    kernel_fixture_surroundings(s);
    memcpy(alone->history, s->history,
           sizeof(uint32_t) * KERNEL_FIXTURE_ROWS * (KERNEL_FIXTURE_CONTEXT + 1));
    memcpy(alone->mask, s->mask, sizeof(uint32_t) * KERNEL_FIXTURE_MASKS * CEIL_DIV(6000u, 32u));
    for (uint32_t k = 0; k < KERNEL_FIXTURE_OUTPUTS; k++) {
        uint32_t at = (k * 5 + 3) % KERNEL_FIXTURE_OUTPUTS; /* somewhere else */

        memcpy(alone->row, s->row, sizeof(s->row));
        alone->output[0] = s->output[k];
        alone->step.n_outputs = alone->args.n_bucket = 1;
        alone->step.n_bias = 0;
        for (uint32_t b = 0; b < s->step.n_bias; b++) {
            if (s->bias[b].output != k) continue;
            alone->bias[alone->step.n_bias] = s->bias[b];
            alone->bias[alone->step.n_bias++].output = 0;
        }
        memcpy(alone->logits, s->logits + (size_t)k * s->args.vocab_stride,
               s->args.vocab_stride * sizeof(float));
        shim_set(k + 50, SHIM_COPIES_EARLY);
        launch(alone, SAMPLING_ALL);
        s->want[at].token = alone->token[0]; /* kept by place, compared below */
        s->want[k].rank = alone->rank[0];
        memcpy(&s->want_top_logprob[k], &alone->logprob[0], sizeof(float));
        s->want_top_token[k] = alone->token[0];
        s->want[k].flags = alone->flags[0];
    }
    shim_set(7, SHIM_COPIES_LATE);
    launch(s, SAMPLING_ALL);
    for (uint32_t k = 0; k < KERNEL_FIXTURE_OUTPUTS; k++) {
        assert_int_equal(s->token[k], s->want_top_token[k]);
        assert_int_equal(s->rank[k], s->want[k].rank);
        assert_int_equal(s->flags[k], s->want[k].flags);
        assert_memory_equal(&s->logprob[k], &s->want_top_logprob[k], sizeof(float));
    }
    kernel_fixture_destroy(s);
    kernel_fixture_destroy(alone);
}

/* Not only the tokens: each tile's weight equals kernels/exp.h to the unit. */
static void masses_are_those_of_the_host(void **state) {
    struct kernel_fixture *s = kernel_fixture_create(20000, support_seed());
    struct sampling_pass p = {
        .a = s->args, .n_segments = 1, .needs = SAMPLING_DRAW | SAMPLING_RANK};

    (void)state;
    sampling_lay_out(&p, KERNEL_FIXTURE_OUTPUTS, 20000, s->args.scratch);
    s->step.n_outputs = KERNEL_FIXTURE_OUTPUTS;
    for (uint32_t k = 0; k < KERNEL_FIXTURE_OUTPUTS; k++) {
        kernel_fixture_fill(s, k, k % 2 ? KERNEL_FIXTURE_NORMAL : KERNEL_FIXTURE_PEAKED);
        s->output[k] = kernel_fixture_greedy();
        s->output[k].temperature = k % 3 ? 0.3f + (float)k / 7 : 1;
    }
    sampling_survey(NULL, &p);
    sampling_draw(NULL, &p);
    for (uint32_t k = 0; k < KERNEL_FIXTURE_OUTPUTS; k++) {
        const float *x = s->logits + (size_t)k * s->args.vocab_stride;
        float max = x[0];

        for (uint32_t i = 0; i < 20000; i++)
            max = fmaxf(max, x[i]);
        for (uint32_t tile = 0; tile < p.n_tiles; tile++) {
            uint64_t mass = 0;

            for (uint32_t i = tile * SAMPLING_TILE; i < MIN((tile + 1) * SAMPLING_TILE, 20000); i++)
                mass += (uint64_t)(exp_f32((x[i] - max) / s->output[k].temperature) * 0x1p42f);
            assert_true(p.tile[k * p.n_tiles + tile].mass == mass);
        }
    }
    kernel_fixture_destroy(s);
}

static void draws_are_fair(void **state) {
    enum { V = 40, ROUNDS = 120, DRAWS = ROUNDS * KERNEL_FIXTURE_OUTPUTS };
    const float LEAST = 0.06f; /* of the best: exp((39 - 14) / -9) is, one further is not */
    struct kernel_fixture *s = kernel_fixture_create(V, 1);
    uint32_t count[V] = {0};
    double total = 0, chi = 0, cells = 0;

    (void)state;
    s->step.n_outputs = KERNEL_FIXTURE_OUTPUTS;
    for (uint32_t k = 0; k < KERNEL_FIXTURE_OUTPUTS; k++) {
        for (uint32_t i = 0; i < V; i++)
            s->logits[k * s->args.vocab_stride + i] = (float)(i * 29 % V) / 10;
        s->output[k] = kernel_fixture_greedy();
        s->output[k].temperature = 0.9f;
        s->output[k].min_p = LEAST;
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t k = 0; k < KERNEL_FIXTURE_OUTPUTS; k++) {
            s->output[k].seed = round / 20; /* both halves of the key must mix */
            s->output[k].position = round % 20 * KERNEL_FIXTURE_OUTPUTS + k;
        }
        launch(s, SAMPLING_DRAW | SAMPLING_RANK);
        for (uint32_t k = 0; k < KERNEL_FIXTURE_OUTPUTS; k++)
            count[s->token[k]]++;
    }
    for (uint32_t i = 0; i < V; i++)
        total += i * 29 % V >= 14 ? exp(i * 29 % V / 9.0) : 0;
    for (uint32_t i = 0; i < V; i++) {
        double want = exp(i * 29 % V / 9.0) / total * DRAWS;

        if (i * 29 % V < 14) {
            assert_int_equal(count[i], 0);
            continue;
        }
        cells++;
        chi += (count[i] - want) * (count[i] - want) / want;
    }
    assert_true(chi < cells - 1 + 4 * sqrt(2 * (cells - 1)));
    assert_true(chi > cells - 1 - 4 * sqrt(2 * (cells - 1)));
    kernel_fixture_destroy(s);
}

/* --- histories */

/* As host_step_end: the sampled tokens of a row follow each other in the order of the outputs. */
static void expect_histories(const struct kernel_fixture *s, uint32_t *history,
                             struct sampling_row *row) {
    for (uint32_t k = 0; k < s->step.n_outputs; k++) {
        struct sampling_row *r = &row[s->output[k].row];

        if (s->output[k].want != WANT_SAMPLE || r->n_history > KERNEL_FIXTURE_CONTEXT) continue;
        history[s->output[k].row * (KERNEL_FIXTURE_CONTEXT + 1) + r->n_history++] =
            (uint32_t)s->token[k];
    }
}

static bool histories_grow(struct kernel_fixture *s, uint64_t seed) {
    uint32_t n_bytes = sizeof(uint32_t) * KERNEL_FIXTURE_ROWS * (KERNEL_FIXTURE_CONTEXT + 1),
             *history;
    struct sampling_row row[KERNEL_FIXTURE_ROWS];
    bool is_right;

    shim_set(seed, SHIM_COPIES_LATE);
    s->step.n_outputs = kernel_fixture_below(s, KERNEL_FIXTURE_OUTPUTS + 1);
    for (uint32_t k = 0; k < s->step.n_outputs; k++) {
        kernel_fixture_fill(s, k, KERNEL_FIXTURE_NORMAL);
        s->output[k] = kernel_fixture_greedy();
        s->output[k].row =
            kernel_fixture_below(s, kernel_fixture_below(s, 2) ? 2 : KERNEL_FIXTURE_ROWS);
        s->output[k].want = kernel_fixture_below(s, 4) ? WANT_SAMPLE : WANT_SCORE;
        if (seed % 3 == 1) s->output[k].temperature = 1;
        if (seed % 3 == 2) s->output[k].presence_penalty = 1;
    }
    kernel_fixture_surroundings(s);
    if (seed % 3 < 2) s->step.n_bias = 0;
    for (uint32_t r = 0; r < 2; r++) /* full, or nearly */
        s->row[r].n_history = KERNEL_FIXTURE_CONTEXT + 1 - kernel_fixture_below(s, 4);
    history = mem_alloc(n_bytes);
    memcpy(history, s->history, n_bytes);
    memcpy(row, s->row, sizeof(row));
    launch(s, needs_of(s));
    expect_histories(s, history, row);
    is_right = !memcmp(history, s->history, n_bytes) && !memcmp(row, s->row, sizeof(row));
    mem_free(history);
    return is_right;
}

static void histories_grow_by_the_sampled_tokens(void **state) {
    struct kernel_fixture *s = kernel_fixture_create(300, support_seed());

    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++)
        assert_true(histories_grow(s, seed));
    kernel_fixture_destroy(s);
}

/* More outputs than a block has threads: the rounds of append_tokens follow each other. */
static void histories_grow_in_steps_of_many_outputs(void **state) {
    enum { N = 600, V = 64, ROWS = 3, ROOM = 2 * N };
    struct backend_output *output = mem_calloc(N, sizeof(*output));
    struct sampling_row *row = mem_calloc(ROWS, sizeof(*row));
    float *logits = mem_try_aligned(256, sizeof(float) * N * V);
    uint32_t *history = mem_calloc(ROWS * (ROOM + 1), 4), n[ROWS] = {0};
    int32_t *out = mem_calloc(4 * N, 4);
    struct backend_step *step = mem_zalloc(sizeof(*step));
    uint64_t n_scratch = sampling_scratch_bytes(N, V);
    struct sampling_args a = {.vocab = V,
                              .vocab_stride = V,
                              .max_context = ROOM,
                              .max_outputs = N,
                              .n_bucket = N,
                              .step = step,
                              .logits = logits,
                              .output = output,
                              .history = history,
                              .row = row,
                              .out_token = out,
                              .out_logprob = (float *)(void *)(out + N),
                              .out_rank = (uint32_t *)(void *)(out + 2 * N),
                              .out_flags = (uint32_t *)(void *)(out + 3 * N),
                              .scratch = mem_try_aligned(256, n_scratch)};

    (void)state;
    step->n_outputs = N;
    memset(a.scratch, 0, n_scratch);
    for (uint32_t k = 0; k < N; k++) {
        for (uint32_t i = 0; i < V; i++)
            logits[k * V + i] = i == k * 7 % V;
        output[k] = kernel_fixture_greedy();
        output[k].row = k * k % ROWS;
    }
    sampling_launch(NULL, &a, 0);
    for (uint32_t k = 0; k < N; k++) {
        uint32_t r = output[k].row;

        assert_int_equal(out[k], k * 7 % V);
        assert_int_equal(history[r * (ROOM + 1) + n[r]++], k * 7 % V);
    }
    for (uint32_t r = 0; r < ROWS; r++)
        assert_int_equal(row[r].n_history, n[r]);
    mem_free(output);
    mem_free(row);
    mem_free(logits);
    mem_free(history);
    mem_free(out);
    mem_free(step);
    mem_free(a.scratch);
}

/* Only what follows the prompt counts for the presence penalty: here a large bonus. */
static bool output_tokens_count(uint64_t seed) {
    struct kernel_fixture *s = kernel_fixture_create(300, seed);
    bool is_right = true;

    s->step.n_outputs = KERNEL_FIXTURE_ROWS;
    kernel_fixture_surroundings(s);
    s->step.n_bias = 0;
    for (uint32_t k = 0; k < KERNEL_FIXTURE_ROWS; k++) {
        kernel_fixture_fill(s, k, KERNEL_FIXTURE_NORMAL);
        s->output[k] = kernel_fixture_greedy();
        s->output[k].row = k;
        s->output[k].presence_penalty = -50;
        s->row[k] = (struct sampling_row){10, 11}; /* one token after the prompt */
        for (uint32_t i = 0; i < 11; i++)
            s->history[k * (KERNEL_FIXTURE_CONTEXT + 1) + i] = 20 * k + i;
    }
    launch(s, SAMPLING_ALL);
    for (uint32_t k = 0; k < KERNEL_FIXTURE_ROWS; k++)
        is_right &= s->token[k] == (int32_t)(20 * k + 10);
    kernel_fixture_destroy(s);
    return is_right;
}

static void the_presence_penalty_sees_the_output_alone(void **state) {
    (void)state;
    assert_true(output_tokens_count(support_seed()));
}

/* --- sizes */

static void a_real_vocabulary(void **state) {
    static const uint32_t vocabs[] = {128256, 151936, 262144};

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(vocabs); i++) {
        struct kernel_fixture *s = kernel_fixture_create(vocabs[i], support_seed() + i);

        s->step.n_outputs = s->args.n_bucket = 3;
        for (uint32_t k = 0; k < 3; k++) {
            kernel_fixture_fill(s, k, k == 2 ? KERNEL_FIXTURE_CONSTANT : KERNEL_FIXTURE_NORMAL);
            s->output[k] = kernel_fixture_greedy();
            s->output[k].temperature = k ? 1 : 0;
            s->output[k].top_p = 0.9f;
            s->output[k].top_k = k == 2 ? 100000 : 0;
            s->output[k].n_logprobs = k == 2 ? 256 : 20 * k;
        }
        kernel_fixture_reference(s);
        shim_set(i, SHIM_COPIES_LATE);
        launch(s, SAMPLING_ALL);
        assert_int_equal(kernel_fixture_difference(s, true), -1);
        kernel_fixture_destroy(s);
    }
}

static void steps_need_no_more_than_their_outputs(void **state) {
    const uint32_t drawn = SAMPLING_DRAW | SAMPLING_RANK,
                   adjusted = SAMPLING_ADJUST | SAMPLING_RANK;
    struct backend_output o[2] = {kernel_fixture_greedy(), kernel_fixture_greedy()};

    (void)state;
    assert_int_equal(sampling_needs(o, 0, 0), 0);
    assert_int_equal(sampling_needs(o, 2, 0), 0);
    assert_int_equal(sampling_needs(o, 2, 1), adjusted);
    o[1].top_p = 0.5f; /* means nothing to a greedy output, nor to one that is scored */
    assert_int_equal(sampling_needs(o, 2, 0), 0);
    o[0].temperature = 1;
    assert_int_equal(sampling_needs(o, 2, 0), drawn);
    o[1].temperature = 1;
    assert_int_equal(sampling_needs(o, 2, 0), drawn | SAMPLING_FILTER);
    o[1].want = WANT_SCORE;
    assert_int_equal(sampling_needs(o, 2, 0), drawn);
    o[1].n_logprobs = 1;
    assert_int_equal(sampling_needs(o, 2, 0), drawn | SAMPLING_TOP);
    o[0] = o[1] = kernel_fixture_greedy();
    o[1].repetition_penalty = 1.1f;
    assert_int_equal(sampling_needs(o, 2, 0), SAMPLING_COUNT | adjusted);
    o[1] = kernel_fixture_greedy();
    o[1].mask = 0;
    assert_int_equal(sampling_needs(o, 2, 0), adjusted);
}

/* --- planted bugs: each must be seen under every one of these seeds */

static bool random_steps_agree(uint64_t seed) {
    static const uint32_t vocabs[] = {4097, 9001};
    bool is_right = true;

    for (uint32_t i = 0; i < 4 && is_right; i++) {
        struct kernel_fixture *s = kernel_fixture_create(vocabs[i % 2], seed * 10 + i);

        for (uint32_t step = 0; step < 4 && is_right; step++) {
            random_step(s, seed * 100 + i * 4 + step + 1);
            is_right = kernel_fixture_difference(s, false) < 0;
        }
        kernel_fixture_destroy(s);
    }
    return is_right;
}

static bool histories_agree(uint64_t seed) {
    struct kernel_fixture *s = kernel_fixture_create(300, seed);
    bool is_right = true;

    for (uint64_t i = 0; i < 6 && is_right; i++)
        is_right = histories_grow(s, seed * 6 + i);
    kernel_fixture_destroy(s);
    return is_right;
}

static void planted_bugs_are_caught(void **state) {
    static const struct {
        const char *name;
        bool (*agrees)(uint64_t seed);
    } bugs[] = {
        {"sampling_barrier", random_steps_agree}, {"sampling_tie", random_steps_agree},
        {"sampling_tail", random_steps_agree},    {"sampling_nucleus", random_steps_agree},
        {"sampling_carry", random_steps_agree},   {"sampling_search", random_steps_agree},
        {"sampling_seen", output_tokens_count},   {"sampling_mine", random_steps_agree},
        {"sampling_history", histories_agree},
    };

    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        assert_true(random_steps_agree(seed));
        for (uint32_t i = 0; i < ARRAY_LEN(bugs); i++) {
            bool is_caught;

            shim_plant(bugs[i].name);
            is_caught = !bugs[i].agrees(seed);
            shim_plant(NULL);
            if (!is_caught)
                fail_msg("%s is not caught under seed %u", bugs[i].name, (unsigned)seed);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_at_once_is_as_on_the_host),
        cmocka_unit_test(each_setting_alone_over_all_kinds_of_logits),
        cmocka_unit_test(biases_add_up_in_their_order),
        cmocka_unit_test(neither_row_nor_batch_changes_a_bit),
        cmocka_unit_test(masses_are_those_of_the_host),
        cmocka_unit_test(draws_are_fair),
        cmocka_unit_test(histories_grow_by_the_sampled_tokens),
        cmocka_unit_test(histories_grow_in_steps_of_many_outputs),
        cmocka_unit_test(the_presence_penalty_sees_the_output_alone),
        cmocka_unit_test(a_real_vocabulary),
        cmocka_unit_test(steps_need_no_more_than_their_outputs),
        cmocka_unit_test(planted_bugs_are_caught),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

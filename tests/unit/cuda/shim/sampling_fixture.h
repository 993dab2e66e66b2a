/* tests/unit/cuda/shim/sampling_fixture.h - steps of random outputs, sampled by the kernels and by
 * sample.c. */
#ifndef TESTS_UNIT_CUDA_SHIM_SAMPLING_FIXTURE_H
#define TESTS_UNIT_CUDA_SHIM_SAMPLING_FIXTURE_H

#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/cuda/sampling/sampling.h"
#include "kernels/sample.h"
#include "tests/shim/shim_control.h"

enum {
    KERNEL_FIXTURE_OUTPUTS = 12,
    KERNEL_FIXTURE_ROWS = 8,
    KERNEL_FIXTURE_TOP = 256,
    KERNEL_FIXTURE_BIAS = 64,
    KERNEL_FIXTURE_MASKS = 3
};
enum { KERNEL_FIXTURE_CONTEXT = 700, KERNEL_FIXTURE_GUARD = 256 };

/* The device's arrays of a step, and the answers of kernels/sample.c to the same. */
struct kernel_fixture {
    struct rng rng;
    struct sampling_args args;
    struct backend_step step;
    struct backend_output output[KERNEL_FIXTURE_OUTPUTS];
    struct backend_bias bias[KERNEL_FIXTURE_BIAS];
    uint32_t *mask, *history;
    struct sampling_row row[KERNEL_FIXTURE_ROWS];
    float *logits;
    int32_t token[KERNEL_FIXTURE_OUTPUTS], top_token[KERNEL_FIXTURE_OUTPUTS * KERNEL_FIXTURE_TOP];
    float logprob[KERNEL_FIXTURE_OUTPUTS], top_logprob[KERNEL_FIXTURE_OUTPUTS * KERNEL_FIXTURE_TOP];
    uint32_t rank[KERNEL_FIXTURE_OUTPUTS], flags[KERNEL_FIXTURE_OUTPUTS];

    struct sample_scratch *reference;
    int32_t want_top_token[KERNEL_FIXTURE_OUTPUTS * KERNEL_FIXTURE_TOP];
    float want_top_logprob[KERNEL_FIXTURE_OUTPUTS * KERNEL_FIXTURE_TOP];
    struct sample_result want[KERNEL_FIXTURE_OUTPUTS];
};

enum kernel_fixture_logits {
    KERNEL_FIXTURE_NORMAL,
    KERNEL_FIXTURE_PEAKED,   /* a few tokens have nearly all of the mass */
    KERNEL_FIXTURE_TIES,     /* a dozen values */
    KERNEL_FIXTURE_CONSTANT, /* one value */
    KERNEL_FIXTURE_HUGE,     /* up to 3e38 */
    KERNEL_FIXTURE_BROKEN,   /* NaNs and infinities among them */
    KERNEL_FIXTURE_NOTHING,  /* nothing else */
    KERNEL_FIXTURE_SORTED,   /* rising with the id */
    KERNEL_FIXTURE_KINDS
};

static inline struct kernel_fixture *kernel_fixture_create(uint32_t vocab, uint64_t seed) {
    struct kernel_fixture *s = mem_zalloc(sizeof(*s));
    uint32_t stride = ALIGN_UP(vocab, 64u), words = CEIL_DIV(vocab, 32u);
    uint64_t n_scratch = sampling_scratch_bytes(KERNEL_FIXTURE_OUTPUTS, vocab);
    uint8_t *scratch = mem_try_aligned(256, n_scratch + KERNEL_FIXTURE_GUARD);

    rng_seed(&s->rng, seed);
    s->logits = mem_try_aligned(256, (size_t)stride * KERNEL_FIXTURE_OUTPUTS * sizeof(float));
    s->mask = mem_calloc((size_t)words * KERNEL_FIXTURE_MASKS, 4);
    s->history = mem_calloc(KERNEL_FIXTURE_ROWS * (KERNEL_FIXTURE_CONTEXT + 1), 4);
    s->reference = sample_scratch_create(vocab);
    s->args = (struct sampling_args){.vocab = vocab,
                                     .vocab_stride = stride,
                                     .max_context = KERNEL_FIXTURE_CONTEXT,
                                     .max_logprobs = KERNEL_FIXTURE_TOP,
                                     .max_outputs = KERNEL_FIXTURE_OUTPUTS,
                                     .n_bucket = KERNEL_FIXTURE_OUTPUTS,
                                     .step = &s->step,
                                     .logits = s->logits,
                                     .output = s->output,
                                     .bias = s->bias,
                                     .mask = s->mask,
                                     .history = s->history,
                                     .row = s->row,
                                     .out_token = s->token,
                                     .out_logprob = s->logprob,
                                     .out_rank = s->rank,
                                     .out_flags = s->flags,
                                     .out_top_token = s->top_token,
                                     .out_top_logprob = s->top_logprob,
                                     .scratch = scratch};
    memset(scratch, 0, n_scratch);
    memset(scratch + n_scratch, 0xA5, KERNEL_FIXTURE_GUARD);
    return s;
}

static inline void kernel_fixture_destroy(struct kernel_fixture *s) {
    const uint8_t *guard =
        (uint8_t *)s->args.scratch + sampling_scratch_bytes(KERNEL_FIXTURE_OUTPUTS, s->args.vocab);

    for (uint32_t i = 0; i < KERNEL_FIXTURE_GUARD; i++)
        assert_int_equal(guard[i], 0xA5);
    mem_free(s->args.scratch);
    mem_free(s->logits);
    mem_free(s->mask);
    mem_free(s->history);
    sample_scratch_destroy(s->reference);
    mem_free(s);
}

static inline uint32_t kernel_fixture_below(struct kernel_fixture *s, uint32_t n) {
    return (uint32_t)rng_below(&s->rng, n);
}
static inline float kernel_fixture_normal(struct kernel_fixture *s) { /* near enough */
    double sum = 0;

    for (int i = 0; i < 6; i++)
        sum += rng_f64(&s->rng);
    return (float)((sum - 3) * 1.41421356);
}

static inline void kernel_fixture_fill(struct kernel_fixture *s, uint32_t k,
                                       enum kernel_fixture_logits kind) {
    float *x = s->logits + (uint64_t)k * s->args.vocab_stride, c = kernel_fixture_normal(s) * 9;
    uint32_t vocab = s->args.vocab;

    for (uint32_t i = 0; i < vocab; i++) {
        switch (kind) {
        case KERNEL_FIXTURE_PEAKED: x[i] = kernel_fixture_normal(s) * 6; break;
        case KERNEL_FIXTURE_TIES: x[i] = (float)kernel_fixture_below(s, 12) / 4; break;
        case KERNEL_FIXTURE_CONSTANT: x[i] = c; break;
        case KERNEL_FIXTURE_HUGE: x[i] = (float)(rng_f64(&s->rng) * 6e38 - 3e38); break;
        case KERNEL_FIXTURE_NOTHING: x[i] = i % 3 ? NAN : i % 2 ? INFINITY : -INFINITY; break;
        case KERNEL_FIXTURE_SORTED: x[i] = (float)i / (float)vocab * 20 - c; break;
        case KERNEL_FIXTURE_BROKEN:
            x[i] = kernel_fixture_below(s, 100)
                       ? kernel_fixture_normal(s) * 2
                       : (float[]){NAN, INFINITY, -INFINITY}[kernel_fixture_below(s, 3)];
            break;
        default:
            x[i] = kernel_fixture_normal(s) * 2 - (float)(kernel_fixture_below(s, 50) == 0) * 0.0f;
            break;
        }
    }
    for (uint32_t i = vocab; i < s->args.vocab_stride; i++) /* never to be read */
        x[i] = i % 2 ? 1e30f : NAN;
}

static inline struct backend_output kernel_fixture_greedy(void) {
    return (struct backend_output){.top_p = 1, .repetition_penalty = 1, .mask = BACKEND_NO_MASK};
}

/* Everything on now and then. */
static inline struct backend_output kernel_fixture_output(struct kernel_fixture *s) {
    struct backend_output o = kernel_fixture_greedy();

    o.row = kernel_fixture_below(s, KERNEL_FIXTURE_ROWS);
    o.want = kernel_fixture_below(s, 5) ? WANT_SAMPLE : WANT_SCORE;
    o.score_token = kernel_fixture_below(s, s->args.vocab);
    o.seed = rng_u64(&s->rng);
    o.position = kernel_fixture_below(s, 100000);
    if (kernel_fixture_below(s, 4)) o.temperature = (float)(0.2 + rng_f64(&s->rng) * 2);
    if (!kernel_fixture_below(s, 3)) o.temperature = o.temperature > 0;
    if (kernel_fixture_below(s, 2))
        o.top_k = kernel_fixture_below(s, kernel_fixture_below(s, 2) ? 60 : s->args.vocab + 3);
    if (kernel_fixture_below(s, 2)) o.top_p = (float)rng_f64(&s->rng);
    if (!kernel_fixture_below(s, 8)) o.top_p = 0.9999f;
    if (!kernel_fixture_below(s, 3)) o.min_p = (float)(rng_f64(&s->rng) * 0.2);
    if (!kernel_fixture_below(s, 3)) o.repetition_penalty = (float)(0.5 + rng_f64(&s->rng));
    if (!kernel_fixture_below(s, 4)) o.frequency_penalty = (float)(rng_f64(&s->rng) * 4 - 2);
    if (!kernel_fixture_below(s, 4)) o.presence_penalty = (float)(rng_f64(&s->rng) * 4 - 2);
    if (!kernel_fixture_below(s, 3)) o.mask = kernel_fixture_below(s, KERNEL_FIXTURE_MASKS);
    if (!kernel_fixture_below(s, 3))
        o.n_logprobs =
            kernel_fixture_below(s, kernel_fixture_below(s, 2) ? 21 : KERNEL_FIXTURE_TOP + 1);
    return o;
}

/* Histories with tokens that repeat, masks from nearly empty to nearly full, the last one empty;
 * random biases, some of them of one token. */
static inline void kernel_fixture_surroundings(struct kernel_fixture *s) {
    uint32_t words = CEIL_DIV(s->args.vocab, 32u), output = 0;

    for (uint32_t r = 0; r < KERNEL_FIXTURE_ROWS; r++) {
        uint32_t n =
            kernel_fixture_below(s, 6) ? kernel_fixture_below(s, KERNEL_FIXTURE_CONTEXT - 20) : 0;

        s->row[r] = (struct sampling_row){kernel_fixture_below(s, n + 1), n};
        for (uint32_t i = 0; i < n; i++)
            s->history[r * (KERNEL_FIXTURE_CONTEXT + 1) + i] =
                kernel_fixture_below(s, kernel_fixture_below(s, 2) ? 9 : s->args.vocab);
    }
    for (uint32_t i = 0; i < words * KERNEL_FIXTURE_MASKS; i++) {
        uint32_t bits = (uint32_t)rng_u64(&s->rng);

        s->mask[i] = i < words ? bits : i < 2 * words && i % 16 == 0 ? bits & bits >> 7 : 0;
    }
    s->step.n_bias = 0;
    while (s->step.n_bias < KERNEL_FIXTURE_BIAS &&
           (output += kernel_fixture_below(s, 3)) < s->step.n_outputs)
        s->bias[s->step.n_bias++] = (struct backend_bias){
            output, kernel_fixture_below(s, kernel_fixture_below(s, 2) ? 4 : s->args.vocab),
            kernel_fixture_normal(s) * 3};
}

static inline void kernel_fixture_poison(struct kernel_fixture *s) {
    memset(s->token, 0xEE, sizeof(s->token));
    memset(s->logprob, 0xEE, sizeof(s->logprob));
    memset(s->rank, 0xEE, sizeof(s->rank));
    memset(s->flags, 0xEE, sizeof(s->flags));
    memset(s->top_token, 0xEE, sizeof(s->top_token));
    memset(s->top_logprob, 0xEE, sizeof(s->top_logprob));
}

/* The answer of kernels/sample.c, with the histories as they are now. */
static inline void kernel_fixture_reference(struct kernel_fixture *s) {
    for (uint32_t k = 0; k < s->step.n_outputs; k++) {
        const struct backend_output *o = &s->output[k];
        struct sample_input in = {
            .logits = s->logits + (uint64_t)k * s->args.vocab_stride,
            .output = o,
            .history = s->history + o->row * (KERNEL_FIXTURE_CONTEXT + 1),
            .n_prompt = s->row[o->row].n_prompt,
            .n_history = s->row[o->row].n_history,
            .mask = o->mask == BACKEND_NO_MASK ? NULL
                                               : s->mask + o->mask * CEIL_DIV(s->args.vocab, 32u),
            .n_top = s->args.max_logprobs,
        };
        uint32_t b = 0;

        while (b < s->step.n_bias && s->bias[b].output < k)
            b++;
        in.bias = s->bias + b;
        while (b + in.n_bias < s->step.n_bias && s->bias[b + in.n_bias].output == k)
            in.n_bias++;
        s->want[k].top_token = s->want_top_token + k * KERNEL_FIXTURE_TOP;
        s->want[k].top_logprob = s->want_top_logprob + k * KERNEL_FIXTURE_TOP;
        sample(&in, s->reference, &s->want[k]);
    }
}

static inline bool kernel_fixture_near(float a, float b) {
    if (isnan(b)) return isnan(a);
    return a == b || fabsf(a - b) <= 1e-6f * fmaxf(1, fabsf(b));
}

/* The first output that differs, or -1; prints both sides when it is not expected to fail. */
static inline int32_t kernel_fixture_difference(const struct kernel_fixture *s, bool prints) {
    for (uint32_t k = 0; k < s->step.n_outputs; k++) {
        const struct sample_result *w = &s->want[k];
        uint32_t n_top = MIN(s->output[k].n_logprobs, s->args.max_logprobs);
        bool is_same = s->token[k] == w->token && s->rank[k] == w->rank &&
                       s->flags[k] == w->flags && kernel_fixture_near(s->logprob[k], w->logprob);

        for (uint32_t i = 0; i < n_top; i++)
            is_same &=
                s->top_token[k * KERNEL_FIXTURE_TOP + i] == w->top_token[i] &&
                kernel_fixture_near(s->top_logprob[k * KERNEL_FIXTURE_TOP + i], w->top_logprob[i]);
        if (is_same) continue;
        if (prints)
            print_error(
                "output %u of %u tokens: token %d (%d), rank %u (%u), flags %u (%u), logprob "
                "%.9g (%.9g); want %u temperature %g top-k %u top-p %.9g min-p %g mask %d "
                "top %u\n",
                k, s->args.vocab, s->token[k], w->token, s->rank[k], w->rank, s->flags[k], w->flags,
                (double)s->logprob[k], (double)w->logprob, s->output[k].want,
                (double)s->output[k].temperature, s->output[k].top_k, (double)s->output[k].top_p,
                (double)s->output[k].min_p, (int)s->output[k].mask, n_top);
        for (uint32_t i = 0; prints && i < n_top; i++)
            print_error("  %u: %d (%d) %.9g (%.9g)\n", i, s->top_token[k * KERNEL_FIXTURE_TOP + i],
                        w->top_token[i], (double)s->top_logprob[k * KERNEL_FIXTURE_TOP + i],
                        (double)w->top_logprob[i]);
        return (int32_t)k;
    }
    return -1;
}

#endif

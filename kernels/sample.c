/* kernels/sample.c - see sample.h. Passes over the vocabulary, no allocation, no libm but log. */
#include "kernels/sample.h"

#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/exp.h"

#define LANES     16   /* partial sums of a mass: fixed, so that the order of additions is */
#define SUM_BLOCK 1024 /* elements a lane may add in floats before its sum goes to a double */
#define FIRST_RUN 256  /* candidates sorted before top-p needs more */
#define SEEN      0x80000000u
#define MASS_ONE  0x1p42f /* the mass of weight 1: 2^20 tokens of it leave room in 64 bits */

struct sample_scratch {
    uint32_t vocab;
    float *raw;      /* (vocab) the logits, made finite or minus infinity */
    float *adjusted; /* (vocab) after biases, penalties and mask */
    float *weight;   /* (vocab) exp((adjusted - max) / temperature) */
    uint32_t *seen;  /* (vocab) SEEN | occurrences in the output; all zero between calls */
    uint64_t *key;   /* (vocab) rank_key of the candidates */
};

struct sample_scratch *sample_scratch_create(uint32_t vocab) {
    struct sample_scratch *s = mem_zalloc(sizeof(*s));
    size_t n = ALIGN_UP((size_t)vocab, SUM_BLOCK);

    s->vocab = vocab;
    s->raw = mem_try_aligned(CACHE_LINE, n * sizeof(float));
    s->adjusted = mem_try_aligned(CACHE_LINE, n * sizeof(float));
    s->weight = mem_try_aligned(CACHE_LINE, n * sizeof(float));
    s->seen = mem_try_zalloc(n * sizeof(uint32_t));
    s->key = mem_try(n * sizeof(uint64_t));
    if (s->raw && s->adjusted && s->weight && s->seen && s->key) return s;
    sample_scratch_destroy(s);
    return NULL;
}

void sample_scratch_destroy(struct sample_scratch *s) {
    if (!s) return;
    mem_free(s->raw);
    mem_free(s->adjusted);
    mem_free(s->weight);
    mem_free(s->seen);
    mem_free(s->key);
    mem_free(s);
}

/* Rising keys are falling ranks: by logit falling, then by id rising. */
static uint64_t rank_key(float logit, uint32_t id) {
    uint32_t u = bits_of_f32(logit + 0.0f); /* -0 ranks as 0 */

    u = u & 0x80000000u ? u : u ^ 0x7FFFFFFFu;
    return (uint64_t)u << 32 | id;
}

/* Pads to whole blocks with minus infinity, so that no pass has a tail. Returns OUT_ flags. */
static uint32_t copy_finite(float *dst, const float *src, uint32_t n) {
    uint32_t bad = 0;

    for (uint32_t i = 0; i < n; i++) {
        bool is_finite = (bits_of_f32(src[i]) & 0x7F800000u) != 0x7F800000u;

        dst[i] = is_finite ? src[i] : -INFINITY;
        bad |= !is_finite;
    }
    for (uint32_t i = n; i % SUM_BLOCK; i++)
        dst[i] = -INFINITY;
    return bad ? OUT_NOT_FINITE : 0;
}

static float max_of(const float *x, uint32_t n) {
    float lane[LANES], m;

    for (int l = 0; l < LANES; l++)
        lane[l] = -INFINITY;
    for (uint32_t i = 0; i < n; i += LANES) {
        for (int l = 0; l < LANES; l++)
            lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    }
    m = lane[0];
    for (int l = 1; l < LANES; l++)
        m = MAX(m, lane[l]);
    return m;
}

/* The smallest id whose value is the largest. */
static uint32_t argmax(const float *x, uint32_t n) {
    float m = max_of(x, n);
    uint32_t i = 0;

    while (i + 1 < n && x[i] != m)
        i++;
    return x[i] == m ? i : 0;
}

/* The sum of exp(x[i] - max): in lanes of floats within a block, then doubles in the order of the
 * blocks. */
static double exp_sum(const float *x, uint32_t n, float max) {
    double total = 0;

    for (uint32_t b = 0; b < n; b += SUM_BLOCK) {
        float lane[LANES] = {0};
        double block = 0;

        for (uint32_t i = b; i < b + SUM_BLOCK; i += LANES) {
            float e[LANES];

            for (int l = 0; l < LANES; l++)
                e[l] = exp_f32(x[i + l] - max);
            for (int l = 0; l < LANES; l++)
                lane[l] += e[l];
        }
        for (int l = 0; l < LANES; l++)
            block += lane[l];
        total += block;
    }
    return total;
}

/* out[i] = exp((x[i] - max) / t) */
static void weigh(float *out, const float *x, uint32_t n, float max, float t) {
    for (uint32_t i = 0; i < n; i += LANES) {
        for (int l = 0; l < LANES; l++)
            out[i + l] = exp_f32((x[i + l] - max) / t);
    }
}

static uint64_t mass_of(float weight) {
    return (uint64_t)(weight * MASS_ONE);
}

/* --- the raw logits: what is reported -------------------------------------------------------- */

static uint32_t rank_of(const float *raw, uint32_t vocab, uint32_t token) {
    uint32_t better = 0;
    float x = raw[token];

    for (uint32_t i = 0; i < vocab; i++)
        better += raw[i] > x;
    for (uint32_t i = 0; i < token; i++)
        better += raw[i] == x;
    return better + 1;
}

/* The n best, by insertion into the short list: most tokens fail the first comparison. */
static void fill_alternatives(struct sample_result *r, uint32_t n_top, uint32_t wanted,
                              const float *raw, uint32_t vocab, double log_mass) {
    uint32_t n = 0, limit = MIN(wanted, n_top);

    for (uint32_t id = 0; id < vocab && limit; id++) {
        uint32_t at;

        if (n == limit && !(raw[id] > raw[r->top_token[n - 1]])) continue;
        if (n < limit) n++;
        for (at = n - 1; at > 0 && raw[id] > raw[r->top_token[at - 1]]; at--)
            r->top_token[at] = r->top_token[at - 1];
        r->top_token[at] = (int32_t)id;
    }
    for (uint32_t i = 0; i < n; i++)
        r->top_logprob[i] = (float)((double)raw[r->top_token[i]] - log_mass);
    for (uint32_t i = n; i < limit; i++) {
        r->top_token[i] = -1;
        r->top_logprob[i] = 0;
    }
}

/* --- what is drawn from ---------------------------------------------------------------------- */

static void apply_penalties(struct sample_scratch *s, const struct sample_input *in) {
    const struct backend_output *o = in->output;
    bool has_repetition = o->repetition_penalty > 0 && o->repetition_penalty != 1.0f;

    if (!has_repetition && o->frequency_penalty == 0 && o->presence_penalty == 0) return;
    for (uint32_t i = 0; i < in->n_history; i++)
        s->seen[in->history[i]] = (s->seen[in->history[i]] | SEEN) + (i >= in->n_prompt);
    for (uint32_t i = 0; i < in->n_history; i++) {
        uint32_t id = in->history[i], seen = s->seen[id], times = seen & ~SEEN;
        float x = s->adjusted[id];

        if (!seen) continue; /* done at its first occurrence */
        s->seen[id] = 0;
        if (has_repetition) x = x > 0 ? x / o->repetition_penalty : x * o->repetition_penalty;
        x -= o->frequency_penalty * (float)times;
        if (times) x -= o->presence_penalty;
        s->adjusted[id] = x;
    }
}

static void adjust(struct sample_scratch *s, const struct sample_input *in) {
    uint32_t n = s->vocab;

    memcpy(s->adjusted, s->raw, ALIGN_UP((size_t)n, SUM_BLOCK) * sizeof(float));
    for (uint32_t i = 0; i < in->n_bias; i++)
        s->adjusted[in->bias[i].token] += in->bias[i].bias;
    apply_penalties(s, in);
    if (in->mask) {
        for (uint32_t i = 0; i < n; i++) {
            if (!(in->mask[i / 32] >> (i % 32) & 1)) s->adjusted[i] = -INFINITY;
        }
    }
}

/* --- ranking --------------------------------------------------------------------------------- */

static void swap_keys(uint64_t *a, uint64_t *b) {
    uint64_t x = *a;

    *a = *b;
    *b = x;
}

/* Moves the `count` smallest of key[0..n) to its front, in any order. Keys are distinct. */
static void select_smallest(uint64_t *key, uint32_t n, uint32_t count) {
    uint32_t low = 0, high = n; /* the border at `count` lies in [low, high] */

    while (low < count && count < high) {
        uint64_t *last = &key[high - 1];
        uint32_t middle = low;

        swap_keys(&key[low + rng_mix(high - low) % (high - low)], last);
        for (uint32_t i = low; i < high - 1; i++) {
            if (key[i] < *last) swap_keys(&key[i], &key[middle++]);
        }
        swap_keys(&key[middle], last);
        if (count <= middle)
            high = middle;
        else
            low = middle + 1;
    }
}

/* Heapsort: in place, no worst case, no allocation. */
static void sort_keys(uint64_t *key, uint32_t n) {
    for (uint32_t built = n / 2, end = n; end > 1;) {
        uint32_t at, child;
        uint64_t x;

        if (built > 0) {
            x = key[at = --built];
        } else {
            x = key[--end];
            key[end] = key[0];
            at = 0;
        }
        while ((child = 2 * at + 1) < end) {
            if (child + 1 < end && key[child + 1] > key[child]) child++;
            if (key[child] <= x) break;
            key[at] = key[child];
            at = child;
        }
        key[at] = x;
    }
}

/* The last key that top-k and top-p keep. s->weight is filled. */
static uint64_t last_kept_key(struct sample_scratch *s, const struct backend_output *o) {
    uint32_t n = s->vocab, run = FIRST_RUN;
    uint64_t mass = 0, limit = 0;

    for (uint32_t i = 0; i < n; i++)
        s->key[i] = rank_key(s->adjusted[i], i);
    if (o->top_k && o->top_k < n) {
        select_smallest(s->key, n, o->top_k);
        n = run = o->top_k;
    }
    for (uint32_t i = 0; i < n; i++)
        mass += mass_of(s->weight[(uint32_t)s->key[i]]);
    if (o->top_p > 0 && o->top_p < 1) limit = (uint64_t)((double)o->top_p * (double)mass);
    for (;; run *= 8) { /* sort no more of the front than top-p turns out to need */
        uint64_t sum = 0;

        run = MIN(run, n);
        select_smallest(s->key, n, run);
        sort_keys(s->key, run);
        if (!(o->top_p < 1)) return s->key[run - 1];
        for (uint32_t i = 0; i < run; i++) {
            sum += mass_of(s->weight[(uint32_t)s->key[i]]);
            if (sum >= limit) return s->key[i];
        }
        if (run == n) return s->key[n - 1];
    }
}

static uint32_t draw(struct sample_scratch *s, const struct backend_output *o) {
    bool is_ranked = (o->top_k && o->top_k < s->vocab) || o->top_p < 1;
    uint64_t last = UINT64_MAX, kept = 0, run = 0, target;

    weigh(s->weight, s->adjusted, s->vocab, max_of(s->adjusted, s->vocab), o->temperature);
    if (is_ranked) last = last_kept_key(s, o);
    for (uint32_t i = 0; i < s->vocab; i++) {
        if (is_ranked && rank_key(s->adjusted[i], i) > last) s->weight[i] = 0;
        if (s->weight[i] < o->min_p) s->weight[i] = 0; /* the best has weight 1 */
        kept += mass_of(s->weight[i]);
    }
    target = (uint64_t)((unsigned __int128)rng_at(o->seed, o->position) * kept >> 64);
    for (uint32_t i = 0; i < s->vocab; i++) {
        run += mass_of(s->weight[i]);
        if (run > target) return i;
    }
    return 0; /* nothing has mass: min-p above 1, or a mask without tokens */
}

void sample(const struct sample_input *in, struct sample_scratch *s, struct sample_result *r) {
    const struct backend_output *o = in->output;
    float max;
    double log_mass;

    r->flags = copy_finite(s->raw, in->logits, s->vocab);
    max = max_of(s->raw, s->vocab);
    log_mass = max + log(exp_sum(s->raw, s->vocab, max));
    if (o->want == WANT_SCORE) {
        r->token = (int32_t)o->score_token;
    } else {
        adjust(s, in);
        if (max_of(s->adjusted, s->vocab) == -INFINITY) {
            r->flags |= OUT_NONE_ALLOWED;
            r->token = (int32_t)argmax(s->raw, s->vocab);
        } else if (!(o->temperature > 0)) {
            r->token = (int32_t)argmax(s->adjusted, s->vocab);
        } else {
            r->token = (int32_t)draw(s, o);
        }
    }
    r->logprob = (float)((double)s->raw[r->token] - log_mass);
    r->rank = rank_of(s->raw, s->vocab, (uint32_t)r->token);
    fill_alternatives(r, in->n_top, o->n_logprobs, s->raw, s->vocab, log_mass);
}

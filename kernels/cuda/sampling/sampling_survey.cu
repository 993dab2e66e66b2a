/* kernels/cuda/sampling/sampling_survey.cu - the pass that every output takes part in; see
 * sampling.h.
 *
 * One reading of the logits finds the best of each tile and the sum of exponentials relative to it;
 * the last block of a row joins them: log-sum-exp, the greedy token, the rank of a token that is
 * only scored. What is greedy or scored, and nothing more, is then done. */
#include "kernels/cuda/sampling/sampling.cuh"

#define LOG2E 1.44269504f

static __device__ __forceinline__ bool has_penalty(const struct backend_output *o) {
    return (o->repetition_penalty > 0 && o->repetition_penalty != 1.0f) ||
           o->frequency_penalty != 0 || o->presence_penalty != 0;
}

static __device__ __forceinline__ void clear_counts(float *adjusted, uint32_t tile, uint32_t n) {
#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i += 4) {
        uint32_t id = id_of(tile, i);

        if (id < n) *(uint4 *)(adjusted + id) = make_uint4(0, 0, 0, 0);
    }
}

/* The summary of a tile; join_tiles joins two. */
static __device__ __forceinline__ void survey_tile(const struct sampling_pass &p, uint32_t k,
                                                   uint32_t tile) {
    const struct backend_output *o = &p.a.output[k];
    const float *row = logits_of(p, k);
    struct sampling_tile *out = &p.tile[(uint64_t)k * p.n_tiles + tile];
    bool is_score = o->want == WANT_SCORE;
    float x[ITEMS], score = is_score ? finite_or_least(row[o->score_token]) : 0, top, sum = 0;
    uint64_t best, counts;
    uint32_t better = 0, n_bad = 0;

    load_tile(x, row, tile, p.a.vocab);
#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i++) {
        uint32_t id = id_of(tile, i);

        n_bad += is_bad(x[i]) && id < p.a.vocab;
        x[i] = finite_or_least(x[i]);
        better += is_score && (x[i] > score || (x[i] == score && id < o->score_token));
    }
    best = block_min(best_key(x, tile));
    top = logit_of_key(best);
#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i++)
        sum += x[i] > -INFINITY ? exp2f((x[i] - top) * LOG2E) : 0.0f;
    counts = block_total((uint64_t)n_bad << 32 | better);
    sum = (float)block_sum((double)sum);
    if (threadIdx.x == 0) *out = {best, 0, sum, (uint32_t)counts, (uint32_t)(counts >> 32), 0};
}

/* The biases of output k in the sorted list: one look for all threads. */
static __device__ __forceinline__ void find_biases(const struct sampling_pass &p, uint32_t k,
                                                   uint32_t range[2]) {
    uint32_t n = p.a.step->n_bias;

    if (threadIdx.x == 0) range[0] = n, range[1] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        if (p.a.bias[i].output != k) continue;
        atomicMin(&range[0], i);
        atomicMax(&range[1], i + 1);
    }
    __syncthreads();
}

static __device__ __forceinline__ uint32_t needs_of(const struct sampling_pass &p,
                                                    const struct backend_output *o, bool has_bias) {
    uint32_t needs = 0;

    if (min(o->n_logprobs, p.a.max_logprobs)) needs |= SAMPLING_TOP;
    if (o->want == WANT_SCORE) return needs;
    if (has_penalty(o)) needs |= SAMPLING_COUNT | SAMPLING_ADJUST | SAMPLING_RANK;
    if (has_bias || o->mask != BACKEND_NO_MASK) needs |= SAMPLING_ADJUST | SAMPLING_RANK;
    if (o->temperature > 0) {
        needs |= SAMPLING_DRAW | SAMPLING_RANK;
        if ((o->top_k && o->top_k < p.a.vocab) || o->top_p < 1) needs |= SAMPLING_FILTER;
    }
    return needs;
}

/* The distance of the n best from the maximum is about that of the tiles' maxima: 4 after scaling,
 * the middle of what the bins of a histogram separate. */
static __device__ __forceinline__ float top_scale_of(float max, float least_top) {
    float spread = max - least_top;

    return spread > 0 && spread < INFINITY ? fminf(__fdividef(4.0f, spread), 1e30f) : 1.0f;
}

/* To 1e-7, from the exponent and a float: the double function is long, and called once. */
static __device__ __forceinline__ double log_of(double x) {
    uint64_t bits = bits_of(x), one = 0x3FF0000000000000u;
    int32_t exponent = (int32_t)(bits >> 52) - 1023;
    float mantissa = (float)double_of((bits & 0xFFFFFFFFFFFFFu) | one); /* in [1, 2] */

    return x > 0 ? exponent * 0.69314718055994531 + (double)logf(mantissa) : -INFINITY;
}

/* The whole last block: a tile for each thread. */
static __device__ __forceinline__ void join_tiles(const struct sampling_pass &p, uint32_t k) {
    SHARED(uint32_t, bias, 2);
    const struct backend_output *o = &p.a.output[k];
    struct sampling_state *s = &p.state[k];
    bool has_tile = threadIdx.x < p.n_tiles;
    struct sampling_tile t = {NO_KEY, 0, 0, 0, 0, 0};
    uint64_t best, worst, counts;
    double sum = 0;

    if (has_tile) t = p.tile[(uint64_t)k * p.n_tiles + threadIdx.x];
    find_biases(p, k, bias);
    best = block_min(t.best);
    worst = ~block_min(has_tile ? ~t.best : NO_KEY);
    counts = block_total((uint64_t)t.n_bad << 32 | t.better);
    if (t.sum > 0) sum = (double)t.sum * exp2f((logit_of_key(t.best) - logit_of_key(best)) * LOG2E);
    sum = block_sum(sum);
    if (threadIdx.x > 0) return;
    s->raw_max = s->max = logit_of_key(best);
    s->log_mass = (double)s->raw_max + log_of(sum);
    s->top_scale = top_scale_of(s->raw_max, logit_of_key(worst));
    s->last_kept = -INFINITY;
    s->last_id = p.a.vocab;
    s->bias_first = bias[0];
    s->bias_end = bias[1];
    s->flags = counts >> 32 ? OUT_NOT_FINITE : 0;
    s->needs = needs_of(p, o, bias[0] < bias[1]);
    s->token = o->want == WANT_SCORE ? o->score_token : (uint32_t)best;
    if (o->want == WANT_SAMPLE && !(s->needs & SAMPLING_ADJUST) && s->max == -INFINITY) {
        s->flags |= OUT_NONE_ALLOWED;
        s->needs &= SAMPLING_TOP;
    }
    if (!(s->needs & SAMPLING_RANK))
        publish(p, k, o->want == WANT_SCORE ? (uint32_t)counts + 1 : 1);
}

static __global__ void __launch_bounds__(THREADS, 5)
    survey_kernel(const __grid_constant__ struct sampling_pass p) {
    simt_wait_for_primary();
    simt_launch_dependents();

    uint32_t tile = blockIdx.x, k = blockIdx.y;

    if (k >= p.a.step->n_outputs) return;
    if ((p.needs & SAMPLING_COUNT) && has_penalty(&p.a.output[k]))
        clear_counts(adjusted_of(p, k), tile, (uint32_t)p.adjusted_stride);
    survey_tile(p, k, tile);
    if (!ends_last(&p.state[k].ended, p.n_tiles)) return;
    join_tiles(p, k);
    if (!(p.needs & SAMPLING_RANK)) finish_output(p);
}

extern "C" void sampling_survey(struct gpu_stream *stream, const struct sampling_pass *p) {
    LAUNCH(survey_kernel, dim3(p->n_tiles, p->a.n_bucket), THREADS, 0, stream, *p);
}

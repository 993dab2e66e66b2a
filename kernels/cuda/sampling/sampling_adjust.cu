/* kernels/cuda/sampling/sampling_adjust.cu - biases, penalties and masks; see sampling.h.
 *
 * How often a token is in the history is counted where its adjusted logit will be: the survey has
 * put zeros there, `count` adds, and `adjust` replaces each count by the logit. Rows that want none
 * of it are drawn from the raw logits. */
#include "kernels/cuda/sampling/sampling.cuh"

#define COUNT_BLOCKS 8u /* of a row: a prompt of 128k tokens is 64 rounds of a thread */

static __device__ __forceinline__ bool has_repetition(const struct backend_output *o) {
    return o->repetition_penalty > 0 && o->repetition_penalty != 1.0f;
}

static __global__ void __launch_bounds__(THREADS)
    count_kernel(const __grid_constant__ struct sampling_pass p) {
    simt_wait_for_primary();
    simt_launch_dependents();

    uint32_t k = blockIdx.y;

    if (k >= p.a.step->n_outputs || !(p.state[k].needs & SAMPLING_COUNT)) return;

    const struct backend_output *o = &p.a.output[k];
    struct sampling_row row = p.a.row[o->row];
    const uint32_t *history = p.a.history + o->row * (p.a.max_context + 1ull);
    uint32_t *count = (uint32_t *)adjusted_of(p, k);
    uint32_t first = has_repetition(o) ? 0 : row.n_prompt; /* only that penalty sees the prompt */

    for (uint32_t i = first + blockIdx.x * THREADS + threadIdx.x; i < row.n_history;
         i += COUNT_BLOCKS * THREADS) {
        if (i < row.n_prompt)
            atomicOr(&count[history[i]], SEEN);
        else
            atomicAdd(&count[history[i]], 1u);
    }
}

/* All of a tile at once: taken one by one, each would be waited for. */
static __device__ __forceinline__ void load_counts(uint32_t count[ITEMS], const uint32_t *row,
                                                   uint32_t tile, uint64_t stride) {
#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i += 4) {
        uint32_t id = id_of(tile, i);
        uint4 four = id < stride ? *(const uint4 *)(row + id) : make_uint4(0, 0, 0, 0);

        count[i] = four.x, count[i + 1] = four.y, count[i + 2] = four.z, count[i + 3] = four.w;
    }
}

static __device__ __forceinline__ void apply_penalties(float x[ITEMS],
                                                       const struct backend_output *o,
                                                       const uint32_t count[ITEMS]) {
#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i++) {
        uint32_t seen = count[i], times = seen & ~SEEN;

        if (!seen) continue;
        if (has_repetition(o))
            x[i] = x[i] > 0 ? __fdiv_rn(x[i], o->repetition_penalty)
                            : __fmul_rn(x[i], o->repetition_penalty);
        x[i] = __fsub_rn(x[i], __fmul_rn(o->frequency_penalty, (float)times));
        if (times) x[i] = __fsub_rn(x[i], o->presence_penalty);
    }
}

/* In the order of the list, each by the thread that has the logit. */
static __device__ __forceinline__ void apply_biases(float x[ITEMS], const struct sampling_pass &p,
                                                    const struct sampling_state *s, uint32_t tile) {
    for (uint32_t b = s->bias_first; b < s->bias_end; b++) {
        uint32_t token = p.a.bias[b].token;
        float bias = p.a.bias[b].bias;

#pragma unroll
        for (uint32_t i = 0; i < ITEMS; i++)
            x[i] = id_of(tile, i) == token ? __fadd_rn(x[i], bias) : x[i];
    }
}

static __device__ __forceinline__ void apply_mask(float x[ITEMS], const uint32_t *mask,
                                                  uint32_t tile, uint32_t vocab) {
#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i += 4) {
        uint32_t id = id_of(tile, i), word = id < vocab ? mask[id / 32] : 0;

#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            if (!(word >> ((id + j) % 32) & 1)) x[i + j] = -INFINITY;
        }
    }
}

/* Returns the lowest key of the tile. */
static __device__ __forceinline__ uint64_t adjust_tile(const struct sampling_pass &p, uint32_t k,
                                                       uint32_t tile) {
    const struct backend_output *o = &p.a.output[k];
    const struct sampling_state *s = &p.state[k];
    float *adjusted = adjusted_of(p, k), x[ITEMS];
    uint32_t count[ITEMS];

    if (s->needs & SAMPLING_COUNT)
        load_counts(count, (const uint32_t *)adjusted, tile, p.adjusted_stride);
    load_raw_tile(x, logits_of(p, k), tile, p.a.vocab);
    apply_biases(x, p, s, tile);
    if (s->needs & SAMPLING_COUNT) apply_penalties(x, o, count);
    if (o->mask != BACKEND_NO_MASK)
        apply_mask(x, p.a.mask + (uint64_t)o->mask * CEIL_DIV(p.a.vocab, 32u), tile, p.a.vocab);
#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i += 4) {
        uint32_t id = id_of(tile, i);

        if (id < p.adjusted_stride)
            *(float4 *)(adjusted + id) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    }
    return block_min(best_key(x, tile));
}

static __global__ void __launch_bounds__(THREADS)
    adjust_kernel(const __grid_constant__ struct sampling_pass p) {
    simt_wait_for_primary();
    simt_launch_dependents();

    uint32_t tile = blockIdx.x, k = blockIdx.y;

    if (k >= p.a.step->n_outputs || !(p.state[k].needs & SAMPLING_ADJUST)) return;

    struct sampling_state *s = &p.state[k];
    struct sampling_tile *tiles = &p.tile[(uint64_t)k * p.n_tiles];
    uint64_t best = adjust_tile(p, k, tile);

    if (threadIdx.x == 0) tiles[tile].best = best;
    if (!ends_last(&s->ended, p.n_tiles)) return;
    best = block_min(threadIdx.x < p.n_tiles ? tiles[threadIdx.x].best : NO_KEY);
    if (threadIdx.x > 0) return;
    s->max = logit_of_key(best);
    if (s->max == -INFINITY) { /* the token stays the best of the raw logits */
        s->flags |= OUT_NONE_ALLOWED;
        s->needs &= SAMPLING_TOP;
        publish(p, k, 1);
    } else if (!(s->needs & SAMPLING_DRAW)) {
        s->token = (uint32_t)best;
    }
}

extern "C" void sampling_count(struct gpu_stream *stream, const struct sampling_pass *p) {
    LAUNCH(count_kernel, dim3(COUNT_BLOCKS, p->a.n_bucket), THREADS, 0, stream, *p);
}

extern "C" void sampling_adjust(struct gpu_stream *stream, const struct sampling_pass *p) {
    LAUNCH(adjust_kernel, dim3(p->n_tiles, p->a.n_bucket), THREADS, 0, stream, *p);
}

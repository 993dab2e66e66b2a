/* kernels/cuda/sampling/sampling_selection.cuh - for the passes that select: from what, bins,
 * sorting. */
#ifndef KERNELS_CUDA_SAMPLING_SELECTION_CUH
#define KERNELS_CUDA_SAMPLING_SELECTION_CUH

#include "kernels/cuda/sampling/sampling.cuh"

#define FILTER_REACH 29.2f /* exp(-29.2) is 0.9 units of mass: nothing */

/* The k-th best, the nucleus, or both. */
struct selection {
    const float *row;
    bool is_raw;     /* not-finite logits may be met */
    bool is_filter;  /* of what is drawn from; else the n best raw logits */
    bool is_nucleus; /* top_p < 1 */
    uint32_t vocab;
    uint32_t k; /* rank of the last token wanted; 0: top-k is off */
    float max, temperature, scale, top_p;
};

/* A launch has the selections that its outputs need: both, or one. */
static __device__ __forceinline__ uint32_t selection_of_block(const struct sampling_pass &p,
                                                              uint32_t block) {
    return p.needs & SAMPLING_TOP ? block : (uint32_t)SAMPLING_OF_FILTER;
}

/* False when output k has no such selection. */
static __device__ __forceinline__ bool find_selection(struct selection *l,
                                                      const struct sampling_pass &p, uint32_t k,
                                                      uint32_t which) {
    const struct sampling_state *s = &p.state[k];
    const struct backend_output *o = &p.a.output[k];

    if (!(s->needs & (which == SAMPLING_OF_TOP ? SAMPLING_TOP : SAMPLING_FILTER))) return false;
    l->is_filter = which == SAMPLING_OF_FILTER;
    l->is_raw = !l->is_filter || !(s->needs & SAMPLING_ADJUST);
    l->row = l->is_raw ? logits_of(p, k) : adjusted_of(p, k);
    l->vocab = p.a.vocab;
    l->max = l->is_filter ? s->max : s->raw_max;
    l->scale = s->top_scale;
    l->temperature = o->temperature;
    l->top_p = o->top_p;
    l->is_nucleus = l->is_filter && o->top_p < 1;
    if (l->is_filter)
        l->k = o->top_k < p.a.vocab ? o->top_k : 0;
    else
        l->k = min(min(o->n_logprobs, p.a.max_logprobs), p.a.vocab);
    return true;
}

static __device__ __forceinline__ void load_selected_four(float x[4], const struct selection &l,
                                                          uint32_t id) {
    load_four(x, l.row, id, l.vocab);
    if (!l.is_raw) return;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        x[i] = finite_or_least(x[i]);
}
static __device__ __forceinline__ void load_selected(float x[ITEMS], const struct selection &l,
                                                     uint32_t tile) {
    load_tile(x, l.row, tile, l.vocab);
#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i++) /* after all loads: a branch between them would wait */
        x[i] = l.is_raw ? finite_or_least(x[i]) : x[i];
}

static __device__ __forceinline__ uint64_t mass_of_key(const struct selection &l, uint64_t key) {
    return mass_of(exact_exp(scaled(logit_of_key(key), l.max, l.temperature)));
}

/* The mass at which the nucleus is full; 0: the first token is. */
static __device__ __forceinline__ uint64_t nucleus_limit(float top_p, uint64_t mass) {
    return top_p > 0 ? (uint64_t)__dmul_rn((double)top_p, (double)mass) : 0;
}

/* --- bins in shared memory: tokens and mass. A mass is two halves, because shared memory adds 32
 * bits at a time: the thread that makes the lower half wrap carries, so the sum is exact. */
struct bins {
    uint32_t *count; /* (SAMPLING_BINS), then the lower halves, then the upper */
};

static __device__ __forceinline__ void bins_clear(const struct bins &b) {
    __syncthreads(); /* they may still be read */
    for (uint32_t i = threadIdx.x; i < 3 * SAMPLING_BINS; i += THREADS)
        b.count[i] = 0;
    __syncthreads();
}
static __device__ __forceinline__ void bins_add_mass(const struct bins &b, uint32_t bin,
                                                     uint64_t mass) {
    uint32_t low = (uint32_t)mass, high = (uint32_t)(mass >> 32);
    uint32_t old = atomicAdd(&b.count[SAMPLING_BINS + bin], low);

    if (old + low < old) high++;
    if (high) atomicAdd(&b.count[2 * SAMPLING_BINS + bin], high);
}
static __device__ __forceinline__ uint64_t bins_mass(const struct bins &b, uint32_t bin) {
    return (uint64_t)b.count[2 * SAMPLING_BINS + bin] << 32 | b.count[SAMPLING_BINS + bin];
}

/* --- sorting, by the whole block. Bitonic; key has room for the next power of two. */
static __device__ __forceinline__ void sort_keys(uint64_t *key, uint32_t n) {
    uint32_t n_padded = 1;

    while (n_padded < n)
        n_padded *= 2;
    for (uint32_t i = n + threadIdx.x; i < n_padded; i += THREADS)
        key[i] = NO_KEY;
    __syncthreads();
    for (uint32_t size = 2; size <= n_padded; size *= 2) {
        for (uint32_t step = size / 2; step > 0; step /= 2) {
            for (uint32_t i = threadIdx.x; i < n_padded / 2; i += THREADS) {
                uint32_t a = 2 * i - (i & (step - 1)), b = a + step;
                uint64_t low = key[a], high = key[b];

                if ((low > high) == !(a & size)) key[a] = high, key[b] = low;
            }
            __syncthreads();
        }
    }
}

/* One thread: output k is drawn from the keys up to this. */
static __device__ __forceinline__ void keep_through(const struct sampling_pass &p, uint32_t k,
                                                    uint64_t key) {
    p.state[k].last_kept = logit_of_key(key);
    p.state[k].last_id = (uint32_t)key;
}

/* The whole block: the n best, of n sorted keys, are the alternatives of output k. */
static __device__ __forceinline__ void write_top(const struct sampling_pass &p, uint32_t k,
                                                 const uint64_t *key, uint32_t n) {
    uint32_t wanted = min(p.a.output[k].n_logprobs, p.a.max_logprobs);
    uint64_t at = (uint64_t)k * p.a.max_logprobs;
    double log_mass = p.state[k].log_mass;

    for (uint32_t i = threadIdx.x; i < wanted; i += THREADS) {
        float x = i < n ? logit_of_key(key[i]) : 0;

        p.a.out_top_token[at + i] = i < n ? (int32_t)(uint32_t)key[i] : -1;
        p.a.out_top_logprob[at + i] = i < n ? (float)((double)x - log_mass) : 0;
    }
}

#endif

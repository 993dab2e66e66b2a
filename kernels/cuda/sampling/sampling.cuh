/* kernels/cuda/sampling/sampling.cuh - what the kernels of sampling share: tiles, keys, masses,
 * reductions.
 *
 * A block looks at one tile at a time, 16 logits in the registers of each of its 256 threads,
 * loaded as four float4 that neighbouring threads continue. All arithmetic that decides about a
 * token is that of kernels/sample.c operation by operation, with the roundings spelt out (__fmul_rn
 * is never fused with a sum), and masses are integers: no order of blocks, warps or lanes changes a
 * result. */
#ifndef KERNELS_CUDA_SAMPLING_CUH
#define KERNELS_CUDA_SAMPLING_CUH

#include "kernels/cuda/sampling/sampling_internal.h"
#include "kernels/cuda/device/last_block.cuh"
#include "kernels/cuda/device/simt.h"
#include "kernels/exp.h"

#define THREADS   SAMPLING_THREADS
#define WARPS     (THREADS / 32)
#define TILE      SAMPLING_TILE
#define ITEMS     (TILE / THREADS)
#define ALL_LANES 0xFFFFFFFFu
#define NO_KEY    UINT64_MAX
#define SEEN      0x80000000u /* in a count: the token is in the history */

/* --- the logits of a tile */

/* The id of this thread's i-th logit; they rise with i. */
static __device__ __forceinline__ uint32_t id_of(uint32_t tile, uint32_t i) {
    return tile * TILE + i / 4 * (4 * THREADS) + threadIdx.x * 4 + i % 4;
}

/* The logits of ids `id`, a multiple of 4, to id + 3; minus infinity past the end of the
 * vocabulary. */
static __device__ __forceinline__ void load_four(float x[4], const float *row, uint32_t id,
                                                 uint32_t vocab) {
    if (id + 4 <= vocab) {
        float4 v = *(const float4 *)(row + id);

        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            x[j] = id + j < vocab ? row[id + j] : -INFINITY;
    }
}
/* x[i] is the logit of id_of(tile, i). */
static __device__ __forceinline__ void load_tile(float x[ITEMS], const float *row, uint32_t tile,
                                                 uint32_t vocab) {
#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i += 4)
        load_four(x + i, row, id_of(tile, i), vocab);
}

static __device__ __forceinline__ bool is_bad(float x) { /* a NaN or an infinity */
    return (__float_as_uint(x) & 0x7F800000u) == 0x7F800000u;
}
static __device__ __forceinline__ float finite_or_least(float x) {
    return is_bad(x) ? -INFINITY : x;
}
static __device__ __forceinline__ void load_raw_tile(float x[ITEMS], const float *row,
                                                     uint32_t tile, uint32_t vocab) {
    load_tile(x, row, tile, vocab);
#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i++)
        x[i] = finite_or_least(x[i]);
}

static __device__ __forceinline__ const float *logits_of(const struct sampling_pass &p,
                                                         uint32_t k) {
    return p.a.logits + (uint64_t)k * p.a.vocab_stride;
}
static __device__ __forceinline__ float *adjusted_of(const struct sampling_pass &p, uint32_t k) {
    return p.adjusted + k * p.adjusted_stride;
}
/* What the token of output k is chosen from. */
struct chosen {
    const float *row;
    bool is_raw; /* not-finite logits may be met */
};
static __device__ __forceinline__ struct chosen chosen_of(const struct sampling_pass &p,
                                                          uint32_t k) {
    bool is_adjusted = p.state[k].needs & SAMPLING_ADJUST;

    return {is_adjusted ? adjusted_of(p, k) : logits_of(p, k), !is_adjusted};
}

/* --- keys and masses: rank_key, exp_f32 and mass_of of kernels/sample.c and kernels/exp.h */

static __device__ __forceinline__ uint64_t key_of(float x, uint32_t id) {
    uint32_t u = __float_as_uint(__fadd_rn(x, 0.0f)); /* -0 ranks as 0 */

    u = u & 0x80000000u ? u : u ^ 0x7FFFFFFFu;
    return (uint64_t)u << 32 | id;
}
static __device__ __forceinline__ float logit_of_key(uint64_t key) {
    uint32_t u = (uint32_t)(key >> 32);

    return __uint_as_float(u & 0x80000000u ? u : u ^ 0x7FFFFFFFu);
}

/* The key of the best of this thread's logits. Ids rise with i: the first of equals is the best. */
static __device__ __forceinline__ uint64_t best_key(const float x[ITEMS], uint32_t tile) {
    float best = -INFINITY;
    uint32_t at = 0;

#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i++) {
        if (x[i] > best) best = x[i], at = i;
    }
    return key_of(best, id_of(tile, at));
}

static __device__ __forceinline__ float exact_exp(float x) {
    float c = x > EXP_MIN ? x : EXP_MIN, n, r, p;

    c = c < EXP_MAX ? c : EXP_MAX;
    n = __fsub_rn(__fadd_rn(__fmul_rn(c, EXP_LOG2E), EXP_ROUND), EXP_ROUND);
    r = __fsub_rn(c, __fmul_rn(n, EXP_LN2_HI));
    r = __fsub_rn(r, __fmul_rn(n, EXP_LN2_LO));
    p = 1.9875691500e-4f;
    p = __fadd_rn(__fmul_rn(p, r), 1.3981999507e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2f);
    p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1f);
    p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1f);
    p = __fadd_rn(__fadd_rn(__fmul_rn(p, __fmul_rn(r, r)), r), 1.0f);
    p = __uint_as_float(__float_as_uint(p) + ((uint32_t)(int32_t)n << 23));
    return x > EXP_MIN ? p : 0.0f;
}

/* (x - max) / t: the argument of the exponential. It falls as x falls. */
static __device__ __forceinline__ float scaled(float x, float max, float t) {
    float y = __fsub_rn(x, max);

    return t == 1.0f ? y : __fdiv_rn(y, t);
}
static __device__ __forceinline__ uint64_t mass_of(float weight) {
    return (uint64_t)__fmul_rn(weight, 4398046511104.0f); /* MASS_ONE, 2^42 */
}

/* --- reductions over a block; every thread calls and every thread has the result */

static __device__ __forceinline__ uint64_t flip64(uint64_t x, int lanes) {
    uint32_t high = __shfl_xor_sync(ALL_LANES, (uint32_t)(x >> 32), lanes);
    uint32_t low = __shfl_xor_sync(ALL_LANES, (uint32_t)x, lanes);

    return (uint64_t)high << 32 | low;
}
static __device__ __forceinline__ uint64_t bits_of(double x) {
    uint64_t bits;

    memcpy(&bits, &x, 8);
    return bits;
}
static __device__ __forceinline__ double double_of(uint64_t bits) {
    double x;

    memcpy(&x, &bits, 8);
    return x;
}

static __device__ __forceinline__ uint64_t block_min(uint64_t x) {
    SHARED(uint64_t, part, WARPS);

#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        uint64_t other = flip64(x, lanes);

        x = other < x ? other : x;
    }
    __syncthreads(); /* `part` may still be read from the call before */
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++)
        x = part[w] < x ? part[w] : x;
    return x;
}

static __device__ __forceinline__ uint64_t block_total(uint64_t x) {
    SHARED(uint64_t, part, WARPS);
    uint64_t total = 0;

#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x += flip64(x, lanes);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++)
        total += part[w];
    return total;
}

/* A sum of doubles in one fixed order. */
static __device__ __forceinline__ double block_sum(double x) {
    SHARED(double, part, WARPS);
    double total = 0;

#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x += double_of(flip64(bits_of(x), lanes));
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++)
        total += part[w];
    return total;
}

/* The sum of x over the threads before this one; *total is that of all. */
static __device__ __forceinline__ uint64_t block_before(uint64_t x, uint64_t *total) {
    SHARED(uint64_t, part, WARPS);
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint64_t through = x, before = 0, all = 0;

#pragma unroll
    for (uint32_t by = 1; by < 32; by *= 2) {
        uint32_t high = __shfl_up_sync(ALL_LANES, (uint32_t)(through >> 32), by);
        uint32_t low = __shfl_up_sync(ALL_LANES, (uint32_t)through, by);

        if (lane >= by) through += (uint64_t)high << 32 | low;
    }
    __syncthreads();
    if (lane == 31) part[warp] = through;
    __syncthreads();
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++) {
        before += w < warp ? part[w] : 0;
        all += part[w];
    }
    *total = all;
    return before + through - x;
}

/* --- the end of an output and of the step */

/* One thread. The token, flags and log_mass of the state are known, and so is the rank. */
static __device__ __forceinline__ void publish(const struct sampling_pass &p, uint32_t k,
                                               uint32_t rank) {
    const struct sampling_state *s = &p.state[k];

    p.a.out_token[k] = (int32_t)s->token;
    p.a.out_logprob[k] = (float)((double)finite_or_least(logits_of(p, k)[s->token]) - s->log_mass);
    p.a.out_rank[k] = rank;
    p.a.out_flags[k] = s->flags;
}

#define NO_ROW 0xFFFFFFFFu

/* The whole block. Appends what was sampled to the histories, in the order of the outputs, up to
 * max_context + 1 tokens of a row. */
static __device__ void append_tokens(const struct sampling_pass &p) {
    SHARED(uint32_t, rows, THREADS);
    uint32_t n_outputs = p.a.step->n_outputs, most = p.a.max_context + 1;

    for (uint32_t first = 0; first < n_outputs; first += THREADS) {
        uint32_t k = first + threadIdx.x, n_here = min(n_outputs - first, THREADS);
        uint32_t before = 0, n = 0;
        bool is_sampled = k < n_outputs && p.a.output[k].want == WANT_SAMPLE;
        uint32_t row = is_sampled ? p.a.output[k].row : NO_ROW;

        __syncthreads();
        rows[threadIdx.x] = row;
        __syncthreads();
        for (uint32_t i = 0; i < n_here; i++) { /* others of the same row, most often none */
            before += rows[i] == row && i < threadIdx.x;
            n += rows[i] == row;
        }
        if (is_sampled) {
            uint32_t at = p.a.row[row].n_history + before;

            if (at < most) p.a.history[(uint64_t)row * most + at] = (uint32_t)p.a.out_token[k];
        }
        __syncthreads(); /* all have read n_history */
        if (is_sampled && before == 0)
            p.a.row[row].n_history = min(p.a.row[row].n_history + n, most);
    }
}

/* The whole block, once for every output, in the last pass. */
static __device__ __forceinline__ void finish_output(const struct sampling_pass &p) {
    if (ends_last(p.n_finished, p.a.step->n_outputs)) append_tokens(p);
}

#endif

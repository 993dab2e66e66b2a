/* kernels/cuda/ops/rope.cu - from the QKV product to what attention reads; see ops.h.
 *
 * A thread holds eight pairs of one head: elements [8c, 8c + 8) of its lower half and of its upper
 * half, so that a rotation never leaves a thread and every access is of 16 bytes. The threads of a
 * head are neighbours in a warp, a power of two of them (head_dim 96 leaves two of eight idle), so
 * that the head's norm is a few shuffles. A block works on heads of one token only.
 *
 *      head      0 .. n_heads           Q  norm, turn, back in place
 *                .. + n_kv_heads        K  norm, turn, into the pool
 *                .. + n_kv_heads        V  into the pool
 *
 * A quantised pool gets codes, and behind the largest magnitude of a head, found by shuffles, its
 * scale: by the rules of kernels/kv_quant.h, of what a bf16 pool would get. */
#include <assert.h>

#include "kernels/cuda/device/codes.cuh"
#include "kernels/cuda/device/simt.h"
#include "kernels/cuda/ops/eight.cuh"
#include "kernels/cuda/ops/ops.h"

#define N_THREADS 128u

/* Threads of one head. */
template <int HD> static __host__ __device__ constexpr uint32_t lanes_of() {
    return HD <= 64 ? 4 : HD <= 128 ? 8 : 16;
}

enum head_kind { HEAD_Q, HEAD_K, HEAD_V };

static __device__ enum head_kind kind_of(const struct rope_args &a, uint32_t head) {
    return head < a.n_heads ? HEAD_Q : head < a.n_heads + a.n_kv_heads ? HEAD_K : HEAD_V;
}

/* Where this head of K or V goes; NULL: nowhere. */
template <int HD, int KV>
static __device__ uint8_t *place_of(const struct rope_args &a, uint32_t head, int64_t slot) {
    int64_t tile;

    if (slot < 0) return NULL;
    /* K and then V follow each other in the pool as they do in qkv */
    tile = (int64_t)a.layer * 2 * a.n_kv_heads + (head - a.n_heads);
    return (uint8_t *)a.kv + slot / OPS_BLOCK_SIZE * a.block_stride +
           (tile * OPS_BLOCK_SIZE + slot % OPS_BLOCK_SIZE) * HD * (KV == KV_BF16 ? 2 : 1);
}

/* Its scale: those of K and V of a head lie beside each other. */
static __device__ uint8_t *scale_place_of(const struct rope_args &a, uint32_t head, int64_t slot) {
    uint32_t h = (head - a.n_heads) % a.n_kv_heads, which = (head - a.n_heads) / a.n_kv_heads;
    int64_t at = (int64_t)(h * 2 + which) * OPS_BLOCK_SIZE + slot % OPS_BLOCK_SIZE;

    return (uint8_t *)a.kv + slot / OPS_BLOCK_SIZE * a.block_stride + a.scales_at + at;
}

/* What a thread needs beside its pairs, all loaded at the start: a step of few tokens lasts as long
 * as the chain of its loads. */
struct rope_needs {
    float4 turn[4]; /* cos, sin, cos, sin of two pairs each */
    uint4 norm_low, norm_high;
    int64_t slot;
};

template <int HD>
static __device__ struct rope_needs load_needs(const struct rope_args &a, uint32_t t,
                                               const uint16_t *norm, uint32_t at, bool is_turned) {
    uint32_t position = a.position[t];
    struct rope_needs n = {};

    n.slot = a.kv_slot[t];
    if (norm) n.norm_low = eight_load(norm + at);
    if (norm) n.norm_high = eight_load(norm + HD / 2 + at);
    if (!is_turned) return n; /* the loads that wait for another are last */
#pragma unroll
    for (int i = 0; i < 4; i++)
        n.turn[i] = ((const float4 *)(a.turn + ((size_t)position * (HD / 2) + at) * 2))[i];
    return n;
}

/* Sum over the threads of a head. */
template <int HD>
static __device__ float head_sum_of_squares(const float low[8], const float high[8]) {
    float sum = 0;

#pragma unroll
    for (int i = 0; i < 8; i++)
        sum += low[i] * low[i] + high[i] * high[i];
#pragma unroll
    for (int mask = lanes_of<HD>() / 2; mask > 0; mask /= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, mask);
    return sum;
}

static __device__ void scale_by(float f[8], uint4 weight, float scale) {
    float w[8];

    eight_unpack(w, weight);
#pragma unroll
    for (int i = 0; i < 8; i++)
        f[i] *= scale * w[i];
}

static __device__ void turn_pairs(float low[8], float high[8], const float4 turn[4]) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        float4 two = turn[i / 2];
        float a = low[i], b = low[i + 1];

        low[i] = a * two.x - high[i] * two.y;
        high[i] = high[i] * two.x + a * two.y;
        low[i + 1] = b * two.z - high[i + 1] * two.w;
        high[i + 1] = high[i + 1] * two.z + b * two.w;
    }
}

/* Bits of the largest magnitude over the threads of a head, of what is left once it is rounded to
 * bf16, which is what the elements become. */
template <int HD> static __device__ uint32_t round_and_find_max(float low[8], float high[8]) {
    uint32_t max = 0;

    eight_unpack(low, eight_pack(low));
    eight_unpack(high, eight_pack(high));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t a = __float_as_uint(low[i]) & 0x7FFFFFFFu;
        uint32_t b = __float_as_uint(high[i]) & 0x7FFFFFFFu;

        max = a > max ? a : max;
        max = b > max ? b : max;
    }
#pragma unroll
    for (int mask = lanes_of<HD>() / 2; mask > 0; mask /= 2) {
        uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, max, mask);

        max = other > max ? other : max;
    }
    return max;
}

/* The codes of this thread's elements; the first thread of a head leaves the scale. */
template <int HD, int KV>
static __device__ void store_codes(const struct rope_args &a, uint32_t head, int64_t slot,
                                   uint32_t at, const float low[8], const float high[8],
                                   uint32_t max) {
    uint8_t *to = place_of<HD, KV>(a, head, slot);
    uint32_t scale = scale_of_max<KV>(max);
    uint2 low_codes, high_codes;

    if (!to) return;
    low_codes.x = code_four<KV>(low, scale, max);
    low_codes.y = code_four<KV>(low + 4, scale, max);
    high_codes.x = code_four<KV>(high, scale, max);
    high_codes.y = code_four<KV>(high + 4, scale, max);
    *(uint2 *)(to + at) = low_codes;
    *(uint2 *)(to + HD / 2 + at) = high_codes;
    if (at == 0) *scale_place_of(a, head, slot) = (uint8_t)scale;
}

template <int HD, int KV>
static __global__ void __launch_bounds__(N_THREADS)
    rope_kernel(const __grid_constant__ struct rope_args a) {
    simt_wait_for_primary();
    simt_launch_dependents();

    uint32_t n_heads = a.n_heads + 2 * a.n_kv_heads, t = blockIdx.x;
    uint32_t head = (blockIdx.y * N_THREADS + threadIdx.x) / lanes_of<HD>();
    uint32_t at = threadIdx.x % lanes_of<HD>() * 8; /* in a half */
    bool is_idle = head >= n_heads || at >= HD / 2; /* but takes part in the shuffles */
    enum head_kind kind = kind_of(a, head);
    const uint16_t *norm = is_idle || kind == HEAD_V ? NULL : kind == HEAD_Q ? a.q_norm : a.k_norm;
    const uint16_t *from = a.qkv + ((size_t)t * n_heads + head) * HD + at;
    uint4 low_bits = make_uint4(0, 0, 0, 0), high_bits = low_bits;
    struct rope_needs needs;
    float low[8], high[8];
    uint16_t *to;

    if (!is_idle) low_bits = eight_load(from);
    if (!is_idle) high_bits = eight_load(from + HD / 2);
    needs = load_needs<HD>(a, t, norm, at, !is_idle && kind != HEAD_V);
    eight_unpack(low, low_bits);
    eight_unpack(high, high_bits);
    if (a.bias && !is_idle) {
        eight_add(low, a.bias, head * HD + at);
        eight_add(high, a.bias, head * HD + HD / 2 + at);
    }
    if (a.q_norm || a.k_norm) {
        float scale = rsqrtf(head_sum_of_squares<HD>(low, high) / HD + a.eps);

        if (norm) scale_by(low, needs.norm_low, scale);
        if (norm) scale_by(high, needs.norm_high, scale);
    }
    if (kind != HEAD_V && !is_idle) turn_pairs(low, high, needs.turn);
    if constexpr (KV != KV_BF16) {
        uint32_t max = round_and_find_max<HD>(low, high); /* idle threads have zeros */

        if (kind != HEAD_Q && !is_idle)
            store_codes<HD, KV>(a, head, needs.slot, at, low, high, max);
        if (kind != HEAD_Q) return;
    }
    if (is_idle) return;
    to = kind == HEAD_Q ? a.qkv + ((size_t)t * n_heads + head) * HD
                        : (uint16_t *)place_of<HD, KV_BF16>(a, head, needs.slot);
    if (!to) return;
    eight_store(to + at, eight_pack(low));
    eight_store(to + HD / 2 + at, eight_pack(high));
}

template <int HD, int KV> static void launch(struct gpu_stream *s, const struct rope_args *a) {
    uint32_t n_heads = a->n_heads + 2 * a->n_kv_heads;
    dim3 grid(a->n_tokens, CEIL_DIV(n_heads * lanes_of<HD>(), N_THREADS));

    LAUNCH((rope_kernel<HD, KV>), grid, N_THREADS, 0, s, *a);
}

template <int HD> static void launch_any(struct gpu_stream *s, const struct rope_args *a) {
    switch (a->kv_dtype) {
    case DTYPE_F8E4M3: launch<HD, KV_E4M3>(s, a); break;
    case DTYPE_I8: launch<HD, KV_I8>(s, a); break;
    default: launch<HD, KV_BF16>(s, a); break;
    }
}

extern "C" bool ops_has_head_dim(uint32_t hd) {
    return hd == 64 || hd == 96 || hd == 128 || hd == 256;
}

extern "C" void ops_rope(struct gpu_stream *s, const struct rope_args *a) {
    assert(ops_has_head_dim(a->hd));
    if (a->n_tokens == 0) return;
    switch (a->hd) {
    case 64: launch_any<64>(s, a); break;
    case 96: launch_any<96>(s, a); break;
    case 128: launch_any<128>(s, a); break;
    default: launch_any<256>(s, a); break;
    }
}

/* kernels/cuda/attend/attend_tile.cuh - what the attention kernels share: tiles of the pool in
 * shared memory, and sums of a softmax that are taken in parts.
 *
 * A tile is (rows, HD) bf16 in shared memory, in pieces of 16 bytes: 8 elements. load_matrix4 reads
 * the same piece of 8 rows at once; with rows of 128 or 256 bytes these would all lie in the same
 * banks, so piece x of row r lies at x ^ (r % 8). Rows of 192 bytes alternate between two halves of
 * the banks by themselves, and x ^ (r / 2 % 4) spreads the rest. Either way the 8 pieces cover all
 * 32 banks once.
 *
 * A part of a softmax over some positions is (o, max, sum): o = sum of 2^(s - max) v, sum = sum of
 * 2^(s - max), s = scores times log2(e). A part that saw nothing is (0, -inf, 0). */
#ifndef KERNELS_CUDA_ATTEND_TILE_CUH
#define KERNELS_CUDA_ATTEND_TILE_CUH

#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/device/simt.h"

#define FULL_WARP 0xFFFFFFFFu

/* 100 KiB of shared memory on a multiprocessor: that, not registers, limits how many blocks
 * are there at once. */
#if defined(__CUDA_ARCH__) &&                                                                      \
    (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ == 1200)
#define SMALL_SHARED true
#else
#define SMALL_SHARED false
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 800 /* 164 KiB */
#define MIDDLE_SHARED true
#else
#define MIDDLE_SHARED false
#endif

/* Element at which piece `piece` of row `row` begins. */
template <int HD> static __device__ __forceinline__ int tile_at(int row, int piece) {
    return row * HD + (piece ^ (HD % 64 == 0 ? row & 7 : row >> 1 & 3)) * 8;
}

/* Of the pieces that `step` threads take in turn, piece `first` and its successors, the i-th: its
 * element in the tile. `at` is that of the first: where rows are whole rounds, it moves down by
 * them, and only the exclusive or of its row changes. */
template <int HD, int STEP>
static __device__ __forceinline__ int tile_at_round(int at, int first, int i) {
    constexpr int PIECES = HD / 8, ROWS = STEP / PIECES;

    if constexpr (HD % 64 == 0 && STEP % PIECES == 0)
        return (at ^ (i * ROWS & 7) * 8) + i * ROWS * HD;
    else
        return tile_at<HD>((first + i * STEP) / PIECES, (first + i * STEP) % PIECES);
}

/* One KV head's tokens of a block: (16, HD). */
template <int HD>
static __device__ __forceinline__ const bf16 *page_of(const void *layer,
                                                      const struct attend_args &a, int32_t block,
                                                      int kv_head) {
    return (const bf16 *)((const uint8_t *)layer + block * a.block_stride) +
           (int64_t)kv_head * (int)ATTEND_PAGE * HD;
}

static __device__ __forceinline__ void store_zeros16(bf16 *shared) {
    int4 zeros = {0, 0, 0, 0};

    *(int4 *)shared = zeros;
}

/* Fragments are found from one element per lane, that of the first: `at` moved by 2 k pieces. Where
 * a row is 64 or 128 elements, only the exclusive or reaches the bits of k; one of 96 is three
 * times 32. */
template <int HD> static __device__ __forceinline__ int fragment_at(int at, int k) {
    if constexpr (HD % 64 == 0)
        return at ^ k * 16;
    else
        return (at ^ (k & 1) * 16) + (k >> 1) * 32;
}
template <int HD> static __device__ __forceinline__ int first_key(int lane) {
    return tile_at<HD>((lane >> 4) * 8 + (lane & 7), lane >> 3 & 1);
}
template <int HD> static __device__ __forceinline__ int first_value(int lane) {
    return tile_at<HD>((lane >> 3 & 1) * 8 + (lane & 7), lane >> 4);
}

/* B fragments out of a K tile: 16 keys x dimensions [16 k, 16 k + 16). b[0], b[1] multiply for the
 * first 8 keys, b[2], b[3] for the others. `at`: first_key of the tile's first key. */
template <int HD>
static __device__ __forceinline__ void load_keys(uint32_t b[4], const bf16 *shared, int at, int k) {
    load_matrix4(b, shared + fragment_at<HD>(at, k));
}

/* B fragments out of a V tile: 16 tokens x dimensions [16 n, 16 n + 16). b[0], b[1] multiply for
 * the first 8 dimensions, b[2], b[3] for the others. `at`: first_value of the tile's first
 * token. */
template <int HD>
static __device__ __forceinline__ void load_values(uint32_t b[4], const bf16 *shared, int at,
                                                   int n) {
    load_matrix4_transposed(b, shared + fragment_at<HD>(at, n));
}

/* Over the four lanes that hold one row of an accumulator. */
static __device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));
}
static __device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(FULL_WARP, x, 1);
    return x + __shfl_xor_sync(FULL_WARP, x, 2);
}

/* What to subtract in an exponent so that -inf - max is not NaN. */
static __device__ __forceinline__ float finite_max(float max) {
    return max == -INFINITY ? 0.0f : max;
}

/* Adding a part to those on its left: scales for what is there and for what comes. Every kernel
 * adds parts with these two, and in the same order, so that the bits agree. */
struct attend_scales {
    float old, part;
};
static __device__ __forceinline__ struct attend_scales add_state(float *max, float *sum,
                                                                 float part_max, float part_sum) {
    float top = fmaxf(*max, part_max), base = finite_max(top);
    struct attend_scales by;

    by.old = power_of_two(*max - base);
    by.part = power_of_two(part_max - base);
    *max = top;
    *sum = fmaf(part_sum, by.part, *sum * by.old);
    return by;
}
static __device__ __forceinline__ float add_part(float o, float part, struct attend_scales by) {
    return fmaf(part, by.part, o * by.old);
}

/* 1 / sum; 0 where nothing was seen; NaN stays NaN, so that it is noticed. */
static __device__ __forceinline__ float inverse_of(float sum) {
    return sum == 0.0f ? 0.0f : 1.0f / sum;
}

/* Four dimensions of one head of a token: its partials first, first + stride ... n of them, from
 * left to right, into mix. */
template <int HD>
static __device__ __forceinline__ void merge_parts(const struct attend_args &a, int token, int head,
                                                   int column, int first, int stride, int n) {
    float o[4] = {0.0f, 0.0f, 0.0f, 0.0f}, max = -INFINITY, sum = 0.0f;

#pragma unroll 4
    for (int i = 0; i < n; i++) {
        int64_t at = ((int64_t)first + (int64_t)i * stride) * a.n_heads + head;
        float4 part = *(const float4 *)(a.partial + at * HD + column);
        float2 state = *(const float2 *)(a.partial_state + at * 2);
        struct attend_scales by = add_state(&max, &sum, state.x, state.y);

        o[0] = add_part(o[0], part.x, by);
        o[1] = add_part(o[1], part.y, by);
        o[2] = add_part(o[2], part.z, by);
        o[3] = add_part(o[3], part.w, by);
    }
    float by = inverse_of(sum);
    uint2 four = {pack_bf16(o[0] * by, o[1] * by), pack_bf16(o[2] * by, o[3] * by)};
    *(uint2 *)(a.mix + ((int64_t)token * a.n_heads + head) * HD + column) = four;
}

#endif

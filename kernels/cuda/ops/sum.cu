/* kernels/cuda/ops/sum.cu - sums over the ranks of a model, through each other's memory; see ops.h.
 *
 * One shot: each rank lays its part where all can read it, raises a flag at the others, waits until
 * all have, and reads every part. Blocks of a rank are independent of each other: block b of
 * a rank waits for block b of the others.
 *
 *      rank r, block b         epoch = epoch[b] + 1, slot = epoch % 2
 *        own slot  <- x        16 bytes a thread
 *        flag of every other rank [r][b] <- epoch      st.release.sys
 *        until own flag [other][b] >= epoch, all       ld.acquire.sys
 *        y <- the parts of all, from their slots
 *        epoch[b] <- epoch
 *
 * Two slots are enough. A rank writes slot s again two epochs later; in between it has waited for
 * the flags of the epoch in the middle, which the others set after they had read slot s. Epochs
 * only grow, live on the device and are the same at all ranks, so nothing is reset between
 * launches, and a graph can be run again. A block's place in the slots is its own, whatever n is.
 *
 * The order of a sum is pairs of neighbours, then pairs of pairs, in fp32, rounded once: the same
 * on every rank and for every n, and, of slices of a sum, the same over 1, 2 and 4 ranks.
 *
 * Follows vLLM's and TensorRT-LLM's one-shot all-reduce. All blocks must be on the device at the
 * same time: 128 of 256 threads fit on any. A rank that never comes fails the device after
 * timeout_ns, or this one would stay busy for ever. */
#include <assert.h>

#include "kernels/cuda/device/simt.h"
#include "kernels/cuda/ops/eight.cuh"
#include "kernels/cuda/ops/ops.h"

#define N_THREADS (OPS_SUM_PIECE / 8)

/* Eight elements of a part, as they lie. */
template <bool IS_F32> struct part_piece { uint4 bytes[IS_F32 ? 2 : 1]; };

template <bool IS_F32>
static __device__ __forceinline__ struct part_piece<IS_F32> load_piece(const void *part,
                                                                       uint32_t at) {
    struct part_piece<IS_F32> piece;

    piece.bytes[0] = load_from_rank((const char *)part + (size_t)at * (IS_F32 ? 4 : 2));
    if (IS_F32) piece.bytes[IS_F32] = load_from_rank((const float *)part + at + 4);
    return piece;
}

template <bool IS_F32>
static __device__ __forceinline__ void unpack_piece(float f[8],
                                                    const struct part_piece<IS_F32> &piece) {
    if (IS_F32)
        memcpy(f, &piece, sizeof(piece));
    else
        eight_unpack(f, piece.bytes[0]);
}

/* x has n elements, not always a multiple of eight: behind them the slot gets zeros. */
template <bool IS_F32>
static __device__ __forceinline__ void lay_part(void *slot, const void *x, uint32_t at,
                                                uint32_t n) {
    constexpr uint32_t SIZE = IS_F32 ? 4 : 2;

    if (at + 8 <= n) {
        for (uint32_t i = 0; i < SIZE / 2; i++)
            ((uint4 *)slot)[at * SIZE / 16 + i] = ((const uint4 *)x)[at * SIZE / 16 + i];
        return;
    }
    for (uint32_t i = at; i < at + 8; i++) {
        if (IS_F32)
            ((float *)slot)[i] = i < n ? ((const float *)x)[i] : 0.0f;
        else
            ((uint16_t *)slot)[i] = i < n ? ((const uint16_t *)x)[i] : 0;
    }
}

/* The warp's lanes: one for each other rank. false: one has not come in time. */
static __device__ __forceinline__ bool wait_for_ranks(const struct sum_args &a, uint32_t epoch) {
    uint32_t lane = threadIdx.x;
    bool is_other = lane < a.size && lane != a.rank;
    const uint32_t *mine = a.flag[a.rank] + lane * OPS_SUM_BLOCKS + blockIdx.x;
    uint64_t start = simt_clock_ns();

    if (is_other) store_release(a.flag[lane] + a.rank * OPS_SUM_BLOCKS + blockIdx.x, epoch);
    for (;;) {
        bool has_come = !is_other || (int32_t)(load_acquire(mine) - epoch) >= 0;

        if (__ballot_sync(0xFFFFFFFFu, has_come) == 0xFFFFFFFFu) return true;
        if (__ballot_sync(0xFFFFFFFFu, simt_clock_ns() - start > a.timeout_ns)) return false;
        simt_pause();
    }
}

/* Sums of neighbours, until one is left. */
template <int SIZE> static __device__ __forceinline__ void add_pairs(float f[SIZE][8]) {
#pragma unroll
    for (int step = 1; step < SIZE; step *= 2) {
#pragma unroll
        for (int r = 0; r + step < SIZE; r += 2 * step) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                f[r][i] += f[r + step][i];
        }
    }
}

template <int SIZE, bool IS_F32>
static __global__ void __launch_bounds__(N_THREADS)
    sum_kernel(const __grid_constant__ struct sum_args a) {
    simt_wait_for_primary();

    SHARED(uint32_t, has_all, 1);
    uint32_t at = (blockIdx.x * N_THREADS + threadIdx.x) * 8, epoch = a.epoch[blockIdx.x] + 1;
    size_t slot = epoch % 2 * OPS_SUM_SLOT_BYTES;
    struct part_piece<IS_F32> piece[SIZE];
    float f[SIZE][8];

    if (at < a.n) lay_part<IS_F32>((char *)a.slots[a.rank] + slot, a.x, at, a.n);
    __syncthreads();
    if (threadIdx.x < 32) {
        bool has_come = wait_for_ranks(a, epoch);

        if (threadIdx.x == 0) has_all[0] = has_come;
    }
    __syncthreads();
    if (!has_all[0]) {
        if (a.late)
            *a.late = 1;
        else
            simt_give_up();
        return;
    }
    if (threadIdx.x == 0) a.epoch[blockIdx.x] = epoch;
    if (at >= a.n) return;
#pragma unroll
    for (int r = 0; r < SIZE; r++)
        piece[r] = load_piece<IS_F32>((const char *)a.slots[r] + slot, at);
#pragma unroll
    for (int r = 0; r < SIZE; r++)
        unpack_piece<IS_F32>(f[r], piece[r]);
    add_pairs<SIZE>(f);
    if (at + 8 <= a.n) {
        eight_store(a.y + at, eight_pack(f[0]));
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        if (at + i < a.n) ((bf16 *)a.y)[at + i] = bf16_of(f[0][i]);
}

static __global__ void __launch_bounds__(N_THREADS)
    sum_parts_kernel(const __grid_constant__ struct sum_parts_args a) {
    simt_wait_for_primary();

    uint64_t at = ((uint64_t)blockIdx.x * N_THREADS + threadIdx.x) * 8;
    float f[2][8];

    if (at >= a.n) return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint4 *from = (const uint4 *)(a.part[i] + at);
        uint4 piece[2] = {from[0], from[1]};

        memcpy(f[i], piece, sizeof(piece));
    }
    add_pairs<2>(f);
    eight_store(a.y + at, eight_pack(f[0]));
}

extern "C" void ops_sum_parts(struct gpu_stream *s, const struct sum_parts_args *a) {
    if (a->n == 0) return;
    assert(a->n % 8 == 0);
    LAUNCH(sum_parts_kernel, dim3((uint32_t)CEIL_DIV(a->n, (uint64_t)OPS_SUM_PIECE)), N_THREADS, 0,
           s, *a);
}

template <int SIZE> static void launch(struct gpu_stream *s, const struct sum_args *a) {
    dim3 grid(CEIL_DIV(a->n, OPS_SUM_PIECE));

    if (a->is_f32)
        LAUNCH_TOGETHER((sum_kernel<SIZE, true>), grid, N_THREADS, s, a->flag[0], a->rank, a->size,
                        *a);
    else
        LAUNCH_TOGETHER((sum_kernel<SIZE, false>), grid, N_THREADS, s, a->flag[0], a->rank, a->size,
                        *a);
}

extern "C" bool ops_can_sum(uint32_t size) {
    return size == 2 || size == 4 || size == 8;
}

extern "C" void ops_sum(struct gpu_stream *s, const struct sum_args *a) {
    if (a->n == 0) return;
    assert(a->n <= OPS_SUM_MOST && ops_can_sum(a->size));
    switch (a->size) {
    case 2: launch<2>(s, a); break;
    case 4: launch<4>(s, a); break;
    default: launch<8>(s, a); break;
    }
}

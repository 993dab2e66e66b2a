/* tests/shim/shim.h - a kernel's source, on the host: kernels/cuda/device/simt.h under g++.
 *
 * A thread of a block is a fiber. Fibers run one after the other; a warp's 32 meet at each shuffle,
 * product, matrix load, ballot and __syncwarp, and there block.c does for all of them what PTX
 * defines of the instruction. Between two meetings the lanes run one by one, in an order drawn by
 * chance; warps are chosen by chance, too, and withheld; so are blocks (shim_control.h: the seed).
 *
 * What ends the process with a sentence that names kernel, block, thread and line:
 *      lanes of a warp that meet at different lines, or where some have ended;
 *      threads of a block that wait at different lines, or where some have ended;
 *      a mask that is not the whole warp;
 *      addresses that are not aligned as the type or instruction asks (int4: 16 bytes);
 *      copy_async16 to, and load_matrix4 from, what is not the block's shared memory;
 *      a write behind the end of SHARED or SHARED_DYNAMIC;
 *      a thread of a kernel that LAUNCH has put there which ends without simt_wait_for_primary, or
 *      lets dependents begin before it.
 * What shows in the results, under some seed: shared memory read before it is written (it starts as
 * NaN), global memory read before simt_wait_for_primary that the kernel before has written
 * (overlap.c), or read or written where a barrier or a __syncwarp is missing; copies read before
 * their wait and buffers refilled too early (late and early copies).
 *
 * LIMITS. Races are found by sampling schedules, not proved absent: a pair of accesses between the
 * same two meetings is seen in either order, but never halfway. Blocks of a launch run one after
 * the other: a kernel in which one block waits for another never ends; LAUNCH_TOGETHER runs
 * launches of several ranks by turns (gang.c). Global memory is plain memory, so a
 * missing __threadfence is not seen. Blocks have one dimension, shuffles 32 bits. exp2f and its kin
 * round as libm does, not as the GPU. No timing. */
#ifndef TESTS_SHIM_SHIM_H
#define TESTS_SHIM_SHIM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cuda/device/gpu.h"
#include "tests/shim/internal.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __constant__
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {
    }
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline int2 make_int2(int x, int y) {
    return int2{x, y};
}
static inline int4 make_int4(int x, int y, int z, int w) {
    return int4{x, y, z, w};
}
static inline uint2 make_uint2(unsigned x, unsigned y) {
    return uint2{x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return uint4{x, y, z, w};
}
static inline float2 make_float2(float x, float y) {
    return float2{x, y};
}
static inline float4 make_float4(float x, float y, float z, float w) {
    return float4{x, y, z, w};
}

/* --- launches, shared memory, planted bugs */
#define SHARED(type, name, n)                                                                      \
    static const char name##_site = 0;                                                             \
    type(&name)[n] = *static_cast<type(*)[n]>(shim_shared(&name##_site, sizeof(type) * (n)))
#define SHARED_DYNAMIC(name)                                                                       \
    unsigned char *name = static_cast<unsigned char *>(shim_shared_dynamic())
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                     \
    shim_launch(#kernel, simt_listed<kernel>(), grid, block, shared_bytes, stream, true,           \
                __VA_ARGS__)
#define LAUNCH_ALONE(kernel, grid, block, shared_bytes, stream, ...)                               \
    shim_launch(#kernel, simt_listed<kernel>(), grid, block, shared_bytes, stream, false,          \
                __VA_ARGS__)
#define LAUNCH_TOGETHER(kernel, grid, block, stream, place, rank, size, ...)                       \
    shim_launch_ranks(#kernel, simt_listed<kernel>(), grid, block, stream, place, rank, size,      \
                      __VA_ARGS__)
#define ALLOW_SHARED(kernel, bytes) shim_allow(kernel, bytes)
#define PLANTED(name)               (shim_planted_name && !strcmp(shim_planted_name, #name))

template <class Args> static void shim_call(void (*kernel)(void), const void *args) {
    reinterpret_cast<void (*)(const Args)>(kernel)(*static_cast<const Args *>(args));
}
template <class Args> struct shim_as_it_is { typedef Args type; };
/* Which bytes they are is not asked: behind arrays GCC 12 clears others. */
template <class Args> static inline bool shim_has_padding(void) {
    alignas(Args) unsigned char bytes[sizeof(Args)];
    bool has_padding = false;

    memset(bytes, 0xFF, sizeof(bytes));
    __builtin_clear_padding(reinterpret_cast<Args *>(bytes));
    for (unsigned char byte : bytes)
        has_padding |= byte != 0xFF;
    return has_padding;
}
template <class Args>
static inline struct shim_launch shim_describe(const char *name, void (*kernel)(const Args),
                                               dim3 grid, dim3 block, uint64_t shared_bytes,
                                               const Args &args) {
    return {name,
            reinterpret_cast<void (*)(void)>(kernel),
            shim_call<Args>,
            {grid.x, grid.y, grid.z},
            {block.x, block.y, block.z},
            shared_bytes,
            &args,
            sizeof(args),
            shim_has_padding<Args>(),
            false,
            false};
}
/* A NULL stream runs the kernel at once: for tests of kernels alone. */
template <class Args>
static inline void shim_launch(const char *name, void (*kernel)(const Args), dim3 grid, dim3 block,
                               uint64_t shared_bytes, struct gpu_stream *stream, bool waits,
                               const typename shim_as_it_is<Args>::type &args) {
    struct shim_launch launch = shim_describe(name, kernel, grid, block, shared_bytes, args);

    launch.waits = waits;
    shim_launch_on(stream, &launch);
}
template <class Args>
static inline void shim_launch_ranks(const char *name, void (*kernel)(const Args), dim3 grid,
                                     dim3 block, struct gpu_stream *stream, const void *place,
                                     uint32_t rank, uint32_t size,
                                     const typename shim_as_it_is<Args>::type &args) {
    struct shim_launch launch = shim_describe(name, kernel, grid, block, 0, args);

    shim_launch_together(stream, &launch, place, rank, size);
}
template <class Args> static inline int shim_allow(void (*kernel)(const Args), uint64_t n_bytes) {
    return shim_allow_shared(reinterpret_cast<void (*)(void)>(kernel), n_bytes);
}

/* --- numbers */
struct bf16 {
    uint16_t bits;
};

template <class To, class From> static inline To shim_bits(From from) {
    To to;

    static_assert(sizeof(To) == sizeof(From), "the same bits");
    memcpy(&to, &from, sizeof(to));
    return to;
}
static inline float float_of(bf16 x) {
    return shim_bits<float>((uint32_t)x.bits << 16);
}
static inline bf16 bf16_of(float x) { /* to nearest, ties to even */
    uint32_t bits = shim_bits<uint32_t>(x);

    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return bf16{0x7FFF};
    return bf16{(uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16)};
}
static inline uint32_t pack_bf16(float low, float high) {
    return (uint32_t)bf16_of(low).bits | (uint32_t)bf16_of(high).bits << 16;
}
static inline uint32_t __float_as_uint(float x) {
    return shim_bits<uint32_t>(x);
}
static inline int __float_as_int(float x) {
    return shim_bits<int>(x);
}
static inline float __uint_as_float(uint32_t x) {
    return shim_bits<float>(x);
}
static inline float __int_as_float(int x) {
    return shim_bits<float>(x);
}
static inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
/* glibc has functions of these names. */
#define __expf(x)  expf(x)
#define __logf(x)  logf(x)
#define __log2f(x) log2f(x)
#define __sinf(x)  sinf(x)
#define __cosf(x)  cosf(x)
static inline float __fdividef(float x, float y) { /* by way of 1 / y, which a large y makes 0 */
    return fabsf(y) > 0x1p126f ? x * 0.0f : x / y;
}
static inline float __frcp_rn(float x) {
    return 1.0f / x;
}
static inline float __fsqrt_rn(float x) {
    return sqrtf(x);
}
static inline float __fdiv_rn(float x, float y) {
    return x / y;
}
static inline float __fmul_rn(float x, float y) { /* never fused with a sum */
    return x * y;
}
static inline float __fadd_rn(float x, float y) {
    return x + y;
}
static inline float __fsub_rn(float x, float y) {
    return x - y;
}
static inline float __fmaf_rn(float x, float y, float z) {
    return fmaf(x, y, z);
}
static inline double __dmul_rn(double x, double y) {
    return x * y;
}
static inline double __dadd_rn(double x, double y) {
    return x + y;
}
/* Byte i of the result is byte (selector >> 4 i) & 7 of the eight of y and x, x below. */
static inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
    uint64_t both = (uint64_t)y << 32 | x;
    uint32_t z = 0;

    for (int i = 0; i < 4; i++)
        z |= (uint32_t)(both >> (selector >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
    return z;
}
static inline int __popc(uint32_t x) {
    return __builtin_popcount(x);
}
static inline int __clz(int x) {
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __ffs(int x) {
    return __builtin_ffs(x);
}
static inline uint32_t __brev(uint32_t x) {
    uint32_t y = 0;

    for (int i = 0; i < 32; i++)
        y |= (x >> i & 1) << (31 - i);
    return y;
}
static inline uint32_t __umulhi(uint32_t x, uint32_t y) {
    return (uint32_t)((uint64_t)x * y >> 32);
}
template <class T> static inline T __ldg(const T *p) {
    return *p;
}
template <class T> static inline T __ldcs(const T *p) {
    return *p;
}
template <class T> static inline void __stcs(T *p, T x) {
    *p = x;
}
#define SHIM_MIN_MAX(type)                                                                         \
    static inline type min(type a, type b) {                                                       \
        return b < a ? b : a;                                                                      \
    }                                                                                              \
    static inline type max(type a, type b) {                                                       \
        return a < b ? b : a;                                                                      \
    }
SHIM_MIN_MAX(int)
SHIM_MIN_MAX(unsigned)
SHIM_MIN_MAX(long)
SHIM_MIN_MAX(unsigned long)
SHIM_MIN_MAX(long long)
SHIM_MIN_MAX(unsigned long long)
static inline float min(float a, float b) {
    return fminf(a, b);
}
static inline float max(float a, float b) {
    return fmaxf(a, b);
}

/* --- memory: one fiber runs at a time, so plain accesses are atomic */
template <class T> static inline T atomicAdd(T *p, typename shim_as_it_is<T>::type x) {
    T old = *p;

    *p = old + x;
    return old;
}
template <class T> static inline T atomicMax(T *p, typename shim_as_it_is<T>::type x) {
    T old = *p;

    if (old < x) *p = x;
    return old;
}
template <class T> static inline T atomicMin(T *p, typename shim_as_it_is<T>::type x) {
    T old = *p;

    if (x < old) *p = x;
    return old;
}
template <class T> static inline T atomicExch(T *p, typename shim_as_it_is<T>::type x) {
    T old = *p;

    *p = x;
    return old;
}
template <class T> static inline T atomicOr(T *p, typename shim_as_it_is<T>::type x) {
    T old = *p;

    *p = old | x;
    return old;
}
static inline uint32_t atomicInc(uint32_t *p, uint32_t limit) {
    uint32_t old = *p;

    *p = old >= limit ? 0 : old + 1;
    return old;
}
static inline void __threadfence(void) {
}
static inline void __threadfence_block(void) {
}

/* --- meetings. `line` is the caller's: who meets must have come from the same one. */
#define SHIM_LINE int line = __builtin_LINE()
static inline void __syncthreads(SHIM_LINE) {
    shim_sync_block(line);
}
static inline void __syncwarp(uint32_t mask = ~0u, SHIM_LINE) {
    shim_sync_warp(mask, line);
}
/* The lane whose number `from` gives; lane -1 and lanes above 31 are oneself. */
template <class T>
static inline T shim_shuffle_of(uint32_t mask, T x, uint32_t from_lane, int line) {
    static_assert(sizeof(T) == 4, "the shim shuffles 32 bits at a time");
    return shim_bits<T>(shim_shuffle(mask, shim_bits<uint32_t>(x), from_lane, line));
}
template <class T> static inline T __shfl_sync(uint32_t mask, T x, int lane, SHIM_LINE) {
    return shim_shuffle_of(mask, x, (uint32_t)lane & 31, line);
}
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T x, int flip, SHIM_LINE) {
    return shim_shuffle_of(mask, x, (threadIdx.x ^ (uint32_t)flip) & 31, line);
}
template <class T> static inline T __shfl_down_sync(uint32_t mask, T x, unsigned by, SHIM_LINE) {
    uint32_t lane = threadIdx.x & 31;

    return shim_shuffle_of(mask, x, lane + by < 32 ? lane + by : lane, line);
}
template <class T> static inline T __shfl_up_sync(uint32_t mask, T x, unsigned by, SHIM_LINE) {
    uint32_t lane = threadIdx.x & 31;

    return shim_shuffle_of(mask, x, lane >= by ? lane - by : lane, line);
}
static inline uint32_t __ballot_sync(uint32_t mask, int vote, SHIM_LINE) {
    return shim_ballot(mask, vote != 0, line);
}
static inline int __any_sync(uint32_t mask, int vote, SHIM_LINE) {
    return shim_ballot(mask, vote != 0, line) != 0;
}
static inline int __all_sync(uint32_t mask, int vote, SHIM_LINE) {
    return shim_ballot(mask, vote != 0, line) == ~0u;
}

/* --- the instructions of simt.h, with the same contracts */
static inline void simt_wait_for_primary(SHIM_LINE) {
    shim_wait_for_primary(line);
}
static inline void simt_launch_dependents(SHIM_LINE) {
    shim_launch_dependents(line);
}
static inline uint32_t load_acquire(const uint32_t *p) {
    return shim_peer_fault ? shim_faulty_load(p) : *(const volatile uint32_t *)p;
}
static inline void store_release(uint32_t *p, uint32_t x) {
    if (shim_peer_fault)
        shim_faulty_store(p, x);
    else
        *(volatile uint32_t *)p = x;
}
static inline uint4 load_from_rank(const void *p) {
    return *(const uint4 *)(shim_peer_fault ? shim_faulty_line(p) : p);
}
static inline void simt_pause(SHIM_LINE) {
    shim_pause(line);
}
static inline uint64_t simt_clock_ns(void) {
    return shim_clock_ns();
}
static inline void simt_give_up(void) {
    shim_give_up();
}
static inline void copy_async16(void *shared, const void *global, SHIM_LINE) {
    shim_copy(shared, global, line);
}
static inline void copy_async16_if(void *shared, const void *global, bool is_there, SHIM_LINE) {
    static const uint4 zeros = {0, 0, 0, 0};

    shim_copy(shared, is_there ? global : &zeros, line);
}
static inline void copy_commit(void) {
    shim_copy_commit();
}
template <int N> static inline void copy_wait(void) {
    shim_copy_wait(N);
}
static inline void load_matrix4(uint32_t r[4], const void *row, SHIM_LINE) {
    shim_load_matrix4(r, row, false, line);
}
static inline void load_matrix4_transposed(uint32_t r[4], const void *row, SHIM_LINE) {
    shim_load_matrix4(r, row, true, line);
}
static inline void multiply_add(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1,
                                SHIM_LINE) {
    shim_multiply_add(c, a, b0, b1, line);
}
static inline void multiply_add_s8(int32_t c[4], const uint32_t a[4], uint32_t b0, uint32_t b1,
                                   SHIM_LINE) {
    shim_multiply_add_s8(c, a, b0, b1, line);
}
static inline float shim_bf16_half(uint32_t pair, int half) {
    return shim_bits<float>((pair >> 16 * half & 0xFFFF) << 16);
}
static inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
    float d[2];

    for (int i = 0; i < 2; i++)
        d[i] = fmaf(shim_bf16_half(a, i), shim_bf16_half(b, i), shim_bf16_half(c, i));
    return pack_bf16(d[0], d[1]);
}

#endif

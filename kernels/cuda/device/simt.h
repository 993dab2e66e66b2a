/* kernels/cuda/device/simt.h - the few things that a kernel uses beyond plain CUDA C.
 *
 * Every .cu file includes this and nothing of the toolkit. Under nvcc the wrappers are one PTX
 * instruction each, of the sm_80 family, so one source runs on everything from sm_80 on. Under g++
 * they come from tests/shim/shim.h, included before, where a thread is a fiber and every
 * instruction does on the host what PTX specifies: the same kernel source is tested where there is
 * no GPU.
 *
 * What kernels may use: these, __global__, __device__, __launch_bounds__, __restrict__, threadIdx
 * and its kin, __syncthreads, __syncwarp, __shfl_xor_sync, __shfl_down_sync, __shfl_sync,
 * __ballot_sync (all with the whole warp as mask), __byte_perm, atomicAdd, atomicMax and atomicMin
 * on 32-bit numbers, __threadfence, int4, uint2, uint4, float2, float4, rsqrtf and the functions of
 * math.h in float. Shared memory only through SHARED and SHARED_DYNAMIC, which the shim poisons
 * before each block. Blocks are multiples of 32 threads. A launch is
 *
 *      LAUNCH(kernel<64>, dim3(a, b), 128, shared_bytes, stream, args);
 *
 * (of a kernel that wants the whole multiprocessor, and so begins after the one before it has
 * ended, LAUNCH_ALONE; of one that waits for the same kernel of other ranks LAUNCH_TOGETHER,
 * without shared_bytes, with an address that stands for their meeting place, rank and size before
 * the arguments)
 *
 * with one argument that is a struct passed by value (const __grid_constant__), inside an extern
 * "C" function that takes `struct gpu_stream *`; above 48 KiB of shared memory the file's
 * x_prepare(), called once per device, has allowed it with ALLOW_SHARED(kernel<64>, bytes). */
#ifndef KERNELS_CUDA_DEVICE_SIMT_H
#define KERNELS_CUDA_DEVICE_SIMT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cuda/device/gpu.h"

/* The kernel itself. That a launch names it here lists it for gpu_open, before main. */
template <auto KERNEL> struct simt_kernel {
    struct gpu_kernel entry;

    simt_kernel() : entry() {
        entry.address = reinterpret_cast<const void *>(KERNEL);
        gpu_list_kernel(&entry);
    }
    static simt_kernel listed;
};
template <auto KERNEL> simt_kernel<KERNEL> simt_kernel<KERNEL>::listed;
template <auto KERNEL> static inline decltype(KERNEL) simt_listed(void) {
    (void)&simt_kernel<KERNEL>::listed;
    return KERNEL;
}

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#define SHARED(type, name, n) __shared__ __align__(16) type name[n]
#define SHARED_DYNAMIC(name)  extern __shared__ __align__(128) unsigned char name[]
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                     \
    simt_launch(simt_listed<kernel>(), grid, block, shared_bytes, stream, true, __VA_ARGS__)
#define LAUNCH_ALONE(kernel, grid, block, shared_bytes, stream, ...)                               \
    simt_launch(simt_listed<kernel>(), grid, block, shared_bytes, stream, false, __VA_ARGS__)
#define LAUNCH_TOGETHER(kernel, grid, block, stream, place, rank, size, ...)                       \
    LAUNCH_ALONE(kernel, grid, block, 0, stream, __VA_ARGS__)
#define ALLOW_SHARED(kernel, bytes)                                                                \
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))

template <class Args> struct simt_as_it_is { typedef Args type; };
/* What goes wrong stays with the runtime: gpu_status finds it. */
template <class Args>
static inline void simt_launch(void (*kernel)(const Args), dim3 grid, dim3 block,
                               size_t shared_bytes, struct gpu_stream *stream, bool may_overlap,
                               const typename simt_as_it_is<Args>::type &args) {
    cudaLaunchAttribute overlap = {};
    cudaLaunchConfig_t config = {};
    void *all[] = {const_cast<Args *>(&args)};
    bool overlaps;

    config.stream = (cudaStream_t)gpu_stream_launches(stream, &overlaps);
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &overlap;
    config.numAttrs = may_overlap && overlaps ? 1 : 0;
    (void)cudaLaunchKernelExC(&config, reinterpret_cast<const void *>(kernel), all);
}

typedef __nv_bfloat16 bf16;

static __device__ __forceinline__ float float_of(bf16 x) {
    return __bfloat162float(x);
}
static __device__ __forceinline__ bf16 bf16_of(float x) { /* to nearest, ties to even */
    return __float2bfloat16_rn(x);
}
/* Two bf16 in one register, `low` at the lower address. */
static __device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;

    memcpy(&bits, &pair, 4);
    return bits;
}

/* 16 bytes that no kernel writes meanwhile and that are not read again soon: not kept in L1. */
static __device__ __forceinline__ uint4 load_once(const void *p) {
    uint4 x;

    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p));
    return x;
}

/* 2^x in one instruction, within 2 units of the last place; below 2^-126 it is 0. */
static __device__ __forceinline__ float power_of_two(float x) {
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes from global to shared memory, while the thread goes on. Both addresses are multiples of
 * 16. What is copied may be read after copy_wait and a barrier of those who read it. */
static __device__ __forceinline__ void copy_async16(void *shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)),
                 "l"(global));
}
/* The same, or 16 bytes of zeros where there is nothing to copy: `global` is not read then. */
static __device__ __forceinline__ void copy_async16_if(void *shared, const void *global,
                                                       bool is_there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(is_there ? 16 : 0));
}
static __device__ __forceinline__ void copy_commit(void) { /* closes a group of this thread's */
    asm volatile("cp.async.commit_group;");
}
template <int N> static __device__ __forceinline__ void copy_wait(void) { /* all but N groups */
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Four 8x8 matrices of 16-bit numbers: lane l gives the address of row l % 8 of matrix l / 8; of
 * matrix i, it gets elements (l / 4, 2 * (l % 4)) and the one after in r[i]; transposed, elements
 * (2 * (l % 4), l / 4) and the one below. */
static __device__ __forceinline__ void load_matrix4(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
static __device__ __forceinline__ void load_matrix4_transposed(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* c (16, 8) += a (16, 16) b (16, 8), bf16 products, fp32 sums. Lane l holds c at rows l / 4 and l /
 * 4 + 8 (c[2], c[3]), columns 2 * (l % 4) and the next. */
static __device__ __forceinline__ void multiply_add(float c[4], const uint32_t a[4], uint32_t b0,
                                                    uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Words that kernels of several devices exchange while they run. Who loads a word sees all that its
 * writer had stored before, and all that the writer's block had stored before a barrier. */
static __device__ __forceinline__ uint32_t load_acquire(const uint32_t *p) {
    uint32_t x;

    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}
/* 16 bytes that another device has written before such a word, past this one's caches. */
static __device__ __forceinline__ uint4 load_from_rank(const void *p) {
    uint4 x;

    asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p)
                 : "memory");
    return x;
}
static __device__ __forceinline__ void store_release(uint32_t *p, uint32_t x) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}
/* Between two looks at such a word; the whole warp calls it. */
static __device__ __forceinline__ void simt_pause(void) {
    __nanosleep(20);
}
static __device__ __forceinline__ uint64_t simt_clock_ns(void) {
    uint64_t ns;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}
/* The device fails. On the shim the call returns, so what calls it returns too. */
static __device__ __forceinline__ void simt_give_up(void) {
    __trap();
}

/* Launches that overlap (sm_90 and newer; elsewhere these do nothing). A kernel that LAUNCH puts on
 * a stream may begin while the kernel before it, its primary, still runs. It calls
 * simt_wait_for_primary once, on every path, returns included: before the call it reads what no
 * kernel of a step writes (weights, norms, angles, its arguments) and writes no global memory;
 * after it, all that the kernels before it on the stream wrote is there. Follows: CUDA C++
 * Programming Guide, programmatic dependent launch. */
static __device__ __forceinline__ void simt_wait_for_primary(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* This block lets the kernel after it begin, where there is room; it happens when all blocks have
 * called this, or have ended. After the wait, and not in kernels that want the whole
 * multiprocessor: who waits holds registers and shared memory. Nothing is promised of memory. */
static __device__ __forceinline__ void simt_launch_dependents(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* The same of int8: c (16, 8) += a (16, 32) b (32, 8), sums of 32 bits. Where the other has two
 * bf16, there are four codes. */
static __device__ __forceinline__ void multiply_add_s8(int32_t c[4], const uint32_t a[4],
                                                       uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* a * b + c of two pairs of bf16, each rounded once; subnormal numbers are numbers. */
static __device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;

    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

#else
#ifndef TESTS_SHIM_SHIM_H
#error "a build without nvcc is the shim's, which includes tests/shim/shim.h first: -include"
#endif

static inline float power_of_two(float x) {
    return x < -126.0f ? 0.0f : exp2f(x);
}
static inline uint4 load_once(const void *p) {
    return *(const uint4 *)p;
}
#endif

/* 32-bit loads of two bf16 that lie together. */
static __device__ __forceinline__ uint32_t load_pair(const bf16 *p) {
    return *reinterpret_cast<const uint32_t *>(p); /* p at a multiple of 4 */
}
static __device__ __forceinline__ float low_of(uint32_t pair) {
    uint32_t bits = pair << 16;
    float x;

    memcpy(&x, &bits, 4);
    return x;
}
static __device__ __forceinline__ float high_of(uint32_t pair) {
    uint32_t bits = pair & 0xFFFF0000u;
    float x;

    memcpy(&x, &bits, 4);
    return x;
}

#endif

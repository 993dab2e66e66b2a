/* tests/unit/cuda/shim/trial_kernels.cu - see trial_kernels.h. */
#include "kernels/cuda/device/simt.h"
#include "tests/unit/cuda/shim/trial_kernels.h"

__global__ void product(const __grid_constant__ struct trial_product p) {
    SHARED(bf16, a, 16 * 16);
    SHARED(bf16, b, 16 * 8);
    int lane = threadIdx.x & 31;
    uint32_t fragment_a[4], fragment_b[4];
    float c[4] = {0, 0, 0, 0};

    copy_async16(a + lane * 8, p.a + lane * 8);
    if (lane < 16) copy_async16(b + lane * 8, p.b + lane * 8);
    copy_commit();
    if (!PLANTED(late_wait)) copy_wait<0>();
    __syncwarp();
    load_matrix4(fragment_a, a + (lane & 15) * 16 + (lane >> 4) * 8);
    load_matrix4_transposed(fragment_b, b + (lane & 15) * 8);
    multiply_add(c, fragment_a, fragment_b[0], fragment_b[1]);
    for (int i = 0; i < 4; i++)
        p.c[(lane / 4 + (i >> 1) * 8) * 8 + lane % 4 * 2 + (i & 1)] = c[i];
}
void trial_product(struct gpu_stream *s, const struct trial_product *p) {
    LAUNCH_ALONE(product, dim3(1), 32, 0, s, *p);
}

__global__ void __launch_bounds__(128) rounds(const __grid_constant__ struct trial_rounds p) {
    SHARED(float, numbers, 128);
    float sum = 0;

    for (uint32_t round = 0; round < p.n_rounds; round++) {
        numbers[threadIdx.x] = p.in[round * 128 + threadIdx.x];
        if (!PLANTED(no_first_barrier)) __syncthreads();
        for (int i = 0; i < 128; i++) {
            sum += numbers[i];
            if (i % 32 == 31) __syncwarp();
        }
        if (!PLANTED(no_barrier)) __syncthreads();
    }
    p.out[threadIdx.x] = sum;
}
void trial_rounds(struct gpu_stream *s, const struct trial_rounds *p) {
    LAUNCH_ALONE(rounds, dim3(1), 128, 0, s, *p);
}

__global__ void add(const __grid_constant__ struct trial_add p) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < p.n) p.y[i] = p.x[i] + p.add;
}
void trial_add(struct gpu_stream *s, const struct trial_add *p) {
    LAUNCH_ALONE(add, dim3((p->n + 63) / 64), 64, 0, s, *p);
}

__global__ void unlisted(const __grid_constant__ struct trial_add p) {
    p.y[0] = p.add;
}
void trial_unlisted(struct gpu_stream *s, const struct trial_add *p) {
    shim_launch("unlisted", unlisted, dim3(1), 32, 0, s, false, *p);
}

__global__ void behind(const __grid_constant__ struct trial_behind p) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    bool is_there = i < p.n;
    float sum = is_there ? p.before[i] : 0;

    if (PLANTED(no_wait_at_the_tail) && !is_there) return;
    if (PLANTED(early_dependents)) simt_launch_dependents();
    if (PLANTED(early_read) && is_there) sum += p.x[i];
    if (PLANTED(early_write) && is_there) p.y[i] = sum;
    simt_wait_for_primary();
    simt_launch_dependents();
    if (!PLANTED(early_read) && is_there) sum += p.x[i];
    if (is_there) p.y[i] = sum;
}
void trial_behind(struct gpu_stream *s, const struct trial_behind *p) {
    LAUNCH(behind, dim3((p->n + 63) / 64), 64, 0, s, *p);
}

__global__ void tile(const __grid_constant__ struct trial_tile p) {
    SHARED_DYNAMIC(bytes);
    bf16 *rows = reinterpret_cast<bf16 *>(bytes); /* (16, 64), 16-byte chunks swizzled */
    uint32_t lane = threadIdx.x, sum = 0, r[4];

    for (uint32_t i = lane; i < 16 * 8; i += 32) {
        uint32_t row = i / 8, chunk = i % 8;

        copy_async16(rows + row * 64 + (p.is_swizzled ? chunk ^ (row & 7) : chunk) * 8,
                     p.tile + row * 64 + chunk * 8);
    }
    copy_commit();
    copy_wait<0>();
    __syncwarp();
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t row = lane & 15, chunk = k * 2 + (lane >> 4);

        load_matrix4(r, rows + row * 64 + (p.is_swizzled ? chunk ^ (row & 7) : chunk) * 8);
        sum += r[0] + r[1] + r[2] + r[3];
    }
    p.sums[lane] = sum;
}
void trial_tile(struct gpu_stream *s, const struct trial_tile *p) {
    LAUNCH_ALONE(tile, dim3(1), 32, 16 * 64 * 2, s, *p);
}

__global__ void shuffles(const __grid_constant__ struct trial_shuffles p) {
    uint32_t lane = threadIdx.x, value = lane * 3 + 1;

    p.out[lane] = __shfl_sync(~0u, value, 5);
    p.out[32 + lane] = __shfl_xor_sync(~0u, value, 7);
    p.out[64 + lane] = __shfl_down_sync(~0u, value, 4);
    p.out[96 + lane] = __shfl_up_sync(~0u, value, 3);
    p.out[128 + lane] = __ballot_sync(~0u, lane % 3 == 0);
}
void trial_shuffles(struct gpu_stream *s, const struct trial_shuffles *p) {
    LAUNCH_ALONE(shuffles, dim3(1), 32, 0, s, *p);
}

static __device__ void barriers(enum trial_fault fault) {
    if (fault == TRIAL_BARRIER_BY_SOME && threadIdx.x >= 32) __syncthreads();
    if (fault == TRIAL_BARRIER_BY_HALF && threadIdx.x % 32 >= 16) __syncthreads();
    if (fault == TRIAL_SHUFFLE_BY_HALF && threadIdx.x % 32 >= 16) __shfl_xor_sync(~0u, 1.0f, 1);
    if (fault == TRIAL_PARTIAL_MASK) __shfl_xor_sync(0xFFFFu, 1.0f, 1);
    if (fault != TRIAL_SHUFFLES_APART) return;
    if (threadIdx.x % 2)
        __shfl_xor_sync(~0u, 1.0f, 2);
    else
        __shfl_xor_sync(~0u, 1.0f, 4);
}
__global__ void commit(const __grid_constant__ struct trial_fault_args p) {
    SHARED(float, shared, 64);
    float *behind = shared + 1;
    uint32_t r[4];

    barriers(p.fault);
    if (p.fault == TRIAL_MISALIGNED)
        *reinterpret_cast<int4 *>(p.memory + 2) = make_int4(1, 2, 3, 4);
    if (p.fault == TRIAL_COPY_MISALIGNED) copy_async16(shared + 4, p.memory + 1);
    if (p.fault == TRIAL_MATRIX_ELSEWHERE) load_matrix4(r, p.memory);
    if (p.fault == TRIAL_BEHIND_SHARED) *(behind + threadIdx.x) = 1;
}
void trial_commit(struct gpu_stream *s, const struct trial_fault_args *p) {
    LAUNCH_ALONE(commit, dim3(1), 64, p->fault == TRIAL_TOO_MUCH_SHARED ? 48 << 10 : 0, s, *p);
}

__global__ void poison(const __grid_constant__ struct trial_poison p) {
    SHARED(float, fixed, 64);
    SHARED_DYNAMIC(bytes);
    float *dynamic = reinterpret_cast<float *>(bytes);

    p.out[threadIdx.x] = fixed[threadIdx.x];
    p.out[64 + threadIdx.x] = dynamic[threadIdx.x];
    __syncthreads();
    fixed[threadIdx.x] = dynamic[threadIdx.x] = 1;
}
void trial_poison(struct gpu_stream *s, const struct trial_poison *p) {
    LAUNCH_ALONE(poison, dim3(3), 64, 256, s, *p);
}

__global__ void big(const __grid_constant__ struct trial_big p) {
    p.out[threadIdx.x] = blockDim.x;
}
void trial_big(struct gpu_stream *s, const struct trial_big *p, uint32_t n_bytes) {
    LAUNCH_ALONE(big, dim3(1), 32, n_bytes, s, *p);
}
int trial_big_allow(uint32_t n_bytes) {
    return ALLOW_SHARED(big, n_bytes);
}

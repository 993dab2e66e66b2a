/* kernels/cpu/path_avx512.c - 16 lanes and fma; weights are widened from bf16 on the way. */
#if defined(__x86_64__)
#define LANES 16
#include "kernels/cpu/path_body.inc"

static bool is_available(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

const struct cpu_path cpu_path_avx512 = PATH_TABLE("avx512", is_available, NULL);
#endif

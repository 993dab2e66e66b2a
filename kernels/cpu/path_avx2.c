/* kernels/cpu/path_avx2.c - 8 lanes and fma; weights are widened from bf16 on the way. */
#if defined(__x86_64__)
#define LANES 8
#include "kernels/cpu/path_body.inc"

static bool is_available(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

const struct cpu_path cpu_path_avx2 = PATH_TABLE("avx2", is_available, NULL);
#endif

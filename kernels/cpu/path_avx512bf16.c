/* kernels/cpu/path_avx512bf16.c - vdpbf16ps: two bf16 products and a sum per lane and instruction. */
#if defined(__x86_64__)
#define LANES 16
#define ACT_BF16 1
#include "kernels/cpu/path_body.h"

static bool is_available(void) {
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

const struct cpu_path cpu_path_avx512bf16 = PATH_TABLE("avx512bf16", is_available);
#endif

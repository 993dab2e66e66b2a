/* kernels/cpu/path_avx512bf16.c - vdpbf16ps: two bf16 products and a sum per lane and
 * instruction. */
#if defined(__x86_64__)
#define LANES    16
#define ACT_BF16 1
#include "common/base/isa.h"
#include "kernels/cpu/path_body.inc"

/* Intel's servers (measured: Emerald Rapids) issue half as many vdpbf16ps a cycle as fma: 114
 * GFLOP/s against 229 in fp32 on one core. AMD's (Zen 5) do the opposite: 522 against 261. */
static bool is_slow(void) {
    return __builtin_cpu_is("intel");
}

const struct cpu_path cpu_path_avx512bf16 =
    PATH_TABLE("avx512bf16", isa_has_avx512bf16, is_slow, &cpu_path_avx512);
#endif

/* kernels/cpu/path_avx512.c - 16 lanes and fma; weights are widened from bf16 on the way. */
#if defined(__x86_64__)
#define LANES 16
#include "common/base/isa.h"
#include "kernels/cpu/path_body.inc"

const struct cpu_path cpu_path_avx512 = PATH_TABLE("avx512", isa_has_avx512, NULL, NULL);
#endif

/* kernels/cpu/path_avx2.c - 8 lanes and fma; weights are widened from bf16 on the way. */
#if defined(__x86_64__)
#define LANES 8
#include "common/base/isa.h"
#include "kernels/cpu/path_body.inc"

const struct cpu_path cpu_path_avx2 = PATH_TABLE("avx2", isa_has_avx2, NULL, NULL);
#endif

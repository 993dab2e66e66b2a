/* kernels/cpu/path_neon.c - ARM's Advanced SIMD: 4 lanes, fma, 32 registers; every aarch64 has
 * it. */
#if defined(__aarch64__)
#define LANES 4
#define NEON  1
#include "kernels/cpu/path_body.inc"

static bool is_available(void) {
    return true;
}

const struct cpu_path cpu_path_neon = PATH_TABLE("neon", is_available, NULL, NULL);
#endif

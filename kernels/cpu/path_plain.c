/* kernels/cpu/path_plain.c - no instruction set assumed: what the compiler makes of 4 floats. */
#define LANES 4
#include "kernels/cpu/path_body.inc"

static bool is_available(void) {
    return true;
}

const struct cpu_path cpu_path_plain = PATH_TABLE("plain", is_available, NULL, NULL);

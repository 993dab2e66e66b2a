/* kernels/cpu/path.c - see path.h: which paths there are, and which one is taken. */
#include "kernels/cpu/path.h"

#include <stdio.h>
#include <string.h>

/* Best first. */
static const struct cpu_path *const paths[] = {
#if defined(__x86_64__)
    &cpu_path_avx512bf16,
    &cpu_path_avx512,
    &cpu_path_avx2,
#elif defined(__aarch64__)
    &cpu_path_neon,
#endif
    &cpu_path_plain,
};

enum status cpu_path_find(const struct cpu_path **out, const char *name, struct error *err) {
    bool is_auto = !name || strcmp(name, "auto") == 0;
    char have[96] = "";

    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        size_t used = strlen(have);

        if (!paths[i]->is_available()) continue;
        if (is_auto ? !(paths[i]->is_slow && paths[i]->is_slow())
                    : strcmp(name, paths[i]->name) == 0) {
            *out = paths[i];
            return ST_OK;
        }
        snprintf(have + used, sizeof(have) - used, "%s%s", used ? ", " : "", paths[i]->name);
    }
    return error_set(err, ST_UNSUPPORTED, "no such instruction set: %s: this machine has %s", name,
                     have);
}

const struct cpu_path *cpu_path_for(const struct cpu_path *path, enum dtype weights) {
    return path->gemm[weights] || !path->exact ? path : path->exact;
}

/* The largest of what attend_body.inc lays out for any element type. */
uint64_t attend_scratch_bytes(uint32_t heads, uint32_t head_dim) {
    uint64_t rows = (uint64_t)attend_queries(heads) * heads, width = ALIGN_UP(head_dim, PANEL);

    return sizeof(float) * (GROUP * head_dim        /* K */
                            + GROUP * head_dim      /* K on its way from f16 */
                            + GROUP * width         /* V */
                            + rows * (head_dim + 2) /* q */
                            + rows * GROUP * 2      /* scores, weights */
                            + rows * (width + 2)) + /* result, maximum, sum */
           16 * CACHE_LINE;
}

/* kernels/cpu/pack.c - see pack.h. */
#include "kernels/cpu/pack.h"

#include <string.h>

#include "kernels/dtype.h"

struct cpu_matrix cpu_matrix_shape(uint32_t n, uint32_t k) {
    return (struct cpu_matrix){NULL, n, k, CEIL_DIV(n, PANEL), CEIL_DIV(k, 2)};
}

uint64_t cpu_matrix_bytes(const struct cpu_matrix *m) {
    return (uint64_t)m->n_panels * m->k_pairs * PANEL * 2 * sizeof(uint16_t);
}

static uint16_t *pairs_of(const struct cpu_matrix *m, uint32_t row) {
    return m->w + ((size_t)row / PANEL * m->k_pairs * PANEL + row % PANEL) * 2;
}

void cpu_pack(struct cpu_matrix *m, const struct backend_tensor *t, uint32_t first,
              uint32_t panel_step) {
    size_t k = m->k;

    for (size_t r = 0; r < t->shape[0]; r++) {
        uint32_t panel = (uint32_t)(r / PANEL) * panel_step, at = first + panel * PANEL + r % PANEL;
        uint16_t *dst = pairs_of(m, at);

        if (t->dtype == DTYPE_BF16) {
            const char *src = (const char *)t->data + r * k * 2;

            for (size_t i = 0; i < k / 2; i++)
                memcpy(dst + i * PANEL * 2, src + i * 4, 4);
            if (k % 2) memcpy(dst + k / 2 * PANEL * 2, src + (k - 1) * 2, 2);
        } else {
            for (size_t i = 0; i < k; i++)
                dst[i / 2 * PANEL * 2 + i % 2] =
                    bf16_of_f32(dtype_get(t->dtype, t->data, r * k + i));
        }
    }
}

void cpu_unpack_row(float *y, const struct cpu_matrix *m, uint32_t n) {
    const uint16_t *src = pairs_of(m, n);

    for (size_t i = 0; i < m->k; i++)
        y[i] = f32_of_bf16(src[i / 2 * PANEL * 2 + i % 2]);
}

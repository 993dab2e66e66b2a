/* kernels/cpu/pack.c - see pack.h. */
#include "kernels/cpu/pack.h"

#include <string.h>

#include "kernels/dtype.h"

struct cpu_matrix cpu_matrix_shape(enum dtype dtype, uint32_t n, uint32_t k) {
    return (struct cpu_matrix){
        .dtype = dtype, .n = n, .k = k, .n_panels = CEIL_DIV(n, PANEL), .k_pairs = CEIL_DIV(k, 2)};
}

static uint64_t panel_bytes(const struct cpu_matrix *m) {
    uint32_t missing = ALIGN_UP(m->format.group_k, 8u);

    if (m->group_bytes) { /* the last group may be shorter */
        missing -= cpu_group_inputs(m, m->format.n_groups - 1);
        return (uint64_t)m->format.n_groups * m->group_bytes -
               missing * PANEL / (m->dtype == DTYPE_U4 ? 2 : 1);
    }
    return (uint64_t)m->k_pairs * 2 * PANEL * dtype_bytes(m->dtype);
}

uint64_t cpu_matrix_bytes(const struct cpu_matrix *m) {
    return m->n_panels * panel_bytes(m);
}

void *cpu_matrix_panel(const struct cpu_matrix *m, uint32_t panel) {
    return (char *)m->w + panel * panel_bytes(m);
}

/* Where input k of output `row` stands in its panel, in elements. */
static size_t place_of(const struct cpu_matrix *m, uint32_t row, size_t k) {
    size_t n = row % PANEL;

    return m->dtype == DTYPE_BF16 ? (k / 2 * PANEL + n) * 2 + k % 2 : k * PANEL + n;
}

/* bf16 stays as it is, pair by pair. */
static void pack_pairs(uint16_t *dst, const char *src, size_t k) {
    for (size_t i = 0; i < k / 2; i++)
        memcpy(dst + i * PANEL * 2, src + i * 4, 4);
    if (k % 2) memcpy(dst + k / 2 * PANEL * 2, src + (k - 1) * 2, 2);
}

/* Elements of one size, side by side in the panel: `n` rows at a time, so that whole cache lines
 * are written. */
#define PACK_ROWS 16u

static inline void pack_straight(char *dst, const char *src, size_t row_bytes, uint32_t n, size_t k,
                                 const size_t size) {
    for (size_t i = 0; i < k; i++, dst += PANEL * size, src += size) {
        for (uint32_t r = 0; r < n; r++)
            memcpy(dst + r * size, src + r * row_bytes, size);
    }
}

static void pack_converted(const struct cpu_matrix *m, uint32_t at, enum dtype from,
                           const char *src) {
    void *dst = cpu_matrix_panel(m, at / PANEL);

    for (size_t i = 0; i < m->k; i++)
        dtype_put(m->dtype, dst, place_of(m, at, i), dtype_get(from, src, i));
}

void cpu_pack(struct cpu_matrix *m, const struct backend_tensor *t, uint32_t first,
              uint32_t panel_step) {
    size_t size = dtype_bytes(t->dtype), row_bytes = m->k * size;
    uint32_t n;

    if (t->quant) {
        cpu_pack_quant(m, t, first, panel_step);
        return;
    }
    for (size_t r = 0; r < t->shape[0]; r += n) {
        uint32_t in_panel = (uint32_t)(r % PANEL);
        uint32_t at = first + (uint32_t)(r / PANEL) * panel_step * PANEL + in_panel;
        char *dst = (char *)cpu_matrix_panel(m, at / PANEL) + at % PANEL * size;
        const char *src = (const char *)t->data + r * row_bytes;

        n = 1;
        if (t->dtype != m->dtype) {
            pack_converted(m, at, t->dtype, src);
        } else if (t->dtype == DTYPE_BF16) {
            pack_pairs((uint16_t *)cpu_matrix_panel(m, at / PANEL) + at % PANEL * 2, src, m->k);
        } else { /* to the bit, a NaN too; up to the end of a panel, here and there */
            n = (uint32_t)MIN(PACK_ROWS, t->shape[0] - r);
            n = MIN(n, PANEL - MAX(in_panel, at % PANEL));
            if (size == sizeof(float))
                pack_straight(dst, src, row_bytes, n, m->k, sizeof(float));
            else
                pack_straight(dst, src, row_bytes, n, m->k, sizeof(uint16_t));
        }
    }
}

void cpu_unpack_row(float *y, const struct cpu_matrix *m, uint32_t n) {
    const void *panel = cpu_matrix_panel(m, n / PANEL);

    for (size_t i = 0; i < m->k; i++)
        y[i] = dtype_get(m->dtype, panel, place_of(m, n, i));
}

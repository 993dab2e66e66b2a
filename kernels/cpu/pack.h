/* kernels/cpu/pack.h - weights in panels, as cpu/path.h describes them. */
#ifndef KERNELS_CPU_PACK_H
#define KERNELS_CPU_PACK_H

#include "kernels/backend.h"
#include "kernels/cpu/path.h"

struct cpu_matrix {
    void *w;          /* (n_panels, k_pairs, 64, 2) of bf16, (n_panels, 2 k_pairs, 64) of others */
    enum dtype dtype; /* bf16, f16 or f32 */
    uint32_t n, k;    /* outputs and inputs that are real */
    uint32_t n_panels, k_pairs;
};

struct cpu_matrix cpu_matrix_shape(enum dtype dtype, uint32_t n, uint32_t k); /* w NULL */
uint64_t cpu_matrix_bytes(const struct cpu_matrix *m);
void *cpu_matrix_panel(const struct cpu_matrix *m, uint32_t panel); /* where it begins */

/* Packs the rows of a tensor as outputs from `first` on, counted in packed rows, rounded where the
 * matrix has the narrower type; with `panel_step` 2 every second panel is skipped, so that gate and
 * up alternate. */
void cpu_pack(struct cpu_matrix *m, const struct backend_tensor *t, uint32_t first,
              uint32_t panel_step);

/* Row `n` as floats: (k). */
void cpu_unpack_row(float *y, const struct cpu_matrix *m, uint32_t n);

#endif

/* kernels/cpu/pack.h - weights in panels, as cpu/path.h describes them.
 *
 * A panel of a quantised matrix is its groups of inputs, one behind the other, so that a product
 * reads one stream:
 *
 *      scales   of 64 outputs, f32 or f16; or one line that begins with a float for all of them
 *      zeros    of 64 outputs, int8, where the matrix has some
 *      start    int32, of products with rounded inputs: -128 * (sum of its codes)
 *      codes    of the group's inputs, 8 at a time, zeros behind the last:
 *
 *      u4           [k / 8][output] words: bit 16 * (k % 2) + 4 * (k % 8 / 2) is the first of code k
 *      i8, quads    [k / 4][output][k % 4]: with rounded inputs
 *      i8, pairs    [k / 2][output][k % 2]; e4m3 too
 *      e4m3, quads  [k / 4][output / 4][k / 2 % 2][output % 4][k % 2]: unpacked with the other,
 *                   a half of 16 bytes is a vector's quarter of pairs of bf16 */
#ifndef KERNELS_CPU_PACK_H
#define KERNELS_CPU_PACK_H

#include "kernels/backend.h"
#include "kernels/cpu/path.h"

enum cpu_scales { SCALES_F32, SCALES_F16, SCALES_ONE };

/* How a matrix is quantised: two with equal formats fit into one panel. */
struct cpu_format {
    enum dtype dtype;
    uint32_t group_k, n_groups; /* a multiple of 8, or all inputs */
    enum cpu_scales scales;
    bool has_zeros;
    bool rounds_inputs; /* to int8 */
    bool is_quads;
};

struct cpu_matrix {
    void *w;          /* bf16 (n_panels, k_pairs, 64, 2); f16, f32 (n_panels, 2 k_pairs, 64) */
    enum dtype dtype; /* bf16, f16, f32; or a quantised type: see format */
    uint32_t n, k;    /* outputs and inputs that are real */
    uint32_t n_panels, k_pairs;
    struct cpu_format format;
    uint32_t zeros_at, start_at, codes_at; /* bytes from the beginning of a group */
    uint32_t group_bytes;                  /* of each group but the last */
    const uint32_t *order;                 /* (k) as in struct backend_quant; NULL: none */
};

struct cpu_matrix cpu_matrix_shape(enum dtype dtype, uint32_t n, uint32_t k); /* w NULL */
uint64_t cpu_matrix_bytes(const struct cpu_matrix *m);
void *cpu_matrix_panel(const struct cpu_matrix *m, uint32_t panel); /* where it begins */

/* Packs the rows of a tensor as outputs from `first` on, counted in packed rows, rounded where the
 * matrix has the narrower type; with `panel_step` 2 every second panel is skipped, so that gate and
 * up alternate. Rows of a quantised tensor begin with a panel. */
void cpu_pack(struct cpu_matrix *m, const struct backend_tensor *t, uint32_t first,
              uint32_t panel_step);

/* Row `n` as floats: (k). Not of a quantised matrix. */
void cpu_unpack_row(float *y, const struct cpu_matrix *m, uint32_t n);

/* --- quantised ones */

/* ST_UNSUPPORTED names the group size that this backend lacks. */
MUST_USE enum status cpu_format_of(struct cpu_format *out, const struct cpu_path *path,
                                   const struct backend_tensor *t, struct error *err);
bool cpu_format_equal(const struct cpu_format *a, const struct cpu_format *b);
struct cpu_matrix cpu_matrix_quant(const struct cpu_format *f, uint32_t n,
                                   uint32_t k); /* w, order NULL */
void cpu_pack_quant(struct cpu_matrix *m, const struct backend_tensor *t, uint32_t first,
                    uint32_t panel_step); /* by cpu_pack */

/* What a row of inputs becomes: int8 with one scale; int16 with a scale and a sum for each block of
 * QUANT_BLOCK inputs of a group, the last of each is shorter; or it stays as it is. */
enum cpu_inputs { INPUTS_I8, INPUTS_I16, INPUTS_ACT };

static inline enum cpu_inputs cpu_inputs_kind(const struct cpu_matrix *m) {
    if (m->format.rounds_inputs) return INPUTS_I8;
    return m->dtype == DTYPE_F8E4M3 ? INPUTS_ACT : INPUTS_I16;
}

/* Bytes of one input, and of one row of prepared inputs, which has scales and sums at
 * cpu_inputs_tail. */
size_t cpu_input_bytes(const struct cpu_matrix *m, size_t act_bytes);
size_t cpu_inputs_tail(const struct cpu_matrix *m, size_t act_bytes);
size_t cpu_inputs_bytes(const struct cpu_matrix *m, size_t act_bytes);

/* The block of a row that input k of group g begins. */
static inline size_t cpu_block_index(const struct cpu_matrix *m, uint32_t g, uint32_t k) {
    return (size_t)g * CEIL_DIV(m->format.group_k, QUANT_BLOCK) + k / QUANT_BLOCK;
}

static inline uint32_t cpu_group_inputs(const struct cpu_matrix *m, uint32_t g) {
    uint32_t first = g * m->format.group_k;

    return ALIGN_UP(MIN(m->format.group_k, m->k - first), 8u);
}

#endif

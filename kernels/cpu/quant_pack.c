/* kernels/cpu/quant_pack.c - quantised matrices in panels; see pack.h. */
#include <assert.h>
#include <string.h>

#include "kernels/cpu/pack.h"
#include "kernels/quant.h"

#define PACK_ROWS 16u /* side by side: whole cache lines are written */

static uint32_t inputs_in_groups_of(const struct backend_tensor *t) {
    return (uint32_t)MIN((uint64_t)t->quant->group_k, t->shape[1]);
}

/* Groups of many outputs have one scale for a panel; others are kept in f16 where that is exact. */
static enum cpu_scales scales_of(const struct backend_tensor *t, uint32_t n_groups) {
    const struct backend_quant *q = t->quant;
    uint64_t n = CEIL_DIV(t->shape[0], (uint64_t)q->group_n) * n_groups;

    if (q->group_n % PANEL == 0 || q->group_n >= t->shape[0]) return SCALES_ONE;
    if (n_groups == 1) return SCALES_F32;
    for (uint64_t i = 0; i < n; i++) {
        if (bits_of_f32(f32_of_f16(f16_of_f32(q->scale[i]))) != bits_of_f32(q->scale[i]))
            return SCALES_F32;
    }
    return SCALES_F16;
}

static bool has_zeros(const struct backend_tensor *t, uint32_t n_groups) {
    int usual = t->dtype == DTYPE_U4 ? 8 : 0;

    for (uint64_t i = 0; t->quant->zero && i < t->shape[0] * n_groups; i++) {
        if (t->quant->zero[i] != usual) return true;
    }
    return false;
}

enum status cpu_format_of(struct cpu_format *out, const struct cpu_path *path,
                          const struct backend_tensor *t, struct error *err) {
    uint32_t group_k = inputs_in_groups_of(t);
    uint32_t n_groups = (uint32_t)CEIL_DIV(t->shape[1], (uint64_t)group_k);

    if (n_groups > 1 && group_k % 8)
        return error_set(err, ST_UNSUPPORTED,
                         "a weight has groups of %u inputs: the cpu backend takes multiples of 8; "
                         "use another --backend",
                         group_k);
    *out = (struct cpu_format){.dtype = t->dtype,
                               .group_k = group_k,
                               .n_groups = n_groups,
                               .scales = scales_of(t, n_groups),
                               .has_zeros = has_zeros(t, n_groups),
                               .rounds_inputs = t->quant->inputs == QUANT_INPUTS_I8,
                               .is_quads = t->dtype == DTYPE_F8E4M3 && path->takes_quads};
    return ST_OK;
}

bool cpu_format_equal(const struct cpu_format *a, const struct cpu_format *b) {
    return a->dtype == b->dtype && a->group_k == b->group_k && a->n_groups == b->n_groups &&
           a->scales == b->scales && a->has_zeros == b->has_zeros &&
           a->rounds_inputs == b->rounds_inputs && a->is_quads == b->is_quads;
}

static uint32_t bytes_of_inputs(const struct cpu_format *f, uint32_t n) {
    return n * PANEL / (f->dtype == DTYPE_U4 ? 2 : 1);
}

struct cpu_matrix cpu_matrix_quant(const struct cpu_format *f, uint32_t n, uint32_t k) {
    static const uint32_t scale_bytes[] = {PANEL * 4, PANEL * 2, CACHE_LINE};
    struct cpu_matrix m = cpu_matrix_shape(f->dtype, n, k);

    m.format = *f;
    m.zeros_at = scale_bytes[f->scales];
    m.start_at = m.zeros_at + (f->has_zeros ? PANEL : 0);
    m.codes_at = m.start_at + (f->rounds_inputs ? PANEL * 4 : 0);
    m.group_bytes = m.codes_at + bytes_of_inputs(f, ALIGN_UP(f->group_k, 8u));
    return m;
}

size_t cpu_input_bytes(const struct cpu_matrix *m, size_t act_bytes) {
    const size_t bytes[] = {
        [INPUTS_I8] = sizeof(int8_t), [INPUTS_I16] = sizeof(int16_t), [INPUTS_ACT] = act_bytes};

    return bytes[cpu_inputs_kind(m)];
}

size_t cpu_inputs_tail(const struct cpu_matrix *m, size_t act_bytes) {
    return ALIGN_UP(m->k, PANEL) * cpu_input_bytes(m, act_bytes);
}

/* An odd number of lines: the rows of a tile must not fall into one set of the cache. */
size_t cpu_inputs_bytes(const struct cpu_matrix *m, size_t act_bytes) {
    const size_t tail[] = {[INPUTS_I8] = sizeof(float),
                           [INPUTS_I16] = cpu_block_index(m, m->format.n_groups, 0) *
                                          (sizeof(float) + sizeof(int32_t)),
                           [INPUTS_ACT] = 0};
    size_t n = cpu_inputs_tail(m, act_bytes) + tail[cpu_inputs_kind(m)];

    return (CEIL_DIV(n, (size_t)CACHE_LINE) | 1) * CACHE_LINE;
}

/* --- packing --------------------------------------------------------------------------------- */

/* Codes 0 to 7 in a word: the even ones to the lower half, the odd ones to the upper. */
static uint32_t sort_nibbles(uint32_t w) {
    uint32_t even = w & 0x0F0F0F0Fu, odd = w >> 4 & 0x0F0F0F0Fu;

    even = (even | even >> 4) & 0x00FF00FFu;
    odd = (odd | odd >> 4) & 0x00FF00FFu;
    return ((even | even >> 8) & 0xFFFFu) | (odd | odd >> 8) << 16;
}

/* Eight codes of one output, from `row`, which holds `left` more. */
static void put_u4(char *codes, uint32_t n, const uint8_t *row, uint64_t k, uint64_t left) {
    uint32_t w = 0;

    memcpy(&w, row + k / 2, MIN((left + 1) / 2, 4u));
    if (left < 8) w &= (1u << 4 * left) - 1;
    w = sort_nibbles(w);
    memcpy(codes + n * 4, &w, 4);
}

static void put_bytes(char *codes, uint32_t n, const uint8_t *row, uint64_t left,
                      const struct cpu_format *f) {
    uint8_t c[8] = {0};

    memcpy(c, row, MIN(left, 8u));
    for (uint32_t q = 0; q < 2; q++) {
        char *quad = codes + q * 4 * PANEL;

        if (f->rounds_inputs) {
            memcpy(quad + n * 4, c + q * 4, 4);
        } else if (f->is_quads) {
            memcpy(quad + n / 4 * 16 + n % 4 * 2, c + q * 4, 2);
            memcpy(quad + n / 4 * 16 + n % 4 * 2 + 8, c + q * 4 + 2, 2);
        } else {
            memcpy(quad + n * 2, c + q * 4, 2);
            memcpy(quad + 2 * PANEL + n * 2, c + q * 4 + 2, 2);
        }
    }
}

/* Where group g of a panel begins. */
static char *group_at(const struct cpu_matrix *m, uint32_t panel, uint32_t g) {
    return (char *)cpu_matrix_panel(m, panel) + (size_t)g * m->group_bytes;
}

static void put_header(const struct cpu_matrix *m, char *group, const struct backend_tensor *t,
                       uint64_t r, uint32_t n, uint32_t g) {
    float scale = quant_scale(t->quant, m->format.n_groups, r, g);
    uint16_t half = f16_of_f32(scale);

    if (m->format.scales == SCALES_F32) memcpy(group + n * 4, &scale, 4);
    if (m->format.scales == SCALES_F16) memcpy(group + n * 2, &half, 2);
    if (m->format.scales == SCALES_ONE) memcpy(group, &scale, 4);
    if (m->format.has_zeros)
        group[m->zeros_at + n] =
            (char)quant_zero(t->quant, m->format.dtype, m->format.n_groups, r, g);
}

static void put_start(const struct cpu_matrix *m, char *group, uint32_t n, const uint8_t *row,
                      uint64_t n_k) {
    int32_t sum = 0;

    for (uint64_t i = 0; i < n_k; i++)
        sum -= 128 * (int8_t)row[i];
    memcpy(group + m->start_at + n * 4, &sum, 4);
}

/* Rows [r, r + n_rows) of a tensor, which lie in one panel, at its output `n`. */
static void pack_group(const struct cpu_matrix *m, char *group, uint32_t g,
                       const struct backend_tensor *t, uint64_t r, uint32_t n_rows, uint32_t n) {
    uint64_t pitch = dtype_row_bytes(t->dtype, m->k), first = (uint64_t)g * m->format.group_k;
    uint64_t n_k = MIN(m->format.group_k, m->k - first);
    const uint8_t *rows = (const uint8_t *)t->data + r * pitch;

    for (uint32_t i = 0; i < n_rows; i++) {
        put_header(m, group, t, r + i, n + i, g);
        if (m->format.rounds_inputs) put_start(m, group, n + i, rows + i * pitch + first, n_k);
    }
    for (uint64_t k = 0; k < n_k; k += 8) {
        char *codes = group + m->codes_at + bytes_of_inputs(&m->format, (uint32_t)k);

        for (uint32_t i = 0; i < n_rows; i++) {
            const uint8_t *row = rows + i * pitch;

            if (m->dtype == DTYPE_U4)
                put_u4(codes, n + i, row, first + k, n_k - k);
            else
                put_bytes(codes, n + i, row + first + k, n_k - k, &m->format);
        }
    }
}

void cpu_pack_quant(struct cpu_matrix *m, const struct backend_tensor *t, uint32_t first,
                    uint32_t panel_step) {
    uint32_t n;

    assert(first % PANEL == 0);
    for (uint64_t r = 0; r < t->shape[0]; r += n) {
        uint32_t panel = first / PANEL + (uint32_t)(r / PANEL) * panel_step;

        n = (uint32_t)MIN(PACK_ROWS, t->shape[0] - r); /* 64 is a multiple of it */
        for (uint32_t g = 0; g < m->format.n_groups; g++)
            pack_group(m, group_at(m, panel, g), g, t, r, n, (uint32_t)(r % PANEL));
    }
}

/* tests/support/quant_matrix.c - see quant_matrix.h. */
#include "tests/support/quant_matrix.h"

#include <math.h>

#include "common/base/mem.h"

const struct quant_kind quant_kinds[QUANT_KINDS] = {
    {DTYPE_F8E4M3, 1, 0, false, false, QUANT_INPUTS_PLAIN},
    {DTYPE_F8E4M3, 1, 0, false, false, QUANT_INPUTS_F8},
    {DTYPE_F8E4M3, 128, 128, false, false, QUANT_INPUTS_F8_GROUPS},
    {DTYPE_F8E4M3, 16, 32, false, false, QUANT_INPUTS_PLAIN},
    {DTYPE_I8, 1, 0, false, false, QUANT_INPUTS_I8},
    {DTYPE_I8, 1, 0, false, false, QUANT_INPUTS_PLAIN},
    {DTYPE_I8, 1, 128, true, false, QUANT_INPUTS_PLAIN},
    {DTYPE_I8, 1, 32, true, true, QUANT_INPUTS_PLAIN},
    {DTYPE_U4, 1, 128, false, false, QUANT_INPUTS_PLAIN},
    {DTYPE_U4, 1, 32, true, false, QUANT_INPUTS_PLAIN},
    {DTYPE_U4, 1, 0, true, false, QUANT_INPUTS_PLAIN},
    {DTYPE_U4, 1, 64, true, true, QUANT_INPUTS_PLAIN},
};

static uint32_t *random_order(uint32_t k, struct rng *rng) {
    uint32_t *order = mem_calloc(k, sizeof(*order));

    for (uint32_t i = 0; i < k; i++) {
        uint32_t j = (uint32_t)rng_below(rng, i + 1ull);

        order[i] = order[j];
        order[j] = i;
    }
    return order;
}

/* Of both signs, as in checkpoints. */
static float *random_scales(uint64_t n, float range, struct rng *rng) {
    float *scale = mem_calloc(n, sizeof(*scale));

    for (uint64_t i = 0; i < n; i++)
        scale[i] =
            (rng_below(rng, 4) ? range : -range) * (0.5f + (float)rng_below(rng, 1024) / 1024);
    return scale;
}

static int16_t *random_zeros(uint64_t n, enum dtype dtype, struct rng *rng) {
    int16_t *zero = mem_calloc(n, sizeof(*zero));

    for (uint64_t i = 0; i < n; i++)
        zero[i] = (int16_t)(dtype == DTYPE_U4 ? rng_below(rng, 16) : rng_below(rng, 256) - 128);
    return zero;
}

/* As the loader of checkpoints copies it. */
static void copy_one_scale(struct quant_matrix *m, uint64_t n_scales) {
    float *scale = (float *)(uintptr_t)m->quant.scale;

    for (uint64_t i = 1; i < n_scales; i++)
        scale[i] = scale[0];
}

void quant_matrix_fill(struct quant_matrix *m, const struct quant_kind *kind, uint32_t n,
                       uint32_t k, struct rng *rng) {
    float reach = kind->dtype == DTYPE_F8E4M3 ? 448 : kind->dtype == DTYPE_I8 ? 127 : 8;
    uint32_t group_n = kind->group_n ? kind->group_n : 1;
    uint32_t group_k = kind->group_k ? kind->group_k : k;
    uint64_t row_groups = CEIL_DIV(k, group_k), n_bytes = n * dtype_row_bytes(kind->dtype, k);
    uint8_t *code = mem_alloc(n_bytes);

    for (uint64_t i = 0; i < n_bytes; i++) {
        code[i] = (uint8_t)rng_u64(rng);
        if (kind->dtype == DTYPE_F8E4M3 && (code[i] & 0x7F) == E4M3_NAN) code[i] ^= 1;
    }
    m->quant = (struct backend_quant){
        .inputs = kind->inputs,
        .group_n = group_n,
        .group_k = group_k,
        .scale = random_scales(CEIL_DIV(n, group_n) * row_groups, 1 / sqrtf((float)k) / reach, rng),
        .zero = kind->has_zeros ? random_zeros(n * row_groups, kind->dtype, rng) : NULL,
        .order = kind->has_order ? random_order(k, rng) : NULL,
        .input_scale = 1};
    if (!kind->group_n) copy_one_scale(m, n * row_groups);
    m->tensor = (struct backend_tensor){.dtype = kind->dtype,
                                        .n_dims = 2,
                                        .shape = {n, k},
                                        .data = code,
                                        .n_bytes = n_bytes,
                                        .quant = &m->quant};
}

void quant_matrix_free(struct quant_matrix *m) {
    mem_free(m->tensor.data);
    mem_free((void *)(uintptr_t)m->quant.scale);
    mem_free((void *)(uintptr_t)m->quant.zero);
    mem_free((void *)(uintptr_t)m->quant.order);
}

double quant_matrix_weight(const struct backend_tensor *t, uint64_t n, uint64_t i) {
    const struct backend_quant *q = t->quant;
    uint64_t row_groups = quant_row_groups(q, t->shape[1]), k = i;
    const uint8_t *row =
        (const uint8_t *)t->data + n * dtype_row_bytes(t->dtype, (size_t)t->shape[1]);

    for (k = 0; q->order && q->order[k] != i;)
        k++;
    if (!q->order) k = i;
    return ((double)quant_code(t->dtype, row, k) -
            quant_zero(q, t->dtype, row_groups, n, k / q->group_k)) *
           quant_scale(q, row_groups, n, k / q->group_k);
}

/* kernels/cuda/products/quant.c - which kernels make a quantised product; see quant.h. */
#include "kernels/cuda/products/quant.h"

/* Inputs that are gathered or rounded must be there before. */
static bool takes_inputs_as_they_are(const struct packed_matrix *w) {
    return !w->order && w->inputs != QUANT_INPUTS_I8;
}

bool quant_takes_fusions(const struct packed_matrix *w, uint32_t m, bool is_deterministic) {
    return !is_deterministic && m <= GEMV_MAX_ROWS && takes_inputs_as_they_are(w);
}

uint64_t quant_scratch_bytes(const struct packed_matrix *w, uint64_t m) {
    if (takes_inputs_as_they_are(w)) return 0;
    if (w->inputs == QUANT_INPUTS_I8)
        return ALIGN_UP(m * sizeof(float), 256) + m * quant_code_stride(w->k);
    return m * w->k * sizeof(uint16_t);
}

/* Scratch: the scales of the inputs, then their codes. */
static void run_rounded(struct gpu_stream *s, const struct quant_args *a) {
    float *scale = a->scratch;
    int8_t *codes = (int8_t *)a->scratch + ALIGN_UP(a->a.m * sizeof(*scale), 256);

    quant_round_inputs(s, a, codes, scale);
    if (a->a.m <= GEMV_MAX_ROWS && quant_groups(a->w.k, a->w.group_k) == 1)
        quant_run_whole_gemv(s, a, codes, scale);
    else
        quant_run_tiles(s, a, codes, scale);
}

void quant_run(struct gpu_stream *s, const struct quant_args *a) {
    struct quant_args gathered = *a;

    if (a->a.m == 0) return;
    if (a->w.inputs == QUANT_INPUTS_I8) {
        run_rounded(s, a);
        return;
    }
    if (a->w.order) {
        quant_gather_inputs(s, a, a->scratch);
        gathered.a.x = a->scratch;
        gathered.a.x_stride = a->w.k;
    }
    if (a->a.m <= GEMV_MAX_ROWS && !a->is_deterministic)
        quant_run_gemv(s, &gathered);
    else
        quant_run_tiles(s, &gathered, NULL, NULL);
}

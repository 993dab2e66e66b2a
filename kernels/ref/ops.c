/* kernels/ref/ops.c - see ops.h. Nothing here is clever, on purpose. */
#include "kernels/ref/ops.h"

#include <math.h>
#include <string.h>

#include "kernels/exp.h"
#include "kernels/kv_quant.h"
#include "kernels/quant.h"

void ref_embed(float *y, const struct ref_matrix *table, const uint32_t *id, uint32_t n_tokens) {
    for (size_t t = 0; t < n_tokens; t++) { /* y (T, k): rows of table (n, k) */
        for (size_t i = 0; i < table->k; i++)
            y[t * table->k + i] =
                dtype_get(table->dtype, table->data, (size_t)id[t] * table->k + i);
    }
}

void ref_rmsnorm(float *y, const float *x, const float *w, uint32_t n_tokens, uint32_t d,
                 float eps) {
    for (size_t t = 0; t < n_tokens; t++) { /* x, y: (T, d); w: (d) */
        const float *row = x + t * d;
        float sum = 0, scale;

        for (size_t i = 0; i < d; i++)
            sum += row[i] * row[i];
        scale = 1.0f / sqrtf(sum / (float)d + eps);
        for (size_t i = 0; i < d; i++)
            y[t * d + i] = row[i] * scale * w[i];
    }
}

/* y (n) += x (k) W^T */
static void linear_quant(float *y, const float *x, const struct ref_matrix *w) {
    const struct backend_quant *q = w->quant;
    uint64_t row_groups = quant_row_groups(q, w->k), pitch = dtype_row_bytes(w->dtype, w->k);

    for (uint64_t n = 0; n < w->n; n++) {
        const uint8_t *row = (const uint8_t *)w->data + n * pitch;

        for (uint64_t g = 0; g < row_groups; g++) {
            uint64_t first = g * q->group_k, end = MIN(first + q->group_k, w->k);
            float zero = (float)quant_zero(q, w->dtype, row_groups, n, g), sum = 0;

            for (uint64_t k = first; k < end; k++)
                sum += x[q->order ? q->order[k] : k] * (quant_code(w->dtype, row, k) - zero);
            y[n] += sum * quant_scale(q, row_groups, n, g);
        }
    }
}

/* The scale of a token's inputs in int8; NaN when one of them is not finite. */
static float scale_of_inputs(const float *x, size_t k) {
    float max = 0, scale;

    for (size_t i = 0; i < k; i++) {
        if (!isfinite(x[i])) return NAN;
        max = fmaxf(max, fabsf(x[i]));
    }
    scale = max / 127;
    return scale > 0 ? scale : 1;
}

static int64_t input_code(float x, float scale) {
    return (int64_t)fminf(fmaxf(rintf(x / scale), -127), 127);
}

/* y (n) += x (k) W^T, the inputs rounded to int8 */
static void linear_i8(float *y, const float *x, const struct ref_matrix *w) {
    const struct backend_quant *q = w->quant;
    uint64_t row_groups = quant_row_groups(q, w->k);
    float scale = scale_of_inputs(x, w->k);

    for (uint64_t n = 0; n < w->n; n++) {
        const int8_t *row = (const int8_t *)w->data + n * w->k;
        float total = 0;

        for (uint64_t g = 0; g < row_groups; g++) {
            uint64_t first = g * q->group_k, end = MIN(first + q->group_k, w->k);
            int64_t sum = 0;

            for (uint64_t k = first; k < end && isfinite(scale); k++)
                sum += input_code(x[k], scale) * row[k];
            total += (float)sum * quant_scale(q, row_groups, n, g);
        }
        y[n] += total * scale;
    }
}

void ref_linear_on(float *y, const float *x, const struct ref_matrix *w, uint32_t n_tokens) {
    for (size_t t = 0; w->quant && t < n_tokens; t++) {
        bool is_i8 = w->quant->inputs == QUANT_INPUTS_I8;

        (is_i8 ? linear_i8 : linear_quant)(y + t * w->n, x + t * w->k, w);
    }
    if (w->quant) return;
    for (size_t t = 0; t < n_tokens; t++) { /* y (T, n) += x (T, k) w^T, w (n, k) */
        for (size_t n = 0; n < w->n; n++) {
            float sum = y[t * w->n + n];

            for (size_t k = 0; k < w->k; k++)
                sum += x[t * w->k + k] * dtype_get(w->dtype, w->data, n * w->k + k);
            y[t * w->n + n] = sum;
        }
    }
}

void ref_linear(float *y, const float *x, const struct ref_matrix *w, const float *bias,
                uint32_t n_tokens) {
    memset(y, 0, (size_t)n_tokens * w->n * sizeof(*y));
    ref_linear_on(y, x, w, n_tokens);
    for (size_t t = 0; bias && t < n_tokens; t++) {
        for (size_t n = 0; n < w->n; n++)
            y[t * w->n + n] += bias[n];
    }
}

void ref_rope(float *x, const uint32_t *position, const float *inv_freq, float scale,
              uint32_t n_tokens, uint32_t n_heads, uint32_t hd, size_t stride) {
    for (size_t t = 0; t < n_tokens; t++) {
        for (size_t i = 0; i < hd / 2; i++) {
            float angle = (float)position[t] * inv_freq[i];
            float c = cosf(angle) * scale, s = sinf(angle) * scale;

            for (size_t h = 0; h < n_heads; h++) {
                /* x (T, stride) holds (n_heads, hd): element i turns with i + hd / 2 */
                float *a = x + t * stride + h * hd + i, *b = a + hd / 2, a0 = *a, b0 = *b;

                *a = a0 * c - b0 * s;
                *b = b0 * c + a0 * s;
            }
        }
    }
}

/* Element 0 of K or V at one position of one KV head, counted in elements from the
 * block's start. */
static size_t element_of(const struct ref_pool *p, uint32_t kv_head, uint64_t offset) {
    return ((size_t)kv_head * p->block_size + offset) * p->hd;
}

/* Where the scale of K at one position of one KV head is, in bytes from k_scales. */
static size_t scale_of(const struct ref_pool *p, uint32_t kv_head, uint64_t offset) {
    return (size_t)kv_head * 2 * p->block_size + offset;
}

static void put_vector(const struct ref_pool *p, uint8_t *block, uint8_t *scales, uint32_t kv_head,
                       uint64_t offset, const float *x) {
    size_t at = element_of(p, kv_head, offset);

    if (kv_is_quantised(p->dtype)) {
        kv_quantise(p->dtype, x, p->hd, block + at, scales + scale_of(p, kv_head, offset));
        return;
    }
    for (size_t i = 0; i < p->hd; i++)
        dtype_put(p->dtype, block, at + i, x[i]);
}

/* Element i of the vector there. */
static float get_element(const struct ref_pool *p, const uint8_t *block, const uint8_t *scales,
                         uint32_t kv_head, uint64_t offset, size_t i) {
    size_t at = element_of(p, kv_head, offset) + i;

    if (!kv_is_quantised(p->dtype)) return dtype_get(p->dtype, block, at);
    return kv_code_value(p->dtype, block, at) *
           kv_scale_of_e8m0(scales[scale_of(p, kv_head, offset)]);
}

void ref_kv_write(const struct ref_pool *p, const float *k, const float *v, const int64_t *slot,
                  uint32_t n_tokens, size_t stride) {
    for (size_t t = 0; t < n_tokens; t++) {
        uint64_t block, offset;

        if (slot[t] < 0) continue;
        /* k, v: (T, n_kv_heads, hd) -> pool: (block, n_kv_heads, block_size, hd), one each for K
         * and V */
        block = (uint64_t)slot[t] / p->block_size;
        offset = (uint64_t)slot[t] % p->block_size;
        block *= p->block_stride;
        for (uint32_t h = 0; h < p->n_kv_heads; h++) {
            size_t from = t * stride + (size_t)h * p->hd;

            put_vector(p, p->k + block, p->k_scales + block, h, offset, k + from);
            put_vector(p, p->v + block, p->v_scales + block, h, offset, v + from);
        }
    }
}

void ref_attention(float *y, const float *q, const struct ref_pool *p, const uint32_t *table,
                   uint32_t n_heads, uint32_t first, uint32_t last, float *scores) {
    uint32_t group = n_heads / p->n_kv_heads;
    float scale = 1.0f / sqrtf((float)p->hd);

    for (uint32_t h = 0; h < n_heads;
         h++) { /* q, y: (n_heads, hd); `group` query heads share a KV head */
        float max = -INFINITY, sum = 0, nan = 0;

        for (uint32_t j = first; j <= last; j++) { /* scores (last + 1): q . k / sqrt(hd) */
            uint64_t block = table[j / p->block_size] * p->block_stride;
            float dot = 0;

            for (size_t i = 0; i < p->hd; i++)
                dot += q[h * p->hd + i] * get_element(p, p->k + block, p->k_scales + block,
                                                      h / group, j % p->block_size, i);
            scores[j] = dot * scale;
            if (isnan(dot)) nan = dot; /* exp_f32 would make it a 0, and the position unseen */
            max = scores[j] > max ? scores[j] : max;
        }
        for (uint32_t j = first; j <= last; j++)
            sum += scores[j] = exp_f32(scores[j] - max);
        for (size_t i = 0; i < p->hd; i++) { /* y[h] = softmax(scores) v */
            float mix = 0;

            for (uint32_t j = first; j <= last; j++) {
                uint64_t block = table[j / p->block_size] * p->block_stride;

                mix += scores[j] * get_element(p, p->v + block, p->v_scales + block, h / group,
                                               j % p->block_size, i);
            }
            y[h * p->hd + i] = mix / sum + nan;
        }
    }
}

void ref_swiglu(float *y, const float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + exp_f32(-gate[i])) * up[i];
}

/* kernels/ref/ops.h - every operation of a decoder, in plain loops: the definition.
 *
 * Shapes stand beside each pointer, last dimension fastest; T is the number of tokens in the call.
 * Arithmetic is fp32, weights keep their stored type and are widened one by one. The fast backends
 * are compared with these functions, operation by operation. Pure. */
#ifndef KERNELS_REF_OPS_H
#define KERNELS_REF_OPS_H

#include "kernels/backend.h"

struct ref_matrix { /* (n, k) outputs first, in its stored type */
    const void *data;
    enum dtype dtype;
    uint32_t n, k;
    const struct backend_quant *quant; /* of a quantised type; else NULL */
};

/* y[t] = table[id[t]] */
void ref_embed(float *y, /* (T, table.k) */
               const struct ref_matrix *table, const uint32_t *id /* (T) */, uint32_t n_tokens);

/* y = x / sqrt(mean(x^2) + eps) * w, row by row; y may be x. */
void ref_rmsnorm(float *y /* (T, d) */, const float *x /* (T, d) */, const float *w /* (d) */,
                 uint32_t n_tokens, uint32_t d, float eps);

/* y = x W^T + b. A quantised W: the fp32 sum of x * (code - zero) over a group of inputs, times its
 * scale, groups added in order. e4m3 codes take the inputs as they are, whatever quant->inputs has:
 * closer than inputs in e4m3, and the same for every number of rows. QUANT_INPUTS_I8: s = max|x| /
 * 127 of the token (1 where that is 0), codes rne(x / s) within +-127, whole sums of a group times
 * its scale, the total times s; NaN when an input is not finite. */
void ref_linear(float *y /* (T, w.n) */, const float *x /* (T, w.k) */, const struct ref_matrix *w,
                const float *bias /* (w.n) or NULL */, uint32_t n_tokens);

/* y += x W^T, each sum going on from what y holds: the inputs of a matrix in two calls are those of
 * one; of a quantised matrix with several groups, when cut between groups. */
void ref_linear_on(float *y, /* (T, w.n) */
                   const float *x /* (T, w.k) */, const struct ref_matrix *w, uint32_t n_tokens);

/* Rotates the pairs (i, i + hd/2) of each head by position * inv_freq[i]. In place. */
void ref_rope(float *x /* (T, n_heads, hd) */, const uint32_t *position /* (T) */,
              const float *inv_freq /* (hd / 2) */, float scale, uint32_t n_tokens,
              uint32_t n_heads, uint32_t hd, size_t stride /* floats from token to token */);

/* One layer of a paged pool, K and V of it: element (block, kv_head, offset, i) of K is at
 * k + block * block_stride + ((kv_head * block_size) + offset) * hd + i elements. Scales of a
 * quantised pool as in kernels/kv_layout.h. */
struct ref_pool {
    uint8_t *k, *v, *k_scales, *v_scales; /* of block 0 and KV head 0 */
    enum dtype dtype;
    uint64_t block_stride; /* bytes */
    uint32_t block_size, n_kv_heads, hd;
};

/* Writes each token's K and V at slot = block * block_size + offset; -1: nowhere. Into a quantised
 * pool by the rules of kernels/kv_quant.h. */
void ref_kv_write(const struct ref_pool *pool, const float *k /* (T, n_kv_heads, hd) */,
                  const float *v /* (T, n_kv_heads, hd) */, const int64_t *slot /* (T) */,
                  uint32_t n_tokens, size_t stride);

/* softmax(q K^T / sqrt(hd)) V over positions [first, last] of one query token, both from the pool;
 * query head h reads KV head h / (n_heads / n_kv_heads). A NaN among the scores makes all of y one.
 * `scores` holds last + 1 floats. */
void ref_attention(float *y /* (n_heads, hd) */, const float *q /* (n_heads, hd) */,
                   const struct ref_pool *pool, const uint32_t *table /* blocks */,
                   uint32_t n_heads, uint32_t first, uint32_t last, float *scores);

/* y = gate / (1 + exp(-gate)) * up */
void ref_swiglu(float *y /* (n) */, const float *gate /* (n) */, const float *up /* (n) */,
                size_t n);

#endif

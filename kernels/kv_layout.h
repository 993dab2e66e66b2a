/* kernels/kv_layout.h - the bytes of one KV block.
 *
 *      tiles     [layer][K|V][kv_head][block_size][head_dim]   kv_dtype
 *      trailer   [layer][kv_head][K|V][block_size]             a scale for each vector, if quantised
 *
 * Of e4m3 and int8 alike a scale is one byte, a power of two (E8M0: exponent + 127). It depends on
 * its token, head and K or V alone, never on a neighbour in the block: so the bytes of a token are
 * equal however its prompt was cut, and an append changes no earlier byte. Both scales of a (layer,
 * head) are one piece, and tiles stay aligned. Behind the last token, tiles and scales are
 * unspecified: a reader masks scores, and replaces the scale of a masked V. */
#ifndef KERNELS_KV_LAYOUT_H
#define KERNELS_KV_LAYOUT_H

#include "kernels/dtype.h"

/* Bytes of one scale; 0: the type has none. */
static inline uint32_t kv_scale_bytes(enum dtype kv) {
    return kv == DTYPE_F8E4M3 || kv == DTYPE_I8 ? 1 : 0;
}

/* K or V of one (layer, kv head). */
static inline uint64_t kv_tile_bytes(const struct geometry *g, uint32_t block_size) {
    return (uint64_t)block_size * g->head_dim * dtype_bytes(g->kv_dtype);
}

/* From the block's first byte; which: 0 for K, 1 for V. */
static inline uint64_t kv_tile_at(const struct geometry *g, uint32_t block_size, uint32_t layer,
                                  uint32_t which, uint32_t kv_head) {
    return ((uint64_t)(layer * 2 + which) * g->n_kv_heads + kv_head) * kv_tile_bytes(g, block_size);
}

/* Where the trailer begins. */
static inline uint64_t kv_tiles_bytes(const struct geometry *g, uint32_t block_size) {
    return 2ull * g->n_layers * g->n_kv_heads * kv_tile_bytes(g, block_size);
}

static inline uint64_t kv_scales_at(const struct geometry *g, uint32_t block_size, uint32_t layer,
                                    uint32_t which, uint32_t kv_head) {
    return kv_tiles_bytes(g, block_size) +
           ((uint64_t)(layer * g->n_kv_heads + kv_head) * 2 + which) * block_size *
               kv_scale_bytes(g->kv_dtype);
}

/* A whole block: tiles and trailer. */
static inline uint64_t kv_layout_block_bytes(const struct geometry *g, uint32_t block_size) {
    return kv_tiles_bytes(g, block_size) +
           2ull * g->n_layers * g->n_kv_heads * block_size * kv_scale_bytes(g->kv_dtype);
}

#endif

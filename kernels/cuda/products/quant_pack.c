/* kernels/cuda/products/quant_pack.c - codes as a checkpoint has them into units; see quant.h. */
#include <string.h>

#include "kernels/cuda/products/quant.h"

/* Eight e4m3 codes: the second and third of each four change places. */
static uint64_t order_e4m3(uint64_t x) {
    return (x & 0xFF0000FFFF0000FFull) | (x & 0x00FF000000FF0000ull) >> 8 |
           (x & 0x0000FF000000FF00ull) << 8;
}

static uint32_t even_nibbles(uint32_t x) {
    x &= 0x0F0F0F0Fu;
    x = (x | x >> 4) & 0x00FF00FFu;
    return (x | x >> 8) & 0xFFFFu;
}

/* Eight int4 codes: the even ones, then the odd ones. */
static uint32_t order_u4(uint32_t x) {
    return even_nibbles(x) | even_nibbles(x >> 4) << 16;
}

/* Eight codes from input `at` of a row, 0 behind its end; bytes are as in memory. */
static uint64_t eight_codes(enum dtype t, const uint8_t *row, uint32_t at, uint32_t k) {
    uint64_t x = 0;

    if (at >= k) return 0;
    if (t == DTYPE_U4) {
        memcpy(&x, row + at / 2, (MIN(k - at, 8u) + 1) / 2);
        if (k - at < 8) x &= (1ull << 4 * (k - at)) - 1;
        return order_u4((uint32_t)x);
    }
    memcpy(&x, row + at, MIN(k - at, 8u));
    return t == DTYPE_F8E4M3 ? order_e4m3(x) : x;
}

/* The place in a unit of eight codes: row of 16, eight of the unit's inputs. */
static uint32_t place_of(enum dtype t, uint32_t row, uint32_t eight) {
    uint32_t lane = row % 8 * 4 + eight % 4, half = row / 8;

    return t == DTYPE_U4 ? lane * 16 + eight / 4 * 8 + half * 4 : lane * 16 + half * 8;
}

void quant_pack_codes(uint8_t *dst, enum dtype t, const uint8_t *src, uint64_t pitch,
                      uint32_t n_rows, uint32_t k) {
    uint32_t unit_k = quant_unit_k(t), n_eights = unit_k / 8, n_units = CEIL_DIV(k, unit_k);

    memset(dst, 0, quant_block_bytes(t, k));
    for (uint32_t row = 0; row < n_rows; row++) {
        for (uint32_t i = 0; i < n_units * n_eights; i++) {
            uint8_t *unit = dst + (uint64_t)(i / n_eights) * QUANT_UNIT_BYTES;
            uint64_t codes = eight_codes(t, src + row * pitch, i * 8, k);

            memcpy(unit + place_of(t, row, i % n_eights), &codes, t == DTYPE_U4 ? 4 : 8);
        }
    }
}

void quant_pack_scales(float *dst, const struct backend_quant *q, bool has_row_scales,
                       uint64_t first, uint32_t n_rows, uint32_t k) {
    uint32_t n_groups = quant_groups(k, q->group_k), width = has_row_scales ? QUANT_ROWS : 1;

    for (uint32_t g = 0; g < n_groups; g++) {
        for (uint32_t i = 0; i < width; i++)
            dst[g * width + i] = i < n_rows ? q->scale[(first + i) / q->group_n * n_groups + g] : 0;
    }
}

void quant_pack_zeros(int16_t *dst, const struct backend_quant *q, enum dtype t, uint64_t first,
                      uint32_t n_rows, uint32_t k) {
    uint32_t n_groups = quant_groups(k, q->group_k);
    int16_t plain = t == DTYPE_U4 ? 8 : 0;

    for (uint32_t g = 0; g < n_groups; g++) {
        for (uint32_t i = 0; i < QUANT_ROWS; i++)
            dst[g * QUANT_ROWS + i] =
                q->zero && i < n_rows ? q->zero[(first + i) * n_groups + g] : plain;
    }
}

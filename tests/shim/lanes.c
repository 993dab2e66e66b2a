/* tests/shim/lanes.c - see lanes.h; the layouts of fragments are those of the PTX manual. */
#include "tests/shim/lanes.h"

#include <string.h>

static float low(uint32_t pair) {
    uint32_t bits = pair << 16;
    float x;

    memcpy(&x, &bits, 4);
    return x;
}
static float high(uint32_t pair) {
    uint32_t bits = pair & 0xFFFF0000u;
    float x;

    memcpy(&x, &bits, 4);
    return x;
}
static void shuffle(struct lane *warp) {
    for (uint32_t l = 0; l < WARP; l++)
        warp[l].result = warp[warp[l].from].bits;
}
static void ballot(struct lane *warp) {
    uint32_t votes = 0;

    for (uint32_t l = 0; l < WARP; l++)
        votes |= warp[l].bits << l;
    for (uint32_t l = 0; l < WARP; l++)
        warp[l].result = votes;
}
static void load_matrix(struct lane *warp) {
    for (uint32_t l = 0; l < WARP; l++)
        for (uint32_t m = 0; m < 4; m++)
            memcpy(&warp[l].r[m], (const char *)warp[m * 8 + l / 4].row + l % 4 * 4, 4);
}
static void load_matrix_transposed(struct lane *warp) {
    for (uint32_t l = 0; l < WARP; l++)
        for (uint32_t m = 0; m < 4; m++) {
            const struct lane *rows = &warp[m * 8 + l % 4 * 2];
            uint16_t pair[2];

            memcpy(&pair[0], (const char *)rows[0].row + l / 4 * 2, 2);
            memcpy(&pair[1], (const char *)rows[1].row + l / 4 * 2, 2);
            memcpy(&warp[l].r[m], pair, 4);
        }
}
/* PTX: lane l has a[0] at row l / 4, columns 2 * (l % 4) and one more; a[1] 8 rows below, a[2] 8
 * columns to the right, a[3] both; b0 at rows 2 * (l % 4) and one more of column l / 4, b1 8 rows
 * below. */
static void product(struct lane *warp) {
    float a[16][16], b[16][8], c[16][8];

    for (uint32_t l = 0; l < WARP; l++) {
        const struct lane *lane = &warp[l];
        uint32_t row = l / 4, col = l % 4 * 2;

        for (uint32_t i = 0; i < 4; i++) {
            a[row + (i & 1) * 8][col + (i >> 1) * 8] = low(lane->a[i]);
            a[row + (i & 1) * 8][col + (i >> 1) * 8 + 1] = high(lane->a[i]);
            c[row + (i >> 1) * 8][col + (i & 1)] = lane->c[i];
        }
        b[col][row] = low(lane->b0);
        b[col + 1][row] = high(lane->b0);
        b[col + 8][row] = low(lane->b1);
        b[col + 9][row] = high(lane->b1);
    }
    for (uint32_t row = 0; row < 16; row++)
        for (uint32_t k = 0; k < 16; k++)
            for (uint32_t col = 0; col < 8; col++)
                c[row][col] += a[row][k] * b[k][col];
    for (uint32_t l = 0; l < WARP; l++)
        for (uint32_t i = 0; i < 4; i++)
            warp[l].c[i] = c[l / 4 + (i >> 1) * 8][l % 4 * 2 + (i & 1)];
}
static void put_codes(int8_t to[4], uint32_t from) {
    memcpy(to, &from, 4);
}
/* PTX: as the other, but each register has columns 4 * (l % 4) and three more, and what lies to the
 * right or below begins 16 later. */
static void product_s8(struct lane *warp) {
    int8_t a[16][32], b[8][32]; /* b transposed */

    for (uint32_t l = 0; l < WARP; l++) {
        for (uint32_t i = 0; i < 4; i++)
            put_codes(&a[l / 4 + (i & 1) * 8][l % 4 * 4 + (i >> 1) * 16], warp[l].a[i]);
        put_codes(&b[l / 4][l % 4 * 4], warp[l].b0);
        put_codes(&b[l / 4][l % 4 * 4 + 16], warp[l].b1);
    }
    for (uint32_t l = 0; l < WARP; l++)
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t k = 0; k < 32; k++)
                warp[l].c_s8[i] += a[l / 4 + (i >> 1) * 8][k] * b[l % 4 * 2 + (i & 1)][k];
}
void lanes_meet(struct lane warp[WARP]) {
    switch (warp->meeting) {
    case SYNC_WARP: break;
    case SHUFFLE: shuffle(warp); break;
    case BALLOT: ballot(warp); break;
    case MATRIX: load_matrix(warp); break;
    case MATRIX_TRANSPOSED: load_matrix_transposed(warp); break;
    case PRODUCT: product(warp); break;
    case PRODUCT_S8: product_s8(warp); break;
    }
}

/* Different rows in the same 16-byte column of the 128 bytes that the banks give at once need one
 * pass each. */
static uint32_t passes(const struct lane rows[8]) {
    uint32_t n_passes = 1, n_in_column[8] = {0};

    for (uint32_t i = 0; i < 8; i++) {
        uintptr_t row = (uintptr_t)rows[i].row;
        bool is_again = false;

        for (uint32_t j = 0; j < i && !is_again; j++)
            is_again = (uintptr_t)rows[j].row == row;
        if (is_again) continue;
        n_in_column[row / 16 % 8]++;
        n_passes = MAX(n_passes, n_in_column[row / 16 % 8]);
    }
    return n_passes;
}
uint32_t lanes_conflicts(const struct lane warp[WARP]) {
    uint32_t n = 0;

    for (uint32_t m = 0; m < 4; m++)
        n += passes(&warp[m * 8]) - 1;
    return n;
}

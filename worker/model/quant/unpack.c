/* worker/model/quant/unpack.c - see unpack.h. */
#include "worker/model/quant/unpack.h"

#include <string.h>

#include "common/base/mem.h"

#define TILE_WORDS 16u /* of a row of words: a cache line is read once */

static uint32_t word_at(const uint8_t *packed, uint64_t i) {
    uint32_t w;

    memcpy(&w, packed + i * 4, sizeof(w)); /* the file's bytes, as all of a checkpoint */
    return w;
}

static void put_nibble(uint8_t *row, uint64_t k, uint32_t code) {
    if (k % 2) {
        row[k / 2] = (uint8_t)(row[k / 2] | code << 4);
    } else {
        row[k / 2] = (uint8_t)code; /* the last of an odd row leaves its neighbour 0 */
    }
}

static uint8_t field(uint32_t word, uint32_t bits, uint64_t i) {
    return (uint8_t)(word >> i * bits & ((1u << bits) - 1));
}

/* A code of 8 bits, or a zero beside such codes, with its offset of 128. */
static uint8_t centred(uint8_t code) {
    return code ^ 0x80u;
}

static int16_t zero_of(uint8_t code, uint32_t bits) {
    return (int16_t)(bits == 4 ? code : (int)code - 128);
}

/* --- compressed-tensors ---------------------------------------------------------------------- */
static void unpack_row4(uint8_t *to, const uint8_t *from, uint64_t k, const uint32_t *order) {
    if (!order) {
        memcpy(to, from, (k + 1) / 2);
        if (k % 2) to[k / 2] &= 15u;
    }
    for (uint64_t i = 0; order && i < k; i++)
        put_nibble(to, i, from[order[i] / 2] >> order[i] % 2 * 4 & 15u);
}

void unpack_rows(uint8_t *codes, const uint8_t *packed, uint32_t bits, uint64_t n, uint64_t k,
                 const uint32_t *order) {
    uint64_t pitch = CEIL_DIV(k * bits, (uint64_t)32) * 4;

    for (uint64_t r = 0; r < n; r++, packed += pitch) {
        if (bits == 4) unpack_row4(codes + r * ((k + 1) / 2), packed, k, order);
        for (uint64_t i = 0; bits == 8 && i < k; i++)
            codes[r * k + i] = centred(packed[order ? order[i] : i]);
    }
}

void unpack_rows_zeros(int16_t *zero, const uint8_t *packed, uint32_t bits, uint64_t n,
                       uint64_t groups) {
    uint64_t fields = 32 / bits;

    for (uint64_t r = 0; r < n; r++) {
        for (uint64_t g = 0; g < groups; g++)
            zero[r * groups + g] =
                zero_of(field(word_at(packed, r / fields * groups + g), bits, r % fields), bits);
    }
}

/* --- AWQ --------------------------------------------------------------------------------------*/
static const uint8_t awq_nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7}; /* of column j of eight */

#define AWQ_INPUTS 16u /* unpacked at once: eight bytes of each of eight rows */
#define LOW_HALVES 0x0F0F0F0Fu

/* Up to 16 inputs from k on, of the eight outputs of word column c. A byte of two words' low halves
 * put together has two inputs of one output; so has one of their high halves. */
static void unpack_awq_words(uint8_t *codes, const uint8_t *packed, uint64_t n, uint64_t k,
                             uint64_t n_k, uint64_t c) {
    static const uint8_t low_row[4] = {0, 4, 1, 5}, high_row[4] = {2, 6, 3, 7};
    uint64_t count = MIN(AWQ_INPUTS, n_k - k), pitch = (n_k + 1) / 2;
    uint8_t row[8][AWQ_INPUTS / 2];

    for (uint64_t i = 0; i < count; i += 2) {
        uint32_t even = word_at(packed, (k + i) * (n / 8) + c);
        uint32_t odd = i + 1 < count ? word_at(packed, (k + i + 1) * (n / 8) + c) : 0;
        uint32_t low = (even & LOW_HALVES) | (odd & LOW_HALVES) << 4;
        uint32_t high = (even >> 4 & LOW_HALVES) | (odd & ~LOW_HALVES);

        for (uint32_t b = 0; b < 4; b++) {
            row[low_row[b]][i / 2] = (uint8_t)(low >> 8 * b);
            row[high_row[b]][i / 2] = (uint8_t)(high >> 8 * b);
        }
    }
    for (uint64_t j = 0; j < 8; j++)
        memcpy(codes + (c * 8 + j) * pitch + k / 2, row[j], (count + 1) / 2);
}

void unpack_awq(uint8_t *codes, const uint8_t *packed, uint64_t n, uint64_t k) {
    for (uint64_t tile = 0; tile < n / 8; tile += TILE_WORDS) {
        for (uint64_t i = 0; i < k; i += AWQ_INPUTS) {
            for (uint64_t c = tile; c < MIN(tile + TILE_WORDS, n / 8); c++)
                unpack_awq_words(codes, packed, n, i, k, c);
        }
    }
}

void unpack_awq_zeros(int16_t *zero, const uint8_t *packed, uint64_t n, uint64_t groups) {
    for (uint64_t r = 0; r < n; r++) {
        for (uint64_t g = 0; g < groups; g++)
            zero[r * groups + g] =
                field(word_at(packed, g * (n / 8) + r / 8), 4, awq_nibble[r % 8]);
    }
}

/* --- GPTQ -------------------------------------------------------------------------------------*/
static void put_code(uint8_t *codes, uint32_t bits, uint64_t row, uint64_t k, uint64_t i,
                     uint8_t code) {
    if (bits == 4) {
        put_nibble(codes + row * ((k + 1) / 2), i, code);
    } else {
        codes[row * k + i] = centred(code);
    }
}

/* In their own order, a word's fields are four bytes of the row. */
static void transpose_words(uint8_t *codes, const uint8_t *packed, uint32_t bits, uint64_t n,
                            uint64_t words) {
    for (uint64_t tile = 0; tile < n; tile += TILE_WORDS) {
        for (uint64_t i = 0; i < words; i++) {
            for (uint64_t r = tile; r < MIN(tile + TILE_WORDS, n); r++) {
                uint32_t w = word_at(packed, i * n + r) ^ (bits == 8 ? 0x80808080u : 0);

                memcpy(codes + (r * words + i) * 4, &w, sizeof(w));
            }
        }
    }
}

void unpack_gptq(uint8_t *codes, const uint8_t *packed, uint32_t bits, uint64_t n, uint64_t k,
                 const uint32_t *order) {
    uint64_t fields = 32 / bits;

    if (!order && k % fields == 0) {
        transpose_words(codes, packed, bits, n, k / fields);
        return;
    }

    for (uint64_t tile = 0; tile < n; tile += TILE_WORDS) {
        for (uint64_t i = 0; i < k; i++) {
            uint64_t from = order ? order[i] : i;

            for (uint64_t r = tile; r < MIN(tile + TILE_WORDS, n); r++)
                put_code(codes, bits, r, k, i,
                         field(word_at(packed, from / fields * n + r), bits, from % fields));
        }
    }
}

uint64_t unpack_gptq_zeros(int16_t *zero, const uint8_t *packed, uint32_t bits, uint64_t n,
                           uint64_t groups, bool is_v1) {
    uint64_t fields = 32 / bits, n_wrapped = 0;
    uint32_t mask = (1u << bits) - 1;

    for (uint64_t r = 0; r < n; r++) {
        for (uint64_t g = 0; g < groups; g++) {
            uint32_t stored =
                field(word_at(packed, g * (n / fields) + r / fields), bits, r % fields);

            n_wrapped += is_v1 && stored == mask;
            zero[r * groups + g] = zero_of((uint8_t)((stored + is_v1) & mask), bits);
        }
    }
    return n_wrapped;
}

/* --- groups of inputs -------------------------------------------------------------------------*/
bool unpack_is_sorted(const uint8_t *group_of, uint64_t k, uint64_t group_size) {
    for (uint64_t i = 0; i < k; i++)
        if (word_at(group_of, i) != i / group_size) return false;
    return true;
}

enum status unpack_order(uint32_t *order, const uint8_t *group_of, uint64_t k, uint64_t group_size,
                         struct error *err) {
    uint64_t groups = CEIL_DIV(k, group_size);
    uint32_t *next = mem_try_zalloc(groups * sizeof(*next));
    enum status st = ST_OK;

    if (!next)
        return error_set(err, ST_NOMEM, "out of memory for the groups of %u inputs", (unsigned)k);
    for (uint64_t i = 0; i < k && st == ST_OK; i++) {
        uint32_t g = word_at(group_of, i);

        if (g >= groups || next[g] == MIN(group_size, k - g * group_size)) {
            st = error_set(err, ST_INVALID,
                           "input %llu is in group %d: there are %llu groups of %llu inputs",
                           (unsigned long long)i, (int)g, (unsigned long long)groups,
                           (unsigned long long)group_size);
        } else {
            order[g * group_size + next[g]++] = (uint32_t)i;
        }
    }
    mem_free(next);
    return st;
}

/* worker/model/quant/unpack.h - the bits of packed checkpoints, brought into the form of struct
 * backend_quant without rounding.
 *
 * A matrix is (n outputs, k inputs). Codes come out as DTYPE_U4, (n, ceil(k / 2)) bytes with the
 * even input in the low half, or as DTYPE_I8, (n, k). Eight-bit files hold code + 128, so both the
 * code and its zero lose 128 here. `order` (k) is where each column comes from, NULL: from its own
 * place. Words are 32 bits, little-endian, at any address. Follows the packages that write these
 * files: compressed-tensors 0.20, AutoAWQ 0.2.9, GPTQModel 7.7. Pure. */
#ifndef WORKER_MODEL_QUANT_UNPACK_H
#define WORKER_MODEL_QUANT_UNPACK_H

#include "common/base/base.h"
#include "common/base/status.h"

/* compressed-tensors: element i of a row at bits [i * bits, ...) of the row, rows padded to words.
 * bits: 4 or 8. */
void unpack_rows(uint8_t *codes, const uint8_t *packed, uint32_t bits, uint64_t n, uint64_t k,
                 const uint32_t *order);
/* Its zeros (ceil(n * bits / 32), groups), packed along n, to (n, groups). */
void unpack_rows_zeros(int16_t *zero, const uint8_t *packed, uint32_t bits, uint64_t n,
                       uint64_t groups);

/* AWQ "gemm": (k, n / 8) words; nibble i of a word is column 0 2 4 6 1 3 5 7 [i] of its eight. */
void unpack_awq(uint8_t *codes, const uint8_t *packed, uint64_t n, uint64_t k);
/* Its zeros (groups, n / 8), in the same interleave. */
void unpack_awq_zeros(int16_t *zero, const uint8_t *packed, uint64_t n, uint64_t groups);

/* GPTQ: (k * bits / 32, n) words, packed along k. bits: 4 or 8. */
void unpack_gptq(uint8_t *codes, const uint8_t *packed, uint32_t bits, uint64_t n, uint64_t k,
                 const uint32_t *order);
/* Its zeros (groups, n * bits / 32), packed along n. Files of version 1 store zero - 1: one is
 * added to each field by itself, without a carry, and fields that wrap to 0 are counted. */
uint64_t unpack_gptq_zeros(int16_t *zero, const uint8_t *packed, uint32_t bits, uint64_t n,
                           uint64_t groups, bool is_v1);

/* Are the inputs, from the group of each, in the order of groups already? */
bool unpack_is_sorted(const uint8_t *group_of, uint64_t k, uint64_t group_size);

/* The stable order of inputs by group. ST_INVALID when a group is not of group_size inputs (the
 * last may be shorter). */
MUST_USE enum status unpack_order(uint32_t *order, const uint8_t *group_of, uint64_t k,
                                  uint64_t group_size, struct error *err);

#endif

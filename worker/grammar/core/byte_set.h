/* worker/grammar/core/byte_set.h - a set of bytes, by value. */
#ifndef WORKER_GRAMMAR_CORE_BYTE_SET_H
#define WORKER_GRAMMAR_CORE_BYTE_SET_H

#include "common/base/base.h"

struct byte_set {
    uint64_t w[4];
};

static inline void byte_set_add(struct byte_set *s, uint8_t byte) {
    s->w[byte >> 6] |= UINT64_C(1) << (byte & 63);
}

static inline void byte_set_add_range(struct byte_set *s, uint8_t low, uint8_t high) {
    for (uint32_t b = low; b <= high; b++)
        byte_set_add(s, (uint8_t)b);
}

static inline bool byte_set_has(const struct byte_set *s, uint8_t byte) {
    return s->w[byte >> 6] >> (byte & 63) & 1;
}

static inline bool byte_set_is_empty(const struct byte_set *s) {
    return (s->w[0] | s->w[1] | s->w[2] | s->w[3]) == 0;
}

static inline uint32_t byte_set_count(const struct byte_set *s) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < 4; i++)
        n += (uint32_t)__builtin_popcountll(s->w[i]);
    return n;
}

/* The least byte of a set that is not empty. */
static inline uint8_t byte_set_least(const struct byte_set *s) {
    uint32_t i = 0;

    while (s->w[i] == 0)
        i++;
    return (uint8_t)(i * 64 + (uint32_t)__builtin_ctzll(s->w[i]));
}

static inline struct byte_set byte_set_intersection(struct byte_set a, struct byte_set b) {
    for (uint32_t i = 0; i < 4; i++)
        a.w[i] &= b.w[i];
    return a;
}

static inline struct byte_set byte_set_union(struct byte_set a, struct byte_set b) {
    for (uint32_t i = 0; i < 4; i++)
        a.w[i] |= b.w[i];
    return a;
}

#endif

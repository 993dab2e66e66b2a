/* router/routing/worker_mask.h - sets of workers as bits. A worker's id, 0 to 1023, comes from the
 * registry and is reused after the worker is gone. Bit w % 64 of word w / 64; the object that holds
 * a mask knows its number of words. Pure; any thread. */
#ifndef ROUTER_ROUTING_WORKER_MASK_H
#define ROUTER_ROUTING_WORKER_MASK_H

#include "common/base/base.h"

#define WORKERS_MAX       1024u
#define WORKER_MASK_WORDS (WORKERS_MAX / 64)
#define WORKER_NONE       UINT32_MAX

struct worker_mask {
    uint64_t words[WORKER_MASK_WORDS];
};

static inline bool worker_mask_has(const uint64_t *words, uint32_t w) {
    return (words[w / 64] >> (w % 64)) & 1;
}

static inline void worker_mask_add(uint64_t *words, uint32_t w) {
    words[w / 64] |= UINT64_C(1) << (w % 64);
}

static inline void worker_mask_drop(uint64_t *words, uint32_t w) {
    words[w / 64] &= ~(UINT64_C(1) << (w % 64));
}

static inline void worker_mask_set(uint64_t *words, uint32_t w, bool is_member) {
    words[w / 64] = (words[w / 64] & ~(UINT64_C(1) << (w % 64))) | (uint64_t)is_member << (w % 64);
}

/* Bits set. Baseline x86-64 has no instruction for it, and the compiler's own is a call. */
static inline uint32_t worker_mask_bits(uint64_t v) {
    v -= v >> 1 & UINT64_C(0x5555555555555555);
    v = (v & UINT64_C(0x3333333333333333)) + (v >> 2 & UINT64_C(0x3333333333333333));
    v = (v + (v >> 4)) & UINT64_C(0x0F0F0F0F0F0F0F0F);
    return (uint32_t)(v * UINT64_C(0x0101010101010101) >> 56);
}

static inline uint32_t worker_mask_count(const uint64_t *words, uint32_t n_words) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_words; i++)
        n += worker_mask_bits(words[i]);
    return n;
}

static inline bool worker_mask_is_empty(const uint64_t *words, uint32_t n_words) {
    uint64_t any = 0;

    for (uint32_t i = 0; i < n_words; i++)
        any |= words[i];
    return any == 0;
}

/* The smallest member >= w, or WORKER_NONE. */
static inline uint32_t worker_mask_next(const uint64_t *words, uint32_t n_words, uint32_t w) {
    uint32_t i = w / 64;
    uint64_t bits;

    if (i >= n_words) return WORKER_NONE;
    bits = words[i] & (~UINT64_C(0) << (w % 64));
    while (!bits) {
        if (++i >= n_words) return WORKER_NONE;
        bits = words[i];
    }
    return i * 64 + (uint32_t)__builtin_ctzll(bits);
}

/* Visits each member in ascending order. The body may drop the member that it visits. It is left by
 * return alone: a break would leave one word of the mask. */
#define WORKER_MASK_FOR_EACH(w, words, n_words)                                                    \
    for (uint32_t w##_word = 0, w; w##_word < (n_words); w##_word++)                               \
        for (uint64_t w##_rest = (words)[w##_word];                                                \
             w##_rest && (w = w##_word * 64 + (uint32_t)__builtin_ctzll(w##_rest), true);          \
             w##_rest &= w##_rest - 1)

#endif

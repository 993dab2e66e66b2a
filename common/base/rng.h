/* common/base/rng.h - random numbers, as a parameter.
 *
 * Modules take a `struct rng *`, so that tests can replay them. Two forms: a stream (xoshiro256**,
 * Blackman and Vigna) and a counter: rng_at(seed, counter) is a pure function, as sampling needs
 * it: a token's draw depends on the request's seed and the token's position alone, not on its
 * batch. */
#ifndef COMMON_BASE_RNG_H
#define COMMON_BASE_RNG_H

#include "common/base/base.h"

struct rng {
    uint64_t s[4];
};

/* One step of splitmix64: also a good mixer of a counter. */
static inline uint64_t rng_mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static inline void rng_seed(struct rng *r, uint64_t seed) {
    for (int i = 0; i < 4; i++)
        r->s[i] = seed = rng_mix(seed);
}

static inline uint64_t rng_u64(struct rng *r) {
    uint64_t *s = r->s, x = s[1] * 5, result = ((x << 7) | (x >> 57)) * 9, t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = (s[3] << 45) | (s[3] >> 19);
    return result;
}

/* Uniform in [0, n); n > 0. The bias is below 2^-32 for n < 2^32. */
static inline uint64_t rng_below(struct rng *r, uint64_t n) {
    return (uint64_t)(((unsigned __int128)rng_u64(r) * n) >> 64);
}

/* Uniform in [0, 1), 53 bits. */
static inline double rng_f64(struct rng *r) {
    return (double)(rng_u64(r) >> 11) * 0x1p-53;
}

/* The number at (seed, counter), without state. */
static inline uint64_t rng_at(uint64_t seed, uint64_t counter) {
    return rng_mix(rng_mix(seed) ^ (counter * 0xD1342543DE82EF95u + 0x2545F4914F6CDD1Du));
}

#endif

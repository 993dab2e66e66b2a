/* common/base/hash.h - the hashes of the house; the only file that knows xxHash and OpenSSL's
 * digests.
 *
 * Fast: XXH3, 64 bits for the router's approximate index (a collision misplaces a request), 128
 * bits under a secret key for the worker's KV cache (where tokens are compared as well, so that a
 * collision cannot serve another prompt's blocks). Portable: XXH3-128 canonical and SHA-256 for
 * the chains other engines compute. Pure; any thread, except that one sha256 belongs to one. */
#ifndef COMMON_BASE_HASH_H
#define COMMON_BASE_HASH_H

#include "common/base/base.h"

struct hash128 {
    uint64_t lo, hi;
};

uint64_t hash_64(const void *data, size_t n, uint64_t seed);
struct hash128 hash_128(const void *data, size_t n);
struct hash128 hash_128_seeded(const void *data, size_t n, uint64_t seed);
/* Copies n bytes, and gives hash_128 of what has arrived: nearly as fast as a copy alone. Another
 * process may write to `from` meanwhile. */
struct hash128 hash_128_copy(void *to, const void *from, size_t n);
struct hash128 hash_128_copy_avx2(void *to, const void *from, size_t n); /* hash_128_copy's */

/* Big-endian canonical form of a 128-bit XXH3 digest, as xxhash's reference prints it. */
void hash_128_canonical(struct hash128 h, uint8_t out[16]);

/* A secret for hash_keyed_128. Collisions cannot be searched for without `seed`. */
#define HASH_KEY_BYTES 192
struct hash_key {
    uint8_t secret[HASH_KEY_BYTES];
};

void hash_key_init(struct hash_key *key, const void *seed, size_t n);
struct hash128 hash_keyed_128(const struct hash_key *key, const void *data, size_t n);
/* Of the 32 bytes a, b: without a way through memory, which a chain would wait for at each link. */
struct hash128 hash_keyed_128_pair(const struct hash_key *key, struct hash128 a, struct hash128 b);

/* A key in some twenty instructions, no stronger than its seed: for a run of short hashes. */
void hash_key_from_seed(struct hash_key *key, uint64_t seed);
/* Of at most 240 bytes: beyond, XXH3 changes its way and is slow to start. 128 are its best. */
uint64_t hash_keyed_64(const struct hash_key *key, const void *data, size_t n);

#define SHA256_BYTES 32
struct sha256; /* a reusable context: fetching the digest costs more than a block of tokens */

struct sha256 *sha256_create(void);
void sha256_destroy(struct sha256 *ctx);
void sha256_begin(struct sha256 *ctx);
void sha256_add(struct sha256 *ctx, const void *data, size_t n);
void sha256_end(struct sha256 *ctx, uint8_t out[SHA256_BYTES]);

/* HMAC-SHA-256, for salts and for names that must not be guessed. */
void hash_hmac_sha256(const void *key, size_t key_n, const void *data, size_t n,
                      uint8_t out[SHA256_BYTES]);

/* Are the n bytes equal? In a time that does not depend on where they differ: for secrets. */
bool hash_equal(const void *a, const void *b, size_t n);

/* n random bytes from the system; aborts when there are none. */
void hash_random(void *out, size_t n);

#endif

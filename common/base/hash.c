/* common/base/hash.c - XXH3 inlined from its header, SHA-256 through OpenSSL's EVP. */
#include "common/base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "common/base/isa.h"
#include "common/base/mem.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t hash_64(const void *data, size_t n, uint64_t seed) {
    return XXH3_64bits_withSeed(data, n, seed);
}

struct hash128 hash_128(const void *data, size_t n) {
    XXH128_hash_t h = XXH3_128bits(data, n);

    return (struct hash128){h.low64, h.high64};
}

struct hash128 hash_128_seeded(const void *data, size_t n, uint64_t seed) {
    XXH128_hash_t h = XXH3_128bits_withSeed(data, n, seed);

    return (struct hash128){h.low64, h.high64};
}

struct hash128 hash_128_copy(void *to, const void *from, size_t n) {
#if defined(__x86_64__)
    if (isa_has_avx2()) return hash_128_copy_avx2(to, from, n);
#endif
    memcpy(to, from, n);
    return hash_128(to, n);
}

void hash_128_canonical(struct hash128 h, uint8_t out[16]) {
    for (int i = 0; i < 8; i++) {
        out[i] = (uint8_t)(h.hi >> (56 - 8 * i));
        out[8 + i] = (uint8_t)(h.lo >> (56 - 8 * i));
    }
}

void hash_key_init(struct hash_key *key, const void *seed, size_t n) {
    uint8_t block[SHA256_BYTES + 1];

    for (size_t i = 0; i < HASH_KEY_BYTES / SHA256_BYTES; i++) {
        uint8_t counter = (uint8_t)i;

        hash_hmac_sha256(seed, n, &counter, 1, block);
        memcpy(key->secret + i * SHA256_BYTES, block, SHA256_BYTES);
    }
}

struct hash128 hash_keyed_128(const struct hash_key *key, const void *data, size_t n) {
    XXH128_hash_t h = XXH3_128bits_withSecret(data, n, key->secret, sizeof(key->secret));

    return (struct hash128){h.low64, h.high64};
}

struct hash128 hash_keyed_128_pair(const struct hash_key *key, struct hash128 a, struct hash128 b) {
    uint64_t words[4] = {a.lo, a.hi, b.lo, b.hi}; /* the length is known: this stays in registers */

    return hash_keyed_128(key, words, sizeof(words));
}

void hash_key_from_seed(struct hash_key *key, uint64_t seed) {
    _Static_assert(HASH_KEY_BYTES == XXH3_SECRET_DEFAULT_SIZE, "the secret that XXH3 derives");
    XXH3_generateSecret_fromSeed(key->secret, seed);
}

uint64_t hash_keyed_64(const struct hash_key *key, const void *data, size_t n) {
    /* A length that the compiler knows leaves the arithmetic alone: no choice between ways. */
    if (LIKELY(n == 128))
        return XXH3_64bits_withSecret(data, 128, key->secret, sizeof(key->secret));
    return XXH3_64bits_withSecret(data, n, key->secret, sizeof(key->secret));
}

struct sha256 {
    EVP_MD_CTX *ctx;
    EVP_MD *md;
};

/* OpenSSL fails here only when it is broken or out of memory. */
static void require(bool ok, const char *what) {
    if (LIKELY(ok)) return;
    fprintf(stderr, "incipit: OpenSSL failed in %s\n", what);
    abort();
}

struct sha256 *sha256_create(void) {
    struct sha256 *s = mem_zalloc(sizeof(*s));

    s->md = EVP_MD_fetch(NULL, "SHA256", NULL);
    s->ctx = EVP_MD_CTX_new();
    require(s->md && s->ctx, "EVP_MD_fetch(SHA256)");
    return s;
}

void sha256_destroy(struct sha256 *s) {
    if (!s) return;
    EVP_MD_CTX_free(s->ctx);
    EVP_MD_free(s->md);
    mem_free(s);
}

void sha256_begin(struct sha256 *s) {
    require(EVP_DigestInit_ex(s->ctx, s->md, NULL) == 1, "EVP_DigestInit_ex");
}

void sha256_add(struct sha256 *s, const void *data, size_t n) {
    require(EVP_DigestUpdate(s->ctx, data, n) == 1, "EVP_DigestUpdate");
}

void sha256_end(struct sha256 *s, uint8_t out[SHA256_BYTES]) {
    require(EVP_DigestFinal_ex(s->ctx, out, NULL) == 1, "EVP_DigestFinal_ex");
}

void hash_hmac_sha256(const void *key, size_t key_n, const void *data, size_t n,
                      uint8_t out[SHA256_BYTES]) {
    unsigned len = 0;

    require(HMAC(EVP_sha256(), key ? key : "", (int)key_n, data, n, out, &len) != NULL, "HMAC");
}

bool hash_equal(const void *a, const void *b, size_t n) {
    return CRYPTO_memcmp(a, b, n) == 0;
}

void hash_random(void *out, size_t n) {
    require(RAND_bytes(out, (int)n) == 1, "RAND_bytes");
}

/* common/net/cipher.h - authenticated encryption, AES-256-GCM, and the keys for it, by
 * HKDF-SHA-256; the only file that knows OpenSSL's ciphers.
 *
 * A message may lie in several parts, in one order for both directions; so may what is only
 * authenticated. A nonce must never be used twice under one key: with random nonces a key is good
 * for 2^32 messages. A cipher belongs to one thread; OpenSSL's own failures, which have no cause
 * but a broken library or no memory, abort. */
#ifndef COMMON_NET_CIPHER_H
#define COMMON_NET_CIPHER_H

#include "common/base/base.h"
#include "common/base/buf.h"

#define CIPHER_KEY_BYTES   32
#define CIPHER_NONCE_BYTES 12
#define CIPHER_TAG_BYTES   16

struct cipher;

struct cipher *cipher_create(void);
void cipher_destroy(struct cipher *c); /* NULL is fine */

struct cipher_part {
    const void *in;
    void *out; /* n bytes; may be `in`, may not overlap it otherwise */
    size_t n;
};

/* Encrypts the parts, authenticates them and `aad`, and writes the tag. */
void cipher_seal(struct cipher *c, const uint8_t key[CIPHER_KEY_BYTES],
                 const uint8_t nonce[CIPHER_NONCE_BYTES], const struct str *aad, size_t n_aad,
                 const struct cipher_part *parts, size_t n_parts, uint8_t tag[CIPHER_TAG_BYTES]);

/* Decrypts the parts. False: something was altered, or the key is another; what the parts' `out`
 * then holds is worthless, and the caller erases it. */
MUST_USE bool cipher_open(struct cipher *c, const uint8_t key[CIPHER_KEY_BYTES],
                          const uint8_t nonce[CIPHER_NONCE_BYTES], const struct str *aad,
                          size_t n_aad, const struct cipher_part *parts, size_t n_parts,
                          const uint8_t tag[CIPHER_TAG_BYTES]);

/* A key of its own for each `info`, from one secret (RFC 5869, without salt). */
void cipher_derive_key(const void *secret, size_t secret_n, const void *info, size_t info_n,
                       uint8_t out[CIPHER_KEY_BYTES]);

/* Overwrites n bytes in a way that the compiler keeps: for keys. */
void cipher_erase(void *secret, size_t n);

#endif

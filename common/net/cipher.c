/* common/net/cipher.c - OpenSSL's EVP: one context, given another key for each message. */
#include "common/net/cipher.h"

#include <stdio.h>
#include <stdlib.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include "common/base/mem.h"

struct cipher {
    EVP_CIPHER *gcm;
    EVP_CIPHER_CTX *ctx;
};

static void require(bool ok, const char *what) {
    if (LIKELY(ok)) return;
    fprintf(stderr, "incipit: OpenSSL failed in %s\n", what);
    abort();
}

struct cipher *cipher_create(void) {
    struct cipher *c = mem_zalloc(sizeof(*c));

    c->gcm = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
    c->ctx = EVP_CIPHER_CTX_new();
    require(c->gcm && c->ctx, "EVP_CIPHER_fetch(AES-256-GCM)");
    return c;
}

void cipher_destroy(struct cipher *c) {
    if (!c) return;
    EVP_CIPHER_CTX_free(c->ctx); /* erases the key */
    EVP_CIPHER_free(c->gcm);
    mem_free(c);
}

static void begin(struct cipher *c, bool is_sealing, const uint8_t *key, const uint8_t *nonce,
                  const struct str *aad, size_t n_aad) {
    int n;

    require(EVP_CipherInit_ex2(c->ctx, c->gcm, key, nonce, is_sealing, NULL) == 1,
            "EVP_CipherInit_ex2");
    for (size_t i = 0; i < n_aad; i++)
        require(EVP_CipherUpdate(c->ctx, NULL, &n, (const uint8_t *)aad[i].ptr, (int)aad[i].len) ==
                    1,
                "EVP_CipherUpdate");
}

/* GCM is a stream: as many bytes come out of each part as went in. */
static void run(struct cipher *c, const struct cipher_part *parts, size_t n_parts) {
    int n;

    for (size_t i = 0; i < n_parts; i++)
        require(EVP_CipherUpdate(c->ctx, parts[i].out, &n, parts[i].in, (int)parts[i].n) == 1 &&
                    n == (int)parts[i].n,
                "EVP_CipherUpdate");
}

void cipher_seal(struct cipher *c, const uint8_t key[CIPHER_KEY_BYTES],
                 const uint8_t nonce[CIPHER_NONCE_BYTES], const struct str *aad, size_t n_aad,
                 const struct cipher_part *parts, size_t n_parts, uint8_t tag[CIPHER_TAG_BYTES]) {
    uint8_t rest[EVP_MAX_BLOCK_LENGTH];
    int n;

    begin(c, true, key, nonce, aad, n_aad);
    run(c, parts, n_parts);
    require(EVP_CipherFinal_ex(c->ctx, rest, &n) == 1, "EVP_CipherFinal_ex");
    require(EVP_CIPHER_CTX_ctrl(c->ctx, EVP_CTRL_AEAD_GET_TAG, CIPHER_TAG_BYTES, tag) == 1,
            "EVP_CTRL_AEAD_GET_TAG");
}

bool cipher_open(struct cipher *c, const uint8_t key[CIPHER_KEY_BYTES],
                 const uint8_t nonce[CIPHER_NONCE_BYTES], const struct str *aad, size_t n_aad,
                 const struct cipher_part *parts, size_t n_parts,
                 const uint8_t tag[CIPHER_TAG_BYTES]) {
    uint8_t rest[EVP_MAX_BLOCK_LENGTH], expected[CIPHER_TAG_BYTES];
    int n;

    for (int i = 0; i < CIPHER_TAG_BYTES; i++)
        expected[i] = tag[i];
    begin(c, false, key, nonce, aad, n_aad);
    run(c, parts, n_parts);
    require(EVP_CIPHER_CTX_ctrl(c->ctx, EVP_CTRL_AEAD_SET_TAG, CIPHER_TAG_BYTES, expected) == 1,
            "EVP_CTRL_AEAD_SET_TAG");
    return EVP_CipherFinal_ex(c->ctx, rest, &n) == 1;
}

void cipher_derive_key(const void *secret, size_t secret_n, const void *info, size_t info_n,
                       uint8_t out[CIPHER_KEY_BYTES]) {
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
    char digest[] = "SHA256";
    /* The parameters' types lack const; nothing is written through them. */
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)(uintptr_t)secret, secret_n),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)(uintptr_t)info, info_n),
        OSSL_PARAM_construct_end(),
    };

    require(ctx && EVP_KDF_derive(ctx, out, CIPHER_KEY_BYTES, params) == 1, "EVP_KDF_derive");
    EVP_KDF_CTX_free(ctx);
    EVP_KDF_free(kdf);
}

void cipher_erase(void *secret, size_t n) {
    OPENSSL_cleanse(secret, n);
}

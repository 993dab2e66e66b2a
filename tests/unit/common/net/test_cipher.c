/* tests/unit/common/net/test_cipher.c - published vectors; altered messages. */
#include <string.h>

#include "common/net/cipher.h"
#include "tests/support/cm.h"

static void from_hex(const char *hex, uint8_t *out) {
    for (size_t i = 0; hex[2 * i]; i++)
        out[i] = (uint8_t)(str_hex_value((unsigned char)hex[2 * i]) << 4 |
                           str_hex_value((unsigned char)hex[2 * i + 1]));
}

/* Test case 16 of McGrew and Viega, The Galois/Counter Mode of Operation, whole and in parts. */
static void gcm_is_gcm(void **state) {
    struct cipher *c = cipher_create();
    uint8_t key[32], nonce[12], plain[60], aad[20], wanted[60], tag[16], wanted_tag[16], out[60];

    (void)state;
    from_hex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308", key);
    from_hex("cafebabefacedbaddecaf888", nonce);
    from_hex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e"
        "2449a6b525b16aedf5aa0de657ba637b39",
        plain);
    from_hex("feedfacedeadbeeffeedfacedeadbeefabaddad2", aad);
    from_hex(
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b"
        "1056828838c5f61e6393ba7a0abcc9f662",
        wanted);
    from_hex("76fc6ece0f4e1768cddf8853bb2d551b", wanted_tag);
    for (size_t cut = 0; cut < sizeof(plain); cut += 17) {
        struct str aads[] = {{(char *)aad, cut / 4}, {(char *)aad + cut / 4, 20 - cut / 4}};
        struct cipher_part there[] = {{plain, out, cut}, {plain + cut, out + cut, 60 - cut}};
        struct cipher_part back[] = {{out, out, 60}};

        cipher_seal(c, key, nonce, aads, 2, there, 2, tag);
        assert_memory_equal(out, wanted, 60);
        assert_memory_equal(tag, wanted_tag, 16);
        assert_true(cipher_open(c, key, nonce, aads, 2, back, 1, tag));
        assert_memory_equal(out, plain, 60);
    }
    cipher_destroy(c);
    cipher_destroy(NULL);
}

static void an_altered_message_is_refused(void **state) {
    struct cipher *c = cipher_create();
    uint8_t m[4][64] = {{1}, {2}, {3}, {4}}, tag[16]; /* key, nonce, aad, message */
    struct str aad = {(char *)m[2], 20};
    struct cipher_part part = {m[3], m[3], 40};
    size_t lengths[] = {32, 12, 20, 40};
    uint8_t sealed[64], out[64];

    (void)state;
    cipher_seal(c, m[0], m[1], &aad, 1, &part, 1, tag);
    memcpy(sealed, m[3], sizeof(sealed));
    for (int which = 0; which < 5; which++) {
        uint8_t *at = which < 4 ? m[which] : tag;

        for (size_t i = 0; i < (which < 4 ? lengths[which] : 16); i++) {
            at[i] ^= 0x10;
            part = (struct cipher_part){m[3], out, 40};
            assert_false(cipher_open(c, m[0], m[1], &aad, 1, &part, 1, tag));
            at[i] ^= 0x10;
        }
    }
    assert_memory_equal(m[3], sealed, 40);
    assert_true(cipher_open(c, m[0], m[1], &aad, 1, &part, 1, tag));
    assert_int_equal(out[0], 4);
    cipher_destroy(c);
}

/* RFC 5869, A.3: no salt, no info. */
static void hkdf_is_hkdf(void **state) {
    uint8_t secret[22], wanted[32], key[32], other[32];

    (void)state;
    memset(secret, 0x0b, sizeof(secret));
    from_hex("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d", wanted);
    cipher_derive_key(secret, sizeof(secret), "", 0, key);
    assert_memory_equal(key, wanted, 32);
    cipher_derive_key(secret, sizeof(secret), "a", 1, other);
    assert_memory_not_equal(key, other, 32);
    cipher_erase(key, sizeof(key));
    assert_memory_equal(key, ((uint8_t[32]){0}), 32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gcm_is_gcm),
        cmocka_unit_test(an_altered_message_is_refused),
        cmocka_unit_test(hkdf_is_hkdf),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

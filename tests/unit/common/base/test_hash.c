/* tests/unit/common/base/test_hash.c - published vectors, so that chains agree with other
 * engines'. */
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "tests/support/cm.h"

static const char *hex(const void *bytes, size_t n) {
    static char text[2 * 64 + 1];

    for (size_t i = 0; i < n; i++) {
        snprintf(text + 2 * i, 3, "%02x", ((const unsigned char *)bytes)[i]);
    }
    return text;
}

static const char *sha256_hex(struct sha256 *ctx, const char *data, size_t n) {
    uint8_t digest[SHA256_BYTES];

    sha256_begin(ctx);
    sha256_add(ctx, data, n);
    sha256_end(ctx, digest);
    return hex(digest, sizeof(digest));
}

static void sha256_is_sha256(void **state) {
    struct sha256 *ctx = sha256_create();

    (void)state;
    for (int again = 0; again < 2; again++) { /* the context is reusable */
        assert_string_equal(sha256_hex(ctx, "", 0),
                            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_string_equal(sha256_hex(ctx, "abc", 3),
                            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
    /* The root of vLLM's sha256_cbor chain: CBOR of the text "vllm-none-hash". */
    assert_string_equal(sha256_hex(ctx, "\x6Evllm-none-hash", 15),
                        "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0");
    sha256_destroy(ctx);
    sha256_destroy(NULL);
}

static void sha256_in_pieces_is_the_same(void **state) {
    struct sha256 *ctx = sha256_create();
    uint8_t whole[SHA256_BYTES], pieces[SHA256_BYTES];
    char data[1000];

    (void)state;
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (char)(i * 7);
    sha256_begin(ctx);
    sha256_add(ctx, data, sizeof(data));
    sha256_end(ctx, whole);
    sha256_begin(ctx);
    for (size_t i = 0; i < sizeof(data); i += 25)
        sha256_add(ctx, data + i, 25);
    sha256_end(ctx, pieces);
    assert_memory_equal(whole, pieces, SHA256_BYTES);
    sha256_destroy(ctx);
}

static void hmac_is_rfc_4231(void **state) {
    uint8_t out[SHA256_BYTES];

    (void)state;
    hash_hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, out);
    assert_string_equal(hex(out, sizeof(out)),
                        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    hash_hmac_sha256(NULL, 0, "", 0, out); /* an empty key is a key */
    assert_string_equal(hex(out, sizeof(out)),
                        "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

static const char *xxh128_hex(const void *data, size_t n) {
    uint8_t out[16];

    hash_128_canonical(hash_128(data, n), out);
    return hex(out, sizeof(out));
}

static void xxh3_is_xxh3(void **state) {
    /* vLLM's xxhash_cbor chain: root of seed "0", then the block [1, 2, 3, 4] under it. */
    uint8_t block[] = {0x83, 0x50, [18] = 0x84, 1, 2, 3, 4, 0xF6};

    (void)state;
    assert_true(hash_64("", 0, 0) == 0x2D06800538D394C2u);
    assert_string_equal(xxh128_hex("", 0), "99aa06d3014798d86001c324468d497f");
    assert_string_equal(xxh128_hex("\x61\x30", 2), "1ebe36576dcb573f26b99533a20aaeca");
    hash_128_canonical(hash_128("\x61\x30", 2), block + 2);
    assert_string_equal(xxh128_hex(block, sizeof(block)), "0a8577df5ee3430515a8cc1f6e3ac52e");
}

static void a_copy_is_hashed_as_it_arrived(void **state) {
    static const size_t sizes[] = {0, 1, 16, 240, 241, 16383, 16384, 16385, 100001};
    static uint8_t from[100001], to[100002];

    (void)state;
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (uint8_t)(i * 31 + i / 251);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct hash128 copied, is;

        memset(to, 0xee, sizeof(to));
        copied = hash_128_copy(to, from, sizes[i]);
        is = hash_128(from, sizes[i]);
        assert_memory_equal(&copied, &is, sizeof(is));
        assert_memory_equal(to, from, sizes[i]);
        assert_int_equal(to[sizes[i]], 0xee);
    }
}

static void a_seed_changes_everything(void **state) {
    struct hash_key key;
    uint8_t data[128];

    (void)state;
    assert_true(hash_64("abc", 3, 1) != hash_64("abc", 3, 2));
    assert_true(hash_64("abc", 3, 1) == hash_64("abc", 3, 1));
    assert_true(hash_64("abc", 3, 1) != hash_64("abd", 3, 1));
    hash_key_from_seed(&key, 42); /* 17 to 128 bytes: XXH3 with that seed */
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 7);
    for (size_t n = 17; n <= sizeof(data); n++)
        assert_true(hash_keyed_64(&key, data, n) == hash_64(data, n, 42));
    assert_true(hash_keyed_64(&key, "abc", 3) != hash_keyed_64(&key, "abd", 3));
}

static void a_key_decides_the_keyed_hash(void **state) {
    struct hash_key one, same, other;
    struct hash128 a, b, c;
    char data[300];

    (void)state;
    memset(data, 'x', sizeof(data));
    hash_key_init(&one, "seed", 4);
    hash_key_init(&same, "seed", 4);
    hash_key_init(&other, "Seed", 4);
    assert_memory_equal(&one, &same, sizeof(one));
    for (size_t n = 0; n <= sizeof(data); n += 20) { /* XXH3 takes other paths by length */
        a = hash_keyed_128(&one, data, n);
        b = hash_keyed_128(&same, data, n);
        c = hash_keyed_128(&other, data, n);
        assert_true(a.lo == b.lo && a.hi == b.hi);
        assert_true(a.lo != c.lo && a.hi != c.hi);
    }
}

static void a_pair_is_its_bytes(void **state) {
    struct hash128 ab[2] = {{1, 2}, {3, ~0ull}}, pair, bytes;
    struct hash_key key;

    (void)state;
    hash_key_init(&key, "seed", 4);
    pair = hash_keyed_128_pair(&key, ab[0], ab[1]);
    bytes = hash_keyed_128(&key, ab, sizeof(ab));
    assert_true(pair.lo == bytes.lo && pair.hi == bytes.hi);
}

static void random_bytes_are_not_twice_the_same(void **state) {
    uint8_t a[32] = {0}, b[32] = {0};

    (void)state;
    hash_random(a, sizeof(a));
    hash_random(b, sizeof(b));
    assert_memory_not_equal(a, b, sizeof(a));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_is_sha256),
        cmocka_unit_test(sha256_in_pieces_is_the_same),
        cmocka_unit_test(hmac_is_rfc_4231),
        cmocka_unit_test(xxh3_is_xxh3),
        cmocka_unit_test(a_copy_is_hashed_as_it_arrived),
        cmocka_unit_test(a_seed_changes_everything),
        cmocka_unit_test(a_key_decides_the_keyed_hash),
        cmocka_unit_test(a_pair_is_its_bytes),
        cmocka_unit_test(random_bytes_are_not_twice_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

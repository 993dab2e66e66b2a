/* tests/unit/worker/kv/block/test_block_hash.c - vectors, extra keys, and what a chain means. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cm.h"
#include "worker/kv/block/block_hash.h"

static const char *hex(const struct block_hash *h, size_t n) {
    static char text[4][2 * BLOCK_HASH_BYTES + 1];
    static unsigned next;
    char *out = text[next++ % 4];

    for (size_t i = 0; i < n; i++)
        sprintf(out + 2 * i, "%02x", h->bytes[i]);
    return out;
}

static struct block_hasher *make(enum block_hash_algo algo, uint32_t block_size, struct str seed) {
    struct block_hasher_config config = {.algo = algo, .block_size = block_size, .seed = seed};

    return block_hasher_create(&config);
}

static struct block_hash next_block(struct block_hasher *h, struct block_hash parent,
                                    const uint32_t *tokens) {
    struct block_hash out;

    block_hasher_next(h, &parent, tokens, NULL, 0, &out);
    return out;
}

/* The first block of 16 tokens 1..16 under sha256_cbor with these extra keys. */
static const char *first_block_with(const struct block_extras *extras) {
    struct block_hasher *h = make(BLOCK_HASH_SHA256_CBOR, 16, STR_NULL);
    static uint8_t extra[BLOCK_EXTRAS_MAX_BYTES];
    struct block_hash root = *block_hasher_root(h), out;
    uint32_t tokens[16], cursor = 0;
    size_t n = block_extras_encode(extras, 0, 16, &cursor, extra);

    for (uint32_t i = 0; i < 16; i++)
        tokens[i] = i + 1;
    block_hasher_next(h, &root, tokens, extra, n, &out);
    block_hasher_destroy(h);
    return hex(&out, 32);
}

static void sha256_cbor_matches_published_vectors(void **state) {
    struct block_hasher *h = make(BLOCK_HASH_SHA256_CBOR, 4, STR_NULL);
    const uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct block_hash x = *block_hasher_root(h);

    (void)state;
    assert_string_equal(hex(&x, 32),
                        "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0");
    x = next_block(h, x, tokens);
    assert_string_equal(hex(&x, 32),
                        "58d0879dff3800f65f8c5fd449d73048c0f7699dd238a03b84b146b151d55111");
    x = next_block(h, x, tokens + 4);
    assert_string_equal(hex(&x, 32),
                        "e1bc29393a2da9fd798f35ff04d215f846aee6df4b803ce3d43b57df56b58fb1");
    block_hasher_destroy(h);
}

static void sha256_cbor_chain_of_sixteens(void **state) {
    static const char *want[3] = {
        "cd7c51bc5a8fc8643f383a2b9e01522fba7473c669e9270c7b0bf7bf7fd01682",
        "2533ea50426b36e9e4d68296cac6bce8cf602e46957d0fe40b368b33d87bf3bf",
        "c7e6bd05b0485123bde5709175e3f6d9accbc05c10c9742a96f37f6bfe25db82",
    };
    struct block_hasher *h = make(BLOCK_HASH_SHA256_CBOR, 16, STR_NULL);
    struct block_hash x = *block_hasher_root(h);
    uint32_t tokens[48];

    (void)state;
    for (uint32_t i = 0; i < 48; i++)
        tokens[i] = i + 1;
    for (int i = 0; i < 3; i++) {
        x = next_block(h, x, tokens + 16 * i);
        assert_string_equal(hex(&x, 32), want[i]);
    }
    block_hasher_destroy(h);
}

static void sha256_cbor_with_extra_keys(void **state) {
    struct block_mm_item ahead = {STR("aaa"), 11, 5}, behind = {STR("aaa"), 0, 5};
    static uint8_t extra[BLOCK_EXTRAS_MAX_BYTES];
    struct block_hasher *h = make(BLOCK_HASH_SHA256_CBOR, 16, STR_NULL);
    struct block_hash root = *block_hasher_root(h), out;
    uint32_t tokens[16], cursor = 0;
    size_t n;

    (void)state;
    assert_string_equal(first_block_with(&(struct block_extras){.cache_salt = STR("salt1")}),
                        "f95f663a74e28f2ca73b8c89685f3e1e6c5d9581a6afa76b8251ecb3c4792ccc");
    assert_string_equal(first_block_with(&(struct block_extras){.lora = STR("ad1")}),
                        "c5990238b1ab5bcf9e96811868deff819687b0a21d3c3f2de54bbd92b9351817");
    assert_string_equal(first_block_with(&(struct block_extras){.items = &ahead, .n_items = 1}),
                        "6bd9164788eba6bb8612bf083045e4c1ee5e2fecef404789693d2da226319637");
    /* Five tokens before the block began: -5. The vector takes the root as parent all the same. */
    behind.n_tokens = 10;
    n = block_extras_encode(&(struct block_extras){.items = &behind, .n_items = 1}, 5, 21, &cursor,
                            extra);
    for (uint32_t i = 0; i < 16; i++)
        tokens[i] = i + 1;
    block_hasher_next(h, &root, tokens, extra, n, &out);
    assert_string_equal(hex(&out, 32),
                        "975fd797b27290a260a2755d63348c41c5d69f503215abefdfabaa5f3ec54efc");
    block_hasher_destroy(h);
}

static void sha256_cbor_at_the_edges_of_number_widths(void **state) {
    const uint32_t tokens[8] = {0, 23, 24, 255, 256, 65535, 65536, 151935};
    struct block_hasher *h = make(BLOCK_HASH_SHA256_CBOR, 8, STR_NULL);
    struct block_hash x = next_block(h, *block_hasher_root(h), tokens);

    (void)state;
    assert_string_equal(hex(&x, 32),
                        "ef276aae1a14ee8b4fdad59c6a4b38f8b978887e064e64ad5083fd958190c1da");
    block_hasher_destroy(h);
}

static void roots_follow_the_seed(void **state) {
    static const struct {
        struct str seed;
        const char *root;
    } vectors[] = {
        {{"0", 1}, "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"},
        {{"42", 2}, "9fa6eb003f14425eb9c8e6baacfbcaab26257357b829c7bfa74ffcc4f31c1780"},
        {{"", 0}, "8d33f520a3c4cef80d2453aef81b612bfe1cb44c8b2025630ad38662763f13d3"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(vectors); i++) {
        struct block_hasher *h = make(BLOCK_HASH_SHA256_CBOR, 4, vectors[i].seed);
        struct block_hash root = *block_hasher_root(h);

        assert_string_equal(hex(&root, 32), vectors[i].root);
        block_hasher_destroy(h);
    }
}

/* Quantised caches: equal tokens, other KV. Without a kind, hashes are those of the seed alone. */
static void blocks_of_another_kind_have_other_hashes(void **state) {
    static const char *const kinds[] = {"", "fp8_e4m3.1", "int8.1", "int8.2"};
    const uint32_t tokens[4] = {1, 2, 3, 4};

    (void)state;
    for (int algo = BLOCK_HASH_XXH3_128; algo <= BLOCK_HASH_XXHASH_CBOR; algo++) {
        struct block_hash of[ARRAY_LEN(kinds)], plain;
        struct block_hasher *h = make(algo, 4, STR("seed+int8.1"));

        plain = next_block(h, *block_hasher_root(h), tokens);
        block_hasher_destroy(h);
        for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
            h = block_hasher_create(&(struct block_hasher_config){
                .algo = algo, .block_size = 4, .seed = STR("seed"), .kind = str_of(kinds[i])});
            of[i] = next_block(h, *block_hasher_root(h), tokens);
            block_hasher_destroy(h);
            for (size_t j = 0; j < i; j++)
                assert_memory_not_equal(&of[i], &of[j], sizeof(of[i]));
        }
        assert_memory_equal(&of[2], &plain, sizeof(plain)); /* the rule for indexers outside */
        h = make(algo, 4, STR("seed"));
        plain = next_block(h, *block_hasher_root(h), tokens);
        assert_memory_equal(&of[0], &plain, sizeof(plain));
        block_hasher_destroy(h);
    }
}

static void xxhash_cbor_matches_published_vectors(void **state) {
    struct block_hasher *h = make(BLOCK_HASH_XXHASH_CBOR, 4, STR("0"));
    const uint32_t tokens[4] = {1, 2, 3, 4};
    struct block_hash x = *block_hasher_root(h);

    (void)state;
    assert_string_equal(hex(&x, 16), "1ebe36576dcb573f26b99533a20aaeca");
    x = next_block(h, x, tokens);
    assert_string_equal(hex(&x, 16), "0a8577df5ee3430515a8cc1f6e3ac52e");
    assert_string_equal(hex(&x, 32), "0a8577df5ee3430515a8cc1f6e3ac52e"
                                     "00000000000000000000000000000000");
    block_hasher_destroy(h);
}

static void xxh3_128_depends_on_key_parent_tokens_and_extras(void **state) {
    struct block_hasher *a = make(BLOCK_HASH_XXH3_128, 4, STR("key a"));
    struct block_hasher *b = make(BLOCK_HASH_XXH3_128, 4, STR("key b"));
    struct block_hasher *same = make(BLOCK_HASH_XXH3_128, 4, STR("key a"));
    const uint32_t tokens[2][4] = {{1, 2, 3, 4}, {1, 2, 3, 5}};
    struct block_hash root = *block_hasher_root(a), x, y, z;
    const uint8_t extra[3] = {0x81, 0x61, 'x'};

    (void)state;
    x = next_block(a, root, tokens[0]);
    y = next_block(same, root, tokens[0]);
    assert_memory_equal(&x, &y, sizeof(x));
    y = next_block(b, root, tokens[0]);
    assert_memory_not_equal(&x, &y, sizeof(x));
    y = next_block(a, root, tokens[1]);
    assert_memory_not_equal(&x, &y, sizeof(x));
    z = next_block(a, x, tokens[0]);
    assert_memory_not_equal(&x, &z, sizeof(x));
    block_hasher_next(a, &root, tokens[0], extra, sizeof(extra), &z);
    assert_memory_not_equal(&x, &z, sizeof(x));
    block_hasher_destroy(a);
    block_hasher_destroy(b);
    block_hasher_destroy(same);
}

static void without_a_seed_fast_hashes_are_private_to_the_process(void **state) {
    static const enum block_hash_algo algos[] = {BLOCK_HASH_XXH3_128, BLOCK_HASH_XXHASH_CBOR};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(algos); i++) {
        struct block_hasher *a = make(algos[i], 4, STR_NULL), *b = make(algos[i], 4, STR_NULL);
        struct block_hash x = *block_hasher_root(a), y = *block_hasher_root(b);

        assert_memory_not_equal(&x, &y, sizeof(x));
        block_hasher_destroy(a);
        block_hasher_destroy(b);
    }
}

static void truncation_keeps_the_low_bits_only(void **state) {
    struct block_hasher_config config = {
        .algo = BLOCK_HASH_SHA256_CBOR, .block_size = 1, .truncate_bits = 3};
    struct block_hasher *h = block_hasher_create(&config);
    struct block_hash x = *block_hasher_root(h), zero = {0};
    uint32_t seen = 0;

    (void)state;
    for (uint32_t token = 0; token < 200; token++) {
        x = next_block(h, x, &token);
        assert_true(x.bytes[0] < 8);
        assert_memory_equal(x.bytes + 1, zero.bytes, BLOCK_HASH_BYTES - 1);
        seen |= 1u << x.bytes[0];
    }
    assert_int_equal(seen, 0xff);
    block_hasher_destroy(h);
}

static void extras_are_checked_against_their_limit_and_order(void **state) {
    char *long_text = calloc(1, BLOCK_EXTRAS_MAX_BYTES);
    struct block_mm_item items[2] = {{STR("b"), 8, 2}, {STR("a"), 4, 2}};
    struct error err = {0};

    (void)state;
    memset(long_text, 'x', BLOCK_EXTRAS_MAX_BYTES);
    assert_int_equal(block_extras_validate(&(struct block_extras){.lora = {long_text, 100}}, &err),
                     ST_OK);
    assert_int_equal(
        block_extras_validate(
            &(struct block_extras){.cache_salt = {long_text, BLOCK_EXTRAS_MAX_BYTES}}, &err),
        ST_TOO_LARGE);
    assert_non_null(strstr(err.message, "cache_salt"));
    assert_int_equal(
        block_extras_validate(&(struct block_extras){.items = items, .n_items = 2}, &err),
        ST_INVALID);
    items[0].id = STR_NULL;
    assert_int_equal(
        block_extras_validate(&(struct block_extras){.items = items, .n_items = 1}, &err),
        ST_INVALID);
    assert_non_null(strstr(err.message, "identifier"));
    free(long_text);
}

static void the_longest_valid_extras_fit_the_buffer(void **state) {
    /* Heads of every width, all in one block: what is encoded must not pass what was validated. */
    enum { N = 900 };
    static struct block_mm_item items[N];
    uint8_t *out =
        malloc(BLOCK_EXTRAS_MAX_BYTES); /* exact, so that a sanitizer sees one byte more */
    static char id[60];
    struct block_extras x = {
        .items = items, .n_items = N, .lora = STR("lora"), .cache_salt = STR("salt")};
    uint32_t cursor = 0;

    (void)state;
    memset(id, 'i', sizeof(id));
    for (uint32_t i = 0; i < N; i++)
        items[i] = (struct block_mm_item){{id, 57}, i, UINT32_MAX};
    assert_int_equal(block_extras_validate(&x, NULL), ST_OK);
    assert_in_range(block_extras_encode(&x, 0, N, &cursor, out), N * 57, BLOCK_EXTRAS_MAX_BYTES);
    assert_int_equal(cursor, 0); /* none of them ends in this block */
    free(out);
}

static void overlapping_items_are_all_seen(void **state) {
    /* A long item with a short one inside: the short one must not be lost behind the long one. */
    struct block_mm_item items[2] = {{STR("a"), 0, 12}, {STR("b"), 5, 2}};
    struct block_extras x = {.items = items, .n_items = 2};
    uint8_t out[64];
    uint32_t cursor = 0;

    (void)state;
    assert_int_equal(block_extras_encode(&x, 0, 4, &cursor, out), 5); /* [["a",0]] */
    assert_int_equal(block_extras_encode(&x, 4, 8, &cursor, out), 9); /* [["a",-4],["b",1]] */
    assert_int_equal(block_extras_encode(&x, 8, 12, &cursor, out), 5);
    assert_int_equal(cursor, 2);
    assert_int_equal(block_extras_encode(&x, 12, 16, &cursor, out), 0);
}

static void items_that_only_touch_a_block_are_not_of_it(void **state) {
    struct block_mm_item items[2] = {{STR("a"), 0, 4}, {STR("b"), 8, 4}};
    struct block_extras x = {.items = items, .n_items = 2};
    uint8_t out[64];
    uint32_t cursor = 0;

    (void)state;
    assert_int_equal(block_extras_encode(&x, 4, 8, &cursor, out), 0);
    assert_int_equal(cursor, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_cbor_matches_published_vectors),
        cmocka_unit_test(sha256_cbor_chain_of_sixteens),
        cmocka_unit_test(sha256_cbor_with_extra_keys),
        cmocka_unit_test(sha256_cbor_at_the_edges_of_number_widths),
        cmocka_unit_test(roots_follow_the_seed),
        cmocka_unit_test(blocks_of_another_kind_have_other_hashes),
        cmocka_unit_test(xxhash_cbor_matches_published_vectors),
        cmocka_unit_test(xxh3_128_depends_on_key_parent_tokens_and_extras),
        cmocka_unit_test(without_a_seed_fast_hashes_are_private_to_the_process),
        cmocka_unit_test(truncation_keeps_the_low_bits_only),
        cmocka_unit_test(extras_are_checked_against_their_limit_and_order),
        cmocka_unit_test(the_longest_valid_extras_fit_the_buffer),
        cmocka_unit_test(overlapping_items_are_all_seen),
        cmocka_unit_test(items_that_only_touch_a_block_are_not_of_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

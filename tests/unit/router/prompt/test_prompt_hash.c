/* tests/unit/router/prompt/test_prompt_hash.c - what two chains share, and what keeps them
 * apart. */
#include <string.h>

#include "common/base/hash.h"
#include "common/base/rng.h"
#include "router/prompt/prompt_hash.h"
#include "tests/support/cm.h"

static void equal_openings_share_hashes(void **state) {
    char a[500], b[700];
    uint64_t ca[4], cb[6];
    (void)state;

    memset(a, 'x', sizeof(a));
    memset(b, 'x', sizeof(b));
    b[300] = 'y';
    assert_int_equal(prompt_hash_n_blocks(500, 128, 100), 4);
    assert_int_equal(prompt_hash_n_blocks(512, 128, 100), 4);
    assert_int_equal(prompt_hash_n_blocks(700, 128, 3), 3);
    assert_int_equal(prompt_hash_n_blocks(0, 128, 3), 0);
    prompt_hash_chain((struct str){a, sizeof(a)}, 1, 128, ca, 4);
    prompt_hash_chain((struct str){b, sizeof(b)}, 1, 128, cb, 6);
    assert_true(ca[0] == cb[0] && ca[1] == cb[1] && ca[2] != cb[2]);
    assert_true(ca[0] != ca[1]); /* same bytes, other place */
}

/* The formula of the header, piece by piece. */
static uint64_t link(uint64_t h, const char *piece, size_t n, uint64_t seed) {
    struct hash_key key;

    hash_key_from_seed(&key, seed);
    return rng_mix(h ^ hash_keyed_64(&key, piece, n));
}

static uint64_t shown(uint64_t h) {
    return h >> 16 << 16;
}

static void the_chain_is_as_the_header_defines(void **state) {
    char a[500];
    uint64_t chain[8], h;
    (void)state;

    for (size_t i = 0; i < sizeof(a); i++)
        a[i] = (char)('a' + i * i % 23);
    prompt_hash_chain((struct str){a, sizeof(a)}, 7, 128, chain, 4);
    assert_true(chain[0] == shown(h = link(7, a, 128, 7)));
    assert_true(chain[1] == shown(h = link(h, a + 128, 128, 7)));
    assert_true(chain[2] == shown(h = link(h, a + 256, 128, 7)));
    assert_true(chain[3] == shown(link(h, a + 384, 116, 7)));

    prompt_hash_chain((struct str){a, sizeof(a)}, 7, 200, chain, 3); /* pieces of 128 and 72 */
    assert_true(chain[0] == shown(h = link(link(7, a, 128, 7), a + 128, 72, 7)));
    assert_true(chain[1] == shown(h = link(link(h, a + 200, 128, 7), a + 328, 72, 7)));
    assert_true(chain[2] == shown(link(h, a + 400, 100, 7)));
}

static void schemes_differ_by_secret_and_block_size(void **state) {
    (void)state;
    assert_true(prompt_hash_scheme(1, 256) == prompt_hash_scheme(1, 256));
    assert_true(prompt_hash_scheme(1, 256) != prompt_hash_scheme(2, 256));
    assert_true(prompt_hash_scheme(1, 256) != prompt_hash_scheme(1, 128));
    assert_true(prompt_hash_scheme(0, 0) != 0);
}

/* One byte changed, dropped or doubled anywhere changes that block's hash and all behind it. */
static void equal_hashes_imply_equal_openings(void **state) {
    static const uint32_t sizes[] = {16, 128, 200, 256, 300};
    char a[700], b[700];
    uint64_t ca[44], cb[44];
    struct rng r;
    (void)state;

    rng_seed(&r, 5);
    for (int round = 0; round < 2000; round++) {
        uint32_t block = sizes[rng_below(&r, ARRAY_LEN(sizes))];
        size_t n = 1 + rng_below(&r, sizeof(a)), at = rng_below(&r, n);
        uint32_t n_blocks = prompt_hash_n_blocks(n, block, 44);

        for (size_t i = 0; i < n; i++)
            a[i] = b[i] = (char)rng_below(&r, 2); /* many equal pieces */
        b[at] ^= 1;
        prompt_hash_chain((struct str){a, n}, 3, block, ca, n_blocks);
        prompt_hash_chain((struct str){b, n}, 3, block, cb, n_blocks);
        for (uint32_t i = 0; i < n_blocks; i++)
            assert_int_equal(ca[i] == cb[i], i < at / block);
        prompt_hash_chain((struct str){a, n}, 4, block, cb, n_blocks); /* another scope */
        for (uint32_t i = 0; i < n_blocks; i++)
            assert_true(ca[i] != cb[i]);
    }
}

static void a_short_block_is_not_a_long_one(void **state) {
    uint64_t whole, part;
    (void)state;

    prompt_hash_chain(STR("abcdefgh"), 5, 8, &whole, 1);
    prompt_hash_chain(STR("abcdefg"), 5, 8, &part, 1);
    assert_true(whole != part);
}

static void each_field_of_the_scope_counts(void **state) {
    struct prompt_scope base = {.model = STR("m"), .tools = STR("[]")}, s;
    uint64_t h = prompt_hash_seed(&base, 9);
    (void)state;

    assert_true(prompt_hash_seed(&base, 9) == h);
    assert_true(prompt_hash_seed(&base, 10) != h);
    s = base, s.tenant = STR("t");
    assert_true(prompt_hash_seed(&s, 9) != h);
    s = base, s.cache_salt = STR("t");
    uint64_t salted = prompt_hash_seed(&s, 9);
    s = base, s.adapter = STR("t");
    assert_true(prompt_hash_seed(&s, 9) != salted);
    s = (struct prompt_scope){.model = STR("m["),
                              .tools = STR("]")}; /* the same bytes, cut elsewhere */
    assert_true(prompt_hash_seed(&s, 9) != h);
}

static void a_remembered_seed_is_the_computed_one(void **state) {
    static char long_name[PROMPT_MEMO_MODEL_MAX + 1];
    const struct prompt_scope scopes[] = {
        {.model = STR("m")},
        {.model = STR("m")},
        {.model = STR("n")},
        {.model = STR_NULL},
        {.model = STR("")},
        {.model = STR("n"), .adapter = STR("a")},
        {.model = STR("n"), .tools = STR("[]")},
        {.model = STR("n"), .cache_salt = STR("s")},
        {.model = STR("n"), .tenant = STR("t")},
        {.model = STR("n")},
        {.model = {long_name, sizeof(long_name)}},
        {.model = {long_name, sizeof(long_name) - 1}},
    };
    struct prompt_seed_memo memo = {0};
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(scopes); i++)
        assert_true(prompt_hash_seed_memo(&memo, &scopes[i], 9) == prompt_hash_seed(&scopes[i], 9));
}

/* The definition, in prompt_hash.h's own words. */
static void hash_plainly(const char *p, size_t n, uint64_t seed, uint32_t block, uint64_t *chain,
                         uint32_t n_blocks) {
    struct hash_key key;
    uint64_t h = seed;

    hash_key_from_seed(&key, seed);
    for (uint32_t i = 0; i < n_blocks; i++) {
        size_t end = MIN(n, (size_t)(i + 1) * block);

        for (size_t at = (size_t)i * block; at < end; at += 128)
            h = rng_mix(h ^ hash_keyed_64(&key, p + at, MIN(end - at, (size_t)128)));
        chain[i] = h & PROMPT_HASH_MASK;
    }
}

static void pieces_hash_as_their_concatenation(void **state) {
    static char bytes[8192];
    struct rng rng;
    (void)state;

    rng_seed(&rng, 11);
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (char)rng_u64(&rng);
    for (int round = 0; round < 3000; round++) {
        static const uint32_t longest[] = {3, 9, 130, 700};
        uint32_t block = 16 + rng_below(&rng, 400), n_max = 1 + rng_below(&rng, 300), n_blocks;
        uint64_t whole[300], pieces[300], plain[300];
        struct prompt_hasher hasher;
        size_t n = 0;

        prompt_hasher_init(&hasher, 5, block, pieces, n_max);
        for (uint32_t i = rng_below(&rng, 12); i > 0; i--) {
            size_t piece = rng_below(&rng, longest[round % 4]);

            prompt_hasher_add(&hasher, (struct str){bytes + n, piece});
            n += piece;
        }
        n_blocks = prompt_hash_n_blocks(n, block, n_max);
        assert_int_equal(hasher.n_bytes, n);
        assert_int_equal(prompt_hasher_end(&hasher), n_blocks);
        prompt_hash_chain((struct str){bytes, n}, 5, block, whole, n_blocks);
        hash_plainly(bytes, n, 5, block, plain, n_blocks);
        assert_memory_equal(whole, plain, n_blocks * sizeof(*whole));
        assert_memory_equal(pieces, plain, n_blocks * sizeof(*whole));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_openings_share_hashes),
        cmocka_unit_test(the_chain_is_as_the_header_defines),
        cmocka_unit_test(schemes_differ_by_secret_and_block_size),
        cmocka_unit_test(equal_hashes_imply_equal_openings),
        cmocka_unit_test(a_short_block_is_not_a_long_one),
        cmocka_unit_test(pieces_hash_as_their_concatenation),
        cmocka_unit_test(each_field_of_the_scope_counts),
        cmocka_unit_test(a_remembered_seed_is_the_computed_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/worker/kv/block/test_prefix_cache.c - content decides, hashes only help. */
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"
#include "tests/support/support.h"

#define N_BLOCKS   20
#define BLOCK_SIZE 2

static struct block_hash hash_of(uint8_t value) {
    return (struct block_hash){{value}};
}

static void equal_hashes_with_other_content_are_kept_apart(void **state) {
    const struct block_hash same = hash_of(7), digest = hash_of(1);
    const uint32_t ab[2] = {'a', 'b'}, cd[2] = {'c', 'd'};
    const struct prefix_key keys[] = {
        {&same, PREFIX_ROOT, ab, NULL, 0}, {&same, PREFIX_ROOT, cd, NULL, 0},
        {&same, 1, ab, NULL, 0},           {&same, PREFIX_ROOT, ab, &digest, 0},
        {&same, PREFIX_ROOT, ab, NULL, 1},
    };
    struct prefix_cache cache;

    (void)state;
    prefix_cache_init(&cache, N_BLOCKS, BLOCK_SIZE);
    for (uint32_t i = 0; i < ARRAY_LEN(keys); i++) {
        assert_int_equal(prefix_cache_find(&cache, &keys[i]), PREFIX_CACHE_NONE);
        prefix_cache_insert(&cache, i, &keys[i], 0);
        prefix_cache_check(&cache);
    }
    assert_int_equal(cache.n_keys, ARRAY_LEN(keys));
    for (uint32_t i = 0; i < ARRAY_LEN(keys); i++) {
        assert_int_equal(prefix_cache_find(&cache, &keys[i]), i);
        assert_int_equal(prefix_cache_copies(&cache, i), 1);
    }
    prefix_cache_fini(&cache);
}

static void a_prefix_number_outlives_its_first_copy(void **state) {
    const struct block_hash hash = hash_of(3);
    const uint32_t tokens[2] = {1, 2};
    const struct prefix_key key = {&hash, PREFIX_ROOT, tokens, NULL, 0};
    struct prefix_cache cache;
    uint64_t number;

    (void)state;
    prefix_cache_init(&cache, N_BLOCKS, BLOCK_SIZE);
    prefix_cache_insert(&cache, 5, &key, 0);
    prefix_cache_insert(&cache, 9, &key, 0);
    number = prefix_cache_prefix(&cache, 5);
    assert_true(prefix_cache_erase(&cache, 5));
    assert_false(prefix_cache_erase(&cache, 5));
    assert_int_equal(prefix_cache_find(&cache, &key), 9);
    assert_int_equal(prefix_cache_prefix(&cache, 9), number);
    assert_true(prefix_cache_erase(&cache, 9));
    assert_int_equal(prefix_cache_find(&cache, &key), PREFIX_CACHE_NONE);
    prefix_cache_insert(&cache, 5, &key,
                        0); /* the chains behind the old number are gone for good */
    assert_int_not_equal(prefix_cache_prefix(&cache, 5), number);
    prefix_cache_fini(&cache);
}

/* The obvious model: what each block holds, and when it was inserted. */
struct model {
    uint64_t inserted[N_BLOCKS]; /* 0: not published */
    uint32_t content[N_BLOCKS];
    uint64_t clock;
};

static uint32_t model_find(const struct model *m, uint32_t content) {
    uint32_t found = PREFIX_CACHE_NONE;

    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        if (!m->inserted[i] || m->content[i] != content) continue;
        if (found == PREFIX_CACHE_NONE || m->inserted[i] < m->inserted[found]) found = i;
    }
    return found;
}

static void random_steps_match_a_list(void **state) {
    struct prefix_cache cache;
    struct model m = {.clock = 0};
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    prefix_cache_init(&cache, N_BLOCKS, BLOCK_SIZE);
    for (int step = 0; step < 100000; step++) {
        uint32_t block = (uint32_t)rng_below(&rng, N_BLOCKS);
        uint32_t content = (uint32_t)rng_below(&rng, 8), tokens[2] = {content, ~content};
        struct block_hash hash = hash_of((uint8_t)(content & 1)); /* four contents a hash */
        struct prefix_key key = {&hash, PREFIX_ROOT, tokens, NULL, 0};

        assert_int_equal(prefix_cache_find(&cache, &key), model_find(&m, content));
        if (rng_below(&rng, 2000) == 0) {
            prefix_cache_clear(&cache);
            memset(m.inserted, 0, sizeof(m.inserted));
        } else if (m.inserted[block]) {
            assert_true(prefix_cache_erase(&cache, block));
            m.inserted[block] = 0;
        } else {
            prefix_cache_insert(&cache, block, &key, 0);
            m.inserted[block] = ++m.clock;
            m.content[block] = content;
        }
        prefix_cache_check(&cache);
    }
    prefix_cache_fini(&cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_hashes_with_other_content_are_kept_apart),
        cmocka_unit_test(a_prefix_number_outlives_its_first_copy),
        cmocka_unit_test(random_steps_match_a_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

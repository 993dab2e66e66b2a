/* tests/unit/worker/kv/tiers/test_file_index.c - random inserts, erases and sweeps against an
 * array. */
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/kv/tiers/file_index.h"

#define N_KEYS     3000
#define N_SEGMENTS 8

/* Few shards and few homes, so that runs are long and wrap around. */
static struct unit_key key_of(uint32_t i) {
    struct unit_key key = {{0}};
    uint32_t word = (uint32_t)(rng_at(1, i) % 24) - 8;

    key.bytes[0] = (uint8_t)(i % 3);
    memcpy(key.bytes + 8, &word, sizeof(word));
    memcpy(key.bytes + 4, &i, sizeof(i));
    return key;
}

static bool is_gone(const void *arg, uint32_t segment) {
    return *(const uint32_t *)arg & 1u << segment;
}

static void random_steps_agree_with_an_array(void **state) {
    struct file_index *index = file_index_create();
    uint32_t segment_of[N_KEYS] = {0}, gone; /* plus 1; 0: absent */
    struct file_entry *e;
    struct unit_key key;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int step = 0; step < 40000; step++) {
        uint32_t i = (uint32_t)rng_below(&rng, step < 20000 ? 300 : N_KEYS);

        key = key_of(i);
        e = file_index_find(index, &key);
        assert_int_equal(e ? e->segment : 0, segment_of[i]);
        if (e) assert_int_equal(e->place, i);
        if (step % 1000 == 999) {
            gone = (uint32_t)rng_below(&rng, 1 << N_SEGMENTS);
            for (uint32_t s = 0; s < FILE_INDEX_SHARDS; s++)
                file_index_sweep(index, s, is_gone, &gone);
            for (i = 0; i < N_KEYS; i++)
                if (segment_of[i] && gone & 1u << (segment_of[i] - 1)) segment_of[i] = 0;
            file_index_check(index, NULL, NULL);
        } else if (!e) {
            e = file_index_insert(index, &key);
            e->segment = segment_of[i] = 1 + (uint32_t)rng_below(&rng, N_SEGMENTS);
            e->place = i;
        } else if (rng_below(&rng, 3)) {
            file_index_erase(index, e);
            segment_of[i] = 0;
        }
    }
    file_index_check(index, NULL, NULL);
    file_index_destroy(index);
    file_index_destroy(NULL);
}

static void count(void *arg, const struct file_entry *entry) {
    (void)entry;
    ++*(uint32_t *)arg;
}

static void without_memory_nothing_is_entered(void **state) {
    struct file_index *index = file_index_create();
    struct unit_key key = key_of(1);
    uint32_t n = 0;

    (void)state;
    mem_fail_at(1);
    assert_null(file_index_insert(index, &key));
    assert_null(file_index_find(index, &key));
    assert_non_null(file_index_insert(index, &key));
    assert_non_null(file_index_find(index, &key));
    file_index_check(index, count, &n);
    assert_int_equal(n, 1);
    file_index_destroy(index);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_steps_agree_with_an_array),
        cmocka_unit_test(without_memory_nothing_is_entered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

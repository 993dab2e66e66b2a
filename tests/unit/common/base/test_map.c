/* tests/unit/common/base/test_map.c - both maps against an array that remembers everything. */
#include <stdio.h>

#include "common/base/map.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#define N_KEYS  512 /* few, so that inserts, replacements and misses are all frequent */
#define N_STEPS 60000

static void behaves_like_an_array(void **state) {
    static int values[N_STEPS];
    void *model[N_KEYS] = {NULL};
    struct rng rng;
    struct map m;
    size_t n = 0;

    (void)state;
    rng_seed(&rng, support_seed());
    map_init(&m, rng_u64(&rng));
    for (int step = 0; step < N_STEPS; step++) {
        uint64_t k = rng_below(&rng, N_KEYS), key = k * 0x100000001u; /* 0 among them */
        uint64_t what = rng_below(&rng, 100);

        if (what < (step / 10000 % 2 ? 30u : 55u)) { /* phases that grow, phases that shrink */
            assert_ptr_equal(map_insert(&m, key, &values[step]), model[k]);
            n += model[k] == NULL;
            model[k] = &values[step];
        } else if (what < 90) {
            assert_ptr_equal(map_erase(&m, key), model[k]);
            n -= model[k] != NULL;
            model[k] = NULL;
        } else {
            assert_ptr_equal(map_find(&m, key), model[k]);
        }
        assert_int_equal(m.n, n);
        if (step % 64 == 0) map_check(&m);
    }
    map_fini(&m);
}

static void next_visits_each_entry_once(void **state) {
    struct map m;
    int seen[1000] = {0};
    const struct map_slot *e;
    size_t n = 0;

    (void)state;
    map_init(&m, 7);
    for (uint64_t i = 0; i < 1000; i++)
        map_insert(&m, i, &seen[i]);
    for (size_t i = 0; (e = map_next(&m, &i));) {
        assert_ptr_equal(e->value, &seen[e->key]);
        seen[e->key]++;
        n++;
    }
    assert_int_equal(n, 1000);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(seen[i], 1);
    map_clear(&m);
    assert_int_equal(m.n, 0);
    assert_null(map_find(&m, 3));
    map_check(&m);
    map_fini(&m);
}

static void reserved_room_needs_no_allocation(void **state) {
    struct map m;
    struct map_slot *slots;
    int x;

    (void)state;
    map_init(&m, 7);
    map_reserve(&m, 1000);
    slots = m.slots;
    for (uint64_t i = 0; i < 1000; i++)
        map_insert(&m, i, &x);
    assert_ptr_equal(m.slots, slots);
    map_fini(&m);
}

static void strings_behave_like_an_array(void **state) {
    static int values[N_STEPS];
    void *model[N_KEYS] = {NULL};
    struct rng rng;
    struct strmap m;
    size_t n = 0;

    (void)state;
    rng_seed(&rng, support_seed());
    strmap_init(&m, rng_u64(&rng));
    for (int step = 0; step < N_STEPS; step++) {
        uint64_t k = rng_below(&rng, N_KEYS), what = rng_below(&rng, 100);
        char text[40];
        struct str key = {text, (size_t)snprintf(text, sizeof(text), "key/%d", (int)k)};

        if (k == 0) key.len = 0; /* the empty string is a key */
        if (k == 1) text[1] = '\0';
        if (what < (step / 10000 % 2 ? 30u : 55u)) {
            assert_ptr_equal(strmap_insert(&m, key, &values[step]), model[k]);
            n += model[k] == NULL;
            model[k] = &values[step];
        } else if (what < 90) {
            assert_ptr_equal(strmap_erase(&m, key), model[k]);
            n -= model[k] != NULL;
            model[k] = NULL;
        } else {
            assert_ptr_equal(strmap_find(&m, key), model[k]);
        }
        assert_int_equal(m.n, n);
        if (step % 64 == 0) strmap_check(&m);
    }
    strmap_clear(&m);
    assert_null(strmap_find(&m, STR("key/5")));
    strmap_fini(&m);
}

static void an_empty_map_answers(void **state) {
    struct strmap s;
    struct map m;
    size_t i = 0, j = 0;

    (void)state;
    map_init(&m, 0);
    strmap_init(&s, 0);
    assert_null(map_find(&m, 0));
    assert_null(map_erase(&m, 0));
    assert_null(map_next(&m, &i));
    assert_null(strmap_find(&s, STR("")));
    assert_null(strmap_erase(&s, STR("x")));
    assert_null(strmap_next(&s, &j));
    map_check(&m);
    strmap_check(&s);
    map_fini(&m);
    strmap_fini(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(behaves_like_an_array),
        cmocka_unit_test(next_visits_each_entry_once),
        cmocka_unit_test(reserved_room_needs_no_allocation),
        cmocka_unit_test(strings_behave_like_an_array),
        cmocka_unit_test(an_empty_map_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

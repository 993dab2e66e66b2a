/* tests/unit/common/base/test_heap.c - the heap against a linear search for the smallest. */
#include "common/base/heap.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#define N_ITEMS 200
#define N_STEPS 40000

struct item {
    uint64_t key;
    struct heap_link link;
};

static bool before(const struct heap_link *a, const struct heap_link *b) {
    const struct item *x = HEAP_ENTRY_CONST(a, struct item, link);
    const struct item *y = HEAP_ENTRY_CONST(b, struct item, link);

    return x->key < y->key;
}

static uint64_t smallest(const struct item *items) {
    uint64_t key = UINT64_MAX;

    for (int i = 0; i < N_ITEMS; i++) {
        if (heap_is_linked(&items[i].link)) key = MIN(key, items[i].key);
    }
    return key;
}

static void pops_the_smallest_of_what_is_in_it(void **state) {
    static struct item items[N_ITEMS];
    struct rng rng;
    struct heap h;
    size_t n = 0;

    (void)state;
    rng_seed(&rng, support_seed());
    heap_init(&h, before);
    for (int step = 0; step < N_STEPS; step++) {
        struct item *it = &items[rng_below(&rng, N_ITEMS)];

        if (!heap_is_linked(&it->link)) {
            it->key = rng_below(&rng, 50); /* many are equal */
            heap_push(&h, &it->link);
            n++;
        } else if (rng_below(&rng, 3) == 0) {
            heap_remove(&h, &it->link);
            n--;
        } else if (rng_below(&rng, 2) == 0) {
            it->key = rng_below(&rng, 50);
            heap_update(&h, &it->link);
        } else {
            uint64_t key = smallest(items);
            struct heap_link *first = heap_first(&h), *popped = heap_pop(&h);

            assert_ptr_equal(first, popped);
            assert_false(heap_is_linked(popped));
            assert_int_equal(HEAP_ENTRY(popped, struct item, link)->key, key);
            n--;
        }
        assert_int_equal(h.n, n);
        heap_check(&h);
    }
    heap_fini(&h);
    for (int i = 0; i < N_ITEMS; i++)
        assert_false(heap_is_linked(&items[i].link));
}

static void sorts(void **state) {
    static struct item items[1000];
    struct rng rng;
    struct heap h;
    uint64_t last = 0;

    (void)state;
    rng_seed(&rng, support_seed());
    heap_init(&h, before);
    heap_reserve(&h, ARRAY_LEN(items));
    for (size_t i = 0; i < ARRAY_LEN(items); i++) {
        items[i].key = rng_u64(&rng);
        heap_push(&h, &items[i].link);
    }
    for (size_t i = 0; i < ARRAY_LEN(items); i++) {
        uint64_t key = HEAP_ENTRY(heap_pop(&h), struct item, link)->key;

        assert_true(key >= last);
        last = key;
    }
    assert_null(heap_pop(&h));
    assert_null(heap_first(&h));
    heap_fini(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pops_the_smallest_of_what_is_in_it),
        cmocka_unit_test(sorts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/router/queue/test_tree_heap.c - the linked heap against a linear search. */
#include "common/base/heap.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/queue/tree_heap.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#define N_ITEMS 200
#define N_STEPS 40000
#define N_MANY  100000

struct item {
    uint64_t key, seq;
    struct tree_link link;
};

static bool before(const struct tree_link *a, const struct tree_link *b) {
    const struct item *x = HEAP_ENTRY_CONST(a, struct item, link);
    const struct item *y = HEAP_ENTRY_CONST(b, struct item, link);

    return x->key != y->key ? x->key < y->key : x->seq < y->seq;
}

static const struct item *smallest(const struct item *items) {
    const struct item *least = NULL;

    for (int i = 0; i < N_ITEMS; i++) {
        if (!tree_heap_is_linked(&items[i].link)) continue;
        if (!least || before(&items[i].link, &least->link)) least = &items[i];
    }
    return least;
}

static void the_root_is_the_smallest_after_any_steps(void **state) {
    static struct item items[N_ITEMS];
    struct tree_heap h = {NULL};
    struct rng rng;
    size_t n = 0;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint64_t step = 0; step < N_STEPS; step++) {
        struct item *it = &items[rng_below(&rng, N_ITEMS)];
        bool is_growing = step / 1000 % 2;

        if (!tree_heap_is_linked(&it->link)) {
            if (!is_growing && rng_below(&rng, 2)) continue;
            it->key = rng_below(&rng, 50); /* many are equal: the sequence decides */
            it->seq = step;
            tree_heap_push(&h, &it->link, before);
            n++;
        } else if (!is_growing || rng_below(&rng, 4) == 0) {
            tree_heap_remove(&h, &it->link, before);
            assert_false(tree_heap_is_linked(&it->link));
            n--;
        }
        assert_int_equal(tree_heap_check(&h, before), n);
        assert_ptr_equal(h.root, n ? &smallest(items)->link : NULL);
    }
}

/* Ascending keys make the longest left spine. */
static void many_in_any_order_come_out_sorted(void **state) {
    struct item *items = mem_calloc(N_MANY, sizeof(*items));
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int order = 0; order < 3; order++) {
        struct tree_heap h = {NULL};
        uint64_t last = 0;

        for (uint64_t i = 0; i < N_MANY; i++) {
            items[i].key = order == 0 ? i : order == 1 ? N_MANY - i : rng_u64(&rng);
            items[i].seq = i;
            tree_heap_push(&h, &items[i].link, before);
        }
        assert_int_equal(tree_heap_check(&h, before), N_MANY);
        while (h.root) {
            struct item *it = HEAP_ENTRY(h.root, struct item, link);

            assert_true(it->key >= last);
            last = it->key;
            tree_heap_remove(&h, h.root, before);
        }
    }
    mem_free(items);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_root_is_the_smallest_after_any_steps),
        cmocka_unit_test(many_in_any_order_come_out_sorted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

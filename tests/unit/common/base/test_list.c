/* tests/unit/common/base/test_list.c - the ring of links against an array in the same order. */
#include <string.h>

#include "common/base/list.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#define N_ITEMS 30
#define N_STEPS 30000

struct item {
    int id;
    struct list link;
};

static void assert_same(const struct list *head, const int *model, int n) {
    const struct list *prev = head;
    int i = 0;

    for (const struct list *it = head->next; it != head; prev = it, it = it->next) {
        assert_true(i < n);
        assert_int_equal(LIST_ENTRY((struct list *)(uintptr_t)it, struct item, link)->id,
                         model[i++]);
        assert_ptr_equal(it->prev, prev);
        assert_true(list_is_linked(it));
    }
    assert_ptr_equal(head->prev, prev);
    assert_int_equal(i, n);
    assert_int_equal(list_is_empty(head), n == 0);
}

static int position(const int *model, int n, int id) {
    for (int i = 0; i < n; i++) {
        if (model[i] == id) return i;
    }
    return -1;
}

static void insert_model(int *model, int *n, int at, int id) {
    memmove(model + at + 1, model + at, (size_t)(*n - at) * sizeof(*model));
    model[at] = id;
    (*n)++;
}

static void erase_model(int *model, int *n, int at) {
    (*n)--;
    memmove(model + at, model + at + 1, (size_t)(*n - at) * sizeof(*model));
}

static void behaves_like_an_array(void **state) {
    static struct item items[N_ITEMS];
    int model[N_ITEMS], n = 0;
    struct list head, *link;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    list_init(&head);
    for (int i = 0; i < N_ITEMS; i++)
        items[i].id = i;
    for (int step = 0; step < N_STEPS; step++) {
        struct item *it = &items[rng_below(&rng, N_ITEMS)];
        int other = n ? model[rng_below(&rng, (uint64_t)n)] : -1;

        if (list_is_linked(&it->link)) {
            if (rng_below(&rng, 2)) {
                list_remove(&it->link);
                erase_model(model, &n, position(model, n, it->id));
            } else {
                link = list_pop_front(&head);
                assert_int_equal(LIST_ENTRY(link, struct item, link)->id, model[0]);
                erase_model(model, &n, 0);
            }
        } else if (other >= 0 && rng_below(&rng, 3) == 0) {
            list_insert_before(&items[other].link, &it->link);
            insert_model(model, &n, position(model, n, other), it->id);
        } else if (rng_below(&rng, 2)) {
            list_push_back(&head, &it->link);
            insert_model(model, &n, n, it->id);
        } else {
            list_push_front(&head, &it->link);
            insert_model(model, &n, 0, it->id);
        }
        assert_same(&head, model, n);
        link = list_first(&head);
        assert_int_equal(link ? LIST_ENTRY(link, struct item, link)->id : -1, n ? model[0] : -1);
        link = list_last(&head);
        assert_int_equal(link ? LIST_ENTRY(link, struct item, link)->id : -1,
                         n ? model[n - 1] : -1);
    }
}

static void splice_moves_all_to_the_end(void **state) {
    struct item items[6] = {{.id = 0}, {.id = 1}, {.id = 2}, {.id = 3}, {.id = 4}, {.id = 5}};
    struct list a, b;

    (void)state;
    list_init(&a);
    list_init(&b);
    list_splice_back(&a, &b);
    assert_same(&a, NULL, 0);
    for (int i = 0; i < 3; i++)
        list_push_back(&b, &items[i].link);
    list_splice_back(&a, &b);
    assert_same(&a, (int[]){0, 1, 2}, 3);
    assert_same(&b, NULL, 0);
    for (int i = 3; i < 6; i++)
        list_push_back(&b, &items[i].link);
    list_splice_back(&a, &b);
    assert_same(&a, (int[]){0, 1, 2, 3, 4, 5}, 6);
    assert_same(&b, NULL, 0);
}

static void the_body_may_remove_what_it_visits(void **state) {
    struct item items[5] = {{.id = 0}, {.id = 1}, {.id = 2}, {.id = 3}, {.id = 4}};
    struct list head;
    int visited = 0;

    (void)state;
    list_init(&head);
    for (int i = 0; i < 5; i++)
        list_push_back(&head, &items[i].link);
    LIST_FOR_EACH(it, &head) {
        assert_int_equal(LIST_ENTRY(it, struct item, link)->id, visited++);
        list_remove(it);
        assert_false(list_is_linked(it));
    }
    assert_int_equal(visited, 5);
    assert_true(list_is_empty(&head));
    assert_null(list_pop_front(&head));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(behaves_like_an_array),
        cmocka_unit_test(splice_moves_all_to_the_end),
        cmocka_unit_test(the_body_may_remove_what_it_visits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

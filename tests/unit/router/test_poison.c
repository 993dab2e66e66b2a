/* tests/unit/router/test_poison.c - remembered for ten minutes, and no more than so many. */
#include "router/poison.h"

#include "tests/support/cm.h"

#include <stdio.h>

#define NOW UINT64_C(5000000)

static struct str body_of(int i, char text[32]) {
    return (struct str){text, (size_t)snprintf(text, 32, "{\"prompt\":%d}", i)};
}

static void a_body_is_remembered_for_its_time(void **state) {
    struct poison *p = poison_create();

    (void)state;
    assert_false(poison_is_suspect(p, STR("a"), NOW));
    poison_add(p, STR("a"), NOW);
    assert_true(poison_is_suspect(p, STR("a"), NOW));
    assert_false(poison_is_suspect(p, STR("b"), NOW));
    assert_false(poison_is_suspect(p, STR(""), NOW));
    assert_true(poison_is_suspect(p, STR("a"), NOW + POISON_MEMORY_US - 1));
    assert_false(poison_is_suspect(p, STR("a"), NOW + POISON_MEMORY_US));
    assert_false(poison_is_suspect(p, STR("a"), NOW));
    poison_destroy(p);
    poison_add(NULL, STR("a"), NOW);
    assert_false(poison_is_suspect(NULL, STR("a"), NOW));
}

static void the_oldest_are_forgotten_first(void **state) {
    struct poison *p = poison_create();
    char text[32];

    (void)state;
    for (int i = 0; i < 3 * POISON_MAX; i++) {
        poison_add(p, body_of(i, text), NOW + (uint64_t)i);
        for (int k = 0; k <= i; k += 17) {
            bool is_known = poison_is_suspect(p, body_of(k, text), NOW + (uint64_t)i);

            assert_int_equal(is_known, k > i - POISON_MAX);
        }
    }
    poison_destroy(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_is_remembered_for_its_time),
        cmocka_unit_test(the_oldest_are_forgotten_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

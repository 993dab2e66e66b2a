/* tests/unit/router/poison/test_poison.c - which requests are remembered, how long, how many. */
#include <stdio.h>

#include "router/poison/poison.h"
#include "tests/support/cm.h"

#define MEMORY_US UINT64_C(60000000)
#define NOW       UINT64_C(5000000)

static struct str body_of(int i, char *room) {
    return (struct str){room, (size_t)snprintf(room, 32, "{\"prompt\":\"%d\"}", i)};
}

static void a_body_is_remembered_for_its_time(void **state) {
    struct poison *p = poison_create(MEMORY_US);
    struct str me = STR("me");

    (void)state;
    assert_true(poison_is_empty(p));
    assert_int_equal(poison_judge(p, me, STR("a"), NOW), POISON_UNKNOWN);
    poison_add(p, me, STR("a"), NOW);
    assert_false(poison_is_empty(p));
    assert_int_equal(poison_judge(p, me, STR("a"), NOW), POISON_SUSPECT);
    assert_int_equal(poison_judge(p, me, STR("b"), NOW), POISON_UNKNOWN);
    assert_int_equal(poison_judge(p, me, STR(""), NOW), POISON_UNKNOWN);
    assert_int_equal(poison_judge(p, me, STR("a"), NOW + MEMORY_US - 1), POISON_SUSPECT);
    assert_int_equal(poison_judge(p, me, STR("a"), NOW + MEMORY_US), POISON_UNKNOWN);
    assert_int_equal(poison_judge(p, me, STR("a"), NOW), POISON_UNKNOWN);
    assert_true(poison_is_empty(p));
    poison_destroy(p);
}

static void a_body_of_others_is_a_rumour(void **state) {
    struct poison *p = poison_create(MEMORY_US);

    (void)state;
    poison_add(p, STR("a"), STR("body"), NOW);
    assert_int_equal(poison_judge(p, STR("b"), STR("body"), NOW), POISON_SEEN_ELSEWHERE);
    assert_int_equal(poison_judge(p, STR("b"), STR("other"), NOW), POISON_UNKNOWN);
    poison_add(p, STR("b"), STR("body"), NOW + 1);
    assert_int_equal(poison_judge(p, STR("a"), STR("body"), NOW + 1), POISON_SUSPECT);
    assert_int_equal(poison_judge(p, STR("b"), STR("body"), NOW + 1), POISON_SUSPECT);
    assert_int_equal(poison_judge(p, STR("c"), STR("body"), NOW + 1), POISON_SEEN_ELSEWHERE);
    assert_int_equal(poison_judge(p, STR("a"), STR("body"), NOW + MEMORY_US),
                     POISON_SEEN_ELSEWHERE);
    poison_destroy(p);
}

static void a_recent_entry_can_be_removed(void **state) {
    struct poison *p = poison_create(MEMORY_US);

    (void)state;
    poison_forgive(p, 0);
    poison_forgive(NULL, 0);
    for (uint64_t i = 0; i < 2 * POISON_MAX; i++) {
        const char body = (char)('a' + i % 16);

        poison_add(p, STR("me"), (struct str){&body, 1}, NOW + i);
    }
    poison_forgive(p, NOW + POISON_MAX + 16); /* the ring has the second half */
    assert_int_equal(poison_judge(p, STR("me"), STR("a"), NOW), POISON_SUSPECT);
    poison_forgive(p, NOW + POISON_MAX);
    assert_true(poison_is_empty(p));
    poison_add(p, STR("me"), STR("a"), NOW + 3 * POISON_MAX);
    assert_int_equal(poison_judge(p, STR("me"), STR("a"), NOW), POISON_SUSPECT);
    poison_destroy(p);
}

static void without_a_table_no_request_is_poison(void **state) {
    struct poison *p = poison_create(0);

    (void)state;
    poison_add(p, STR("a"), STR("body"), NOW);
    assert_true(poison_is_empty(p) && poison_is_empty(NULL));
    assert_int_equal(poison_judge(p, STR("a"), STR("body"), NOW), POISON_UNKNOWN);
    poison_destroy(p);
    poison_add(NULL, STR("a"), STR("body"), NOW);
    assert_int_equal(poison_judge(NULL, STR("a"), STR("body"), NOW), POISON_UNKNOWN);
}

static void the_oldest_are_forgotten_first(void **state) {
    struct poison *p = poison_create(MEMORY_US);
    struct str me = STR("me");
    char text[32];

    (void)state;
    for (int i = 0; i < 3 * POISON_MAX; i++) {
        poison_add(p, me, body_of(i, text), NOW + (uint64_t)i);
        for (int k = 0; k <= i; k += 17) {
            assert_int_equal(poison_judge(p, me, body_of(k, text), NOW + (uint64_t)i),
                             k > i - POISON_MAX ? POISON_SUSPECT : POISON_UNKNOWN);
        }
    }
    poison_destroy(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_is_remembered_for_its_time),
        cmocka_unit_test(a_body_of_others_is_a_rumour),
        cmocka_unit_test(a_recent_entry_can_be_removed),
        cmocka_unit_test(without_a_table_no_request_is_poison),
        cmocka_unit_test(the_oldest_are_forgotten_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/router/sessions/test_repeats.c - the share of prompts that is repeated follows the
 * traffic. */
#include "router/sessions/repeats.h"
#include "tests/support/cm.h"

static void add(struct repeats *r, int n, double all, double share) {
    for (int i = 0; i < n; i++)
        repeats_add(r, all, share * all);
}

static void at_first_the_share_falls_only_after_a_turnover_of_the_caches(void **state) {
    struct repeats r;

    (void)state;
    repeats_init(&r);
    assert_true(repeats_share(&r) == 1);
    add(&r, 100, 0.015, 0);
    assert_true(repeats_share(&r) > REPEATS_WORTH);
    add(&r, 100, 0.015, 0);
    assert_true(repeats_share(&r) < REPEATS_WORTH);
}

static void the_share_follows_the_traffic(void **state) {
    struct repeats r;

    (void)state;
    repeats_init(&r);
    add(&r, 2000, 0.01, 0.2);
    assert_true(repeats_share(&r) > 0.19 && repeats_share(&r) < 0.21);
    add(&r, 400, 0.01, 0.9); /* as many as it remembers at most */
    assert_true(repeats_share(&r) > 0.6);
    add(&r, 2000, 0.01, 0.9);
    assert_true(repeats_share(&r) > 0.89 && repeats_share(&r) < 0.91);
}

static void a_prompt_larger_than_all_memory_does_not_decide_alone_for_long(void **state) {
    struct repeats r;

    (void)state;
    repeats_init(&r);
    repeats_add(&r, 100, 0);
    assert_true(repeats_share(&r) < REPEATS_WORTH);
    for (int i = 0; i < 12; i++)
        repeats_add(&r, 1, 1);
    assert_true(repeats_share(&r) > REPEATS_WORTH);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_first_the_share_falls_only_after_a_turnover_of_the_caches),
        cmocka_unit_test(the_share_follows_the_traffic),
        cmocka_unit_test(a_prompt_larger_than_all_memory_does_not_decide_alone_for_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/worker/engine/tiers/test_itl_guard.c - writing pauses when it costs steps 5 %, and at
 * no other time. */
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/engine/tiers/itl_guard.h"

#define SECOND 1000000u

/* Steps of 10 ms and more with more rows, within 2 %, one in ten three times as long; `factor`
 * while writing. Time passes with them. */
static void run(struct itl_guard *g, struct rng *rng, uint32_t n, uint32_t n_rows, double factor,
                bool is_writing, uint64_t *now_us) {
    for (uint32_t i = 0; i < n; i++) {
        double s = 0.010 * (1 + 0.01 * n_rows) * (0.98 + 0.04 * rng_f64(rng)) *
                   (rng_below(rng, 10) == 0 ? 3 : 1) * (is_writing ? factor : 1);

        *now_us += (uint64_t)(s * 1e6);
        itl_guard_note(g, n_rows, s, is_writing, *now_us);
    }
}

static void writing_that_costs_nothing_goes_on(void **state) {
    struct itl_guard g;
    uint64_t now_us = SECOND;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    itl_guard_init(&g);
    for (int round = 0; round < 200; round++) {
        uint32_t n_rows = 1u << rng_below(&rng, 7);

        run(&g, &rng, 20, n_rows, 1, false, &now_us);
        run(&g, &rng, 20, n_rows, 1, true, &now_us);
    }
    assert_int_equal(g.n_pauses, 0);
}

static void writing_that_costs_a_tenth_pauses_ever_longer(void **state) {
    struct itl_guard g;
    uint64_t now_us = SECOND, before_us;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed() + 1);
    itl_guard_init(&g);
    run(&g, &rng, ITL_GUARD_WINDOW, 4, 1, false, &now_us);
    for (uint32_t k = 0; k < 9; k++) {
        run(&g, &rng, ITL_GUARD_WINDOW - 1, 4, 1.1, true, &now_us);
        assert_false(itl_guard_is_paused(&g, now_us));
        run(&g, &rng, 1, 4, 1.1, true, &now_us);
        assert_true(itl_guard_is_paused(&g, now_us));
        assert_int_equal(g.n_pauses, k + 1);
        before_us = now_us;
        run(&g, &rng, 5, 4, 1.1, true, &now_us); /* of a job that was under way */
        now_us = before_us + MIN(SECOND << k, 60u * SECOND) - 1;
        assert_true(itl_guard_is_paused(&g, now_us++));
        assert_false(itl_guard_is_paused(&g, now_us));
    }
    run(&g, &rng, ITL_GUARD_WINDOW, 4, 1, true, &now_us);
    assert_false(itl_guard_is_paused(&g, now_us));
    run(&g, &rng, ITL_GUARD_WINDOW, 4, 1.1, true, &now_us);
    assert_true(itl_guard_is_paused(&g, now_us + SECOND - 1));
    assert_false(itl_guard_is_paused(&g, now_us + SECOND));
}

/* Contexts grow: what was quiet is measured again, so one pause at most is wrong. */
static void steps_that_grow_without_writing_pause_once(void **state) {
    struct itl_guard g;
    uint64_t now_us = SECOND;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed() + 2);
    itl_guard_init(&g);
    run(&g, &rng, ITL_GUARD_WINDOW, 2, 1, false, &now_us);
    run(&g, &rng, ITL_GUARD_WINDOW, 3, 1.2, true, &now_us); /* 20 % more, of the context */
    assert_int_equal(g.n_pauses, 1);
    for (uint32_t i = 0; i < ITL_GUARD_WINDOW; i++)
        itl_guard_note(&g, 3, 0.01236, false, now_us);
    now_us += SECOND;
    for (uint32_t i = 0; i < 4 * ITL_GUARD_WINDOW; i++)
        itl_guard_note(&g, 3, 0.01236, true, now_us);
    assert_int_equal(g.n_pauses, 1);
}

static void steps_of_other_sizes_are_not_compared(void **state) {
    struct itl_guard g;
    uint64_t now_us = SECOND;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed() + 3);
    itl_guard_init(&g);
    run(&g, &rng, 100, 1, 1, false, &now_us);
    run(&g, &rng, 100, 64, 1, true, &now_us);
    run(&g, &rng, 100, UINT32_MAX, 1e-6, true, &now_us);
    assert_int_equal(g.n_pauses, 0);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(writing_that_costs_nothing_goes_on),
        cmocka_unit_test(writing_that_costs_a_tenth_pauses_ever_longer),
        cmocka_unit_test(steps_that_grow_without_writing_pause_once),
        cmocka_unit_test(steps_of_other_sizes_are_not_compared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

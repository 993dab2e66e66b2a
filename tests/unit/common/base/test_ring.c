/* tests/unit/common/base/test_ring.c - the ring against a long array that never wraps. */
#include "common/base/ring.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#define N_STEPS 20000

struct item {
    uint64_t id;
    char more[5];
};

static void is_first_in_first_out(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t cap = 1; cap < 20; cap += 3) {
        uint64_t pushed = 0, popped = 0;
        struct ring r;

        ring_init(&r, sizeof(struct item), cap);
        for (int step = 0; step < N_STEPS; step++) {
            if (rng_below(&rng, 2)) {
                struct item *it = ring_push(&r);

                assert_int_equal(it == NULL, pushed - popped == cap);
                if (!it) continue;
                assert_int_equal(it->id, 0); /* not what lay there before */
                it->id = ++pushed;
            } else if (pushed > popped) {
                assert_int_equal(((struct item *)ring_first(&r))->id, ++popped);
                ring_pop(&r);
            } else {
                assert_null(ring_first(&r));
            }
            ring_check(&r);
            assert_int_equal(r.n, pushed - popped);
            assert_int_equal(ring_is_full(&r), pushed - popped == cap);
            for (uint32_t i = 0; i < r.n; i++) {
                assert_int_equal(((struct item *)ring_at(&r, i))->id, popped + 1 + i);
            }
        }
        ring_fini(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_first_in_first_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

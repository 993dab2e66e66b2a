/* tests/unit/worker/kv/test_kv_stats.c - the window keeps the newest requests. */
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/kv/kv_stats.h"

static void the_newest_batch_stays_however_large(void **state) {
    struct hit_window w;

    (void)state;
    hit_window_init(&w, 2);
    hit_window_add(&w, (struct kv_counts){50, 100, 25});
    assert_true(hit_window_rate(&w) == 0.25);
    hit_window_add(&w, (struct kv_counts){1, 10, 10});
    assert_true(hit_window_rate(&w) == 1.0);
    hit_window_fini(&w);
}

static void random_batches_match_a_recount(void **state) {
    enum { STEPS = 20000, MAX = 9 };
    static struct kv_counts all[STEPS];
    struct hit_window w;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    hit_window_init(&w, MAX);
    for (int i = 0; i < STEPS; i++) {
        struct kv_counts sum = {0};

        all[i] = (struct kv_counts){rng_below(&rng, 4), rng_below(&rng, 100), rng_below(&rng, 50)};
        hit_window_add(&w, all[i]);
        for (int j = i; j >= 0; j--) { /* newest first, while they fit; the first always does */
            if (all[j].requests == 0) continue;
            if (sum.requests > 0 && sum.requests + all[j].requests > MAX) break;
            sum.requests += all[j].requests;
            sum.queries += all[j].queries;
            sum.hits += all[j].hits;
        }
        assert_memory_equal(&w.sum, &sum, sizeof(sum));
    }
    hit_window_fini(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newest_batch_stays_however_large),
        cmocka_unit_test(random_batches_match_a_recount),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

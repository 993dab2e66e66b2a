/* tests/unit/worker/text/tokenizer/test_bpe.c - both ways of merging, against the definition. */
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/text/tokenizer/bpe.h"

#define N_BASE   3
#define N_MERGES 60

struct rule {
    uint32_t left, right;
};

/* The definition: the lowest rank, the leftmost of it, again and again. */
static size_t merge_plainly(const struct rule *rules, size_t n_rules, uint32_t *ids, size_t n) {
    for (;;) {
        size_t best_rule = n_rules, best_at = 0;

        for (size_t i = 0; i + 1 < n; i++) {
            for (size_t k = 0; k < best_rule; k++) {
                if (rules[k].left != ids[i] || rules[k].right != ids[i + 1]) continue;
                best_rule = k;
                best_at = i;
            }
        }
        if (best_rule == n_rules) return n;
        ids[best_at] = (uint32_t)(N_BASE + best_rule);
        memmove(&ids[best_at + 1], &ids[best_at + 2], (n - best_at - 2) * sizeof(*ids));
        n--;
    }
}

static void both_ways_follow_the_definition(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int round = 0; round < 400; round++) {
        struct rule rules[N_MERGES];
        struct bpe b;

        assert_int_equal(bpe_init(&b, N_MERGES), ST_OK);
        for (uint32_t i = 0; i < N_MERGES; i++) {
            rules[i] = (struct rule){(uint32_t)rng_below(&rng, N_BASE + i),
                                     (uint32_t)rng_below(&rng, N_BASE + i)};
            bpe_add(&b, rules[i].left, rules[i].right, i, N_BASE + i);
        }
        for (int text = 0; text < 8; text++) {
            uint32_t ids[300], want[300];
            size_t n = (size_t)rng_below(&rng, text < 4 ? 48 : 300) + 1, n_want, n_got;

            for (size_t i = 0; i < n; i++)
                ids[i] = want[i] = (uint32_t)rng_below(&rng, N_BASE);
            n_want = merge_plainly(rules, N_MERGES, want, n);
            n_got = bpe_run(&b, ids, n);
            assert_int_equal(n_got, n_want);
            assert_memory_equal(ids, want, n_want * sizeof(*ids));
        }
        bpe_fini(&b);
    }
}

static void nothing_to_merge_is_nothing_done(void **state) {
    uint32_t ids[100] = {7};
    struct bpe b;

    (void)state;
    assert_int_equal(bpe_init(&b, 0), ST_OK);
    assert_int_equal(bpe_run(&b, ids, 0), 0);
    assert_int_equal(bpe_run(&b, ids, 1), 1);
    assert_int_equal(bpe_run(&b, ids, 100), 100);
    assert_int_equal(ids[0], 7);
    bpe_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways_follow_the_definition),
        cmocka_unit_test(nothing_to_merge_is_nothing_done),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/router/routing/test_sorted_work.c - the sorted pending work beside a plain list. */
#include <math.h>
#include <string.h>

#include "common/base/rng.h"
#include "router/routing/load.h"
#include "tests/support/cm.h"

#define N_TICKETS 300
#define SECOND    UINT64_C(1000000)

static const struct worker_spec spec = {.prefill_tokens_per_s = 100, .order = WORKER_SRPT};

/* By the definition: what is shorter counts with what is left, the head less what it was served. */
static double wait_of_list(const struct load *l, double work_s, uint64_t now_us,
                           uint32_t *n_longer) {
    const struct load_worker *k = &l->workers[0];
    double served_s = (double)(now_us - k->service_began_us) * 1e-6, wait_s = 0;
    struct list *head = NULL; /* what is computed: one of the shortest */

    *n_longer = 0;
    LIST_FOR_EACH(it, &k->pending) {
        double left_s = LIST_ENTRY(it, struct load_ticket, link)->work_s;

        if (!head || left_s < LIST_ENTRY(head, struct load_ticket, link)->work_s) head = it;
    }
    LIST_FOR_EACH(it, &k->pending) {
        double left_s = LIST_ENTRY(it, struct load_ticket, link)->work_s;

        if (it == head) left_s -= fmin(served_s, left_s);
        if (left_s > work_s)
            ++*n_longer;
        else
            wait_s += left_s;
    }
    return wait_s;
}

static void compare(const struct load *l, double work_s, uint64_t now_us) {
    uint32_t expected, n_longer;
    double expected_s = wait_of_list(l, work_s, now_us, &expected);
    double wait_s = load_wait_shorter_s(l, 0, work_s, now_us, &n_longer);

    if (l->sorted[0].n_beyond) { /* what is beyond counts as longer */
        assert_true(n_longer >= expected);
        assert_true(wait_s <= expected_s + 1e-6);
        return;
    }
    assert_int_equal(n_longer, expected);
    assert_float_equal(wait_s, expected_s, 1e-6);
}

static void random_traffic_agrees_with_a_list(void **state) {
    static struct load_ticket t[N_TICKETS];
    struct load l;
    struct rng r;
    uint64_t now_us = SECOND;
    uint32_t n_exact = 0, n_beyond = 0;
    (void)state;

    rng_seed(&r, 7);
    load_init(&l, 1);
    load_worker_up(&l, 0, &spec);
    for (int step = 0; step < 60000; step++) {
        bool is_crowded = step / 5000 % 2; /* crowds come and go */
        struct load_ticket *q = &t[rng_below(&r, is_crowded ? N_TICKETS : 40)];

        now_us += rng_below(&r, 200000);
        if (!q->is_open)
            load_open(&l, q, 0, (double)rng_below(&r, 50) / 10, 1, now_us); /* many are equal */
        else if (rng_below(&r, 2))
            load_first_token(&l, q, now_us);
        else
            load_close(&l, q, 1, rng_below(&r, 2), now_us);
        load_check(&l);
        compare(&l, rng_f64(&r) * 6, now_us + rng_below(&r, SECOND));
        compare(&l, (double)rng_below(&r, 50) / 10, now_us);
        n_beyond += l.sorted[0].n_beyond > 0;
        n_exact += l.sorted[0].n > 8 && !l.sorted[0].n_beyond;
    }
    assert_true(n_exact > 1000 && n_beyond > 1000); /* both were seen */
    for (size_t i = 0; i < N_TICKETS; i++) {
        if (t[i].is_open) load_close(&l, &t[i], 1, true, now_us);
    }
    assert_int_equal(l.sorted[0].n + l.sorted[0].n_beyond, 0);
    load_fini(&l);
}

static void the_shortest_are_kept_of_a_crowd(void **state) {
    struct sorted_work q = {0};
    (void)state;

    for (uint32_t i = 0; i < 100; i++)
        sorted_work_add(&q, 100 - i); /* the longest first */
    assert_int_equal(q.n, SORTED_WORK_MAX);
    assert_int_equal(q.n_beyond, 100 - SORTED_WORK_MAX);
    for (uint32_t i = 0; i < q.n; i++)
        assert_float_equal(q.work_s[i], i + 1, 0);
    assert_float_equal(sorted_work_sum(&q, sorted_work_rank(&q, 3.5)), 6, 0);
    sorted_work_remove(&q, 99); /* beyond */
    assert_int_equal(q.n, SORTED_WORK_MAX);
    for (uint32_t i = 1; i <= 33; i++)
        sorted_work_remove(&q, i);
    assert_true(sorted_work_is_thin(&q));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_traffic_agrees_with_a_list),
        cmocka_unit_test(the_shortest_are_kept_of_a_crowd),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

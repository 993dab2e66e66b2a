/* tests/unit/common/http/test_body_budget.c - the budget of request bodies against the obvious
 * model. */
#include <pthread.h>

#include "common/base/rng.h"
#include "common/http/body_budget.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#define MIB (UINT64_C(1) << 20)

static void a_default_is_a_quarter_up_to_its_limit(void **state) {
    (void)state;
    assert_int_equal(body_budget_default(256 * MIB, 1024 * MIB), 64 * MIB);
    assert_int_equal(body_budget_default(64 * 1024 * MIB, 1024 * MIB), 1024 * MIB);
}

static void long_bodies_leave_room_for_short_ones(void **state) {
    struct body_budget *b = body_budget_create(64 * MIB, 2);
    struct body_pool *first = body_pool_open(b), *second = body_pool_open(b);
    struct body_claim all = {0}, more = {0};

    (void)state;
    assert_int_equal(body_budget_largest(b), 48 * MIB);
    assert_int_equal(body_budget_take(b, &all, 48 * MIB), BODY_GRANTED);
    assert_int_equal(body_budget_take(b, &more, 1), BODY_FULL);
    assert_true(body_pool_take(first, 8 * MIB));
    assert_false(body_pool_take(first, 1));
    assert_true(body_pool_take(second, 8 * MIB)); /* each loop has a part of its own */
    assert_int_equal(body_budget_stats(b).small_bytes, 16 * MIB);
    body_pool_give(first, 8 * MIB);
    body_pool_give(second, 8 * MIB);
    body_budget_release(b, &all);
    body_budget_destroy(b);
}

static void an_owner_gets_half_and_always_one_body(void **state) {
    struct body_budget *b = body_budget_create(64 * MIB, 1);
    struct body_claim one = {.address = 1}, two = {.address = 1}, other = {.address = 2};
    struct body_claim by_key = {.address = 3, .key = 9}, same_key = {.address = 4, .key = 9};

    (void)state;
    assert_int_equal(body_budget_take(b, &one, 40 * MIB), BODY_GRANTED); /* more than half */
    assert_int_equal(body_budget_take(b, &two, MIB), BODY_SHARE);
    assert_int_equal(body_budget_take(b, &other, MIB), BODY_GRANTED);
    body_budget_release(b, &one);
    assert_int_equal(body_budget_take(b, &two, MIB), BODY_GRANTED);
    assert_int_equal(body_budget_take(b, &by_key, 28 * MIB), BODY_GRANTED);
    assert_int_equal(body_budget_take(b, &same_key, 5 * MIB), BODY_SHARE);
    assert_int_equal(body_budget_take(b, &same_key, 4 * MIB), BODY_GRANTED);
    body_budget_release(b, &two);
    body_budget_release(b, &other);
    body_budget_release(b, &by_key);
    body_budget_release(b, &same_key);
    assert_int_equal(body_budget_stats(b).n_owners, 0);
    body_budget_destroy(b);
}

static void without_shares_one_owner_may_hold_all(void **state) {
    struct body_budget *b = body_budget_create(64 * MIB, 1);
    struct body_claim one = {.address = 1}, two = {.address = 1}, three = {.address = 1};

    (void)state;
    body_budget_without_shares(b);
    assert_int_equal(body_budget_take(b, &one, 28 * MIB), BODY_GRANTED);
    assert_int_equal(body_budget_take(b, &two, 20 * MIB), BODY_GRANTED);
    assert_int_equal(body_budget_take(b, &three, 1), BODY_FULL);
    body_budget_release(b, &one);
    body_budget_release(b, &two);
    body_budget_destroy(b);
}

static void pressure_reaches_connections_that_can_relieve_it(void **state) {
    struct body_budget *b = body_budget_create(64 * MIB, 1);
    struct body_claim holds = {.address = 1}, wants = {.address = 1}, other = {.address = 2};
    struct body_claim third = {.address = 3};

    (void)state;
    assert_int_equal(body_budget_take(b, &holds, 32 * MIB), BODY_GRANTED);
    assert_int_equal(body_budget_take(b, &other, 12 * MIB), BODY_GRANTED);
    assert_false(body_budget_is_short(b));
    assert_int_equal(body_budget_take(b, &wants, MIB), BODY_SHARE);
    assert_true(body_budget_wait(b, &wants, MIB, BODY_SHARE));
    assert_true(body_budget_is_short(b));
    assert_int_equal(body_budget_pressure(b, &holds), MIB);
    assert_int_equal(body_budget_pressure(b, &other), 0); /* its release would not help */
    assert_int_equal(body_budget_take(b, &third, 5 * MIB), BODY_FULL);
    assert_true(body_budget_wait(b, &third, 5 * MIB, BODY_FULL));
    assert_int_equal(body_budget_pressure(b, &other), 5 * MIB);
    body_budget_release(b, &holds);
    assert_int_equal(body_budget_take(b, &wants, MIB), BODY_GRANTED);
    assert_int_equal(body_budget_take(b, &third, 5 * MIB), BODY_GRANTED);
    assert_false(body_budget_is_short(b));
    body_budget_release(b, &wants);
    body_budget_release(b, &third);
    body_budget_release(b, &other);
    body_budget_destroy(b);
}

static void few_may_wait(void **state) {
    struct body_budget *b = body_budget_create(64 * MIB, 1);
    struct body_claim claims[100] = {{0}};
    uint32_t n = 0;

    (void)state;
    while (n < 100 && body_budget_wait(b, &claims[n], MIB, BODY_FULL))
        n++;
    assert_int_equal(n, 32); /* of 256 KiB each: an eighth of all */
    assert_true(body_budget_wait(b, &claims[0], 2 * MIB, BODY_SHARE)); /* one that waits already */
    for (uint32_t i = 0; i < n; i++)
        body_budget_release(b, &claims[i]);
    assert_int_equal(body_budget_stats(b).wanted_bytes, 0);
    body_budget_destroy(b);
}

/* --- against a model -------------------------------------------------------------------------- */

#define N_CLAIMS 24
#define N_IDS    2 /* keys 101 and 102 */
#define LARGE    (48 * MIB)
#define SHARE    (32 * MIB)

struct model {
    struct body_claim claim; /* what the budget is given */
    uint64_t bytes, wanted;
    bool for_share;
};

static uint64_t held(const struct model *m, uint64_t address, uint64_t key) {
    uint64_t sum = 0;

    for (int i = 0; i < N_CLAIMS; i++) {
        const struct body_claim *c = &m[i].claim;

        if ((!address && !key) || (address && c->address == address) || (key && c->key == key))
            sum += m[i].bytes;
    }
    return sum;
}

static bool is_over(uint64_t has, uint64_t own, uint64_t bytes) {
    return has > own && has + bytes > SHARE;
}

static enum body_verdict judge(const struct model *m, int i, uint64_t bytes) {
    const struct body_claim *c = &m[i].claim;

    if (held(m, 0, 0) + bytes > LARGE) return BODY_FULL;
    if (c->address && is_over(held(m, c->address, 0), m[i].bytes, bytes)) return BODY_SHARE;
    if (c->key && is_over(held(m, 0, c->key), m[i].bytes, bytes)) return BODY_SHARE;
    return BODY_GRANTED;
}

static uint64_t pressure(const struct model *m, int i) {
    uint64_t all = 0, address = 0, key = 0;

    for (int k = 0; k < N_CLAIMS; k++) {
        const struct body_claim *c = &m[k].claim;

        if (!m[k].for_share) {
            all += m[k].wanted;
            continue;
        }
        if (m[i].claim.address && c->address == m[i].claim.address) address += m[k].wanted;
        if (m[i].claim.key && c->key == m[i].claim.key) key += m[k].wanted;
    }
    return all + MAX(address, key);
}

static void behaves_like_the_model(void **state) {
    struct body_budget *b = body_budget_create(64 * MIB, 1);
    struct model m[N_CLAIMS] = {{{0}, 0, 0, false}};
    int n_verdicts[3] = {0};
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int i = 0; i < N_CLAIMS; i++) {
        m[i].claim.address = i % 4 ? 1 : (uint64_t)i % 8 / 4 * 2; /* 1 for most, 0 and 2 */
        m[i].claim.key = rng_below(&rng, 2) ? 101 + rng_below(&rng, N_IDS) : 0;
    }
    for (int step = 0; step < 40000; step++) {
        int i = (int)rng_below(&rng, N_CLAIMS);
        uint64_t bytes = 1 + rng_below(&rng, step % 7 ? 4 * MIB : LARGE);

        if (rng_below(&rng, 3)) {
            enum body_verdict verdict = body_budget_take(b, &m[i].claim, bytes);

            assert_int_equal(verdict, judge(m, i, bytes));
            n_verdicts[verdict]++;
            if (verdict == BODY_GRANTED) {
                m[i].bytes += bytes;
                m[i].wanted = 0;
            } else if (body_budget_wait(b, &m[i].claim, bytes, verdict)) {
                m[i].wanted = bytes;
                m[i].for_share = verdict == BODY_SHARE;
            }
        } else {
            body_budget_release(b, &m[i].claim);
            m[i].bytes = m[i].wanted = 0;
        }
        i = (int)rng_below(&rng, N_CLAIMS);
        assert_int_equal(m[i].claim.bytes, m[i].bytes);
        assert_int_equal(m[i].claim.wanted_bytes, m[i].wanted);
        assert_int_equal(body_budget_pressure(b, &m[i].claim), pressure(m, i));
        assert_int_equal(body_budget_stats(b).large_bytes, held(m, 0, 0));
        if (step % 64 == 0) body_budget_check(b);
    }
    for (int v = 0; v < 3; v++)
        assert_true(n_verdicts[v] > 100);
    for (int i = 0; i < N_CLAIMS; i++)
        body_budget_release(b, &m[i].claim);
    assert_int_equal(body_budget_stats(b).n_owners, 0);
    body_budget_destroy(b);
}

#define N_THREADS 4

static void *take_and_give(void *arg) {
    struct body_budget *b = arg;
    struct body_pool *pool = body_pool_open(b);
    struct body_claim claim = {.address = (uint64_t)(uintptr_t)pool | 1, .key = 7};

    for (int i = 0; i < 20000; i++) {
        if (body_budget_take(b, &claim, 9 * MIB) != BODY_GRANTED)
            (void)body_budget_wait(b, &claim, 9 * MIB, BODY_FULL);
        if (body_pool_take(pool, 4096)) body_pool_give(pool, 4096);
        if (i % 3 == 0) (void)body_budget_stats(b);
        body_budget_release(b, &claim);
    }
    return NULL;
}

static void threads_share_it(void **state) {
    struct body_budget *b = body_budget_create(64 * MIB, N_THREADS);
    pthread_t threads[N_THREADS];

    (void)state;
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, b), 0);
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    body_budget_check(b);
    assert_int_equal(body_budget_stats(b).large_bytes + body_budget_stats(b).small_bytes, 0);
    body_budget_destroy(b);
}

static void another_total_holds_at_once_and_takes_nothing_back(void **state) {
    struct body_budget *b = body_budget_create(64 * MIB, 1);
    struct body_pool *pool = body_pool_open(b);
    struct body_claim held = {.address = 1}, more = {.address = 2};

    (void)state;
    assert_int_equal(body_budget_take(b, &held, 40 * MIB), BODY_GRANTED);
    assert_true(body_pool_take(pool, 10 * MIB));
    body_budget_set_total(b, 16 * MIB);
    assert_int_equal(body_budget_largest(b), 12 * MIB);
    assert_int_equal(body_budget_stats(b).total_bytes, 16 * MIB);
    assert_int_equal(body_budget_take(b, &more, 1), BODY_FULL);
    assert_false(body_pool_take(pool, 1));
    body_budget_release(b, &held);
    body_pool_give(pool, 10 * MIB);
    assert_int_equal(body_budget_take(b, &more, 12 * MIB), BODY_GRANTED);
    assert_true(body_pool_take(pool, 4 * MIB));
    body_budget_set_total(b, 128 * MIB);
    assert_int_equal(body_budget_take(b, &more, 48 * MIB), BODY_GRANTED);
    assert_true(body_pool_take(pool, 28 * MIB));
    body_budget_check(b);
    body_budget_release(b, &more);
    body_pool_give(pool, 32 * MIB);
    body_budget_destroy(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_default_is_a_quarter_up_to_its_limit),
        cmocka_unit_test(long_bodies_leave_room_for_short_ones),
        cmocka_unit_test(an_owner_gets_half_and_always_one_body),
        cmocka_unit_test(without_shares_one_owner_may_hold_all),
        cmocka_unit_test(pressure_reaches_connections_that_can_relieve_it),
        cmocka_unit_test(few_may_wait),
        cmocka_unit_test(behaves_like_the_model),
        cmocka_unit_test(threads_share_it),
        cmocka_unit_test(another_total_holds_at_once_and_takes_nothing_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

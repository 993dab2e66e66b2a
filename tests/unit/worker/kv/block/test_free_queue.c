/* tests/unit/worker/kv/block/test_free_queue.c - order, membership, and random steps against an
 * array. */
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"
#include "tests/support/support.h"
#include "worker/kv/block/free_queue.h"

#define N 24

struct model {
    uint32_t ids[N];
    uint32_t n;
};

static void model_insert(struct model *m, uint32_t at, uint32_t id) {
    memmove(m->ids + at + 1, m->ids + at, (m->n - at) * sizeof(*m->ids));
    m->ids[at] = id;
    m->n++;
}

static void model_remove(struct model *m, uint32_t at) {
    m->n--;
    memmove(m->ids + at, m->ids + at + 1, (m->n - at) * sizeof(*m->ids));
}

static uint32_t model_find(const struct model *m, uint32_t id) {
    uint32_t at = 0;

    while (at < m->n && m->ids[at] != id)
        at++;
    return at;
}

static void assert_same(const struct free_queue *q, const struct model *m) {
    uint32_t id = free_queue_first(q);

    free_queue_check(q);
    assert_int_equal(q->count, m->n);
    for (uint32_t i = 0; i < m->n; i++, id = free_queue_next(q, id)) {
        assert_int_equal(id, m->ids[i]);
    }
    assert_int_equal(id, FREE_QUEUE_NONE);
}

static void one_step(struct free_queue *q, struct model *m, struct rng *rng) {
    uint32_t id = (uint32_t)rng_below(rng, N), at = model_find(m, id);

    assert_int_equal(free_queue_contains(q, id), at < m->n);
    if (at < m->n && rng_below(rng, 3) > 0) {
        free_queue_remove(q, id);
        model_remove(m, at);
    } else if (at < m->n) {
        assert_int_equal(free_queue_pop_front(q), m->ids[0]);
        model_remove(m, 0);
    } else if (rng_below(rng, 2)) {
        free_queue_push_back(q, id);
        model_insert(m, m->n, id);
    } else {
        free_queue_push_front(q, id);
        model_insert(m, 0, id);
    }
}

static void random_steps_match_an_array(void **state) {
    struct free_queue q;
    struct model m = {.n = 0};
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    free_queue_init(&q, N);
    for (int i = 0; i < 100000; i++) {
        one_step(&q, &m, &rng);
        assert_same(&q, &m);
    }
    free_queue_fini(&q);
}

static void remove_absent(void *arg) {
    free_queue_remove(arg, 1);
}

static void push_present(void *arg) {
    free_queue_push_back(arg, 0);
}

static void misuse_aborts(void **state) {
    struct free_queue q;

    (void)state;
    free_queue_init(&q, 2);
    free_queue_push_back(&q, 0);
    assert_true(kv_aborts(remove_absent, &q));
    assert_true(kv_aborts(push_present, &q));
    free_queue_fini(&q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_steps_match_an_array),
        cmocka_unit_test(misuse_aborts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

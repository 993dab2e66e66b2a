/* tests/unit/worker/text/test_text_queue.c - the order of texts, beside an array that is
 * searched. */
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/text/text_queue.h"

#define N_TEXTS 64
#define N_STEPS 200000

/* What waits, in the order of arrival. */
struct model {
    struct text_entry *entries[N_TEXTS];
    size_t n;
    uint32_t n_shortest;
};

static struct text_entry *model_take(struct model *m, size_t at) {
    struct text_entry *e = m->entries[at];

    memmove(&m->entries[at], &m->entries[at + 1], (m->n - at - 1) * sizeof(struct text_entry *));
    m->n--;
    return e;
}

static struct text_entry *model_shortest(struct model *m, size_t max_bytes) {
    size_t best = 0;

    for (size_t i = 1; i < m->n; i++) {
        if (m->entries[i]->n_bytes < m->entries[best]->n_bytes) best = i;
    }
    return m->n && m->entries[best]->n_bytes <= max_bytes ? model_take(m, best) : NULL;
}

static struct text_entry *model_pop(struct model *m, size_t max_bytes) {
    struct text_entry *e;

    if (m->n && m->n_shortest >= TEXT_QUEUE_TURNS - 1 && m->entries[0]->n_bytes <= max_bytes) {
        m->n_shortest = 0;
        return model_take(m, 0);
    }
    e = model_shortest(m, max_bytes);
    m->n_shortest += e != NULL;
    return e;
}

static void any_steps_are_as_a_search_has_them(void **state) {
    static struct text_entry entries[N_TEXTS];
    struct text_entry *unused[N_TEXTS];
    size_t n_unused = N_TEXTS;
    struct model m = {0};
    struct text_queue q;
    struct rng rng;

    (void)state;
    rng_seed(&rng, 71);
    text_queue_init(&q);
    for (size_t i = 0; i < N_TEXTS; i++)
        unused[i] = &entries[i];
    for (uint32_t step = 0; step < N_STEPS; step++) {
        size_t max_bytes = rng_below(&rng, 3) ? SIZE_MAX : rng_below(&rng, 12);
        struct text_entry *got = NULL, *want = NULL;

        switch (rng_below(&rng, 6)) {
        case 0:
        case 1:
        case 2:
            if (n_unused == 0) break;
            m.entries[m.n++] = unused[--n_unused];
            text_queue_push(&q, unused[n_unused], rng_below(&rng, 10));
            break;
        case 3:
            want = model_shortest(&m, max_bytes);
            got = text_queue_pop_shortest(&q, max_bytes);
            break;
        case 4:
            want = model_pop(&m, max_bytes);
            got = text_queue_pop(&q, max_bytes);
            break;
        default:
            if (m.n == 0) break;
            want = got = model_take(&m, rng_below(&rng, (uint32_t)m.n));
            text_queue_remove(&q, got);
        }
        assert_ptr_equal(got, want);
        if (got) unused[n_unused++] = got;
        if (step % 16 == 0) text_queue_check(&q);
    }
    while (text_queue_pop(&q, SIZE_MAX)) {
    }
    assert_int_equal(q.n_bytes, 0);
    text_queue_fini(&q);
}

/* However many shorter ones keep coming. */
static void oldest_is_chosen_within_four_turns(void **state) {
    struct text_entry old, young[8];
    struct text_queue q;
    uint32_t n = 0;

    (void)state;
    text_queue_init(&q);
    text_queue_push(&q, &old, 1u << 30);
    for (uint32_t i = 0; i < ARRAY_LEN(young); i++)
        text_queue_push(&q, &young[i], 10);
    while (text_queue_pop(&q, SIZE_MAX) != &old)
        n++;
    assert_int_equal(n, TEXT_QUEUE_TURNS - 1);
    while (text_queue_pop(&q, SIZE_MAX)) {
    }
    text_queue_fini(&q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_steps_are_as_a_search_has_them),
        cmocka_unit_test(oldest_is_chosen_within_four_turns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

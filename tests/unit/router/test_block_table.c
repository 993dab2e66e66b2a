/* tests/unit/router/test_block_table.c - against an array in order of age. */
#include "tests/support/cm.h"

#include "common/mem.h"
#include "common/rng.h"
#include "router/policy/block_table.h"

#include <string.h>

#define N_MAX     20
#define N_HASHES  60
#define N_WORKERS 70 /* two words */

struct model_block {
    uint64_t hash, put_us;
    bool holds[N_WORKERS];
    uint32_t owner;
};

/* Oldest first. */
struct model {
    struct model_block blocks[N_MAX];
    uint32_t n;
};

static void model_remove(struct model *m, uint32_t i) {
    memmove(&m->blocks[i], &m->blocks[i + 1], (--m->n - i) * sizeof(m->blocks[0]));
}

static uint32_t model_find(const struct model *m, uint64_t hash) {
    uint32_t i = 0;

    while (i < m->n && m->blocks[i].hash != hash)
        i++;
    return i;
}

static void model_put(struct model *m, uint64_t hash, uint32_t w, uint64_t now_us) {
    uint32_t i = model_find(m, hash);
    struct model_block b = {.hash = hash, .owner = w};

    if (i < m->n) {
        b = m->blocks[i];
        model_remove(m, i);
    } else if (m->n == N_MAX) {
        model_remove(m, 0);
    }
    b.holds[w] = true;
    b.put_us = now_us;
    m->blocks[m->n++] = b;
}

static void model_drop(struct model *m, uint32_t w) {
    for (uint32_t i = 0; i < m->n;) {
        struct model_block *b = &m->blocks[i];

        b->holds[w] = false;
        if (b->owner == w) {
            b->owner = 0;
            while (b->owner < N_WORKERS && !b->holds[b->owner])
                b->owner++;
        }
        if (b->owner == N_WORKERS)
            model_remove(m, i);
        else
            i++;
    }
}

static void compare(const struct block_table *t, const struct model *m) {
    assert_int_equal(block_table_n_blocks(t), m->n);
    for (uint64_t hash = 0; hash < N_HASHES; hash++) {
        uint32_t i = model_find(m, hash);
        struct block_holders h;

        assert_int_equal(block_table_find(t, hash, &h), i < m->n);
        if (i == m->n) continue;
        assert_int_equal(h.owner, m->blocks[i].owner);
        assert_int_equal(h.put_us, m->blocks[i].put_us);
        for (uint32_t w = 0; w < N_WORKERS; w++)
            assert_int_equal(worker_mask_has(h.mask, w), m->blocks[i].holds[w]);
    }
}

static void it_does_what_the_model_does(void **state) {
    struct block_table *t = block_table_create(N_MAX, N_WORKERS);
    struct model m = {0};
    struct rng rng;
    (void)state;

    rng_seed(&rng, 1);
    for (uint64_t now_us = 0; now_us < 30000; now_us++) {
        uint32_t w = (uint32_t)rng_below(&rng, N_WORKERS);
        uint64_t what = rng_below(&rng, 100);

        if (what == 0) {
            block_table_worker_down(t, w);
            model_drop(&m, w);
        } else if (what == 1 && now_us > 40) {
            block_table_expire(t, now_us - 20);
            while (m.n && m.blocks[0].put_us < now_us - 20)
                model_remove(&m, 0);
        } else {
            uint64_t hash = rng_below(&rng, N_HASHES);

            block_table_put(t, hash, w, now_us);
            model_put(&m, hash, w, now_us);
        }
        if (now_us % 50 == 0) {
            block_table_check(t);
            compare(t, &m);
        }
    }
    block_table_destroy(t);
}

static void a_worker_that_returns_as_it_was_keeps_its_blocks(void **state) {
    struct block_table *t = block_table_create(8, 4);
    struct worker_spec first = {.identity = 5, .generation = 1}, second = first;
    struct block_holders h;
    (void)state;

    second.generation = 2;
    block_table_worker_up(t, 3, &first);
    block_table_put(t, 77, 3, 0);
    block_table_worker_up(t, 3, &first);
    assert_true(block_table_find(t, 77, &h));
    block_table_worker_up(t, 3, &second);
    assert_false(block_table_find(t, 77, &h));
    block_table_put(t, 77, 3, 0);
    block_table_put(t, 77, 1, 0);
    block_table_worker_down(t, 3);
    assert_true(block_table_find(t, 77, &h));
    assert_int_equal(h.owner, 1);
    block_table_check(t);
    block_table_destroy(t);
}

static void refused_memory_is_an_answer(void **state) {
    (void)state;
    for (uint64_t i = 1; i <= 4; i++) {
        mem_fail_at(i);
        struct block_table *t = block_table_create(100, 4);
        mem_fail_at(0);
        assert_int_equal(t != NULL, i == 4);
        block_table_destroy(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_does_what_the_model_does),
        cmocka_unit_test(a_worker_that_returns_as_it_was_keeps_its_blocks),
        cmocka_unit_test(refused_memory_is_an_answer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/router/routing/test_block_table.c - against an array in order of age, where a worker
 * that goes is looked for in every block. */
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/routing/policy/block_table.h"
#include "tests/support/cm.h"

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

static void compare(struct block_table *t, const struct model *m) {
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

/* With each worker's going all room is found again: the table is the model, full or not. */
static void the_table_matches_the_model(void **state) {
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
            block_table_tidy(t, N_MAX);
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

/* Few workers, which go often and come back under the same number; room for all blocks, so that
 * nothing depends on when it is found again. */
static void blocks_of_a_removed_worker_vanish_at_once(void **state) {
    enum { N_FEW = 5 };
    struct block_table *t = block_table_create(N_MAX, N_FEW);
    struct model m = {0};
    uint32_t n_more = 0;
    struct rng rng;
    (void)state;

    rng_seed(&rng, 2);
    for (uint64_t now_us = 0; now_us < 30000; now_us++) {
        uint32_t w = (uint32_t)rng_below(&rng, N_FEW);
        uint64_t hash = rng_below(&rng, N_MAX);
        uint32_t i = model_find(&m, hash);
        struct block_holders h;

        if (rng_below(&rng, 6) == 0) {
            block_table_worker_down(t, w);
            model_drop(&m, w);
        } else if (rng_below(&rng, 2) == 0) {
            block_table_put(t, hash, w, now_us);
            model_put(&m, hash, w, now_us);
        } else {
            assert_int_equal(block_table_find(t, hash, &h), i < m.n);
            if (i == m.n) continue;
            assert_int_equal(h.owner, m.blocks[i].owner);
            for (uint32_t k = 0; k < N_FEW; k++)
                assert_int_equal(worker_mask_has(h.mask, k), m.blocks[i].holds[k]);
        }
        block_table_check(t);
        assert_true(block_table_n_blocks(t) >= m.n);
        n_more += block_table_n_blocks(t) > m.n;
        if (now_us % 100 == 0) block_table_tidy(t, (uint32_t)rng_below(&rng, N_MAX));
    }
    assert_in_range(n_more, 1, 29999);
    block_table_destroy(t);
}

/* No lookup reads the blocks of a removed worker: puts find their room. Here they look at those
 * of another one first, and an eighth of the table is lost meanwhile, the oldest. */
static void room_is_found_again_in_passing(void **state) {
    enum { N = 1000 };
    struct block_table *t = block_table_create(2 * N, 4);
    struct block_holders h;
    (void)state;

    for (uint64_t hash = 0; hash < 2 * N; hash++) {
        block_table_put(t, hash, hash < N, hash); /* the older half is 1's */
    }
    block_table_worker_down(t, 0);
    for (uint64_t hash = 0; hash < N / 2; hash++)
        block_table_put(t, 2 * N + hash, 2, 2 * N);
    block_table_check(t);
    assert_int_equal(block_table_n_blocks(t), N + N / 2 - N / 4);
    for (uint64_t hash = 0; hash < N; hash++)
        assert_int_equal(block_table_find(t, hash, &h), hash >= N / 4);
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
        cmocka_unit_test(the_table_matches_the_model),
        cmocka_unit_test(blocks_of_a_removed_worker_vanish_at_once),
        cmocka_unit_test(room_is_found_again_in_passing),
        cmocka_unit_test(a_worker_that_returns_as_it_was_keeps_its_blocks),
        cmocka_unit_test(refused_memory_is_an_answer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

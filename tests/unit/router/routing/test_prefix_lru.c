/* tests/unit/router/routing/test_prefix_lru.c - the life of entries, against arrays that are
 * searched. */
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/routing/prefix_index_internal.h"
#include "router/routing/prefix_lru.h"
#include "tests/support/cm.h"

struct books {
    struct prefix_index *index;
    struct prefix_lru *lru;
};

/* Of four to seven lines at first: the index grows under each test. */
static struct books books_open(uint32_t n_entries, uint32_t n_workers, uint64_t capacity) {
    struct books b = {.index = prefix_index_create_small(n_entries, n_workers, 2)};

    b.lru = prefix_lru_create(b.index, n_workers);
    for (uint32_t w = 0; w < n_workers; w++)
        prefix_lru_set_capacity(b.lru, w, capacity);
    return b;
}

static void books_close(struct books *b) {
    prefix_lru_check(b->lru);
    prefix_lru_destroy(b->lru);
    prefix_index_destroy(b->index);
}

static void serve(struct books *b, uint32_t w, const uint64_t *chain, uint32_t n,
                  uint32_t n_output) {
    assert_int_equal(prefix_lru_sent(b->lru, w, chain, n, NULL), n);
    prefix_lru_ended(b->lru, w, chain, n, NULL, n_output);
}

static uint32_t depth_of(const struct books *b, uint32_t w, const uint64_t *chain, uint32_t n) {
    uint32_t depth[64];
    uint64_t mask = UINT64_C(1) << w;

    prefix_index_match(b->index, chain, n, &mask, depth, NULL);
    return depth[w];
}

static const uint64_t A[] = {101, 102, 103, 104}, B[] = {201, 202, 203, 204};

static void a_pending_request_matches_at_once(void **state) {
    struct books b = books_open(64, 2, 100);
    (void)state;

    assert_int_equal(prefix_lru_sent(b.lru, 1, A, 4, NULL), 4);
    assert_int_equal(depth_of(&b, 1, A, 4), 4);
    assert_int_equal(depth_of(&b, 0, A, 4), 0);
    assert_int_equal(prefix_lru_n_held(b.lru, 1), 4);
    prefix_lru_aborted(b.lru, 1, A, 4, NULL);
    assert_int_equal(depth_of(&b, 1, A, 4), 0);
    assert_int_equal(prefix_lru_n_entries(b.lru), 0);
    books_close(&b);
}

static void an_abort_restores_the_earlier_blocks(void **state) {
    struct books b = books_open(64, 2, 100);
    (void)state;

    serve(&b, 0, A, 2, 0);
    assert_int_equal(prefix_lru_sent(b.lru, 0, A, 4, NULL), 4);
    prefix_lru_aborted(b.lru, 0, A, 4, NULL);
    assert_int_equal(depth_of(&b, 0, A, 4), 2);
    books_close(&b);
}

static void the_deepest_block_goes_first(void **state) {
    struct books b = books_open(64, 1, 6);
    (void)state;

    serve(&b, 0, A, 4, 0);
    serve(&b, 0, B, 3, 0); /* one too many */
    assert_int_equal(depth_of(&b, 0, A, 4), 3);
    assert_int_equal(depth_of(&b, 0, B, 4), 3);
    books_close(&b);
}

static void use_makes_young_again(void **state) {
    struct books b = books_open(64, 1, 8);
    static const uint64_t C[] = {301, 302, 303};
    (void)state;

    serve(&b, 0, A, 4, 0);
    serve(&b, 0, B, 4, 0);
    serve(&b, 0, A, 4, 0);
    serve(&b, 0, C, 3, 0);
    assert_int_equal(depth_of(&b, 0, A, 4), 4);
    assert_int_equal(depth_of(&b, 0, B, 4), 1);
    books_close(&b);
}

static void output_takes_room_and_goes_before_its_prompt(void **state) {
    struct books b = books_open(64, 1, 8);
    (void)state;

    serve(&b, 0, A, 4, 4); /* full: 4 named, 4 anonymous */
    serve(&b, 0, B, 3, 0);
    assert_int_equal(depth_of(&b, 0, A, 4), 4); /* 3 of the anonymous went */
    serve(&b, 0, B, 4, 1);
    assert_int_equal(depth_of(&b, 0, A, 4), 3);
    books_close(&b);
}

static void blocks_in_use_stay(void **state) {
    struct books b = books_open(64, 1, 4);
    (void)state;

    assert_int_equal(prefix_lru_sent(b.lru, 0, A, 4, NULL), 4);
    serve(&b, 0, B, 4, 0);
    assert_int_equal(depth_of(&b, 0, A, 4), 4);
    assert_int_equal(depth_of(&b, 0, B, 4), 0);
    prefix_lru_ended(b.lru, 0, A, 4, NULL, 0);
    assert_int_equal(depth_of(&b, 0, A, 4), 4);
    books_close(&b);
}

/* As many requests as a record can count: the next one's chain is not recorded from there on. */
static void more_pins_than_can_be_counted_are_refused(void **state) {
    struct books b = books_open(64, 1, 100);
    (void)state;

    for (uint32_t i = 0; i < PREFIX_PINS_MAX; i++)
        assert_int_equal(prefix_lru_sent(b.lru, 0, A, 2, NULL), 2);
    assert_int_equal(prefix_lru_sent(b.lru, 0, A, 4, NULL), 0);
    prefix_lru_ended(b.lru, 0, A, 0, NULL, 0);
    prefix_lru_check(b.lru);
    for (uint32_t i = 0; i < PREFIX_PINS_MAX; i++)
        prefix_lru_ended(b.lru, 0, A, 2, NULL, 0);
    assert_int_equal(prefix_lru_n_pinned(b.lru, 0), 0);
    assert_int_equal(depth_of(&b, 0, A, 4), 2);
    books_close(&b);
}

static void a_full_pool_takes_from_the_largest(void **state) {
    struct books b = books_open(8, 3, 100);
    static const uint64_t C[] = {301, 302, 303, 304}, D[] = {401, 402, 403, 404};
    (void)state;

    serve(&b, 0, A, 4, 0);
    serve(&b, 1, B, 4, 0);
    assert_int_equal(prefix_lru_sent(b.lru, 0, C, 2, NULL), 2); /* as large as any: its own go */
    assert_int_equal(depth_of(&b, 0, A, 4), 2);
    assert_int_equal(depth_of(&b, 1, B, 4), 4);
    assert_int_equal(prefix_lru_sent(b.lru, 2, D, 4, NULL),
                     4); /* one each of the larger, in turn */
    assert_int_equal(depth_of(&b, 2, D, 4), 4);
    assert_int_equal(depth_of(&b, 0, A, 4) + depth_of(&b, 1, B, 4), 2);
    prefix_lru_check(b.lru);
    assert_int_equal(prefix_lru_sent(b.lru, 1, A, 4, NULL), 2); /* then all is pinned */
    assert_int_equal(prefix_lru_n_refused(b.lru), 2);
    prefix_lru_aborted(b.lru, 1, A, 2, NULL);
    prefix_lru_aborted(b.lru, 2, D, 4, NULL);
    prefix_lru_aborted(b.lru, 0, C, 2, NULL);
    books_close(&b);
}

static void a_dropped_worker_is_forgotten_alone(void **state) {
    struct books b = books_open(64, 2, 100);
    (void)state;

    serve(&b, 0, A, 4, 2);
    serve(&b, 1, A, 4, 2);
    assert_int_equal(prefix_lru_sent(b.lru, 0, B, 4, NULL), 4);
    prefix_lru_drop_worker(b.lru, 0);
    assert_int_equal(depth_of(&b, 0, A, 4), 0);
    assert_int_equal(depth_of(&b, 0, B, 4), 0);
    assert_int_equal(depth_of(&b, 1, A, 4), 4);
    assert_int_equal(prefix_lru_n_entries(b.lru), 5);
    books_close(&b);
}

/* More than one event takes away: the rest is dead meanwhile, and may be computed again. */
static void a_large_worker_is_forgotten_in_one_stroke(void **state) {
    enum { N = 1000, OFTEN = 10 };
    struct books b = books_open(4 * N, 2, N);
    uint64_t chain[N], other[1] = {7};
    uint32_t n_rounds = 0;
    (void)state;

    for (uint64_t i = 0; i < N; i++)
        chain[i] = rng_mix(i);
    serve(&b, 0, chain, N, 0);
    serve(&b, 1, chain, N / 2, 0);
    prefix_lru_drop_worker(b.lru, 0);
    assert_int_equal(depth_of(&b, 0, chain, 40), 0);
    assert_int_equal(depth_of(&b, 1, chain, 40), 40);
    assert_int_equal(prefix_lru_n_held(b.lru, 0), 0);
    assert_true(prefix_lru_n_entries(b.lru) > N); /* not yet taken away */
    prefix_lru_check(b.lru);
    serve(&b, 0, chain, 40, 0);
    assert_int_equal(depth_of(&b, 0, chain, 64), 40);
    prefix_lru_check(b.lru);
    for (; prefix_lru_n_entries(b.lru) > N / 2 + 40 + 1; n_rounds++)
        serve(&b, 1, other, 1, 0);
    assert_true(n_rounds > OFTEN);
    assert_int_equal(depth_of(&b, 0, chain, 64), 40);
    prefix_lru_drop_worker(b.lru, 1);
    prefix_lru_drop_worker(b.lru, 1); /* before the first was finished */
    assert_int_equal(prefix_lru_n_entries(b.lru), 40);
    books_close(&b);
}

static void a_lowered_capacity_is_worked_off(void **state) {
    struct books b = books_open(2000, 1, 1000);
    uint64_t chain[1000], other[1] = {7};
    (void)state;

    for (uint64_t i = 0; i < 1000; i++)
        chain[i] = rng_mix(i);
    serve(&b, 0, chain, 1000, 0);
    prefix_lru_set_capacity(b.lru, 0, 100);
    assert_int_equal(prefix_lru_n_held(b.lru, 0), 1000 - PREFIX_LRU_TIDY_MAX);
    for (int i = 0; i < 30; i++)
        serve(&b, 0, other, 1, 0);
    assert_int_equal(prefix_lru_n_held(b.lru, 0), 100);
    assert_true(prefix_index_has(b.index, chain[98], 0)); /* the opening and what came last */
    assert_false(prefix_index_has(b.index, chain[99], 0));
    books_close(&b);
}

/* --- below the device ------------------------------------------------------------------------ */

static uint32_t on_device(const struct books *b, uint32_t w, const uint64_t *chain, uint32_t n) {
    return prefix_lru_on_device(b->lru, w, chain, depth_of(b, w, chain, n), NULL);
}

static void what_leaves_the_device_stays_routable(void **state) {
    struct books b = books_open(64, 1, 4);
    (void)state;

    prefix_lru_set_below(b.lru, 0, 4, true);
    serve(&b, 0, A, 4, 0);
    assert_int_equal(on_device(&b, 0, A, 4), 4);
    serve(&b, 0, B, 3, 0); /* the device has turned over, but for the first block */
    assert_int_equal(depth_of(&b, 0, A, 4), 4);
    assert_int_equal(on_device(&b, 0, A, 4), 1);
    assert_int_equal(on_device(&b, 0, B, 3), 3);
    assert_int_equal(prefix_lru_n_below(b.lru, 0), 3);
    assert_int_equal(prefix_lru_n_held(b.lru, 0), 7);
    books_close(&b);
}

static void a_use_brings_blocks_back_to_the_device(void **state) {
    struct books b = books_open(64, 1, 4);
    static const uint64_t C[] = {301, 302};
    (void)state;

    prefix_lru_set_below(b.lru, 0, 6, false);
    serve(&b, 0, A, 4, 0);
    serve(&b, 0, B, 4, 0);
    assert_int_equal(on_device(&b, 0, A, 4), 0);
    serve(&b, 0, A, 4, 0);
    assert_int_equal(on_device(&b, 0, A, 4), 4);
    assert_int_equal(on_device(&b, 0, B, 4), 0);
    serve(&b, 0, C, 2, 0);
    assert_int_equal(on_device(&b, 0, A, 4), 2);
    assert_int_equal(depth_of(&b, 0, A, 4), 4); /* B was before it below, and is next to go */
    assert_int_equal(prefix_lru_n_below(b.lru, 0), 6);
    books_close(&b);
}

static void an_abort_leaves_what_came_back_on_the_device(void **state) {
    struct books b = books_open(64, 1, 4);
    (void)state;

    prefix_lru_set_below(b.lru, 0, 8, true);
    serve(&b, 0, A, 3, 0);
    serve(&b, 0, B, 4, 0);
    assert_int_equal(prefix_lru_sent(b.lru, 0, A, 4, NULL), 4);
    assert_int_equal(on_device(&b, 0, A, 4), 4);
    prefix_lru_aborted(b.lru, 0, A, 4, NULL);
    assert_int_equal(depth_of(&b, 0, A, 4), 3); /* the fourth was never computed */
    assert_int_equal(on_device(&b, 0, A, 4), 3);
    books_close(&b);
}

/* Four below: A's three came back and left copies, so B finds room for one block alone. */
static void copies_take_room_below(void **state) {
    for (int keeps = 0; keeps < 2; keeps++) {
        struct books b = books_open(64, 1, 4);

        prefix_lru_set_below(b.lru, 0, 4, keeps);
        serve(&b, 0, A, 4, 0);
        serve(&b, 0, B, 3, 0);
        serve(&b, 0, A, 4, 0);
        assert_int_equal(on_device(&b, 0, A, 4), 4);
        assert_int_equal(depth_of(&b, 0, B, 3), keeps ? 1 : 3);
        books_close(&b);
    }
    (void)state;
}

static void output_goes_below_whole(void **state) {
    struct books b = books_open(64, 1, 6);
    (void)state;

    prefix_lru_set_below(b.lru, 0, 4, false);
    serve(&b, 0, A, 2, 3);
    serve(&b, 0, B, 2, 0); /* one block too many: the three of the output go */
    assert_int_equal(prefix_lru_n_below(b.lru, 0), 3);
    assert_int_equal(on_device(&b, 0, A, 2), 2);
    prefix_lru_set_below(b.lru, 0, 1, false);
    assert_int_equal(prefix_lru_n_below(b.lru, 0), 1); /* and shrink there */
    books_close(&b);
}

static void memory_below_that_is_gone_is_forgotten(void **state) {
    struct books b = books_open(64, 2, 4);
    (void)state;

    prefix_lru_set_below(b.lru, 0, 100, true);
    serve(&b, 0, A, 4, 0);
    serve(&b, 0, B, 4, 0);
    assert_true(worker_mask_has(prefix_lru_below(b.lru), 0));
    prefix_lru_set_below(b.lru, 0, 0, false);
    assert_int_equal(depth_of(&b, 0, A, 4), 0);
    assert_int_equal(depth_of(&b, 0, B, 4), 4);
    assert_false(worker_mask_has(prefix_lru_below(b.lru), 0));
    prefix_lru_set_below(b.lru, 0, 100, true);
    serve(&b, 0, A, 4, 0);
    prefix_lru_drop_worker(b.lru, 0);
    assert_int_equal(depth_of(&b, 0, A, 4) + depth_of(&b, 0, B, 4), 0);
    assert_int_equal(prefix_lru_n_held(b.lru, 0), 0);
    books_close(&b);
}

static void a_full_pool_takes_from_below_first(void **state) {
    struct books b = books_open(8, 2, 4);
    static const uint64_t C[] = {301, 302};
    (void)state;

    prefix_lru_set_below(b.lru, 0, 100, false);
    serve(&b, 0, A, 4, 0);
    serve(&b, 0, B, 4, 0);
    serve(&b, 1, C, 2, 0);
    assert_int_equal(depth_of(&b, 0, A, 4), 2);
    assert_int_equal(on_device(&b, 0, B, 4), 4);
    books_close(&b);
}

/* --- the model: for each worker, blocks in order of age in a plain array --------------------- */

#define N_WORKERS  7
#define N_BLOCKS   60
#define N_REQUESTS 12
#define DEPTH      6
#define AGE_MAX    400

struct model_worker {
    uint64_t cold[AGE_MAX]; /* oldest first; 0 is an anonymous block */
    uint64_t below[AGE_MAX];
    uint32_t n_cold, capacity, n_below, below_capacity;
    uint32_t pins[N_BLOCKS + 1];
    bool is_computed[N_BLOCKS + 1], is_below[N_BLOCKS + 1], has_copy[N_BLOCKS + 1];
    bool keeps_copies;
};

struct model_request {
    bool is_open, is_running;
    uint32_t worker, n;
    uint64_t chain[DEPTH];
    uint32_t guesses[DEPTH + 1], *where; /* where: guesses, or NULL */
};

/* Sends a request that guesses not at all, or as the match has seen it. What it takes along may not
 * be true any more when it comes back, or never have been: that makes no difference. */
static uint32_t model_send(struct books *b, struct rng *r, struct model_request *q,
                           uint32_t n_records, uint32_t stride) {
    uint64_t mask[2] = {0};
    uint32_t depth[128], n;

    for (uint32_t w = 0; w < N_WORKERS; w++)
        worker_mask_add(mask, w * stride);
    q->where = rng_below(r, 3) ? q->guesses : NULL;
    prefix_index_match(b->index, q->chain, q->n, mask, depth, q->where);
    n = prefix_lru_sent(b->lru, q->worker * stride, q->chain, q->n, q->where);
    if (q->where && rng_below(r, 3) == 0) {
        q->guesses[n]--;
        for (uint32_t i = 0; i < n && rng_below(r, 2); i++)
            q->guesses[i] = rng_below(r, 4) ? (uint32_t)rng_below(r, n_records) : PREFIX_NONE;
    }
    return n;
}

static uint64_t model_take(uint64_t *list, uint32_t *n, uint32_t i) {
    uint64_t block = list[i];

    memmove(list + i, list + i + 1, (--*n - i) * sizeof(*list));
    return block;
}

static void model_unlist(uint64_t *list, uint32_t *n, uint64_t block) {
    for (uint32_t i = 0; i < *n; i++) {
        if (list[i] != block) continue;
        (void)model_take(list, n, i);
        return;
    }
    fail();
}

static void model_trim(struct model_worker *k) {
    uint32_t n_pinned = 0, n_copies = 0;

    for (uint32_t b = 1; b <= N_BLOCKS; b++)
        n_pinned += k->pins[b] > 0;
    while (k->n_cold && k->n_cold + n_pinned > k->capacity) {
        uint64_t b = model_take(k->cold, &k->n_cold, 0);

        k->is_computed[b] = k->has_copy[b] = false;
        k->is_below[b] = k->below_capacity > 0;
        if (k->below_capacity) k->below[k->n_below++] = b;
    }
    for (uint32_t b = 1; b <= N_BLOCKS; b++)
        n_copies += k->has_copy[b];
    while (k->n_below && k->n_below + n_copies > k->below_capacity)
        k->is_below[model_take(k->below, &k->n_below, 0)] = false;
}

static void model_set_below(struct books *b, struct model_worker *k, uint32_t id, uint32_t n) {
    k->below_capacity = n;
    k->keeps_copies = n % 2;
    prefix_lru_set_below(b->lru, id, n, k->keeps_copies);
    model_trim(k);
}

/* A request takes block b. */
static void model_pin(struct model_worker *k, uint64_t b) {
    if (k->pins[b]++) return;
    if (k->is_below[b]) {
        model_unlist(k->below, &k->n_below, b);
        k->is_below[b] = false;
        k->is_computed[b] = true;
        k->has_copy[b] = k->keeps_copies;
    } else if (k->is_computed[b]) {
        model_unlist(k->cold, &k->n_cold, b);
    }
}

static bool model_has(const struct model_worker *k, uint64_t b) {
    return k->pins[b] || k->is_computed[b] || k->is_below[b];
}

/* Chains are paths of a tree: the children of block b are 3b - 1, 3b and 3b + 1. */
static uint32_t random_chain(struct rng *r, uint64_t *chain) {
    uint32_t n = 0, limit = 1 + (uint32_t)rng_below(r, DEPTH - 1);

    for (uint64_t b = 1; b <= N_BLOCKS && n < limit; b = 3 * b - 1 + rng_below(r, 3))
        chain[n++] = b;
    return n;
}

/* Also what a match has seen leads to the same answer. */
static void same_on_device(const struct books *b, struct rng *r, const struct model_worker *k,
                           uint32_t id) {
    uint64_t chain[DEPTH + 1], mask[2] = {0};
    uint32_t n, held = 0, expected = 0, depth[128], guesses[DEPTH + 1];

    n = random_chain(r, chain);
    worker_mask_add(mask, id);
    prefix_index_match(b->index, chain, n, mask, depth, guesses);
    while (held < n && model_has(k, chain[held]))
        held++;
    while (expected < held && !k->is_below[chain[expected]])
        expected++;
    assert_int_equal(depth[id], held);
    prefix_lru_ask_device(b->lru, id, chain, held, guesses);
    assert_int_equal(prefix_lru_on_device(b->lru, id, chain, held, guesses), expected);
    assert_int_equal(prefix_lru_on_device(b->lru, id, chain, held, NULL), expected);
}

static void model_unpin(struct model_worker *k, const struct model_request *q) {
    for (uint32_t i = q->n; i-- > 0;) {
        uint64_t b = q->chain[i];

        if (--k->pins[b] == 0 && k->is_computed[b]) k->cold[k->n_cold++] = b;
    }
    model_trim(k);
}

/* The seven workers have the ids 0, stride, 2 x stride ... of a fleet of n_workers. has_below: they
 * have a second list; a run of output then has one block, as it goes there whole. */
static void compare_with_arrays(uint32_t n_workers, uint32_t stride, bool has_below, int n_steps,
                                uint64_t seed) {
    static struct model_worker model[N_WORKERS];
    struct model_request requests[N_REQUESTS] = {0};
    struct books b = books_open(2000, n_workers, 20);
    uint64_t n_entered[N_WORKERS] = {0};
    struct rng r;

    rng_seed(&r, seed);
    memset(model, 0, sizeof(model));
    for (uint32_t w = 0; w < N_WORKERS; w++) {
        model[w].capacity = 20;
        if (has_below) model_set_below(&b, &model[w], w * stride, 12);
    }
    for (int step = 0; step < n_steps; step++) {
        struct model_request *q = &requests[rng_below(&r, N_REQUESTS)];
        struct model_worker *k = &model[q->worker];

        if (step % 1000 == 999) { /* a restart, or another capacity */
            uint32_t w = (uint32_t)rng_below(&r, N_WORKERS);

            k = &model[w];
            if (rng_below(&r, 2)) {
                prefix_lru_drop_worker(b.lru, w * stride);
                *k = (struct model_worker){.capacity = k->capacity,
                                           .below_capacity = k->below_capacity,
                                           .keeps_copies = k->keeps_copies};
                for (int i = 0; i < N_REQUESTS; i++) {
                    if (requests[i].worker == w) requests[i].is_open = false;
                }
            } else {
                k->capacity = 5 + (uint32_t)rng_below(&r, 40);
                prefix_lru_set_capacity(b.lru, w * stride, k->capacity);
                model_trim(k);
                if (has_below) model_set_below(&b, k, w * stride, 1 + (uint32_t)rng_below(&r, 40));
            }
        } else if (step % 100 == 50) { /* what others entered */
            uint32_t w = (uint32_t)rng_below(&r, N_WORKERS),
                     n = 1 + (has_below ? 0 : step / 100 % 3);

            prefix_lru_fill(b.lru, w * stride, n);
            for (uint32_t i = 0; i < n; i++)
                model[w].cold[model[w].n_cold++] = 0;
            model_trim(&model[w]);
        } else if (!q->is_open) {
            *q = (struct model_request){.is_open = true,
                                        .worker = (uint32_t)rng_below(&r, N_WORKERS)};
            k = &model[q->worker];
            q->n = random_chain(&r, q->chain);
            assert_int_equal(model_send(&b, &r, q, 2000, stride), q->n);
            for (uint32_t i = 0; i < q->n; i++) {
                n_entered[q->worker] += !model_has(k, q->chain[i]);
                model_pin(k, q->chain[i]);
            }
            model_trim(k);
        } else if (!q->is_running && rng_below(&r, 4)) {
            q->is_running = true;
            for (uint32_t i = 0; i < q->n; i++)
                k->is_computed[q->chain[i]] = true;
        } else if (!q->is_running) {
            q->is_open = false;
            prefix_lru_aborted(b.lru, q->worker * stride, q->chain, q->n, q->where);
            model_unpin(k, q);
        } else {
            uint32_t n_output = (uint32_t)rng_below(&r, has_below ? 2 : 4);

            q->is_open = q->is_running = false;
            n_entered[q->worker] += n_output;
            prefix_lru_ended(b.lru, q->worker * stride, q->chain, q->n, q->where, n_output);
            for (uint32_t i = 0; i < n_output; i++)
                k->cold[k->n_cold++] = 0;
            model_unpin(k, q);
        }
        if (step % 20) continue;
        for (uint32_t w = 0; w < N_WORKERS; w++) {
            for (uint64_t block = 1; block <= N_BLOCKS; block++)
                assert_int_equal(prefix_index_has(b.index, block, w * stride),
                                 model_has(&model[w], block));
            assert_int_equal(prefix_lru_n_below(b.lru, w * stride), model[w].n_below);
            assert_int_equal(prefix_lru_n_entered(b.lru, w * stride), n_entered[w]);
            same_on_device(&b, &r, &model[w], w * stride);
        }
        prefix_lru_check(b.lru);
    }
    for (int i = 0; i < N_REQUESTS; i++) {
        if (requests[i].is_open)
            prefix_lru_ended(b.lru, requests[i].worker * stride, requests[i].chain, 0, NULL, 0);
    }
    books_close(&b);
}

static void behaves_like_arrays_that_are_searched(void **state) {
    (void)state;
    compare_with_arrays(N_WORKERS, 1, false, 200000, 3);
    compare_with_arrays(N_WORKERS, 1, true, 200000, 3);
}

/* Where a set of workers is ids, or a row. */
static void a_large_fleet_matches_the_model(void **state) {
    (void)state;
    compare_with_arrays(100, 14, false, 50000, 3);
    compare_with_arrays(100, 14, true, 50000, 4);
}

/* The first steps, many times: the index is growing in all of them. */
static void an_index_that_grows_matches_the_model(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++)
        compare_with_arrays(seed % 2 ? 100 : N_WORKERS, seed % 2 ? 14 : 1, seed % 4 > 1, 300, seed);
}

/* Long chains, so that what a dropped worker leaves behind stays for many events: nothing of it is
 * ever matched, and what is computed again is. */
static void kill_and_match(int n_steps, uint64_t seed) {
    enum { N_CHAINS = 6, N = 500, N_OPEN = 8 };
    static uint64_t chains[N_CHAINS][N];
    uint32_t computed[2][N_CHAINS] = {{0}};
    struct {
        uint32_t worker, chain, n;
        bool is_open;
    } open[N_OPEN] = {{0}};
    struct books b = books_open(20000, 2, 100000);
    struct rng r;

    rng_seed(&r, seed);
    for (uint64_t i = 0; i < N_CHAINS * N; i++)
        chains[i / N][i % N] = rng_mix(i);
    for (int step = 0; step < n_steps; step++) {
        uint32_t i = (uint32_t)rng_below(&r, N_OPEN), w = open[i].worker, c = open[i].chain;

        if (step % 40 == 30) {
            w = (uint32_t)rng_below(&r, 2);
            prefix_lru_drop_worker(b.lru, w);
            memset(computed[w], 0, sizeof(computed[w]));
            for (i = 0; i < N_OPEN; i++)
                open[i].is_open &= open[i].worker != w;
        } else if (!open[i].is_open) {
            open[i].worker = w = (uint32_t)rng_below(&r, 2);
            open[i].chain = c = (uint32_t)rng_below(&r, N_CHAINS);
            open[i].n = 1 + (uint32_t)rng_below(&r, N);
            open[i].is_open = true;
            assert_int_equal(prefix_lru_sent(b.lru, w, chains[c], open[i].n, NULL), open[i].n);
        } else {
            open[i].is_open = false;
            if (rng_below(&r, 4)) {
                prefix_lru_ended(b.lru, w, chains[c], open[i].n, NULL, 1);
                computed[w][c] = MAX(computed[w][c], open[i].n);
            } else {
                prefix_lru_aborted(b.lru, w, chains[c], open[i].n, NULL);
            }
        }
        for (w = 0; w < 2; w++) {
            for (c = 0; c < N_CHAINS; c++) {
                uint32_t depth[64], expected = computed[w][c];
                uint64_t mask = UINT64_C(1) << w;

                for (i = 0; i < N_OPEN; i++) {
                    if (open[i].is_open && open[i].worker == w && open[i].chain == c)
                        expected = MAX(expected, open[i].n);
                }
                prefix_index_match(b.index, chains[c], N, &mask, depth, NULL);
                assert_int_equal(depth[w], expected);
            }
        }
        if (step % 100 == 0) prefix_lru_check(b.lru);
    }
    for (uint32_t i = 0; i < N_OPEN; i++) {
        if (open[i].is_open)
            prefix_lru_aborted(b.lru, open[i].worker, chains[open[i].chain], open[i].n, NULL);
    }
    books_close(&b);
}

static void the_dead_never_match(void **state) {
    (void)state;
    kill_and_match(4000, 11);
    for (uint64_t seed = 0; seed < 20; seed++) /* while the index grows */
        kill_and_match(60, seed);
}

/* A pool that is always too small: nothing is lost, whatever is stolen. */
static void a_starved_pool_stays_whole(void **state) {
    struct model_request requests[N_REQUESTS] = {0};
    struct books b = books_open(24, N_WORKERS, 20);
    struct rng r;
    (void)state;

    rng_seed(&r, 5);
    for (int step = 0; step < 50000; step++) {
        struct model_request *q = &requests[rng_below(&r, N_REQUESTS)];

        if (step % 500 == 499) {
            uint32_t w = (uint32_t)rng_below(&r, N_WORKERS);

            prefix_lru_drop_worker(b.lru, w);
            for (int i = 0; i < N_REQUESTS; i++) {
                if (requests[i].worker == w) requests[i].is_open = false;
            }
        } else if (!q->is_open) {
            *q = (struct model_request){.is_open = true,
                                        .worker = (uint32_t)rng_below(&r, N_WORKERS)};
            q->n = random_chain(&r, q->chain);
            q->n = model_send(&b, &r, q, 24, 1);
        } else if (!q->is_running && rng_below(&r, 4)) {
            q->is_running = true;
        } else {
            if (q->is_running)
                prefix_lru_ended(b.lru, q->worker, q->chain, q->n, q->where, 2);
            else
                prefix_lru_aborted(b.lru, q->worker, q->chain, q->n, q->where);
            q->is_open = q->is_running = false;
        }
        prefix_lru_check(b.lru);
    }
    books_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pending_request_matches_at_once),
        cmocka_unit_test(an_abort_restores_the_earlier_blocks),
        cmocka_unit_test(the_deepest_block_goes_first),
        cmocka_unit_test(use_makes_young_again),
        cmocka_unit_test(output_takes_room_and_goes_before_its_prompt),
        cmocka_unit_test(blocks_in_use_stay),
        cmocka_unit_test(more_pins_than_can_be_counted_are_refused),
        cmocka_unit_test(a_full_pool_takes_from_the_largest),
        cmocka_unit_test(a_dropped_worker_is_forgotten_alone),
        cmocka_unit_test(a_large_worker_is_forgotten_in_one_stroke),
        cmocka_unit_test(a_lowered_capacity_is_worked_off),
        cmocka_unit_test(what_leaves_the_device_stays_routable),
        cmocka_unit_test(a_use_brings_blocks_back_to_the_device),
        cmocka_unit_test(an_abort_leaves_what_came_back_on_the_device),
        cmocka_unit_test(copies_take_room_below),
        cmocka_unit_test(output_goes_below_whole),
        cmocka_unit_test(memory_below_that_is_gone_is_forgotten),
        cmocka_unit_test(a_full_pool_takes_from_below_first),
        cmocka_unit_test(behaves_like_arrays_that_are_searched),
        cmocka_unit_test(a_large_fleet_matches_the_model),
        cmocka_unit_test(an_index_that_grows_matches_the_model),
        cmocka_unit_test(the_dead_never_match),
        cmocka_unit_test(a_starved_pool_stays_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

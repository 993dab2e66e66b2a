/* tests/unit/worker/kv/test_kv_random.c - the manager against the obvious model, step by step.
 *
 * After every random operation both sides (the other one is kv_model.h) must agree on the outcome,
 * on every table of every group, on the order of the queue, on what is cached, on the requested
 * copies and on the idle slots, and kv_manager_check must find nothing.
 *
 * KV_RANDOM_OPS sets the number of operations; default a million, a tenth under sanitizers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"
#include "tests/support/kv_model.h"
#include "tests/support/support.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DEFAULT_OPS 100000u
#else
#define DEFAULT_OPS 1000000u
#endif

#define MAX_LEN   MODEL_MAX_LEN
#define MAX_REQS  6
#define N_LETTERS 2 /* few, so that prefixes meet */

struct request {
    bool exists;
    struct kv_seq seq;
    struct block_extras extras;
    uint32_t n_computed, n_forked; /* the latter are settled: a fork shares them */
    struct model_seq m;            /* the model's side, and the tokens */
};

/* That the test did meet these. */
struct met {
    uint64_t hits, busy, resets, switched, forks, refused_forks, copies, nulls;
};

struct random_fixture {
    struct kv_manager *mgr;
    struct rng rng;
    struct request reqs[MAX_REQS];
    struct model model;
    struct met met;
    bool has_windows;
};

static uint32_t below(struct random_fixture *w, uint32_t n) {
    return (uint32_t)rng_below(&w->rng, n);
}

/* --- agreement ------------------------------------------------------------------------------- */

static void assert_same_sequences(const struct random_fixture *w) {
    uint64_t n_idle = 0;

    for (uint32_t i = 0; i < MAX_REQS; i++) {
        const struct request *r = &w->reqs[i];

        if (!r->exists) continue;
        n_idle += r->m.n_idle;
        for (uint32_t g = 0; g < w->model.config.n_groups; g++) {
            if (r->seq.table[g].n_blocks != r->m.n_table ||
                r->seq.n_published != r->m.n_published ||
                memcmp(r->seq.table[g].ids, r->m.table[g], r->m.n_table * sizeof(block_id)) != 0)
                fail_msg("table %u of request %u differs", g, i);
        }
    }
    assert_int_equal(kv_manager_idle_slots(w->mgr), n_idle);
}

static void assert_same_moves(struct random_fixture *w) {
    uint32_t n;
    const struct kv_move *moves = kv_manager_moves(w->mgr, &n);

    assert_int_equal(n, w->model.n_moves);
    for (uint32_t i = 0; i < n; i++) {
        const struct kv_move *want = &w->model.moves[i];

        if (moves[i].kind != want->kind || moves[i].src != want->src || moves[i].dst != want->dst)
            fail_msg("move %u: %u to %u, model %u to %u", i, moves[i].src, moves[i].dst, want->src,
                     want->dst);
    }
    w->met.copies += n;
    w->model.n_moves = 0;
    kv_manager_clear_moves(w->mgr);
}

static void assert_agreement(struct random_fixture *w) {
    const struct block_pool *pool = kv_manager_pool(w->mgr);
    block_id id = block_pool_next_free(pool, BLOCK_NONE);

    kv_manager_check(w->mgr);
    assert_int_equal(block_pool_n_free(pool), w->model.n_queue);
    for (uint32_t i = 0; i < w->model.n_queue; i++, id = block_pool_next_free(pool, id)) {
        if (id != w->model.queue[i])
            fail_msg("queue place %u: %u, model %u", i, id, w->model.queue[i]);
    }
    for (uint32_t i = 0; i < w->model.config.n_blocks; i++) {
        if (block_pool_ref_cnt(pool, i) != w->model.blocks[i].ref_cnt ||
            prefix_cache_contains(block_pool_cache(pool), i) != (w->model.blocks[i].n_prefix > 0))
            fail_msg("block %u differs", i);
    }
    assert_same_sequences(w);
    assert_same_moves(w);
}

/* --- operations ------------------------------------------------------------------------------ */

static void init_seq(struct random_fixture *w, struct request *r, bool skip_reading) {
    if (r->m.salt) r->extras.cache_salt = STR("s");
    assert_int_equal(kv_seq_init(&r->seq, w->mgr, MAX_LEN, &r->extras, skip_reading, NULL), ST_OK);
    r->exists = true;
}

static void op_arrive(struct random_fixture *w, struct request *r) {
    *r = (struct request){.m.salt = below(w, 8) == 0};
    init_seq(w, r, below(w, 10) == 0);
    r->m.n_tokens = 1 + below(w, MAX_LEN - 4);
    r->m.n_prompt = below(w, r->m.n_tokens + 1);
    r->seq.n_prompt = r->m.n_prompt;
    for (uint32_t i = 0; i < r->m.n_tokens; i++)
        r->m.tokens[i] = below(w, N_LETTERS);
}

/* A child with the parent's first n tokens and, half the time, others behind them. */
static void op_fork(struct random_fixture *w, struct request *child, struct request *parent) {
    uint32_t n = 1 + below(w, parent->n_computed);
    enum status want;

    *child = (struct request){.m.salt = parent->m.salt, .m.n_prompt = parent->m.n_prompt};
    init_seq(w, child, parent->seq.skip_reading);
    child->m.n_tokens = MAX(n, parent->m.n_tokens);
    memcpy(child->m.tokens, parent->m.tokens, sizeof(child->m.tokens));
    for (uint32_t i = n; below(w, 2) && i < child->m.n_tokens; i++)
        child->m.tokens[i] = below(w, N_LETTERS);
    want = model_fork(&w->model, &child->m, &parent->m, n);
    assert_int_equal(kv_manager_fork(w->mgr, &child->seq, &parent->seq, n), want);
    if (want == ST_OK) {
        child->n_computed = child->n_forked = n;
        parent->n_forked = MAX(parent->n_forked, n);
        w->met.forks++;
        return;
    }
    assert_int_equal(want, ST_NOT_FOUND);
    child->seq.n_prompt = child->m.n_prompt; /* now a sequence like any other */
    w->met.refused_forks++;
}

static void allocate(struct random_fixture *w, struct request *r, struct kv_alloc *a) {
    enum status want, got;

    a->n_lookahead = below(w, 4) == 0 ? below(w, 3) : 0;
    a->reserved_blocks = below(w, 6) == 0 ? below(w, 3) : 0;
    a->delay_publish = below(w, 8) == 0;
    want = model_allocate(&w->model, &r->m, a);
    got = kv_manager_allocate(w->mgr, &r->seq, r->m.tokens, r->m.n_tokens, a);
    assert_int_equal(got, want);
    if (got == ST_OK)
        r->n_computed += a->hit.n_tokens + a->n_external + a->n_new;
    else
        w->met.busy++;
}

static void op_admit(struct random_fixture *w, struct request *r) {
    struct kv_alloc a = {.hit = kv_manager_lookup(w->mgr, &r->seq, r->m.tokens, r->m.n_tokens)};
    block_id ids[KV_GROUPS_MAX][MAX_LEN];
    uint32_t n = r->seq.skip_reading ? 0 : model_lookup(&w->model, &r->m, ids);

    assert_int_equal(a.hit.n_blocks, n);
    assert_int_equal(a.hit.n_tokens, n * w->model.config.block_size);
    for (uint32_t g = 0; g < w->model.config.n_groups; g++) {
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(a.hit.ids[g][i], ids[g][i]);
            w->met.nulls += w->has_windows && ids[g][i] == BLOCK_NULL;
        }
    }
    w->met.hits += n;
    a.n_new = 1 + below(w, r->m.n_tokens - a.hit.n_tokens);
    a.n_external = below(w, r->m.n_tokens - a.hit.n_tokens - a.n_new + 1) / 4;
    a.has_scheduled = below(w, 2);
    a.full_sequence_must_fit = below(w, 2);
    allocate(w, r, &a);
}

/* Drafts that were refused: the same positions are written again. Never before what is published
 * or was there at the fork, and what has left a window is gone. */
static void refuse_drafts(struct random_fixture *w, struct request *r) {
    uint32_t n_published = r->m.n_published * w->model.config.block_size;
    uint32_t n_settled = MAX(MAX(n_published, r->n_forked), 1u);

    if (w->has_windows || r->n_computed <= n_settled) return;
    r->n_computed -= below(w, MIN(r->n_computed - n_settled, 3u) + 1);
}

/* The rest of the prompt in a chunk, or one more token. */
static void op_advance(struct random_fixture *w, struct request *r) {
    struct kv_alloc a = {.n_computed = r->n_computed};

    if (below(w, 20) == 0) refuse_drafts(w, r);
    a.n_computed = r->n_computed;
    if (r->n_computed == r->m.n_tokens) {
        if (r->m.n_tokens == MAX_LEN) return;
        r->m.tokens[r->m.n_tokens++] = below(w, N_LETTERS);
    }
    a.n_new = 1 + below(w, r->m.n_tokens - r->n_computed);
    a.n_unsettled = below(w, 4) == 0 ? below(w, MIN(r->n_computed, 3u) + 1) : 0;
    allocate(w, r, &a);
}

static void op_release(struct random_fixture *w, struct request *r) {
    bool is_preempted = below(w, 3) == 0;

    kv_manager_free(w->mgr, &r->seq);
    model_free(&w->model, &r->m);
    r->n_computed = r->n_forked = 0;
    if (is_preempted) return; /* its tokens and hashes stay */
    kv_seq_fini(&r->seq);
    r->exists = false;
}

/* Refused while anything is held; every other time all is given back before. */
static void op_reset(struct random_fixture *w) {
    enum status want;

    for (uint32_t i = 0, is_clean = below(w, 2); is_clean && i < MAX_REQS; i++) {
        if (w->reqs[i].exists) op_release(w, &w->reqs[i]);
    }
    want = w->model.n_queue == block_pool_n_usable(kv_manager_pool(w->mgr)) ? ST_OK : ST_BUSY;
    assert_int_equal(kv_manager_reset_prefix_cache(w->mgr), want);
    if (want != ST_OK) return;
    model_forget_cached(&w->model);
    w->met.resets++;
}

static void one_operation(struct random_fixture *w) {
    struct request *r = &w->reqs[below(w, MAX_REQS)], *other = &w->reqs[below(w, MAX_REQS)];
    uint32_t dice = below(w, 100);

    if (below(w, 300) == 0)
        op_reset(w);
    else if (!r->exists && other->n_computed > 0 && other->exists && dice < 50)
        op_fork(w, r, other);
    else if (!r->exists)
        op_arrive(w, r);
    else if (r->m.n_table == 0)
        dice < 10 ? op_release(w, r) : op_admit(w, r);
    else if (dice < 20)
        op_release(w, r);
    else if (dice < 25) {
        kv_manager_publish(w->mgr, &r->seq, r->m.tokens, r->m.n_tokens, r->n_computed);
        model_publish(&w->model, &r->m, r->n_computed);
    } else
        op_advance(w, r);
}

/* --- fixtures --- */

struct shape {
    uint32_t n_blocks, block_size, truncate_bits;
    bool no_null;
    uint32_t n_groups;
    struct kv_group_config group[KV_GROUPS_MAX];
};

/* Tight and roomy pools, odd block sizes, honest and colliding hashes. */
static const struct shape full_shapes[] = {
    {12, 4, 0, false, 1, {{KV_FULL, 0}}},
    {18, 2, 8, true, 1, {{KV_FULL, 0}}},
    {40, 1, 0, true, 1, {{KV_FULL, 0}}},
    {30, 3, 1, false, 1, {{KV_FULL, 0}}},
};

/* One window alone, beside full attention, several that disagree; chunks that end inside blocks. */
static const struct shape group_shapes[] = {
    {14, 2, 0, false, 1, {{KV_SLIDING, 5}}},
    {18, 3, 1, false, 1, {{KV_CHUNKED, 7}}},
    {24, 2, 0, false, 2, {{KV_SLIDING, 6}, {KV_FULL, 0}}},
    {40, 2, 8, false, 3, {{KV_FULL, 0}, {KV_SLIDING, 4}, {KV_CHUNKED, 6}}},
    {60, 1, 0, false, 4, {{KV_SLIDING, 1}, {KV_SLIDING, 9}, {KV_FULL, 0}, {KV_CHUNKED, 4}}},
    {30, 2, 0, false, 2, {{KV_REFERENCE, 3}, {KV_FULL, 0}}},
};

static struct random_fixture *fixture_create(const struct shape *shape, enum free_order order,
                                             bool dedup) {
    struct kv_manager_config config = kv_fixture_config(shape->n_blocks, shape->block_size);
    struct random_fixture *w = calloc(1, sizeof(*w));

    config.max_model_len = MAX_LEN;
    config.max_step_tokens = MAX_LEN;
    config.watermark = 0.1;
    config.order = order;
    config.dedup = dedup;
    config.no_null = shape->no_null;
    config.hash_truncate_bits = shape->truncate_bits;
    config.n_groups = shape->n_groups;
    memcpy(config.group, shape->group, sizeof(config.group));
    for (uint32_t g = 0; g < shape->n_groups; g++)
        w->has_windows |= shape->group[g].kind != KV_FULL;
    model_init(&w->model, &config);
    if (shape->n_groups == 1 && !w->has_windows) config.n_groups = 0; /* the default is the same */
    w->mgr = kv_manager_create(&config);
    rng_seed(&w->rng, support_seed() * 1000 + shape->n_blocks * 8 + order * 2 + dedup);
    return w;
}

static void fixture_destroy(struct random_fixture *w) {
    for (uint32_t i = 0; i < MAX_REQS; i++) {
        if (!w->reqs[i].exists) continue;
        kv_manager_free(w->mgr, &w->reqs[i].seq);
        kv_seq_fini(&w->reqs[i].seq);
    }
    assert_int_equal(block_pool_n_free(kv_manager_pool(w->mgr)),
                     block_pool_n_usable(kv_manager_pool(w->mgr)));
    assert_true(kv_manager_waste(w->mgr) == 0);
    kv_manager_destroy(w->mgr);
    free(w);
}

static uint64_t wanted_operations(void) {
    const char *s = getenv("KV_RANDOM_OPS");

    return s ? strtoull(s, NULL, 10) : DEFAULT_OPS;
}

static void add_met(struct met *sum, const struct random_fixture *w) {
    sum->hits += w->met.hits;
    sum->busy += w->met.busy;
    sum->resets += w->met.resets;
    sum->switched += w->model.n_switched;
    sum->forks += w->met.forks;
    sum->refused_forks += w->met.refused_forks;
    sum->copies += w->met.copies;
    sum->nulls += w->met.nulls;
}

static void run(const struct shape *shapes, size_t n_shapes, enum free_order order, bool dedup) {
    uint64_t n_ops = wanted_operations() / 8 / n_shapes + 1, n_done = 0;
    bool has_windows = shapes == group_shapes;
    struct met sum = {0};

    for (size_t i = 0; i < n_shapes; i++) {
        struct random_fixture *w = fixture_create(&shapes[i], order, dedup);

        for (uint64_t op = 0; op < n_ops; op++, n_done++) {
            one_operation(w);
            assert_agreement(w);
        }
        add_met(&sum, w);
        fixture_destroy(w);
    }
    printf("%llu operations checked: %llu blocks hit (%llu null), %llu calls refused, %llu resets, "
           "%llu blocks switched, %llu forks (%llu refused), %llu blocks copied\n",
           (unsigned long long)n_done, (unsigned long long)sum.hits, (unsigned long long)sum.nulls,
           (unsigned long long)sum.busy, (unsigned long long)sum.resets,
           (unsigned long long)sum.switched, (unsigned long long)sum.forks,
           (unsigned long long)sum.refused_forks, (unsigned long long)sum.copies);
    if (n_ops < 1000) return; /* too few to have met everything */
    assert_true(sum.hits > 0 && sum.busy > 0 && sum.resets > 0 && sum.forks > 0 && sum.copies > 0);
    assert_int_equal(sum.switched > 0, dedup);
    assert_int_equal(sum.nulls > 0, has_windows);
    assert_int_equal(sum.refused_forks > 0, has_windows);
}

#define RUN(shapes, order, dedup) run(shapes, ARRAY_LEN(shapes), order, dedup)

static void case_94_classic(void **state) {
    (void)state;
    RUN(full_shapes, FREE_ORDER_CLASSIC, false);
}

static void case_94_fresh_first(void **state) {
    (void)state;
    RUN(full_shapes, FREE_ORDER_FRESH_FIRST, false);
}

static void case_94_classic_dedup(void **state) {
    (void)state;
    RUN(full_shapes, FREE_ORDER_CLASSIC, true);
}

static void case_94_fresh_first_dedup(void **state) {
    (void)state;
    RUN(full_shapes, FREE_ORDER_FRESH_FIRST, true);
}

static void case_94_groups_classic(void **state) {
    (void)state;
    RUN(group_shapes, FREE_ORDER_CLASSIC, false);
}

static void case_94_groups_fresh_first(void **state) {
    (void)state;
    RUN(group_shapes, FREE_ORDER_FRESH_FIRST, false);
}

static void case_94_groups_classic_dedup(void **state) {
    (void)state;
    RUN(group_shapes, FREE_ORDER_CLASSIC, true);
}

static void case_94_groups_fresh_first_dedup(void **state) {
    (void)state;
    RUN(group_shapes, FREE_ORDER_FRESH_FIRST, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_94_classic),
        cmocka_unit_test(case_94_fresh_first),
        cmocka_unit_test(case_94_classic_dedup),
        cmocka_unit_test(case_94_fresh_first_dedup),
        cmocka_unit_test(case_94_groups_classic),
        cmocka_unit_test(case_94_groups_fresh_first),
        cmocka_unit_test(case_94_groups_classic_dedup),
        cmocka_unit_test(case_94_groups_fresh_first_dedup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

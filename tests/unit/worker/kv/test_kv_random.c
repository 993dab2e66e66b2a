/* tests/unit/worker/kv/test_kv_random.c - the manager against the obvious model, step by step.
 *
 * The model has no hashes, no links and no counts it could get wrong: a block remembers all tokens
 * of its prefix, the free queue is an array, a lookup compares everything with everything. After
 * every random operation both sides must agree on the outcome, on every table, on the order of the
 * queue and on what is cached, and kv_manager_check must find nothing.
 *
 * KV_RANDOM_OPS sets the number of operations; default a million, a tenth under sanitizers. */
#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"
#include "tests/support/support.h"

#include "common/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DEFAULT_OPS 100000u
#else
#define DEFAULT_OPS 1000000u
#endif

#define MAX_BLOCKS 40
#define MAX_LEN    24 /* tokens of a sequence */
#define MAX_REQS   6
#define N_LETTERS  2 /* few, so that prefixes meet */

/* --- the model ------------------------------------------------------------------------------- */

struct model_block {
    uint32_t ref_cnt;
    uint32_t n_prefix; /* tokens of the published prefix, this block included; 0: not published */
    uint32_t prefix[MAX_LEN];
    uint32_t salt;
    uint64_t published_at;
};

struct request {
    bool exists;
    struct kv_seq seq;
    struct block_extras extras;
    uint32_t salt; /* 0: none */
    uint32_t tokens[MAX_LEN];
    uint32_t n_tokens, n_computed;
    /* the model's side */
    block_id table[MAX_LEN];
    uint32_t n_table, n_published;
};

struct world {
    struct kv_manager_config config;
    struct kv_manager *mgr;
    struct rng rng;
    struct request reqs[MAX_REQS];
    struct model_block blocks[MAX_BLOCKS];
    block_id queue[MAX_BLOCKS];
    uint32_t n_queue;
    uint64_t clock;
    uint64_t n_hits, n_busy, n_resets, n_switched; /* that the test did meet these */
};

static uint32_t below(struct world *w, uint32_t n) {
    return (uint32_t)rng_below(&w->rng, n);
}

static void queue_insert(struct world *w, uint32_t at, block_id id) {
    memmove(w->queue + at + 1, w->queue + at, (w->n_queue - at) * sizeof(*w->queue));
    w->queue[at] = id;
    w->n_queue++;
}

static void queue_remove(struct world *w, block_id id) {
    uint32_t at = 0;

    while (w->queue[at] != id)
        at++;
    w->n_queue--;
    memmove(w->queue + at, w->queue + at + 1, (w->n_queue - at) * sizeof(*w->queue));
}

static void model_take(struct world *w, block_id id) {
    if (w->blocks[id].ref_cnt++ == 0) queue_remove(w, id);
}

static block_id model_take_new(struct world *w) {
    block_id id = w->queue[0];

    w->blocks[id].n_prefix = 0;
    model_take(w, id);
    return id;
}

/* Last block of the list first; blanks, in that order, come before what was at the head. */
static void model_release(struct world *w, const block_id *table, uint32_t n) {
    uint32_t n_front = 0;

    for (uint32_t i = n; i-- > 0;) {
        struct model_block *b = &w->blocks[table[i]];

        if (--b->ref_cnt > 0) continue;
        if (w->config.order == FREE_ORDER_FRESH_FIRST && b->n_prefix == 0) {
            queue_insert(w, n_front++, table[i]);
        } else {
            queue_insert(w, w->n_queue, table[i]);
        }
    }
}

/* The oldest block that holds exactly the first n tokens of this request. */
static block_id model_find(const struct world *w, const struct request *r, uint32_t n) {
    block_id found = BLOCK_NONE;

    for (block_id id = 0; id < w->config.n_blocks; id++) {
        const struct model_block *b = &w->blocks[id];

        if (b->n_prefix != n || b->salt != r->salt) continue;
        if (memcmp(b->prefix, r->tokens, n * sizeof(*r->tokens)) != 0) continue;
        if (found == BLOCK_NONE || b->published_at < w->blocks[found].published_at) found = id;
    }
    return found;
}

static void model_publish(struct world *w, struct request *r, uint32_t n_ready) {
    uint32_t bs = w->config.block_size;

    for (; (r->n_published + 1) * bs <= MIN(n_ready, r->n_tokens); r->n_published++) {
        uint32_t n = (r->n_published + 1) * bs;
        block_id *id = &r->table[r->n_published], other = model_find(w, r, n);
        struct model_block *b = &w->blocks[*id];

        if (w->config.dedup && other != BLOCK_NONE) {
            model_take(w, other);
            model_release(w, id, 1);
            *id = other;
            w->n_switched++;
            continue;
        }
        b->n_prefix = n;
        b->salt = r->salt;
        b->published_at = ++w->clock;
        memcpy(b->prefix, r->tokens, n * sizeof(*r->tokens));
    }
}

/* The same call, thought through with nothing but the array: would it fit, and if so do it. */
static enum status model_allocate(struct world *w, struct request *r, const struct kv_alloc *a) {
    uint32_t bs = w->config.block_size, n_idle_hits = 0, n_keep = 0, n_left, n_have, n_want;
    uint32_t n_ready = MIN(a->n_computed + a->hit.n_tokens + a->n_external, MAX_LEN) + a->n_new;

    for (uint32_t i = 0; i < a->hit.n_blocks; i++) {
        n_idle_hits += w->blocks[a->hit.ids[0][i]].ref_cnt == 0;
    }
    n_left = w->n_queue - n_idle_hits; /* hits are part of the queue */
    n_have = r->n_table + a->hit.n_blocks;
    n_want = CEIL_DIV(MIN(n_ready + a->n_lookahead, MAX_LEN), bs);
    n_want = MAX(n_want, n_have) - n_have;
    if (a->has_scheduled && r->n_table == 0) {
        n_keep = (uint32_t)(w->config.watermark * w->config.n_blocks);
    }
    if (w->n_queue < n_idle_hits || n_left < n_want + n_keep + a->reserved_blocks) return ST_BUSY;
    if (a->full_sequence_must_fit) {
        uint32_t n_full = CEIL_DIV(r->n_tokens, bs);

        if (n_left < MAX(n_full, n_have) - n_have + n_keep) return ST_BUSY;
    }
    for (uint32_t i = 0; i < a->hit.n_blocks; i++) {
        model_take(w, a->hit.ids[0][i]);
        r->table[r->n_table++] = a->hit.ids[0][i];
    }
    if (a->hit.n_blocks > 0) r->n_published = a->hit.n_blocks;
    while (n_want-- > 0)
        r->table[r->n_table++] = model_take_new(w);
    if (!a->delay_publish) model_publish(w, r, MIN(n_ready, MAX_LEN));
    return ST_OK;
}

static void model_free(struct world *w, struct request *r) {
    model_release(w, r->table, r->n_table);
    r->n_table = r->n_published = 0;
}

/* --- agreement ------------------------------------------------------------------------------- */

static void assert_agreement(const struct world *w) {
    const struct block_pool *pool = kv_manager_pool(w->mgr);
    block_id id = block_pool_next_free(pool, BLOCK_NONE);

    kv_manager_check(w->mgr);
    assert_int_equal(block_pool_n_free(pool), w->n_queue);
    for (uint32_t i = 0; i < w->n_queue; i++, id = block_pool_next_free(pool, id)) {
        if (id != w->queue[i]) fail_msg("queue place %u: %u, model %u", i, id, w->queue[i]);
    }
    for (uint32_t i = 0; i < w->config.n_blocks; i++) {
        if (block_pool_ref_cnt(pool, i) != w->blocks[i].ref_cnt ||
            prefix_cache_contains(block_pool_cache(pool), i) != (w->blocks[i].n_prefix > 0)) {
            fail_msg("block %u differs", i);
        }
    }
    for (uint32_t i = 0; i < MAX_REQS; i++) {
        const struct request *r = &w->reqs[i];

        if (!r->exists) continue;
        if (r->seq.table[0].n_blocks != r->n_table || r->seq.n_published != r->n_published ||
            memcmp(r->seq.table[0].ids, r->table, r->n_table * sizeof(*r->table)) != 0) {
            fail_msg("table of request %u differs", i);
        }
    }
}

/* --- operations ------------------------------------------------------------------------------ */

static void op_arrive(struct world *w, struct request *r) {
    *r = (struct request){.exists = true, .salt = below(w, 8) == 0};
    if (r->salt) r->extras.cache_salt = STR("s");
    assert_int_equal(kv_seq_init(&r->seq, w->mgr, MAX_LEN, &r->extras, below(w, 10) == 0, NULL),
                     ST_OK);
    r->n_tokens = 1 + below(w, MAX_LEN - 4);
    for (uint32_t i = 0; i < r->n_tokens; i++)
        r->tokens[i] = below(w, N_LETTERS);
}

static void allocate(struct world *w, struct request *r, struct kv_alloc *a) {
    enum status want, got;

    a->n_lookahead = below(w, 4) == 0 ? below(w, 3) : 0;
    a->reserved_blocks = below(w, 6) == 0 ? below(w, 3) : 0;
    a->delay_publish = below(w, 8) == 0;
    want = model_allocate(w, r, a);
    got = kv_manager_allocate(w->mgr, &r->seq, r->tokens, r->n_tokens, a);
    assert_int_equal(got, want);
    if (got == ST_OK)
        r->n_computed += a->hit.n_tokens + a->n_external + a->n_new;
    else
        w->n_busy++;
}

static void op_admit(struct world *w, struct request *r) {
    struct kv_alloc a = {.hit = kv_manager_lookup(w->mgr, &r->seq, r->tokens, r->n_tokens)};
    uint32_t bs = w->config.block_size, n = 0;

    if (!r->seq.skip_reading) {
        while ((n + 1) * bs < r->n_tokens) {
            block_id id = model_find(w, r, (n + 1) * bs);

            if (id == BLOCK_NONE) break;
            assert_int_equal(a.hit.ids[0][n], id);
            n++;
        }
    }
    assert_int_equal(a.hit.n_blocks, n);
    assert_int_equal(a.hit.n_tokens, n * bs);
    w->n_hits += n;
    a.n_new = 1 + below(w, r->n_tokens - a.hit.n_tokens);
    a.n_external = below(w, r->n_tokens - a.hit.n_tokens - a.n_new + 1) / 4;
    a.has_scheduled = below(w, 2);
    a.full_sequence_must_fit = below(w, 2);
    allocate(w, r, &a);
}

/* The rest of the prompt in a chunk, or one more token. */
static void op_advance(struct world *w, struct request *r) {
    struct kv_alloc a = {.n_computed = r->n_computed};

    if (r->n_computed == r->n_tokens) {
        if (r->n_tokens == MAX_LEN) return;
        r->tokens[r->n_tokens++] = below(w, N_LETTERS);
    }
    a.n_new = 1 + below(w, r->n_tokens - r->n_computed);
    allocate(w, r, &a);
}

static void op_release(struct world *w, struct request *r) {
    bool is_preempted = below(w, 3) == 0;

    kv_manager_free(w->mgr, &r->seq);
    model_free(w, r);
    r->n_computed = 0;
    if (is_preempted) return; /* its tokens and hashes stay */
    kv_seq_fini(&r->seq);
    r->exists = false;
}

/* Refused while anything is held; every other time all is given back before. */
static void op_reset(struct world *w) {
    enum status want;

    for (uint32_t i = 0, is_clean = below(w, 2); is_clean && i < MAX_REQS; i++) {
        if (w->reqs[i].exists) op_release(w, &w->reqs[i]);
    }
    want = w->n_queue == block_pool_n_usable(kv_manager_pool(w->mgr)) ? ST_OK : ST_BUSY;
    assert_int_equal(kv_manager_reset_prefix_cache(w->mgr), want);
    if (want != ST_OK) return;
    for (uint32_t i = 0; i < MAX_BLOCKS; i++)
        w->blocks[i].n_prefix = 0;
    w->n_resets++;
}

static void one_operation(struct world *w) {
    struct request *r = &w->reqs[below(w, MAX_REQS)];
    uint32_t dice = below(w, 100);

    if (below(w, 300) == 0)
        op_reset(w);
    else if (!r->exists)
        op_arrive(w, r);
    else if (r->n_table == 0)
        dice < 10 ? op_release(w, r) : op_admit(w, r);
    else if (dice < 20)
        op_release(w, r);
    else if (dice < 25) {
        kv_manager_publish(w->mgr, &r->seq, r->tokens, r->n_tokens, r->n_computed);
        model_publish(w, r, r->n_computed);
    } else
        op_advance(w, r);
}

/* --- worlds ---------------------------------------------------------------------------------- */

static struct world *world_create(uint32_t n_blocks, uint32_t block_size, enum free_order order,
                                  bool dedup, uint32_t truncate_bits, bool no_null) {
    struct world *w = calloc(1, sizeof(*w));

    w->config = kv_fixture_config(n_blocks, block_size);
    w->config.max_model_len = MAX_LEN;
    w->config.watermark = 0.1;
    w->config.order = order;
    w->config.dedup = dedup;
    w->config.no_null = no_null;
    w->config.hash_truncate_bits = truncate_bits;
    w->mgr = kv_manager_create(&w->config);
    rng_seed(&w->rng, support_seed() * 1000 + n_blocks * 8 + order * 2 + dedup);
    for (block_id id = no_null ? 0 : 1; id < n_blocks; id++)
        queue_insert(w, w->n_queue, id);
    return w;
}

static void world_destroy(struct world *w) {
    for (uint32_t i = 0; i < MAX_REQS; i++) {
        if (!w->reqs[i].exists) continue;
        kv_manager_free(w->mgr, &w->reqs[i].seq);
        kv_seq_fini(&w->reqs[i].seq);
    }
    assert_int_equal(block_pool_n_free(kv_manager_pool(w->mgr)),
                     block_pool_n_usable(kv_manager_pool(w->mgr)));
    kv_manager_destroy(w->mgr);
    free(w);
}

static uint64_t wanted_operations(void) {
    const char *s = getenv("KV_RANDOM_OPS");

    return s ? strtoull(s, NULL, 10) : DEFAULT_OPS;
}

/* Tight and roomy pools, odd block sizes, honest and colliding hashes. */
static void run(enum free_order order, bool dedup) {
    static const struct {
        uint32_t n_blocks, block_size, truncate_bits;
        bool no_null;
    } shapes[] = {{12, 4, 0, false}, {18, 2, 8, true}, {40, 1, 0, true}, {30, 3, 1, false}};
    uint64_t n_ops = wanted_operations() / 4 / ARRAY_LEN(shapes) + 1, n_done = 0;
    struct world sum = {.n_hits = 0};

    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct world *w = world_create(shapes[i].n_blocks, shapes[i].block_size, order, dedup,
                                       shapes[i].truncate_bits, shapes[i].no_null);

        for (uint64_t op = 0; op < n_ops; op++, n_done++) {
            one_operation(w);
            assert_agreement(w);
        }
        sum.n_hits += w->n_hits;
        sum.n_busy += w->n_busy;
        sum.n_resets += w->n_resets;
        sum.n_switched += w->n_switched;
        world_destroy(w);
    }
    printf("%llu operations checked: %llu blocks hit, %llu calls refused, %llu resets, "
           "%llu blocks switched\n",
           (unsigned long long)n_done, (unsigned long long)sum.n_hits,
           (unsigned long long)sum.n_busy, (unsigned long long)sum.n_resets,
           (unsigned long long)sum.n_switched);
    if (n_ops < 1000) return; /* too few to have met everything */
    assert_true(sum.n_hits > 0 && sum.n_busy > 0 && sum.n_resets > 0);
    assert_int_equal(sum.n_switched > 0, dedup);
}

static void case_94_classic(void **state) {
    (void)state;
    run(FREE_ORDER_CLASSIC, false);
}

static void case_94_fresh_first(void **state) {
    (void)state;
    run(FREE_ORDER_FRESH_FIRST, false);
}

static void case_94_classic_dedup(void **state) {
    (void)state;
    run(FREE_ORDER_CLASSIC, true);
}

static void case_94_fresh_first_dedup(void **state) {
    (void)state;
    run(FREE_ORDER_FRESH_FIRST, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_94_classic),
        cmocka_unit_test(case_94_fresh_first),
        cmocka_unit_test(case_94_classic_dedup),
        cmocka_unit_test(case_94_fresh_first_dedup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

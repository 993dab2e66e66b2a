/* tests/conformance/test_radix_trace.c - blocks against a radix tree: the nine steps of the
 * RadixAttention figure, and random traces.
 *
 * SGLang's figure walks a radix tree through two chats, few-shot examples and self-consistency
 * sampling. The same requests through the block pool (18 blocks of 2, each request admitted whole
 * and freed at once) have the same hits at every step; a tree evicts a leaf at once where the pool
 * evicts its blocks tail first. No block is ever partial, so both free orders agree.
 *
 * A tree that gives up its coldest leaf page by page is the same policy as the pool's queue, so
 * there every hit, refusal and eviction must be equal, requests side by side included. */
#include <stdio.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"
#include "tests/support/radix_tree.h"
#include "tests/support/support.h"

/* The pieces of the figure, with lengths that force exactly its evictions. */
#define S  "sys:"
#define T1 "hi-o"
#define T2 "secondturn-one"
#define U1 "other-ch"
#define U2 "at-turn2"
#define X  "few#"
#define V  "v!"

static const struct trace_step {
    const char *prompt;
    uint32_t n_hit;
    const char *table, *evicted;
    const char *queue; /* NULL: not given */
    const char *tree;  /* of tokens, when the request is done */
    uint32_t n_used;   /* tokens in it */
} trace[] = {
    {S T1, 0, "0 1 2 3", "", "4 5 6 7 8 9 10 11 12 13 14 15 16 17 3 2 1 0", "(sys:hi-o)", 8},
    {S T1 T2, 8, "0 1 2 3 4 5 6 7 8 9 10", "", "11 12 13 14 15 16 17 10 9 8 7 6 5 4 3 2 1 0",
     "(sys:hi-o(secondturn-one))", 22},
    {S U1, 4, "0 1 11 12 13 14", "", "15 16 17 10 9 8 7 6 5 4 3 2 14 13 12 11 1 0",
     "(sys:(hi-o(secondturn-one))(other-ch))", 30},
    {S U1 U2, 12, "0 1 11 12 13 14 15 16 17 10", "10",
     "9 8 7 6 5 4 3 2 10 17 16 15 14 13 12 11 1 0", "(sys:(hi-o)(other-ch(at-turn2)))", 24},
    {X "Q1", 0, "9 8 7", "9 8 7", "6 5 4 3 2 10 17 16 15 14 13 12 11 1 0 7 8 9",
     "(sys:(hi-o)(other-ch(at-turn2)))(few#Q1)", 30},
    {X "Q2", 4, "9 8 6", "6", NULL, "(sys:(hi-o)(other-ch(at-turn2)))(few#(Q1)(Q2))", 32},
    {X "Q3", 4, "9 8 5", "5", NULL, "(sys:(hi-o)(other-ch(at-turn2)))(few#(Q1)(Q2)(Q3))", 34},
    {X "Q4", 4, "9 8 4", "4", "3 2 10 17 16 15 14 13 12 11 1 0 7 6 5 4 8 9",
     "(sys:(hi-o)(other-ch(at-turn2)))(few#(Q1)(Q2)(Q3)(Q4))", 36},
    {S T1 T2 V, 8, "0 1 2 3 10 17 16 15 14 13 12 11", "10 17 16 15 14 13 12 11",
     "7 6 5 4 8 9 11 12 13 14 15 16 17 10 3 2 1 0",
     "(sys:(hi-o(secondturn-onev!)))(few#(Q1)(Q2)(Q3)(Q4))", 36},
    {X "Q2A1", 6, "9 8 6 7", "7", NULL, "(sys:(hi-o(secondturn-onev!)))(few#(Q2(A1))(Q3)(Q4))", 36},
    {X "Q2A2", 6, "9 8 6 5", "5", NULL, "(sys:(hi-o(secondturn-onev!)))(few#(Q2(A1)(A2))(Q4))", 36},
    {X "Q2A3", 6, "9 8 6 4", "4", "11 12 13 14 15 16 17 10 3 2 1 0 7 5 4 6 8 9",
     "(sys:(hi-o(secondturn-onev!)))(few#(Q2(A1)(A2)(A3)))", 36},
};

/* The evicted blocks in order: those allocated that were published before. */
static void evicted_text(const struct kv_req *r, const bool *was_cached, char *out) {
    size_t len = 0;

    out[0] = '\0';
    for (uint32_t i = r->n_hit / 2; i < r->seq.table[0].n_blocks; i++) {
        block_id id = r->seq.table[0].ids[i];

        if (was_cached[id]) len += (size_t)sprintf(out + len, len ? " %u" : "%u", id);
    }
}

static void run_trace(enum free_order order) {
    struct kv_manager_config config = kv_fixture_config(18, 2);
    struct kv_manager *mgr;
    struct radix_tree tree;

    config.no_null = true;
    config.order = order;
    mgr = kv_manager_create(&config);
    radix_tree_init(&tree, 2, 18, true);
    for (size_t i = 0; i < ARRAY_LEN(trace); i++) {
        const struct prefix_cache *cache = block_pool_cache(kv_manager_pool(mgr));
        bool was_cached[18];
        struct radix_claim claim;
        char evicted[64];
        struct kv_req r;
        uint32_t n_hit;

        for (block_id id = 0; id < 18; id++)
            was_cached[id] = prefix_cache_contains(cache, id);
        kv_req_text(&r, mgr, trace[i].prompt);
        assert_int_equal(kv_req_admit(&r), ST_OK);
        evicted_text(&r, was_cached, evicted);
        assert_int_equal(r.n_hit, trace[i].n_hit);
        assert_string_equal(kv_text_table(&r, 0), trace[i].table);
        assert_string_equal(evicted, trace[i].evicted);
        assert_true(radix_tree_admit(&tree, r.tokens, r.n_tokens, &claim, &n_hit));
        assert_int_equal(n_hit, r.n_hit);
        radix_tree_finish(&tree, &claim);
        assert_string_equal(radix_tree_text(&tree), trace[i].tree);
        assert_int_equal(tree.n_in_tree * 2, trace[i].n_used);
        radix_tree_check(&tree);
        kv_req_done(&r);
        if (trace[i].queue) assert_string_equal(kv_text_queue(mgr, 0), trace[i].queue);
        kv_manager_check(mgr);
    }
    radix_tree_fini(&tree);
    kv_manager_destroy(mgr);
}

static void nine_steps_classic(void **state) {
    (void)state;
    run_trace(FREE_ORDER_CLASSIC);
}

static void nine_steps_fresh_first(void **state) {
    (void)state;
    run_trace(FREE_ORDER_FRESH_FIRST);
}

/* --- random traces --------------------------------------------------------------------------- */

#define MAX_RUNNING 5
#define MAX_TOKENS  40
#define N_STEPS     20000

struct pair {
    bool is_running;
    struct kv_req r;
    struct radix_claim claim;
};

struct race {
    struct kv_manager *mgr;
    struct radix_tree tree;
    struct pair pairs[MAX_RUNNING];
    struct rng rng;
    uint32_t page;
    bool is_aligned; /* lengths are whole pages, and each last page is unlike all others: no block
                      * is ever partial, and none has a second copy */
    uint32_t last_token;
    uint64_t n_hits, n_refused;
};

static uint32_t below(struct race *x, uint32_t n) {
    return (uint32_t)rng_below(&x->rng, n);
}

static void append_random(struct race *x, struct kv_req *r, uint32_t n) {
    while (n-- > 0)
        kv_req_append(r, 'a' + below(x, 2));
}

static void append_unique_page(struct race *x, struct kv_req *r) {
    for (uint32_t i = 0; i < x->page; i++)
        kv_req_append(r, 1000 + x->last_token++);
}

static void arrive(struct race *x, struct pair *p) {
    uint32_t n = 1 + below(x, MAX_TOKENS / 2), n_hit;
    enum status st;

    kv_req_init(&p->r, x->mgr, NULL, false);
    append_random(x, &p->r, x->is_aligned ? n / x->page * x->page : n);
    if (x->is_aligned) append_unique_page(x, &p->r);
    n = p->r.n_tokens;
    st = kv_req_admit(&p->r);
    assert_int_equal(radix_tree_admit(&x->tree, p->r.tokens, n, &p->claim, &n_hit), st == ST_OK);
    assert_int_equal(n_hit, p->r.n_hit);
    x->n_hits += n_hit;
    x->n_refused += st != ST_OK;
    p->is_running = st == ST_OK;
    if (st != ST_OK) kv_req_done(&p->r);
}

static void decode(struct race *x, struct pair *p) {
    bool has_room;

    if (p->r.n_tokens + 4 > MAX_TOKENS) return;
    if (p->r.n_computed < p->r.n_tokens)
        ; /* found no room before */
    else if (x->is_aligned)
        append_unique_page(x, &p->r);
    else
        append_random(x, &p->r, 1 + below(x, 3));
    has_room = kv_req_advance(&p->r, p->r.n_tokens - p->r.n_computed) == ST_OK;
    assert_int_equal(radix_tree_grow(&x->tree, p->r.tokens, p->r.n_tokens, &p->claim), has_room);
    x->n_refused += !has_room;
}

static void run_race(uint32_t n_blocks, uint32_t page, bool is_aligned, enum free_order order) {
    struct kv_manager_config config = kv_fixture_config(n_blocks, page);
    struct race x = {.page = page, .is_aligned = is_aligned};

    config.no_null = true;
    config.order = order;
    config.dedup = !is_aligned; /* as a tree does: it has each page once */
    x.mgr = kv_manager_create(&config);
    radix_tree_init(&x.tree, page, n_blocks, false);
    rng_seed(&x.rng, support_seed() * 100 + n_blocks + page);
    for (int step = 0; step < N_STEPS; step++) {
        const struct block_pool *pool = kv_manager_pool(x.mgr);
        struct pair *p = &x.pairs[below(&x, MAX_RUNNING)];

        if (!p->is_running) {
            arrive(&x, p);
        } else if (below(&x, 4) > 0) {
            decode(&x, p);
        } else {
            kv_req_done(&p->r);
            radix_tree_finish(&x.tree, &p->claim);
            p->is_running = false;
        }
        assert_int_equal(block_pool_n_evicted(pool), x.tree.n_evicted);
        assert_int_equal(block_pool_n_cached(pool), x.tree.n_in_tree);
        radix_tree_check(&x.tree);
    }
    for (uint32_t i = 0; i < MAX_RUNNING; i++) {
        if (!x.pairs[i].is_running) continue;
        kv_req_done(&x.pairs[i].r);
        radix_tree_finish(&x.tree, &x.pairs[i].claim);
    }
    assert_true(x.n_hits > 0 && x.tree.n_evicted > 0);
    assert_true(x.n_refused > 0 || n_blocks * page > 2 * MAX_TOKENS); /* a roomy pool may not */
    radix_tree_fini(&x.tree);
    kv_manager_destroy(x.mgr);
}

static void random_traces_of_whole_blocks(void **state) {
    (void)state;
    for (uint32_t page = 1; page <= 4; page++) {
        run_race(60 / page, page, true, FREE_ORDER_CLASSIC);
        run_race(60 / page, page, true, FREE_ORDER_FRESH_FIRST);
        run_race(120 / page, page, true, FREE_ORDER_CLASSIC);
    }
}

/* Fresh-first reuses blank blocks at once, as the tree does with the tails it frees. */
static void random_traces_with_partial_and_equal_blocks(void **state) {
    (void)state;
    for (uint32_t page = 1; page <= 5; page++) {
        run_race(40 / page + 3, page, false, FREE_ORDER_FRESH_FIRST);
        run_race(120 / page, page, false, FREE_ORDER_FRESH_FIRST);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nine_steps_classic),
        cmocka_unit_test(nine_steps_fresh_first),
        cmocka_unit_test(random_traces_of_whole_blocks),
        cmocka_unit_test(random_traces_with_partial_and_equal_blocks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

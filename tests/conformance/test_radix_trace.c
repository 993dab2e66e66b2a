/* tests/conformance/test_radix_trace.c - the nine steps of the RadixAttention figure, in blocks.
 *
 * SGLang's figure walks a radix tree through two chats, few-shot examples and self-consistency
 * sampling. The same requests through the block pool (18 blocks of 2, each request admitted whole
 * and freed at once) have the same hits at every step; a tree evicts a leaf at once where the pool
 * evicts its blocks tail first. No block is ever partial, so both free orders agree. */
#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"

#include <stdio.h>

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
} trace[] = {
    {S T1, 0, "0 1 2 3", "", "4 5 6 7 8 9 10 11 12 13 14 15 16 17 3 2 1 0"},
    {S T1 T2, 8, "0 1 2 3 4 5 6 7 8 9 10", "", "11 12 13 14 15 16 17 10 9 8 7 6 5 4 3 2 1 0"},
    {S U1, 4, "0 1 11 12 13 14", "", "15 16 17 10 9 8 7 6 5 4 3 2 14 13 12 11 1 0"},
    {S U1 U2, 12, "0 1 11 12 13 14 15 16 17 10", "10",
     "9 8 7 6 5 4 3 2 10 17 16 15 14 13 12 11 1 0"},
    {X "Q1", 0, "9 8 7", "9 8 7", "6 5 4 3 2 10 17 16 15 14 13 12 11 1 0 7 8 9"},
    {X "Q2", 4, "9 8 6", "6", NULL},
    {X "Q3", 4, "9 8 5", "5", NULL},
    {X "Q4", 4, "9 8 4", "4", "3 2 10 17 16 15 14 13 12 11 1 0 7 6 5 4 8 9"},
    {S T1 T2 V, 8, "0 1 2 3 10 17 16 15 14 13 12 11", "10 17 16 15 14 13 12 11",
     "7 6 5 4 8 9 11 12 13 14 15 16 17 10 3 2 1 0"},
    {X "Q2A1", 6, "9 8 6 7", "7", NULL},
    {X "Q2A2", 6, "9 8 6 5", "5", NULL},
    {X "Q2A3", 6, "9 8 6 4", "4", "11 12 13 14 15 16 17 10 3 2 1 0 7 5 4 6 8 9"},
};

/* Of the blocks taken anew, in order, those that were published before. */
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

    config.no_null = true;
    config.order = order;
    mgr = kv_manager_create(&config);
    for (size_t i = 0; i < ARRAY_LEN(trace); i++) {
        const struct prefix_cache *cache = block_pool_cache(kv_manager_pool(mgr));
        bool was_cached[18];
        char evicted[64];
        struct kv_req r;

        for (block_id id = 0; id < 18; id++)
            was_cached[id] = prefix_cache_contains(cache, id);
        kv_req_text(&r, mgr, trace[i].prompt);
        assert_int_equal(kv_req_admit(&r), ST_OK);
        evicted_text(&r, was_cached, evicted);
        assert_int_equal(r.n_hit, trace[i].n_hit);
        assert_string_equal(kv_text_table(&r, 0), trace[i].table);
        assert_string_equal(evicted, trace[i].evicted);
        kv_req_done(&r);
        if (trace[i].queue) assert_string_equal(kv_text_queue(mgr, 0), trace[i].queue);
        kv_manager_check(mgr);
    }
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nine_steps_classic),
        cmocka_unit_test(nine_steps_fresh_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

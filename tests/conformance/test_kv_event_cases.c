/* tests/conformance/test_kv_event_cases.c - numbered cases of KV events that the manager publishes.
 * Blocks of 16 tokens and one full group by default. */
#include <stdio.h>
#include <string.h>

#include "tests/support/cm.h"
#include "tests/support/kv_events_reader.h"
#include "tests/support/kv_fixture.h"

struct event_fixture {
    struct kv_manager *mgr;
    struct kv_event_log *log;
    struct kv_events_read read;
    uint64_t next;
};

static void fixture_open(struct event_fixture *w, struct kv_manager_config config,
                         struct kv_event_config events) {
    *w = (struct event_fixture){0};
    events.max_batches = 100;
    events.max_bytes = 1 << 20;
    events.block_size = config.block_size;
    events.hash_bytes = 16;
    assert_int_equal(kv_event_log_create(&w->log, &events, NULL), ST_OK);
    config.events = w->log;
    w->mgr = kv_manager_create(&config);
}

static void fixture_close(struct event_fixture *w) {
    kv_manager_destroy(w->mgr);
    kv_event_log_destroy(w->log);
    kv_events_read_fini(&w->read);
}

/* The events since the last call. */
static uint32_t take(struct event_fixture *w) {
    kv_events_read_fini(&w->read);
    kv_event_log_commit(w->log, 0, true);
    kv_events_read_all(w->log, w->next, &w->read);
    w->next = w->read.next;
    return w->read.n_events;
}

/* An event as "BlockStored 3 hashes 48 tokens": what a case counts. */
static const char *brief(struct event_fixture *w, uint32_t i) {
    static char out[64];
    const char *text = kv_events_text(&w->read, i), *hashes = strchr(text, '['), *tokens;
    uint32_t n_hashes = 0, n_tokens = 0;

    if (!hashes) return text;
    for (const char *p = hashes; *p != ']'; p++)
        n_hashes += *p == ' ' || p == hashes;
    tokens = strchr(hashes + 1, '[');
    for (const char *p = tokens; p && *p != ']'; p++)
        n_tokens += (*p == ' ' || *p == '[') && p[1] != ']';
    snprintf(out, sizeof(out), "%.*s %u hashes %u tokens", (int)(strchr(text, ' ') - text), text,
             n_hashes, n_tokens);
    return out;
}

static const char *hex_of(const struct block_hash *h) {
    static char out[4][33];
    static int next;
    char *s = out[next++ % 4];

    for (int i = 0; i < 16; i++)
        sprintf(s + 2 * i, "%02x", h->bytes[i]);
    return s;
}

/* Room for all tokens without looking anything up. */
static void allocate_blind(struct kv_req *r) {
    r->n_computed = 0;
    assert_int_equal(kv_req_advance(r, r->n_tokens), ST_OK);
}

static void case_35_stored_removed_cleared(void **state) {
    static const uint32_t counts[] = {2, 3, 10};

    (void)state;
    for (size_t c = 0; c < ARRAY_LEN(counts); c++) {
        uint32_t n = counts[c];
        struct kv_req r;
        struct event_fixture w;
        char expected[64];

        fixture_open(&w, kv_fixture_config(n + 1, 16), (struct kv_event_config){0});
        kv_req_init(&r, w.mgr, NULL, false);
        kv_req_append_run(&r, 0, n * 16);
        allocate_blind(&r);
        assert_int_equal(take(&w), 1);
        snprintf(expected, sizeof(expected), "BlockStored %u hashes %u tokens", n, n * 16);
        assert_string_equal(brief(&w, 0), expected);
        assert_string_equal(kv_events_text(&w.read, 1), "(no event)");

        kv_req_free(&r);
        assert_int_equal(take(&w), 0);
        allocate_blind(&r);
        assert_int_equal(take(&w), n + 1);
        for (uint32_t i = 0; i < n; i++)
            assert_string_equal(brief(&w, i), "BlockRemoved 1 hashes 0 tokens");
        assert_string_equal(brief(&w, n), expected);

        kv_req_done(&r);
        assert_int_equal(kv_manager_reset_prefix_cache(w.mgr), ST_OK);
        assert_int_equal(take(&w), 1);
        assert_string_equal(kv_events_text(&w.read, 0), "AllBlocksCleared");
        fixture_close(&w);
    }
}

static void case_36_the_adapter_is_named(void **state) {
    const struct block_extras extras = {.lora = STR("ad")};
    const struct block_hash hash = {{1}};
    struct kv_event_stored stored = {.hashes = &hash, .n_blocks = 1, .lora_id = 42};
    struct kv_req r;
    struct event_fixture w;

    (void)state;
    fixture_open(&w, kv_fixture_config(11, 16), (struct kv_event_config){0});
    stored.extras = &extras;
    kv_event_log_stored(w.log, &stored);
    stored.extras = NULL;
    stored.lora_id = -1;
    kv_event_log_stored(w.log, &stored);
    assert_int_equal(take(&w), 2);
    assert_string_equal(
        kv_events_text(&w.read, 0),
        "BlockStored [01000000000000000000000000000000] nil [] 16 42 GPU ad [[ad]]");
    assert_string_equal(kv_events_text(&w.read, 1),
                        "BlockStored [01000000000000000000000000000000] nil [] 16 nil GPU nil");
    kv_req_init(&r, w.mgr, &extras, false); /* and through the manager */
    kv_req_append_run(&r, 0, 16);
    allocate_blind(&r);
    assert_int_equal(take(&w), 1);
    assert_non_null(strstr(kv_events_text(&w.read, 0), "nil GPU ad [[ad]]"));
    kv_req_done(&r);
    fixture_close(&w);
}

/* Blocks of one token behind a window that has lost the first two: the published parent comes from
 * the hash chain, because the physical one is null. */
static void case_37_the_parent_is_of_the_chain(void **state) {
    struct kv_manager_config config = kv_fixture_config(11, 1);
    struct kv_alloc a = {.n_computed = 2, .n_new = 2};
    char expected[200];
    struct kv_req r;
    struct event_fixture w;

    (void)state;
    config.n_groups = 1;
    config.group[0] = (struct kv_group_config){KV_SLIDING, 1};
    fixture_open(&w, config, (struct kv_event_config){0});
    kv_req_init(&r, w.mgr, NULL, false);
    kv_req_append_run(&r, 7, 4);
    assert_int_equal(kv_req_advance(&r, 2), ST_OK);
    assert_int_equal(take(&w), 1);
    assert_int_equal(kv_manager_allocate(w.mgr, &r.seq, r.tokens, 4, &a), ST_OK);
    assert_string_equal(kv_text_table(&r, 0), "0 0 3 4");
    assert_int_equal(take(&w), 1);
    snprintf(expected, sizeof(expected), "BlockStored [%s %s] %s [9 10] 1 nil GPU nil",
             hex_of(&r.seq.hashes[2]), hex_of(&r.seq.hashes[3]), hex_of(&r.seq.hashes[1]));
    assert_string_equal(kv_events_text(&w.read, 0), expected);
    kv_req_done(&r);
    fixture_close(&w);
}

static struct kv_event_config annotated(uint32_t n_groups) {
    return (struct kv_event_config){
        .n_groups = n_groups,
        .groups = {{"full_attention", 0}, {"sliding_window", 32}, {"mamba", 0}}};
}

static void case_38_and_40_groups_are_annotated(void **state) {
    static const char *const tails[] = {"nil 0 full_attention", "nil 1 sliding_window 32",
                                        "nil 2 mamba", "GPU nil"};
    const struct block_hash hash = {{1}};
    struct kv_event_stored stored = {.hashes = &hash, .n_blocks = 1, .lora_id = -1};
    struct event_fixture w;

    (void)state;
    fixture_open(&w, kv_fixture_config(11, 16), annotated(3));
    for (stored.group = 0; stored.group < 4; stored.group++) /* 3 is out of range: not annotated */
        kv_event_log_stored(w.log, &stored);
    assert_int_equal(take(&w), 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_non_null(strstr(kv_events_text(&w.read, i), tails[i]));
    fixture_close(&w);
}

static void case_39_and_41_each_group_reports_its_own_events(void **state) {
    struct kv_manager_config config = kv_fixture_config(5, 16);
    struct kv_event_config events = annotated(2);
    struct kv_req r;
    struct event_fixture w;

    (void)state;
    config.n_groups = 2;
    config.group[0] = (struct kv_group_config){.kind = KV_FULL};
    config.group[1] = (struct kv_group_config){KV_SLIDING, 128};
    events.groups[1].window = 128;
    fixture_open(&w, config, events);
    kv_req_init(&r, w.mgr, NULL, false);
    kv_req_append_run(&r, 0, 16);
    allocate_blind(&r);
    assert_int_equal(take(&w), 2);
    assert_non_null(strstr(kv_events_text(&w.read, 0), "nil 0 full_attention"));
    assert_non_null(strstr(kv_events_text(&w.read, 1), "nil 1 sliding_window 128"));
    kv_req_done(&r);

    kv_req_init(&r, w.mgr, NULL, false); /* other tokens, in all four blocks */
    kv_req_append_run(&r, 500, 32);
    allocate_blind(&r);
    assert_int_equal(take(&w), 4);
    for (uint32_t i = 0; i < 2; i++) {
        const char *text = kv_events_text(&w.read, i);

        assert_non_null(strstr(text, "BlockRemoved"));
        assert_true(text[strlen(text) - 1] == '0' || text[strlen(text) - 1] == '1');
    }
    kv_req_done(&r);
    fixture_close(&w);
}

/* A snapshot publishes every cached block once; no reference and no order changes. */
static void case_42_cached_blocks_can_be_reported_again(void **state) {
    struct kv_event_digest before, after;
    struct kv_req r, copy;
    struct event_fixture w;

    (void)state;
    fixture_open(&w, kv_fixture_config(11, 4), annotated(1));
    kv_req_init(&r, w.mgr, NULL, false);
    kv_req_append_run(&r, 1, 13);
    allocate_blind(&r);
    kv_req_init(&copy, w.mgr, NULL, false); /* the same content in other blocks */
    kv_req_append_run(&copy, 1, 13);
    allocate_blind(&copy);
    take(&w);
    kv_event_log_digest(w.log, &before);
    kv_manager_report_all(w.mgr, 0);
    assert_int_equal(take(&w), 3);
    for (uint32_t i = 0; i < 3; i++) {
        char expected[200];

        snprintf(expected, sizeof(expected),
                 "BlockStored [%s] %s [%u %u %u %u] 4 nil GPU nil nil 0 full_attention",
                 hex_of(&r.seq.hashes[i]), i ? hex_of(&r.seq.hashes[i - 1]) : "nil", 4 * i + 1,
                 4 * i + 2, 4 * i + 3, 4 * i + 4);
        assert_string_equal(kv_events_text(&w.read, i), expected);
    }
    kv_event_log_digest(w.log, &after);
    assert_memory_equal(before.sets, after.sets, sizeof(before.sets));
    assert_string_equal(kv_text_refs(&r), "1 1 1 1");
    kv_manager_check(w.mgr);
    kv_req_done(&r);
    kv_req_done(&copy);
    fixture_close(&w);
}

static void case_43_and_44_no_change_no_event(void **state) {
    struct kv_manager_config config = kv_fixture_config(11, 16);
    struct kv_req r;
    struct event_fixture w;

    (void)state;
    fixture_open(&w, config, (struct kv_event_config){0});
    kv_req_init(&r, w.mgr, NULL, false);
    kv_req_append_run(&r, 0, 15); /* no full block */
    allocate_blind(&r);
    assert_int_equal(take(&w), 0);
    kv_manager_report_all(w.mgr, 0);
    assert_int_equal(take(&w), 0);
    kv_req_done(&r);
    fixture_close(&w);

    config.no_caching = true; /* nothing is published: no event */
    fixture_open(&w, config, (struct kv_event_config){0});
    kv_req_init(&r, w.mgr, NULL, false);
    kv_req_append_run(&r, 0, 64);
    allocate_blind(&r);
    assert_int_equal(take(&w), 0);
    kv_req_done(&r);
    fixture_close(&w);
}

/* A copy comes and goes without an event; the last one to go is published. */
static void only_the_last_copy_is_removed(void **state) {
    struct kv_req a, b, c;
    struct event_fixture w;

    (void)state;
    fixture_open(&w, kv_fixture_config(4, 16), (struct kv_event_config){0});
    kv_req_init(&a, w.mgr, NULL, false);
    kv_req_init(&b, w.mgr, NULL, false);
    kv_req_append_run(&a, 0, 16);
    kv_req_append_run(&b, 0, 16);
    allocate_blind(&a);
    allocate_blind(&b);
    assert_int_equal(take(&w), 2); /* stored twice is harmless */
    kv_req_done(&a);
    kv_req_init(&c, w.mgr, NULL, false);
    kv_req_append_run(&c, 700, 32);
    allocate_blind(&c); /* evicts the first copy */
    assert_int_equal(take(&w), 1);
    assert_string_equal(brief(&w, 0), "BlockStored 2 hashes 32 tokens");
    kv_req_done(&b);
    kv_req_append_run(&c, 800, 16);
    assert_int_equal(kv_req_advance(&c, 16), ST_OK);
    assert_int_equal(take(&w), 2);
    assert_string_equal(brief(&w, 0), "BlockRemoved 1 hashes 0 tokens");
    kv_req_done(&c);
    fixture_close(&w);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_35_stored_removed_cleared),
        cmocka_unit_test(case_36_the_adapter_is_named),
        cmocka_unit_test(case_37_the_parent_is_of_the_chain),
        cmocka_unit_test(case_38_and_40_groups_are_annotated),
        cmocka_unit_test(case_39_and_41_each_group_reports_its_own_events),
        cmocka_unit_test(case_42_cached_blocks_can_be_reported_again),
        cmocka_unit_test(case_43_and_44_no_change_no_event),
        cmocka_unit_test(only_the_last_copy_is_removed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

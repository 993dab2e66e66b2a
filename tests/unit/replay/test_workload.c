/* tests/unit/replay/test_workload.c - generators and traces: what a replay replays. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/map.h"
#include "common/base/mem.h"
#include "tests/replay/workload/generator.h"
#include "tests/support/cm.h"

#define SHORT_S 60

static void make(struct workload *w, const struct generator *g, uint64_t seed) {
    generate(w, g, seed, SHORT_S, g->rate / 4);
    assert_true(w->n > 20);
}

static bool are_equal(const struct workload *a, const struct workload *b) {
    if (a->n != b->n || a->block_tokens != b->block_tokens) return false;
    for (uint32_t i = 0; i < a->n; i++) {
        struct workload_request x = a->requests[i], y = b->requests[i];

        if (x.n_names != y.n_names) return false;
        if (memcmp(x.chain, y.chain, x.n_names * sizeof(*x.chain)) != 0) return false;
        x.chain = y.chain = NULL;
        if (memcmp(&x, &y, sizeof(x)) != 0) return false;
    }
    return true;
}

static void a_seed_gives_one_workload_and_another_seed_another(void **state) {
    struct workload a, b, c;
    (void)state;

    for (const struct generator *g = generators; g->name; g++) {
        make(&a, g, 5);
        make(&b, g, 5);
        make(&c, g, 6);
        assert_true(are_equal(&a, &b));
        assert_false(are_equal(&a, &c));
        workload_free(&a);
        workload_free(&b);
        workload_free(&c);
    }
}

/* A name stands for the prompt up to its end: what comes before it is always the same. */
static void check_names(const struct workload *w) {
    struct map before;

    map_init(&before, 1);
    for (uint32_t i = 0; i < w->n; i++) {
        const struct workload_request *q = &w->requests[i];

        for (uint32_t b = 1; b < q->n_names; b++) {
            const void *known = map_find(&before, q->chain[b]);

            if (known) assert_int_equal((uintptr_t)known, q->chain[b - 1]);
            if (!known) map_insert(&before, q->chain[b], (void *)(uintptr_t)q->chain[b - 1]);
        }
    }
    map_fini(&before);
}

static void check_requests(const struct workload *w) {
    for (uint32_t i = 0; i < w->n; i++) {
        const struct workload_request *q = &w->requests[i];

        assert_true(!i || q->arrival_s >= q[-1].arrival_s);
        assert_true(q->arrival_s >= 0 && q->n_prompt && q->n_output);
        assert_true(q->n_blocks <= q->n_prompt / w->block_tokens);
        assert_in_range(q->n_names, q->n_blocks, CEIL_DIV(q->n_prompt, w->block_tokens));
    }
}

static void requests_come_in_order_and_equal_names_mean_equal_prompts(void **state) {
    struct workload w;
    (void)state;

    for (const struct generator *g = generators; g->name; g++) {
        make(&w, g, 7);
        check_requests(&w);
        check_names(&w);
        assert_true(w.requests[w.n - 1].arrival_s < SHORT_S);
        workload_free(&w);
    }
}

static double share_of_bound(const struct workload *w, uint64_t cache_tokens) {
    double prompt = 0, cached = 0;
    struct workload_bound bound;

    workload_bound(w, cache_tokens, &bound);
    for (uint32_t i = 0; i < w->n; i++) {
        prompt += w->requests[i].n_prompt;
        cached += (double)bound.cached_blocks[i] * w->block_tokens;
    }
    workload_bound_free(&bound);
    return cached / prompt;
}

/* Of prompt tokens, with a cache for all; SHORT_S is short for chats to go on in. */
static void each_generator_shares_what_it_is_named_after(void **state) {
    static const struct {
        const char *name;
        double least, most;
    } expected[] = {{"conversations", 0.04, 0.5}, {"documents", 0.1, 0.9}, {"few_shot", 0.85, 0.97},
                    {"samples", 0.9, 0.99},       {"chats", 0.5, 0.95},    {"tree", 0.7, 0.99},
                    {"tenants", 0.6, 0.97}};
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        struct workload w;
        double share;

        make(&w, generator_find(expected[i].name), 3);
        share = share_of_bound(&w, 100000000);
        print_message("%-14s %u requests, shared %.3f\n", expected[i].name, w.n, share);
        assert_true(share >= expected[i].least && share <= expected[i].most);
        assert_true(share_of_bound(&w, 100000) < share);
        workload_free(&w);
    }
}

static void copies_share_the_first_block_alone(void **state) {
    struct workload w, copied;
    double span_s;
    (void)state;

    make(&w, generator_find("conversations"), 9);
    make(&copied, generator_find("conversations"), 9);
    span_s = workload_span_s(&w);
    workload_overlay(&copied, 3);
    assert_int_equal(copied.n, 3 * w.n);
    check_requests(&copied);
    check_names(&copied);
    assert_true(workload_span_s(&copied) <= span_s + 1e-3);
    for (uint32_t i = 0; i < copied.n; i++)
        assert_true(!copied.requests[i].n_names ||
                    copied.requests[i].chain[0] == w.requests[0].chain[0]);
    workload_free(&w);
    workload_free(&copied);
}

static void a_load_is_reached(void **state) {
    struct workload_bound bound;
    struct workload w;
    (void)state;

    make(&w, generator_find("conversations"), 11);
    workload_load(&w, 4, 300000, 0.7, true);
    workload_bound(&w, 4 * 300000, &bound);
    assert_float_equal(bound.work_s / workload_span_s(&w) / 4, 0.7, 0.001);
    for (uint32_t i = 0; i < w.n; i++)
        assert_true(w.requests[i].n_prompt + w.requests[i].n_output <= 270000);
    workload_bound_free(&bound);
    workload_free(&w);
}

/* --- traces ---------------------------------------------------------------------------------- */

static enum status read_text(struct workload *w, const char *text, struct error *err) {
    char path[] = "/tmp/trace-XXXXXX";
    int fd = mkstemp(path);
    enum status st;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    st = workload_read(w, &(struct trace){path, TRACE_BLOCK, TRACE_TICKS_PER_S}, err);
    unlink(path);
    return st;
}

static void a_trace_is_read_and_equal_stamps_are_spread(void **state) {
    static const double arrivals_s[] = {0, 1.5, 3, 3.5};
    struct error err = {0};
    struct workload w;
    (void)state;

    assert_int_equal(
        read_text(
            &w,
            "{\"timestamp\":0,\"input_length\":1024,\"output_length\":0,\"hash_ids\":[0,1]}\n"
            "{\"timestamp\":0,\"input_length\":1100,\"output_length\":5,\"hash_ids\":[0,1,2]}\n"
            "{\"timestamp\":3000,\"input_length\":600,\"output_length\":7,\"hash_ids\":[0,3]}\n"
            "{\"timestamp\":3000,\"input_length\":2000,\"output_length\":7,\"hash_ids\":[0]}\n",
            &err),
        ST_OK);
    assert_int_equal(w.n, 4);
    for (uint32_t i = 0; i < w.n; i++)
        assert_float_equal(w.requests[i].arrival_s, arrivals_s[i], 1e-9);
    check_requests(&w);
    assert_int_equal(w.requests[0].n_output, 1);
    assert_int_equal(w.requests[0].n_blocks, 2);
    assert_int_equal(w.requests[1].n_blocks, 2);
    assert_int_equal(w.requests[1].n_names, 3);
    assert_int_equal(w.requests[3].n_blocks, 1);
    assert_memory_equal(w.requests[0].chain, w.requests[1].chain, 2 * sizeof(uint64_t));
    workload_free(&w);
}

static void a_broken_trace_is_reported_by_line(void **state) {
    struct error err = {0};
    struct workload w;
    (void)state;

    assert_int_equal(
        read_text(&w,
                  "{\"timestamp\":0,\"input_length\":9,\"output_length\":1,\"hash_ids\":[]}\n"
                  "{\"timestamp\":1,\"input_length\":9}\n",
                  &err),
        ST_INVALID);
    assert_non_null(strstr(err.message, "line 2"));
    assert_non_null(strstr(err.message, "output_length"));
    assert_int_equal(read_text(&w, "", &err), ST_INVALID);
    assert_int_equal(workload_read(&w, &(struct trace){"/nowhere/trace", 16, 1}, &err), ST_IO);
    assert_non_null(strstr(err.message, "/nowhere/trace"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_seed_gives_one_workload_and_another_seed_another),
        cmocka_unit_test(requests_come_in_order_and_equal_names_mean_equal_prompts),
        cmocka_unit_test(each_generator_shares_what_it_is_named_after),
        cmocka_unit_test(copies_share_the_first_block_alone),
        cmocka_unit_test(a_load_is_reached),
        cmocka_unit_test(a_trace_is_read_and_equal_stamps_are_spread),
        cmocka_unit_test(a_broken_trace_is_reported_by_line),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

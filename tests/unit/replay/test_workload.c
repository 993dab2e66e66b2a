/* tests/unit/replay/test_workload.c - generators and traces: what a replay replays. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/map.h"
#include "common/base/mem.h"
#include "tests/replay/workload/crowd.h"
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

static void check_order(const struct workload *w) {
    for (uint32_t i = 1; i < w->n; i++)
        assert_true(w->requests[i].arrival_s >= w->requests[i - 1].arrival_s);
}

static void check_requests(const struct workload *w) {
    check_order(w);
    for (uint32_t i = 0; i < w->n; i++) {
        const struct workload_request *q = &w->requests[i];

        assert_true(q->arrival_s >= 0 && q->n_prompt && q->n_output && q->n_known <= q->n_blocks);
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
        assert_true(w.end_s > 0 || w.requests[w.n - 1].arrival_s < SHORT_S);
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
    workload_overlay(&copied, 3, &(struct crowd){0});
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
    workload_load(
        &w,
        &(struct workload_target){
            .n_workers = 4, .cache_tokens = 300000, .speed = 4, .load = 0.7, .has_copies = true});
    workload_bound(&w, 4 * 300000, &bound);
    assert_float_equal(bound.work_s / workload_span_s(&w) / 4, 0.7, 0.001);
    for (uint32_t i = 0; i < w.n; i++)
        assert_true(w.requests[i].n_prompt + w.requests[i].n_output <= 270000);
    workload_bound_free(&bound);
    workload_free(&w);
}

/* --- agents ---------------------------------------------------------------------------------- */

#define AGENTS_S   2400.0
#define N_AGENTS   800
#define ANSWERED_S 8.0 /* what an answer takes, to say which turns are counted */

struct moments {
    double input, output, known, n_gaps, n_short_gaps, n_long_gaps;
};

static void add_turn(struct moments *m, const struct workload *w,
                     const struct workload_request *q) {
    m->input += q->n_prompt;
    m->output += q->n_output;
    m->known += (double)q->n_known * w->block_tokens;
}

/* Of an agent, not of a sub-agent, to its own next turn. */
static void add_gap(struct moments *m, const struct workload_request *q) {
    if (q->parent || q->is_final) return;
    m->n_gaps++;
    m->n_short_gaps += q->gap_s <= 2.1;
    m->n_long_gaps += q->gap_s > 25.8;
}

/* A turn opens with all that its session knows, unless it was compacted. */
static void check_turn(const struct workload_request *q, const struct workload_request *then) {
    assert_true(isinf(then->arrival_s));
    if (then->session != q->session || then->n_known < q->n_after) return;
    assert_int_equal(then->n_known, q->n_after);
    assert_memory_equal(then->chain, q->chain, q->n_after * sizeof(uint64_t));
}

/* The requests of one place. Those after the warm-up are counted; the number of all is returned. */
static uint32_t follow(const struct workload *w, uint32_t first, struct moments *m, uint32_t *n) {
    const struct workload_request *q = &w->requests[first];
    double at_s = q->arrival_s;
    uint32_t n_seen = 1;

    for (;; n_seen++) {
        const struct workload_request *then;

        if (at_s >= 0.3 * AGENTS_S && at_s < AGENTS_S) {
            add_turn(m, w, q);
            add_gap(m, q);
            (*n)++;
        }
        at_s += q->gap_s + ANSWERED_S;
        if (!q->next) return n_seen;
        then = &w->requests[q->next - 1];
        check_turn(q, then);
        q = then;
    }
}

/* An independent generator of the same agents: mean prompt of 71,100 tokens over three seeds, 130
 * to 145 times the answer, 94.3 % of it sent or answered before; half of the gaps below 2.1 s, a
 * tenth above 25.8 s. */
static void agents_have_their_moments_within_three_percent(void **state) {
    struct moments m = {0};
    struct workload w;
    uint32_t n_seen = 0, n = 0;
    (void)state;

    generate(&w, generator_find("agents"), 1, AGENTS_S, N_AGENTS);
    for (uint32_t i = 0; i < w.n && !isinf(w.requests[i].arrival_s); i++)
        n_seen += w.requests[i].session ? follow(&w, i, &m, &n) : 1;
    assert_int_equal(n_seen, w.n);
    print_message("prompt %.0f, by answer %.1f, known %.4f, short gaps %.3f, long %.3f\n",
                  m.input / n, m.input / m.output, m.known / m.input, m.n_short_gaps / m.n_gaps,
                  m.n_long_gaps / m.n_gaps);
    assert_float_equal(m.input / n, 71100, 0.03 * 71100);
    assert_in_range(m.input / m.output, 130, 145);
    assert_float_equal(m.known / m.input, 0.943, 0.03 * 0.943);
    assert_float_equal(m.n_short_gaps / m.n_gaps, 0.5, 0.015);
    assert_float_equal(m.n_long_gaps / m.n_gaps, 0.1, 0.003);
    workload_free(&w);
}

/* --- crowds ---------------------------------------------------------------------------------- */

static void load_crowd(struct workload *w, struct crowd crowd) {
    make(w, generator_find("conversations"), 11);
    workload_load(w, &(struct workload_target){.n_workers = 4,
                                               .cache_tokens = 300000,
                                               .speed = 4,
                                               .load = 0.7,
                                               .has_copies = true,
                                               .crowd = crowd});
    check_requests(w);
    check_names(w);
}

static void a_draw_moves_arrivals_and_nothing_else(void **state) {
    struct workload evenly, drawn, again, other;
    uint64_t blocks[2] = {0};
    (void)state;

    load_crowd(&evenly, (struct crowd){0});
    load_crowd(&drawn, (struct crowd){.draw = 11});
    load_crowd(&again, (struct crowd){.draw = 11});
    load_crowd(&other, (struct crowd){.draw = 12});
    assert_true(are_equal(&drawn, &again));
    assert_false(are_equal(&drawn, &other));
    assert_int_equal(drawn.n, evenly.n);
    for (uint32_t i = 0; i < drawn.n; i++) {
        blocks[0] += evenly.requests[i].n_blocks;
        blocks[1] += drawn.requests[i].n_blocks;
    }
    assert_int_equal(blocks[0], blocks[1]);
    workload_free(&evenly);
    workload_free(&drawn);
    workload_free(&again);
    workload_free(&other);
}

static uint32_t count_between(const struct workload *w, double first_s, double last_s) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < w->n; i++)
        n += w->requests[i].arrival_s >= first_s && w->requests[i].arrival_s < last_s;
    return n;
}

/* A request each half second: 3 x 120 in the first minute, and 1,200 in ten minutes as before. */
static void a_burst_has_its_rate_and_keeps_the_mean(void **state) {
    struct workload w = {.block_tokens = TRACE_BLOCK};
    (void)state;

    for (uint32_t i = 0; i < 2400; i++)
        workload_add(&w, (struct workload_request){.arrival_s = i / 2.0});
    crowd_burst(&w, &(struct crowd){.burst = 3});
    check_order(&w);
    assert_int_equal(count_between(&w, 0, 60), 360);
    assert_int_equal(count_between(&w, 0, 600), 1200);
    assert_int_equal(count_between(&w, 600, 660), 360);
    workload_free(&w);
}

static void a_crowd_has_its_share_after_half_time(void **state) {
    uint32_t n_flash = 0, n_flood = 0, n_late = 0;
    struct workload w;
    double half_s;
    (void)state;

    load_crowd(&w, (struct crowd){.draw = 1, .flash = 0.3, .flood = 0.6});
    half_s = workload_span_s(&w) / 2 + w.requests[0].arrival_s;
    for (uint32_t i = 0; i < w.n; i++) {
        const struct workload_request *q = &w.requests[i];
        bool is_crowd = q->tenant == TENANT_FLASH || q->tenant == TENANT_FLOOD;

        assert_true(!is_crowd || q->arrival_s >= half_s - 1e-6);
        if (is_crowd) assert_in_range(q->n_prompt, 19900, 22100);
        n_late += q->arrival_s > half_s;
        n_flash += q->tenant == TENANT_FLASH;
        n_flood += q->tenant == TENANT_FLOOD;
    }
    assert_float_equal((double)n_flash / n_late, 0.3, 0.05);
    assert_float_equal((double)n_flood / n_late, 0.7 * 0.6, 0.05);
    workload_free(&w);
}

/* --- traces ---------------------------------------------------------------------------------- */

static enum status read_drawn(struct workload *w, const char *text, uint64_t draw,
                              struct error *err) {
    char path[] = "/tmp/trace-XXXXXX";
    int fd = mkstemp(path);
    enum status st;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    st = workload_read(w, &(struct trace){path, TRACE_BLOCK, TRACE_TICKS_PER_S, draw}, err);
    unlink(path);
    return st;
}

static enum status read_text(struct workload *w, const char *text, struct error *err) {
    return read_drawn(w, text, 0, err);
}

static void a_draw_spreads_equal_stamps_within_their_tick(void **state) {
    const char *text =
        "{\"timestamp\":0,\"input_length\":9,\"output_length\":1,\"hash_ids\":[]}\n"
        "{\"timestamp\":0,\"input_length\":9,\"output_length\":1,\"hash_ids\":[]}\n"
        "{\"timestamp\":3000,\"input_length\":9,\"output_length\":1,\"hash_ids\":[]}\n";
    struct error err = {0};
    struct workload w;
    (void)state;

    for (uint64_t draw = 1; draw < 20; draw++) {
        assert_int_equal(read_drawn(&w, text, draw, &err), ST_OK);
        check_order(&w);
        assert_true(w.requests[0].arrival_s >= 0 && w.requests[1].arrival_s < 3);
        assert_true(w.requests[2].arrival_s >= 3 && w.requests[2].arrival_s < 4);
        assert_true(w.requests[0].arrival_s < w.requests[1].arrival_s);
        workload_free(&w);
    }
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
    assert_int_equal(workload_read(&w, &(struct trace){"/nowhere/trace", 16, 1, 0}, &err), ST_IO);
    assert_non_null(strstr(err.message, "/nowhere/trace"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_seed_gives_one_workload_and_another_seed_another),
        cmocka_unit_test(requests_come_in_order_and_equal_names_mean_equal_prompts),
        cmocka_unit_test(each_generator_shares_what_it_is_named_after),
        cmocka_unit_test(copies_share_the_first_block_alone),
        cmocka_unit_test(a_load_is_reached),
        cmocka_unit_test(agents_have_their_moments_within_three_percent),
        cmocka_unit_test(a_draw_moves_arrivals_and_nothing_else),
        cmocka_unit_test(a_burst_has_its_rate_and_keeps_the_mean),
        cmocka_unit_test(a_crowd_has_its_share_after_half_time),
        cmocka_unit_test(a_draw_spreads_equal_stamps_within_their_tick),
        cmocka_unit_test(a_trace_is_read_and_equal_stamps_are_spread),
        cmocka_unit_test(a_broken_trace_is_reported_by_line),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/worker/output/test_answer.c - answers against a model that keeps a log of pieces, and
 * a stream that follows an answer by its mark. */
#include <stdio.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/output/answer.h"

#define assert_text(b, z)                                                                          \
    do {                                                                                           \
        buf_append_char((b), '\0');                                                                \
        assert_string_equal(buf_ptr(b), z);                                                        \
        buf_truncate((b), buf_len(b) - 1);                                                         \
    } while (0)

static void kinds_that_change_begin_parts(void **state) {
    struct answer a;
    struct buf all;

    (void)state;
    answer_init(&a, 1000);
    answer_add(&a, PART_REASONING, STR("Look"));
    answer_add(&a, PART_REASONING, STR(" it up."));
    answer_add(&a, PART_TEXT, STR(""));
    assert_int_equal(a.n, 1);
    answer_add(&a, PART_TEXT, STR("On it."));
    assert_true(a.part[0].is_whole);
    answer_begin_call(&a, STR("find"), STR("call_1"));
    answer_add_arguments(&a, STR("{\"x\": "));
    answer_add_arguments(&a, STR("1}"));
    assert_false(a.part[2].is_whole);
    answer_end_call(&a, false);
    answer_begin_call(&a, STR("h"), STR("call_2"));
    answer_end(&a);
    answer_check(&a);

    assert_int_equal(a.n, 4);
    assert_text(&a.part[0].text, "Look it up.");
    assert_text(&a.part[2].text, "{\"x\": 1}");
    assert_text(&a.part[2].name, "find");
    assert_string_equal(a.part[2].id, "call_1");
    assert_false(a.part[2].is_cut);
    assert_true(a.part[3].is_cut);
    assert_int_equal(a.part[3].call, 1);
    buf_init(&all, 0);
    assert_true(answer_join(&a, PART_TEXT, &all));
    assert_text(&all, "On it.");
    buf_fini(&all);
    answer_fini(&a);
}

static void bytes_over_the_limit_are_left_out_in_whole_characters(void **state) {
    (void)state;
    for (size_t limit = 0; limit < 12; limit++) {
        struct answer whole, parts;

        answer_init(&whole, limit);
        answer_init(&parts, limit);
        answer_add(&whole, PART_TEXT, STR("a\xE2\x82\xAC\xC3\xA9zz"));
        answer_add(&parts, PART_TEXT, STR("a"));
        answer_add(&parts, PART_TEXT, STR("\xE2\x82\xAC"));
        answer_add(&parts, PART_TEXT, STR("\xC3\xA9"));
        answer_add(&parts, PART_TEXT, STR("zz"));
        assert_int_equal(whole.is_incomplete, limit < 8);
        assert_int_equal(parts.is_incomplete, limit < 8);
        assert_int_equal(whole.n_bytes, parts.n_bytes);
        assert_true(str_is_utf8(buf_str(&whole.part[0].text)));
        assert_true(str_eq(buf_str(&whole.part[0].text), buf_str(&parts.part[0].text)));
        answer_check(&whole);
        answer_fini(&whole);
        answer_fini(&parts);
    }
}

static void parts_over_the_limit_are_left_out(void **state) {
    struct answer a;

    (void)state;
    answer_init(&a, 1 << 20);
    for (uint32_t i = 0; i <= ANSWER_MAX_PARTS; i++) {
        assert_false(a.is_incomplete);
        answer_begin_call(&a, STR("f"), STR("id"));
        answer_add_arguments(&a, STR("{}"));
        answer_end_call(&a, false);
    }
    assert_true(a.is_incomplete);
    assert_int_equal(a.n_calls, ANSWER_MAX_PARTS);
    answer_check(&a);
    answer_fini(&a);
}

static void failed_allocations_leave_an_incomplete_answer(void **state) {
    bool has_passed = false;

    (void)state;
    for (uint64_t n = 1; !has_passed; n++) {
        struct answer a;

        answer_init(&a, 1 << 20);
        mem_fail_at(n);
        answer_add(&a, PART_TEXT, STR("text"));
        answer_begin_call(&a, STR("f"), STR("id"));
        answer_add_arguments(&a, STR("{}"));
        answer_end_call(&a, false);
        mem_fail_at(0);
        answer_check(&a);
        has_passed = !a.is_incomplete;
        assert_true(has_passed || n < 100);
        answer_fini(&a);
    }
}

/* --- the model -------------------------------------------------------------------------------- */

/* A line for each part: kind, name, text, state. */
static void dump(const struct answer *a, struct buf *out) {
    for (uint32_t i = 0; i < a->n; i++) {
        const struct answer_part *p = &a->part[i];

        buf_appendf(out, "%u %.*s %.*s %d%d\n", p->kind, STR_ARG(buf_str(&p->name)),
                    STR_ARG(buf_str(&p->text)), p->is_whole, p->is_cut);
    }
}

struct model {
    struct buf lines; /* of parts that are whole */
    struct buf name, text;
    int kind; /* of the open part, -1: none */
};

static void model_close(struct model *m, bool is_whole, bool is_cut) {
    if (m->kind < 0) return;
    buf_appendf(&m->lines, "%d %.*s %.*s %d%d\n", m->kind, STR_ARG(buf_str(&m->name)),
                STR_ARG(buf_str(&m->text)), is_whole, is_cut);
    buf_clear(&m->name);
    buf_clear(&m->text);
    m->kind = -1;
}

static void step(struct answer *a, struct model *m, struct rng *rng) {
    char text[4] = {(char)('a' + rng_below(rng, 26)), 'x', 'y'};
    struct str s = {text, rng_below(rng, 4)};
    int kind = (int)rng_below(rng, 2);
    bool is_cut = rng_below(rng, 2);

    if (m->kind == PART_CALL) { /* a call is ended before other text */
        if (rng_below(rng, 3) > 0) {
            answer_add_arguments(a, s);
            buf_append_str(&m->text, s);
        } else {
            answer_end_call(a, is_cut);
            model_close(m, true, is_cut);
        }
    } else if (rng_below(rng, 4) > 0) {
        answer_add(a, (enum part_kind)kind, s);
        if (s.len == 0) return;
        if (m->kind != kind) model_close(m, true, false);
        m->kind = kind;
        buf_append_str(&m->text, s);
    } else {
        answer_begin_call(a, STR("f"), s);
        model_close(m, true, false);
        m->kind = PART_CALL;
        buf_append_str(&m->name, STR("f"));
    }
}

static void random_steps_equal_the_model(void **state) {
    (void)state;
    for (uint32_t round = 0; round < 200; round++) {
        struct model m = {.kind = -1};
        struct answer a;
        struct buf lines;
        struct rng rng;

        rng_seed(&rng, support_seed() + round);
        answer_init(&a, 1 << 20);
        for (uint32_t i = 0; i < 60; i++) {
            step(&a, &m, &rng);
            answer_check(&a);
        }
        buf_init(&lines, 0);
        model_close(&m, false, false);
        dump(&a, &lines);
        assert_text(&m.lines, (buf_append_char(&lines, '\0'), buf_ptr(&lines)));
        buf_fini(&lines);
        buf_fini(&m.lines);
        buf_fini(&m.name);
        buf_fini(&m.text);
        answer_fini(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_that_change_begin_parts),
        cmocka_unit_test(bytes_over_the_limit_are_left_out_in_whole_characters),
        cmocka_unit_test(parts_over_the_limit_are_left_out),
        cmocka_unit_test(failed_allocations_leave_an_incomplete_answer),
        cmocka_unit_test(random_steps_equal_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/worker/grammar/test_rows.c - random grammars against a recogniser that fills a table.
 *
 * The model holds for each rule and each pair of places in a word whether the rule can be between
 * them, and repeats until nothing is new. It knows nothing of rows, returns or tails. */
#include <stdio.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/grammar/core/rows.h"

#define N_RULES 4u
#define LONGEST 5u
#define TEXTS   6u

struct model {
    struct exprs *exprs;
    struct rules *rules;
    symbol rule[N_RULES];
    bool spans[N_RULES + 1][LONGEST + 1][LONGEST + 1];
};

static expr_id draw_text(struct exprs *x, struct rng *rng) {
    static const char *const words[TEXTS] = {"a", "b", "ab", "ba", "aa", "bb"};
    expr_id e = expr_literal(x, str_of(words[rng_below(rng, TEXTS)]));

    if (rng_below(rng, 4) == 0) e = expr_optional(x, e);
    if (rng_below(rng, 4) == 0) e = expr_repeat(x, e, 1, EXPR_FOREVER);
    return e;
}

static void draw_grammar(struct model *m, struct rng *rng) {
    for (uint32_t i = 0; i < N_RULES; i++)
        m->rule[i] = rules_add(m->rules);
    for (uint32_t i = 0; i < N_RULES; i++)
        for (uint32_t n = 1 + (uint32_t)rng_below(rng, 3); n > 0; n--) {
            symbol s[3];
            uint32_t length = (uint32_t)rng_below(rng, 4), min, max;

            for (uint32_t k = 0; k < length; k++)
                s[k] = rng_below(rng, 2) ? m->rule[rng_below(rng, N_RULES)]
                                         : rules_text(draw_text(m->exprs, rng));
            min = (uint32_t)rng_below(rng, 3);
            max = rng_below(rng, 2) ? EXPR_FOREVER : min + (uint32_t)rng_below(rng, 3);
            if (rng_below(rng, 3) > 0) min = max = 1;
            rules_produce_loop(m->rules, m->rule[i], s, length, min, max);
        }
}

/* --- the model -------------------------------------------------------------------------------- */

static void follow(const struct model *m, struct str word, symbol s, const bool *from, bool *to) {
    memset(to, 0, LONGEST + 1);
    for (uint32_t i = 0; i <= word.len; i++)
        for (uint32_t k = i; from[i] && k <= word.len; k++)
            to[k] |=
                symbol_kind_of(s) == SYMBOL_RULE
                    ? m->spans[symbol_value(s)][i][k]
                    : expr_matches(m->exprs, symbol_value(s), (struct str){word.ptr + i, k - i});
}

static void once(const struct model *m, struct str word, const struct production *p, bool *at) {
    bool next[LONGEST + 1];

    for (uint32_t i = 0; i < p->n; i++) {
        follow(m, word, m->rules->code[p->first + i], at, next);
        memcpy(at, next, sizeof(next));
    }
}

/* Where a production that begins at `from` may end. */
static void ends_of(const struct model *m, struct str word, const struct production *p,
                    uint32_t from, bool *ends) {
    bool at[LONGEST + 1] = {false};

    memset(ends, 0, LONGEST + 1);
    at[from] = true;
    for (uint32_t n = 0; n <= MIN(p->max, p->min + LONGEST + 1); n++) {
        for (uint32_t i = 0; n >= p->min && i <= word.len; i++)
            ends[i] |= at[i];
        once(m, word, p, at);
    }
}

static bool derives(struct model *m, struct str word) {
    bool is_new = true, ends[LONGEST + 1];

    memset(m->spans, 0, sizeof(m->spans));
    while (is_new) {
        is_new = false;
        for (uint32_t i = 0; i < m->rules->n_productions; i++) {
            const struct production *p = &m->rules->production[i];

            for (uint32_t from = 0; p->rule < N_RULES && from <= word.len; from++) {
                ends_of(m, word, p, from, ends);
                for (uint32_t to = 0; to <= word.len; to++) {
                    is_new |= ends[to] && !m->spans[p->rule][from][to];
                    m->spans[p->rule][from][to] |= ends[to];
                }
            }
        }
    }
    return m->spans[0][0][word.len];
}

/* --- the comparison --------------------------------------------------------------------------- */

static row_id read_word(struct rows *rows, row_id row, struct str word) {
    for (size_t i = 0; i < word.len && row != ROW_DEAD; i++)
        row = rows_next(rows, row, exprs_class_of(rows->exprs)[(uint8_t)word.ptr[i]]);
    return row;
}

static uint32_t word_at(uint32_t number, char *out) {
    uint32_t len = 0;

    while (number >= 1u << len)
        number -= 1u << len++;
    for (uint32_t i = 0; i < len; i++)
        out[i] = number >> i & 1 ? 'b' : 'a';
    return len;
}

/* Collects in the middle of the word, so that what is read on stands on rows that were moved. */
static row_id read_with_collection(struct rows *rows, struct str word) {
    size_t half = word.len / 2;
    row_id row = read_word(rows, ROW_START, (struct str){word.ptr, half}), *moved;
    uint8_t *is_live = mem_calloc(rows->n_rows, 1);

    moved = mem_calloc(rows->n_rows, sizeof(*moved));
    is_live[row] = 1;
    rows_collect(rows, is_live, moved);
    row = moved[row];
    mem_free(is_live);
    mem_free(moved);
    return read_word(rows, row, (struct str){word.ptr + half, word.len - half});
}

static void compare(struct model *m, struct rows *rows) {
    bool begins[64] = {false}; /* words that an accepted one begins with */
    char text[LONGEST + 1];

    for (uint32_t n = 63; n-- > 0;) {
        struct str word = {text, word_at(n, text)};
        bool expected = derives(m, word);
        row_id row =
            n % 7 == 0 ? read_with_collection(rows, word) : read_word(rows, ROW_START, word);

        assert_int_equal(exprs_failure(rows->exprs), EXPRS_OK);
        if ((row != ROW_DEAD && rows->row[row].is_accepting) != expected)
            fail_msg("\"%.*s\" is %sin the language", (int)word.len, text, expected ? "" : "not ");
        begins[n] |= expected;
        if (begins[n] && row == ROW_DEAD) fail_msg("\"%.*s\" is no beginning", (int)word.len, text);
        if (begins[n] && word.len > 0) {
            uint32_t first = (1u << (word.len - 1)) - 1, number = 0;

            for (uint32_t i = 0; i + 1 < word.len; i++)
                number |= (uint32_t)(text[i] == 'b') << i;
            begins[first + number] = true;
        }
    }
}

static void random_grammars_accept_their_words(void **state) {
    struct rng rng;
    uint32_t n_with_members = 0;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t round = 0; round < 400; round++) {
        struct model m = {.exprs = exprs_create(1 << 24)};
        struct error err = {0};
        enum status st;

        m.rules = rules_create(m.exprs);
        draw_grammar(&m, &rng);
        exprs_freeze(m.exprs);
        st = rules_finish(m.rules, m.rule[0], &err);
        if (st == ST_OK) {
            struct rows *rows = rows_create(m.exprs, m.rules, 1 << 24);

            n_with_members++;
            rows_check(rows);
            compare(&m, rows);
            rows_check(rows);
            rows_destroy(rows);
        } else {
            assert_false(derives(&m, STR("")) || derives(&m, STR("a")) || derives(&m, STR("ab")));
        }
        rules_destroy(m.rules);
        exprs_destroy(m.exprs);
    }
    assert_true(n_with_members > 200);
}

/* --- what keeps rows few ---------------------------------------------------------------------- */

static struct rows *rows_of(struct exprs *x, struct rules *r, symbol start) {
    struct error err = {0};
    struct rows *rows;

    exprs_freeze(x);
    assert_int_equal(rules_finish(r, start, &err), ST_OK);
    rows = rows_create(x, r, 1 << 24);
    assert_int_equal(exprs_failure(x), EXPRS_OK);
    return rows;
}

/* list -> "a" list | "a": a thousand elements stand in the row of the second. */
static void right_recursion_needs_no_depth(void **state) {
    struct exprs *x = exprs_create(1 << 24);
    struct rules *r = rules_create(x);
    symbol list = rules_add(r), a = rules_text(expr_literal(x, STR("a")));
    struct rows *rows;
    row_id row = ROW_START;
    uint32_t n_rows;

    (void)state;
    rules_produce(r, list, (symbol[]){a, list}, 2);
    rules_produce(r, list, &a, 1);
    rows = rows_of(x, r, list);
    row = read_word(rows, row, STR("aaaa"));
    n_rows = rows->n_rows;
    for (uint32_t i = 0; i < 1000; i++)
        row = read_word(rows, row, STR("a"));
    assert_int_equal(rows->n_rows, n_rows);
    assert_true(rows->row[row].is_accepting);
    rows_destroy(rows);
    rules_destroy(r);
    exprs_destroy(x);
}

static void counted_loops_are_exact(void **state) {
    struct exprs *x = exprs_create(1 << 24);
    struct rules *r = rules_create(x);
    symbol loop = rules_add(r), a = rules_text(expr_literal(x, STR("a")));
    struct rows *rows;
    row_id row = ROW_START;

    (void)state;
    rules_produce_loop(r, loop, &a, 1, 998, 1000);
    rows = rows_of(x, r, loop);
    for (uint32_t i = 1; i <= 1001; i++) {
        row = read_word(rows, row, STR("a"));
        assert_int_equal(row != ROW_DEAD && rows->row[row].is_accepting, i >= 998 && i <= 1000);
    }
    assert_int_equal(row, ROW_DEAD);
    rows_destroy(rows);
    rules_destroy(r);
    exprs_destroy(x);
}

static void a_marker_is_a_token_and_not_its_text(void **state) {
    struct exprs *x = exprs_create(1 << 24);
    struct rules *r = rules_create(x);
    symbol all = rules_add(r);
    struct rows *rows;
    row_id row;

    (void)state;
    rules_produce(r, all,
                  (symbol[]){rules_text(expr_literal(x, STR("a"))), symbol_of(SYMBOL_TOKEN, 7),
                             rules_text(expr_literal(x, STR("b")))},
                  3);
    rows = rows_of(x, r, all);
    row = read_word(rows, ROW_START, STR("a"));
    assert_int_equal(rows->row[row].n_tokens, 1);
    assert_int_equal(read_word(rows, row, STR("b")), ROW_DEAD);
    assert_int_equal(rows_step_token(rows, row, 8), ROW_DEAD);
    row = read_word(rows, rows_step_token(rows, row, 7), STR("b"));
    assert_true(rows->row[row].is_accepting);
    rows_destroy(rows);
    rules_destroy(r);
    exprs_destroy(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_grammars_accept_their_words),
        cmocka_unit_test(right_recursion_needs_no_depth),
        cmocka_unit_test(counted_loops_are_exact),
        cmocka_unit_test(a_marker_is_a_token_and_not_its_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

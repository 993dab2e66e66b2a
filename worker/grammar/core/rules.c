/* worker/grammar/core/rules.c - building a grammar, and which of its rules have members.
 *
 * A recogniser that predicts only rules with members never runs into a dead end: whatever it has
 * read is the beginning of something. So rules without members are dropped here, once. */
#include "worker/grammar/core/rules.h"

#include <string.h>

#include "common/base/mem.h"

#define EMPTY_LOOP_MAX 1000u     /* times that what may be empty may be repeated */
#define MAX_WORK       50000000u /* symbols looked at by all passes */

struct rules *rules_create(struct exprs *exprs) {
    struct rules *r = mem_zalloc(sizeof(*r));

    r->exprs = exprs;
    return r;
}

void rules_destroy(struct rules *r) {
    if (!r) return;
    mem_free(r->code);
    mem_free(r->production);
    mem_free(r->first_of);
    mem_free(r->by_rule);
    mem_free(r->is_nullable);
    mem_free(r);
}

symbol rules_add(struct rules *r) {
    return symbol_of(SYMBOL_RULE, r->n_rules++);
}

void rules_produce_loop(struct rules *r, symbol rule, const symbol *symbols, uint32_t n,
                        uint32_t min, uint32_t max) {
    struct production *p;

    if ((uint64_t)r->n_code + n + 1 > RULES_MAX_SYMBOLS || r->n_rules > RULES_MAX_SYMBOLS) {
        r->is_too_large = true;
        return;
    }
    if (r->n_productions == r->cap_productions) {
        r->cap_productions = MAX(r->cap_productions * 2, 64u);
        r->production = mem_realloc(r->production, r->cap_productions * sizeof(*p));
    }
    if (r->n_code + n + 1 > r->cap_code) {
        r->cap_code = MAX(r->cap_code * 2, r->n_code + n + 64);
        r->code = mem_realloc(r->code, r->cap_code * sizeof(*r->code));
    }
    p = &r->production[r->n_productions];
    *p = (struct production){.rule = symbol_value(rule),
                             .first = r->n_code,
                             .n = n,
                             .min = min,
                             .max = max,
                             .is_loop = min != 1 || max != 1};
    if (n > 0) memcpy(r->code + r->n_code, symbols, n * sizeof(*symbols));
    r->n_code += n;
    r->code[r->n_code++] = symbol_of(SYMBOL_END, r->n_productions++);
}

void rules_produce(struct rules *r, symbol rule, const symbol *symbols, uint32_t n) {
    rules_produce_loop(r, rule, symbols, n, 1, 1);
}

symbol rules_sequence(struct rules *r, const symbol *symbols, uint32_t n) {
    symbol rule = rules_add(r);

    rules_produce(r, rule, symbols, n);
    return rule;
}

size_t rules_bytes(const struct rules *r) {
    return sizeof(*r) + r->cap_code * sizeof(*r->code) +
           r->cap_productions * (sizeof(*r->production) + sizeof(*r->by_rule)) +
           r->n_rules * (sizeof(*r->first_of) + 1);
}

/* --- which rules have members, which the empty one ----------------------------------------------
 * */

struct facts {
    uint8_t *has_member, *is_nullable; /* (n_rules) */
    uint64_t work;
};

static bool symbol_has_member(const struct rules *r, const struct facts *f, symbol s) {
    if (symbol_kind_of(s) == SYMBOL_RULE) return f->has_member[symbol_value(s)];
    return symbol_kind_of(s) == SYMBOL_TOKEN || expr_is_alive(r->exprs, symbol_value(s));
}

static bool symbol_is_nullable(const struct rules *r, const struct facts *f, symbol s) {
    if (symbol_kind_of(s) == SYMBOL_RULE) return f->is_nullable[symbol_value(s)];
    return symbol_kind_of(s) == SYMBOL_TEXT && expr_is_nullable(r->exprs, symbol_value(s));
}

static bool all_have_members(const struct rules *r, const struct facts *f,
                             const struct production *p) {
    for (uint32_t i = 0; i < p->n; i++)
        if (!symbol_has_member(r, f, r->code[p->first + i])) return false;
    return true;
}

static bool all_are_nullable(const struct rules *r, const struct facts *f,
                             const struct production *p) {
    for (uint32_t i = 0; i < p->n; i++)
        if (!symbol_is_nullable(r, f, r->code[p->first + i])) return false;
    return true;
}

/* True when the production adds something to what is known of its rule. */
static bool look_at(const struct rules *r, struct facts *f, const struct production *p) {
    uint8_t *member = &f->has_member[p->rule], *nullable = &f->is_nullable[p->rule];
    uint8_t before = *member + *nullable;

    f->work += p->n + 1;
    if (!*member) *member = p->min == 0 || all_have_members(r, f, p);
    if (!*nullable) *nullable = p->min == 0 || all_are_nullable(r, f, p);
    return *member + *nullable != before;
}

/* Passes in both directions, until nothing is new: long chains are written in one or the other. */
static bool find_facts(const struct rules *r, struct facts *f) {
    bool is_new = true;

    while (is_new && f->work < MAX_WORK) {
        is_new = false;
        for (uint32_t i = 0; i < r->n_productions; i++)
            is_new |= look_at(r, f, &r->production[i]);
        for (uint32_t i = r->n_productions; is_new && i-- > 0;)
            (void)look_at(r, f, &r->production[i]);
    }
    return !is_new;
}

/* Loops whose sequence may be empty, or has no member. */
static enum status settle_loops(struct rules *r, const struct facts *f, struct error *err) {
    for (uint32_t i = 0; i < r->n_productions; i++) {
        struct production *p = &r->production[i];

        if (!p->is_loop) continue;
        if (p->max == 0) p->is_loop = false; /* see list_productions */
        if (!all_are_nullable(r, f, p)) continue;
        p->min = 0;
        if (p->max != EXPR_FOREVER && p->max > EMPTY_LOOP_MAX)
            return error_set(err, ST_INVALID,
                             "a part that may be empty is repeated up to %u times: the limit is %u",
                             p->max, EMPTY_LOOP_MAX);
    }
    return ST_OK;
}

static bool is_kept(const struct rules *r, const struct facts *f, const struct production *p) {
    return p->max > 0 && all_have_members(r, f, p);
}

static void list_productions(struct rules *r, const struct facts *f) {
    uint32_t at = 0;

    r->first_of = mem_calloc(r->n_rules + 1, sizeof(*r->first_of));
    r->by_rule = mem_calloc(MAX(r->cap_productions, 1u), sizeof(*r->by_rule));
    for (uint32_t i = 0; i < r->n_productions; i++)
        r->first_of[r->production[i].rule + 1] += is_kept(r, f, &r->production[i]);
    for (uint32_t i = 0; i < r->n_rules; i++)
        r->first_of[i + 1] += r->first_of[i];
    for (uint32_t i = 0; i < r->n_productions; i++) {
        if (!is_kept(r, f, &r->production[i])) continue;
        at = r->first_of[r->production[i].rule]++;
        r->by_rule[at] = i;
    }
    for (uint32_t i = r->n_rules; i > 0; i--)
        r->first_of[i] = r->first_of[i - 1];
    r->first_of[0] = 0;
}

enum status rules_finish(struct rules *r, symbol start, struct error *err) {
    struct facts f = {0};
    enum status st = ST_OK;

    if (r->is_too_large)
        return error_set(err, ST_INVALID, "the grammar has more than %u symbols: make it smaller",
                         RULES_MAX_SYMBOLS);
    start = rules_sequence(r, &start, 1); /* one production, which nothing else uses */
    r->start = symbol_value(start);
    f.has_member = mem_calloc(r->n_rules, 1);
    f.is_nullable = mem_calloc(r->n_rules, 1);
    if (!find_facts(r, &f)) {
        st = error_set(err, ST_INVALID, "the grammar's rules are too entangled: make it smaller");
    } else if (!f.has_member[r->start]) {
        st = error_set(err, ST_INVALID, "no text satisfies it");
    } else {
        st = settle_loops(r, &f, err);
    }
    if (st == ST_OK) list_productions(r, &f);
    r->is_nullable = f.is_nullable;
    mem_free(f.has_member);
    return st;
}

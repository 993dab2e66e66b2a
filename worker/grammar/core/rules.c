/* worker/grammar/core/rules.c - building a grammar, and which of its rules have members.
 *
 * A recogniser that predicts only rules with members never runs into a dead end: whatever it has
 * read is the beginning of something. So rules without members are dropped here, once. */
#include "worker/grammar/core/rules.h"

#include <string.h>

#include "common/base/mem.h"

#define EMPTY_LOOP_MAX 1000u /* times that what may be empty may be repeated */

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
};

typedef bool symbol_fact(const struct rules *r, const struct facts *f, symbol s);

/* Where rules are mentioned. */
struct mentions {
    uint32_t *first;      /* (n_rules + 1) in `production` */
    uint32_t *production; /* one for each time that it mentions the rule */
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

static void list_mentions(const struct rules *r, struct mentions *m) {
    m->first = mem_calloc(r->n_rules + 2, sizeof(*m->first));
    m->production = mem_calloc(MAX(r->n_code, 1u), sizeof(*m->production));
    for (uint32_t i = 0; i < r->n_productions; i++)
        for (uint32_t k = 0; k < r->production[i].n; k++) {
            symbol s = r->code[r->production[i].first + k];

            if (symbol_kind_of(s) == SYMBOL_RULE) m->first[symbol_value(s) + 2]++;
        }
    for (uint32_t i = 0; i < r->n_rules; i++)
        m->first[i + 2] += m->first[i + 1];
    for (uint32_t i = 0; i < r->n_productions; i++)
        for (uint32_t k = 0; k < r->production[i].n; k++) {
            symbol s = r->code[r->production[i].first + k];

            if (symbol_kind_of(s) == SYMBOL_RULE)
                m->production[m->first[symbol_value(s) + 1]++] = i;
        }
}

/* Symbols that keep the fact from the production, rules among them all. */
static uint32_t count_missing(const struct rules *r, const struct facts *f,
                              const struct production *p, symbol_fact *has) {
    uint32_t n = 0;

    if (p->min == 0) return 0;
    for (uint32_t k = 0; k < p->n; k++) {
        symbol s = r->code[p->first + k];

        n += symbol_kind_of(s) == SYMBOL_RULE || !has(r, f, s);
    }
    return n;
}

/* A rule has the fact if all symbols of one of its productions have it. Each mention of a rule is
 * looked at once, when the rule turns out to have it: the time grows as the grammar's length. */
static void find_fact(const struct rules *r, const struct facts *f, const struct mentions *m,
                      symbol_fact *has, uint8_t *fact) {
    uint32_t *missing = mem_calloc(MAX(r->n_productions, 1u), sizeof(*missing));
    uint32_t *found = mem_calloc(MAX(r->n_rules, 1u), sizeof(*found)), n = 0;

    for (uint32_t i = 0; i < r->n_productions; i++) {
        uint32_t rule = r->production[i].rule;

        missing[i] = count_missing(r, f, &r->production[i], has);
        if (missing[i] > 0 || fact[rule]) continue;
        fact[rule] = true;
        found[n++] = rule;
    }
    while (n > 0) {
        uint32_t rule = found[--n];

        for (uint32_t k = m->first[rule]; k < m->first[rule + 1]; k++) {
            uint32_t i = m->production[k], of = r->production[i].rule;

            if (missing[i] == 0 || --missing[i] > 0 || fact[of]) continue;
            fact[of] = true;
            found[n++] = of;
        }
    }
    mem_free(found);
    mem_free(missing);
}

static void find_facts(const struct rules *r, struct facts *f) {
    struct mentions m;

    list_mentions(r, &m);
    f->has_member = mem_calloc(r->n_rules, 1);
    f->is_nullable = mem_calloc(r->n_rules, 1);
    find_fact(r, f, &m, symbol_has_member, f->has_member);
    find_fact(r, f, &m, symbol_is_nullable, f->is_nullable);
    mem_free(m.first);
    mem_free(m.production);
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
    find_facts(r, &f);
    if (!f.has_member[r->start]) {
        st = error_set(err, ST_INVALID, "no text satisfies it");
    } else {
        st = settle_loops(r, &f, err);
    }
    if (st == ST_OK) list_productions(r, &f);
    r->is_nullable = f.is_nullable;
    mem_free(f.has_member);
    return st;
}

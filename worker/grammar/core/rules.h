/* worker/grammar/core/rules.h - a context-free grammar: rules over lexemes and tokens.
 *
 * What every front end (JSON Schema, EBNF, Lark, a list of choices) writes, and what rows.h reads.
 * A *rule* has productions, a production is a sequence of symbols, and a symbol is
 *
 *      TEXT   a lexeme: any member of an expression (expr.h), spelt by any ordinary tokens
 *      TOKEN  one token by its id: a marker that ordinary tokens must not spell
 *      RULE   a member of a rule
 *
 * A production may be a *loop*: its sequence, min to max times. A loop is counted, never unrolled.
 *
 *      list     -> '[' loop(0, 9: item) ']'
 *
 * Limits are those of memory and of rules_finish; a caller that lets peers choose the size sets
 * max_symbols. One thread. */
#ifndef WORKER_GRAMMAR_CORE_RULES_H
#define WORKER_GRAMMAR_CORE_RULES_H

#include "common/base/base.h"
#include "common/base/status.h"
#include "worker/grammar/core/expr.h"

#define RULES_MAX_SYMBOLS 500000u

enum symbol_kind { SYMBOL_END, SYMBOL_TEXT, SYMBOL_TOKEN, SYMBOL_RULE };

typedef uint32_t
    symbol; /* kind in the two upper bits, then an expr_id, token, rule or production */

static inline symbol symbol_of(enum symbol_kind kind, uint32_t value) {
    return (uint32_t)kind << 30 | value;
}
static inline enum symbol_kind symbol_kind_of(symbol s) {
    return (enum symbol_kind)(s >> 30);
}
static inline uint32_t symbol_value(symbol s) {
    return s & 0x3FFFFFFFu;
}

struct production {
    uint32_t rule;
    uint32_t first, n; /* symbols of `code`; an END with the production's number is behind them */
    uint32_t min, max; /* of a loop; 1, 1: none */
    bool is_loop;
};

struct rules {
    struct exprs *exprs; /* the caller's */
    symbol *code;        /* (n_code) */
    struct production *production;
    uint32_t n_code, cap_code, n_productions, cap_productions, n_rules;
    uint32_t start;
    bool is_too_large;
    char place[200]; /* in the spec, of what was too much for `exprs`; "": it is not known */
    /* by rules_finish */
    uint32_t *first_of;   /* (n_rules + 1) in by_rule */
    uint32_t *by_rule;    /* (n_productions) productions, by rule; those without members left out */
    uint8_t *is_nullable; /* (n_rules) */
};

struct rules *rules_create(struct exprs *exprs);
void rules_destroy(struct rules *r); /* NULL is fine */

/* A new rule, without members. Returns its symbol. */
symbol rules_add(struct rules *r);

/* Another production of `rule`; symbols are copied. Past RULES_MAX_SYMBOLS nothing is added, and
 * rules_finish fails. */
void rules_produce(struct rules *r, symbol rule, const symbol *symbols, uint32_t n);
void rules_produce_loop(struct rules *r, symbol rule, const symbol *symbols, uint32_t n,
                        uint32_t min, uint32_t max);

/* What front ends write most: a new rule of one production. */
symbol rules_sequence(struct rules *r, const symbol *symbols, uint32_t n);

static inline symbol rules_text(expr_id e) {
    return symbol_of(SYMBOL_TEXT, e);
}

/* Works out what rows.h needs, and drops what has no member. ST_INVALID when the grammar is too
 * large, or has no member at all (`start`). */
MUST_USE enum status rules_finish(struct rules *r, symbol start, struct error *err);

size_t rules_bytes(const struct rules *r);

#endif

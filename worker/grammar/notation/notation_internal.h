/* worker/grammar/notation/notation_internal.h - the reader that both notations share. */
#ifndef WORKER_GRAMMAR_NOTATION_NOTATION_INTERNAL_H
#define WORKER_GRAMMAR_NOTATION_NOTATION_INTERNAL_H

#include "common/base/map.h"
#include "worker/grammar/notation/notation.h"

#define NOTATION_MAX_DEPTH 64u
#define NOTATION_MAX_NAMES 65536u

/* A part of a rule: text, which joins with its neighbours to a lexeme, or another symbol. */
struct piece {
    bool is_text;
    expr_id e;
    symbol s;
};

struct name {
    symbol rule;
    bool is_defined;
    const char *used_at; /* where it was named first */
};

struct reader;

struct notation_syntax {
    const char *comment[2]; /* what begins one; NULL: no second */
    const char *define;     /* behind a rule's name */
    /* An atom, if one begins here: ST_AGAIN if none does. */
    enum status (*atom)(struct reader *r, struct piece *out);
    bool (*is_end)(const struct reader *r); /* of a rule, at the reader's place */
};

struct reader {
    const struct notation_syntax *syntax;
    struct rules *rules;
    struct exprs *exprs;
    const struct vocabulary *vocabulary;
    struct notation_spelling spelling;
    struct str text, rest;
    struct strmap names; /* -> struct name */
    uint32_t n_names, depth;
    symbol ignore;       /* what may stand between terminals; 0: nothing may */
    bool is_in_terminal; /* of Lark: nothing is ignored there */
    struct error *err;
};

/* ST_INVALID: "line 3: ", then the message. */
enum status notation_refuse(const struct reader *r, const char *fmt, ...) PRINTF_LIKE(2, 3);

bool notation_take(struct reader *r, const char *z);
bool notation_is_at(const struct reader *r, char c);
void notation_skip(struct reader *r, size_t n);
void notation_skip_space(struct reader *r);            /* and comments */
struct str notation_peek_name(const struct reader *r); /* letters, digits, _ and -; or empty */
struct name *notation_name(struct reader *r, struct str name);

/* The text up to the next `end` that no backslash precedes; it is skipped. */
MUST_USE enum status notation_until(struct reader *r, char end, struct str *out);

/* Alternatives up to an end, a ) or a ]. */
MUST_USE enum status notation_alternatives(struct reader *r, struct piece *out);

/* The productions of a rule from here on. */
MUST_USE enum status notation_body(struct reader *r, symbol rule);

struct piece notation_text(expr_id e);
symbol notation_symbol(const struct reader *r, const struct piece *p);

void notation_init(struct reader *r, const struct notation_syntax *syntax, struct rules *rules,
                   struct str text, const struct notation_spelling *spelling, struct error *err);
/* Checks that all names are defined, and gives the symbol of `start`. */
MUST_USE enum status notation_finish(struct reader *r, const char *start, symbol *out);
void notation_fini(struct reader *r);

#endif

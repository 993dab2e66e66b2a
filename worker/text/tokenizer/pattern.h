/* worker/text/tokenizer/pattern.h - what a tokenizer looks for in text: a string, or a regular
 * expression.
 *
 * An expression is compiled by the first of three that supports it: the built-in matchers of the
 * common families (split_builtin.h), the small engine (regex.h), and pcre2. A pattern that none
 * supports is refused by its text. Immutable; any thread may search, with a pattern_run of its own.
 * */
#ifndef WORKER_TEXT_TOKENIZER_PATTERN_H
#define WORKER_TEXT_TOKENIZER_PATTERN_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"
#include "worker/text/tokenizer/split_builtin.h"

struct regex;

struct pattern {
    enum { PATTERN_LITERAL, PATTERN_CUT, PATTERN_REGEX, PATTERN_LIBRARY } kind;
    char *literal; /* owned, with its length */
    size_t n_literal;
    enum builtin_split builtin;
    struct regex *regex;
    void *library; /* a pcre2_code */
};

/* Zero-initialise a pattern; pattern_fini takes a zeroed one. A literal is not empty. */
void pattern_literal(struct pattern *p, struct str literal);

/* ST_UNSUPPORTED, with the expression in the message, when it is invalid, may match an empty
 * string, or is supported by none. */
MUST_USE enum status pattern_regex(struct pattern *p, struct str source, struct error *err);
void pattern_fini(struct pattern *p);

/* What searching one text needs: a budget of steps, and the library's memory. */
struct pattern_run {
    uint64_t steps;
    void *memory;
};

void pattern_run_init(struct pattern_run *run, size_t text_bytes);
void pattern_run_fini(struct pattern_run *run);

/* The first match at or after `from`; *begin and *end are the end of the text when
 * there is none. ST_TOO_LARGE when the budget is spent: a text made to cost; ST_NOMEM. */
MUST_USE enum status pattern_find(const struct pattern *p, struct pattern_run *run, struct str text,
                                  size_t from, size_t *begin, size_t *end, struct error *err);

#endif

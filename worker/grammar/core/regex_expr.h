/* worker/grammar/core/regex_expr.h - regular expressions, as expressions that can be derived.
 *
 * The dialect is what JSON Schema (ECMA 262) and the fields `regex` of other engines have in
 * common: alternatives, groups (named and without capture), classes, \d \w \s (of ASCII, as ECMA
 * has them; \s with Unicode's spaces), \x \u \u{} escapes, greedy and lazy repetition, and anchors
 * where a match begins and ends. `.` is any character but \n. Look-around, back-references, word
 * boundaries, Unicode properties and inline flags are refused by name.
 *
 * A pattern of JSON Schema matches anywhere in the *decoded* string, so each character is spelled
 * as inside a JSON string (CHARS_IN_JSON) and open ends take any text.
 *
 * LIMITS. 4 KiB; 64 groups inside each other; as many states as an automaton without counters would
 * have, 10,000: a counted character is one state, what is repeated with a counter inside is all of
 * its copies. */
#ifndef WORKER_GRAMMAR_CORE_REGEX_EXPR_H
#define WORKER_GRAMMAR_CORE_REGEX_EXPR_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "worker/grammar/core/char_set.h"
#include "worker/grammar/core/expr.h"

#define REGEX_MAX_BYTES  4096u
#define REGEX_MAX_STATES 10000u
#define REGEX_MAX_DEPTH  64u
#define REGEX_MAX_REPEAT 1000000u

struct regex_rules {
    enum char_form form;
    bool is_whole;      /* the pattern is the whole text: without, it may match anywhere */
    bool ignores_case;  /* of ASCII letters */
    bool dot_takes_all; /* \n too */
};

/* ST_INVALID with a message that quotes the place. The store may fail meanwhile: look at
 * exprs_failure. */
MUST_USE enum status regex_expr_parse(expr_id *out, struct exprs *x, struct str source,
                                      const struct regex_rules *rules, struct error *err);

#endif

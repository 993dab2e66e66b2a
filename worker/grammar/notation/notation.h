/* worker/grammar/notation/notation.h - grammars as people write them: EBNF as GBNF has it, and
 * Lark.
 *
 *      root ::= "yes" | "no" [a-z]{2,5} item*        EBNF: begins with `root`
 *      start: "yes" | WORD                           Lark: begins with `start`
 *      WORD: /[a-z]+/
 *
 * Both describe the same rules, and are read by the same code (notation_parse.c); what differs is
 * how a rule begins and what its atoms look like. Text that stands together becomes one lexeme.
 *
 * EBNF: literals with escapes, classes, `.`, groups, * + ? {m,n}, comments behind #. A rule ends
 * where the next one begins. Lark: strings ("..."i), regular expressions (/.../is), ranges
 * ("a".."z"), groups, [optional], * + ? ~n ~n..m {m,n}, terminals in capitals, %ignore (between
 * the terminals of rules), %import common.NAME, special tokens by name (<|tool_call|>) or by id
 * (<[17]>), comments behind // and #. Aliases, priorities and the marks ? and ! of rules are read
 * and mean nothing here. Refused by name: %json, %override, %extend, %declare, templates,
 * look-ahead.
 *
 * A text may be split into terminals in any way that fits: no terminal is longer than it must be.
 * Recursion of any kind is fine. LIMITS: 64 groups inside each other, 2^16 names. */
#ifndef WORKER_GRAMMAR_NOTATION_NOTATION_H
#define WORKER_GRAMMAR_NOTATION_NOTATION_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "worker/grammar/core/char_set.h"
#include "worker/grammar/core/rules.h"
#include "worker/grammar/core/vocabulary.h"

/* How the text that a grammar describes is spelled. CHARS_IN_JSON: the grammar is that of a string,
 * and what is generated stands between the quotes of its JSON; it then has no special tokens. */
struct notation_spelling {
    enum char_form form;
    expr_id within; /* what each lexeme is too: EXPR_ANY, or text that does not hold some strings */
};

/* ST_INVALID has the line and what was wrong. The vocabulary names special tokens. */
MUST_USE enum status notation_ebnf(symbol *start, struct rules *rules, struct str text,
                                   const struct notation_spelling *spelling, struct error *err);
MUST_USE enum status notation_lark(symbol *start, struct rules *rules, struct str text,
                                   const struct vocabulary *vocabulary,
                                   const struct notation_spelling *spelling, struct error *err);

#endif

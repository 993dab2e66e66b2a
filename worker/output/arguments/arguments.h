/* worker/output/arguments/arguments.h - the arguments of a tool call, from the syntax in which a
 * model writes them to the JSON that clients get.
 *
 *      <parameter=path>\n/tmp/a\n</parameter>\n<parameter=mode>\n5\n</parameter>\n</function>
 *      {"path": "/tmp/a", "mode": 5}
 *
 * Formats that write JSON need none of this. The others are of two kinds:
 *
 *      tags      qwen_xml, seed_xml, glm_xml, minimax_xml, deepseek_xml: a key and a raw value,
 *                unescaped, whose type only the tool's schema knows
 *      literals  pythonic, gemma, functiongemma: values in a notation of their own
 *
 * The reader finds the call's opening and the tool's name, and pushes what follows until a state
 * other than ARGUMENTS_MORE is returned. JSON is appended as soon as it is certain and never taken
 * back:
 *
 *      a value that is a string by its schema    `{"k": "` at once, then its text as it comes
 *      any other value of a tag                  when its end is read
 *      pythonic                                  at the end of the call, because an expression
 *                                                there makes the whole of it no call
 *
 * The JSON does not depend on how the bytes are divided over pushes. Only whole characters are
 * appended; bytes that are not UTF-8 become U+FFFD. Separators are ", " and ": ", as templates
 * print them. A key that is repeated is written again, so that parsers that keep the last value at
 * the first place (those of Python and JavaScript do) find what the model meant.
 *
 * Types of a tag's value: a string stays as it is. Anything else is JSON, `True` or `False` (in
 * any case) where a boolean is allowed, `null` where null is, and `None` where a string is not too;
 * what is none of them is a string. A string that may be of another type too is a string unless it
 * reads as the other.
 *
 * O(n) in bytes. LIMITS. Nesting is limited to ARGUMENTS_MAX_DEPTH; a key of a tag has no `>`;
 * pythonic has no tuples, triple quotes, adjacent or prefixed strings, and keys of a dict are
 * strings. Bytes are limited by the owner. One per call; one thread. */
#ifndef WORKER_OUTPUT_ARGUMENTS_ARGUMENTS_H
#define WORKER_OUTPUT_ARGUMENTS_ARGUMENTS_H

#include "common/base/base.h"
#include "common/base/buf.h"

struct json;
struct arguments;

#define ARGUMENTS_MAX_DEPTH  64u
#define ARGUMENTS_MAX_TOKENS 8u /* a bit each in a byte that UTF-8 never has */

/* What is pushed first, and where a call ends. `</tool_call>` and the like are not consumed unless
 * listed. */
enum arguments_style {
    ARGUMENTS_QWEN_XML,      /* after `<function=NAME>`; ends with `</function>` */
    ARGUMENTS_SEED_XML,      /* same, but a value stands on its tags' line */
    ARGUMENTS_GLM_XML,       /* after NAME;              ends with `</tool_call>` */
    ARGUMENTS_MINIMAX_XML,   /* after `<invoke name="NAME">`; ends with `</invoke>` */
    ARGUMENTS_DEEPSEEK_XML,  /* same with the DSML mark: `</｜DSML｜invoke>` */
    ARGUMENTS_PYTHONIC,      /* after `NAME(`;           ends before `)`, which is not consumed */
    ARGUMENTS_GEMMA,         /* after NAME: `{...}`;     ends with `}` */
    ARGUMENTS_FUNCTIONGEMMA, /* same, strings in `<escape>` */
};

/* By the names of structural tags and of this list in small letters: "qwen_xml", "pythonic". */
bool arguments_style_find(struct str name, enum arguments_style *out);

enum arguments_state {
    ARGUMENTS_MORE,   /* the call goes on */
    ARGUMENTS_DONE,   /* the call is over, its JSON is whole */
    ARGUMENTS_CUT,    /* it is a call, but its arguments end unfinished; the JSON has a beginning */
    ARGUMENTS_BROKEN, /* it is no call: text. No JSON was appended */
};

/* `parameters`: the tool's JSON schema, NULL if unknown; must outlive the result.
 * `tokens`: texts that are one token each in the vocabulary, n of them (ARGUMENTS_MAX_TOKENS at
 * most), constants. They count only when given by arguments_push_token: spelt in text they are
 * text. Those that the style does not have end a call: `<tool_call>` before a call was closed. */
struct arguments *arguments_create(enum arguments_style style, const struct json *parameters,
                                   const char *const *tokens, uint32_t n);
void arguments_destroy(struct arguments *a); /* NULL is fine */

/* Text of ordinary tokens. *n_used is its length, but at the end of the call the bytes up to it;
 * what follows is the reader's. `json` is failed where memory ran out. Not to be called once
 * another state than ARGUMENTS_MORE was returned. */
enum arguments_state arguments_push(struct arguments *a, struct str text, size_t *n_used,
                                    struct buf *json);

/* Token i of `tokens`. *is_used is false if it ended the call without being of it. */
enum arguments_state arguments_push_token(struct arguments *a, uint32_t i, bool *is_used,
                                          struct buf *json);

/* The answer is over before the call was. `is_cut`, by a limit: what came stays, and the state is
 * ARGUMENTS_CUT. Else the model stopped: DONE where only closing marks are missing, CUT or BROKEN
 * (nothing was certain) otherwise. */
enum arguments_state arguments_finish(struct arguments *a, bool is_cut, struct buf *json);

#endif

/* worker/grammar/tags/tags.h - structural tags: free text with constrained parts, as rules.
 *
 *      {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<tool_call>"],
 *         "tags": [{"begin": "<tool_call>{\"name\": \"find\", \"arguments\": ",
 *                   "content": {"type": "json_schema", "json_schema": {...}},
 *                   "end": "}</tool_call>"}]}}
 *
 *      Let me look. <tool_call>{"name": "find", "arguments": {"x": 1}}</tool_call>
 *
 * A *format* is an object with a type:
 *
 *      const_string    value
 *      json_schema     json_schema; style (below); whitespace: "any", "compact"
 *      regex           pattern; excludes, inside, tool
 *      grammar         grammar; syntax: "lark", "ebnf" (without it, what has ::= is EBNF);
 *                      excludes: texts that no terminal holds; inside: "json_string" where the text
 *                      stands between the quotes of one, escaped; tool: whose it is, for errors
 *      any_text        excludes: texts that it does not hold
 *      sequence, or    elements
 *      optional, plus, star, repeat
 *                      content; of repeat: min, max (-1: no limit)
 *      tag             begin, content, end: a text, a token, or several ends
 *      triggered_tags  triggers, tags, at_least_one, stop_after_first, excludes: any text; where a
 *                      trigger is met, a tag that begins with it
 *      token_triggered_tags
 *                      trigger_tokens, exclude_tokens: the same
 *      tags_with_separator
 *                      tags, separator, at_least_one, stop_after_first
 *      token           token: its text or id; one byte is no token here, but text
 *      any_tokens      any text of ordinary tokens; exclude_tokens
 *
 * Before `format` there were `structures` (begin, schema, end) and `triggers`: read too.
 *
 * TOKENS AND TEXT. A text that holds a marker of the vocabulary (vocabulary.h) is spelt with that
 * token; all other text with ordinary tokens. Nothing but the token stands for a marker that is
 * named anywhere in a tag: any_text and the text between triggered tags do not spell it either,
 * nor the triggers or the ends of the tag around them. Text inside of JSON and of parameters may.
 *
 * STYLES of json_schema: "json", or one whose parameters stand each by itself, strings as they are
 * (schema.h): "qwen_xml", "minimax_xml", "deepseek_xml", "glm_xml"; or an object with the texts
 * before a name (`key`), between name and value (`text`; `json` for what is no string; the same
 * if it is left out), and behind it (`end`); raw text then holds none of `excludes` either;
 * `words`: "python" writes None, True and False where the type is named and is no string. With
 * `text` and `between` (two parameters) values are JSON, strings too. With `quote` the whole is
 * JSON whose strings stand between that mark, whose names are bare, and whose null is None.
 *
 * What cannot be kept is refused with its place: exclude_token, dispatch, max_tokens, max_chars.
 * LIMITS. 32 formats inside each other. */
#ifndef WORKER_GRAMMAR_TAGS_TAGS_H
#define WORKER_GRAMMAR_TAGS_TAGS_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "worker/grammar/core/rules.h"
#include "worker/grammar/core/vocabulary.h"
#include "worker/grammar/schema/schema.h"

#define TAGS_MAX_DEPTH 32u

struct tags_options {
    const struct vocabulary *vocabulary;
    struct schema_options schema;       /* of schemas that say nothing of white space; */
    struct schema_options any, compact; /* of those that do */
};

/* Writes the rules; *start is the symbol of the whole. ST_INVALID has the place and what was
 * wrong. */
MUST_USE enum status tags_compile(symbol *start, struct rules *rules, struct str text,
                                  const struct tags_options *options, struct error *err);

#endif

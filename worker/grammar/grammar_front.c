/* worker/grammar/grammar_front.c - from a spec to rules: which front end reads it. */
#include <string.h>

#include "common/base/mem.h"
#include "common/text/json.h"
#include "worker/grammar/core/regex_expr.h"
#include "worker/grammar/grammar_internal.h"
#include "worker/grammar/notation/notation.h"
#include "worker/grammar/schema/schema.h"

#define SPACES_MAX 32u /* in a row: an endless run would let a model loop */

static enum status read_regex(struct grammar *g, struct str text, symbol *start,
                              struct error *err) {
    struct regex_rules rules = {.form = CHARS_PLAIN, .is_whole = true};
    expr_id e = EXPR_NONE;
    enum status st = regex_expr_parse(&e, g->exprs, text, &rules, err);

    *start = rules_text(e);
    return st;
}

static enum status read_choice(struct grammar *g, struct str text, symbol *start,
                               struct error *err) {
    struct str *strings = NULL;
    struct json *list;
    size_t n = 0;
    enum status st = json_parse(&list, text, NULL, err);

    if (st != ST_OK) return st;
    strings = mem_calloc(json_count(list) + 1, sizeof(*strings));
    JSON_FOR_EACH(it, list) {
        if (json_to_str(it, &strings[n++]) != ST_OK)
            st =
                error_set(err, ST_INVALID, "a choice must be a string, not %s", json_type_name(it));
    }
    if (n == 0) st = error_set(err, ST_INVALID, "the list of choices is empty");
    if (st == ST_OK) *start = rules_text(expr_one_of(g->exprs, strings, n));
    mem_free(strings);
    json_destroy(list);
    return st;
}

/* Blanks, tabs and line ends. */
static expr_id free_space(struct exprs *x) {
    struct byte_set set = {{0}};

    for (const char *p = " \t\n\r"; *p != '\0'; p++)
        byte_set_add(&set, (uint8_t)*p);
    return expr_repeat(x, expr_class(x, set), 0, SPACES_MAX);
}

static enum status read_schema(struct grammar *g, const struct grammar_spec *spec, symbol *start,
                               struct error *err) {
    struct schema_options options = {.gap = EXPR_EMPTY, .is_closed = spec->is_closed};
    struct regex_rules whole = {.form = CHARS_PLAIN, .is_whole = true};
    enum status st = ST_OK;

    switch (spec->spaces) {
    case GRAMMAR_SPACES_FREE: options.gap = options.after = free_space(g->exprs); break;
    case GRAMMAR_SPACES_COMPACT: options.after = expr_byte(g->exprs, ' '); break;
    case GRAMMAR_SPACES_PATTERN:
        st = regex_expr_parse(&options.gap, g->exprs, spec->spaces_pattern, &whole, err);
        options.after = options.gap;
        break;
    }
    if (st != ST_OK) return error_prefix(err, "the pattern of white space");
    return schema_compile(start, g->rules, spec->text, &options, err);
}

enum status grammar_front_end(struct grammar *g, const struct grammar_spec *spec, symbol *start,
                              struct error *err) {
    switch (spec->kind) {
    case GRAMMAR_REGEX: return read_regex(g, spec->text, start, err);
    case GRAMMAR_CHOICE: return read_choice(g, spec->text, start, err);
    case GRAMMAR_JSON_SCHEMA: return read_schema(g, spec, start, err);
    case GRAMMAR_EBNF: return notation_ebnf(start, g->rules, spec->text, err);
    case GRAMMAR_LARK: return notation_lark(start, g->rules, spec->text, g->vocabulary, err);
    }
    return error_set(err, ST_INVALID, "unknown kind of grammar");
}

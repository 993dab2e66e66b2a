/* worker/grammar/grammar_front.c - from a spec to rules: which front end reads it. */
#include <string.h>

#include "common/base/mem.h"
#include "common/text/json.h"
#include "worker/grammar/core/regex_expr.h"
#include "worker/grammar/grammar_internal.h"
#include "worker/grammar/notation/notation.h"
#include "worker/grammar/schema/schema.h"
#include "worker/grammar/tags/tags.h"

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

static enum status space_options(struct grammar *g, const struct grammar_spec *spec,
                                 enum grammar_spaces spaces, struct schema_options *out,
                                 struct error *err) {
    struct regex_rules whole = {.form = CHARS_PLAIN, .is_whole = true};
    enum status st = ST_OK;

    *out = (struct schema_options){.gap = EXPR_EMPTY, .is_closed = spec->is_closed};
    switch (spaces) {
    case GRAMMAR_SPACES_FREE: out->gap = out->after = free_space(g->exprs); break;
    case GRAMMAR_SPACES_COMPACT: out->after = expr_byte(g->exprs, ' '); break;
    case GRAMMAR_SPACES_PATTERN:
        st = regex_expr_parse(&out->gap, g->exprs, spec->spaces_pattern, &whole, err);
        out->after = out->gap;
        break;
    }
    return st == ST_OK ? ST_OK : error_prefix(err, "the pattern of white space");
}

static enum status read_schema(struct grammar *g, const struct grammar_spec *spec, symbol *start,
                               struct error *err) {
    struct json_limits limits = {.max_depth = SCHEMA_MAX_JSON_DEPTH};
    struct schema_options options;
    struct json *schema;
    enum status st = space_options(g, spec, spec->spaces, &options, err);

    if (st != ST_OK) return st;
    st = json_parse(&schema, spec->text, &limits, err);
    if (st == ST_INVALID)
        return error_prefix(err, "the schema (at most %u levels)", SCHEMA_MAX_DEPTH);
    if (st != ST_OK) return st;
    st = schema_compile(start, g->rules, schema, &options, err);
    json_destroy(schema);
    return st;
}

static enum status read_tag(struct grammar *g, const struct grammar_spec *spec, symbol *start,
                            struct error *err) {
    struct tags_options options = {.vocabulary = g->vocabulary};
    enum status st = space_options(g, spec, spec->spaces, &options.schema, err);

    if (st == ST_OK) st = space_options(g, spec, GRAMMAR_SPACES_FREE, &options.any, err);
    if (st == ST_OK) st = space_options(g, spec, GRAMMAR_SPACES_COMPACT, &options.compact, err);
    return st == ST_OK ? tags_compile(start, g->rules, spec->text, &options, err) : st;
}

enum status grammar_front_end(struct grammar *g, const struct grammar_spec *spec, symbol *start,
                              struct error *err) {
    struct notation_spelling plain = {CHARS_PLAIN, EXPR_ANY};

    switch (spec->kind) {
    case GRAMMAR_REGEX: return read_regex(g, spec->text, start, err);
    case GRAMMAR_CHOICE: return read_choice(g, spec->text, start, err);
    case GRAMMAR_JSON_SCHEMA: return read_schema(g, spec, start, err);
    case GRAMMAR_EBNF: return notation_ebnf(start, g->rules, spec->text, &plain, err);
    case GRAMMAR_TAG: return read_tag(g, spec, start, err);
    case GRAMMAR_LARK:
        return notation_lark(start, g->rules, spec->text, g->vocabulary, &plain, err);
    }
    return error_set(err, ST_INVALID, "unknown kind of grammar");
}

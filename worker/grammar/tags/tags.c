/* worker/grammar/tags/tags.c - the formats of a structural tag, one function each. */
#include "worker/grammar/tags/tags.h"

#include <stdarg.h>
#include <stdio.h>

#include "worker/grammar/core/regex_expr.h"
#include "worker/grammar/notation/notation.h"
#include "worker/grammar/tags/tags_internal.h"

#define REPEAT_MAX 1000000u

/* --- members ---------------------------------------------------------------------------------- */

enum status tags_refuse(struct tags *t, const struct json *at, const char *fmt, ...) {
    char message[256];
    struct buf path;
    va_list args;

    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    buf_init(&path, 0);
    buf_append_char(&path, '#');
    (void)json_find(t->root, at, &path);
    error_set(t->err, ST_INVALID, "%.*s: %s", (int)MIN(buf_len(&path), 200u), buf_ptr(&path),
              message);
    buf_fini(&path);
    return ST_INVALID;
}

enum status tags_array(struct tags *t, const struct json *v, const char *name,
                       const struct json **out) {
    *out = json_get(v, name);
    if (json_type(*out) == JSON_ARRAY && json_first(*out)) return ST_OK;
    return tags_refuse(t, *out ? *out : v, "%s must be an array that is not empty", name);
}

enum status tags_bool(struct tags *t, const struct json *v, const char *name, bool *out) {
    const struct json *value = json_get(v, name);

    if (json_is_null(value) || json_to_bool(value, out) == ST_OK) return ST_OK;
    return tags_refuse(t, value, "%s must be a boolean", name);
}

static enum status get_text(struct tags *t, const struct json *v, const char *name,
                            struct str *out) {
    if (json_to_str(json_get(v, name), out) == ST_OK) return ST_OK;
    return tags_refuse(t, v, "%s must be a string", name);
}

/* Texts that text must not hold. */
static enum status get_excludes(struct tags *t, const struct json *v, const char *name,
                                struct texts *out) {
    const struct json *list = json_get(v, name);
    struct marks marks = {0};
    enum status st;

    if (json_is_null(list)) return ST_OK;
    if (json_type(list) != JSON_ARRAY)
        return tags_refuse(t, list, "%s must be an array of strings", name);
    if ((st = tags_marks(t, list, name, &marks)) != ST_OK) return st;
    for (uint32_t i = 0; i < marks.n; i++) {
        if (marks.mark[i].text.len == 0 && !marks.mark[i].is_token)
            return tags_refuse(t, list, "%s must not be empty", name);
        texts_add(t, out, marks.mark[i].text);
    }
    return ST_OK;
}

/* --- texts ------------------------------------------------------------------------------------ */

static enum status const_string(struct tags *t, const struct json *v, symbol *out) {
    struct str text;
    enum status st = get_text(t, v, "value", &text);

    if (st == ST_OK) *out = tags_symbol(t, text);
    return st;
}

/* Members `inside` and `excludes`: where the text stands, and what it does not hold. */
static enum status get_spelling(struct tags *t, const struct json *v,
                                struct notation_spelling *out) {
    const struct json *inside = json_get(v, "inside");
    struct texts without = {0};
    struct str name;
    enum status st = get_excludes(t, v, "excludes", &without);

    *out = (struct notation_spelling){CHARS_PLAIN, EXPR_ANY};
    if (st != ST_OK) return st;
    if (without.n > 0) out->within = tags_text_without(t, &without, NULL, NULL);
    if (json_is_null(inside)) return ST_OK;
    if (json_to_str(inside, &name) != ST_OK || !str_eq(name, STR("json_string")))
        return tags_refuse(t, inside, "inside must be \"json_string\"");
    out->form = CHARS_IN_JSON;
    return ST_OK;
}

/* What is wrong with a text in another language. Who wrote it knows the tool that it is of, and
 * nothing of the tag around it. */
static enum status refuse_text(struct tags *t, const struct json *v, const char *member,
                               const char *message) {
    struct str tool;

    if (json_to_str(json_get(v, "tool"), &tool) != ST_OK)
        return tags_refuse(t, json_get(v, member), "%s", message);
    return error_set(t->err, ST_INVALID,
                     "the format of the tool \"%.*s\": %s: correct its definition, or leave the "
                     "format out",
                     (int)MIN(tool.len, 64), tool.ptr, message);
}

static enum status regex(struct tags *t, const struct json *v, symbol *out) {
    struct notation_spelling spelling;
    struct regex_rules rules = {.is_whole = true};
    struct error err = {0};
    struct str pattern;
    expr_id e;
    enum status st = get_text(t, v, "pattern", &pattern);

    if (st == ST_OK) st = get_spelling(t, v, &spelling);
    if (st != ST_OK) return st;
    rules.form = spelling.form;
    if (regex_expr_parse(&e, t->exprs, pattern, &rules, &err) != ST_OK)
        return refuse_text(t, v, "pattern", err.message);
    *out = rules_text(expr_and(t->exprs, e, spelling.within));
    return ST_OK;
}

/* Member `syntax`; without it, EBNF is known by its sign. */
static enum status get_syntax(struct tags *t, const struct json *v, struct str text,
                              bool *is_ebnf) {
    const struct json *syntax = json_get(v, "syntax");
    struct str name = STR("");

    *is_ebnf = str_find(text, STR("::=")) >= 0;
    if (json_is_null(syntax)) return ST_OK;
    (void)(json_to_str(syntax, &name) == ST_OK);
    *is_ebnf = str_eq(name, STR("ebnf"));
    if (*is_ebnf || str_eq(name, STR("lark"))) return ST_OK;
    return tags_refuse(t, syntax, "syntax must be \"lark\" or \"ebnf\"");
}

static enum status grammar(struct tags *t, const struct json *v, symbol *out) {
    struct notation_spelling spelling;
    struct error err = {0};
    struct str text;
    bool is_ebnf;
    enum status st = get_text(t, v, "grammar", &text);

    if (st == ST_OK) st = get_syntax(t, v, text, &is_ebnf);
    if (st == ST_OK) st = get_spelling(t, v, &spelling);
    if (st != ST_OK) return st;
    st = is_ebnf ? notation_ebnf(out, t->rules, text, &spelling, &err)
                 : notation_lark(out, t->rules, text, t->vocabulary, &spelling, &err);
    return st == ST_OK ? ST_OK : refuse_text(t, v, "grammar", err.message);
}

static enum status any_text(struct tags *t, const struct json *v, const struct texts *ends,
                            const char *excludes, symbol *out) {
    static const char *const limits[] = {"max_tokens", "max_chars"};
    struct texts without = {0};
    enum status st = get_excludes(t, v, excludes, &without);

    for (size_t i = 0; i < ARRAY_LEN(limits) && st == ST_OK; i++)
        if (!json_is_null(json_get(v, limits[i])))
            st = tags_refuse(t, json_get(v, limits[i]), "%s is not supported", limits[i]);
    if (st == ST_OK) *out = rules_text(tags_text_without(t, &without, ends, &t->named));
    return st;
}

static enum status token(struct tags *t, const struct json *v, symbol *out) {
    struct marks marks = {0};
    enum status st = tags_marks(t, v, "token", &marks);

    if (st == ST_OK) *out = symbol_of(SYMBOL_TOKEN, marks.mark[0].token);
    return st;
}

/* --- of other formats ------------------------------------------------------------------------- */

static enum status sequence(struct tags *t, const struct json *v, const struct texts *ends,
                            bool is_or, symbol *out) {
    const struct json *list;
    struct symbols all = {0};
    enum status st = tags_array(t, v, "elements", &list);

    if (st != ST_OK) return st;
    *out = rules_add(t->rules);
    JSON_FOR_EACH(it, list) {
        symbol s;

        if ((st = tags_format(t, it, ends, &s)) != ST_OK) return st;
        if (is_or) rules_produce(t->rules, *out, &s, 1);
        symbols_add(t, &all, s);
    }
    if (!is_or) rules_produce(t->rules, *out, all.s, all.n);
    return ST_OK;
}

/* `min` and `max` of a repetition; -1: without a limit. */
static enum status get_bounds(struct tags *t, const struct json *v, uint32_t *min, uint32_t *max) {
    int64_t low, high = -1;

    if (json_to_i64(json_get(v, "min"), &low) != ST_OK || low < 0 || low > REPEAT_MAX ||
        json_to_i64(json_get(v, "max"), &high) != ST_OK || high < -1 || high > REPEAT_MAX ||
        (high >= 0 && high < low))
        return tags_refuse(t, v, "repeat needs min and max, up to %u, the least first", REPEAT_MAX);
    *min = (uint32_t)low;
    *max = high < 0 ? EXPR_FOREVER : (uint32_t)high;
    return ST_OK;
}

static enum status repeat(struct tags *t, const struct json *v, const struct texts *ends,
                          uint32_t min, uint32_t max, symbol *out) {
    const struct json *content = json_get(v, "content");
    symbol s;
    enum status st;

    if (!content) return tags_refuse(t, v, "content is missing");
    if ((st = tags_format(t, content, ends, &s)) != ST_OK) return st;
    *out = rules_add(t->rules);
    rules_produce_loop(t->rules, *out, &s, 1, min, max);
    return ST_OK;
}

static enum status tag(struct tags *t, const struct json *v, symbol *out) {
    struct symbols all = {0};
    enum status st = tags_one(t, v, &all);

    if (st == ST_OK) *out = rules_sequence(t->rules, all.s, all.n);
    return st;
}

enum type {
    CONST_STRING,
    JSON_SCHEMA,
    REGEX,
    GRAMMAR,
    ANY_TEXT,
    ANY_TOKENS,
    SEQUENCE,
    OR,
    OPTIONAL,
    PLUS,
    STAR,
    REPEAT,
    TAG,
    TRIGGERED_TAGS,
    TAGS_WITH_SEPARATOR,
    TOKEN
};

static const struct {
    const char *name;
    enum type type;
} types[] = {{"const_string", CONST_STRING},
             {"json_schema", JSON_SCHEMA},
             {"regex", REGEX},
             {"grammar", GRAMMAR},
             {"any_text", ANY_TEXT},
             {"any_tokens", ANY_TOKENS},
             {"sequence", SEQUENCE},
             {"or", OR},
             {"optional", OPTIONAL},
             {"plus", PLUS},
             {"star", STAR},
             {"repeat", REPEAT},
             {"tag", TAG},
             {"triggered_tags", TRIGGERED_TAGS},
             {"token_triggered_tags", TRIGGERED_TAGS},
             {"tags_with_separator", TAGS_WITH_SEPARATOR},
             {"token", TOKEN}};

static enum status by_type(struct tags *t, const struct json *v, enum type type,
                           const struct texts *ends, symbol *out) {
    uint32_t min = 0, max = 0;
    enum status st;

    switch (type) {
    case CONST_STRING: return const_string(t, v, out);
    case JSON_SCHEMA: return tags_json(t, v, out);
    case REGEX: return regex(t, v, out);
    case GRAMMAR: return grammar(t, v, out);
    case ANY_TEXT: return any_text(t, v, ends, "excludes", out);
    case ANY_TOKENS: return any_text(t, v, ends, "exclude_tokens", out);
    case SEQUENCE: return sequence(t, v, ends, false, out);
    case OR: return sequence(t, v, ends, true, out);
    case OPTIONAL: return repeat(t, v, ends, 0, 1, out);
    case PLUS: return repeat(t, v, ends, 1, EXPR_FOREVER, out);
    case STAR: return repeat(t, v, ends, 0, EXPR_FOREVER, out);
    case REPEAT:
        st = get_bounds(t, v, &min, &max);
        return st == ST_OK ? repeat(t, v, ends, min, max, out) : st;
    case TAG: return tag(t, v, out);
    case TRIGGERED_TAGS: return tags_triggered(t, v, ends, out);
    case TAGS_WITH_SEPARATOR: return tags_separated(t, v, out);
    case TOKEN: return token(t, v, out);
    }
    return ST_INVALID;
}

enum status tags_format(struct tags *t, const struct json *v, const struct texts *ends,
                        symbol *out) {
    struct str name;
    enum status st;

    if (json_to_str(json_get(v, "type"), &name) != ST_OK)
        return tags_refuse(t, v, "a format is an object with a type");
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (!str_eq(name, str_of(types[i].name))) continue;
        if (++t->depth > TAGS_MAX_DEPTH)
            return tags_refuse(t, v, "more than %u formats inside each other", TAGS_MAX_DEPTH);
        st = by_type(t, v, types[i].type, ends, out);
        t->depth--;
        return st;
    }
    return tags_refuse(t, v, "unsupported type \"%.*s\"", (int)MIN(name.len, 40), name.ptr);
}

/* --- the whole -------------------------------------------------------------------------------- */

static enum status compile(struct tags *t, symbol *start) {
    const struct json *format = json_get(t->root, "format");
    struct str type;

    if (json_type(t->root) != JSON_OBJECT)
        return tags_refuse(t, t->root, "a structural tag is an object, not %s",
                           json_type_name(t->root));
    if (json_get(t->root, "type") && (json_to_str(json_get(t->root, "type"), &type) != ST_OK ||
                                      !str_eq(type, STR("structural_tag"))))
        return tags_refuse(t, t->root, "its type must be structural_tag");
    tags_name_markers(t, t->root);
    if (format) return tags_format(t, format, NULL, start);
    if (json_get(t->root, "structures")) return tags_triggered(t, t->root, NULL, start);
    return tags_refuse(t, t->root, "a structural tag needs a format");
}

enum status tags_compile(symbol *start, struct rules *rules, struct str text,
                         const struct tags_options *options, struct error *err) {
    struct tags t = {.rules = rules,
                     .exprs = rules->exprs,
                     .vocabulary = options->vocabulary,
                     .options = options,
                     .err = err};
    struct json_limits limits = {.max_depth = SCHEMA_MAX_JSON_DEPTH + 2 * TAGS_MAX_DEPTH + 2};
    struct json *root;
    enum status st = json_parse(&root, text, &limits, err);

    if (st == ST_INVALID) return error_prefix(err, "the structural tag");
    if (st != ST_OK) return st;
    t.root = root;
    arena_init(&t.arena, 0);
    st = compile(&t, start);
    arena_fini(&t.arena);
    json_destroy(root);
    return st;
}

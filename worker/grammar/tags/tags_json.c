/* worker/grammar/tags/tags_json.c - JSON inside a tag, and the styles of parameters. */
#include "worker/grammar/tags/tags_internal.h"

struct style {
    struct str mark;                 /* of struct schema_marks; or "", and the others are */
    struct str key, text, json, end; /* of struct schema_raw: */
    struct str between;              /* strings are JSON where it is not "" */
    const struct json *excludes;     /* NULL: none */
    bool has_python;
};

#define BAR "\xEF\xBD\x9C" /* U+FF5C, of DeepSeek's markers */

static const struct {
    const char *name, *key, *text, *json, *end;
} styles[] = {
    {"qwen_xml", "<parameter=", ">\n", ">\n", "\n</parameter>\n"},
    {"minimax_xml", "<parameter name=\"", "\">", "\">", "</parameter>\n"},
    {"deepseek_xml", "<" BAR "DSML" BAR "parameter name=\"", "\" string=\"true\">",
     "\" string=\"false\">", "</" BAR "DSML" BAR "parameter>\n"},
    {"glm_xml", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_key>\n<arg_value>",
     "</arg_value>\n"},
};

static struct str text_of(const struct json *v, const char *name) {
    struct str text = STR("");

    return json_to_str(json_get(v, name), &text) == ST_OK ? text : STR("");
}

static enum status read_texts(struct tags *t, const struct json *v, struct style *out) {
    *out = (struct style){.mark = text_of(v, "quote"), .between = text_of(v, "between")};
    out->excludes = json_get(v, "excludes");
    out->has_python = str_eq(text_of(v, "words"), STR("python"));
    if (out->mark.len > 0) return ST_OK;
    if (json_to_str(json_get(v, "text"), &out->text) != ST_OK ||
        (out->between.len == 0 && (json_to_str(json_get(v, "key"), &out->key) != ST_OK ||
                                   json_to_str(json_get(v, "end"), &out->end) != ST_OK)))
        return tags_refuse(t, v,
                           "a style needs key, text and end, or text and between, or quote, which "
                           "are strings");
    out->key = text_of(v, "key");
    if (json_to_str(json_get(v, "json"), &out->json) != ST_OK) out->json = out->text;
    return ST_OK;
}

static enum status read_style(struct tags *t, const struct json *v, struct style *out) {
    struct str name;

    if (json_type(v) == JSON_OBJECT) return read_texts(t, v, out);
    for (size_t i = 0; json_to_str(v, &name) == ST_OK && i < ARRAY_LEN(styles); i++) {
        if (!str_eq(name, str_of(styles[i].name))) continue;
        *out = (struct style){.key = str_of(styles[i].key),
                              .text = str_of(styles[i].text),
                              .json = str_of(styles[i].json),
                              .end = str_of(styles[i].end)};
        return ST_OK;
    }
    return tags_refuse(t, v,
                       "unsupported style: supported are json, qwen_xml, minimax_xml, "
                       "deepseek_xml, glm_xml, or an object");
}

/* Raw text ends where the end begins, white space behind it left out. */
static enum status write_style(struct tags *t, const struct json *at, const struct style *style,
                               struct schema_raw *out) {
    struct texts ends = {0};
    struct marks marks = {0};
    struct str end = style->end;

    *out = (struct schema_raw){.key = tags_symbol(t, style->key),
                               .text = tags_symbol(t, style->text),
                               .json = tags_symbol(t, style->json),
                               .end = tags_symbol(t, style->end),
                               .between = tags_symbol(t, style->between),
                               .raw = EXPR_NONE,
                               .has_python = style->has_python};
    if (style->between.len > 0) return ST_OK;
    if (style->excludes && tags_marks(t, style->excludes, "excludes", &marks) != ST_OK)
        return ST_INVALID;
    for (uint32_t i = 0; i < marks.n; i++)
        texts_add(t, &ends, marks.mark[i].text);
    while (end.len > 0 && (end.ptr[end.len - 1] == '\n' || end.ptr[end.len - 1] == ' '))
        end.len--;
    if (end.len == 0) return tags_refuse(t, at, "the end of a style must not be blank");
    texts_add(t, &ends, end);
    out->raw = tags_text_without(t, &ends, NULL, NULL);
    return ST_OK;
}

static void write_marks(struct tags *t, const struct style *style, struct schema_marks *out) {
    struct texts ends = {0};

    texts_add(t, &ends, style->mark);
    out->mark = tags_symbol(t, style->mark);
    out->text = tags_text_without(t, &ends, NULL, NULL);
}

static enum status choose_spaces(struct tags *t, const struct json *v, struct schema_options *out) {
    const struct json *spaces = json_get(v, "whitespace");
    struct str name;

    *out = t->options->schema;
    if (json_is_null(spaces)) return ST_OK;
    if (json_to_str(spaces, &name) == ST_OK && str_eq(name, STR("any"))) {
        *out = t->options->any;
        return ST_OK;
    }
    if (json_to_str(spaces, &name) == ST_OK && str_eq(name, STR("compact"))) {
        *out = t->options->compact;
        return ST_OK;
    }
    return tags_refuse(t, spaces, "whitespace must be \"any\" or \"compact\"");
}

enum status tags_json(struct tags *t, const struct json *v, symbol *out) {
    const struct json *style = json_get(v, "style");
    struct schema_options options;
    struct schema_raw raw;
    struct schema_marks marks;
    struct style texts;
    struct str name;
    enum status st = choose_spaces(t, v, &options);

    options.document = t->root;
    if (st == ST_OK && !json_is_null(style) &&
        !(json_to_str(style, &name) == ST_OK && str_eq(name, STR("json")))) {
        st = read_style(t, style, &texts);
        if (st == ST_OK && texts.mark.len > 0) {
            write_marks(t, &texts, &marks);
            options.marks = &marks;
            options.gap = options.after = EXPR_EMPTY;
        } else if (st == ST_OK) {
            st = write_style(t, style, &texts, &raw);
            options.raw = &raw;
        }
    }
    if (st != ST_OK) return st;
    if (!json_get(v, "json_schema")) return tags_refuse(t, v, "json_schema is missing");
    return schema_compile(out, t->rules, json_get(v, "json_schema"), &options, t->err);
}

enum status tags_schema(struct tags *t, const struct json *schema, symbol *out) {
    struct schema_options options = t->options->schema;

    options.document = t->root;
    return schema_compile(out, t->rules, schema, &options, t->err);
}

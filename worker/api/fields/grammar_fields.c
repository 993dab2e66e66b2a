/* worker/api/fields/grammar_fields.c - which field, and which kind of grammar it asks for. */
#include "worker/api/fields/grammar_fields.h"

#include "common/text/json.h"

/* Each kind of field: what it is called, and what its value becomes. */
enum form { FORM_SCHEMA, FORM_REGEX, FORM_CHOICE, FORM_GRAMMAR, FORM_OBJECT, FORM_EBNF, FORM_TAG };

static const struct {
    const char *name; /* in the body */
    enum form form;
} plain_fields[] = {{"guided_json", FORM_SCHEMA},
                    {"guided_regex", FORM_REGEX},
                    {"guided_choice", FORM_CHOICE},
                    {"guided_grammar", FORM_GRAMMAR},
                    {"json_schema", FORM_SCHEMA},
                    {"regex", FORM_REGEX},
                    {"ebnf", FORM_EBNF},
                    {"structural_tag", FORM_TAG}};

static const struct {
    const char *name; /* in structured_outputs */
    const char *field;
    enum form form;
} outputs[] = {{"json", "structured_outputs.json", FORM_SCHEMA},
               {"regex", "structured_outputs.regex", FORM_REGEX},
               {"choice", "structured_outputs.choice", FORM_CHOICE},
               {"grammar", "structured_outputs.grammar", FORM_GRAMMAR},
               {"json_object", "structured_outputs.json_object", FORM_OBJECT},
               {"structural_tag", "structured_outputs.structural_tag", FORM_TAG}};

static enum status begin(struct grammar_fields *f, const char *field, enum grammar_kind kind,
                         struct error *err) {
    if (f->field)
        return error_set_param(err, ST_INVALID, field,
                               "%s and %s both constrain the answer: send one of them", f->field,
                               field);
    f->field = field;
    f->spec.kind = kind;
    buf_init(&f->text, GRAMMAR_TEXT_MAX + 1);
    return ST_OK;
}

static enum status finish(struct grammar_fields *f, struct error *err) {
    if (buf_status(&f->text) != ST_OK || buf_len(&f->text) > GRAMMAR_TEXT_MAX)
        return error_set_param(err, ST_INVALID, f->field, "%s has more than %u bytes: shorten it",
                               f->field, GRAMMAR_TEXT_MAX);
    f->spec.text = buf_str(&f->text);
    if (!f->spec.text.ptr) f->spec.text = STR("");
    return ST_OK;
}

static enum status take_text(struct grammar_fields *f, const struct json *v, struct error *err) {
    struct str s;

    if (json_to_str(v, &s) != ST_OK || s.len == 0)
        return error_set_param(err, ST_INVALID, f->field, "%s must be a string that is not empty",
                               f->field);
    buf_append_str(&f->text, s);
    return finish(f, err);
}

/* A schema as an object, or as the text of one. */
static enum status take_schema(struct grammar_fields *f, const struct json *v, struct error *err) {
    struct json_writer w;

    if (json_type(v) == JSON_STRING) return take_text(f, v, err);
    if (json_type(v) != JSON_OBJECT && json_type(v) != JSON_BOOL)
        return error_set_param(err, ST_INVALID, f->field,
                               "%s must be a JSON Schema, as an object or a string, not %s",
                               f->field, json_type_name(v));
    json_writer_init(&w, &f->text);
    json_put_tree(&w, v);
    return finish(f, err);
}

/* A structural tag as an object, or as the text of one. */
static enum status take_tag(struct grammar_fields *f, const struct json *v, struct error *err) {
    struct json_writer w;

    if (json_type(v) == JSON_STRING) return take_text(f, v, err);
    if (json_type(v) != JSON_OBJECT)
        return error_set_param(err, ST_INVALID, f->field,
                               "%s must be a structural tag, as an object or a string, not %s",
                               f->field, json_type_name(v));
    json_writer_init(&w, &f->text);
    json_put_tree(&w, v);
    return finish(f, err);
}

static enum status take_choice(struct grammar_fields *f, const struct json *v, struct error *err) {
    struct json_writer w;

    if (json_type(v) != JSON_ARRAY || !json_first(v))
        return error_set_param(err, ST_INVALID, f->field,
                               "%s must be an array of strings, one at least", f->field);
    json_writer_init(&w, &f->text);
    json_put_tree(&w, v);
    return finish(f, err);
}

static enum status take_object(struct grammar_fields *f, const struct json *v, struct error *err) {
    bool value = false;

    if (json_to_bool(v, &value) != ST_OK || !value)
        return error_set_param(err, ST_INVALID, f->field, "%s must be true, or left out", f->field);
    buf_append_str(&f->text, STR("{\"type\":\"object\"}"));
    return finish(f, err);
}

static enum status take(struct grammar_fields *f, const char *field, enum form form,
                        const struct json *v, struct error *err) {
    static const enum grammar_kind kinds[] = {[FORM_SCHEMA] = GRAMMAR_JSON_SCHEMA,
                                              [FORM_REGEX] = GRAMMAR_REGEX,
                                              [FORM_CHOICE] = GRAMMAR_CHOICE,
                                              [FORM_GRAMMAR] = GRAMMAR_LARK,
                                              [FORM_OBJECT] = GRAMMAR_JSON_SCHEMA,
                                              [FORM_EBNF] = GRAMMAR_EBNF,
                                              [FORM_TAG] = GRAMMAR_TAG};
    enum status st = begin(f, field, kinds[form], err);

    if (st != ST_OK) return st;
    switch (form) {
    case FORM_SCHEMA: return take_schema(f, v, err);
    case FORM_CHOICE: return take_choice(f, v, err);
    case FORM_OBJECT: return take_object(f, v, err);
    case FORM_TAG: return take_tag(f, v, err);
    case FORM_REGEX:
    case FORM_EBNF: return take_text(f, v, err);
    case FORM_GRAMMAR: break;
    }
    st = take_text(f, v, err);
    if (st == ST_OK && str_find(f->spec.text, STR("::=")) >= 0) f->spec.kind = GRAMMAR_EBNF;
    return st;
}

static enum status take_pattern(struct grammar_fields *f, const char *field, const struct json *v,
                                struct error *err) {
    if (json_is_null(v)) return ST_OK;
    if (json_to_str(v, &f->spec.spaces_pattern) != ST_OK)
        return error_set_param(err, ST_INVALID, field, "%s must be a string", field);
    f->spec.spaces = GRAMMAR_SPACES_PATTERN;
    return ST_OK;
}

/* --- the fields ------------------------------------------------------------------------------- */

static enum status read_schema_format(struct grammar_fields *f, const struct json *format,
                                      struct error *err) {
    static const char field[] = "response_format";
    const struct json *described, *schema;
    enum status st = json_get_object(format, "json_schema", &described, err);

    if (st != ST_OK) return st;
    schema = json_get(described, "schema");
    if (json_type(schema) != JSON_OBJECT && json_type(schema) != JSON_BOOL)
        return error_set_param(err, ST_INVALID, field,
                               "response_format of type json_schema needs json_schema.schema, an "
                               "object");
    st = json_get_bool(described, "strict", &f->spec.is_closed, NULL, err);
    return st == ST_OK ? take(f, field, FORM_SCHEMA, schema, err) : st;
}

static enum status read_format(struct grammar_fields *f, const struct json *o, struct error *err) {
    static const char field[] = "response_format";
    const struct json *format;
    struct str type = STR("unknown");
    enum status st = json_get_object(o, field, &format, err);

    if (st != ST_OK || !format) return st;
    if (json_to_str(json_get(format, "type"), &type) == ST_OK) {
        if (str_eq(type, STR("text"))) return ST_OK;
        if (str_eq(type, STR("json_schema"))) return read_schema_format(f, format, err);
        if (str_eq(type, STR("json_object"))) {
            if ((st = begin(f, field, GRAMMAR_JSON_SCHEMA, err)) != ST_OK) return st;
            buf_append_str(&f->text, STR("{\"type\":\"object\"}"));
            return finish(f, err);
        }
        if (str_eq(type, STR("structural_tag"))) return take(f, field, FORM_TAG, format, err);
    }
    return error_set_param(err, ST_INVALID, field,
                           "unsupported response_format type \"%.*s\": supported are \"text\", "
                           "\"json_object\", \"json_schema\" and \"structural_tag\"",
                           (int)MIN(type.len, 40), type.ptr);
}

static enum status read_outputs(struct grammar_fields *f, const struct json *o, struct error *err) {
    static const char field[] = "structured_outputs";
    const struct json *v, *part;
    bool is_compact = false;
    enum status st = json_get_object(o, field, &v, err);

    if (st != ST_OK || !v) return st;
    for (size_t i = 0; i < ARRAY_LEN(outputs) && st == ST_OK; i++) {
        part = json_get(v, outputs[i].name);
        if (!json_is_null(part)) st = take(f, outputs[i].field, outputs[i].form, part, err);
    }
    if (st == ST_OK && !f->field)
        st = error_set_param(err, ST_INVALID, field,
                             "structured_outputs needs json, regex, choice, grammar, "
                             "json_object or structural_tag");
    if (st != ST_OK) return st;
    st = json_get_bool(v, "disable_any_whitespace", &is_compact, NULL, err);
    if (st == ST_OK)
        st = json_get_bool(v, "disable_additional_properties", &f->spec.is_closed, NULL, err);
    if (is_compact) f->spec.spaces = GRAMMAR_SPACES_COMPACT;
    if (st != ST_OK) return error_within(err, st, field);
    return take_pattern(f, "structured_outputs.whitespace_pattern",
                        json_get(v, "whitespace_pattern"), err);
}

/* Clients send "" for nothing. */
static bool is_given(const struct json *v) {
    struct str s;

    return !json_is_null(v) && !(json_to_str(v, &s) == ST_OK && s.len == 0);
}

enum status grammar_fields_parse(struct grammar_fields *f, const struct json *o,
                                 struct error *err) {
    enum status st = read_format(f, o, err);

    if (st == ST_OK) st = read_outputs(f, o, err);
    for (size_t i = 0; i < ARRAY_LEN(plain_fields) && st == ST_OK; i++) {
        const struct json *v = json_get(o, plain_fields[i].name);

        if (is_given(v)) st = take(f, plain_fields[i].name, plain_fields[i].form, v, err);
    }
    if (st != ST_OK) return st;
    return take_pattern(f, "guided_whitespace_pattern", json_get(o, "guided_whitespace_pattern"),
                        err);
}

/* --- beside tools and reasoning --------------------------------------------------------------- */

/* ["a","b"] as {"type":"or","elements":[{"type":"const_string","value":"a"}, ...]}. */
static void put_choices(struct json_writer *w, struct str choices) {
    struct json *list = NULL;

    json_field_z(w, "type", "or");
    json_put_key(w, "elements");
    json_begin_array(w);
    if (json_parse(&list, choices, NULL, NULL) == ST_OK) {
        JSON_FOR_EACH(it, list) {
            json_begin_object(w);
            json_field_z(w, "type", "const_string");
            json_put_key(w, "value");
            json_put_tree(w, it);
            json_end_object(w);
        }
    }
    json_end_array(w);
    json_destroy(list);
}

void grammar_fields_put_format(const struct grammar_fields *f, struct buf *out) {
    struct json_writer w;

    json_writer_init(&w, out);
    json_begin_object(&w);
    switch (f->spec.kind) {
    case GRAMMAR_JSON_SCHEMA:
        json_field_z(&w, "type", "json_schema");
        json_put_key(&w, "json_schema");
        json_put_raw(&w, f->spec.text);
        break;
    case GRAMMAR_REGEX:
        json_field_z(&w, "type", "regex");
        json_field_str(&w, "pattern", f->spec.text);
        break;
    case GRAMMAR_CHOICE: put_choices(&w, f->spec.text); break;
    case GRAMMAR_EBNF:
    case GRAMMAR_LARK:
        json_field_z(&w, "type", "grammar");
        json_field_str(&w, "grammar", f->spec.text);
        break;
    case GRAMMAR_TAG: break;
    }
    json_end_object(&w);
}

enum status grammar_fields_set_tag(struct grammar_fields *f, struct str json, struct error *err) {
    bool is_mostly_own = f->field && 2 * buf_len(&f->text) > json.len;

    if (json.len > GRAMMAR_TEXT_MAX) {
        const char *field = is_mostly_own ? f->field : "tools";

        return error_set_param(err, ST_INVALID, field,
                               "the grammars and schemas of %s have more than %u bytes as JSON: "
                               "shorten them",
                               field, GRAMMAR_TEXT_MAX);
    }
    if (f->field) {
        buf_clear(&f->text);
    } else {
        buf_init(&f->text, GRAMMAR_TEXT_MAX + 1);
        f->field = "tools";
    }
    f->spec.kind = GRAMMAR_TAG;
    buf_append_str(&f->text, json);
    return finish(f, err);
}

void grammar_fields_fini(struct grammar_fields *f) {
    if (f->field) buf_fini(&f->text);
    f->field = NULL;
}

/* worker/text/template/chat_messages.c - JSON to the values of a template, and the habits of
 * clients. */
#include "worker/text/template/chat_messages.h"

#include <string.h>

#include "common/base/buf.h"
#include "common/text/json.h"

/* --- values ------------------------------------------------------------------------------------*/
/* The reader keeps numbers by value: 1.0 arrives as 1. */
static enum status convert_number(const struct json *v, struct jv *out) {
    int64_t i;
    double f;

    if (json_to_i64(v, &i) == ST_OK) {
        *out = jv_int(i);
        return ST_OK;
    }
    if (json_to_f64(v, &f) != ST_OK) return ST_INTERNAL;
    *out = jv_float(f);
    return ST_OK;
}

static enum status convert_text(struct chat_conversion *c, struct str s, struct jv *out) {
    if (c->copies) return jv_copy(c->run, s, out);
    *out = jv_string(s);
    return ST_OK;
}

static enum status convert_list(struct chat_conversion *c, const struct json *v, struct jv *out) {
    enum status st = jv_new_list(c->run, json_count(v), out);

    for (const struct json *item = json_first(v); item && st == ST_OK; item = json_next(item)) {
        struct jv one;

        st = chat_convert(c, item, &one);
        if (st == ST_OK) st = jv_push(c->run, *out, one);
    }
    return st;
}

static enum status convert_dict(struct chat_conversion *c, const struct json *v, struct jv *out) {
    enum status st = jv_new_dict(c->run, json_count(v), out);

    for (const struct json *item = json_first(v); item && st == ST_OK; item = json_next(item)) {
        struct jv key, one;

        st = convert_text(c, json_key(item), &key);
        if (st == ST_OK) st = chat_convert(c, item, &one);
        if (st == ST_OK) st = jv_add(c->run, *out, key.as.string, one);
    }
    return st;
}

/* The JSON reader has limited the nesting. */
enum status chat_convert(struct chat_conversion *c, const struct json *v, struct jv *out) {
    struct str s;
    bool b = false;

    switch (json_type(v)) {
    case JSON_BOOL:
        if (json_to_bool(v, &b) != ST_OK) return ST_INTERNAL;
        *out = jv_bool(b);
        return ST_OK;
    case JSON_NUMBER: return convert_number(v, out);
    case JSON_STRING:
        if (json_to_str(v, &s) != ST_OK) return ST_INTERNAL;
        return convert_text(c, s, out);
    case JSON_ARRAY: return convert_list(c, v, out);
    case JSON_OBJECT: return convert_dict(c, v, out);
    default: *out = jv_none(); return ST_OK;
    }
}

/* --- content -----------------------------------------------------------------------------------*/
static enum status refuse_part(struct chat_conversion *c, const struct json *part) {
    struct str type = STR("?");

    if (json_to_str(json_get(part, "type"), &type) != ST_OK) type = STR("?");
    return error_set_param(c->err, ST_INVALID, "messages",
                           "unsupported content part '%.40s': supported is text", type.ptr);
}

/* The text of a part; *has_text stays false where it is null. */
static enum status read_part(struct chat_conversion *c, const struct json *part, struct str *text,
                             bool *has_text) {
    static const struct {
        const char *type, *field;
    } kinds[] = {{"text", "text"},
                 {"input_text", "text"},
                 {"output_text", "text"},
                 {"refusal", "refusal"},
                 {"thinking", "thinking"}};
    const char *field = NULL;
    struct str type;

    *has_text = false;
    if (json_to_str(part, text) == ST_OK) {
        *has_text = true;
        return ST_OK;
    }
    if (json_to_str(json_get(part, "type"), &type) != ST_OK) {
        field = "text"; /* some clients leave the type out */
    } else {
        for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
            if (str_eq(type, str_of(kinds[i].type))) field = kinds[i].field;
        }
        if (!field) return refuse_part(c, part);
        if (json_is_null(json_get(part, field))) return ST_OK;
    }
    if (json_to_str(json_get(part, field), text) != ST_OK) return refuse_part(c, part);
    *has_text = true;
    return ST_OK;
}

/* The texts of a list of parts, a line end between them. */
static enum status join_parts(struct chat_conversion *c, const struct json *parts, struct jv *out) {
    struct buf text;
    enum status st = ST_OK;
    size_t n = 0;

    buf_init(&text, 0);
    for (const struct json *part = json_first(parts); part && st == ST_OK; part = json_next(part)) {
        struct str s = STR_NULL;
        bool has_text = false;

        st = read_part(c, part, &s, &has_text);
        if (st != ST_OK || !has_text) continue;
        if (n++) buf_append_char(&text, '\n');
        buf_append_str(&text, s);
    }
    if (st == ST_OK && buf_status(&text) != ST_OK) {
        st = error_set(c->err, ST_NOMEM, "out of memory for the content of a message");
    }
    if (st == ST_OK) st = jv_copy(c->run, buf_str(&text), out);
    buf_fini(&text);
    return st;
}

static enum status put_part(struct chat_conversion *c, struct str text, struct jv list) {
    struct jv part, value;
    enum status st = jv_new_dict(c->run, 2, &part);

    if (st == ST_OK) st = jv_add(c->run, part, STR("type"), jv_string(STR("text")));
    if (st == ST_OK) st = convert_text(c, text, &value);
    if (st == ST_OK) st = jv_add(c->run, part, STR("text"), value);
    return st == ST_OK ? jv_push(c->run, list, part) : st;
}

static enum status keep_parts(struct chat_conversion *c, const struct json *parts, struct jv *out) {
    enum status st = jv_new_list(c->run, json_count(parts), out);

    for (const struct json *part = json_first(parts); part && st == ST_OK; part = json_next(part)) {
        struct str s = STR_NULL;
        bool has_text = false;

        st = read_part(c, part, &s, &has_text);
        if (st == ST_OK && has_text) st = put_part(c, s, *out);
    }
    return st;
}

static bool has_calls(const struct json *message) {
    return json_first(json_get(message, "tool_calls")) ||
           json_type(json_get(message, "function_call")) == JSON_OBJECT;
}

/* Clients write null or "" beside a call; templates that test for none expect null. */
static struct jv no_content(struct chat_conversion *c, const struct json *message) {
    if (!jinja_tests_none(c->program) || !has_calls(message)) return jv_string(STR(""));
    c->was_generous = true;
    return c->is_plain ? jv_string(STR("")) : jv_none();
}

static enum status convert_content(struct chat_conversion *c, const struct json *message,
                                   struct str role, struct jv *out) {
    const struct json *content = json_get(message, "content");
    struct str text = STR_NULL;

    if (json_is_null(content) || (json_to_str(content, &text) == ST_OK && text.len == 0)) {
        *out = no_content(c, message);
        return ST_OK;
    }
    if (text.len) return convert_text(c, text, out);
    if (json_type(content) == JSON_ARRAY) {
        return jinja_reads_parts(c->program) && !str_eq(role, STR("tool"))
                   ? keep_parts(c, content, out)
                   : join_parts(c, content, out);
    }
    return error_set_param(c->err, ST_INVALID, "messages",
                           "the content of a message is %s: send a string, an array of parts or "
                           "null",
                           json_type_name(content));
}

/* --- tool calls --------------------------------------------------------------------------------*/
static struct str without_end_blanks(struct str s) {
    while (s.len && memchr(" \t\r\n", s.ptr[s.len - 1], 4))
        s.len--;
    return s;
}

/* What "{\"city\": \"Rome\"}" spells, or an empty mapping. *keeps: the string stays as it is. */
static enum status parse_arguments(struct chat_conversion *c, struct str text, struct jv *value,
                                   bool *keeps) {
    struct chat_conversion copying = *c;
    struct json *root = NULL;
    enum status st;

    *keeps = false;
    text = without_end_blanks(text);
    if (text.len == 0) return jv_new_dict(c->run, 0, value);
    if (json_parse(&root, text, NULL, NULL) != ST_OK) {
        c->was_generous = true;
        *keeps = !c->is_plain;
        return *keeps ? ST_OK : jv_new_dict(c->run, 0, value);
    }
    copying.copies = true;
    st = json_is_null(root) ? jv_new_dict(c->run, 0, value) : chat_convert(&copying, root, value);
    json_destroy(root);
    return st;
}

/* As text: what the client sent, or no arguments. */
static enum status spell_arguments(struct chat_conversion *c, struct jv function, struct jv given) {
    if (given.type == JV_STRING && without_end_blanks(given.as.string).len > 0) return ST_OK;
    return jv_set(c->run, function, jv_string(STR("arguments")), jv_string(STR("{}")));
}

static enum status read_arguments(struct chat_conversion *c, struct jv function) {
    struct jv given = jv_get(c->run, function, STR("arguments")), value;
    bool keeps = false;
    enum status st;

    if (function.type != JV_DICT || given.type == JV_DICT || given.type == JV_LIST) return ST_OK;
    c->was_parsed = true;
    if (c->has_spelt) return spell_arguments(c, function, given);
    st = given.type == JV_STRING ? parse_arguments(c, given.as.string, &value, &keeps)
                                 : jv_new_dict(c->run, 0, &value);
    if (st != ST_OK || keeps) return st;
    return jv_set(c->run, function, jv_string(STR("arguments")), value);
}

static enum status read_tool_calls(struct chat_conversion *c, struct jv calls) {
    enum status st = ST_OK;

    if (calls.type != JV_LIST) return ST_OK;
    for (size_t i = 0; i < jv_list_count(calls) && st == ST_OK; i++) {
        st = read_arguments(c, jv_get(c->run, jv_list_at(calls, i), STR("function")));
    }
    return st;
}

/* {"id", "type": "custom", "custom": {"name", "input"}} as the call of a function with the one
 * argument "input". */
static enum status convert_custom_call(struct chat_conversion *c, const struct json *call,
                                       struct jv *out) {
    const struct json *custom = json_get(call, "custom");
    struct jv id, name, arguments, function;
    struct json_writer w;
    struct buf text;
    enum status st;

    buf_init(&text, 0);
    json_writer_init(&w, &text);
    json_begin_object(&w);
    json_put_key(&w, "input");
    json_put_tree(&w, json_get(custom, "input"));
    json_end_object(&w);
    st = jv_copy(c->run, buf_str(&text), &arguments);
    if (buf_status(&text) != ST_OK) st = ST_NOMEM;
    buf_fini(&text);
    if (st == ST_OK) st = jv_new_dict(c->run, 2, &function);
    if (st == ST_OK) st = chat_convert(c, json_get(custom, "name"), &name);
    if (st == ST_OK) st = jv_add(c->run, function, STR("name"), name);
    if (st == ST_OK) st = jv_add(c->run, function, STR("arguments"), arguments);
    if (st == ST_OK) st = jv_new_dict(c->run, 3, out);
    if (st == ST_OK) st = chat_convert(c, json_get(call, "id"), &id);
    if (st == ST_OK) st = jv_add(c->run, *out, STR("id"), id);
    if (st == ST_OK) st = jv_add(c->run, *out, STR("type"), jv_string(STR("function")));
    return st == ST_OK ? jv_add(c->run, *out, STR("function"), function) : st;
}

static enum status convert_calls(struct chat_conversion *c, const struct json *calls,
                                 struct jv *out) {
    enum status st;

    if (json_type(calls) != JSON_ARRAY) return chat_convert(c, calls, out);
    st = jv_new_list(c->run, json_count(calls), out);
    for (const struct json *it = json_first(calls); it && st == ST_OK; it = json_next(it)) {
        bool is_custom = json_type(json_get(it, "custom")) == JSON_OBJECT;
        struct jv call;

        st = is_custom ? convert_custom_call(c, it, &call) : chat_convert(c, it, &call);
        if (st == ST_OK) st = jv_push(c->run, *out, call);
    }
    return st == ST_OK ? read_tool_calls(c, *out) : st;
}

/* {"name", "arguments"}, the field before there were several, as the one call of tool_calls. */
static enum status wrap_function_call(struct chat_conversion *c, const struct json *v,
                                      struct jv *calls) {
    struct jv call, function;
    enum status st = jv_new_list(c->run, 1, calls);

    if (st == ST_OK) st = jv_new_dict(c->run, 2, &call);
    if (st == ST_OK) st = jv_add(c->run, call, STR("type"), jv_string(STR("function")));
    if (st == ST_OK) st = chat_convert(c, v, &function);
    if (st == ST_OK) st = jv_add(c->run, call, STR("function"), function);
    return st == ST_OK ? jv_push(c->run, *calls, call) : st;
}

/* --- messages ----------------------------------------------------------------------------------*/
static struct str role_for(const struct chat_conversion *c, struct str role) {
    if (str_eq(role, STR("developer")) && !c->has_developer) return STR("system");
    return str_eq(role, STR("function")) ? STR("tool") : role;
}

/* Is it left out? */
static bool is_void(struct str key, const struct json *field) {
    return json_is_null(field) || (str_eq(key, STR("tool_calls")) && !json_first(field));
}

/* The fields that templates expect as they are. */
static enum status convert_field(struct chat_conversion *c, const struct json *field,
                                 struct jv out) {
    struct jv name, value;
    enum status st = convert_text(c, json_key(field), &name);

    if (st != ST_OK) return st;
    st = str_eq(name.as.string, STR("tool_calls")) ? convert_calls(c, field, &value)
                                                   : chat_convert(c, field, &value);
    return st == ST_OK ? jv_add(c->run, out, name.as.string, value) : st;
}

/* What older clients write as function_call. */
static enum status add_function_call(struct chat_conversion *c, const struct json *v,
                                     struct jv out) {
    const struct json *call = json_get(v, "function_call");
    struct jv calls;
    enum status st;

    if (json_type(call) != JSON_OBJECT || json_first(json_get(v, "tool_calls"))) return ST_OK;
    st = wrap_function_call(c, call, &calls);
    if (st == ST_OK) st = read_tool_calls(c, calls);
    return st == ST_OK ? jv_add(c->run, out, STR("tool_calls"), calls) : st;
}

static enum status add_reasoning(struct chat_conversion *c, const struct json *v, struct jv out) {
    static const char *const names[2] = {"reasoning", "reasoning_content"};
    enum status st = ST_OK;

    for (size_t i = 0; i < 2 && st == ST_OK; i++) {
        const struct json *text = json_get(v, names[i]);
        struct jv value;

        if (json_type(text) != JSON_STRING || !json_is_null(json_get(v, names[1 - i]))) continue;
        st = chat_convert(c, text, &value);
        if (st == ST_OK) st = jv_add(c->run, out, str_of(names[1 - i]), value);
    }
    return st;
}

static enum status convert_fields(struct chat_conversion *c, const struct json *v, struct str role,
                                  struct jv out) {
    struct jv value;
    enum status st = convert_text(c, role, &value);

    if (st == ST_OK) st = jv_add(c->run, out, STR("role"), value);
    if (st == ST_OK) st = convert_content(c, v, role, &value);
    if (st == ST_OK) st = jv_add(c->run, out, STR("content"), value);
    for (const struct json *field = json_first(v); field && st == ST_OK; field = json_next(field)) {
        struct str key = json_key(field);

        if (str_eq(key, STR("role")) || str_eq(key, STR("content")) || is_void(key, field)) {
            continue;
        }
        st = convert_field(c, field, out);
    }
    return st;
}

static enum status convert_message(struct chat_conversion *c, const struct json *v,
                                   struct jv *out) {
    struct str role;
    enum status st;

    if (json_type(v) != JSON_OBJECT || json_to_str(json_get(v, "role"), &role) != ST_OK) {
        return error_set_param(c->err, ST_INVALID, "messages",
                               "a message must be an object with a string 'role'");
    }
    st = jv_new_dict(c->run, json_count(v) + 3, out);
    if (st == ST_OK) st = convert_fields(c, v, role_for(c, role), *out);
    if (st == ST_OK) st = add_reasoning(c, v, *out);
    return st == ST_OK ? add_function_call(c, v, *out) : st;
}

enum status chat_convert_messages(struct chat_conversion *c, const struct json *v, struct jv *out) {
    enum status st;

    if (json_type(v) != JSON_ARRAY) {
        return error_set_param(c->err, ST_INVALID, "messages",
                               "messages must be an array of objects");
    }
    st = jv_new_list(c->run, json_count(v), out);
    for (const struct json *item = json_first(v); item && st == ST_OK; item = json_next(item)) {
        struct jv message;

        st = convert_message(c, item, &message);
        if (st == ST_OK) st = jv_push(c->run, *out, message);
    }
    return st;
}

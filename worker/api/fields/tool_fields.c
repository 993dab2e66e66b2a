/* worker/api/fields/tool_fields.c - see tool_fields.h. */
#include "worker/api/fields/tool_fields.h"

#include "common/base/buf.h"
#include "common/text/json.h"
#include "worker/api/fields/custom_tools.h"

/* --- tools ------------------------------------------------------------------------------------ */

static bool is_name(struct str s) {
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '-' || c == '.'))
            return false;
    }
    return s.len > 0 && s.len <= TOOL_NAME_MAX;
}

static struct str name_in(const struct json *v, const char *member) {
    struct str name = STR_NULL;

    return json_to_str(json_get(json_get(v, member), "name"), &name) == ST_OK ? name : STR_NULL;
}

static struct str name_of(const struct json *tool) {
    return name_in(tool, "function");
}

/* A missing type is "function", the only one of chat. */
static bool is_function(const struct json *v) {
    struct str type = STR("function");

    return json_type(v) == JSON_OBJECT &&
           (json_is_null(json_get(v, "type")) ||
            json_to_str(json_get(v, "type"), &type) == ST_OK) &&
           str_eq(type, STR("function"));
}

static enum status check_tool(const struct json *tool, size_t i, struct error *err) {
    const struct json *function = json_get(tool, "function"), *parameters;
    bool is_strict;

    if (!is_function(tool) || json_type(function) != JSON_OBJECT) {
        return error_set_param(err, ST_INVALID, "tools",
                               "tools[%zu] must be {\"type\": \"function\", \"function\": "
                               "{\"name\", \"description\", \"parameters\"}}",
                               i);
    }
    if (!is_name(name_of(tool))) {
        return error_set_param(err, ST_INVALID, "tools",
                               "tools[%zu].function.name must have 1 to %u letters, digits, \"_\", "
                               "\"-\" and \".\"",
                               i, TOOL_NAME_MAX);
    }
    parameters = json_get(function, "parameters");
    if (!json_is_null(parameters) && json_type(parameters) != JSON_OBJECT) {
        return error_set_param(err, ST_INVALID, "tools",
                               "tools[%zu].function.parameters must be a JSON Schema, an object",
                               i);
    }
    if (!json_is_null(json_get(function, "strict")) &&
        json_to_bool(json_get(function, "strict"), &is_strict) != ST_OK) {
        return error_set_param(err, ST_INVALID, "tools",
                               "tools[%zu].function.strict must be true or false", i);
    }
    return ST_OK;
}

static enum status get_tools(struct tool_fields *f, const struct json *o, struct error *err) {
    size_t i = 0;
    enum status st = json_get_array(o, "tools", &f->given, err);

    if (st == ST_OK) st = custom_tools_read(&f->functions, f->given, true, err);
    f->tools = f->functions ? f->functions : f->given;
    JSON_FOR_EACH(tool, f->tools) {
        if (i == TOOLS_MAX) {
            return error_set_param(err, ST_INVALID, "tools",
                                   "tools has more than %u tools: send fewer", TOOLS_MAX);
        }
        if (st == ST_OK) st = check_tool(tool, i++, err);
    }
    if (i == 0) f->tools = NULL;
    f->callable = f->tools;
    return st;
}

/* --- tool_choice ------------------------------------------------------------------------------ */

static const struct json *find(const struct json *tools, struct str name) {
    JSON_FOR_EACH(tool, tools) {
        if (name.ptr && str_eq(name_of(tool), name)) return tool;
    }
    return NULL;
}

static enum status put_named(struct json_writer *w, const struct tool_fields *f,
                             const struct json *named, struct error *err) {
    struct str name = is_function(named) ? name_of(named) : name_in(named, "custom");
    const struct json *tool = find(f->tools, name);

    if (!tool) {
        return error_set_param(err, ST_INVALID, "tool_choice",
                               "The tool specified in `tool_choice` does not match any of the "
                               "specified `tools`");
    }
    json_put_tree(w, tool);
    return ST_OK;
}

/* Those that `named` names, {"type": "function", "function": {"name"}} (or custom) or an array of
 * such, are what may be called. */
static enum status choose(struct tool_fields *f, const struct json *named, struct error *err) {
    struct json_writer w;
    struct buf text;
    enum status st = ST_OK;

    buf_init(&text, 0);
    json_writer_init(&w, &text);
    json_begin_array(&w);
    if (json_type(named) == JSON_OBJECT) st = put_named(&w, f, named, err);
    if (json_type(named) == JSON_ARRAY) {
        for (const struct json *it = json_first(named); it && st == ST_OK; it = json_next(it))
            st = put_named(&w, f, it, err);
    }
    json_end_array(&w);
    if (st == ST_OK) st = json_parse(&f->chosen, buf_str(&text), NULL, err);
    f->callable = f->chosen;
    buf_fini(&text);
    return st;
}

static enum status choose_allowed(struct tool_fields *f, const struct json *choice,
                                  struct error *err) {
    const struct json *allowed = json_get(choice, "allowed_tools"), *tools;
    struct str mode = STR("auto");

    tools = json_get(allowed, "tools");
    if (json_type(tools) != JSON_ARRAY || !json_first(tools) ||
        (!json_is_null(json_get(allowed, "mode")) &&
         json_to_str(json_get(allowed, "mode"), &mode) != ST_OK) ||
        !(str_eq(mode, STR("auto")) || str_eq(mode, STR("required")))) {
        return error_set_param(err, ST_INVALID, "tool_choice",
                               "tool_choice of type allowed_tools must be {\"type\": "
                               "\"allowed_tools\", \"allowed_tools\": {\"mode\": \"auto\" or "
                               "\"required\", \"tools\": [...]}}");
    }
    f->choice = str_eq(mode, STR("auto")) ? TOOLS_AUTO : TOOLS_REQUIRED;
    return choose(f, tools, err);
}

static enum status choose_by_object(struct tool_fields *f, const struct json *choice,
                                    struct str type, struct error *err) {
    if (str_eq(type, STR("allowed_tools"))) return choose_allowed(f, choice, err);
    if (str_eq(type, STR("function")) || str_eq(type, STR("custom"))) {
        f->choice = TOOLS_NAMED;
        return choose(f, choice, err);
    }
    return error_set_param(err, ST_INVALID, "tool_choice",
                           "unsupported tool_choice of type \"%.*s\": supported are "
                           "\"function\", \"custom\" and \"allowed_tools\"",
                           (int)MIN(type.len, 40), type.ptr);
}

static enum status get_choice(struct tool_fields *f, const struct json *o, struct error *err) {
    const struct json *choice = json_get(o, "tool_choice");
    struct str word = STR("none"), type = STR("");

    if (json_is_null(choice) && f->tools) word = STR("auto");
    if (!json_is_null(choice) && json_to_str(choice, &word) != ST_OK) word = STR("");
    f->choice = TOOLS_NONE;
    if (str_eq(word, STR("none"))) return ST_OK;
    if (!f->tools) {
        return error_set_param(err, ST_INVALID, "tool_choice",
                               "When using `tool_choice`, `tools` must be set.");
    }
    if (json_to_str(json_get(choice, "type"), &type) == ST_OK)
        return choose_by_object(f, choice, type, err);
    f->choice = str_eq(word, STR("required")) ? TOOLS_REQUIRED : TOOLS_AUTO;
    if (f->choice == TOOLS_REQUIRED || str_eq(word, STR("auto"))) return ST_OK;
    return error_set_param(err, ST_INVALID, "tool_choice",
                           "unsupported tool_choice %.*s: supported are \"auto\", \"none\", "
                           "\"required\" and an object with a \"type\"",
                           (int)MIN(word.len, 40), word.ptr);
}

enum status tool_fields_parse(struct tool_fields *f, const struct json *o, struct error *err) {
    bool is_parallel = true;
    enum status st = get_tools(f, o, err);

    if (st == ST_OK) st = get_choice(f, o, err);
    if (st == ST_OK) st = json_get_bool(o, "parallel_tool_calls", &is_parallel, NULL, err);
    f->is_single = !is_parallel || f->choice == TOOLS_NAMED;
    return st;
}

bool tool_fields_is_custom(const struct tool_fields *f, struct str name) {
    return f->functions && custom_tools_has(f->given, name);
}

void tool_fields_fini(struct tool_fields *f) {
    json_destroy(f->functions);
    f->functions = NULL;
    json_destroy(f->chosen);
    f->chosen = NULL;
}

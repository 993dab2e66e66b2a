/* worker/api/wires/responses_tools.c - one walk over all tools, wherever they stand. */
#include "worker/api/wires/responses_tools.h"

#include "common/text/json.h"
#include "worker/api/wires/members.h"

/* One tool of the body. */
struct seat {
    const struct json *tool; /* or the object `function` inside of it, as chat writes it */
    struct str space, name;
    bool is_custom, is_hosted;
};

/* False ends the walk. */
typedef bool visit_fn(const struct seat *seat, void *arg);

static struct seat seat_of(const struct json *tool, struct str space) {
    const struct json *function = json_get(tool, "function");
    struct seat seat = {.tool = tool, .space = space};

    seat.is_custom = member_is(tool, "type", "custom");
    seat.is_hosted = !seat.is_custom && !member_is(tool, "type", "function");
    if (json_type(function) == JSON_OBJECT) seat.tool = function;
    seat.name = member_text(seat.tool, "name");
    return seat;
}

static bool visit_list(const struct json *tools, struct str space, visit_fn *visit, void *arg) {
    JSON_FOR_EACH(it, tools) {
        struct seat seat;

        if (!space.ptr && member_is(it, "type", "namespace")) {
            struct str name = member_text(it, "name");

            if (!visit_list(json_get(it, "tools"), name.ptr ? name : STR(""), visit, arg))
                return false;
            continue;
        }
        seat = seat_of(it, space);
        if (!visit(&seat, arg)) return false;
    }
    return true;
}

static void visit_all(const struct json *body, visit_fn *visit, void *arg) {
    if (!visit_list(json_get(body, "tools"), STR_NULL, visit, arg)) return;
    if (json_type(json_get(body, "input")) != JSON_ARRAY) return;
    JSON_FOR_EACH(it, json_get(body, "input")) {
        if (!member_is(it, "type", "additional_tools")) continue;
        if (!visit_list(json_get(it, "tools"), STR_NULL, visit, arg)) return;
    }
}

void responses_append_function(struct buf *out, struct str space, struct str name) {
    buf_append_str(out, space);
    if (space.len) buf_append_str(out, STR("__"));
    buf_append_str(out, name);
}

static bool is_function(const struct seat *seat, struct str function) {
    struct str space = seat->space, name = seat->name;

    if (!space.len) return str_eq(name, function);
    return function.len == space.len + 2 + name.len && str_starts(function, space) &&
           memcmp(function.ptr + space.len, "__", 2) == 0 && str_ends(function, name);
}

/* --- to chat ---------------------------------------------------------------------------------- */

struct writing {
    struct json_writer *w;
    uint32_t n;
    struct error *err;
    enum status st;
};

static void put_name(struct json_writer *w, const struct seat *seat) {
    struct buf name;

    buf_init(&name, 0);
    responses_append_function(&name, seat->space, seat->name);
    json_field_str(w, "name", buf_str(&name));
    buf_fini(&name);
}

static void put_custom(struct json_writer *w, const struct seat *seat) {
    struct str description = member_text(seat->tool, "description");

    if (description.ptr) json_field_str(w, "description", description);
    if (json_is_null(json_get(seat->tool, "format"))) return;
    json_put_key(w, "format");
    json_put_tree(w, json_get(seat->tool, "format"));
}

static void put_function(struct json_writer *w, const struct seat *seat) {
    struct str description = member_text(seat->tool, "description");
    bool is_strict = false;

    if (description.ptr) json_field_str(w, "description", description);
    if (json_type(json_get(seat->tool, "parameters")) == JSON_OBJECT) {
        json_put_key(w, "parameters");
        json_put_tree(w, json_get(seat->tool, "parameters"));
    }
    if (json_to_bool(json_get(seat->tool, "strict"), &is_strict) == ST_OK && is_strict)
        json_field_bool(w, "strict", true);
}

static bool put_seat(const struct seat *seat, void *arg) {
    struct writing *to = arg;
    struct json_writer *w = to->w;

    if (seat->is_hosted) return true;
    if (!seat->name.len || seat->space.len + seat->name.len + 2 > RESPONSES_FUNCTION_MAX) {
        to->st = error_set_param(to->err, ST_INVALID, "tools",
                                 "a tool must have a \"name\" of at most %d characters, its "
                                 "namespace's included",
                                 RESPONSES_FUNCTION_MAX - 2);
        return false;
    }
    if (to->n++ == 0) {
        json_put_key(w, "tools");
        json_begin_array(w);
    }
    json_begin_object(w);
    json_field_z(w, "type", seat->is_custom ? "custom" : "function");
    json_put_key(w, seat->is_custom ? "custom" : "function");
    json_begin_object(w);
    put_name(w, seat);
    seat->is_custom ? put_custom(w, seat) : put_function(w, seat);
    json_end_object(w);
    json_end_object(w);
    return true;
}

enum status responses_put_tools(struct json_writer *w, const struct json *body, bool *has_any,
                                struct error *err) {
    struct writing to = {.w = w, .err = err, .st = ST_OK};
    const struct json *tools;
    enum status st = json_get_array(body, "tools", &tools, err);

    if (st != ST_OK) return st;
    visit_all(body, put_seat, &to);
    if (to.n) json_end_array(w);
    *has_any = to.n > 0;
    return to.st;
}

/* --- choice ----------------------------------------------------------------------------------- */

struct search {
    struct str function;
    struct seat found;
};

static bool find_seat(const struct seat *seat, void *arg) {
    struct search *s = arg;

    if (seat->is_hosted || !seat->name.len || !is_function(seat, s->function)) return true;
    s->found = *seat;
    return false;
}

struct responses_tool responses_tool_of(const struct json *body, struct str function) {
    struct search s = {.function = function, .found = {.name = function}};

    visit_all(body, find_seat, &s);
    return (struct responses_tool){
        .space = s.found.space, .name = s.found.name, .is_custom = s.found.is_custom};
}

static enum status refuse_choice(struct str name, struct error *err) {
    return error_set_param(err, ST_INVALID, "tool_choice",
                           "tool_choice forces \"%.*s\", which is no function or custom tool of "
                           "tools: this worker runs no hosted tools",
                           (int)MIN(name.len, 64), name.ptr);
}

/* {"type": "function" or "custom", "name", "namespace"}: appends its function. False: no tool. */
static bool append_chosen(const struct json *choice, const struct json *body, struct buf *out) {
    struct search s = {0};
    size_t before = buf_len(out);

    responses_append_function(out, member_text(choice, "namespace"), member_text(choice, "name"));
    s.function = (struct str){buf_ptr(out) + before, buf_len(out) - before};
    if (s.function.len) visit_all(body, find_seat, &s);
    return s.found.tool != NULL;
}

static enum status put_named(struct json_writer *w, const struct json *choice,
                             const struct json *body, struct error *err) {
    struct buf function;
    enum status st = ST_OK;

    buf_init(&function, 0);
    if (append_chosen(choice, body, &function)) {
        members_put_choice(w, buf_str(&function));
    } else {
        struct str name = member_text(choice, "name");

        st = refuse_choice(name.ptr ? name : member_text(choice, "type"), err);
    }
    buf_fini(&function);
    return st;
}

/* Hosted tools among those allowed are left out. */
static void put_allowed(struct json_writer *w, const struct json *choice, const struct json *body) {
    struct str mode = member_text(choice, "mode");

    json_put_key(w, "tool_choice");
    json_begin_object(w);
    json_field_z(w, "type", "allowed_tools");
    json_put_key(w, "allowed_tools");
    json_begin_object(w);
    json_field_str(w, "mode", mode.ptr ? mode : STR("auto"));
    json_put_key(w, "tools");
    json_begin_array(w);
    JSON_FOR_EACH(it, json_get(choice, "tools")) {
        struct buf function;

        buf_init(&function, 0);
        if (append_chosen(it, body, &function)) {
            json_begin_object(w);
            json_field_z(w, "type", "function");
            json_put_key(w, "function");
            json_begin_object(w);
            json_field_str(w, "name", buf_str(&function));
            json_end_object(w);
            json_end_object(w);
        }
        buf_fini(&function);
    }
    json_end_array(w);
    json_end_object(w);
    json_end_object(w);
}

enum status responses_put_tool_choice(struct json_writer *w, const struct json *body,
                                      bool has_tools, struct error *err) {
    const struct json *choice = json_get(body, "tool_choice");
    bool is_parallel = true;
    struct str mode;
    enum status st = json_get_bool(body, "parallel_tool_calls", &is_parallel, NULL, err);

    if (st != ST_OK) return st;
    if (has_tools && !is_parallel) json_field_bool(w, "parallel_tool_calls", false);
    if (json_is_null(choice)) return ST_OK;
    if (json_to_str(choice, &mode) == ST_OK) {
        if (has_tools) json_field_str(w, "tool_choice", mode);
        return has_tools || !str_eq(mode, STR("required")) ? ST_OK : refuse_choice(mode, err);
    }
    if (!member_is(choice, "type", "allowed_tools")) return put_named(w, choice, body, err);
    if (has_tools) put_allowed(w, choice, body);
    return ST_OK;
}

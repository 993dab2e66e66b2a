/* router/proxy/answers/stream_error.c - three forms of one error. */
#include "router/proxy/answers/stream_error.h"

#include <stdio.h>

#include "common/protocol/openai.h"
#include "common/text/json.h"

static bool is_messages(struct str path) {
    return str_eq(path, STR("/v1/messages"));
}

static bool is_responses(struct str path) {
    return str_eq(path, STR("/v1/responses"));
}

static void begin_event(struct buf *out, struct str path) {
    if (is_messages(path) || is_responses(path)) buf_append_str(out, STR("event: error\n"));
    buf_append_str(out, STR("data: "));
}

static void end_event(struct buf *out, struct str path) {
    buf_append_str(out, STR("\n\n"));
    if (!is_messages(path) && !is_responses(path)) buf_append_str(out, STR("data: [DONE]\n\n"));
}

/* As Anthropic's API names them. */
static const char *messages_type(int code) {
    switch (code) {
    case 400: return "invalid_request_error";
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return "api_error";
    }
}

static void put_messages(struct json_writer *w, int code, const char *message) {
    json_begin_object(w);
    json_field_z(w, "type", "error");
    json_put_key(w, "error");
    json_begin_object(w);
    json_field_z(w, "type", messages_type(code));
    json_field_z(w, "message", message);
    json_end_object(w);
    json_end_object(w);
}

static void put_responses(struct json_writer *w, int code, const char *message) {
    char text[16];

    snprintf(text, sizeof(text), "%d", code);
    json_begin_object(w);
    json_field_z(w, "type", "error");
    json_field_z(w, "code", text);
    json_field_z(w, "message", message);
    json_field_null(w, "param");
    json_end_object(w);
}

void stream_error_append(struct buf *out, struct str path, enum status st, int code,
                         const struct error *err) {
    const char *message = err && err->message[0] ? err->message : status_name(st);
    struct json_writer w;

    begin_event(out, path);
    json_writer_init(&w, out);
    if (is_messages(path)) {
        put_messages(&w, code, message);
    } else if (is_responses(path)) {
        put_responses(&w, code, message);
    } else {
        openai_append_error(out, st, code, err);
    }
    end_event(out, path);
}

static enum status status_of(int code) {
    switch (code) {
    case 401: return ST_DENIED;
    case 403: return ST_FORBIDDEN;
    case 404: return ST_NOT_FOUND;
    case 413: return ST_TOO_LARGE;
    case 429: return ST_BUSY;
    case 503: return ST_UNAVAILABLE;
    default: return code >= 400 && code < 500 ? ST_INVALID : ST_BAD_GATEWAY;
    }
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static struct str without_blanks(struct str s) {
    while (s.len && is_blank(s.ptr[s.len - 1]))
        s.len--;
    while (s.len && is_blank(s.ptr[0])) {
        s.ptr++;
        s.len--;
    }
    return s;
}

/* A line break within JSON is a blank; within SSE it would end the line. */
static void append_on_one_line(struct buf *out, struct str json) {
    for (size_t i = 0; i < json.len; i++) {
        char c = json.ptr[i];

        buf_append_char(out, c == '\n' || c == '\r' ? ' ' : c);
    }
}

void stream_error_relay(struct buf *out, struct str path, int code, struct str body) {
    enum status st = status_of(code);
    struct error err = {0};

    body = without_blanks(body);
    if (body.len >= 2 && body.ptr[0] == '{' && body.ptr[body.len - 1] == '}') {
        begin_event(out, path);
        append_on_one_line(out, body);
        end_event(out, path);
        return;
    }
    error_set(&err, st, "the worker answered %d %s", code,
              code < 400 ? "and no stream: send the request without x-incipit-queue-comments"
                         : "without a reason that could be passed on: send the request again");
    stream_error_append(out, path, st, code < 400 ? 502 : code, &err);
}

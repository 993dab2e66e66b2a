/* router/proxy/answers/stream_error.c - see stream_error.h. */
#include "router/proxy/answers/stream_error.h"

#include <stdio.h>

#include "common/text/json.h"

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

/* The message of a body in any of the APIs: error.message. False: it has none. */
static bool read_message(struct str body, enum status st, struct error *err) {
    struct json *root = NULL;
    const struct json *error;
    struct str message = STR_NULL;

    if (json_parse(&root, body, NULL, NULL) != ST_OK) return false;
    error = json_type(root) == JSON_OBJECT ? json_get(root, "error") : NULL;
    if (error && json_type(error) == JSON_OBJECT && json_get(error, "message"))
        (void)!json_to_str(json_get(error, "message"), &message);
    if (message.len) error_set(err, st, "%.*s", (int)MIN(message.len, 400), message.ptr);
    json_destroy(root);
    return err->message[0] != '\0';
}

void stream_error_break(struct buf *out, const struct api_stream *stream,
                        const struct stream_break *why) {
    struct error err = {0};

    error_set(&err, ST_BAD_GATEWAY, "%s", why->message);
    if (stream->api != API_OPENAI) {
        api_append_error_event(out, stream, ST_BAD_GATEWAY, why->code, &err);
        return;
    }
    buf_appendf(out,
                "data: {\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,"
                "\"code\":\"%s\"}}\n\n",
                why->message, why->type, why->name);
}

void stream_error_relay(struct buf *out, const struct api_stream *stream, int code,
                        struct str body) {
    enum status st = status_of(code);
    struct error err = {0};

    body = without_blanks(body);
    if (body.len >= 2 && body.ptr[0] == '{' && body.ptr[body.len - 1] == '}') {
        if (stream->api == API_OPENAI) {
            buf_append_str(out, STR("data: "));
            append_on_one_line(out, body);
            buf_append_str(out, STR("\n\ndata: [DONE]\n\n"));
            return;
        }
        if (read_message(body, st, &err)) {
            api_append_error_event(out, stream, st, code, &err);
            return;
        }
    }
    error_set(&err, st, "the worker answered %d %s", code,
              code < 400 ? "and no stream: send the request without x-incipit-queue-comments"
                         : "without a reason that could be passed on: send the request again");
    api_append_error_event(out, stream, st, code < 400 ? 502 : code, &err);
}

/* common/protocol/api.c - see api.h. */
#include "common/protocol/api.h"

#include "common/protocol/openai.h"
#include "common/text/json.h"

static bool is_below(struct str path, struct str api_path) {
    return str_starts(path, api_path) &&
           (path.len == api_path.len || path.ptr[api_path.len] == '/');
}

enum api_form api_of(struct str path) {
    if (is_below(path, STR(API_MESSAGES_PATH))) return API_MESSAGES;
    return is_below(path, STR(API_RESPONSES_PATH)) ? API_RESPONSES : API_OPENAI;
}

/* --- errors ----------------------------------------------------------------------------------- */

const char *api_messages_error_type(int code) {
    switch (code) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503:
    case 529: return "overloaded_error";
    default: return code >= 400 && code < 500 ? "invalid_request_error" : "api_error";
    }
}

/* The three codes of OpenAI's list that are not of one feature. */
static const char *responses_error_code(int code) {
    if (code == 429) return "rate_limit_exceeded";
    return code >= 400 && code < 500 ? "invalid_prompt" : "server_error";
}

static const char *message_of(enum status st, const struct error *err) {
    return err && err->message[0] ? err->message : status_name(st);
}

static void put_messages(struct buf *out, int code, const char *message) {
    struct json_writer w;

    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_z(&w, "type", "error");
    json_put_key(&w, "error");
    json_begin_object(&w);
    json_field_z(&w, "type", api_messages_error_type(code));
    json_field_z(&w, "message", message);
    json_end_object(&w);
    json_end_object(&w);
}

static void put_failed(struct buf *out, const struct api_stream *stream, int code,
                       const char *message) {
    struct json_writer w;

    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_z(&w, "type", "response.failed");
    json_field_u64(&w, "sequence_number", stream->sequence);
    json_put_key(&w, "response");
    json_begin_object(&w);
    json_field_str(&w, "id", stream->id.ptr ? stream->id : STR(""));
    json_field_z(&w, "object", "response");
    json_field_z(&w, "status", "failed");
    json_put_key(&w, "error");
    json_begin_object(&w);
    json_field_z(&w, "code", responses_error_code(code));
    json_field_z(&w, "message", message);
    json_end_object(&w);
    json_put_key(&w, "output");
    json_begin_array(&w);
    json_end_array(&w);
    json_end_object(&w);
    json_end_object(&w);
}

void api_append_error(struct buf *out, enum api_form api, enum status st, int code,
                      const struct error *err) {
    if (api == API_MESSAGES) {
        put_messages(out, code ? code : status_http_code(st), message_of(st, err));
    } else {
        openai_append_error(out, st, code, err);
    }
}

void api_append_error_event(struct buf *out, const struct api_stream *stream, enum status st,
                            int code, const struct error *err) {
    switch (stream->api) {
    case API_MESSAGES:
        buf_append_str(out, STR("event: error\ndata: "));
        put_messages(out, code, message_of(st, err));
        break;
    case API_RESPONSES:
        buf_append_str(out, STR("event: response.failed\ndata: "));
        put_failed(out, stream, code, message_of(st, err));
        break;
    case API_OPENAI:
        buf_append_str(out, STR("data: "));
        openai_append_error(out, st, code, err);
        buf_append_str(out, STR("\n\ndata: [DONE]"));
        break;
    }
    buf_append_str(out, STR("\n\n"));
}

/* --- the mark of a worker --------------------------------------------------------------------- */

static bool is_mark(struct str s) {
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];

        if ((c < '0' || c > '9') && (c < 'a' || c > 'f')) return false;
    }
    return true;
}

struct str api_mark_of(struct str id) {
    struct str prefix = STR(API_RESPONSE_ID_PREFIX), mark;

    if (!str_starts(id, prefix) || id.len <= prefix.len + API_MARK_CHARS) return STR_NULL;
    mark = (struct str){id.ptr + prefix.len, API_MARK_CHARS};
    return is_mark(mark) ? mark : STR_NULL;
}

/* common/protocol/openai.c - the error body. */
#include "common/protocol/openai.h"

#include "common/text/json.h"

void openai_append_error(struct buf *out, enum status st, int code, const struct error *err) {
    const char *message = err && err->message[0] ? err->message : status_name(st);
    struct json_writer w;

    json_writer_init(&w, out);
    json_begin_object(&w);
    json_put_key(&w, "error");
    json_begin_object(&w);
    json_field_z(&w, "message", message);
    json_field_z(&w, "type", status_api_type(st));
    json_field_z(&w, "param", err && err->param[0] ? err->param : NULL);
    json_field_i64(&w, "code", code ? code : status_http_code(st));
    json_end_object(&w);
    json_end_object(&w);
}

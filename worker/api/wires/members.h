/* worker/api/wires/members.h - what the readers of both bodies share: members that are strings,
 * text in lines, contents, fields that chat knows by the same name. */
#ifndef WORKER_API_WIRES_MEMBERS_H
#define WORKER_API_WIRES_MEMBERS_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/text/json.h"

/* STR_NULL if it is absent or no string. */
static inline struct str member_text(const struct json *object, const char *name) {
    struct str text = STR_NULL;

    return json_to_str(json_get(object, name), &text) == ST_OK ? text : STR_NULL;
}

static inline bool member_is(const struct json *object, const char *name, const char *value) {
    return str_eq(member_text(object, name), str_of(value));
}

/* An empty text is no line. */
static inline void append_line(struct buf *to, struct str text) {
    if (buf_len(to) && text.len) buf_append_char(to, '\n');
    buf_append_str(to, text);
}

/* Where a reader is, for messages of errors: messages[3].content, input[3]. */
struct place {
    const char *list, *member; /* member: with its dot; "" for none */
    size_t i;
    struct error *err;
};

/* ST_INVALID; names the place. */
enum status place_refuse(const struct place *at, const char *what);

/* Appends what of a part of a content is text for the model. */
typedef enum status append_part_fn(const struct json *part, const struct place *at, struct buf *to);

/* A string, or parts. ST_NOMEM if a piece was lost. */
MUST_USE enum status append_content(const struct json *content, append_part_fn *append_part,
                                    const struct place *at, struct buf *to);

/* Copies sampling fields of both APIs, and those of chat that are in neither. */
void members_copy(struct json_writer *w, const struct json *body);

/* "tool_choice": that function. */
void members_put_choice(struct json_writer *w, struct str function);

#endif

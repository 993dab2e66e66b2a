/* common/http/http_parse_internal.h - what heads, bodies and names share: characters, refusals. */
#ifndef COMMON_HTTP_HTTP_PARSE_INTERNAL_H
#define COMMON_HTTP_HTTP_PARSE_INTERNAL_H

#include "common/http/http_parse.h"

enum {
    HTTP_CHAR_TOKEN = 1,  /* names and methods */
    HTTP_CHAR_VALUE = 2,  /* header values: no control bytes but tab */
    HTTP_CHAR_TARGET = 4, /* visible ASCII without '#' */
    HTTP_CHAR_HOST = 8,   /* names, addresses and a port */
    HTTP_CHAR_PATH = 16,  /* of targets, those that can neither begin a query nor hide a dot */
};

extern const uint8_t http_char_class[256];

static inline bool http_char_is(char c, uint8_t class) {
    return http_char_class[(unsigned char)c] & class;
}

/* Refuses the head with this code; ST_INVALID. */
enum status http_refuse(struct http_head *h, int code, struct error *err, const char *fmt, ...)
    PRINTF_LIKE(4, 5);

/* At most this much of a peer's text goes into a message, as "%.*s". */
#define HTTP_QUOTE(s) (int)MIN((s).len, (size_t)64), (s).ptr

/* A header of that id and value, after those before it. ST_INVALID: refused. */
MUST_USE enum status http_judge_header(struct http_head *h, enum http_name id, struct str value,
                                       struct error *err);

/* The head is complete: what follows from all of it together. Sets framing, keep_alive,
 * expects_continue, and is_option of headers. */
MUST_USE enum status http_judge_head(struct http_head *h, const char *data, struct error *err);

/* True when all bytes are of the class. */
bool http_chars_are(struct str s, uint8_t class);

#endif

/* common/http_parse_internal.h - what heads, bodies and names share: characters. */
#ifndef COMMON_HTTP_PARSE_INTERNAL_H
#define COMMON_HTTP_PARSE_INTERNAL_H

#include "common/base.h"

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

/* 0 to 15, or -1. */
static inline int http_hex_value(unsigned char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

#endif

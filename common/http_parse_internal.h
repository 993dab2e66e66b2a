/* common/http_parse_internal.h - what heads and bodies share: classes of characters. */
#ifndef COMMON_HTTP_PARSE_INTERNAL_H
#define COMMON_HTTP_PARSE_INTERNAL_H

#include "common/base.h"

enum {
    HTTP_CHAR_TOKEN = 1,  /* names and methods */
    HTTP_CHAR_VALUE = 2,  /* header values: no control bytes but tab */
    HTTP_CHAR_TARGET = 4, /* visible ASCII without '#' */
    HTTP_CHAR_HOST = 8,   /* names, addresses and a port */
};

extern const uint8_t http_char_class[256];

static inline bool http_char_is(char c, uint8_t class) {
    return http_char_class[(unsigned char)c] & class;
}

#endif

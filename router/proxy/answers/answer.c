/* router/proxy/answers/answer.c - compares the first bytes, the last one, and a few names. */
#include "router/proxy/answers/answer.h"

#include <string.h>

#define ERROR_BYTES 1024 /* of an error object that are looked at */

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static struct str skip_blanks(struct str s) {
    while (s.len && is_blank(s.ptr[0])) {
        s.ptr++;
        s.len--;
    }
    return s;
}

/* What follows `word` and blanks, or STR_NULL when s does not begin so. */
static struct str behind(struct str s, struct str word) {
    s = skip_blanks(s);
    if (!s.ptr || !str_starts(s, word)) return STR_NULL;
    return skip_blanks((struct str){s.ptr + word.len, s.len - word.len});
}

bool answer_is_error(struct str beginning) {
    struct str in = behind(beginning, STR("{"));
    struct str value = behind(behind(in, STR("\"error\"")), STR(":"));

    if (value.len) return value.ptr[0] != 'n'; /* null: no error */
    value = behind(behind(in, STR("\"type\"")), STR(":"));
    if (value.len) return str_starts(value, STR("\"error\""));
    value = behind(behind(in, STR("\"object\"")), STR(":"));
    return value.len && str_starts(value, STR("\"error\""));
}

bool answer_blames_request(struct str error) {
    struct str code;
    ptrdiff_t at;

    error.len = MIN(error.len, (size_t)ERROR_BYTES);
    if (str_find(error, STR("BadRequest")) >= 0 || str_find(error, STR("invalid_request")) >= 0 ||
        str_find(error, STR("\"invalid_prompt\"")) >= 0)
        return true;
    at = str_find(error, STR("\"code\""));
    if (at < 0) return false;
    code = (struct str){error.ptr + at, error.len - (size_t)at};
    code = behind(behind(code, STR("\"code\"")), STR(":"));
    return code.len >= 3 && code.ptr[0] == '4' && code.ptr[1] >= '0' && code.ptr[1] <= '9' &&
           code.ptr[2] >= '0' && code.ptr[2] <= '9';
}

/* Whether it has "choices" that are not an empty list. */
static bool has_choices(struct str body) {
    const char *p = body.ptr, *end = body.ptr + body.len;

    while ((p = memchr(p, '"', (size_t)(end - p))) != NULL) {
        struct str name = {p, (size_t)(end - p)};
        struct str value = behind(behind(name, STR("\"choices\"")), STR(":"));

        p++;
        if (value.ptr) return !behind(behind(value, STR("[")), STR("]")).ptr;
    }
    return false;
}

enum answer_fault answer_judge(struct str body, bool wants_choices) {
    body = skip_blanks(body);
    while (body.len && is_blank(body.ptr[body.len - 1]))
        body.len--;
    if (body.len == 0) return ANSWER_EMPTY;
    if (answer_is_error(body)) return ANSWER_ERROR;
    if ((body.ptr[0] == '{' && body.ptr[body.len - 1] != '}') ||
        (body.ptr[0] == '[' && body.ptr[body.len - 1] != ']')) {
        return ANSWER_CUT;
    }
    return wants_choices && !has_choices(body) ? ANSWER_EMPTY : ANSWER_FINE;
}

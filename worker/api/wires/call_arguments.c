/* worker/api/wires/call_arguments.c - see call_arguments.h. */
#include "worker/api/wires/call_arguments.h"

#include "common/text/json.h"

#define ESCAPE_LEN 6u /* \uXXXX */

/* The unit of an escape of that form at the beginning of the text; -1: there is none. */
static int32_t unit_of(struct str text) {
    int32_t unit = 0;

    if (text.len < ESCAPE_LEN || text.ptr[0] != '\\' || text.ptr[1] != 'u') return -1;
    for (size_t i = 2; i < ESCAPE_LEN; i++) {
        static const char digits[] = "0123456789abcdef";
        char c = text.ptr[i] >= 'A' && text.ptr[i] <= 'F' ? (char)(text.ptr[i] + 32) : text.ptr[i];
        const char *at = c ? strchr(digits, c) : NULL;

        if (!at) return -1;
        unit = unit << 4 | (int32_t)(at - digits);
    }
    return unit;
}

static bool is_high(int32_t unit) {
    return unit >= 0xD800 && unit < 0xDC00;
}

static bool is_low(int32_t unit) {
    return unit >= 0xDC00 && unit < 0xE000;
}

/* Bytes at the beginning that stay together, or, with *is_lost, stand for no character. */
static size_t piece(struct str text, bool *is_lost) {
    int32_t unit = unit_of(text);

    *is_lost = false;
    if (*text.ptr != '\\') return 1;
    if (unit < 0) return MIN(text.len, (size_t)2);
    if (is_high(unit) &&
        is_low(unit_of((struct str){text.ptr + ESCAPE_LEN, text.len - ESCAPE_LEN})))
        return 2 * (size_t)ESCAPE_LEN;
    *is_lost = unit == 0 || is_high(unit) || is_low(unit);
    return ESCAPE_LEN;
}

struct json *call_arguments_read(struct str arguments, struct buf *out) {
    size_t before = buf_len(out);
    struct json_limits limits = {.max_bytes = arguments.len + 1, .max_depth = 512};
    struct json *v = NULL;

    for (size_t i = 0, n; i < arguments.len; i += n) {
        bool is_lost;

        n = piece((struct str){arguments.ptr + i, arguments.len - i}, &is_lost);
        buf_append_str(out, is_lost ? STR("\\ufffd") : (struct str){arguments.ptr + i, n});
    }
    if (buf_status(out) == ST_OK &&
        json_parse(&v, (struct str){buf_ptr(out) + before, buf_len(out) - before}, &limits, NULL) ==
            ST_OK &&
        json_type(v) == JSON_OBJECT)
        return v;
    json_destroy(v);
    buf_truncate(out, before);
    return NULL;
}

void call_arguments_append_input(struct str arguments, struct buf *out) {
    struct str input;
    struct json *v;
    struct buf text;

    buf_init(&text, 0);
    v = call_arguments_read(arguments, &text);
    if (json_to_str(json_get(v, "input"), &input) == ST_OK) {
        buf_append_str(out, input);
    } else {
        buf_append_str(out, arguments);
    }
    if (text.has_failed) out->has_failed = true;
    json_destroy(v);
    buf_fini(&text);
}

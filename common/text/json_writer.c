/* common/text/json_writer.c - JSON as a stream of calls.
 *
 * The state is one bit per depth (object or array), one flag for a due comma and one for an open
 * key, so a writer lives on the stack and costs its bytes. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/text/json.h"
#include "common/text/json_internal.h"

static bool is_in_object(const struct json_writer *w) {
    uint32_t d = w->depth - 1;

    return w->depth > 0 && (w->is_object[d / 64] >> d % 64 & 1);
}

/* Before any value: the comma, and the rule that members have keys. */
static void before_value(struct json_writer *w) {
    assert(w->has_key == is_in_object(w));
    if (w->needs_comma && !w->has_key) {
        assert(w->depth > 0); /* one value at the top */
        buf_append_char(w->out, ',');
    }
    w->has_key = false;
    w->needs_comma = true;
}

static void put(struct json_writer *w, const char *text, int n) {
    before_value(w);
    buf_append(w->out, text, (size_t)n);
}

void json_writer_init(struct json_writer *w, struct buf *out) {
    *w = (struct json_writer){.out = out};
}

bool json_writer_is_done(const struct json_writer *w) {
    return w->depth == 0 && w->needs_comma;
}

static void begin(struct json_writer *w, bool is_object) {
    uint32_t d = w->depth;

    assert(d < JSON_WRITER_MAX_DEPTH);
    put(w, is_object ? "{" : "[", 1);
    w->is_object[d / 64] &= ~(1ull << d % 64);
    w->is_object[d / 64] |= (uint64_t)is_object << d % 64;
    w->depth++;
    w->needs_comma = false;
}

static void end(struct json_writer *w, bool is_object) {
    assert(w->depth > 0 && is_in_object(w) == is_object && !w->has_key);
    buf_append_char(w->out, is_object ? '}' : ']');
    w->depth--;
    w->needs_comma = true;
}

void json_begin_object(struct json_writer *w) {
    begin(w, true);
}

void json_end_object(struct json_writer *w) {
    end(w, true);
}

void json_begin_array(struct json_writer *w) {
    begin(w, false);
}

void json_end_array(struct json_writer *w) {
    end(w, false);
}

/* One character that may not stand for itself. */
static void escape_char(struct buf *out, unsigned char c) {
    static const char letters[] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f',
                                   ['\r'] = 'r', ['"'] = '"',  ['\\'] = '\\'};
    static const char hex[] = "0123456789abcdef";

    if (c < sizeof(letters) && letters[c]) {
        buf_append(out, (char[]){'\\', letters[c]}, 2);
    } else {
        buf_append(out, (char[]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6);
    }
}

static void append_unit(struct buf *out, unsigned unit) {
    buf_appendf(out, "\\u%04x", unit);
}

/* Above the first plane a pair of units stands for the character. */
static void append_code(struct buf *out, unsigned code) {
    if (code < 0x10000) {
        append_unit(out, code);
    } else {
        append_unit(out, 0xD800 + ((code - 0x10000) >> 10));
        append_unit(out, 0xDC00 + (code & 0x3FF));
    }
}

/* Of the well-formed UTF-8 character of n bytes. */
static unsigned code_of(const char *s, size_t n) {
    static const unsigned char first_bits[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    unsigned code = (unsigned char)s[0] & first_bits[n];

    for (size_t i = 1; i < n; i++)
        code = code << 6 | ((unsigned char)s[i] & 0x3F);
    return code;
}

static bool is_obeyed(unsigned code) {
    static const struct {
        unsigned first, last;
    } ranges[] = {
        {0x7F, 0x9F},       /* DEL, and the controls of Latin-1 */
        {0xAD, 0xAD},       /* a hyphen that may not be shown */
        {0x61C, 0x61C},     /* direction */
        {0x180E, 0x180E},   /* no width */
        {0x200B, 0x200F},   /* no width, direction */
        {0x2028, 0x202E},   /* line and paragraph separators, direction */
        {0x2060, 0x206F},   /* no width, direction */
        {0xFEFF, 0xFEFF},   /* no width, or the order of bytes */
        {0xFFF9, 0xFFFB},   /* annotations */
        {0xE0000, 0xE007F}, /* tags: text that nothing shows */
    };

    for (size_t i = 0; i < ARRAY_LEN(ranges); i++) {
        if (code >= ranges[i].first && code <= ranges[i].last) return true;
    }
    return false;
}

void json_escape_visibly(struct buf *out, struct str s) {
    size_t plain = 0, i = 0; /* [plain, i) needs no more than json_escape does */

    while (i < s.len) {
        size_t n = str_utf8_len((struct str){s.ptr + i, s.len - i});
        unsigned code = n ? code_of(s.ptr + i, n) : 0;

        if (code >= 0x7F && is_obeyed(code)) {
            json_escape(out, (struct str){s.ptr + plain, i - plain});
            append_code(out, code);
            plain = i + n;
        }
        i += n ? n : 1;
    }
    json_escape(out, (struct str){s.ptr + plain, i - plain});
}

void json_escape(struct buf *out, struct str s) {
    size_t plain = 0, i = 0; /* [plain, i) can be copied as it is */

    while ((i = json_plain_end(s, i)) < s.len) {
        unsigned char c = (unsigned char)s.ptr[i];
        size_t n = c < 0x80 ? 1 : str_utf8_len((struct str){s.ptr + i, s.len - i});

        if (n > 0 && c >= 0x80) {
            i += n;
            continue;
        }
        buf_append(out, s.ptr + plain, i - plain);
        if (n == 0) {
            buf_append_str(out, STR("\xEF\xBF\xBD"));
        } else {
            escape_char(out, c);
        }
        plain = ++i;
    }
    if (i > plain) buf_append(out, s.ptr + plain, i - plain);
}

static void put_quoted(struct buf *out, struct str s) {
    buf_append_char(out, '"');
    json_escape(out, s);
    buf_append_char(out, '"');
}

void json_put_key_str(struct json_writer *w, struct str name) {
    assert(is_in_object(w) && !w->has_key);
    if (w->needs_comma) buf_append_char(w->out, ',');
    put_quoted(w->out, name);
    buf_append_char(w->out, ':');
    w->has_key = true;
}

void json_put_key(struct json_writer *w, const char *name) {
    json_put_key_str(w, str_of(name));
}

void json_put_str(struct json_writer *w, struct str s) {
    before_value(w);
    put_quoted(w->out, s);
}

void json_put_u64(struct json_writer *w, uint64_t v) {
    char text[24];

    put(w, text, snprintf(text, sizeof(text), "%llu", (unsigned long long)v));
}

void json_put_i64(struct json_writer *w, int64_t v) {
    char text[24];

    put(w, text, snprintf(text, sizeof(text), "%lld", (long long)v));
}

void json_put_f64(struct json_writer *w, double v) {
    if (!isfinite(v)) {
        json_put_null(w);
        return;
    }
    before_value(w);
    buf_append_f64(w->out, v);
}

void json_put_f32(struct json_writer *w, float v) {
    char text[40];
    int n = 0;

    if (!isfinite(v)) {
        json_put_null(w);
        return;
    }
    for (int digits = 6; digits <= 9; digits++) { /* 9 always reads back */
        n = snprintf(text, sizeof(text), "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v) break;
    }
    put(w, text, n);
}

void json_put_bool(struct json_writer *w, bool v) {
    put(w, v ? "true" : "false", v ? 4 : 5);
}

void json_put_null(struct json_writer *w) {
    put(w, "null", 4);
}

void json_put_raw(struct json_writer *w, struct str json) {
    before_value(w);
    buf_append_str(w->out, json);
}

void json_field_str(struct json_writer *w, const char *name, struct str s) {
    json_put_key(w, name);
    json_put_str(w, s);
}

void json_field_z(struct json_writer *w, const char *name, const char *z) {
    json_put_key(w, name);
    z ? json_put_str(w, str_of(z)) : json_put_null(w);
}

void json_field_u64(struct json_writer *w, const char *name, uint64_t v) {
    json_put_key(w, name);
    json_put_u64(w, v);
}

void json_field_i64(struct json_writer *w, const char *name, int64_t v) {
    json_put_key(w, name);
    json_put_i64(w, v);
}

void json_field_f64(struct json_writer *w, const char *name, double v) {
    json_put_key(w, name);
    json_put_f64(w, v);
}

void json_field_bool(struct json_writer *w, const char *name, bool v) {
    json_put_key(w, name);
    json_put_bool(w, v);
}

void json_field_null(struct json_writer *w, const char *name) {
    json_put_key(w, name);
    json_put_null(w);
}

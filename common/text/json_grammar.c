/* common/text/json_grammar.c - the strict pass before cJSON: RFC 8259 and our limits.
 *
 * A recursive descent over the bytes; the depth limit bounds the stack. It builds only the list of
 * integers whose text is kept. Each error has the place, what was expected and what was found. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/text/json_internal.h"

#define NUMBER_MAX_CHARS 63 /* cJSON copies a number into 64 bytes */
#define EXACT_DIGITS     16 /* 2^53 has 16 digits: shorter integers are exact as a double */

#define EACH_BYTE(c) (0x0101010101010101u * (uint64_t)(c)) /* of eight */

struct scan {
    const char *start, *p, *end;
    uint32_t depth, max_depth;
    uint32_t n_values, max_values;
    uint64_t n_numbers;
    struct buf *exacts;
    struct error *err;
};

/* What stands at p, for a message. */
static const char *found(const struct scan *s, const char *p, char *out, size_t size) {
    if (p >= s->end) return "the end";
    if (*p > ' ' && *p < 0x7F) {
        snprintf(out, size, "'%c'", *p);
    } else {
        snprintf(out, size, "byte 0x%02X", (unsigned char)*p);
    }
    return out;
}

/* Both return ST_INVALID with the place: one for what is there, one for what is not. */
static enum status refuse(struct scan *s, const char *at, const char *why) {
    const char *line_start = s->start;
    size_t line = 1;

    for (const char *p = s->start; p < at; p++) {
        if (*p == '\n') {
            line++;
            line_start = p + 1;
        }
    }
    return error_set(s->err, ST_INVALID, "not valid JSON: line %zu, column %zu: %s", line,
                     (size_t)(at - line_start) + 1, why);
}

static enum status expected(struct scan *s, const char *what) {
    char thing[16], why[120];

    snprintf(why, sizeof(why), "expected %s, found %s", what, found(s, s->p, thing, sizeof(thing)));
    return refuse(s, s->p, why);
}

static void skip_blanks(struct scan *s) {
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\r' || *s->p == '\t')) {
        s->p++;
    }
}

static bool is_at(const struct scan *s, char c) {
    return s->p < s->end && *s->p == c;
}

static bool is_digit_at(const struct scan *s) {
    return s->p < s->end && *s->p >= '0' && *s->p <= '9';
}

static enum status check_hex4(struct scan *s, unsigned *out) {
    unsigned value = 0;

    for (int i = 0; i < 4; i++, s->p++) {
        int digit = s->p < s->end ? str_hex_value((unsigned char)*s->p) : -1;

        if (digit < 0) return expected(s, "four hexadecimal digits after \\u");
        value = value * 16 + (unsigned)digit;
    }
    *out = value;
    return ST_OK;
}

/* At the backslash. */
static enum status check_escape(struct scan *s) {
    const char *at = s->p++;
    unsigned unit, low;
    enum status st;

    if (s->p >= s->end || !*s->p || !strchr("\"\\/bfnrtu", *s->p)) {
        return expected(s, "one of \"\\/bfnrtu after a backslash");
    }
    if (*s->p++ != 'u') return ST_OK;
    st = check_hex4(s, &unit);
    if (st != ST_OK) return st;
    if (unit == 0) return refuse(s, at, "a NUL (\\u0000) inside a string is not supported");
    if (unit < 0xD800 || unit > 0xDFFF) return ST_OK;
    if (unit > 0xDBFF || s->end - s->p < 2 || s->p[0] != '\\' || s->p[1] != 'u') {
        return refuse(s, at, "half of a surrogate pair in a string");
    }
    s->p += 2;
    st = check_hex4(s, &low);
    if (st != ST_OK) return st;
    if (low < 0xDC00 || low > 0xDFFF) {
        return refuse(s, at, "half of a surrogate pair in a string");
    }
    return ST_OK;
}

/* The high bit of a byte that is 0, or of one above it; no bit if there is none. */
static uint64_t zeros(uint64_t bytes) {
    return (bytes - EACH_BYTE(0x01)) & ~bytes & EACH_BYTE(0x80);
}

static bool are_plain(uint64_t bytes) {
    uint64_t controls = (bytes - EACH_BYTE(0x20)) & ~bytes & EACH_BYTE(0x80);

    return !(controls | zeros(bytes ^ EACH_BYTE('"')) | zeros(bytes ^ EACH_BYTE('\\')) |
             (bytes & EACH_BYTE(0x80)));
}

static bool is_plain(unsigned char c) {
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

size_t json_plain_end(struct str s, size_t i) {
    uint64_t bytes;

    for (; i + sizeof(bytes) <= s.len; i += sizeof(bytes)) {
        memcpy(&bytes, s.ptr + i, sizeof(bytes));
        if (!are_plain(bytes)) break;
    }
    while (i < s.len && is_plain((unsigned char)s.ptr[i]))
        i++;
    return i;
}

static enum status check_string(struct scan *s) {
    enum status st;

    s->p++;
    for (;;) {
        unsigned char c;
        size_t n;

        s->p += json_plain_end((struct str){s->p, (size_t)(s->end - s->p)}, 0);
        if (s->p >= s->end) return expected(s, "'\"' at the end of the string");
        c = (unsigned char)*s->p;
        if (c == '"') {
            s->p++;
            return ST_OK;
        }
        if (c == '\\') {
            st = check_escape(s);
            if (st != ST_OK) return st;
        } else if (c < 0x20) {
            return refuse(s, s->p, "a control character in a string must be escaped");
        } else {
            n = str_utf8_len((struct str){s->p, (size_t)(s->end - s->p)});
            if (n == 0) return expected(s, "valid UTF-8");
            s->p += n;
        }
    }
}

static enum status check_digits(struct scan *s) {
    if (!is_digit_at(s)) return expected(s, "a digit");
    while (is_digit_at(s))
        s->p++;
    return ST_OK;
}

static bool fits_double(struct str number) {
    char text[NUMBER_MAX_CHARS + 1];

    memcpy(text, number.ptr, number.len);
    text[number.len] = '\0';
    return isfinite(strtod(text, NULL));
}

static enum status check_number(struct scan *s) {
    const char *at = s->p, *digits;
    bool is_integer = true, has_exponent = false;
    enum status st;
    struct str text;

    if (is_at(s, '-')) s->p++;
    digits = s->p;
    if (is_at(s, '0')) {
        s->p++;
        if (is_digit_at(s)) return refuse(s, s->p, "a number must not start with 0");
    } else {
        st = check_digits(s);
        if (st != ST_OK) return st;
    }
    if (is_at(s, '.')) {
        is_integer = false;
        s->p++;
        st = check_digits(s);
        if (st != ST_OK) return st;
    }
    if (is_at(s, 'e') || is_at(s, 'E')) {
        is_integer = false;
        has_exponent = true;
        s->p++;
        if (is_at(s, '+') || is_at(s, '-')) s->p++;
        st = check_digits(s);
        if (st != ST_OK) return st;
    }
    text = (struct str){at, (size_t)(s->p - at)};
    if (text.len > NUMBER_MAX_CHARS) return refuse(s, at, "a number of more than 63 characters");
    if (has_exponent && !fits_double(text)) return refuse(s, at, "the number is too large");
    if (is_integer && s->p - digits >= EXACT_DIGITS) {
        struct json_exact exact = {s->n_numbers, text};

        buf_append(s->exacts, &exact, sizeof(exact));
    }
    s->n_numbers++;
    return ST_OK;
}

static enum status check_literal(struct scan *s, struct str word) {
    if (!str_starts((struct str){s->p, (size_t)(s->end - s->p)}, word)) {
        return expected(s, "true, false or null");
    }
    s->p += word.len;
    return ST_OK;
}

static enum status check_value(struct scan *s);

static enum status enter(struct scan *s) {
    if (++s->depth > s->max_depth) {
        return error_set(s->err, ST_INVALID,
                         "JSON nested deeper than %u levels (byte %zu): send a flatter document",
                         s->max_depth, (size_t)(s->p - s->start));
    }
    s->p++;
    skip_blanks(s);
    return ST_OK;
}

/* After an element: true when another must follow, with *st set when neither comma nor end. */
static bool has_more(struct scan *s, char end, enum status *st) {
    skip_blanks(s);
    if (is_at(s, end)) {
        s->p++;
        s->depth--;
        return false;
    }
    if (!is_at(s, ',')) {
        *st = expected(s, end == ']' ? "',' or ']'" : "',' or '}'");
        return false;
    }
    s->p++;
    skip_blanks(s);
    return true;
}

static enum status check_array(struct scan *s) {
    enum status st = enter(s);

    if (st != ST_OK) return st;
    if (is_at(s, ']')) {
        s->p++;
        s->depth--;
        return ST_OK;
    }
    do {
        st = check_value(s);
        if (st != ST_OK) return st;
    } while (has_more(s, ']', &st));
    return st;
}

static enum status check_object(struct scan *s) {
    enum status st = enter(s);

    if (st != ST_OK) return st;
    if (is_at(s, '}')) {
        s->p++;
        s->depth--;
        return ST_OK;
    }
    do {
        if (!is_at(s, '"')) return expected(s, "a key in double quotes");
        st = check_string(s);
        if (st != ST_OK) return st;
        skip_blanks(s);
        if (!is_at(s, ':')) return expected(s, "':' after the key");
        s->p++;
        skip_blanks(s);
        st = check_value(s);
        if (st != ST_OK) return st;
    } while (has_more(s, '}', &st));
    return st;
}

/* At the first byte of the value. */
static enum status check_value(struct scan *s) {
    if (s->n_values++ >= s->max_values) {
        return error_set(s->err, ST_INVALID, "JSON of more than %u values: send a smaller document",
                         s->max_values);
    }
    switch (s->p < s->end ? *s->p : '\0') {
    case '{': return check_object(s);
    case '[': return check_array(s);
    case '"': return check_string(s);
    case 't': return check_literal(s, STR("true"));
    case 'f': return check_literal(s, STR("false"));
    case 'n': return check_literal(s, STR("null"));
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9': return check_number(s);
    default: return expected(s, "a value");
    }
}

enum status json_grammar_check(struct str text, const struct json_limits *limits,
                               struct buf *exacts, struct error *err) {
    struct scan s = {.start = text.ptr,
                     .p = text.ptr,
                     .end = text.ptr + text.len,
                     .max_depth = limits->max_depth,
                     .max_values = limits->max_values,
                     .exacts = exacts,
                     .err = err};
    enum status st;

    if (text.len == 0) return error_set(err, ST_INVALID, "not valid JSON: the text is empty");
    if (str_starts(text, STR("\xEF\xBB\xBF"))) {
        return error_set(err, ST_INVALID,
                         "not valid JSON: it starts with a byte order mark: remove it");
    }
    skip_blanks(&s);
    st = check_value(&s);
    if (st != ST_OK) return st;
    skip_blanks(&s);
    if (s.p < s.end) return expected(&s, "nothing after the value");
    return ST_OK;
}

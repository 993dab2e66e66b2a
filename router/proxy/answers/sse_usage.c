/* router/proxy/answers/sse_usage.c - two readers side by side: lines, and numbers after names.
 *
 * A line's first bytes give its kind; they are read in place when the payload has the whole line.
 * Numbers are looked for at each '_', which is rare in text, with memchr. A number on the border of
 * two payloads is found in the carry joined with the beginning of the next payload; a number found
 * twice that way is the same one, or has more of its digits. */
#include "router/proxy/answers/sse_usage.h"

#include <string.h>

#define BLANKS_MAX 4
#define DIGITS_MAX 10 /* so that a name, its blanks and its number are shorter than the carry */

void sse_usage_init(struct sse_usage *t, bool is_stream) {
    memset(t, 0, offsetof(struct sse_usage, head)); /* n_head and n_carry give the rest */
    t->prompt_tokens = t->cached_tokens = t->completion_tokens = -1;
    t->is_stream = is_stream;
}

int64_t sse_usage_tokens(const struct sse_usage *t) {
    if (t->completion_tokens >= 0) return t->completion_tokens;
    return t->n_events ? (int64_t)t->n_events : -1;
}

bool sse_usage_is_amid_event(const struct sse_usage *t) {
    return t->has_lines || t->n_head > 0;
}

bool sse_usage_has_begun(const struct sse_usage *t) {
    return t->has_fields || (t->n_head > 0 && t->head[0] != ':' && t->head[0] != '\r');
}

/* --- numbers ---------------------------------------------------------------------------------- */

static size_t skip_blanks(struct str s, size_t i) {
    size_t end = MIN(s.len, i + BLANKS_MAX);

    while (i < end && s.ptr[i] == ' ')
        i++;
    return i;
}

/* Whether the quoted name that ends before s.ptr[end] is `name`, whose opening quote must not be
 * escaped; `before` is the byte before s. Inlined for each name, a comparison is two words. */
static inline bool name_ends_at(struct str s, size_t end, struct str name, char before) {
    size_t begin = end - name.len;

    if (end < name.len || memcmp(s.ptr + begin, name.ptr, name.len) != 0) return false;
    return (begin ? s.ptr[begin - 1] : before) != '\\';
}

/* `i` is behind the closing quote of a name. */
static void read_number(struct str s, size_t i, int64_t *out) {
    int64_t value = 0;
    size_t begin, end;

    i = skip_blanks(s, i);
    if (i >= s.len || s.ptr[i] != ':') return;
    begin = i = skip_blanks(s, i + 1);
    end = MIN(s.len, begin + DIGITS_MAX);
    for (; i < end && (unsigned)(s.ptr[i] - '0') <= 9; i++)
        value = value * 10 + (s.ptr[i] - '0');
    if (i > begin) *out = MIN(value, INT32_MAX);
}

static void find_numbers(struct sse_usage *t, struct str s, char before) {
    static const struct str end = {"_tokens\"", 8};
    const char *p = s.ptr, *last = s.ptr + s.len;

    while ((p = memchr(p, '_', (size_t)(last - p))) != NULL) {
        size_t at = (size_t)(p++ - s.ptr);

        if (s.len - at < end.len || memcmp(s.ptr + at, end.ptr, end.len) != 0) continue;
        if (name_ends_at(s, at, STR("\"prompt"), before)) {
            read_number(s, at + end.len, &t->prompt_tokens);
        } else if (name_ends_at(s, at, STR("\"completion"), before)) {
            read_number(s, at + end.len, &t->completion_tokens);
        } else if (name_ends_at(s, at, STR("\"cached"), before)) {
            read_number(s, at + end.len, &t->cached_tokens);
        }
    }
}

/* A name at the first byte of a full carry was read before: a backslash in front of it keeps it
 * from being read again without the byte before it. */
static void find_across(struct sse_usage *t, struct str payload) {
    char joint[2 * SSE_USAGE_CARRY_BYTES];
    size_t n = MIN(payload.len, SSE_USAGE_CARRY_BYTES);

    memcpy(joint, t->carry, t->n_carry);
    memcpy(joint + t->n_carry, payload.ptr, n);
    find_numbers(t, (struct str){joint, t->n_carry + n},
                 t->n_carry == SSE_USAGE_CARRY_BYTES ? '\\' : '\n');
}

/* No number crosses the end of a line. */
static void keep_carry(struct sse_usage *t, struct str payload) {
    size_t old;

    if (payload.ptr[payload.len - 1] == '\n') {
        t->n_carry = 0;
        return;
    }
    if (payload.len >= SSE_USAGE_CARRY_BYTES) {
        memcpy(t->carry, payload.ptr + payload.len - SSE_USAGE_CARRY_BYTES, SSE_USAGE_CARRY_BYTES);
        t->n_carry = SSE_USAGE_CARRY_BYTES;
        return;
    }
    old = MIN(t->n_carry, SSE_USAGE_CARRY_BYTES - payload.len);
    memmove(t->carry, t->carry + t->n_carry - old, old);
    memcpy(t->carry + old, payload.ptr, payload.len);
    t->n_carry = (uint8_t)(old + payload.len);
}

/* --- lines ------------------------------------------------------------------------------------ */

/* The value of a field, if the line is that field. */
static bool field_value(struct str line, struct str name, struct str *value) {
    if (!str_starts(line, name) || line.len == name.len || line.ptr[name.len] != ':') return false;
    *value = (struct str){line.ptr + name.len + 1, line.len - name.len - 1};
    if (value->len && value->ptr[0] == ' ') {
        value->ptr++;
        value->len--;
    }
    return true;
}

/* Both forms of an engine's error within a stream. */
static bool is_error_data(struct str data) {
    return str_starts(data, STR("{\"error\"")) || str_starts(data, STR("{\"object\":\"error\""));
}

static void take_data(struct sse_usage *t, struct str data) {
    if (data.len == 0) return;
    if (str_eq(data, STR("[DONE]"))) {
        t->has_done = true;
    } else if (t->is_error || is_error_data(data)) {
        t->has_error = true;
    } else if (!t->has_data) {
        t->n_events++;
        t->has_data = true;
    }
}

/* A line, or at least its first SSE_USAGE_HEAD_BYTES. */
static void take_line(struct sse_usage *t, struct str line) {
    struct str value;

    if (line.len && line.ptr[line.len - 1] == '\r') line.len--;
    if (line.len == 0) {
        t->has_lines = t->has_data = t->is_error = false;
        return;
    }
    t->has_lines = true;
    if (line.ptr[0] != ':') t->has_fields = true;
    if (field_value(line, STR("data"), &value)) {
        take_data(t, value);
    } else if (field_value(line, STR("event"), &value)) {
        t->is_error = str_eq(value, STR("error"));
    }
}

static void keep_line_head(struct sse_usage *t, const char *p, size_t n) {
    n = MIN(n, (size_t)SSE_USAGE_HEAD_BYTES - t->n_head);
    memcpy(t->head + t->n_head, p, n);
    t->n_head = (uint8_t)(t->n_head + n);
}

static void read_lines(struct sse_usage *t, struct str payload) {
    const char *p = payload.ptr, *last = payload.ptr + payload.len, *end;

    while (p < last && (end = memchr(p, '\n', (size_t)(last - p))) != NULL) {
        if (t->n_head) {
            keep_line_head(t, p, (size_t)(end - p));
            take_line(t, (struct str){t->head, t->n_head});
            t->n_head = 0;
        } else {
            take_line(t, (struct str){p, (size_t)(end - p)});
        }
        p = end + 1;
    }
    if (p < last) keep_line_head(t, p, (size_t)(last - p));
}

void sse_usage_feed(struct sse_usage *t, struct str payload) {
    char before = t->n_carry ? t->carry[t->n_carry - 1] : '\n';

    if (payload.len == 0) return;
    if (t->n_carry) find_across(t, payload);
    find_numbers(t, payload, before);
    keep_carry(t, payload);
    if (t->is_stream) read_lines(t, payload);
}

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

void sse_usage_init(struct sse_usage *t, enum api_form api, bool is_stream) {
    memset(t, 0, offsetof(struct sse_usage, head)); /* n_head and n_carry give the rest */
    t->prompt_tokens = t->cached_tokens = t->completion_tokens = t->sequence = -1;
    t->input_tokens = t->cache_read_tokens = t->cache_creation_tokens = -1;
    t->api = api;
    t->is_stream = is_stream;
}

int64_t sse_usage_tokens(const struct sse_usage *t) {
    int64_t n_seen = t->n_token_events ? (int64_t)t->n_token_events : -1;

    if (t->api == API_RESPONSES && t->is_stream && !t->has_done) return n_seen;
    if (t->api == API_MESSAGES && t->is_stream && !t->has_done)
        return MAX(t->completion_tokens, n_seen);
    return t->completion_tokens >= 0 ? t->completion_tokens : n_seen;
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

#define TOKENS STR("_tokens\"")

static bool stands_at(struct str s, size_t at, struct str what) {
    return s.len - at >= what.len && memcmp(s.ptr + at, what.ptr, what.len) == 0;
}

/* OpenAI's, before their end at `at`. */
static void read_usage(struct sse_usage *t, struct str s, size_t at, char before) {
    if (name_ends_at(s, at, STR("\"prompt"), before)) {
        read_number(s, at + TOKENS.len, &t->prompt_tokens);
    } else if (name_ends_at(s, at, STR("\"completion"), before)) {
        read_number(s, at + TOKENS.len, &t->completion_tokens);
    } else if (name_ends_at(s, at, STR("\"cached"), before)) {
        read_number(s, at + TOKENS.len, &t->cached_tokens);
    }
}

/* Those of the two other APIs. */
static void read_other_usage(struct sse_usage *t, struct str s, size_t at, char before) {
    if (name_ends_at(s, at, STR("\"input"), before)) {
        read_number(s, at + TOKENS.len, &t->input_tokens);
    } else if (name_ends_at(s, at, STR("\"output"), before)) {
        read_number(s, at + TOKENS.len, &t->completion_tokens);
    } else if (name_ends_at(s, at, STR("\"cached"), before)) {
        read_number(s, at + TOKENS.len, &t->cached_tokens);
    } else if (name_ends_at(s, at, STR("\"cache_read_input"), before)) {
        read_number(s, at + TOKENS.len, &t->cache_read_tokens);
    } else if (name_ends_at(s, at, STR("\"cache_creation_input"), before)) {
        read_number(s, at + TOKENS.len, &t->cache_creation_tokens);
    }
    if (t->input_tokens >= 0)
        t->prompt_tokens =
            t->input_tokens + MAX(t->cache_read_tokens, 0) + MAX(t->cache_creation_tokens, 0);
    if (t->cache_read_tokens >= 0) t->cached_tokens = t->cache_read_tokens;
}

/* The first id, "resp_...", with its end; its '_' is at `at`. */
static void read_id(struct sse_usage *t, struct str s, size_t at, char before) {
    const char *from, *to;

    if (t->n_id || !name_ends_at(s, at, STR("\"resp"), before)) return;
    from = s.ptr + at - STR("resp").len;
    to = memchr(from, '"', MIN((size_t)(s.ptr + s.len - from), (size_t)SSE_USAGE_ID_MAX));
    if (!to || memchr(from, '\\', (size_t)(to - from))) return;
    t->n_id = (uint8_t)(to - from);
    memcpy(t->id, from, t->n_id);
}

static void read_place(struct sse_usage *t, struct str s, size_t at, char before) {
    if (stands_at(s, at, STR("_number\"")) && name_ends_at(s, at, STR("\"sequence"), before)) {
        read_number(s, at + STR("_number\"").len, &t->sequence);
    } else {
        read_id(t, s, at, before);
    }
}

static void find_numbers(struct sse_usage *t, struct str s, char before) {
    const char *p = s.ptr, *last = s.ptr + s.len;

    while ((p = memchr(p, '_', (size_t)(last - p))) != NULL) {
        size_t at = (size_t)(p++ - s.ptr);

        if (!stands_at(s, at, TOKENS)) {
            if (t->api == API_RESPONSES) read_place(t, s, at, before);
        } else if (t->api == API_OPENAI) {
            read_usage(t, s, at, before);
        } else {
            read_other_usage(t, s, at, before);
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

/* The forms of an engine's error within a stream. */
static bool is_error_data(struct str data) {
    return str_starts(data, STR("{\"error\"")) || str_starts(data, STR("{\"object\":\"error\"")) ||
           str_starts(data, STR("{\"type\":\"error\""));
}

static bool ends_with(struct str s, struct str end) {
    return s.len >= end.len && memcmp(s.ptr + s.len - end.len, end.ptr, end.len) == 0;
}

/* By its name, which OpenAI's have for errors alone. */
static void take_event(struct sse_usage *t, struct str name) {
    t->is_error = str_eq(name, STR("error")) || str_eq(name, STR("response.failed"));
    t->is_token = ends_with(name, STR("delta")) && !str_eq(name, STR("message_delta"));
    t->is_end = str_eq(name, STR("message_stop")) || str_eq(name, STR("response.completed")) ||
                str_eq(name, STR("response.incomplete")) || str_eq(name, STR("response.failed"));
}

static void take_data(struct sse_usage *t, struct str data) {
    if (data.len == 0) return;
    if (t->is_end) t->has_done = true;
    if (str_eq(data, STR("[DONE]"))) {
        t->has_done = true;
    } else if (t->is_error || is_error_data(data)) {
        t->has_error = true;
    } else if (!t->has_data) {
        t->n_events++;
        t->n_token_events += t->api == API_OPENAI || t->is_token;
        t->has_data = true;
    }
}

/* A line, or at least its first SSE_USAGE_HEAD_BYTES. */
static void take_line(struct sse_usage *t, struct str line) {
    struct str value;

    line.len = MIN(line.len, (size_t)SSE_USAGE_HEAD_BYTES); /* however it comes, the same is read */
    if (line.len && line.ptr[line.len - 1] == '\r') line.len--;
    if (line.len == 0) {
        t->has_lines = t->has_data = t->is_error = t->is_token = t->is_end = false;
        return;
    }
    t->has_lines = true;
    if (line.ptr[0] != ':') t->has_fields = true;
    if (field_value(line, STR("data"), &value)) {
        take_data(t, value);
    } else if (field_value(line, STR("event"), &value)) {
        take_event(t, value);
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

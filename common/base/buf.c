/* common/base/buf.c - views and growing buffers. */
#include "common/base/buf.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/mem.h"

#define BUF_MIN_CAP 256

bool str_bytes_eq_nocase(const char *a, const char *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned char x = (unsigned char)a[i], y = (unsigned char)b[i], lower = x | 0x20;

        if (x != y && ((x ^ y) != 0x20 || lower < 'a' || lower > 'z')) return false;
    }
    return true;
}

bool str_starts(struct str s, struct str prefix) {
    return s.len >= prefix.len && str_eq((struct str){s.ptr, prefix.len}, prefix);
}

bool str_ends(struct str s, struct str suffix) {
    return s.len >= suffix.len &&
           str_eq((struct str){s.ptr + s.len - suffix.len, suffix.len}, suffix);
}

struct str str_trim(struct str s) {
    while (s.len && (s.ptr[0] == ' ' || s.ptr[0] == '\t')) {
        s.ptr++;
        s.len--;
    }
    while (s.len && (s.ptr[s.len - 1] == ' ' || s.ptr[s.len - 1] == '\t'))
        s.len--;
    return s;
}

ptrdiff_t str_find(struct str haystack, struct str needle) {
    const char *hit;

    if (needle.len == 0) return 0;
    if (haystack.len < needle.len) return -1;
    hit = memmem(haystack.ptr, haystack.len, needle.ptr, needle.len);
    return hit ? hit - haystack.ptr : -1;
}

enum status str_percent_decode(struct str s, char *out, size_t cap) {
    size_t n = 0;

    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];

        if (c == '%') {
            int high = i + 2 < s.len ? str_hex_value((unsigned char)s.ptr[i + 1]) : -1;
            int low = high >= 0 ? str_hex_value((unsigned char)s.ptr[i + 2]) : -1;

            if (low < 0) return ST_INVALID;
            c = (char)(high * 16 + low);
            i += 2;
        }
        if (c == '\0' || n + 1 >= cap) return ST_INVALID;
        out[n++] = c;
    }
    if (cap == 0) return ST_INVALID;
    out[n] = '\0';
    return ST_OK;
}

enum status str_to_u64(struct str s, uint64_t *out) {
    uint64_t value = 0;

    if (s.len == 0) return ST_INVALID;
    for (size_t i = 0; i < s.len; i++) {
        unsigned digit = (unsigned char)s.ptr[i] - '0';

        if (digit > 9) return ST_INVALID;
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, digit, &value)) {
            return ST_INVALID;
        }
    }
    *out = value;
    return ST_OK;
}

/* Length of the well-formed sequence at p, 0 when there is none. */
static size_t utf8_sequence(const unsigned char *p, size_t n) {
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xC2) return 0;
    if (p[0] < 0xE0) return n >= 2 && (p[1] & 0xC0) == 0x80 ? 2 : 0;
    if (p[0] < 0xF0) {
        if (n < 3 || (p[1] & 0xC0) != 0x80 || (p[2] & 0xC0) != 0x80) return 0;
        if (p[0] == 0xE0 && p[1] < 0xA0) return 0;
        if (p[0] == 0xED && p[1] > 0x9F) return 0;
        return 3;
    }
    if (p[0] > 0xF4 || n < 4) return 0;
    if ((p[1] & 0xC0) != 0x80 || (p[2] & 0xC0) != 0x80 || (p[3] & 0xC0) != 0x80) return 0;
    if (p[0] == 0xF0 && p[1] < 0x90) return 0;
    if (p[0] == 0xF4 && p[1] > 0x8F) return 0;
    return 4;
}

size_t str_utf8_len(struct str s) {
    return s.len ? utf8_sequence((const unsigned char *)s.ptr, s.len) : 0;
}

bool str_is_utf8(struct str s) {
    const unsigned char *p = (const unsigned char *)s.ptr;
    size_t i = 0;

    while (i < s.len) {
        size_t n = utf8_sequence(p + i, s.len - i);

        if (n == 0) return false;
        i += n;
    }
    return true;
}

void buf_init(struct buf *b, size_t limit) {
    memset(b, 0, sizeof(*b));
    b->limit = limit;
}

void buf_release(struct buf *b) {
    mem_free(b->data);
    buf_init(b, b->limit);
}

void buf_fini(struct buf *b) {
    buf_release(b);
}

void buf_clear(struct buf *b) {
    b->start = b->end = 0;
    b->has_failed = false;
}

char *buf_reserve(struct buf *b, size_t n) {
    size_t len = buf_len(b), need;
    char *data;

    if (b->has_failed) return NULL;
    if (b->cap - b->end >= n && b->data && (!b->limit || len + n <= b->limit)) {
        return b->data + b->end;
    }
    if (n > SIZE_MAX / 4 || (b->limit && len + n > b->limit)) goto fail;
    if (b->cap - len >= n && b->start >= len) { /* moving is cheap: no overlap, half is free */
        if (len) memcpy(b->data, b->data + b->start, len);
        b->start = 0;
        b->end = len;
        return b->data + b->end;
    }
    need = MAX(len + n, MAX((size_t)BUF_MIN_CAP, b->cap + b->cap / 2));
    data = mem_try(need);
    if (!data) goto fail;
    if (len) memcpy(data, b->data + b->start, len);
    mem_free(b->data);
    b->data = data;
    b->cap = need;
    b->start = 0;
    b->end = len;
    return b->data + b->end;
fail:
    b->has_failed = true;
    return NULL;
}

void buf_commit(struct buf *b, size_t n) {
    assert(n <= b->cap - b->end);
    b->end += n;
}

void buf_append_grow(struct buf *b, const void *data, size_t n) {
    char *to = buf_reserve(b, n);

    if (!to) return;
    memcpy(to, data, n);
    b->end += n;
}

char *str_put_u64(char *to, uint64_t v) {
    char digits[STR_U64_MAX];
    size_t at = sizeof(digits);

    do {
        digits[--at] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    memcpy(to, digits + at, sizeof(digits) - at);
    return to + sizeof(digits) - at;
}

void buf_append_u64(struct buf *b, uint64_t v) {
    char digits[STR_U64_MAX];

    buf_append(b, digits, (size_t)(str_put_u64(digits, v) - digits));
}

void buf_append_f64(struct buf *b, double v) {
    char text[40];
    int n = 0;

    for (int digits = 15; digits <= 17; digits++) { /* 17 always read back */
        n = snprintf(text, sizeof(text), "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    buf_append(b, text, (size_t)n);
}

void buf_appendf(struct buf *b, const char *fmt, ...) {
    va_list args;
    char small[256], *to;
    int n;

    va_start(args, fmt);
    n = vsnprintf(small, sizeof(small), fmt, args);
    va_end(args);
    if (n < 0) return;
    if ((size_t)n < sizeof(small)) {
        buf_append(b, small, (size_t)n);
        return;
    }
    to = buf_reserve(b, (size_t)n + 1);
    if (!to) return;
    va_start(args, fmt);
    vsnprintf(to, (size_t)n + 1, fmt, args);
    va_end(args);
    b->end += (size_t)n;
}

void buf_consume(struct buf *b, size_t n) {
    b->start += n;
    if (b->start == b->end) b->start = b->end = 0;
}

char *buf_strdup(const struct buf *b) {
    return mem_strndup(b->data ? buf_ptr(b) : "", buf_len(b));
}

enum status buf_status(const struct buf *b) {
    return b->has_failed ? ST_NOMEM : ST_OK;
}

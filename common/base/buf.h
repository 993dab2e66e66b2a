/* common/base/buf.h - bytes: a borrowed view (struct str) and an owned, growing buffer (struct
 * buf).
 *
 * A str is a pointer and a length; it owns nothing and need not be terminated. A buf owns its
 * bytes, consumes from the front without moving them until it must, and has a limit so that a peer
 * cannot grow it at will: an append that would pass the limit, or that the system refuses, makes
 * the buf *failed*; later appends do nothing and the owner checks once, at the end. */
#ifndef COMMON_BASE_BUF_H
#define COMMON_BASE_BUF_H

#include <string.h>

#include "common/base/base.h"
#include "common/base/status.h"

struct str {
    const char *ptr;
    size_t len;
};

#define STR(lit)   ((struct str){"" lit, sizeof(lit) - 1})
#define STR_NULL   ((struct str){NULL, 0})
#define STR_FMT    "%.*s" /* printf: STR_ARG(s) */
#define STR_ARG(s) (int)(s).len, (s).ptr

static inline struct str str_of(const char *z) {
    return (struct str){z, z ? strlen(z) : 0};
}

static inline bool str_eq(struct str a, struct str b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

bool str_bytes_eq_nocase(const char *a, const char *b, size_t n); /* ASCII only */
static inline bool str_eq_nocase(struct str a, struct str b) {
    return a.len == b.len && str_bytes_eq_nocase(a.ptr, b.ptr, a.len);
}
bool str_starts(struct str s, struct str prefix);
bool str_ends(struct str s, struct str suffix);
struct str str_trim(struct str s);                          /* spaces and tabs, both ends */
ptrdiff_t str_find(struct str haystack, struct str needle); /* offset or -1 */

/* A decimal number and nothing else, without sign or blank. ST_INVALID otherwise or on overflow. */
MUST_USE enum status str_to_u64(struct str s, uint64_t *out);

/* Writes a decimal number, at most STR_U64_MAX bytes; returns its end. */
#define STR_U64_MAX 20
char *str_put_u64(char *to, uint64_t v);

/* Of a hexadecimal digit, 0 to 15; -1 of anything else. */
static inline int str_hex_value(unsigned char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Writes `s` with each %XX as its byte, and a NUL. ST_INVALID when it is malformed, has a NUL, or
 * does not fit into `cap` bytes. */
MUST_USE enum status str_percent_decode(struct str s, char *out, size_t cap);

/* True when `s` is well-formed UTF-8 (no overlong forms, surrogates or values above 10FFFF). */
bool str_is_utf8(struct str s);

/* Bytes of the well-formed UTF-8 character that `s` begins with; 0 when it begins with none. */
size_t str_utf8_len(struct str s);

struct buf {
    char *data;   /* the allocation */
    size_t start; /* first unread byte */
    size_t end;   /* one past the last byte */
    size_t cap;
    size_t limit; /* most unread bytes it may hold */
    bool has_failed;
};

void buf_init(struct buf *b, size_t limit); /* limit 0: none. Allocates nothing. */
void buf_fini(struct buf *b);
void buf_clear(struct buf *b);   /* empties, keeps the memory, forgets a failure */
void buf_release(struct buf *b); /* empties and gives the memory back */

static inline size_t buf_len(const struct buf *b) {
    return b->end - b->start;
}

static inline char *buf_ptr(const struct buf *b) {
    return b->data ? b->data + b->start : NULL;
}

static inline struct str buf_str(const struct buf *b) {
    return (struct str){buf_ptr(b), b->end - b->start};
}

/* Makes room for n more bytes; returns where they go, or NULL (and the buf is failed). Follow with
 * buf_commit(b, written). */
char *buf_reserve(struct buf *b, size_t n);
void buf_commit(struct buf *b, size_t n);

/* Appending is inlined while there is room: a head is made of many small pieces. */
void buf_append_grow(struct buf *b, const void *data, size_t n); /* of buf_append: makes room */
static inline void buf_append(struct buf *b, const void *data, size_t n) {
    size_t most = b->limit ? b->start + b->limit : b->cap;

    if (n == 0) return;
    if (b->has_failed || n > b->cap - b->end || n > most - b->end) {
        buf_append_grow(b, data, n);
        return;
    }
    memcpy(b->data + b->end, data, n);
    b->end += n;
}

static inline void buf_append_str(struct buf *b, struct str s) {
    buf_append(b, s.ptr, s.len);
}

static inline void buf_append_char(struct buf *b, char c) {
    buf_append(b, &c, 1);
}

void buf_append_u64(struct buf *b, uint64_t v); /* decimal */
void buf_append_f64(struct buf *b, double v);   /* the shortest decimal that reads back as v */
void buf_appendf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);

void buf_consume(struct buf *b, size_t n); /* drops n bytes from the front */

/* Keeps the first n unread bytes, of at least so many. */
static inline void buf_truncate(struct buf *b, size_t n) {
    if (n < buf_len(b)) b->end = b->start + n;
}

/* A terminated copy of the content for the caller to mem_free. */
char *buf_strdup(const struct buf *b) MUST_USE;

MUST_USE enum status buf_status(const struct buf *b); /* ST_OK, or ST_NOMEM once an append failed */

#endif

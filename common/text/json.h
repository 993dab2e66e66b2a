/* common/text/json.h - reading JSON into a tree, and writing it as a stream.
 *
 * Reading: cJSON builds the tree, but only after a strict pass of our own (RFC 8259) has accepted
 * the text, because cJSON alone takes `01`, raw control bytes, bad UTF-8, what follows a NUL, and
 * silently keeps one of two equal keys. A refusal names line and column and what was expected.
 * Integers are exact over the whole of int64 and uint64, not only up to 2^53.
 *
 * Writing: straight into a struct buf, commas and escapes taken care of, no memory of its own; the
 * buf's limit and failure are the only errors, checked once by its owner (buf_status).
 *
 * LIMITS. A NUL inside a string (\u0000) is refused: cJSON's strings end there. A number has at
 * most 63 characters and must fit a double. Depth, bytes and the count of values are limited, since
 * a value of one byte becomes a node of about 80.
 * A tree belongs to one thread at a time; nothing here blocks. */
#ifndef COMMON_TEXT_JSON_H
#define COMMON_TEXT_JSON_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"

/* --- reading ----------------------------------------------------------------------------------*/
struct json; /* one value of a document; the root owns them all */

enum json_type {
    JSON_ABSENT, /* no such member: a NULL pointer */
    JSON_NULL,
    JSON_BOOL,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT,
};

/* 0 means the default. */
struct json_limits {
    size_t max_bytes;    /* 32 MiB */
    uint32_t max_depth;  /* 64; at most 512 */
    uint32_t max_values; /* 2,000,000: members, elements and the root */
};

/* `limits` may be NULL. ST_INVALID when it is not JSON, too deep or of too many values;
 * ST_TOO_LARGE over max_bytes; ST_NOMEM. The tree keeps no pointer into `text`; free it with
 * json_destroy. */
MUST_USE enum status json_parse(struct json **out, struct str text,
                                const struct json_limits *limits, struct error *err);
void json_destroy(struct json *root); /* NULL is fine; the root only */

enum json_type json_type(const struct json *v);   /* NULL is JSON_ABSENT */
const char *json_type_name(const struct json *v); /* "a string", for messages */
bool json_is_null(const struct json *v);          /* null or absent */

/* NULL when absent, or when it is no object. Linear: iterate instead over a large object. */
const struct json *json_get(const struct json *object, const char *name);
size_t json_count(const struct json *v);             /* elements or members, 0 for others; O(n) */
const struct json *json_first(const struct json *v); /* first element or member, or NULL */
const struct json *json_next(const struct json *v);  /* its neighbour, or NULL */
struct str json_key(const struct json *member);      /* STR_NULL outside an object */

/* Appends the JSON Pointer of `node` (RFC 6901; names cut at 100 bytes, for messages), which is
 * somewhere below `from`. False, and nothing is appended, if it is not. O(n). */
bool json_find(const struct json *from, const struct json *node, struct buf *pointer);

#define JSON_FOR_EACH(it, v) for (const struct json *it = json_first(v); it; it = json_next(it))

/* The value itself. ST_INVALID when it is of another type; for the integers also when it has a
 * fraction or does not fit (16.0 and 1e3 are whole and accepted). */
MUST_USE enum status json_to_bool(const struct json *v, bool *out);
MUST_USE enum status json_to_u64(const struct json *v, uint64_t *out);
MUST_USE enum status json_to_i64(const struct json *v, int64_t *out);
MUST_USE enum status json_to_f64(const struct json *v, double *out);
MUST_USE enum status json_to_str(const struct json *v, struct str *out); /* lives with the tree */

/* Members of a request. An absent or null member leaves *out untouched, is ST_OK, and sets
 * *is_present (may be NULL) to false. Anything else must be of the type and within the inclusive
 * range; otherwise ST_INVALID with a message that names field, value and range, and err->param. */
MUST_USE enum status json_get_bool(const struct json *object, const char *name, bool *out,
                                   bool *is_present, struct error *err);
MUST_USE enum status json_get_u32(const struct json *object, const char *name, uint32_t min,
                                  uint32_t max, uint32_t *out, bool *is_present, struct error *err);
MUST_USE enum status json_get_u64(const struct json *object, const char *name, uint64_t min,
                                  uint64_t max, uint64_t *out, bool *is_present, struct error *err);
MUST_USE enum status json_get_i64(const struct json *object, const char *name, int64_t min,
                                  int64_t max, int64_t *out, bool *is_present, struct error *err);
MUST_USE enum status json_get_f64(const struct json *object, const char *name, double min,
                                  double max, double *out, bool *is_present, struct error *err);
/* At most max_bytes long; the string lives with the tree. */
MUST_USE enum status json_get_str(const struct json *object, const char *name, size_t max_bytes,
                                  struct str *out, bool *is_present, struct error *err);
/* *out is NULL when absent. */
MUST_USE enum status json_get_array(const struct json *object, const char *name,
                                    const struct json **out, struct error *err);
MUST_USE enum status json_get_object(const struct json *object, const char *name,
                                     const struct json **out, struct error *err);

/* --- writing ----------------------------------------------------------------------------------*/
#define JSON_WRITER_MAX_DEPTH 576 /* the deepest tree that can be read, and 64 around it */

struct json_writer {
    struct buf *out;
    uint64_t is_object[JSON_WRITER_MAX_DEPTH / 64]; /* bit d: the container at depth d */
    uint32_t depth;
    bool needs_comma; /* something stands before, in the same container */
    bool has_key;     /* a key waits for its value */
};

/* Writes one value after what `out` already holds. Wrong nesting is an assertion. */
void json_writer_init(struct json_writer *w, struct buf *out);
bool json_writer_is_done(const struct json_writer *w); /* every container has been ended */

void json_begin_object(struct json_writer *w);
void json_end_object(struct json_writer *w);
void json_begin_array(struct json_writer *w);
void json_end_array(struct json_writer *w);

void json_put_key(struct json_writer *w, const char *name);
void json_put_key_str(struct json_writer *w, struct str name);
void json_put_str(struct json_writer *w, struct str s); /* what is not UTF-8 becomes U+FFFD */
void json_put_u64(struct json_writer *w, uint64_t v);
void json_put_i64(struct json_writer *w, int64_t v);
void json_put_f64(struct json_writer *w, double v); /* shortest that reads back; else null */
void json_put_f32(struct json_writer *w, float v);  /* the same for a float: 0.1 stays 0.1 */
void json_put_bool(struct json_writer *w, bool v);
void json_put_null(struct json_writer *w);
void json_put_raw(struct json_writer *w, struct str json);       /* one value, already JSON */
void json_put_tree(struct json_writer *w, const struct json *v); /* a value that was read */

/* Key and value at once. */
void json_field_str(struct json_writer *w, const char *name, struct str s);
void json_field_z(struct json_writer *w, const char *name, const char *z); /* NULL writes null */
void json_field_u64(struct json_writer *w, const char *name, uint64_t v);
void json_field_i64(struct json_writer *w, const char *name, int64_t v);
void json_field_f64(struct json_writer *w, const char *name, double v);
void json_field_bool(struct json_writer *w, const char *name, bool v);
void json_field_null(struct json_writer *w, const char *name);

/* Appends `s` escaped, without the quotes: for templates of constant JSON on the token path. */
void json_escape(struct buf *out, struct str s);

/* As json_escape, and what a terminal or a reader of lines obeys instead of showing it becomes
 * \uXXXX too: DEL, the controls of Latin-1 (U+0085 ends a line), line separators, marks that turn
 * the order of letters around, and characters without width. For logs. */
void json_escape_visibly(struct buf *out, struct str s);

#endif

/* router/prompt/raw_json.h - reads values where they lie in a body, without a tree and a copy.
 *
 * The body was scanned (body_scan.h), so its structure is sound; all reads stay within the span
 * nevertheless, and what is not understood ends the walk. A name or a text may be written with
 * escapes. No recursion. Pure, allocates nothing; any thread. */
#ifndef ROUTER_PROMPT_RAW_JSON_H
#define ROUTER_PROMPT_RAW_JSON_H

#include "common/base/base.h"
#include "common/base/buf.h"

/* --- members of an object, items of an array -------------------------------------------------- */

struct raw_walk {
    const char *p, *end; /* the next member or item; of the span */
    bool is_broken;      /* it ended before the closing bracket */
};

struct raw_member {
    struct str key;   /* with its quotes */
    struct str name;  /* without them, escapes as they are */
    struct str value; /* brackets or quotes included */
};

/* Of the object or array that the span begins with. */
struct raw_walk raw_walk_of(struct str raw);

/* False: there are no more, or is_broken. */
bool raw_next_member(struct raw_walk *walk, struct raw_member *out);
bool raw_next_item(struct raw_walk *walk, struct str *out);

/* --- single values ---------------------------------------------------------------------------- */

static inline struct str raw_between(const char *from, const char *to) {
    return (struct str){from, (size_t)(to - from)};
}

const char *raw_skip_space(const char *p, const char *end);

/* Behind a string, a container with all it holds, or a scalar; NULL: it does not end. */
const char *raw_skip_value(const char *p, const char *end);

/* What a string has between its quotes; STR_NULL when it is no string. */
struct str raw_text(struct str raw);

/* --- text with escapes ------------------------------------------------------------------------ */

/* Bytes of the character at p, which is before `end`, and its value if it is ASCII, else 0. */
size_t raw_read_char(const char *p, const char *end, char *value);

/* Where `want` ends if the text at p begins with it; else NULL. */
const char *raw_match(const char *p, const char *end, const char *want);
bool raw_text_is(struct str text, const char *want);

#endif

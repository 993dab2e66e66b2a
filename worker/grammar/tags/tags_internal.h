/* worker/grammar/tags/tags_internal.h - what the files of structural tags share. */
#ifndef WORKER_GRAMMAR_TAGS_TAGS_INTERNAL_H
#define WORKER_GRAMMAR_TAGS_TAGS_INTERNAL_H

#include "common/base/mem.h"
#include "common/text/json.h"
#include "worker/grammar/tags/tags.h"

struct texts { /* in the arena */
    struct str *text;
    uint32_t n, cap;
};

struct tags {
    struct rules *rules;
    struct exprs *exprs;
    const struct vocabulary *vocabulary;
    const struct tags_options *options;
    const struct json *root;
    struct texts named; /* markers that the tag names: free text holds none of them */
    struct arena arena;
    uint32_t depth;
    struct error *err;
};

/* A text, or one token. */
struct mark {
    bool is_token;
    uint32_t token;
    struct str text; /* of a token: its name or bytes, which may be empty */
};

struct marks {
    struct mark *mark;
    uint32_t n, cap;
};

struct symbols {
    symbol *s;
    uint32_t n, cap;
};

/* ST_INVALID: "#/format/tags/0: ", then the message. */
enum status tags_refuse(struct tags *t, const struct json *at, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* The rules of a format. `ends`: of the tag around it, which its free text does not hold. */
MUST_USE enum status tags_format(struct tags *t, const struct json *v, const struct texts *ends,
                                 symbol *out);

/* A member that must be an array, of one element at least. */
MUST_USE enum status tags_array(struct tags *t, const struct json *v, const char *name,
                                const struct json **out);
MUST_USE enum status tags_bool(struct tags *t, const struct json *v, const char *name, bool *out);

/* --- tags_text.c ------------------------------------------------------------------------------ */

void texts_add(struct tags *t, struct texts *list, struct str text);
void marks_add(struct tags *t, struct marks *list, struct mark m);
void symbols_add(struct tags *t, struct symbols *list, symbol s);

/* Fills t->named. */
void tags_name_markers(struct tags *t, const struct json *v);

/* Adds the marks of a value: a string, an id, a token format, or a list of them. */
MUST_USE enum status tags_marks(struct tags *t, const struct json *v, const char *what,
                                struct marks *out);

/* Parts a text at its markers. */
void tags_split(struct tags *t, struct str text, struct marks *out);
/* Adds the symbols of a text or token. */
void tags_spell(struct tags *t, const struct mark *m, struct symbols *out);
symbol tags_symbol(struct tags *t, struct str text); /* of a text, as one */

/* Any text that holds none of the strings. */
expr_id tags_text_without(struct tags *t, const struct texts *a, const struct texts *b,
                          const struct texts *c);

/* --- tags_list.c, tags_json.c ----------------------------------------------------------------- */

MUST_USE enum status tags_one(struct tags *t, const struct json *v, struct symbols *out);
MUST_USE enum status tags_triggered(struct tags *t, const struct json *v, const struct texts *ends,
                                    symbol *out);
MUST_USE enum status tags_separated(struct tags *t, const struct json *v, symbol *out);
MUST_USE enum status tags_json(struct tags *t, const struct json *v, symbol *out);
MUST_USE enum status tags_schema(struct tags *t, const struct json *schema, symbol *out);

#endif

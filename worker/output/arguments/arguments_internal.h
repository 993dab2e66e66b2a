/* worker/output/arguments/arguments_internal.h - what the converters of one call share.
 *
 * A token that is a marker is one *symbol*: a byte that UTF-8 never has. Literals of a style are
 * spelt with the symbol where the vocabulary has the token. So text and tokens are one stream of
 * bytes, a marker spelt in text does not match, and a machine needs to know of neither. */
#ifndef WORKER_OUTPUT_ARGUMENTS_ARGUMENTS_INTERNAL_H
#define WORKER_OUTPUT_ARGUMENTS_ARGUMENTS_INTERNAL_H

#include "common/base/buf.h"
#include "worker/output/arguments/arguments.h"

/* --- symbols ---------------------------------------------------------------------------------- */
#define SYMBOL_FIRST 0xF8u

struct symbols {
    const char *const *text;
    uint32_t n;
    uint32_t is_known; /* bit i: a literal of the style has it */
};

struct spelling { /* a literal of a style, with symbols */
    unsigned char byte[48];
    uint32_t len; /* 0: the style has no such literal */
};

/* Marks the symbols of it as known. `text` may be NULL. */
void symbols_spell(struct symbols *s, const char *text, struct spelling *out);

/* The text of a byte, which may be a symbol: always more than 0 bytes. */
struct str symbols_text(const struct symbols *s, const unsigned char *byte);

static inline bool is_blank(unsigned char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* One byte inside of a JSON string. */
void put_escaped(struct buf *out, unsigned char c);
void put_quoted_str(struct buf *out, struct str text);

/* --- literals --------------------------------------------------------------------------------- */
enum literal_kind { LITERAL_JSON, LITERAL_PYTHON, LITERAL_GEMMA };

enum literal_place {
    LITERAL_TOP,     /* nothing but blanks yet */
    LITERAL_FIRST,   /* behind an opening bracket */
    LITERAL_NEXT,    /* behind a comma */
    LITERAL_KEY_END, /* before a colon */
    LITERAL_VALUE,   /* behind it */
    LITERAL_AFTER,   /* behind a value */
    LITERAL_STRING,
    LITERAL_ESCAPE,
    LITERAL_DIGITS, /* of an escape */
    LITERAL_WORD,   /* a value without quotes */
    LITERAL_NAME,   /* a key without quotes */
    LITERAL_MARK,   /* inside of a quote that has many bytes */
};

struct literal {
    enum literal_kind kind;
    enum literal_place at, before_mark;
    uint64_t is_object; /* bit d: the container at depth d */
    uint32_t depth;
    struct spelling quote; /* of LITERAL_GEMMA */
    uint32_t n_mark;       /* bytes of it that are read */
    unsigned char quote_char;
    bool is_key; /* the string is one */
    unsigned n_digits, base;
    uint32_t code, high; /* of an escape; the first half of a pair, or 0 */
    struct buf word;
};

/* LITERAL_PYTHON stands behind the call's `(`, LITERAL_GEMMA before its `{`; LITERAL_JSON is any
 * value. */
void literal_init(struct literal *l, enum literal_kind kind);
void literal_fini(struct literal *l);

/* One byte, appending JSON. DONE: that was the last (for Python: it is the `)`). BROKEN: it may not
 * stand here. `symbols` may be NULL. */
enum arguments_state literal_push(struct literal *l, const struct symbols *symbols, unsigned char c,
                                  struct buf *out);

/* Appends the whole text as one JSON value; false, and nothing is appended, if it is none. */
bool literal_convert(struct str text, struct buf *out);

/* --- types ------------------------------------------------------------------------------------ */
enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8,
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
};

/* The types that a parameter may have; 0 if its schema does not say. */
unsigned types_of(const struct json *parameters, struct str name);
void types_convert(unsigned types, struct str text, struct buf *out);

/* --- tags ------------------------------------------------------------------------------------- */
struct tags;

struct tags *tags_create(enum arguments_style style, const struct json *parameters,
                         struct symbols *symbols);
void tags_destroy(struct tags *t);
enum arguments_state tags_push(struct tags *t, unsigned char c, struct buf *out);
enum arguments_state tags_end(struct tags *t, bool is_cut, struct buf *out);

#endif

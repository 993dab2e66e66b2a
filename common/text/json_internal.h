/* common/text/json_internal.h - what the two halves of the JSON reader share. */
#ifndef COMMON_TEXT_JSON_INTERNAL_H
#define COMMON_TEXT_JSON_INTERNAL_H

#include "common/text/json.h"

/* An integer that a double may not hold exactly: the `ordinal`-th number of the document. */
struct json_exact {
    uint64_t ordinal;
    struct str text; /* into the document */
};

/* Accepts exactly the documents that json_parse promises. Appends one struct json_exact to `exacts`
 * for each integer of 16 digits or more, in document order. */
MUST_USE enum status json_grammar_check(struct str text, const struct json_limits *limits,
                                        struct buf *exacts, struct error *err);

/* The first byte from the i-th on that may not stand for itself in a string, or begins a character
 * of several: no printable ASCII, '"' or '\\'. s.len if there is none. Eight bytes at a time: what
 * most of a long prompt's text is read and written by. */
size_t json_plain_end(struct str s, size_t i);

#endif

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

#endif

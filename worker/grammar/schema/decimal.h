/* worker/grammar/schema/decimal.h - exact decimal numbers, as bounds of what digits may spell.
 *
 * The bound of a schema is a decimal, and what a model writes is digits; so the comparison is one
 * of digits, without rounding. Pure. */
#ifndef WORKER_GRAMMAR_SCHEMA_DECIMAL_H
#define WORKER_GRAMMAR_SCHEMA_DECIMAL_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"
#include "worker/grammar/core/expr.h"

#define DECIMAL_MAX_DIGITS 40u /* on each side of the point */

struct decimal {
    bool is_negative; /* never of zero */
    uint32_t n_whole, n_fraction;
    char whole[DECIMAL_MAX_DIGITS + 1];    /* "0", or without leading zeros */
    char fraction[DECIMAL_MAX_DIGITS + 1]; /* without trailing zeros */
};

struct bound {
    struct decimal at;
    bool is_set, is_exclusive;
};

/* Reads JSON's number. ST_INVALID when it has more digits than there is room for. */
MUST_USE enum status decimal_parse(struct decimal *out, struct str s);
int decimal_compare(const struct decimal *a, const struct decimal *b);

/* Numbers from `low` to `high`, without exponent; whole ones alone with `is_integer`. Of the bounds
 * at least one is set. */
expr_id decimal_between(struct exprs *x, const struct bound *low, const struct bound *high,
                        bool is_integer);

/* All numbers as JSON has them. */
expr_id decimal_any(struct exprs *x, bool is_integer);

#endif

/* worker/grammar/schema/decimal.c - comparison with a bound, digit by digit, as expressions.
 *
 * A number is at least 12.5 when it has more digits before the point; or as many, and at the first
 * that differs a larger one; or is 12 with a fraction that is at least .5, by the same rule. */
#include "worker/grammar/schema/decimal.h"

#include <string.h>

/* --- reading ---------------------------------------------------------------------------------- */

enum status decimal_parse(struct decimal *out, struct str s) {
    char digits[512];
    size_t n = 0, at = 0, n_before = 0;
    long exponent = 0;
    struct decimal d = {0};
    bool has_point = false;

    if (s.len > 0 && s.ptr[0] == '-') {
        d.is_negative = true;
        at++;
    }
    for (; at < s.len && (s.ptr[at] == '.' || (s.ptr[at] >= '0' && s.ptr[at] <= '9')); at++) {
        if (s.ptr[at] == '.') {
            has_point = true;
            n_before = n;
        } else if (n < sizeof(digits)) {
            digits[n++] = s.ptr[at];
        }
    }
    if (!has_point) n_before = n;
    if (at < s.len) {
        bool is_below = at + 1 < s.len && s.ptr[at + 1] == '-';

        for (at++; at < s.len; at++)
            if (s.ptr[at] >= '0' && s.ptr[at] <= '9' && exponent < 10000)
                exponent = exponent * 10 + (s.ptr[at] - '0');
        if (is_below) exponent = -exponent;
    }
    exponent += (long)n_before; /* digits before the point now */
    for (size_t i = 0; i < n; i++) {
        long place = exponent - (long)i; /* 1: the last before the point */

        if (place > 0 && (digits[i] != '0' || d.n_whole > 0)) {
            if (d.n_whole == DECIMAL_MAX_DIGITS) return ST_INVALID;
            d.whole[d.n_whole++] = digits[i];
        } else if (place <= 0 && digits[i] != '0') {
            if (-place >= (long)DECIMAL_MAX_DIGITS) return ST_INVALID;
            while (d.n_fraction < (uint32_t)-place)
                d.fraction[d.n_fraction++] = '0';
            d.fraction[d.n_fraction++] = digits[i];
        }
    }
    for (long place = exponent - (long)n; place > 0 && d.n_whole > 0; place--) {
        if (d.n_whole == DECIMAL_MAX_DIGITS) return ST_INVALID;
        d.whole[d.n_whole++] = '0';
    }
    if (d.n_whole == 0 && d.n_fraction == 0) d.is_negative = false;
    if (d.n_whole == 0) d.whole[d.n_whole++] = '0';
    *out = d;
    return ST_OK;
}

static int compare_size(const struct decimal *a, const struct decimal *b) {
    int order;

    if (a->n_whole != b->n_whole) return a->n_whole < b->n_whole ? -1 : 1;
    if ((order = memcmp(a->whole, b->whole, a->n_whole)) != 0) return order;
    return strcmp(a->fraction, b->fraction); /* terminated by zeroing */
}

int decimal_compare(const struct decimal *a, const struct decimal *b) {
    if (a->is_negative != b->is_negative) return a->is_negative ? -1 : 1;
    return a->is_negative ? compare_size(b, a) : compare_size(a, b);
}

/* --- digits ----------------------------------------------------------------------------------- */

static expr_id digit(struct exprs *x, char low, char high) {
    struct byte_set set = {{0}};

    if (low > high) return EXPR_NONE;
    byte_set_add_range(&set, (uint8_t)low, (uint8_t)high);
    return expr_class(x, set);
}

static expr_id digits(struct exprs *x, uint32_t min, uint32_t max) {
    return expr_repeat(x, digit(x, '0', '9'), min, max);
}

/* "" or a point with digits. */
static expr_id any_fraction(struct exprs *x) {
    return expr_optional(x, expr_concat(x, expr_byte(x, '.'), digits(x, 1, EXPR_FOREVER)));
}

/* Digits of a fraction, behind the point, whose value is at least (is_low) or at most that of f;
 * equal only if !is_exclusive. */
static expr_id fraction_side(struct exprs *x, const struct decimal *d, bool is_low,
                             bool is_exclusive) {
    const char *f = d->fraction;
    uint32_t n = d->n_fraction;
    expr_id zero = expr_byte(x, '0'), tail = digits(x, 0, EXPR_FOREVER), e;

    if (is_low && is_exclusive) {
        e = expr_concat(x, expr_repeat(x, zero, 0, EXPR_FOREVER),
                        expr_concat(x, digit(x, '1', '9'), tail));
    } else if (is_low) {
        e = tail;
    } else {
        e = is_exclusive ? EXPR_NONE : expr_repeat(x, zero, 0, EXPR_FOREVER);
    }
    for (uint32_t i = n; i-- > 0;) {
        expr_id same = expr_concat(x, expr_byte(x, (uint8_t)f[i]), e);
        expr_id other = is_low ? digit(x, (char)(f[i] + 1), '9') : digit(x, '0', (char)(f[i] - 1));

        e = expr_alt(x, same, expr_concat(x, other, tail));
        if (!is_low) e = expr_alt(x, e, EXPR_EMPTY); /* it may stop before: that is less */
    }
    return expr_and(x, e, digits(x, 1, EXPR_FOREVER));
}

/* The point and what follows, for a number whose whole part is that of the bound. */
static expr_id equal_whole(struct exprs *x, const struct decimal *d, bool is_low, bool is_exclusive,
                           bool is_integer) {
    expr_id e = EXPR_NONE;
    bool may_be_whole =
        is_low ? d->n_fraction == 0 && !is_exclusive : d->n_fraction > 0 || !is_exclusive;

    if (!is_integer)
        e = expr_concat(x, expr_byte(x, '.'), fraction_side(x, d, is_low, is_exclusive));
    return may_be_whole ? expr_alt(x, e, EXPR_EMPTY) : e;
}

/* Numbers without sign on one side of the size of the bound. */
static expr_id side(struct exprs *x, const struct decimal *d, bool is_low, bool is_exclusive,
                    bool is_integer) {
    expr_id fraction = is_integer ? EXPR_EMPTY : any_fraction(x);
    expr_id e = equal_whole(x, d, is_low, is_exclusive, is_integer), other;
    uint32_t n = d->n_whole;

    for (uint32_t i = n; i-- > 0;) {
        char c = d->whole[i], least = i == 0 && n > 1 ? '1' : '0';

        other = is_low ? digit(x, (char)(c + 1), '9') : digit(x, least, (char)(c - 1));
        other = expr_concat(x, other, expr_concat(x, digits(x, n - i - 1, n - i - 1), fraction));
        e = expr_alt(x, expr_concat(x, expr_byte(x, (uint8_t)c), e), other);
    }
    if (is_low) { /* more digits */
        other = expr_concat(x, digit(x, '1', '9'), digits(x, n, EXPR_FOREVER));
        return expr_alt(x, e, expr_concat(x, other, fraction));
    }
    if (n == 1) return e;
    other = expr_concat(x, digit(x, '1', '9'), digits(x, 0, n - 2));
    other = expr_alt(x, other, expr_byte(x, '0'));
    return expr_alt(x, e, expr_concat(x, other, fraction));
}

static expr_id whole(struct exprs *x) {
    return expr_alt(x, expr_byte(x, '0'),
                    expr_concat(x, digit(x, '1', '9'), digits(x, 0, EXPR_FOREVER)));
}

/* Sizes between two bounds; either may be missing. */
static expr_id sizes(struct exprs *x, const struct bound *low, const struct bound *high,
                     bool is_integer) {
    expr_id e = is_integer ? whole(x) : expr_concat(x, whole(x), any_fraction(x));

    if (low) e = expr_and(x, e, side(x, &low->at, true, low->is_exclusive, is_integer));
    if (high) e = expr_and(x, e, side(x, &high->at, false, high->is_exclusive, is_integer));
    return e;
}

expr_id decimal_between(struct exprs *x, const struct bound *low, const struct bound *high,
                        bool is_integer) {
    bool has_negative = !low->is_set || low->at.is_negative;
    bool has_positive = !high->is_set || !high->at.is_negative;
    expr_id e = EXPR_NONE, minus;

    if (has_positive)
        e = sizes(x, low->is_set && !low->at.is_negative ? low : NULL, high->is_set ? high : NULL,
                  is_integer);
    if (!has_negative) return e;
    minus = sizes(x, high->is_set && high->at.is_negative ? high : NULL, low->is_set ? low : NULL,
                  is_integer);
    if (high->is_set && high->is_exclusive && high->at.n_whole == 1 && high->at.whole[0] == '0' &&
        high->at.n_fraction == 0) /* below 0: not even -0 */
        minus = expr_and(x, minus, side(x, &high->at, true, true, is_integer));
    return expr_alt(x, e, expr_concat(x, expr_byte(x, '-'), minus));
}

expr_id decimal_any(struct exprs *x, bool is_integer) {
    struct byte_set sign = {{0}}, mark = {{0}};
    expr_id e = expr_concat(x, expr_optional(x, expr_byte(x, '-')), whole(x)), exponent;

    if (is_integer) return e;
    byte_set_add(&sign, '+');
    byte_set_add(&sign, '-');
    byte_set_add(&mark, 'e');
    byte_set_add(&mark, 'E');
    exponent = expr_concat(x, expr_optional(x, expr_class(x, sign)), digits(x, 1, EXPR_FOREVER));
    exponent = expr_concat(x, expr_class(x, mark), exponent);
    return expr_concat(x, e, expr_concat(x, any_fraction(x), expr_optional(x, exponent)));
}

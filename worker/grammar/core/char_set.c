/* worker/grammar/core/char_set.c - ranges of characters, and ranges of bytes that spell them. */
#include "worker/grammar/core/char_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

void char_set_fini(struct char_set *s) {
    mem_free(s->range);
    *s = (struct char_set){0};
}

void char_set_add(struct char_set *s, uint32_t first, uint32_t last) {
    if (first > last) return;
    if (s->n == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 8;
        s->range = mem_realloc(s->range, s->cap * sizeof(*s->range));
    }
    s->range[s->n++] = (struct char_range){first, last};
}

void char_set_add_set(struct char_set *s, const struct char_set *other) {
    for (uint32_t i = 0; i < other->n; i++)
        char_set_add(s, other->range[i].first, other->range[i].last);
}

void char_set_add_other_case(struct char_set *s) {
    for (uint32_t i = 0, n = s->n; i < n; i++) {
        struct char_range r = s->range[i];

        char_set_add(s, MAX(r.first, 'a') - 32u, MIN(r.last, 'z') - 32u);
        char_set_add(s, MAX(r.first, 'A') + 32u, MIN(r.last, 'Z') + 32u);
    }
}

static int by_first(const void *a, const void *b) {
    const struct char_range *p = a, *q = b;

    return (p->first > q->first) - (p->first < q->first);
}

/* Sorted ranges that neither touch nor overlap. */
static void normalize(struct char_set *s) {
    uint32_t n = 0;

    if (s->n == 0) return;
    qsort(s->range, s->n, sizeof(*s->range), by_first);
    for (uint32_t i = 1; i < s->n; i++) {
        struct char_range r = s->range[i];

        if (r.first <= s->range[n].last + 1) {
            s->range[n].last = MAX(s->range[n].last, r.last);
        } else {
            s->range[++n] = r;
        }
    }
    s->n = n + 1;
}

void char_set_complement(struct char_set *s) {
    struct char_set out = {0};
    uint32_t next = 0;

    normalize(s);
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->range[i].first > next) char_set_add(&out, next, s->range[i].first - 1);
        next = s->range[i].last + 1;
    }
    if (next <= CHAR_LAST) char_set_add(&out, next, CHAR_LAST);
    char_set_fini(s);
    *s = out;
}

bool char_set_has(const struct char_set *s, uint32_t c) {
    for (uint32_t i = 0; i < s->n; i++)
        if (c >= s->range[i].first && c <= s->range[i].last) return true;
    return false;
}

/* --- UTF-8 ------------------------------------------------------------------------------------ */

static uint32_t encode(uint32_t c, uint8_t out[4]) {
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (uint8_t)(0xC0 | c >> 6);
        out[1] = (uint8_t)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xE0 | c >> 12);
        out[1] = (uint8_t)(0x80 | (c >> 6 & 63));
        out[2] = (uint8_t)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | c >> 18);
    out[1] = (uint8_t)(0x80 | (c >> 12 & 63));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 63));
    out[3] = (uint8_t)(0x80 | (c & 63));
    return 4;
}

static expr_id byte_range(struct exprs *x, uint32_t low, uint32_t high) {
    struct byte_set set = {{0}};

    byte_set_add_range(&set, (uint8_t)low, (uint8_t)high);
    return expr_class(x, set);
}

/* The sequences of n bytes from low to high, both spelled with n bytes, in the order of
 * characters. */
static expr_id sequences(struct exprs *x, const uint8_t *low, const uint8_t *high, uint32_t n) {
    static const uint8_t least[3] = {0x80, 0x80, 0x80}, most[3] = {0xBF, 0xBF, 0xBF};
    expr_id e = EXPR_NONE;
    uint32_t from = low[0], to = high[0];

    if (n == 1) return byte_range(x, from, to);
    if (from == to)
        return expr_concat(x, byte_range(x, from, from), sequences(x, low + 1, high + 1, n - 1));
    if (memcmp(low + 1, least, n - 1) != 0) {
        e = expr_concat(x, byte_range(x, from, from), sequences(x, low + 1, most, n - 1));
        from++;
    }
    if (memcmp(high + 1, most, n - 1) != 0) {
        e = expr_alt(x, e,
                     expr_concat(x, byte_range(x, to, to), sequences(x, least, high + 1, n - 1)));
        to--;
    }
    if (from > to) return e;
    return expr_alt(x, e,
                    expr_concat(x, byte_range(x, from, to), sequences(x, least, most, n - 1)));
}

static expr_id range_expr(struct exprs *x, uint32_t first, uint32_t last) {
    static const struct char_range parts[] = {
        {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, CHAR_LAST}};
    expr_id e = EXPR_NONE;
    uint8_t low[4], high[4];

    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        uint32_t from = MAX(first, parts[i].first), to = MIN(last, parts[i].last), n;

        if (from > to) continue;
        n = encode(from, low);
        (void)encode(to, high);
        e = expr_alt(x, e, sequences(x, low, high, n));
    }
    return e;
}

uint32_t char_decode(struct str s, size_t *n) {
    const uint8_t *p = (const uint8_t *)s.ptr;

    *n = MIN(p[0] < 0x80 ? 1u : p[0] < 0xE0 ? 2u : p[0] < 0xF0 ? 3u : 4u, s.len);
    if (*n == 2) return (p[0] & 31u) << 6 | (p[1] & 63u);
    if (*n == 3) return (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
    if (*n == 4) return (p[0] & 7u) << 18 | (p[1] & 63u) << 12 | (p[2] & 63u) << 6 | (p[3] & 63u);
    return p[0];
}

/* --- inside JSON ------------------------------------------------------------------------------ */

static bool is_escaped(uint32_t c) {
    return c < 0x20 || c == '"' || c == '\\' || c == 0x7F;
}

static void spell_escape(uint32_t c, char text[8]) {
    static const char names[] = "btnvfr"; /* of 8 to 13 */

    if (c == '"' || c == '\\') {
        snprintf(text, 8, "\\%c", (char)c);
    } else if (c >= 8 && c <= 13 && c != 11) {
        snprintf(text, 8, "\\%c", names[c - 8]);
    } else {
        snprintf(text, 8, "\\u%04x", c & 0xFFu);
    }
}

static expr_id escape_expr(struct exprs *x, uint32_t c) {
    char text[8];

    spell_escape(c, text);
    return expr_literal(x, str_of(text));
}

expr_id char_set_expr(struct char_set *s, struct exprs *x, enum char_form form) {
    expr_id e = EXPR_NONE;

    normalize(s);
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t from = s->range[i].first, last = s->range[i].last;

        for (uint32_t c = from; form == CHARS_IN_JSON && c <= MIN(last, 0x7Fu); c++) {
            if (!is_escaped(c)) continue;
            if (c > from) e = expr_alt(x, e, range_expr(x, from, c - 1));
            e = expr_alt(x, e, escape_expr(x, c));
            from = c + 1;
        }
        if (from <= last) e = expr_alt(x, e, range_expr(x, from, last));
    }
    return e;
}

expr_id char_expr(struct exprs *x, uint32_t c, enum char_form form) {
    if (form == CHARS_IN_JSON && is_escaped(c)) return escape_expr(x, c);
    return range_expr(x, c, c);
}

expr_id char_any_expr(struct exprs *x, enum char_form form) {
    struct char_set all = {0};
    expr_id e;

    char_set_add(&all, 0, CHAR_LAST);
    e = char_set_expr(&all, x, form);
    char_set_fini(&all);
    return e;
}

void char_spell_json(struct str text, struct buf *out) {
    char escape[8];
    size_t n;

    for (; text.len > 0; text.ptr += n, text.len -= n) {
        uint32_t c = char_decode(text, &n);

        if (!is_escaped(c)) {
            buf_append(out, text.ptr, n);
        } else {
            spell_escape(c, escape);
            buf_append_str(out, str_of(escape));
        }
    }
}

expr_id char_text_expr(struct exprs *x, struct str text, enum char_form form) {
    struct buf spelled;
    expr_id e;

    if (form == CHARS_PLAIN) return expr_literal(x, text);
    buf_init(&spelled, 0);
    char_spell_json(text, &spelled);
    e = expr_literal(x, buf_str(&spelled));
    exprs_note(x, &spelled);
    buf_fini(&spelled);
    return e;
}

/* worker/grammar/core/regex_expr.c - a recursive descent that builds the expression as it reads.
 *
 * An anchor is not a character, so a fragment is four languages, by whether it holds the beginning
 * of the text and its end. What stands before a `^` or behind a `$` must then be empty; at the end
 * the open sides are filled with any text. */
#include "worker/grammar/core/regex_expr.h"

#include <string.h>

#include "common/base/mem.h"

/* e[begins][ends]: the strings of the fragment that hold the beginning, the end of the text. */
struct fragment {
    expr_id e[2][2];
    uint64_t n_states;   /* with counters for repeated characters */
    uint64_t n_unrolled; /* without counters */
    bool is_char;        /* a single character: a counter may repeat it */
};

struct parser {
    struct exprs *x;
    const struct regex_rules *rules;
    struct str source, rest;
    uint32_t depth;
    struct error *err;
};

static const struct fragment nothing = {.e = {{EXPR_EMPTY, EXPR_NONE}, {EXPR_NONE, EXPR_NONE}}};

static enum status refuse(struct parser *p, const char *what) {
    size_t at = p->source.len - p->rest.len;

    return error_set(p->err, ST_INVALID, "the pattern \"%.*s\" has %s at character %zu",
                     (int)MIN(p->source.len, 80), p->source.ptr, what, at + 1);
}

static bool is_at(const struct parser *p, char c) {
    return p->rest.len > 0 && *p->rest.ptr == c;
}

static void skip(struct parser *p, size_t n) {
    p->rest.ptr += n;
    p->rest.len -= n;
}

static bool take(struct parser *p, const char *z) {
    if (!str_starts(p->rest, str_of(z))) return false;
    skip(p, strlen(z));
    return true;
}

/* --- classes ---------------------------------------------------------------------------------- */

static void add_digits(struct char_set *s) {
    char_set_add(s, '0', '9');
}

static void add_word(struct char_set *s) {
    add_digits(s);
    char_set_add(s, 'A', 'Z');
    char_set_add(s, 'a', 'z');
    char_set_add(s, '_', '_');
}

/* White space and line terminators of ECMA 262. */
static void add_space(struct char_set *s) {
    static const struct char_range spaces[] = {
        {9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};

    for (size_t i = 0; i < ARRAY_LEN(spaces); i++)
        char_set_add(s, spaces[i].first, spaces[i].last);
}

/* \d \D \w \W \s \S: false for other letters. */
static bool add_named(struct char_set *out, char name) {
    struct char_set s = {0};

    switch (name | 0x20) {
    case 'd': add_digits(&s); break;
    case 'w': add_word(&s); break;
    case 's': add_space(&s); break;
    default: return false;
    }
    if (name < 'a') char_set_complement(&s);
    char_set_add_set(out, &s);
    char_set_fini(&s);
    return true;
}

static enum status read_hex(struct parser *p, uint32_t n_digits, uint32_t *out) {
    uint32_t c = 0;

    if (p->rest.len < n_digits) return refuse(p, "an escape that is cut off");
    for (uint32_t i = 0; i < n_digits; i++) {
        int digit = str_hex_value((unsigned char)p->rest.ptr[i]);

        if (digit < 0) return refuse(p, "an escape without hexadecimal digits");
        c = c * 16 + (uint32_t)digit;
    }
    skip(p, n_digits);
    *out = c;
    return ST_OK;
}

/* \u1F600 is written as a pair of surrogates, or as \u{1F600}. */
static enum status read_unicode(struct parser *p, uint32_t *out) {
    uint32_t low, n = 0;
    enum status st;

    if (take(p, "{")) {
        while (n < p->rest.len && n < 6 && p->rest.ptr[n] != '}')
            n++;
        if ((st = read_hex(p, n, out)) != ST_OK) return st;
        if (n == 0 || !take(p, "}") || *out > CHAR_LAST) return refuse(p, "no character in \\u{}");
        return ST_OK;
    }
    if ((st = read_hex(p, 4, out)) != ST_OK) return st;
    if (*out >= 0xD800 && *out < 0xDC00 && take(p, "\\u")) {
        if ((st = read_hex(p, 4, &low)) != ST_OK) return st;
        *out = 0x10000 + ((*out - 0xD800) << 10) + ((low - 0xDC00) & 0x3FF);
    }
    return ST_OK;
}

/* Behind a backslash: one character. */
static enum status read_escape(struct parser *p, uint32_t *out) {
    static const char names[] = "tnvfr", values[] = "\t\n\v\f\r";
    const char *name;
    char c;

    if (p->rest.len == 0) return refuse(p, "a backslash at its end");
    c = *p->rest.ptr;
    if (c >= '1' && c <= '9') return refuse(p, "a back-reference, which is not supported,");
    if (c == 'k') return refuse(p, "a named back-reference, which is not supported,");
    if (c == 'b' || c == 'B') return refuse(p, "a word boundary, which is not supported,");
    if (c == 'p' || c == 'P') return refuse(p, "a Unicode property, which is not supported,");
    skip(p, 1);
    *out = (uint8_t)c;
    if (c == 'x') return read_hex(p, 2, out);
    if (c == 'u') return read_unicode(p, out);
    if (c == '0') *out = 0;
    if ((name = strchr(names, c)) != NULL) *out = (uint8_t)values[name - names];
    if (c == 'c' && p->rest.len > 0) {
        *out = (uint8_t)*p->rest.ptr & 31u;
        skip(p, 1);
    } else if (((c | 0x20) >= 'a' && (c | 0x20) <= 'z') && !strchr("tnvfrxu", c)) {
        return refuse(p, "an unknown escape before it,");
    } else if ((unsigned char)c >= 0x80) {
        size_t n;

        p->rest.ptr--;
        p->rest.len++;
        *out = char_decode(p->rest, &n);
        skip(p, n);
    }
    return ST_OK;
}

static enum status read_char(struct parser *p, uint32_t *out) {
    size_t n;

    if (take(p, "\\")) return read_escape(p, out);
    *out = char_decode(p->rest, &n);
    skip(p, n);
    return ST_OK;
}

/* One element of [...]: a character, a range, or a named class. */
static enum status read_element(struct parser *p, struct char_set *s) {
    uint32_t first, last;
    enum status st;

    if (p->rest.len > 1 && is_at(p, '\\') && add_named(s, p->rest.ptr[1])) {
        skip(p, 2);
        return ST_OK;
    }
    if (take(p, "\\b")) {
        char_set_add(s, 8, 8); /* the one place where it is a character */
        return ST_OK;
    }
    if ((st = read_char(p, &first)) != ST_OK) return st;
    last = first;
    if (p->rest.len > 1 && is_at(p, '-') && p->rest.ptr[1] != ']') {
        if (p->rest.len > 2 && p->rest.ptr[1] == '\\' && strchr("dDwWsS", p->rest.ptr[2])) {
            char_set_add(s, first, first); /* [a-\d]: three things */
            return ST_OK;
        }
        skip(p, 1);
        if ((st = read_char(p, &last)) != ST_OK) return st;
    }
    if (last < first) return refuse(p, "a range whose ends are in the wrong order before it,");
    char_set_add(s, first, last);
    return ST_OK;
}

static enum status read_class(struct parser *p, struct char_set *s) {
    bool is_negative = take(p, "^");
    enum status st = ST_OK;

    while (st == ST_OK && !is_at(p, ']')) {
        if (p->rest.len == 0) return refuse(p, "a class without its ]");
        st = read_element(p, s);
    }
    if (st != ST_OK) return st;
    skip(p, 1);
    if (p->rules->ignores_case) char_set_add_other_case(s);
    if (is_negative) char_set_complement(s);
    return ST_OK;
}

/* --- fragments -------------------------------------------------------------------------------- */

static struct fragment of_set(struct parser *p, struct char_set *s) {
    struct fragment f = {.is_char = true, .n_states = 1};
    bool is_ascii = true;

    for (uint32_t i = 0; i < s->n; i++)
        is_ascii &= s->range[i].last < 0x80;
    f.n_states = f.n_unrolled = is_ascii ? 1 : 8; /* states of the UTF-8 of a large class */
    f.e[0][0] = char_set_expr(s, p->x, p->rules->form);
    return f;
}

/* Before the beginning of the text and behind its end there is nothing. */
static struct fragment join(struct parser *p, const struct fragment *a, const struct fragment *b) {
    struct fragment out = {.n_states = a->n_states + b->n_states,
                           .n_unrolled = a->n_unrolled + b->n_unrolled};

    for (uint32_t i = 0; i < 16; i++) {
        uint32_t ab = i & 1, ae = i >> 1 & 1, bb = i >> 2 & 1, be = i >> 3;
        expr_id first = a->e[ab][ae], second = b->e[bb][be], *to = &out.e[ab | bb][ae | be];

        if (first == EXPR_NONE || second == EXPR_NONE) continue;
        if (bb) first = expr_is_nullable(p->x, first) ? EXPR_EMPTY : EXPR_NONE;
        if (ae) second = expr_is_nullable(p->x, second) ? EXPR_EMPTY : EXPR_NONE;
        *to = expr_alt(p->x, *to, expr_concat(p->x, first, second));
    }
    return out;
}

static void unite(struct parser *p, struct fragment *a, const struct fragment *b) {
    for (uint32_t i = 0; i < 4; i++)
        a->e[i & 1][i >> 1] = expr_alt(p->x, a->e[i & 1][i >> 1], b->e[i & 1][i >> 1]);
    a->n_states += b->n_states;
    a->n_unrolled += b->n_unrolled;
}

static bool has_anchor(const struct fragment *f) {
    return f->e[0][1] != EXPR_NONE || f->e[1][0] != EXPR_NONE || f->e[1][1] != EXPR_NONE;
}

static enum status repeat(struct parser *p, struct fragment *f, uint32_t min, uint32_t max) {
    uint64_t copies = max == EXPR_FOREVER ? MAX(min, 1u) : max;

    if (has_anchor(f)) {
        if (max != 1) return refuse(p, "a repeated anchor, which is not supported, before it,");
        if (min == 0) unite(p, f, &nothing);
        return ST_OK;
    }
    f->n_unrolled *= MAX(copies, 1u);
    f->n_states = f->is_char ? f->n_states + 1 : MAX(f->n_unrolled, 1u);
    f->is_char = false;
    if (f->n_states > REGEX_MAX_STATES)
        return refuse(p, "repetitions that are together more than 10000 states");
    f->e[0][0] = expr_repeat(p->x, f->e[0][0], min, max);
    return ST_OK;
}

/* {m}, {m,}, {m,n}; false, and nothing is read, when it is none of these. */
static bool read_bounds(struct parser *p, uint32_t *min, uint32_t *max) {
    struct str at = p->rest;
    uint64_t v[2] = {0, EXPR_FOREVER};
    uint32_t n = 0;

    if (!take(p, "{")) return false;
    for (; n < 2; n++) {
        size_t len = 0;

        while (len < p->rest.len && p->rest.ptr[len] >= '0' && p->rest.ptr[len] <= '9')
            len++;
        if (len > 9 || (len == 0 && n == 0)) break;
        if (len > 0 && str_to_u64((struct str){p->rest.ptr, len}, &v[n]) != ST_OK) break;
        skip(p, len);
        if (n == 0 && !take(p, ",")) {
            v[1] = v[0];
            break;
        }
    }
    if (!take(p, "}")) {
        p->rest = at;
        return false;
    }
    *min = (uint32_t)v[0];
    *max = (uint32_t)v[1];
    return true;
}

static enum status read_repetition(struct parser *p, struct fragment *f) {
    uint32_t min = 0, max = EXPR_FOREVER;

    if (take(p, "?")) {
        max = 1;
    } else if (take(p, "+")) {
        min = 1;
    } else if (!take(p, "*") && !read_bounds(p, &min, &max)) {
        return ST_OK;
    }
    if (take(p, "+"))
        return refuse(p, "a possessive repetition, which is not supported, before it,");
    (void)take(p, "?"); /* lazy: the language is the same */
    if (min > max) return refuse(p, "a repetition whose least is above its most before it,");
    if (min > REGEX_MAX_REPEAT || (max != EXPR_FOREVER && max > REGEX_MAX_REPEAT))
        return refuse(p, "more than 1000000 repetitions before it,");
    if (is_at(p, '*') || is_at(p, '+') || is_at(p, '?'))
        return refuse(p, "a repetition of nothing");
    return repeat(p, f, min, max);
}

static enum status read_alternatives(struct parser *p, struct fragment *out);

static enum status read_group(struct parser *p, struct fragment *out) {
    enum status st;

    if (take(p, "?")) {
        bool is_named = str_starts(p->rest, STR("P<")) ||
                        (is_at(p, '<') && p->rest.len > 1 && !strchr("=!", p->rest.ptr[1]));

        if (is_at(p, '=') || is_at(p, '!')) return refuse(p, "look-ahead, which is not supported,");
        if (is_at(p, '<') && !is_named) return refuse(p, "look-behind, which is not supported,");
        if (is_named) {
            while (p->rest.len > 0 && !is_at(p, '>'))
                skip(p, 1);
        }
        if (!take(p, is_named ? ">" : ":"))
            return refuse(p, "a group with flags, which is not supported,");
    }
    if (++p->depth > REGEX_MAX_DEPTH) return refuse(p, "more than 64 groups inside each other");
    st = read_alternatives(p, out);
    p->depth--;
    if (st == ST_OK && !take(p, ")")) return refuse(p, "a group without its )");
    out->is_char = false;
    return st;
}

static enum status read_atom(struct parser *p, struct fragment *out) {
    struct char_set s = {0};
    enum status st = ST_OK;
    uint32_t c;

    *out = (struct fragment){0};
    if (take(p, "(")) return read_group(p, out);
    if (take(p, "^") || take(p, "\\A")) {
        out->e[1][0] = EXPR_EMPTY;
        return ST_OK;
    }
    if (take(p, "$") || take(p, "\\z") || take(p, "\\Z")) {
        out->e[0][1] = EXPR_EMPTY;
        return ST_OK;
    }
    if (is_at(p, '*') || is_at(p, '+') || is_at(p, '?'))
        return refuse(p, "a repetition of nothing");
    if (take(p, ".")) {
        if (!p->rules->dot_takes_all) char_set_add(&s, '\n', '\n');
        char_set_complement(&s);
    } else if (take(p, "[")) {
        st = read_class(p, &s);
    } else if (p->rest.len > 1 && is_at(p, '\\') && add_named(&s, p->rest.ptr[1])) {
        skip(p, 2);
    } else if ((st = read_char(p, &c)) == ST_OK) {
        char_set_add(&s, c, c);
        if (p->rules->ignores_case) char_set_add_other_case(&s);
    }
    if (st == ST_OK) *out = of_set(p, &s);
    char_set_fini(&s);
    return st;
}

/* Fragments are joined from the right, since expressions lean that way. */
static enum status read_sequence(struct parser *p, struct fragment *out) {
    struct fragment *parts = NULL;
    uint32_t n = 0, cap = 0;
    uint64_t n_states = 0;
    enum status st = ST_OK;

    while (st == ST_OK && p->rest.len > 0 && !is_at(p, '|') && !is_at(p, ')')) {
        if (n == cap) {
            cap = cap ? cap * 2 : 16;
            parts = mem_realloc(parts, cap * sizeof(*parts)); /* one a byte of the source at most */
        }
        st = read_atom(p, &parts[n]);
        if (st == ST_OK) st = read_repetition(p, &parts[n]);
        if (st == ST_OK) n_states += parts[n++].n_states;
        if (st == ST_OK && n_states > REGEX_MAX_STATES) st = refuse(p, "more than 10000 states");
    }
    *out = nothing;
    while (st == ST_OK && n > 0)
        *out = join(p, &parts[--n], out);
    mem_free(parts);
    return st;
}

static enum status read_alternatives(struct parser *p, struct fragment *out) {
    struct fragment next;
    enum status st = read_sequence(p, out);

    while (st == ST_OK && take(p, "|")) {
        st = read_sequence(p, &next);
        if (st == ST_OK) unite(p, out, &next);
    }
    return st;
}

/* Any text on the open sides of a match. */
static expr_id open_sides(struct parser *p, const struct fragment *f) {
    struct exprs *x = p->x;
    expr_id any = expr_repeat(x, char_any_expr(x, p->rules->form), 0, EXPR_FOREVER);
    expr_id e = EXPR_NONE;

    for (uint32_t i = 0; i < 4; i++) {
        bool begins = i & 1, ends = i >> 1;
        expr_id part = f->e[begins][ends];

        if (!ends && !p->rules->is_whole) part = expr_concat(x, part, any);
        if (!begins && !p->rules->is_whole) part = expr_concat(x, any, part);
        e = expr_alt(x, e, part);
    }
    return e;
}

enum status regex_expr_parse(expr_id *out, struct exprs *x, struct str source,
                             const struct regex_rules *rules, struct error *err) {
    struct parser p = {.x = x, .rules = rules, .source = source, .rest = source, .err = err};
    struct fragment all;
    enum status st;

    if (source.len > REGEX_MAX_BYTES)
        return error_set(err, ST_INVALID, "the pattern has %zu bytes: the limit is %u", source.len,
                         REGEX_MAX_BYTES);
    if (!str_is_utf8(source) || memchr(source.ptr, '\0', source.len))
        return error_set(err, ST_INVALID, "the pattern is not UTF-8, or has a NUL");
    if ((st = read_alternatives(&p, &all)) != ST_OK) return st;
    if (p.rest.len > 0) return refuse(&p, "a ) without its group");
    *out = open_sides(&p, &all);
    return ST_OK;
}

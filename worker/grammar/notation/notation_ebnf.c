/* worker/grammar/notation/notation_ebnf.c - rules with ::=, as GBNF and other engines write them.
 * */
#include "common/base/mem.h"
#include "worker/grammar/core/char_set.h"
#include "worker/grammar/core/regex_expr.h"
#include "worker/grammar/notation/notation_internal.h"

/* Does another rule begin here: a name, and ::= behind it? */
static bool is_rule_end(const struct reader *r) {
    struct reader ahead = *r;
    struct str name = notation_peek_name(r);

    if (name.len == 0) return false;
    notation_skip(&ahead, name.len);
    notation_skip_space(&ahead);
    return str_starts(ahead.rest, STR("::="));
}

/* One character of a literal, escapes read. */
static enum status read_char(struct reader *r, struct str *s, uint32_t *out) {
    static const char names[] = "nrtbfv0", values[] = "\n\r\t\b\f\v";
    const char *name;
    size_t n = 0, n_digits;
    char c = *s->ptr;

    if (c != '\\' || s->len < 2) {
        *out = char_decode(*s, &n);
        s->ptr += n;
        s->len -= n;
        return ST_OK;
    }
    c = s->ptr[1];
    s->ptr += 2;
    s->len -= 2;
    *out = (uint8_t)c;
    if ((name = strchr(names, c)) != NULL) *out = (uint8_t)values[name - names];
    n_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (n_digits == 0) return ST_OK;
    for (*out = 0; n < n_digits && n < s->len && str_hex_value((unsigned char)s->ptr[n]) >= 0; n++)
        *out = *out * 16 + (uint32_t)str_hex_value((unsigned char)s->ptr[n]);
    if (n < n_digits || *out > CHAR_LAST) return notation_refuse(r, "an escape is cut off");
    s->ptr += n;
    s->len -= n;
    return ST_OK;
}

static enum status read_literal(struct reader *r, struct piece *out) {
    struct str s;
    uint32_t c;
    expr_id e = EXPR_EMPTY, *chars;
    size_t n = 0;
    enum status st = notation_until(r, '"', &s);

    if (st != ST_OK) return st;
    chars = mem_calloc(s.len + 1, sizeof(*chars));
    while (s.len > 0 && st == ST_OK) {
        st = read_char(r, &s, &c);
        if (st == ST_OK) chars[n++] = char_expr(r->exprs, c, r->spelling.form);
    }
    while (n > 0) /* from the right, as expressions lean */
        e = expr_concat(r->exprs, chars[--n], e);
    mem_free(chars);
    *out = notation_text(e);
    return st;
}

/* [a-z^...]: written as in a regular expression. */
static enum status read_class(struct reader *r, struct piece *out) {
    struct regex_rules whole = {.form = r->spelling.form, .is_whole = true};
    struct str s, source = {r->rest.ptr - 1, 0};
    struct error err = {0};
    expr_id e;
    enum status st = notation_until(r, ']', &s);

    if (st != ST_OK) return st;
    source.len = s.len + 2;
    if (regex_expr_parse(&e, r->exprs, source, &whole, &err) != ST_OK)
        return notation_refuse(r, "%s", err.message);
    *out = notation_text(e);
    return ST_OK;
}

static enum status read_atom(struct reader *r, struct piece *out) {
    struct str name = notation_peek_name(r);

    if (notation_take(r, "\"")) return read_literal(r, out);
    if (notation_take(r, "[")) return read_class(r, out);
    if (notation_take(r, ".")) {
        *out = notation_text(char_any_expr(r->exprs, r->spelling.form));
        return ST_OK;
    }
    if (name.len == 0) return ST_AGAIN;
    if (r->n_names >= NOTATION_MAX_NAMES) return notation_refuse(r, "too many rules");
    *out = (struct piece){.s = notation_name(r, name)->rule};
    notation_skip(r, name.len);
    return ST_OK;
}

static const struct notation_syntax ebnf = {
    .comment = {"#"}, .define = "::=", .atom = read_atom, .is_end = is_rule_end};

static enum status read_rule(struct reader *r) {
    struct str name = notation_peek_name(r);
    struct name *n;

    if (name.len == 0 || !is_rule_end(r))
        return notation_refuse(r, "a rule must begin with its name and ::=");
    n = notation_name(r, name);
    if (n->is_defined)
        return notation_refuse(r, "the rule \"%.*s\" is defined twice", (int)MIN(name.len, 60),
                               name.ptr);
    n->is_defined = true;
    notation_skip(r, name.len);
    notation_skip_space(r);
    (void)notation_take(r, r->syntax->define);
    return notation_body(r, n->rule);
}

enum status notation_ebnf(symbol *start, struct rules *rules, struct str text,
                          const struct notation_spelling *spelling, struct error *err) {
    struct reader r;
    enum status st = ST_OK;

    notation_init(&r, &ebnf, rules, text, spelling, err);
    if (!str_is_utf8(text) || memchr(text.ptr, '\0', text.len))
        st = error_set(err, ST_INVALID, "the grammar is not UTF-8, or has a NUL");
    notation_skip_space(&r);
    while (st == ST_OK && r.rest.len > 0 && exprs_pay(r.exprs, 1)) {
        st = read_rule(&r);
        notation_skip_space(&r);
    }
    if (st == ST_OK) st = notation_finish(&r, "root", start);
    notation_fini(&r);
    return st;
}

/* worker/grammar/notation/notation_parse.c - alternatives, sequences and repetitions, of any atoms.
 *
 * Text is kept as an expression as long as it is only text: "a" [b-c]* is one lexeme. */
#include <stdarg.h>
#include <stdio.h>

#include "common/base/mem.h"
#include "worker/grammar/notation/notation_internal.h"

/* --- the reader ------------------------------------------------------------------------------- */

enum status notation_refuse(const struct reader *r, const char *fmt, ...) {
    char message[256];
    uint32_t line = 1;
    va_list args;

    for (const char *p = r->text.ptr; p < r->rest.ptr; p++)
        line += *p == '\n';
    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    return error_set(r->err, ST_INVALID, "line %u of the grammar: %s", line, message);
}

void notation_skip(struct reader *r, size_t n) {
    r->rest.ptr += n;
    r->rest.len -= n;
}

bool notation_is_at(const struct reader *r, char c) {
    return r->rest.len > 0 && *r->rest.ptr == c;
}

bool notation_take(struct reader *r, const char *z) {
    if (!str_starts(r->rest, str_of(z))) return false;
    notation_skip(r, strlen(z));
    return true;
}

static bool is_comment(const struct reader *r) {
    for (size_t i = 0; i < ARRAY_LEN(r->syntax->comment); i++) {
        const char *begin = r->syntax->comment[i];

        if (begin && str_starts(r->rest, str_of(begin))) return true;
    }
    return false;
}

void notation_skip_space(struct reader *r) {
    for (;;) {
        while (r->rest.len > 0 && strchr(" \t\r\n", *r->rest.ptr) && *r->rest.ptr != '\0')
            notation_skip(r, 1);
        if (!is_comment(r)) return;
        while (r->rest.len > 0 && !notation_is_at(r, '\n'))
            notation_skip(r, 1);
    }
}

static bool is_name_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
}

struct str notation_peek_name(const struct reader *r) {
    struct str name = {r->rest.ptr, 0};

    while (name.len < r->rest.len && is_name_byte(name.ptr[name.len]))
        name.len++;
    return name;
}

struct name *notation_name(struct reader *r, struct str name) {
    struct name *known = strmap_find(&r->names, name);

    if (known) return known;
    known = mem_zalloc(sizeof(*known));
    known->rule = rules_add(r->rules);
    known->used_at = r->rest.ptr;
    r->n_names++;
    strmap_insert(&r->names, name, known);
    return known;
}

enum status notation_until(struct reader *r, char end, struct str *out) {
    *out = (struct str){r->rest.ptr, 0};
    while (out->len < r->rest.len && out->ptr[out->len] != end) {
        if (out->ptr[out->len] == '\n') break;
        out->len += out->ptr[out->len] == '\\' && out->len + 1 < r->rest.len ? 2 : 1;
    }
    if (out->len >= r->rest.len || out->ptr[out->len] != end)
        return notation_refuse(r, "a %c is missing", end);
    notation_skip(r, out->len + 1);
    return ST_OK;
}

/* --- pieces ----------------------------------------------------------------------------------- */

struct piece notation_text(expr_id e) {
    return (struct piece){.is_text = true, .e = e};
}

symbol notation_symbol(const struct reader *r, const struct piece *p) {
    if (!p->is_text) return p->s;
    return rules_text(expr_and(r->exprs, p->e, r->spelling.within));
}

/* White space and the like may stand behind each terminal of a Lark rule. */
static bool ignores(const struct reader *r) {
    return r->ignore != 0 && !r->is_in_terminal;
}

static struct piece repeat(struct reader *r, const struct piece *p, uint32_t min, uint32_t max) {
    struct piece out = {.s = 0};
    symbol s = notation_symbol(r, p);

    if (p->is_text && !ignores(r)) return notation_text(expr_repeat(r->exprs, p->e, min, max));
    if (min == 1 && max == 1) return *p;
    out.s = rules_add(r->rules);
    rules_produce_loop(r->rules, out.s, &s, 1, min, max);
    return out;
}

static bool read_number(struct reader *r, uint32_t *out) {
    struct str digits = {r->rest.ptr, 0};
    uint64_t n;

    while (digits.len < r->rest.len && digits.ptr[digits.len] >= '0' &&
           digits.ptr[digits.len] <= '9')
        digits.len++;
    if (digits.len == 0 || digits.len > 7 || str_to_u64(digits, &n) != ST_OK) return false;
    notation_skip(r, digits.len);
    *out = (uint32_t)n;
    return true;
}

/* {m}, {m,}, {m,n}, ~m, ~m..n behind their first character. */
static enum status read_bounds(struct reader *r, bool is_brace, uint32_t *min, uint32_t *max) {
    notation_skip_space(r);
    if (!read_number(r, min)) {
        if (!is_brace || !notation_is_at(r, ',')) return notation_refuse(r, "a number is missing");
        *min = 0;
    }
    notation_skip_space(r);
    *max = *min;
    if (notation_take(r, is_brace ? "," : "..")) {
        notation_skip_space(r);
        if (!read_number(r, max)) *max = EXPR_FOREVER;
        notation_skip_space(r);
    }
    if (is_brace && !notation_take(r, "}")) return notation_refuse(r, "a } is missing");
    if (*min > *max) return notation_refuse(r, "a repetition's least is above its most");
    return ST_OK;
}

static enum status read_repetition(struct reader *r, struct piece *p) {
    uint32_t min, max;
    enum status st = ST_OK;

    for (uint32_t n = 0; st == ST_OK; n++) {
        if (n > 3) return notation_refuse(r, "a repetition is repeated");
        if (notation_take(r, "?")) {
            min = 0;
            max = 1;
        } else if (notation_take(r, "*")) {
            min = 0;
            max = EXPR_FOREVER;
        } else if (notation_take(r, "+")) {
            min = 1;
            max = EXPR_FOREVER;
        } else if (notation_is_at(r, '{') || notation_is_at(r, '~')) {
            bool is_brace = notation_is_at(r, '{');

            notation_skip(r, 1);
            st = read_bounds(r, is_brace, &min, &max);
            if (st != ST_OK) return st;
        } else {
            return ST_OK;
        }
        *p = repeat(r, p, min, max);
    }
    return st;
}

static enum status read_group(struct reader *r, char end, struct piece *out) {
    enum status st;

    if (++r->depth > NOTATION_MAX_DEPTH)
        return notation_refuse(r, "more than %u groups inside each other", NOTATION_MAX_DEPTH);
    st = notation_alternatives(r, out);
    r->depth--;
    if (st != ST_OK) return st;
    if (!notation_is_at(r, end)) return notation_refuse(r, "a %c is missing", end);
    notation_skip(r, 1);
    return ST_OK;
}

static enum status read_atom(struct reader *r, struct piece *out) {
    if (notation_take(r, "(")) return read_group(r, ')', out);
    return r->syntax->atom(r, out);
}

/* --- sequences and alternatives --------------------------------------------------------------- */

struct symbols {
    symbol *s;
    uint32_t n, cap;
};

static void push(struct symbols *list, symbol s) {
    if (list->n == list->cap) {
        list->cap = MAX(list->cap * 2, 8u);
        list->s = mem_realloc(list->s, list->cap * sizeof(*list->s));
    }
    list->s[list->n++] = s;
}

/* Adds a piece to a sequence whose last piece was *last, text or not. */
static void add_piece(struct reader *r, struct symbols *list, struct piece *last, bool has_last,
                      const struct piece *p) {
    if (has_last && last->is_text && p->is_text && !ignores(r)) {
        last->e = expr_concat(r->exprs, last->e, p->e);
        return;
    }
    if (has_last) push(list, notation_symbol(r, last));
    *last = *p;
}

static enum status read_sequence(struct reader *r, struct piece *out) {
    struct symbols list = {0};
    struct piece last = notation_text(EXPR_EMPTY), p;
    bool has_last = false;
    enum status st = ST_OK;

    for (;;) {
        notation_skip_space(r);
        if (r->rest.len == 0 || strchr("|)]", *r->rest.ptr) || r->syntax->is_end(r)) break;
        st = read_atom(r, &p);
        if (st == ST_OK) st = read_repetition(r, &p);
        if (st != ST_OK) break;
        if (!exprs_pay(r->exprs, 1)) break;
        add_piece(r, &list, &last, has_last, &p);
        has_last = true;
    }
    if (st == ST_AGAIN)
        st = notation_refuse(r, "\"%.*s\" is no part of a rule", (int)MIN(r->rest.len, 20),
                             r->rest.ptr);
    if (st == ST_OK && list.n == 0) {
        *out = last;
    } else if (st == ST_OK) {
        push(&list, notation_symbol(r, &last));
        *out = (struct piece){.s = rules_sequence(r->rules, list.s, list.n)};
    }
    mem_free(list.s);
    return st;
}

enum status notation_alternatives(struct reader *r, struct piece *out) {
    struct piece p;
    symbol all = 0, s;
    enum status st = read_sequence(r, out);

    while (st == ST_OK && notation_take(r, "|")) {
        st = read_sequence(r, &p);
        if (st != ST_OK) break;
        if (all == 0 && out->is_text && p.is_text) {
            out->e = expr_alt(r->exprs, out->e, p.e);
            continue;
        }
        if (all == 0) {
            all = rules_add(r->rules);
            s = notation_symbol(r, out);
            rules_produce(r->rules, all, &s, 1);
            *out = (struct piece){.s = all};
        }
        s = notation_symbol(r, &p);
        rules_produce(r->rules, all, &s, 1);
    }
    return st;
}

enum status notation_body(struct reader *r, symbol rule) {
    struct piece p;
    symbol s;
    enum status st = notation_alternatives(r, &p);

    if (st != ST_OK) return st;
    if (notation_is_at(r, ')') || notation_is_at(r, ']'))
        return notation_refuse(r, "a %c without its group", *r->rest.ptr);
    s = notation_symbol(r, &p);
    rules_produce(r->rules, rule, &s, 1);
    return ST_OK;
}

/* --- the whole -------------------------------------------------------------------------------- */

void notation_init(struct reader *r, const struct notation_syntax *syntax, struct rules *rules,
                   struct str text, const struct notation_spelling *spelling, struct error *err) {
    *r = (struct reader){.syntax = syntax,
                         .spelling = *spelling,
                         .rules = rules,
                         .exprs = rules->exprs,
                         .text = text,
                         .rest = text,
                         .err = err};
    strmap_init(&r->names, 0);
}

enum status notation_finish(struct reader *r, const char *start, symbol *out) {
    const struct strmap_slot *slot;
    const struct name *first = strmap_find(&r->names, str_of(start));

    if (!first || !first->is_defined)
        return error_set(r->err, ST_INVALID, "the grammar has no rule \"%s\", with which it begins",
                         start);
    for (size_t i = 0; (slot = strmap_next(&r->names, &i)) != NULL;) {
        const struct name *n = slot->value;

        if (n->is_defined) continue;
        r->rest.ptr = n->used_at;
        return notation_refuse(r, "the rule \"%.*s\" is used, but not defined",
                               (int)MIN(slot->key.len, 60), slot->key.ptr);
    }
    *out = first->rule;
    return ST_OK;
}

void notation_fini(struct reader *r) {
    const struct strmap_slot *slot;

    for (size_t i = 0; (slot = strmap_next(&r->names, &i)) != NULL;)
        mem_free(slot->value);
    strmap_fini(&r->names);
}

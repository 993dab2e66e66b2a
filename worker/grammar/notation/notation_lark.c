/* worker/grammar/notation/notation_lark.c - rules and terminals of Lark.
 *
 * A rule ends at the line that begins another, or a statement (%). Terminals are rules too, but
 * nothing is ignored inside them. */
#include "common/base/mem.h"
#include "worker/grammar/core/char_set.h"
#include "worker/grammar/core/regex_expr.h"
#include "worker/grammar/notation/notation_internal.h"

/* %import common.NAME, as the library that comes with Lark defines them. */
static const struct {
    const char *name, *pattern;
} common[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[a-fA-F0-9]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "([0-9]+\\.[0-9]*|\\.[0-9]+)"},
    {"FLOAT", "([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "([0-9]+|[0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?([0-9]+|[0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\.)*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
};

/* --- where rules begin ------------------------------------------------------------------------ */

static bool is_line_start(const struct reader *r) {
    const char *p = r->rest.ptr;

    while (p > r->text.ptr && (p[-1] == ' ' || p[-1] == '\t'))
        p--;
    return p == r->text.ptr || p[-1] == '\n';
}

/* The marks ? and ! of a rule, its name, .priority, and the colon; *name, and true if it is so. */
static bool read_head(struct reader *r, struct str *name) {
    struct reader ahead = *r;

    while (notation_is_at(&ahead, '?') || notation_is_at(&ahead, '!'))
        notation_skip(&ahead, 1);
    *name = notation_peek_name(&ahead);
    if (name->len == 0) return false;
    notation_skip(&ahead, name->len);
    if (notation_take(&ahead, ".")) notation_skip(&ahead, notation_peek_name(&ahead).len);
    notation_skip_space(&ahead);
    if (!notation_take(&ahead, ":")) return false;
    r->rest = ahead.rest;
    return true;
}

static bool is_rule_end(const struct reader *r) {
    struct reader ahead = *r;
    struct str name;

    if (!is_line_start(r)) return false;
    return notation_is_at(r, '%') || read_head(&ahead, &name);
}

/* --- atoms ------------------------------------------------------------------------------------ */

static enum status parse_regex(struct reader *r, struct str source, const struct regex_rules *how,
                               struct piece *out) {
    struct error err = {0};
    expr_id e;

    if (regex_expr_parse(&e, r->exprs, source, how, &err) != ST_OK)
        return notation_refuse(r, "%s", err.message);
    *out = notation_text(e);
    return ST_OK;
}

/* Flags behind a string or an expression. */
static enum status read_flags(struct reader *r, struct regex_rules *how) {
    for (; r->rest.len > 0 && strchr("imslux", *r->rest.ptr); notation_skip(r, 1)) {
        if (notation_is_at(r, 'i')) {
            how->ignores_case = true;
        } else if (notation_is_at(r, 's')) {
            how->dot_takes_all = true;
        } else if (!notation_is_at(r, 'u')) {
            return notation_refuse(r, "the flag %c is not supported: use i and s", *r->rest.ptr);
        }
    }
    return ST_OK;
}

static enum status read_regex(struct reader *r, struct piece *out) {
    struct regex_rules how = {.form = r->spelling.form, .is_whole = true};
    struct str source;
    enum status st = notation_until(r, '/', &source);

    if (st == ST_OK) st = read_flags(r, &how);
    return st == ST_OK ? parse_regex(r, source, &how, out) : st;
}

/* The characters of a string, escapes read, as a pattern that matches them alone. */
static enum status quote(struct reader *r, struct str s, struct buf *pattern) {
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];

        if (c == '\\' && i + 1 < s.len) {
            buf_append(pattern, s.ptr + i++, 2); /* \n, \x41, \" mean there what they do here */
        } else {
            if (strchr(".*+?()[]{}|^$/", c)) buf_append_char(pattern, '\\');
            buf_append_char(pattern, c);
        }
    }
    if (buf_len(pattern) <= REGEX_MAX_BYTES) return ST_OK;
    return notation_refuse(r, "a string has more than %u bytes", REGEX_MAX_BYTES);
}

static enum status read_string(struct reader *r, struct piece *out) {
    struct regex_rules how = {.form = r->spelling.form, .is_whole = true};
    struct str s, last;
    struct buf pattern;
    enum status st = notation_until(r, '"', &s);

    if (st != ST_OK) return st;
    buf_init(&pattern, 0);
    if (str_starts(r->rest, STR("..\""))) {
        notation_skip(r, 3);
        st = notation_until(r, '"', &last);
        if (st == ST_OK) buf_appendf(&pattern, "[%.*s-%.*s]", STR_ARG(s), STR_ARG(last));
    } else {
        st = read_flags(r, &how);
        if (st == ST_OK) st = quote(r, s, &pattern);
    }
    if (st == ST_OK)
        st = parse_regex(r, buf_len(&pattern) ? buf_str(&pattern) : STR(""), &how, out);
    exprs_note(r->exprs, &pattern);
    buf_fini(&pattern);
    return st;
}

/* <|name|> or <[id]>, behind the <. */
static enum status read_token(struct reader *r, struct piece *out) {
    struct str name = {r->rest.ptr - 1, 0}, digits;
    const struct vocabulary_marker *found;
    uint64_t id = UINT64_MAX;

    if (r->spelling.form == CHARS_IN_JSON)
        return notation_refuse(r, "a special token cannot stand in a JSON string");
    if (notation_take(r, "[")) {
        digits = notation_peek_name(r);
        notation_skip(r, digits.len);
        if (str_to_u64(digits, &id) != ST_OK || !notation_take(r, "]>") ||
            id >= r->vocabulary->n_tokens ||
            (vocabulary_bytes(r->vocabulary, (uint32_t)id).len > 0 &&
             !vocabulary_marker_of(r->vocabulary, id)))
            return notation_refuse(r, "<[id]> must have the id of a special token");
        *out = (struct piece){.s = symbol_of(SYMBOL_TOKEN, (uint32_t)id)};
        return ST_OK;
    }
    while (name.len < r->rest.len + 1 && name.ptr[name.len] != '>' && name.ptr[name.len] != '\n')
        name.len++;
    if (name.len == r->rest.len + 1 || name.ptr[name.len] != '>')
        return notation_refuse(r, "a > is missing");
    name.len++;
    if ((found = vocabulary_find_marker(r->vocabulary, name)) == NULL)
        return notation_refuse(r, "the model has no special token %.*s", (int)MIN(name.len, 60),
                               name.ptr);
    notation_skip(r, name.len - 1);
    *out = (struct piece){.s = symbol_of(SYMBOL_TOKEN, found->id)};
    return ST_OK;
}

static enum status read_optional(struct reader *r, struct piece *out) {
    symbol s;
    enum status st;

    if (++r->depth > NOTATION_MAX_DEPTH) return notation_refuse(r, "groups are nested too deeply");
    st = notation_alternatives(r, out);
    r->depth--;
    if (st != ST_OK) return st;
    if (!notation_take(r, "]")) return notation_refuse(r, "a ] is missing");
    s = notation_symbol(r, out);
    *out = (struct piece){.s = rules_add(r->rules)};
    rules_produce_loop(r->rules, out->s, &s, 1, 0, 1);
    return ST_OK;
}

/* What may be ignored comes behind a terminal, once it is a symbol of a rule. */
static void add_ignored(struct reader *r, struct piece *p) {
    symbol both[2] = {notation_symbol(r, p), r->ignore};

    if (r->ignore == 0 || r->is_in_terminal) return;
    *p = (struct piece){.s = rules_sequence(r->rules, both, 2)};
}

static bool is_terminal(struct str name) {
    for (size_t i = 0; i < name.len; i++)
        if (name.ptr[i] != '_') return name.ptr[i] >= 'A' && name.ptr[i] <= 'Z';
    return false;
}

static enum status read_atom(struct reader *r, struct piece *out) {
    struct str name = notation_peek_name(r);
    enum status st = ST_OK;
    bool ends_terminal = true;

    if (notation_take(r, "->")) { /* an alias */
        notation_skip_space(r);
        notation_skip(r, notation_peek_name(r).len);
        *out = notation_text(EXPR_EMPTY);
        return ST_OK;
    }
    if (notation_take(r, "[")) return read_optional(r, out);
    if (notation_take(r, "\"")) {
        st = read_string(r, out);
    } else if (notation_take(r, "/")) {
        st = read_regex(r, out);
    } else if (notation_take(r, "<")) {
        st = read_token(r, out);
    } else if (name.len > 0 && name.ptr[0] != '-') {
        if (r->n_names >= NOTATION_MAX_NAMES) return notation_refuse(r, "too many rules");
        *out = (struct piece){.s = notation_name(r, name)->rule};
        notation_skip(r, name.len);
        ends_terminal = is_terminal(name);
        if (notation_is_at(r, '{') && r->rest.len > 1 && !strchr("0123456789,", r->rest.ptr[1]))
            return notation_refuse(r, "templates are not supported");
    } else {
        return ST_AGAIN;
    }
    if (st == ST_OK && ends_terminal) add_ignored(r, out);
    return st;
}

static const struct notation_syntax lark = {
    .comment = {"//", "#"}, .define = ":", .atom = read_atom, .is_end = is_rule_end};

/* --- statements ------------------------------------------------------------------------------- */

static enum status define(struct reader *r, struct str name, struct name **out) {
    *out = notation_name(r, name);
    if ((*out)->is_defined)
        return notation_refuse(r, "\"%.*s\" is defined twice", (int)MIN(name.len, 60), name.ptr);
    (*out)->is_defined = true;
    return ST_OK;
}

static enum status import_one(struct reader *r, struct str from, struct str as) {
    struct regex_rules how = {.form = r->spelling.form, .is_whole = true};
    struct name *n;
    struct piece p;
    symbol s;
    enum status st;

    for (size_t i = 0; i < ARRAY_LEN(common); i++) {
        if (!str_eq(from, str_of(common[i].name))) continue;
        if ((st = define(r, as, &n)) != ST_OK) return st;
        if ((st = parse_regex(r, str_of(common[i].pattern), &how, &p)) != ST_OK) return st;
        s = notation_symbol(r, &p);
        rules_produce(r->rules, n->rule, &s, 1);
        return ST_OK;
    }
    return notation_refuse(r, "%%import: common has no %.*s here", (int)MIN(from.len, 60),
                           from.ptr);
}

/* %import common.INT, %import common.INT -> NUMBER, %import common (INT, WS) */
static enum status read_import(struct reader *r) {
    struct str from, as;
    bool is_list;
    enum status st;

    notation_skip_space(r);
    if (!notation_take(r, "common")) return notation_refuse(r, "%%import is supported from common");
    notation_skip_space(r);
    is_list = notation_take(r, "(");
    if (!is_list && !notation_take(r, "."))
        return notation_refuse(r, "%%import must name terminals");
    do {
        notation_skip_space(r);
        as = from = notation_peek_name(r);
        notation_skip(r, from.len);
        notation_skip_space(r);
        if (!is_list && notation_take(r, "->")) {
            notation_skip_space(r);
            as = notation_peek_name(r);
            notation_skip(r, as.len);
        }
        if ((st = import_one(r, from, as)) != ST_OK) return st;
    } while (is_list && notation_take(r, ","));
    if (is_list && !notation_take(r, ")")) return notation_refuse(r, "a ) is missing");
    return ST_OK;
}

static enum status read_ignore(struct reader *r) {
    struct piece p;
    symbol s;
    enum status st;

    r->is_in_terminal = true;
    st = notation_alternatives(r, &p);
    r->is_in_terminal = false;
    if (st != ST_OK) return st;
    s = notation_symbol(r, &p);
    rules_produce_loop(r->rules, r->ignore, &s, 1, 0, EXPR_FOREVER);
    return ST_OK;
}

static enum status read_statement(struct reader *r) {
    struct str name;
    struct name *n;
    enum status st;

    if (notation_take(r, "%ignore")) return read_ignore(r);
    if (notation_take(r, "%import")) return read_import(r);
    if (notation_is_at(r, '%'))
        return notation_refuse(r, "unsupported statement: supported are %%ignore and %%import");
    if (!read_head(r, &name)) return notation_refuse(r, "a rule must begin with its name and :");
    if ((st = define(r, name, &n)) != ST_OK) return st;
    r->is_in_terminal = is_terminal(name);
    st = notation_body(r, n->rule);
    r->is_in_terminal = false;
    return st;
}

enum status notation_lark(symbol *start, struct rules *rules, struct str text,
                          const struct vocabulary *vocabulary,
                          const struct notation_spelling *spelling, struct error *err) {
    struct reader r;
    symbol first[2];
    enum status st = ST_OK;

    notation_init(&r, &lark, rules, text, spelling, err);
    r.vocabulary = vocabulary;
    if (!str_is_utf8(text) || memchr(text.ptr, '\0', text.len))
        st = error_set(err, ST_INVALID, "the grammar is not UTF-8, or has a NUL");
    if (str_find(text, STR("%ignore")) >= 0) r.ignore = rules_add(rules);
    notation_skip_space(&r);
    while (st == ST_OK && r.rest.len > 0 && exprs_pay(r.exprs, 1)) {
        st = read_statement(&r);
        notation_skip_space(&r);
    }
    if (st == ST_OK) st = notation_finish(&r, "start", &first[1]);
    notation_fini(&r);
    if (st != ST_OK) return st;
    first[0] = r.ignore;
    *start = r.ignore ? rules_sequence(rules, first, 2) : first[1];
    return ST_OK;
}

/* worker/text/template/jinja_lex.c - source to tokens, white space control included.
 *
 * As Jinja with trim_blocks and lstrip_blocks: the first line end after a block or a comment is
 * dropped, and so are the blanks between the start of a line and a block or a comment; `-` at a tag
 * strips all white space on its side, `+` none. One line end at the very end of the source is
 * dropped, and every kind of line end becomes \n. */
#include <stdlib.h>

#include "worker/text/template/jinja_internal.h"
#include "worker/text/unicode/unicode.h"

struct lexer {
    const char *p, *end;
    uint32_t line;
    bool at_line_start; /* the text begins a line, or follows a line end that a tag swallowed */
    struct arena *arena;
    struct jinja_token *tokens;
    size_t n, cap;
    struct error *err;
};

static enum status fail(struct lexer *l, const char *what) {
    return error_set(l->err, ST_INVALID, "chat template, line %u: %s", l->line, what);
}

static struct jinja_token *add(struct lexer *l, enum jinja_token_kind kind, struct str text) {
    struct jinja_token *t;

    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        struct jinja_token *grown = arena_alloc(l->arena, cap * sizeof(*grown));

        if (l->n) memcpy(grown, l->tokens, l->n * sizeof(*grown));
        l->tokens = grown;
        l->cap = cap;
    }
    t = &l->tokens[l->n++];
    t->kind = kind;
    t->line = l->line;
    t->text = text;
    return t;
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void advance(struct lexer *l, size_t n) {
    for (; n > 0; n--)
        l->line += *l->p++ == '\n';
}

static bool follows(const struct lexer *l, const char *s) {
    return str_starts((struct str){l->p, (size_t)(l->end - l->p)}, str_of(s));
}

/* --- inside a tag ------------------------------------------------------------------------------*/
static bool is_name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static uint32_t hex_digits(const char *p, const char *end, uint32_t n, bool *is_ok) {
    uint32_t v = 0;

    *is_ok = (size_t)(end - p) >= n;
    for (uint32_t i = 0; i < n && *is_ok; i++) {
        int digit = str_hex_value((unsigned char)p[i]);

        *is_ok = digit >= 0;
        v = v << 4 | (uint32_t)digit;
    }
    return v;
}

/* One escape after its backslash at p; writes at most 4 bytes. An unknown one stands for itself. */
static const char *unescape(const char *p, const char *end, char *out, uint32_t *n) {
    static const char from[] = "ntrbfav\\'\"0", to[] = "\n\t\r\b\f\a\v\\'\"\0";
    const char *simple = memchr(from, *p, sizeof(from) - 1);
    uint32_t digits = *p == 'x' ? 2 : *p == 'u' ? 4 : *p == 'U' ? 8 : 0, cp;
    bool is_ok;

    if (simple) {
        *out = to[simple - from];
        *n = 1;
        return p + 1;
    }
    if (*p == '\n') {
        *n = 0;
        return p + 1;
    }
    cp = digits ? hex_digits(p + 1, end, digits, &is_ok) : 0;
    if (digits && is_ok && cp <= 0x10FFFF && (cp < 0xD800 || cp > 0xDFFF)) {
        *n = unicode_encode(cp, out);
        return p + 1 + digits;
    }
    out[0] = '\\';
    out[1] = *p;
    *n = 2;
    return p + 1;
}

static enum status lex_string(struct lexer *l) {
    char quote = *l->p, *out;
    const char *p = l->p + 1;
    size_t n = 0;

    while (p < l->end && *p != quote)
        p += *p == '\\' ? 2 : 1;
    if (p >= l->end) return fail(l, "unterminated string");
    /* An escape never becomes longer than it was. */
    out = arena_alloc(l->arena, (size_t)(p - l->p) + 4);
    for (const char *q = l->p + 1; q < p;) {
        uint32_t n_out = 1;

        if (*q == '\\') {
            q = unescape(q + 1, p, out + n, &n_out);
        } else {
            out[n] = *q++;
        }
        n += n_out;
    }
    add(l, TOK_STRING, (struct str){out, n});
    advance(l, (size_t)(p + 1 - l->p));
    return ST_OK;
}

static enum status lex_number(struct lexer *l) {
    char digits[64];
    const char *p = l->p;
    size_t n = 0;
    bool is_float = false;
    struct jinja_token *t;
    uint64_t value;

    while (p < l->end && n < sizeof(digits) - 1) {
        bool is_exponent =
            (*p == 'e' || *p == 'E') && p + 1 < l->end &&
            (is_digit(p[1]) || (p + 2 < l->end && (p[1] == '-' || p[1] == '+') && is_digit(p[2])));
        bool is_point = *p == '.' && p + 1 < l->end && is_digit(p[1]);

        if (is_exponent) {
            digits[n++] = *p++;
            if (!is_digit(*p)) digits[n++] = *p++;
        } else if (is_digit(*p) || is_point) {
            digits[n++] = *p++;
        } else if (*p == '_' && p + 1 < l->end && is_digit(p[1])) {
            p++;
        } else {
            break;
        }
        is_float = is_float || is_exponent || is_point;
    }
    digits[MIN(n, sizeof(digits) - 1)] = '\0';
    if (n >= sizeof(digits) - 2) return fail(l, "a number is too long");
    t = add(l, is_float ? TOK_FLOAT : TOK_INT, (struct str){l->p, (size_t)(p - l->p)});
    if (is_float) {
        t->number = strtod(digits, NULL);
    } else if (str_to_u64((struct str){digits, n}, &value) == ST_OK && value <= INT64_MAX) {
        t->integer = (int64_t)value;
    } else {
        return fail(l, "an integer exceeds 64 bits");
    }
    l->p = p;
    return ST_OK;
}

static enum status lex_operator(struct lexer *l) {
    static const char *const ops[] = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "*",
                                      "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                      "]",  "{",  "}",  ",",  ".",  ":",  "|"};

    for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
        if (!follows(l, ops[i])) continue;
        add(l, TOK_OP, str_of(ops[i]));
        advance(l, strlen(ops[i]));
        return ST_OK;
    }
    return fail(l, "unexpected character");
}

/* Tokens up to the closing `close` ("}}" or "%}"), which is left in place, its sign too. */
static enum status lex_inside(struct lexer *l, const char *close) {
    uint32_t open_braces = 0;

    for (;;) {
        char c;

        while (l->p < l->end && is_space(*l->p))
            advance(l, 1);
        if (l->p >= l->end) return fail(l, "unterminated tag");
        c = *l->p;
        if (!open_braces) {
            if (follows(l, close)) return ST_OK;
            if ((c == '-' || c == '+') &&
                str_starts((struct str){l->p + 1, (size_t)(l->end - l->p - 1)}, str_of(close))) {
                return ST_OK;
            }
        }
        if (c == '{') open_braces++;
        if (c == '}' && open_braces) open_braces--;
        if (is_name_start(c)) {
            const char *from = l->p;

            while (l->p < l->end && (is_name_start(*l->p) || is_digit(*l->p)))
                l->p++;
            add(l, TOK_NAME, (struct str){from, (size_t)(l->p - from)});
        } else if (is_digit(c)) {
            TRY(lex_number(l));
        } else if (c == '"' || c == '\'') {
            TRY(lex_string(l));
        } else {
            TRY(lex_operator(l));
        }
    }
}

/* --- between tags ------------------------------------------------------------------------------*/
/* The text up to a tag that begins with `sign` ('-', '+' or another character). */
static void add_text(struct lexer *l, const char *from, const char *to, char sign, bool is_block) {
    if (sign == '-') {
        while (to > from && is_space(to[-1]))
            to--;
    } else if (sign != '+' && is_block) {
        const char *line = to;

        while (line > from && is_space(line[-1]) && line[-1] != '\n')
            line--;
        if (line > from ? line[-1] == '\n' : l->at_line_start) to = line;
    }
    if (to > from) add(l, TOK_TEXT, (struct str){from, (size_t)(to - from)});
}

/* Past the end of a tag, whose sign is `sign`, and past the white space it strips. */
static void after_tag(struct lexer *l, char sign, bool is_block) {
    const char *before = l->p;

    if (sign == '-') {
        while (l->p < l->end && is_space(*l->p))
            advance(l, 1);
    } else if (is_block && sign != '+' && l->p < l->end && *l->p == '\n') {
        advance(l, 1);
    }
    l->at_line_start = l->p > before && l->p[-1] == '\n';
}

static enum status skip_comment(struct lexer *l) {
    char sign;

    while (l->p < l->end && !follows(l, "#}"))
        advance(l, 1);
    if (l->p >= l->end) return fail(l, "unterminated comment");
    sign = l->p[-1];
    advance(l, 2);
    after_tag(l, sign, true);
    return ST_OK;
}

static enum status lex_tag(struct lexer *l, char kind) {
    bool is_block = kind == '%';
    char sign = '\0';

    advance(l, 2);
    if (l->p < l->end && (*l->p == '-' || *l->p == '+')) advance(l, 1);
    if (kind == '#') return skip_comment(l);
    add(l, is_block ? TOK_BLOCK_BEGIN : TOK_VAR_BEGIN, STR_NULL);
    TRY(lex_inside(l, is_block ? "%}" : "}}"));
    if (*l->p == '-' || *l->p == '+') {
        sign = *l->p;
        advance(l, 1);
    }
    add(l, is_block ? TOK_BLOCK_END : TOK_VAR_END, STR_NULL);
    advance(l, 2);
    after_tag(l, sign, is_block);
    return ST_OK;
}

/* A copy with every line end as \n, and without the last one. */
static struct str normalize(struct str s, struct arena *arena) {
    char *out = arena_alloc(arena, s.len + 1);
    size_t n = 0;

    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] == '\r') {
            if (i + 1 < s.len && s.ptr[i + 1] == '\n') i++;
            out[n++] = '\n';
        } else {
            out[n++] = s.ptr[i];
        }
    }
    if (n && out[n - 1] == '\n') n--;
    return (struct str){out, n};
}

enum status jinja_lex(struct str source, struct arena *arena, struct jinja_token **out,
                      struct error *err) {
    struct str s = normalize(source, arena);
    struct lexer l = {.p = s.ptr,
                      .end = s.ptr + s.len,
                      .line = 1,
                      .at_line_start = true,
                      .arena = arena,
                      .err = err};

    while (l.p < l.end) {
        const char *from = l.p;
        char sign;

        while (l.p < l.end && !follows(&l, "{{") && !follows(&l, "{%") && !follows(&l, "{#")) {
            l.p++;
        }
        sign = l.end - l.p > 2 ? l.p[2] : '\0';
        add_text(&l, from, l.p, l.p < l.end ? sign : '+', l.p < l.end && l.p[1] != '{');
        for (const char *c = from; c < l.p; c++)
            l.line += *c == '\n';
        if (l.p < l.end) TRY(lex_tag(&l, l.p[1]));
    }
    add(&l, TOK_END, STR_NULL);
    *out = l.tokens;
    return ST_OK;
}

/* worker/output/arguments/arguments_literal.c - values in JSON's, Python's and Gemma's notation,
 * byte by byte, as JSON.
 *
 *      Python   x=1, s='a', l=[None, {'k': True}])
 *      Gemma    {x:1,s:<|"|>a<|"|>,l:[null,{k:true}]}
 *
 * One machine: the notations differ in quotes, in words, and in which keys have quotes. Nesting is
 * a bit per level. */
#include "common/text/json.h"
#include "worker/output/arguments/arguments_internal.h"

void literal_init(struct literal *l, enum literal_kind kind) {
    *l = (struct literal){.kind = kind};
    buf_init(&l->word, 0);
    if (kind != LITERAL_PYTHON) return;
    l->depth = 1; /* the parentheses are a container */
    l->is_object = 1;
    l->at = LITERAL_FIRST;
}

void literal_fini(struct literal *l) {
    buf_fini(&l->word);
}

static bool is_in_object(const struct literal *l) {
    return l->depth > 0 && (l->is_object >> (l->depth - 1) & 1);
}

static bool is_in_call(const struct literal *l) {
    return l->kind == LITERAL_PYTHON && l->depth == 1;
}

/* --- words ------------------------------------------------------------------------------------ */

static size_t count_digits(struct str s, size_t from) {
    size_t n = 0;

    while (from + n < s.len && s.ptr[from + n] >= '0' && s.ptr[from + n] <= '9')
        n++;
    return n;
}

/* JSON's numbers, and of Python `+1`, `1.` and `.5`. */
static bool put_number(struct str s, bool is_python, struct buf *out) {
    size_t before = buf_len(out), i = 0, whole, n;

    if (s.len > 0 && (s.ptr[0] == '-' || (is_python && s.ptr[0] == '+'))) i++;
    if (i && s.ptr[0] == '-') buf_append_char(out, '-');
    whole = count_digits(s, i);
    if (whole > 1 && s.ptr[i] == '0') goto no;
    if (whole == 0 && (!is_python || count_digits(s, i + 1) == 0)) goto no;
    buf_append_str(out, whole ? (struct str){s.ptr + i, whole} : STR("0"));
    i += whole;
    if (i < s.len && s.ptr[i] == '.') {
        n = count_digits(s, ++i);
        if (n == 0 && !is_python) goto no;
        buf_append_char(out, '.');
        buf_append_str(out, n ? (struct str){s.ptr + i, n} : STR("0"));
        i += n;
    } else if (whole == 0) {
        goto no;
    }
    if (i < s.len && (s.ptr[i] | 0x20) == 'e') {
        size_t from = i++;

        if (i < s.len && (s.ptr[i] == '+' || s.ptr[i] == '-')) i++;
        n = count_digits(s, i);
        if (n == 0) goto no;
        i += n;
        buf_append_str(out, (struct str){s.ptr + from, i - from});
    }
    if (i == s.len) return true;
no:
    buf_truncate(out, before);
    return false;
}

static struct str trim_word(const struct literal *l) {
    struct str s = buf_str(&l->word);

    while (s.len > 0 && is_blank((unsigned char)s.ptr[s.len - 1]))
        s.len--;
    return s;
}

/* Ends a value without quotes; false if that is none. */
static bool end_word(struct literal *l, struct buf *out) {
    static const struct {
        struct str text, json;
        bool is_python;
    } words[] = {
        {STR("true"), STR("true"), false},  {STR("false"), STR("false"), false},
        {STR("null"), STR("null"), false},  {STR("True"), STR("true"), true},
        {STR("False"), STR("false"), true}, {STR("None"), STR("null"), true},
    };
    struct str s = trim_word(l);
    bool is_python = l->kind == LITERAL_PYTHON, is_value = false;
    bool has_python = l->kind != LITERAL_JSON; /* Gemma's templates print null as None */

    for (size_t i = 0; i < ARRAY_LEN(words) && !is_value; i++) {
        is_value = str_eq(s, words[i].text) && (has_python || !words[i].is_python);
        if (is_value) buf_append_str(out, words[i].json);
    }
    is_value = is_value || put_number(s, is_python, out);
    if (!is_value && l->kind == LITERAL_GEMMA) {
        put_quoted_str(out, s);
        is_value = true;
    }
    out->has_failed |= l->word.has_failed;
    buf_clear(&l->word);
    l->at = LITERAL_AFTER;
    return is_value;
}

static bool is_in_word(const struct literal *l, unsigned char c) {
    if (l->kind == LITERAL_GEMMA) return c != ',' && c != '}' && c != ']';
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_' ||
           c == '.' || c == '+' || c == '-';
}

static bool is_in_name(const struct literal *l, unsigned char c) {
    if (l->kind == LITERAL_GEMMA) return !strchr(":,{}[]", c) || c == '\0';
    return c == '_' || c >= 0x80 || (c >= '0' && c <= '9') ||
           ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
}

static void word_append(struct literal *l, const struct symbols *symbols, unsigned char c) {
    buf_append_str(&l->word, symbols ? symbols_text(symbols, &c) : (struct str){(char *)&c, 1});
}

static bool end_name(struct literal *l, struct buf *out) {
    struct str s = trim_word(l);

    if (l->kind == LITERAL_GEMMA && s.len >= 2 && s.ptr[0] == '"' && s.ptr[s.len - 1] == '"')
        s = (struct str){s.ptr + 1, s.len - 2};
    if (s.len == 0) return false;
    put_quoted_str(out, s);
    out->has_failed |= l->word.has_failed;
    buf_clear(&l->word);
    l->at = LITERAL_KEY_END;
    return true;
}

/* --- strings ---------------------------------------------------------------------------------- */

static void begin_string(struct literal *l, unsigned char quote, struct buf *out) {
    l->quote_char = quote;
    l->high = 0;
    l->at = LITERAL_STRING;
    buf_append_char(out, '"');
}

static bool end_string(struct literal *l, struct buf *out) {
    buf_append_char(out, '"');
    l->at = l->is_key ? LITERAL_KEY_END : LITERAL_AFTER;
    l->is_key = false;
    return l->high == 0;
}

static void put_code(struct buf *out, uint32_t code) {
    if (code < 0x80) {
        put_escaped(out, (unsigned char)code);
    } else if (code < 0x800) {
        buf_append(out, (char[]){(char)(0xC0 | code >> 6), (char)(0x80 | (code & 0x3F))}, 2);
    } else if (code < 0x10000) {
        buf_append(out,
                   (char[]){(char)(0xE0 | code >> 12), (char)(0x80 | (code >> 6 & 0x3F)),
                            (char)(0x80 | (code & 0x3F))},
                   3);
    } else {
        buf_append(out,
                   (char[]){(char)(0xF0 | code >> 18), (char)(0x80 | (code >> 12 & 0x3F)),
                            (char)(0x80 | (code >> 6 & 0x3F)), (char)(0x80 | (code & 0x3F))},
                   4);
    }
}

/* The end of `\u0041` and the like. Halves of a pair must meet. */
static bool end_escape(struct literal *l, struct buf *out) {
    uint32_t code = l->code;
    bool is_high = code >= 0xD800 && code < 0xDC00, is_low = code >= 0xDC00 && code < 0xE000;

    l->at = LITERAL_STRING;
    if (code > 0x10FFFF || is_low != (l->high != 0)) return false;
    if (is_high) {
        l->high = code;
        return true;
    }
    if (is_low) code = 0x10000 + ((l->high - 0xD800) << 10 | (code - 0xDC00));
    l->high = 0;
    put_code(out, code);
    return true;
}

static void begin_digits(struct literal *l, unsigned n, unsigned base) {
    l->n_digits = n;
    l->base = base;
    l->code = 0;
    l->at = LITERAL_DIGITS;
}

static bool push_escape(struct literal *l, unsigned char c, struct buf *out) {
    static const char from[] = "\"\\/bfnrtav'", to[] = "\"\\/\b\f\n\r\t\a\v'";
    const char *at = c ? strchr(from, c) : NULL;
    bool is_python = l->kind == LITERAL_PYTHON;

    l->at = LITERAL_STRING;
    if (l->high && c != 'u') return false;
    if (c == 'u') {
        begin_digits(l, 4, 16);
    } else if (at && (c != '/' || !is_python) && (at < from + 8 || is_python)) {
        put_escaped(out, (unsigned char)to[at - from]);
    } else if (!is_python || c == 'N') {
        return false;
    } else if (c == 'x' || c == 'U') {
        begin_digits(l, c == 'x' ? 2 : 8, 16);
    } else if (c >= '0' && c <= '7') {
        begin_digits(l, 2, 8);
        l->code = c - '0';
    } else if (c != '\n') {
        put_escaped(out, '\\'); /* Python keeps what it does not know */
        put_escaped(out, c);
    }
    return true;
}

static enum arguments_state verdict(bool is_right) {
    return is_right ? ARGUMENTS_MORE : ARGUMENTS_BROKEN;
}

static enum arguments_state push_digit(struct literal *l, const struct symbols *symbols,
                                       unsigned char c, struct buf *out) {
    int value = str_hex_value(c);

    if (value < 0 || (unsigned)value >= l->base) {
        if (l->base != 8 || !end_escape(l, out)) return ARGUMENTS_BROKEN;
        return literal_push(l, symbols, c, out);
    }
    if (l->code > 0xFFFFFF) return ARGUMENTS_BROKEN;
    l->code = l->code * l->base + (unsigned)value;
    return verdict(--l->n_digits > 0 || end_escape(l, out));
}

static enum arguments_state push_in_string(struct literal *l, unsigned char c, struct buf *out) {
    if (l->kind == LITERAL_GEMMA && c == l->quote.byte[0]) {
        l->before_mark = LITERAL_STRING;
        l->n_mark = 1;
        if (l->quote.len == 1) return verdict(end_string(l, out));
        l->at = LITERAL_MARK;
        return ARGUMENTS_MORE;
    }
    if (l->kind != LITERAL_GEMMA) {
        if (c == l->quote_char) return verdict(end_string(l, out));
        if (c == '\\') {
            l->at = LITERAL_ESCAPE;
            return ARGUMENTS_MORE;
        }
        if (l->high || (l->kind == LITERAL_JSON && c < 0x20)) return ARGUMENTS_BROKEN;
    }
    put_escaped(out, c);
    return ARGUMENTS_MORE;
}

/* Inside of Gemma's quote: it is whole, or what was read of it is text. */
static enum arguments_state push_mark(struct literal *l, const struct symbols *symbols,
                                      unsigned char c, struct buf *out) {
    if (c == l->quote.byte[l->n_mark]) {
        if (++l->n_mark < l->quote.len) return ARGUMENTS_MORE;
        if (l->before_mark == LITERAL_STRING) return verdict(end_string(l, out));
        begin_string(l, 0, out);
        return ARGUMENTS_MORE;
    }
    l->at = l->before_mark;
    for (uint32_t i = 0; i < l->n_mark; i++) {
        if (l->at == LITERAL_STRING) {
            put_escaped(out, l->quote.byte[i]);
        } else {
            word_append(l, symbols, l->quote.byte[i]);
        }
    }
    return literal_push(l, symbols, c, out);
}

/* --- structure -------------------------------------------------------------------------------- */

static bool begin_container(struct literal *l, bool is_object, struct buf *out) {
    if (l->depth == ARGUMENTS_MAX_DEPTH) return false;
    l->is_object &= ~(1ull << l->depth);
    l->is_object |= (uint64_t)is_object << l->depth;
    l->depth++;
    l->at = LITERAL_FIRST;
    buf_append_char(out, is_object ? '{' : '[');
    return true;
}

static bool is_end(const struct literal *l, unsigned char c) {
    if (l->depth == 0) return false;
    return c == (is_in_call(l) ? ')' : is_in_object(l) ? '}' : ']');
}

static enum arguments_state end_container(struct literal *l, struct buf *out) {
    buf_append_char(out, is_in_object(l) ? '}' : ']');
    l->depth--;
    l->at = LITERAL_AFTER;
    return l->depth == 0 && l->kind != LITERAL_JSON ? ARGUMENTS_DONE : ARGUMENTS_MORE;
}

/* A byte that begins a key or a value. */
static bool begin_item(struct literal *l, const struct symbols *symbols, unsigned char c,
                       bool is_key, struct buf *out) {
    bool is_quote = c == '"' || (c == '\'' && l->kind == LITERAL_PYTHON);

    l->is_key = is_key;
    if (l->kind == LITERAL_GEMMA && c == l->quote.byte[0]) {
        l->before_mark = is_key ? LITERAL_NAME : LITERAL_WORD;
        l->at = LITERAL_MARK;
        l->n_mark = 1;
        if (l->quote.len == 1) begin_string(l, 0, out);
        return true;
    }
    if (l->kind != LITERAL_GEMMA && is_quote && !(is_key && is_in_call(l))) {
        begin_string(l, c, out);
        return true;
    }
    if (is_key) {
        bool has_names = l->kind == LITERAL_GEMMA || is_in_call(l);

        if (!has_names || !is_in_name(l, c) || (is_in_call(l) && c >= '0' && c <= '9'))
            return false;
        l->at = LITERAL_NAME;
    } else {
        if (c == '{' || c == '[') return begin_container(l, c == '{', out);
        if (!is_in_word(l, c)) return false;
        l->at = LITERAL_WORD;
    }
    word_append(l, symbols, c);
    return true;
}

/* Between keys, values, commas and brackets. */
static enum arguments_state push_between(struct literal *l, const struct symbols *symbols,
                                         unsigned char c, struct buf *out) {
    switch (l->at) {
    case LITERAL_TOP:
        if (l->kind == LITERAL_JSON) return verdict(begin_item(l, symbols, c, false, out));
        return verdict(c == '{' && begin_container(l, true, out));
    case LITERAL_NEXT:
        if (is_end(l, c)) return l->kind == LITERAL_JSON ? ARGUMENTS_BROKEN : end_container(l, out);
        buf_append_str(out, STR(", "));
        return verdict(begin_item(l, symbols, c, is_in_object(l), out));
    case LITERAL_FIRST:
        if (is_end(l, c)) return end_container(l, out);
        return verdict(begin_item(l, symbols, c, is_in_object(l), out));
    case LITERAL_KEY_END:
        if (c != (is_in_call(l) ? '=' : ':')) return ARGUMENTS_BROKEN;
        buf_append_str(out, STR(": "));
        l->at = LITERAL_VALUE;
        return ARGUMENTS_MORE;
    case LITERAL_VALUE: return verdict(begin_item(l, symbols, c, false, out));
    default: /* LITERAL_AFTER */
        if (is_end(l, c)) return end_container(l, out);
        if (c != ',' || l->depth == 0) return ARGUMENTS_BROKEN;
        l->at = LITERAL_NEXT;
        return ARGUMENTS_MORE;
    }
}

enum arguments_state literal_push(struct literal *l, const struct symbols *symbols, unsigned char c,
                                  struct buf *out) {
    switch (l->at) {
    case LITERAL_STRING: return push_in_string(l, c, out);
    case LITERAL_ESCAPE: return verdict(push_escape(l, c, out));
    case LITERAL_DIGITS: return push_digit(l, symbols, c, out);
    case LITERAL_MARK: return push_mark(l, symbols, c, out);
    case LITERAL_WORD:
        if (is_in_word(l, c)) {
            word_append(l, symbols, c);
            return ARGUMENTS_MORE;
        }
        if (!end_word(l, out)) return ARGUMENTS_BROKEN;
        break;
    case LITERAL_NAME:
        if (is_in_name(l, c)) {
            word_append(l, symbols, c);
            return ARGUMENTS_MORE;
        }
        if (!end_name(l, out)) return ARGUMENTS_BROKEN;
        break;
    default: break;
    }
    return is_blank(c) ? ARGUMENTS_MORE : push_between(l, symbols, c, out);
}

bool literal_convert(struct str text, struct buf *out) {
    size_t before = buf_len(out);
    enum arguments_state st = ARGUMENTS_MORE;
    struct literal l;
    bool is_value;

    literal_init(&l, LITERAL_JSON);
    for (size_t i = 0; i < text.len && st == ARGUMENTS_MORE; i++)
        st = literal_push(&l, NULL, (unsigned char)text.ptr[i], out);
    is_value = st == ARGUMENTS_MORE && (l.at != LITERAL_WORD || end_word(&l, out)) &&
               l.at == LITERAL_AFTER && l.depth == 0;
    if (!is_value) buf_truncate(out, before);
    literal_fini(&l);
    return is_value;
}

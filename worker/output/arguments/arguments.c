/* worker/output/arguments/arguments.c - one call: its text as whole characters, its markers as
 * symbols, one of two machines behind them. */
#include "worker/output/arguments/arguments.h"

#include <assert.h>

#include "common/base/mem.h"
#include "common/text/json.h"
#include "worker/output/arguments/arguments_internal.h"

struct arguments {
    enum arguments_style style;
    struct symbols symbols;
    struct tags *tags; /* of the styles with tags; else NULL */
    struct literal literal;
    struct buf held; /* of pythonic */
    unsigned char character[4];
    uint32_t n_character; /* bytes of a character that is not whole */
};

static const char *const style_names[] = {
    [ARGUMENTS_QWEN_XML] = "qwen_xml",
    [ARGUMENTS_SEED_XML] = "seed_xml",
    [ARGUMENTS_GLM_XML] = "glm_xml",
    [ARGUMENTS_MINIMAX_XML] = "minimax_xml",
    [ARGUMENTS_DEEPSEEK_XML] = "deepseek_xml",
    [ARGUMENTS_PYTHONIC] = "pythonic",
    [ARGUMENTS_GEMMA] = "gemma",
    [ARGUMENTS_FUNCTIONGEMMA] = "functiongemma",
};

bool arguments_style_find(struct str name, enum arguments_style *out) {
    for (size_t i = 0; i < ARRAY_LEN(style_names); i++) {
        if (str_eq(name, str_of(style_names[i]))) {
            *out = (enum arguments_style)i;
            return true;
        }
    }
    return false;
}

struct arguments *arguments_create(enum arguments_style style, const struct json *parameters,
                                   const char *const *tokens, uint32_t n) {
    struct arguments *a = mem_zalloc(sizeof(*a));

    assert(n <= ARGUMENTS_MAX_TOKENS);
    a->style = style;
    a->symbols = (struct symbols){.text = tokens, .n = n};
    buf_init(&a->held, 0);
    if (style == ARGUMENTS_PYTHONIC) {
        literal_init(&a->literal, LITERAL_PYTHON);
        buf_append_char(&a->held, '{');
    } else if (style == ARGUMENTS_GEMMA || style == ARGUMENTS_FUNCTIONGEMMA) {
        literal_init(&a->literal, LITERAL_GEMMA);
        symbols_spell(&a->symbols, style == ARGUMENTS_GEMMA ? "<|\"|>" : "<escape>",
                      &a->literal.quote);
    } else {
        a->tags = tags_create(style, parameters, &a->symbols);
    }
    return a;
}

void arguments_destroy(struct arguments *a) {
    if (!a) return;
    tags_destroy(a->tags);
    if (!a->tags) literal_fini(&a->literal);
    buf_fini(&a->held);
    mem_free(a);
}

static enum arguments_state push_byte(struct arguments *a, unsigned char c, struct buf *json) {
    enum arguments_state st;

    if (a->tags) return tags_push(a->tags, c, json);
    if (a->style == ARGUMENTS_PYTHONIC) {
        st = literal_push(&a->literal, NULL, c, &a->held);
        if (st == ARGUMENTS_DONE) buf_append_str(json, buf_str(&a->held));
        json->has_failed |= a->held.has_failed;
        return st;
    }
    st = literal_push(&a->literal, &a->symbols, c, json);
    return st == ARGUMENTS_BROKEN && a->literal.depth > 0 ? ARGUMENTS_CUT : st;
}

static enum arguments_state push_bytes(struct arguments *a, struct str bytes, struct buf *json) {
    enum arguments_state st = ARGUMENTS_MORE;

    for (size_t i = 0; i < bytes.len && st == ARGUMENTS_MORE; i++)
        st = push_byte(a, (unsigned char)bytes.ptr[i], json);
    return st;
}

/* --- characters ------------------------------------------------------------------------------- */

/* May these bytes begin a character that is longer? */
static bool is_beginning(const unsigned char *s, uint32_t n) {
    static const unsigned char low[] = {[0] = 0xA0, [0x10] = 0x90};
    unsigned char first = s[0], from = 0x80, to = 0xBF;
    uint32_t len = first >= 0xC2 && first <= 0xDF   ? 2
                   : first >= 0xE0 && first <= 0xEF ? 3
                   : first >= 0xF0 && first <= 0xF4 ? 4
                                                    : 0;

    if (n >= len) return false;
    if (first == 0xE0 || first == 0xF0) from = low[first - 0xE0];
    if (first == 0xED) to = 0x9F;
    if (first == 0xF4) to = 0x8F;
    return (n < 2 || (s[1] >= from && s[1] <= to)) && (n < 3 || (s[2] & 0xC0) == 0x80);
}

static enum arguments_state push_replacements(struct arguments *a, struct buf *json) {
    enum arguments_state st = ARGUMENTS_MORE;

    for (; a->n_character > 0 && st == ARGUMENTS_MORE; a->n_character--)
        st = push_bytes(a, STR("\xEF\xBF\xBD"), json);
    return st;
}

static enum arguments_state push_raw(struct arguments *a, unsigned char c, struct buf *json) {
    struct str character = {(const char *)a->character, 0};
    enum arguments_state st;

    if (c < 0x80 && a->n_character == 0) return push_byte(a, c, json);
    a->character[a->n_character++] = c;
    if (is_beginning(a->character, a->n_character)) return ARGUMENTS_MORE;
    character.len = a->n_character;
    if (str_utf8_len(character) == character.len) {
        a->n_character = 0;
        return push_bytes(a, character, json);
    }
    if (a->n_character == 1) return push_replacements(a, json);
    a->n_character--; /* what came before c is no character; c may begin one */
    st = push_replacements(a, json);
    return st == ARGUMENTS_MORE ? push_raw(a, c, json) : st;
}

/* --- pushing ---------------------------------------------------------------------------------- */

enum arguments_state arguments_push(struct arguments *a, struct str text, size_t *n_used,
                                    struct buf *json) {
    for (size_t i = 0; i < text.len; i++) {
        enum arguments_state st = push_raw(a, (unsigned char)text.ptr[i], json);

        if (st == ARGUMENTS_MORE) continue;
        if (st == ARGUMENTS_DONE && a->style != ARGUMENTS_PYTHONIC) {
            *n_used = i + 1;
            return st;
        }
        while (i > 0 && ((unsigned char)text.ptr[i] & 0xC0) == 0x80)
            i--; /* the character that ended it is not used */
        *n_used = i;
        return st;
    }
    *n_used = text.len;
    return ARGUMENTS_MORE;
}

static enum arguments_state end(struct arguments *a, bool is_cut, struct buf *json) {
    if (a->tags) return tags_end(a->tags, is_cut, json);
    if (a->style == ARGUMENTS_PYTHONIC) {
        if (!is_cut) return ARGUMENTS_BROKEN;
        if (buf_len(&a->held) > 1) buf_append_str(json, buf_str(&a->held));
        return ARGUMENTS_CUT;
    }
    if (is_cut || a->literal.depth > 0) return ARGUMENTS_CUT;
    buf_append_str(json, STR("{}"));
    return ARGUMENTS_DONE;
}

enum arguments_state arguments_push_token(struct arguments *a, uint32_t i, bool *is_used,
                                          struct buf *json) {
    enum arguments_state st = push_replacements(a, json);

    assert(i < a->symbols.n);
    *is_used = false;
    if (st != ARGUMENTS_MORE) return st;
    if (!(a->symbols.is_known >> i & 1)) return end(a, false, json);
    st = push_byte(a, (unsigned char)(SYMBOL_FIRST + i), json);
    *is_used = st == ARGUMENTS_MORE || st == ARGUMENTS_DONE;
    return st;
}

enum arguments_state arguments_finish(struct arguments *a, bool is_cut, struct buf *json) {
    enum arguments_state st = is_cut ? ARGUMENTS_MORE : push_replacements(a, json);

    return st == ARGUMENTS_MORE ? end(a, is_cut, json) : st;
}

/* --- symbols and text ------------------------------------------------------------------------- */

static bool find_symbol(const struct symbols *s, struct str text, uint32_t *i) {
    for (uint32_t k = 0; k < s->n; k++) {
        if (!str_starts(text, str_of(s->text[k]))) continue;
        *i = k;
        return true;
    }
    return false;
}

void symbols_spell(struct symbols *s, const char *text, struct spelling *out) {
    struct str rest = text ? str_of(text) : STR_NULL;
    uint32_t i;

    out->len = 0;
    while (rest.len > 0) {
        bool is_symbol = find_symbol(s, rest, &i);
        size_t n = is_symbol ? strlen(s->text[i]) : 1;

        assert(out->len < sizeof(out->byte));
        out->byte[out->len++] =
            is_symbol ? (unsigned char)(SYMBOL_FIRST + i) : (unsigned char)rest.ptr[0];
        if (is_symbol) s->is_known |= 1u << i;
        rest = (struct str){rest.ptr + n, rest.len - n};
    }
}

struct str symbols_text(const struct symbols *s, const unsigned char *byte) {
    if (*byte >= SYMBOL_FIRST) return str_of(s->text[*byte - SYMBOL_FIRST]);
    return (struct str){(const char *)byte, 1};
}

void put_escaped(struct buf *out, unsigned char c) {
    if (c < 0x20 || c == '"' || c == '\\') {
        json_escape(out, (struct str){(const char *)&c, 1});
    } else {
        buf_append_char(out, (char)c);
    }
}

void put_quoted_str(struct buf *out, struct str text) {
    buf_append_char(out, '"');
    if (text.len > 0) json_escape(out, text);
    buf_append_char(out, '"');
}

/* worker/output/arguments/arguments_tags.c - keys and raw values between tags.
 *
 *      gap  key_open KEY key_end  value_open VALUE value_close  gap  key_open ...  call_close
 *
 * Nothing is escaped in a value, so a value may hold a closing tag: value_close ends it only where
 * the next key or the end of the call follows. What may be that is held, with the newline before
 * it:
 *
 *      VALUE ──\n or <──▶ MARK ──value_close──▶ GAP ──key_open──▶ the next key
 *        ▲                 │                     └───call_close──▶ done
 *        └── held is text ─┴── call_close ──▶ CALL_GAP ── the answer or section ends ──▶ done
 *
 * Models also leave value_close out: then key_open or call_close at the beginning of a line ends
 * the value, the latter where nothing of the call follows. A failed match gives the first byte
 * held back to the value and tries the rest; no byte is tried more than a few times, because
 * literals begin with a byte that they do not have again, and blanks begin nothing but a newline's
 * match that fails at once. */
#include <assert.h>

#include "common/base/mem.h"
#include "worker/output/arguments/arguments_internal.h"

enum tag { KEY_OPEN, KEY_END, VALUE_OPEN, VALUE_CLOSE, CALL_CLOSE, SECTION_CLOSE, N_TAGS };

struct tag_style {
    const char *text[N_TAGS];
    bool is_on_lines;    /* a value stands between two newlines that are not of it */
    bool is_anywhere;    /* key_open and call_close end a value inside of a line too */
    bool has_attributes; /* KEY is quoted, attributes follow */
};

#define DSML                                                                                       \
    "\xEF\xBD\x9C"                                                                                 \
    "DSML\xEF\xBD\x9C" /* with full-width bars */

static const struct tag_style tag_styles[] = {
    [ARGUMENTS_QWEN_XML] = {.text = {"<parameter=", ">", NULL, "</parameter>", "</function>",
                                     "</tool_call>"},
                            .is_on_lines = true},
    [ARGUMENTS_SEED_XML] = {.text = {"<parameter=", ">", NULL, "</parameter>", "</function>",
                                     "</seed:tool_call>"}},
    [ARGUMENTS_GLM_XML] = {.text = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
                                    "</tool_call>", NULL},
                           .is_anywhere = true},
    [ARGUMENTS_MINIMAX_XML] = {.text = {"<parameter name=", ">", NULL, "</parameter>", "</invoke>",
                                        "</minimax:tool_call>"},
                               .has_attributes = true},
    [ARGUMENTS_DEEPSEEK_XML] = {.text = {"<" DSML "parameter name=", ">", NULL,
                                         "</" DSML "parameter>", "</" DSML "invoke>", NULL},
                                .has_attributes = true},
};

enum phase {
    PHASE_BETWEEN, /* before a key */
    PHASE_KEY,
    PHASE_VALUE_OPEN,
    PHASE_VALUE_FIRST, /* before the first byte of a value */
    PHASE_VALUE,
    PHASE_MARK,
    PHASE_GAP,
    PHASE_CALL_GAP,
};

/* How a value is known: by its type. */
enum value { VALUE_STRING, VALUE_STRING_OR_NULL, VALUE_TYPED };

struct match { /* of tags that are still possible, after n bytes */
    unsigned tags;
    uint32_t n;
};

struct tags {
    const struct tag_style *style;
    const struct json *parameters;
    const struct symbols *symbols;
    struct spelling spelling[N_TAGS];
    enum phase phase;
    struct match match;
    bool has_begun; /* JSON was appended */
    enum value value;
    unsigned types;
    struct buf key, text; /* text: of a value that is not known yet */
    struct buf held;
    size_t n_tried; /* bytes of held that the phase has seen */
};

/* --- matching --------------------------------------------------------------------------------- */

#define BIT(tag)  (1u << (tag))
#define NEXT_TAGS (BIT(KEY_OPEN) | BIT(CALL_CLOSE) | BIT(SECTION_CLOSE))

/* Sets m->tags to those that go on with c, 0 if none does. Returns the one that is whole, or
 * N_TAGS. */
static enum tag match_push(const struct tags *t, struct match *m, unsigned char c) {
    unsigned left = 0;

    for (unsigned i = 0; i < N_TAGS; i++) {
        const struct spelling *s = &t->spelling[i];

        if (!(m->tags & BIT(i)) || m->n >= s->len || s->byte[m->n] != c) continue;
        if (m->n + 1 == s->len) return (enum tag)i;
        left |= BIT(i);
    }
    m->tags = left;
    m->n++;
    return N_TAGS;
}

static void enter(struct tags *t, enum phase phase, unsigned tags) {
    t->phase = phase;
    t->match = (struct match){.tags = tags};
}

static bool is_token(const struct symbols *s, const char *text) {
    for (uint32_t i = 0; text && i < s->n; i++)
        if (strcmp(s->text[i], text) == 0) return true;
    return false;
}

struct tags *tags_create(enum arguments_style style, const struct json *parameters,
                         struct symbols *symbols) {
    struct tags *t = mem_zalloc(sizeof(*t));

    assert(style < ARRAY_LEN(tag_styles));
    t->style = &tag_styles[style];
    t->parameters = parameters;
    t->symbols = symbols;
    for (unsigned i = 0; i < SECTION_CLOSE; i++)
        symbols_spell(symbols, t->style->text[i], &t->spelling[i]);
    if (!is_token(symbols, t->style->text[SECTION_CLOSE])) /* a token ends the call by itself */
        symbols_spell(symbols, t->style->text[SECTION_CLOSE], &t->spelling[SECTION_CLOSE]);
    enter(t, PHASE_BETWEEN, NEXT_TAGS);
    buf_init(&t->key, 0);
    buf_init(&t->text, 0);
    buf_init(&t->held, 0);
    return t;
}

void tags_destroy(struct tags *t) {
    if (!t) return;
    buf_fini(&t->key);
    buf_fini(&t->text);
    buf_fini(&t->held);
    mem_free(t);
}

/* --- keys and values -------------------------------------------------------------------------- */

static void append_text(struct buf *to, const struct tags *t, unsigned char c) {
    buf_append_str(to, symbols_text(t->symbols, &c));
}

static void put_key(struct tags *t, struct buf *out) {
    buf_append_str(out, t->has_begun ? STR(", ") : STR("{"));
    put_quoted_str(out, buf_str(&t->key));
    buf_append_str(out, STR(": "));
    t->has_begun = true;
}

static void begin_string(struct tags *t, struct buf *out) {
    put_key(t, out);
    buf_append_char(out, '"');
    t->value = VALUE_STRING;
}

/* The last character may not be whole yet, so json_escape will not do. */
static void put_text(struct buf *out, struct str s) {
    for (size_t i = 0; i < s.len; i++)
        put_escaped(out, (unsigned char)s.ptr[i]);
}

static void put_value(struct tags *t, unsigned char byte, struct buf *out) {
    struct str s = symbols_text(t->symbols, &byte);

    if (t->value == VALUE_STRING) {
        put_text(out, s);
        return;
    }
    buf_append_str(&t->text, s);
    if (t->value == VALUE_STRING_OR_NULL && !str_starts(STR("null"), buf_str(&t->text))) {
        begin_string(t, out);
        put_text(out, buf_str(&t->text));
        buf_clear(&t->text);
    }
}

static void end_value(struct tags *t, struct buf *out) {
    buf_clear(&t->held);
    if (t->value == VALUE_STRING) {
        buf_append_char(out, '"');
    } else {
        put_key(t, out);
        types_convert(t->types, buf_str(&t->text), out);
        out->has_failed |= t->text.has_failed;
        buf_clear(&t->text);
    }
    out->has_failed |= t->key.has_failed;
    buf_clear(&t->key);
}

/* The quotes and the attributes of a key; returns the value of `string`, or STR_NULL. */
static struct str split_key(struct tags *t) {
    struct str all = buf_str(&t->key), attribute;
    const char *end;
    ptrdiff_t at;
    char quote;

    if (all.len == 0 || (all.ptr[0] != '"' && all.ptr[0] != '\'')) return STR_NULL;
    quote = all.ptr[0];
    end = memchr(all.ptr + 1, quote, all.len - 1);
    if (!end) return STR_NULL;
    attribute = (struct str){end + 1, all.len - (size_t)(end + 1 - all.ptr)};
    at = str_find(attribute, STR("string=\""));
    buf_truncate(&t->key, (size_t)(end - all.ptr));
    buf_consume(&t->key, 1);
    return at < 0 ? STR_NULL : (struct str){attribute.ptr + at + 8, attribute.len - (size_t)at - 8};
}

static void begin_value(struct tags *t, struct buf *out) {
    struct str is_string = t->style->has_attributes ? split_key(t) : STR_NULL;

    t->types = types_of(t->parameters, buf_str(&t->key));
    if (str_starts(is_string, STR("true\""))) t->types = TYPE_STRING;
    if (str_starts(is_string, STR("false\""))) t->types = 0;
    t->value = t->types == (TYPE_STRING | TYPE_NULL) ? VALUE_STRING_OR_NULL : VALUE_TYPED;
    if (t->types == TYPE_STRING) begin_string(t, out);
    enter(t, PHASE_VALUE_FIRST, 0);
}

static enum arguments_state end_call(struct tags *t, struct buf *out) {
    buf_append_str(out, t->has_begun ? STR("}") : STR("{}"));
    return ARGUMENTS_DONE;
}

static enum arguments_state wrong(const struct tags *t) {
    return t->has_begun ? ARGUMENTS_CUT : ARGUMENTS_BROKEN;
}

/* --- outside of values ------------------------------------------------------------------------ */

/* Behind the first argument, what is no tag is skipped. */
static enum arguments_state push_between(struct tags *t, unsigned char c, struct buf *out) {
    struct match before = t->match;
    enum tag tag = match_push(t, &t->match, c);

    if (tag == KEY_OPEN) {
        enter(t, PHASE_KEY, BIT(KEY_END));
    } else if (tag != N_TAGS) {
        return end_call(t, out);
    } else if (!t->match.tags) {
        enter(t, PHASE_BETWEEN, NEXT_TAGS);
        if (before.n == 0 && is_blank(c)) return ARGUMENTS_MORE;
        if (!t->has_begun) return ARGUMENTS_BROKEN;
        if (before.n > 0) return push_between(t, c, out);
    }
    return ARGUMENTS_MORE;
}

static enum arguments_state push_key(struct tags *t, unsigned char c, struct buf *out) {
    struct match before = t->match;
    enum tag tag = match_push(t, &t->match, c);

    if (tag == KEY_END) {
        if (t->spelling[VALUE_OPEN].len > 0) {
            enter(t, PHASE_VALUE_OPEN, BIT(VALUE_OPEN));
        } else {
            begin_value(t, out);
        }
    } else if (!t->match.tags) {
        for (uint32_t i = 0; i < before.n; i++)
            append_text(&t->key, t, t->spelling[KEY_END].byte[i]);
        enter(t, PHASE_KEY, BIT(KEY_END));
        if (before.n > 0) return push_key(t, c, out);
        append_text(&t->key, t, c);
    }
    return ARGUMENTS_MORE;
}

static enum arguments_state push_value_open(struct tags *t, unsigned char c, struct buf *out) {
    if (t->match.n == 0 && is_blank(c)) return ARGUMENTS_MORE;
    if (match_push(t, &t->match, c) == VALUE_OPEN) {
        begin_value(t, out);
        return ARGUMENTS_MORE;
    }
    return t->match.tags ? ARGUMENTS_MORE : wrong(t);
}

/* --- values ----------------------------------------------------------------------------------- */

/* What may end a value: at the beginning of a line, or inside of it. */
static unsigned end_tags(const struct tags *t, bool is_line) {
    unsigned bare = BIT(KEY_OPEN) | BIT(CALL_CLOSE);
    bool has_close = !is_line || t->style->is_on_lines;

    return (has_close ? BIT(VALUE_CLOSE) : 0) | (is_line || t->style->is_anywhere ? bare : 0);
}

/* The value ended before `tag`, which was read. */
static enum arguments_state end_at(struct tags *t, enum tag tag, struct buf *out) {
    end_value(t, out);
    if (tag != KEY_OPEN) return end_call(t, out);
    enter(t, PHASE_KEY, BIT(KEY_END));
    return ARGUMENTS_MORE;
}

static enum arguments_state at_mark(struct tags *t, enum tag tag, struct buf *out) {
    bool is_token = t->spelling[tag].len == 1;

    if (tag == KEY_OPEN || (tag == CALL_CLOSE && is_token)) return end_at(t, tag, out);
    if (tag == VALUE_CLOSE && is_token) { /* certain: nothing is to be held */
        end_value(t, out);
        enter(t, PHASE_BETWEEN, NEXT_TAGS);
    } else if (tag == VALUE_CLOSE) {
        enter(t, PHASE_GAP, NEXT_TAGS);
    } else {
        enter(t, PHASE_CALL_GAP, BIT(SECTION_CLOSE));
    }
    return ARGUMENTS_MORE;
}

/* The first byte of what is held is text; the rest is tried again. */
static void release_byte(struct tags *t, struct buf *out) {
    put_value(t, (unsigned char)buf_ptr(&t->held)[0], out);
    buf_consume(&t->held, 1);
    t->n_tried = 0;
    enter(t, PHASE_VALUE, 0);
}

/* One byte that is the last tried of those held. */
static enum arguments_state try_byte(struct tags *t, unsigned char c, struct buf *out) {
    enum tag tag;

    if (t->phase == PHASE_VALUE) {
        enter(t, PHASE_MARK, end_tags(t, c == '\n'));
        if (c == '\n') return ARGUMENTS_MORE;
    } else if (t->phase != PHASE_MARK && t->match.n == 0 && is_blank(c)) {
        return ARGUMENTS_MORE;
    }
    tag = match_push(t, &t->match, c);
    if (tag == N_TAGS) {
        if (!t->match.tags) release_byte(t, out);
        return ARGUMENTS_MORE;
    }
    return t->phase == PHASE_MARK ? at_mark(t, tag, out) : end_at(t, tag, out);
}

static bool is_in_value(const struct tags *t) {
    return t->phase >= PHASE_VALUE;
}

static enum arguments_state push_value(struct tags *t, unsigned char c, struct buf *out) {
    enum arguments_state st = ARGUMENTS_MORE;

    if (t->phase == PHASE_VALUE && c != '\n' && c != '<' && c < SYMBOL_FIRST) {
        put_value(t, c, out);
        return ARGUMENTS_MORE;
    }
    buf_append_char(&t->held, (char)c);
    out->has_failed |= t->held.has_failed;
    while (is_in_value(t) && t->n_tried < buf_len(&t->held) && st == ARGUMENTS_MORE)
        st = try_byte(t, (unsigned char)buf_ptr(&t->held)[t->n_tried++], out);
    if (!is_in_value(t)) t->n_tried = 0;
    return st;
}

enum arguments_state tags_push(struct tags *t, unsigned char c, struct buf *out) {
    switch (t->phase) {
    case PHASE_BETWEEN: return push_between(t, c, out);
    case PHASE_KEY: return push_key(t, c, out);
    case PHASE_VALUE_OPEN: return push_value_open(t, c, out);
    case PHASE_VALUE_FIRST:
        enter(t, PHASE_VALUE, 0);
        if (t->style->is_on_lines && c == '\n') return ARGUMENTS_MORE;
        return push_value(t, c, out);
    default: return push_value(t, c, out);
    }
}

enum arguments_state tags_end(struct tags *t, bool is_cut, struct buf *out) {
    bool is_closed = t->phase == PHASE_GAP || t->phase == PHASE_CALL_GAP;

    if (t->phase == PHASE_MARK && !is_cut && t->style->is_on_lines &&
        str_eq(buf_str(&t->held), STR("\n")))
        is_closed = true;
    if (is_in_value(t) && !is_closed) {
        struct str held = buf_str(&t->held);

        for (size_t i = 0; i < held.len; i++)
            put_value(t, (unsigned char)held.ptr[i], out);
    }
    if (is_cut) {
        if (is_closed) end_value(t, out);
        return ARGUMENTS_CUT;
    }
    if (t->phase == PHASE_VALUE_FIRST || is_in_value(t)) {
        end_value(t, out);
    } else if (t->phase != PHASE_BETWEEN && !t->has_begun) {
        return ARGUMENTS_BROKEN;
    }
    return end_call(t, out);
}

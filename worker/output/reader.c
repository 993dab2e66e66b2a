/* worker/output/reader.c - text, reasoning, and the markers between them. */
#include "worker/output/reader.h"

#include <assert.h>

#include "worker/output/reader_internal.h"

static const unsigned char codes[READER_MAX_CODES] = {0xC0, 0xC1, 0xF5, 0xF6, 0xF7, 0xF8, 0xF9,
                                                      0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF};

uint32_t reader_code_number(const struct reader *r, char c) {
    uint32_t i = 0;

    while (i < r->n_codes && (unsigned char)c != codes[i])
        i++;
    return i;
}

struct str reader_code_text(const struct reader *r, char c) {
    uint32_t i = reader_is_code(c) ? reader_code_number(r, c) : r->n_codes;

    return i < r->n_codes ? r->code[i].text : STR_NULL;
}

/* --- the formats, in the alphabet of the reader ----------------------------------------------- */

static void add_code(struct reader *r, const char *text) {
    uint32_t id;

    if (!text || !output_model_find(r->setup->model, text, &id)) return;
    for (uint32_t i = 0; i < r->n_codes; i++)
        if (r->code[i].token == id) return;
    assert(r->n_codes < READER_MAX_CODES);
    r->code[r->n_codes++] = (struct code){str_of(text), id};
}

/* A text of a row, markers as their codes, without blanks at its ends. */
static struct str encode(struct reader *r, struct str text) {
    char *to = arena_alloc(&r->arena, text.len + 1);
    size_t n = 0;

    for (size_t i = 0; i < text.len;) {
        uint32_t k = 0;

        while (k < r->n_codes &&
               !str_starts((struct str){text.ptr + i, text.len - i}, r->code[k].text))
            k++;
        if (k < r->n_codes) {
            to[n++] = (char)codes[k];
            i += r->code[k].text.len;
        } else {
            to[n++] = text.ptr[i++];
        }
    }
    while (n > 0 && reader_is_blank(to[n - 1]))
        n--;
    while (n > 0 && reader_is_blank(*to))
        to++, n--;
    assert(n < READER_MARKER_MAX);
    return (struct str){to, n};
}

static struct str encode_z(struct reader *r, const char *z) {
    return encode(r, z ? str_of(z) : STR(""));
}

static struct marker *add_marker(struct reader *r, struct str text, enum marker_role role) {
    struct marker *m = &r->marker[r->n_markers];

    if (text.len == 0) return NULL;
    assert(r->n_markers < READER_MAX_MARKERS);
    *m = (struct marker){.text = text, .role = role};
    for (size_t i = 0; i < text.len; i++)
        m->is_token |= reader_is_code(text.ptr[i]);
    r->is_first[(unsigned char)text.ptr[0]] = true;
    r->n_markers++;
    return m;
}

/* The first word of a text begins a try; the rest is expected after it. Quotes around a name are
 * optional, and a bracket may stand by itself. */
static struct str add_call_marker(struct reader *r, const char *z, enum reader_state rest) {
    struct str text = encode_z(r, z), word = text, after;
    struct marker *m;

    while (text.len > 0 && text.ptr[text.len - 1] == '"')
        text.len--;
    word.len = 0;
    while (word.len < text.len && !reader_is_blank(text.ptr[word.len]) &&
           !(word.len > 0 && text.ptr[word.len] == '['))
        word.len++;
    after = (struct str){text.ptr + word.len, text.len - word.len};
    r->expected[rest] = encode(r, after);
    if ((m = add_marker(r, word, MARKER_CALL))) m->then = rest;
    return word;
}

static void add_calls(struct reader *r, const struct call_format *f) {
    struct str after = encode_z(r, f->name_after), end = encode_z(r, f->section_end);
    struct marker *m;

    if (after.len > 0 && after.ptr[0] == '"') after.ptr++, after.len--;
    r->expected[READ_NAME_AFTER] = after;
    r->expected[READ_CLOSE] = encode_z(r, f->close);
    if (f->section && !str_eq(str_of(f->section), STR("[")))
        add_call_marker(r, f->section, READ_SECTION);
    r->expected[READ_OPEN] = add_call_marker(r, f->open, READ_OPEN_REST);
    if (f->is_bare) { /* the section is the bracket */
        m = add_marker(r, f->body == BODY_OBJECT ? STR("{") : STR("["), MARKER_CALL);
        m->is_bare = true;
        m->then = READ_OPEN;
    }
    if (f->also.text) {
        m = add_marker(r, encode_z(r, f->also.text), MARKER_CALL);
        m->then = f->also.step == STEP_SECTION ? READ_SECTION
                  : f->body == BODY_OBJECT     ? READ_OBJECT
                                               : READ_NAME;
    }
    if (f->is_list && end.len > 0) end.ptr++, end.len--; /* READ_LIST reads the bracket */
    r->expected[READ_SECTION_END] = end;
    add_marker(r, end, MARKER_SECTION_END);
}

static void add_harmony(struct reader *r) {
    static const struct {
        const char *text;
        enum marker_role role;
    } markers[] = {{"<|channel|>", MARKER_CHANNEL},    {"<|message|>", MARKER_MESSAGE},
                   {"<|start|>", MARKER_START},        {"<|end|>", MARKER_MESSAGE_END},
                   {"<|return|>", MARKER_MESSAGE_END}, {"<|call|>", MARKER_MESSAGE_END},
                   {"<|constrain|>", MARKER_CONSTRAIN}};

    for (size_t i = 0; i < ARRAY_LEN(markers); i++)
        add_code(r, markers[i].text);
    for (size_t i = 0; i < ARRAY_LEN(markers); i++)
        add_marker(r, encode_z(r, markers[i].text), markers[i].role);
}

static void add_formats(struct reader *r) {
    const struct reasoning_format *f = r->reasoning;

    if ((f && f->is_harmony) || (r->calls && r->calls->body == BODY_HARMONY)) {
        r->is_harmony = true;
        add_harmony(r);
        return;
    }
    if (f) {
        add_code(r, f->begin);
        add_code(r, f->end);
    }
    for (uint32_t i = 0; r->calls && i < FORMAT_MAX_TOKENS; i++)
        add_code(r, r->calls->tokens[i]);
    if (f) {
        add_marker(r, encode_z(r, f->begin), MARKER_THINK);
        add_marker(r, encode_z(r, f->end), MARKER_THINK_END);
        add_marker(r, encode_z(r, f->answer), MARKER_ANSWER);
        add_marker(r, encode_z(r, f->answer_end), MARKER_ANSWER_END);
    }
    if (r->calls) add_calls(r, r->calls);
    for (uint32_t i = 0; i < r->n_codes; i++)
        r->is_first[codes[i]] = true;
}

struct reader *reader_create(const struct reader_setup *setup, struct answer *out) {
    struct reader *r = mem_zalloc(sizeof(*r));

    r->setup = setup;
    r->calls = setup->calls;
    r->reasoning = setup->reasoning;
    r->out = out;
    arena_init(&r->arena, 1024);
    buf_init(&r->held, READER_HELD_MAX);
    buf_init(&r->blank, READER_BLANK_MAX);
    buf_init(&r->ready, 0);
    buf_init(&r->json, 0);
    add_formats(r);
    r->state = setup->begins_in_reasoning && r->reasoning ? READ_REASONING
               : r->is_harmony                            ? READ_HEADER
                                                          : READ_TEXT;
    return r;
}

void reader_destroy(struct reader *r) {
    if (!r) return;
    arena_fini(&r->arena);
    buf_fini(&r->held);
    buf_fini(&r->blank);
    buf_fini(&r->ready);
    buf_fini(&r->json);
    arguments_destroy(r->styled);
    mem_free(r);
}

/* --- text ------------------------------------------------------------------------------------- */

void reader_flush(struct reader *r) {
    if (buf_len(&r->ready) > 0) answer_add(r->out, r->ready_kind, buf_str(&r->ready));
    if (r->ready.has_failed) r->out->is_incomplete = true;
    buf_clear(&r->ready);
}

static void add_ready(struct reader *r, struct str text) {
    char c = text.len == 1 ? text.ptr[0] : 0;
    struct str code = reader_code_text(r, c);

    buf_append_str(&r->ready, code.len > 0 ? code : text);
}

static void put_newlines(struct reader *r) {
    static const char many[] = "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n";

    while (r->n_newlines > 0) {
        size_t n = MIN(r->n_newlines, sizeof(many) - 1);

        buf_append(&r->ready, many, n);
        r->n_newlines -= n;
    }
}

/* Text began: what was held before it is a part of it. */
static void begin_text(struct reader *r, bool is_reasoning) {
    r->has_text = true;
    if (!is_reasoning) r->has_any_text = true;
    buf_append_str(&r->ready, buf_str(&r->blank));
    buf_clear(&r->blank);
}

/* A character before the first that is not blank. */
static void put_blank(struct reader *r, char c, bool is_reasoning) {
    bool is_of_format = is_reasoning || r->has_part_before;

    if (c == '\n' && is_of_format && buf_len(&r->blank) == 0) return;
    buf_append_char(&r->blank, c);
    if (buf_len(&r->blank) == READER_BLANK_MAX) begin_text(r, is_reasoning);
}

/* Bytes up to a newline or a code; at least one. */
static size_t run_length(struct str text) {
    size_t n = 1;

    while (n < text.len && text.ptr[n] != '\n' && !reader_is_code(text.ptr[n]) &&
           !reader_is_code(text.ptr[n - 1]))
        n++;
    return n;
}

void reader_put(struct reader *r, enum reader_state state, struct str text) {
    bool is_reasoning = state == READ_REASONING;
    enum part_kind kind = is_reasoning && r->reasoning ? PART_REASONING : PART_TEXT;

    if (kind != r->ready_kind) reader_flush(r);
    r->ready_kind = kind;
    while (text.len > 0) {
        size_t n = 1;

        if (!r->has_text && reader_is_blank(*text.ptr)) {
            put_blank(r, *text.ptr, is_reasoning);
        } else if (*text.ptr == '\n') {
            r->n_newlines++;
        } else {
            if (!r->has_text) begin_text(r, is_reasoning);
            put_newlines(r);
            n = run_length(text);
            add_ready(r, (struct str){text.ptr, n});
        }
        text.ptr += n;
        text.len -= n;
    }
}

void reader_end_text(struct reader *r, size_t n_newlines) {
    r->n_newlines -= MIN(r->n_newlines, n_newlines);
    put_newlines(r);
    reader_flush(r);
    buf_clear(&r->blank);
    r->has_text = false;
}

void reader_leave_reasoning(struct reader *r) {
    reader_end_text(r, SIZE_MAX);
    r->has_reasoned = r->has_part_before = true;
}

/* --- markers ---------------------------------------------------------------------------------- */

void reader_again(struct reader *r, struct str text) {
    assert(r->n_again + text.len <= sizeof(r->again));
    while (text.len > 0)
        r->again[r->n_again++] = text.ptr[--text.len];
}

static bool is_active(const struct reader *r, const struct marker *m) {
    bool is_reasoning = r->state == READ_REASONING;

    switch (m->role) {
    case MARKER_THINK:
        return m->is_token ||
               (is_reasoning ? !r->has_text : !r->has_any_text && !r->has_part_before);
    case MARKER_THINK_END: return m->is_token || is_reasoning || r->has_reasoned;
    case MARKER_ANSWER: return !is_reasoning && r->has_reasoned && !r->has_text;
    case MARKER_ANSWER_END: return !is_reasoning && r->is_in_answer;
    case MARKER_SECTION_END: return m->is_token || (!is_reasoning && r->is_in_section);
    case MARKER_CALL:
        if (m->is_bare) return !is_reasoning && !r->has_any_text && r->n_calls == 0;
        return m->is_token || !is_reasoning;
    default: /* of harmony */ return m->is_token || r->state != READ_MESSAGE || !r->scan.in_string;
    }
}

static void on_marker(struct reader *r, const struct marker *m) {
    bool is_reasoning = r->state == READ_REASONING;

    switch (m->role) {
    case MARKER_THINK:
        if (is_reasoning) break; /* a second one is dropped */
        reader_end_text(r, 0);
        r->state = READ_REASONING;
        break;
    case MARKER_THINK_END:
        if (is_reasoning) reader_leave_reasoning(r);
        r->state = READ_TEXT;
        break;
    case MARKER_ANSWER: r->is_in_answer = true; break;
    case MARKER_ANSWER_END:
        r->is_in_answer = false;
        reader_end_text(r, SIZE_MAX);
        r->has_part_before = true;
        break;
    case MARKER_SECTION_END: r->is_in_section = false; break;
    case MARKER_CALL: reader_try(r, m); break;
    default: reader_harmony_marker(r, m->role);
    }
}

/* Text that is no marker. */
static void no_marker(struct reader *r, struct str text) {
    if (r->state == READ_HEADER || r->state == READ_MESSAGE)
        reader_harmony_text(r, text);
    else
        reader_put(r, r->state, text);
}

static void search(struct reader *r, char c) {
    struct str match = {r->match, ++r->n_match};
    bool is_prefix = false;

    r->match[match.len - 1] = c;
    for (uint32_t i = 0; i < r->n_markers; i++) {
        const struct marker *m = &r->marker[i];

        if (m->text.ptr[0] != match.ptr[0] || !is_active(r, m)) continue;
        if (str_starts(match, m->text)) {
            r->n_match = 0;
            reader_again(r, (struct str){match.ptr + m->text.len, match.len - m->text.len});
            on_marker(r, m);
            return;
        }
        is_prefix |= str_starts(m->text, match);
    }
    if (is_prefix) return;
    r->n_match = 0;
    reader_again(r, (struct str){match.ptr + 1, match.len - 1});
    if (!reader_is_code(*match.ptr))
        no_marker(r, (struct str){match.ptr, 1}); /* a stray token is dropped */
}

/* --- what comes in ---------------------------------------------------------------------------- */

static void feed_byte(struct reader *r, char c) {
    r->n_read++;
    if (r->state <= READ_MESSAGE)
        search(r, c);
    else
        reader_call_byte(r, c);
}

static void feed_again(struct reader *r) {
    while (r->n_again > 0)
        feed_byte(r, r->again[--r->n_again]);
}

/* Bytes that need no look at each. */
static size_t feed_run(struct reader *r, struct str text) {
    size_t n = 0;

    if (reader_is_in_arguments(r)) return reader_arguments(r, text);
    if (r->state > READ_MESSAGE || r->state == READ_HEADER || r->n_match > 0) return 0;
    while (n < text.len && !r->is_first[(unsigned char)text.ptr[n]] &&
           !reader_is_code(text.ptr[n]) && (r->has_text || !r->calls || !r->calls->is_bare))
        n++;
    if (n > 0) no_marker(r, (struct str){text.ptr, n});
    return n;
}

static void feed(struct reader *r, struct str text) {
    for (size_t i = 0; i < text.len;) {
        size_t n = feed_run(r, (struct str){text.ptr + i, text.len - i});

        if (n == 0 && r->n_again == 0) {
            feed_byte(r, text.ptr[i]);
            n = 1;
        }
        i += n;
        r->n_read += n;
        feed_again(r);
    }
}

bool reader_is_marker(const struct reader *r, uint32_t token) {
    for (uint32_t i = 0; i < r->n_codes; i++)
        if (r->code[i].token == token) return true;
    return false;
}

void reader_push_token(struct reader *r, uint32_t token) {
    for (uint32_t i = 0; i < r->n_codes; i++)
        if (r->code[i].token == token) feed(r, (struct str){(const char *)&codes[i], 1});
    reader_flush(r);
}

void reader_push(struct reader *r, struct str text) {
    size_t from = 0;

    for (size_t i = 0; i <= text.len; i++) { /* UTF-8 has no codes; other text may */
        if (i < text.len && !reader_is_code(text.ptr[i])) continue;
        feed(r, (struct str){text.ptr + from, i - from});
        if (i < text.len) feed(r, STR("\xEF\xBF\xBD"));
        from = i + 1;
    }
    reader_flush(r);
}

void reader_finish(struct reader *r, bool is_cut) {
    struct str match = {r->match, 0};

    while (r->state > READ_MESSAGE) {
        reader_finish_call(r, is_cut);
        feed_again(r);
    }
    match.len = r->n_match;
    r->n_match = 0;
    if (match.len > 0) no_marker(r, match);
    if (r->is_harmony) reader_harmony_finish(r, is_cut);
    if (r->state == READ_REASONING)
        reader_leave_reasoning(r);
    else if (r->out->n == 0 && !r->has_reasoned)
        begin_text(r, false); /* an answer of blanks alone */
    reader_end_text(r, 0);
    answer_end(r->out);
}

bool reader_is_reasoning(const struct reader *r) {
    return r->state == READ_REASONING ||
           (r->state > READ_MESSAGE && !r->is_begun && r->from == READ_REASONING);
}

/* --- the prompt ------------------------------------------------------------------------------- */

bool reader_begins_in_reasoning(const struct reasoning_format *f, struct str prompt) {
    /* After these the model's turn begins. */
    static const char *const turns[] = {"<|im_start|>",
                                        "<|im_middle|>",
                                        "<|start|>",
                                        "<|assistant|>",
                                        "<|end_of_role|>",
                                        "<|start_header_id|>",
                                        "<|turn>",
                                        "<start_of_turn>",
                                        "<seed:bos>",
                                        "[/INST]",
                                        "]~b]",
                                        ("<\xEF\xBD\x9C"
                                         "Assistant\xEF\xBD\x9C>"),
                                        "<|hy_Assistant|>",
                                        "<|extra_0|>"};
    struct str begin, end;

    if (!f) return false;
    begin = str_of(f->begin);
    end = str_of(f->end);
    while (begin.len > 0 && reader_is_blank(begin.ptr[begin.len - 1]))
        begin.len--;
    for (size_t i = prompt.len; i-- > 0;) {
        struct str rest = {prompt.ptr + i, prompt.len - i};

        if (str_starts(rest, begin)) return true;
        if (str_starts(rest, end)) return false;
        for (size_t k = 0; k < ARRAY_LEN(turns); k++)
            if (str_starts(rest, str_of(turns[k]))) return false;
    }
    return false;
}

/* router/prompt/client_noise.c - a reader of the system prompt alone. The body was scanned, so its
 * structure is sound; all reads stay within the span nevertheless, and what is not understood ends
 * the search. */
#include "router/prompt/client_noise.h"

#include <string.h>

#include "common/protocol/api.h"
#include "router/prompt/raw_json.h"

#define SUFFIX_WINDOW 512 /* raw bytes of a text's end; the suffix has at most 366, all escaped */

/* A text block of an array, or a plain string. */
struct block {
    struct str whole; /* brackets or quotes included */
    struct str text;  /* between its quotes; {NULL, 0}: it is no plain text */
};

/* The first and the last block, and what lies between them and their neighbours. */
struct prompt {
    struct block first, last;
    struct str first_and_comma, comma_and_last; /* as one cut; for n > 1 */
    uint32_t n;
};

/* --- text with escapes ------------------------------------------------------------------------ */

static const char *match_digits(const char *p, const char *end) {
    const char *start = p;

    while (p < end) {
        char c;
        size_t n = raw_read_char(p, end, &c);

        if ((c < '0' || c > '9') && (c != ',' || p == start)) break;
        p += n;
    }
    return p > start ? p : NULL;
}

static bool is_blank_to(const char *p, const char *end) {
    while (p < end) {
        char c;

        p += raw_read_char(p, end, &c);
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return false;
    }
    return true;
}

/* Behind the line's end; the end of the text if it has one line. */
static const char *line_end(const char *p, const char *end) {
    while (p < end) {
        char c;

        p = memchr(p, '\\', (size_t)(end - p));
        if (!p) return end;
        p += raw_read_char(p, end, &c);
        if (c == '\n') return p;
    }
    return end;
}

/* The first line, its end included, if it is the header. */
static struct str billing_line(struct str text) {
    const char *end, *p;

    if (!text.ptr) return STR_NULL;
    end = text.ptr + text.len;
    p = raw_match(text.ptr, end, API_BILLING_HEADER);
    return p ? raw_between(text.ptr, line_end(p, end)) : STR_NULL;
}

static const char *match_total_tokens(const char *p, const char *end) {
    p = raw_match(p, end, "<total_tokens>");
    if (p) p = match_digits(p, end);
    return p ? raw_match(p, end, " tokens left</total_tokens>") : NULL;
}

/* True when an even number of backslashes stands before p. */
static bool is_char_start(const char *start, const char *p) {
    const char *first = p;

    while (first > start && first[-1] == '\\')
        first--;
    return (p - first) % 2 == 0;
}

/* The suffix; blanks may follow it, and stay. */
static struct str total_tokens(struct str text) {
    const char *end, *p;

    if (!text.ptr) return STR_NULL;
    end = text.ptr + text.len;
    for (p = text.len > SUFFIX_WINDOW ? end - SUFFIX_WINDOW : text.ptr; p < end; p++) {
        const char *to;

        if (*p != '<' && *p != '\\') continue;
        to = match_total_tokens(p, end);
        if (to && is_blank_to(to, end) && is_char_start(text.ptr, p)) return raw_between(p, to);
    }
    return STR_NULL;
}

/* --- blocks ----------------------------------------------------------------------------------- */

/* The values of two keys of an object; `a` and `b` are empty if they are absent. False: a key is
 * there twice, or the object is not understood. */
static bool read_two(struct str object, const char *key_a, struct str *a, const char *key_b,
                     struct str *b) {
    struct raw_walk walk = raw_walk_of(object);
    struct raw_member m;

    *a = *b = STR_NULL;
    while (raw_next_member(&walk, &m)) {
        struct str *to = raw_text_is(m.name, key_a) ? a : raw_text_is(m.name, key_b) ? b : NULL;

        if (to && to->ptr) return false;
        if (to) *to = m.value;
    }
    return !walk.is_broken;
}

static struct block read_block(struct str whole) {
    struct block block = {.whole = whole};
    struct str type, text;

    if (!whole.len || whole.ptr[0] != '{') return block;
    if (!read_two(whole, "type", &type, "text", &text)) return block;
    if (raw_text_is(raw_text(type), "text")) block.text = raw_text(text);
    return block;
}

/* An array: only its first and last block are read. */
static bool read_array(struct str raw, struct prompt *out) {
    const char *p = raw.ptr + 1, *end = raw.ptr + raw.len, *last = NULL, *last_end = NULL;
    struct str first = STR_NULL;
    const char *after_first_comma = NULL, *before_last_comma = NULL;

    for (;; p++) { /* over a comma */
        const char *from = raw_skip_space(p, end);

        if (from == end) return false;
        if (*from == ']') break;
        if (out->n == 1) after_first_comma = from;
        before_last_comma = last_end;
        last = from;
        last_end = p = raw_skip_value(from, end);
        if (!p) return false;
        if (!first.ptr) first = raw_between(from, p);
        out->n++;
        p = raw_skip_space(p, end);
        if (p == end || *p != ',') break;
    }
    if (!out->n) return false;
    out->first = read_block(first);
    out->last = out->n > 1 ? read_block(raw_between(last, last_end)) : out->first;
    if (out->n > 1) {
        out->first_and_comma = raw_between(first.ptr, after_first_comma);
        out->comma_and_last = raw_between(before_last_comma, last_end);
    }
    return true;
}

static bool read_prompt(struct str raw, struct prompt *out) {
    *out = (struct prompt){0};
    if (!raw.len) return false;
    if (raw.ptr[0] == '[') return read_array(raw, out);
    if (raw.ptr[0] != '"') return false;
    out->n = 1;
    out->first = out->last = (struct block){.whole = raw, .text = raw_text(raw)};
    return true;
}

/* --- cuts ------------------------------------------------------------------------------------- */

static void cut(struct client_noise *out, struct str what) {
    if (what.len) out->cuts[out->n++] = what;
}

/* A text that would be empty, or blank, goes with its block. */
static bool is_all_of(struct str part, struct str text) {
    const char *to = part.ptr + part.len;

    return part.ptr == text.ptr && is_blank_to(to, text.ptr + text.len);
}

static void cut_from(struct client_noise *out, struct str raw) {
    struct prompt prompt;
    struct str line, suffix, rest;
    bool drops_first, drops_last;

    if (!read_prompt(raw, &prompt)) return;
    line = billing_line(prompt.first.text);
    rest = prompt.last.text;
    if (prompt.n == 1 && line.len) {
        rest.ptr += line.len;
        rest.len -= line.len;
    }
    suffix = total_tokens(rest);
    drops_first = prompt.n > 1 && line.len && is_all_of(line, prompt.first.text);
    drops_last = prompt.n > 1 && suffix.len && is_all_of(suffix, rest);
    if (drops_first && drops_last && prompt.n == 2) drops_last = false; /* one block stays */
    cut(out, drops_first ? prompt.first_and_comma : line);
    cut(out, drops_last ? prompt.comma_and_last : suffix);
    out->found[NOISE_BILLING_HEADER] += line.len > 0;
    out->found[NOISE_TOTAL_TOKENS] += suffix.len > 0;
}

/* The content of the first message, if it is the system's. */
static struct str first_system_content(struct str messages) {
    struct str role, content;
    const char *p, *end;

    if (!messages.len || messages.ptr[0] != '[') return STR_NULL;
    end = messages.ptr + messages.len;
    p = raw_skip_space(messages.ptr + 1, end);
    if (p == end || *p != '{') return STR_NULL;
    if (!read_two(raw_between(p, end), "role", &role, "content", &content)) return STR_NULL;
    role = raw_text(role);
    return raw_text_is(role, "system") || raw_text_is(role, "developer") ? content : STR_NULL;
}

void client_noise_find(const struct body_scan *scan, struct client_noise *out) {
    struct str system = scan->spans[BODY_SYSTEM];
    struct str content = first_system_content(scan->spans[BODY_MESSAGES]);

    *out = (struct client_noise){0};
    if (content.ptr && content.ptr < system.ptr) { /* in the order of the body */
        cut_from(out, content);
        cut_from(out, system);
    } else {
        cut_from(out, system);
        cut_from(out, content);
    }
}

size_t client_noise_len(const struct client_noise *noise) {
    size_t n = 0;

    for (uint32_t i = 0; i < noise->n; i++)
        n += noise->cuts[i].len;
    return n;
}

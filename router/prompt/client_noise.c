/* router/prompt/client_noise.c - a reader of the system prompt alone. The body was scanned, so its
 * structure is sound; all reads stay within the span nevertheless, and what is not understood ends
 * the search. */
#include "router/prompt/client_noise.h"

#include <string.h>

#include "router/prompt/string_scan.h"

#define SUFFIX_WINDOW 512 /* raw bytes of a text's end; the suffix has at most 366, all escaped */

/* A part of the body that is read: NULL is what every function returns for the unexpected. */
struct span {
    const char *p, *end;
};

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

/* --- tokens ----------------------------------------------------------------------------------- */

static const char *skip_space(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++;
    return p;
}

/* From an opening quote to behind the closing one. */
static const char *skip_string(const char *p, const char *end) {
    size_t n = (size_t)(end - p);
    size_t at = string_scan_at(0)->end((const uint8_t *)p, n, 1).at;

    return at < n && p[at] == '"' ? p + at + 1 : NULL;
}

static const char *skip_scalar(const char *p, const char *end) {
    const char *start = p;

    while (p < end && !strchr(",]} \t\r\n", *p))
        p++;
    return p > start ? p : NULL;
}

/* A string, a container with all it holds, or a scalar. */
static const char *skip_value(const char *p, const char *end) {
    uint32_t depth = 0;

    while (p < end) {
        char c = *p;

        if (c == '"') {
            p = skip_string(p, end);
            if (!p) return NULL;
        } else if (!depth && c != '{' && c != '[') {
            return skip_scalar(p, end);
        } else {
            depth += c == '{' || c == '[';
            depth -= c == '}' || c == ']';
            p++;
        }
        if (!depth) return p;
    }
    return NULL;
}

static struct str str_between(const char *from, const char *to) {
    return (struct str){from, (size_t)(to - from)};
}

static struct str unquoted(struct str raw) {
    return raw.len && raw.ptr[0] == '"' ? body_unquote(raw) : STR_NULL;
}

/* --- text with escapes ------------------------------------------------------------------------ */

/* Bytes of the character at p, and its value if it is ASCII, else 0. */
static size_t read_char(const char *p, const char *end, char *value) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *at;
    uint32_t code = 0;

    *value = *p;
    if (*p != '\\') return 1;
    *value = 0;
    if (end - p < 2) return 1;
    at = memchr(from, p[1], sizeof(from) - 1);
    if (at) *value = to[at - from];
    if (p[1] != 'u' || end - p < 6) return 2;
    for (int i = 2; i < 6; i++) {
        int digit = str_hex_value((uint8_t)p[i]);

        if (digit < 0) return 2;
        code = code * 16 + (uint32_t)digit;
    }
    if (code < 0x80) *value = (char)code;
    return 6;
}

/* Where `want` ends if the text at p begins with it. */
static const char *match(const char *p, const char *end, const char *want) {
    for (; *want; want++) {
        char c;
        size_t n;

        if (p == end) return NULL;
        n = read_char(p, end, &c);
        if (c != *want) return NULL;
        p += n;
    }
    return p;
}

static bool text_is(struct str text, const char *want) {
    const char *end = text.ptr + text.len;

    return text.ptr && match(text.ptr, end, want) == end;
}

static const char *match_digits(const char *p, const char *end) {
    const char *start = p;

    while (p < end) {
        char c;
        size_t n = read_char(p, end, &c);

        if ((c < '0' || c > '9') && (c != ',' || p == start)) break;
        p += n;
    }
    return p > start ? p : NULL;
}

static bool is_blank_to(const char *p, const char *end) {
    while (p < end) {
        char c;

        p += read_char(p, end, &c);
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
        p += read_char(p, end, &c);
        if (c == '\n') return p;
    }
    return end;
}

/* The first line, its end included, if it is the header. */
static struct str billing_line(struct str text) {
    const char *end = text.ptr + text.len, *p;

    if (!text.ptr) return STR_NULL;
    p = match(text.ptr, end, "x-anthropic-billing-header:");
    return p ? str_between(text.ptr, line_end(p, end)) : STR_NULL;
}

static const char *match_total_tokens(const char *p, const char *end) {
    p = match(p, end, "<total_tokens>");
    if (p) p = match_digits(p, end);
    return p ? match(p, end, " tokens left</total_tokens>") : NULL;
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
    const char *end = text.ptr + text.len, *p;

    if (!text.ptr) return STR_NULL;
    for (p = text.len > SUFFIX_WINDOW ? end - SUFFIX_WINDOW : text.ptr; p < end; p++) {
        const char *to;

        if (*p != '<' && *p != '\\') continue;
        to = match_total_tokens(p, end);
        if (to && is_blank_to(to, end) && is_char_start(text.ptr, p)) return str_between(p, to);
    }
    return STR_NULL;
}

/* --- blocks ----------------------------------------------------------------------------------- */

/* The values of two keys of an object; `a` and `b` are empty if they are absent. NULL: a key is
 * there twice, or the object is not understood. Returns where it ends. */
static const char *read_two(struct span s, const char *key_a, struct str *a, const char *key_b,
                            struct str *b) {
    const char *p = s.p + 1;

    *a = *b = STR_NULL;
    for (;;) {
        const char *from;
        struct str key, *to;

        p = skip_space(p, s.end);
        if (p < s.end && *p == '}') return p + 1;
        if (p == s.end || *p != '"') return NULL;
        from = p;
        p = skip_string(p, s.end);
        if (!p) return NULL;
        key = unquoted(str_between(from, p));
        p = skip_space(p, s.end);
        if (p == s.end || *p != ':') return NULL;
        from = skip_space(p + 1, s.end);
        p = skip_value(from, s.end);
        if (!p) return NULL;
        to = text_is(key, key_a) ? a : text_is(key, key_b) ? b : NULL;
        if (to && to->ptr) return NULL;
        if (to) *to = str_between(from, p);
        p = skip_space(p, s.end);
        if (p < s.end && *p == ',') p++;
    }
}

static struct block read_block(struct str whole) {
    struct span s = {whole.ptr, whole.ptr + whole.len};
    struct block block = {.whole = whole};
    struct str type, text;

    if (!whole.len || whole.ptr[0] != '{') return block;
    if (!read_two(s, "type", &type, "text", &text)) return block;
    if (text_is(unquoted(type), "text")) block.text = unquoted(text);
    return block;
}

/* An array: only its first and last block are read. */
static bool read_array(struct str raw, struct prompt *out) {
    const char *p = raw.ptr + 1, *end = raw.ptr + raw.len, *last = NULL, *last_end = NULL;
    struct str first = STR_NULL;
    const char *after_first_comma = NULL, *before_last_comma = NULL;

    for (;; p++) { /* over a comma */
        const char *from = skip_space(p, end);

        if (from == end) return false;
        if (*from == ']') break;
        if (out->n == 1) after_first_comma = from;
        before_last_comma = last_end;
        last = from;
        last_end = p = skip_value(from, end);
        if (!p) return false;
        if (!first.ptr) first = str_between(from, p);
        out->n++;
        p = skip_space(p, end);
        if (p == end || *p != ',') break;
    }
    if (!out->n) return false;
    out->first = read_block(first);
    out->last = out->n > 1 ? read_block(str_between(last, last_end)) : out->first;
    if (out->n > 1) {
        out->first_and_comma = str_between(first.ptr, after_first_comma);
        out->comma_and_last = str_between(before_last_comma, last_end);
    }
    return true;
}

static bool read_prompt(struct str raw, struct prompt *out) {
    *out = (struct prompt){0};
    if (!raw.len) return false;
    if (raw.ptr[0] == '[') return read_array(raw, out);
    if (raw.ptr[0] != '"') return false;
    out->n = 1;
    out->first = out->last = (struct block){.whole = raw, .text = unquoted(raw)};
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
    const char *end = messages.ptr + messages.len, *p;
    struct str role, content;

    if (!messages.len || messages.ptr[0] != '[') return STR_NULL;
    p = skip_space(messages.ptr + 1, end);
    if (p == end || *p != '{') return STR_NULL;
    if (!read_two((struct span){p, end}, "role", &role, "content", &content)) return STR_NULL;
    role = unquoted(role);
    return text_is(role, "system") || text_is(role, "developer") ? content : STR_NULL;
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

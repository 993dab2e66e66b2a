/* router/body_scan.c - the walk over the structure of a body.
 *
 * A cursor goes from one token to the next; a string is one token, and body_text.h finds its end,
 * so that text, nearly all of a body, costs a few instructions for 64 bytes of it:
 *
 *        ┌───────────────────────── [ { ──────────────────────────┐
 *        ▼                                                        │
 *      member:  in an object "key" : first, then the value ───────┤
 *        ▲                                                        │ string, number, literal
 *        └──── , ────  after a value  ◀───────────────────────────┘
 *                        ▲      │
 *                        └─ ] } ┘
 *
 * What is wrong is found in the order of the bytes. Depth is at most 64, so one word of bits says
 * which open containers are objects. */
#include "router/body_scan.h"

#include "common/hash.h"
#include "router/body_scan_internal.h"
#include "router/body_text.h"

#include <stddef.h>
#include <string.h>

#define KEY_BYTES_MAX   256
#define KEY_BYTES_SHOWN 40 /* in messages; below ERROR_PARAM_MAX */

/* The keys looked for. No two have the same length and first byte: the compiler sees to that. */
#define MAX_NEW_TOKENS BODY_KEY_COUNT /* in sampling_params */
#define NAMES(X)                                                                                   \
    X(BODY_MODEL, 'm', "model")                                                                    \
    X(BODY_MESSAGES, 'm', "messages")                                                              \
    X(BODY_PROMPT, 'p', "prompt")                                                                  \
    X(BODY_TEXT, 't', "text")                                                                      \
    X(BODY_INPUT_IDS, 'i', "input_ids")                                                            \
    X(BODY_TOOLS, 't', "tools")                                                                    \
    X(BODY_CACHE_SALT, 'c', "cache_salt")                                                          \
    X(BODY_LORA_PATH, 'l', "lora_path")                                                            \
    X(BODY_ADAPTER, 'a', "adapter")                                                                \
    X(BODY_STREAM, 's', "stream")                                                                  \
    X(BODY_MAX_TOKENS, 'm', "max_tokens")                                                          \
    X(BODY_MAX_COMPLETION_TOKENS, 'm', "max_completion_tokens")                                    \
    X(BODY_SAMPLING_PARAMS, 's', "sampling_params")                                                \
    X(BODY_PROMPT_CACHE_KEY, 'p', "prompt_cache_key")                                              \
    X(BODY_SESSION_ID, 's', "session_id")                                                          \
    X(BODY_USER, 'u', "user")                                                                      \
    X(BODY_EXTRA_KEY, 'e', "extra_key")                                                            \
    X(BODY_PRIORITY, 'p', "priority")                                                              \
    X(MAX_NEW_TOKENS, 'm', "max_new_tokens")

struct walk {
    const uint8_t *body;
    size_t n;
    size_t pos; /* the cursor: what comes before is read */
    const struct body_text *text;
    struct error *err;

    uint32_t depth;
    uint64_t is_object; /* bit d - 1: the container at depth d is an object */

    int32_t name;                         /* of the top-level member being read, or -1 */
    size_t value_start;                   /* of that member */
    uint32_t n_keys;                      /* of the top level, so far */
    uint32_t n_others;                    /* those among them that are not looked for */
    uint32_t found;                       /* bit i: name i */
    struct str spans[BODY_KEY_COUNT + 1]; /* of the names found */
    uint64_t others[BODY_KEYS_MAX]; /* hashes; who makes two collide has his own request refused */
};

static enum status bad_at(struct walk *k, size_t pos, const char *expected) {
    uint8_t c = pos < k->n ? k->body[pos] : 0;

    if (pos >= k->n)
        return error_set(k->err, ST_INVALID,
                         "the request body ends too early: expected %s at byte %zu", expected, pos);
    if (c >= 0x80 && k->text->bad_utf8(k->body + pos, k->n - pos) == 0)
        return error_set(k->err, ST_INVALID,
                         "the request body is not valid UTF-8 at byte %zu (0x%02X)", pos, c);
    if (c > 0x20 && c < 0x7F)
        return error_set(k->err, ST_INVALID,
                         "the request body is not valid JSON: expected %s at byte %zu, found '%c'",
                         expected, pos, c);
    return error_set(k->err, ST_INVALID,
                     "the request body is not valid JSON: expected %s at byte %zu, found 0x%02X",
                     expected, pos, c);
}

/* --- keys of the top level ------------------------------------------------------------------- */

static int hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes one escape at p (after the backslash) to *out; returns the bytes read, 0 when wrong. A
 * surrogate stays alone: only ASCII names are looked for. */
static size_t unescape(const uint8_t *p, size_t n, uint8_t *out, size_t *n_out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *at = n ? memchr(from, p[0], sizeof(from) - 1) : NULL;
    uint32_t code = 0;

    if (at) {
        out[(*n_out)++] = (uint8_t)to[at - from];
        return 1;
    }
    if (n < 5 || p[0] != 'u') return 0;
    for (int i = 1; i <= 4; i++) {
        if (hex_digit(p[i]) < 0) return 0;
        code = code * 16 + (uint32_t)hex_digit(p[i]);
    }
    if (code < 0x80) {
        out[(*n_out)++] = (uint8_t)code;
    } else if (code < 0x800) {
        out[(*n_out)++] = (uint8_t)(0xC0 | code >> 6);
        out[(*n_out)++] = (uint8_t)(0x80 | (code & 0x3F));
    } else {
        out[(*n_out)++] = (uint8_t)(0xE0 | code >> 12);
        out[(*n_out)++] = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        out[(*n_out)++] = (uint8_t)(0x80 | (code & 0x3F));
    }
    return 5;
}

/* Writes the n bytes of a key, which has escapes, plainly to `plain`. */
static enum status unescape_key(struct walk *k, const uint8_t *key, size_t n, uint8_t *plain,
                                size_t *n_plain) {
    *n_plain = 0;
    for (size_t i = 0; i < n;) {
        size_t used;

        if (key[i] != '\\') {
            plain[(*n_plain)++] = key[i++];
            continue;
        }
        used = unescape(key + i + 1, n - i - 1, plain, n_plain);
        if (!used)
            return error_set(k->err, ST_INVALID,
                             "the request body has a key with a wrong escape at byte %zu",
                             (size_t)(key - k->body) + i);
        i += 1 + used;
    }
    return ST_OK;
}

static enum status key_twice(struct walk *k, const uint8_t *key, size_t n) {
    char name[KEY_BYTES_SHOWN + 1] = "";
    size_t n_shown = MIN(n, (size_t)KEY_BYTES_SHOWN);

    while (n_shown < n && n_shown && (key[n_shown] & 0xC0) == 0x80)
        n_shown--; /* whole characters */
    memcpy(name, key, n_shown);
    return error_set_param(k->err, ST_INVALID, name,
                           "the request body has the key \"%s\" twice, again at byte %zu", name,
                           (size_t)(key - k->body));
}

/* Which of the names it is, or -1. */
static int32_t name_of(const uint8_t *key, size_t n) {
#define SHAPE(len, first)    ((uint32_t)(len) << 8 | (uint8_t)(first))
#define TEXT(i, first, text) [i] = text,
#define CASE(i, first, text)                                                                       \
    case SHAPE(sizeof(text) - 1, first): name = i; break;
    static const char *const texts[] = {NAMES(TEXT)};
    int32_t name;

    if (!n) return -1;
    switch (SHAPE(n, key[0])) {
        NAMES(CASE)
    default: return -1;
    }
    return memcmp(key, texts[name], n) == 0 ? name : -1;
#undef SHAPE
#undef TEXT
#undef CASE
}

/* Is this key new? One that is not looked for is remembered by its hash. */
static bool is_new_key(struct walk *k, const uint8_t *key, size_t n) {
    uint64_t hash;

    if (k->name >= 0) {
        bool is_new = !(k->found >> k->name & 1);

        k->found |= 1u << k->name;
        return is_new;
    }
    hash = hash_64(key, n, 0);
    for (uint32_t i = 0; i < k->n_others; i++) {
        if (k->others[i] == hash) return false;
    }
    k->others[k->n_others++] = hash;
    return true;
}

/* Notes a top-level key, the bytes between its quotes. A key may be spelt with escapes. */
static enum status on_top_key(struct walk *k, const uint8_t *raw, size_t n_raw) {
    uint8_t plain[KEY_BYTES_MAX];
    const uint8_t *key = raw;
    size_t n = n_raw;

    if (n > KEY_BYTES_MAX)
        return error_set(k->err, ST_INVALID,
                         "the request body has a key of %zu bytes at byte %zu: at most %d", n,
                         (size_t)(raw - k->body), KEY_BYTES_MAX);
    if (k->n_keys++ == BODY_KEYS_MAX)
        return error_set(k->err, ST_INVALID, "the request body has more than %d top-level keys",
                         BODY_KEYS_MAX);
    k->name = name_of(key, n);
    if (k->name < 0 && memchr(raw, '\\', n_raw)) {
        enum status st = unescape_key(k, raw, n_raw, plain, &n);

        if (st != ST_OK) return st;
        key = plain;
        k->name = name_of(key, n);
    }
    return is_new_key(k, key, n) ? ST_OK : key_twice(k, raw, n_raw);
}

/* --- tokens ---------------------------------------------------------------------------------- */

static inline bool is_space(uint8_t c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Moves the cursor over white space. The byte there; 0, which is none of any token, at the end. */
static inline uint8_t next_byte(struct walk *k) {
    size_t pos = k->pos;

    while (pos < k->n && k->body[pos] <= ' ' && is_space(k->body[pos]))
        pos++;
    k->pos = pos;
    return pos < k->n ? k->body[pos] : 0;
}

/* Moves the cursor from a string's opening quote to behind its closing one. */
static enum status read_string(struct walk *k, const char *its_end) {
    size_t start = k->pos + 1, bad;
    bool is_ascii;
    size_t end = k->text->end(k->body, k->n, start, &is_ascii);

    if (!is_ascii && (bad = k->text->bad_utf8(k->body + start, end - start)) < end - start)
        return error_set(k->err, ST_INVALID,
                         "the request body is not valid UTF-8 at byte %zu (0x%02X)", start + bad,
                         k->body[start + bad]);
    if (end == k->n) return bad_at(k, end, its_end);
    if (k->body[end] != '"')
        return error_set(k->err, ST_INVALID,
                         "the request body has the control byte 0x%02X in a string at byte %zu: "
                         "write it as an escape",
                         k->body[end], end);
    k->pos = end + 1;
    return ST_OK;
}

/* Moves the cursor over a number or literal: any run of its letters; which ones are right is the
 * worker's to say. */
static enum status read_scalar(struct walk *k, const char *expected) {
    static const bool is_letter[256] = {
        ['0' ... '9'] = true, ['a' ... 'z'] = true, ['A' ... 'Z'] = true,
        ['-'] = true,         ['+'] = true,         ['.'] = true,
    };
    size_t pos = k->pos;

    while (pos < k->n && is_letter[k->body[pos]])
        pos++;
    if (pos == k->pos) return bad_at(k, pos, expected);
    k->pos = pos;
    return ST_OK;
}

/* --- members --------------------------------------------------------------------------------- */

static inline bool in_object(const struct walk *k) {
    return k->is_object >> (k->depth - 1) & 1;
}

static enum status open_container(struct walk *k, bool is_object) {
    if (k->depth == BODY_DEPTH_MAX)
        return error_set(k->err, ST_INVALID, "the request body nests deeper than %d at byte %zu",
                         BODY_DEPTH_MAX, k->pos);
    k->is_object &= ~(UINT64_C(1) << k->depth);
    k->is_object |= (uint64_t)is_object << k->depth;
    k->depth++;
    k->pos++;
    return ST_OK;
}

static void close_container(struct walk *k) {
    k->depth--;
    k->pos++;
}

static enum status not_an_object(struct walk *k) {
    return error_set(k->err, ST_INVALID, "the request body is not a JSON object");
}

static enum status open_body(struct walk *k) {
    switch (next_byte(k)) {
    case '{': return open_container(k, true);
    case '[':
    case '"': return not_an_object(k);
    }
    return read_scalar(k, "a value") == ST_OK ? not_an_object(k) : ST_INVALID;
}

/* A key, at which the cursor is, and its colon. */
static enum status read_key(struct walk *k, bool may_close) {
    size_t start = k->pos + 1;
    enum status st;

    if (k->pos == k->n || k->body[k->pos] != '"')
        return bad_at(k, k->pos, may_close ? "a key in quotes or '}'" : "a key in quotes");
    st = read_string(k, "the end of a key");
    if (st == ST_OK && k->depth == 1) st = on_top_key(k, k->body + start, k->pos - 1 - start);
    if (st != ST_OK) return st;
    if (next_byte(k) != ':') return bad_at(k, k->pos, "':'");
    k->pos++;
    return ST_OK;
}

/* A string, a number or a literal; of a container, the opening bracket alone. */
static enum status read_value(struct walk *k, const char *expected) {
    uint8_t c = next_byte(k);

    if (k->depth == 1) k->value_start = k->pos;
    switch (c) {
    case '"': return read_string(k, "the end of a string");
    case '{': return open_container(k, true);
    case '[': return open_container(k, false);
    default: return read_scalar(k, expected);
    }
}

/* From behind a value to behind the comma that another one follows, or out of the last bracket. */
static enum status walk_to_next(struct walk *k) {
    for (;;) {
        uint8_t c;

        if (k->depth == 0) return ST_OK;
        if (k->depth == 1 && k->name >= 0)
            k->spans[k->name] =
                (struct str){(const char *)k->body + k->value_start, k->pos - k->value_start};
        c = next_byte(k);
        if (c == ',') {
            k->pos++;
            return ST_OK;
        }
        if (c != (in_object(k) ? '}' : ']')) return bad_at(k, k->pos, "',' or the closing bracket");
        close_container(k);
    }
}

static enum status walk_body(struct walk *k) {
    bool is_empty = true; /* nothing is in the innermost container yet: it may close */
    enum status st = open_body(k);

    while (st == ST_OK && k->depth) {
        uint32_t depth = k->depth;
        uint8_t c = next_byte(k);

        if (is_empty && c == (in_object(k) ? '}' : ']')) {
            close_container(k);
        } else if (in_object(k)) {
            st = read_key(k, is_empty);
            if (st == ST_OK) st = read_value(k, "a value");
        } else {
            st = read_value(k, is_empty ? "a value or ']'" : "a value");
        }
        if (st != ST_OK) return st;
        is_empty = k->depth > depth;
        if (!is_empty) st = walk_to_next(k);
    }
    if (st != ST_OK) return st;
    next_byte(k);
    return k->pos == k->n ? ST_OK : bad_at(k, k->pos, "nothing more");
}

/* --- the request ----------------------------------------------------------------------------- */

static enum status scan_object(struct walk *k, struct str object, const struct body_text *text,
                               struct error *err) {
    /* The hashes, 2 KiB of them, need no initial value. */
    memset(k, 0, offsetof(struct walk, others));
    k->body = (const uint8_t *)object.ptr;
    k->n = object.len;
    k->text = text;
    k->err = err;
    return walk_body(k);
}

static uint32_t to_count(struct str number) {
    uint64_t value;

    if (!number.ptr || str_to_u64(number, &value) != ST_OK) return 0;
    return (uint32_t)MIN(value, (uint64_t)UINT32_MAX);
}

/* SGLang's place for the limit: an object of its own, checked already as part of the body. */
static uint32_t count_in_sampling_params(struct str params, const struct body_text *text) {
    struct walk k;

    if (!params.len || params.ptr[0] != '{') return 0;
    if (scan_object(&k, params, text, NULL) != ST_OK) return 0;
    return to_count(k.spans[MAX_NEW_TOKENS]);
}

enum status body_scan_with(struct str body, struct body_scan *out, const struct body_text *text,
                           struct error *err) {
    struct walk k;
    enum status st;

    if (body.len == 0)
        return error_set(err, ST_INVALID, "the request body is empty: send a JSON object");
    st = scan_object(&k, body, text, err);
    if (st != ST_OK) return st;
    memcpy(out->spans, k.spans, sizeof(out->spans));
    out->is_stream = str_eq(k.spans[BODY_STREAM], STR("true"));
    out->max_output_tokens = to_count(k.spans[BODY_MAX_COMPLETION_TOKENS]);
    if (!out->max_output_tokens) out->max_output_tokens = to_count(k.spans[BODY_MAX_TOKENS]);
    if (!out->max_output_tokens)
        out->max_output_tokens = count_in_sampling_params(k.spans[BODY_SAMPLING_PARAMS], text);
    return ST_OK;
}

enum status body_scan(struct str body, struct body_scan *out, struct error *err) {
    return body_scan_with(body, out, body_text_at(0), err);
}

struct str body_scan_prompt(const struct body_scan *scan) {
    static const enum body_key order[] = {BODY_MESSAGES, BODY_PROMPT, BODY_TEXT, BODY_INPUT_IDS};

    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        if (scan->spans[order[i]].ptr) return scan->spans[order[i]];
    }
    return STR_NULL;
}

struct str body_unquote(struct str raw) {
    if (raw.len < 2 || raw.ptr[0] != '"') return raw;
    return (struct str){raw.ptr + 1, raw.len - 2};
}

/* router/prompt/body_scan.c - the walk over the structure of a body.
 *
 * A cursor moves from token to token; a string is one token, and string_scan.h finds its end, so
 * that text, nearly all of a body, costs a few instructions per 64 bytes:
 *
 *        ┌───────────────────────── [ { ──────────────────────────┐
 *        ▼                                                        │
 *      member:  in an object "key" : first, then the value ───────┤
 *        ▲                                                        │ string, number, literal
 *        └──── , ────  after a value  ◀───────────────────────────┘
 *                        ▲      │
 *                        └─ ] } ┘
 *
 * Errors are found in byte order. Depth is at most 64, so one word of bits marks the open
 * objects. */
#include "router/prompt/body_scan.h"

#include <stddef.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/text/json.h"
#include "router/prompt/body_scan_internal.h"
#include "router/prompt/string_scan.h"
#include "router/prompt/string_scan_inline.h"

#define KEY_BYTES_MAX   256
#define KEY_BYTES_SHOWN 40 /* in messages; below ERROR_PARAM_MAX */

/* The wanted keys. No two share length, second and third byte, which the compiler checks. */
#define MAX_NEW_TOKENS BODY_KEY_COUNT /* in sampling_params */
#define NAMES(X)                                                                                   \
    X(BODY_MODEL, 'o', 'd', "model")                                                               \
    X(BODY_MESSAGES, 'e', 's', "messages")                                                         \
    X(BODY_SYSTEM, 'y', 's', "system")                                                             \
    X(BODY_PROMPT, 'r', 'o', "prompt")                                                             \
    X(BODY_TEXT, 'e', 'x', "text")                                                                 \
    X(BODY_INPUT_IDS, 'n', 'p', "input_ids")                                                       \
    X(BODY_INPUT, 'n', 'p', "input")                                                               \
    X(BODY_INSTRUCTIONS, 'n', 's', "instructions")                                                 \
    X(BODY_PREVIOUS_RESPONSE_ID, 'r', 'e', "previous_response_id")                                 \
    X(BODY_TOOLS, 'o', 'o', "tools")                                                               \
    X(BODY_CACHE_SALT, 'a', 'c', "cache_salt")                                                     \
    X(BODY_LORA_PATH, 'o', 'r', "lora_path")                                                       \
    X(BODY_ADAPTER, 'd', 'a', "adapter")                                                           \
    X(BODY_STREAM, 't', 'r', "stream")                                                             \
    X(BODY_MAX_TOKENS, 'a', 'x', "max_tokens")                                                     \
    X(BODY_MAX_COMPLETION_TOKENS, 'a', 'x', "max_completion_tokens")                               \
    X(BODY_MAX_OUTPUT_TOKENS, 'a', 'x', "max_output_tokens")                                       \
    X(BODY_SAMPLING_PARAMS, 'a', 'm', "sampling_params")                                           \
    X(BODY_PROMPT_CACHE_KEY, 'r', 'o', "prompt_cache_key")                                         \
    X(BODY_SESSION_ID, 'e', 's', "session_id")                                                     \
    X(BODY_USER, 's', 'e', "user")                                                                 \
    X(BODY_METADATA, 'e', 't', "metadata")                                                         \
    X(BODY_EXTRA_KEY, 'x', 't', "extra_key")                                                       \
    X(BODY_PRIORITY, 'r', 'i', "priority")                                                         \
    X(BODY_CACHE_EXPLAIN, 'a', 'c', "cache_explain")                                               \
    X(BODY_KV_TRANSFER_PARAMS, 'v', '_', "kv_transfer_params")                                     \
    X(BODY_EC_TRANSFER_PARAMS, 'c', '_', "ec_transfer_params")                                     \
    X(BODY_BOOTSTRAP_HOST, 'o', 'o', "bootstrap_host")                                             \
    X(BODY_SESSION_PARAMS, 'e', 's', "session_params")                                             \
    X(BODY_CUSTOM_LOGIT_PROCESSOR, 'u', 's', "custom_logit_processor")                             \
    X(MAX_NEW_TOKENS, 'a', 'x', "max_new_tokens")

struct walk {
    const uint8_t *body, *end;
    const struct string_scan *text;
    struct error *err;

    uint32_t depth;
    uint64_t is_object; /* bit d - 1: the container at depth d is an object */

    int32_t name;                         /* of the top-level member being read, or -1 */
    const uint8_t *value;                 /* of that member: where it begins */
    uint32_t n_keys;                      /* of the top level, so far */
    uint32_t n_others;                    /* keys that are not wanted */
    uint32_t found;                       /* bit i: name i */
    struct str spans[BODY_KEY_COUNT + 1]; /* of the wanted keys found */
    uint64_t others[BODY_KEYS_MAX];       /* hashes; a collision rejects the request that has it */
};

/* --- what is wrong: the error, and NULL for the cursor ---------------------------------------- */

static size_t offset_of(const struct walk *k, const uint8_t *p) {
    return (size_t)(p - k->body);
}

static const uint8_t *bad_utf8_at(const struct walk *k, const uint8_t *p) {
    error_set(k->err, ST_INVALID, "the request body is not valid UTF-8 at byte %zu (0x%02X)",
              offset_of(k, p), *p);
    return NULL;
}

static const uint8_t *bad_at(const struct walk *k, const uint8_t *p, const char *expected) {
    if (p == k->end)
        error_set(k->err, ST_INVALID, "the request body ends too early: expected %s at byte %zu",
                  expected, offset_of(k, p));
    else if (*p >= 0x80 && k->text->bad_utf8(p, (size_t)(k->end - p)) == 0)
        return bad_utf8_at(k, p);
    else if (*p > 0x20 && *p < 0x7F)
        error_set(k->err, ST_INVALID,
                  "the request body is not valid JSON: expected %s at byte %zu, found '%c'",
                  expected, offset_of(k, p), *p);
    else
        error_set(k->err, ST_INVALID,
                  "the request body is not valid JSON: expected %s at byte %zu, found 0x%02X",
                  expected, offset_of(k, p), *p);
    return NULL;
}

static const uint8_t *control_at(const struct walk *k, const uint8_t *p) {
    error_set(k->err, ST_INVALID,
              "the request body has the control byte 0x%02X in a string at byte %zu: "
              "write it as an escape",
              *p, offset_of(k, p));
    return NULL;
}

static const uint8_t *too_deep_at(const struct walk *k, const uint8_t *p) {
    error_set(k->err, ST_INVALID,
              "the request body nests deeper than %d levels at byte %zu: send a flatter document",
              BODY_DEPTH_MAX, offset_of(k, p));
    return NULL;
}

/* --- keys of the top level ------------------------------------------------------------------- */

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
        int digit = str_hex_value(p[i]);

        if (digit < 0) return 0;
        code = code * 16 + (uint32_t)digit;
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
                             "the request body has a key with an invalid escape at byte %zu",
                             offset_of(k, key + i));
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
                           offset_of(k, key));
}

/* Which of the names it is, or -1. */
static int32_t name_of(const uint8_t *key, size_t n) {
#define SHAPE(len, second, third)                                                                  \
    ((uint32_t)(len) << 16 | (uint32_t)(uint8_t)(second) << 8 | (uint8_t)(third))
#define CASE(name, second, third, text)                                                            \
    case SHAPE(sizeof(text) - 1, second, third):                                                   \
        return memcmp(key, text, sizeof(text) - 1) ? -1 : name;
    switch (n > 2 ? SHAPE(n, key[1], key[2]) : 0) {
        NAMES(CASE)
    default: return -1;
    }
#undef SHAPE
#undef CASE
}

/* True when the key is new. A key that is not wanted is stored by its hash. */
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

/* Records a top-level key: the bytes between its quotes, which have a backslash. */
static __attribute__((noinline)) enum status on_escaped_key(struct walk *k, const uint8_t *key,
                                                            size_t n) {
    uint8_t plain[KEY_BYTES_MAX];
    size_t n_plain;
    enum status st = unescape_key(k, key, n, plain, &n_plain);

    if (st != ST_OK) return st;
    k->name = name_of(plain, n_plain);
    return is_new_key(k, plain, n_plain) ? ST_OK : key_twice(k, key, n);
}

/* Records any top-level key, with or without escapes. */
static enum status on_top_key(struct walk *k, const uint8_t *key, size_t n) {
    if (n > KEY_BYTES_MAX)
        return error_set(
            k->err, ST_INVALID,
            "the request body has a key of %zu bytes at byte %zu: use at most %d bytes", n,
            offset_of(k, key), KEY_BYTES_MAX);
    if (k->n_keys++ == BODY_KEYS_MAX)
        return error_set(k->err, ST_INVALID,
                         "the request body has more than %d top-level keys: send fewer",
                         BODY_KEYS_MAX);
    k->name = name_of(key, n);
    if (k->name < 0 && memchr(key, '\\', n)) return on_escaped_key(k, key, n);
    return is_new_key(k, key, n) ? ST_OK : key_twice(k, key, n);
}

/* --- tokens ----------------------------------------------------------------------------------
 *
 * Each function takes the cursor p and returns where it is then; NULL when what it finds is wrong
 * and the error is set. */

/* Number of leading digits of the word. A byte below '0' or above '9' gets its highest bit in one
 * of the sums; borrows and carries affect only later bytes. */
static inline int n_digits(uint64_t word) {
    uint64_t others =
        ((word - TEXT_EACH_BYTE('0')) | (word + TEXT_EACH_BYTE(0x7F - '9'))) & TEXT_EACH_BYTE(0x80);

    return others ? __builtin_ctzll(others) / 8 : 8;
}

/* Indentation: a line's end and many spaces, eight at a time. */
static const uint8_t *skip_long_space(const uint8_t *p, const uint8_t *end) {
    for (; p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'); p++) {
        while (end - p > 8) {
            uint64_t other = text_load_word(p + 1) ^ TEXT_EACH_BYTE(' ');

            if (other) {
                p += __builtin_ctzll(other) / 8;
                break;
            }
            p += 8;
        }
    }
    return p;
}

static inline const uint8_t *skip_space(const struct walk *k, const uint8_t *p) {
    if (LIKELY(k->end - p > 1)) {
        if (*p > ' ') return p;
        if (*p == ' ' && p[1] > ' ') return p + 1;
    }
    return skip_long_space(p, k->end);
}

/* The byte there; 0, which is none of any token, at the end. */
static inline uint8_t peek(const struct walk *k, const uint8_t *p) {
    return p < k->end ? *p : 0;
}

/* Of any string, from the first byte of its text to behind its closing quote. */
static __attribute__((noinline)) const uint8_t *read_text(const struct walk *k, const uint8_t *p,
                                                          const char *its_end) {
    size_t n = (size_t)(k->end - k->body);
    struct string_scan_end found = k->text->end(k->body, n, offset_of(k, p));
    const uint8_t *end = k->body + found.at;

    if (!found.is_ascii) {
        p += k->text->bad_utf8(p, (size_t)(end - p));
        if (p < end) return bad_utf8_at(k, p);
    }
    if (end < k->end && *end == '"') return end + 1;
    return end == k->end ? bad_at(k, end, its_end) : control_at(k, end);
}

/* From a string's opening quote to behind its closing one. */
static inline const uint8_t *read_string(const struct walk *k, const uint8_t *p,
                                         const char *its_end) {
    p++;
    if (LIKELY(k->end - p >= TEXT_SHORT_BYTES)) {
        uint32_t len = text_short_len(p);

        if (len < TEXT_SHORT_BYTES && p[len] == '"') return p + len + 1;
    }
    return read_text(k, p, its_end);
}

/* Skips a number or literal: any run of its letters; the worker checks the grammar. */
static const uint8_t *read_scalar(const struct walk *k, const uint8_t *p, const char *expected) {
    static const bool is_letter[256] = {
        ['0' ... '9'] = true, ['a' ... 'z'] = true, ['A' ... 'Z'] = true,
        ['-'] = true,         ['+'] = true,         ['.'] = true,
    };
    const uint8_t *start = p;

    if (k->end - p >= 8) p += n_digits(text_load_word(p));
    while (p < k->end && is_letter[*p])
        p++;
    return p > start ? p : bad_at(k, p, expected);
}

/* --- members --------------------------------------------------------------------------------- */

static inline bool in_object(const struct walk *k) {
    return k->is_object >> (k->depth - 1) & 1;
}

static inline uint8_t closing_bracket(const struct walk *k) {
    return in_object(k) ? '}' : ']';
}

static const uint8_t *open_container(struct walk *k, const uint8_t *p, bool is_object) {
    if (k->depth == BODY_DEPTH_MAX) return too_deep_at(k, p);
    k->is_object &= ~(UINT64_C(1) << k->depth);
    k->is_object |= (uint64_t)is_object << k->depth;
    k->depth++;
    return p + 1;
}

static const uint8_t *open_body(struct walk *k, const uint8_t *p) {
    uint8_t c = peek(k, p);

    if (c == '{') return open_container(k, p, true);
    if (c == '[' || c == '"' || read_scalar(k, p, "a value"))
        error_set(k->err, ST_INVALID, "the request body is not a JSON object: send {...}");
    return NULL;
}

/* A key and its colon. */
static const uint8_t *read_key(struct walk *k, const uint8_t *p, bool may_close) {
    const uint8_t *key = p + 1;

    if (peek(k, p) != '"')
        return bad_at(k, p, may_close ? "a key in quotes or '}'" : "a key in quotes");
    p = read_string(k, p, "the end of a key");
    if (!p) return NULL;
    if (k->depth == 1 && on_top_key(k, key, (size_t)(p - 1 - key)) != ST_OK) return NULL;
    if (peek(k, p) != ':') p = skip_space(k, p);
    return peek(k, p) == ':' ? p + 1 : bad_at(k, p, "':'");
}

/* A string, a number or a literal; of a container, the opening bracket alone. */
static const uint8_t *read_value(struct walk *k, const uint8_t *p, const char *expected) {
    if (k->depth == 1) k->value = p;
    switch (peek(k, p)) {
    case '"': return read_string(k, p, "the end of a string");
    case '{': return open_container(k, p, true);
    case '[': return open_container(k, p, false);
    default: return read_scalar(k, p, expected);
    }
}

/* From after a value to after a comma before another value, or after the last bracket. */
static const uint8_t *walk_to_next(struct walk *k, const uint8_t *p) {
    for (; k->depth; k->depth--, p++) {
        if (k->depth == 1 && k->name >= 0)
            k->spans[k->name] = (struct str){(const char *)k->value, (size_t)(p - k->value)};
        if (peek(k, p) == ',') return p + 1;
        p = skip_space(k, p);
        if (peek(k, p) == ',') return p + 1;
        if (peek(k, p) != closing_bracket(k)) return bad_at(k, p, "',' or the closing bracket");
    }
    return p;
}

static enum status walk_body(struct walk *k) {
    bool is_empty = true; /* the innermost container is empty so far and may close */
    const uint8_t *p = open_body(k, skip_space(k, k->body));

    while (p && k->depth) {
        uint32_t depth = k->depth;

        p = skip_space(k, p);
        if (is_empty && peek(k, p) == closing_bracket(k)) {
            k->depth--;
            p++;
        } else if (in_object(k)) {
            p = read_key(k, p, is_empty);
            if (p) p = read_value(k, skip_space(k, p), "a value");
        } else {
            p = read_value(k, p, is_empty ? "a value or ']'" : "a value");
        }
        is_empty = k->depth > depth;
        if (p && !is_empty) p = walk_to_next(k, p);
    }
    if (!p) return ST_INVALID;
    p = skip_space(k, p);
    if (p < k->end) bad_at(k, p, "nothing more");
    return p == k->end ? ST_OK : ST_INVALID;
}

/* --- the request ----------------------------------------------------------------------------- */

static enum status scan_object(struct walk *k, struct str object, const struct string_scan *text,
                               struct error *err) {
    /* The hashes, 2 KiB of them, need no initial value. */
    memset(k, 0, offsetof(struct walk, others));
    k->body = (const uint8_t *)object.ptr;
    k->end = k->body + object.len;
    k->text = text;
    k->err = err;
    return walk_body(k);
}

static uint32_t to_count(struct str number) {
    uint64_t value;

    if (!number.ptr || str_to_u64(number, &value) != ST_OK) return 0;
    return (uint32_t)MIN(value, (uint64_t)UINT32_MAX);
}

/* SGLang's place for the limit: an object, already checked as part of the body. */
static uint32_t count_in_sampling_params(struct str params, const struct string_scan *text) {
    struct walk k;

    if (!params.len || params.ptr[0] != '{') return 0;
    if (scan_object(&k, params, text, NULL) != ST_OK) return 0;
    return to_count(k.spans[MAX_NEW_TOKENS]);
}

enum status body_scan_with(struct str body, struct body_scan *out, const struct string_scan *text,
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
    if (!out->max_output_tokens) out->max_output_tokens = to_count(k.spans[BODY_MAX_OUTPUT_TOKENS]);
    if (!out->max_output_tokens)
        out->max_output_tokens = count_in_sampling_params(k.spans[BODY_SAMPLING_PARAMS], text);
    return ST_OK;
}

/* Resolves escapes, as in PHP's "org\/name"; a text too long for a name stays as it is. */
static struct str unescape_model(struct str raw, struct body_scan *out) {
    struct json *root = NULL;
    struct str name = body_unquote(raw), text;

    if (raw.len > 6 * sizeof(out->model_text) || json_parse(&root, raw, NULL, NULL) != ST_OK)
        return name;
    if (json_to_str(root, &text) == ST_OK && text.len <= sizeof(out->model_text)) {
        memcpy(out->model_text, text.ptr, text.len);
        name = (struct str){out->model_text, text.len};
    }
    json_destroy(root);
    return name;
}

static struct str model_of(struct body_scan *out) {
    struct str raw = out->spans[BODY_MODEL];

    if (!raw.ptr || str_eq(raw, STR("null"))) return STR_NULL;
    return memchr(raw.ptr, '\\', raw.len) ? unescape_model(raw, out) : body_unquote(raw);
}

enum status body_scan(struct str body, struct body_scan *out, struct error *err) {
    enum status st = body_scan_with(body, out, string_scan_at(0), err);

    if (st == ST_OK) out->model = model_of(out);
    return st;
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

/* router/body_scan.c - the walk over the structure of a body.
 *
 * Groups of 64 bytes become masks (body_classify.h). Plain 64-bit arithmetic turns them into the
 * few positions that matter: an unescaped quote, an operator outside strings, the first byte of a
 * number or literal. Text in strings, nearly all of a body, is skipped 64 bytes at a time. A small
 * state machine consumes the positions:
 *
 *      VALUE_OR_CLOSE ─┐        KEY_OR_CLOSE ── "key" ──▶ COLON ── : ──▶ VALUE
 *       after [        │         after {                                   │
 *                      ▼                                                   ▼
 *               value ──▶ COMMA_OR_CLOSE ── , ──▶ VALUE or KEY       value, as left
 *
 * Depth is at most 64, so one word of bits says which open containers are objects. */
#include "router/body_scan.h"

#include "common/hash.h"
#include "router/body_classify.h"
#include "router/body_scan_internal.h"

#include <string.h>

#define GROUPS_PER_CHUNK 32 /* masks of 2 KiB of body: 1.5 KiB of stack, in the first-level cache */
#define KEY_BYTES_MAX    256
#define KEY_BYTES_SHOWN  40 /* in messages; below ERROR_PARAM_MAX */

enum state {
    EXPECT_VALUE,
    EXPECT_VALUE_OR_CLOSE,
    EXPECT_KEY,
    EXPECT_KEY_OR_CLOSE,
    EXPECT_COLON,
    EXPECT_COMMA_OR_CLOSE,
    EXPECT_END,
    IN_STRING,
    IN_KEY,
};

static const char *const state_expects[] = {
    [EXPECT_VALUE] = "a value",       [EXPECT_VALUE_OR_CLOSE] = "a value or ']'",
    [EXPECT_KEY] = "a key in quotes", [EXPECT_KEY_OR_CLOSE] = "a key in quotes or '}'",
    [EXPECT_COLON] = "':'",           [EXPECT_COMMA_OR_CLOSE] = "',' or the closing bracket",
    [EXPECT_END] = "nothing more",    [IN_STRING] = "the end of a string",
    [IN_KEY] = "the end of a key",
};

struct walk {
    const uint8_t *body;
    size_t n;
    const struct str *names; /* the keys looked for */
    uint32_t n_names;
    struct str *spans;
    struct error *err;

    enum state state;
    uint32_t depth;
    uint64_t is_object;  /* bit d - 1: the container at depth d is an object */
    size_t string_start; /* of the string or key being read */
    size_t value_start;  /* of the top-level member being read */
    int32_t name;        /* its index in names, or -1 */
    size_t utf8_next;    /* bytes before are checked */

    uint64_t keys[BODY_KEYS_MAX]; /* hashes of the top-level keys so far */
    uint32_t n_keys;
};

static enum status bad_at(struct walk *k, size_t pos) {
    uint8_t c = pos < k->n ? k->body[pos] : 0;

    if (pos >= k->n)
        return error_set(k->err, ST_INVALID,
                         "the request body ends too early: expected %s at byte %zu",
                         state_expects[k->state], pos);
    if (c > 0x20 && c < 0x7F)
        return error_set(k->err, ST_INVALID,
                         "the request body is not valid JSON: expected %s at byte %zu, found '%c'",
                         state_expects[k->state], pos, c);
    return error_set(k->err, ST_INVALID,
                     "the request body is not valid JSON: expected %s at byte %zu, found 0x%02X",
                     state_expects[k->state], pos, c);
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

/* Notes a top-level key, the bytes between its quotes. A key may be spelt with escapes. */
static enum status on_top_key(struct walk *k, const uint8_t *key, size_t n) {
    uint8_t plain[KEY_BYTES_MAX];
    uint64_t hash;
    size_t at = (size_t)(key - k->body), n_shown = MIN(n, (size_t)KEY_BYTES_SHOWN);

    if (n > KEY_BYTES_MAX)
        return error_set(k->err, ST_INVALID,
                         "the request body has a key of %zu bytes at byte %zu: at most %d", n, at,
                         KEY_BYTES_MAX);
    while (n_shown < n && n_shown && (key[n_shown] & 0xC0) == 0x80)
        n_shown--; /* whole characters */
    if (memchr(key, '\\', n)) {
        size_t n_plain = 0;

        for (size_t i = 0; i < n;) {
            size_t used = 1;

            if (key[i] != '\\') {
                plain[n_plain++] = key[i++];
                continue;
            }
            used = unescape(key + i + 1, n - i - 1, plain, &n_plain);
            if (!used)
                return error_set(k->err, ST_INVALID,
                                 "the request body has a key with a wrong escape at byte %zu",
                                 at + i);
            i += 1 + used;
        }
        key = plain;
        n = n_plain;
    }
    hash = hash_64(key, n, 0);
    for (uint32_t i = 0; i < k->n_keys; i++) {
        if (k->keys[i] == hash) {
            char name[KEY_BYTES_SHOWN + 1] = "";

            memcpy(name, k->body + at, n_shown);
            return error_set_param(k->err, ST_INVALID, name,
                                   "the request body has the key \"%s\" twice, again at byte %zu",
                                   name, at);
        }
    }
    if (k->n_keys == BODY_KEYS_MAX)
        return error_set(k->err, ST_INVALID, "the request body has more than %d top-level keys",
                         BODY_KEYS_MAX);
    k->keys[k->n_keys++] = hash;
    k->name = -1;
    for (uint32_t i = 0; i < k->n_names; i++) {
        if (k->names[i].len == n && memcmp(k->names[i].ptr, key, n) == 0) k->name = (int32_t)i;
    }
    return ST_OK;
}

/* --- the state machine ----------------------------------------------------------------------- */

static bool may_begin_value(const struct walk *k) {
    return k->state == EXPECT_VALUE || k->state == EXPECT_VALUE_OR_CLOSE;
}

static void begin_value(struct walk *k, size_t pos) {
    if (k->depth == 1) k->value_start = pos;
}

static void end_value(struct walk *k, size_t end) {
    if (k->depth == 1 && k->name >= 0)
        k->spans[k->name] =
            (struct str){(const char *)k->body + k->value_start, end - k->value_start};
    k->state = k->depth ? EXPECT_COMMA_OR_CLOSE : EXPECT_END;
}

static enum status not_an_object(struct walk *k) {
    return error_set(k->err, ST_INVALID, "the request body is not a JSON object");
}

static enum status on_open(struct walk *k, size_t pos, bool is_object) {
    if (!may_begin_value(k)) return bad_at(k, pos);
    if (k->depth == 0 && !is_object) return not_an_object(k);
    if (k->depth == BODY_DEPTH_MAX)
        return error_set(k->err, ST_INVALID, "the request body nests deeper than %d at byte %zu",
                         BODY_DEPTH_MAX, pos);
    begin_value(k, pos);
    k->depth++;
    k->is_object &= ~(UINT64_C(1) << (k->depth - 1));
    k->is_object |= (uint64_t)is_object << (k->depth - 1);
    k->state = is_object ? EXPECT_KEY_OR_CLOSE : EXPECT_VALUE_OR_CLOSE;
    return ST_OK;
}

static bool in_object(const struct walk *k) {
    return k->is_object >> (k->depth - 1) & 1;
}

static enum status on_close(struct walk *k, size_t pos, bool is_object) {
    bool is_empty = k->state == (is_object ? EXPECT_KEY_OR_CLOSE : EXPECT_VALUE_OR_CLOSE);

    if (!k->depth ||
        (!is_empty && (k->state != EXPECT_COMMA_OR_CLOSE || in_object(k) != is_object)))
        return bad_at(k, pos);
    k->depth--;
    end_value(k, pos + 1);
    return ST_OK;
}

static enum status on_quote(struct walk *k, size_t pos) {
    if (k->state == IN_STRING) {
        end_value(k, pos + 1);
    } else if (k->state == IN_KEY) {
        enum status st = ST_OK;

        if (k->depth == 1) st = on_top_key(k, k->body + k->string_start, pos - k->string_start);
        if (st != ST_OK) return st;
        k->state = EXPECT_COLON;
    } else if (k->state == EXPECT_KEY || k->state == EXPECT_KEY_OR_CLOSE) {
        k->string_start = pos + 1;
        k->state = IN_KEY;
    } else if (may_begin_value(k)) {
        if (!k->depth) return not_an_object(k);
        begin_value(k, pos);
        k->state = IN_STRING;
    } else {
        return bad_at(k, pos);
    }
    return ST_OK;
}

static bool is_scalar_byte(uint8_t c) {
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '-' ||
           c == '+' || c == '.';
}

/* A number or literal: any run of its letters; which ones are right is the worker's to say. */
static enum status on_scalar(struct walk *k, size_t pos) {
    size_t end = pos;

    if (!may_begin_value(k)) return bad_at(k, pos);
    while (end < k->n && is_scalar_byte(k->body[end]))
        end++;
    if (end == pos) return bad_at(k, pos);
    if (!k->depth) return not_an_object(k);
    if (end < k->n && !memchr("{}[],: \t\n\r\"", k->body[end], 11)) return bad_at(k, end);
    begin_value(k, pos);
    end_value(k, end);
    return ST_OK;
}

static enum status on_event(struct walk *k, size_t pos) {
    switch (k->body[pos]) {
    case '"': return on_quote(k, pos);
    case '{': return on_open(k, pos, true);
    case '[': return on_open(k, pos, false);
    case '}': return on_close(k, pos, true);
    case ']': return on_close(k, pos, false);
    case ':':
        if (k->state != EXPECT_COLON) return bad_at(k, pos);
        k->state = EXPECT_VALUE;
        return ST_OK;
    case ',':
        if (k->state != EXPECT_COMMA_OR_CLOSE) return bad_at(k, pos);
        k->state = in_object(k) ? EXPECT_KEY : EXPECT_VALUE;
        return ST_OK;
    default: return on_scalar(k, pos);
    }
}

/* --- masks to positions ---------------------------------------------------------------------- */

/* The bytes that a backslash escapes: those after an odd run of backslashes. *carry: the first
 * byte of the next group is one. */
static uint64_t find_escaped(uint64_t backslash, uint64_t *carry) {
    const uint64_t even = UINT64_C(0x5555555555555555);
    uint64_t follows, odd_starts, sum;

    backslash &= ~*carry;
    follows = backslash << 1 | *carry;
    odd_starts = backslash & ~even & ~follows;
    *carry = __builtin_add_overflow(odd_starts, backslash, &sum);
    return (even ^ sum << 1) & follows;
}

/* Bit i = xor of bits 0 to i: from quotes to what lies between them. */
static uint64_t prefix_xor(uint64_t x) {
    for (uint32_t shift = 1; shift < 64; shift *= 2)
        x ^= x << shift;
    return x;
}

/* Length of the well-formed UTF-8 sequence at p, 0 when it is not one. */
static size_t utf8_len(const uint8_t *p, size_t n) {
    uint8_t low = 0x80, high = 0xBF; /* of the second byte: no overlong forms, no surrogates */
    size_t len;

    if (p[0] >= 0xC2 && p[0] <= 0xDF) {
        len = 2;
    } else if (p[0] >= 0xE0 && p[0] <= 0xEF) {
        len = 3;
        if (p[0] == 0xE0) low = 0xA0;
        if (p[0] == 0xED) high = 0x9F;
    } else if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        len = 4;
        if (p[0] == 0xF0) low = 0x90;
        if (p[0] == 0xF4) high = 0x8F;
    } else {
        return 0;
    }
    if (n < len || p[1] < low || p[1] > high) return 0;
    for (size_t i = 2; i < len; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
    }
    return len;
}

/* Checks the sequences that begin in the group at `base`, whose non-ASCII bytes are `high`. */
static enum status check_utf8(struct walk *k, size_t base, uint64_t high) {
    while (high) {
        size_t pos = base + (size_t)__builtin_ctzll(high);

        high &= high - 1;
        if (pos < k->utf8_next) continue;
        size_t len = utf8_len(k->body + pos, k->n - pos);
        if (!len)
            return error_set(k->err, ST_INVALID,
                             "the request body is not valid UTF-8 at byte %zu (0x%02X)", pos,
                             k->body[pos]);
        k->utf8_next = pos + len;
    }
    return ST_OK;
}

struct carry {
    uint64_t escaped;   /* 0 or 1 */
    uint64_t in_string; /* all ones or none */
    uint64_t in_scalar; /* 0 or 1 */
};

static enum status walk_group(struct walk *k, struct carry *c, size_t base,
                              const struct body_masks *m) {
    uint64_t quote = m->quote, in_string, scalar, events;
    enum status st;

    if (m->backslash | c->escaped) quote &= ~find_escaped(m->backslash, &c->escaped);
    if (m->high && (st = check_utf8(k, base, m->high)) != ST_OK) return st;
    if (!quote && c->in_string) { /* text from edge to edge */
        in_string = ~UINT64_C(0);
        events = 0;
    } else {
        in_string = prefix_xor(quote) ^ c->in_string; /* opening quote in, closing quote out */
        scalar = ~(m->op | m->space | in_string | quote);
        events = quote | (m->op & ~in_string) | (scalar & ~(scalar << 1 | c->in_scalar));
        c->in_scalar = scalar >> 63;
        c->in_string = 0 - (in_string >> 63);
    }
    if (m->control & in_string) {
        size_t pos = base + (size_t)__builtin_ctzll(m->control & in_string);

        return error_set(k->err, ST_INVALID,
                         "the request body has the control byte 0x%02X in a string at byte %zu: "
                         "write it as an escape",
                         k->body[pos], pos);
    }
    for (; events; events &= events - 1) {
        st = on_event(k, base + (size_t)__builtin_ctzll(events));
        if (st != ST_OK) return st;
    }
    return ST_OK;
}

static enum status walk_body(struct walk *k, body_classify_fn *classify) {
    struct body_masks masks[GROUPS_PER_CHUNK];
    struct carry carry = {0};
    size_t n_groups = k->n / BODY_GROUP, n_tail = k->n % BODY_GROUP;
    enum status st;

    for (size_t g = 0; g < n_groups; g += GROUPS_PER_CHUNK) {
        size_t n = MIN(n_groups - g, (size_t)GROUPS_PER_CHUNK);

        classify(k->body + g * BODY_GROUP, n, masks);
        for (size_t i = 0; i < n; i++) {
            st = walk_group(k, &carry, (g + i) * BODY_GROUP, &masks[i]);
            if (st != ST_OK) return st;
        }
    }
    if (n_tail) {
        uint8_t last[BODY_GROUP];

        memset(last, ' ', sizeof(last));
        memcpy(last, k->body + n_groups * BODY_GROUP, n_tail);
        classify(last, 1, masks);
        st = walk_group(k, &carry, n_groups * BODY_GROUP, &masks[0]);
        if (st != ST_OK) return st;
    }
    return k->state == EXPECT_END ? ST_OK : bad_at(k, k->n);
}

/* --- the request ----------------------------------------------------------------------------- */

static enum status scan_object(struct str text, const struct str *names, uint32_t n_names,
                               struct str *spans, body_classify_fn *classify, struct error *err) {
    struct walk k; /* the table of keys needs no initial value: 2 KiB of it */

    k.body = (const uint8_t *)text.ptr;
    k.n = text.len;
    k.names = names;
    k.n_names = n_names;
    k.spans = spans;
    k.err = err;
    k.state = EXPECT_VALUE;
    k.depth = 0;
    k.is_object = 0;
    k.string_start = k.value_start = k.utf8_next = 0;
    k.name = -1;
    k.n_keys = 0;
    for (uint32_t i = 0; i < n_names; i++)
        spans[i] = STR_NULL;
    return walk_body(&k, classify);
}

static uint32_t to_count(struct str number) {
    uint64_t value;

    if (!number.ptr || str_to_u64(number, &value) != ST_OK) return 0;
    return (uint32_t)MIN(value, (uint64_t)UINT32_MAX);
}

/* SGLang's place for the limit: an object of its own, checked already as part of the body. */
static uint32_t count_in_sampling_params(struct str params, body_classify_fn *classify) {
    static const struct str names[] = {{"max_new_tokens", 14}};
    struct str span;

    if (!params.len || params.ptr[0] != '{') return 0;
    if (scan_object(params, names, 1, &span, classify, NULL) != ST_OK) return 0;
    return to_count(span);
}

enum status body_scan_with(struct str body, struct body_scan *out, body_classify_fn *classify,
                           struct error *err) {
    static const struct str names[BODY_KEY_COUNT] = {
#define NAME(key, text) [key] = {text, sizeof(text) - 1}
        NAME(BODY_MODEL, "model"),
        NAME(BODY_MESSAGES, "messages"),
        NAME(BODY_PROMPT, "prompt"),
        NAME(BODY_TEXT, "text"),
        NAME(BODY_INPUT_IDS, "input_ids"),
        NAME(BODY_TOOLS, "tools"),
        NAME(BODY_CACHE_SALT, "cache_salt"),
        NAME(BODY_LORA_PATH, "lora_path"),
        NAME(BODY_ADAPTER, "adapter"),
        NAME(BODY_STREAM, "stream"),
        NAME(BODY_MAX_TOKENS, "max_tokens"),
        NAME(BODY_MAX_COMPLETION_TOKENS, "max_completion_tokens"),
        NAME(BODY_SAMPLING_PARAMS, "sampling_params"),
        NAME(BODY_PROMPT_CACHE_KEY, "prompt_cache_key"),
        NAME(BODY_SESSION_ID, "session_id"),
        NAME(BODY_USER, "user"),
        NAME(BODY_EXTRA_KEY, "extra_key"),
        NAME(BODY_PRIORITY, "priority"),
#undef NAME
    };
    struct body_scan scan;
    enum status st;

    if (body.len == 0)
        return error_set(err, ST_INVALID, "the request body is empty: send a JSON object");
    st = scan_object(body, names, BODY_KEY_COUNT, scan.spans, classify, err);
    if (st != ST_OK) return st;
    scan.is_stream = str_eq(scan.spans[BODY_STREAM], STR("true"));
    scan.max_output_tokens = to_count(scan.spans[BODY_MAX_COMPLETION_TOKENS]);
    if (!scan.max_output_tokens) scan.max_output_tokens = to_count(scan.spans[BODY_MAX_TOKENS]);
    if (!scan.max_output_tokens)
        scan.max_output_tokens =
            count_in_sampling_params(scan.spans[BODY_SAMPLING_PARAMS], classify);
    *out = scan;
    return ST_OK;
}

enum status body_scan(struct str body, struct body_scan *out, struct error *err) {
    return body_scan_with(body, out, body_classifier_at(0)->fn, err);
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

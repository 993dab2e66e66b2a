/* worker/text/tokenizer/normalize.c - the steps, and how tokenizer.json spells them. */
#include "worker/text/tokenizer/normalize.h"

#include "common/base/mem.h"
#include "common/text/json.h"
#include "worker/text/tokenizer/tokenizer_json.h"

/* --- loading -----------------------------------------------------------------------------------*/
static void read_form(struct normalize_step *s, const struct json *v) {
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD"};

    s->kind = NORMALIZE_FORM;
    while (!tokenizer_json_is(v, names[s->form]))
        s->form++;
}

static enum status load_content(struct normalize_step *s, const struct json *v, struct error *err) {
    struct str content = STR_NULL;

    if (json_to_str(v, &content) != ST_OK) {
        return error_set(err, ST_INVALID, "a normalizer has no string to insert");
    }
    s->content = mem_strndup(content.ptr, content.len);
    s->n_content = content.len;
    return ST_OK;
}

static enum status load_step(struct normalize_step *s, const struct json *v, struct error *err) {
    enum status st;

    if (tokenizer_json_is(v, "NFC") || tokenizer_json_is(v, "NFD") ||
        tokenizer_json_is(v, "NFKC") || tokenizer_json_is(v, "NFKD")) {
        read_form(s, v);
        return ST_OK;
    }
    if (tokenizer_json_is(v, "Lowercase")) {
        s->kind = NORMALIZE_LOWERCASE;
        return ST_OK;
    }
    if (tokenizer_json_is(v, "StripAccents")) {
        s->kind = NORMALIZE_STRIP_ACCENTS;
        return ST_OK;
    }
    if (tokenizer_json_is(v, "Strip")) {
        s->kind = NORMALIZE_STRIP;
        s->strips_left = tokenizer_json_true(v, "strip_left", true);
        s->strips_right = tokenizer_json_true(v, "strip_right", true);
        return ST_OK;
    }
    if (tokenizer_json_is(v, "Prepend")) {
        s->kind = NORMALIZE_PREPEND;
        return load_content(s, json_get(v, "prepend"), err);
    }
    if (tokenizer_json_is(v, "Replace")) {
        s->kind = NORMALIZE_REPLACE;
        st = tokenizer_json_pattern(v, &s->pattern, err);
        return st == ST_OK ? load_content(s, json_get(v, "content"), err) : st;
    }
    return error_set(err, ST_UNSUPPORTED,
                     "unsupported normalizer '%.40s': supported are NFC, NFD, NFKC, NFKD, "
                     "Lowercase, StripAccents, Strip, Replace, Prepend and Sequence",
                     tokenizer_json_type(v));
}

enum status normalizer_load(struct normalizer *n, const struct json *v, struct error *err) {
    if (json_is_null(v)) return ST_OK;
    if (tokenizer_json_is(v, "Sequence")) { /* the JSON reader has limited the nesting */
        JSON_FOR_EACH(part, json_get(v, "normalizers")) {
            enum status st = normalizer_load(n, part, err);

            if (st != ST_OK) return st;
        }
        return ST_OK;
    }
    if (n->n == NORMALIZE_MAX_STEPS) {
        return error_set(err, ST_UNSUPPORTED, "unsupported normalizer: it has more than %d steps",
                         NORMALIZE_MAX_STEPS);
    }
    return load_step(&n->steps[n->n++], v, err);
}

void normalizer_fini(struct normalizer *n) {
    for (uint32_t i = 0; i < n->n; i++) {
        pattern_fini(&n->steps[i].pattern);
        mem_free(n->steps[i].content);
    }
    memset(n, 0, sizeof(*n));
}

/* --- applying ----------------------------------------------------------------------------------*/
static void append_cp(struct buf *out, uint32_t cp) {
    char bytes[4];

    buf_append(out, bytes, unicode_encode(cp, bytes));
}

static void lowercase(struct str text, struct buf *out) {
    const char *p = text.ptr, *end = p + text.len;
    uint32_t n, lower[3];

    for (; p < end; p += n) {
        uint32_t cp = unicode_decode(p, end, &n), n_lower = unicode_lower(cp, lower);

        for (uint32_t i = 0; i < n_lower; i++)
            append_cp(out, lower[i]);
    }
}

static void strip_accents(struct str text, struct buf *out) {
    const char *p = text.ptr, *end = p + text.len;
    uint32_t n;

    for (; p < end; p += n) {
        if (!(unicode_traits(unicode_decode(p, end, &n)) & UC_ACCENT)) buf_append(out, p, n);
    }
}

static struct str strip(const struct normalize_step *s, struct str text) {
    const char *p = text.ptr, *end = p + text.len;

    while (s->strips_left && p < end) {
        uint32_t n;

        if (!(unicode_class(unicode_decode(p, end, &n)) & UC_SPACE)) break;
        p += n;
    }
    while (s->strips_right && end > p) {
        const char *last = end - 1;
        uint32_t n;

        while (last > p && ((uint8_t)*last & 0xC0) == 0x80)
            last--;
        if (!(unicode_class(unicode_decode(last, end, &n)) & UC_SPACE)) break;
        end = last;
    }
    return (struct str){p, (size_t)(end - p)};
}

static enum status replace(const struct normalize_step *s, struct pattern_run *run, struct str text,
                           struct buf *out, struct error *err) {
    for (size_t at = 0, begin, end; at < text.len; at = end) {
        enum status st = pattern_find(&s->pattern, run, text, at, &begin, &end, err);

        if (st != ST_OK) return st;
        buf_append(out, text.ptr + at, begin - at);
        if (end > begin) buf_append(out, s->content, s->n_content);
    }
    return ST_OK;
}

/* ST_OK with *out set, or filled. */
static enum status apply(const struct normalize_step *s, struct pattern_run *run, struct str *text,
                         struct buf *to, struct error *err) {
    enum status st = ST_OK;

    switch (s->kind) {
    case NORMALIZE_STRIP: *text = strip(s, *text); return ST_OK;
    case NORMALIZE_FORM:
        if (s->form == UNICODE_NFC && unicode_is_nfc_quick(*text)) return ST_OK;
        st = unicode_normalize(s->form, *text, to, err);
        break;
    case NORMALIZE_LOWERCASE: lowercase(*text, to); break;
    case NORMALIZE_STRIP_ACCENTS: strip_accents(*text, to); break;
    case NORMALIZE_REPLACE: st = replace(s, run, *text, to, err); break;
    case NORMALIZE_PREPEND:
        buf_append(to, s->content, s->n_content);
        buf_append_str(to, *text);
        break;
    }
    *text = buf_str(to);
    return st == ST_OK ? buf_status(to) : st;
}

enum status normalizer_apply(const struct normalizer *n, struct pattern_run *run, struct str text,
                             struct buf between[2], struct str *out, struct error *err) {
    struct buf *to = &between[0];

    for (uint32_t i = 0; i < n->n && text.len; i++) {
        enum status st;

        buf_clear(to);
        st = apply(&n->steps[i], run, &text, to, err);
        if (st != ST_OK) return st;
        if (text.ptr == buf_ptr(to)) to = to == &between[0] ? &between[1] : &between[0];
    }
    *out = text;
    return ST_OK;
}

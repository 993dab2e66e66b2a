/* worker/text/detokenize.c - a UTF-8 decoder that can stop anywhere. */
#include "worker/text/detokenize.h"

#include "worker/text/tokenizer/tokenizer_internal.h"

static const struct str replacement = {"\xEF\xBF\xBD", 3};

enum scan { SCAN_WHOLE, SCAN_BROKEN, SCAN_SHORT };

/* The character at p (p < end). SCAN_WHOLE: *n bytes. SCAN_BROKEN: the first *n bytes begin no
 * character, and the byte after them may begin one. SCAN_SHORT: all *n bytes to the end are the
 * beginning of one. Second bytes follow table 3-7 of the Unicode standard. */
static enum scan scan(const uint8_t *p, const uint8_t *end, size_t *n) {
    uint8_t lead = p[0], low = 0x80, high = 0xBF;
    size_t need;

    *n = 1;
    if (lead < 0x80) return SCAN_WHOLE;
    if (lead < 0xC2 || lead > 0xF4) return SCAN_BROKEN;
    need = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    for (; *n < need; ++*n, low = 0x80, high = 0xBF) {
        if (p + *n == end) return SCAN_SHORT;
        if (p[*n] < low || p[*n] > high) return SCAN_BROKEN;
    }
    return SCAN_WHOLE;
}

/* Appends the whole characters of `s`, each broken part as U+FFFD, and returns how many bytes at
 * the end (0 to 3) are the beginning of a character. */
static size_t copy_characters(struct str s, struct buf *out) {
    const uint8_t *p = (const uint8_t *)s.ptr, *end = p + s.len, *good = p;

    while (p < end) {
        size_t n;
        enum scan what = scan(p, end, &n);

        if (what == SCAN_WHOLE) {
            p += n;
            continue;
        }
        buf_append(out, good, (size_t)(p - good));
        if (what == SCAN_SHORT) return n;
        buf_append_str(out, replacement);
        p += n;
        good = p;
    }
    buf_append(out, good, (size_t)(p - good));
    return 0;
}

static void hold(struct detokenizer *d, const char *tail, size_t n) {
    memcpy(d->held, tail, n);
    d->n_held = (uint8_t)n;
}

/* Feeds one byte to the held start of a character; it becomes whole, breaks, or stays incomplete.
 * */
static void feed_held(struct detokenizer *d, char byte, struct buf *out) {
    char whole[4];
    size_t n = d->n_held, tail;

    memcpy(whole, d->held, n);
    whole[n++] = byte;
    tail = copy_characters((struct str){whole, n}, out);
    hold(d, whole + n - tail, tail);
}

static void push_bytes(struct detokenizer *d, struct str bytes, struct buf *out) {
    size_t tail;

    while (d->n_held && bytes.len) {
        feed_held(d, *bytes.ptr, out);
        bytes.ptr++;
        bytes.len--;
    }
    if (!bytes.len) return;
    tail = copy_characters(bytes, out);
    hold(d, bytes.ptr + bytes.len - tail, tail);
}

/* --- runs of byte tokens -----------------------------------------------------------------------*/
/* Up to n_strip times, what the decoder strips is dropped from the beginning of the text. */
static void push_text(struct detokenizer *d, struct str text, struct buf *out) {
    struct str strip = str_of(d->tokenizer->decoder.strip);

    while (d->n_strip && text.len) {
        if (!str_starts(text, strip)) {
            d->n_strip = 0;
            break;
        }
        text.ptr += strip.len;
        text.len -= strip.len;
        d->n_strip--;
    }
    buf_append_str(out, text);
}

static void end_run(struct detokenizer *d, struct buf *out) {
    struct str run = {d->held, d->n_held};

    if (str_is_utf8(run)) {
        push_text(d, run, out);
    } else {
        for (uint32_t i = 0; i < d->n_held; i++)
            push_text(d, replacement, out);
    }
    d->n_held = 0;
}

/* A run too long to wait for: its characters, its broken bytes, and the rest waits on. */
static void shorten_run(struct detokenizer *d, struct buf *out) {
    const uint8_t *p = (const uint8_t *)d->held, *end = p + d->n_held;

    while (p < end) {
        size_t n;
        enum scan what = scan(p, end, &n);

        if (what == SCAN_SHORT) break;
        if (what == SCAN_WHOLE) {
            push_text(d, (struct str){(const char *)p, n}, out);
        } else {
            for (size_t i = 0; i < n; i++)
                push_text(d, replacement, out);
        }
        p += n;
    }
    d->n_held = (uint8_t)(end - p);
    memmove(d->held, p, d->n_held);
}

/* The first token of a text, where the decoder drops blanks. */
static void push_first(struct detokenizer *d, uint32_t id, struct buf *out) {
    struct buf text;

    buf_init(&text, 0);
    decoder_bake_first(&d->tokenizer->decoder, d->tokenizer->keys[id], &text);
    push_text(d, buf_str(&text), out);
    buf_fini(&text);
}

static void push_token(struct detokenizer *d, uint32_t id, struct buf *out) {
    const struct tokenizer *t = d->tokenizer;
    bool drops_blanks = d->is_first && *t->decoder.blank;

    d->is_first = false;
    if (t->flags[id] & TOKEN_BYTE) {
        if (d->n_held == DETOKENIZE_MAX_RUN) shorten_run(d, out);
        d->held[d->n_held++] = *t->bytes[id].ptr;
        return;
    }
    if (d->n_held) end_run(d, out);
    if (drops_blanks) {
        push_first(d, id, out);
    } else {
        push_text(d, t->bytes[id], out);
    }
}

/* --- the stream --------------------------------------------------------------------------------*/
void detokenizer_init_after(struct detokenizer *d, const struct tokenizer *t, bool skip_special) {
    *d = (struct detokenizer){.tokenizer = t, .skip_special = skip_special};
}

void detokenizer_init(struct detokenizer *d, const struct tokenizer *t, bool skip_special) {
    detokenizer_init_after(d, t, skip_special);
    d->is_first = true;
    d->n_strip = t->decoder.n_strip;
}

void detokenizer_push(struct detokenizer *d, uint32_t id, struct buf *out) {
    const struct tokenizer *t = d->tokenizer;

    if (id >= t->n_tokens || (d->skip_special && (t->flags[id] & TOKEN_SPECIAL))) return;
    if (tokenizer_is_byte_level(t)) {
        push_bytes(d, t->bytes[id], out);
    } else {
        push_token(d, id, out);
    }
}

void detokenizer_finish(struct detokenizer *d, struct buf *out) {
    if (!d->n_held) return;
    if (!tokenizer_is_byte_level(d->tokenizer)) {
        end_run(d, out);
        return;
    }
    buf_append_str(out, replacement);
    d->n_held = 0;
}

void detokenize(const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip_special,
                struct buf *out) {
    struct detokenizer d;

    detokenizer_init(&d, t, skip_special);
    for (size_t i = 0; i < n; i++)
        detokenizer_push(&d, ids[i], out);
    detokenizer_finish(&d, out);
}

void detokenize_repair(struct str bytes, struct buf *out) {
    if (bytes.len && copy_characters(bytes, out)) buf_append_str(out, replacement);
}

void detokenize_one(const struct tokenizer *t, uint32_t id, struct buf *out) {
    detokenize_repair(tokenizer_bytes(t, id), out);
}

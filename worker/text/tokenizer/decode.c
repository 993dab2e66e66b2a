/* worker/text/tokenizer/decode.c - reading the decoder's steps, and taking them. */
#include "worker/text/tokenizer/decode.h"

#include "common/text/json.h"
#include "worker/text/tokenizer/tokenizer_json.h"

/* --- loading -----------------------------------------------------------------------------------*/
static enum status read_text(const struct json *v, char out[DECODE_MAX_CONTENT], const char *what,
                             struct error *err) {
    struct str s;

    if (json_to_str(v, &s) != ST_OK || s.len >= DECODE_MAX_CONTENT || memchr(s.ptr, '\0', s.len)) {
        return error_set(err, ST_UNSUPPORTED, "the decoder needs a %s of less than %d bytes", what,
                         DECODE_MAX_CONTENT);
    }
    memcpy(out, s.ptr, s.len);
    out[s.len] = '\0';
    return ST_OK;
}

static enum status add_op(struct decoder *d, struct decode_op **out, struct error *err) {
    if (d->is_fused) {
        return error_set(err, ST_UNSUPPORTED, "unsupported decoder after Fuse: supported is Strip");
    }
    if (d->n == DECODE_MAX_OPS) {
        return error_set(err, ST_UNSUPPORTED, "unsupported decoder: it has more than %d steps",
                         DECODE_MAX_OPS);
    }
    *out = &d->ops[d->n++];
    return ST_OK;
}

static enum status load_replace(struct decoder *d, const struct json *v, struct error *err) {
    struct decode_op *op = NULL;
    enum status st = add_op(d, &op, err);

    if (st != ST_OK) return st;
    op->kind = DECODE_REPLACE;
    st = read_text(json_get(json_get(v, "pattern"), "String"), op->from, "string to replace", err);
    if (st == ST_OK && !*op->from)
        st = error_set(err, ST_INVALID, "the decoder's Replace has an empty pattern");
    return st == ST_OK ? read_text(json_get(v, "content"), op->to, "replacement", err) : st;
}

/* Of each token; after Fuse of the whole text, where only the beginning can be known in time. */
static enum status load_strip(struct decoder *d, const struct json *v, struct error *err) {
    uint64_t start = 0, stop = 0;
    struct decode_op *op = NULL;
    enum status st;

    if (json_to_u64(json_get(v, "start"), &start) != ST_OK || start > 1000 ||
        json_to_u64(json_get(v, "stop"), &stop) != ST_OK || stop > 1000) {
        return error_set(err, ST_INVALID,
                         "the decoder's Strip needs start and stop, each 0 to 1000");
    }
    if (!d->is_fused) {
        st = add_op(d, &op, err);
        if (st != ST_OK) return st;
        op->kind = DECODE_STRIP;
        op->start = (uint32_t)start;
        op->stop = (uint32_t)stop;
        return read_text(json_get(v, "content"), op->from, "content to strip", err);
    }
    if (stop || d->n_strip) {
        return error_set(
            err, ST_UNSUPPORTED,
            "unsupported decoder Strip: after Fuse, supported is one Strip with stop 0");
    }
    d->n_strip = (uint32_t)start;
    return read_text(json_get(v, "content"), d->strip, "content to strip", err);
}

static enum status load_metaspace(struct decoder *d, const struct json *v, struct error *err) {
    struct decode_op *op = NULL;
    struct str scheme = STR("always");
    enum status st;

    if (d->n)
        return error_set(err, ST_UNSUPPORTED,
                         "unsupported decoder before Metaspace: Metaspace must come first");
    st = add_op(d, &op, err);
    if (st != ST_OK) return st;
    op->kind = DECODE_REPLACE;
    memcpy(op->from, "\xE2\x96\x81", 4);
    memcpy(op->to, " ", 2);
    if (!json_is_null(json_get(v, "replacement"))) {
        st = read_text(json_get(v, "replacement"), op->from, "replacement", err);
        if (st != ST_OK) return st;
    }
    if (!*op->from)
        return error_set(err, ST_INVALID, "the decoder's Metaspace has an empty replacement");
    if (!tokenizer_json_true(v, "add_prefix_space", true)) scheme = STR("never");
    if (!json_is_null(json_get(v, "prepend_scheme")) &&
        json_to_str(json_get(v, "prepend_scheme"), &scheme) != ST_OK) {
        return error_set(err, ST_INVALID,
                         "the prepend_scheme of the decoder's Metaspace is not a string");
    }
    if (!str_eq(scheme, STR("never"))) memcpy(d->blank, op->from, sizeof(d->blank));
    return ST_OK;
}

static enum status load_step(struct decoder *d, const struct json *v, struct error *err) {
    struct decode_op *op = NULL;
    enum status st;

    if (tokenizer_json_is(v, "Sequence")) {
        JSON_FOR_EACH(part, json_get(v, "decoders")) {
            st = load_step(d, part, err);
            if (st != ST_OK) return st;
        }
        return ST_OK;
    }
    if (tokenizer_json_is(v, "Replace")) return load_replace(d, v, err);
    if (tokenizer_json_is(v, "Strip")) return load_strip(d, v, err);
    if (tokenizer_json_is(v, "Metaspace")) return load_metaspace(d, v, err);
    if (tokenizer_json_is(v, "Fuse")) {
        d->is_fused = true;
        return ST_OK;
    }
    if (tokenizer_json_is(v, "ByteFallback")) {
        st = add_op(d, &op, err);
        if (st == ST_OK) op->kind = DECODE_BYTES;
        return st;
    }
    return error_set(err, ST_UNSUPPORTED,
                     "unsupported decoder '%.40s': supported are ByteLevel alone, or Replace, "
                     "ByteFallback, Fuse, Strip, Metaspace and Sequence",
                     tokenizer_json_type(v));
}

static bool is_byte_level_decoder(const struct json *v) {
    const struct json *first =
        tokenizer_json_is(v, "Sequence") ? json_first(json_get(v, "decoders")) : v;

    return json_is_null(v) ||
           (tokenizer_json_is(first, "ByteLevel") && (first == v || !json_next(first)));
}

enum status decoder_load(struct decoder *d, const struct json *v, bool is_byte_level,
                         struct error *err) {
    if (is_byte_level) {
        if (is_byte_level_decoder(v)) return ST_OK;
        return error_set(
            err, ST_UNSUPPORTED,
            "unsupported decoder '%.40s' after a ByteLevel pre-tokenizer: supported is ByteLevel",
            tokenizer_json_type(v));
    }
    if (json_is_null(v)) {
        return error_set(err, ST_UNSUPPORTED,
                         "unsupported vocabulary without a decoder: supported are those of the "
                         "ByteLevel pre-tokenizer");
    }
    return load_step(d, v, err);
}

/* --- taking the steps --------------------------------------------------------------------------*/
static void replace(struct str s, struct str from, struct str to, struct buf *out) {
    for (ptrdiff_t at; !out->has_failed && (at = str_find(s, from)) >= 0;) {
        buf_append(out, s.ptr, (size_t)at);
        buf_append_str(out, to);
        s.ptr += (size_t)at + from.len;
        s.len -= (size_t)at + from.len;
    }
    buf_append_str(out, s);
}

static struct str strip(const struct decode_op *op, struct str s) {
    struct str content = str_of(op->from);

    for (uint32_t i = 0; content.len && i < op->start && str_starts(s, content); i++) {
        s.ptr += content.len;
        s.len -= content.len;
    }
    for (uint32_t i = 0; content.len && i < op->stop && str_ends(s, content); i++)
        s.len -= content.len;
    return s;
}

/* <0x41> */
static int byte_of(struct str s) {
    int high, low;

    if (s.len != 6 || memcmp(s.ptr, "<0x", 3) != 0 || s.ptr[5] != '>') return -1;
    high = str_hex_value((unsigned char)s.ptr[3]);
    low = str_hex_value((unsigned char)s.ptr[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

enum status decoder_bake(const struct decoder *d, struct str key, struct buf *out, int *byte) {
    struct buf between[2];
    enum status st = ST_OK;
    uint32_t to = 0;

    *byte = -1;
    buf_init(&between[0], DECODE_MAX_BYTES);
    buf_init(&between[1], DECODE_MAX_BYTES);
    for (uint32_t i = 0; i < d->n && st == ST_OK; i++) {
        const struct decode_op *op = &d->ops[i];

        if (op->kind == DECODE_BYTES) {
            *byte = byte_of(key);
            if (*byte >= 0) break; /* later steps would see the text of the whole run */
        } else if (op->kind == DECODE_STRIP) {
            key = strip(op, key);
        } else if (str_find(key, str_of(op->from)) >= 0) {
            buf_clear(&between[to]);
            replace(key, str_of(op->from), str_of(op->to), &between[to]);
            if (buf_status(&between[to]) != ST_OK) st = ST_TOO_LARGE;
            key = buf_str(&between[to]);
            to = !to;
        }
    }
    if (st == ST_OK && *byte < 0) buf_append_str(out, key);
    buf_fini(&between[0]);
    buf_fini(&between[1]);
    return st;
}

void decoder_bake_first(const struct decoder *d, struct str key, struct buf *out) {
    replace(key, str_of(d->blank), STR(""), out);
}

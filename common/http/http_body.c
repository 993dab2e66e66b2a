/* common/http/http_body.c - bodies: where the payload lies between the framing.
 *
 * The chunked form is again a machine that looks at each byte once. Payload is returned as a span
 * of the input and never touched. Trailers are checked like headers and dropped: merging them into
 * the head is how one message has been made to look like another. */
#include "common/http/http_parse.h"
#include "common/http/http_parse_internal.h"

enum state {
    BODY_DATA, /* length and close-delimited */
    BODY_SIZE,
    BODY_EXTENSION,
    BODY_SIZE_LF,
    BODY_CHUNK,
    BODY_CHUNK_CR,
    BODY_CHUNK_LF,
    BODY_TRAILER_START,
    BODY_TRAILER_NAME,
    BODY_TRAILER_VALUE,
    BODY_TRAILER_LF,
    BODY_FINAL_LF,
    BODY_DONE,
    BODY_REFUSED,
};

void http_body_init(struct http_body *b, const struct http_head *h, uint64_t limit) {
    *b = (struct http_body){.framing = h->framing, .limit = limit};
    switch (h->framing) {
    case HTTP_NO_BODY: b->state = BODY_DONE; break;
    case HTTP_LENGTH_BODY: b->remaining = h->content_length; break;
    case HTTP_CLOSE_BODY: b->remaining = UINT64_MAX; break;
    case HTTP_CHUNKED_BODY: b->state = BODY_SIZE; break;
    }
}

static enum status refuse(struct http_body *b, struct error *err, const char *why) {
    b->state = BODY_REFUSED;
    b->refused_code = 400;
    return error_set(err, ST_INVALID, "%s", why);
}

static enum status refuse_size(struct http_body *b, struct error *err) {
    b->state = BODY_REFUSED;
    b->refused_code = 413;
    return error_set(err, ST_TOO_LARGE, "the body exceeds the limit of %llu bytes: send less",
                     (unsigned long long)b->limit);
}

static bool is_over_limit(const struct http_body *b, uint64_t more) {
    return b->limit && (more > b->limit || b->payload_bytes > b->limit - more);
}

static enum status end_size(struct http_body *b, struct error *err) {
    if (b->remaining > HTTP_MAX_BODY_LENGTH) {
        return refuse(b, err, "a chunk size exceeds 2^63 - 1");
    }
    if (is_over_limit(b, b->remaining)) return refuse_size(b, err);
    b->state = BODY_SIZE_LF;
    return ST_OK;
}

static enum status step_size(struct http_body *b, unsigned char c, struct error *err) {
    int digit = str_hex_value(c);

    if (digit >= 0) {
        if (++b->n_digits > 16) return refuse(b, err, "a chunk size has more than 16 digits");
        b->remaining = (b->remaining << 4) | (unsigned)digit;
        return ST_OK;
    }
    if (b->n_digits == 0 || (c != '\r' && c != ';')) {
        return refuse(b, err, "a chunk size is not a hexadecimal number followed by CR LF");
    }
    if (c == '\r') return end_size(b, err);
    b->state = BODY_EXTENSION;
    return ST_OK;
}

static enum status step_extension(struct http_body *b, unsigned char c, struct error *err) {
    if (c == '\r') return end_size(b, err);
    if (c >= 0x7F || !http_char_is((char)c, HTTP_CHAR_VALUE)) {
        return refuse(b, err, "a chunk extension has a byte that is not printable");
    }
    if (++b->n_line_bytes > HTTP_MAX_CHUNK_LINE_BYTES) {
        return refuse(b, err, "a chunk extension is longer than 256 bytes");
    }
    return ST_OK;
}

static enum status expect(struct http_body *b, unsigned char c, unsigned char wanted,
                          enum state next, struct error *err) {
    if (c != wanted) return refuse(b, err, "a chunk or its size does not end with CR LF");
    b->state = (uint8_t)next;
    return ST_OK;
}

static void begin_size(struct http_body *b) {
    b->remaining = 0;
    b->n_digits = 0;
    b->n_line_bytes = 0;
}

static enum status step_trailer(struct http_body *b, unsigned char c, struct error *err) {
    if (++b->n_line_bytes > HTTP_MAX_TRAILER_BYTES) {
        return refuse(b, err, "the trailers are longer than 4096 bytes");
    }
    switch ((enum state)b->state) {
    case BODY_TRAILER_START:
        if (c == '\r') return expect(b, c, '\r', BODY_FINAL_LF, err);
        if (!http_char_is((char)c, HTTP_CHAR_TOKEN)) break;
        b->state = BODY_TRAILER_NAME;
        return ST_OK;
    case BODY_TRAILER_NAME:
        if (c == ':') {
            b->state = BODY_TRAILER_VALUE;
            return ST_OK;
        }
        if (!http_char_is((char)c, HTTP_CHAR_TOKEN)) break;
        return ST_OK;
    case BODY_TRAILER_VALUE:
        if (c == '\r') return expect(b, c, '\r', BODY_TRAILER_LF, err);
        if (!http_char_is((char)c, HTTP_CHAR_VALUE)) break;
        return ST_OK;
    default: return expect(b, c, '\n', BODY_TRAILER_START, err); /* BODY_TRAILER_LF */
    }
    return refuse(b, err, "a trailer is not a header line");
}

/* One byte of chunked framing. */
static enum status step(struct http_body *b, unsigned char c, struct error *err) {
    enum status st;

    switch ((enum state)b->state) {
    case BODY_SIZE: return step_size(b, c, err);
    case BODY_EXTENSION: return step_extension(b, c, err);
    case BODY_SIZE_LF:
        st = expect(b, c, '\n', b->remaining ? BODY_CHUNK : BODY_TRAILER_START, err);
        b->n_line_bytes = 0;
        return st;
    case BODY_CHUNK_CR: return expect(b, c, '\r', BODY_CHUNK_LF, err);
    case BODY_CHUNK_LF: begin_size(b); return expect(b, c, '\n', BODY_SIZE, err);
    case BODY_FINAL_LF: return expect(b, c, '\n', BODY_DONE, err);
    default: return step_trailer(b, c, err);
    }
}

/* A size line of the usual form, up to six digits and CR LF, that is there whole. Any other is left
 * to the machine. Returns its length, 0: not taken. */
static size_t read_usual_size(struct http_body *b, const char *in, size_t n) {
    uint64_t size = 0;
    size_t i = 0;
    int digit;

    if (b->n_digits) return 0;
    for (; i < n && i < 6 && (digit = str_hex_value((uint8_t)in[i])) >= 0; i++)
        size = size << 4 | (unsigned)digit;
    if (i == 0 || size == 0 || n - i < 2 || in[i] != '\r' || in[i + 1] != '\n') return 0;
    if (is_over_limit(b, size)) return 0; /* the state machine refuses it */
    b->remaining = size;
    b->n_line_bytes = 0;
    b->state = BODY_CHUNK;
    return i + 2;
}

/* The end of a chunk, if it is there whole. */
static size_t read_usual_end(struct http_body *b, const char *in, size_t n) {
    if (b->state != BODY_CHUNK_CR || n < 2 || in[0] != '\r' || in[1] != '\n') return 0;
    begin_size(b);
    b->state = BODY_SIZE;
    return 2;
}

/* Takes payload from the front of `in`. */
static size_t take(struct http_body *b, const char *in, size_t n, struct str *payload) {
    size_t len = (size_t)MIN((uint64_t)n, b->remaining);

    *payload = (struct str){in, len};
    b->payload_bytes += len;
    if (b->framing != HTTP_CLOSE_BODY) b->remaining -= len;
    if (b->remaining == 0) b->state = b->state == BODY_DATA ? BODY_DONE : BODY_CHUNK_CR;
    return len;
}

enum status http_body_next(struct http_body *b, const char *in, size_t n, size_t *used,
                           struct str *payload, struct error *err) {
    size_t pos = 0, usual;
    enum status st = ST_OK;

    *used = 0;
    *payload = (struct str){in, 0};
    if (b->state == BODY_REFUSED)
        return error_set(err, ST_INVALID, "the body was already rejected");
    if (b->framing == HTTP_LENGTH_BODY && is_over_limit(b, b->remaining))
        return refuse_size(b, err);
    while (pos < n && b->state != BODY_DONE && payload->len == 0) {
        if (b->state == BODY_SIZE && (usual = read_usual_size(b, in + pos, n - pos)) > 0) {
            pos += usual;
            continue;
        }
        if (b->state != BODY_DATA && b->state != BODY_CHUNK) {
            st = step(b, (unsigned char)in[pos++], err);
            if (st != ST_OK) return st;
            continue;
        }
        if (b->framing == HTTP_CLOSE_BODY && is_over_limit(b, n - pos)) return refuse_size(b, err);
        pos += take(b, in + pos, n - pos, payload);
        pos += read_usual_end(b, in + pos, n - pos);
    }
    *used = pos;
    return b->state == BODY_DONE ? ST_OK : ST_AGAIN;
}

enum status http_body_eof(struct http_body *b, struct error *err) {
    if (b->state == BODY_DONE || (b->framing == HTTP_CLOSE_BODY && b->state == BODY_DATA)) {
        return ST_OK;
    }
    return error_set(err, ST_CLOSED, "the connection was closed before the end of the body");
}

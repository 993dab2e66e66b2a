/* worker/kv/tiers/store/resp.c - lines, lengths, and the place in nested arrays. */
#include "worker/kv/tiers/store/resp.h"

#define END_BYTES 2 /* "\r\n" */

/* The line that `in` begins with, without its end. False: it is not whole. */
static bool find_line(struct str in, struct str *line) {
    size_t n = MIN(in.len, (size_t)RESP_LINE_MAX);
    const char *end = n ? memchr(in.ptr, '\n', n) : NULL;

    if (!end) return false;
    *line = (struct str){in.ptr, (size_t)(end - in.ptr)};
    return true;
}

/* A decimal number with an optional minus, and nothing else. */
static enum status read_number(struct str text, int64_t *out) {
    bool is_negative = text.len && text.ptr[0] == '-';
    struct str digits = {text.ptr + is_negative, text.len - is_negative};
    uint64_t n;

    if (str_to_u64(digits, &n) != ST_OK || n > INT64_MAX) return ST_INVALID;
    *out = is_negative ? -(int64_t)n : (int64_t)n;
    return ST_OK;
}

/* Puts the item at its place; closes the arrays that end with it. */
static void place(struct resp *r, struct resp_item *item) {
    item->depth = r->depth;
    item->index = r->depth ? r->index[r->depth - 1] : 0;
    if (r->depth) {
        r->index[r->depth - 1]++;
        r->left[r->depth - 1]--;
    }
    if (item->kind == RESP_ARRAY && item->number > 0) {
        r->left[r->depth] = (uint32_t)item->number;
        r->index[r->depth++] = 0;
    }
    while (r->depth && r->left[r->depth - 1] == 0)
        r->depth--;
    item->ends_reply = r->depth == 0;
}

/* `head`: bytes of the line that announced n bytes. */
static enum status read_bulk(const struct resp *r, struct str in, size_t head, int64_t n,
                             struct resp_item *out, struct error *err) {
    size_t whole;

    if ((uint64_t)n > r->max_bulk_bytes) {
        return error_set(err, ST_TOO_LARGE, "a bulk of %lld bytes: at most %llu are expected",
                         (long long)n, (unsigned long long)r->max_bulk_bytes);
    }
    whole = head + (size_t)n + END_BYTES;
    if (in.len < whole) {
        out->wanted = whole;
        return ST_OK;
    }
    if (memcmp(in.ptr + whole - END_BYTES, "\r\n", END_BYTES) != 0)
        return error_set(err, ST_INVALID, "a bulk of %lld bytes does not end there", (long long)n);
    out->kind = RESP_BULK;
    out->text = (struct str){in.ptr + head, (size_t)n};
    out->n_taken = whole;
    return ST_OK;
}

static enum status begin_array(const struct resp *r, int64_t n, struct resp_item *out,
                               struct error *err) {
    if (n > RESP_ELEMENTS_MAX)
        return error_set(err, ST_TOO_LARGE, "an array of %lld elements: at most %d are expected",
                         (long long)n, RESP_ELEMENTS_MAX);
    if (n > 0 && r->depth == RESP_DEPTH_MAX)
        return error_set(err, ST_TOO_LARGE, "more than %d arrays in each other", RESP_DEPTH_MAX);
    out->kind = RESP_ARRAY;
    out->number = n;
    return ST_OK;
}

static enum status read_item(const struct resp *r, struct str in, struct resp_item *out,
                             struct error *err) {
    struct str line, rest;
    int64_t n = 0;

    if (in.len && !memchr("+-:$*", in.ptr[0], 5))
        return error_set(err, ST_INVALID, "no reply begins with byte %u", (unsigned char)in.ptr[0]);
    if (!find_line(in, &line)) {
        out->wanted = in.len + 1;
        if (in.len < RESP_LINE_MAX) return ST_OK;
        return error_set(err, ST_TOO_LARGE, "a line of more than %d bytes", RESP_LINE_MAX);
    }
    if (line.len < END_BYTES || line.ptr[line.len - 1] != '\r')
        return error_set(err, ST_INVALID, "a line does not end with CR LF");
    rest = (struct str){line.ptr + 1, line.len - END_BYTES};
    out->n_taken = line.len + 1;
    if (line.ptr[0] == '+' || line.ptr[0] == '-') {
        out->kind = line.ptr[0] == '+' ? RESP_STATUS : RESP_ERROR;
        out->text = rest;
        return ST_OK;
    }
    if (read_number(rest, &n) != ST_OK)
        return error_set(err, ST_INVALID, "\"%.*s\" is not a number", (int)MIN(rest.len, 40),
                         rest.ptr);
    out->number = n;
    if (line.ptr[0] == ':') {
        out->kind = RESP_INTEGER;
        return ST_OK;
    }
    if (n < -1) return error_set(err, ST_INVALID, "a length of %lld", (long long)n);
    if (n == -1) {
        out->kind = RESP_NIL;
        return ST_OK;
    }
    if (line.ptr[0] == '*') return begin_array(r, n, out, err);
    out->n_taken = 0;
    return read_bulk(r, in, line.len + 1, n, out, err);
}

enum status resp_read(struct resp *r, struct str in, struct resp_item *out, struct error *err) {
    struct resp_item item = {.kind = RESP_NONE};
    enum status st = read_item(r, in, &item, err);

    if (st != ST_OK) return st;
    if (item.kind != RESP_NONE) place(r, &item);
    *out = item;
    return ST_OK;
}

struct str resp_error_kind(struct str text) {
    const char *space = text.len ? memchr(text.ptr, ' ', text.len) : NULL;

    return space ? (struct str){text.ptr, (size_t)(space - text.ptr)} : text;
}

void resp_put_command(struct buf *out, uint32_t n) {
    buf_appendf(out, "*%u\r\n", n);
}

void resp_put_argument(struct buf *out, struct str argument) {
    buf_append_char(out, '$');
    buf_append_u64(out, argument.len);
    buf_append_str(out, STR("\r\n"));
    buf_append_str(out, argument);
    buf_append_str(out, STR("\r\n"));
}

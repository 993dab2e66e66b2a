/* common/http_parse.c - heads: a state machine over the start line and the headers.
 *
 * Each state scans ahead in a tight loop while bytes are of its class and decides on the first that
 * is not. Where a limit applies the scan is bounded by it, so that the verdict depends on the bytes
 * alone and not on how they were cut. A line that is there whole passes through all its states in one
 * go (step_header); the states are for those that are cut. What headers mean for framing is judged as
 * each ends (judge_*) and once more when the head is complete (finish). */
#include "common/http_parse.h"

#include "common/http_parse_internal.h"

#include <endian.h>
#include <stdarg.h>
#include <stdio.h>

enum state {
    AT_LEADING,    /* before the start line */
    AT_LEADING_LF, /* of an empty line before it */
    AT_METHOD,
    AT_TARGET,
    AT_VERSION, /* of a request; up to its CR */
    AT_RESPONSE_VERSION,
    AT_STATUS_CODE,
    AT_REASON_SPACE,
    AT_REASON,
    AT_LINE_LF,
    AT_HEADER_START,
    AT_NAME,
    AT_VALUE_START,
    AT_VALUE,
    AT_VALUE_LF,
    AT_FINAL_LF,
    AT_DONE,
    AT_REFUSED,
};

/* --- character classes ------------------------------------------------------------------------ */

#define IS_LETTER(c) (((c) >= 'a' && (c) <= 'z') || ((c) >= 'A' && (c) <= 'Z'))
#define IS_DIGIT(c)  ((c) >= '0' && (c) <= '9')
#define IS_MARK(c)                                                                                 \
    ((c) == '!' || (c) == '#' || (c) == '$' || (c) == '%' || (c) == '&' || (c) == '\'' ||          \
     (c) == '*' || (c) == '+' || (c) == '-' || (c) == '.' || (c) == '^' || (c) == '_' ||           \
     (c) == '`' || (c) == '|' || (c) == '~')
#define IS_HOST(c)                                                                                 \
    (IS_LETTER(c) || IS_DIGIT(c) || (c) == '-' || (c) == '.' || (c) == '_' || (c) == '~' ||        \
     (c) == ':' || (c) == '[' || (c) == ']' || (c) == '%')
#define CLASS(c)                                                                                   \
    ((IS_LETTER(c) || IS_DIGIT(c) || IS_MARK(c) ? HTTP_CHAR_TOKEN : 0) |                           \
     (((c) >= 0x20 && (c) != 0x7F) || (c) == '\t' ? HTTP_CHAR_VALUE : 0) |                         \
     ((c) > 0x20 && (c) < 0x7F && (c) != '#' ? HTTP_CHAR_TARGET : 0) |                             \
     (IS_LETTER(c) || IS_DIGIT(c) || (c) == '/' || (c) == '-' || (c) == '_' ? HTTP_CHAR_PATH       \
                                                                            : 0) |                 \
     (IS_HOST(c) ? HTTP_CHAR_HOST : 0))
#define ROW4(c)  CLASS(c), CLASS((c) + 1), CLASS((c) + 2), CLASS((c) + 3)
#define ROW16(c) ROW4(c), ROW4((c) + 4), ROW4((c) + 8), ROW4((c) + 12)
#define ROW64(c) ROW16(c), ROW16((c) + 16), ROW16((c) + 32), ROW16((c) + 48)

const uint8_t http_char_class[256] = {ROW64(0), ROW64(64), ROW64(128), ROW64(192)};

bool http_is_token(struct str s) {
    for (size_t i = 0; i < s.len; i++) {
        if (!http_char_is(s.ptr[i], HTTP_CHAR_TOKEN)) return false;
    }
    return s.len > 0;
}

/* --- refusing --------------------------------------------------------------------------------- */

static enum status refuse(struct http_head *h, int code, struct error *err, const char *fmt, ...)
    PRINTF_LIKE(4, 5);

static enum status refuse(struct http_head *h, int code, struct error *err, const char *fmt, ...) {
    char text[ERROR_MESSAGE_MAX];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    h->state = AT_REFUSED;
    h->refused_code = (uint16_t)code;
    return error_set(err, ST_INVALID, "%s", text);
}

static enum status refuse_byte(struct http_head *h, struct error *err, const char *where,
                               unsigned char byte) {
    if (byte == '\n') {
        return refuse(h, 400, err, "a line of the head ends with LF alone: end it with CR LF");
    }
    return refuse(h, 400, err, "byte 0x%02X at offset %u is not allowed in %s", byte, h->pos,
                  where);
}

/* At most this much of a peer's text goes into a message. */
#define QUOTE(s) (int)MIN((s).len, (size_t)64), (s).ptr

/* --- judging headers ---------------------------------------------------------------------------- */

static enum status judge_host(struct http_head *h, struct str value, struct error *err) {
    if (h->n_host++) {
        return refuse(h, 400, err, "several Host headers: send exactly one");
    }
    for (size_t i = 0; i < value.len; i++) {
        if (!http_char_is(value.ptr[i], HTTP_CHAR_HOST)) {
            return refuse(h, 400, err, "Host '%.*s' is not a host name with an optional port",
                          QUOTE(value));
        }
    }
    if (value.len == 0) return refuse(h, 400, err, "the Host header is empty: name the host");
    return ST_OK;
}

static enum status judge_length(struct http_head *h, struct str value, struct error *err) {
    uint64_t length;

    if (h->n_length++) {
        return refuse(h, 400, err, "several Content-Length headers: send exactly one");
    }
    if (str_to_u64(value, &length) != ST_OK) {
        return refuse(h, 400, err, "Content-Length '%.*s' is not a decimal number", QUOTE(value));
    }
    if (length > HTTP_MAX_BODY_LENGTH) {
        return refuse(h, 413, err, "Content-Length %.*s is more than anyone can send",
                      QUOTE(value));
    }
    h->content_length = length;
    return ST_OK;
}

static enum status judge_coding(struct http_head *h, struct str value, struct error *err) {
    if (h->n_coding++) {
        return refuse(h, 400, err, "several Transfer-Encoding headers: send exactly one");
    }
    if (h->minor_version == 0) {
        return refuse(h, 400, err, "Transfer-Encoding does not exist in HTTP/1.0");
    }
    if (value.len == 0) return refuse(h, 400, err, "the Transfer-Encoding header is empty");
    if (!str_eq_nocase(value, STR("chunked"))) {
        return refuse(h, 501, err,
                      "Transfer-Encoding '%.*s' is not supported: send 'chunked' or a "
                      "Content-Length",
                      QUOTE(value));
    }
    return ST_OK;
}

static enum status judge_expect(struct http_head *h, struct str value, struct error *err) {
    if (h->is_response) return ST_OK;
    if (!str_eq_nocase(value, STR("100-continue"))) {
        return refuse(h, 417, err, "Expect '%.*s' is not supported: send '100-continue' or none",
                      QUOTE(value));
    }
    h->expects_continue = h->minor_version == 1;
    return ST_OK;
}

/* What it says of the connection; other options are the names of headers that end here. */
static void judge_connection(struct http_head *h, struct str value) {
    do {
        const char *comma = value.len ? memchr(value.ptr, ',', value.len) : NULL;
        size_t n = comma ? (size_t)(comma - value.ptr) : value.len;
        struct str option = str_trim((struct str){value.ptr, n});

        if (str_eq_nocase(option, STR("keep-alive"))) {
            h->has_keep_alive = true;
        } else if (str_eq_nocase(option, STR("close"))) {
            h->has_close = true;
        } else if (option.len) {
            h->has_options = true;
        }
        n += comma != NULL;
        value = (struct str){value.ptr + n, value.len - n};
    } while (value.len);
}

static enum status judge_header(struct http_head *h, enum http_name id, struct str value,
                                struct error *err) {
    switch (id) {
    case HTTP_NAME_HOST: return h->is_response ? ST_OK : judge_host(h, value, err);
    case HTTP_NAME_CONTENT_LENGTH: return judge_length(h, value, err);
    case HTTP_NAME_TRANSFER_ENCODING: return judge_coding(h, value, err);
    case HTTP_NAME_EXPECT: return judge_expect(h, value, err);
    case HTTP_NAME_CONNECTION: judge_connection(h, value); return ST_OK;
    default: return ST_OK;
    }
}

/* Marks what the Connection headers name. */
static void mark_options(struct http_head *h, const char *data) {
    for (uint16_t i = 0; i < h->n_headers; i++) {
        struct str options = http_span_str(h->headers[i].value, data);

        if (h->headers[i].id != HTTP_NAME_CONNECTION) continue;
        for (uint16_t k = 0; k < h->n_headers; k++) {
            struct str name = http_span_str(h->headers[k].name, data);

            if (http_value_has_token(options, name)) h->headers[k].is_option = true;
        }
    }
}

static bool response_has_no_body(const struct http_head *h) {
    return h->is_head_answer || h->status_code < 200 || h->status_code == 204 ||
           h->status_code == 304;
}

/* The head is complete: what follows from all of it together. */
static enum status finish(struct http_head *h, const char *data, struct error *err) {
    if (h->n_length && h->n_coding) {
        return refuse(
            h, 400, err,
            "both Content-Length and Transfer-Encoding: it is not clear where the message "
            "ends; send one of them");
    }
    if (!h->is_response && h->minor_version == 1 && h->n_host == 0) {
        return refuse(h, 400, err, "no Host header: HTTP/1.1 requires one");
    }
    h->keep_alive = !h->has_close && (h->minor_version == 1 || h->has_keep_alive);
    if (h->is_response && response_has_no_body(h)) {
        h->framing = HTTP_NO_BODY;
    } else if (h->n_coding) {
        h->framing = HTTP_CHUNKED_BODY;
    } else if (h->content_length) {
        h->framing = HTTP_LENGTH_BODY;
    } else if (h->is_response && !h->n_length) {
        h->framing = HTTP_CLOSE_BODY;
        h->keep_alive = false;
    }
    if (h->framing == HTTP_NO_BODY) h->expects_continue = false;
    if (h->has_options) mark_options(h, data);
    h->head_len = h->pos;
    h->state = AT_DONE;
    return ST_OK;
}

/* --- elements of the head ------------------------------------------------------------------------ */

static struct http_span span_from_mark(const struct http_head *h) {
    return (struct http_span){(uint16_t)h->mark, (uint16_t)(h->pos - h->mark)};
}

static enum status end_method(struct http_head *h, const char *data, struct error *err) {
    struct str m;

    h->method_span = span_from_mark(h);
    m = http_span_str(h->method_span, data);
    h->method = http_method_of(m);
    if (m.len == 0) return refuse(h, 400, err, "the request line begins with a space");
    if (str_eq(m, STR("CONNECT"))) {
        return refuse(h, 501, err, "CONNECT is not supported: this is no forward proxy");
    }
    return ST_OK;
}

/* "." or ".." between slashes, plain or percent-encoded: who resolves it sees another path. */
static bool has_dot_segment(struct str path) {
    size_t i = 0;

    while (i < path.len) {
        int n_dots = 0;

        for (i++; i < path.len; n_dots++) {
            if (path.ptr[i] == '.') {
                i++;
            } else if (path.len - i >= 3 &&
                       str_eq_nocase((struct str){path.ptr + i, 3}, STR("%2e"))) {
                i += 3;
            } else {
                break;
            }
        }
        if ((n_dots == 1 || n_dots == 2) && (i == path.len || path.ptr[i] == '/')) return true;
        while (i < path.len && path.ptr[i] != '/')
            i++;
    }
    return false;
}

static enum status end_target(struct http_head *h, const char *data, struct error *err) {
    const char *mark;
    struct str t;

    h->target = h->path = span_from_mark(h);
    t = http_span_str(h->target, data);
    if (t.len == 0) return refuse(h, 400, err, "two spaces in the request line: send one");
    if (t.ptr[0] != '/' && !(h->method == HTTP_OPTIONS && str_eq(t, STR("*")))) {
        return refuse(h, 400, err,
                      "the request target '%.*s' does not begin with '/': send the path alone",
                      QUOTE(t));
    }
    if (!h->has_marks) return ST_OK; /* neither query nor dots */
    mark = memchr(t.ptr, '?', t.len);
    if (mark) {
        h->path.len = (uint16_t)(mark - t.ptr);
        h->query = (struct http_span){(uint16_t)(h->path.off + h->path.len + 1),
                                      (uint16_t)(t.len - h->path.len - 1)};
    }
    if (has_dot_segment(http_span_str(h->path, data))) {
        return refuse(h, 400, err, "the path '%.*s' has a '.' or '..' segment: send it resolved",
                      QUOTE(t));
    }
    return ST_OK;
}

static enum status judge_version(struct http_head *h, struct str v, struct error *err) {
    bool is_version = v.len == 8 && memcmp(v.ptr, "HTTP/", 5) == 0 && IS_DIGIT(v.ptr[5]) &&
                      v.ptr[6] == '.' && IS_DIGIT(v.ptr[7]);

    if (!is_version) {
        return refuse(h, 400, err, "the %s line has '%.*s' where HTTP/1.1 belongs",
                      h->is_response ? "status" : "request", QUOTE(v));
    }
    if (v.ptr[5] != '1' || v.ptr[7] > '1') {
        return refuse(h, 505, err, "%.*s is not supported: use HTTP/1.1", QUOTE(v));
    }
    h->minor_version = (uint8_t)(v.ptr[7] - '0');
    return ST_OK;
}

static enum status end_status_code(struct http_head *h, const char *data, struct error *err) {
    struct str digits = http_span_str(span_from_mark(h), data);
    int code = (digits.ptr[0] - '0') * 100 + (digits.ptr[1] - '0') * 10 + (digits.ptr[2] - '0');

    if (code < 100 || code > 599) {
        return refuse(h, 400, err, "status code %d is not between 100 and 599", code);
    }
    h->status_code = (uint16_t)code;
    return ST_OK;
}

/* pos is at the CR behind the value. */
static enum status end_value(struct http_head *h, const char *data, struct error *err) {
    struct http_header *header = &h->headers[h->n_headers];
    uint32_t end = h->pos;

    while (end > h->mark && (data[end - 1] == ' ' || data[end - 1] == '\t'))
        end--;
    header->value = (struct http_span){(uint16_t)h->mark, (uint16_t)(end - h->mark)};
    header->id = (uint8_t)http_name_of(http_span_str(header->name, data));
    header->is_option = false;
    header->is_plain = end == h->pos && data[h->mark - 1] == ' ' &&
                       header->name.off + header->name.len + 2u == h->mark;
    h->names |= HTTP_NAME_BIT(header->id);
    h->n_headers++;
    return judge_header(h, header->id, http_span_str(header->value, data), err);
}

/* --- the machine ------------------------------------------------------------------------------- */

void http_request_init(struct http_head *h) {
    memset(h, 0, offsetof(struct http_head, headers));
}

void http_response_init(struct http_head *h, bool to_head) {
    http_request_init(h);
    h->is_response = true;
    h->is_head_answer = to_head;
    h->state = AT_RESPONSE_VERSION;
}

/* Advances pos over bytes of a class; returns the first other byte, or -1 at `end`. */
static inline int scan(struct http_head *h, const char *data, size_t end, uint8_t class) {
    size_t pos = h->pos;

    while (end - pos >= 4 &&
           (http_char_class[(uint8_t)data[pos]] & http_char_class[(uint8_t)data[pos + 1]] &
            http_char_class[(uint8_t)data[pos + 2]] & http_char_class[(uint8_t)data[pos + 3]] &
            class))
        pos += 4;
    while (pos < end && http_char_is(data[pos], class))
        pos++;
    h->pos = (uint32_t)pos;
    return pos < end ? (unsigned char)data[pos] : -1;
}

/* Of eight bytes in memory order, the top bits of those below 0x20, 0x7F and above: exact up to and
 * including the first of them, while a borrow may mark others behind it. */
static inline uint64_t find_unplain(uint64_t v) {
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones << 7;

    return ((v - ones * 0x20) | ((v ^ ones * 0x7F) - ones) | v) & tops;
}

/* The same for HTTP_CHAR_VALUE, where most bytes are plain text: by eights. */
static inline int scan_value(struct http_head *h, const char *data, size_t end) {
    size_t pos = h->pos;

    while (end - pos >= 8) {
        uint64_t v, unplain;

        memcpy(&v, data + pos, sizeof(v));
        unplain = find_unplain(le64toh(v));
        if (unplain == 0) {
            pos += 8;
            continue;
        }
        pos += (size_t)__builtin_ctzll(unplain) / 8;
        if (!http_char_is(data[pos], HTTP_CHAR_VALUE)) {
            h->pos = (uint32_t)pos;
            return (unsigned char)data[pos];
        }
        pos++; /* a tab, or above 0x7F */
    }
    h->pos = (uint32_t)pos;
    return scan(h, data, end, HTTP_CHAR_VALUE);
}

static enum status step_leading(struct http_head *h, int c, struct error *err) {
    if (c == '\r') {
        if (++h->n_leading > HTTP_MAX_LEADING_CRLF) {
            return refuse(h, 400, err, "more than %u empty lines before the request line",
                          HTTP_MAX_LEADING_CRLF);
        }
        h->pos++;
        h->state = AT_LEADING_LF;
        return ST_OK;
    }
    h->mark = h->pos;
    h->state = AT_METHOD;
    return ST_OK;
}

static enum status step_method(struct http_head *h, const char *data, size_t end,
                               struct error *err) {
    enum status st;

    while (h->pos < end && data[h->pos] >= 'A' && data[h->pos] <= 'Z') {
        if (h->pos - h->mark == HTTP_MAX_METHOD_BYTES) {
            return refuse(h, 501, err, "the method is longer than %u letters",
                          HTTP_MAX_METHOD_BYTES);
        }
        h->pos++;
    }
    if (h->pos == end) return ST_OK;
    if (data[h->pos] != ' ') {
        return refuse_byte(h, err, "a method (upper-case letters)", (unsigned char)data[h->pos]);
    }
    st = end_method(h, data, err);
    if (st != ST_OK) return st;
    h->mark = ++h->pos;
    h->state = AT_TARGET;
    return ST_OK;
}

static enum status step_target(struct http_head *h, const char *data, size_t end,
                               struct error *err) {
    size_t line_end = h->method_span.off + (size_t)HTTP_MAX_REQUEST_LINE_BYTES;
    int c = scan(h, data, MIN(end, line_end), HTTP_CHAR_PATH);
    enum status st;

    if (c >= 0 && c != ' ') {
        h->has_marks = true;
        c = scan(h, data, MIN(end, line_end), HTTP_CHAR_TARGET);
    }
    if (h->pos == line_end) {
        return refuse(h, 414, err, "the request line is longer than %u bytes",
                      HTTP_MAX_REQUEST_LINE_BYTES);
    }
    if (c < 0) return ST_OK;
    if (c == '\r') {
        return refuse(h, 400, err, "the request line has no version: HTTP/0.9 is not supported");
    }
    if (c != ' ') return refuse_byte(h, err, "a request target: percent-encode it", (uint8_t)c);
    st = end_target(h, data, err);
    if (st != ST_OK) return st;
    h->mark = ++h->pos;
    h->state = AT_VERSION;
    return ST_OK;
}

static enum status step_version(struct http_head *h, const char *data, size_t end,
                                struct error *err) {
    char stop = h->is_response ? ' ' : '\r';
    enum status st;

    if (end - h->mark > 8 && memcmp(data + h->mark, "HTTP/1.1", 8) == 0) h->pos = h->mark + 8;
    while (h->pos < end && data[h->pos] != stop) {
        unsigned char c = (unsigned char)data[h->pos];

        if (c <= ' ' || c >= 0x7F) return refuse_byte(h, err, "the version of the start line", c);
        if (h->pos - h->mark == 8) {
            struct str v = {data + h->mark, 9};

            return judge_version(h, v, err);
        }
        h->pos++;
    }
    if (h->pos == end) return ST_OK;
    st = judge_version(h, http_span_str(span_from_mark(h), data), err);
    if (st != ST_OK) return st;
    h->mark = ++h->pos;
    h->state = h->is_response ? AT_STATUS_CODE : AT_LINE_LF;
    return ST_OK;
}

static enum status step_status_code(struct http_head *h, const char *data, size_t end,
                                    struct error *err) {
    enum status st;

    while (h->pos < end && h->pos - h->mark < 3) {
        if (!IS_DIGIT(data[h->pos])) {
            return refuse_byte(h, err, "a status code (three digits)", (unsigned char)data[h->pos]);
        }
        h->pos++;
    }
    if (h->pos - h->mark < 3) return ST_OK;
    st = end_status_code(h, data, err);
    if (st != ST_OK) return st;
    h->state = AT_REASON_SPACE;
    return ST_OK;
}

static enum status step_reason(struct http_head *h, const char *data, size_t end,
                               struct error *err) {
    int c = scan_value(h, data, end);

    if (c < 0) return ST_OK;
    if (c != '\r') return refuse_byte(h, err, "a reason phrase", (uint8_t)c);
    h->reason = span_from_mark(h);
    h->pos++;
    h->state = AT_LINE_LF;
    return ST_OK;
}

static enum status step_lf(struct http_head *h, int c, enum state next, struct error *err) {
    if (c != '\n') return refuse(h, 400, err, "CR without LF at offset %u", h->pos - 1);
    h->pos++;
    h->state = (uint8_t)next;
    return ST_OK;
}

/* The first byte of a header line, or of the end of the head. */
static enum status begin_line(struct http_head *h, int c, struct error *err) {
    if (c == '\r') {
        h->pos++;
        h->state = AT_FINAL_LF;
        return ST_OK;
    }
    if (c == ' ' || c == '\t') {
        return refuse(h, 400, err,
                      "a header line begins with a blank: folded headers are obsolete");
    }
    if (h->n_headers == HTTP_MAX_HEADERS) {
        return refuse(h, 431, err, "more than %u headers", HTTP_MAX_HEADERS);
    }
    h->mark = h->pos;
    h->state = AT_NAME;
    return ST_OK;
}

/* A header line, or as much of it as is there: it is entered where the last call left off. */
static enum status step_header(struct http_head *h, const char *data, size_t end,
                               struct error *err) {
    enum status st;
    int c;

    switch ((enum state)h->state) {
    default: /* AT_HEADER_START */
        st = begin_line(h, (unsigned char)data[h->pos], err);
        if (st != ST_OK || h->state != AT_NAME) return st;
        /* fall through */
    case AT_NAME:
        c = scan(h, data, end, HTTP_CHAR_TOKEN);
        if (c < 0) return ST_OK;
        if (c != ':') return refuse_byte(h, err, "a header name", (uint8_t)c);
        if (h->pos == h->mark) return refuse(h, 400, err, "a header without a name");
        h->headers[h->n_headers].name = span_from_mark(h);
        h->pos++;
        h->state = AT_VALUE_START;
        /* fall through */
    case AT_VALUE_START:
        while (h->pos < end && (data[h->pos] == ' ' || data[h->pos] == '\t'))
            h->pos++;
        if (h->pos == end) return ST_OK;
        h->mark = h->pos;
        h->state = AT_VALUE;
        /* fall through */
    case AT_VALUE:
        c = scan_value(h, data, end);
        if (c < 0) return ST_OK;
        if (c != '\r') return refuse_byte(h, err, "a header value", (uint8_t)c);
        st = end_value(h, data, err);
        if (st != ST_OK) return st;
        h->pos++;
        h->state = AT_VALUE_LF;
        if (h->pos == end) return ST_OK;
        /* fall through */
    case AT_VALUE_LF: return step_lf(h, (unsigned char)data[h->pos], AT_HEADER_START, err);
    }
}

/* One state's worth; pos < end on entry. ST_OK: go on. */
static enum status step(struct http_head *h, const char *data, size_t end, struct error *err) {
    int c = (unsigned char)data[h->pos];

    switch ((enum state)h->state) {
    case AT_LEADING: return step_leading(h, c, err);
    case AT_LEADING_LF: return step_lf(h, c, AT_LEADING, err);
    case AT_METHOD: return step_method(h, data, end, err);
    case AT_TARGET: return step_target(h, data, end, err);
    case AT_VERSION:
    case AT_RESPONSE_VERSION: return step_version(h, data, end, err);
    case AT_STATUS_CODE: return step_status_code(h, data, end, err);
    case AT_REASON_SPACE: /* some servers leave the space out when there is no reason */
        if (c != ' ' && c != '\r') return refuse_byte(h, err, "a status line", (uint8_t)c);
        if (c == ' ') h->pos++;
        h->mark = h->pos;
        h->state = AT_REASON;
        return ST_OK;
    case AT_REASON: return step_reason(h, data, end, err);
    case AT_LINE_LF: return step_lf(h, c, AT_HEADER_START, err);
    case AT_HEADER_START:
    case AT_NAME:
    case AT_VALUE_START:
    case AT_VALUE:
    case AT_VALUE_LF: return step_header(h, data, end, err);
    case AT_FINAL_LF: {
        enum status st = step_lf(h, c, AT_DONE, err);

        return st == ST_OK ? finish(h, data, err) : st;
    }
    case AT_DONE:
    case AT_REFUSED: break;
    }
    return ST_OK;
}

enum status http_head_parse(struct http_head *h, const char *data, size_t len, struct error *err) {
    size_t end = MIN(len, (size_t)HTTP_MAX_HEAD_BYTES);

    if (h->state == AT_REFUSED) return error_set(err, ST_INVALID, "the message was refused before");
    while (h->pos < end && h->state != AT_DONE) {
        enum status st = step(h, data, end, err);

        if (st != ST_OK) return st;
    }
    if (h->state == AT_DONE) return ST_OK;
    if (h->pos == HTTP_MAX_HEAD_BYTES) {
        return refuse(h, 431, err, "the head is longer than %u bytes", HTTP_MAX_HEAD_BYTES);
    }
    return ST_AGAIN;
}

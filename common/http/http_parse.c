/* common/http/http_parse.c - heads: a state machine over the start line and the headers.
 *
 * Each state scans ahead in a tight loop while bytes are of its class and decides on the first that
 * is not. Where a limit applies the scan is bounded by it, so that the verdict depends on the bytes
 * alone and not on how they were cut. Lines that are there whole and have the form that nearly all
 * have are read at once, without the machine (read_usual_*): these readers accept less than it
 * does, never more, and refuse nothing. What headers mean for framing is judged as each ends, and
 * once more when the head is complete (http_judge.c). */
#include "common/http/http_parse.h"

#include <endian.h>

#include "common/http/http_parse_internal.h"

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

/* The first position from `pos` whose byte is not of the class; `end` when there is none. */
static inline size_t skip(const char *data, size_t pos, size_t end, uint8_t class) {
    while (end - pos >= 4 &&
           (http_char_class[(uint8_t)data[pos]] & http_char_class[(uint8_t)data[pos + 1]] &
            http_char_class[(uint8_t)data[pos + 2]] & http_char_class[(uint8_t)data[pos + 3]] &
            class))
        pos += 4;
    while (pos < end && http_char_is(data[pos], class))
        pos++;
    return pos;
}

/* Sixteen bytes, compared at once: each byte of a comparison's result is 0xFF for true or 0. */
typedef unsigned char bytes16 __attribute__((vector_size(16)));

static inline bytes16 bytes_at(const char *p) {
    bytes16 v;

    memcpy(&v, p, sizeof(v));
    return v;
}

/* How many are true from the first on. */
static inline size_t n_true(bytes16 v) {
    uint64_t half[2];

    memcpy(half, &v, sizeof(half));
    if (~half[0]) return (size_t)__builtin_ctzll(~le64toh(half[0])) / 8;
    return ~half[1] ? 8 + (size_t)__builtin_ctzll(~le64toh(half[1])) / 8 : 16;
}

/* As skip, by sixteens, for a class that has letters, '-' and `mark`, and of these most. */
static inline size_t skip_words(const char *data, size_t pos, size_t end, uint8_t class,
                                unsigned char mark) {
    while (end - pos >= 16) {
        bytes16 v = bytes_at(data + pos), from_a = (v | 0x20) - 'a';
        size_t n = n_true((bytes16)(from_a < 26) | (bytes16)(v == '-') | (bytes16)(v == mark));

        pos += n;
        if (n == 16) continue;
        if (!http_char_is(data[pos], class)) return pos;
        pos++;
    }
    return skip(data, pos, end, class);
}

/* As skip for HTTP_CHAR_VALUE: nearly all values are of visible ASCII and blanks. */
static inline size_t skip_value(const char *data, size_t pos, size_t end) {
    while (end - pos >= 16) {
        bytes16 from_blank = bytes_at(data + pos) - ' ';
        size_t n = n_true((bytes16)(from_blank < 0x7F - ' '));

        pos += n;
        if (n == 16) continue;
        if (!http_char_is(data[pos], HTTP_CHAR_VALUE)) return pos;
        pos++; /* a tab, or above 0x7F */
    }
    return skip(data, pos, end, HTTP_CHAR_VALUE);
}

bool http_chars_are(struct str s, uint8_t class) {
    return skip(s.ptr, 0, s.len, class) == s.len;
}

bool http_is_token(struct str s) {
    return s.len > 0 && http_chars_are(s, HTTP_CHAR_TOKEN);
}

/* --- refusing --------------------------------------------------------------------------------- */

static enum status refuse_byte(struct http_head *h, struct error *err, const char *where,
                               unsigned char byte) {
    if (byte == '\n') {
        return http_refuse(h, 400, err, "a line of the head ends with LF alone: end it with CR LF");
    }
    return http_refuse(h, 400, err, "byte 0x%02X at offset %u is not allowed in %s", byte, h->pos,
                       where);
}

/* --- elements of the head --------------------------------------------------------------------- */

static struct http_span span_from_mark(const struct http_head *h) {
    return (struct http_span){(uint16_t)h->mark, (uint16_t)(h->pos - h->mark)};
}

static enum status end_method(struct http_head *h, const char *data, struct error *err) {
    struct str m;

    h->method_span = span_from_mark(h);
    m = http_span_str(h->method_span, data);
    h->method = http_method_of(m);
    if (m.len == 0) return http_refuse(h, 400, err, "the request line begins with a space");
    if (str_eq(m, STR("CONNECT"))) {
        return http_refuse(h, 501, err, "CONNECT is not supported: this is no forward proxy");
    }
    return ST_OK;
}

/* The byte at i of a path, decoded if it is percent-encoded, and how long it is there. */
static char byte_at(struct str path, size_t i, size_t *n) {
    int high, low;

    *n = 1;
    if (path.ptr[i] != '%' || path.len - i < 3) return path.ptr[i];
    high = str_hex_value((unsigned char)path.ptr[i + 1]);
    low = str_hex_value((unsigned char)path.ptr[i + 2]);
    if (high < 0 || low < 0) return path.ptr[i];
    *n = 3;
    return (char)(high << 4 | low);
}

/* "." or ".." between slashes: a reader that resolves it sees another path. Dots and slashes may be
 * percent-encoded, and some readers take a backslash for a slash. */
static bool has_dot_segment(struct str path) {
    size_t n_dots = 0, n_bytes = 0, n;

    for (size_t i = 0; i <= path.len; i += n) {
        char c = '/';

        n = 1;
        if (i < path.len) c = byte_at(path, i, &n);
        if (c != '/' && c != '\\') {
            n_bytes++;
            n_dots += c == '.';
            continue;
        }
        if (n_bytes == n_dots && (n_dots == 1 || n_dots == 2)) return true;
        n_dots = n_bytes = 0;
    }
    return false;
}

static enum status end_target(struct http_head *h, const char *data, struct error *err) {
    const char *mark;
    struct str t;

    h->target = h->path = span_from_mark(h);
    t = http_span_str(h->target, data);
    if (t.len == 0) return http_refuse(h, 400, err, "two spaces in the request line: send one");
    if (t.ptr[0] != '/' && !(h->method == HTTP_OPTIONS && str_eq(t, STR("*")))) {
        return http_refuse(h, 400, err,
                           "the request target '%.*s' does not begin with '/': send the path alone",
                           HTTP_QUOTE(t));
    }
    if (!h->has_marks) return ST_OK; /* neither query nor dots */
    mark = memchr(t.ptr, '?', t.len);
    if (mark) {
        h->path.len = (uint16_t)(mark - t.ptr);
        h->query = (struct http_span){(uint16_t)(h->path.off + h->path.len + 1),
                                      (uint16_t)(t.len - h->path.len - 1)};
    }
    if (has_dot_segment(http_span_str(h->path, data))) {
        return http_refuse(h, 400, err,
                           "the path '%.*s' has a '.' or '..' segment: send it resolved",
                           HTTP_QUOTE(t));
    }
    return ST_OK;
}

static enum status judge_version(struct http_head *h, struct str v, struct error *err) {
    bool is_version = v.len == 8 && memcmp(v.ptr, "HTTP/", 5) == 0 && IS_DIGIT(v.ptr[5]) &&
                      v.ptr[6] == '.' && IS_DIGIT(v.ptr[7]);

    if (!is_version) {
        return http_refuse(h, 400, err, "the %s line has '%.*s' where HTTP/1.1 belongs",
                           h->is_response ? "status" : "request", HTTP_QUOTE(v));
    }
    if (v.ptr[5] != '1' || v.ptr[7] > '1') {
        return http_refuse(h, 505, err, "%.*s is not supported: use HTTP/1.1", HTTP_QUOTE(v));
    }
    h->minor_version = (uint8_t)(v.ptr[7] - '0');
    return ST_OK;
}

static enum status end_status_code(struct http_head *h, const char *data, struct error *err) {
    struct str digits = http_span_str(span_from_mark(h), data);
    int code = (digits.ptr[0] - '0') * 100 + (digits.ptr[1] - '0') * 10 + (digits.ptr[2] - '0');

    if (code < 100 || code > 599) {
        return http_refuse(h, 400, err, "status code %d is not between 100 and 599", code);
    }
    h->status_code = (uint16_t)code;
    return ST_OK;
}

/* Interprets a complete header line without its CR LF. */
static enum status end_header(struct http_head *h, const char *data, struct error *err) {
    struct http_header *header = &h->headers[h->n_headers++];

    header->id = (uint8_t)http_name_of(http_span_str(header->name, data));
    header->is_option = false;
    h->names |= HTTP_NAME_BIT(header->id);
    return http_judge_header(h, header->id, http_span_str(header->value, data), err);
}

/* pos is at the CR behind the value. */
static enum status end_value(struct http_head *h, const char *data, struct error *err) {
    struct http_header *header = &h->headers[h->n_headers];
    uint32_t end = h->pos;

    while (end > h->mark && (data[end - 1] == ' ' || data[end - 1] == '\t'))
        end--;
    header->value = (struct http_span){(uint16_t)h->mark, (uint16_t)(end - h->mark)};
    header->is_plain = end == h->pos && data[h->mark - 1] == ' ' &&
                       header->name.off + header->name.len + 2u == h->mark;
    return end_header(h, data, err);
}

/* --- the machine ------------------------------------------------------------------------------ */

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
static int scan(struct http_head *h, const char *data, size_t end, uint8_t class) {
    h->pos = (uint32_t)(class == HTTP_CHAR_VALUE ? skip_value(data, h->pos, end)
                                                 : skip(data, h->pos, end, class));
    return h->pos < end ? (unsigned char)data[h->pos] : -1;
}

static enum status step_leading(struct http_head *h, int c, struct error *err) {
    if (c == '\r') {
        if (++h->n_leading > HTTP_MAX_LEADING_CRLF) {
            return http_refuse(h, 400, err, "more than %u empty lines before the request line",
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
            return http_refuse(h, 501, err, "the method is longer than %u letters",
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
        return http_refuse(h, 414, err, "the request line is longer than %u bytes",
                           HTTP_MAX_REQUEST_LINE_BYTES);
    }
    if (c < 0) return ST_OK;
    if (c == '\r') {
        return http_refuse(h, 400, err,
                           "the request line has no version: HTTP/0.9 is not supported");
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
    int c = scan(h, data, end, HTTP_CHAR_VALUE);

    if (c < 0) return ST_OK;
    if (c != '\r') return refuse_byte(h, err, "a reason phrase", (uint8_t)c);
    h->reason = span_from_mark(h);
    h->pos++;
    h->state = AT_LINE_LF;
    return ST_OK;
}

static enum status step_lf(struct http_head *h, int c, enum state next, struct error *err) {
    if (c != '\n') return http_refuse(h, 400, err, "CR without LF at offset %u", h->pos - 1);
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
        return http_refuse(h, 400, err,
                           "a header line begins with a blank: folded headers are obsolete");
    }
    if (h->n_headers == HTTP_MAX_HEADERS) {
        return http_refuse(h, 431, err, "more than %u headers", HTTP_MAX_HEADERS);
    }
    h->mark = h->pos;
    h->state = AT_NAME;
    return ST_OK;
}

/* Fast path for a complete line of the form name ": " value CR LF. The state machine handles all
 * others and their errors. */
static bool read_usual_line(struct http_head *h, const char *data, size_t end) {
    struct http_header *header = &h->headers[h->n_headers];
    size_t pos = h->pos, colon = skip_words(data, pos, end, HTTP_CHAR_TOKEN, '-'),
           value = colon + 2, cr;

    if (end - colon < 5 || colon == pos || h->n_headers == HTTP_MAX_HEADERS) return false;
    if (data[colon] != ':' || data[colon + 1] != ' ' || (uint8_t)data[value] <= ' ') return false;
    cr = skip_value(data, value, end);
    if (end - cr < 2 || data[cr] != '\r' || data[cr + 1] != '\n') return false;
    if ((uint8_t)data[cr - 1] <= ' ') return false;
    header->name.off = (uint16_t)pos;
    header->name.len = (uint16_t)(colon - pos);
    header->value.off = (uint16_t)value;
    header->value.len = (uint16_t)(cr - value);
    header->is_plain = true;
    h->pos = (uint32_t)cr + 2;
    return true;
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
        if (h->pos == h->mark) return http_refuse(h, 400, err, "a header without a name");
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
        c = scan(h, data, end, HTTP_CHAR_VALUE);
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

static enum status step_headers(struct http_head *h, const char *data, size_t end,
                                struct error *err) {
    enum status st;

    do {
        bool is_usual = h->state == AT_HEADER_START && read_usual_line(h, data, end);

        st = is_usual ? end_header(h, data, err) : step_header(h, data, end, err);
    } while (st == ST_OK && h->state == AT_HEADER_START && h->pos < end);
    return st;
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
    case AT_VALUE_LF: return step_headers(h, data, end, err);
    case AT_FINAL_LF: {
        enum status st = step_lf(h, c, AT_DONE, err);

        h->head_len = h->pos;
        return st == ST_OK ? http_judge_head(h, data, err) : st;
    }
    case AT_DONE: break;
    }
    return ST_OK;
}

/* The same for the start lines that nearly all messages have: "POST /some/path HTTP/1.1", without a
 * query, and "HTTP/1.1 200 OK". */
static void read_usual_start(struct http_head *h, const char *data, size_t end) {
    struct str method = STR("POST "), version = STR(" HTTP/1.1\r\n"),
               ok = STR("HTTP/1.1 200 OK\r\n");
    size_t line_end;

    if (h->is_response) {
        if (end < ok.len || memcmp(data, ok.ptr, ok.len) != 0) return;
        h->status_code = 200;
        h->reason = (struct http_span){13, 2};
        line_end = ok.len;
    } else {
        size_t stop = MIN(end, (size_t)HTTP_MAX_REQUEST_LINE_BYTES / 2), space;

        if (end <= method.len || memcmp(data, method.ptr, method.len) != 0) return;
        space = skip_words(data, method.len, stop, HTTP_CHAR_PATH, '/');
        if (data[method.len] != '/' || end - space < version.len) return;
        if (memcmp(data + space, version.ptr, version.len) != 0) return;
        h->method = HTTP_POST;
        h->method_span = (struct http_span){0, 4};
        h->target.off = (uint16_t)method.len;
        h->target.len = (uint16_t)(space - method.len);
        h->path = h->target;
        line_end = space + version.len;
    }
    h->minor_version = 1;
    h->pos = (uint32_t)line_end;
    h->state = AT_HEADER_START;
}

enum status http_head_parse(struct http_head *h, const char *data, size_t len, struct error *err) {
    size_t end = MIN(len, (size_t)HTTP_MAX_HEAD_BYTES);

    if (h->refused_code) return error_set(err, ST_INVALID, "the message was already rejected");
    if (h->pos == 0) read_usual_start(h, data, end);
    while (h->pos < end && h->state != AT_DONE) {
        enum status st = step(h, data, end, err);

        if (st != ST_OK) return st;
    }
    if (h->state == AT_DONE) return ST_OK;
    if (h->pos == HTTP_MAX_HEAD_BYTES) {
        return http_refuse(h, 431, err, "the head is longer than %u bytes", HTTP_MAX_HEAD_BYTES);
    }
    return ST_AGAIN;
}

/* common/http_names.c - looking up and judging names: headers, reasons, query parameters. */
#include "common/http_parse.h"

#include "common/http_parse_internal.h"

struct str http_head_find(const struct http_head *h, const char *data, struct str name) {
    for (uint16_t i = 0; i < h->n_headers; i++) {
        if (h->headers[i].name.len == name.len &&
            str_eq_nocase(http_span_str(h->headers[i].name, data), name)) {
            return http_span_str(h->headers[i].value, data);
        }
    }
    return STR_NULL;
}

bool http_value_has_token(struct str value, struct str token) {
    while (value.len) {
        const char *comma = memchr(value.ptr, ',', value.len);
        size_t n = comma ? (size_t)(comma - value.ptr) : value.len;

        if (str_eq_nocase(str_trim((struct str){value.ptr, n}), token)) return true;
        if (!comma) break;
        value.ptr += n + 1;
        value.len -= n + 1;
    }
    return false;
}

static bool is_always_hop_by_hop(struct str name) {
    static const struct str names[] = {
        {"connection", 10},        {"keep-alive", 10},    {"te", 2}, {"trailer", 7}, {"upgrade", 7},
        {"transfer-encoding", 17}, {"http2-settings", 14}};

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (str_eq_nocase(name, names[i])) return true;
    }
    return name.len >= 6 && str_eq_nocase((struct str){name.ptr, 6}, STR("proxy-"));
}

bool http_header_is_hop_by_hop(const struct http_head *h, const char *data, struct str name) {
    if (is_always_hop_by_hop(name)) return true;
    if (!h->has_connection) return false;
    for (uint16_t i = 0; i < h->n_headers; i++) {
        if (h->headers[i].name.len == 10 &&
            str_eq_nocase(http_span_str(h->headers[i].name, data), STR("connection")) &&
            http_value_has_token(http_span_str(h->headers[i].value, data), name)) {
            return true;
        }
    }
    return false;
}

static const struct str method_names[] = {
    [HTTP_GET] = {"GET", 3},     [HTTP_HEAD] = {"HEAD", 4},     [HTTP_POST] = {"POST", 4},
    [HTTP_PUT] = {"PUT", 3},     [HTTP_DELETE] = {"DELETE", 6}, [HTTP_OPTIONS] = {"OPTIONS", 7},
    [HTTP_PATCH] = {"PATCH", 5}, [HTTP_OTHER_METHOD] = {"", 0},
};

const char *http_method_name(enum http_method m) {
    return method_names[m].ptr;
}

enum http_method http_method_of(struct str name) {
    int m = 0;

    while (m < HTTP_OTHER_METHOD && !str_eq(name, method_names[m]))
        m++;
    return (enum http_method)m;
}

const char *http_reason(int code) {
    static const struct {
        int code;
        const char *reason;
    } reasons[] = {
        {200, "OK"},
        {100, "Continue"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };

    for (size_t i = 0; i < ARRAY_LEN(reasons); i++) {
        if (reasons[i].code == code) return reasons[i].reason;
    }
    return "Unknown";
}

static void append_decoded(struct buf *out, struct str s) {
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i] == '+' ? ' ' : s.ptr[i];

        if (c == '%' && i + 2 < s.len) {
            int high = http_hex_value((unsigned char)s.ptr[i + 1]);
            int low = http_hex_value((unsigned char)s.ptr[i + 2]);

            if (high >= 0 && low >= 0) {
                c = (char)(high * 16 + low);
                i += 2;
            }
        }
        buf_append_char(out, c);
    }
}

bool http_query_param(struct str query, struct str name, struct buf *out) {
    while (query.len) {
        const char *amp = memchr(query.ptr, '&', query.len);
        size_t n = amp ? (size_t)(amp - query.ptr) : query.len;
        const char *eq = memchr(query.ptr, '=', n);
        size_t key_len = eq ? (size_t)(eq - query.ptr) : n;

        if (str_eq((struct str){query.ptr, key_len}, name)) {
            if (eq) append_decoded(out, (struct str){eq + 1, n - key_len - 1});
            return true;
        }
        if (!amp) break;
        query.ptr += n + 1;
        query.len -= n + 1;
    }
    return false;
}

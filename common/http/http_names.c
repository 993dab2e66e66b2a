/* common/http/http_names.c - names looked up: headers, methods, reasons, query parameters. */
#include "common/http/http_parse.h"
#include "common/http/http_parse_internal.h"
#include "common/protocol/wire.h"

/* --- header names ----------------------------------------------------------------------------- */

static inline uint64_t word_at(const char *p) {
    uint64_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static inline uint32_t half_word_at(const char *p) {
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

/* True when the n bytes of a token are this word of small letters, digits and '-', ignoring letter
 * case. Setting bit 5 turns only capitals into these letters among the bytes of a token. With n
 * constant this is a handful of instructions. */
static inline bool is_word(const char *p, const char *word, size_t n) {
    const uint64_t fold = UINT64_C(0x2020202020202020);
    uint64_t differs = 0;
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        differs |= (word_at(p + i) | fold) ^ word_at(word + i);
    if (i < n && n >= 8) return !(differs | ((word_at(p + n - 8) | fold) ^ word_at(word + n - 8)));
    for (; i + 4 <= n; i += 4)
        differs |= (half_word_at(p + i) | (uint32_t)fold) ^ half_word_at(word + i);
    if (i < n && n >= 4) {
        return !(differs |
                 ((half_word_at(p + n - 4) | (uint32_t)fold) ^ half_word_at(word + n - 4)));
    }
    for (; i < n; i++)
        differs |= ((unsigned char)p[i] | 0x20u) ^ (unsigned char)word[i];
    return differs == 0;
}

#define IS(lit)     is_word(name.ptr, lit, sizeof(lit) - 1)
#define BEGINS(lit) (name.len >= sizeof(lit) - 1 && IS(lit))

static enum http_name family_of(struct str name) {
    switch (name.ptr[0] | 0x20) {
    case 'p': return BEGINS("proxy-") ? HTTP_NAME_HOP : HTTP_NAME_OTHER;
    case 'x':
        if (BEGINS("x-forwarded-")) return HTTP_NAME_WAY;
        return BEGINS(WIRE_PREFIX) ? HTTP_NAME_OURS : HTTP_NAME_OTHER;
    default: return HTTP_NAME_OTHER;
    }
}

/* By length first: most names are compared with one or two words, or with none. */
enum http_name http_name_of(struct str name) {
    switch (name.len) {
    case 0: return HTTP_NAME_OTHER;
    case 2:
        if (IS("te")) return HTTP_NAME_HOP;
        break;
    case 3:
        if (IS("via")) return HTTP_NAME_VIA;
        break;
    case 4:
        if (IS("host")) return HTTP_NAME_HOST;
        break;
    case 5: /* no header at all, but an option of Connection */
        if (IS("close")) return HTTP_NAME_HOP;
        break;
    case 6:
        if (IS("expect")) return HTTP_NAME_EXPECT;
        break;
    case 7:
        if (IS("trailer") || IS("upgrade")) return HTTP_NAME_HOP;
        if (IS("refresh") || IS("alt-svc")) return HTTP_NAME_SITE;
        break;
    case 8:
        if (IS("location")) return HTTP_NAME_SITE;
        break;
    case 9:
        if (IS("x-api-key")) return HTTP_NAME_X_API_KEY;
        if (IS("forwarded") || IS("x-real-ip")) return HTTP_NAME_WAY;
        break;
    case 10:
        if (IS("connection")) return HTTP_NAME_CONNECTION;
        if (IS("keep-alive")) return HTTP_NAME_HOP;
        if (IS("set-cookie")) return HTTP_NAME_SITE;
        break;
    case 12:
        if (IS("content-type")) return HTTP_NAME_CONTENT_TYPE;
        if (IS("x-request-id")) return HTTP_NAME_X_REQUEST_ID;
        break;
    case 13:
        if (IS("authorization")) return HTTP_NAME_AUTHORIZATION;
        break;
    case 14:
        if (IS("content-length")) return HTTP_NAME_CONTENT_LENGTH;
        if (IS("http2-settings")) return HTTP_NAME_HOP;
        break;
    case 15:
        if (IS("clear-site-data")) return HTTP_NAME_SITE;
        break;
    case 16:
        if (IS("www-authenticate") || IS("content-location")) return HTTP_NAME_SITE;
        break;
    case 17:
        if (IS("transfer-encoding")) return HTTP_NAME_TRANSFER_ENCODING;
        break;
    case 19:
        if (IS("authentication-info")) return HTTP_NAME_SITE;
        break;
    case 25:
        if (IS("strict-transport-security")) return HTTP_NAME_SITE;
        break;
    default: break;
    }
    return family_of(name);
}

/* --- headers of a head ------------------------------------------------------------------------ */

struct str http_head_find(const struct http_head *h, const char *data, struct str name) {
    enum http_name id = http_name_of(name);

    if (!(h->names & HTTP_NAME_BIT(id))) return STR_NULL;
    for (uint16_t i = 0; i < h->n_headers; i++) {
        if (h->headers[i].id == id &&
            str_eq_nocase(http_span_str(h->headers[i].name, data), name)) {
            return http_span_str(h->headers[i].value, data);
        }
    }
    return STR_NULL;
}

struct str http_head_get(const struct http_head *h, const char *data, enum http_name id) {
    if (!(h->names & HTTP_NAME_BIT(id))) return STR_NULL;
    for (uint16_t i = 0; i < h->n_headers; i++) {
        if (h->headers[i].id == id) return http_span_str(h->headers[i].value, data);
    }
    return STR_NULL;
}

/* A line with too many blanks, or none, is written as it should be. */
static char *write_tidied(char *to, const struct http_header *header, const char *data) {
    to = mempcpy(to, data + header->name.off, header->name.len);
    to = mempcpy(to, ": ", 2);
    to = mempcpy(to, data + header->value.off, header->value.len);
    return mempcpy(to, "\r\n", 2);
}

char *http_write_kept(char *to, const struct http_head *h, const char *data, uint32_t dropped) {
    size_t from = 0, until = 0; /* the lines that are to be copied next */

    dropped |= HTTP_HOP_BY_HOP;
    for (uint16_t i = 0; i < h->n_headers; i++) {
        const struct http_header *header = &h->headers[i];

        if ((dropped & HTTP_NAME_BIT(header->id)) || header->is_option) continue;
        if (header->name.off != until || !header->is_plain) {
            to = mempcpy(to, data + from, until - from);
            from = until = header->name.off;
        }
        if (header->is_plain) {
            until = (size_t)header->value.off + header->value.len + 2;
        } else {
            to = write_tidied(to, header, data);
        }
    }
    return mempcpy(to, data + from, until - from);
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

/* --- methods and reasons ---------------------------------------------------------------------- */

static const struct str method_names[] = {
    [HTTP_GET] = {"GET", 3},     [HTTP_HEAD] = {"HEAD", 4},     [HTTP_POST] = {"POST", 4},
    [HTTP_PUT] = {"PUT", 3},     [HTTP_DELETE] = {"DELETE", 6}, [HTTP_OPTIONS] = {"OPTIONS", 7},
    [HTTP_PATCH] = {"PATCH", 5}, [HTTP_OTHER_METHOD] = {"", 0},
};

const char *http_method_name(enum http_method m) {
    return method_names[m].ptr;
}

enum http_method http_method_of(struct str name) {
    if (str_eq(name, STR("POST"))) return HTTP_POST; /* nearly all are */
    for (int m = 0; m < HTTP_OTHER_METHOD; m++) {
        if (str_eq(name, method_names[m])) return (enum http_method)m;
    }
    return HTTP_OTHER_METHOD;
}

const char *http_reason(int code) {
    static const struct {
        int code;
        const char *reason;
    } reasons[] = {
        {200, "OK"},
        {100, "Continue"},
        {101, "Switching Protocols"},
        {102, "Processing"},
        {103, "Early Hints"},
        {201, "Created"},
        {202, "Accepted"},
        {203, "Non-Authoritative Information"},
        {204, "No Content"},
        {205, "Reset Content"},
        {206, "Partial Content"},
        {207, "Multi-Status"},
        {208, "Already Reported"},
        {226, "IM Used"},
        {300, "Multiple Choices"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {303, "See Other"},
        {304, "Not Modified"},
        {305, "Use Proxy"},
        {307, "Temporary Redirect"},
        {308, "Permanent Redirect"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {402, "Payment Required"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {407, "Proxy Authentication Required"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {410, "Gone"},
        {411, "Length Required"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {423, "Locked"},
        {424, "Failed Dependency"},
        {425, "Too Early"},
        {426, "Upgrade Required"},
        {428, "Precondition Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {451, "Unavailable For Legal Reasons"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {506, "Variant Also Negotiates"},
        {507, "Insufficient Storage"},
        {508, "Loop Detected"},
        {510, "Not Extended"},
        {511, "Network Authentication Required"},
    };

    for (size_t i = 0; i < ARRAY_LEN(reasons); i++) {
        if (reasons[i].code == code) return reasons[i].reason;
    }
    return "";
}

static void append_decoded(struct buf *out, struct str s) {
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i] == '+' ? ' ' : s.ptr[i];

        if (c == '%' && i + 2 < s.len) {
            int high = str_hex_value((unsigned char)s.ptr[i + 1]);
            int low = str_hex_value((unsigned char)s.ptr[i + 2]);

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

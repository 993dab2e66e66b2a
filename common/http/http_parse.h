/* common/http/http_parse.h - a strict, incremental HTTP/1.1 parser that allocates nothing.
 *
 * One parser for both sides: requests of clients and responses of workers. It looks at each byte
 * once or twice, in whatever pieces the bytes come, and gives the same result for every way of
 * cutting them. Two parts:
 *
 *   head   struct http_head: start line and headers, as offsets into the caller's contiguous bytes
 *          (so the buffer may move while more is received), plus what framing follows from them.
 *   body   struct http_body: finds the payload in a length-delimited, chunked or close-delimited
 *          body; yields spans of the input, so payload is never copied here.
 *
 * Where two readers of one message could disagree about where it ends, the message is refused. This
 * is the whole point: a proxy that guesses lets one request hide inside another. Follows RFC 9110
 * and RFC 9112, and is narrower than they allow where noted here.
 *
 * Refused, with the HTTP code to answer in `refused_code` and a sentence in the error:
 *   400  bare LF or CR, control bytes, NUL, obs-fold, space before a colon, empty header name,
 *        anything but one Host in 1.1 (or two in 1.0) or an empty or malformed one, several
 *        Content-Length even when equal, a length with sign, blank, comma or prefix or too big,
 *        Content-Length beside Transfer-Encoding, Transfer-Encoding twice or on 1.0, a method that
 *        is not upper-case letters, HTTP/0.9, a target that does not begin with '/' (absolute-form:
 *        this is no forward proxy; '*' is accepted for OPTIONS alone), a space, '#' or a byte
 *        outside ASCII in the target, a '.' or '..' segment in its path (percent-encoded or not)
 *   413  a body longer than the limit          414  a request line longer than the limit
 *   417  Expect other than 100-continue        431  a head, or a number of headers or of options
 *                                                    in Connection, over the limit
 *   501  a Transfer-Encoding that is not "chunked", CONNECT
 *   505  a version other than 1.0 and 1.1
 *
 * Accepted on purpose, as in the RFC: empty lines (CRLF, at most 4) before a request
 * line, optional blanks around header values, bytes above 0x7F in values, bodies on any method,
 * chunk extensions (";..." right after the size, printable, at most 256 bytes) which are ignored,
 * trailers (at most 4 KiB, well formed) which are dropped. Pure; any thread. */
#ifndef COMMON_HTTP_HTTP_PARSE_H
#define COMMON_HTTP_HTTP_PARSE_H

#include "common/base/buf.h"
#include "common/base/status.h"

#define HTTP_MAX_HEAD_BYTES         32768u /* start line and headers together */
#define HTTP_MAX_REQUEST_LINE_BYTES 8192u
#define HTTP_MAX_HEADERS            100u
#define HTTP_MAX_CONNECTION_OPTIONS 64u /* empty ones included, of all Connection headers */
#define HTTP_MAX_METHOD_BYTES       16u
#define HTTP_MAX_LEADING_CRLF       4u
#define HTTP_MAX_CHUNK_LINE_BYTES   256u
#define HTTP_MAX_TRAILER_BYTES      4096u
#define HTTP_MAX_BODY_LENGTH        (UINT64_C(1) << 53) /* any length above is nonsense */

enum http_method {
    HTTP_GET,
    HTTP_HEAD,
    HTTP_POST,
    HTTP_PUT,
    HTTP_DELETE,
    HTTP_OPTIONS,
    HTTP_PATCH,
    HTTP_OTHER_METHOD, /* any other upper-case word; see the method string */
};

enum http_framing {
    HTTP_NO_BODY,     /* nothing follows the head */
    HTTP_LENGTH_BODY, /* content_length bytes follow, at least one */
    HTTP_CHUNKED_BODY,
    HTTP_CLOSE_BODY, /* responses only: until the connection closes */
};

struct http_span { /* offsets from the first byte given to the parser */
    uint16_t off, len;
};

/* The meaning of a header, found once when it is parsed, ignoring letter case. The last three are
 * families. */
enum http_name {
    HTTP_NAME_OTHER,
    HTTP_NAME_HOST,
    HTTP_NAME_CONTENT_LENGTH,
    HTTP_NAME_TRANSFER_ENCODING,
    HTTP_NAME_CONNECTION,
    HTTP_NAME_EXPECT,
    HTTP_NAME_CONTENT_TYPE,
    HTTP_NAME_AUTHORIZATION,
    HTTP_NAME_X_API_KEY,
    HTTP_NAME_X_REQUEST_ID,
    HTTP_NAME_VIA,
    HTTP_NAME_HOP,  /* Close, HTTP2-Settings, Keep-Alive, Proxy-*, TE, Trailer, Upgrade */
    HTTP_NAME_WAY,  /* Forwarded, X-Forwarded-*, X-Real-IP: the request's path */
    HTTP_NAME_OURS, /* X-Incipit-* (wire.h) */
    /* Headers of a server to a browser about itself, which are wrong behind a proxy: Alt-Svc,
     * Authentication-Info, Clear-Site-Data, Content-Location, Location, Refresh, Set-Cookie,
     * Strict-Transport-Security, WWW-Authenticate. */
    HTTP_NAME_SITE,
    HTTP_N_NAMES,
};

#define HTTP_NAME_BIT(id) (UINT32_C(1) << (id))

struct http_header {
    struct http_span name, value;
    uint8_t id;     /* enum http_name */
    bool is_option; /* a Connection header names it: it ends at the next hop */
    bool is_plain;  /* its line is name ": " value CR LF: a copy of it needs no tidying */
};

/* A head being parsed, and then the result. Zeroed by the init functions. About 1300 bytes: lend it
 * to a connection only while it has a request. */
struct http_head {
    /* Results; complete once the parse function has returned ST_OK. */
    uint32_t head_len; /* bytes of the head, leading and final empty lines included */
    enum http_method method;
    enum http_framing framing;
    uint64_t content_length;              /* for HTTP_LENGTH_BODY */
    struct http_span method_span, target; /* requests */
    struct http_span path, query;         /* the target before and after the first '?' */
    struct http_span reason;              /* responses */
    uint32_t names;                       /* HTTP_NAME_BIT of each header that is there */
    uint16_t status_code;                 /* responses: 100 to 599 */
    uint16_t n_headers;
    uint8_t minor_version; /* 0 or 1 */
    bool keep_alive;       /* as in the message; the owner may still close */
    bool expects_continue; /* an HTTP/1.1 request with a body waits for "100 Continue" */
    uint16_t
        refused_code; /* when rejected: the code to answer with, 400 .. 505; a client uses 502 */

    /* The parser's own. */
    bool is_response, is_head_answer;
    uint8_t state;
    uint8_t n_host, n_length, n_coding, n_leading, n_options;
    uint8_t n_authorization, n_api_key; /* headers, of a request */
    bool has_close, has_keep_alive;
    bool has_options;   /* a Connection header names other headers */
    bool has_marks;     /* the target has bytes that may begin a query or hide a dot */
    uint32_t pos, mark; /* next byte to look at; start of the current element */
    struct http_span host;
    struct http_header headers[HTTP_MAX_HEADERS];
};

void http_request_init(struct http_head *h);

/* `to_head`: the response to a HEAD request, which has no body. */
void http_response_init(struct http_head *h, bool to_head);

/* Looks at data[0..len): all bytes of this message received so far, from its first byte, at any
 * address. ST_AGAIN: give it again with more at the end. ST_OK: the head is complete, the body (see
 * framing) begins at data + head_len. ST_INVALID: refused; see refused_code; do not continue.
 * A 1xx response is complete like any other, with HTTP_NO_BODY: init again after it for the
 * next. */
MUST_USE enum status http_head_parse(struct http_head *h, const char *data, size_t len,
                                     struct error *err);

static inline struct str http_span_str(struct http_span s, const char *data) {
    return (struct str){data + s.off, s.len};
}

/* The id of a header name, which must be a token. */
enum http_name http_name_of(struct str name);

/* The value of the first header of that name (letter case ignored), or STR_NULL. */
struct str http_head_find(const struct http_head *h, const char *data, struct str name);

/* The same by id; of a family the first of its members. Costs nothing when there is none. */
struct str http_head_get(const struct http_head *h, const char *data, enum http_name id);

/* True when a comma-separated header value has `token` in it (letter case ignored). */
bool http_value_has_token(struct str value, struct str token);

/* The ids that are never forwarded. With what the message's Connection headers name (is_option)
 * these are all that end at the next hop. */
#define HTTP_HOP_BY_HOP                                                                            \
    (HTTP_NAME_BIT(HTTP_NAME_CONNECTION) | HTTP_NAME_BIT(HTTP_NAME_TRANSFER_ENCODING) |            \
     HTTP_NAME_BIT(HTTP_NAME_HOP))

/* Writes the headers that may be forwarded, except ids in `dropped` (HTTP_NAME_BITs), in order,
 * each as name ": " value CR LF. `to` has room for http_kept_max(h) bytes; returns the end of the
 * text. Adjacent lines of `data` are copied together. */
char *http_write_kept(char *to, const struct http_head *h, const char *data, uint32_t dropped);

static inline size_t http_kept_max(const struct http_head *h) {
    return h->head_len + (size_t)h->n_headers; /* a blank may be missing behind each colon */
}

/* --- body ----------------------------------------------------------------------------------- */

struct http_body {
    enum http_framing framing;
    uint8_t state;
    uint8_t n_digits;
    uint32_t n_line_bytes;  /* of the current chunk line, or of the trailers so far */
    uint64_t remaining;     /* of the body or of the current chunk */
    uint64_t payload_bytes; /* found so far */
    uint64_t limit;         /* most payload; 0: none */
    uint16_t refused_code;  /* 400 or 413 */
};

/* For the body that follows `h`. `limit` 0: none. A known length above the limit is refused by the
 * first http_body_next. */
void http_body_init(struct http_body *b, const struct http_head *h, uint64_t limit);

/* Looks at the next bytes, in[0..n). Sets *used to how many were taken and *payload to the span of
 * `in` that is payload (may be empty). ST_AGAIN: give it in + *used next; call again while n > 0.
 * ST_OK: *used bytes, and the body, are complete; what follows belongs to the next message.
 * ST_INVALID, ST_TOO_LARGE: refused; do not continue. */
MUST_USE enum status http_body_next(struct http_body *b, const char *in, size_t n, size_t *used,
                                    struct str *payload, struct error *err);

/* The stream ended here: ST_OK when the body may end so (HTTP_CLOSE_BODY), else ST_CLOSED. */
MUST_USE enum status http_body_eof(struct http_body *b, struct error *err);

/* --- small shared things ---------------------------------------------------------------------- */

const char *http_method_name(enum http_method m); /* "GET"; "" for HTTP_OTHER_METHOD */
enum http_method http_method_of(struct str name);
const char *http_reason(int code); /* "Not Found", as IANA has it; "" for a code that it has not */

/* Decodes %XX and '+' of a query parameter into `out`. False: no such parameter. A broken escape is
 * kept as it is. */
bool http_query_param(struct str query, struct str name, struct buf *out);

/* Letters, digits and !#$%&'*+-.^_`|~, at least one. */
bool http_is_token(struct str s);

#endif

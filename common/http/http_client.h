/* common/http/http_client.h - control-plane HTTP calls through libcurl, on a loop.
 *
 * For probes, scrapes and the Kubernetes API: a few calls a second. Requests of clients never use
 * it. Only http and https, no redirects; never blocks the loop. A call has a timeout and a limit on
 * the response. A *stream*, which may last for hours, receives its response in pieces and ends when
 * the peer is silent for too long. */
#ifndef COMMON_HTTP_HTTP_CLIENT_H
#define COMMON_HTTP_HTTP_CLIENT_H

#include "common/base/buf.h"
#include "common/base/status.h"

struct loop;
struct http_client;
struct http_call;

MUST_USE enum status http_client_create(struct http_client **out, struct loop *loop,
                                        struct error *err);

/* Calls in flight are dropped; their callbacks are not called. NULL is fine. */
void http_client_destroy(struct http_client *client);

/* For https:// calls from now on; without, the system's authorities and no certificate. Paths are
 * borrowed, and read again for each connection; PEM text that is given stands in their place. */
struct http_client_trust {
    const char *ca;                       /* PEM file or hashed folder; NULL: the system's */
    const char *cert, *key;               /* shown to servers that ask; NULL: none */
    struct str ca_pem, cert_pem, key_pem; /* borrowed */
    bool is_insecure;                     /* accept any certificate */
};
void http_client_trust(struct http_client *client, const struct http_client_trust *trust);

/* A header for every request from now on, "name: value"; copied. NULL: none. */
void http_client_header(struct http_client *client, const char *line);

#define HTTP_CLIENT_MAX_BODY_BYTES (1u << 20) /* when the request names no limit */

/* A piece of a stream's body, of an answer with `code`, on the loop; it may start and cancel calls,
 * this one too. Pieces end anywhere. */
typedef void http_client_data_fn(int code, struct str bytes, void *arg);

struct http_client_request {
    const char *method;     /* NULL: GET, or POST when there is a body */
    const char *url;        /* http:// or https:// */
    const char *connect_to; /* "10.0.0.7:80": there, whatever the URL's name resolves to; or NULL */
    const char *const *headers;  /* "name: value" ..., NULL at the end; may be NULL */
    struct str body;             /* copied */
    uint32_t timeout_ms;         /* the whole call; 0: 5000 */
    uint32_t connect_timeout_ms; /* 0: 250; the whole call for https, whose handshake counts in */
    size_t max_body_bytes;       /* 0: HTTP_CLIENT_MAX_BODY_BYTES */
    bool is_sent_once; /* over a new connection: on one in use the library sends a request again
                          * that the server dropped */
    bool is_probed;    /* by the kernel, if it opens a connection that streams may use later */

    /* Not NULL: a stream. The answer has no body at its end, max_body_bytes bounds one piece, and
     * timeout_ms 0 is no limit. */
    http_client_data_fn *on_data;
    uint32_t silence_ms; /* of a stream: ST_TIMEOUT after so long without a byte; 0: never */
};

struct http_client_response {
    enum status status; /* ST_OK: an answer with any code came. ST_TIMEOUT, ST_TOO_LARGE, ST_IO */
    int code;           /* 200 ... */
    struct str content_type, body; /* valid during the callback */
    uint64_t elapsed_us;
    uint32_t retry_after_s; /* of a Retry-After header; 0: none */
    bool was_sent;          /* the server had the request, or a part of it */
    const char *message;    /* when not ST_OK: what failed, for a person */
};

typedef void http_client_fn(const struct http_client_response *response, void *arg);

/* Starts a call; `fn` is called exactly once on the loop, never before this returns, unless the
 * call is cancelled; a stream's after its last piece. *call (may be NULL) is valid until then.
 * ST_INVALID: the request is malformed. */
MUST_USE enum status http_client_start(struct http_client *client,
                                       const struct http_client_request *request,
                                       http_client_fn *fn, void *arg, struct http_call **call,
                                       struct error *err);

/* A paused stream is not read: its sender is blocked in turn, which does not count as silence. At
 * most one more piece is delivered. */
void http_call_pause(struct http_call *call, bool is_held);

void http_call_cancel(struct http_call *call); /* `fn` is not called. NULL is fine */

/* The status code of the response; 0 before its head. For streams that are silent by nature. */
int http_call_code(const struct http_call *call);

#endif

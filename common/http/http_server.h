/* common/http/http_server.h - HTTP/1.1 listeners, requests and answers on one loop.
 *
 * One server belongs to one loop; a process with several loops has several servers on one port
 * (SO_REUSEPORT). A request reaches the handler when its head and its whole body are there; the
 * handler answers now, or keeps the request and answers later, whole or as a stream.
 *
 *      accepted -> idle -> head -> body -> [ answering ] -> idle ...        one request at a time:
 *                   |       |       |           |                           pipelined ones wait in
 *                   +-------+-------+-----------+-> lingering -> closed     the input buffer
 *
 * A request is valid from on_request until its answer ends (http_reply, http_reply_error,
 * http_stream_end, http_raw_end) or on_abort has been called; each request ends in exactly one of
 * the two ways. Its strings point into the connection's input and are valid as long. Calls never
 * re-enter: neither on_abort nor on_drain is called from inside an answer function.
 *
 * Everything an answer writes in one turn of the loop leaves in one send, at the end of the turn,
 * or when a raw answer is flushed. A keep-alive request that arrives in one piece costs one recv
 * and one send.
 *
 * A listener with TLS begins each connection with a handshake. Plain HTTP on it is answered with a
 * 400.
 *
 * The memory of requests is bounded singly, by max_body_bytes, and in total, by a budget that the
 * servers of a process share (body_budget.h): a long body waits unread, and is refused with 503
 * after too long. When all connections are taken, idle ones are closed for new ones
 * (http_places.c). What the server itself refuses or closes is counted by reason, and logged once a
 * second at most (http_server_report).
 *
 * LIMITS. No HTTP/2; an upgrade ends the connection here. A request body is always buffered whole,
 * up to max_body_bytes.
 * While a request is answered its client's disconnect is noticed unless that client has pipelined
 * more than 64 KiB. A client that closes its sending side counts as gone. */
#ifndef COMMON_HTTP_HTTP_SERVER_H
#define COMMON_HTTP_HTTP_SERVER_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/http/http_parse.h"

struct body_budget;
struct log;
struct loop;
struct metrics;
struct http_server;
struct http_request;
struct tls;

struct http_limits {               /* zero picks the default in brackets */
    uint32_t max_connections;      /* [16384]; above: an idle one is closed, or accepting pauses */
    uint64_t max_body_bytes;       /* [32 MiB]; above: 413 */
    uint32_t handshake_timeout_ms; /* [5000] of TLS; then closed */
    uint32_t head_timeout_ms;      /* [10000] first byte to complete head; above: 408. And of a new
                                      * connection to its first byte; then closed silently */
    uint32_t body_grace_ms;        /* [10000] in each such period the body must come at ... */
    uint32_t body_min_bytes_per_s; /* [1024] ... this mean rate; below: 408 */
    uint32_t body_wait_ms;         /* [10000] a body waits for memory; then 503 */
    uint32_t idle_timeout_ms;      /* [75000] between requests; then closed silently */
    uint32_t write_stall_timeout_ms; /* [60000] the client takes no byte for so long: aborted */
    uint32_t
        max_requests_per_connection; /* [0: unlimited]; the last answer has "connection: close" */
    struct body_budget *budget;      /* outlives the server; NULL: bodies have no bound in total */
};

struct http_server_events {
    /* A request is there. Answer or keep it. */
    void (*on_request)(struct http_request *req, void *arg);
    /* Optional: the head is there, the body is not (nor req->body). Not ST_OK: that error is
     * answered and the connection closed before the body is read. For keys and early limits. */
    enum status (*on_head)(struct http_request *req, void *arg, struct error *err);
};

struct http_server_stats {
    uint64_t connections_total, requests_total;
    uint64_t refused_total;           /* by the server itself, whatever the reason */
    uint64_t timeouts_total;          /* closed by a timeout other than idle */
    uint64_t handshakes_failed_total; /* timeouts included */
    uint64_t aborted_total;           /* clients that left before the end of their answer */
    uint32_t open_connections, open_requests;
};

/* Copies limits and events; either's zero fields mean the defaults. */
struct http_server *http_server_create(struct loop *loop, const struct http_limits *limits,
                                       const struct http_server_events *events, void *arg);

/* Limits for what comes from now on: max_connections, max_body_bytes, head_timeout_ms and
 * idle_timeout_ms, zero as above; the other limits stay. Open connections above max_connections
 * stay until they are idle and room is wanted. */
void http_server_set_limits(struct http_server *server, const struct http_limits *limits);

/* Where the server counts, and where it writes: rows of http_metrics.h from id `first` on, under
 * this name of its port. Before it listens. */
struct http_report {
    struct metrics *metrics; /* NULL: nowhere */
    uint32_t first;
    struct log *log; /* NULL: nowhere */
    const char *port;
};
void http_server_report(struct http_server *server, const struct http_report *report);

/* Closes all connections; on_abort is called for open requests. NULL is fine. Not from inside one
 * of its callbacks. */
void http_server_destroy(struct http_server *server);

/* Listens on a numeric address ("127.0.0.1", "::1", "0.0.0.0"). port 0: the system picks, see
 * http_server_port. `share`: SO_REUSEPORT, one socket per loop. May be called for several
 * addresses. ST_IO: "port 30000 is in use: choose another", before which the caller puts its
 * options' names; ST_INVALID: the address is not one. */
MUST_USE enum status http_server_listen(struct http_server *server, const char *host, uint16_t port,
                                        bool share, struct error *err);
/* The same with TLS; tls NULL: without. */
MUST_USE enum status http_server_listen_tls(struct http_server *server, struct tls *tls,
                                            const char *host, uint16_t port, bool share,
                                            struct error *err);
/* The same on a socket that listens already and does not block, e.g. one that another process has
 * handed over; takes it. */
void http_server_take_socket(struct http_server *server, struct tls *tls, int fd);

uint16_t http_server_port(const struct http_server *server); /* of the first listener */

/* Its sockets, at most `max`, which stay its own; returns how many. */
uint32_t http_server_sockets(const struct http_server *server, int *fds, uint32_t max);

/* Closes the listeners; connections continue. Pending ones are left to other owners of the
 * socket. */
void http_server_leave_sockets(struct http_server *server);

/* Every answer from now on has "connection: close", and its connection ends with it. New
 * connections are still accepted, until balancers have noticed the drain. */
void http_server_announce_close(struct http_server *server);

/* Stops listening after accepting all pending connections; announces the close, and ends each
 * connection with its next answer, or once it has been idle for idle_us since the announcement. So
 * a request is lost only if it meets the FIN on its way, after its client was silent for so long;
 * received requests are answered. 0: idle connections are closed now, and each other one with its
 * open answer. on_drained (optional) is called on the loop, once, when the last connection is gone.
 * A second call may shorten idle_us. */
void http_server_drain_idle(struct http_server *server, uint64_t idle_us,
                            void (*on_drained)(void *arg), void *arg);
void http_server_drain(struct http_server *server, void (*on_drained)(void *arg),
                       void *arg); /* 0 */

/* True while an answer is not completely sent. */
bool http_server_is_sending(const struct http_server *server);

struct http_server_stats http_server_stats(const struct http_server *server);

/* --- the request ---------------------------------------------------------------------------- */

struct http_request {
    /* Read only. */
    enum http_method method;
    uint8_t minor_version;
    uint16_t n_headers;
    struct str method_name; /* "POST" */
    struct str target;      /* "/v1/models?x=1", as sent */
    struct str path, query; /* "/v1/models", "x=1" */
    struct str body;        /* contiguous, decoded; "" when none */
    uint64_t received_us;   /* loop time when the head was complete */

    uint64_t
        owner; /* set by the handler in on_head: second owner of the body, beside its address; 0:
                * none */

    /* The handler's, set in on_request; all optional. */
    void *user;
    /* The client is gone or too slow; the request ends with this call: answer nothing. */
    void (*on_abort)(struct http_request *req);
    /* http_pending_bytes was above CONN_LOW_WATER_BYTES and has fallen to it. */
    void (*on_drain)(struct http_request *req);
};

struct http_field {
    struct str name, value;
};

struct http_field http_request_header_at(const struct http_request *req, uint16_t i);
struct str http_request_header(const struct http_request *req, struct str name); /* or STR_NULL */
const struct http_head *http_request_head(const struct http_request *req); /* parsed head ... */
const char *http_request_head_bytes(const struct http_request *req);       /* ... and its bytes */
struct loop *http_request_loop(const struct http_request *req);
bool http_request_is_tls(const struct http_request *req);

/* "10.0.0.7", of at most HTTP_ADDRESS_MAX - 1 bytes. */
#define HTTP_ADDRESS_MAX 48
struct str http_request_client(const struct http_request *req);

/* --- answering whole -------------------------------------------------------------------------- */

/* Adds a header to the answer that is about to be made; before http_reply or http_stream_begin.
 * Name and value are ours, not a peer's: a byte that would break the head is an assertion. */
void http_add_header(struct http_request *req, struct str name, struct str value);

/* The whole answer; ends the request. content_type NULL: none. HEAD is answered without the
 * body. */
void http_reply(struct http_request *req, int code, const char *content_type, struct str body);

/* Replies with the error in the form of the path's API (api.h), with the code of `st`; ends the
 * request. err NULL: the status's name. */
void http_reply_error(struct http_request *req, enum status st, const struct error *err);

/* --- answering as a stream -------------------------------------------------------------------- */

/* Sends the head. The body is chunked for HTTP/1.1, ended by closing for 1.0. */
void http_stream_begin(struct http_request *req, int code, const char *content_type);
void http_stream_write(struct http_request *req, struct str bytes); /* one chunk; "" is ignored */

/* "data: <json>\n\n". `json` has no line break in it. Begin with content type HTTP_SSE. */
#define HTTP_SSE "text/event-stream; charset=utf-8"
void http_sse_event(struct http_request *req, struct str json);

void http_stream_end(struct http_request *req); /* ends the request */

/* Ends the request by closing the connection without a proper end of the body, so that the client
 * cannot take it for complete. */
void http_stream_break(struct http_request *req);

/* --- answering raw: the caller supplies every byte of the response (the proxy) ---------------- */

/* Head included. The caller announces keep_alive: http_wants_close returns whether
 * "connection: close" is due. */
void http_raw_write(struct http_request *req, struct str bytes);
void http_raw_writev(struct http_request *req, const struct str *pieces, int n);
void http_raw_chunk(struct http_request *req, struct str payload); /* framed; "" is ignored */
void http_raw_flush(
    struct http_request *req); /* sends now: what was written is in the cache still */
void http_raw_end(struct http_request *req, bool keep_alive); /* flushes, ends the request */
bool http_wants_close(const struct http_request *req);

/* --- leaving HTTP ----------------------------------------------------------------------------- */

/* Sends the head of a 101, and hands the connection over: its socket, which does not block, is the
 * caller's, and the request has ended. On failure the request is still to be answered:
 * ST_UNSUPPORTED over TLS, whose state stays here; ST_INVALID when the client has sent more than
 * its request; ST_IO without a descriptor for it. *fd is -1 when
 * the client has left. */
MUST_USE enum status http_request_take_socket(struct http_request *req, struct str head, int *fd,
                                              struct error *err);

/* --- flow ------------------------------------------------------------------------------------- */

size_t http_pending_bytes(const struct http_request *req); /* written and not taken by the kernel */

/* --- routes ----------------------------------------------------------------------------------- */

/* A table of handlers. A path that ends in '*' stands for all that begin like it and are longer.
 * The last row has path NULL. */
struct http_route {
    enum http_method method; /* HTTP_GET also serves HEAD */
    const char *path;
    void (*handler)(struct http_request *req, void *arg);
};

/* Is there a row for it? OPTIONS has none of its own. */
bool http_route_serves(const struct http_route *routes, const struct http_request *req);

/* Calls the handler of the row with this method and path. Answers 404, or 405 with Allow (and
 * OPTIONS with 204), itself. */
void http_route_request(const struct http_route *routes, struct http_request *req, void *arg);

/* True for a request from a web page of another origin, or of a name that its owner may point at
 * this machine: browsers on the server's machine send such requests to loopback, with an Origin
 * header. */
bool http_is_from_another_page(const struct http_request *req);

#endif

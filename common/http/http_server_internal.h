/* common/http/http_server_internal.h - shared by the files of the HTTP server.
 *
 *   http_server.c   listeners, the lists of connections, timeouts, draining
 *   http_peer.c     one connection: its input becomes requests, one after the other
 *   http_memory.c   memory of unanswered requests, and their least speed
 *   http_places.c   closes connections when all are taken
 *   http_report.c   counts by reason, and lines in the log
 *   http_reply.c    the answer: whole, streamed or raw
 *   http_route.c    the table of paths
 *
 * A connection's state is the list of the server it is on; peer_set_state moves it. */
#ifndef COMMON_HTTP_HTTP_SERVER_INTERNAL_H
#define COMMON_HTTP_HTTP_SERVER_INTERNAL_H

#include "common/base/list.h"
#include "common/base/map.h"
#include "common/http/body_budget.h"
#include "common/http/http_server.h"
#include "common/net/conn.h"
#include "common/net/loop.h"

enum peer_state {
    PEER_HANDSHAKE, /* TLS is being agreed on */
    PEER_NEW,       /* nothing has come yet */
    PEER_IDLE,      /* between requests */
    PEER_HEAD,      /* a head is coming */
    PEER_BODY,      /* a body is coming */
    PEER_ANSWERING, /* the handler has the request */
    PEER_FLUSHING,  /* the last answer is made, not all of it sent */
    PEER_LINGERING, /* all sent, our side shut: what still comes is read and dropped */
    PEER_N_STATES,
    PEER_GONE = PEER_N_STATES, /* on no list: closed, freed at the end of the turn */
};

enum answer_state { ANSWER_NONE, ANSWER_STREAM, ANSWER_RAW };

/* Why the server itself refuses a request. */
enum http_refusal {
    HTTP_MALFORMED,
    HTTP_TOO_LARGE,
    HTTP_DENIED, /* by on_head */
    HTTP_HEAD_TIMEOUT,
    HTTP_BODY_TIMEOUT,
    HTTP_BODY_MEMORY, /* none for its body within the wait */
    HTTP_BODY_SLOW,   /* while others waited for memory */
    HTTP_N_REFUSALS,
};

/* Why it closes a connection without an answer. */
enum http_closing {
    HTTP_CLOSED_IDLE,
    HTTP_CLOSED_SILENT, /* never sent a byte */
    HTTP_CLOSED_ROOM,   /* for a new one */
    HTTP_CLOSED_STALLED,
    HTTP_N_CLOSINGS,
};

enum http_pause { HTTP_PAUSE_CONNECTIONS, HTTP_PAUSE_DESCRIPTORS, HTTP_N_PAUSES };

#define PACE_UNKNOWN UINT64_MAX

struct peer;

/* A request and all it needs; lent to a connection while it has one. */
struct exchange {
    struct http_request req; /* first: exchange_of */
    struct list link;        /* in the server's spares, or among those that wait for memory */
    struct peer *peer;
    struct http_head head;
    struct http_body body;
    size_t body_len;   /* decoded so far, right behind the head */
    size_t total_len;  /* of the input that is this request's, once complete */
    struct buf fields; /* of http_add_header */
    uint8_t answer;    /* enum answer_state */
    bool is_chunked;   /* the answer's body */
    bool is_refused;   /* the rest of the input cannot be used: close */
    bool is_whole;     /* all of it has come */
    /* http_memory.c: what it holds of the budget, and how it comes. */
    uint32_t pooled_bytes;
    struct body_claim claim;
    uint64_t came_bytes;              /* as sent, framing included */
    uint64_t wait_us;                 /* since when its claim waits */
    uint64_t period_us, period_bytes; /* of the progress rule: began, had come then */
    uint64_t sample_us, sample_bytes; /* of the pace */
    uint64_t pace;                    /* bytes per second; PACE_UNKNOWN */
};

/* Of this server's connections; one per address. */
struct client_address {
    uint64_t id; /* its hash, never 0 */
    uint32_t n_connections;
};

/* One client connection. */
struct peer {
    struct conn conn;
    struct list link;
    struct http_server *server;
    struct client_address *address;
    struct exchange *exchange; /* NULL while idle */
    struct loop_task task;     /* go on with pipelined input, or free */
    uint64_t since_us;         /* in this state */
    uint64_t stall_since_us;
    union {
        uint64_t seen_sent_bytes; /* by the last look for a stall */
        uint64_t dropped_bytes;   /* while lingering */
    };
    uint32_t n_requests;
    uint8_t state;
    bool is_advancing;
    bool has_long_rest; /* of the request that ends the connection: it is not read */
    uint8_t client_len;
    char client[]; /* its address, as text */
};

struct listener;
struct metric;

struct server_count {
    struct metric *metric; /* NULL: not shown */
    uint64_t n_unwritten, line_us;
};

struct server_report {
    struct log *log;
    const char *port;
    struct metric *open, *accepted, *handshakes, *waits; /* NULL: not shown */
    struct server_count refusals[HTTP_N_REFUSALS], closings[HTTP_N_CLOSINGS], pauses[HTTP_N_PAUSES];
};

struct http_server {
    struct loop *loop;
    struct http_limits limits;
    struct http_server_events events;
    void *arg;
    struct list peers[PEER_N_STATES]; /* each in order of since_us */
    struct list spares;               /* exchanges not in use */
    struct list listeners;
    struct list waiting;    /* exchanges with a waiting claim */
    struct body_pool *pool; /* NULL: without a budget */
    struct map addresses;   /* struct client_address */
    struct server_report report;
    struct loop_timer sweep, pulse;
    struct loop_task drained;
    void (*on_drained)(void *arg);
    void *drained_arg;
    struct http_server_stats stats;
    struct buf scratch; /* heads of answers */
    uint64_t sweep_us;
    uint64_t announced_us;  /* when is_closing was set */
    uint64_t drain_idle_us; /* is_draining: an idle connection is kept for so long; 0: not at all */
    uint64_t date_at_us;
    uint32_t n_spares, n_lingering;
    char date[32];
    bool is_closing; /* answers end their connections */
    bool is_draining, is_full;
};

/* http_server.c */
void server_peer_gone(struct http_server *server);  /* a place is free */
void server_has_room(struct http_server *server);   /* or may be made free */
struct str server_date(struct http_server *server); /* "Sun, 06 Nov 1994 08:49:37 GMT" */
struct exchange *server_lend_exchange(struct http_server *server);
void server_take_back(struct http_server *server, struct exchange *x);

/* http_peer.c */
void peer_open(struct http_server *server, struct tls *tls, int fd,
               const struct sockaddr_storage *addr);
void peer_set_state(struct peer *p, enum peer_state state);
void peer_abort(struct peer *p);     /* on_abort for what is open, then closes with a reset */
void peer_timed_out(struct peer *p); /* 408 where an answer is possible, then closes */
void peer_end(struct peer *p);       /* once all is sent that is queued */
void peer_close(struct peer *p);     /* at once; frees at the end of the turn */
void peer_check_stall(struct peer *p, uint64_t now_us);
void peer_go_on(struct peer *p); /* its input may be looked at again */
void peer_refuse(struct peer *p, int code, enum http_refusal why, const struct error *err);

/* The answer is made: the next request, or the end of the connection. */
void exchange_end(struct exchange *x, bool keep_alive);

_Static_assert(offsetof(struct exchange, req) == 0, "exchange_of casts");
static inline struct exchange *exchange_of(const struct http_request *req) {
    return (struct exchange *)(uintptr_t)req; /* const is for the handler, not for the server */
}

/* http_memory.c */
void memory_begin(struct exchange *x); /* its body begins to come */
/* Pays for what has come of p's request. False: it is refused, and gone, or has to wait. */
bool memory_hold(struct peer *p, bool is_whole);
/* Sets the owner from the head; short requests may have been paid for before. */
void memory_owner(struct exchange *x);
void memory_release(struct exchange *x);
void memory_sweep(struct http_server *server); /* refuses bodies that come too slowly */
void memory_pulse(void *server);

/* http_places.c */
void places_enter(struct peer *p, const struct sockaddr_storage *addr);
void places_leave(struct peer *p);
bool places_make_room(struct http_server *server); /* false: none can be closed */

/* http_report.c */
void report_opened(struct http_server *server);
void report_gone(struct http_server *server);
void report_refused(struct http_server *server, enum http_refusal why, const struct peer *p,
                    const struct error *err);
void report_closed(struct http_server *server, enum http_closing why, const struct peer *p);
void report_pause(struct http_server *server, enum http_pause why);
void report_handshake_failed(struct http_server *server);
void report_wait(struct http_server *server);

/* http_reply.c: an error of the server's own, with a code that no status has (408, 414, 431
 * ...). */
void reply_refusal(struct exchange *x, int code, const struct error *err);

#endif

/* common/http_server_internal.h - what the files of the HTTP server share.
 *
 *   http_server.c   listeners, the lists of connections, timeouts, draining
 *   http_peer.c     one connection: its input becomes requests, one after the other
 *   http_reply.c    the answer: whole, streamed or raw
 *   http_route.c    the table of paths
 *
 * A connection's state is the list of the server it is on, and peer_set_state moves it. */
#ifndef COMMON_HTTP_SERVER_INTERNAL_H
#define COMMON_HTTP_SERVER_INTERNAL_H

#include "common/conn.h"
#include "common/http_server.h"
#include "common/list.h"
#include "common/loop.h"

enum peer_state {
    PEER_HANDSHAKE, /* TLS is being agreed on */
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

struct peer;

/* A request and all it needs; lent to a connection while it has one. */
struct exchange {
    struct http_request req; /* first: exchange_of */
    struct list link;        /* in the server's spares */
    struct peer *peer;
    struct http_head head;
    struct http_body body;
    size_t body_len;   /* decoded so far, right behind the head */
    size_t total_len;  /* of the input that is this request's, once complete */
    struct buf fields; /* of http_add_header */
    uint8_t answer;    /* enum answer_state */
    bool is_chunked;   /* the answer's body */
    bool is_refused;   /* the rest of the input cannot be used: close */
};

/* One client connection. */
struct peer {
    struct conn conn;
    struct list link;
    struct http_server *server;
    struct exchange *exchange; /* NULL while idle */
    struct loop_task task;     /* go on with pipelined input, or free */
    uint64_t since_us;         /* in this state */
    uint64_t stall_since_us, seen_sent_bytes;
    uint32_t n_requests;
    uint8_t state;
    bool is_advancing;
    uint8_t client_len;
    char client[]; /* its address, as text */
};

struct listener;

struct http_server {
    struct loop *loop;
    struct http_limits limits;
    struct http_server_events events;
    void *arg;
    struct list peers[PEER_N_STATES]; /* each in order of since_us */
    struct list spares;               /* exchanges not in use */
    struct list listeners;
    struct loop_timer sweep;
    struct loop_task drained;
    void (*on_drained)(void *arg);
    void *drained_arg;
    struct http_server_stats stats;
    struct buf scratch; /* heads of answers */
    uint64_t sweep_us;
    uint64_t announced_us;  /* when is_closing was set */
    uint64_t drain_idle_us; /* is_draining: an idle connection is kept for so long; 0: not at all */
    uint64_t date_at_us;
    uint32_t n_spares;
    char date[32];
    bool is_closing; /* answers end their connections */
    bool is_draining, is_full;
};

/* http_server.c */
void server_peer_gone(struct http_server *server);  /* a place is free */
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

/* The answer is made: the next request, or the end of the connection. */
void exchange_end(struct exchange *x, bool keep_alive);

_Static_assert(offsetof(struct exchange, req) == 0, "exchange_of casts");
static inline struct exchange *exchange_of(const struct http_request *req) {
    return (struct exchange *)(uintptr_t)req; /* const is for the handler, not for the server */
}

/* http_reply.c: an error of the server's own, with a code that no status has (408, 414, 431 ...). */
void reply_refusal(struct exchange *x, int code, const struct error *err);

#endif

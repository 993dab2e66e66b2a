/* tests/support/api_server_internal.h - what the files of the scripted API server share.
 *
 *      api_server.c    connections: TLS, bytes in, bytes out at the pace and in the pieces wanted
 *      api_answers.c   a request, and who answers it
 *      api_lists.c     lists and watches
 *      api_discovery.c what there is
 *      api_control.c   the test's commands
 *      api_store.c     what it holds */
#ifndef TESTS_SUPPORT_API_SERVER_INTERNAL_H
#define TESTS_SUPPORT_API_SERVER_INTERNAL_H

#include <openssl/ssl.h>

#include "common/base/list.h"
#include "common/base/rng.h"
#include "common/net/loop.h"
#include "tests/support/api_server.h"
#include "tests/support/api_store.h"
#include "tests/support/certs.h"

enum api_accept { API_SERVE, API_RESET, API_STALL, API_CLOSE };
enum api_then { API_KEEP, API_THEN_CLOSE, API_THEN_RESET };

#define API_MAX_SNAPSHOTS 16
#define API_MAX_CALLS     4096

struct api_knobs {
    uint32_t chunk_bytes, record_bytes;
    bool is_ragged;   /* pieces of random sizes up to those */
    uint32_t drip_us; /* between two pieces */
    uint32_t bookmark_ms, bookmark_before_end_ms;
    uint32_t max_watch_ms;       /* watches end so early; 0: when they want to */
    bool limits_cached_lists;    /* `limit` counts with resourceVersion=0 too: servers do not */
    bool serves_deletes_at_once; /* DELETE of clients needs no kubelet */
    bool serves_old_pools_only;  /* as a cluster of before their v1 */
};

struct api_snapshot { /* what is left of a list that goes on */
    uint64_t id, rv;
    struct api_object **objects;
    uint32_t n, at;
};

struct api_server {
    struct loop *loop;
    struct loop_fd listener; /* .fd -1: refuses */
    uint16_t port;
    bool is_plain;
    struct certs certs, next_certs;
    bool has_next_certs;
    SSL_CTX *tls;
    struct list conns;
    struct api_store store;
    struct api_knobs knobs;
    enum api_accept accept;
    cJSON *tokens;    /* array of strings */
    cJSON *rules;     /* of "answer", in order */
    cJSON *forbidden; /* "list pods" */
    cJSON *calls;
    struct api_snapshot snapshots[API_MAX_SNAPSHOTS];
    uint64_t n_snapshots;
    struct rng rng;
    struct {
        uint64_t connections, handshakes, requests, lists, watches, events, bookmarks, unauthorized;
        uint32_t open_connections, open_watches;
    } stats;
};

struct api_conn {
    struct list link;
    struct api_server *server;
    struct loop_fd watch;
    struct loop_task reap;
    SSL *ssl;
    bool is_shaken, is_watching, is_stalled, is_held, is_answering, is_chunked;
    enum api_then then; /* when all is out */
    struct buf in, out;
    size_t retry_bytes;           /* TLS wants the same bytes again */
    struct loop_timer pace, late; /* between pieces; an answer that waits */
    struct api_selection selection;
    uint64_t rv; /* the watch has received all up to here */
    bool wants_bookmarks;
    struct loop_timer end, bookmark;
};

struct api_request {
    struct str method, path, query, token, body;
    bool is_watch;
    const char *verb;
    struct api_selection selection;
    char name[256], sub[32]; /* of one object, and its subresource */
    char rv[32], continues[64];
    uint32_t limit, timeout_s;
    bool wants_bookmarks, wants_initial_events;
};

/* api_server.c */
bool api_server_listen(struct api_server *a, bool on);
void api_server_load_certificate(struct api_server *a, const struct certs *certs);
void api_conn_send(struct api_conn *c);               /* what is queued, as far as it goes */
void api_conn_end(struct api_conn *c, bool is_reset); /* at once, and without close_notify */

/* api_answers.c */
void api_answer(struct api_conn *c, struct api_request *r);

/* api_discovery.c: all paths that are no collection. */
void api_answer_other(struct api_conn *c, const struct api_request *r);

/* api_lists.c */
void api_answer_list(struct api_conn *c, const struct api_request *r);
void api_answer_watch(struct api_conn *c, const struct api_request *r);
void api_answer_status(struct api_conn *c, int code, const char *reason, const char *message,
                       const char *cause, int retry_after_s);
void api_body(struct api_conn *c, int code, const char *headers, struct str body);
void api_chunk(struct api_conn *c, struct str bytes); /* in pieces of chunk_bytes */
void api_event(struct api_conn *c, const char *type, struct str object);
void api_watch_send(struct api_conn *c); /* the changes it has not received */
void api_watch_bookmark(struct api_conn *c);
void api_watch_gone(struct api_conn *c);
void api_watch_end(struct api_conn *c); /* in order */
void api_notify_all(struct api_server *a);
void api_snapshots_forget(struct api_server *a);

#endif

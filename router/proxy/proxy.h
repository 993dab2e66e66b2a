/* router/proxy/proxy.h - forwards clients' requests to workers, and the answers back.
 *
 * One proxy per router loop. proxy_start takes a POST whose body is complete: it is scanned, hashed
 * and routed, sent to a worker, retried on others if that fails, and answered. Or it takes GET or
 * DELETE of a stored response (forward_stored_id), which one worker alone can answer.
 * exchange.h draws the states. A worker's head is kept back until the first byte of its body, so
 * that a worker lost in between can be replaced without the client noticing. */
#ifndef ROUTER_PROXY_PROXY_H
#define ROUTER_PROXY_PROXY_H

#include "common/base/base.h"
#include "common/http/http_server.h"
#include "router/prompt/client_noise.h"
#include "router/prompt/session_name.h"

struct decision_log;
struct forward;
struct isolation;
struct keys;
struct log;
struct loop;
struct metrics;
struct poison;
struct proxy;
struct refusals;
struct registry;
struct tls;

struct proxy_config {
    uint32_t prefix_block_bytes;
    uint32_t max_prefix_blocks;      /* prompts are compared up to these */
    uint64_t hash_secret;            /* --prefix-hash-seed: equal on replicas */
    uint64_t origin, scheme;         /* of x-incipit-chain; origin 0: it is not sent */
    uint64_t queue_timeout_us;       /* of a request that waits for a worker */
    uint64_t session_timeout_us;     /* of one that waits for its session */
    bool joins_sessions;             /* and whole sessions may wait: router/sessions */
    bool holds;                      /* requests wait for a backlog too: hold.h */
    uint64_t request_timeout_us;     /* whole exchange */
    uint64_t first_byte_timeout_us;  /* of an attempt; 0: none */
    uint64_t stream_idle_timeout_us; /* between two bytes of a stream; 0: none */
    uint64_t keepalive_us;           /* then a silent stream's client gets a comment; 0: none */
    struct refusals *refusals;       /* shared by all loops; NULL: they are not counted */
    struct poison *poison;           /* shared by all loops; NULL: none is remembered */
    uint64_t connect_timeout_us;
    uint64_t upstream_idle_us; /* idle connections to workers are closed after it */
    struct tls *worker_tls;    /* for workers with https:// */
    uint32_t max_workers;
    uint32_t max_attempts;                  /* the first included */
    uint32_t never_retried;                 /* RETRY_ bits of failures that are not retried */
    enum client_noise_rule noise_rule;      /* what is cut from bodies */
    bool expose_worker_headers;             /* relay x-incipit-* of workers */
    bool forward_authorization;             /* send the client's key on to workers */
    struct str worker_key;                  /* sent to workers instead; "" for none */
    uint32_t log_rate;                      /* request lines per second and loop at most */
    uint32_t log_every;                     /* one request in so many has a line; 0: none */
    struct decision_log *decisions;         /* NULL: not kept */
    struct keys *keys;                      /* NULL: none is needed */
    const struct forward *forward;          /* added paths and fields; NULL: none */
    struct keys *admin_keys;                /* for explanations; NULL: none */
    bool explains_to_clients;               /* without an admin key */
    const char *name;                       /* this router's, in Via; NULL: none */
    struct session_headers session_headers; /* none unless the policy wants them */
    const struct isolation *isolation;      /* NULL: tenants share caches */
    const char *tenant_header; /* names the tenant of a request without a key; NULL: none does */
};

struct proxy *proxy_create(struct loop *loop, struct registry *registry, struct metrics *metrics,
                           struct log *log, const struct proxy_config *config);
void proxy_destroy(struct proxy *p); /* no exchange may be open; NULL is fine */

/* Values for what comes from now on; sizes of tables, keys and shared objects are those of the
 * start. */
void proxy_configure(struct proxy *p, const struct proxy_config *config);

/* The drain has timed out: streams end with an error event, other requests with 503. */
void proxy_end_all(struct proxy *p);

/* A worker answers neither requests nor probes: the requests that wait for it move to others. Later
 * it answers again. */
void proxy_worker_hung(struct proxy *p, uint32_t worker, uint32_t incarnation);
void proxy_worker_answers(struct proxy *p, uint32_t worker, uint32_t incarnation);

/* Takes the request, and answers it or fails it. */
void proxy_start(struct proxy *p, struct http_request *req);

/* The API key of a request, or STR_NULL. */
struct str proxy_key_of(const struct http_request *req);

#endif

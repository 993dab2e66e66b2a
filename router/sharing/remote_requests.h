/* router/sharing/remote_requests.h - requests of other routers, entered into our load table and
 * index.
 *
 *      follow.c: events of a worker ───┐
 *                                      ├──▶ a set of remote requests ──▶ registry: add_remote,
 *      share.c: events of a router ────┘    by their number there            first token, ended
 *
 * A set belongs to one worker or to one router, which numbers its requests. A request is in the
 * registry exactly while it is in its set. Limits bound what a peer can make us keep: requests of a
 * set, and bytes of all sets of a `remote_requests`. Chains beyond the limit, or of another hash
 * scheme, are left out and the request counts as load alone; so are marks of another scheme.
 *
 * Times are by our clock and may be in the past; 0 is before this machine's clock began, which
 * leaves durations unknown. is_past: earlier requests are unknown to us, so that more cached tokens
 * than predicted prove nothing about the worker. Thread: control. */
#ifndef ROUTER_SHARING_REMOTE_REQUESTS_H
#define ROUTER_SHARING_REMOTE_REQUESTS_H

#include "common/base/base.h"
#include "common/base/map.h"

struct log;
struct loop;
struct registry;
struct request_event;

#define REMOTE_REQUESTS_BYTES_MAX   (UINT64_C(256) << 20) /* 20,000 prompts of 100,000 tokens */
#define REMOTE_REQUESTS_SCHEMES_MAX 8                     /* other schemes with a warning each */

struct remote_requests_config {
    uint64_t scheme;      /* prompt_hash_scheme() */
    uint32_t block_bytes; /* of the hashing */
    uint64_t max_bytes;   /* of all kept requests; 0: REMOTE_REQUESTS_BYTES_MAX */
};

struct remote_requests { /* shared by the sets of one module; embedded */
    struct loop *loop;
    struct registry *registry;
    struct log *log;
    struct remote_requests_config config;
    uint64_t n_bytes;
    uint32_t n_schemes;
    uint64_t schemes[REMOTE_REQUESTS_SCHEMES_MAX];
};

struct remote_set { /* embedded */
    struct remote_requests *of;
    struct map requests;
    uint32_t max_open;
};

/* The arguments must outlive it. Needs no fini. */
void remote_requests_init(struct remote_requests *m, struct loop *loop, struct registry *registry,
                          struct log *log, const struct remote_requests_config *config);

void remote_set_init(struct remote_set *s, struct remote_requests *of, uint32_t max_open);
void remote_set_fini(struct remote_set *s); /* closes what is open */

/* The events of a request, at t_us. Ignored: a known request, one beyond the limits, one for a
 * removed worker, and events of unknown requests. */
void remote_set_accepted(struct remote_set *s, uint32_t worker, uint32_t incarnation,
                         const struct request_event *e, uint64_t t_us, bool is_past);
void remote_set_first_token(struct remote_set *s, const struct request_event *e, uint64_t t_us,
                            bool is_past);
void remote_set_ended(struct remote_set *s, const struct request_event *e, uint64_t t_us);

/* Ends all open requests with an unknown result. */
void remote_set_close_all(struct remote_set *s);

void remote_set_check(const struct remote_set *s); /* asserts the invariants */

#endif

/* router/sharing/remote_requests.h - requests of other routers, as they are entered into our books.
 *
 *      follow.c: what a worker tells ──┐
 *                                      ├──▶ a set of remote requests ──▶ registry: adopt, first
 *      share.c: what a router writes ──┘    by their number there                     token, ended
 *
 * A set is of one worker, or of one router, which numbers them. Each request is on the registry's
 * books for exactly as long as it is in its set. What a peer can make us keep is bounded: so many
 * requests of a set, so many bytes of all sets of a `remote_requests`; chains beyond that are left out, and
 * the request counts as load alone, as it does when its hashes are of a foreign scheme.
 *
 * Times are ours, and may lie back. 0 is before this machine's clock began, and durations up to there
 * are not known. is_past: we have not heard of all that was sent before, so that more is cached than
 * is in the books says nothing of the worker. Thread: control. */
#ifndef ROUTER_SHARING_REMOTE_REQUESTS_H
#define ROUTER_SHARING_REMOTE_REQUESTS_H

#include "common/base/base.h"
#include "common/base/map.h"

struct log;
struct loop;
struct registry;
struct request_event;

#define REMOTE_REQUESTS_BYTES_MAX   (UINT64_C(256) << 20) /* 20,000 prompts of 100,000 tokens */
#define REMOTE_REQUESTS_SCHEMES_MAX 8                     /* foreign ones that are warned of */

struct remote_requests_config {
    uint64_t scheme;      /* prompt_hash_scheme() */
    uint32_t block_bytes; /* of the hashing */
    uint64_t max_bytes;   /* of what is kept of requests; 0: REMOTE_REQUESTS_BYTES_MAX */
};

struct remote_requests { /* what the sets of one module share; embedded */
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

/* All that is given must outlive it. Nothing to undo. */
void remote_requests_init(struct remote_requests *m, struct loop *loop, struct registry *registry,
                          struct log *log, const struct remote_requests_config *config);

void remote_set_init(struct remote_set *s, struct remote_requests *of, uint32_t max_open);
void remote_set_fini(struct remote_set *s); /* closes what is open */

/* The events of a request, at t_us. One that is known already, that has no room, or whose worker is not
 * there any more is passed over, and so are the events of one that is not known. */
void remote_set_accepted(struct remote_set *s, uint32_t worker, uint32_t incarnation,
                         const struct request_event *e, uint64_t t_us, bool is_past);
void remote_set_first_token(struct remote_set *s, const struct request_event *e, uint64_t t_us,
                            bool is_past);
void remote_set_ended(struct remote_set *s, const struct request_event *e, uint64_t t_us);

/* What became of them is not known any more. */
void remote_set_close_all(struct remote_set *s);

void remote_set_check(const struct remote_set *s); /* asserts the invariants */

#endif

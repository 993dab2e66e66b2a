/* router/sharing/mirrors.h - requests of other routers, as they are entered into our books.
 *
 *      follow.c: what a worker tells ──┐
 *                                      ├──▶ a set of mirrored requests ──▶ registry: adopt, first
 *      share.c: what a router writes ──┘    by their number there                     token, ended
 *
 * A set is of one worker, or of one router, which numbers them. Each request is on the registry's
 * books for exactly as long as it is in its set. What a peer can make us keep is bounded: so many
 * requests of a set, so many bytes of all sets of a `mirrors`; chains beyond that are left out, and
 * the request counts as load alone, as it does when its hashes are of a foreign scheme.
 *
 * Times are ours, and may lie back. 0 is before this machine's clock began, and durations up to there
 * are not known. is_past: we have not heard of all that was sent before, so that more is cached than
 * is in the books says nothing of the worker. Thread: control. */
#ifndef ROUTER_SHARING_MIRRORS_H
#define ROUTER_SHARING_MIRRORS_H

#include "common/base/base.h"
#include "common/base/map.h"

struct log;
struct loop;
struct registry;
struct request_event;

#define MIRRORS_BYTES_MAX   (UINT64_C(256) << 20) /* 20,000 prompts of 100,000 tokens */
#define MIRRORS_SCHEMES_MAX 8                     /* foreign ones that are warned of */

struct mirrors_config {
    uint64_t scheme;      /* prompt_hash_scheme() */
    uint32_t block_bytes; /* of the hashing */
    uint64_t max_bytes;   /* of what is kept of requests; 0: MIRRORS_BYTES_MAX */
};

struct mirrors { /* what the sets of one module share; embedded */
    struct loop *loop;
    struct registry *registry;
    struct log *log;
    struct mirrors_config config;
    uint64_t n_bytes;
    uint32_t n_schemes;
    uint64_t schemes[MIRRORS_SCHEMES_MAX];
};

struct mirror_set { /* embedded */
    struct mirrors *of;
    struct map requests;
    uint32_t max_open;
};

/* All that is given must outlive it. Nothing to undo. */
void mirrors_init(struct mirrors *m, struct loop *loop, struct registry *registry, struct log *log,
                  const struct mirrors_config *config);

void mirror_set_init(struct mirror_set *s, struct mirrors *of, uint32_t max_open);
void mirror_set_fini(struct mirror_set *s); /* closes what is open */

/* The events of a request, at t_us. One that is known already, that has no room, or whose worker is not
 * there any more is passed over, and so are the events of one that is not known. */
void mirror_accepted(struct mirror_set *s, uint32_t worker, uint32_t incarnation,
                     const struct request_event *e, uint64_t t_us, bool is_past);
void mirror_first(struct mirror_set *s, const struct request_event *e, uint64_t t_us, bool is_past);
void mirror_ended(struct mirror_set *s, const struct request_event *e, uint64_t t_us);

/* What became of them is not known any more. */
void mirror_close_all(struct mirror_set *s);

void mirror_set_check(const struct mirror_set *s); /* asserts the invariants */

#endif

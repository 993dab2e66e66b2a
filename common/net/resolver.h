/* common/net/resolver.h - asynchronous address_resolve.
 *
 * The system's resolver blocks while a name server answers, seconds when one is down. Each lookup
 * runs on a short-lived thread and returns its result to the loop by mailbox.
 *
 *      resolver_start --> thread: address_resolve --> mail --> fn(...)
 *
 * A thread cannot be cancelled: after destroy its result is discarded. Lookups are rare (a worker
 * is added, --worker-dns every 5 s), so there is no cache. Thread: control. */
#ifndef COMMON_NET_RESOLVER_H
#define COMMON_NET_RESOLVER_H

#include "common/net/address.h"

struct loop;
struct resolver;

#define RESOLVER_MAX_LOOKUPS 64 /* at once */

MUST_USE enum status resolver_create(struct resolver **out, struct loop *loop, struct error *err);
void resolver_destroy(struct resolver *r); /* cancels open lookups without a call */

/* st ST_OK: *found is the address. Otherwise err has the reason. */
typedef void resolver_fn(enum status st, const struct address *found, const struct error *err,
                         void *arg);

/* Calls `fn` once, on the loop, after this returns. Copies `guard` (may be NULL). ST_BUSY: too many
 * lookups are open. */
MUST_USE enum status resolver_start(struct resolver *r, const struct address_url *url,
                                    const struct address_guard *guard, resolver_fn *fn, void *arg,
                                    struct error *err);

/* As resolver_start for every address of the host (address_resolve_all), at most `max`. */
typedef void resolver_all_fn(enum status st, const struct address *found, uint32_t n,
                             const struct error *err, void *arg);
MUST_USE enum status resolver_start_all(struct resolver *r, const struct address_url *url,
                                        uint32_t max, resolver_all_fn *fn, void *arg,
                                        struct error *err);

#endif

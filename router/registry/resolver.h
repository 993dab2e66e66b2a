/* router/registry/resolver.h - address_resolve without waiting for it.
 *
 * The system's resolver blocks for as long as a name server takes, seconds when one is down. Each
 * lookup runs on a short-lived thread of its own and its answer comes back to the loop by mailbox.
 *
 *      resolver_start --> thread: address_resolve --> mail --> fn(...)
 *
 * A thread cannot be called back: on destroy its answer is thrown away, whenever it comes. Lookups are
 * rare (a worker is added, --worker-dns every 5 s), so there is no cache. Thread: control. */
#ifndef ROUTER_REGISTRY_RESOLVER_H
#define ROUTER_REGISTRY_RESOLVER_H

#include "router/registry/address.h"

struct loop;
struct resolver;

#define RESOLVER_MAX_LOOKUPS 64 /* at once */

MUST_USE enum status resolver_create(struct resolver **out, struct loop *loop, struct error *err);
void resolver_destroy(struct resolver *r); /* open lookups are forgotten: no call. NULL is fine */

/* st ST_OK: *found is the address. Otherwise err says why. */
typedef void resolver_fn(enum status st, const struct address *found, const struct error *err,
                         void *arg);

/* `fn` is called once, on the loop, never before this returns. `guard` (may be NULL) is copied.
 * ST_BUSY: too many lookups are open. */
MUST_USE enum status resolver_start(struct resolver *r, const struct address_url *url,
                                    const struct address_guard *guard, resolver_fn *fn, void *arg,
                                    struct error *err);

/* The same for every address of the host (address_resolve_all), at most `max`. */
typedef void resolver_all_fn(enum status st, const struct address *found, uint32_t n,
                             const struct error *err, void *arg);
MUST_USE enum status resolver_start_all(struct resolver *r, const struct address_url *url,
                                        uint32_t max, resolver_all_fn *fn, void *arg,
                                        struct error *err);

#endif

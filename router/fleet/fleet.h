/* router/fleet/fleet.h - who belongs to the fleet: workers that are wanted, and how they come and go.
 *
 * The registry knows the workers there are; this knows the workers there should be, who wants them,
 * and takes them from one state to the next:
 *
 *      wanted --> LOOKING_UP --found--> IN --no longer wanted--> REMOVING --empty or late--> gone
 *                  ^      |                                        |
 *                  |      v                                        +--wanted again--> IN
 *                 WAITING (no such name, no room: tried again)
 *
 * REMOVING is a drain: nothing new is sent there, what is open may finish. Then the worker is removed,
 * which drops its part of the prefix index.
 *
 * Sources that tell whole sets (discovery.h) are compared with what there is, entry by entry; the
 * admin API adds and removes single ones. A worker belongs to the source that wanted it first: one
 * that stands in a file, or was launched here, is not removed over the API, since it would only come
 * back.
 *
 * A source may say of a worker that it is going (is_draining): nothing new is sent there from then on,
 * until it says otherwise; with one that drains already nobody begins. And it may say that behind a URL
 * there is another worker than before (uid): then what was known of its cache is forgotten, and it is
 * probed before anything is sent to it.
 *
 * Cost: a set is compared in time that grows with its size, not with its square. Thread: control. */
#ifndef ROUTER_FLEET_FLEET_H
#define ROUTER_FLEET_FLEET_H

#include "router/fleet/discovery.h"

struct certificates;
struct fleet;
struct health;
struct log;
struct loop;
struct registry;

enum fleet_source { FLEET_STATIC, FLEET_FILE, FLEET_LAUNCHED, FLEET_API, FLEET_KUBE, FLEET_DNS };

struct fleet_config {
    struct certificates *certificates; /* for https:// workers; NULL: there will be none */
    struct address_guard guard;        /* for workers named over the API */
    struct address_guard found_guard;  /* for those that FLEET_KUBE and FLEET_DNS found */
    uint64_t drain_timeout_us;         /* what a worker's open requests get when it leaves */
};

MUST_USE enum status fleet_create(struct fleet **out, struct loop *loop, struct registry *registry,
                                  struct health *health, struct log *log,
                                  const struct fleet_config *config, struct error *err);
void fleet_destroy(struct fleet *f); /* before registry and health; NULL is fine */

/* What workers that leave from now on get. */
void fleet_set_drain_timeout(struct fleet *f, uint64_t timeout_us);

/* Everything that `source` wants, from now on. */
void fleet_set(struct fleet *f, enum fleet_source source, const struct discovery_set *set);

/* The worker is in the registry with this id, or why it is not. */
typedef void fleet_added_fn(enum status st, uint32_t id, const struct error *err, void *arg);

/* Adds one. Its address is looked up, and judged when it comes over the API. `fn` (may be NULL) is
 * called exactly once, possibly before this returns. ST_EXISTS, ST_FORBIDDEN, ST_NOT_FOUND, ST_BUSY. A worker over
 * the API that cannot be added is forgotten; one that is launched is tried again. */
void fleet_add(struct fleet *f, enum fleet_source source, const struct discovery_worker *worker,
               fleet_added_fn *fn, void *arg);

/* Lets it go; is_forced: at once, its open requests finish on the connections they have. ST_NOT_FOUND;
 * ST_EXISTS: it belongs to a source that would bring it back (the message says which). */
MUST_USE enum status fleet_remove(struct fleet *f, uint32_t id, bool is_forced, struct error *err);

/* Stops sending to a worker, or begins again, without letting it go. ST_NOT_FOUND. */
MUST_USE enum status fleet_set_draining(struct fleet *f, uint32_t id, bool is_draining,
                                        struct error *err);

/* Changes its limit and labels; the URL of `worker` is not looked at. ST_NOT_FOUND. */
MUST_USE enum status fleet_change(struct fleet *f, uint32_t id,
                                  const struct discovery_worker *worker, struct error *err);

/* What is wanted of worker `id`; NULL when there is none. Valid until the loop turns. */
const struct discovery_worker *fleet_worker(const struct fleet *f, uint32_t id);
bool fleet_find(const struct fleet *f, const char *url, uint32_t *id); /* false: not in */
bool fleet_is_from(const struct fleet *f, uint32_t id, enum fleet_source source);
uint32_t fleet_n_wanted(
    const struct fleet *f); /* entries, those that could not be added included */

void fleet_tick(struct fleet *f, uint64_t now_us); /* every 100 ms or so: drains, retries */
void fleet_check(const struct fleet *f);           /* asserts the invariants */

#endif

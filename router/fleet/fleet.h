/* router/fleet/fleet.h - the workers that should exist, and their way in and out of the registry.
 *
 * The registry has the workers that are; the fleet has the workers that are wanted, and by which
 * source, and moves them between states:
 *
 *      wanted --> LOOKING_UP --found--> IN --no longer wanted--> REMOVING --empty or late--> gone
 *                  ^      |                                        |
 *                  |      v                                        +--wanted again--> IN
 *                 WAITING (no such name, no room: tried again)
 *
 * REMOVING is a drain: the worker gets no new requests and open ones may finish. Then it is
 * removed, which drops its part of the prefix index.
 *
 * Sources that report whole sets (discovery.h) are compared with the present state, entry by entry;
 * the admin API adds and removes single workers. A worker belongs to the source that wanted it
 * first: one from a file or launched here cannot be removed over the API, since its source would
 * add it again.
 *
 * A source may mark a worker as draining (is_draining): it gets no new requests until the mark is
 * gone, and a worker that drains from the start is not added. A changed uid means another worker
 * behind the URL: its learned cache is dropped, and it is probed before it gets requests.
 *
 * Cost: comparing a set is linear in its size. Thread: control. */
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
    struct certificates *certificates; /* for https:// workers; NULL: none */
    struct address_guard guard;        /* for workers of the admin API */
    struct address_guard found_guard;  /* for workers of FLEET_KUBE and FLEET_DNS */
    uint64_t drain_timeout_us;         /* time for open requests of a removed worker */
};

MUST_USE enum status fleet_create(struct fleet **out, struct loop *loop, struct registry *registry,
                                  struct health *health, struct log *log,
                                  const struct fleet_config *config, struct error *err);
void fleet_destroy(struct fleet *f); /* before registry and health; NULL is fine */

/* Drain timeout of workers removed from now on. */
void fleet_set_drain_timeout(struct fleet *f, uint64_t timeout_us);

/* Sets everything that `source` wants. */
void fleet_set(struct fleet *f, enum fleet_source source, const struct discovery_set *set);

/* Called with the worker's id in the registry, or an error. */
typedef void fleet_added_fn(enum status st, uint32_t id, const struct error *err, void *arg);

/* Adds one worker. Its name is resolved, and checked when it comes over the API. Calls `fn` (may be
 * NULL) exactly once, possibly before this returns. ST_EXISTS, ST_FORBIDDEN, ST_NOT_FOUND, ST_BUSY.
 * A worker over the API that cannot be added is dropped; a launched one is tried again. */
void fleet_add(struct fleet *f, enum fleet_source source, const struct discovery_worker *worker,
               fleet_added_fn *fn, void *arg);

/* Removes a worker; is_forced: at once, open requests finish on their connections. ST_NOT_FOUND;
 * ST_EXISTS: it belongs to a source that would add it again (err names the source). */
MUST_USE enum status fleet_remove(struct fleet *f, uint32_t id, bool is_forced, struct error *err);

/* Stops or resumes sending to a worker without removing it. ST_NOT_FOUND. */
MUST_USE enum status fleet_set_draining(struct fleet *f, uint32_t id, bool is_draining,
                                        struct error *err);

/* Changes its limit and labels; ignores the URL of `worker`. ST_NOT_FOUND. */
MUST_USE enum status fleet_change(struct fleet *f, uint32_t id,
                                  const struct discovery_worker *worker, struct error *err);

/* The wanted settings of worker `id`; NULL: none. Valid for this loop turn. */
const struct discovery_worker *fleet_worker(const struct fleet *f, uint32_t id);
bool fleet_find(const struct fleet *f, const char *url, uint32_t *id); /* false: not in */
bool fleet_is_from(const struct fleet *f, uint32_t id, enum fleet_source source);
uint32_t fleet_n_wanted(const struct fleet *f); /* entries, including those not added yet */

void fleet_tick(struct fleet *f, uint64_t now_us); /* every 100 ms or so: drains, retries */
void fleet_check(const struct fleet *f);           /* asserts the invariants */

#endif

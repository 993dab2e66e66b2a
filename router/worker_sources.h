/* router/worker_sources.h - creates the sources of workers from the options and connects them to
 * the fleet.
 *
 *      --worker-urls  --worker-file  --service-discovery k8s  --worker-dns
 *                        \__________ discovery.h __________/
 *                                        |
 *                                    fleet_set
 *
 * Launched workers and those of the admin API are added to the fleet directly.
 * Thread: control, except worker_sources_are_synced. */
#ifndef ROUTER_WORKER_SOURCES_H
#define ROUTER_WORKER_SOURCES_H

#include "common/base/base.h"
#include "common/base/status.h"

struct fleet;
struct fleet_config;
struct log;
struct loop;
struct metrics;
struct registry;
struct router_options;
struct worker_sources;

/* The networks allowed for the fleet's workers, from --worker-allow-cidr. */
MUST_USE enum status worker_sources_guards(struct fleet_config *config,
                                           const struct router_options *o, struct error *err);

/* Configured workers are in the fleet when this returns; discovered ones follow. `options` must
 * outlive it. */
MUST_USE enum status worker_sources_create(struct worker_sources **out, struct loop *loop,
                                           struct fleet *fleet, struct registry *registry,
                                           struct log *log, const struct router_options *options,
                                           struct error *err);
void worker_sources_destroy(struct worker_sources *s); /* before the fleet; NULL is fine */

void worker_sources_reload(struct worker_sources *s); /* SIGHUP; NULL is fine */

/* True once every source has reported a set, so that an empty fleet is empty and not unknown. Stays
 * true. Any thread; NULL: true. */
bool worker_sources_are_synced(const struct worker_sources *s);

void worker_sources_tick(struct worker_sources *s,
                         struct metrics *m); /* every 100 ms or so; NULL is fine */

#endif

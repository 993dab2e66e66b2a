/* router/worker_sources.h - everything that names workers, put together: the options on one side, the fleet
 * on the other.
 *
 *      --worker-urls  --worker-file  --service-discovery k8s  --worker-dns
 *                        \__________ discovery.h __________/
 *                                        |
 *                                    fleet_set
 *
 * Workers that are launched here and those of the admin API come to the fleet by themselves.
 * Thread: control, but for worker_sources_are_synced. */
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

/* The networks where the fleet's workers may be, as --worker-allow-cidr says. */
MUST_USE enum status worker_sources_guards(struct fleet_config *config,
                                           const struct router_options *o, struct error *err);

/* What is named is in the fleet when this returns; what is found comes later. `options` stay the
 * caller's for as long. */
MUST_USE enum status worker_sources_create(struct worker_sources **out, struct loop *loop,
                                           struct fleet *fleet, struct registry *registry,
                                           struct log *log, const struct router_options *options,
                                           struct error *err);
void worker_sources_destroy(struct worker_sources *s); /* before the fleet; NULL is fine */

void worker_sources_reload(struct worker_sources *s); /* SIGHUP; NULL is fine */

/* Every source has told once which workers there are, so that to have none means that there are none.
 * Stays true: a source that fails later leaves what it told. Any thread; NULL: true. */
bool worker_sources_are_synced(const struct worker_sources *s);

void worker_sources_tick(struct worker_sources *s,
                         struct metrics *m); /* every 100 ms or so; NULL is fine */

#endif

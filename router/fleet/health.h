/* router/fleet/health.h - active probes: is a worker there, and is it still the same one?
 *
 * Every worker is asked GET /health on its own timer. Two misses take it out, two answers bring it
 * back. Before its first request, and whenever it may have been restarted in between (it failed a
 * probe or a request, or simply some time has passed), it is also asked to describe itself, GET
 * /server_info: only then is it eligible. A worker that has no /server_info is a foreign engine: the
 * model's name is taken from GET /v1/models, the rest from defaults and from what its answers teach.
 * One that answers there that it is a router, this one or another, is never used: requests would go
 * round, or be counted and priced twice.
 *
 *      STARTING --answers--> describe --ok--> eligible --misses--> UNHEALTHY --answers--> describe
 *
 * One probe shows as much as is needed where that is little: the second good answer of a worker that was
 * out is asked for at once, and while no worker of a model may be picked all of its workers are probed
 * every HEALTH_DOWN_US, and the first good answer brings one back. Requests wait for that.
 *
 * A worker that has neither /server_info nor /v1/models is taken for what it may be, an HTTP server that
 * answers any request: its model is REGISTRY_ANY_MODEL, which the registry gives requests of models that
 * no other worker serves. It is not asked for /health with success then: 404 there is an answer, unless
 * it has answered 200 before.
 *
 * Probes begin one interval apart, however long the one before took, so that a worker that hangs is
 * known for it after at most interval + misses x timeout.
 *
 * While a worker starts it is probed more often, so that a fleet is ready soon after it can be.
 * Thread: control. */
#ifndef ROUTER_FLEET_HEALTH_H
#define ROUTER_FLEET_HEALTH_H

#include "common/base/base.h"

#define HEALTH_PATH_MAX 255    /* bytes of --probe-path */
#define HEALTH_DOWN_US  20000u /* between probes of one worker while none of its model is up */

struct health;
struct http_client;
struct log;
struct loop;
struct metric;
struct registry;

/* A worker that was eligible takes connections and does not answer: what waits for it may wait for
 * ever. Told when the misses are enough to take it out, and with is_hung false when it is back. */
typedef void health_hung_fn(uint32_t worker, bool is_hung, void *arg);

struct health_config {
    uint64_t interval_us;      /* between probes of one worker */
    uint32_t timeout_ms;       /* of one probe */
    uint32_t n_misses, n_hits; /* out, in */
    uint32_t max_workers;
    const char *path;        /* "/health" */
    struct metric *routers;  /* counts what turned out to be a router; or NULL */
    bool isolates;           /* tenants are kept apart: warns of engines that may not do it */
    health_hung_fn *on_hung; /* may be NULL; gets the same `arg` as on_ready */
};

/* `on_ready` (may be NULL): a worker has become eligible. */
typedef void health_ready_fn(uint32_t worker, void *arg);

struct health *health_create(struct loop *loop, struct http_client *client,
                             struct registry *registry, struct log *log,
                             const struct health_config *config, health_ready_fn *on_ready,
                             void *arg);
void health_stop(struct health *h);    /* no more probes: the workers are being stopped */
void health_destroy(struct health *h); /* before the client; NULL is fine */

/* Other interval, timeout, counts and path from the next probe on. */
void health_configure(struct health *h, const struct health_config *config);

void health_watch(struct health *h, uint32_t worker);   /* it was added to the registry */
void health_unwatch(struct health *h, uint32_t worker); /* it is about to be removed */

/* Every 100 ms or so: probes at once what requests wait for, and logs what became of breakers. */
void health_tick(struct health *h);

#endif

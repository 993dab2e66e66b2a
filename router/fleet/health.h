/* router/fleet/health.h - active probes: whether a worker answers, and whether it is still the same
 * one.
 *
 * Each worker gets GET /health on its own timer. Two misses take it out, two answers bring it back.
 * Before its first request, and whenever it may have been restarted (after a failed probe or
 * request, or after some time), its description is read, GET /server_info: only then is it
 * eligible. A worker without /server_info is third-party: its model is taken from GET /v1/models,
 * the rest from defaults and learning. A worker whose description is a router's, this one's or
 * another's, is never used: requests would loop, or be counted and priced twice.
 *
 *      STARTING --answers--> describe --ok--> eligible --misses--> UNHEALTHY --answers--> describe
 *
 * Recovery is fast: the second good answer of a returning worker is requested at once. While no
 * worker of a model may be picked all of its workers are probed every HEALTH_DOWN_US, and the first
 * good answer brings one back, since requests wait for it.
 *
 * A worker with neither /server_info nor /v1/models is treated as an HTTP server that answers any
 * request: its model is REGISTRY_ANY_MODEL, for models that no other worker serves. 404 on /health
 * then counts as an answer, unless it has returned 200 before.
 *
 * Probes begin one interval apart, however long the one before took, so that a hanging worker is
 * detected after at most interval + misses x timeout.
 *
 * A starting worker is probed more often, so that a fleet is ready soon. Thread: control. */
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

/* An eligible worker accepts connections and does not answer. Called when the misses take it out,
 * and with is_hung false when it answers again. */
typedef void health_hung_fn(uint32_t worker, bool is_hung, void *arg);

struct health_config {
    uint64_t interval_us;      /* between probes of one worker */
    uint32_t timeout_ms;       /* of one probe */
    uint32_t n_misses, n_hits; /* out, in */
    uint32_t max_workers;
    const char *path;        /* "/health" */
    struct metric *routers;  /* counts workers that are routers; or NULL */
    bool isolates;           /* tenants are isolated: warns about engines without salts */
    health_hung_fn *on_hung; /* may be NULL; gets the same `arg` as on_ready */
};

/* called when a worker has become eligible */
typedef void health_ready_fn(uint32_t worker, void *arg);

struct health *health_create(struct loop *loop, struct http_client *client,
                             struct registry *registry, struct log *log,
                             const struct health_config *config, health_ready_fn *on_ready,
                             void *arg);
void health_stop(struct health *h);    /* stops all probes: the workers are being stopped */
void health_destroy(struct health *h); /* before the client; NULL is fine */

/* New interval, timeout, counts and path from the next probe on. */
void health_configure(struct health *h, const struct health_config *config);

void health_watch(struct health *h, uint32_t worker);   /* after it was added to the registry */
void health_unwatch(struct health *h, uint32_t worker); /* before it is removed */

/* Every 100 ms: probes at once workers that requests wait for, and logs changes of breakers. */
void health_tick(struct health *h);

#endif

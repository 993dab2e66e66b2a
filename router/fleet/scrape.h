/* router/fleet/scrape.h - asks engines that are not ours what their answers do not tell.
 *
 * vLLM and SGLang report neither cached tokens nor their size with each answer, so the control loop
 * reads their /metrics every second or so, and SGLang's /get_server_info once in each of its lives,
 * and hands what changed to the registry: size of the cache, prompt tokens, hits, and, when counters
 * fall or the process's start has moved, that this is a new life with an empty cache.
 *
 *      tick ─▶ worker 0, 1, 2 ... at most 8 at once ─▶ the last is answered ─▶ next tick
 *
 * It helps and is never needed: a worker without metrics is routed to all the same, and asked ever
 * less often. Engines behind it that other routers use too are noticed by `routing`.
 * Thread: control. */
#ifndef ROUTER_FLEET_SCRAPE_H
#define ROUTER_FLEET_SCRAPE_H

#include "common/base/base.h"

struct http_client;
struct log;
struct loop;
struct registry;
struct scrape;

struct scrape_config {
    uint64_t interval_us; /* between the beginnings of two rounds */
    uint32_t timeout_ms;  /* of one call */
    uint32_t max_workers;
};

struct scrape *scrape_create(struct loop *loop, struct http_client *client,
                             struct registry *registry, struct log *log,
                             const struct scrape_config *config);
/* Other interval and timeout from the next round on. */
void scrape_configure(struct scrape *s, const struct scrape_config *config);
void scrape_destroy(struct scrape *s); /* NULL is fine; before the client */

#endif

/* router/fleet/scrape.h - reads metrics of third-party engines, and ids of those that hand over KV.
 *
 * vLLM and SGLang report neither cached tokens nor their size with each answer, so the control loop
 * reads their /metrics every second, and SGLang's /get_server_info once after each start, and
 * reports changes to the registry: size of the cache, prompt tokens, hits, and a restart (counters
 * fall, or the process's start time changes), which empties the cache.
 *
 *      tick ─▶ worker 0, 1, 2 ... at most 8 at once ─▶ the last has answered ─▶ next tick
 *
 * A vLLM worker that computes prompts for others through MooncakeConnector is also asked for the
 * ids of its engines, GET /query of its bootstrap server, in every round. While that fails, it
 * computes none.
 *
 * Optional: a worker without metrics is routed to all the same, and read ever less often. `routing`
 * detects engines that other routers use too. Thread: control. */
#ifndef ROUTER_FLEET_SCRAPE_H
#define ROUTER_FLEET_SCRAPE_H

#include "common/base/base.h"

struct http_client;
struct log;
struct loop;
struct registry;
struct scrape;

struct scrape_config {
    uint64_t interval_us; /* between the starts of two rounds */
    uint32_t timeout_ms;  /* of one call */
    uint32_t max_workers;
};

struct scrape *scrape_create(struct loop *loop, struct http_client *client,
                             struct registry *registry, struct log *log,
                             const struct scrape_config *config);
/* New interval and timeout from the next round on. */
void scrape_configure(struct scrape *s, const struct scrape_config *config);
void scrape_destroy(struct scrape *s); /* NULL is fine; before the client */

#endif

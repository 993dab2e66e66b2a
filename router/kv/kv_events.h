/* router/kv/kv_events.h - follows the KV events of workers.
 *
 *      registry ──▶ which workers? where? ──▶ a kv_follower per worker and rank ──▶ registry
 *
 * What the events are used for. They name blocks of tokens, while the router's index has blocks of
 * bytes, so they cannot say who holds which prompt. But they count. How much a worker holds when it
 * evicts is the size of its cache, which is otherwise learned from cache hits. What it stores
 * beyond the requests that are known here is of others, and evicts blocks of ours. A cache that was
 * emptied, by a restart or a flush, is known at once, so the worker's part of the index is dropped.
 * The index itself stays as it is without events: a stream that is lost costs nothing.
 *
 * Workers of ours report what they cached in the heads of their answers and, in /request_events,
 * the requests of all routers and that a cache was emptied; their size is declared. Their KV events
 * (GET /kv_events) add an exact count of what they hold, direct requests included. It is shown, not
 * used in routing, so they are followed only if mode is on.
 *
 * Where a worker publishes: settings of the worker (kv_endpoint.h); else, of SGLang, its own page;
 * else, if mode is on, the usual ports. Thread: control. */
#ifndef ROUTER_KV_KV_EVENTS_H
#define ROUTER_KV_KV_EVENTS_H

#include "common/base/base.h"

struct http_client;
struct kv_events;
struct log;
struct loop;
struct metrics;
struct registry;

enum kv_events_mode { KV_EVENTS_OFF, KV_EVENTS_AUTO, KV_EVENTS_ON };
extern const char *const kv_events_mode_names[]; /* "off", "auto", "on", NULL */

struct kv_events_config {
    enum kv_events_mode mode;
    uint64_t memory_bytes; /* of all ledgers */
    uint32_t max_workers;
};

struct kv_events *kv_events_create(struct loop *loop, struct http_client *client,
                                   struct registry *registry, struct metrics *metrics,
                                   struct log *log, const struct kv_events_config *config);
void kv_events_set_mode(struct kv_events *k, enum kv_events_mode mode);
void kv_events_destroy(struct kv_events *k); /* before registry and client; NULL is fine */

void kv_events_check(const struct kv_events *k);

#endif

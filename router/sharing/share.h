/* router/sharing/share.h - several routers in front of workers without request events, through
 * Redis.
 *
 * Our own workers publish request events (follow.h). vLLM and SGLang do not: each router writes
 * what it sends to those into one stream, and reads what the others wrote:
 *
 *      router loop ──▶ registry: accepted, first, ended ──▶ outbox
 *                                                             │ every 10 ms
 *                              one entry: hello, events ◀─────┘
 *      another router: on_entry ──▶ registry: add_remote, first token, ended
 *
 * An entry is frames of common/protocol/request_events.h: a hello, whose generation is the writer's
 * origin, whose `next` is the number of the entry and whose time is its time; then events, whose
 * sequence is the identity of the worker (a hash of its URL). An entry comes at least every two
 * seconds; open requests of a router silent for ten count as ended. Without a server each router
 * continues alone. Thread: control. */
#ifndef ROUTER_SHARING_SHARE_H
#define ROUTER_SHARING_SHARE_H

#include "router/sharing/redis_stream.h"

struct log;
struct loop;
struct metrics;
struct registry;
struct share;

#define SHARE_SILENCE_US   10000000u
#define SHARE_OUTBOX_BYTES (8u << 20) /* bound while the control loop is stuck */

struct share_config {
    const char *url, *password; /* redis_stream.h */
    const char *key;
    uint32_t max_entries;
    uint64_t origin, scheme; /* as in x-incipit-chain */
    uint32_t block_bytes;    /* of the hashing */
    uint64_t silence_us;     /* SHARE_SILENCE_US: after which a router's requests end */
    size_t outbox_bytes;     /* SHARE_OUTBOX_BYTES: of unwritten events; more are lost */
};

MUST_USE enum status share_create(struct share **out, struct loop *loop, struct registry *registry,
                                  struct metrics *metrics, struct log *log,
                                  const struct share_config *config, struct error *err);
void share_destroy(struct share *s); /* before the registry; NULL is fine */

void share_check(const struct share *s); /* asserts the invariants */

#endif

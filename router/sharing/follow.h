/* router/sharing/follow.h - several routers route as one: reads the requests of others from the
 * workers.
 *
 *      router B ──request, x-incipit-chain──▶ worker ──events──▶ follow ──▶ registry: add_remote,
 *                                                (common/protocol/request_events.h)  first token, ended
 *
 * Each worker that publishes request events is followed by one stream while it is in the registry.
 * Events of our own requests are skipped, by their origin; each other request is entered as if it
 * had been sent from here, with its chain, at the time of its acceptance. So all routers see the
 * same pending work, cache contents and load, and choose alike, without a connection between them.
 * A starting router begins with the oldest event that each worker still has, and so restores the
 * state of its predecessor.
 *
 * Failures cost precision and never a request:
 *
 *      the stream is lost      resumed where it ended: after 100 ms, then more, up to 5 s
 *      for 5 s                 requests of others open there count as ended
 *      we are too far behind   requests of others count as ended; continues with the oldest event
 *      the worker restarts     requests of others count as ended; its index part goes when described
 *      another hash scheme     load counts, chains do not: one warning
 *      too many requests       beyond 4,096 open requests per worker, 2,048 blocks each and 256 MiB in
 *                              all, requests count as load alone or are skipped (remote_requests.h)
 *
 * Thread: control. */
#ifndef ROUTER_SHARING_FOLLOW_H
#define ROUTER_SHARING_FOLLOW_H

#include "common/base/base.h"

struct follow;
struct http_client;
struct log;
struct loop;
struct metrics;
struct registry;

/* Workers send an event every 5 s at least. */
#define FOLLOW_SILENCE_MS 12000
#define FOLLOW_SILENCE_US 5000000

enum follow_from { FOLLOW_FROM_OLDEST, FOLLOW_FROM_NEXT, FOLLOW_FROM_LATER /* retry later */ };

struct follow_config {
    uint64_t origin;      /* ours, in x-incipit-chain: not 0, new at each start */
    uint64_t scheme;      /* prompt_hash_scheme() */
    uint32_t block_bytes; /* of the hashing */
    uint32_t max_workers;
    uint32_t silence_ms; /* a stream silent for so long is lost */
    uint64_t silence_us; /* without a stream, until requests of others count as ended */

    /* Where to begin with a worker: a snapshot that covers its events up to *next gives
     * FOLLOW_FROM_NEXT. NULL: from the oldest. */
    enum follow_from (*from)(const char *url, const char *generation, uint64_t *next, void *arg);
    void *arg;
};

/* Starts to follow all workers that publish events. */
struct follow *follow_create(struct loop *loop, struct http_client *client,
                             struct registry *registry, struct metrics *metrics, struct log *log,
                             const struct follow_config *config);
void follow_destroy(struct follow *f); /* before registry and client; NULL is fine */

/* The next event of worker `id` in its current generation; 0: unknown, or still replaying. */
uint64_t follow_next(const struct follow *f, uint32_t id, const char *generation);

void follow_check(const struct follow *f); /* asserts the invariants */

#endif

/* router/sharing/follow.h - several routers act as one: what the others have sent, as the workers tell it.
 *
 *      router B ──request, x-incipit-chain──▶ worker ──events──▶ follow ──▶ registry: adopt,
 *                                                (common/protocol/request_events.h)  first token, ended
 *
 * Each worker that tells of its requests is followed by one stream of events, for as long as it is
 * there. Those of our own are passed over, by their origin; every other one is entered into the books
 * as if it had been sent from here, by its chain, and so at the moment that it was accepted. So all
 * routers see the same pending work, contents and load, and choose alike, without knowing of each
 * other. A router that starts begins with the oldest event that each worker still has, and has by the
 * end of that the books of its predecessor.
 *
 * What may go wrong costs precision and never a request:
 *
 *      the stream is lost      taken up again where it ended: after 100 ms, then more, up to 5 s
 *      for 5 s                 what the others had open there counts as ended
 *      we are too far behind   the same, and on from the oldest event
 *      the worker restarts     the same; its part of the index goes when it is described anew
 *      a foreign hash scheme   load counts, chains do not: one warning
 *      it says too much        4,096 open requests, 2,048 blocks each, 256 MiB of all workers: what is
 *                              beyond is load alone, or not entered (remote_requests.h)
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

/* Workers say something every 5 s at least. */
#define FOLLOW_SILENCE_MS 12000
#define FOLLOW_SILENCE_US 5000000

enum follow_from { FOLLOW_FROM_OLDEST, FOLLOW_FROM_NEXT, FOLLOW_FROM_LATER /* ask again */ };

struct follow_config {
    uint64_t origin;      /* ours, in x-incipit-chain: not 0, another in each life */
    uint64_t scheme;      /* prompt_hash_scheme() */
    uint32_t block_bytes; /* of the hashing */
    uint32_t max_workers;
    uint32_t silence_ms; /* a stream that says nothing for so long is lost */
    uint64_t silence_us; /* without a stream, until what others have open there counts as ended */

    /* Whether a worker's log is known up to some event, because a snapshot has what it says till there:
     * then it is followed from *next on. NULL: from the oldest on. */
    enum follow_from (*from)(const char *url, const char *generation, uint64_t *next, void *arg);
    void *arg;
};

/* Follows whom the registry knows as telling, from now on. */
struct follow *follow_create(struct loop *loop, struct http_client *client,
                             struct registry *registry, struct metrics *metrics, struct log *log,
                             const struct follow_config *config);
void follow_destroy(struct follow *f); /* before registry and client; NULL is fine */

/* The event of worker `id`, in this life of it, that would be taken next; 0: not known, or still on
 * the way there. */
uint64_t follow_next(const struct follow *f, uint32_t id, const char *generation);

void follow_check(const struct follow *f); /* asserts the invariants */

#endif

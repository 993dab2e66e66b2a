/* worker/sched/connector.h - the scheduler's interface to another store of KV.
 *
 * A store outside this worker (a pool shared by a fleet, a worker that only reads prompts) may hold
 * the KV of tokens that follow those found in our own cache. The scheduler queries their number
 * once per admission, makes room, and passes the target blocks. A synchronous store has them there
 * before the step runs; an asynchronous one takes its time:
 *
 *      waiting ──found() = n, later──▶ waiting, REMOTE_LOADING, blocks held, passed over
 *                                         │ scheduler_remote_arrived
 *      running ◀──admitted in order──── waiting, REMOTE_HERE
 *
 * Until it has arrived the KV is not published: no other request can hit it.
 *
 * A store below host memory brings contents there, where any lookup finds them. A request that
 * waits for one holds no blocks:
 *
 *      waiting ──found() = await──▶ waiting, REMOTE_AWAITED, passed over
 *                                      │ scheduler_wake: looked up and queried again
 *      running ◀──admitted in order──── waiting
 *
 * A prefix that host memory cannot hold at once comes in runs: before the next one is queried, the
 * hit of the request is moved to the device's cache, where it waits without holding it.
 *
 * Thread: engine. */
#ifndef WORKER_SCHED_CONNECTOR_H
#define WORKER_SCHED_CONNECTOR_H

#include "common/base/base.h"

struct kv_hit;
struct request;

enum connector_answer {
    CONNECTOR_NOW,       /* n tokens (0: none), in place before the step runs */
    CONNECTOR_LATER,     /* n tokens; scheduler_remote_arrived follows */
    CONNECTOR_UNKNOWN,   /* not known yet: query again in a later step */
    CONNECTOR_AWAIT,     /* on its way to host memory; scheduler_wake follows */
    CONNECTOR_MAKE_ROOM, /* host memory has no room beside what the hit has there: query again when
                          * that is on the device */
};

struct connector {
    /* How many tokens of r behind the first n_local, those of `hit`, the store has. */
    enum connector_answer (*find)(void *arg, struct request *r, const struct kv_hit *hit,
                                  uint32_t n_local, uint32_t *n_tokens);
    /* Deliver tokens [first, first + n) into the blocks of r->kv. */
    void (*load)(void *arg, struct request *r, uint32_t first, uint32_t n);
    /* The blocks of a load under way are about to be given away: on return nothing writes there.
     * Or: r waits no longer for what it awaited. */
    void (*cancel)(void *arg, struct request *r);
    void *arg;
};

#endif

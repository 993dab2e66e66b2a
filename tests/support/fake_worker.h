/* tests/support/fake_worker.h - workers that follow a script, on the loop of the test.
 *
 * All workers of a script follow one list of steps: the n-th request that any of them receives is
 * answered by the n-th step, and the last step repeats. So a test needs not know who is chosen. */
#ifndef TESTS_SUPPORT_FAKE_WORKER_H
#define TESTS_SUPPORT_FAKE_WORKER_H

#include "common/base/buf.h"
#include "common/base/list.h"
#include "common/net/conn.h"

enum fake_then { FAKE_KEEP, FAKE_CLOSE, FAKE_RESET };

struct fake_step {
    const char *bytes; /* the whole response, head included, or as much as is sent; NULL: nothing */
    enum fake_then then;
    uint64_t flood_bytes; /* sent behind them, as fast as they are taken */
};

#define FAKE_MAX_WORKERS 4

struct fake_script {
    struct loop *loop;
    const struct fake_step *steps;
    uint32_t n_steps;
    uint32_t n_requests, n_accepted, n_open; /* connections */
    struct list conns;
    uint32_t served_by[64]; /* worker of the n-th request */
    struct buf last_request;
    uint64_t sent_bytes; /* of floods, taken by the kernel or queued */
    struct fake_worker {
        struct fake_script *script;
        struct loop_fd watch;
        uint16_t port;
        uint32_t index;
    } workers[FAKE_MAX_WORKERS];
    uint32_t n_workers;
};

void fake_start(struct fake_script *s, struct loop *loop, uint32_t n_workers);
void fake_play(struct fake_script *s, const struct fake_step *steps, uint32_t n_steps);
void fake_stop(struct fake_script *s);
void fake_deafen(struct fake_script *s, uint32_t worker); /* closes its listener: refused */
void fake_drop_all(struct fake_script *s);                /* closes all connections */
void fake_send(struct fake_script *s, struct str bytes);  /* at once, on the connection used last */

#endif

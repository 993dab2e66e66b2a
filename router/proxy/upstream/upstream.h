/* router/proxy/upstream/upstream.h - connections to workers, kept alive between requests.
 *
 * One pool per router loop. Idle connections of a worker form a stack: the one used last is taken
 * first, so that the others age and are closed. A connection on which a worker sends bytes while it
 * is idle is closed at once.
 *
 *      acquire --> [ connecting ] --> in use (on_* of its user) --release--> idle --> acquire ...
 *                                         |                                   |
 *                                         +---- discard / worker closes ------+--> closed
 *
 * A worker with https:// needs one handshake per connection, a short one if it has given a ticket.
 *
 * An idle connection may die in the moment it is chosen: with `is_reused` a failure before the
 * first byte is no evidence against the worker, and a fresh connection may be tried. */
#ifndef ROUTER_PROXY_UPSTREAM_UPSTREAM_H
#define ROUTER_PROXY_UPSTREAM_UPSTREAM_H

#include "common/net/conn.h"

struct registry_target;
struct tls;
struct upstream_pool;

struct upstream_user {
    void (*on_data)(void *arg);      /* see conn_input(&up->conn) */
    void (*on_connected)(void *arg); /* optional: a connection that was connecting is up */
    void (*on_closed)(enum conn_end end, void *arg); /* then discard it */
};

struct upstream {
    struct conn conn;
    struct upstream_pool *pool;
    const struct upstream_user *user; /* NULL while idle */
    void *arg;
    struct list link; /* on its worker's stack while idle */
    struct loop_task reap;
    uint64_t idle_since_us;
    uint32_t worker, incarnation;
    bool is_reused;
};

struct upstream_pool_config {
    uint32_t max_workers;
    uint32_t max_idle_per_worker;
    uint64_t idle_timeout_us; /* below the workers' own keep-alive time */
    uint64_t connect_timeout_us;
    struct tls *tls; /* for workers with https:// */
};

struct upstream_pool *upstream_pool_create(struct loop *loop,
                                           const struct upstream_pool_config *config);
void upstream_pool_set_connect_timeout(struct upstream_pool *pool, uint64_t timeout_us);
void upstream_pool_destroy(struct upstream_pool *pool); /* none in use; NULL is fine */

/* A connection to a worker: an idle one unless `is_fresh`, else one that is connecting; writes may
 * begin at once. Idle ones to an earlier worker of the same id are closed. ST_IO when no socket can
 * be made. */
MUST_USE enum status upstream_acquire(struct upstream_pool *pool,
                                      const struct registry_target *target, bool is_fresh,
                                      const struct upstream_user *user, void *arg,
                                      struct upstream **out, struct error *err);

void upstream_release(struct upstream *up); /* answer complete, kept alive */
void upstream_discard(struct upstream *up); /* closes it; fine from inside its callbacks */

void upstream_pool_drop(struct upstream_pool *pool, uint32_t worker); /* its idle ones */
uint32_t upstream_pool_n_idle(const struct upstream_pool *pool);

#endif

/* router/upgrade/takeover.h - what a router takes over from its predecessor, and leaves to its
 * successor.
 *
 *      before it listens   sockets: from the service manager, or the router at --handover
 *                          hash seed: from the predecessor, --state-dir or --prefix-hash-seed
 *      then                prefix index: from the predecessor or --state-dir, worker by worker
 *      when it is ready    serves; notifies predecessor and service manager; listens at --handover
 *      at the end          writes the index to --state-dir, unless a successor has it already
 *
 * Without a predecessor a router is ready at once. With one it is ready when each wanted worker can
 * be picked and its part of the index is restored, or after --handover-wait if any worker can be
 * picked; if none can, this start fails and the predecessor continues. Thread: control. */
#ifndef ROUTER_UPGRADE_TAKEOVER_H
#define ROUTER_UPGRADE_TAKEOVER_H

#include "common/base/base.h"
#include "common/base/status.h"
#include "router/sharing/follow.h"
#include "router/upgrade/snapshot.h"

struct fleet;
struct isolation;
struct log;
struct loop;
struct takeover;

struct takeover_config {
    const char *handover;      /* path of the handover socket; NULL: none */
    const char *state_dir;     /* NULL: no state outlives the process */
    const char *hash_seed;     /* NULL: the predecessor's, the state folder's, or a random one */
    uint32_t port, admin_port; /* a predecessor must have the same; 0: any */
    uint32_t handover_wait_ms;
};

/* Before anything listens; blocks while a predecessor answers. */
MUST_USE enum status takeover_open(struct takeover **out, const struct takeover_config *config,
                                   struct log *log, struct error *err);

uint64_t takeover_hash_seed(const struct takeover *s);

/* Keeps tenants' salts: a random secret becomes that of the predecessor. `i` must outlive s. */
void takeover_keep_salts(struct takeover *s, struct isolation *i);

bool takeover_has_predecessor(const struct takeover *s); /* a predecessor exists and serves */
bool takeover_has_sockets(const struct takeover *s);     /* for clients */

/* The sockets for loop i of n, at most `max`, owned by the caller from now on: each socket belongs
 * to a loop, and loops that would get none share one. 0: the loop opens its own. */
uint32_t takeover_client_sockets(struct takeover *s, uint32_t i, uint32_t n, int *fds,
                                 uint32_t max);
int takeover_admin_socket(struct takeover *s); /* the caller's; -1: none */

/* Calls on_ready once, now or later: serve on ST_OK, else report the error and end. */
struct takeover_events {
    void (*on_ready)(enum status st, const struct error *err, void *arg);
    void (*on_succeeded)(void *arg); /* a successor accepts from the same sockets: stop accepting */
    void *arg;
};
void takeover_prepare(struct takeover *s, struct loop *loop, struct fleet *fleet,
                      const struct snapshot_source *index, const struct takeover_events *events);

/* For follow_config: skips request events that a snapshot covers. */
enum follow_from takeover_follow_from(const char *url, const char *generation, uint64_t *next,
                                      void *takeover);

/* The router serves from these sockets, which the caller owns. ST_IO, ST_INVALID: cannot listen at
 * --handover. */
MUST_USE enum status takeover_serving(struct takeover *s, const int *client, uint32_t n_client,
                                      int admin, struct error *err);

void takeover_reload(struct takeover *s, bool is_done); /* SIGHUP begins or ends */
void takeover_spawn(struct takeover *s);    /* starts a successor with this program and arguments */
void takeover_draining(struct takeover *s); /* allows no successor from now on */
void takeover_save(struct takeover *s);     /* called last; NULL is fine */
void takeover_close(struct takeover *s);    /* NULL is fine */

#endif

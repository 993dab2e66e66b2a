/* router/upgrade/takeover.h - what a router takes from the one before it, and leaves to the one after it.
 *
 *      before it listens   sockets: of the service manager, or of the router at --handover
 *                          the hash seed: its, or that of --state-dir, or --prefix-hash-seed's
 *      then                the prefix index: its, or that of --state-dir, worker by worker
 *      when it is ready    serves; says so to predecessor and service manager; is there to be asked itself
 *      at the end          writes the index to --state-dir, unless a successor has it already
 *
 * "Ready" is at once when there is no predecessor. With one it is when each worker that is wanted can
 * be picked and its part of the index is back, or after --handover-wait, if any can be; if none can,
 * this start fails, and the predecessor goes on. Thread: control. */
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
    const char *handover;      /* path of the socket where routers hand over; NULL: they do not */
    const char *state_dir;     /* NULL: nothing outlives the process */
    const char *hash_seed;     /* NULL: the predecessor's, the state folder's, or a random one */
    uint32_t port, admin_port; /* a predecessor at other ports is none; 0: any */
    uint32_t handover_wait_ms;
};

/* Before anything listens; blocks for as long as a predecessor takes to answer. */
MUST_USE enum status takeover_open(struct takeover **out, const struct takeover_config *config,
                                   struct log *log, struct error *err);

uint64_t takeover_hash_seed(const struct takeover *s);

/* Tenants' salts stay the same: a random secret becomes that of the predecessor. `i` must outlive s. */
void takeover_keep_salts(struct takeover *s, struct isolation *i);

bool takeover_has_predecessor(const struct takeover *s); /* there is a predecessor, and it serves */
bool takeover_has_sockets(const struct takeover *s);     /* for clients */

/* The sockets that loop i of n is to listen on, at most `max`: each of those that there are belongs to
 * some loop, and loops that would get none share one. Theirs from now on. 0: it opens its own. */
uint32_t takeover_client_sockets(struct takeover *s, uint32_t i, uint32_t n, int *fds,
                                 uint32_t max);
int takeover_admin_socket(struct takeover *s); /* the caller's; -1: none */

/* Calls on_ready once, now or later: serve; or say why not, and end. */
struct takeover_events {
    void (*on_ready)(enum status st, const struct error *err, void *arg);
    void (*on_succeeded)(void *arg); /* another accepts from the same sockets: leave them to it */
    void *arg;
};
void takeover_prepare(struct takeover *s, struct loop *loop, struct fleet *fleet,
                      const struct snapshot_source *index, const struct takeover_events *events);

/* For follow_config: what a snapshot has is not taken again from the workers' events. */
enum follow_from takeover_follow_from(const char *url, const char *generation, uint64_t *next,
                                      void *takeover);

/* Requests are served from these sockets, which stay the caller's. ST_IO, ST_INVALID: nobody can ask
 * at --handover. */
MUST_USE enum status takeover_serving(struct takeover *s, const int *client, uint32_t n_client,
                                      int admin, struct error *err);

void takeover_reload(struct takeover *s, bool is_done); /* SIGHUP is being heard */
void takeover_spawn(struct takeover *s);    /* starts a successor: this program, these arguments */
void takeover_draining(struct takeover *s); /* no successor any more */
void takeover_save(struct takeover *s);     /* the last thing; NULL is fine */
void takeover_close(struct takeover *s);    /* NULL is fine */

#endif

/* router/upgrade/handover.h - one router replaces another on the same host without a failed
 * request.
 *
 * A running router listens on a Unix socket (--handover PATH). A router started with the same
 * options connects there:
 *
 *      successor                                   predecessor
 *      hello ──────────────────────────────────▶
 *           ◀── sockets (SCM_RIGHTS), hash seed ──  continues to serve
 *      builds itself, probes the workers
 *           ◀── the prefix index, in a memory file, written in pieces meanwhile
 *      has workers and index:
 *      accepts too; ready ─────────────────────▶
 *           ◀── leaving ──────────────────────────  accepts no more, announces the end of each
 *                                                   connection, finishes open requests, exits with 0
 *
 * Both have the same sockets, not copies, so a connection in the accept queue is served by either.
 * Until `ready` the predecessor has given up nothing; a successor that fails before costs nothing.
 * The number of sockets may differ from the successor's loops: each socket is accepted from by at
 * least one loop.
 *
 * A message is one packet, a JSON object of at most HANDOVER_BYTES_MAX bytes, with descriptors.
 * Unknown members and messages are ignored, so that versions that differ by one work together. The
 * socket's folder must belong to this user and be writable by no other; the peer must be this user
 * or root. Thread: control. */
#ifndef ROUTER_UPGRADE_HANDOVER_H
#define ROUTER_UPGRADE_HANDOVER_H

#include "common/base/base.h"
#include "common/base/status.h"
#include "router/upgrade/snapshot.h"

#define HANDOVER_WIRE        1u
#define HANDOVER_BYTES_MAX   4096u
#define HANDOVER_SOCKETS_MAX 512u /* of a router */

#define HANDOVER_SECRET_BYTES 32u

struct log;
struct loop;

/* What is handed over beside the index. */
struct handover_state {
    int client[HANDOVER_SOCKETS_MAX], admin;
    uint32_t n_client, n_admin;
    uint64_t hash_seed;
    uint8_t salt_secret[HANDOVER_SECRET_BYTES]; /* secret of tenants' salts */
    bool has_salt_secret;
};

/* --- the successor ---------------------------------------------------------------------------- */

struct takeover_client;

/* Connects to the router at `path` and waits up to some seconds for its sockets: blocks.
 * ST_NOT_FOUND: no router listens. The caller owns the state's sockets. */
MUST_USE enum status takeover_client_open(struct takeover_client **out, const char *path,
                                          struct handover_state *state, struct error *err);
void takeover_client_close(
    struct takeover_client
        *h); /* before takeover_client_ready it undoes everything; NULL is fine */

struct takeover_client_events {
    void (*on_index)(int fd, void *arg); /* a snapshot, which the callee closes; once */
    /* The predecessor drains or has gone. */
    void (*on_alone)(void *arg);
    void *arg;
};
void takeover_client_listen(struct takeover_client *h, struct loop *loop,
                            const struct takeover_client_events *events);

/* The index has arrived, or will not. */
bool takeover_client_has_index(const struct takeover_client *h);

void takeover_client_ready(struct takeover_client *h);          /* this process accepts */
bool takeover_client_is_alone(const struct takeover_client *h); /* on_alone has been called */

/* --- the predecessor -------------------------------------------------------------------------- */

struct handover;

struct handover_config {
    const char *path;
    struct log *log;
    struct snapshot_source index;
    struct handover_state state; /* the sockets stay the caller's, open until on_succeeded */
    void (*on_succeeded)(void *arg);
    void *arg;
};

/* Listens. Replaces a stale socket file. */
MUST_USE enum status handover_open(struct handover **out, struct loop *loop,
                                   const struct handover_config *config, struct error *err);
void handover_close(struct handover *h); /* NULL is fine */

#endif

/* router/upgrade/handover.h - one router takes the place of another on the same host, and nobody notices.
 *
 * A running router listens on a Unix socket (--handover PATH). One that is started with the same
 * options finds it there, and asks:
 *
 *      successor                                   predecessor
 *      hello ──────────────────────────────────▶
 *           ◀── sockets (SCM_RIGHTS), hash seed ──  goes on as before
 *      builds itself, asks the workers
 *           ◀── the prefix index, in a memory file, written in pieces meanwhile
 *      knows them, and what they hold:
 *      accepts too; ready ─────────────────────▶
 *           ◀── leaving ──────────────────────────  accepts no more, announces the end of each
 *                                                   connection, finishes what is open, exits with 0
 *
 * Both have the same sockets, not copies: whoever waits to be accepted waits for either. Until `ready`
 * the predecessor has given nothing away; if the successor dies before, it has lost nothing. Sockets are
 * more or fewer than the successor's loops: each is accepted from by at least one of them.
 *
 * A message is one packet, a JSON object of at most HANDOVER_BYTES_MAX bytes, with descriptors beside
 * it. Members and messages that are not known are passed over, so versions that differ by one
 * understand each other. The socket's folder must be this user's, writable by nobody else, and who
 * connects must be this user or root. Thread: control. */
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

/* What is handed over besides the index. */
struct handover_state {
    int client[HANDOVER_SOCKETS_MAX], admin;
    uint32_t n_client, n_admin;
    uint64_t hash_seed;
    uint8_t salt_secret[HANDOVER_SECRET_BYTES]; /* behind tenants' salts */
    bool has_salt_secret;
};

/* --- the successor ----------------------------------------------------------------------------- */

struct takeover_client;

/* Asks the router at `path`, and waits for its sockets, some seconds at most: blocks. ST_NOT_FOUND:
 * nobody is there. The goods' sockets are the caller's. */
MUST_USE enum status takeover_client_open(struct takeover_client **out, const char *path,
                                          struct handover_state *state, struct error *err);
void takeover_client_close(
    struct takeover_client
        *h); /* without takeover_client_ready: as if it had never been; NULL is fine */

struct takeover_client_events {
    void (*on_index)(int fd, void *arg); /* a snapshot, the callee's to close; once */
    /* The predecessor leaves, or is gone: its place is free. */
    void (*on_alone)(void *arg);
    void *arg;
};
void takeover_client_listen(struct takeover_client *h, struct loop *loop,
                            const struct takeover_client_events *events);

/* Nothing more can come of the index: it has, or there is none, or nobody is left to send it. */
bool takeover_client_has_index(const struct takeover_client *h);

void takeover_client_ready(struct takeover_client *h);          /* this process accepts */
bool takeover_client_is_alone(const struct takeover_client *h); /* on_alone has been called */

/* --- the predecessor --------------------------------------------------------------------------- */

struct handover;

struct handover_config {
    const char *path;
    struct log *log;
    struct snapshot_source index;
    struct handover_state state; /* the sockets stay the caller's, open until on_succeeded */
    void (*on_succeeded)(void *arg);
    void *arg;
};

/* Listens; a socket file that nobody answers at is replaced. */
MUST_USE enum status handover_open(struct handover **out, struct loop *loop,
                                   const struct handover_config *config, struct error *err);
void handover_close(struct handover *h); /* NULL is fine */

#endif

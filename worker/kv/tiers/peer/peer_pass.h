/* worker/kv/tiers/peer/peer_pass.h - how the descriptor of shared memory comes from a source to a
 * sink of the same host.
 *
 *      the sink                                             the source
 *      HELLO, AUTH ◀────────────── TCP ──────────────────▶  HELLO, AUTH: both can share
 *      "I am the sink of that HELLO", and a proof ────────▶ a datagram, with its sender's user
 *                                                           from the kernel
 *                  ◀──────────────────── a proof, the descriptor of its memory
 *      maps it; asks for places over TCP
 *
 * The source's unix socket has a name of the abstract space, made of its generation: it lives in a
 * network namespace, needs no folder, and ends with the process. A sink of another host or
 * namespace finds no such name, and goes on over TCP; that is how a sink learns which it is.
 *
 * Each message proves the fleet's key for the connection over which both greeted each other. Both
 * sides take messages of their own user alone: who has the memory reads all KV in it, whichever
 * salt it is under, which is no more than processes of one user can do to each other anyway.
 *
 * Datagrams, so that the source keeps nothing between two, and a queue that is full refuses. */
#ifndef WORKER_KV_TIERS_PEER_PEER_PASS_H
#define WORKER_KV_TIERS_PEER_PEER_PASS_H

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include "worker/kv/tiers/peer/peer_frame.h"

#define PEER_PASS_NOBODY ((uid_t)-1)

/* As it is sent. */
struct peer_pass_text {
    uint8_t nonce[PEER_NONCE_BYTES]; /* of the sink's HELLO */
    uint8_t proof[PEER_PROOF_BYTES]; /* peer_prove_pass */
};

struct peer_pass {
    struct peer_pass_text text;
    uid_t uid; /* of who sent it */
    int fd;    /* the receiver's; -1: none came */
    struct sockaddr_un from;
    socklen_t from_len;
};

/* Sockets that do not block, with one end that has the name; the other reaches only that.
 * ST_UNAVAILABLE of the latter: there is no socket of that name here. */
MUST_USE enum status peer_pass_listen(uint64_t generation, int *out, struct error *err);
MUST_USE enum status peer_pass_dial(uint64_t generation, int *out, struct error *err);

/* fd: -1 for none. `to`: NULL for the one dialled. ST_BUSY: there is no room for it. */
MUST_USE enum status peer_pass_send(int socket, const struct peer_pass_text *text, int fd,
                                    const struct peer_pass *to);

/* ST_AGAIN: nothing has come. ST_INVALID: something has that is no such message; it is gone.
 * A descriptor is taken of this user alone; another is dropped, and never this process's: any
 * process can send to the end with the name, or be a source that proves the fixed key, and to close
 * its file, of FUSE say, takes as long as it likes. */
MUST_USE enum status peer_pass_receive(int socket, uid_t fds_of, struct peer_pass *out);

#endif

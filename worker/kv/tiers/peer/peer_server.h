/* worker/kv/tiers/peer/peer_server.h - the source: gives blocks of host memory to other workers.
 *
 *      worker loop                    the server's thread                 engine thread
 *      GET /kv/blocks
 *      peer_server_take(socket) ────▶ HELLO, AUTH
 *                                     WANT ── peer_want, to be found ───▶ finds, pins
 *                                        ◀──────────── it, with the run ──
 *                                     HAVE, UNIT ... END
 *                                     peer_want, to be let go ──────────▶ the pins end
 *                                        ◀──────────────────── it is free ──
 *
 * The server never looks into the cache: it asks the engine by mail, and reads bytes of pinned
 * blocks only. Each want that the engine has comes back; each run that it pinned is let go, after
 * its last byte, at its deadline, or when its connection ends. Nothing queues without bound: more
 * than PEER_WANTS_MAX wants are answered with an END of TIER_BUSY, more than PEER_CLIENTS_MAX
 * connections with a REFUSE, and of one stream no more bytes are sent than its sink gave credit
 * for. One who is silent before he has proved the key is cut off after seconds, one who does not
 * read too, and one who asks for nothing after minutes.
 *
 * A sink of the same host and user may have the memory itself (peer_pass.h), and get the places of
 * blocks: their pins end with that. It can read the memory for as long as it keeps its map. Sums go
 * with places, and are made here, once for each content of a block.
 *
 * The worker creates it, the engine starts and stops it. peer_server_take is for any thread between
 * the two. */
#ifndef WORKER_KV_TIERS_PEER_PEER_SERVER_H
#define WORKER_KV_TIERS_PEER_PEER_SERVER_H

#include <sys/types.h>

#include "common/telemetry/log.h"
#include "worker/kv/tiers/peer/peer_frame.h"
#include "worker/kv/tiers/peer/shared_pool.h"

#define PEER_CLIENTS_MAX 32
#define PEER_WANTS_MAX   64 /* of all connections */

struct peer_client;
struct peer_server;

enum peer_want_op { PEER_WANT_FIND, PEER_WANT_LET_GO };

/* The engine fills in what it has found, and pushes the mail to `home`. */
struct peer_want {
    struct mail mail;
    struct mailbox *home;
    enum peer_want_op op;
    struct peer_asked asked;
    uint64_t deadline_us; /* monotonic */
    /* Of FIND; LET_GO leaves it as it is. The run's blocks are pinned, and stay where they are and
     * as they are, token ids included. */
    uint32_t n_found;
    enum tier_result why; /* there is no more of it: TIER_ABSENT, TIER_BUSY or TIER_LATE */
    struct {
        struct unit_identity id;
        const void *payload;
        uint32_t block; /* for the engine */
    } found[PEER_KEYS_MAX];
    struct list link; /* the engine's while it has it */

    /* The server's. */
    struct list of_client;
    struct peer_client *client; /* NULL: it is gone */
    uint16_t stream;
    uint64_t credit;
    uint32_t n_sent;
    bool is_found, is_cancelled, by_place;
};

/* generation: another one in each process. log may be NULL. */
struct peer_server *peer_server_create(uint64_t generation, struct log *log);
uint64_t peer_server_generation(const struct peer_server *s);
void peer_server_destroy(struct peer_server *s); /* when it is stopped. NULL is fine */

/* `engine` gets the wants. What `codec` points to is copied. */
struct peer_server_config {
    const struct unit_codec_config *codec;
    struct mailbox *engine;
    uint64_t look_us;     /* between two looks at who is silent; 0: a second */
    uint32_t proof_looks; /* so many until the key is proved; 0: 5 */
    /* The memory that all payloads are in, for sinks of this host and this user; NULL: it is not
     * shared. Borrowed until the stop. */
    const struct shared_pool *pool;
    uid_t share_uid;
};
MUST_USE enum status peer_server_start(struct peer_server *s,
                                       const struct peer_server_config *config, struct error *err);

/* Ends all connections and the thread. On return each want is free, or with the engine or its
 * mailbox, and all those that had a run are there to be let go. */
void peer_server_stop(struct peer_server *s);

/* A socket behind its 101; taken. */
void peer_server_take(struct peer_server *s, int fd);

bool peer_server_owns(const struct peer_server *s, const struct mail *mail);

/* Since the start, except for the first. Any thread. */
struct peer_server_stats {
    uint64_t n_clients;
    uint64_t n_refused; /* connections, for another key, model or form of blocks, or for room */
    uint64_t n_broken;  /* connections that ended for what was sent on them, or was not */
    uint64_t sent_units, sent_bytes;
    uint64_t placed_units, placed_bytes; /* whose places were sent instead */
    uint64_t n_sharing;                  /* sinks that were given the memory */
    uint64_t wants[TIER_N_RESULTS];      /* by why the run ended; TIER_OK: all of it was sent */
};
void peer_server_stats(struct peer_server *s, struct peer_server_stats *out);

#endif

/* worker/kv/tiers/peer/peer_server_internal.h - what the files of the source share. All of it is
 * the server's thread's, except for the atomics. */
#ifndef WORKER_KV_TIERS_PEER_PEER_SERVER_INTERNAL_H
#define WORKER_KV_TIERS_PEER_PEER_SERVER_INTERNAL_H

#include <pthread.h>

#include "common/net/conn.h"
#include "common/net/mailbox.h"
#include "worker/kv/tiers/peer/peer_server.h"

enum client_state { CLIENT_FREE, CLIENT_NEW, CLIENT_PROVING, CLIENT_UP, CLIENT_LEAVING };

/* Of what a block holds while it has this number. */
struct peer_sum {
    uint64_t number;
    uint8_t sum[PEER_SUM_BYTES];
    bool is_known;
};

/* A connection of a sink. */
struct peer_client {
    struct peer_server *server;
    enum client_state state;
    struct conn conn;
    struct peer_hello sink, mine;
    struct list wants;         /* found or not, in the order in which they were asked for */
    struct loop_task pump;     /* sends */
    struct peer_want *sending; /* a unit of it is in `out`; NULL: none is */
    uint8_t *out;              /* (unit_bytes) or, of a plain one, what is before its payload */
    const uint8_t *payload;    /* of a plain one */
    size_t n_out, out_at;      /* bytes of it in `out`; sent */
    bool has_memory;           /* it was given the memory */
    uint64_t seen_bytes;       /* conn.sent_bytes at the last look */
    uint32_t n_stuck;          /* looks at which unsent bytes had not moved */
    uint32_t n_quiet;          /* looks without anything asked for, or proved */
};

struct peer_server {
    struct log *log;
    struct loop *loop;
    struct mailbox *inbox, *engine;
    struct mail stop;
    struct loop_timer look;
    uint64_t look_us;
    uint32_t proof_looks;
    pthread_t thread;
    bool is_running;
    struct unit_codec *codec;
    struct unit_codec_config form; /* fleet_keys: NULL, or &fleet_key */
    uint8_t fleet_key[1][32];      /* that proves */
    uint64_t generation;
    size_t unit_bytes;
    const struct shared_pool *pool; /* NULL: not shared */
    uid_t share_uid;
    int pass_fd; /* -1: none */
    struct loop_fd pass;
    struct peer_sum *sums; /* (pool->n_blocks) */
    struct sha256 *digest;
    struct peer_client clients[PEER_CLIENTS_MAX];
    struct peer_want wants[PEER_WANTS_MAX];
    struct list free_wants;
    atomic_uint_least32_t n_sockets; /* taken and not yet closed */
    atomic_uint_least64_t n_refused, n_broken, sent_units, sent_bytes, placed_units, n_sharing,
        ended[TIER_N_RESULTS];
};

static inline void peer_count(atomic_uint_least64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* --- peer_server.c ---------------------------------------------------------------------------- */

/* A want with this question on its way to the engine, on the client's list; NULL: none is free. */
struct peer_want *peer_want_begin(struct peer_client *c, uint16_t stream,
                                  const struct peer_asked *asked, bool by_place);
/* Off its client's list: its pins end, it becomes free. */
void peer_want_end(struct peer_server *s, struct peer_want *w);

/* --- peer_places.c ---------------------------------------------------------------------------- */

/* Gives the memory to sinks that ask for it. Without a socket for them it is not shared. */
void peer_places_begin(struct peer_server *s, const struct peer_server_config *config);
void peer_places_end(struct peer_server *s);
/* The body of PLACES for a run that was found; returns its size. */
size_t peer_places_of(const struct peer_client *c, const struct peer_want *w,
                      uint8_t out[PEER_PLACES_BYTES(PEER_KEYS_MAX)]);

/* --- peer_client.c ---------------------------------------------------------------------------- */

void peer_client_init(struct peer_client *c, struct peer_server *s);
void peer_client_open(struct peer_client *c, int fd);
void peer_client_close(struct peer_client *c);
void peer_client_on_found(struct peer_client *c, struct peer_want *w);
void peer_client_look(struct peer_client *c); /* is it stuck, or silent for too long? */

#endif

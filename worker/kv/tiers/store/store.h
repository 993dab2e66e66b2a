/* worker/kv/tiers/store/store.h - a tier in a shared store: one server of Redis or Valkey, several,
 * or a cluster of them.
 *
 *      engine thread                          store's thread, one loop
 *      find ── beliefs, under a lock
 *      submit ── mail ──▶  unit by unit ──▶ node of its key ──▶ link: GETs, EXISTS   ──▶ server
 *                                                          └──▶ link: SETs
 *      home ◀── mail ── all units have a result ◀── unit_open of each reply
 *
 * A value is a unit (unit.h), under the key
 *
 *      ic1:{GROUP}:KEY      the last four bytes of the key, and all sixteen, in hexadecimal
 *
 * The blocks of a group, some 64 neighbours of a chain, so have one slot and one server. Several
 * URLs are shards: each slot belongs to one of them by rendezvous hashing, whatever their order. A
 * server that answers CLUSTER SLOTS is a cluster, whose slots are followed.
 *
 * What the store lacks, refuses or sends wrong is absent, and counted. A lost connection ends what
 * was sent over it (TIER_IO), three failures in a row open the node's breaker: its keys are absent
 * and its jobs TIER_BUSY for 250 ms, doubling up to 30 s, then one job is let through. No request
 * waits for a server.
 *
 * find answers from memory. Keys that it does not know are asked for in the background (EXISTS), so
 * that the next find has them; guess counts them as held, for a load that finds out. A value that
 * did not come is assumed absent for five seconds.
 *
 * Replies are limited by what is asked for: at most STORE_WINDOW_BYTES or 16 GETs at a time.
 *
 * LIMITS. A store is trusted with nothing but time: sealed units are neither read nor forged there,
 * but it can delay and lose. Deleting is left to the server: the time to live, and its policy
 * (maxmemory-policy allkeys-lru). Replicas are not read. */
#ifndef WORKER_KV_TIERS_STORE_STORE_H
#define WORKER_KV_TIERS_STORE_STORE_H

#include "worker/kv/tiers/tier.h"

struct log;

#define STORE_WINDOW_BYTES (4u << 20)
#define STORE_NODES_MAX    256
#define STORE_URLS_MAX     64

/* 0 or NULL: the default in parentheses. Strings and `log` are borrowed while the tier lives. */
struct tier_store_config {
    const char *urls;          /* separated by commas or blanks: store_url.h */
    const char *password_file; /* instead of those in the URLs; read once */
    struct unit_codec_config unit;
    bool is_plain;      /* units may be plain: without, fleet keys are required */
    uint32_t ttl_s;     /* of a value (86400) */
    uint64_t max_bytes; /* memory of all servers up to which units are written (no limit) */
    const char *tls_ca, *tls_cert, *tls_key; /* tls.h, of rediss:// */
    bool tls_is_insecure;
    uint32_t connect_ms; /* (250) */
    uint32_t silence_ms; /* without a byte of a reply that is due: the connection is lost (1000) */
    uint32_t max_jobs;   /* more are TIER_BUSY (32) */
    uint32_t max_keys;   /* beliefs, 24 bytes each (2^20) */
    struct log *log;
};

/* Reads what tier_store_open will read: for who has long work to do before it. ST_INVALID, ST_IO,
 * ST_NOT_FOUND: the error has what to do. */
MUST_USE enum status tier_store_check(const struct tier_store_config *config, struct error *err);

/* Connects when the first job comes: a store that is away is no error. ST_INVALID: an option;
 * ST_IO: a file or a thread; ST_NOMEM. */
MUST_USE enum status tier_store_open(struct tier **out, const struct tier_store_config *config,
                                     struct error *err);

/* Errors that servers have answered, by kind. */
enum store_error {
    STORE_LOADING, /* LOADING, BUSY, TRYAGAIN, MASTERDOWN: not now */
    STORE_OOM,
    STORE_READONLY,
    STORE_NOAUTH, /* NOAUTH, WRONGPASS, NOPERM */
    STORE_WRONGTYPE,
    STORE_MOVED, /* redirections, followed and not */
    STORE_ASK,
    STORE_CLUSTERDOWN,
    STORE_OTHER,
    STORE_N_ERRORS,
};
const char *store_error_name(enum store_error error);

struct tier_store_stats {
    uint64_t n_errors[STORE_N_ERRORS];
    uint64_t n_absent;              /* assumed to be there, and was not */
    uint64_t n_rejected;            /* units that unit_open refused */
    uint64_t n_existing;            /* SETs that found the key */
    uint64_t n_asked;               /* keys, by EXISTS */
    uint64_t n_connections, n_lost; /* n_lost: ended while replies were due, or before it was up */
    uint64_t n_nodes, n_away;       /* now */
    uint64_t n_full;                /* SETs refused by the budget, or while a server is full */
};
/* Any thread. `t` is one of tier_store_open. */
void tier_store_stats(struct tier *t, struct tier_store_stats *out);

#endif

/* worker/kv/tiers/peer/peer_internal.h - what the files of the sink share.
 *
 *      tier_peer ── sources[] ── source: a worker by its address, its breaker, its connection
 *        │                         └── works: jobs, waiting or asked for
 *        └── works[]: a job of the engine, one stream
 *
 * All belong to the tier's thread, except what `lock` guards. */
#ifndef WORKER_KV_TIERS_PEER_PEER_INTERNAL_H
#define WORKER_KV_TIERS_PEER_PEER_INTERNAL_H

#include <pthread.h>

#include "common/net/conn.h"
#include "common/net/resolver.h"
#include "worker/kv/tiers/peer/peer.h"
#include "worker/kv/tiers/peer/shared_pool.h"

struct peer_source;

struct peer_work {
    struct list link; /* of its source, in the order in which they came, or free */
    struct tier_job *job;
    struct peer_source *source;
    uint32_t n_first, n_have, n_come; /* units: come when it was asked for, with what the source
                                       * has, and come */
    uint16_t stream;
    bool is_asked, is_cancelled;
    bool by_place;      /* it was asked for places */
    bool is_lost;       /* one of them no longer had its block: the rest is asked for as units */
    size_t used_credit; /* not yet given back */
    uint64_t have_us;   /* when the source had found its first unit */
};

enum source_state {
    SOURCE_DOWN,
    SOURCE_LOOKING_UP,
    SOURCE_CONNECTING,
    SOURCE_UPGRADING, /* awaits the 101 */
    SOURCE_GREETING,  /* the HELLO */
    SOURCE_PROVING,   /* the AUTH */
    SOURCE_SHARING,   /* its memory, or that there is none */
    SOURCE_UP,
};

struct peer_source {
    struct tier_peer *tier;
    enum source_state state;
    struct address_url at; /* authority "": not in use */
    struct conn conn;
    struct peer_hello mine, theirs;
    struct list works;
    struct loop_timer silence; /* runs while something is due */
    struct loop_task pump;     /* asks */
    uint32_t n_pings;          /* without an answer */
    uint32_t asked_most;       /* jobs at a time: fewer where the source has no room for more */
    uint32_t n_lookups;        /* under way: it keeps its address */
    uint16_t next_stream;
    uint8_t *parts; /* (unit_bytes) of a unit that does not fit into a frame; NULL: none came yet */
    size_t n_parts;
    const struct peer_work *parts_of;
    struct shared_pool pool; /* its memory, to read; no map: none */
    struct loop_fd pass;     /* on pass_fd, while its memory is awaited */
    int pass_fd;             /* -1: none */
    struct peer_place places[PEER_KEYS_MAX];
    uint64_t used_us; /* when a job last named it */
    uint64_t end_us;  /* of the last run: it sends one behind the other */
    uint64_t pause_us;
    uint32_t n_failures;    /* in a row */
    uint64_t away_until_us; /* `lock`, as `at` */
};

struct tier_peer {
    struct tier tier; /* first */
    struct tier_peer_config config;
    struct unit_codec_config form; /* fleet_keys: NULL, or &fleet_key */
    uint8_t fleet_key[1][32];
    struct unit_codec *codec;
    struct sha256 *digest;
    size_t unit_bytes;
    uint32_t window_bytes; /* of a stream */
    struct loop *loop;
    struct mailbox *inbox;
    struct mail stop;
    struct resolver *resolver;
    pthread_t thread;
    bool is_running, is_closing;
    struct peer_source sources[PEER_SOURCES_MAX];
    struct peer_work works[PEER_JOBS_MAX];
    struct list free_works;
    atomic_uint_least32_t n_jobs;

    pthread_mutex_t lock; /* of the rest, and of what names it above */
    struct tier_stats base;
    struct tier_peer_stats stats;
};

/* --- peer.c ----------------------------------------------------------------------------------- */

/* At its first unit, or place: what the source needed to find it, and the run before, is a wait. */
void peer_work_begin(struct peer_source *s, struct peer_work *w);

/* Units that have no result yet get it, the first `result` and the others TIER_SKIPPED; the job
 * goes home. */
void peer_work_end(struct peer_work *w, enum tier_result result);
void peer_count_stat(struct tier_peer *t, uint64_t *counter, uint64_t n);
/* What a failure, a refusal or a success does to whether the source is asked. */
void peer_source_failed(struct peer_source *s, bool is_refusal);
void peer_source_worked(struct peer_source *s);

const uint8_t *peer_key(const struct tier_peer *t); /* that is proved; NULL: the fixed one */

/* --- peer_share.c ----------------------------------------------------------------------------- */

/* Asks the source for its memory. False: it is not to be had; else peer_link_ready follows. */
bool peer_share_begin(struct peer_source *s);
void peer_share_end(struct peer_source *s); /* nothing of it is mapped, or awaited, any more */
/* Copies the run's blocks. NULL, or what is wrong with the frame. */
const char *peer_share_take(struct peer_source *s, struct peer_work *w, const struct peer_frame *f);

/* --- peer_link.c ------------------------------------------------------------------------------ */

void peer_link_init(struct peer_source *s, struct tier_peer *t);
void peer_link_add(struct peer_source *s, struct peer_work *w); /* asked for at the turn's end */
/* The connection ends, and all its jobs do. */
void peer_link_lost(struct peer_source *s, enum tier_result result, const char *why);
void peer_link_ready(struct peer_source *s); /* for jobs, with its memory or without */
void peer_link_close(struct peer_source *s);
void peer_link_fini(struct peer_source *s);

#endif

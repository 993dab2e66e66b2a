/* worker/kv/tiers/tier.h - a place below host memory that keeps KV blocks: a folder, a store, a
 * peer. One interface for all.
 *
 *      engine thread                              tier's own threads
 *      find(keys) ── from memory, never blocks
 *      submit(job) ──────────────────────────▶    read, unit_open into the host block
 *                                                 or unit_seal of the host block, write
 *      mailbox     ◀───────────── job->mail ──    one mail per job, whatever happened
 *
 * A job's host blocks are the engine's: reserved and unpublished for a load, pinned for a store,
 * from submit until its mail. Each unit has a result of its own; units of a load behind the first
 * that failed may be TIER_SKIPPED. A tier never retries, never allocates on submit, and refuses
 * (TIER_BUSY) rather than queueing without bound. No request waits for a tier: the engine has a
 * deadline of its own and computes what has not come. What a tier lost, refuses or cannot prove is
 * absent. */
#ifndef WORKER_KV_TIERS_TIER_H
#define WORKER_KV_TIERS_TIER_H

#include <stdatomic.h>

#include "common/net/mailbox.h"
#include "worker/kv/tiers/tier_source.h"
#include "worker/kv/tiers/unit.h"

#define TIER_JOB_UNITS 64

enum tier_op { TIER_LOAD, TIER_STORE };

enum tier_result {
    TIER_OK,
    TIER_SKIPPED,  /* behind one that failed, or the job was cancelled before it began */
    TIER_ABSENT,   /* it does not have it (any more) */
    TIER_BUSY,     /* its queue is full, or it is backing off */
    TIER_LATE,     /* the deadline passed before it began */
    TIER_IO,       /* disk, connection or server failed */
    TIER_REJECTED, /* it came and is not what was asked for: `cause` */
    TIER_N_RESULTS,
};
const char *tier_result_name(enum tier_result result);

struct tier_unit {
    struct unit_identity id; /* tokens borrowed until the mail */
    void *payload;           /* block_bytes in host memory */
    enum tier_result result;
    enum unit_cause cause; /* with TIER_REJECTED */
};

struct tier_job {
    struct mail mail; /* to `home` when it is over */
    struct mailbox *home;
    enum tier_op op;
    uint32_t n; /* <= TIER_JOB_UNITS, consecutive blocks of one chain, first to last */
    struct tier_unit units[TIER_JOB_UNITS];
    const struct tier_source *source;          /* for can_ask; borrowed until the mail */
    uint64_t deadline_us;                      /* monotonic; when it need not begin any more */
    atomic_bool is_cancelled;                  /* a hint: no request needs the results */
    uint64_t submitted_us, began_us, ended_us; /* the last two by the tier */
    void *owner;                               /* the engine's */
    struct list link;                          /* the tier's while it has the job */
};

struct tier_stats {
    uint64_t bytes, max_bytes, n_units;
    uint64_t loaded_bytes, stored_bytes;
    uint64_t n_dropped;        /* units evicted or lost */
    uint64_t n_held, max_held; /* units that are there and held; most that should be held */
    bool can_write, is_open;
};

struct tier;
struct tier_ops {
    const char *name; /* "file", "store", "peer": label of metrics */
    /* How many of keys[0, n), from the first on, it holds as far as it knows. Any thread; never
     * blocks for longer than a short lock. */
    uint32_t (*find)(struct tier *t, const struct unit_key *keys, uint32_t n);
    /* The same, with those that it may hold: others write there too, and only a load finds out.
     * NULL: as find. */
    uint32_t (*guess)(struct tier *t, const struct unit_key *keys, uint32_t n);
    /* For a tier of several places. A request names one of them: may it be asked now? The request
     * has also what it holds, so `find` finds nothing. Failures are the place's, not the tier's.
     * NULL: the tier is one place. */
    bool (*can_ask)(struct tier *t, const struct tier_source *source);
    /* Units with these keys, there or yet to come, stay while they are held; as often as they were
     * held they are to be let go. Any thread. More than max_held may be lost. NULL: the place holds
     * none. */
    void (*hold)(struct tier *t, const struct unit_key *keys, uint32_t n, bool is_held);
    /* Ownership of the job goes to the tier until its mail. */
    void (*submit)(struct tier *t, struct tier_job *job);
    void (*stats)(struct tier *t, struct tier_stats *out); /* any thread */
    /* Ends all jobs (their mail is sent), then frees. NULL is fine. */
    void (*destroy)(struct tier *t);
};

/* Embedded first in each tier. */
struct tier {
    const struct tier_ops *ops;
};

#endif

/* worker/engine/tiers/lower.h - the tiers below host memory, as the engine sees them.
 *
 *      engine thread                                       a tier's threads
 *      scheduler ── find ──▶ restores ── job ───────────▶  read, verify, into reserved host blocks
 *                                                             │
 *      lower_on_mail ◀──────────────── mail ───────────────────┘
 *        publish from the front, wake who waits
 *      kv_manager ── on_host ──▶ writeback ── job ──────▶  seal, write
 *
 * The engine passes the mails it finds in its mailbox, calls lower_turn between steps, and sleeps
 * no longer than lower_due_us. A request waits until what it awaits is there, or has failed, or
 * until its deadline: by then the restore was expected to be over, or the prompt could have been
 * computed. Late bytes are kept when they come; until then no other request waits for
 * that tier, or for that worker of its.
 *
 * Owns its tiers, and stops the server of blocks to other workers. Nothing is allocated after
 * creation. Time is an argument. */
#ifndef WORKER_ENGINE_TIERS_LOWER_H
#define WORKER_ENGINE_TIERS_LOWER_H

#include "worker/kv/tiers/peer/peer_server.h"
#include "worker/kv/tiers/tier.h"
#include "worker/sched/scheduler.h"

#define LOWER_TIERS_MAX 3

struct lower;

struct lower_config {
    struct tier *tiers[LOWER_TIERS_MAX]; /* the nearest first; taken, also when creation fails */
    uint32_t n_tiers;
    struct peer_server *server; /* started, its wants come to `home`; NULL: none */
    struct mailbox *home;       /* for the mails of jobs */
    uint8_t *host_pool;         /* (n_host_blocks, block_bytes) */
    uint64_t block_bytes;
    uint32_t n_host_blocks, block_size;
    uint32_t longest; /* blocks of the longest sequence */
    uint8_t fingerprint[UNIT_DIGEST_BYTES];
    const uint8_t *fleet_key; /* 32 bytes, copied; NULL: none */
    /* For tests, whose machines are busy: what is quicker is not asked, and a request waits that
     * long. 0: it is asked. */
    uint64_t always_wait_us;
};

/* Counters of one tier since the start; the first four are of requests. */
struct lower_stats {
    const char *name;
    uint64_t n_awaited; /* requests that waited for it */
    uint64_t n_dearer;  /* computed at once, because that is sooner or a restore is late */
    uint64_t n_late;    /* computed at their deadline */
    uint64_t n_full;    /* computed, because no job or no host block was free */
    uint64_t restored_tokens;
    uint64_t loads[TIER_N_RESULTS], stores[TIER_N_RESULTS]; /* units, by outcome */
    uint64_t rejected[UNIT_N_CAUSES];                       /* loads that were TIER_REJECTED */
    uint64_t loaded_bytes, stored_bytes;
    double load_s;        /* seconds of jobs */
    uint64_t n_dropped;   /* wanted contents that host memory lost before they were written */
    uint32_t n_unwritten; /* contents of host memory that wait to be written */
    uint64_t n_pauses;    /* of writing, because decodes took longer (itl_guard.h) */
    uint64_t bytes, max_bytes, n_units;
    uint64_t n_held, max_held; /* units that clients hold: there; most. Both 0: it holds none */
    bool can_write;
};

struct lower *lower_create(const struct lower_config *config);

/* For kv_manager_create, and for the scheduler's options. */
const struct kv_names_config *lower_names(const struct lower *w);
const struct connector *lower_connector(const struct lower *w);
uint32_t lower_max_reserved(uint32_t n_host_blocks);
void lower_start(struct lower *w, struct kv_manager *kv, struct scheduler *sched);

/* Is this mail one of a job? Then it is for lower_on_mail. */
bool lower_owns(const struct lower *w, const struct mail *mail);
void lower_on_mail(struct lower *w, struct mail *mail);

/* Before each step, and when lower_due_us has passed. */
void lower_turn(struct lower *w, uint64_t now_us);
uint64_t lower_due_us(const struct lower *w); /* UINT64_MAX: never */

/* A step of n_rows decodes, and nothing else, took so long. */
void lower_note_step(struct lower *w, uint32_t n_rows, double step_s);

/* The prefix cache was forgotten: nothing older is found below from now on. */
void lower_reset(struct lower *w);

/* The worker is about to end, and no request is left or comes: from now on turns write what is
 * cached and not below yet, beginnings of prompts first, and what was met once too, as far as a
 * tier has room for it without losing anything. A tier that cannot be written to is not waited
 * for. */
void lower_drain(struct lower *w, uint64_t now_us);
bool lower_is_drained(const struct lower *w);
void lower_drain_stats(const struct lower *w, uint64_t *n_stored, uint64_t *us); /* since then */

/* Ends the tiers: all jobs' mails are in `home` on return, and go to lower_on_mail. */
void lower_stop(struct lower *w);
void lower_destroy(struct lower *w); /* NULL is fine; before the kv manager */

uint32_t lower_n_tiers(const struct lower *w);
void lower_stats(const struct lower *w, uint32_t tier, struct lower_stats *out);
void lower_check(const struct lower *w);

#endif

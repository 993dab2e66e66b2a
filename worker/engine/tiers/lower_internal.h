/* worker/engine/tiers/lower_internal.h - what the files of the room share. */
#ifndef WORKER_ENGINE_TIERS_LOWER_INTERNAL_H
#define WORKER_ENGINE_TIERS_LOWER_INTERNAL_H

#include "worker/engine/tiers/itl_guard.h"
#include "worker/engine/tiers/lower.h"
#include "worker/engine/tiers/price.h"

#define UNSETTLED_LOOK_US 1000u /* the device's moves are looked at again */

struct restores;
struct serving;
struct writeback;

/* After a failure nothing is asked before retry_us; longer with each that follows. */
struct lower_pause {
    uint64_t retry_us, pause_us;
};

struct lower_tier {
    struct tier *tier;
    struct lower_stats stats;
    struct price price;
    struct lower_pause loads, stores;
    struct itl_guard guard;
    bool can_write;
    bool is_of_places; /* a request names the one that is asked */
    struct writeback *writeback;
};

struct lower_drain {
    bool is_on, is_over;
    uint64_t began_us, ended_us;
    uint64_t n_stored; /* before */
};

struct lower {
    struct lower_config config;
    struct kv_names_config names;
    struct connector connector;
    struct kv_manager *kv;
    struct kv_host *host;
    struct scheduler *sched;
    struct lower_tier tiers[LOWER_TIERS_MAX];
    struct restores *restores;
    struct serving *serving;      /* NULL: no other worker is served */
    uint32_t job_units;           /* most units of a job */
    uint8_t fleet_key[32];        /* with config.fleet_key */
    uint8_t salt[UNIT_KEY_BYTES]; /* of all units: the number of resets */
    uint64_t n_resets, now_us, stats_us;
    bool is_stopped;
    struct lower_drain drain;
};

static inline uint8_t *lower_payload(const struct lower *w, block_id id) {
    return w->config.host_pool + id * w->config.block_bytes;
}

/* The identity of the content with this name; `tokens` are its own. */
void lower_identify(const struct lower *w, const struct kv_name *name, const uint32_t *tokens,
                    struct unit_identity *out);

/* A unit has come back. */
void lower_note_result(const struct lower *w, struct lower_pause *p, enum tier_result result);

/* --- restores.c */
struct restores *restores_create(struct lower *w);
void restores_destroy(struct restores *rs); /* NULL is fine */
enum connector_answer restores_find(void *lower, struct request *r, const struct kv_hit *hit,
                                    uint32_t n_local, uint32_t *n_tokens);
void restores_cancel(void *lower, struct request *r);
bool restores_own(const struct restores *rs, const struct mail *mail);
void restores_on_mail(struct restores *rs, struct mail *mail);
void restores_turn(struct restores *rs);
uint64_t restores_due_us(const struct restores *rs);
void restores_reset(struct restores *rs);
void restores_check(const struct restores *rs);

/* --- serving.c */
struct serving *serving_create(struct lower *w);
void serving_destroy(struct serving *v); /* NULL is fine */
void serving_on_mail(struct serving *v, struct mail *mail);
void serving_turn(struct serving *v);
uint64_t serving_due_us(const struct serving *v);
void serving_stop(struct serving *v); /* what waits is returned with nothing */
void serving_check(const struct serving *v);

/* --- writeback.c: of one tier */
struct writeback *writeback_create(struct lower *w, struct lower_tier *t);
void writeback_destroy(struct writeback *b); /* NULL is fine */
void writeback_on_host(struct writeback *b, block_id id);
void writeback_on_host_evict(struct writeback *b, block_id id);
uint32_t writeback_n_waiting(const struct writeback *b);
bool writeback_is_writing(const struct writeback *b); /* a job is under way */
bool writeback_is_full(const struct writeback *b);
bool writeback_own(const struct writeback *b, const struct mail *mail);
void writeback_on_mail(struct writeback *b, struct mail *mail);
void writeback_turn(struct writeback *b);
uint64_t writeback_due_us(const struct writeback *b);
void writeback_reset(struct writeback *b);
void writeback_check(const struct writeback *b);

/* Something is on its way down that may come to an end: a job, or a content that one can take. */
bool writeback_is_busy(const struct writeback *b);

/* --- drain.c */
void drain_turn(struct lower *w);
uint64_t drain_due_us(const struct lower *w);

#endif

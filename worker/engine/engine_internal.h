/* worker/engine/engine_internal.h - what the files of the engine share: engine.c (the loop, both
 * ends of its mailboxes), engine_step.c (steps in flight), engine_setup.c (start and end),
 * engine_kv.c, engine_holds.c, engine_tiers.c. The first group of fields is constant once the
 * thread is ready. */
#ifndef WORKER_ENGINE_ENGINE_INTERNAL_H
#define WORKER_ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "common/net/mailbox.h"
#include "worker/engine/engine.h"
#include "worker/engine/masks.h"
#include "worker/sched/batch.h"

enum mail_kind {
    MAIL_SUBMIT, /* to the engine */
    MAIL_CANCEL,
    MAIL_RESET, /* there and back */
    MAIL_DRAIN, /* there, and back when drained */
    MAIL_STOP,
    MAIL_EXPLAIN,  /* there and back */
    MAIL_SNAPSHOT, /* there and back */
    MAIL_HOLD,     /* there and back */
    MAIL_PROGRESS, /* to the creator */
    MAIL_KV_EVENTS,
    MAIL_FAILED,
};

/* What one log interval has seen. */
struct engine_interval {
    uint64_t start_us;
    uint64_t prefill_tokens, generated_tokens, cached_tokens; /* totals at its start */
    bool is_active;
};

/* A step between its schedule and its outcome; its place among the flights is its slot at the
 * backend. */
struct flight {
    struct schedule schedule;
    backend_fence fence;
    uint64_t began_us, submitted_us; /* when scheduling began; when the device had it */
    uint64_t host_us;                /* spent on it by the engine's thread so far */
    uint64_t handing_us; /* spent in submit: the step itself, where the host is the device */
};

/* Fences of the moves of all steps before `step`. */
struct engine_moves {
    uint64_t step;
    backend_fence out, in;
};

/* The weights' digest, of a thread that reads them while they are loaded. */
struct engine_digest {
    struct engine *engine;
    pthread_t thread;
    bool is_under_way;
    enum status st;
    struct error err;
    uint8_t weights[32];
};

struct engine {
    double restored_tokens, restored_s; /* of calls that brought blocks back; sums that forget */
    struct engine_options options;
    struct engine_info info;
    struct backend_limits limits;
    uint32_t *eos_ids;
    struct mailbox *inbox, *outbox;
    pthread_t thread;
    bool is_thread_started;
    sem_t is_ready; /* the thread has set start_status */
    enum status start_status;
    struct error start_error;

    /* The engine thread's. */
    struct backend_device *dev;
    struct backend_model *model;
    bool is_device_apart; /* it runs beside the host and signals completion */
    struct kv_manager *kv;
    struct scheduler *sched;
    struct batch batch;
    struct flight flight[2];
    uint32_t oldest, n_flights; /* a ring of limits.n_slots */
    struct masks masks;
    uint32_t n_may_force;        /* tokens, of the outcome that is being taken */
    struct lower *lower;         /* NULL: no tiers below host memory */
    struct engine_digest digest; /* before they are open */
    struct shared_pool shared;   /* the host_pool, or no map: it is the backend's own */
    struct engine_moves last_moves, settling; /* of host blocks; the latter are polled for */
    uint64_t landed_us;                       /* when the last outcome came */
    bool is_starved;            /* nothing can be computed before a step ends or a mail arrives */
    struct engine_stats totals; /* copied to `stats` after each step */
    struct engine_interval interval;
    struct error failure;
    bool is_draining, is_drained_sent, is_stopping, is_failed;
    struct request_mail failed_mail, kv_mail;

    /* The creator's. */
    bool is_drain_sent;
    struct request_mail drain_mail, stop_mail;

    /* Shared. */
    atomic_bool is_kv_mail_sent; /* and not yet received */
    atomic_uint n_queued;        /* submitted, not yet admitted or ended */
    atomic_bool is_unavailable;  /* draining or failed */
    pthread_mutex_t stats_lock;  /* held for a copy; nothing is taken under it */
    struct engine_stats stats;
};

/* engine_setup.c, on the engine's thread: device, model, pool, scheduler. engine_close_device
 * accepts a half-open engine. */
enum status engine_open_device(struct engine *e, struct error *err);
void engine_close_device(struct engine *e);

/* engine_kv.c, on the engine's thread. */
void engine_publish_kv_events(struct engine *e,
                              bool may_wait); /* `may_wait`: no step follows soon */
void engine_on_explain(struct engine *e, struct request *r);
void engine_on_snapshot(struct engine *e, struct engine_snapshot *s);
void engine_count_kv(struct engine *e); /* into the totals */

/* engine_holds.c, on the engine's thread. */
void engine_on_hold(struct engine *e, struct engine_hold_call *call);
void engine_count_holds(struct engine *e); /* into the totals */

/* engine_tiers.c, on the engine's thread; nothing without tiers, except for the first. */
enum status engine_open_tiers(struct engine *e, const struct backend_kv_info *kv,
                              struct error *err); /* before the kv manager */
void engine_begin_digest(struct engine *e);       /* before the weights are loaded */
void engine_close_tiers(struct engine *e);        /* no request is left; accepts half an engine */
void engine_turn_tiers(struct engine *e, uint64_t now_us);
void engine_note_moves(struct engine *e, backend_fence out, backend_fence in); /* 0: none */
uint64_t engine_tiers_sleep_us(const struct engine *e, uint64_t now_us);       /* at most */
bool engine_drain_tiers(struct engine *e, uint64_t now_us); /* no request is left; true: done */

/* engine.c, on the engine's thread. */
void engine_send(struct mailbox *box, struct request_mail *mail, enum mail_kind kind);
void engine_report_progress(struct engine *e, struct request *r);
void engine_report_end(struct engine *e, struct request *r);
void engine_count_end(struct engine *e, const struct request *r);
void engine_leave_queue(struct engine *e, uint32_t n);
void engine_update_stats(struct engine *e);
void engine_fail(struct engine *e, const struct error *err); /* the device is lost */

/* engine_step.c, on the engine's thread: a step in, a step out; sets is_starved when there is
 * nothing to do but to wait. And all out, of requests that have all ended. */
void engine_turn(struct engine *e);
void engine_drop_flights(struct engine *e);
#define ENGINE_STEP_TIMEOUT_US (600ull * 1000 * 1000) /* a step that takes longer: a hung device */

/* engine.c: the thread; the creator's side of the outbox. */
void *engine_main(void *engine);
void engine_on_mail(struct mail *mail, void *engine);

#endif

/* router/kv/kv_sequence.h - the order of a worker's batches: which is next, and what is missing.
 *
 * A publisher numbers its batches from 0, and again from 0 when its process is restarted. It drops
 * batches silently for a subscriber that reads too slowly, and repeats the last 10,000 or so on
 * request, when it has a replay socket.
 *
 *      connected ──▶ asks for what it may lack ──▶ REPLAYING ──answered──▶ LIVE
 *                    (from the last batch on)       live batches wait       │ a gap: asks again
 *                                                        ▲──────────────────┘
 *
 *      number = next      applied
 *      number < next      of the same connection: a replay had it already, ignored
 *                         first of a new connection: the process was restarted
 *      number > next      a gap: asked for, at most once a second; not again for 30 s when the
 *                         answer did not close it: then what is known is dropped, and the stream
 *                         continues at that number
 *
 * After a reconnection the last batch applied is asked for as well: if it is there with the bytes
 * that it had, the process is the same one. Waiting batches are limited in number and bytes; when
 * they are too many, the replay is given up.
 *
 * LIMITS. A process that was restarted and, without a replay, is first heard of by just the number
 * that its predecessor would have used next, is taken for that one.
 *
 * Pure: no clock, no I/O. Thread: that of its owner. */
#ifndef ROUTER_KV_KV_SEQUENCE_H
#define ROUTER_KV_KV_SEQUENCE_H

#include "common/base/buf.h"

#define KV_SEQUENCE_END           UINT64_MAX /* number of the message behind a replay's last */
#define KV_SEQUENCE_WAITING_MAX   4096u      /* batches that wait for a replay */
#define KV_SEQUENCE_WAITING_BYTES (4u << 20)
#define KV_SEQUENCE_ASK_US        UINT64_C(1000000)  /* between two questions */
#define KV_SEQUENCE_FAILED_US     UINT64_C(30000000) /* after one that did not help */
#define KV_SEQUENCE_ANSWER_US     UINT64_C(10000000) /* a replay without a batch for so long failed */

/* Why what is known of the cache must be dropped. */
enum kv_reset {
    KV_RESET_BEGIN,        /* the first batch of the process follows */
    KV_RESET_LATE,         /* the first one seen follows; those before it are not to be had */
    KV_RESET_LOST,         /* batches were lost and are not to be had */
    KV_RESET_RESTART,      /* the process was restarted; its first batch follows */
    KV_RESET_RESTART_LATE, /* so it was, and its first batches are not to be had */
    KV_RESET_COUNT
};
extern const char *const kv_reset_names[KV_RESET_COUNT];

struct kv_sequence_ops {
    void (*apply)(struct str batch, void *arg); /* the next one, in order */
    void (*reset)(enum kv_reset why, void *arg);
    /* Requests a replay, in place of one that is under way. Not answered before it returns. */
    void (*ask)(uint64_t from, void *arg);
};

struct kv_sequence {
    const struct kv_sequence_ops *ops;
    void *arg;
    bool has_replay;                /* the publisher can be asked */
    bool has_place;                 /* `next` is known */
    bool was_restarted;             /* the next reset is a restart's */
    bool is_replaying, checks_last; /* the replay begins with the last batch applied */
    bool is_verified; /* the last batch applied is of the process behind this connection */
    bool wants_check; /* and that is to be asked for, as soon as may be */
    bool is_first;    /* this connection has brought no batch */
    uint64_t next;
    uint64_t last_hash;             /* of the last batch applied */
    uint64_t began_at, last_live;   /* of this connection: `next` at its begin; the last batch */
    uint64_t asked_us, answered_us; /* the last question, and sign of life of its answer */
    uint64_t not_before_us;         /* no question until then */
    struct buf waiting;             /* number, length, bytes; then the next */
    uint32_t n_waiting;
    uint64_t n_replayed, n_gaps, n_lost; /* batches; gaps seen; gaps that stayed open */
};

void kv_sequence_init(struct kv_sequence *s, bool has_replay, const struct kv_sequence_ops *ops,
                      void *arg);
void kv_sequence_fini(struct kv_sequence *s);

/* The stream is; or no longer. */
void kv_sequence_connected(struct kv_sequence *s, uint64_t now_us);
void kv_sequence_disconnected(struct kv_sequence *s);
void kv_sequence_take(struct kv_sequence *s, uint64_t number, struct str batch, uint64_t now_us);

/* One message of a replay, its end included; or there will be no more. */
void kv_sequence_replayed(struct kv_sequence *s, uint64_t number, struct str batch,
                          uint64_t now_us);
void kv_sequence_replay_failed(struct kv_sequence *s, uint64_t now_us);

void kv_sequence_tick(struct kv_sequence *s, uint64_t now_us); /* about once a second */

void kv_sequence_check(const struct kv_sequence *s);

#endif

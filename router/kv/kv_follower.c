/* router/kv/kv_follower.c - see the header. */
#include "router/kv/kv_follower.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/net/loop.h"
#include "common/telemetry/log.h"

#define BACKOFF_FIRST_US UINT64_C(100000)
#define BACKOFF_MAX_US   UINT64_C(5000000)
#define WRONG_US         UINT64_C(60000000)

static uint64_t now_of(const struct kv_follower *f) {
    return loop_now_us(f->shared->loop);
}

static void change(struct kv_follower *f) {
    loop_defer(f->shared->loop, &f->change);
}

static void on_changed(void *arg) {
    struct kv_follower *f = arg;

    f->on_change(f);
    f->was_cleared = false;
}

/* --- batches ---------------------------------------------------------------------------------- */

static void reset(struct kv_follower *f, enum kv_reset why, uint64_t batch) {
    bool is_new = why == KV_RESET_RESTART || why == KV_RESET_RESTART_LATE;

    kv_picture_reset(&f->picture, why == KV_RESET_BEGIN || why == KV_RESET_RESTART, is_new);
    f->n_restarts += is_new;
    f->was_cleared = f->was_cleared || is_new;
    log_event(f->shared->log, LOG_INFO, "kv_events_reset", log_u64("worker", f->config.worker),
              log_u64("rank", f->config.rank), log_z("why", kv_reset_names[why]),
              log_u64("batch", batch));
    change(f);
}

static void on_reset(enum kv_reset why, void *arg) {
    struct kv_follower *f = arg;

    reset(f, why, f->sequence.next);
}

static void on_apply(struct str batch, void *arg) {
    struct kv_follower *f = arg;
    struct kv_picture_change did;
    uint64_t stored = f->picture.stored_tokens;

    if (kv_picture_take(&f->picture, batch, &did) != ST_OK) {
        f->n_unreadable++;
        kv_picture_reset(&f->picture, false, false); /* a removal may have been in it */
    }
    f->was_cleared = f->was_cleared || did.was_cleared || did.is_other;
    if (f->picture.is_complete && !f->sequence.is_replaying)
        f->live_tokens += f->picture.stored_tokens - stored;
    change(f);
}

static void on_ask(uint64_t from, void *arg) {
    struct kv_follower *f = arg;

    kv_stream_open(&f->replay, ZMTP_DEALER, &f->config.replay, from);
}

static const struct kv_sequence_ops sequence_ops = {on_apply, on_reset, on_ask};

/* --- replays ---------------------------------------------------------------------------------- */

static void replay_up(void *arg) {
    (void)arg;
}

static void replay_batch(uint64_t number, struct str batch, void *arg) {
    struct kv_follower *f = arg;

    kv_sequence_replayed(&f->sequence, number, batch, now_of(f));
    if (!f->sequence.is_replaying) kv_stream_close(&f->replay);
}

static void replay_lost(const char *why, bool is_wrong, void *arg) {
    struct kv_follower *f = arg;

    (void)is_wrong; /* the stream goes on without */
    if (f->sequence.is_replaying) {
        log_event(f->shared->log, LOG_INFO, "kv_events_lost", log_u64("worker", f->config.worker),
                  log_u64("rank", f->config.rank), log_z("socket", "replay"), log_z("why", why));
    }
    kv_sequence_replay_failed(&f->sequence, now_of(f));
}

static const struct kv_stream_events replay_events = {replay_up, replay_batch, replay_lost};

/* --- the stream ------------------------------------------------------------------------------- */

static void connected(struct kv_follower *f) {
    f->is_connected = true;
    f->was_reported_wrong = false;
    log_event(f->shared->log, LOG_INFO, "kv_events_connected", log_u64("worker", f->config.worker),
              log_u64("rank", f->config.rank));
    change(f);
}

static void stream_up(void *arg) {
    struct kv_follower *f = arg;

    f->n_failures = 0;
    connected(f);
    kv_sequence_connected(&f->sequence, now_of(f));
}

static void stream_batch(uint64_t number, struct str batch, void *arg) {
    struct kv_follower *f = arg;

    kv_sequence_take(&f->sequence, number, batch, now_of(f));
}

/* The first of several failures alone is logged. */
static void log_lost(const struct kv_follower *f, const char *why) {
    if (!f->is_connected && f->n_failures > 0) return;
    log_event(f->shared->log, LOG_INFO, "kv_events_lost", log_u64("worker", f->config.worker),
              log_u64("rank", f->config.rank), log_z("socket", "stream"), log_z("why", why));
}

static void log_unusable(struct kv_follower *f, const char *why) {
    if (f->was_reported_wrong) return;
    f->was_reported_wrong = true;
    log_event(f->shared->log, LOG_WARN, "kv_events_unusable", log_u64("worker", f->config.worker),
              log_u64("rank", f->config.rank), log_z("socket", "stream"), log_z("why", why));
}

static void lost(struct kv_follower *f, const char *why, bool is_wrong) {
    uint64_t pause_us = MIN(BACKOFF_FIRST_US << MIN(f->n_failures, 10u), BACKOFF_MAX_US);

    if (is_wrong) {
        log_unusable(f, why);
    } else {
        log_lost(f, why);
    }
    f->n_failures++;
    f->is_connected = false;
    if (is_wrong) pause_us = WRONG_US;
    loop_timer_start(&f->retry, pause_us + rng_at(f->shared->seed, now_of(f)) % (pause_us / 4));
    change(f);
}

static void stream_lost(const char *why, bool is_wrong, void *arg) {
    struct kv_follower *f = arg;

    kv_stream_close(&f->replay);
    kv_sequence_disconnected(&f->sequence);
    lost(f, why, is_wrong);
}

static const struct kv_stream_events stream_events = {stream_up, stream_batch, stream_lost};

/* --- the feed of a worker of ours ------------------------------------------------------------- */

static void feed_up(void *arg) {
    connected(arg);
}

/* The next connection brings all that the worker holds. */
static void start_over(struct kv_follower *f, const char *why) {
    f->n_lost++;
    f->wants_snapshot = true;
    kv_feed_close(&f->feed);
    lost(f, why, false);
}

/* An older worker names its run in digests alone. */
static bool is_of_other_run(const struct kv_follower *f, const struct kv_frame *frame) {
    return f->generation[0] && frame->generation[0] &&
           strcmp(f->generation, frame->generation) != 0;
}

static void note_run(struct kv_follower *f, const struct kv_frame *frame) {
    if (frame->generation[0]) memcpy(f->generation, frame->generation, sizeof(f->generation));
}

static void feed_batch(struct kv_follower *f, const struct kv_frame *frame) {
    if (!f->has_place && frame->number == 0) {
        f->has_place = true;
        f->next = 0;
        reset(f, KV_RESET_BEGIN, 0);
    }
    if (!f->has_place || frame->number > f->next) {
        start_over(f, "a batch is missing");
    } else if (frame->number == f->next) {
        f->next++;
        on_apply(frame->batch, f);
    }
}

static void feed_gap(struct kv_follower *f, const struct kv_frame *frame) {
    bool is_other = is_of_other_run(f, frame);
    enum kv_reset why = f->has_place ? KV_RESET_LOST : KV_RESET_LATE;

    if (f->has_place && !is_other && !f->wants_snapshot) f->n_gaps++;
    f->has_place = true;
    f->wants_snapshot = false;
    f->next = frame->next;
    note_run(f, frame);
    reset(f, is_other ? KV_RESET_RESTART_LATE : why, f->next);
}

static void feed_digest(struct kv_follower *f, const struct kv_frame *frame) {
    if (!f->has_place && frame->next == 0) { /* it has never held anything */
        f->has_place = true;
        reset(f, KV_RESET_BEGIN, 0);
    }
    if (!f->has_place || frame->next != f->next) {
        start_over(f, "a batch is missing");
    } else if (is_of_other_run(f, frame)) {
        start_over(f, "it was restarted"); /* and took the position for one of its own */
    } else if (!kv_picture_compare(&f->picture, frame)) {
        start_over(f, "the blocks counted differ from the worker's digest");
    } else {
        note_run(f, frame);
        f->n_failures = 0;
        change(f);
    }
}

static void feed_frame(const struct kv_frame *frame, void *arg) {
    struct kv_follower *f = arg;

    switch (frame->kind) {
    case KV_FRAME_BATCH: feed_batch(f, frame); return;
    case KV_FRAME_GAP: feed_gap(f, frame); return;
    case KV_FRAME_DIGEST: feed_digest(f, frame); return;
    case KV_FRAME_CLOSED:
        kv_feed_close(&f->feed);
        lost(f, frame->why, false);
        return;
    case KV_FRAME_OTHER: return;
    }
}

static void feed_lost(const char *why, bool is_wrong, void *arg) {
    lost(arg, why, is_wrong);
}

static const struct kv_feed_events feed_events = {feed_up, feed_frame, feed_lost};

static void open_feed(struct kv_follower *f) {
    uint64_t from = f->wants_snapshot ? KV_FEED_SNAPSHOT : f->has_place ? f->next : 0;
    struct error err = {0};

    if (kv_feed_open(&f->feed, f->url, &f->config.stream, from, f->generation, &err) != ST_OK)
        lost(f, err.message, true);
}

/* --- its life --------------------------------------------------------------------------------- */

static void connect_to_it(void *arg) {
    struct kv_follower *f = arg;

    if (f->url[0])
        open_feed(f);
    else
        kv_stream_open(&f->stream, ZMTP_SUB, &f->config.stream, 0);
}

void kv_follower_start(struct kv_follower *f, struct kv_shared *shared,
                       const struct kv_follower_config *config,
                       void (*on_change)(struct kv_follower *f), void *owner) {
    *f = (struct kv_follower){
        .shared = shared, .config = *config, .on_change = on_change, .owner = owner};
    kv_stream_init(&f->stream, shared->loop, &shared->room, &stream_events, f);
    kv_stream_init(&f->replay, shared->loop, &shared->room, &replay_events, f);
    kv_sequence_init(&f->sequence, config->has_replay, &sequence_ops, f);
    kv_feed_init(&f->feed, shared->client, &shared->room, &feed_events, f);
    if (config->url) snprintf(f->url, sizeof(f->url), "%s", config->url);
    f->config.url = NULL;
    kv_picture_init(&f->picture, &shared->ledgers, shared->seed);
    loop_timer_init(&f->retry, shared->loop, connect_to_it, f);
    loop_task_init(&f->change, on_changed, f);
    connect_to_it(f);
}

void kv_follower_stop(struct kv_follower *f) {
    if (!f->shared) return;
    kv_stream_fini(&f->stream);
    kv_stream_fini(&f->replay);
    kv_sequence_fini(&f->sequence);
    kv_feed_fini(&f->feed);
    kv_picture_fini(&f->picture);
    loop_timer_fini(&f->retry);
    loop_defer_cancel(&f->change);
    f->shared = NULL;
}

uint64_t kv_follower_n_gaps(const struct kv_follower *f) {
    return f->sequence.n_gaps + f->n_gaps;
}

uint64_t kv_follower_n_lost(const struct kv_follower *f) {
    return f->sequence.n_lost + f->n_lost;
}

void kv_follower_tick(struct kv_follower *f) {
    if (f->stream.is_open && f->is_connected) kv_sequence_tick(&f->sequence, now_of(f));
    if (!f->sequence.is_replaying) kv_stream_close(&f->replay); /* given up */
}

void kv_follower_check(const struct kv_follower *f) {
    kv_sequence_check(&f->sequence);
    kv_picture_check(&f->picture);
    assert(!f->sequence.is_replaying || f->replay.is_open);
    assert(!f->is_connected || f->stream.is_open || f->feed.is_up);
}

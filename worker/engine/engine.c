/* worker/engine/engine.c - the step loop, and the two ends of its mailboxes.
 *
 * One request from submit to end:
 *
 *      worker loop                engine thread                                  device
 *      engine_submit
 *        └── SUBMIT ────────────▶ scheduler_add ─▶ waiting
 *                                   │ scheduler_step: cached blocks found, new ones taken
 *                                   ▼
 *                                 running ◀────────────────────────────┐
 *                                   │ batch_lay_out: row, tokens, slots │
 *                                   │ sampler_fill: how to choose       │
 *                                   ├── submit ──────────────────────────────────▶ run
 *                                   │◀─ wait ──────────────────────────────────── outputs
 *                                   │ sampler_take: logprobs            │
 *                                   │ scheduler_take: append, end? ─ no ┘
 *                                   │ yes: blocks free
 *        on_progress ◀── PROGRESS ─────┤ after every step with a token
 *        on_progress(is_finished) ◀────┘ and the engine's reference is gone
 *
 * A PROGRESS mail is embedded in its request and sent only when none is under way, so a slow reader
 * gets many tokens at once and the engine never waits. Each mail about a request holds a reference;
 * the last reference frees.
 *
 * engine_step.c describes how two steps at a time go to the device and come back. Without runnable
 * requests the thread sleeps on its inbox; with one step in flight and nothing to queue behind it,
 * on its inbox and the device, so that a new request does not wait. When the device fails, all
 * requests end with FINISH_ERROR and new ones are refused. */
#include <assert.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/telemetry/log.h"
#include "worker/engine/engine_internal.h"

static struct request_mail *request_mail_of(struct list *link) {
    return CONTAINER_OF(mail_of(link), struct request_mail, mail);
}

/* --- reporting -------------------------------------------------------------------------------- */

void engine_send(struct mailbox *box, struct request_mail *mail, enum mail_kind kind) {
    mail->kind = kind;
    mailbox_push(box, &mail->mail);
}

void engine_report_progress(struct engine *e, struct request *r) {
    request_publish(r);
    if (!atomic_exchange(&r->is_news_sent, true))
        engine_send(e->outbox, &request_ref(r)->progress_mail, MAIL_PROGRESS);
}

void engine_leave_queue(struct engine *e, uint32_t n) {
    atomic_fetch_sub_explicit(&e->n_queued, n, memory_order_relaxed);
}

void engine_update_stats(struct engine *e) {
    struct scheduler_counts c = scheduler_counts(e->sched);
    const struct block_pool *pool = kv_manager_pool(e->kv);
    struct engine_stats *t = &e->totals;

    t->running = c.running;
    t->waiting = c.waiting;
    t->queued_tokens = c.queued_tokens;
    t->prefill_rate = scheduler_prefill_rate(e->sched);
    t->preemptions = c.preemptions;
    t->swapped = c.swapped;
    t->swap_outs = c.swap_outs;
    t->forks = c.forks;
    t->kv_free = block_pool_n_free(pool);
    t->kv_total = block_pool_n_usable(pool);
    t->kv_waste = kv_manager_waste(e->kv);
    t->flights = e->n_flights;
    t->masks_new = e->masks.stats.n_new;
    t->masks_known = e->masks.stats.n_known;
    t->is_draining = e->is_draining;
    t->is_failed = e->is_failed;
    engine_count_kv(e);
    pthread_mutex_lock(&e->stats_lock);
    e->stats = *t;
    pthread_mutex_unlock(&e->stats_lock);
}

/* What is to be counted of a request that has left the scheduler. */
void engine_count_end(struct engine *e, const struct request *r) {
    e->totals.finished[r->finish]++;
    if (r->n_admissions == 0) engine_leave_queue(e, 1);
}

/* The last the engine does with it, or all but dropping the outcomes still under way. */
void engine_report_end(struct engine *e, struct request *r) {
    constrain_end(r);
    engine_report_progress(e, r);
    if (r->n_in_flight == 0) request_unref(r);
}

static void end_request(struct engine *e, struct request *r, enum finish_reason reason,
                        const struct error *err, uint64_t now_us) {
    if (r->state == REQUEST_DONE) return;
    if (err) r->error = *err;
    scheduler_end(e->sched, r, reason, now_us);
    engine_count_end(e, r);
    engine_update_stats(e);
    engine_report_end(e, r);
}

void engine_fail(struct engine *e, const struct error *err) {
    struct request *r;

    e->failure = *err;
    e->is_failed = true;
    atomic_store(&e->is_unavailable, true);
    log_event(e->options.log, LOG_ERROR, "engine_failed", log_z("error", err->message));
    while ((r = scheduler_any(e->sched)) != NULL)
        end_request(e, r, FINISH_ERROR, err, clock_now_us());
    engine_drop_flights(e);
    engine_send(e->outbox, &e->failed_mail, MAIL_FAILED);
}

/* --- log lines -------------------------------------------------------------------------------- */

static void log_interval(struct engine *e, uint64_t now_us) {
    struct engine_interval *i = &e->interval;
    const struct engine_stats *t = &e->totals;
    double seconds = (double)(now_us - i->start_us) * 1e-6;

    log_event(
        e->options.log, LOG_INFO, "engine_throughput", log_u64("running", t->running),
        log_u64("queued", t->waiting), log_u64("new_tokens", t->prefill_tokens - i->prefill_tokens),
        log_u64("cached_tokens", t->cached_tokens - i->cached_tokens),
        log_f64("prefill_tokens_per_s", (double)(t->prefill_tokens - i->prefill_tokens) / seconds),
        log_f64("gen_tokens_per_s", (double)(t->generated_tokens - i->generated_tokens) / seconds),
        log_f64("token_usage", kv_manager_usage(e->kv)),
        log_f64("prefix_hit_rate", t->prefix_hit_rate));
    i->is_active = false;
}

/* Before each step or sleep: a line when an interval with work in it is over. */
static void watch_interval(struct engine *e, uint64_t now_us, bool has_work) {
    struct engine_interval *i = &e->interval;

    if (e->options.log_interval_us == 0) return;
    if (i->is_active && now_us - i->start_us >= e->options.log_interval_us) log_interval(e, now_us);
    if (i->is_active || !has_work) return;
    *i = (struct engine_interval){.start_us = now_us,
                                  .prefill_tokens = e->totals.prefill_tokens,
                                  .generated_tokens = e->totals.generated_tokens,
                                  .cached_tokens = e->totals.cached_tokens,
                                  .is_active = true};
}

/* How long the thread may sleep before a line is due. */
static uint64_t sleep_us(const struct engine *e, uint64_t now_us) {
    uint64_t due_us = e->interval.start_us + e->options.log_interval_us;

    if (!e->interval.is_active) return UINT64_MAX;
    return due_us > now_us ? due_us - now_us : 0;
}

/* --- hearing ---------------------------------------------------------------------------------- */

static void on_submit(struct engine *e, struct request *r, uint64_t now_us) {
    struct error err = {0};

    constrain_begin(r);
    if (e->is_failed) {
        end_request(e, r, FINISH_ERROR, &e->failure, now_us);
    } else if (scheduler_add(e->sched, r, &err) != ST_OK) {
        end_request(e, r, FINISH_ERROR, &err, now_us);
    }
}

static void on_reset(struct engine *e, struct engine_reset *reset) {
    reset->is_ok = scheduler_reset_prefix_cache(e->sched, reset->reset_running) == ST_OK;
    if (reset->is_ok && e->lower) lower_reset(e->lower);
    engine_send(e->outbox, &reset->mail, MAIL_RESET);
}

static void handle(struct engine *e, struct request_mail *mail) {
    struct request *r;

    if (e->lower && lower_owns(e->lower, &mail->mail)) {
        lower_on_mail(e->lower, &mail->mail);
        return;
    }
    switch ((enum mail_kind)mail->kind) {
    case MAIL_SUBMIT:
        on_submit(e, CONTAINER_OF(mail, struct request, submit_mail), clock_now_us());
        return;
    case MAIL_CANCEL:
        r = CONTAINER_OF(mail, struct request, cancel_mail);
        end_request(e, r, r->cancel_reason, NULL, clock_now_us());
        request_unref(r);
        return;
    case MAIL_RESET: on_reset(e, CONTAINER_OF(mail, struct engine_reset, mail)); return;
    case MAIL_EXPLAIN:
        engine_on_explain(e, CONTAINER_OF(mail, struct request, submit_mail));
        return;
    case MAIL_SNAPSHOT:
        engine_on_snapshot(e, CONTAINER_OF(mail, struct engine_snapshot, mail));
        return;
    case MAIL_HOLD: engine_on_hold(e, CONTAINER_OF(mail, struct engine_hold_call, mail)); return;
    case MAIL_DRAIN: e->is_draining = true; return;
    case MAIL_STOP: e->is_stopping = true; return;
    case MAIL_PROGRESS:
    case MAIL_KV_EVENTS:
    case MAIL_FAILED: break;
    }
    assert(!"a mail for the creator");
}

/* --- the thread ------------------------------------------------------------------------------- */

/* Sleeps until there are mails, or the device may have finished a step that nothing can go
 * behind. */
static void await(struct engine *e, struct list *mails, uint64_t now_us) {
    int fd = e->n_flights > 0 ? e->options.backend->event_fd(e->dev) : -1;
    uint64_t timeout_us = MIN(sleep_us(e, now_us), engine_tiers_sleep_us(e, now_us)), signal;

    if (e->n_flights > 0) timeout_us = fd >= 0 ? MIN(timeout_us, ENGINE_STEP_TIMEOUT_US) : 0;
    mailbox_wait_or(e->inbox, mails, fd, timeout_us);
    if (fd >= 0) (void)!read(fd, &signal, sizeof(signal));
}

/* Handles the mails that have arrived; without other work, sleeps until one arrives. */
static void handle_mails(struct engine *e) {
    struct list mails, *link;
    bool has_work = e->n_flights > 0 || scheduler_has_work(e->sched);
    uint64_t now_us = clock_now_us();

    watch_interval(e, now_us, has_work);
    list_init(&mails);
    if (!has_work || e->is_starved) {
        await(e, &mails, now_us);
    } else {
        mailbox_take(e->inbox, &mails);
    }
    while ((link = list_pop_front(&mails)) != NULL)
        handle(e, request_mail_of(link));
}

static void report_drained(struct engine *e) {
    if (e->is_drained_sent) return;
    e->is_drained_sent = true;
    engine_send(e->outbox, &e->drain_mail, MAIL_DRAIN);
}

static void drop_all(struct engine *e) {
    struct request *r;

    while ((r = scheduler_any(e->sched)) != NULL) {
        scheduler_end(e->sched, r, FINISH_ABORT, clock_now_us());
        constrain_end(r);
        if (r->n_in_flight == 0) request_unref(r);
    }
    engine_drop_flights(e);
    assert(scheduler_counts(e->sched).in_flight == 0);
}

void *engine_main(void *engine) {
    struct engine *e = engine;

    e->start_status = engine_open_device(e, &e->start_error);
    if (e->start_status == ST_OK) engine_update_stats(e);
    sem_post(&e->is_ready);
    if (e->start_status != ST_OK) {
        engine_close_device(e);
        return NULL;
    }
    while (!e->is_stopping) {
        handle_mails(e);
        engine_turn_tiers(e, clock_now_us());
        engine_turn(e);
        engine_publish_kv_events(e, !scheduler_any(e->sched));
        engine_update_stats(e);
        if (e->is_draining && !scheduler_any(e->sched) && engine_drain_tiers(e, clock_now_us()))
            report_drained(e);
    }
    drop_all(e);
    engine_close_device(e);
    return NULL;
}

/* --- the creator's side ----------------------------------------------------------------------- */

void engine_set_max_waiting(struct engine *e, uint32_t max_waiting) {
    e->options.max_waiting = e->info.max_waiting = max_waiting;
}

enum status engine_submit(struct engine *e, struct request *r, struct error *err) {
    uint64_t kv_tokens = (uint64_t)e->info.n_blocks * e->info.block_size;
    uint32_t n_queued = atomic_load_explicit(&e->n_queued, memory_order_relaxed);

    if (atomic_load(&e->is_unavailable))
        return error_set(err, ST_UNAVAILABLE,
                         e->is_drain_sent ? "this worker is shutting down: retry on another worker"
                                          : "the device has failed: restart this worker");
    if (n_queued >= e->options.max_waiting)
        return error_set(err, ST_BUSY, "%u requests are waiting, the limit is %u: retry later",
                         n_queued, e->options.max_waiting);
    if (kv_manager_most_blocks(e->kv, r->n_max) > e->info.n_blocks) /* of constants alone */
        return error_set(err, ST_TOO_LARGE,
                         "the request may grow to %u tokens, but the KV memory holds %llu: shorten "
                         "the prompt or lower max_tokens",
                         r->n_max, (unsigned long long)kv_tokens);
    if (r->arrival_us == 0) r->arrival_us = clock_now_us();
    atomic_fetch_add_explicit(&e->n_queued, 1, memory_order_relaxed);
    engine_send(e->inbox, &request_ref(r)->submit_mail, MAIL_SUBMIT);
    return ST_OK;
}

static void cancel(struct engine *e, struct request *r, enum finish_reason reason) {
    if (r->cancel_reason != FINISH_NONE || r->is_end_read) return;
    r->cancel_reason = reason;
    engine_send(e->inbox, &request_ref(r)->cancel_mail, MAIL_CANCEL);
}

void engine_cancel(struct engine *e, struct request *r) {
    cancel(e, r, FINISH_ABORT);
}

void engine_complete(struct engine *e, struct request *r) {
    cancel(e, r, FINISH_STOP);
}

void engine_drain(struct engine *e) {
    if (e->is_drain_sent) return;
    e->is_drain_sent = true;
    atomic_store(&e->is_unavailable, true);
    engine_send(e->inbox, &e->drain_mail, MAIL_DRAIN);
}

void engine_reset_prefix_cache(struct engine *e, struct engine_reset *reset) {
    engine_send(e->inbox, &reset->mail, MAIL_RESET);
}

void engine_stats(struct engine *e, struct engine_stats *out) {
    pthread_mutex_lock(&e->stats_lock);
    *out = e->stats;
    pthread_mutex_unlock(&e->stats_lock);
}

static void deliver_progress(const struct engine *e, struct request *r) {
    const struct engine_callbacks *cb = &e->options.callbacks;
    struct request_progress progress;

    atomic_exchange(&r->is_news_sent, false); /* before the look: what comes later is sent again */
    if (request_take_progress(r, &progress)) cb->on_progress(cb->arg, r, &progress);
    request_unref(r);
}

static void deliver_explanation(const struct engine *e, struct request *r) {
    const struct engine_callbacks *cb = &e->options.callbacks;

    if (cb->on_explained) cb->on_explained(cb->arg, r);
    request_unref(r);
}

void engine_on_mail(struct mail *mail, void *engine) {
    struct engine *e = engine;
    const struct engine_callbacks *cb = &e->options.callbacks;
    struct request_mail *m = CONTAINER_OF(mail, struct request_mail, mail);
    struct engine_hold_call *hold;
    struct engine_snapshot *snapshot;
    struct engine_reset *reset;

    switch ((enum mail_kind)m->kind) {
    case MAIL_PROGRESS: deliver_progress(e, CONTAINER_OF(m, struct request, progress_mail)); return;
    case MAIL_RESET:
        reset = CONTAINER_OF(m, struct engine_reset, mail);
        reset->on_done(reset);
        return;
    case MAIL_DRAIN:
        if (cb->on_drained) cb->on_drained(cb->arg);
        return;
    case MAIL_EXPLAIN: deliver_explanation(e, CONTAINER_OF(m, struct request, submit_mail)); return;
    case MAIL_SNAPSHOT:
        snapshot = CONTAINER_OF(m, struct engine_snapshot, mail);
        snapshot->on_done(snapshot);
        return;
    case MAIL_HOLD:
        hold = CONTAINER_OF(m, struct engine_hold_call, mail);
        hold->on_done(hold);
        return;
    case MAIL_KV_EVENTS:
        atomic_exchange(&e->is_kv_mail_sent, false); /* before the look */
        if (cb->on_kv_events) cb->on_kv_events(cb->arg);
        return;
    case MAIL_FAILED:
        if (cb->on_failed) cb->on_failed(cb->arg, &e->failure);
        return;
    case MAIL_SUBMIT:
    case MAIL_CANCEL:
    case MAIL_STOP: break;
    }
    assert(!"a mail for the engine");
}

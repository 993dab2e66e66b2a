/* worker/engine/engine.c - the step loop, and the two ends of its mailboxes.
 *
 * One request's life:
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
 *        on_news ◀──── NEWS ────────┤ after every step with a token
 *        on_news(is_finished) ◀─────┘ and the engine's reference is gone
 *
 * A NEWS mail is embedded in its request and sent only when none is under way, so a slow reader
 * gets many tokens at once and the engine never waits for it. Each mail about a request holds a
 * reference: whoever is last frees.
 *
 * Steps in flight: two where the device works on its own (limits.n_slots), so that it finds the next
 * step when it ends one; a token that is still being sampled goes in by the name of its output.
 *
 *      engine   schedule n+1 | wait | take n, tell | schedule n+2 | wait | take n+1, tell | ...
 *      device   ...... n ...........|  n+1 ...........................|  n+2 .............
 *
 * What happens to a request meanwhile (its end, a cancel, preemption) does not touch steps that
 * are under way: their outputs are dropped, or kept by a request that waits again. Blocks and rows may
 * be given to others at once, because the device does everything in the order it was handed over.
 * A request lives until its last outcome has come (request.n_in_flight).
 *
 * The thread sleeps on its inbox when nothing can run; when one step is in flight and nothing can go
 * behind it, on its inbox and the device, so that a new request is not kept waiting. When the
 * device fails, everything ends with FINISH_ERROR and nothing is accepted any more. */
#include "worker/engine/engine_internal.h"

#include <assert.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/metrics.h"
#include "worker/engine/sampler.h"
#include "worker/sched/beam_group.h"

#define MOVES_AT_A_TIME 256u
#define STEP_TIMEOUT_US (600ull * 1000 * 1000) /* a step that takes longer is a hung device */

static struct request_mail *request_mail_of(struct list *link) {
    return CONTAINER_OF(mail_of(link), struct request_mail, mail);
}

/* --- telling ---------------------------------------------------------------------------------- */

static void send(struct mailbox *box, struct request_mail *mail, enum mail_kind kind) {
    mail->kind = kind;
    mailbox_push(box, &mail->mail);
}

static void tell_news(struct engine *e, struct request *r) {
    request_publish(r);
    if (!atomic_exchange(&r->is_news_sent, true))
        send(e->outbox, &request_ref(r)->news_mail, MAIL_NEWS);
}

static void leave_queue(struct engine *e, uint32_t n) {
    atomic_fetch_sub_explicit(&e->n_queued, n, memory_order_relaxed);
}

static void update_stats(struct engine *e) {
    struct scheduler_counts c = scheduler_counts(e->sched);
    const struct block_pool *pool = kv_manager_pool(e->kv);
    struct engine_stats *t = &e->totals;

    t->running = c.running;
    t->waiting = c.waiting;
    t->queued_tokens = c.queued_tokens;
    t->preemptions = c.preemptions;
    t->swapped = c.swapped;
    t->swap_outs = c.swap_outs;
    t->forks = c.forks;
    t->kv_free = block_pool_n_free(pool);
    t->kv_total = block_pool_n_usable(pool);
    t->kv_waste = kv_manager_waste(e->kv);
    t->flights = e->n_flights;
    t->is_draining = e->is_draining;
    t->is_failed = e->is_failed;
    engine_count_kv(e);
    pthread_mutex_lock(&e->stats_lock);
    e->stats = *t;
    pthread_mutex_unlock(&e->stats_lock);
}

/* What is to be counted of a request that has left the scheduler. */
static void count_end(struct engine *e, const struct request *r) {
    e->totals.finished[r->finish]++;
    if (r->n_admissions == 0) leave_queue(e, 1);
}

/* The last the engine does with it, or all but dropping the outcomes still under way. */
static void tell_end(struct engine *e, struct request *r) {
    tell_news(e, r);
    if (r->n_in_flight == 0) request_unref(r);
}

static void end_request(struct engine *e, struct request *r, enum finish_reason reason,
                        const struct error *err, uint64_t now_us) {
    if (r->place == PLACE_DONE) return;
    if (err) r->error = *err;
    scheduler_end(e->sched, r, reason, now_us);
    count_end(e, r);
    update_stats(e);
    tell_end(e, r);
}

/* The outcome of an entry that nobody waits for: its request, or its search, has ended before. */
static void drop_outcome(struct engine *e, const struct schedule_entry *entry) {
    struct request *r = entry->request;

    (void)scheduler_take(e->sched, entry, 0, 0);
    if (request_is_beam(r)) {
        beam_group_unref(r->group);
    } else if (r->n_in_flight == 0) {
        request_unref(r);
    }
}

static struct flight *pop_flight(struct engine *e) {
    struct flight *f = &e->flight[e->oldest];

    e->oldest = (e->oldest + 1) % e->limits.n_slots;
    e->n_flights--;
    return f;
}

/* Of requests that have all ended. */
static void drop_flights(struct engine *e) {
    while (e->n_flights > 0) {
        struct flight *f = pop_flight(e);

        if (!e->is_failed) (void)e->options.backend->wait(e->dev, f->fence, STEP_TIMEOUT_US);
        for (uint32_t i = 0; i < f->schedule.n_entries; i++)
            drop_outcome(e, &f->schedule.entry[i]);
    }
}

static void fail(struct engine *e, const struct error *err) {
    struct request *r;

    e->failure = *err;
    e->is_failed = true;
    atomic_store(&e->is_unavailable, true);
    log_event(e->options.log, LOG_ERROR, "engine_failed", log_z("error", err->message));
    while ((r = scheduler_any(e->sched)) != NULL)
        end_request(e, r, FINISH_ERROR, err, clock_now_us());
    drop_flights(e);
    send(e->outbox, &e->failed_mail, MAIL_FAILED);
}

/* --- log lines -------------------------------------------------------------------------------- */

static void log_admissions(struct engine *e, const struct schedule *s) {
    struct scheduler_counts c;

    if (s->n_admitted == 0 || !log_is_on(e->options.log, LOG_INFO)) return;
    c = scheduler_counts(e->sched);
    log_event(e->options.log, LOG_INFO, "prefill_batch", log_u64("new_seqs", s->n_admitted),
              log_u64("new_tokens", s->new_tokens), log_u64("cached_tokens", s->cached_tokens),
              log_u64("running", c.running), log_u64("queued", c.waiting),
              log_f64("token_usage", kv_manager_usage(e->kv)));
}

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

    if (e->is_failed) {
        end_request(e, r, FINISH_ERROR, &e->failure, now_us);
    } else if (scheduler_add(e->sched, r, &err) != ST_OK) {
        end_request(e, r, FINISH_ERROR, &err, now_us);
    }
}

static void on_reset(struct engine *e, struct engine_reset *reset) {
    reset->is_ok = scheduler_reset_prefix_cache(e->sched, reset->reset_running) == ST_OK;
    send(e->outbox, &reset->mail, MAIL_RESET);
}

static void hear(struct engine *e, struct request_mail *mail) {
    struct request *r;

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
    case MAIL_DRAIN: e->is_draining = true; return;
    case MAIL_STOP: e->is_stopping = true; return;
    case MAIL_NEWS:
    case MAIL_KV_EVENTS:
    case MAIL_FAILED: break;
    }
    assert(!"a mail for the creator");
}

/* --- one step --------------------------------------------------------------------------------- */

/* Copies of whole blocks, each run of one kind in one call. */
static enum status move_blocks(struct engine *e) {
    const struct backend_ops *ops = e->options.backend;
    struct backend_copy pairs[MOVES_AT_A_TIME];
    backend_fence fence;
    uint32_t n_moves, n;
    const struct kv_move *moves = kv_manager_moves(e->kv, &n_moves);
    enum status st = ST_OK;

    for (uint32_t at = 0; at < n_moves && st == ST_OK; at += n) {
        for (n = 0; at + n < n_moves && n < MOVES_AT_A_TIME && moves[at + n].kind == moves[at].kind;
             n++)
            pairs[n] = (struct backend_copy){moves[at + n].src, moves[at + n].dst};
        switch (moves[at].kind) {
        case KV_MOVE_COPY: st = ops->kv_copy(e->model, pairs, n, &fence); break;
        case KV_MOVE_OUT: st = ops->kv_swap_out(e->model, pairs, n, &fence); break;
        case KV_MOVE_IN: st = ops->kv_swap_in(e->model, pairs, n, &fence); break;
        }
    }
    kv_manager_clear_moves(e->kv);
    return st;
}

/* What the device says is wrong with it, or what it did not do. */
static enum status lost(struct engine *e, enum status st, const char *what, struct error *err) {
    const struct backend_ops *ops = e->options.backend;
    const char *fault = ops->fault ? ops->fault(e->dev) : NULL;

    if (fault) return error_set(err, st, "%s", fault);
    return error_set(err, st, "the device did not %s: %s", what, status_name(st));
}

/* Beams die with their search, which may end while they are at the device. */
static void hold_searches(const struct schedule *s) {
    for (uint32_t i = 0; i < s->n_entries; i++)
        if (request_is_beam(s->entry[i].request)) beam_group_ref(s->entry[i].request->group);
}

static enum status hand_over(struct engine *e, struct flight *f, uint32_t slot, struct error *err) {
    const struct backend_ops *ops = e->options.backend;
    uint64_t filled_us;
    enum status st;

    if ((st = batch_lay_out(&e->batch, &f->schedule, slot)) != ST_OK)
        return error_set(err, st, "the device refused a sequence");
    if ((st = move_blocks(e)) != ST_OK) return lost(e, st, "copy blocks", err);
    sampler_fill(&e->batch.slot[slot], e->eos_ids, e->options.scheduler.n_eos,
                 e->options.geometry.vocab);
    filled_us = clock_now_us();
    st = ops->submit(e->model, slot, &e->batch.slot[slot].counts, &f->fence, err);
    f->submitted_us = clock_now_us();
    f->host_us = filled_us - f->began_us;
    f->handing_us = f->submitted_us - filled_us;
    return st;
}

/* Nothing can go behind the step in flight. Blocks may have been taken for others all the same. */
static void launch_nothing(struct engine *e) {
    struct error err = {0};
    enum status st = ST_OK;

    if (e->n_flights == 0)
        st = error_set(&err, ST_INTERNAL, "the scheduler found nothing to run");
    else if ((st = move_blocks(e)) != ST_OK)
        st = lost(e, st, "copy blocks", &err);
    if (st != ST_OK) fail(e, &err);
}

/* A step more for the device, there being a slot. False when there is nothing to compute now. */
static bool launch(struct engine *e) {
    uint32_t slot = (e->oldest + e->n_flights) % e->limits.n_slots;
    struct flight *f = &e->flight[slot];
    struct error err = {0};

    f->began_us = clock_now_us();
    kv_manager_set_now(e->kv, f->began_us);
    scheduler_step(e->sched, &f->schedule, f->began_us);
    leave_queue(e, f->schedule.n_started);
    log_admissions(e, &f->schedule);
    if (f->schedule.n_entries == 0) {
        launch_nothing(e);
        return false;
    }
    hold_searches(&f->schedule);
    e->n_flights++;
    if (hand_over(e, f, slot, &err) != ST_OK) fail(e, &err);
    return true;
}

/* --- its outcome ------------------------------------------------------------------------------ */

/* What a beam may go on with. */
static void take_beam(struct engine *e, const struct backend_stage *stage,
                      const struct batch_row *row, uint64_t now_us) {
    size_t at = (size_t)(row->first_output + row->entry->n_scores) * e->limits.max_logprobs;

    scheduler_take_beam(e->sched, row->entry, stage->out_top_token + at,
                        stage->out_top_logprob + at, now_us);
}

static void count_token(struct engine *e, struct request *r, uint64_t now_us) {
    e->totals.generated_tokens++;
    if (e->options.token_gap && r->last_token_us)
        metric_observe(e->options.token_gap, (double)(now_us - r->last_token_us) * 1e-6);
    r->last_token_us = now_us;
}

/* A row whose request has ended before is nobody's afterwards: entry NULL. */
static void take_row(struct engine *e, const struct batch_step *step, struct batch_row *row,
                     uint64_t now_us) {
    const struct schedule_entry *entry = row->entry;
    struct request *r = entry->request;
    uint32_t token;

    if (r->place == PLACE_DONE) {
        row->entry = NULL;
        drop_outcome(e, entry);
        return;
    }
    if (sampler_take(step, row, e->limits.max_logprobs, &token) == ST_OK) {
        if (request_is_beam(r)) {
            take_beam(e, &step->stage, row, now_us);
            return;
        }
        if (entry->is_sampled) count_token(e, r, now_us);
        scheduler_take(e->sched, entry, token, now_us);
    } else {
        error_set(&r->error, ST_INTERNAL,
                  "the model gave numbers that are not finite near position %u: its weights, or "
                  "their type, cannot be used",
                  entry->first + entry->n_tokens - 1);
        scheduler_end(e->sched, r, FINISH_ERROR, now_us);
        (void)scheduler_take(e->sched, entry, 0, now_us); /* its outcome has come, such as it is */
    }
    if (r->place == PLACE_DONE && !r->group) count_end(e, r);
}

/* Answers of searches that have come to their end: no rows of the step, but their beams were. */
static void take_searches(struct engine *e, struct list *ended) {
    struct request *r;

    list_init(ended);
    while ((r = scheduler_pop_ended(e->sched)) != NULL) {
        e->totals.generated_tokens += request_n_output(r);
        count_end(e, r);
        list_push_back(ended, &r->link);
    }
}

static void observe_us(struct metric *m, double us) {
    if (m) metric_observe(m, us * 1e-6);
}

/* The device's part is what it says itself; where the host is the device, what was spent in the calls
 * that run and await the step. */
static void count_times(struct engine *e, const struct flight *f, uint32_t slot, uint64_t wait_us,
                        uint64_t now_us) {
    const struct backend_ops *ops = e->options.backend;
    double device_us = (double)(f->handing_us + wait_us);
    uint64_t host_us = f->host_us;

    if (ops->step_us) {
        device_us = ops->step_us(e->model, slot);
        host_us += f->handing_us;
    }
    host_us += clock_now_us() - now_us;
    e->totals.host_us += host_us;
    e->totals.device_us += device_us;
    e->totals.busy_us += now_us - MAX(f->began_us, e->landed_us);
    e->landed_us = now_us;
    observe_us(e->options.step_host, (double)host_us);
    observe_us(e->options.step_device, device_us);
}

static void count_step(struct engine *e, const struct schedule *s) {
    e->totals.steps++;
    e->totals.computed_tokens += s->n_tokens;
    e->totals.prefill_tokens += s->prefill_tokens;
    e->totals.prompt_tokens += s->prompt_tokens;
    e->totals.cached_tokens += s->cached_prompt_tokens;
    if (e->options.step_tokens) metric_observe(e->options.step_tokens, s->n_tokens);
}

static void tell_row(struct engine *e, const struct batch_row *row) {
    struct request *r;

    if (!row->entry) return;
    r = row->entry->request;
    if (request_is_beam(r)) { /* nobody knows of it */
        beam_group_unref(r->group);
    } else if (r->place == PLACE_DONE) {
        tell_end(e, r);
    } else if (row->entry->is_sampled) {
        tell_news(e, r);
    }
}

/* Outputs are taken first, then the statistics, then everyone is told: who hears of a token sees
 * numbers that include it. */
static void take_step(struct engine *e, uint64_t wait_us) {
    uint32_t slot = e->oldest;
    struct flight *f = pop_flight(e);
    struct batch_step *step = &e->batch.slot[slot];
    uint64_t now_us = clock_now_us();
    struct list ended, *link;

    for (uint32_t i = 0; i < step->counts.n_rows; i++)
        take_row(e, step, &step->row[i], now_us);
    take_searches(e, &ended);
    count_step(e, &f->schedule);
    count_times(e, f, slot, wait_us, now_us);
    update_stats(e);
    for (uint32_t i = 0; i < step->counts.n_rows; i++)
        tell_row(e, &step->row[i]);
    while ((link = list_pop_front(&ended)) != NULL)
        tell_end(e, LIST_ENTRY(link, struct request, link));
}

/* The step has come out, such as `st` says. False when it has not, and hear_all may wait for it. */
static bool is_landed(struct engine *e, const struct flight *f, enum status *st) {
    const struct backend_ops *ops = e->options.backend;
    uint64_t spent_us = clock_now_us() - f->submitted_us;

    if (e->is_starved) {
        *st = ops->poll(e->dev, f->fence);
        if (*st != ST_AGAIN) return true;
        if (spent_us < STEP_TIMEOUT_US && ops->event_fd(e->dev) >= 0) return false;
    }
    *st = ops->wait(e->dev, f->fence, STEP_TIMEOUT_US - MIN(spent_us, STEP_TIMEOUT_US));
    return true;
}

static void land(struct engine *e) {
    struct error err = {0};
    uint64_t began_us = clock_now_us();
    enum status st;

    if (!is_landed(e, &e->flight[e->oldest], &st)) return;
    e->is_starved = false;
    if (st == ST_OK) {
        take_step(e, clock_now_us() - began_us);
        return;
    }
    (void)lost(e, st, "finish a step", &err);
    fail(e, &err);
}

/* A step in, a step out. */
static void turn(struct engine *e) {
    if (e->is_starved) land(e);
    if (e->n_flights < e->limits.n_slots) {
        bool is_fed = scheduler_has_work(e->sched) && launch(e);

        e->is_starved = !is_fed && e->n_flights > 0;
    }
    if (e->n_flights == e->limits.n_slots) land(e);
}

/* --- the thread ------------------------------------------------------------------------------- */

/* Sleeps until there are mails, or the device may have finished a step that nothing can go behind. */
static void await(struct engine *e, struct list *mails, uint64_t now_us) {
    int fd = e->n_flights > 0 ? e->options.backend->event_fd(e->dev) : -1;
    uint64_t timeout_us = sleep_us(e, now_us), signal;

    if (e->n_flights > 0) timeout_us = fd >= 0 ? MIN(timeout_us, STEP_TIMEOUT_US) : 0;
    mailbox_wait_or(e->inbox, mails, fd, timeout_us);
    if (fd >= 0) (void)!read(fd, &signal, sizeof(signal));
}

/* Hears what has arrived; sleeps until something does when there is nothing else to do. */
static void hear_all(struct engine *e) {
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
        hear(e, request_mail_of(link));
}

static void tell_drained(struct engine *e) {
    if (e->is_drained_sent) return;
    e->is_drained_sent = true;
    send(e->outbox, &e->drain_mail, MAIL_DRAIN);
}

static void drop_all(struct engine *e) {
    struct request *r;

    while ((r = scheduler_any(e->sched)) != NULL) {
        scheduler_end(e->sched, r, FINISH_ABORT, clock_now_us());
        if (r->n_in_flight == 0) request_unref(r);
    }
    drop_flights(e);
    assert(scheduler_counts(e->sched).in_flight == 0);
}

void *engine_main(void *engine) {
    struct engine *e = engine;

    e->start_status = engine_open_device(e, &e->start_error);
    if (e->start_status == ST_OK) update_stats(e);
    sem_post(&e->is_ready);
    if (e->start_status != ST_OK) {
        engine_close_device(e);
        return NULL;
    }
    while (!e->is_stopping) {
        hear_all(e);
        turn(e);
        engine_tell_kv_events(e, !scheduler_any(e->sched));
        update_stats(e);
        if (e->is_draining && !scheduler_any(e->sched)) tell_drained(e);
    }
    drop_all(e);
    engine_close_device(e);
    return NULL;
}

/* --- the creator's side ----------------------------------------------------------------------- */

enum status engine_submit(struct engine *e, struct request *r, struct error *err) {
    uint64_t kv_tokens = (uint64_t)e->info.n_blocks * e->info.block_size;
    uint32_t n_queued = atomic_load_explicit(&e->n_queued, memory_order_relaxed);

    if (atomic_load(&e->is_unavailable))
        return error_set(err, ST_UNAVAILABLE,
                         e->is_drain_sent
                             ? "this worker is shutting down: send the request again"
                             : "this worker's device has failed: it must be restarted");
    if (n_queued >= e->options.max_waiting)
        return error_set(err, ST_BUSY,
                         "%u requests are waiting already, the limit is %u: try again later",
                         n_queued, e->options.max_waiting);
    if (kv_manager_most_blocks(e->kv, r->n_max) > e->info.n_blocks) /* of constants alone */
        return error_set(err, ST_TOO_LARGE,
                         "the request may grow to %u tokens, but the KV memory holds %llu",
                         r->n_max, (unsigned long long)kv_tokens);
    if (r->arrival_us == 0) r->arrival_us = clock_now_us();
    atomic_fetch_add_explicit(&e->n_queued, 1, memory_order_relaxed);
    send(e->inbox, &request_ref(r)->submit_mail, MAIL_SUBMIT);
    return ST_OK;
}

static void cancel(struct engine *e, struct request *r, enum finish_reason reason) {
    if (r->cancel_reason != FINISH_NONE || r->is_end_read) return;
    r->cancel_reason = reason;
    send(e->inbox, &request_ref(r)->cancel_mail, MAIL_CANCEL);
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
    send(e->inbox, &e->drain_mail, MAIL_DRAIN);
}

void engine_reset_prefix_cache(struct engine *e, struct engine_reset *reset) {
    send(e->inbox, &reset->mail, MAIL_RESET);
}

void engine_stats(struct engine *e, struct engine_stats *out) {
    pthread_mutex_lock(&e->stats_lock);
    *out = e->stats;
    pthread_mutex_unlock(&e->stats_lock);
}

static void deliver_news(const struct engine *e, struct request *r) {
    const struct engine_callbacks *cb = &e->options.callbacks;
    struct request_news news;

    atomic_exchange(&r->is_news_sent, false); /* before the look: what comes later is sent again */
    if (request_take_news(r, &news)) cb->on_news(cb->arg, r, &news);
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
    struct engine_snapshot *snapshot;
    struct engine_reset *reset;

    switch ((enum mail_kind)m->kind) {
    case MAIL_NEWS: deliver_news(e, CONTAINER_OF(m, struct request, news_mail)); return;
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

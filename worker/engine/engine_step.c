/* worker/engine/engine_step.c - steps on their way to the device and back.
 *
 * Steps in flight: two where the device runs beside the host (limits.n_slots), so that the next
 * step is queued when one ends; a token still being sampled is referred to by its output.
 *
 *      engine   schedule n+1 | wait | take n, report | schedule n+2 | wait | take n+1, report | ...
 *      device   ...... n ...........|  n+1 .............................|  n+2 .............
 *
 * When a step samples for constrained requests, one in GRAMMAR_SHARE or more, none is queued
 * behind it (waits_for_constrained).
 *
 * What happens to a request meanwhile (its end, a cancel, preemption) does not touch steps that are
 * under way: their outputs are dropped, or kept by a request that waits again. Blocks and rows may
 * be reused at once, because the device executes in the order of submission. A request exists until
 * its last outcome has come (request.n_in_flight).
 *
 * Thread: engine. */
#include "common/base/clock.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "worker/engine/engine_internal.h"
#include "worker/engine/sampler.h"
#include "worker/sched/beam_group.h"

#define MOVES_AT_A_TIME 256u
#define GRAMMAR_SHARE   8u /* one in so many rows of a step: waiting then costs less than it gains */
#define RESTORE_KEPT    0.9 /* of what was measured, with each further call that brings blocks back */

/* --- flights ---------------------------------------------------------------------------------- */

/* The outcome of an entry whose request or search has ended. */
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

void engine_drop_flights(struct engine *e) {
    while (e->n_flights > 0) {
        struct flight *f = pop_flight(e);

        if (!e->is_failed) (void)e->options.backend->wait(e->dev, f->fence, ENGINE_STEP_TIMEOUT_US);
        for (uint32_t i = 0; i < f->schedule.n_entries; i++)
            drop_outcome(e, &f->schedule.entry[i]);
    }
}

/* --- one step --------------------------------------------------------------------------------- */

/* Where the host is the device, the call returns when the blocks are there. */
static enum status bring_in(struct engine *e, const struct backend_copy *pairs, uint32_t n,
                            backend_fence *fence) {
    uint64_t began_us = clock_now_us();
    enum status st = e->options.backend->kv_swap_in(e->model, pairs, n, fence);

    if (st != ST_OK || e->is_device_apart) return st;
    e->restored_tokens = e->restored_tokens * RESTORE_KEPT + (double)n * e->info.block_size;
    e->restored_s =
        e->restored_s * RESTORE_KEPT + (double)MAX(clock_now_us() - began_us, 1u) * 1e-6;
    e->totals.restore_rate = e->restored_tokens / e->restored_s;
    if (!e->options.restores_always) scheduler_set_restore_rate(e->sched, e->totals.restore_rate);
    return ST_OK;
}

/* Copies of whole blocks, each run of one kind in one call. */
static enum status move_blocks(struct engine *e) {
    const struct backend_ops *ops = e->options.backend;
    struct backend_copy pairs[MOVES_AT_A_TIME];
    backend_fence fence, out = 0, in = 0;
    uint32_t n_moves, n;
    const struct kv_move *moves = kv_manager_moves(e->kv, &n_moves);
    enum status st = ST_OK;

    for (uint32_t at = 0; at < n_moves && st == ST_OK; at += n) {
        for (n = 0; at + n < n_moves && n < MOVES_AT_A_TIME && moves[at + n].kind == moves[at].kind;
             n++)
            pairs[n] = (struct backend_copy){moves[at + n].src, moves[at + n].dst};
        switch (moves[at].kind) {
        case KV_MOVE_COPY: st = ops->kv_copy(e->model, pairs, n, &fence); break;
        case KV_MOVE_OUT: st = ops->kv_swap_out(e->model, pairs, n, &out); break;
        case KV_MOVE_IN: st = bring_in(e, pairs, n, &in); break;
        }
    }
    kv_manager_clear_moves(e->kv);
    engine_note_moves(e, out, in);
    return st;
}

/* The device's own fault message, or the step it did not complete. */
static enum status lost(struct engine *e, enum status st, const char *what, struct error *err) {
    const struct backend_ops *ops = e->options.backend;
    const char *fault = ops->fault ? ops->fault(e->dev) : NULL;

    if (fault) return error_set(err, st, "%s", fault);
    if (st == ST_TIMEOUT)
        return error_set(err, st, "the device did not %s within %u s: restart the worker", what,
                         (uint32_t)(ENGINE_STEP_TIMEOUT_US / 1000000));
    return error_set(err, st, "the device did not %s: %s", what, status_name(st));
}

/* Beams die with their search, which may end while they are at the device. */
static void hold_searches(const struct schedule *s) {
    for (uint32_t i = 0; i < s->n_entries; i++)
        if (request_is_beam(s->entry[i].request)) beam_group_ref(s->entry[i].request->group);
}

static enum status hand_over(struct engine *e, struct flight *f, uint32_t slot, struct error *err) {
    const struct backend_ops *ops = e->options.backend;
    struct batch_step *step = &e->batch.slot[slot];
    uint64_t filled_us;
    enum status st;

    if ((st = batch_lay_out(&e->batch, &f->schedule, slot)) != ST_OK)
        return lost(e, st, "take a sequence", err);
    if ((st = move_blocks(e)) != ST_OK) return lost(e, st, "copy blocks", err);
    sampler_fill(step, &e->masks);
    if (e->is_device_apart) { /* which computes meanwhile */
        step->counts.fill_masks = masks_compute;
        step->counts.fill_arg = &e->masks;
    } else {
        masks_compute(&e->masks);
    }
    filled_us = clock_now_us();
    st = ops->submit(e->model, slot, &step->counts, &f->fence, err);
    f->submitted_us = clock_now_us();
    f->host_us = filled_us - f->began_us;
    f->handing_us = f->submitted_us - filled_us;
    return st;
}

/* Nothing can be queued behind the step in flight, or all wait for a tier. Blocks may have been
 * taken for others nevertheless. */
static void launch_nothing(struct engine *e) {
    struct error err = {0};
    enum status st = ST_OK;

    if (e->n_flights == 0 && scheduler_n_awaiting(e->sched) == 0)
        st = error_set(&err, ST_INTERNAL, "the scheduler found nothing to run");
    else if ((st = move_blocks(e)) != ST_OK)
        st = lost(e, st, "copy blocks", &err);
    if (st != ST_OK) engine_fail(e, &err);
}

static void log_admissions(struct engine *e, const struct schedule *s) {
    struct scheduler_counts c;

    if (s->n_admitted == 0 || !log_is_on(e->options.log, LOG_INFO)) return;
    c = scheduler_counts(e->sched);
    log_event(e->options.log, LOG_INFO, "prefill_batch", log_u64("new_seqs", s->n_admitted),
              log_u64("new_tokens", s->new_tokens), log_u64("cached_tokens", s->cached_tokens),
              log_u64("running", c.running), log_u64("queued", c.waiting),
              log_f64("token_usage", kv_manager_usage(e->kv)));
}

/* A step more for the device, there being a slot. False when there is nothing to compute now. */
static bool launch(struct engine *e) {
    uint32_t slot = (e->oldest + e->n_flights) % e->limits.n_slots;
    struct flight *f = &e->flight[slot];
    struct error err = {0};

    f->began_us = clock_now_us();
    kv_manager_set_now(e->kv, f->began_us);
    scheduler_step(e->sched, &f->schedule, f->began_us);
    engine_leave_queue(e, f->schedule.n_started);
    log_admissions(e, &f->schedule);
    if (f->schedule.n_entries == 0) {
        launch_nothing(e);
        return false;
    }
    hold_searches(&f->schedule);
    e->n_flights++;
    if (hand_over(e, f, slot, &err) != ST_OK) engine_fail(e, &err);
    return true;
}

/* --- its outcome ------------------------------------------------------------------------------ */

/* The alternatives by which a beam may continue. */
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

/* What cannot go on ends with r->error; its outcome has come all the same. */
static void take_error(struct engine *e, const struct schedule_entry *entry, uint64_t now_us) {
    scheduler_end(e->sched, entry->request, FINISH_ERROR, now_us);
    (void)scheduler_take(e->sched, entry, 0, now_us);
}

/* Behind a token whose constraint has been followed. A complete answer ends here, even where its
 * length would end it too. */
static void end_if_complete(struct engine *e, struct request *r, uint32_t token, uint64_t now_us) {
    if (!r->params.grammar ||
        !(r->is_complete ||
          request_is_end(&r->params, e->eos_ids, e->options.scheduler.n_eos, token)))
        return;
    if (r->finish == FINISH_LENGTH) r->finish = FINISH_STOP;
    scheduler_end(e->sched, r, FINISH_STOP, now_us);
}

/* The tokens that must follow, which are not sampled. Where they are too many for one step, the
 * next one samples the first of the others. */
static void take_forced(struct engine *e, struct request *r, uint64_t now_us) {
    uint32_t token;

    while (r->state != REQUEST_DONE && e->n_may_force > 0 && constrain_forced(r, &token)) {
        e->n_may_force--;
        if (constrain_take(r, &e->masks.ends, token) != ST_OK) {
            scheduler_end(e->sched, r, FINISH_ERROR, now_us);
            return;
        }
        count_token(e, r, now_us);
        e->totals.forced_tokens++;
        (void)scheduler_append(e->sched, r, token, now_us);
        end_if_complete(e, r, token, now_us);
    }
}

static void take_sampled(struct engine *e, const struct schedule_entry *entry, uint32_t token,
                         uint64_t now_us) {
    struct request *r = entry->request;

    if (request_is_constrained(r) && constrain_take(r, &e->masks.ends, token) != ST_OK) {
        take_error(e, entry, now_us);
        return;
    }
    count_token(e, r, now_us);
    (void)scheduler_take(e->sched, entry, token, now_us);
    end_if_complete(e, r, token, now_us);
    if (request_is_constrained(r)) take_forced(e, r, now_us);
}

/* A row whose request has ended gets entry NULL. */
static void take_row(struct engine *e, const struct batch_step *step, struct batch_row *row,
                     uint64_t now_us) {
    const struct schedule_entry *entry = row->entry;
    struct request *r = entry->request;
    uint32_t token;

    if (r->state == REQUEST_DONE) {
        row->entry = NULL;
        drop_outcome(e, entry);
        return;
    }
    if (sampler_take(step, row, e->limits.max_logprobs, &token) == ST_OK) {
        if (request_is_beam(r)) {
            take_beam(e, &step->stage, row, now_us);
            return;
        }
        if (entry->is_sampled) {
            take_sampled(e, entry, token, now_us);
        } else {
            (void)scheduler_take(e->sched, entry, token, now_us);
        }
    } else {
        error_set(&r->error, ST_INTERNAL,
                  "the model computed NaN or infinity near position %u: check its weights, or use "
                  "another --dtype",
                  entry->first + entry->n_tokens - 1);
        take_error(e, entry, now_us);
    }
    if (r->state == REQUEST_DONE && !r->group) engine_count_end(e, r);
}

/* Answers of searches that have come to their end: no rows of the step, but their beams were. */
static void take_searches(struct engine *e, struct list *ended) {
    struct request *r;

    list_init(ended);
    while ((r = scheduler_pop_ended(e->sched)) != NULL) {
        e->totals.generated_tokens += request_n_output(r);
        engine_count_end(e, r);
        list_push_back(ended, &r->link);
    }
}

static void observe_us(struct metric *m, double us) {
    if (m) metric_observe(m, us * 1e-6);
}

/* The device reports its own time. Without a report: the time waited for a device that runs beside
 * the host; the calls that run and await the step where the host is the device. */
static void count_times(struct engine *e, const struct flight *f, uint32_t slot, uint64_t wait_us,
                        uint64_t now_us) {
    const struct backend_ops *ops = e->options.backend;
    double calls_us = (double)f->handing_us + (double)wait_us;
    double device_us = ops->step_us         ? ops->step_us(e->model, slot)
                       : e->is_device_apart ? (double)wait_us
                                            : calls_us;
    double host_us = (double)f->host_us + (double)(clock_now_us() - now_us);
    uint64_t idle_until_us = MAX(f->submitted_us, e->landed_us); /* it ran behind the step before */

    host_us += e->is_device_apart ? (double)f->handing_us : MAX(calls_us - device_us, 0);
    observe_us(e->options.step_host, host_us);
    observe_us(e->options.step_device, device_us);
    if (!ops->step_us && e->is_device_apart) device_us = (double)(now_us - idle_until_us);
    e->landed_us = now_us;
    scheduler_learn(e->sched, &f->schedule, device_us * 1e-6);
    if (e->lower && f->schedule.prefill_tokens == 0)
        lower_note_step(e->lower, f->schedule.n_entries, device_us * 1e-6);
}

static void count_step(struct engine *e, const struct schedule *s) {
    e->totals.steps++;
    e->totals.prefill_tokens += s->prefill_tokens;
    e->totals.prompt_tokens += s->prompt_tokens;
    e->totals.cached_tokens += s->cached_prompt_tokens;
    if (e->options.step_tokens) metric_observe(e->options.step_tokens, s->n_tokens);
}

static void report_row(struct engine *e, const struct batch_row *row) {
    struct request *r;

    if (!row->entry) return;
    r = row->entry->request;
    if (request_is_beam(r)) { /* unknown to the creator */
        beam_group_unref(r->group);
    } else if (r->state == REQUEST_DONE) {
        engine_report_end(e, r);
    } else if (row->entry->is_sampled) {
        engine_report_progress(e, r);
    }
}

/* Outputs first, then the statistics, then the reports: statistics read on a report include its
 * tokens. */
static void take_step(struct engine *e, uint64_t wait_us) {
    uint32_t slot = e->oldest;
    struct flight *f = pop_flight(e);
    struct batch_step *step = &e->batch.slot[slot];
    uint64_t now_us = clock_now_us();
    struct list ended, *link;

    e->n_may_force = ENGINE_MAX_FORCED;
    for (uint32_t i = 0; i < step->counts.n_rows; i++)
        take_row(e, step, &step->row[i], now_us);
    take_searches(e, &ended);
    count_step(e, &f->schedule);
    count_times(e, f, slot, wait_us, now_us);
    engine_update_stats(e);
    for (uint32_t i = 0; i < step->counts.n_rows; i++)
        report_row(e, &step->row[i]);
    while ((link = list_pop_front(&ended)) != NULL)
        engine_report_end(e, LIST_ENTRY(link, struct request, link));
}

/* Takes the outcome `st` of the step. False when the step is still running: handle_mails may wait
 * for it. */
static bool is_landed(struct engine *e, const struct flight *f, enum status *st) {
    const struct backend_ops *ops = e->options.backend;
    uint64_t spent_us = clock_now_us() - f->submitted_us;

    if (e->is_starved) {
        *st = ops->poll(e->dev, f->fence);
        if (*st != ST_AGAIN) return true;
        if (spent_us < ENGINE_STEP_TIMEOUT_US && e->is_device_apart) return false;
    }
    *st =
        ops->wait(e->dev, f->fence, ENGINE_STEP_TIMEOUT_US - MIN(spent_us, ENGINE_STEP_TIMEOUT_US));
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
    engine_fail(e, &err);
}

/* Constrained requests cannot be computed ahead of their sampled token: in a step behind the one
 * that samples it they have no part, and so run at half the rate of others. Where they are many it
 * is better for all to wait for the outcome, which costs the host's time between two steps. */
static bool waits_for_constrained(const struct engine *e) {
    const struct schedule *s = &e->flight[e->oldest].schedule;
    uint32_t n = 0;

    if (e->n_flights == 0) return false;
    for (uint32_t i = 0; i < s->n_entries; i++)
        n += s->entry[i].is_sampled && request_is_constrained(s->entry[i].request);
    return n > 0 && n * GRAMMAR_SHARE >= s->n_entries;
}

/* Blocks on their way to a tier when no step follows that takes them along. */
static void move_idle(struct engine *e) {
    struct error err = {0};
    uint32_t n_moves;
    enum status st;

    (void)kv_manager_moves(e->kv, &n_moves);
    if (n_moves == 0 || e->is_failed || (st = move_blocks(e)) == ST_OK) return;
    (void)lost(e, st, "copy blocks", &err);
    engine_fail(e, &err);
}

/* A step in, a step out. */
void engine_turn(struct engine *e) {
    bool can_sleep;

    if (e->is_starved && e->n_flights > 0) land(e);
    if (e->n_flights < e->limits.n_slots) {
        bool is_fed = scheduler_has_work(e->sched) && !waits_for_constrained(e) && launch(e);

        can_sleep = e->n_flights > 0 || scheduler_n_awaiting(e->sched) > 0;
        e->is_starved = !is_fed && can_sleep;
    }
    if (e->n_flights == e->limits.n_slots) land(e);
    if (e->lower && e->n_flights == 0 && !scheduler_has_work(e->sched)) move_idle(e);
}

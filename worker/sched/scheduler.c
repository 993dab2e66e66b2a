/* worker/sched/scheduler.c - one step is one walk over the running list, one over the swapped and
 * one over the waiting list, under three budgets: tokens, scored positions, rows.
 *
 * The victim of preemption is the last of running. It has not been scheduled in this step when a
 * request before it wants its blocks, so a block that was published for this step is always
 * computed. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "worker/sched/beam_group.h"
#include "worker/sched/scheduler_internal.h"

const struct scheduler_options scheduler_options_default = SCHEDULER_OPTIONS_DEFAULT;

#define SPARE_OUTPUTS 64u /* prompt positions scored in one step beside one sample per row */

/* --- creation --------------------------------------------------------------------------------- */

enum status scheduler_check_options(const struct scheduler_options *o, struct error *err) {
    if (o->max_num_seqs == 0)
        return error_set_param(err, ST_INVALID, "max-num-seqs",
                               "max-num-seqs is 0: use at least 1");
    if (o->max_num_batched_tokens < o->max_num_seqs)
        return error_set_param(err, ST_INVALID, "max-num-batched-tokens",
                               "max-num-batched-tokens %u is below max-num-seqs %u: every running "
                               "sequence needs one token per step; raise it or lower max-num-seqs",
                               o->max_num_batched_tokens, o->max_num_seqs);
    if (!o->chunked_prefill && o->max_num_batched_tokens < o->max_model_len)
        return error_set_param(err, ST_INVALID, "max-num-batched-tokens",
                               "max-num-batched-tokens %u is below max-model-len %u: without "
                               "chunked prefill a whole prompt must fit in one step",
                               o->max_num_batched_tokens, o->max_model_len);
    if (o->max_outputs != 0 && o->max_outputs <= o->max_num_seqs)
        return error_set_param(err, ST_INVALID, "max-outputs",
                               "max-outputs is %u: use more than max-num-seqs %u", o->max_outputs,
                               o->max_num_seqs);
    if (!(o->itl_target_s >= 0) || !isfinite(o->itl_target_s))
        return error_set_param(err, ST_INVALID, "itl-target-ms",
                               "itl-target-ms is %g ms: use 0 for none, or more",
                               o->itl_target_s * 1e3);
    return ST_OK;
}

const char *scheduler_policy_name(enum scheduler_policy policy) {
    static const char *const names[] = {"fcfs", "priority", "srpt"};

    return names[policy];
}

uint32_t scheduler_max_outputs(const struct scheduler_options *o) {
    return o->max_outputs ? o->max_outputs : o->max_num_seqs + SPARE_OUTPUTS;
}

enum status scheduler_create(struct scheduler **out, const struct scheduler_options *options,
                             struct kv_manager *kv, struct error *err) {
    enum status st = scheduler_check_options(options, err);
    struct scheduler *s;

    if (st != ST_OK) return st;
    s = mem_zalloc(sizeof(*s));
    s->options = *options;
    s->eos_ids = mem_calloc(MAX(options->n_eos, 1u), sizeof(*s->eos_ids));
    if (options->n_eos > 0)
        memcpy(s->eos_ids, options->eos_ids, options->n_eos * sizeof(*s->eos_ids));
    s->options.eos_ids = s->eos_ids;
    s->options.max_outputs = scheduler_max_outputs(options);
    s->kv = kv;
    list_init(&s->waiting);
    list_init(&s->running);
    list_init(&s->swapped);
    list_init(&s->searching);
    list_init(&s->ended);
    list_init(&s->fresh);
    list_init(&s->seen);
    list_init(&s->aside);
    fair_order_init(&s->order);
    pace_init(&s->pace, options->prefill_tokens_per_s, options->attn_context);
    s->prefill = mem_calloc(options->max_num_seqs, sizeof(*s->prefill));
    s->free_rows = mem_calloc(options->max_num_seqs, sizeof(*s->free_rows));
    while (s->n_free_rows < options->max_num_seqs) { /* row 0 on top: small numbers first */
        s->free_rows[s->n_free_rows] = options->max_num_seqs - 1 - s->n_free_rows;
        s->n_free_rows++;
    }
    *out = s;
    return ST_OK;
}

void scheduler_destroy(struct scheduler *s) {
    if (!s) return;
    assert(s->n_waiting == 0 && s->n_running == 0 && s->n_swapped == 0 && s->n_searching == 0);
    while (scheduler_pop_ended(s) != NULL) {
    }
    fair_order_fini(&s->order);
    mem_free(s->prefill);
    mem_free(s->free_rows);
    mem_free(s->eos_ids);
    mem_free(s);
}

void schedule_init(struct schedule *sched, const struct scheduler *s) {
    *sched = (struct schedule){0};
    sched->entry = mem_calloc(s->options.max_num_seqs, sizeof(*sched->entry));
}

void schedule_fini(struct schedule *sched) {
    mem_free(sched->entry);
    *sched = (struct schedule){0};
}

/* --- arrival ---------------------------------------------------------------------------------- */

enum status scheduler_add(struct scheduler *s, struct request *r, struct error *err) {
    uint32_t block_size = kv_manager_block_size(s->kv);
    uint32_t n_usable = block_pool_n_usable(kv_manager_pool(s->kv));

    if (r->group) return scheduler_add_answer(s, r, err);
    if (kv_manager_most_blocks(s->kv, r->n_max) > n_usable)
        return error_set(err, ST_TOO_LARGE,
                         "the request may grow to %u tokens, but the KV memory holds %llu: shorten "
                         "the prompt or lower max_tokens",
                         r->n_max, (unsigned long long)n_usable * block_size);
    r->seq = s->n_added++;
    r->n_ahead = s->n_waiting + s->n_swapped;
    r->n_started_before = s->n_started;
    scheduler_enter_waiting(s, r);
    return ST_OK;
}

/* --- one step --------------------------------------------------------------------------------- */

/* The positions among [first, first + n) whose prediction is a prompt token not scored yet. */
static uint32_t count_scores(const struct request *r, uint32_t first, uint32_t n, uint32_t *from) {
    uint32_t to = MIN(first + n, r->n_prompt - 1);

    *from = MAX(first, r->n_scored);
    return request_is_scored(r) && to > *from ? to - *from : 0;
}

/* Tokens of r that can be computed from `first` on. With a token that is being sampled in the step
 * before, that one too, unless the answer may not grow behind it. */
uint32_t scheduler_count_ready(const struct scheduler *s, const struct request *r, uint32_t first) {
    if (first < r->n_tokens) return r->n_tokens - first;
    return s->options.async && !r->group && r->params.n_bad_words == 0 &&
           !request_is_constrained(r) && r->n_pending == 1 && r->step + 1 == s->n_steps &&
           r->n_tokens + 2 <= r->n_max;
}

/* At the first prompt of a step, or at forced tokens, which others that decode may be behind: what
 * the ITL target leaves for all of them. */
static void open_target(const struct scheduler *s, const struct request *r, struct budget *b) {
    double target_s = s->options.itl_target_s;
    uint32_t n_decoding = r->n_forced > 0 ? s->n_running : b->sched->n_decoding;

    b->left_s = INFINITY;
    b->least = SCHEDULER_CHUNK_MIN;
    if (target_s > 0 && s->options.chunked_prefill && n_decoding > 0 &&
        !scheduler_order_is_overdue(s, b->now_us))
        b->left_s = target_s - pace_base_s(&s->pace, n_decoding);
}

/* Of forced tokens one at least, as if they were sampled; prompts keep their own least. */
static uint32_t within_target(const struct scheduler *s, const struct request *r, struct budget *b,
                              uint32_t first, uint32_t n) {
    if (isnan(b->left_s)) open_target(s, r, b);
    if (isinf(b->left_s)) return n;
    return MIN(n,
               MAX(pace_tokens_within(&s->pace, first, b->left_s), r->n_forced > 0 ? 1 : b->least));
}

uint32_t scheduler_fit(const struct scheduler *s, const struct request *r, uint32_t first,
                       struct budget *b) {
    uint32_t n = scheduler_count_ready(s, r, first), from;

    if (s->options.long_prefill_token_threshold > 0)
        n = MIN(n, s->options.long_prefill_token_threshold);
    if (!s->options.chunked_prefill && n > b->tokens) return 0;
    n = MIN(n, b->tokens);
    if (n > 1) n = within_target(s, r, b, first, n);
    if (count_scores(r, first, n, &from) > b->scores) n = from + b->scores - first;
    return n;
}

/* Before n_computed grows. */
static void count_work(struct scheduler *s, struct schedule *sched, struct budget *b,
                       struct request *r, uint32_t n) {
    double work;

    if (r->order.turn.is_in_progress) scheduler_order_gave(s, r, n);
    sched->n_decoding += n == 1 || r->n_forced > 0;
    if (n == 1) return;
    work = pace_work(&s->pace, r->n_computed, r->n_computed + n);
    sched->work += work;
    b->left_s -= work / pace_rate(&s->pace);
    if (r->n_forced == 0) b->least -= MIN(n, b->least);
}

void scheduler_give(struct scheduler *s, struct schedule *sched, struct budget *b,
                    struct request *r, uint32_t n) {
    struct schedule_entry *e = &sched->entry[sched->n_entries++];

    *e = (struct schedule_entry){.request = r, .first = r->n_computed, .n_tokens = n};
    e->n_scores = count_scores(r, e->first, n, &e->score_first);
    e->is_ahead = e->first == r->n_tokens;
    e->is_sampled = e->first + n >= r->n_tokens;
    count_work(s, sched, b, r, n);
    r->n_scored += e->n_scores;
    r->n_before = r->n_computed;
    r->step = s->n_steps;
    r->n_computed += n;
    r->n_in_flight++;
    r->n_pending += e->is_sampled;
    s->n_in_flight++;
    b->tokens -= n;
    b->scores -= e->n_scores;
    sched->n_tokens += n;
    sched->prefill_tokens += MIN(e->first + n, r->n_prompt) - MIN(e->first, r->n_prompt);
    sched->n_outputs += e->n_scores + e->is_sampled;
}

bool scheduler_make_room(struct scheduler *s, struct schedule *sched, struct request *r,
                         uint32_t n) {
    struct kv_alloc alloc = {.n_computed = r->n_computed, .n_new = n};

    while (kv_manager_allocate(s->kv, &r->kv, r->tokens, r->n_tokens, &alloc) != ST_OK) {
        struct request *victim = scheduler_is_srpt(s) ? scheduler_order_victim(s, r)
                                                      : request_of(list_last(&s->running));

        if (!victim) return false;
        scheduler_preempt(s, victim, true);
        sched->n_preempted++;
        if (victim == r) return false;
    }
    return true;
}

static void schedule_running(struct scheduler *s, struct schedule *sched, struct budget *b) {
    for (struct list *it = s->running.next; it != &s->running && b->tokens > 0; it = it->next) {
        struct request *r = request_of(it);
        uint32_t n = scheduler_fit(s, r, r->n_computed, b);

        if (n == 0)
            continue; /* awaits its sampled token, or has no room to score: others may run
                               * */
        if (!scheduler_make_room(s, sched, r, n)) return;
        scheduler_give(s, sched, b, r, n);
    }
}

/* --- the waiting ------------------------------------------------------------------------------ */

bool scheduler_has_room(const struct scheduler *s, const struct budget *b) {
    return b->tokens > 0 && s->n_running < s->options.max_num_seqs;
}

static void schedule_waiting(struct scheduler *s, struct schedule *sched, struct budget *b) {
    for (struct list *it = s->waiting.next, *next; it != &s->waiting && scheduler_has_room(s, b);
         it = next) {
        struct request *r = request_of(it);

        next = it->next;
        if (r->n_in_flight > 0) return; /* preempted while its next token is being computed */
        if (scheduler_is_blocked(s, r)) continue;
        if (scheduler_admit(s, sched, b, r) == ADMISSION_FULL) return;
    }
}

/* Back from host memory, all or nothing; then on in this step if there is room for its next token.
 * False while anything must stay out. */
bool scheduler_resume_swapped(struct scheduler *s, struct schedule *sched, struct budget *b) {
    const struct block_pool *pool = kv_manager_pool(s->kv);
    struct request *r;

    while ((r = request_of(list_first(&s->swapped))) != NULL) {
        /* With others running, not into the last block: the next one would push it out again. */
        uint32_t n_wanted = kv_manager_swap_in_need(s->kv, &r->kv) + (s->n_running > 0), n;
        struct kv_alloc alloc = {.n_computed = r->n_computed};

        if (!scheduler_has_room(s, b) || n_wanted > block_pool_n_free(pool)) return false;
        if (!scheduler_order_may_begin(s, r, r->n_computed, 0)) return false;
        if (kv_manager_swap_in(s->kv, &r->kv) != ST_OK) return false;
        scheduler_enter_running(s, r);
        r->n_admissions++;
        sched->n_admitted++;
        sched->n_resumed++;
        alloc.n_new = n = scheduler_fit(s, r, r->n_computed, b);
        if (n > 0 && kv_manager_allocate(s->kv, &r->kv, r->tokens, r->n_tokens, &alloc) == ST_OK)
            scheduler_give(s, sched, b, r, n);
    }
    return true;
}

/* The last of the waiting that hold what a connector delivered gives it up, unless a load may still
 * end. */
static bool drop_delivered(struct scheduler *s) {
    struct request *last = NULL;

    LIST_FOR_EACH(it, &s->waiting) {
        struct request *r = request_of(it);

        if (r->remote == REMOTE_LOADING) return false;
        if (r->remote == REMOTE_HERE) last = r;
    }
    if (!last) return false;
    kv_manager_free(s->kv, &last->kv);
    last->n_computed = 0;
    last->remote = REMOTE_NONE;
    scheduler_enter_waiting(s, last);
    return true;
}

/* No request can run and no step is in flight: waiting beams, or waiting requests, hold all blocks.
 * Preempts the last of them until the first search has its beams together. */
bool scheduler_break_deadlock(struct scheduler *s, const struct schedule *sched) {
    struct list *last = list_last(&s->running);

    if (sched->n_entries > 0 || s->n_in_flight > 0) return false;
    if (!last) return drop_delivered(s);
    scheduler_preempt(s, request_of(last), false);
    return true;
}

static void step_in_order(struct scheduler *s, struct schedule *sched, struct budget *b) {
    bool is_stuck;

    schedule_running(s, sched, b);
    /* Freed blocks serve the running requests. If the request that needed them was preempted itself
     * and none runs, a waiting beam is preempted. */
    if (sched->n_preempted > 0 && sched->n_entries + s->n_in_flight > 0) return;
    do {
        if (scheduler_resume_swapped(s, sched, b)) schedule_waiting(s, sched, b);
        is_stuck = scheduler_break_deadlock(s, sched);
        sched->n_preempted += is_stuck;
    } while (is_stuck);
}

void scheduler_step(struct scheduler *s, struct schedule *sched, uint64_t now_us) {
    struct budget b = {.sched = sched,
                       .now_us = now_us,
                       .tokens = s->options.max_num_batched_tokens,
                       .scores = s->options.max_outputs - s->options.max_num_seqs,
                       .left_s = NAN};

    *sched = (struct schedule){.entry = sched->entry};
    s->n_steps++;
    if (scheduler_is_srpt(s)) {
        scheduler_step_by_remaining(s, sched, &b);
    } else {
        step_in_order(s, sched, &b);
    }
}

/* --- outputs ---------------------------------------------------------------------------------- */

static bool append(struct scheduler *s, struct request *r, uint32_t token, uint64_t now_us) {
    request_append(r, token);
    if (r->state != REQUEST_RUNNING)
        s->waiting_tokens++; /* preempted meanwhile: the token counts */
    if (!request_check_stop(r, s->options.eos_ids, s->options.n_eos)) return false;
    scheduler_enter_done(s, r, now_us);
    return true;
}

bool scheduler_append(struct scheduler *s, struct request *r, uint32_t token, uint64_t now_us) {
    if (r->state == REQUEST_RUNNING) {
        r->n_forced++;
        if (request_is_penalised(r)) r->n_binds++; /* the device counts what it samples alone */
    }
    return append(s, r, token, now_us);
}

bool scheduler_take(struct scheduler *s, const struct schedule_entry *e, uint32_t token,
                    uint64_t now_us) {
    struct request *r = e->request;

    s->n_in_flight--;
    r->n_in_flight--;
    r->n_pending -= e->is_sampled;
    if (r->state == REQUEST_DONE || !e->is_sampled) return false;
    assert(e->first + e->n_tokens == r->n_tokens); /* sampled once, for the next position */
    r->n_forced = 0;
    if (r->first_token_us == 0) r->first_token_us = now_us;
    return append(s, r, token, now_us);
}

void scheduler_end(struct scheduler *s, struct request *r, enum finish_reason reason,
                   uint64_t now_us) {
    if (r->state == REQUEST_DONE) return;
    r->finish = reason;
    if (r->group) {
        scheduler_drop_answer(s, r, now_us);
    } else {
        scheduler_enter_done(s, r, now_us);
    }
}

void scheduler_remote_arrived(struct scheduler *s, struct request *r, uint32_t n_tokens) {
    uint32_t n_ready = r->n_computed - r->n_remote + MIN(n_tokens, r->n_remote);

    if (r->remote != REMOTE_LOADING) return;
    r->remote = REMOTE_HERE;
    if (n_ready > 0) kv_manager_publish(s->kv, &r->kv, r->tokens, r->n_tokens, n_ready);
    r->n_computed = MIN(n_ready, r->n_tokens - 1); /* the last token gives the logits */
}

void scheduler_wake(struct scheduler *s, struct request *r) {
    if (r->remote != REMOTE_AWAITED) return;
    r->remote = REMOTE_NONE;
    s->n_awaiting--;
    scheduler_order_leave(s, r); /* it was set aside */
    scheduler_order_enter(s, r);
}

uint32_t scheduler_n_awaiting(const struct scheduler *s) {
    return s->n_awaiting;
}

double scheduler_prefill_s(const struct scheduler *s, uint32_t first, uint32_t last) {
    return pace_prefill_s(&s->pace, first, last);
}

void scheduler_learn(struct scheduler *s, const struct schedule *sched, double seconds) {
    pace_learn(&s->pace, sched->n_decoding, sched->work, seconds);
}

double scheduler_prefill_rate(const struct scheduler *s) {
    return pace_rate(&s->pace);
}

void scheduler_set_restore_rate(struct scheduler *s, double tokens_per_s) {
    s->restore_rate = tokens_per_s;
}

enum status scheduler_reset_prefix_cache(struct scheduler *s, bool reset_running) {
    struct list *last;

    while (reset_running && (last = list_last(&s->running)) != NULL)
        scheduler_preempt(s, request_of(last), false);
    return kv_manager_reset_prefix_cache(s->kv);
}

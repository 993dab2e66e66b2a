/* worker/sched/scheduler.c - one step is one walk over the running list, one over the swapped and
 * one over the waiting list, under three budgets: tokens, scored positions, rows.
 *
 * The victim of preemption is the last of running. It has not been scheduled in this step when a
 * request before it wants its blocks, so a block that was published for this step is always
 * computed. */
#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "worker/sched/beam_group.h"
#include "worker/sched/scheduler_internal.h"

const struct scheduler_options scheduler_options_default = SCHEDULER_OPTIONS_DEFAULT;

#define SPARE_OUTPUTS 64u /* prompt positions scored in one step beside one sample per row */

struct budget {
    uint32_t tokens;
    uint32_t scores; /* sampled positions are never short: one per row is set aside for them */
};

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
    return ST_OK;
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
static uint32_t count_ready(const struct scheduler *s, const struct request *r, uint32_t first) {
    if (first < r->n_tokens) return r->n_tokens - first;
    return s->options.async && !r->group && r->params.n_bad_words == 0 && r->n_pending == 1 &&
           r->step + 1 == s->n_steps && r->n_tokens + 2 <= r->n_max;
}

/* How many tokens from `first` on this step can give to r; 0 when it must wait. */
static uint32_t fit_tokens(const struct scheduler *s, const struct request *r, uint32_t first,
                           const struct budget *b) {
    uint32_t n = count_ready(s, r, first), from;

    if (s->options.long_prefill_token_threshold > 0)
        n = MIN(n, s->options.long_prefill_token_threshold);
    if (!s->options.chunked_prefill && n > b->tokens) return 0;
    n = MIN(n, b->tokens);
    if (count_scores(r, first, n, &from) > b->scores) n = from + b->scores - first;
    return n;
}

static void add_entry(struct scheduler *s, struct schedule *sched, struct budget *b,
                      struct request *r, uint32_t n) {
    struct schedule_entry *e = &sched->entry[sched->n_entries++];

    *e = (struct schedule_entry){.request = r, .first = r->n_computed, .n_tokens = n};
    e->n_scores = count_scores(r, e->first, n, &e->score_first);
    e->is_ahead = e->first == r->n_tokens;
    e->is_sampled = e->first + n >= r->n_tokens;
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

/* Blocks for the next n tokens of a running request, if necessary by preempting the latest. False
 * when the request itself was preempted. */
static bool make_room(struct scheduler *s, struct schedule *sched, struct request *r, uint32_t n) {
    struct kv_alloc alloc = {.n_computed = r->n_computed, .n_new = n};

    while (kv_manager_allocate(s->kv, &r->kv, r->tokens, r->n_tokens, &alloc) != ST_OK) {
        struct request *victim = request_of(list_last(&s->running));

        scheduler_preempt(s, victim, true);
        sched->n_preempted++;
        if (victim == r) return false;
    }
    return true;
}

static void schedule_running(struct scheduler *s, struct schedule *sched, struct budget *b) {
    for (struct list *it = s->running.next; it != &s->running && b->tokens > 0; it = it->next) {
        struct request *r = request_of(it);
        uint32_t n = fit_tokens(s, r, r->n_computed, b);

        if (n == 0)
            continue; /* awaits its sampled token, or has no room to score: others may run
                               * */
        if (!make_room(s, sched, r, n)) return;
        add_entry(s, sched, b, r, n);
    }
}

/* --- admission -------------------------------------------------------------------------------- */

/* How a waiting request would be admitted. */
struct admission {
    struct kv_alloc alloc;
    uint32_t n_have;     /* tokens that need not be computed */
    uint32_t n_external; /* of these, from the connector */
    bool is_forked, is_queried, is_later;
};

/* Tokens whose KV was computed in steps before this one. */
static uint32_t computed_before(const struct scheduler *s, const struct request *r) {
    return r->step == s->n_steps ? r->n_before : r->n_computed;
}

/* Must r wait for its parent to compute the shared tokens? Drops a finished parent, and a beam
 * preempted behind its output, which cannot run before r. */
static bool awaits_parent(const struct scheduler *s, struct request *r) {
    const struct request *p = r->fork_of;

    if (!p) return false;
    if (p->state == REQUEST_RUNNING) return computed_before(s, p) < r->n_fork;
    if ((p->state == REQUEST_WAITING || p->state == REQUEST_SWAPPED) && !p->has_offered)
        return true;
    request_drop_parent(r);
    return false;
}

/* Others may pass it: it waits for something that is not room. */
static bool is_blocked(const struct scheduler *s, struct request *r) {
    return r->remote == REMOTE_LOADING || r->has_offered || awaits_parent(s, r);
}

/* The tokens that another store has behind the local hit. False: not known yet. */
static bool query_connector(struct scheduler *s, struct request *r, struct admission *a) {
    const struct connector *c = s->options.connector;
    enum connector_answer answer;

    if (!c || r->kv.skip_reading) return true;
    answer = c->find(c->arg, r, a->n_have, &a->n_external);
    if (answer == CONNECTOR_UNKNOWN) return false;
    a->is_queried = true;
    a->is_later = answer == CONNECTOR_LATER && a->n_external > 0;
    a->n_external = MIN(a->n_external, r->n_tokens - a->n_have - !a->is_later);
    a->alloc.n_external = a->n_external;
    a->alloc.delay_publish = a->is_later;
    a->n_have += a->n_external;
    return true;
}

/* Finds the source of its KV: its own, a fork, or the cache and the connector. False when that is
 * not known yet. */
static bool find_kv(struct scheduler *s, struct request *r, struct admission *a) {
    if (r->remote == REMOTE_HERE) {
        a->alloc.n_computed = a->n_have = r->n_computed;
        return true;
    }
    if (r->fork_of && kv_manager_fork(s->kv, &r->kv, &r->fork_of->kv, r->n_fork) == ST_OK) {
        a->is_forked = true;
        a->alloc.n_computed = a->n_have = r->n_fork;
        return true;
    }
    request_drop_parent(r); /* its window has moved on */
    a->alloc.hit = kv_manager_lookup(s->kv, &r->kv, r->tokens, r->n_tokens);
    a->n_have = a->alloc.hit.n_tokens;
    return query_connector(s, r, a);
}

static void count_admission(struct scheduler *s, struct schedule *sched, struct request *r,
                            const struct admission *a, uint64_t now_us) {
    bool is_first = r->n_admissions++ == 0;
    bool is_later_beam =
        request_is_beam(r) && r->n_tokens > r->n_prompt; /* a beam that begins later */

    sched->n_resumed += !is_first;
    sched->n_forked += a->is_forked;
    s->counts.forks += a->is_forked;
    if (!r->kv.skip_reading && r->remote == REMOTE_NONE &&
        !(is_first && (is_later_beam || r->is_child)))
        kv_manager_record_admission(s->kv, r->n_tokens, a->n_have - a->n_external, !is_first);
    if (!is_first || is_later_beam) return;
    sched->prompt_tokens += r->n_prompt;
    sched->cached_prompt_tokens += a->n_have;
    if (r->group) {
        scheduler_start_search(sched, r, a->n_have, now_us);
        return;
    }
    r->cached_tokens = a->n_have;
    r->scheduled_us = now_us;
    sched->n_started++;
}

static void admit(struct scheduler *s, struct schedule *sched, struct request *r,
                  const struct admission *a, uint64_t now_us) {
    count_admission(s, sched, r, a, now_us);
    request_drop_parent(r);
    r->is_forked |= a->is_forked;
    r->remote = REMOTE_NONE;
    r->n_computed = a->n_have;
    scheduler_enter_running(s, r);
    sched->n_admitted++;
    sched->cached_tokens += a->n_have;
}

/* There is room for what the connector has: it may deliver. */
static void load_external(struct scheduler *s, struct request *r, const struct admission *a) {
    const struct connector *c = s->options.connector;
    uint32_t n_local = a->n_have - a->n_external;

    if (!a->is_queried) return;
    s->counts.external.requests++;
    s->counts.external.queries += r->n_tokens - n_local;
    s->counts.external.hits += a->n_external;
    if (a->n_external > 0) c->load(c->arg, r, n_local, a->n_external);
}

/* Room for a load that is on its way, and none to compute yet. */
static bool await_remote(struct scheduler *s, struct request *r, struct admission *a) {
    if (kv_manager_allocate(s->kv, &r->kv, r->tokens, r->n_tokens, &a->alloc) != ST_OK)
        return false;
    r->remote = REMOTE_LOADING;
    r->n_remote = a->n_external;
    r->n_computed = a->n_have;
    kv_manager_record_admission(s->kv, r->n_tokens, a->n_have - a->n_external, r->n_admissions > 0);
    load_external(s, r, a);
    return true;
}

/* False when it must keep waiting, and so must all requests behind it. */
static bool try_admission(struct scheduler *s, struct schedule *sched, struct budget *b,
                          struct request *r, uint64_t now_us) {
    struct admission a = {.alloc = {.full_sequence_must_fit = s->options.full_sequence_must_fit,
                                    .has_scheduled = sched->n_entries > 0}};
    uint32_t n;

    if (!find_kv(s, r, &a)) return true;
    if (a.is_later) return await_remote(s, r, &a);
    n = fit_tokens(s, r, a.n_have, b);
    a.alloc.n_new = n;
    if (n == 0 || kv_manager_allocate(s->kv, &r->kv, r->tokens, r->n_tokens, &a.alloc) != ST_OK) {
        if (a.is_forked) kv_manager_free(s->kv, &r->kv);
        return false;
    }
    load_external(s, r, &a);
    admit(s, sched, r, &a, now_us);
    add_entry(s, sched, b, r, n);
    r->n_before = 0; /* its hits may be computed in this very step: no one can fork it yet */
    sched->new_tokens += n;
    return true;
}

static bool has_room(const struct scheduler *s, const struct budget *b) {
    return b->tokens > 0 && s->n_running < s->options.max_num_seqs;
}

static void schedule_waiting(struct scheduler *s, struct schedule *sched, struct budget *b,
                             uint64_t now_us) {
    for (struct list *it = s->waiting.next, *next; it != &s->waiting && has_room(s, b); it = next) {
        struct request *r = request_of(it);

        next = it->next;
        if (r->n_in_flight > 0) return; /* preempted while its next token is being computed */
        if (is_blocked(s, r)) continue;
        if (!try_admission(s, sched, b, r, now_us)) return;
    }
}

/* Back from host memory, all or nothing; then on in this step if there is room for its next token.
 * False while anything must stay out. */
static bool schedule_swapped(struct scheduler *s, struct schedule *sched, struct budget *b) {
    const struct block_pool *pool = kv_manager_pool(s->kv);
    struct request *r;

    while ((r = request_of(list_first(&s->swapped))) != NULL) {
        /* With others running, not into the last block: the next one would push it out again. */
        uint32_t n_wanted = kv_manager_swap_in_need(s->kv, &r->kv) + (s->n_running > 0), n;
        struct kv_alloc alloc = {.n_computed = r->n_computed};

        if (!has_room(s, b) || n_wanted > block_pool_n_free(pool)) return false;
        if (kv_manager_swap_in(s->kv, &r->kv) != ST_OK) return false;
        scheduler_enter_running(s, r);
        r->n_admissions++;
        sched->n_admitted++;
        sched->n_resumed++;
        alloc.n_new = n = fit_tokens(s, r, r->n_computed, b);
        if (n > 0 && kv_manager_allocate(s->kv, &r->kv, r->tokens, r->n_tokens, &alloc) == ST_OK)
            add_entry(s, sched, b, r, n);
    }
    return true;
}

/* No request can run and no step is in flight: waiting beams hold all blocks. Preempts the last of
 * them until the first search has its beams together. */
static bool break_deadlock(struct scheduler *s, const struct schedule *sched) {
    struct list *last = list_last(&s->running);

    if (sched->n_entries > 0 || s->n_in_flight > 0 || !last) return false;
    scheduler_preempt(s, request_of(last), false);
    return true;
}

void scheduler_step(struct scheduler *s, struct schedule *sched, uint64_t now_us) {
    struct budget b = {.tokens = s->options.max_num_batched_tokens,
                       .scores = s->options.max_outputs - s->options.max_num_seqs};
    bool is_stuck;

    *sched = (struct schedule){.entry = sched->entry};
    s->n_steps++;
    schedule_running(s, sched, &b);
    /* Freed blocks serve the running requests. If the request that needed them was preempted itself
     * and none runs, a waiting beam is preempted. */
    if (sched->n_preempted > 0 && sched->n_entries + s->n_in_flight > 0) return;
    do {
        if (schedule_swapped(s, sched, &b)) schedule_waiting(s, sched, &b, now_us);
        is_stuck = break_deadlock(s, sched);
        sched->n_preempted += is_stuck;
    } while (is_stuck);
}

/* --- outputs ---------------------------------------------------------------------------------- */

bool scheduler_take(struct scheduler *s, const struct schedule_entry *e, uint32_t token,
                    uint64_t now_us) {
    struct request *r = e->request;

    s->n_in_flight--;
    r->n_in_flight--;
    r->n_pending -= e->is_sampled;
    if (r->state == REQUEST_DONE || !e->is_sampled) return false;
    assert(e->first + e->n_tokens == r->n_tokens); /* sampled once, for the next position */
    request_append(r, token);
    if (r->state != REQUEST_RUNNING)
        s->waiting_tokens++; /* preempted meanwhile: the token counts */
    if (r->first_token_us == 0) r->first_token_us = now_us;
    if (!request_check_stop(r, s->options.eos_ids, s->options.n_eos)) return false;
    scheduler_enter_done(s, r, now_us);
    return true;
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

enum status scheduler_reset_prefix_cache(struct scheduler *s, bool reset_running) {
    struct list *last;

    while (reset_running && (last = list_last(&s->running)) != NULL)
        scheduler_preempt(s, request_of(last), false);
    return kv_manager_reset_prefix_cache(s->kv);
}

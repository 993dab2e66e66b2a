/* worker/sched/scheduler.c - one step is one walk over the running list and one over the head of
 * the waiting list, under three budgets: tokens, scored positions, rows.
 *
 * Two lists say everything. `waiting` is in order of admission: arrival, with preempted requests
 * put back at the front; under the priority policy sorted by (priority, arrival). `running` is in
 * order of admission, under the priority policy sorted likewise. So in both policies the victim of
 * preemption is the last of running, and it has not been scheduled in this step when a request
 * before it wants its blocks: a block that was published for this step is always computed. */
#include "worker/sched/scheduler.h"

#include <assert.h>
#include <string.h>

#include "common/mem.h"

const struct scheduler_options scheduler_options_default = SCHEDULER_OPTIONS_DEFAULT;

struct scheduler {
    struct scheduler_options options;
    uint32_t *eos_ids;
    struct kv_manager *kv;
    struct list waiting, running;
    uint32_t n_waiting, n_running;
    uint64_t waiting_tokens; /* sum of n_tokens over waiting */
    uint32_t *free_rows;     /* (max_num_seqs) a stack */
    uint32_t n_free_rows;
    uint64_t n_added, n_preemptions;
};

#define SPARE_OUTPUTS 64u /* prompt positions scored in one step beside one sample per row */

struct budget {
    uint32_t tokens;
    uint32_t scores; /* sampled positions are never short: one per row is set aside for them */
};

static struct request *request_of(struct list *link) {
    return link ? LIST_ENTRY(link, struct request, link) : NULL;
}

/* --- creation --------------------------------------------------------------------------------- */

enum status scheduler_check_options(const struct scheduler_options *o, struct error *err) {
    if (o->max_num_seqs == 0)
        return error_set_param(err, ST_INVALID, "max-num-seqs",
                               "max-num-seqs is 0: at least one sequence must run");
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
                               "max-outputs %u must be above max-num-seqs %u", o->max_outputs,
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
    assert(s->n_waiting == 0 && s->n_running == 0);
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

/* --- the lists -------------------------------------------------------------------------------- */

static bool goes_before(const struct request *a, const struct request *b) {
    if (a->params.priority != b->params.priority) return a->params.priority < b->params.priority;
    return a->seq < b->seq;
}

/* At its place from the back: new arrivals of equal priority stop at once. */
static void insert_sorted(struct list *list, struct request *r) {
    struct list *after = list->prev;

    while (after != list && goes_before(r, request_of(after)))
        after = after->prev;
    list_insert_before(after->next, &r->link);
}

/* Takes a request off its list. The caller puts it on the next one. */
static void leave(struct scheduler *s, struct request *r) {
    if (r->place == PLACE_WAITING) {
        s->n_waiting--;
        s->waiting_tokens -= r->n_tokens;
        list_remove(&r->link);
    } else if (r->place == PLACE_RUNNING) {
        s->n_running--;
        s->free_rows[s->n_free_rows++] = r->row;
        r->row = REQUEST_NO_ROW;
        list_remove(&r->link);
    }
}

static void enter_waiting(struct scheduler *s, struct request *r, bool at_front) {
    leave(s, r);
    r->place = PLACE_WAITING;
    s->n_waiting++;
    s->waiting_tokens += r->n_tokens;
    if (s->options.policy == POLICY_PRIORITY) {
        insert_sorted(&s->waiting, r);
    } else if (at_front) {
        list_push_front(&s->waiting, &r->link);
    } else {
        list_push_back(&s->waiting, &r->link);
    }
}

static void enter_running(struct scheduler *s, struct request *r) {
    leave(s, r);
    r->place = PLACE_RUNNING;
    r->n_admissions++;
    s->n_running++;
    r->row = s->free_rows[--s->n_free_rows];
    if (s->options.policy == POLICY_PRIORITY) {
        insert_sorted(&s->running, r);
    } else {
        list_push_back(&s->running, &r->link);
    }
}

static void enter_done(struct scheduler *s, struct request *r, uint64_t now_us) {
    kv_manager_free(s->kv, &r->kv);
    leave(s, r);
    r->place = PLACE_DONE;
    r->finished_us = now_us;
}

static void preempt(struct scheduler *s, struct request *r) {
    kv_manager_free(s->kv, &r->kv);
    r->n_computed = 0;
    r->n_preemptions++;
    s->n_preemptions++;
    enter_waiting(s, r, true);
}

enum status scheduler_add(struct scheduler *s, struct request *r, struct error *err) {
    uint32_t block_size = kv_manager_block_size(s->kv);
    uint32_t n_usable = block_pool_n_usable(kv_manager_pool(s->kv));

    if (kv_manager_most_blocks(s->kv, r->n_max) > n_usable)
        return error_set(err, ST_TOO_LARGE,
                         "the request may grow to %u tokens, but the KV memory holds %llu: shorten "
                         "the prompt or lower max_tokens",
                         r->n_max, (unsigned long long)n_usable * block_size);
    r->seq = s->n_added++;
    enter_waiting(s, r, false);
    return ST_OK;
}

/* --- one step --------------------------------------------------------------------------------- */

/* The positions among [first, first + n) whose prediction is a prompt token not scored yet. */
static uint32_t count_scores(const struct request *r, uint32_t first, uint32_t n, uint32_t *from) {
    uint32_t to = MIN(first + n, r->n_prompt - 1);

    *from = MAX(first, r->n_scored);
    return request_is_scored(r) && to > *from ? to - *from : 0;
}

/* How many tokens from `first` on this step can give to r; 0 when it must wait. */
static uint32_t fit_tokens(const struct scheduler *s, const struct request *r, uint32_t first,
                           const struct budget *b) {
    uint32_t n = r->n_tokens - first, from;

    if (s->options.long_prefill_token_threshold > 0)
        n = MIN(n, s->options.long_prefill_token_threshold);
    if (!s->options.chunked_prefill && n > b->tokens) return 0;
    n = MIN(n, b->tokens);
    if (count_scores(r, first, n, &from) > b->scores) n = from + b->scores - first;
    return n;
}

static void add_entry(struct schedule *sched, struct budget *b, struct request *r, uint32_t n) {
    struct schedule_entry *e = &sched->entry[sched->n_entries++];

    *e = (struct schedule_entry){.request = r, .first = r->n_computed, .n_tokens = n};
    e->n_scores = count_scores(r, e->first, n, &e->score_first);
    e->is_sampled = e->first + n == r->n_tokens;
    r->n_scored += e->n_scores;
    r->n_computed += n;
    r->n_in_flight++;
    b->tokens -= n;
    b->scores -= e->n_scores;
    sched->n_tokens += n;
    sched->prefill_tokens += MIN(e->first + n, r->n_prompt) - MIN(e->first, r->n_prompt);
    sched->n_outputs += e->n_scores + e->is_sampled;
}

/* Blocks for the next n tokens of a running request, taken from the latest if need be. False when
 * the request itself had to give way. */
static bool make_room(struct scheduler *s, struct schedule *sched, struct request *r, uint32_t n) {
    struct kv_alloc alloc = {.n_computed = r->n_computed, .n_new = n};

    while (kv_manager_allocate(s->kv, &r->kv, r->tokens, r->n_tokens, &alloc) != ST_OK) {
        struct request *victim = request_of(list_last(&s->running));

        preempt(s, victim);
        sched->n_preempted++;
        if (victim == r) return false;
    }
    return true;
}

static void schedule_running(struct scheduler *s, struct schedule *sched, struct budget *b) {
    for (struct list *it = s->running.next; it != &s->running && b->tokens > 0; it = it->next) {
        struct request *r = request_of(it);
        uint32_t n = fit_tokens(s, r, r->n_computed, b);

        if (n == 0) continue; /* awaits its sampled token, or no room to score: others may go on */
        if (!make_room(s, sched, r, n)) return;
        add_entry(sched, b, r, n);
    }
}

static void admit(struct scheduler *s, struct schedule *sched, struct request *r,
                  uint32_t n_hit_tokens, uint64_t now_us) {
    bool is_first = r->n_admissions == 0;

    if (is_first) {
        r->cached_tokens = n_hit_tokens;
        r->scheduled_us = now_us;
        sched->prompt_tokens += r->n_prompt;
        sched->cached_prompt_tokens += n_hit_tokens;
    } else {
        sched->n_resumed++;
    }
    if (!r->kv.skip_reading)
        kv_manager_record_admission(s->kv, r->n_tokens, n_hit_tokens, !is_first);
    enter_running(s, r);
    r->n_computed = n_hit_tokens;
    sched->n_admitted++;
    sched->cached_tokens += n_hit_tokens;
}

static void schedule_waiting(struct scheduler *s, struct schedule *sched, struct budget *b,
                             uint64_t now_us) {
    struct request *r;

    while (b->tokens > 0 && s->n_running < s->options.max_num_seqs &&
           (r = request_of(list_first(&s->waiting))) != NULL) {
        struct kv_hit hit;
        struct kv_alloc alloc;
        uint32_t n;

        if (r->n_in_flight > 0) return; /* preempted while its next token is being computed */
        hit = kv_manager_lookup(s->kv, &r->kv, r->tokens, r->n_tokens);
        n = fit_tokens(s, r, hit.n_tokens, b);
        if (n == 0) return;
        alloc = (struct kv_alloc){.hit = hit,
                                  .n_new = n,
                                  .full_sequence_must_fit = s->options.full_sequence_must_fit,
                                  .has_scheduled = sched->n_entries > 0};
        if (kv_manager_allocate(s->kv, &r->kv, r->tokens, r->n_tokens, &alloc) != ST_OK) return;
        admit(s, sched, r, hit.n_tokens, now_us);
        add_entry(sched, b, r, n);
        sched->new_tokens += n;
    }
}

void scheduler_step(struct scheduler *s, struct schedule *sched, uint64_t now_us) {
    struct budget b = {.tokens = s->options.max_num_batched_tokens,
                       .scores = s->options.max_outputs - s->options.max_num_seqs};

    *sched = (struct schedule){.entry = sched->entry};
    schedule_running(s, sched, &b);
    if (sched->n_preempted == 0) schedule_waiting(s, sched, &b, now_us);
}

bool scheduler_take(struct scheduler *s, const struct schedule_entry *e, uint32_t token,
                    uint64_t now_us) {
    struct request *r = e->request;

    r->n_in_flight--;
    if (r->place == PLACE_DONE || !e->is_sampled) return false;
    assert(e->first + e->n_tokens == r->n_tokens); /* sampled once, for the next position */
    request_append(r, token);
    if (r->place == PLACE_WAITING) s->waiting_tokens++; /* preempted meanwhile: the token counts */
    if (r->first_token_us == 0) r->first_token_us = now_us;
    if (!request_check_stop(r, s->options.eos_ids, s->options.n_eos)) return false;
    enter_done(s, r, now_us);
    return true;
}

void scheduler_end(struct scheduler *s, struct request *r, enum finish_reason reason,
                   uint64_t now_us) {
    if (r->place == PLACE_DONE) return;
    r->finish = reason;
    enter_done(s, r, now_us);
}

enum status scheduler_reset_prefix_cache(struct scheduler *s, bool reset_running) {
    struct list *last;

    while (reset_running && (last = list_last(&s->running)) != NULL)
        preempt(s, request_of(last));
    return kv_manager_reset_prefix_cache(s->kv);
}

/* --- looking in ------------------------------------------------------------------------------- */

static struct request *at(const struct list *head, uint32_t i) {
    struct list *it = head->next;

    while (it != head && i-- > 0)
        it = it->next;
    return it == head ? NULL : request_of(it);
}

struct request *scheduler_running_at(const struct scheduler *s, uint32_t i) {
    return at(&s->running, i);
}

struct request *scheduler_waiting_at(const struct scheduler *s, uint32_t i) {
    return at(&s->waiting, i);
}

struct request *scheduler_any(const struct scheduler *s) {
    struct request *r = scheduler_running_at(s, 0);

    return r ? r : scheduler_waiting_at(s, 0);
}

struct scheduler_counts scheduler_counts(const struct scheduler *s) {
    struct scheduler_counts c = {.running = s->n_running,
                                 .waiting = s->n_waiting,
                                 .queued_tokens = s->waiting_tokens,
                                 .preemptions = s->n_preemptions};

    LIST_FOR_EACH(it, &s->running) {
        const struct request *r = request_of(it);

        c.queued_tokens += r->n_tokens - r->n_computed;
    }
    return c;
}

void scheduler_check(const struct scheduler *s) {
    uint32_t n_waiting = 0, n_running = 0, block_size = kv_manager_block_size(s->kv);
    uint64_t waiting_tokens = 0;
    const struct request *before = NULL;

    LIST_FOR_EACH(it, &s->waiting) {
        const struct request *r = request_of(it);

        assert(r->place == PLACE_WAITING && r->row == REQUEST_NO_ROW);
        assert(r->n_computed == 0 && r->kv.table[0].n_blocks == 0 && r->finish == FINISH_NONE);
        assert(s->options.policy != POLICY_PRIORITY || !before || goes_before(before, r));
        waiting_tokens += r->n_tokens;
        n_waiting++;
        before = r;
    }
    assert(n_waiting == s->n_waiting && waiting_tokens == s->waiting_tokens);
    LIST_FOR_EACH(it, &s->running) {
        const struct request *r = request_of(it);

        assert(r->place == PLACE_RUNNING && r->row < s->options.max_num_seqs);
        assert(r->n_computed <= r->n_tokens && r->n_tokens <= r->n_max);
        assert(r->finish == FINISH_NONE);
        assert(r->kv.table[0].n_blocks == CEIL_DIV(r->n_computed, block_size));
        for (uint32_t i = 0; i < s->n_free_rows; i++)
            assert(s->free_rows[i] != r->row);
        for (struct list *other = it->next; other != &s->running; other = other->next)
            assert(request_of(other)->row != r->row);
        n_running++;
    }
    assert(n_running == s->n_running);
    assert(s->n_running + s->n_free_rows == s->options.max_num_seqs);
    kv_manager_check(s->kv);
}

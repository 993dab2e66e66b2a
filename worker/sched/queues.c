/* worker/sched/queues.c - the scheduler's lists. State is membership: each state except NEW and
 * DONE is a list with a count, changed by the functions of this file alone. */
#include <assert.h>

#include "worker/sched/beam_group.h"
#include "worker/sched/scheduler_internal.h"

/* --- order ------------------------------------------------------------------------------------ */

static bool precedes(const struct scheduler *s, const struct request *a, const struct request *b) {
    if (s->options.policy != POLICY_FCFS && a->params.priority != b->params.priority)
        return a->params.priority < b->params.priority;
    return a->seq < b->seq;
}

/* New arrivals belong near the back, preempted requests near the front. */
static void insert(struct scheduler *s, struct list *list, struct request *r, bool is_new) {
    struct list *at = list;

    if (is_new) {
        while (at->prev != list && precedes(s, r, request_of(at->prev)))
            at = at->prev;
    } else {
        at = at->next;
        while (at != list && !precedes(s, r, request_of(at)))
            at = at->next;
    }
    list_insert_before(at, &r->link);
}

/* --- places ----------------------------------------------------------------------------------- */

void scheduler_leave(struct scheduler *s, struct request *r) {
    switch (r->state) {
    case REQUEST_NEW:
    case REQUEST_DONE: return;
    case REQUEST_WAITING:
        scheduler_order_leave(s, r);
        s->n_waiting--;
        s->waiting_tokens -= r->n_tokens;
        break;
    case REQUEST_SWAPPED:
        s->n_swapped--;
        s->waiting_tokens -= r->n_tokens;
        break;
    case REQUEST_SEARCHING: s->n_searching--; break;
    case REQUEST_RUNNING:
        fair_order_end(&s->order, &r->order.turn);
        s->n_running--;
        s->free_rows[s->n_free_rows++] = r->row;
        r->row = REQUEST_NO_ROW;
        r->n_forced = 0;
        break;
    }
    list_remove(&r->link);
    r->state = REQUEST_NEW;
}

void scheduler_enter_waiting(struct scheduler *s, struct request *r) {
    scheduler_leave(s, r);
    r->state = REQUEST_WAITING;
    s->n_waiting++;
    s->waiting_tokens += r->n_tokens;
    insert(s, &s->waiting, r, r->n_admissions == 0);
    scheduler_order_enter(s, r);
}

static void enter_swapped(struct scheduler *s, struct request *r) {
    scheduler_leave(s, r);
    r->state = REQUEST_SWAPPED;
    s->n_swapped++;
    s->waiting_tokens += r->n_tokens;
    insert(s, &s->swapped, r, false);
}

void scheduler_enter_running(struct scheduler *s, struct request *r) {
    scheduler_order_begin(s, r); /* before it leaves the order: its tenant stays active */
    scheduler_leave(s, r);
    r->state = REQUEST_RUNNING;
    r->n_binds++;
    s->n_running++;
    r->row = s->free_rows[--s->n_free_rows];
    insert(s, &s->running, r, true);
}

void scheduler_enter_searching(struct scheduler *s, struct request *r) {
    r->state = REQUEST_SEARCHING;
    s->n_searching++;
    list_push_back(&s->searching, &r->link);
}

static void cancel_load(struct scheduler *s, struct request *r) {
    if (r->remote == REMOTE_LOADING || r->remote == REMOTE_AWAITED)
        s->options.connector->cancel(s->options.connector->arg, r);
    s->n_awaiting -= r->remote == REMOTE_AWAITED;
    r->remote = REMOTE_NONE;
}

void scheduler_enter_done(struct scheduler *s, struct request *r, uint64_t now_us) {
    cancel_load(s, r);
    kv_manager_free(s->kv, &r->kv);
    scheduler_leave(s, r);
    scheduler_order_end(s, r);
    request_drop_parent(r);
    r->state = REQUEST_DONE;
    r->finished_us = now_us;
}

static bool wants_swap(const struct scheduler *s, const struct request *r) {
    if (s->options.preemption == PREEMPT_AUTO) return r->is_forked;
    return s->options.preemption == PREEMPT_SWAP;
}

void scheduler_preempt(struct scheduler *s, struct request *r, bool may_swap) {
    r->n_preemptions++;
    s->counts.preemptions++;
    if (may_swap && wants_swap(s, r) && r->n_computed > 0 &&
        kv_manager_swap_out(s->kv, &r->kv, r->n_computed) == ST_OK) {
        s->counts.swap_outs++;
        enter_swapped(s, r);
        return;
    }
    kv_manager_free(s->kv, &r->kv);
    r->n_computed = 0;
    r->is_remote_over = false;
    r->remote_deadline_us = 0;
    scheduler_enter_waiting(s, r);
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

/* A running search has an answer in its list; answers come first, so a beam is never returned. */
struct request *scheduler_any(const struct scheduler *s) {
    const struct list *const lists[] = {&s->searching, &s->running, &s->swapped, &s->waiting};
    struct request *r = NULL;

    for (size_t i = 0; i < ARRAY_LEN(lists) && !r; i++)
        r = at(lists[i], 0);
    return r;
}

bool scheduler_has_work(const struct scheduler *s) {
    return s->n_running + s->n_waiting + s->n_swapped > 0;
}

struct request *scheduler_pop_ended(struct scheduler *s) {
    return request_of(list_pop_front(&s->ended));
}

struct scheduler_counts scheduler_counts(const struct scheduler *s) {
    struct scheduler_counts c = s->counts;

    c.running = s->n_running;
    c.waiting = s->n_waiting + s->n_swapped;
    c.swapped = s->n_swapped;
    c.queued_tokens = s->waiting_tokens;
    c.in_flight = s->n_in_flight;
    LIST_FOR_EACH(it, &s->running) {
        const struct request *r = request_of(it);

        c.queued_tokens += r->n_tokens - MIN(r->n_computed, r->n_tokens);
    }
    return c;
}

/* --- check ------------------------------------------------------------------------------------ */

static uint32_t check_list(const struct scheduler *s, const struct list *list,
                           enum request_state state) {
    const struct request *before = NULL;
    uint32_t n = 0;

    LIST_FOR_EACH(it, list) {
        const struct request *r = request_of(it);

        assert(r->state == state && r->finish == FINISH_NONE);
        assert((r->row == REQUEST_NO_ROW) == (state != REQUEST_RUNNING));
        assert(r->n_computed <= r->n_tokens + r->n_pending && r->n_tokens <= r->n_max);
        assert(state == REQUEST_SEARCHING || !before || precedes(s, before, r));
        before = r;
        n++;
    }
    return n;
}

static void check_rows(const struct scheduler *s) {
    uint32_t block_size = kv_manager_block_size(s->kv);

    assert(s->n_running + s->n_free_rows == s->options.max_num_seqs);
    LIST_FOR_EACH(it, &s->running) {
        const struct request *r = request_of(it);

        assert(r->row < s->options.max_num_seqs && r->remote == REMOTE_NONE && !r->fork_of);
        assert(r->kv.table[0].n_blocks == CEIL_DIV(r->n_computed, block_size) ||
               s->options.connector); /* which may deliver less than it promised */
        for (uint32_t i = 0; i < s->n_free_rows; i++)
            assert(s->free_rows[i] != r->row);
        for (struct list *other = it->next; other != &s->running; other = other->next)
            assert(request_of(other)->row != r->row);
    }
}

void scheduler_check(const struct scheduler *s) {
    uint64_t waiting_tokens = 0;
    uint32_t n_awaiting = 0;

    assert(check_list(s, &s->waiting, REQUEST_WAITING) == s->n_waiting);
    assert(check_list(s, &s->running, REQUEST_RUNNING) == s->n_running);
    assert(check_list(s, &s->swapped, REQUEST_SWAPPED) == s->n_swapped);
    assert(check_list(s, &s->searching, REQUEST_SEARCHING) == s->n_searching);
    LIST_FOR_EACH(it, &s->waiting) {
        const struct request *r = request_of(it);

        assert(r->remote != REMOTE_NONE || (r->n_computed == 0 && r->kv.table[0].n_blocks == 0));
        assert(r->remote != REMOTE_AWAITED || r->kv.table[0].n_blocks == 0);
        n_awaiting += r->remote == REMOTE_AWAITED;
        waiting_tokens += r->n_tokens;
    }
    assert(n_awaiting == s->n_awaiting);
    LIST_FOR_EACH(it, &s->swapped)
    waiting_tokens += request_of(it)->n_tokens;
    assert(waiting_tokens == s->waiting_tokens);
    check_rows(s);
    scheduler_order_check(s);
    kv_manager_check(s->kv);
}

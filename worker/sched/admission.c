/* worker/sched/admission.c - a waiting request begins to run: with what is cached, a fork of its
 * parent's blocks, or what a connector has, and room for its first tokens. */
#include "worker/sched/beam_group.h"
#include "worker/sched/scheduler_internal.h"

/* How a waiting request would be admitted. */
struct admission {
    struct kv_alloc alloc;
    uint32_t n_have;     /* tokens that need not be computed */
    uint32_t n_external; /* of these, from the connector */
    bool is_forked, is_queried, is_later;
    bool is_cut; /* what host memory has behind the hit is left there */
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

bool scheduler_is_blocked(const struct scheduler *s, struct request *r) {
    return r->remote == REMOTE_LOADING || r->remote == REMOTE_AWAITED || r->has_offered ||
           awaits_parent(s, r);
}

/* What host memory has of the hit goes to the device's cache, where the next lookup finds it.
 * False: there is no room on the device. */
static bool move_up(struct scheduler *s, struct request *r, struct admission *a) {
    if (kv_manager_allocate(s->kv, &r->kv, r->tokens, r->n_tokens, &a->alloc) != ST_OK)
        return false;
    kv_manager_free(s->kv, &r->kv);
    a->alloc.hit = kv_manager_lookup(s->kv, &r->kv, r->tokens, r->n_tokens);
    a->n_have = a->alloc.hit.n_tokens;
    return true;
}

/* The tokens that another store has behind the local hit. False: not known yet. */
static bool query_connector(struct scheduler *s, struct request *r, struct admission *a) {
    const struct connector *c = s->options.connector;
    enum connector_answer answer;

    if (!c || r->kv.skip_reading || a->is_cut) return true;
    do {
        answer = c->find(c->arg, r, &a->alloc.hit, a->n_have, &a->n_external);
    } while (answer == CONNECTOR_MAKE_ROOM && move_up(s, r, a));
    if (answer == CONNECTOR_MAKE_ROOM) return true; /* nor is there any to begin with */
    if (answer == CONNECTOR_UNKNOWN) return false;
    if (answer == CONNECTOR_AWAIT) {
        r->remote = REMOTE_AWAITED;
        s->n_awaiting++;
        return false;
    }
    a->is_queried = true;
    a->is_later = answer == CONNECTOR_LATER && a->n_external > 0;
    a->n_external = MIN(a->n_external, r->n_tokens - a->n_have - !a->is_later);
    a->alloc.n_external = a->n_external;
    a->alloc.delay_publish = a->is_later;
    a->n_have += a->n_external;
    return true;
}

/* Leaves in host memory what is computed sooner. True: some was left. */
static bool leave_slow(struct scheduler *s, struct kv_hit *hit) {
    uint32_t n = hit->n_host_blocks * kv_manager_block_size(s->kv), first = hit->n_tokens - n;

    if (n == 0 || !(s->restore_rate > 0)) return false;
    if (n / s->restore_rate <= pace_prefill_s(&s->pace, first, hit->n_tokens)) return false;
    if (++s->n_left_on_host % SCHEDULER_RESTORE_TRIALS == 0) return false;
    hit->n_blocks -= hit->n_host_blocks;
    hit->n_host_blocks = 0;
    hit->n_tokens = first;
    return true;
}

/* Finds the source of its KV here: its own, a fork, or the cache. */
static void find_local(struct scheduler *s, struct request *r, struct admission *a) {
    if (r->remote == REMOTE_HERE) {
        a->alloc.n_computed = a->n_have = r->n_computed;
        return;
    }
    if (r->fork_of && kv_manager_fork(s->kv, &r->kv, &r->fork_of->kv, r->n_fork) == ST_OK) {
        a->is_forked = true;
        a->alloc.n_computed = a->n_have = r->n_fork;
        return;
    }
    request_drop_parent(r); /* its window has moved on */
    a->alloc.hit = kv_manager_lookup(s->kv, &r->kv, r->tokens, r->n_tokens);
    a->is_cut = leave_slow(s, &a->alloc.hit);
    a->n_have = a->alloc.hit.n_tokens;
}

static uint32_t host_tokens(const struct scheduler *s, const struct admission *a) {
    return a->alloc.hit.n_host_blocks * kv_manager_block_size(s->kv);
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
    r->n_went_before = (uint32_t)(s->n_started - r->n_started_before);
    s->n_started++;
    sched->prompt_tokens += r->n_prompt;
    sched->cached_prompt_tokens += a->n_have;
    if (r->group) {
        r->host_tokens = host_tokens(s, a);
        scheduler_start_search(sched, r, a->n_have, now_us);
        return;
    }
    r->cached_tokens = a->n_have;
    r->host_tokens = host_tokens(s, a);
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

static enum admission_result refuse(struct scheduler *s, struct request *r,
                                    const struct admission *a, enum admission_result why) {
    if (a->is_forked) kv_manager_free(s->kv, &r->kv);
    return why;
}

enum admission_result scheduler_admit(struct scheduler *s, struct schedule *sched, struct budget *b,
                                      struct request *r) {
    struct admission a = {.alloc = {.full_sequence_must_fit = s->options.full_sequence_must_fit,
                                    .has_scheduled = sched->n_entries > 0}};
    uint32_t n;

    find_local(s, r, &a);
    if (!scheduler_order_found(s, r, a.n_have)) return refuse(s, r, &a, ADMISSION_MOVED);
    if (r->remote == REMOTE_NONE && !a.is_forked && !query_connector(s, r, &a))
        return ADMISSION_PASSED;
    if (a.is_later) return await_remote(s, r, &a) ? ADMISSION_PASSED : ADMISSION_FULL;
    a.alloc.n_new = n = scheduler_fit(s, r, a.n_have, b);
    if (n == 0 || !scheduler_order_may_begin(s, r, a.n_have, n) ||
        kv_manager_allocate(s->kv, &r->kv, r->tokens, r->n_tokens, &a.alloc) != ST_OK)
        return refuse(s, r, &a, ADMISSION_FULL);
    load_external(s, r, &a);
    admit(s, sched, r, &a, b->now_us);
    scheduler_give(s, sched, b, r, n);
    r->n_before = 0; /* its hits may be computed in this very step: no one can fork it yet */
    sched->new_tokens += n;
    return ADMISSION_DONE;
}

/* worker/sched/by_remaining.c - POLICY_SRPT: the prompt that lacks least goes first.
 *
 * One step: every running request that decodes; what is swapped out; then prompts, by
 * chunk, in progress and waiting alike, in the order of fair_order.h. Seconds that a prompt lacks
 * are those of its tokens that are not cached, by pace.h, attention to their context included.
 *
 *      running   | decoding ... | in progress, passed or not: at most SCHEDULER_PREFILLS_MAX |
 *      waiting   fresh ──▶ seen (both in `order`)       aside: for a parent, a load, a search
 *                  cached tokens are looked up: of `fresh` once, of `seen` again and again while
 *                  prompts are computed, and of the first one when it is tried
 *
 * A request that is passed keeps its blocks. Decoding takes blocks from the prompt that lacks most;
 * a prompt takes them from those that lack more, and waits for decoding requests to end. So the
 * first that decodes always goes on, without one the first prompt: something ends.
 *
 * Looking up is bounded per step: FRESH_BLOCKS blocks hashed, SEEN_REQUESTS and SEEN_BLOCKS looked
 * up again. Until then a prompt counts as not cached. */
#include <assert.h>
#include <math.h>

#include "worker/sched/scheduler_internal.h"

#define FRESH_BLOCKS  1024u
#define SEEN_BLOCKS   512u
#define SEEN_REQUESTS 16u
#define ASIDE_LOOKS   64u
#define MOVES_MAX     16u /* waiting requests that lost their place in one step */
#define OVERDUE       4.0 /* times its own length and one step of the target */

static struct request *request_of_turn(struct fair_turn *t) {
    return t ? CONTAINER_OF(t, struct request, order.turn) : NULL;
}

static struct request *request_of_order(struct list *link) {
    return link ? LIST_ENTRY(link, struct request, order.link) : NULL;
}

static uint32_t lacking(const struct request *r) {
    return r->n_tokens - MIN(r->n_computed, r->n_tokens);
}

/* Does it lack its next token alone, and those that were forced before that? */
static bool is_decoding(const struct request *r) {
    return lacking(r) <= 1 + r->n_forced;
}

/* --- the waiting ------------------------------------------------------------------------------ */

static void set_key(const struct scheduler *s, struct request *r, uint32_t n_have) {
    struct fair_turn *t = &r->order.turn;

    r->order.n_have = n_have;
    t->band = r->params.priority;
    t->seq = r->seq;
    t->has_begun = r->n_tokens > r->n_prompt || r->remote == REMOTE_HERE;
    t->is_resumed = r->n_admissions > 0;
    t->key = pace_prefill_s(&s->pace, MIN(n_have, r->n_tokens), r->n_tokens) +
             FAIR_AGING * 1e-6 * (double)r->arrival_us;
}

static void put_in_order(struct scheduler *s, struct request *r) {
    set_key(s, r, 0);
    fair_order_push(&s->order, &r->order.turn);
    list_push_back(&s->fresh, &r->order.link);
}

static void put_aside(struct scheduler *s, struct request *r) {
    r->order.is_aside = true;
    s->n_aside++;
    list_push_back(&s->aside, &r->order.link);
}

void scheduler_order_enter(struct scheduler *s, struct request *r) {
    if (!scheduler_is_srpt(s)) return;
    if (!r->order.turn.tenant) fair_order_join(&s->order, &r->order.turn, r->params.tenant);
    if (r->order.length_s <= 0) r->order.length_s = pace_prefill_s(&s->pace, 0, r->n_prompt);
    if (r->fork_of || r->has_offered || r->remote == REMOTE_LOADING ||
        r->remote == REMOTE_AWAITED) {
        put_aside(s, r);
    } else {
        put_in_order(s, r);
    }
}

void scheduler_order_leave(struct scheduler *s, struct request *r) {
    if (!scheduler_is_srpt(s)) return;
    fair_order_remove(&s->order, &r->order.turn);
    list_remove(&r->order.link);
    s->n_aside -= r->order.is_aside;
    r->order.is_aside = false;
}

void scheduler_order_end(struct scheduler *s, struct request *r) {
    fair_order_leave(&s->order, &r->order.turn);
}

/* What was set aside may have what it waited for. */
static void look_aside(struct scheduler *s, uint32_t n) {
    for (n = MIN(n, s->n_aside); n > 0; n--) {
        struct request *r = request_of_order(list_first(&s->aside));

        scheduler_order_leave(s, r);
        if (scheduler_is_blocked(s, r)) {
            put_aside(s, r);
        } else {
            put_in_order(s, r);
        }
    }
}

/* Returns the number of blocks that were found, at least 1. */
static uint32_t look_up(struct scheduler *s, struct request *r) {
    struct kv_hit hit = {0};
    uint32_t n_have;

    if (r->remote == REMOTE_HERE) {
        n_have = r->n_computed;
    } else if (r->fork_of) {
        n_have = r->n_fork;
    } else {
        hit = kv_manager_lookup(s->kv, &r->kv, r->tokens, r->n_tokens);
        n_have = hit.n_tokens;
    }
    set_key(s, r, n_have);
    fair_order_update(&s->order, &r->order.turn);
    list_remove(&r->order.link);
    list_push_back(&s->seen, &r->order.link);
    return hit.n_blocks + 1;
}

static void look_at_fresh(struct scheduler *s) {
    uint32_t n_blocks = 0;
    struct request *r;

    while (n_blocks < FRESH_BLOCKS && (r = request_of_order(list_first(&s->fresh))) != NULL) {
        uint32_t n_hashes = r->kv.n_hashes;

        n_blocks += look_up(s, r);
        n_blocks += r->kv.n_hashes - n_hashes;
    }
}

/* What prompts computed since the last look may be a prefix of others. */
static void look_at_seen(struct scheduler *s) {
    uint32_t n = MIN(SEEN_REQUESTS, s->n_waiting), n_blocks = 0;
    struct request *r;

    if (!s->has_progress) return;
    s->has_progress = false;
    for (; n > 0 && n_blocks < SEEN_BLOCKS; n--) {
        if (!(r = request_of_order(list_first(&s->seen)))) return;
        n_blocks += look_up(s, r);
    }
}

bool scheduler_order_found(struct scheduler *s, struct request *r, uint32_t n_have) {
    uint32_t n_had = r->order.n_have;

    if (!scheduler_is_srpt(s)) return true;
    set_key(s, r, n_have);
    fair_order_update(&s->order, &r->order.turn);
    return n_have >= n_had || r->order.turn.has_begun;
}

/* --- in progress ------------------------------------------------------------------------------ */

void scheduler_order_begin(struct scheduler *s, struct request *r) {
    if (scheduler_is_srpt(s) && lacking(r) > 1) fair_order_begin(&s->order, &r->order.turn);
}

void scheduler_order_gave(struct scheduler *s, struct request *r, uint32_t n) {
    uint32_t last = r->n_computed + n;

    s->has_progress = true;
    fair_order_charge(&s->order, &r->order.turn, pace_prefill_s(&s->pace, r->n_computed, last));
    set_key(s, r, last);
    if (last + 1 >= r->n_tokens) fair_order_end(&s->order, &r->order.turn);
}

bool scheduler_order_may_begin(const struct scheduler *s, const struct request *r, uint32_t n_have,
                               uint32_t n) {
    return !scheduler_is_srpt(s) || n_have + n + 1 >= r->n_tokens ||
           s->order.n_in_progress < SCHEDULER_PREFILLS_MAX;
}

struct request *scheduler_order_victim(const struct scheduler *s, const struct request *r) {
    struct request *worst = NULL;

    LIST_FOR_EACH(it, &s->running) {
        struct request *q = request_of(it);

        if (q->step == s->n_steps || q == r || is_decoding(q)) continue;
        if (!worst || fair_order_before(&s->order, &worst->order.turn, &q->order.turn)) worst = q;
    }
    if (is_decoding(r)) return worst ? worst : request_of(list_last(&s->running));
    return worst && fair_order_before(&s->order, &r->order.turn, &worst->order.turn) ? worst : NULL;
}

static bool is_old(const struct scheduler *s, const struct request *r, uint64_t now_us) {
    double waited_s = 1e-6 * (double)(now_us - MIN(r->arrival_us, now_us));

    return r->n_tokens == r->n_prompt &&
           waited_s > OVERDUE * (r->order.length_s + s->options.itl_target_s);
}

/* The longest waiting one is among the first: answers that were preempted may be before it. */
bool scheduler_order_is_overdue(const struct scheduler *s, uint64_t now_us) {
    uint32_t n = 4;

    for (uint32_t i = 0; i < s->n_prefills; i++)
        if (is_old(s, s->prefill[i], now_us)) return true;
    LIST_FOR_EACH(it, &s->waiting) {
        if (n-- == 0) break;
        if (is_old(s, request_of(it), now_us)) return true;
    }
    return false;
}

/* --- one step --------------------------------------------------------------------------------- */

/* All that decode; the others are collected. */
static void schedule_decoding(struct scheduler *s, struct schedule *sched, struct budget *b) {
    s->n_prefills = 0;
    for (struct list *it = s->running.next; it != &s->running; it = it->next) {
        struct request *r = request_of(it);
        uint32_t n = scheduler_count_ready(s, r, r->n_computed);

        if (!is_decoding(r)) {
            s->prefill[s->n_prefills++] = r;
        } else if (n > 0 && (n = scheduler_fit(s, r, r->n_computed, b)) > 0) {
            if (!scheduler_make_room(s, sched, r, n)) return; /* it was the last */
            scheduler_give(s, sched, b, r, n);
        }
    }
}

/* Of those in progress and not scheduled yet; some were preempted since. */
static struct request *first_in_progress(const struct scheduler *s, uint32_t *at) {
    struct request *first = NULL;

    for (uint32_t i = 0; i < s->n_prefills; i++) {
        struct request *r = s->prefill[i];

        if (r->state != REQUEST_RUNNING || r->step == s->n_steps) continue;
        if (first && !fair_order_before(&s->order, &r->order.turn, &first->order.turn)) continue;
        first = r;
        *at = i;
    }
    return first;
}

/* False when there are no blocks: then there are none for those behind it. */
static bool go_on(struct scheduler *s, struct schedule *sched, struct budget *b, struct request *r,
                  uint32_t at) {
    uint32_t n = scheduler_fit(s, r, r->n_computed, b);

    if (n == 0) { /* no room to score: others may run */
        s->prefill[at] = s->prefill[--s->n_prefills];
        return true;
    }
    if (!scheduler_make_room(s, sched, r, n)) return false;
    scheduler_give(s, sched, b, r, n);
    return true;
}

/* False when no waiting request may be tried any more. */
static bool try_waiting(struct scheduler *s, struct schedule *sched, struct budget *b,
                        struct request *r, uint32_t *n_moves) {
    if (r->n_in_flight > 0) return false; /* preempted while its next token is being computed */
    if (!scheduler_is_blocked(s, r)) {
        switch (scheduler_admit(s, sched, b, r)) {
        case ADMISSION_DONE: return true;
        case ADMISSION_MOVED: return ++*n_moves < MOVES_MAX;
        case ADMISSION_FULL: return false;
        case ADMISSION_PASSED: break;
        }
    }
    scheduler_order_leave(s, r);
    put_aside(s, r);
    return true;
}

/* Blocks that a preemption has freed serve the running ones. */
static bool may_admit(const struct scheduler *s, const struct schedule *sched,
                      const struct budget *b) {
    return scheduler_has_room(s, b) &&
           (sched->n_preempted == 0 || sched->n_entries + s->n_in_flight == 0);
}

static void schedule_prompts(struct scheduler *s, struct schedule *sched, struct budget *b,
                             bool admits) {
    uint32_t n_moves = 0, at = 0;

    while (b->tokens > 0) {
        struct request *r = first_in_progress(s, &at), *w = NULL;

        if (admits && may_admit(s, sched, b)) w = request_of_turn(fair_order_first(&s->order));
        if (!r && !w) return;
        if (w && (!r || fair_order_before(&s->order, &w->order.turn, &r->order.turn))) {
            admits = try_waiting(s, sched, b, w, &n_moves);
        } else if (!r || !go_on(s, sched, b, r, at)) {
            return;
        }
    }
}

static void count_passed(struct scheduler *s) {
    for (uint32_t i = 0; i < s->n_prefills; i++) {
        struct request *r = s->prefill[i];

        if (r->n_tokens > r->n_prompt) continue; /* its creator reads the number */
        r->n_passed += r->state == REQUEST_RUNNING && r->step != s->n_steps;
    }
}

void scheduler_step_by_remaining(struct scheduler *s, struct schedule *sched, struct budget *b) {
    uint32_t n_looks = ASIDE_LOOKS;
    bool is_stuck;

    schedule_decoding(s, sched, b);
    do {
        bool admits = may_admit(s, sched, b) && scheduler_resume_swapped(s, sched, b);

        if (admits) {
            look_aside(s, n_looks);
            look_at_fresh(s);
            look_at_seen(s);
        }
        schedule_prompts(s, sched, b, admits);
        is_stuck = scheduler_break_deadlock(s, sched);
        sched->n_preempted += is_stuck;
        if (!is_stuck && sched->n_entries + s->n_in_flight == 0 && n_looks < s->n_aside) {
            n_looks = UINT32_MAX;
            is_stuck = true;
        }
    } while (is_stuck);
    count_passed(s);
}

/* --- check ------------------------------------------------------------------------------------ */

static uint32_t count(const struct list *list, bool is_aside) {
    uint32_t n = 0;

    LIST_FOR_EACH(it, list) {
        const struct request *r = request_of_order(it);

        assert(r->state == REQUEST_WAITING && r->order.is_aside == is_aside);
        assert(heap_is_linked(&r->order.turn.link) == !is_aside);
        n++;
    }
    return n;
}

void scheduler_order_check(const struct scheduler *s) {
    uint32_t n_in_progress = 0, n_aside = count(&s->aside, true);

    if (!scheduler_is_srpt(s)) return;
    assert(n_aside == s->n_aside);
    assert(count(&s->fresh, false) + count(&s->seen, false) + n_aside == s->n_waiting);
    LIST_FOR_EACH(it, &s->running) {
        const struct request *r = request_of(it);

        assert(r->order.turn.is_in_progress == !is_decoding(r));
        n_in_progress += r->order.turn.is_in_progress;
    }
    assert(n_in_progress == s->order.n_in_progress && n_in_progress <= SCHEDULER_PREFILLS_MAX);
    fair_order_check(&s->order);
}

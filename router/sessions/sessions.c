/* router/sessions/sessions.c - see sessions.h. */
#include "router/sessions/sessions.h"

#include <assert.h>
#include <math.h>

#include "common/base/mem.h"
#include "router/sessions/gaps.h"
#include "router/sessions/repeats.h"

#define AGED_AT_ONCE 16 /* forgotten by one call, so that none takes long */
#define TOKENS_MAX   1e9
#define GAP_LEAST_S  0.001

/* A session that has an open turn and no held one is on none. */
enum { ON_NONE, IDLE, WAITING, RESTING, N_LISTS };

struct queue { /* of sessions */
    uint32_t first, last, n;
};

struct peer { /* another router */
    uint64_t origin;
    uint32_t since_ms, heard_ms; /* when its first session began to wait; 0: none waits */
};

struct sessions {
    struct session_table table;
    struct queue lists[N_LISTS];
    struct gaps gaps;
    struct repeats repeats;
    uint32_t n_active, n_held;
    uint32_t n_open;   /* turns, of all sessions */
    uint32_t admitted; /* its held turns go */
    double capacity;   /* tokens that may be active; 0: any */
    uint32_t now_ms;   /* of the last event */
    uint32_t still_ms; /* when the last open turn ended */
    uint32_t defer_ms; /* since when the first that waits could go, and lets others; 0: no */
    struct peer peers[SESSION_PEERS];
    struct sessions_stats counts;
};

static uint32_t ms_of(uint64_t now_us) {
    return (uint32_t)(now_us / 1000);
}

/* Of two times within 24 days of each other. */
static double seconds_since(uint32_t now_ms, uint32_t then_ms) {
    return (int32_t)(now_ms - then_ms) * 1e-3;
}

static struct session *at(const struct sessions *s, uint32_t i) {
    return session_at(&s->table, i);
}

/* --- lists ----------------------------------------------------------------------------------- */

static void unlink_session(struct sessions *s, uint32_t i) {
    struct session *a = at(s, i);
    struct queue *q = &s->lists[a->list];

    if (a->list == ON_NONE) return;
    *(a->prev ? &at(s, a->prev)->after : &q->first) = a->after;
    *(a->after ? &at(s, a->after)->prev : &q->last) = a->prev;
    a->prev = a->after = 0;
    a->list = ON_NONE;
    q->n--;
}

static void link_before(struct sessions *s, uint32_t i, uint8_t list, uint32_t before) {
    struct session *a = at(s, i);
    struct queue *q = &s->lists[list];

    a->after = before;
    a->prev = before ? at(s, before)->prev : q->last;
    *(a->prev ? &at(s, a->prev)->after : &q->first) = i;
    *(before ? &at(s, before)->prev : &q->last) = i;
    a->list = list;
    q->n++;
}

/* One that comes back to its place is old, so that the search begins with the oldest. */
static void link_waiting(struct sessions *s, uint32_t i) {
    uint32_t since_ms = at(s, i)->since_ms, before = s->lists[WAITING].first;
    uint32_t last = s->lists[WAITING].last;

    if (last && (int32_t)(since_ms - at(s, last)->since_ms) >= 0) before = 0;
    while (before && (int32_t)(at(s, before)->since_ms - since_ms) <= 0)
        before = at(s, before)->after;
    link_before(s, i, WAITING, before);
}

static void set_active(struct sessions *s, uint32_t i, bool is_active) {
    s->n_active += (uint32_t)is_active - at(s, i)->is_active;
    session_table_activate(&s->table, i, is_active);
}

static void erase(struct sessions *s, uint32_t i) {
    unlink_session(s, i);
    set_active(s, i, false);
    session_table_erase(&s->table, i);
}

/* Puts it on the list on which its turns and its tokens put it. */
static void settle(struct sessions *s, uint32_t i) {
    struct session *a = at(s, i);

    unlink_session(s, i);
    if (a->held) {
        link_waiting(s, i);
    } else if (!a->n_open) {
        link_before(s, i, a->is_active ? IDLE : RESTING, 0);
    }
}

static void put_to_rest(struct sessions *s, uint32_t i) {
    set_active(s, i, false);
    settle(s, i);
}

/* --- time ------------------------------------------------------------------------------------ */

static void expire(struct sessions *s) {
    uint32_t i;

    while ((i = s->lists[IDLE].first) &&
           seconds_since(s->now_ms, at(s, i)->last_ms) > SESSION_TTL_S) {
        put_to_rest(s, i);
        s->counts.n_expired++;
    }
    for (uint32_t n = 0; n < AGED_AT_ONCE && (i = s->lists[RESTING].first); n++) {
        if (seconds_since(s->now_ms, at(s, i)->last_ms) <= SESSION_AGE_S) break;
        erase(s, i);
    }
}

static void note_time(struct sessions *s, uint64_t now_us) {
    s->now_ms = ms_of(now_us);
    expire(s);
}

static void note_gap(struct sessions *s, struct session *a, double held_s) {
    double gap_s = fmax(seconds_since(s->now_ms, a->last_ms) - held_s, GAP_LEAST_S);
    float log_s = (float)log(gap_s), off = log_s - a->gap_mean;

    gaps_add(&s->gaps, gap_s);
    a->has_ended = false;
    a->n_gaps++;
    a->gap_mean += off / (float)a->n_gaps;
    a->gap_m2 += off * (log_s - a->gap_mean);
}

/* --- creation -------------------------------------------------------------------------------- */

struct sessions *sessions_create(uint32_t n_max) {
    struct sessions *s = mem_try_zalloc(sizeof(*s));

    if (!s || !session_table_init(&s->table, n_max)) {
        mem_free(s);
        return NULL;
    }
    repeats_init(&s->repeats);
    return s;
}

void sessions_destroy(struct sessions *s) {
    if (!s) return;
    assert(!s->n_held);
    session_table_fini(&s->table);
    mem_free(s);
}

void sessions_set_capacity(struct sessions *s, double device_tokens, double host_tokens) {
    s->capacity = SESSION_KV_SHARE * (device_tokens + SESSION_HOST_SHARE * host_tokens);
}

/* --- room ------------------------------------------------------------------------------------ */

/* Does any session wait, or would none gain from it? */
static bool is_limited(const struct sessions *s) {
    return s->capacity > 0 && repeats_share(&s->repeats) >= REPEATS_WORTH;
}

/* More is active than there is room for, as after the loss of a worker. */
static bool is_excess(const struct sessions *s) {
    return is_limited(s) && (double)s->table.used_tokens > SESSION_EXCESS * s->capacity;
}

/* What it would add, at most all there is: so it goes when it is alone. */
static bool fits(const struct sessions *s, uint32_t i, double freed_tokens) {
    double cost = fmin((double)session_table_cost(&s->table, i), s->capacity);

    return !is_limited(s) || (double)s->table.used_tokens - freed_tokens + cost <= s->capacity;
}

/* The sessions idle for long whose rest makes room for i, the longest idle first; 0: they do not
 * suffice. */
static uint32_t n_to_rest(const struct sessions *s, uint32_t i) {
    double freed = 0, long_s = gaps_long_s(&s->gaps);
    uint32_t n = 0;

    for (uint32_t k = s->lists[IDLE].first; k && n < SESSIONS_RESTED; k = at(s, k)->after) {
        if (seconds_since(s->now_ms, at(s, k)->last_ms) <= long_s) return 0;
        freed += (double)at(s, k)->own_tokens;
        n++;
        if (fits(s, i, freed)) return n;
    }
    return n == SESSIONS_RESTED ? n : 0;
}

/* There has been no work for a while: all make room, so that several can go at once. */
static void rest_when_still(struct sessions *s) {
    uint32_t n = SESSIONS_RESTED, k;

    if (s->n_open || seconds_since(s->now_ms, s->still_ms) < SESSION_STILL_S) return;
    while (n-- && (k = s->lists[IDLE].first)) {
        put_to_rest(s, k);
        s->counts.n_rested++;
    }
}

static bool make_room(struct sessions *s, uint32_t i) {
    uint32_t n;

    rest_when_still(s);
    if (fits(s, i, 0)) return true;
    n = n_to_rest(s, i);
    s->counts.n_rested += n;
    while (n--)
        put_to_rest(s, s->lists[IDLE].first);
    return fits(s, i, 0);
}

/* --- other routers --------------------------------------------------------------------------- */

/* A place that no router has had is the stalest. */
static bool is_staler(const struct peer *a, const struct peer *b) {
    if (!a->origin || !b->origin) return !a->origin && b->origin;
    return (int32_t)(a->heard_ms - b->heard_ms) < 0;
}

/* The place of the one that was heard of longest ago is given to a new one. */
static void hear(struct sessions *s, uint64_t origin, uint32_t waits_s) {
    struct peer *p = &s->peers[0];

    for (uint32_t i = 0; i < SESSION_PEERS; i++) {
        if (s->peers[i].origin == origin) {
            p = &s->peers[i];
            break;
        }
        if (is_staler(&s->peers[i], p)) p = &s->peers[i];
    }
    *p = (struct peer){.origin = origin, .heard_ms = s->now_ms};
    if (waits_s) p->since_ms = (s->now_ms - waits_s * 1000) | 1;
}

/* Does another router have a session that has waited for longer? */
static bool has_older_elsewhere(const struct sessions *s, uint32_t since_ms) {
    for (uint32_t i = 0; i < SESSION_PEERS; i++) {
        const struct peer *p = &s->peers[i];

        if (p->since_ms && seconds_since(s->now_ms, p->heard_ms) <= SESSION_HEARD_S &&
            seconds_since(since_ms, p->since_ms) >= SESSION_OLDER_S)
            return true;
    }
    return false;
}

/* The first that waits could go, and none is put to rest for it. */
static bool defers(struct sessions *s, uint32_t i) {
    if (!is_limited(s) || !has_older_elsewhere(s, at(s, i)->since_ms)) return false;
    if (!fits(s, i, 0) && !n_to_rest(s, i)) return false;
    if (!s->defer_ms) s->defer_ms = s->now_ms | 1;
    return seconds_since(s->now_ms, s->defer_ms) < SESSION_DEFER_S;
}

/* --- turns ----------------------------------------------------------------------------------- */

/* One larger than all memory counts as if it filled it. */
static void note_gone(struct sessions *s, const struct session_turn *t) {
    if (s->capacity > 0)
        repeats_add(&s->repeats, fmin(t->own_tokens / s->capacity, 1),
                    fmin(t->repeated_tokens / s->capacity, 1));
}

static void open_turn(struct sessions *s, struct session_turn *t) {
    note_gone(s, t);
    at(s, t->session)->n_open++;
    s->n_open++;
    t->is_open = true;
    settle(s, t->session);
}

static void hold_turn(struct sessions *s, struct session_turn *t) {
    struct session *a = at(s, t->session);

    t->is_held = true;
    t->prev = t->next = NULL;
    s->n_held++;
    if (a->held) { /* a ring, without a head of its own */
        t->prev = a->held->prev;
        t->next = a->held;
        a->held->prev->next = t;
        a->held->prev = t;
        return;
    }
    a->held = t->prev = t->next = t;
    if (!a->since_ms || seconds_since(s->now_ms, a->last_ms) > SESSION_GRACE_S)
        a->since_ms = s->now_ms | 1;
    settle(s, t->session);
}

static void release_turn(struct sessions *s, struct session_turn *t) {
    struct session *a = at(s, t->session);

    t->prev->next = t->next;
    t->next->prev = t->prev;
    if (a->held == t) a->held = t->next == t ? NULL : t->next;
    t->prev = t->next = NULL;
    t->is_held = false;
    s->n_held--;
}

/* A turn beside others, or beside the session's own, does not make it smaller. */
static void resize(struct sessions *s, const struct session_turn *t, uint64_t n_tokens) {
    uint64_t now = session_table_tokens(&s->table, t->session);

    if (n_tokens < now && (t->is_aside || at(s, t->session)->n_open)) return;
    session_table_resize(&s->table, t->session, n_tokens);
}

/* Room for a new session: one that is at rest, else idle, is forgotten. */
static void make_place(struct sessions *s) {
    uint32_t i = s->lists[RESTING].first ? s->lists[RESTING].first : s->lists[IDLE].first;

    if (s->table.n == s->table.n_max && i) erase(s, i);
}

/* To be called before the turn changes what is known of its session. */
static void note_repeats(const struct sessions *s, const struct session_prompt *p,
                         double prompt_tokens, struct session_turn *t) {
    const struct session *a = at(s, t->session);
    double common = (double)openings_tokens(&s->table.openings, a->opening);
    bool is_recent =
        a->has_ended ? seconds_since(s->now_ms, a->last_ms) <= SESSION_TTL_S : a->n_open > 0;

    t->own_tokens = fmin(fmax(prompt_tokens - common, 0), TOKENS_MAX);
    if (is_recent && session_table_goes_on(&s->table, t->session, p))
        t->repeated_tokens = fmin(a->own_tokens, t->own_tokens);
}

static void join(struct sessions *s, const struct session_arrival *arrival,
                 struct session_turn *t) {
    struct session_prompt p = arrival->prompt;
    struct session_match match;

    p.n_blocks = MIN(p.n_blocks, (uint32_t)SESSION_DEPTH);
    match = session_table_find(&s->table, &p);
    t->session = match.session;
    t->how = match.how;
    if (!match.session) {
        make_place(s);
        t->session = session_table_begin(&s->table, &p, &match);
        if (!t->session) return;
        at(s, t->session)->first_ms = s->now_ms;
        note_repeats(s, &p, arrival->prompt_tokens, t);
        return;
    }
    note_repeats(s, &p, arrival->prompt_tokens, t);
    if (at(s, t->session)->has_ended) note_gap(s, at(s, t->session), arrival->held_s);
    t->is_aside = !session_table_continue(&s->table, t->session, &p, t->n_tokens);
}

/* Not counted, and need not wait. */
static bool is_single(const struct sessions *s, const struct session_arrival *arrival, uint32_t i) {
    return at(s, i)->n_turns == 1 && arrival->prompt_tokens < SESSION_SINGLE_TOKENS;
}

/* An active session goes on; in an excess those that are between two turns make room. */
static bool may_go_on(struct sessions *s, uint32_t i) {
    if (at(s, i)->n_open || !is_excess(s)) return true;
    set_active(s, i, false);
    s->counts.n_excess++;
    return false;
}

static bool may_go(struct sessions *s, const struct session_arrival *arrival, uint32_t i) {
    if (at(s, i)->is_active) return may_go_on(s, i);
    if (is_single(s, arrival, i)) return true;
    if (is_limited(s) &&
        (s->lists[WAITING].n || !fits(s, i, 0) || has_older_elsewhere(s, s->now_ms)))
        return false;
    set_active(s, i, true);
    return true;
}

bool sessions_has(const struct sessions *s, uint64_t id) {
    return session_table_find(&s->table, &(struct session_prompt){.id = id}).session != 0;
}

/* False: no session is known for it. */
static bool begin_turn(struct sessions *s, const struct session_arrival *arrival,
                       struct session_turn *t) {
    double n_tokens = fmax(arrival->prompt_tokens, 0) + fmax(arrival->answer_tokens, 0);

    assert(!t->is_held && !t->is_open);
    note_time(s, arrival->now_us);
    *t = (struct session_turn){.n_tokens = (uint64_t)fmin(n_tokens, TOKENS_MAX),
                               .is_final = arrival->is_final};
    join(s, arrival, t);
    if (!t->session) return false;
    at(s, t->session)->n_turns++;
    resize(s, t, t->n_tokens);
    return true;
}

bool sessions_arrive(struct sessions *s, const struct session_arrival *arrival,
                     struct session_turn *t) {
    if (!begin_turn(s, arrival, t)) {
        s->counts.n_unknown++;
        return true;
    }
    s->counts.n_joined[t->how]++;
    if (!may_go(s, arrival, t->session)) {
        hold_turn(s, t);
        return false;
    }
    open_turn(s, t);
    return true;
}

/* What is held of an active session need not wait for the others that are. */
static void go_first(struct sessions *s, uint32_t i) {
    uint32_t first = s->lists[WAITING].first;

    if (!at(s, i)->held || first == i) return;
    unlink_session(s, i);
    at(s, i)->since_ms = at(s, first)->since_ms;
    link_before(s, i, WAITING, first);
}

void sessions_arrive_remote(struct sessions *s, const struct session_arrival *arrival,
                            struct session_turn *t) {
    bool is_known = begin_turn(s, arrival, t);

    if (arrival->origin) hear(s, arrival->origin, arrival->waits_s);
    if (!is_known) return;
    if (!at(s, t->session)->is_active && !is_single(s, arrival, t->session)) {
        if (!fits(s, t->session, 0)) (void)make_room(s, t->session);
        set_active(s, t->session, true);
    }
    open_turn(s, t);
    if (at(s, t->session)->is_active) go_first(s, t->session);
}

struct session_turn *sessions_next(struct sessions *s, uint64_t now_us) {
    struct session_turn *t;
    uint32_t i = s->admitted;

    if (!s->n_held) return NULL;
    note_time(s, now_us);
    if (!i) {
        i = s->lists[WAITING].first;
        if (!at(s, i)->is_active && (defers(s, i) || !make_room(s, i))) return NULL;
        s->defer_ms = 0;
        set_active(s, i, true);
        at(s, i)->since_ms = 0;
    }
    t = at(s, i)->held;
    release_turn(s, t);
    s->admitted = at(s, i)->held ? i : 0;
    open_turn(s, t);
    return t;
}

static void rest_of_turn(struct sessions *s, uint32_t i) {
    struct session *a = at(s, i);

    if (!a->n_open) a->last_ms = s->now_ms;
    settle(s, i);
}

void sessions_leave(struct sessions *s, struct session_turn *t, uint64_t now_us) {
    assert(t->is_held);
    note_time(s, now_us);
    release_turn(s, t);
    if (s->admitted == t->session && !at(s, t->session)->held) s->admitted = 0;
    rest_of_turn(s, t->session);
    t->session = SESSION_NONE;
}

void sessions_sent(struct sessions *s, const struct session_turn *t, uint32_t worker) {
    if (t->is_open && !t->is_aside) session_table_move(&s->table, t->session, worker);
}

void sessions_ended(struct sessions *s, struct session_turn *t, uint64_t n_tokens,
                    uint64_t now_us) {
    uint32_t i = t->session;

    if (!t->is_open) return;
    note_time(s, now_us);
    t->is_open = false;
    t->session = SESSION_NONE;
    at(s, i)->n_open--;
    if (--s->n_open == 0) s->still_ms = s->now_ms;
    if (n_tokens)
        resize(s, &(struct session_turn){.session = i, .is_aside = t->is_aside},
               MIN(n_tokens, (uint64_t)TOKENS_MAX));
    if (t->is_final && !at(s, i)->n_open && !at(s, i)->held) {
        s->counts.n_final++;
        erase(s, i);
        return;
    }
    rest_of_turn(s, i);
    at(s, i)->has_ended = !at(s, i)->n_open && !at(s, i)->held;
}

void sessions_worker_lost(struct sessions *s, uint32_t worker) {
    session_table_worker_lost(&s->table, worker);
}

/* --- looking in ------------------------------------------------------------------------------ */

void sessions_stats(const struct sessions *s, struct sessions_stats *stats) {
    *stats = s->counts;
    stats->n_active = s->n_active;
    stats->n_waiting = s->lists[WAITING].n;
    stats->n_resting = s->lists[RESTING].n;
    stats->n_held = s->n_held;
    stats->used_tokens = s->table.used_tokens;
    stats->capacity_tokens = (uint64_t)fmin(s->capacity, 1e18);
    stats->repeated_share = repeats_share(&s->repeats);
    stats->long_s = gaps_long_s(&s->gaps);
}

uint32_t sessions_n_held(const struct sessions *s) {
    return s->n_held;
}

uint32_t sessions_wait_s(const struct sessions *s, uint64_t now_us) {
    uint32_t i = s->lists[WAITING].first;

    if (i && i == s->admitted) i = at(s, i)->after; /* it goes, and has no time any more */
    return i ? (uint32_t)fmax(seconds_since(ms_of(now_us), at(s, i)->since_ms), 1) : 0;
}

static uint32_t check_held(const struct session *a) {
    uint32_t n = 0;

    for (const struct session_turn *t = a->held; t; t = t->next == a->held ? NULL : t->next) {
        assert(t->is_held && !t->is_open && t->next->prev == t);
        n++;
    }
    return n;
}

static void check_list(const struct sessions *s, uint8_t list) {
    uint32_t n = 0, prev = 0;

    for (uint32_t i = s->lists[list].first; i; prev = i, i = at(s, i)->after) {
        const struct session *a = at(s, i);

        assert(a->is_used && a->list == list && a->prev == prev);
        assert((list == WAITING) == (a->held != NULL));
        assert(list == WAITING || !a->n_open);
        assert(a->is_active == (list == IDLE) || list == WAITING);
        if (list == WAITING && prev) assert((int32_t)(at(s, prev)->since_ms - a->since_ms) <= 0);
        n++;
    }
    assert(n == s->lists[list].n && prev == s->lists[list].last);
}

void sessions_check(const struct sessions *s) {
    uint32_t n_held = 0, n_active = 0, n_open = 0, n_listed = 0, n_flying = 0;

    session_table_check(&s->table);
    assert(s->repeats.repeated >= 0 && s->repeats.repeated <= s->repeats.all * (1 + 1e-9));
    for (uint8_t list = IDLE; list < N_LISTS; list++) {
        check_list(s, list);
        n_listed += s->lists[list].n;
    }
    for (uint32_t i = 1; i <= s->table.n_ever; i++) {
        const struct session *a = at(s, i);

        if (!a->is_used) continue;
        n_held += check_held(a);
        n_active += a->is_active;
        n_open += a->n_open;
        n_flying += a->list == ON_NONE;
        assert(a->list != ON_NONE || a->n_open);
    }
    assert(n_open == s->n_open);
    assert(n_held == s->n_held && n_active == s->n_active && n_listed + n_flying == s->table.n);
}

/* router/sessions/session_table.c - see session_table.h. */
#include "router/sessions/session_table.h"

#include <assert.h>

#include "common/base/mem.h"

#define BUCKETS_PER_SESSION  4
#define SESSIONS_PER_OPENING 8
#define OPENINGS_MIN         64
#define TOKENS_MAX           UINT32_MAX

/* A prompt may lack such a part of what lies behind the anchor in the session's first prompt, as
 * clients that move a reminder do: so many blocks at most, where the opening's end is known. */
#define LACKING        4
#define LACKING_SURE   8u
#define LACKING_UNSURE 4u

/* A key's place: a session and which of its keys. */
#define MARK(s, i)    ((s) << 3 | (uint32_t)(i))
#define MARK_OF(mark) ((mark) >> 3)
#define MARK_AT(mark) ((mark)&7)

static uint32_t n_openings_for(uint32_t n_max) {
    return MAX(n_max / SESSIONS_PER_OPENING, (uint32_t)OPENINGS_MIN);
}

static uint32_t n_buckets_for(uint32_t n_max) {
    uint32_t n = 64;

    while (n < n_max * BUCKETS_PER_SESSION)
        n *= 2;
    return n;
}

static size_t sessions_size(uint32_t n_max) {
    return ((size_t)n_max + 1) * sizeof(struct session);
}

uint64_t session_table_bytes(uint32_t n_max) {
    return sizeof(struct session_table) + sessions_size(n_max) +
           n_buckets_for(n_max) * sizeof(uint32_t) + openings_bytes(n_openings_for(n_max));
}

bool session_table_init(struct session_table *t, uint32_t n_max) {
    assert(n_max && n_max <= SESSIONS_MAX);
    *t = (struct session_table){.n_max = n_max, .n_buckets = n_buckets_for(n_max)};
    if (!openings_init(&t->openings, n_openings_for(n_max))) return false;
    t->sessions = mem_try_pages(sessions_size(n_max));
    t->buckets = mem_try_pages(t->n_buckets * sizeof(uint32_t));
    if (t->sessions && t->buckets) return true;
    session_table_fini(t);
    return false;
}

void session_table_fini(struct session_table *t) {
    mem_free_pages(t->sessions, sessions_size(t->n_max));
    mem_free_pages(t->buckets, t->n_buckets * sizeof(uint32_t));
    openings_fini(&t->openings);
    t->sessions = NULL;
    t->buckets = NULL;
}

/* --- keys ------------------------------------------------------------------------------------ */

/* An id's depth is none that a prompt has. */
static uint64_t id_key(uint64_t id) {
    return id | 0xFFFF;
}

static uint32_t *bucket_of(const struct session_table *t, uint64_t key) {
    return &t->buckets[(key >> 16 ^ key) & (t->n_buckets - 1)];
}

static uint32_t next_of(const struct session_table *t, uint32_t mark) {
    return t->sessions[MARK_OF(mark)].next[MARK_AT(mark)];
}

static uint64_t key_of(const struct session_table *t, uint32_t mark) {
    return t->sessions[MARK_OF(mark)].keys[MARK_AT(mark)];
}

static void enter(struct session_table *t, uint32_t s, uint32_t i, uint64_t key) {
    uint32_t *bucket = bucket_of(t, key), n_alike = 0;

    for (uint32_t m = *bucket; m; m = next_of(t, m))
        n_alike += key_of(t, m) == key;
    if (n_alike >= SESSION_ALIKE) return;
    t->sessions[s].keys[i] = key;
    t->sessions[s].next[i] = *bucket;
    *bucket = MARK(s, i);
}

static void withdraw(struct session_table *t, uint32_t s, uint32_t i) {
    struct session *a = &t->sessions[s];
    uint32_t *at;

    if (!a->keys[i]) return;
    at = bucket_of(t, a->keys[i]);
    while (*at != MARK(s, i))
        at = &t->sessions[MARK_OF(*at)].next[MARK_AT(*at)];
    *at = a->next[i];
    a->keys[i] = 0;
    a->next[i] = 0;
}

/* --- finding --------------------------------------------------------------------------------- */

/* One of several, and how well it fits. */
struct candidate {
    uint32_t session, end; /* blocks of the deepest of its ends in the prompt, or 0 */
    bool is_last, is_busy; /* that end is its last prompt's; it has a turn in flight or held */
    uint32_t idle_ms;      /* since when */
};

static bool is_better(const struct candidate *a, const struct candidate *b) {
    if (!b->session || a->end != b->end) return !b->session || a->end > b->end;
    if (a->is_busy != b->is_busy) return b->is_busy;
    if (a->is_last != b->is_last) return a->is_last;
    return (int32_t)(a->idle_ms - b->idle_ms) < 0;
}

static struct candidate candidate_of(const struct session_table *t, uint32_t s,
                                     const struct session_prompt *p) {
    const struct session *a = &t->sessions[s];
    struct candidate c = {.session = s, .is_busy = a->n_open || a->held, .idle_ms = a->last_ms};

    for (uint32_t i = 0; i < SESSION_ENDS; i++) {
        uint32_t n = session_key_depth(a->keys[i]);

        if (!n || n <= c.end || n > p->n_blocks || session_prompt_key(p, n) != a->keys[i]) continue;
        c.end = n;
        c.is_last = i == a->last_end;
    }
    return c;
}

static struct session_match match_of(const struct candidate *c, uint32_t n_blocks,
                                     enum session_joined how) {
    if (c->is_busy) return (struct session_match){.like = c->session, .n_like = n_blocks};
    return (struct session_match){.session = c->session, .how = how};
}

static uint32_t find_id(const struct session_table *t, uint64_t id) {
    uint64_t key = id_key(id);

    for (uint32_t m = *bucket_of(t, key); m; m = next_of(t, m))
        if (MARK_AT(m) == SESSION_ID && key_of(t, m) == key) return MARK_OF(m);
    return SESSION_NONE;
}

static bool find_by_end(const struct session_table *t, const struct session_prompt *p,
                        struct session_match *out) {
    uint32_t deepest = MIN(p->n_known, p->n_blocks);

    for (uint32_t n = deepest; n && n + SESSION_LOOK > deepest; n--) {
        uint64_t key = session_prompt_key(p, n);
        struct candidate best = {0};

        for (uint32_t m = *bucket_of(t, key); m; m = next_of(t, m)) {
            struct candidate c;

            if (MARK_AT(m) >= SESSION_ENDS || key_of(t, m) != key) continue;
            c = candidate_of(t, MARK_OF(m), p);
            if (is_better(&c, &best)) best = c;
        }
        if (!best.session) continue;
        *out = match_of(&best, n, SESSION_BY_END);
        return true;
    }
    return false;
}

/* Is the anchor behind an opening of n_blocks a sign of itself? See the header. */
static bool anchor_suffices(const struct session_table *t, uint32_t s, uint32_t n_blocks,
                            const struct session_prompt *p) {
    const struct session *a = &t->sessions[s];
    uint32_t first_end = a->first_end, n_own = first_end - MIN(n_blocks, first_end);
    uint32_t look = MIN(n_own / LACKING, a->is_sure ? LACKING_SURE : LACKING_UNSURE);

    if (!n_blocks && !a->is_sure) return p->n_known >= first_end;
    return p->n_known <= n_blocks || p->n_known + look >= first_end;
}

/* `is_longest`: no other opening of the prompt is longer. */
static bool find_behind(const struct session_table *t, uint32_t n_blocks, bool is_longest,
                        const struct session_prompt *p, struct session_match *out) {
    struct candidate best = {0};
    uint64_t key;

    if (n_blocks >= p->n_blocks) return false;
    key = session_prompt_key(p, n_blocks + 1);
    for (uint32_t m = *bucket_of(t, key); m; m = next_of(t, m)) {
        struct candidate c;

        if (MARK_AT(m) != SESSION_ANCHOR || key_of(t, m) != key) continue;
        c = candidate_of(t, MARK_OF(m), p);
        if (!c.end && !(is_longest && anchor_suffices(t, c.session, n_blocks, p))) continue;
        if (is_better(&c, &best)) best = c;
    }
    if (!best.session) return false;
    *out = match_of(&best, MAX(best.end, n_blocks + 1), SESSION_BY_ANCHOR);
    return true;
}

static bool find_by_anchor(const struct session_table *t, const struct session_prompt *p,
                           struct session_match *out) {
    uint32_t found[OPENINGS_ALIKE], n = openings_of(&t->openings, p, found);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t n_blocks = session_key_depth(t->openings.at[found[i]].key);

        if (find_behind(t, n_blocks, i == 0, p, out)) return true;
    }
    return find_behind(t, 0, n == 0, p, out);
}

struct session_match session_table_find(const struct session_table *t,
                                        const struct session_prompt *p) {
    struct session_match match = {0};

    if (p->id) {
        match.session = find_id(t, p->id);
        match.how = match.session ? SESSION_BY_ID : SESSION_BEGUN;
    } else if (!find_by_end(t, p, &match)) {
        (void)find_by_anchor(t, p, &match);
    }
    return match;
}

/* --- tokens ---------------------------------------------------------------------------------- */

static bool is_lost(const struct session_table *t, const struct session *a) {
    return a->worker && t->epochs[a->worker] != a->epoch;
}

static uint64_t own_tokens(const struct session_table *t, const struct session *a) {
    return is_lost(t, a) ? 0 : a->own_tokens;
}

/* A session's own tokens are those that its worker still has. */
static struct session *settle(struct session_table *t, uint32_t s) {
    struct session *a = &t->sessions[s];

    if (is_lost(t, a)) {
        a->own_tokens = 0;
        a->worker = 0;
    }
    return a;
}

uint64_t session_table_tokens(const struct session_table *t, uint32_t s) {
    const struct session *a = &t->sessions[s];

    return own_tokens(t, a) + openings_tokens(&t->openings, a->opening);
}

uint64_t session_table_cost(const struct session_table *t, uint32_t s) {
    const struct session *a = &t->sessions[s];

    return a->is_active ? 0 : own_tokens(t, a) + openings_cost(&t->openings, a->opening);
}

static void count_own(struct session_table *t, const struct session *a, bool is_counted) {
    uint64_t change = is_counted ? a->own_tokens : -(uint64_t)a->own_tokens;

    t->used_tokens += change;
    t->used_by[a->worker] += change;
}

void session_table_activate(struct session_table *t, uint32_t s, bool is_active) {
    struct session *a = settle(t, s);

    if (a->is_active == is_active) return;
    a->is_active = is_active;
    count_own(t, a, is_active);
    if (is_active) {
        t->used_tokens += openings_activate(&t->openings, a->opening);
    } else {
        t->used_tokens -= openings_deactivate(&t->openings, a->opening);
    }
}

static void set_own(struct session_table *t, uint32_t s, uint64_t own) {
    struct session *a = settle(t, s);

    if (a->is_active) count_own(t, a, false);
    a->own_tokens = (uint32_t)MIN(own, (uint64_t)TOKENS_MAX);
    if (a->is_active) count_own(t, a, true);
}

void session_table_resize(struct session_table *t, uint32_t s, uint64_t n_tokens) {
    uint64_t shared = openings_tokens(&t->openings, t->sessions[s].opening);

    set_own(t, s, n_tokens > shared ? n_tokens - shared : 0);
}

void session_table_move(struct session_table *t, uint32_t s, uint32_t w) {
    struct session *a = settle(t, s);

    assert(w == WORKER_NONE || w < WORKERS_MAX);
    if (a->is_active) count_own(t, a, false);
    a->worker = (uint16_t)(w + 1);
    a->epoch = t->epochs[a->worker];
    if (a->is_active) count_own(t, a, true);
}

void session_table_worker_lost(struct session_table *t, uint32_t w) {
    t->used_tokens -= t->used_by[w + 1];
    t->used_by[w + 1] = 0;
    t->epochs[w + 1]++;
}

/* --- beginning and going on ------------------------------------------------------------------ */

/* Takes over the reference to x. The tokens of both openings together stay those of the session. */
static void set_opening(struct session_table *t, uint32_t s, uint32_t x) {
    struct session *a = &t->sessions[s];
    uint64_t n_tokens = session_table_tokens(t, s);
    bool was_active = a->is_active;

    session_table_activate(t, s, false);
    openings_release(&t->openings, a->opening);
    a->opening = x;
    session_table_resize(t, s, n_tokens);
    session_table_activate(t, s, was_active);
}

/* The one that is alike has what both begin with in common with the new one. */
static void share_opening(struct session_table *t, uint32_t like, uint32_t x) {
    if (!x || t->openings.at[x].parent != t->sessions[like].opening) return;
    t->openings.at[x].n_refs++;
    set_opening(t, like, x);
}

/* A prompt that has nothing of its own yet has no anchor yet. */
static void open_at(struct session_table *t, uint32_t s, const struct session_prompt *p,
                    uint32_t n_blocks) {
    set_opening(t, s, n_blocks ? openings_refer(&t->openings, p, n_blocks) : 0);
    withdraw(t, s, SESSION_ANCHOR);
    if (n_blocks < p->n_blocks) enter(t, s, SESSION_ANCHOR, session_prompt_key(p, n_blocks + 1));
}

static void open_new(struct session_table *t, uint32_t s, const struct session_prompt *p,
                     uint32_t n_blocks) {
    t->sessions[s].first_end = (uint16_t)p->n_blocks;
    t->sessions[s].is_sure = p->n_system && n_blocks >= p->n_system;
    open_at(t, s, p, MIN(n_blocks, p->n_blocks));
}

/* Another session's opening lies within its first prompt: its own part begins later than it was
 * taken to. */
static void open_longer(struct session_table *t, uint32_t s, const struct session_prompt *p) {
    uint32_t found[OPENINGS_ALIKE], n = openings_of(&t->openings, p, found);
    uint32_t n_before = session_key_depth(t->openings.at[t->sessions[s].opening].key);
    uint32_t n_own = n_before;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t n_blocks = session_key_depth(t->openings.at[found[i]].key);

        if (n_blocks >= t->sessions[s].first_end) continue;
        n_own = MAX(n_own, n_blocks);
        break;
    }
    t->sessions[s].is_sure |= n_own > n_before;
    if (!t->sessions[s].keys[SESSION_ANCHOR] || n_own > n_before) open_at(t, s, p, n_own);
}

static void note_end(struct session_table *t, uint32_t s, const struct session_prompt *p) {
    struct session *a = &t->sessions[s];
    uint64_t key = session_prompt_key(p, p->n_blocks);

    if (a->keys[a->last_end] == key) return;
    a->last_end = (uint8_t)((a->last_end + 1) % SESSION_ENDS);
    withdraw(t, s, a->last_end);
    enter(t, s, a->last_end, key);
}

static uint32_t take_place(struct session_table *t) {
    uint32_t s = t->free;

    if (s) {
        t->free = t->sessions[s].after;
    } else {
        s = ++t->n_ever;
    }
    t->n++;
    t->n_begun++;
    t->sessions[s] = (struct session){.is_used = true, .number = t->n_begun};
    return s;
}

static uint32_t parent_of(const struct session_table *t, const struct session_prompt *p,
                          const struct session_match *match) {
    uint32_t parent = p->parent_id ? find_id(t, p->parent_id) : match->like;

    return parent ? t->sessions[parent].number : 0;
}

uint32_t session_table_begin(struct session_table *t, const struct session_prompt *p,
                             const struct session_match *match) {
    uint32_t s;

    if (t->n == t->n_max || (!p->n_blocks && !p->id)) return SESSION_NONE;
    s = take_place(t);
    t->sessions[s].parent = parent_of(t, p, match);
    if (p->id) enter(t, s, SESSION_ID, id_key(p->id));
    if (!p->n_blocks) return s;
    open_new(t, s, p, match->like ? match->n_like : MAX(p->n_known, p->n_system));
    if (match->like) share_opening(t, match->like, t->sessions[s].opening);
    note_end(t, s, p);
    return s;
}

bool session_table_goes_on(const struct session_table *t, uint32_t s,
                           const struct session_prompt *p) {
    const struct session *a = &t->sessions[s];
    uint32_t n = session_key_depth(a->keys[SESSION_ANCHOR]);

    if (!n) return !a->opening || openings_has(&t->openings, a->opening, p);
    return n <= p->n_blocks && session_prompt_key(p, n) == a->keys[SESSION_ANCHOR];
}

bool session_table_continue(struct session_table *t, uint32_t s, const struct session_prompt *p,
                            uint64_t n_tokens) {
    struct session *a = &t->sessions[s];

    if (!p->n_blocks) return false;
    if (!session_table_goes_on(t, s, p)) {
        if (!a->is_aside && n_tokens * 2 < session_table_tokens(t, s)) {
            a->is_aside = true;
            return false;
        }
        open_new(t, s, p, MAX(p->n_known, p->n_system));
    } else {
        open_longer(t, s, p);
    }
    a->is_aside = false;
    note_end(t, s, p);
    return true;
}

void session_table_erase(struct session_table *t, uint32_t s) {
    session_table_activate(t, s, false);
    for (uint32_t i = 0; i < SESSION_MARKS; i++)
        withdraw(t, s, i);
    openings_release(&t->openings, t->sessions[s].opening);
    t->sessions[s] = (struct session){.after = t->free};
    t->free = s;
    t->n--;
}

/* --- invariants ------------------------------------------------------------------------------ */

static bool is_entered(const struct session_table *t, uint32_t mark) {
    uint64_t key = key_of(t, mark);
    uint32_t n_alike = 0;
    bool is_here = false;

    for (uint32_t m = *bucket_of(t, key); m; m = next_of(t, m)) {
        n_alike += key_of(t, m) == key;
        is_here |= m == mark;
    }
    return is_here && n_alike <= SESSION_ALIKE;
}

static void check_keys(const struct session_table *t, uint32_t s, uint32_t *n_keys) {
    for (uint32_t i = 0; i < SESSION_MARKS; i++) {
        if (!t->sessions[s].keys[i]) continue;
        assert(is_entered(t, MARK(s, i)));
        ++*n_keys;
    }
}

void session_table_check(const struct session_table *t) {
    uint32_t n_openings = t->openings.n_ever + 1, n = 0, n_keys = 0, n_entered = 0;
    uint32_t *refs = mem_calloc(n_openings, sizeof(*refs));
    uint32_t *active = mem_calloc(n_openings, sizeof(*active));
    uint64_t *used_by = mem_calloc(WORKERS_MAX + 1, sizeof(*used_by)), used = 0;

    for (uint32_t s = 1; s <= t->n_ever; s++) {
        const struct session *a = &t->sessions[s];

        if (!a->is_used) continue;
        n++;
        check_keys(t, s, &n_keys);
        refs[a->opening]++;
        active[a->opening] += a->is_active;
        if (a->is_active) used_by[is_lost(t, a) ? 0 : a->worker] += own_tokens(t, a);
    }
    openings_check(&t->openings, refs, active);
    for (uint32_t x = 1; x < n_openings; x++)
        used += t->openings.at[x].n_active ? t->openings.at[x].tokens : 0;
    for (uint32_t w = 0; w <= WORKERS_MAX; w++) {
        assert(used_by[w] == t->used_by[w]);
        used += used_by[w];
    }
    for (uint32_t b = 0; b < t->n_buckets; b++)
        for (uint32_t m = t->buckets[b]; m; m = next_of(t, m))
            n_entered++;
    assert(n == t->n && n <= t->n_max && n_keys == n_entered && used == t->used_tokens);
    mem_free(refs);
    mem_free(active);
    mem_free(used_by);
}

/* worker/engine/tiers/restores.c - contents on their way up, and the requests that wait for them.
 *
 * A restore is a run of blocks behind what a request found here, loaded by jobs of up to 64 units,
 * several at a time, as far as host blocks can be reserved. Jobs come back in any order and are
 * published in theirs, for a block's key has the prefix number of the block before it. The first
 * unit that failed ends the run.
 *
 *      keys    | parent | 0 ............ n_landed ........ n_submitted ........ n |
 *                        published         with the tier       not asked for yet
 *
 * What host memory cannot hold at once comes in several restores: between two of them the request
 * moves what is there to the device, and waits until the device has read it.
 *
 * The request that asked lends its tokens and hashes: the restore holds a reference to it, whatever
 * becomes of it. Others whose first missing block is the next to land wait for the same restore. */
#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "worker/engine/tiers/lower_internal.h"

#define RESTORES      16u
#define RESTORE_JOBS  32u
#define JOBS_EACH     8u   /* of a restore: others need not wait until it is over */
#define ASK_PIECE     32u  /* blocks named before a tier is asked about them */
#define DEARER_MARGIN 0.05 /* computing must be that much sooner */
#define DEARER_TRIALS 64u  /* one of so many that are dearer is restored: prices change, */
#define CLOSE_TRIALS  4u   /* and of so many while the price is hardly known, where it is close: */
#define CLOSE_LOADS   4u   /* few loads were seen, */
#define CLOSE_TIMES   4.0  /* and it is less than that of computing so many times */

struct restore_job {
    struct tier_job job;
    struct restore *of; /* NULL: free */
    uint32_t first;     /* of its blocks, from the restore's first */
    bool is_back;
    block_id ids[TIER_JOB_UNITS];
};

struct restore {
    struct request *asker; /* a reference; NULL: free */
    struct lower_tier *from;
    uint32_t first, n;                      /* blocks of the chain */
    uint32_t n_submitted, n_landed, n_jobs; /* no jobs: a waiter waits for a host block */
    uint32_t n_come;        /* of those that landed, in host memory: from the front */
    uint32_t n_at_once;     /* blocks that were submitted at first: the load that is timed, */
    uint32_t n_timed;       /* jobs of it that are not back */
    uint64_t timed_from_us; /* the first of its jobs began */
    uint64_t timed_bytes;   /* that the others have brought */
    uint64_t deadline_us;   /* of its jobs */
    uint64_t number;        /* prefix number of the last block that landed */
    bool is_over;           /* nothing more is asked for or published */
    bool is_late;           /* a request waited for it in vain */
    struct unit_key *keys;  /* (longest + 1) */
    struct list waiters;    /* requests, through remote_link */
};

struct restores {
    struct lower *w;
    struct restore restores[RESTORES];
    struct restore_job jobs[RESTORE_JOBS];
    struct unit_key *keys; /* (longest + 1) of the request that asks */
    uint32_t n_dearer;
};

struct restores *restores_create(struct lower *w) {
    struct restores *rs = mem_zalloc(sizeof(*rs));

    rs->w = w;
    rs->keys = mem_calloc(w->config.longest + 1, sizeof(*rs->keys));
    for (uint32_t i = 0; i < RESTORES; i++) {
        rs->restores[i].keys = mem_calloc(w->config.longest + 1, sizeof(*rs->keys));
        list_init(&rs->restores[i].waiters);
    }
    return rs;
}

static void release(struct restore *x) {
    request_unref(x->asker);
    x->asker = NULL;
}

void restores_destroy(struct restores *rs) {
    if (!rs) return;
    for (uint32_t i = 0; i < RESTORES; i++) {
        assert(rs->restores[i].n_jobs == 0);
        if (rs->restores[i].asker) release(&rs->restores[i]);
        mem_free(rs->restores[i].keys);
    }
    mem_free(rs->keys);
    mem_free(rs);
}

static struct request *request_of(struct list *link) {
    return LIST_ENTRY(link, struct request, remote_link);
}

/* --- who waits -------------------------------------------------------------------------------- */

static void wait_for(struct restores *rs, struct restore *x, struct request *r, uint32_t n_blocks) {
    r->awaits_since_us = rs->w->now_us;
    r->n_seen_restored = x->n_come;
    list_push_back(&x->waiters, &r->remote_link);
    r->remote_from = n_blocks;
    x->from->stats.n_awaited++;
}

static void wake(struct restores *rs, const struct restore *x, struct request *r, bool is_over) {
    list_remove(&r->remote_link);
    if (r->n_admissions == 0) {
        r->restored_tokens += (x->n_come - r->n_seen_restored) * rs->w->config.block_size;
        r->restore_us += rs->w->now_us - r->awaits_since_us;
    }
    r->is_remote_over = is_over;
    scheduler_wake(rs->w->sched, r);
}

/* is_over: they are to compute what is missing. */
static void wake_all(struct restores *rs, struct restore *x, bool is_over) {
    while (!list_is_empty(&x->waiters))
        wake(rs, x, request_of(list_first(&x->waiters)), is_over);
}

void restores_cancel(void *lower, struct request *r) {
    (void)lower;
    list_remove(&r->remote_link);
}

/* --- jobs ------------------------------------------------------------------------------------- */

static struct restore_job *free_job(struct restores *rs) {
    for (uint32_t i = 0; i < RESTORE_JOBS; i++)
        if (!rs->jobs[i].of) return &rs->jobs[i];
    return NULL;
}

/* Units for as many of the next blocks as find room. */
static uint32_t fill_job(struct restores *rs, const struct restore *x, struct restore_job *j) {
    const struct lower *w = rs->w;
    uint32_t n = MIN(x->n - x->n_submitted, w->job_units), bs = w->config.block_size;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = x->n_submitted + i, index = x->first + at;
        struct kv_name name = {.key = x->keys[at + 1], .parent = x->keys[at], .index = index};
        struct tier_unit *u = &j->job.units[i];

        j->ids[i] = kv_host_reserve(w->host);
        if (j->ids[i] == BLOCK_NONE) return i;
        *u = (struct tier_unit){.payload = lower_payload(w, j->ids[i])};
        lower_identify(w, &name, x->asker->tokens + (size_t)index * bs, &u->id);
    }
    return n;
}

static void submit(struct restores *rs, struct restore *x) {
    struct lower *w = rs->w;
    struct restore_job *j;

    while (!x->is_over && x->n_submitted < x->n && x->n_jobs < JOBS_EACH &&
           (j = free_job(rs)) != NULL) {
        uint32_t n = fill_job(rs, x, j);

        if (n == 0) return;
        j->of = x;
        j->first = x->n_submitted;
        j->is_back = false;
        j->job.home = w->config.home;
        j->job.op = TIER_LOAD;
        j->job.n = n;
        j->job.source = x->from->is_of_places ? &x->asker->params.kv_source : NULL;
        j->job.deadline_us = x->deadline_us;
        j->job.submitted_us = w->now_us;
        j->job.began_us = j->job.ended_us = 0;
        atomic_store(&j->job.is_cancelled, false);
        x->n_submitted += n;
        x->n_jobs++;
        x->from->tier->ops->submit(x->from->tier, &j->job);
    }
}

static void cancel_jobs(struct restores *rs, const struct restore *x) {
    for (uint32_t i = 0; i < RESTORE_JOBS; i++)
        if (rs->jobs[i].of == x && !rs->jobs[i].is_back)
            atomic_store(&rs->jobs[i].job.is_cancelled, true);
}

static void end(struct restores *rs, struct restore *x, bool is_failure) {
    x->is_over = true;
    cancel_jobs(rs, x);
    wake_all(rs, x, is_failure);
}

/* --- landing ---------------------------------------------------------------------------------- */

static void land_unit(struct restores *rs, struct restore *x, const struct restore_job *j,
                      uint32_t i) {
    struct lower *w = rs->w;
    const struct tier_unit *u = &j->job.units[i];
    struct kv_name name = {.key = u->id.key,
                           .parent = u->id.parent,
                           .index = x->first + j->first + i,
                           .is_named = true,
                           .is_wanted = true};

    x->from->stats.loads[u->result]++;
    if (u->result == TIER_REJECTED) x->from->stats.rejected[u->cause]++;
    if (!x->from->is_of_places) lower_note_result(w, &x->from->loads, u->result);
    if (u->result == TIER_OK) x->from->stats.loaded_bytes += w->config.block_bytes;
    if (x->is_over) return;
    if (u->result != TIER_OK) {
        end(rs, x, true);
        return;
    }
    x->n_come++;
    if (kv_manager_restored(w->kv, &x->asker->kv, x->asker->tokens, name.index, &name, j->ids[i],
                            &x->number)) {
        x->from->stats.restored_tokens += w->config.block_size;
    }
}

static void land(struct restores *rs, struct restore_job *j) {
    struct restore *x = j->of;

    for (uint32_t i = 0; i < j->job.n; i++)
        land_unit(rs, x, j, i);
    kv_host_drop(rs->w->host, j->ids, j->job.n);
    x->n_landed += j->job.n;
    x->n_jobs--;
    j->of = NULL;
}

static struct restore_job *next_to_land(struct restores *rs, const struct restore *x) {
    for (uint32_t i = 0; i < RESTORE_JOBS; i++) {
        struct restore_job *j = &rs->jobs[i];

        if (j->of == x && j->is_back && (x->is_over || j->first == x->n_landed)) return j;
    }
    return NULL;
}

static void go_on(struct restores *rs, struct restore *x) {
    if (rs->w->is_stopped || list_is_empty(&x->waiters)) x->n = MIN(x->n, x->n_submitted);
    submit(rs, x);
    if (x->n_jobs > 0) return;
    if (!x->is_over) end(rs, x, x->n_landed == 0); /* all there, or no room for more */
    release(x);
}

/* Is the job's time a time of its tier? It may not have begun. */
static bool is_timed(const struct tier_job *job) {
    return job->began_us >= job->submitted_us && job->ended_us >= job->began_us;
}

/* What was asked for at once teaches the price together: its jobs wait for one another. */
static void learn(struct restore *x, const struct restore_job *j, uint64_t n_bytes) {
    const struct tier_job *job = &j->job;

    if (is_timed(job)) x->from->stats.load_s += 1e-6 * (double)(job->ended_us - job->submitted_us);
    if (j->first >= x->n_at_once) return;
    if (is_timed(job)) x->timed_from_us = MIN(x->timed_from_us, job->began_us);
    x->timed_bytes += n_bytes;
    if (--x->n_timed > 0 || !is_timed(job) || x->timed_bytes == 0) return;
    price_learn(&x->from->price, x->timed_bytes,
                1e-6 * (double)(x->timed_from_us - job->submitted_us),
                1e-6 * (double)(job->ended_us - x->timed_from_us));
}

static struct restore_job *job_of(const struct restores *rs, const struct mail *mail) {
    uintptr_t from = (uintptr_t)rs->jobs, at = (uintptr_t)mail;

    if (at < from || at >= from + sizeof(rs->jobs)) return NULL;
    return (struct restore_job *)(uintptr_t)&rs->jobs[(at - from) / sizeof(*rs->jobs)];
}

bool restores_own(const struct restores *rs, const struct mail *mail) {
    return job_of(rs, mail) != NULL;
}

void restores_on_mail(struct restores *rs, struct mail *mail) {
    struct restore_job *j = job_of(rs, mail);
    struct restore *x = j->of;
    uint64_t n_bytes = 0;

    j->is_back = true;
    for (uint32_t i = 0; i < j->job.n; i++)
        n_bytes += j->job.units[i].result == TIER_OK ? rs->w->config.block_bytes : 0;
    learn(x, j, n_bytes);
    while ((j = next_to_land(rs, x)) != NULL)
        land(rs, j);
    go_on(rs, x);
}

/* --- asking ----------------------------------------------------------------------------------- */

/* The restore that is about to bring the block with this key. */
static struct restore *find_under_way(struct restores *rs, const struct unit_key *key) {
    for (uint32_t i = 0; i < RESTORES; i++) {
        struct restore *x = &rs->restores[i];

        if (x->asker && !x->is_over && x->n_landed < x->n &&
            memcmp(&x->keys[x->n_landed + 1], key, sizeof(*key)) == 0)
            return x;
    }
    return NULL;
}

/* Of the first n keys, those that some tier may have: a load finds out. */
static uint32_t guess_run(const struct restores *rs, uint32_t n, struct lower_tier **from) {
    struct lower *w = rs->w;

    for (uint32_t i = 0; i < w->config.n_tiers; i++) {
        struct lower_tier *t = &w->tiers[i];

        if (!t->tier->ops->guess || w->now_us < t->loads.retry_us) continue;
        *from = t;
        return t->tier->ops->guess(t->tier, &rs->keys[1], n);
    }
    return 0;
}

static bool may_ask(const struct lower *w, const struct lower_tier *t, const struct request *r) {
    if (w->now_us < t->loads.retry_us) return false;
    if (!t->is_of_places) return true;
    return r->params.kv_source.authority[0] && t->tier->ops->can_ask(t->tier, &r->params.kv_source);
}

/* How many of n keys the tier has, that of block `first` of the prompt of r first. */
static uint32_t find_in(const struct lower *w, const struct lower_tier *t, const struct request *r,
                        uint32_t first, const struct unit_key *keys, uint32_t n) {
    uint32_t n_named = r->params.kv_source.n_tokens / w->config.block_size;

    if (!t->is_of_places) return t->tier->ops->find(t->tier, keys, n);
    return MIN(n, n_named - MIN(n_named, first));
}

/* The longest run of blocks that a tier has behind the first ones of r, at most n_max, and whose.
 * Keys are made as long as a
 * tier has them: of an unknown prompt one piece is made, and guessed at. What a guess brings is
 * behind nothing but the hit, so that the request asks again from there. */
static uint32_t find_run(struct restores *rs, const struct request *r, uint32_t first,
                         uint32_t n_max, struct lower_tier **from) {
    struct lower *w = rs->w;
    const uint32_t *tokens = r->tokens + (size_t)first * w->config.block_size;
    uint32_t run[LOWER_TIERS_MAX] = {0}, n = 0, best = 0;
    bool may[LOWER_TIERS_MAX], is_longer = true;

    for (uint32_t i = 0; i < w->config.n_tiers; i++)
        may[i] = may_ask(w, &w->tiers[i], r);

    while (is_longer && n < n_max) {
        uint32_t piece = MIN(n_max - n, ASK_PIECE);

        kv_names_chain(kv_manager_names(w->kv), &rs->keys[n],
                       tokens + (size_t)n * w->config.block_size, piece, &rs->keys[n + 1]);
        n += piece;
        is_longer = false;
        for (uint32_t i = 0; i < w->config.n_tiers; i++) {
            struct lower_tier *t = &w->tiers[i];

            if (!may[i] || run[i] + piece < n) continue;
            run[i] += find_in(w, t, r, first + run[i], &rs->keys[run[i] + 1], piece);
            is_longer |= run[i] == n;
            if (run[i] <= best) continue;
            best = run[i];
            *from = t;
        }
    }
    return best > 0 ? best : guess_run(rs, MIN(n, ASK_PIECE), from);
}

/* Blocks that may be brought to host memory beside those that the hit has there. */
static uint32_t room_beside(const struct lower *w, const struct kv_hit *hit) {
    uint32_t n_room = w->config.n_host_blocks - w->config.n_host_blocks / 4;

    return n_room - MIN(n_room, hit->n_host_blocks);
}

/* It is dearer, and a load would show whether it still is. */
static bool is_tried(struct restores *rs, const struct price *price, double times) {
    bool is_close = price->n_seen < CLOSE_LOADS && times < CLOSE_TIMES;

    return ++rs->n_dearer % (is_close ? CLOSE_TRIALS : DEARER_TRIALS) == 0;
}

/* Is a restore late, from where r would have its own: this tier, or of its places the same? */
static bool is_overdue(const struct restores *rs, const struct lower_tier *from,
                       const struct request *r) {
    for (uint32_t i = 0; i < RESTORES; i++) {
        const struct restore *x = &rs->restores[i];

        if (!x->asker || x->from != from || !x->is_late) continue;
        if (!from->is_of_places ||
            strcmp(x->asker->params.kv_source.authority, r->params.kv_source.authority) == 0)
            return true;
    }
    return false;
}

/* Sets the deadline of a request that waits for the first time; false: computing is sooner. Who is
 * late has yet to teach its price: until then no other request waits for it. */
static bool is_worth(struct restores *rs, struct request *r, struct lower_tier *from,
                     uint32_t first, uint32_t n) {
    struct lower *w = rs->w;
    uint32_t bs = w->config.block_size;
    double sigma_s, compute_s = scheduler_prefill_s(w->sched, first * bs, (first + n) * bs);
    double expected_s = price_expect_s(&from->price, n * w->config.block_bytes, &sigma_s);
    double wait_s = MIN(expected_s + 3 * sigma_s, compute_s);

    if (r->remote_deadline_us) return w->now_us < r->remote_deadline_us;
    if (is_overdue(rs, from, r)) {
        from->stats.n_dearer++;
        return false;
    }
    if (w->config.always_wait_us) {
        wait_s = 1e-6 * (double)w->config.always_wait_us;
    } else if (expected_s > compute_s * (1 + DEARER_MARGIN) &&
               !is_tried(rs, &from->price, expected_s / compute_s)) {
        from->stats.n_dearer++;
        return false;
    }
    r->remote_deadline_us = w->now_us + (uint64_t)(wait_s * 1e6) + 1;
    return true;
}

/* may_wait: for a host block, too. */
static struct restore *begin(struct restores *rs, struct request *r, struct lower_tier *from,
                             uint32_t first, uint32_t n, uint64_t number, bool may_wait) {
    for (uint32_t i = 0; i < RESTORES; i++) {
        struct restore *x = &rs->restores[i];

        if (x->asker) continue;
        x->asker = request_ref(r);
        x->from = from;
        x->first = first;
        x->n = n;
        x->n_submitted = x->n_landed = x->n_jobs = x->n_come = 0;
        x->number = number;
        x->deadline_us = r->remote_deadline_us;
        x->is_over = x->is_late = false;
        memcpy(x->keys, rs->keys, (n + 1) * sizeof(*x->keys));
        x->timed_bytes = 0;
        x->timed_from_us = UINT64_MAX;
        submit(rs, x);
        x->n_at_once = x->n_submitted;
        x->n_timed = x->n_jobs;
        if (x->n_jobs > 0 || may_wait) return x;
        release(x);
        return NULL;
    }
    return NULL;
}

/* The restore that r is to wait for, or NULL. *is_full: one that could begin, if the hit's blocks
 * were not in host memory. */
static struct restore *ask(struct restores *rs, struct request *r, const struct kv_hit *hit,
                           bool *is_full) {
    struct lower *w = rs->w;
    const uint32_t *tokens = r->tokens + (size_t)hit->n_blocks * w->config.block_size;
    uint32_t n_most = (r->n_tokens - 1) / w->config.block_size - hit->n_blocks, n;
    bool has_waited = r->remote_deadline_us != 0;
    struct lower_tier *from = NULL;
    struct restore *x;
    uint64_t number;

    if (has_waited && hit->n_blocks <= r->remote_from) return NULL; /* others evict what comes */
    if (n_most == 0 || !kv_manager_keys_behind(w->kv, &r->kv, hit, &rs->keys[0], &number))
        return NULL;
    kv_names_chain(kv_manager_names(w->kv), &rs->keys[0], tokens, 1, &rs->keys[1]);
    x = find_under_way(rs, &rs->keys[1]);
    if (x) return is_worth(rs, r, x->from, hit->n_blocks, x->n - x->n_landed) ? x : NULL;
    n = find_run(rs, r, hit->n_blocks, n_most, &from);
    if (n == 0 || !is_worth(rs, r, from, hit->n_blocks, n)) return NULL;
    *is_full = n > room_beside(w, hit) && hit->n_host_blocks > 0;
    if (*is_full) return NULL;
    x = begin(rs, r, from, hit->n_blocks, MIN(n, room_beside(w, hit)), number, has_waited);
    from->stats.n_full += x == NULL;
    return x;
}

enum connector_answer restores_find(void *lower, struct request *r, const struct kv_hit *hit,
                                    uint32_t n_local, uint32_t *n_tokens) {
    struct lower *w = lower;
    struct restore *x = NULL;
    bool is_full = false;

    (void)n_local;
    *n_tokens = 0;
    if (r->is_remote_over || r->group || w->is_stopped) return CONNECTOR_NOW;
    x = ask(w->restores, r, hit, &is_full);
    if (is_full) return CONNECTOR_MAKE_ROOM;
    if (!x) {
        r->is_remote_over = true;
        return CONNECTOR_NOW;
    }
    wait_for(w->restores, x, r, hit->n_blocks);
    return CONNECTOR_AWAIT;
}

/* --- time ------------------------------------------------------------------------------------- */

static void wake_late(struct restores *rs, struct restore *x) {
    struct list *it, *next;

    for (it = x->waiters.next; it != &x->waiters; it = next) {
        struct request *r = request_of(it);

        next = it->next;
        if (r->remote_deadline_us > rs->w->now_us) continue;
        x->from->stats.n_late++;
        x->is_late = true;
        wake(rs, x, r, true);
    }
}

void restores_turn(struct restores *rs) {
    for (uint32_t i = 0; i < RESTORES; i++) {
        struct restore *x = &rs->restores[i];

        if (!x->asker) continue;
        wake_late(rs, x);
        if (!list_is_empty(&x->waiters)) {
            submit(rs, x);
        } else if (x->n_jobs == 0) {
            release(x);
        }
    }
}

uint64_t restores_due_us(const struct restores *rs) {
    uint64_t due_us = UINT64_MAX;

    for (uint32_t i = 0; i < RESTORES; i++) {
        const struct restore *x = &rs->restores[i];

        if (x->asker && x->n_jobs == 0) due_us = MIN(due_us, rs->w->now_us + UNSETTLED_LOOK_US);
        LIST_FOR_EACH(it, &x->waiters)
        due_us = MIN(due_us, request_of(it)->remote_deadline_us);
    }
    return due_us;
}

void restores_reset(struct restores *rs) {
    for (uint32_t i = 0; i < RESTORES; i++)
        if (rs->restores[i].asker) end(rs, &rs->restores[i], false);
}

/* --- check ------------------------------------------------------------------------------------ */

void restores_check(const struct restores *rs) {
    uint32_t n_jobs[RESTORES] = {0};

    for (uint32_t i = 0; i < RESTORE_JOBS; i++)
        if (rs->jobs[i].of) n_jobs[rs->jobs[i].of - rs->restores]++;
    for (uint32_t i = 0; i < RESTORES; i++) {
        const struct restore *x = &rs->restores[i];

        if (!x->asker) {
            assert(n_jobs[i] == 0 && list_is_empty(&x->waiters));
            continue;
        }
        assert(n_jobs[i] == x->n_jobs);
        assert(x->n_come <= x->n_landed);
        assert(x->n_landed <= x->n_submitted && x->n_submitted <= x->n);
        LIST_FOR_EACH(it, &x->waiters)
        assert(request_of(it)->remote == REMOTE_AWAITED && !x->is_over);
    }
}

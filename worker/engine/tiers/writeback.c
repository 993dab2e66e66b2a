/* worker/engine/tiers/writeback.c - wanted contents of host memory on their way to one tier.
 *
 * A content is written only behind its parent: what is in a tier without its prefix cannot be asked
 * for. Contents reach host memory children first, so a content whose parent is not below waits in a
 * table by its parent's key, and is ready once the parent was written:
 *
 *      on_host ──▶ waiting, by parent ── parent is below ──▶ ready ──▶ job of a chain ──▶ written
 *                          ▲                                                              │
 *                          └────────── its children become ready ◀───────────────────────┘
 *
 * What host memory evicts before that is lost, and counted. Two jobs at a time bound the bytes
 * under way; a full tier, or one that failed, pauses, and so does one that makes decodes late. */
#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "worker/engine/tiers/lower_internal.h"

#define WRITE_JOBS      2u
#define JOB_DEADLINE_US (10ull * 1000 * 1000)

struct write_job {
    struct tier_job job;
    bool is_under_way;
    block_id ids[TIER_JOB_UNITS];
};

struct writeback {
    struct lower *w;
    struct lower_tier *t;
    uint32_t *next;              /* (n_host_blocks) in the bucket */
    uint32_t *buckets, mask;     /* by parent's key */
    struct unit_key *parent;     /* (n_host_blocks) of those that wait */
    bool *is_waiting, *is_ready; /* (n_host_blocks) a ready one waits too */
    block_id *ready;             /* (n_host_blocks) a ring */
    uint32_t first_ready, n_ready, n_waiting;
    struct write_job jobs[WRITE_JOBS];
};

struct writeback *writeback_create(struct lower *w, struct lower_tier *t) {
    struct writeback *b = mem_zalloc(sizeof(*b));
    uint32_t n = w->config.n_host_blocks, n_buckets = 16;

    while (n_buckets < n)
        n_buckets *= 2;
    b->w = w;
    b->t = t;
    b->mask = n_buckets - 1;
    b->next = mem_calloc(n, sizeof(*b->next));
    b->parent = mem_calloc(n, sizeof(*b->parent));
    b->is_waiting = mem_calloc(n, sizeof(*b->is_waiting));
    b->is_ready = mem_calloc(n, sizeof(*b->is_ready));
    b->ready = mem_calloc(n, sizeof(*b->ready));
    b->buckets = mem_calloc(n_buckets, sizeof(*b->buckets));
    memset(b->buckets, 0xFF, n_buckets * sizeof(*b->buckets)); /* BLOCK_NONE */
    return b;
}

void writeback_destroy(struct writeback *b) {
    if (!b) return;
    mem_free(b->next);
    mem_free(b->parent);
    mem_free(b->is_waiting);
    mem_free(b->is_ready);
    mem_free(b->ready);
    mem_free(b->buckets);
    mem_free(b);
}

/* --- who waits -------------------------------------------------------------------------------- */

static uint32_t *bucket_of(const struct writeback *b, const struct unit_key *parent) {
    uint32_t at;

    memcpy(&at, parent->bytes, sizeof(at));
    return &b->buckets[at & b->mask];
}

static void insert(struct writeback *b, block_id id, const struct unit_key *parent) {
    uint32_t *bucket = bucket_of(b, parent);

    b->parent[id] = *parent;
    b->next[id] = *bucket;
    *bucket = id;
    b->is_waiting[id] = true;
    b->n_waiting++;
}

static void take_out(struct writeback *b, block_id id) {
    uint32_t *at = bucket_of(b, &b->parent[id]);

    while (*at != id)
        at = &b->next[*at];
    *at = b->next[id];
    b->is_waiting[id] = false;
    b->n_waiting--;
}

static void make_ready(struct writeback *b, block_id id) {
    if (b->is_ready[id]) return;
    b->is_ready[id] = true;
    b->ready[(b->first_ready + b->n_ready++) % b->w->config.n_host_blocks] = id;
}

static void make_children_ready(struct writeback *b, const struct unit_key *key) {
    for (block_id id = *bucket_of(b, key); id != BLOCK_NONE; id = b->next[id])
        if (memcmp(&b->parent[id], key, sizeof(*key)) == 0) make_ready(b, id);
}

static bool has(const struct writeback *b, const struct unit_key *key) {
    return b->t->tier->ops->find(b->t->tier, key, 1) == 1;
}

/* Its parent is below. */
static bool can_be_found(const struct writeback *b, block_id id) {
    const struct kv_name *name = &kv_manager_names(b->w->kv)->host[id];

    return name->index == 0 || has(b, &name->parent);
}

void writeback_on_host(struct writeback *b, block_id id) {
    const struct kv_name *name = &kv_manager_names(b->w->kv)->host[id];

    if (b->is_waiting[id]) take_out(b, id); /* another content, since forgotten */
    if (!b->t->can_write || b->w->is_stopped || has(b, &name->key)) return;
    insert(b, id, &name->parent);
    if (can_be_found(b, id)) make_ready(b, id);
}

void writeback_on_host_evict(struct writeback *b, block_id id) {
    if (!b->is_waiting[id]) return;
    take_out(b, id);
    b->t->stats.n_dropped++;
}

/* Half of host memory waits: bringing more there early only evicts what waits. */
bool writeback_is_full(const struct writeback *b) {
    return b->n_waiting > b->w->config.n_host_blocks / 2;
}

/* --- jobs ------------------------------------------------------------------------------------- */

static bool is_there(const struct writeback *b, block_id id) {
    return b->is_waiting[id] && prefix_cache_contains(kv_host_cache(b->w->host), id);
}

static void add_unit(struct writeback *b, struct write_job *j, block_id id) {
    struct prefix_key key = prefix_cache_key(kv_host_cache(b->w->host), id);
    struct tier_unit *u = &j->job.units[j->job.n];

    take_out(b, id);
    kv_host_acquire(b->w->host, id);
    *u = (struct tier_unit){.payload = lower_payload(b->w, id)};
    lower_identify(b->w, &kv_manager_names(b->w->kv)->host[id], key.tokens, &u->id);
    j->ids[j->job.n++] = id;
}

/* The next ready one whose bytes are there, or BLOCK_NONE. A block that got another content since
 * it was ready may not be. */
static block_id pop_ready(struct writeback *b) {
    while (b->n_ready > 0) {
        block_id id = b->ready[b->first_ready];

        if (is_there(b, id) && !kv_host_is_quiet(b->w->host, id)) return BLOCK_NONE;
        b->first_ready = (b->first_ready + 1) % b->w->config.n_host_blocks;
        b->n_ready--;
        b->is_ready[id] = false;
        if (is_there(b, id) && can_be_found(b, id)) return id;
    }
    return BLOCK_NONE;
}

static block_id quiet_child(const struct writeback *b, const struct unit_key *key) {
    for (block_id id = *bucket_of(b, key); id != BLOCK_NONE; id = b->next[id]) {
        if (memcmp(&b->parent[id], key, sizeof(*key)) == 0 && is_there(b, id) &&
            kv_host_is_quiet(b->w->host, id))
            return id;
    }
    return BLOCK_NONE;
}

/* A ready content, and the chain behind it. */
static bool fill(struct writeback *b, struct write_job *j) {
    block_id id = pop_ready(b);

    j->job.n = 0;
    while (id != BLOCK_NONE) {
        add_unit(b, j, id);
        if (j->job.n == b->w->job_units) break;
        id = quiet_child(b, &j->job.units[j->job.n - 1].id.key);
    }
    return j->job.n > 0;
}

/* When the next job may begin, as far as the past goes. An idle engine has no decode to delay. */
static uint64_t may_begin_us(const struct writeback *b) {
    uint64_t retry_us = b->t->stores.retry_us;

    return scheduler_any(b->w->sched) ? MAX(retry_us, b->t->guard.until_us) : retry_us;
}

void writeback_turn(struct writeback *b) {
    struct lower *w = b->w;

    if (!b->t->can_write || w->is_stopped || w->now_us < may_begin_us(b)) return;
    for (uint32_t i = 0; i < WRITE_JOBS; i++) {
        struct write_job *j = &b->jobs[i];

        if (j->is_under_way) continue;
        if (!fill(b, j)) return;
        j->is_under_way = true;
        j->job.home = w->config.home;
        j->job.op = TIER_STORE;
        j->job.deadline_us = w->now_us + JOB_DEADLINE_US;
        j->job.submitted_us = w->now_us;
        atomic_store(&j->job.is_cancelled, false);
        b->t->tier->ops->submit(b->t->tier, &j->job);
    }
}

/* Only what the device has yet to move is looked at again without a mail. */
uint64_t writeback_due_us(const struct writeback *b) {
    bool is_free = false;

    for (uint32_t i = 0; i < WRITE_JOBS; i++)
        is_free |= !b->jobs[i].is_under_way;
    if (b->n_ready == 0 || !is_free || !b->t->can_write) return UINT64_MAX;
    return MAX(b->w->now_us + UNSETTLED_LOOK_US, may_begin_us(b));
}

uint32_t writeback_n_waiting(const struct writeback *b) {
    return b->n_waiting;
}

bool writeback_is_writing(const struct writeback *b) {
    for (uint32_t i = 0; i < WRITE_JOBS; i++)
        if (b->jobs[i].is_under_way) return true;
    return false;
}

bool writeback_is_busy(const struct writeback *b) {
    if (writeback_is_writing(b)) return true;
    return b->n_ready > 0 && b->t->can_write && b->w->now_us >= b->t->stores.retry_us;
}

static struct write_job *job_of(const struct writeback *b, const struct mail *mail) {
    uintptr_t from = (uintptr_t)b->jobs, at = (uintptr_t)mail;

    if (at < from || at >= from + sizeof(b->jobs)) return NULL;
    return (struct write_job *)(uintptr_t)&b->jobs[(at - from) / sizeof(*b->jobs)];
}

bool writeback_own(const struct writeback *b, const struct mail *mail) {
    return job_of(b, mail) != NULL;
}

/* What was refused for the moment is tried again, if it is still the same content. */
static void take_unit(struct writeback *b, const struct tier_unit *u, block_id id) {
    const struct kv_name *name = &kv_manager_names(b->w->kv)->host[id];

    b->t->stats.stores[u->result]++;
    if (!b->w->is_stopped) lower_note_result(b->w, &b->t->stores, u->result);
    if (u->result == TIER_OK) {
        b->t->stats.stored_bytes += b->w->config.block_bytes;
        make_children_ready(b, &u->id.key);
    } else if (u->result != TIER_IO && name->is_named && !b->w->is_stopped &&
               memcmp(&name->key, &u->id.key, sizeof(name->key)) == 0 &&
               prefix_cache_contains(kv_host_cache(b->w->host), id)) {
        writeback_on_host(b, id);
    } else {
        b->t->stats.n_dropped++;
    }
}

void writeback_on_mail(struct writeback *b, struct mail *mail) {
    struct write_job *j = job_of(b, mail);

    for (uint32_t i = 0; i < j->job.n; i++)
        take_unit(b, &j->job.units[i], j->ids[i]);
    kv_host_drop(b->w->host, j->ids, j->job.n);
    j->is_under_way = false;
}

void writeback_reset(struct writeback *b) {
    for (block_id id = 0; id < b->w->config.n_host_blocks; id++) {
        if (b->is_waiting[id]) take_out(b, id);
        b->is_ready[id] = false;
    }
    b->n_ready = b->first_ready = 0;
}

/* --- check ------------------------------------------------------------------------------------ */

void writeback_check(const struct writeback *b) {
    uint32_t n_waiting = 0, n_ready = 0, n_in_buckets = 0;

    for (block_id id = 0; id < b->w->config.n_host_blocks; id++) {
        n_waiting += b->is_waiting[id];
        n_ready += b->is_ready[id];
    }
    for (uint32_t i = 0; i <= b->mask; i++) {
        for (block_id id = b->buckets[i]; id != BLOCK_NONE; id = b->next[id]) {
            assert(b->is_waiting[id] && bucket_of(b, &b->parent[id]) == &b->buckets[i]);
            n_in_buckets++;
        }
    }
    assert(n_waiting == b->n_waiting && n_in_buckets == n_waiting);
    assert(n_ready == b->n_ready && n_ready <= b->w->config.n_host_blocks);
}

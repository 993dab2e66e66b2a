/* tests/support/memory_tier.c - see the header. */
#include "tests/support/memory_tier.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

#define N_THREADS 2
#define MAX_UNITS 8192u
#define MAX_JOBS  8u /* waiting; more are TIER_BUSY */

struct stored {
    struct unit_key key, parent;
    uint32_t position;
    uint8_t *bytes;
};

struct memory_store {
    pthread_mutex_t lock;
    pthread_cond_t news; /* for the threads of a tier */
    struct stored units[MAX_UNITS];
    uint32_t n_units, n_loads, n_stores;
    size_t unit_bytes;
    struct memory_plan plan;
    struct rng rng;
};

struct memory_tier {
    struct tier tier; /* first */
    struct memory_store *store;
    struct unit_codec *codec[N_THREADS], *foreign;
    pthread_t threads[N_THREADS];
    struct list jobs;
    uint32_t n_jobs;
    bool is_ending;
    uint64_t block_bytes;
};

struct thread_arg {
    struct memory_tier *t;
    uint32_t number;
};

struct memory_store *memory_store_create(void) {
    struct memory_store *s = mem_zalloc(sizeof(*s));

    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->news, NULL);
    rng_seed(&s->rng, 1);
    return s;
}

void memory_store_destroy(struct memory_store *s) {
    for (uint32_t i = 0; i < s->n_units; i++)
        mem_free(s->units[i].bytes);
    pthread_cond_destroy(&s->news);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

void memory_store_plan(struct memory_store *s, const struct memory_plan *plan) {
    pthread_mutex_lock(&s->lock);
    s->plan = *plan;
    rng_seed(&s->rng, plan->seed);
    pthread_cond_broadcast(&s->news);
    pthread_mutex_unlock(&s->lock);
}

static uint32_t read_count(struct memory_store *s, const uint32_t *count) {
    uint32_t n;

    pthread_mutex_lock(&s->lock);
    n = *count;
    pthread_mutex_unlock(&s->lock);
    return n;
}

uint32_t memory_store_n_units(struct memory_store *s) {
    return read_count(s, &s->n_units);
}

uint32_t memory_store_n_loads(struct memory_store *s) {
    return read_count(s, &s->n_loads);
}

/* Under the lock, as all below that take a store. */
static struct stored *find_unit(struct memory_store *s, const struct unit_key *key) {
    for (uint32_t i = 0; i < s->n_units; i++)
        if (memcmp(&s->units[i].key, key, sizeof(*key)) == 0) return &s->units[i];
    return NULL;
}

void memory_store_check(struct memory_store *s) {
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_units; i++)
        assert(s->units[i].position == 0 || find_unit(s, &s->units[i].parent));
    pthread_mutex_unlock(&s->lock);
}

/* --- jobs ------------------------------------------------------------------------------------- */

static void store_unit(struct memory_tier *t, struct unit_codec *codec, struct tier_unit *u) {
    struct memory_store *s = t->store;
    uint8_t *bytes = mem_alloc(unit_bytes(codec));
    bool is_refused;

    pthread_mutex_lock(&s->lock);
    is_refused = s->n_units == MAX_UNITS || s->plan.is_read_only;
    u->result = is_refused ? TIER_IO : TIER_OK;
    if (s->plan.stores_fail && s->n_stores++ % 2) u->result = TIER_BUSY;
    pthread_mutex_unlock(&s->lock);
    if (u->result != TIER_OK || unit_seal(codec, &u->id, u->payload, bytes) != ST_OK) {
        if (u->result == TIER_OK) u->result = TIER_IO;
        mem_free(bytes);
        return;
    }
    pthread_mutex_lock(&s->lock);
    if (find_unit(s, &u->id.key)) {
        mem_free(bytes);
    } else {
        s->unit_bytes = unit_bytes(codec);
        s->units[s->n_units++] = (struct stored){u->id.key, u->id.parent, u->id.position, bytes};
    }
    pthread_mutex_unlock(&s->lock);
}

/* What comes instead of the stored unit, in `bytes`; its length. */
static size_t spoil(struct memory_tier *t, enum memory_fault fault, const struct tier_unit *u,
                    uint8_t *bytes, size_t n, uint8_t *scratch) {
    struct memory_store *s = t->store;
    uint64_t at = rng_below(&s->rng, n * 8);

    switch (fault) {
    case FAULT_FLIP: bytes[at / 8] ^= (uint8_t)(1u << at % 8); return n;
    case FAULT_CUT: return at / 8;
    case FAULT_SWAP: memcpy(bytes, s->units[at % s->n_units].bytes, n); return n;
    case FAULT_STALE:
        memset(scratch, 7, t->block_bytes);
        if (unit_seal(t->foreign, &u->id, scratch, bytes) != ST_OK) return 0;
        return n;
    default: return n;
    }
}

static enum tier_result result_of(enum memory_fault fault) {
    switch (fault) {
    case FAULT_ABSENT: return TIER_ABSENT;
    case FAULT_BUSY: return TIER_BUSY;
    case FAULT_LATE: return TIER_LATE;
    case FAULT_IO: return TIER_IO;
    default: return TIER_OK;
    }
}

static void load_unit(struct memory_tier *t, struct unit_codec *codec, struct tier_unit *u) {
    size_t n = unit_bytes(codec);
    uint8_t *bytes = mem_alloc(n), *scratch = mem_alloc(t->block_bytes);
    struct memory_store *s = t->store;
    enum memory_fault fault = FAULT_NONE;
    const struct stored *found;

    memset(u->payload, 0xEE, t->block_bytes); /* a reserved block has no bytes of its own */
    pthread_mutex_lock(&s->lock);
    if (rng_below(&s->rng, 100) < (s->plan.percent ? s->plan.percent : 100)) fault = s->plan.fault;
    found = find_unit(s, &u->id.key);
    u->result = found ? result_of(fault) : TIER_ABSENT;
    if (found) memcpy(bytes, found->bytes, n);
    if (u->result == TIER_OK) n = spoil(t, fault, u, bytes, n, scratch);
    pthread_mutex_unlock(&s->lock);
    if (u->result == TIER_OK) {
        u->cause = unit_open(codec, &u->id, bytes, n, u->payload);
        if (u->cause != UNIT_FINE) u->result = TIER_REJECTED;
    }
    mem_free(scratch);
    mem_free(bytes);
}

static void finish(struct tier_job *job) {
    mailbox_push(job->home, &job->mail);
}

static void serve(struct memory_tier *t, struct unit_codec *codec, struct tier_job *job) {
    bool is_failed = false;

    job->began_us = clock_now_us();
    for (uint32_t i = 0; i < job->n; i++) {
        struct tier_unit *u = &job->units[i];

        if (is_failed) {
            u->result = TIER_SKIPPED;
        } else if (job->op == TIER_STORE) {
            store_unit(t, codec, u);
        } else {
            load_unit(t, codec, u);
        }
        is_failed |= u->result != TIER_OK;
    }
    job->ended_us = clock_now_us();
    finish(job);
}

/* The next job to serve; NULL at the end. Loads that are never to come stay where they are. */
static struct tier_job *take_job(struct memory_tier *t) {
    struct memory_store *s = t->store;

    for (;;) {
        LIST_FOR_EACH(it, &t->jobs) {
            struct tier_job *job = LIST_ENTRY(it, struct tier_job, link);

            if (job->op == TIER_LOAD && s->plan.fault == FAULT_NEVER) continue;
            list_remove(it);
            t->n_jobs--;
            return job;
        }
        if (t->is_ending) return NULL;
        pthread_cond_wait(&s->news, &s->lock);
    }
}

static void *serve_jobs(void *arg) {
    struct thread_arg *a = arg;
    struct memory_tier *t = a->t;
    struct unit_codec *codec = t->codec[a->number];
    struct tier_job *job;

    mem_free(a);
    for (;;) {
        pthread_mutex_lock(&t->store->lock);
        job = take_job(t);
        pthread_mutex_unlock(&t->store->lock);
        if (!job) return NULL;
        serve(t, codec, job);
    }
}

/* --- the tier --------------------------------------------------------------------------------- */

static uint32_t memory_find(struct tier *tier, const struct unit_key *keys, uint32_t n) {
    struct memory_tier *t = (struct memory_tier *)tier;
    uint32_t i = 0;

    pthread_mutex_lock(&t->store->lock);
    while (i < n && !t->store->plan.only_guesses && find_unit(t->store, &keys[i]))
        i++;
    pthread_mutex_unlock(&t->store->lock);
    return i;
}

static uint32_t memory_guess(struct tier *tier, const struct unit_key *keys, uint32_t n) {
    struct memory_tier *t = (struct memory_tier *)tier;
    bool is_guess;

    pthread_mutex_lock(&t->store->lock);
    is_guess = t->store->plan.only_guesses;
    pthread_mutex_unlock(&t->store->lock);
    return is_guess ? n : memory_find(tier, keys, n);
}

static void end_all(struct tier_job *job, enum tier_result result) {
    for (uint32_t i = 0; i < job->n; i++)
        job->units[i].result = result;
    finish(job);
}

static void memory_submit(struct tier *tier, struct tier_job *job) {
    struct memory_tier *t = (struct memory_tier *)tier;
    bool is_full;

    pthread_mutex_lock(&t->store->lock);
    t->store->n_loads += job->op == TIER_LOAD;
    is_full = t->n_jobs == MAX_JOBS;
    if (!is_full) {
        list_push_back(&t->jobs, &job->link);
        t->n_jobs++;
    }
    pthread_cond_signal(&t->store->news);
    pthread_mutex_unlock(&t->store->lock);
    if (is_full) end_all(job, TIER_BUSY);
}

static void memory_stats(struct tier *tier, struct tier_stats *out) {
    struct memory_tier *t = (struct memory_tier *)tier;

    pthread_mutex_lock(&t->store->lock);
    *out = (struct tier_stats){.bytes = (t->store->plan.is_full ? MAX_UNITS : t->store->n_units) *
                                        t->store->unit_bytes,
                               .max_bytes = MAX_UNITS * t->store->unit_bytes,
                               .n_units = t->store->n_units,
                               .can_write = !t->store->plan.is_read_only,
                               .is_open = true};
    pthread_mutex_unlock(&t->store->lock);
}

static void memory_destroy(struct tier *tier) {
    struct memory_tier *t = (struct memory_tier *)tier;
    struct list *link;

    if (!t) return;
    pthread_mutex_lock(&t->store->lock);
    t->is_ending = true;
    pthread_cond_broadcast(&t->store->news);
    pthread_mutex_unlock(&t->store->lock);
    for (uint32_t i = 0; i < N_THREADS; i++)
        pthread_join(t->threads[i], NULL);
    while ((link = list_pop_front(&t->jobs)) != NULL)
        end_all(LIST_ENTRY(link, struct tier_job, link), TIER_SKIPPED);
    for (uint32_t i = 0; i < N_THREADS; i++)
        unit_codec_destroy(t->codec[i]);
    unit_codec_destroy(t->foreign);
    mem_free(t);
}

static const struct tier_ops ops = {.name = "memory",
                                    .find = memory_find,
                                    .guess = memory_guess,
                                    .submit = memory_submit,
                                    .stats = memory_stats,
                                    .destroy = memory_destroy};

static enum status open_tier(void *arg, const struct unit_codec_config *codec, struct tier **out,
                             struct error *err) {
    struct memory_tier *t = mem_zalloc(sizeof(*t));
    struct unit_codec_config foreign = *codec;
    enum status st;

    t->tier.ops = &ops;
    t->store = arg;
    t->block_bytes = codec->block_bytes;
    list_init(&t->jobs);
    foreign.fingerprint[0] ^= 1;
    st = unit_codec_create(&t->foreign, &foreign, err);
    for (uint32_t i = 0; i < N_THREADS && st == ST_OK; i++)
        st = unit_codec_create(&t->codec[i], codec, err);
    assert(st == ST_OK);
    for (uint32_t i = 0; i < N_THREADS; i++) {
        struct thread_arg *a = mem_alloc(sizeof(*a));

        *a = (struct thread_arg){t, i};
        if (pthread_create(&t->threads[i], NULL, serve_jobs, a) != 0) assert(!"no thread");
    }
    *out = &t->tier;
    return ST_OK;
}

struct engine_tier_source memory_store_source(struct memory_store *s) {
    return (struct engine_tier_source){open_tier, s};
}

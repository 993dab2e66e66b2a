/* router/routing/policy/block_table.c - chained buckets, and one list by age.
 *
 * Entries are numbered from 1; 0 means none, so that zeroed memory is an empty table and unused
 * pages stay untouched. Entry 0 is the head of the list by age: its `younger` is the oldest entry,
 * its `older` the youngest. Free entries are chained by `next`, before those never used.
 *
 * Dropping a worker is O(1): a counter of drops advances and the worker is stamped with it. An
 * entry is stamped with the counter at which it was last tidied; its bits of workers dropped later
 * are invalid, and each access tidies the entry first. Other entries are tidied in passing,
 * TIDY_PER_PUT with each put, until all have been since the last drop. Bits are set in tidied
 * entries alone, so that new blocks of a worker are not mistaken for lost ones. */
#include "router/routing/policy/block_table.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"

#define NO_OWNER     WORKER_NONE
#define TIDY_PER_PUT 4

struct entry {
    uint64_t hash, put_us;
    uint32_t older, younger;
    uint32_t next;    /* in its bucket, or free */
    uint32_t owner;   /* NO_OWNER while it is free */
    uint32_t tidy_at; /* n_drops when its bits were last looked at */
};

/* The worker that the holder bits stand for. */
struct tenure {
    uint64_t identity, generation;
    uint32_t dropped_at; /* n_drops at its last loss; 0: never */
};

struct block_table {
    struct entry *entries; /* [n_max + 1] */
    uint64_t *masks;       /* [n_max + 1][n_words] */
    uint32_t *buckets;     /* [n_buckets] first entry, a power of two */
    struct tenure *tenures;
    uint32_t n_max, n_used, n_blocks, free;
    uint32_t n_buckets, n_words, n_workers;
    uint32_t n_drops;        /* counter of drops */
    uint32_t n_tidy, tidied; /* entries still to be tidied; the last one tidied */
};

struct block_table *block_table_create(uint32_t n_blocks, uint32_t n_workers) {
    struct block_table *t = mem_zalloc(sizeof(*t));

    assert(n_blocks && n_blocks < UINT32_MAX / 4 && n_workers && n_workers <= WORKERS_MAX);
    t->n_max = n_blocks;
    t->n_workers = n_workers;
    t->n_words = CEIL_DIV(n_workers, 64u);
    t->n_buckets = 16;
    while (t->n_buckets < n_blocks)
        t->n_buckets *= 2;
    t->tenures = mem_calloc(n_workers, sizeof(*t->tenures));
    t->entries = mem_try_zalloc(((size_t)n_blocks + 1) * sizeof(*t->entries));
    t->masks = mem_try_zalloc(((size_t)n_blocks + 1) * t->n_words * sizeof(*t->masks));
    t->buckets = mem_try_zalloc((size_t)t->n_buckets * sizeof(*t->buckets));
    if (t->entries && t->masks && t->buckets) return t;
    block_table_destroy(t);
    return NULL;
}

void block_table_destroy(struct block_table *t) {
    if (!t) return;
    mem_free(t->entries);
    mem_free(t->masks);
    mem_free(t->buckets);
    mem_free(t->tenures);
    mem_free(t);
}

static uint64_t *mask_of(const struct block_table *t, uint32_t i) {
    return t->masks + (size_t)i * t->n_words;
}

/* Mixes the hash: the chain's seed may be known, and buckets must not be predictable. */
static uint32_t *bucket_of(const struct block_table *t, uint64_t hash) {
    return &t->buckets[rng_mix(hash) & (t->n_buckets - 1)];
}

static uint32_t lookup(const struct block_table *t, uint64_t hash) {
    uint32_t i = *bucket_of(t, hash);

    while (i && t->entries[i].hash != hash)
        i = t->entries[i].next;
    return i;
}

/* --- age and membership ---------------------------------------------------------------------- */

static void age_unlink(struct block_table *t, uint32_t i) {
    struct entry *e = &t->entries[i];

    t->entries[e->older].younger = e->younger;
    t->entries[e->younger].older = e->older;
}

static void age_push(struct block_table *t, uint32_t i) {
    struct entry *e = &t->entries[i], *head = &t->entries[0];

    e->older = head->older;
    e->younger = 0;
    t->entries[e->older].younger = i;
    head->older = i;
}

static void forget(struct block_table *t, uint32_t i) {
    uint32_t *link = bucket_of(t, t->entries[i].hash);

    while (*link != i)
        link = &t->entries[*link].next;
    *link = t->entries[i].next;
    age_unlink(t, i);
    memset(mask_of(t, i), 0, t->n_words * sizeof(uint64_t));
    t->entries[i].next = t->free;
    t->entries[i].owner = NO_OWNER;
    t->free = i;
    t->n_blocks--;
}

/* Clears the bits that became invalid. False: no holder is left and the entry was freed. */
static bool tidy(struct block_table *t, uint32_t i) {
    struct entry *e = &t->entries[i];
    uint64_t *mask = mask_of(t, i);

    if (e->tidy_at == t->n_drops) return true;
    WORKER_MASK_FOR_EACH(w, mask, t->n_words) {
        if (t->tenures[w].dropped_at > e->tidy_at) worker_mask_drop(mask, w);
    }
    e->tidy_at = t->n_drops;
    if (worker_mask_has(mask, e->owner)) return true;
    e->owner = worker_mask_next(mask, t->n_words, 0);
    if (e->owner != WORKER_NONE) return true;
    forget(t, i);
    return false;
}

void block_table_tidy(struct block_table *t, uint32_t n) {
    for (n = MIN(n, t->n_tidy); n > 0; n--) {
        t->n_tidy--;
        t->tidied = t->tidied % t->n_used + 1;
        if (t->entries[t->tidied].owner != NO_OWNER) tidy(t, t->tidied);
    }
}

bool block_table_find(struct block_table *t, uint64_t hash, struct block_holders *out) {
    uint32_t i = lookup(t, hash);
    const struct entry *e = &t->entries[i];

    if (!i || !tidy(t, i)) return false;
    *out = (struct block_holders){.mask = mask_of(t, i), .owner = e->owner, .put_us = e->put_us};
    return true;
}

static uint32_t add(struct block_table *t, uint64_t hash, uint32_t owner) {
    uint32_t *bucket, i;

    if (t->n_blocks == t->n_max) forget(t, t->entries[0].younger);
    if (t->free) {
        i = t->free;
        t->free = t->entries[i].next;
    } else {
        i = ++t->n_used;
        t->n_tidy += t->n_tidy > 0; /* one more entry in this round */
    }
    bucket = bucket_of(t, hash);
    t->entries[i] =
        (struct entry){.hash = hash, .next = *bucket, .owner = owner, .tidy_at = t->n_drops};
    *bucket = i;
    t->n_blocks++;
    return i;
}

void block_table_put(struct block_table *t, uint64_t hash, uint32_t w, uint64_t now_us) {
    uint32_t i;

    assert(w < t->n_workers);
    block_table_tidy(t, TIDY_PER_PUT);
    i = lookup(t, hash);
    if (i && tidy(t, i))
        age_unlink(t, i);
    else
        i = add(t, hash, w);
    age_push(t, i);
    worker_mask_add(mask_of(t, i), w);
    t->entries[i].put_us = now_us;
}

void block_table_expire(struct block_table *t, uint64_t before_us) {
    for (;;) {
        uint32_t oldest = t->entries[0].younger;

        if (!oldest || t->entries[oldest].put_us >= before_us) return;
        forget(t, oldest);
    }
}

/* --- workers --------------------------------------------------------------------------------- */

void block_table_worker_down(struct block_table *t, uint32_t w) {
    t->tenures[w] = (struct tenure){.dropped_at = ++t->n_drops};
    t->n_tidy = t->n_used;
}

void block_table_worker_up(struct block_table *t, uint32_t w, const struct worker_spec *spec) {
    struct tenure now = {.identity = spec->identity, .generation = spec->generation};

    if (t->tenures[w].identity == now.identity && t->tenures[w].generation == now.generation)
        return;
    if (t->tenures[w].identity) block_table_worker_down(t, w); /* it has held blocks */
    now.dropped_at = t->tenures[w].dropped_at;
    t->tenures[w] = now;
}

uint32_t block_table_n_blocks(const struct block_table *t) {
    return t->n_blocks;
}

void block_table_check(const struct block_table *t) {
    uint32_t n = 0, n_free = 0, n_untidy = 0, older = 0;

    for (uint32_t i = t->entries[0].younger; i; i = t->entries[i].younger, n++) {
        assert(t->entries[i].older == older);
        assert(lookup(t, t->entries[i].hash) == i);
        assert(worker_mask_has(mask_of(t, i), t->entries[i].owner));
        assert(t->entries[i].tidy_at <= t->n_drops && n < t->n_blocks);
        n_untidy += t->entries[i].tidy_at < t->n_drops;
        older = i;
    }
    assert(t->entries[0].older == older);
    for (uint32_t i = t->free; i; i = t->entries[i].next, n_free++)
        assert(t->entries[i].owner == NO_OWNER);
    assert(n_untidy <= t->n_tidy && t->n_tidy <= t->n_used);
    assert(n == t->n_blocks && n <= t->n_max && n + n_free == t->n_used);
}

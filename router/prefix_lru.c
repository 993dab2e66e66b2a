/* router/prefix_lru.c - entries of 24 bytes, a map to find them, two lists per worker.
 *
 *     map (hash, worker) ──▶ entry ─┬─ on its worker's `pinned` list   in use by open requests
 *     linear probing, 4-byte slots  └─ on its worker's `cold` list     oldest first
 *
 * Lists are rings of 32-bit entry numbers; the first entries of the pool are the ring heads, two
 * per worker, so that linking has no special case. Output is one anonymous entry per request,
 * which holds a number of blocks in place of a hash, is not in the map, and shrinks by one block
 * at a time when its turn comes. */
#include "router/prefix_lru.h"

#include "common/mem.h"
#include "common/rng.h"

#include <assert.h>
#include <string.h>

#define SLOTS_PER_4_ENTRIES 5
#define PREFETCH_AHEAD      8

struct entry {
    union {
        uint64_t hash;
        uint64_t n_blocks; /* of an anonymous run; 0 for a ring head */
    };
    uint32_t prev, next; /* free entries: next is the next free one */
    uint32_t pins;       /* open requests that use it */
    uint16_t worker;
    bool is_computed;
    bool is_anonymous;
};

struct lru_worker {
    uint64_t n_held;   /* computed blocks, anonymous ones too */
    uint64_t capacity; /* blocks */
};

struct prefix_lru {
    struct prefix_index *index;
    struct entry *entries; /* 2 x n_workers heads, then the pool */
    uint32_t *slots;       /* entry number; 0 (a head): empty */
    uint64_t n_slots;
    struct lru_worker *workers;
    uint32_t n_workers;
    uint32_t n_pool, first_free; /* 0: none */
    uint64_t n_used, n_refused;
    uint32_t n_cold;     /* entries on any cold list */
    uint32_t steal_from; /* the worker to take a cold entry from next */
};

static uint64_t slots_for(uint32_t n_entries) {
    return (uint64_t)n_entries * SLOTS_PER_4_ENTRIES / 4 + 2;
}

uint64_t prefix_lru_bytes(uint32_t n_entries, uint32_t n_workers) {
    return ((uint64_t)n_entries + 2 * n_workers) * sizeof(struct entry) +
           slots_for(n_entries) * sizeof(uint32_t) + n_workers * sizeof(struct lru_worker);
}

struct prefix_lru *prefix_lru_create(struct prefix_index *index, uint32_t n_entries,
                                     uint32_t n_workers) {
    struct prefix_lru *l = mem_zalloc(sizeof(*l));
    uint32_t n_heads = 2 * n_workers;

    assert(n_entries && n_workers && n_workers <= WORKERS_MAX);
    l->index = index;
    l->n_workers = n_workers;
    l->n_pool = n_entries;
    l->n_slots = slots_for(n_entries);
    l->entries = mem_try_zalloc(((size_t)n_entries + n_heads) * sizeof(*l->entries));
    l->slots = mem_try_zalloc(l->n_slots * sizeof(*l->slots));
    l->workers = mem_calloc(n_workers, sizeof(*l->workers));
    if (!l->entries || !l->slots) {
        prefix_lru_destroy(l);
        return NULL;
    }
    for (uint32_t e = 0; e < n_heads; e++)
        l->entries[e].prev = l->entries[e].next = e;
    for (uint32_t e = n_heads + n_entries; e-- > n_heads;) {
        l->entries[e].next = l->first_free;
        l->first_free = e;
    }
    return l;
}

void prefix_lru_destroy(struct prefix_lru *l) {
    if (!l) return;
    mem_free(l->workers);
    mem_free(l->slots);
    mem_free(l->entries);
    mem_free(l);
}

/* --- lists ----------------------------------------------------------------------------------- */

static uint32_t cold_list(uint32_t w) {
    return 2 * w;
}

static uint32_t pinned_list(uint32_t w) {
    return 2 * w + 1;
}

static bool list_has_any(const struct prefix_lru *l, uint32_t head) {
    return l->entries[head].next != head;
}

static void unlink_entry(struct prefix_lru *l, uint32_t e) {
    struct entry *n = &l->entries[e];

    l->entries[n->prev].next = n->next;
    l->entries[n->next].prev = n->prev;
}

static void link_last(struct prefix_lru *l, uint32_t head, uint32_t e) {
    struct entry *n = &l->entries[e];

    n->prev = l->entries[head].prev;
    n->next = head;
    l->entries[n->prev].next = e;
    l->entries[head].prev = e;
}

/* --- the map --------------------------------------------------------------------------------- */

static uint64_t home_of(const struct prefix_lru *l, uint64_t hash, uint32_t w) {
    return (uint64_t)(((unsigned __int128)rng_mix(hash + w) * l->n_slots) >> 64);
}

/* The map slot of (hash, w), or the free one where it would go. */
static uint32_t *find(const struct prefix_lru *l, uint64_t hash, uint32_t w) {
    uint64_t i = home_of(l, hash, w);

    for (; l->slots[i]; i = i + 1 == l->n_slots ? 0 : i + 1) {
        const struct entry *n = &l->entries[l->slots[i]];

        if (n->hash == hash && n->worker == w) break;
    }
    return &l->slots[i];
}

static void free_slot(struct prefix_lru *l, uint32_t *slot) {
    uint64_t hole = (uint64_t)(slot - l->slots), i = hole;

    for (;;) {
        if (++i == l->n_slots) i = 0;
        if (!l->slots[i]) break;
        const struct entry *n = &l->entries[l->slots[i]];
        uint64_t home = home_of(l, n->hash, n->worker);
        bool is_past_hole = hole <= i ? hole < home && home <= i : hole < home || home <= i;

        if (is_past_hole) continue;
        l->slots[hole] = l->slots[i];
        hole = i;
    }
    l->slots[hole] = 0;
}

/* --- entries --------------------------------------------------------------------------------- */

/* Takes the entry, already unlinked, out of everything. */
static void remove_entry(struct prefix_lru *l, uint32_t e) {
    struct entry *n = &l->entries[e];

    if (n->is_anonymous) {
        l->workers[n->worker].n_held -= n->n_blocks;
    } else {
        l->workers[n->worker].n_held -= n->is_computed;
        prefix_index_erase(l->index, n->hash, n->worker);
        free_slot(l, find(l, n->hash, n->worker));
    }
    n->next = l->first_free;
    l->first_free = e;
    l->n_used--;
}

static void remove_coldest(struct prefix_lru *l, uint32_t w) {
    uint32_t e = l->entries[cold_list(w)].next;

    unlink_entry(l, e);
    l->n_cold--;
    remove_entry(l, e);
}

/* Forgets the coldest blocks of w until the rest fits. */
static void trim(struct prefix_lru *l, uint32_t w) {
    struct lru_worker *k = &l->workers[w];

    while (k->n_held > k->capacity && list_has_any(l, cold_list(w))) {
        struct entry *n = &l->entries[l->entries[cold_list(w)].next];

        if (n->is_anonymous && n->n_blocks > k->n_held - k->capacity) {
            n->n_blocks -= k->n_held - k->capacity;
            k->n_held = k->capacity;
        } else {
            remove_coldest(l, w);
        }
    }
}

/* A free entry for w, at the cost of w's coldest one or of another worker's; 0: all are pinned. */
static uint32_t take_entry(struct prefix_lru *l, uint32_t w) {
    uint32_t e;

    if (!l->first_free) {
        uint32_t from = w;

        if (!l->n_cold) return 0;
        while (!list_has_any(l, cold_list(from))) {
            l->steal_from = (l->steal_from + 1) % l->n_workers;
            from = l->steal_from;
        }
        remove_coldest(l, from);
    }
    e = l->first_free;
    l->first_free = l->entries[e].next;
    l->n_used++;
    l->entries[e].pins = 0;
    l->entries[e].worker = (uint16_t)w;
    l->entries[e].is_computed = l->entries[e].is_anonymous = false;
    return e;
}

static void give_back_entry(struct prefix_lru *l, uint32_t e) {
    l->entries[e].next = l->first_free;
    l->first_free = e;
    l->n_used--;
}

/* A new entry for (hash, w), not yet on a list; 0 when there is no room. */
static uint32_t add_entry(struct prefix_lru *l, uint64_t hash, uint32_t w) {
    uint32_t e = take_entry(l, w);

    if (!e) return 0;
    if (!prefix_index_insert(l->index, hash, w)) {
        give_back_entry(l, e);
        return 0;
    }
    l->entries[e].hash = hash;
    *find(l, hash, w) = e; /* after take_entry, which may have moved slots */
    return e;
}

static void prefetch(const struct prefix_lru *l, uint32_t w, uint64_t hash) {
    __builtin_prefetch(&l->slots[home_of(l, hash, w)]);
}

/* --- events ---------------------------------------------------------------------------------- */

uint32_t prefix_lru_sent(struct prefix_lru *l, uint32_t w, const uint64_t *chain, uint32_t n) {
    for (uint32_t i = 0; i < MIN(n, (uint32_t)PREFETCH_AHEAD); i++)
        prefetch(l, w, chain[i]);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t e = *find(l, chain[i], w);

        if (i + PREFETCH_AHEAD < n) prefetch(l, w, chain[i + PREFETCH_AHEAD]);
        if (!e && !(e = add_entry(l, chain[i], w))) {
            l->n_refused += n - i;
            return i;
        }
        if (l->entries[e].pins++) continue;
        if (l->entries[e].is_computed) {
            unlink_entry(l, e);
            l->n_cold--;
        }
        link_last(l, pinned_list(w), e);
    }
    return n;
}

void prefix_lru_first_token(struct prefix_lru *l, uint32_t w, const uint64_t *chain, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        struct entry *e = &l->entries[*find(l, chain[i], w)];

        assert(e->pins);
        l->workers[w].n_held += !e->is_computed;
        e->is_computed = true;
    }
    trim(l, w);
}

/* Drops one pin of each, last block first. */
static void unpin(struct prefix_lru *l, uint32_t w, const uint64_t *chain, uint32_t n) {
    for (uint32_t i = n; i-- > 0;) {
        uint32_t e = *find(l, chain[i], w);

        assert(e && l->entries[e].pins);
        if (--l->entries[e].pins) continue;
        unlink_entry(l, e);
        if (l->entries[e].is_computed) {
            link_last(l, cold_list(w), e);
            l->n_cold++;
        } else {
            remove_entry(l, e);
        }
    }
}

void prefix_lru_ended(struct prefix_lru *l, uint32_t w, const uint64_t *chain, uint32_t n,
                      uint32_t n_output_blocks) {
    uint32_t e = n_output_blocks ? take_entry(l, w) : 0;

    if (e) {
        l->entries[e].is_anonymous = l->entries[e].is_computed = true;
        l->entries[e].n_blocks = n_output_blocks;
        l->workers[w].n_held += n_output_blocks;
        link_last(l, cold_list(w), e);
        l->n_cold++;
    }
    unpin(l, w, chain, n);
    trim(l, w);
}

void prefix_lru_aborted(struct prefix_lru *l, uint32_t w, const uint64_t *chain, uint32_t n) {
    unpin(l, w, chain, n);
    trim(l, w);
}

void prefix_lru_drop_worker(struct prefix_lru *l, uint32_t w) {
    while (list_has_any(l, cold_list(w)))
        remove_coldest(l, w);
    while (list_has_any(l, pinned_list(w))) {
        uint32_t e = l->entries[pinned_list(w)].next;

        unlink_entry(l, e);
        remove_entry(l, e);
    }
}

void prefix_lru_set_capacity(struct prefix_lru *l, uint32_t w, uint64_t n_blocks) {
    l->workers[w].capacity = n_blocks;
    trim(l, w);
}

uint64_t prefix_lru_n_held(const struct prefix_lru *l, uint32_t w) {
    return l->workers[w].n_held;
}

bool prefix_lru_is_full(const struct prefix_lru *l, uint32_t w) {
    return l->workers[w].n_held >= l->workers[w].capacity;
}

uint64_t prefix_lru_n_entries(const struct prefix_lru *l) {
    return l->n_used;
}

uint64_t prefix_lru_n_refused(const struct prefix_lru *l) {
    return l->n_refused;
}

/* --- checking -------------------------------------------------------------------------------- */

static uint64_t check_list(const struct prefix_lru *l, uint32_t w, uint32_t head,
                           uint64_t *n_held) {
    uint64_t n = 0;

    for (uint32_t e = l->entries[head].next; e != head; e = l->entries[e].next, n++) {
        const struct entry *x = &l->entries[e];

        assert(l->entries[x->next].prev == e && x->worker == w);
        assert((x->pins > 0) == (head == pinned_list(w)));
        assert(x->pins || x->is_computed);
        *n_held += x->is_anonymous ? x->n_blocks : x->is_computed;
        if (x->is_anonymous) {
            assert(x->n_blocks && !x->pins);
        } else {
            assert(*find(l, x->hash, w) == e);
            assert(prefix_index_has(l->index, x->hash, w));
        }
    }
    return n;
}

void prefix_lru_check(const struct prefix_lru *l) {
    uint64_t n_used = 0, n_cold = 0, n_free = 0, n_named = 0, n_slots = 0;

    for (uint32_t w = 0; w < l->n_workers; w++) {
        const struct lru_worker *k = &l->workers[w];
        uint64_t n_held = 0, cold = check_list(l, w, cold_list(w), &n_held);

        n_cold += cold;
        n_used += cold + check_list(l, w, pinned_list(w), &n_held);
        assert(n_held == k->n_held);
        assert(n_held <= k->capacity || !cold); /* above capacity only by what is pinned */
    }
    for (uint32_t e = l->first_free; e; e = l->entries[e].next)
        n_free++;
    for (uint64_t i = 0; i < l->n_slots; i++)
        n_slots += l->slots[i] != 0;
    for (uint32_t w = 0; w < l->n_workers; w++) {
        for (uint32_t h = 2 * w; h <= 2 * w + 1; h++) {
            for (uint32_t e = l->entries[h].next; e != h; e = l->entries[e].next)
                n_named += !l->entries[e].is_anonymous;
        }
    }
    assert(n_used == l->n_used && n_cold == l->n_cold && n_used + n_free == l->n_pool);
    assert(n_named == n_slots);
    prefix_index_check(l->index);
}

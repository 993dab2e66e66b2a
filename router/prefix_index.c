/* router/prefix_index.c - linear probing over 16-byte slots, erased by shifting back.
 *
 * A slot is free when its set is empty, so any hash value is a key. The home of a hash is its
 * place in proportion (hash x slots / 2^64): any number of slots will do, and no division.
 *
 * The word of a set, when there can be more than 64 workers:
 *     up to four ids    id+1 | id+1 | id+1 | id+1     16 bits each, 0: none, in any place
 *     more              0xFFFF | count | row          row of the pool of masks
 */
#include "router/prefix_index.h"

#include "common/mem.h"

#include <assert.h>
#include <string.h>

#define SLOTS_PER_4_BLOCKS 5  /* 80 % full at most: 3 probes for a hit, 13 for a miss */
#define BLOCKS_PER_ROW     16 /* of mask pool: a block on five or more workers is a shared opening */
#define ROWS_MIN           64
#define ROW_TAG            UINT64_C(0xFFFF000000000000)
#define NARROW_MAX         4
#define PREFETCH_AHEAD     12 /* probes in flight; 8 to 16 measure alike */

struct slot {
    uint64_t hash;
    uint64_t set;
};

struct prefix_index {
    struct slot *slots;
    uint64_t n_slots;
    uint32_t n_blocks, n_blocks_max;
    uint32_t n_words; /* of a mask; 1: the set is the mask */
    uint64_t *rows;   /* n_rows x n_words; a free row's first word is the next free row + 1 */
    uint32_t n_rows, first_free_row; /* + 1; 0: none */
};

static uint64_t slots_for(uint32_t n_blocks) {
    return (uint64_t)n_blocks * SLOTS_PER_4_BLOCKS / 4 + 2;
}

static uint32_t rows_for(uint32_t n_blocks, uint32_t n_words) {
    return n_words > 1 ? MAX(n_blocks / BLOCKS_PER_ROW, ROWS_MIN) : 0;
}

uint64_t prefix_index_bytes(uint32_t n_blocks, uint32_t n_workers) {
    uint32_t n_words = CEIL_DIV(n_workers, 64u);

    return slots_for(n_blocks) * sizeof(struct slot) +
           (uint64_t)rows_for(n_blocks, n_words) * n_words * sizeof(uint64_t);
}

struct prefix_index *prefix_index_create(uint32_t n_blocks, uint32_t n_workers) {
    struct prefix_index *x = mem_zalloc(sizeof(*x));

    assert(n_blocks && n_workers && n_workers <= WORKERS_MAX);
    x->n_slots = slots_for(n_blocks);
    x->n_blocks_max = n_blocks;
    x->n_words = CEIL_DIV(n_workers, 64u);
    x->n_rows = rows_for(n_blocks, x->n_words);
    x->slots = mem_try_zalloc(x->n_slots * sizeof(*x->slots));
    if (x->n_rows) x->rows = mem_try_zalloc((size_t)x->n_rows * x->n_words * sizeof(*x->rows));
    if (!x->slots || (x->n_rows && !x->rows)) {
        prefix_index_destroy(x);
        return NULL;
    }
    for (uint32_t i = x->n_rows; i > 0; i--) {
        x->rows[(size_t)(i - 1) * x->n_words] = x->first_free_row;
        x->first_free_row = i;
    }
    return x;
}

void prefix_index_destroy(struct prefix_index *x) {
    if (!x) return;
    mem_free(x->rows);
    mem_free(x->slots);
    mem_free(x);
}

/* --- the table ------------------------------------------------------------------------------- */

static uint64_t home_of(const struct prefix_index *x, uint64_t hash) {
    return (uint64_t)(((unsigned __int128)hash * x->n_slots) >> 64);
}

/* The slot of `hash`, or the free one where it would go. */
static struct slot *find(const struct prefix_index *x, uint64_t hash) {
    uint64_t i = home_of(x, hash);

    while (x->slots[i].set && x->slots[i].hash != hash) {
        if (++i == x->n_slots) i = 0;
    }
    return &x->slots[i];
}

/* Frees the slot and moves back the ones behind it that it kept from their home. */
static void free_slot(struct prefix_index *x, struct slot *slot) {
    uint64_t hole = (uint64_t)(slot - x->slots), i = hole;

    for (;;) {
        if (++i == x->n_slots) i = 0;
        if (!x->slots[i].set) break;
        uint64_t home = home_of(x, x->slots[i].hash);
        bool is_past_hole = hole <= i ? hole < home && home <= i : hole < home || home <= i;

        if (is_past_hole) continue;
        x->slots[hole] = x->slots[i];
        hole = i;
    }
    x->slots[hole] = (struct slot){0};
    x->n_blocks--;
}

/* --- sets of many workers -------------------------------------------------------------------- */

static bool is_wide(uint64_t set) {
    return (set & ROW_TAG) == ROW_TAG;
}

static uint64_t *row_of(const struct prefix_index *x, uint64_t set) {
    return x->rows + (size_t)(uint32_t)set * x->n_words;
}

static uint32_t row_count(uint64_t set) {
    return (uint32_t)(set >> 32 & 0xFFFF);
}

static uint64_t wide_set(uint32_t row, uint32_t count) {
    return ROW_TAG | (uint64_t)count << 32 | row;
}

/* Where the 16-bit `value` is in the word: a shift, or 64 when it is not there. */
static uint32_t place_of(uint64_t set, uint64_t value) {
    for (uint32_t shift = 0; shift < 64; shift += 16) {
        if ((set >> shift & 0xFFFF) == value) return shift;
    }
    return 64;
}

static bool widen(struct prefix_index *x, uint64_t *set) {
    uint32_t row = x->first_free_row;
    uint64_t *words;

    if (!row) return false;
    words = x->rows + (size_t)--row * x->n_words;
    x->first_free_row = (uint32_t)words[0];
    memset(words, 0, x->n_words * sizeof(*words));
    for (uint32_t shift = 0; shift < 64; shift += 16)
        worker_mask_add(words, (uint32_t)(*set >> shift & 0xFFFF) - 1);
    *set = wide_set(row, NARROW_MAX);
    return true;
}

static void narrow(struct prefix_index *x, uint64_t *set) {
    uint64_t *words = row_of(x, *set), ids = 0;

    WORKER_MASK_FOR_EACH(w, words, x->n_words) ids = ids << 16 | (w + 1);
    words[0] = x->first_free_row;
    x->first_free_row = (uint32_t)*set + 1;
    *set = ids;
}

static bool set_has(const struct prefix_index *x, uint64_t set, uint32_t w) {
    if (x->n_words == 1) return set >> w & 1;
    if (is_wide(set)) return worker_mask_has(row_of(x, set), w);
    return place_of(set, w + 1) < 64;
}

static bool set_add(struct prefix_index *x, uint64_t *set, uint32_t w) {
    if (x->n_words == 1) {
        *set |= UINT64_C(1) << w;
        return true;
    }
    if (!is_wide(*set)) {
        uint32_t shift = place_of(*set, 0);

        if (shift < 64) {
            *set |= (uint64_t)(w + 1) << shift;
            return true;
        }
        if (!widen(x, set)) return false;
    }
    worker_mask_add(row_of(x, *set), w);
    *set = wide_set((uint32_t)*set, row_count(*set) + 1);
    return true;
}

static void set_drop(struct prefix_index *x, uint64_t *set, uint32_t w) {
    if (x->n_words == 1) {
        *set &= ~(UINT64_C(1) << w);
    } else if (is_wide(*set)) {
        worker_mask_drop(row_of(x, *set), w);
        *set = wide_set((uint32_t)*set, row_count(*set) - 1);
        if (row_count(*set) == NARROW_MAX) narrow(x, set);
    } else {
        *set &= ~(UINT64_C(0xFFFF) << place_of(*set, w + 1));
    }
}

/* --- the contract ---------------------------------------------------------------------------- */

bool prefix_index_insert(struct prefix_index *x, uint64_t hash, uint32_t w) {
    struct slot *s = find(x, hash);

    assert(w < x->n_words * 64 && !(s->set && set_has(x, s->set, w)));
    if (!s->set) {
        if (x->n_blocks == x->n_blocks_max) return false;
        s->hash = hash;
        x->n_blocks++;
    }
    return set_add(x, &s->set, w);
}

void prefix_index_erase(struct prefix_index *x, uint64_t hash, uint32_t w) {
    struct slot *s = find(x, hash);

    assert(s->set && set_has(x, s->set, w));
    set_drop(x, &s->set, w);
    if (!s->set) free_slot(x, s);
}

bool prefix_index_has(const struct prefix_index *x, uint64_t hash, uint32_t w) {
    uint64_t set = find(x, hash)->set;

    return set && set_has(x, set, w);
}

uint32_t prefix_index_n_blocks(const struct prefix_index *x) {
    return x->n_blocks;
}

void prefix_index_prefetch(const struct prefix_index *x, uint64_t hash) {
    __builtin_prefetch(&x->slots[home_of(x, hash)]);
}

/* --- matching -------------------------------------------------------------------------------- */

/* The set as a mask. */
static void expand(const struct prefix_index *x, uint64_t set, uint64_t *words) {
    if (x->n_words == 1) {
        words[0] = set;
    } else if (is_wide(set)) {
        memcpy(words, row_of(x, set), x->n_words * sizeof(*words));
    } else {
        memset(words, 0, x->n_words * sizeof(*words));
        for (uint32_t shift = 0; shift < 64; shift += 16) {
            uint32_t id = (uint32_t)(set >> shift & 0xFFFF);

            if (id) worker_mask_add(words, id - 1);
        }
    }
}

/* Writes `i` as the depth of those of `live` that are not in `holders`, and takes them out.
 * Returns how many stay. */
static uint32_t keep_holders(uint64_t *live, const uint64_t *holders, uint32_t n_words, uint32_t i,
                             uint32_t *depth) {
    uint32_t n_left = 0;

    for (uint32_t k = 0; k < n_words; k++) {
        uint64_t gone = live[k] & ~holders[k];

        live[k] &= holders[k];
        n_left += (uint32_t)__builtin_popcountll(live[k]);
        for (; gone; gone &= gone - 1)
            depth[k * 64 + (uint32_t)__builtin_ctzll(gone)] = i;
    }
    return n_left;
}

uint32_t prefix_index_match(const struct prefix_index *x, const uint64_t *chain, uint32_t n,
                            const uint64_t *mask, uint32_t *depth) {
    uint64_t live[WORKER_MASK_WORDS], holders[WORKER_MASK_WORDS];
    uint32_t n_mask = worker_mask_count(mask, x->n_words), n_live = n_mask, n_shared = 0;

    memcpy(live, mask, x->n_words * sizeof(*live));
    for (uint32_t i = 0; i < MIN(n, (uint32_t)PREFETCH_AHEAD); i++)
        prefix_index_prefetch(x, chain[i]);
    for (uint32_t i = 0; i < n && n_live; i++) {
        if (i + PREFETCH_AHEAD < n) prefix_index_prefetch(x, chain[i + PREFETCH_AHEAD]);
        expand(x, find(x, chain[i])->set, holders);
        n_live = keep_holders(live, holders, x->n_words, i, depth);
        if (n_live > n_mask / 2) n_shared = i + 1;
    }
    WORKER_MASK_FOR_EACH(w, live, x->n_words) depth[w] = n;
    return n_shared;
}

/* --- checking -------------------------------------------------------------------------------- */

void prefix_index_check(const struct prefix_index *x) {
    uint32_t n_blocks = 0, n_wide = 0, n_free_rows = 0;

    for (uint64_t i = 0; i < x->n_slots; i++) {
        struct slot *s = &x->slots[i];

        if (!s->set) continue;
        n_blocks++;
        assert(find(x, s->hash) == s); /* reachable, and the only one */
        if (x->n_words == 1 || !is_wide(s->set)) continue;
        n_wide++;
        assert(row_count(s->set) > NARROW_MAX);
        assert(worker_mask_count(row_of(x, s->set), x->n_words) == row_count(s->set));
    }
    assert(n_blocks == x->n_blocks);
    for (uint32_t row = x->first_free_row; row; n_free_rows++)
        row = (uint32_t)x->rows[(size_t)(row - 1) * x->n_words];
    assert(n_wide + n_free_rows == x->n_rows);
    (void)n_wide;
}

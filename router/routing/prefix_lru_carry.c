/* router/routing/prefix_lru_carry.c - walks what a worker holds, youngest first, and inserts it
 * elsewhere.
 *
 *      pinned ring ──▶ cold ring ──▶ below ring, each backwards ──▶ items ──▶ inserted at the cold
 *                                                                       end, device first
 *
 * The youngest come first, so that the receiver may already have requests of its own, which are
 * younger still, and may stop where the worker is full. Records have no fixed place, so a resumed
 * walk looks for a block that it has seen: it is where it was unless it was used or evicted since.
 * If none is found the ring is begun again; that is bounded. */
#include "router/routing/prefix_lru.h"
#include "router/routing/prefix_lru_internal.h"

#define RUN_MASK       UINT64_C(0xFFFF) /* of an item without a hash: its blocks */
#define STEPS_PER_ITEM 4u               /* records visited per item: runs become one item */

/* --- walking ---------------------------------------------------------------------------------- */

/* The record where a walk resumes, on its ring. */
static uint32_t walk_resume(const struct prefix_lru *l, uint32_t w, struct prefix_walk *walk) {
    for (uint32_t i = 0; i < walk->n_marks; i++) {
        uint32_t e = prefix_index_find(l->index, prefix_index_hash_named(walk->marks[i]), w);
        const struct prefix_record *r = e == PREFIX_NONE ? NULL : lru_at(l, e);

        if (!r || prefix_is_dead(l->index, r)) continue;
        if (walk->ring == RING_COLD && lru_is_below(r))
            walk->ring = RING_BELOW; /* so is the rest */
        if (lru_ring_of(r) == walk->ring) return r->prev;
    }
    return lru_at(l, lru_head(l, w, walk->ring))->prev;
}

/* Keeps blocks of the last items as marks, spread over them. Items after the last mark are taken
 * back: the walk could not resume behind them. Returns how many items are left. */
static uint32_t walk_pause(struct prefix_walk *walk, const uint64_t *items, uint32_t from,
                           uint32_t n) {
    uint32_t left, stride = (n - from) / PREFIX_WALK_MARKS + 1;

    for (left = n; left > from && (items[left - 1] & RUN_MASK); left--) {
    }
    walk->n_marks = 0;
    if (left == from) return n;
    for (uint32_t i = left; i > from && walk->n_marks < PREFIX_WALK_MARKS;) {
        if (!(items[i - 1] & RUN_MASK)) walk->marks[walk->n_marks++] = items[i - 1];
        i -= MIN(i - from, stride);
    }
    return left;
}

/* Appends an item; blocks without a hash are added to the item before. Returns the number of
 * items. */
static uint32_t put_item(uint64_t *items, uint32_t from, uint32_t n, uint64_t item) {
    uint64_t n_blocks = item & RUN_MASK;

    if (n_blocks && n > from && (items[n - 1] & RUN_MASK) && items[n - 1] + n_blocks <= RUN_MASK) {
        items[n - 1] += n_blocks;
    } else if (item) { /* hash 0 stands for no block */
        items[n++] = item;
    }
    return n;
}

uint32_t prefix_lru_walk(const struct prefix_lru *l, uint32_t w, struct prefix_walk *walk,
                         uint64_t *items, uint32_t max) {
    const struct lru_worker *k = &l->workers[w];
    uint32_t n = 0, n_steps = 0, ring_from = 0, e = walk_resume(l, w, walk);

    if (walk->n_items > 2 * ((uint64_t)k->n_cold + k->n_below + k->n_pinned) + max)
        walk->is_over = true;
    for (; !walk->is_over && n < max && n_steps < STEPS_PER_ITEM * max; n_steps++) {
        const struct prefix_record *r = lru_at(l, e);

        if (e == lru_head(l, w, RING_BELOW)) {
            walk->is_over = true;
        } else if (e == lru_head(l, w, walk->ring)) {
            walk->ring = walk->ring == RING_PINNED ? RING_COLD : RING_BELOW;
            walk->n_marks = 0;
            ring_from = n;
            e = lru_at(l, lru_head(l, w, walk->ring))->prev;
        } else {
            n = put_item(items, ring_from, n,
                         r->kind == PREFIX_RUN ? r->pins : prefix_index_name(l->index, e));
            e = r->prev;
        }
    }
    if (!walk->is_over) {
        n = walk_pause(walk, items, ring_from, n);
        if (walk->n_marks == 0) walk->is_over = true; /* output alone */
    }
    walk->n_items += n;
    return n;
}

/* --- entering --------------------------------------------------------------------------------- */

/* Where what is older than all that w holds has its place: below, unless nothing is there and the
 * device has room. */
static bool enters_below(const struct lru_worker *k) {
    return k->n_below || k->n_held >= k->capacity;
}

static uint64_t room(const struct lru_worker *k) {
    uint64_t n = enters_below(k) ? k->n_held_below + k->n_copies : k->n_held;
    uint64_t most = enters_below(k) ? k->below_capacity : k->capacity;

    return most - MIN(n, most);
}

/* Inserts a new entry as the coldest. */
static void enter_coldest(struct prefix_lru *l, uint32_t w, uint32_t e, uint32_t n_blocks) {
    struct lru_worker *k = &l->workers[w];
    bool is_below = enters_below(k);

    lru_link_after(l, lru_head(l, w, is_below ? RING_BELOW : RING_COLD), e);
    lru_at(l, e)->is_computed = !is_below;
    if (is_below) {
        lru_count_below(l, w, 1, n_blocks);
    } else {
        k->n_held += n_blocks;
        k->n_cold++;
    }
    l->n_cold++;
    l->n_entries++;
}

/* False: no room. */
static bool restore_run(struct prefix_lru *l, uint32_t w, uint32_t n_blocks) {
    while (n_blocks && room(&l->workers[w])) {
        uint32_t n = (uint32_t)MIN(room(&l->workers[w]), (uint64_t)MIN(n_blocks, PREFIX_PINS_MAX));
        uint32_t e = prefix_index_insert_run(l->index, w, n);

        if (e == PREFIX_NONE) return false;
        enter_coldest(l, w, e, n);
        n_blocks -= n;
    }
    return true;
}

static bool restore_block(struct prefix_lru *l, uint32_t w, uint64_t hash) {
    uint32_t e = prefix_index_find(l->index, hash, w);

    if (e != PREFIX_NONE) return true; /* present, or dead: skipped */
    e = prefix_index_insert(l->index, hash, w);
    if (e == PREFIX_NONE) return false;
    enter_coldest(l, w, e, 1);
    return true;
}

uint32_t prefix_lru_restore(struct prefix_lru *l, uint32_t w, const uint64_t *items, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t n_blocks = (uint32_t)(items[i] & RUN_MASK);

        if (i + PREFIX_ASK_EARLY < n) {
            prefix_index_ask_early(l->index, prefix_index_hash_named(items[i + PREFIX_ASK_EARLY]));
        }
        if (!room(&l->workers[w])) return i;
        if (!(n_blocks ? restore_run(l, w, n_blocks)
                       : restore_block(l, w, prefix_index_hash_named(items[i]))))
            return i;
    }
    return n;
}

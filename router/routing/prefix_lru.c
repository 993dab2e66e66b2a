/* router/routing/prefix_lru.c - four rings of records per worker.
 *
 *     pinned   in use by open requests
 *     cold     on the device and unpinned, oldest first
 *     below    below the device, oldest first: by neither a pin nor is_computed
 *     dead     of a dropped worker
 *
 * A record's number may change with every insertion and removal, so none is kept across one: each
 * event looks its chain up again. The rings and their heads are in the index, which keeps the links
 * right.
 *
 * The blocks of a chain are neighbours on either ring, the deepest first, unless other chains have
 * used some of them in between. So a block's entry is usually beside that of the block before, and
 * neighbours change rings together, with one pair of links.
 *
 * The worker with most entries is tracked approximately: each eviction compares the last victim
 * with the next worker in turn and with the requester, so that a larger one is found within one
 * round. */
#include "router/routing/prefix_lru.h"

#include <assert.h>

#include "common/base/mem.h"
#include "router/routing/prefix_lru_internal.h"

uint64_t prefix_lru_bytes(uint32_t n_workers) {
    return n_workers * sizeof(struct lru_worker);
}

struct prefix_lru *prefix_lru_create(struct prefix_index *index, uint32_t n_workers) {
    struct prefix_lru *l = mem_zalloc(sizeof(*l));

    assert(n_workers && n_workers <= WORKERS_MAX);
    l->index = index;
    l->n_workers = n_workers;
    l->n_words = CEIL_DIV(n_workers, 64u);
    l->workers = mem_calloc(n_workers, sizeof(*l->workers));
    return l;
}

void prefix_lru_destroy(struct prefix_lru *l) {
    if (!l) return;
    mem_free(l->workers);
    mem_free(l);
}

/* --- rings ----------------------------------------------------------------------------------- */

static uint32_t first_of(const struct prefix_lru *l, uint32_t w, enum ring ring) {
    return lru_at(l, lru_head(l, w, ring))->next;
}

static void unlink_entry(struct prefix_lru *l, uint32_t e) {
    const struct prefix_record *r = lru_at(l, e);

    lru_at(l, r->prev)->next = r->next;
    lru_at(l, r->next)->prev = r->prev;
}

/* Moves all of one ring behind another. */
static void splice(struct prefix_lru *l, uint32_t w, enum ring from, enum ring to) {
    uint32_t f = lru_head(l, w, from), t = lru_head(l, w, to), first = lru_at(l, f)->next,
             last = lru_at(l, f)->prev;

    if (first == f) return;
    lru_at(l, first)->prev = lru_at(l, t)->prev;
    lru_at(l, lru_at(l, t)->prev)->next = first;
    lru_at(l, last)->next = t;
    lru_at(l, t)->prev = last;
    lru_at(l, f)->prev = lru_at(l, f)->next = f;
}

static void enter_cold(struct prefix_lru *l, uint32_t w, uint32_t e) {
    lru_link_after(l, lru_at(l, lru_head(l, w, RING_COLD))->prev, e);
    l->workers[w].n_cold++;
    l->n_cold++;
}

static void leave_cold(struct prefix_lru *l, uint32_t w, uint32_t e) {
    unlink_entry(l, e);
    l->workers[w].n_cold--;
    l->n_cold--;
}

/* Neighbouring entries of one worker, as those of a chain are; they change rings together. */
struct run {
    uint32_t first, last, n; /* n 0: none */
    bool is_below;           /* on that ring */
};

/* The deepest block is first on either ring, so the next block of a chain is before the last
 * found. */
static void run_add_before(struct run *run, uint32_t e) {
    if (!run->n++) run->last = e;
    run->first = e;
}

static void run_add_behind(struct run *run, uint32_t e) {
    if (!run->n++) run->first = e;
    run->last = e;
}

/* Takes the run out of its ring and puts it behind `prev` on another. */
static void run_move(struct prefix_lru *l, const struct run *run, uint32_t prev) {
    struct prefix_record *first = lru_at(l, run->first), *last = lru_at(l, run->last);

    lru_at(l, first->prev)->next = last->next;
    lru_at(l, last->next)->prev = first->prev;
    first->prev = prev;
    last->next = lru_at(l, prev)->next;
    lru_at(l, last->next)->prev = run->last;
    lru_at(l, prev)->next = run->first;
}

/* Moves the run from cold or below to pinned, at the front. */
static void run_pin(struct prefix_lru *l, uint32_t w, struct run *run) {
    struct lru_worker *k = &l->workers[w];

    if (!run->n) return;
    run_move(l, run, lru_head(l, w, RING_PINNED));
    k->n_pinned += run->n;
    l->n_cold -= run->n;
    if (UNLIKELY(run->is_below)) {
        lru_count_below(l, w, -(int32_t)run->n, -(int64_t)run->n);
        k->n_held += run->n;
        if (k->keeps_copies) k->n_copies += run->n;
    } else {
        k->n_cold -= run->n;
    }
    run->n = 0;
}

/* Moves the run from pinned to cold, as the youngest. */
static void run_unpin(struct prefix_lru *l, uint32_t w, struct run *run) {
    if (!run->n) return;
    run_move(l, run, lru_at(l, lru_head(l, w, RING_COLD))->prev);
    l->workers[w].n_pinned -= run->n;
    l->workers[w].n_cold += run->n;
    l->n_cold += run->n;
    run->n = 0;
}

static void enter_pinned(struct prefix_lru *l, uint32_t w, uint32_t e) {
    lru_link_after(l, lru_head(l, w, RING_PINNED), e);
    l->workers[w].n_pinned++;
}

static void leave_pinned(struct prefix_lru *l, uint32_t w, uint32_t e) {
    unlink_entry(l, e);
    l->workers[w].n_pinned--;
}

/* Takes an entry off the dead ring. */
static void leave_dead(struct prefix_lru *l, uint32_t w, uint32_t e) {
    unlink_entry(l, e);
    l->n_dead--;
    if (--l->workers[w].n_dead) return;
    worker_mask_drop(l->lost.words, w);
    prefix_index_drop_done(l->index, w);
}

/* --- entries --------------------------------------------------------------------------------- */

/* Removes an entry on no ring from the index. */
static void remove_entry(struct prefix_lru *l, uint32_t e) {
    prefix_index_remove(l->index, e);
    l->n_entries--;
}

static uint32_t blocks_of(const struct prefix_record *r) {
    return r->kind == PREFIX_RUN ? r->pins : 1;
}

static void remove_lowest(struct prefix_lru *l, uint32_t w) {
    uint32_t e = first_of(l, w, RING_BELOW);

    l->n_evicted++;
    unlink_entry(l, e);
    l->n_cold--;
    lru_count_below(l, w, -1, -(int64_t)blocks_of(lru_at(l, e)));
    remove_entry(l, e);
}

/* Takes the coldest entry off the device. */
static uint32_t take_coldest(struct prefix_lru *l, uint32_t w) {
    struct lru_worker *k = &l->workers[w];
    uint32_t e = first_of(l, w, RING_COLD);

    k->n_held -= blocks_of(lru_at(l, e));
    k->n_copies -= lru_at(l, e)->has_copy;
    leave_cold(l, w, e);
    return e;
}

static void remove_coldest(struct prefix_lru *l, uint32_t w) {
    if (l->workers[w].n_below) {
        remove_lowest(l, w);
        return;
    }
    l->n_evicted++;
    remove_entry(l, take_coldest(l, w));
}

/* Moves the coldest entry from the device to below. */
static void demote_coldest(struct prefix_lru *l, uint32_t w) {
    uint32_t e = take_coldest(l, w);
    struct prefix_record *r = lru_at(l, e);

    r->is_computed = r->has_copy = false;
    lru_link_after(l, lru_at(l, lru_head(l, w, RING_BELOW))->prev, e);
    lru_count_below(l, w, 1, blocks_of(r));
    l->n_cold++;
}

/* Removes up to n dead entries. */
static void bury(struct prefix_lru *l, uint64_t n) {
    for (; l->n_dead && n; n--) {
        uint32_t w = worker_mask_next(l->lost.words, l->n_words, 0);
        uint32_t e = first_of(l, w, RING_DEAD);

        leave_dead(l, w, e);
        remove_entry(l, e);
    }
}

/* Takes `excess` blocks off a run that has more. */
static bool shorten_run(struct prefix_record *r, uint64_t excess) {
    if (r->kind != PREFIX_RUN || r->pins <= excess) return false;
    r->pins = (r->pins - (uint32_t)excess) & PREFIX_PINS_MAX;
    return true;
}

/* What is above the capacity of the device goes below, a run of output as a whole. */
static void shed_excess(struct prefix_lru *l, uint32_t w, uint32_t n_max) {
    struct lru_worker *k = &l->workers[w];

    for (; k->n_held > k->capacity && k->n_cold && n_max; n_max--) {
        uint64_t excess = k->n_held - k->capacity;

        if (k->below_capacity)
            demote_coldest(l, w);
        else if (k->n_below)
            return; /* the capacity below is gone: what is there goes first */
        else if (shorten_run(lru_at(l, first_of(l, w, RING_COLD)), excess))
            k->n_held -= excess;
        else
            remove_coldest(l, w);
    }
}

static void forget_below(struct prefix_lru *l, uint32_t w, uint32_t n_max) {
    struct lru_worker *k = &l->workers[w];

    for (; k->n_held_below + k->n_copies > k->below_capacity && k->n_below && n_max; n_max--) {
        uint64_t excess = k->n_held_below + k->n_copies - k->below_capacity;

        if (shorten_run(lru_at(l, first_of(l, w, RING_BELOW)), excess))
            k->n_held_below -= excess;
        else
            remove_lowest(l, w);
    }
}

/* Evicts the coldest blocks of w until the rest fits, at most n_max entries of each list. */
static inline void trim(struct prefix_lru *l, uint32_t w, uint32_t n_max) {
    if (UNLIKELY(l->workers[w].n_held > l->workers[w].capacity)) shed_excess(l, w, n_max);
    if (UNLIKELY(l->workers[w].n_below)) forget_below(l, w, n_max);
}

static uint32_t n_evictable(const struct lru_worker *k) {
    return k->n_cold + k->n_below;
}

/* The worker that gives up its coldest entry when w needs room. Some worker has one. */
static uint32_t choose_victim(struct prefix_lru *l, uint32_t w) {
    do {
        l->next_in_turn = (l->next_in_turn + 1) % l->n_workers;
        if (n_evictable(&l->workers[l->next_in_turn]) > n_evictable(&l->workers[l->largest]))
            l->largest = l->next_in_turn;
    } while (!n_evictable(&l->workers[l->largest]));
    return n_evictable(&l->workers[w]) >= n_evictable(&l->workers[l->largest]) ? w : l->largest;
}

/* Evicts one entry. False: all are pinned. */
static bool give_way(struct prefix_lru *l, uint32_t w) {
    if (l->n_dead) {
        bury(l, 1);
    } else if (l->n_cold) {
        remove_coldest(l, choose_victim(l, w));
    } else {
        return false;
    }
    return true;
}

/* A new entry for (hash, w), on no ring; PREFIX_NONE when there is no room. */
static uint32_t add_entry(struct prefix_lru *l, uint64_t hash, uint32_t w) {
    uint32_t e;

    while ((e = prefix_index_insert(l->index, hash, w)) == PREFIX_NONE) {
        if (!prefix_index_is_full(l->index) || !give_way(l, w)) return PREFIX_NONE;
    }
    l->n_entries++;
    return e;
}

/* Appends output to the cold ring. */
static void add_run(struct prefix_lru *l, uint32_t w, uint32_t n_blocks) {
    while (n_blocks) {
        uint32_t n = MIN(n_blocks, (uint32_t)PREFIX_PINS_MAX);
        uint32_t e = prefix_index_insert_run(l->index, w, n);

        if (e == PREFIX_NONE && give_way(l, w)) e = prefix_index_insert_run(l->index, w, n);
        if (e == PREFIX_NONE) return;
        l->n_entries++;
        l->workers[w].n_held += n;
        enter_cold(l, w, e);
        n_blocks -= n;
    }
}

/* --- the second list ------------------------------------------------------------------------- */

/* The entry of block i of a chain on w, which holds it. */
static uint32_t held_entry(const struct prefix_lru *l, uint32_t w, const uint64_t *chain,
                           uint32_t i, const uint32_t *guesses) {
    const struct prefix_index *x = l->index;
    uint32_t seen = guesses ? guesses[i] : PREFIX_NONE;

    if (seen == PREFIX_NONE) return prefix_index_find(x, chain[i], w);
    if (x->records[seen].kind != PREFIX_SET) return seen;
    return prefix_find_part(x, prefix_place_of(x, chain[i]), w);
}

void prefix_lru_ask_device(const struct prefix_lru *l, uint32_t w, const uint64_t *chain,
                           uint32_t n, const uint32_t *guesses) {
    const struct prefix_index *x = l->index;
    struct prefix_place block;

    if (!n || !guesses || x->records[guesses[n - 1]].kind != PREFIX_SET) return;
    block = prefix_part_place(prefix_place_of(x, chain[n - 1]), w);
    __builtin_prefetch(&x->records[(size_t)prefix_home_line(x, block) * PREFIX_LINE]);
}

uint32_t prefix_lru_on_device(const struct prefix_lru *l, uint32_t w, const uint64_t *chain,
                              uint32_t n, const uint32_t *guesses) {
    uint32_t from = 0, i = n ? n - 1 : 0; /* those before `from` are on the device */

    while (from < n) {
        if (lru_is_below(lru_at(l, held_entry(l, w, chain, i, guesses))))
            n = i;
        else
            from = i + 1;
        i = from + (n - from) / 2;
    }
    return n;
}

/* --- events ---------------------------------------------------------------------------------- */

/* True when the guess is the entry of (hash, w). */
static inline bool is_entry(const struct prefix_lru *l, uint32_t guess, uint64_t hash, uint32_t w) {
    const struct prefix_index *x = l->index;

    return guess != PREFIX_NONE && prefix_is_record_of(x, guess, prefix_place_of(x, hash), w);
}

/* Checks a trusted guess in debug builds. */
static inline void check_is_entry(const struct prefix_lru *l, uint32_t e, uint64_t hash,
                                  uint32_t w) {
#ifdef DEBUG
    assert(is_entry(l, e, hash, w));
#else
    (void)l, (void)e, (void)hash, (void)w;
#endif
}

/* The entry of (hash, w); tries the ring neighbour first. */
static uint32_t find_entry(const struct prefix_lru *l, uint64_t hash, uint32_t w,
                           uint32_t neighbour) {
    return is_entry(l, neighbour, hash, w) ? neighbour : prefix_index_find(l->index, hash, w);
}

/* Revives the dead entry `e` or inserts a new one, pinned. PREFIX_NONE: no room. */
static uint32_t pin_new(struct prefix_lru *l, uint64_t hash, uint32_t w, uint32_t e) {
    if (e != PREFIX_NONE) {
        prefix_index_revive(l->index, lru_at(l, e));
        leave_dead(l, w, e);
    } else if ((e = add_entry(l, hash, w)) == PREFIX_NONE) {
        return e;
    }
    lru_at(l, e)->pins = 1;
    l->workers[w].n_held++;
    l->workers[w].n_entered++;
    enter_pinned(l, w, e);
    return e;
}

/* Prefetches for a walk at step i of n; `step` further in the chain each time. */
static void ask_first(const struct prefix_lru *l, uint32_t w, const uint64_t *first, int step,
                      uint32_t n) {
    for (uint32_t i = 0; i < MIN(n, PREFIX_ASK_EARLY); i++)
        prefix_index_ask_early(l->index, first[(int64_t)i * step]);
    for (uint32_t i = 0; i < MIN(n, PREFIX_ASK_LATE); i++)
        prefix_index_ask_late(l->index, first[(int64_t)i * step], w);
}

static void ask_ahead(const struct prefix_lru *l, uint32_t w, const uint64_t *at_i, int step,
                      uint32_t n_left) {
    if (n_left > PREFIX_ASK_EARLY)
        prefix_index_ask_early(l->index, at_i[(int)PREFIX_ASK_EARLY * step]);
    if (n_left > PREFIX_ASK_LATE)
        prefix_index_ask_late(l->index, at_i[(int)PREFIX_ASK_LATE * step], w);
}

/* Prefetches what prefix_index_match did not touch: w's PART of a SET. */
static void ask_guessed(const struct prefix_lru *l, uint32_t w, uint64_t hash, uint32_t guess) {
    const struct prefix_index *x = l->index;
    uint32_t line;

    if (guess == PREFIX_NONE || x->records[guess].kind != PREFIX_SET) return;
    line = prefix_home_line(x, prefix_part_place(prefix_place_of(x, hash), w));
    __builtin_prefetch(&x->records[(size_t)line * PREFIX_LINE]);
}

/* True when the record that the match found is that of w. */
static inline bool is_seen(const struct prefix_lru *l, uint32_t seen, uint64_t hash, uint32_t w) {
    if (seen == PREFIX_NONE || lru_at(l, seen)->kind != PREFIX_LONE || lru_at(l, seen)->worker != w)
        return false;
    check_is_entry(l, seen, hash, w);
    return true;
}

/* An unpinned block is used: one that is below comes back to the device. */
static void run_add_used(const struct prefix_lru *l, uint32_t w, struct run *run, uint32_t e) {
    struct prefix_record *r = lru_at(l, e);

    if (!run->n) run->is_below = !r->is_computed;
    run_add_before(run, e);
    if (LIKELY(r->is_computed)) return;
    r->is_computed = true;
    r->has_copy = l->workers[w].keeps_copies;
}

/* The walks below keep a run on its old ring until it cannot grow, or until an insertion or a
 * removal may move records. `last` is the entry of the block before, or PREFIX_NONE. While no
 * record of w moves, guesses are right; guesses[n] is n_moves of w when they were made. */

uint32_t prefix_lru_sent(struct prefix_lru *l, uint32_t w, const uint64_t *chain, uint32_t n,
                         uint32_t *guesses) {
    const uint32_t *n_moves = &l->index->n_moves[w];
    uint32_t i, last = PREFIX_NONE, stamp = *n_moves;
    struct run run = {0};
    bool is_new = !guesses; /* the index changed since the match */

    if (l->n_dead) {
        bury(l, PREFIX_LRU_TIDY_MAX);
        is_new = true;
    }
    if (!guesses) ask_first(l, w, chain, 1, n);
    for (i = 0; guesses && i < MIN(n, PREFIX_ASK_EARLY); i++)
        ask_guessed(l, w, chain[i], guesses[i]);
    for (i = 0; i < n; i++) {
        uint32_t e = guesses ? guesses[i] : PREFIX_NONE;
        struct prefix_record *r;

        if (e == PREFIX_NONE) ask_ahead(l, w, chain + i, 1, n - i);
        if (guesses && n - i > PREFIX_ASK_EARLY)
            ask_guessed(l, w, chain[i + PREFIX_ASK_EARLY], guesses[i + PREFIX_ASK_EARLY]);
        if (!(is_new ? is_entry(l, e, chain[i], w) : is_seen(l, e, chain[i], w)))
            e = find_entry(l, chain[i], w, last == PREFIX_NONE ? last : lru_at(l, last)->prev);
        r = e != PREFIX_NONE ? lru_at(l, e) : NULL;
        if (!r || (l->n_dead && prefix_is_dead(l->index, r))) {
            run_pin(l, w, &run);
            e = pin_new(l, chain[i], w, e);
            if (e == PREFIX_NONE) break;
            is_new = true;
        } else if (r->pins == PREFIX_PINS_MAX) {
            break;
        } else if (!r->pins++) {
            if (run.n && lru_at(l, run.first)->prev != e) run_pin(l, w, &run);
            run_add_used(l, w, &run, e);
        }
        last = e;
        if (guesses) guesses[i] = e;
    }
    run_pin(l, w, &run);
    if (guesses) guesses[i] = stamp;
    l->n_refused += n - i;
    trim(l, w, i + PREFIX_LRU_TIDY_MAX);
    return i;
}

/* Removes an entry that was never computed. */
static void remove_pending(struct prefix_lru *l, uint32_t w, uint32_t e) {
    leave_pinned(l, w, e);
    l->workers[w].n_held--;
    remove_entry(l, e);
}

/* Drops one pin of each block, last block first. */
static void unpin(struct prefix_lru *l, uint32_t w, const uint64_t *chain, uint32_t n,
                  const uint32_t *guesses, bool is_computed) {
    const uint32_t *n_moves = &l->index->n_moves[w];
    uint32_t last = PREFIX_NONE, stamp = guesses ? guesses[n] : 0;
    struct run run = {0};

    if (n && !guesses) ask_first(l, w, chain + n - 1, -1, n);
    for (uint32_t i = n; i-- > 0;) {
        uint32_t e = guesses ? guesses[i] : PREFIX_NONE;
        struct prefix_record *r;

        if (!guesses)
            ask_ahead(l, w, chain + i, -1, i + 1);
        else if (i >= PREFIX_ASK_EARLY && guesses[i - PREFIX_ASK_EARLY] != PREFIX_NONE)
            __builtin_prefetch(lru_at(l, guesses[i - PREFIX_ASK_EARLY]));
        if (guesses && *n_moves == stamp)
            check_is_entry(l, e, chain[i], w);
        else if (!is_entry(l, e, chain[i], w))
            e = find_entry(l, chain[i], w, last == PREFIX_NONE ? last : lru_at(l, last)->next);
        assert(e != PREFIX_NONE);
        r = lru_at(l, e);
        assert(r->pins);
        if (is_computed) r->is_computed = true;
        last = e;
        if (--r->pins) continue;
        if (!r->is_computed) {
            run_unpin(l, w, &run);
            remove_pending(l, w, e);
            last = PREFIX_NONE; /* insertions may have moved records */
            continue;
        }
        if (run.n && lru_at(l, run.last)->next != e) run_unpin(l, w, &run);
        run_add_behind(&run, e);
    }
    run_unpin(l, w, &run);
}

void prefix_lru_ended(struct prefix_lru *l, uint32_t w, const uint64_t *chain, uint32_t n,
                      const uint32_t *guesses, uint32_t n_output_blocks) {
    add_run(l, w, n_output_blocks);
    l->workers[w].n_entered += n_output_blocks;
    unpin(l, w, chain, n, guesses, true);
    trim(l, w, n + PREFIX_LRU_TIDY_MAX);
}

void prefix_lru_aborted(struct prefix_lru *l, uint32_t w, const uint64_t *chain, uint32_t n,
                        const uint32_t *guesses) {
    unpin(l, w, chain, n, guesses, false);
    trim(l, w, n + PREFIX_LRU_TIDY_MAX);
}

void prefix_lru_fill(struct prefix_lru *l, uint32_t w, uint32_t n_blocks) {
    add_run(l, w, n_blocks);
    trim(l, w, n_blocks + PREFIX_LRU_TIDY_MAX);
}

void prefix_lru_drop_worker(struct prefix_lru *l, uint32_t w) {
    struct lru_worker *k = &l->workers[w];

    while (k->n_dead)
        bury(l, l->n_dead);
    if (!n_evictable(k) && !k->n_pinned) return;
    splice(l, w, RING_BELOW, RING_DEAD);
    splice(l, w, RING_COLD, RING_DEAD);
    splice(l, w, RING_PINNED, RING_DEAD);
    k->n_dead = n_evictable(k) + k->n_pinned;
    l->n_dead += k->n_dead;
    l->n_cold -= n_evictable(k);
    k->n_cold = k->n_pinned = k->n_below = 0;
    k->n_held = k->n_held_below = k->n_copies = 0;
    worker_mask_drop(l->below.words, w);
    worker_mask_add(l->lost.words, w);
    prefix_index_drop(l->index, w);
    bury(l, PREFIX_LRU_TIDY_MAX);
}

void prefix_lru_set_capacity(struct prefix_lru *l, uint32_t w, uint64_t n_blocks) {
    l->workers[w].capacity = n_blocks;
    trim(l, w, PREFIX_LRU_TIDY_MAX);
}

void prefix_lru_set_below(struct prefix_lru *l, uint32_t w, uint64_t n_blocks, bool keeps_copies) {
    l->workers[w].below_capacity = n_blocks;
    l->workers[w].keeps_copies = keeps_copies;
    trim(l, w, PREFIX_LRU_TIDY_MAX);
}

const uint64_t *prefix_lru_below(const struct prefix_lru *l) {
    return l->below.words;
}

uint64_t prefix_lru_n_held(const struct prefix_lru *l, uint32_t w) {
    return l->workers[w].n_held + l->workers[w].n_held_below;
}

uint64_t prefix_lru_n_entered(const struct prefix_lru *l, uint32_t w) {
    return l->workers[w].n_entered;
}

uint64_t prefix_lru_n_below(const struct prefix_lru *l, uint32_t w) {
    return l->workers[w].n_held_below;
}

bool prefix_lru_is_full(const struct prefix_lru *l, uint32_t w) {
    const struct lru_worker *k = &l->workers[w];

    if (k->below_capacity) return k->n_held_below >= k->below_capacity;
    return k->n_held >= k->capacity;
}

uint32_t prefix_lru_n_pinned(const struct prefix_lru *l, uint32_t w) {
    return l->workers[w].n_pinned;
}

uint64_t prefix_lru_n_entries(const struct prefix_lru *l) {
    return l->n_entries;
}

uint64_t prefix_lru_n_refused(const struct prefix_lru *l) {
    return l->n_refused;
}

uint64_t prefix_lru_n_evicted(const struct prefix_lru *l) {
    return l->n_evicted;
}

/* --- checking -------------------------------------------------------------------------------- */

static uint32_t check_ring(const struct prefix_lru *l, uint32_t w, enum ring ring, uint64_t *n_held,
                           uint64_t *n_copies) {
    uint32_t n = 0, head = lru_head(l, w, ring);

    for (uint32_t e = lru_at(l, head)->next; e != head; e = lru_at(l, e)->next, n++) {
        const struct prefix_record *r = lru_at(l, e);

        assert(lru_at(l, r->next)->prev == e && r->worker == w);
        assert(prefix_index_is_dead(l->index, r) == (ring == RING_DEAD));
        assert(r->kind == PREFIX_RUN || r->kind == PREFIX_LONE || r->kind == PREFIX_PART);
        if (ring == RING_DEAD) continue;
        *n_held += blocks_of(r);
        *n_copies += r->has_copy;
        assert(lru_ring_of(r) == ring);
        assert(r->kind != PREFIX_RUN || (r->pins && !r->has_copy));
        assert(!r->has_copy || r->is_computed);
    }
    return n;
}

void prefix_lru_check(const struct prefix_lru *l) {
    uint64_t n_entries = 0, n_cold = 0, n_dead = 0;

    for (uint32_t w = 0; w < l->n_workers; w++) {
        const struct lru_worker *k = &l->workers[w];
        uint64_t n_held = 0, n_below = 0, n_copies = 0;

        assert(check_ring(l, w, RING_COLD, &n_held, &n_copies) == k->n_cold);
        assert(check_ring(l, w, RING_PINNED, &n_held, &n_copies) == k->n_pinned);
        assert(check_ring(l, w, RING_BELOW, &n_below, &n_copies) == k->n_below);
        assert(check_ring(l, w, RING_DEAD, &n_held, &n_copies) == k->n_dead);
        assert(worker_mask_has(l->lost.words, w) == (k->n_dead > 0));
        assert(worker_mask_has(l->below.words, w) == (k->n_below > 0));
        assert(n_held == k->n_held && n_below == k->n_held_below && n_copies == k->n_copies);
        n_entries += n_evictable(k) + k->n_pinned + k->n_dead;
        n_cold += n_evictable(k);
        n_dead += k->n_dead;
    }
    assert(n_entries == l->n_entries && n_cold == l->n_cold && n_dead == l->n_dead);
    prefix_index_check(l->index);
}

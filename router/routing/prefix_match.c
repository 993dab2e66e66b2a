/* router/routing/prefix_match.c - the walk over a chain: how many leading blocks each worker holds.
 *
 * Blocks are prefetched in two steps: the home line, and when that has arrived, the other line if
 * the block is not at home. The walk keeps a mask of the workers that hold all blocks so far; most
 * of it is for one remaining worker. A worker in a SET holds the block unless its PART is dead, so
 * PARTs are read only while a worker has dead records. */
#include <string.h>

#include "router/routing/prefix_index_internal.h"

void prefix_index_ask_early(const struct prefix_index *x, uint64_t hash) {
    uint32_t line = prefix_home_line(x, prefix_place_of(x, hash));

    __builtin_prefetch(&x->records[(size_t)line * PREFIX_LINE]);
}

void prefix_index_ask_late(const struct prefix_index *x, uint64_t hash, uint32_t w) {
    struct prefix_place block = prefix_place_of(x, hash);
    uint32_t line = prefix_home_line(x, block);
    uint32_t n = prefix_find_in_line(x, line, block.tag, false, PREFIX_ANY_WORKER);

    if (n == PREFIX_NONE) {
        line = prefix_other_line(x, block);
    } else {
        if (w == WORKER_NONE || x->records[n].kind == PREFIX_LONE) return;
        line = prefix_home_line(x, prefix_part_place(block, w));
    }
    __builtin_prefetch(&x->records[(size_t)line * PREFIX_LINE]);
}

/* Removes workers whose record of the block is dead: few workers, for a short time. */
static void leave_out_dead(const struct prefix_index *x, struct prefix_place block,
                           uint64_t *holders) {
    for (uint32_t k = 0; k < x->sets.n_words; k++) {
        for (uint64_t bits = holders[k] & x->lost.words[k]; bits; bits &= bits - 1) {
            uint32_t w = k * 64 + (uint32_t)__builtin_ctzll(bits);

            if (prefix_index_is_dead(x, &x->records[prefix_find_part(x, block, w)]))
                worker_mask_drop(holders, w);
        }
    }
}

/* The workers that hold the block, whose LONE or SET is at n, as a mask. */
static void expand_holders(const struct prefix_index *x, uint32_t n, uint64_t hash,
                           uint64_t *holders) {
    const struct prefix_record *r = &x->records[n];

    if (r->kind == PREFIX_SET) {
        prefix_set_expand(&x->sets, r->set, holders);
        if (UNLIKELY(x->any_lost)) leave_out_dead(x, prefix_place_of(x, hash), holders);
        return;
    }
    memset(holders, 0, x->sets.n_words * sizeof(*holders));
    if (!prefix_is_dead(x, r)) worker_mask_add(holders, r->worker);
}

/* True when w holds the block whose LONE or SET is at n. */
static bool is_holder(const struct prefix_index *x, uint32_t n, uint64_t hash, uint32_t w) {
    const struct prefix_record *r = &x->records[n];

    if (r->kind == PREFIX_SET) {
        if (!prefix_set_has(&x->sets, r->set, w)) return false;
        if (LIKELY(!x->any_lost)) return true;
        r = &x->records[prefix_find_part(x, prefix_place_of(x, hash), w)];
    }
    return r->worker == w && !(x->any_lost && prefix_is_dead(x, r));
}

/* Writes `i` as the depth of the workers of `live` that are not in `holders`, and removes them.
 * Returns how many of n_live stay. */
static uint32_t keep_holders(uint64_t *live, uint32_t n_live, const uint64_t *holders,
                             uint32_t n_words, uint32_t i, uint32_t *depth) {
    for (uint32_t k = 0; k < n_words; k++) {
        uint64_t gone = live[k] & ~holders[k];

        live[k] &= holders[k];
        for (; gone; gone &= gone - 1, n_live--)
            depth[k * 64 + (uint32_t)__builtin_ctzll(gone)] = i;
    }
    return n_live;
}

/* A block in the walk: prefetched, looked for at home, then found. */
struct step {
    uint32_t tag, line; /* its line */
    uint32_t n;         /* its record; PREFIX_NONE: not at home */
};

/* Blocks are used in turn, and prefetched and looked for one chunk at a time. */
#define CHUNK PREFIX_ASK_LATE

struct walk {
    const struct prefix_index *x;
    const uint64_t *chain;
    uint32_t n;
    struct step steps[4 * CHUNK]; /* block i is at i modulo the size */
};

static void ask_for_homes(struct walk *k, uint32_t from) {
    const struct prefix_index *x = k->x;
    struct step *s = &k->steps[from % ARRAY_LEN(k->steps)];

    for (uint32_t i = from, end = MIN(from + CHUNK, k->n); i < end; i++, s++) {
        struct prefix_place block = prefix_place_of(x, k->chain[i]);

        s->tag = block.tag;
        s->line = prefix_home_line(x, block);
        __builtin_prefetch(&x->records[(size_t)s->line * PREFIX_LINE]);
    }
}

static void look_at_homes(struct walk *k, uint32_t from) {
    const struct prefix_index *x = k->x;
    struct step *s = &k->steps[from % ARRAY_LEN(k->steps)];

    for (uint32_t i = from, end = MIN(from + CHUNK, k->n); i < end; i++, s++) {
        s->n = prefix_find_in_line(x, s->line, s->tag, false, PREFIX_ANY_WORKER);
        if (LIKELY(s->n != PREFIX_NONE)) continue;
        s->line = prefix_other_line(x, prefix_place_of(x, k->chain[i]));
        __builtin_prefetch(&x->records[(size_t)s->line * PREFIX_LINE]);
    }
}

static void walk_begin(struct walk *k) {
    ask_for_homes(k, 0);
    ask_for_homes(k, CHUNK);
    look_at_homes(k, 0);
}

/* The LONE or SET of block i; calls are in ascending order. */
static inline uint32_t walk_find(struct walk *k, uint32_t i) {
    const struct step *s = &k->steps[i % ARRAY_LEN(k->steps)];

    if (i % CHUNK == 0) {
        ask_for_homes(k, i + 2 * CHUNK);
        look_at_homes(k, i + CHUNK);
    }
    if (LIKELY(s->n != PREFIX_NONE)) return s->n;
    return prefix_find_in_line(k->x, s->line, s->tag, true, PREFIX_ANY_WORKER);
}

/* Words up to the last member: a fleet is usually smaller than its maximum. */
static uint32_t n_words_in_use(const uint64_t *mask, uint32_t n_words) {
    while (n_words && !mask[n_words - 1])
        n_words--;
    return n_words;
}

uint32_t prefix_index_match(const struct prefix_index *x, const uint64_t *chain, uint32_t n,
                            const uint64_t *mask, uint32_t *depth, uint32_t *guesses) {
    uint64_t live[WORKER_MASK_WORDS], holders[WORKER_MASK_WORDS];
    uint32_t n_words = n_words_in_use(mask, x->sets.n_words);
    uint32_t n_mask = worker_mask_count(mask, n_words), n_live = n_mask, n_shared = 0, i;
    struct walk walk;

    walk.x = x, walk.chain = chain, walk.n = n; /* the steps are written before they are read */
    memcpy(live, mask, n_words * sizeof(*live));
    walk_begin(&walk);
    for (i = 0; i < n && n_live > 1; i++) {
        uint32_t seen = walk_find(&walk, i);

        if (seen == PREFIX_NONE) break;
        if (guesses) guesses[i] = seen;
        expand_holders(x, seen, chain[i], holders);
        n_live = keep_holders(live, n_live, holders, n_words, i, depth);
        if (n_live > n_mask / 2) n_shared = i + 1;
    }
    if (n_live == 1) { /* one worker remains for most of the walk */
        uint32_t last = worker_mask_next(live, n_words, 0);

        for (; i < n; i++) {
            uint32_t seen = walk_find(&walk, i);

            if (seen == PREFIX_NONE || !is_holder(x, seen, chain[i], last)) break;
            if (guesses) guesses[i] = seen;
        }
        if (n_mask == 1) n_shared = i;
        depth[last] = i;
    } else {
        WORKER_MASK_FOR_EACH(w, live, n_words) depth[w] = i;
    }
    for (; guesses && i < n; i++)
        guesses[i] = PREFIX_NONE;
    return n_shared;
}

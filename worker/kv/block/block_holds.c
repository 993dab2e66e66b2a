/* worker/kv/block/block_holds.c - a table of holds, and how many of them each block has. */
#include "worker/kv/block/block_holds.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

#define SECOND_US UINT64_C(1000000)
#define ID_NONE   UINT32_MAX /* in a hold's list: evicted */

struct rank {
    double idle;
    uint32_t i;
};

struct block_holds {
    struct block_holds_config config;
    struct block_hold *holds; /* (BLOCK_HOLDS_MAX), the first stats.n_holds are there */
    uint32_t *n_of;           /* (n_blocks) holds that have the block */
    uint64_t now_us;
    bool is_cut; /* some hold has lost a block since block_holds_set_now */
    struct block_holds_stats stats;
    /* To make room: holds by their idle share, and what becomes of each. */
    struct rank ranks[BLOCK_HOLDS_MAX];
    uint8_t fates[BLOCK_HOLDS_MAX], fates_below[BLOCK_HOLDS_MAX];
};

struct block_holds *block_holds_create(const struct block_holds_config *config) {
    struct block_holds *h = mem_zalloc(sizeof(*h));

    h->config = *config;
    h->holds = mem_calloc(BLOCK_HOLDS_MAX, sizeof(*h->holds));
    h->n_of = mem_calloc(config->n_blocks, sizeof(*h->n_of));
    h->stats.max_blocks[HOLD_HERE] = config->max_blocks;
    return h;
}

void block_holds_set_below(struct block_holds *h, uint32_t max_blocks) {
    h->stats.max_blocks[HOLD_BELOW] = max_blocks;
}

static void free_lists(struct block_hold *hold) {
    mem_free(hold->ids);
    mem_free(hold->hashes);
    mem_free(hold->names);
}

void block_holds_destroy(struct block_holds *h) {
    if (!h) return;
    for (uint32_t i = 0; i < h->stats.n_holds; i++)
        free_lists(&h->holds[i]);
    mem_free(h->holds);
    mem_free(h->n_of);
    mem_free(h);
}

/* --- ends ------------------------------------------------------------------------------------- */

/* Its blocks from n on are no more held here: the last goes first. */
static void give_here(struct block_holds *h, struct block_hold *hold, uint32_t n) {
    if (!hold->is_in[HOLD_HERE]) return;
    for (uint32_t i = hold->n_blocks; i-- > n;) {
        uint32_t id = hold->ids[i];

        if (id == ID_NONE || --h->n_of[id] > 0) continue;
        h->stats.n_blocks--;
        h->config.give(h->config.arg, id);
    }
    h->stats.n_charged[HOLD_HERE] -= hold->n_blocks - n;
}

/* The hold ends before its block n. */
static void shorten(struct block_holds *h, struct block_hold *hold, uint32_t n) {
    give_here(h, hold, n);
    if (hold->is_in[HOLD_BELOW]) {
        h->config.keep_below(h->config.arg, hold->names + n, hold->n_blocks - n, false);
        h->stats.n_charged[HOLD_BELOW] -= hold->n_blocks - n;
    }
    hold->n_blocks = n;
}

/* It is below alone. */
static void leave(struct block_holds *h, struct block_hold *hold) {
    give_here(h, hold, 0);
    hold->is_in[HOLD_HERE] = false;
    h->stats.n_left++;
}

static void end(struct block_holds *h, struct block_hold *hold, enum hold_end why) {
    shorten(h, hold, 0);
    free_lists(hold);
    h->stats.n_ended[why]++;
    *hold = h->holds[--h->stats.n_holds];
}

static void cut(struct block_holds *h, struct block_hold *hold) {
    uint32_t n = 0;

    if (!hold->is_in[HOLD_HERE]) return;
    while (n < hold->n_blocks && hold->ids[n] != ID_NONE)
        n++;
    if (n == 0) {
        end(h, hold, HOLD_EVICTED);
    } else {
        shorten(h, hold, n);
    }
}

/* Of its time to live: 1, and it expires. */
static double idle_share(const struct block_holds *h, const struct block_hold *hold) {
    uint64_t idle_us = h->now_us - MIN(hold->used_us, h->now_us);

    return (double)idle_us / (double)(hold->ttl_s * SECOND_US);
}

double block_holds_value(const struct block_holds *h, const struct block_hold *hold) {
    return exp2(-2 * idle_share(h, hold));
}

void block_holds_set_now(struct block_holds *h, uint64_t now_us) {
    for (uint32_t i = 0; i < h->stats.n_holds; i++)
        h->stats.block_s += (double)h->holds[i].n_blocks * 1e-6 * (double)(now_us - h->now_us);
    h->now_us = now_us;
    for (uint32_t i = h->stats.n_holds; h->is_cut && i-- > 0;)
        cut(h, &h->holds[i]);
    h->is_cut = false;
    for (uint32_t i = h->stats.n_holds; i-- > 0;)
        if (idle_share(h, &h->holds[i]) >= 1) end(h, &h->holds[i], HOLD_EXPIRED);
}

void block_holds_reset(struct block_holds *h) {
    while (h->stats.n_holds > 0)
        end(h, &h->holds[h->stats.n_holds - 1], HOLD_RESET);
    h->is_cut = false;
}

enum status block_holds_release(struct block_holds *h, uint64_t id, uint64_t owner) {
    for (uint32_t i = 0; i < h->stats.n_holds; i++) {
        struct block_hold *hold = &h->holds[i];

        if (hold->id != id || hold->owner != owner) continue;
        end(h, hold, HOLD_RELEASED);
        return ST_OK;
    }
    return ST_NOT_FOUND;
}

void block_holds_evicted(struct block_holds *h, uint32_t id) {
    if (h->n_of[id] == 0) return;
    for (uint32_t i = 0; i < h->stats.n_holds; i++) {
        struct block_hold *hold = &h->holds[i];

        for (uint32_t k = hold->is_in[HOLD_HERE] ? hold->n_blocks : 0; k-- > 0;)
            if (hold->ids[k] == id) hold->ids[k] = ID_NONE;
    }
    h->n_of[id] = 0;
    h->stats.n_blocks--;
    h->is_cut = true;
}

/* --- room ------------------------------------------------------------------------------------- */

enum fate { STAYS, LEAVES, ENDS };

/* One budget: of a place, or one holder's half of it. */
struct bound {
    enum hold_place place;
    bool is_of_one;
    uint64_t holder;
    uint32_t max;
};

static void bounds_of(const struct block_holds *h, enum hold_place place, uint64_t holder,
                      struct bound out[2]) {
    uint32_t max = h->stats.max_blocks[place];

    out[0] = (struct bound){place, holder != 0, holder, holder ? max / 2 : max};
    out[1] = (struct bound){.place = place, .max = max};
}

static bool counts(const struct bound *b, const struct block_hold *hold, uint8_t fate) {
    return hold->is_in[b->place] && fate != ENDS && !(b->place == HOLD_HERE && fate == LEAVES) &&
           (!b->is_of_one || hold->holder == b->holder);
}

static uint64_t charged(const struct block_holds *h, const struct bound *b, const uint8_t *fates) {
    uint64_t n = 0;

    for (uint32_t i = 0; i < h->stats.n_holds; i++)
        if (counts(b, &h->holds[i], fates[i])) n += h->holds[i].n_blocks;
    return n;
}

static bool can_leave(const struct block_holds *h, const struct block_hold *hold) {
    return hold->is_in[HOLD_BELOW] && block_holds_n_below(h, hold) == hold->n_blocks;
}

static int by_idle(const void *a, const void *b) {
    const struct rank *x = a, *y = b;

    if (x->idle != y->idle) return x->idle < y->idle ? 1 : -1;
    return x->i < y->i ? 1 : -1;
}

/* Those that are worth least first. */
static void rank(struct block_holds *h) {
    for (uint32_t i = 0; i < h->stats.n_holds; i++)
        h->ranks[i] = (struct rank){idle_share(h, &h->holds[i]), i};
    qsort(h->ranks, h->stats.n_holds, sizeof(*h->ranks), by_idle);
}

/* Fates that make room for n more blocks in a bound: holds leave, then decayed ones end. False:
 * that is not enough. */
static bool doom(const struct block_holds *h, const struct bound *b, uint32_t n, uint8_t *fates) {
    uint64_t n_charged = charged(h, b, fates);

    for (int fate = b->place == HOLD_HERE ? LEAVES : ENDS; fate <= ENDS; fate++) {
        for (uint32_t k = 0; k < h->stats.n_holds && n_charged + n > b->max; k++) {
            uint32_t i = h->ranks[k].i;

            if (!counts(b, &h->holds[i], fates[i])) continue;
            if (fate == LEAVES ? !can_leave(h, &h->holds[i]) : h->ranks[k].idle < 0.5) continue;
            fates[i] = (uint8_t)fate;
            n_charged -= h->holds[i].n_blocks;
        }
    }
    return n_charged + n <= b->max;
}

static enum status refuse(struct block_holds *h, struct error *err, uint32_t n_blocks,
                          const struct bound *b) {
    memset(h->fates, STAYS, sizeof(h->fates));
    h->stats.n_refused++;
    return error_set_param(err, ST_BUSY, "hold_quota",
                           "a hold of %u blocks does not fit: %u of the %u blocks of %s are held; "
                           "release a hold, hold less, or start the worker with more --hold-bytes",
                           n_blocks, (unsigned)charged(h, b, h->fates), b->max,
                           b->is_of_one ? "one holder" : "this worker");
}

/* One of them ends, if all are taken. */
static bool doom_for_number(struct block_holds *h) {
    const struct rank *first = &h->ranks[0];

    if (h->stats.n_holds < BLOCK_HOLDS_MAX || memchr(h->fates, ENDS, h->stats.n_holds)) return true;
    if (first->idle >= 0.5) h->fates[first->i] = ENDS;
    return first->idle >= 0.5;
}

/* Decayed ones end only if the new hold is below then. */
static void doom_below(struct block_holds *h, uint64_t holder, uint32_t n_blocks) {
    struct bound bounds[2];

    bounds_of(h, HOLD_BELOW, holder, bounds);
    memcpy(h->fates_below, h->fates, sizeof(h->fates));
    if (doom(h, &bounds[0], n_blocks, h->fates_below) &&
        doom(h, &bounds[1], n_blocks, h->fates_below))
        memcpy(h->fates, h->fates_below, sizeof(h->fates));
}

enum status block_holds_make_room(struct block_holds *h, uint64_t holder, uint32_t n_blocks,
                                  struct error *err) {
    struct bound bounds[2];

    memset(h->fates, STAYS, sizeof(h->fates));
    rank(h);
    bounds_of(h, HOLD_HERE, holder, bounds);
    for (int i = 0; i < 2; i++)
        if (!doom(h, &bounds[i], n_blocks, h->fates)) return refuse(h, err, n_blocks, &bounds[i]);
    if (!doom_for_number(h)) {
        h->stats.n_refused++;
        return error_set_param(err, ST_BUSY, "hold_quota",
                               "%u prefixes are held, the most of a worker: release one",
                               BLOCK_HOLDS_MAX);
    }
    doom_below(h, holder, n_blocks);
    for (uint32_t i = h->stats.n_holds; i-- > 0;) { /* what ends is replaced by one behind it */
        if (h->fates[i] == LEAVES) leave(h, &h->holds[i]);
        if (h->fates[i] == ENDS) end(h, &h->holds[i], HOLD_DISPLACED);
    }
    return ST_OK;
}

/* --- begins ----------------------------------------------------------------------------------- */

struct block_hold *block_holds_twin(struct block_holds *h, uint64_t owner,
                                    const struct block_hash *hashes, uint32_t n_blocks) {
    for (uint32_t i = 0; i < h->stats.n_holds; i++) {
        struct block_hold *hold = &h->holds[i];

        if (hold->owner == owner && hold->n_blocks == n_blocks &&
            memcmp(&hold->hashes[n_blocks - 1], &hashes[n_blocks - 1], sizeof(*hashes)) == 0)
            return hold;
    }
    return NULL;
}

void block_holds_renew(struct block_holds *h, struct block_hold *hold, uint32_t ttl_s) {
    assert(ttl_s >= 1 && ttl_s <= BLOCK_HOLDS_MAX_S);
    hold->ttl_s = ttl_s;
    hold->used_us = h->now_us;
}

static bool fits_below(const struct block_holds *h, uint64_t holder, uint32_t n) {
    static const uint8_t fates[BLOCK_HOLDS_MAX]; /* all stay */
    struct bound bounds[2];

    bounds_of(h, HOLD_BELOW, holder, bounds);
    return charged(h, &bounds[0], fates) + n <= bounds[0].max &&
           charged(h, &bounds[1], fates) + n <= bounds[1].max;
}

static void keep_below(struct block_holds *h, struct block_hold *hold,
                       const struct block_name *names) {
    uint32_t n = hold->n_blocks;

    hold->names = mem_calloc(n, sizeof(*hold->names));
    memcpy(hold->names, names, n * sizeof(*hold->names));
    hold->is_in[HOLD_BELOW] = true;
    h->config.keep_below(h->config.arg, hold->names, n, true);
    h->stats.n_charged[HOLD_BELOW] += n;
}

struct block_hold *block_holds_insert(struct block_holds *h, const struct block_hold *like) {
    struct block_hold *hold = &h->holds[h->stats.n_holds];
    uint32_t n = like->n_blocks;

    assert(n > 0 && n + h->stats.n_charged[HOLD_HERE] <= h->config.max_blocks && !h->is_cut);
    assert(h->stats.n_holds < BLOCK_HOLDS_MAX);
    *hold = (struct block_hold){
        .id = like->id, .owner = like->owner, .holder = like->holder, .n_blocks = n, .n_made = n};
    hold->ids = mem_calloc(n, sizeof(*hold->ids));
    hold->hashes = mem_calloc(n, sizeof(*hold->hashes));
    memcpy(hold->ids, like->ids, n * sizeof(*hold->ids));
    memcpy(hold->hashes, like->hashes, n * sizeof(*hold->hashes));
    hold->made_us = h->now_us;
    block_holds_renew(h, hold, like->ttl_s);
    for (uint32_t i = n; i-- > 0;) {
        bool is_first = h->n_of[hold->ids[i]]++ == 0;

        h->stats.n_blocks += is_first;
        h->config.take(h->config.arg, hold->ids[i], is_first);
    }
    hold->is_in[HOLD_HERE] = true;
    h->stats.n_charged[HOLD_HERE] += n;
    if (like->names && fits_below(h, like->holder, n)) keep_below(h, hold, like->names);
    h->stats.n_holds++;
    return hold;
}

/* --- use -------------------------------------------------------------------------------------- */

/* Leading blocks in common; a hash has all before it in it. */
static uint32_t n_common(const struct block_hold *hold, const struct block_hash *hashes,
                         uint32_t n) {
    uint32_t low = 0, high = MIN(n, hold->n_blocks);

    while (low < high) {
        uint32_t at = (low + high) / 2;

        if (memcmp(&hold->hashes[at], &hashes[at], sizeof(*hashes)) == 0) {
            low = at + 1;
        } else {
            high = at;
        }
    }
    return low;
}

void block_holds_note(struct block_holds *h, const struct block_hash *hashes, uint32_t n_hit) {
    uint32_t n_saved = 0;

    for (uint32_t i = 0; i < h->stats.n_holds; i++) {
        struct block_hold *hold = &h->holds[i];
        uint32_t n = n_common(hold, hashes, n_hit);

        if (n == 0 || n < hold->n_blocks / 2) continue;
        hold->used_us = h->now_us;
        hold->n_hits++;
        hold->n_saved += n;
        n_saved = MAX(n_saved, n);
    }
    h->stats.n_hits += n_saved > 0;
    h->stats.n_saved += n_saved;
}

/* --- looking in ------------------------------------------------------------------------------- */

bool block_holds_has(const struct block_holds *h, uint32_t id) {
    return h->n_of[id] > 0;
}

const struct block_hold *block_holds_at(const struct block_holds *h, uint32_t i) {
    assert(i < h->stats.n_holds);
    return &h->holds[i];
}

uint32_t block_holds_n_below(const struct block_holds *h, const struct block_hold *hold) {
    if (!hold->is_in[HOLD_BELOW]) return 0;
    return h->config.count_below(h->config.arg, hold->names, hold->n_blocks);
}

struct block_holds_stats block_holds_stats(const struct block_holds *h) {
    return h->stats;
}

void block_holds_check(const struct block_holds *h) {
    uint32_t *n_of = mem_calloc(h->config.n_blocks, sizeof(*n_of));
    uint32_t n_charged[HOLD_PLACES] = {0}, n_blocks = 0;

    for (uint32_t i = 0; i < h->stats.n_holds; i++) {
        const struct block_hold *hold = &h->holds[i];

        assert(hold->n_blocks >= 1 && hold->n_blocks <= hold->n_made);
        assert(hold->is_in[HOLD_HERE] || hold->is_in[HOLD_BELOW]);
        assert(hold->names || !hold->is_in[HOLD_BELOW]);
        for (int place = 0; place < HOLD_PLACES; place++)
            n_charged[place] += hold->is_in[place] ? hold->n_blocks : 0;
        for (uint32_t k = 0; hold->is_in[HOLD_HERE] && k < hold->n_blocks; k++) {
            assert(hold->ids[k] != ID_NONE || h->is_cut);
            if (hold->ids[k] != ID_NONE) n_of[hold->ids[k]]++;
        }
        for (uint32_t k = 0; k < i; k++)
            assert(h->holds[k].id != hold->id);
    }
    for (uint32_t id = 0; id < h->config.n_blocks; id++) {
        assert(n_of[id] == h->n_of[id]);
        n_blocks += n_of[id] > 0;
    }
    assert(memcmp(n_charged, h->stats.n_charged, sizeof(n_charged)) == 0);
    assert(n_charged[HOLD_HERE] <= h->config.max_blocks);
    assert(n_blocks == h->stats.n_blocks && h->stats.n_holds <= BLOCK_HOLDS_MAX);
    mem_free(n_of);
    (void)n_charged;
    (void)n_blocks;
}

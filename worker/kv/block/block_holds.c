/* worker/kv/block/block_holds.c - a table of holds, and how many of them each block has. */
#include "worker/kv/block/block_holds.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/mem.h"

#define SECOND_US UINT64_C(1000000)
#define ID_NONE   UINT32_MAX /* in a hold's list: evicted */

struct block_holds {
    struct block_holds_config config;
    struct block_hold *holds; /* (BLOCK_HOLDS_MAX), the first stats.n_holds are there */
    uint32_t *n_of;           /* (n_blocks) holds that have the block */
    uint64_t now_us;
    bool is_cut; /* some hold has lost a block since block_holds_set_now */
    struct block_holds_stats stats;
};

struct block_holds *block_holds_create(const struct block_holds_config *config) {
    struct block_holds *h = mem_zalloc(sizeof(*h));

    h->config = *config;
    h->holds = mem_calloc(BLOCK_HOLDS_MAX, sizeof(*h->holds));
    h->n_of = mem_calloc(config->n_blocks, sizeof(*h->n_of));
    h->stats.max_blocks = config->max_blocks;
    return h;
}

static void free_lists(struct block_hold *hold) {
    mem_free(hold->ids);
    mem_free(hold->hashes);
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

/* The hold ends before its block n: the last goes first. */
static void shorten(struct block_holds *h, struct block_hold *hold, uint32_t n) {
    for (uint32_t i = hold->n_blocks; i-- > n;) {
        uint32_t id = hold->ids[i];

        if (id == ID_NONE || --h->n_of[id] > 0) continue;
        h->stats.n_blocks--;
        h->config.give(h->config.arg, id);
    }
    h->stats.n_charged -= hold->n_blocks - n;
    hold->n_blocks = n;
}

static void end(struct block_holds *h, struct block_hold *hold, enum hold_end why) {
    shorten(h, hold, 0);
    free_lists(hold);
    h->stats.n_ended[why]++;
    *hold = h->holds[--h->stats.n_holds];
}

static void cut(struct block_holds *h, struct block_hold *hold) {
    uint32_t n = 0;

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

        for (uint32_t k = hold->n_blocks; k-- > 0;)
            if (hold->ids[k] == id) hold->ids[k] = ID_NONE;
    }
    h->n_of[id] = 0;
    h->stats.n_blocks--;
    h->is_cut = true;
}

/* --- room ------------------------------------------------------------------------------------- */

static uint32_t max_of(const struct block_holds *h, uint64_t holder) {
    return holder ? h->config.max_blocks / 2 : h->config.max_blocks;
}

static uint32_t charged_to(const struct block_holds *h, uint64_t holder, double min_idle) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < h->stats.n_holds; i++) {
        const struct block_hold *hold = &h->holds[i];

        if (hold->holder == holder && idle_share(h, hold) >= min_idle) n += hold->n_blocks;
    }
    return n;
}

static uint32_t charged_decayed(const struct block_holds *h) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < h->stats.n_holds; i++)
        if (idle_share(h, &h->holds[i]) >= 0.5) n += h->holds[i].n_blocks;
    return n;
}

/* The hold that is worth least, of those worth half and less, and of that holder if need be. */
static struct block_hold *least(struct block_holds *h, bool is_of_holder, uint64_t holder) {
    struct block_hold *found = NULL;
    double most = 0.5;

    for (uint32_t i = 0; i < h->stats.n_holds; i++) {
        struct block_hold *hold = &h->holds[i];
        double idle = idle_share(h, hold);

        if ((is_of_holder && hold->holder != holder) || idle < most) continue;
        most = idle;
        found = hold;
    }
    return found;
}

static enum status refuse(struct block_holds *h, struct error *err, uint32_t n_blocks, uint32_t n,
                          uint32_t max, const char *whose) {
    h->stats.n_refused++;
    return error_set_param(err, ST_BUSY, "hold_quota",
                           "a hold of %u blocks does not fit: %u of the %u blocks %s are held; "
                           "release a hold, hold less, or start the worker with more --hold-bytes",
                           n_blocks, n, max, whose);
}

enum status block_holds_make_room(struct block_holds *h, uint64_t holder, uint32_t n_blocks,
                                  struct error *err) {
    uint32_t max = max_of(h, holder), n_own = charged_to(h, holder, 0);
    uint32_t n_all = h->stats.n_charged;

    if (n_blocks + n_own - charged_to(h, holder, 0.5) > max)
        return refuse(h, err, n_blocks, n_own, max, holder ? "of one holder" : "of this worker");
    if (n_blocks + n_all - charged_decayed(h) > h->config.max_blocks)
        return refuse(h, err, n_blocks, n_all, h->config.max_blocks, "of this worker");
    if (h->stats.n_holds == BLOCK_HOLDS_MAX && !least(h, false, 0)) {
        h->stats.n_refused++;
        return error_set_param(err, ST_BUSY, "hold_quota",
                               "%u prefixes are held, the most of a worker: release one",
                               BLOCK_HOLDS_MAX);
    }
    while (n_blocks + charged_to(h, holder, 0) > max)
        end(h, least(h, true, holder), HOLD_DISPLACED);
    while (n_blocks + h->stats.n_charged > h->config.max_blocks ||
           h->stats.n_holds == BLOCK_HOLDS_MAX)
        end(h, least(h, false, 0), HOLD_DISPLACED);
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

struct block_hold *block_holds_insert(struct block_holds *h, const struct block_hold *like) {
    struct block_hold *hold = &h->holds[h->stats.n_holds];
    uint32_t n = like->n_blocks;

    assert(n > 0 && n + h->stats.n_charged <= h->config.max_blocks && !h->is_cut);
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
    h->stats.n_charged += n;
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

struct block_holds_stats block_holds_stats(const struct block_holds *h) {
    return h->stats;
}

void block_holds_check(const struct block_holds *h) {
    uint32_t *n_of = mem_calloc(h->config.n_blocks, sizeof(*n_of));
    uint32_t n_charged = 0, n_blocks = 0;

    for (uint32_t i = 0; i < h->stats.n_holds; i++) {
        const struct block_hold *hold = &h->holds[i];

        assert(hold->n_blocks >= 1 && hold->n_blocks <= hold->n_made);
        n_charged += hold->n_blocks;
        for (uint32_t k = 0; k < hold->n_blocks; k++) {
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
    assert(n_charged == h->stats.n_charged && n_charged <= h->config.max_blocks);
    assert(n_blocks == h->stats.n_blocks && h->stats.n_holds <= BLOCK_HOLDS_MAX);
    mem_free(n_of);
    (void)n_charged;
    (void)n_blocks;
}

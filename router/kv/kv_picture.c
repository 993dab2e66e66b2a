/* router/kv/kv_picture.c - see the header. */
#include "router/kv/kv_picture.h"

#include <assert.h>
#include <string.h>

/* The most that was held at an eviction is the capacity. Evictions for other reasons, and engines
 * that give memory to something else for a while, show less: the estimate follows slowly. */
#define CAPACITY_EVICTIONS_MIN 64
#define CAPACITY_DECAY         (1.0 / 4096) /* of the difference, per eviction */

void kv_picture_init(struct kv_picture *p, struct kv_budget *budget, uint64_t seed) {
    *p = (struct kv_picture){.group = KV_GROUP_NONE};
    kv_ledger_init(&p->ledger, budget, seed);
}

void kv_picture_fini(struct kv_picture *p) {
    kv_ledger_fini(&p->ledger);
}

void kv_picture_reset(struct kv_picture *p, bool is_first, bool is_new) {
    kv_ledger_clear(&p->ledger);
    p->is_complete = is_first;
    p->lacks_room = false;
    p->n_known_run = 0;
    if (!is_new) return;
    p->has_group = false;
    p->group = KV_GROUP_NONE;
    p->hash_kind = 0;
    p->n_evictions = 0;
    p->capacity_tokens = 0;
}

/* Removals name a group, not its kind: those before the first store of full attention count for
 * nothing, since nothing is held. */
static bool is_counted(struct kv_picture *p, const struct kv_event *e) {
    if (e->tier == KV_TIER_COUNT || e->has_pairs) return false;
    if (e->kind == KV_STORED && !e->is_full) return false;
    if (!p->has_group && e->kind == KV_STORED) {
        p->has_group = true;
        p->group = e->group;
    }
    return p->has_group && e->group == p->group;
}

static void take_stored(struct kv_picture *p, struct kv_event *e) {
    uint64_t hash, held = p->ledger.tokens;
    bool is_gone;

    while (kv_event_hash(e, &hash, &is_gone)) {
        if (kv_ledger_store(&p->ledger, hash, e->tier, e->block_tokens)) continue;
        p->counts.n_refused++;
        p->lacks_room = true;
        p->is_complete = false;
        p->n_known_run = 0;
    }
    p->stored_tokens += p->ledger.tokens - held;
}

/* A block has left the last tier that had it; before, `held` tokens were held. */
static void note_eviction(struct kv_picture *p, double held) {
    p->n_evictions++;
    if (held > p->capacity_tokens)
        p->capacity_tokens = held;
    else
        p->capacity_tokens += (held - p->capacity_tokens) * CAPACITY_DECAY;
}

static void remove_block(struct kv_picture *p, uint64_t hash, enum kv_tier tier) {
    uint64_t held = p->ledger.tokens;

    p->n_known_run = kv_ledger_remove(&p->ledger, hash, tier) ? p->n_known_run + 1 : 0;
    if (p->is_complete && p->ledger.tokens < held) note_eviction(p, (double)held);
}

static void take_removed(struct kv_picture *p, struct kv_event *e) {
    uint64_t hash;
    bool is_gone;

    while (kv_event_hash(e, &hash, &is_gone)) {
        if (is_gone) remove_block(p, hash, e->tier);
    }
    if (!p->is_complete && p->ledger.n > 0 && p->n_known_run >= p->ledger.n) p->is_complete = true;
}

static void take_event(struct kv_picture *p, struct kv_event *e, struct kv_picture_change *change) {
    if (e->kind == KV_CLEARED) {
        change->was_cleared = true;
        kv_picture_reset(p, true, false);
    } else if (!is_counted(p, e)) {
        p->counts.n_ignored++;
        return;
    } else if (e->kind == KV_STORED) {
        take_stored(p, e);
    } else {
        take_removed(p, e);
    }
    p->counts.n_events[e->kind]++;
}

/* An engine writes hashes of one kind as long as it lives. */
static bool is_of_other_kind(struct kv_picture *p, const struct kv_event *e) {
    if (e->hash_kinds == 0 || e->hash_kinds == p->hash_kind) return false;
    if (p->hash_kind == 0) {
        p->hash_kind = e->hash_kinds;
        return false;
    }
    return true;
}

enum status kv_picture_take(struct kv_picture *p, struct str batch,
                            struct kv_picture_change *change) {
    struct kv_batch b;
    struct kv_event e;
    enum status st = kv_batch_open(&b, batch);

    *change = (struct kv_picture_change){0};
    p->counts.n_batches++;
    if (st != ST_OK) return st;
    while ((st = kv_batch_next(&b, &e)) == ST_OK) {
        if (is_of_other_kind(p, &e)) {
            change->is_other = true;
            kv_picture_reset(p, false, true);
            p->hash_kind = e.hash_kinds;
        }
        take_event(p, &e, change);
    }
    p->counts.n_ignored += b.n_unknown + b.n_malformed;
    if (b.n_malformed) p->is_complete = false; /* it may have been a removal */
    return st == ST_NOT_FOUND ? ST_OK : st;
}

bool kv_picture_compare(struct kv_picture *p, const struct kv_frame *digest) {
    uint64_t n_blocks[KV_TIER_COUNT] = {0}, xors[KV_TIER_COUNT] = {0};
    uint64_t n_all = 0;
    bool is_equal;

    for (uint32_t i = 0; i < digest->n_sets; i++) {
        const struct kv_frame_set *set = &digest->sets[i];

        n_all += set->n_blocks;
        if (set->tier == KV_TIER_COUNT || set->group != MAX(p->group, 0)) continue;
        n_blocks[set->tier] += set->n_blocks;
        xors[set->tier] ^= set->digest;
    }
    if (p->lacks_room || (!p->has_group && n_all > 0)) return true;
    is_equal = memcmp(n_blocks, p->ledger.n_blocks, sizeof(n_blocks)) == 0 &&
               memcmp(xors, p->ledger.digest, sizeof(xors)) == 0;
    p->is_complete = is_equal;
    return is_equal;
}

double kv_picture_capacity(const struct kv_picture *p) {
    bool is_certain = p->is_complete && p->n_evictions >= CAPACITY_EVICTIONS_MIN;

    return is_certain ? p->capacity_tokens : 0;
}

void kv_picture_check(const struct kv_picture *p) {
    kv_ledger_check(&p->ledger);
    assert(p->has_group || p->ledger.n == 0);
    assert(p->capacity_tokens >= 0);
}

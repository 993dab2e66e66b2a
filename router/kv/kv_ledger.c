/* router/kv/kv_ledger.c - linear probing; an erased slot is filled from behind, so there are no
 * tombstones and a table does not age. */
#include "router/kv/kv_ledger.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"

#define SLOTS_MIN 1024u

void kv_ledger_init(struct kv_ledger *l, struct kv_budget *budget, uint64_t seed) {
    *l = (struct kv_ledger){.budget = budget, .seed = seed};
}

static uint64_t bytes_of(uint32_t n_slots) {
    return (uint64_t)n_slots * sizeof(struct kv_slot);
}

void kv_ledger_clear(struct kv_ledger *l) {
    l->budget->used -= bytes_of(l->n_slots);
    mem_free_pages(l->slots, bytes_of(l->n_slots));
    *l = (struct kv_ledger){.budget = l->budget, .seed = l->seed};
}

void kv_ledger_fini(struct kv_ledger *l) {
    kv_ledger_clear(l);
}

static uint32_t home_of(const struct kv_ledger *l, uint64_t hash) {
    return (uint32_t)rng_mix(hash ^ l->seed) & (l->n_slots - 1);
}

/* The slot of the hash, or the free one where it would be; needs a free slot. */
static struct kv_slot *find(const struct kv_ledger *l, uint64_t hash) {
    uint32_t i = home_of(l, hash);

    while (l->slots[i].tiers && l->slots[i].hash != hash)
        i = (i + 1) & (l->n_slots - 1);
    return &l->slots[i];
}

/* At most five eighths are used: a search for what is not there looks at 4 slots, at three
 * quarters at 9. */
static bool is_full(const struct kv_ledger *l) {
    return l->n >= l->n_slots / 8 * 5;
}

static bool grow(struct kv_ledger *l) {
    struct kv_ledger old = *l;
    uint32_t n_slots = MAX(l->n_slots * 2, SLOTS_MIN);
    uint64_t more = bytes_of(n_slots) - bytes_of(l->n_slots);
    struct kv_slot *slots;

    if (n_slots > KV_LEDGER_SLOTS_MAX || more > l->budget->max - l->budget->used) return false;
    slots = mem_try_pages(bytes_of(n_slots));
    if (!slots) return false;
    l->slots = slots;
    l->n_slots = n_slots;
    l->budget->used += more;
    for (uint32_t i = 0; i < old.n_slots; i++) {
        if (old.slots[i].tiers) *find(l, old.slots[i].hash) = old.slots[i];
    }
    mem_free_pages(old.slots, bytes_of(old.n_slots));
    return true;
}

static void count(struct kv_ledger *l, enum kv_tier tier, const struct kv_slot *s, bool is_more) {
    l->n_blocks[tier] += is_more ? 1 : UINT64_MAX;
    l->digest[tier] ^= s->hash;
    l->n_tokens[tier] += is_more ? s->tokens : -(uint64_t)s->tokens;
}

bool kv_ledger_store(struct kv_ledger *l, uint64_t hash, enum kv_tier tier, uint32_t tokens) {
    uint32_t bit = 1u << tier;
    struct kv_slot *s = NULL;

    if (l->n_slots && (s = find(l, hash))->tiers) {
        if (s->tiers & bit) return true;
    } else {
        if (is_full(l)) {
            if (!grow(l)) return false;
            s = find(l, hash);
        }
        *s = (struct kv_slot){.hash = hash, .tokens = tokens};
        l->n++;
        l->tokens += tokens;
    }
    s->tiers |= bit;
    count(l, tier, s, true);
    return true;
}

/* Fills the hole at i with the next entry that may lie there, and so on. */
static void close_hole(struct kv_ledger *l, uint32_t i) {
    uint32_t mask = l->n_slots - 1;

    for (uint32_t j = (i + 1) & mask; l->slots[j].tiers; j = (j + 1) & mask) {
        uint32_t home = home_of(l, l->slots[j].hash);

        if (((j - home) & mask) < ((j - i) & mask)) continue; /* its home is behind the hole */
        l->slots[i] = l->slots[j];
        i = j;
    }
    l->slots[i].tiers = 0;
}

bool kv_ledger_remove(struct kv_ledger *l, uint64_t hash, enum kv_tier tier) {
    uint32_t bit = 1u << tier;
    struct kv_slot *s = l->n_slots ? find(l, hash) : NULL;

    if (!s || !(s->tiers & bit)) return false;
    count(l, tier, s, false);
    s->tiers &= ~bit;
    if (s->tiers) return true;
    l->n--;
    l->tokens -= s->tokens;
    close_hole(l, (uint32_t)(s - l->slots));
    return true;
}

bool kv_ledger_has(const struct kv_ledger *l, uint64_t hash, enum kv_tier tier) {
    return l->n_slots && (find(l, hash)->tiers & (1u << tier)) != 0;
}

void kv_ledger_check(const struct kv_ledger *l) {
    uint64_t n_blocks[KV_TIER_COUNT] = {0}, n_tokens[KV_TIER_COUNT] = {0},
             xors[KV_TIER_COUNT] = {0};
    uint64_t tokens = 0;
    uint32_t n = 0;

    assert((l->n_slots & (l->n_slots - 1)) == 0 && (l->n_slots > 0) == (l->slots != NULL));
    assert(l->budget->used <= l->budget->max && l->budget->used >= bytes_of(l->n_slots));
    for (uint32_t i = 0; i < l->n_slots; i++) {
        const struct kv_slot *s = &l->slots[i];

        if (!s->tiers) continue;
        n++;
        tokens += s->tokens;
        assert(find(l, s->hash) == s);
        for (uint32_t tier = 0; tier < KV_TIER_COUNT; tier++) {
            xors[tier] ^= (s->tiers >> tier) & 1 ? s->hash : 0;
            n_blocks[tier] += (s->tiers >> tier) & 1;
            n_tokens[tier] += (s->tiers >> tier) & 1 ? s->tokens : 0;
        }
    }
    assert(n == l->n && tokens == l->tokens && l->n <= l->n_slots);
    assert(memcmp(n_blocks, l->n_blocks, sizeof(n_blocks)) == 0);
    assert(memcmp(xors, l->digest, sizeof(xors)) == 0);
    assert(memcmp(n_tokens, l->n_tokens, sizeof(n_tokens)) == 0);
}

/* worker/kv/tiers/store/store_beliefs.c - sets of eight; an entry of BELIEF_NONE is free. */
#include "worker/kv/tiers/store/store_beliefs.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"

#define WAYS 8

struct entry {
    struct unit_key key;
    uint64_t until_us : 56; /* two thousand years */
    uint64_t belief : 8;
};
static_assert(sizeof(struct entry) == BELIEFS_BYTES, "an entry is as large as documented");

struct beliefs {
    struct entry *entries;
    uint64_t n_sets, seed, n_present;
    uint64_t forgotten_us; /* what is present until then at most is not */
};

struct beliefs *beliefs_create(uint32_t n_keys, uint64_t seed) {
    struct beliefs *b = mem_zalloc(sizeof(*b));

    b->seed = seed;
    b->n_sets = 1;
    while (b->n_sets * WAYS < n_keys)
        b->n_sets *= 2;
    b->entries = mem_try_pages(b->n_sets * WAYS * sizeof(*b->entries));
    if (b->entries) return b;
    mem_free(b);
    return NULL;
}

void beliefs_destroy(struct beliefs *b) {
    if (!b) return;
    mem_free_pages(b->entries, b->n_sets * WAYS * sizeof(*b->entries));
    mem_free(b);
}

static struct entry *set_of(const struct beliefs *b, const struct unit_key *key) {
    uint64_t word;

    memcpy(&word, key->bytes, sizeof(word));
    return b->entries + (rng_mix(word ^ b->seed) & (b->n_sets - 1)) * WAYS;
}

static struct entry *find_entry(const struct beliefs *b, const struct unit_key *key) {
    struct entry *set = set_of(b, key);

    for (int i = 0; i < WAYS; i++)
        if (set[i].belief != BELIEF_NONE && memcmp(&set[i].key, key, sizeof(*key)) == 0)
            return &set[i];
    return NULL;
}

static bool is_present(const struct beliefs *b, const struct entry *e) {
    return e->belief == BELIEF_PRESENT && e->until_us > b->forgotten_us;
}

enum belief beliefs_find(const struct beliefs *b, const struct unit_key *key, uint64_t now_us) {
    const struct entry *e = find_entry(b, key);

    if (!e || e->until_us <= now_us) return BELIEF_NONE;
    return e->belief != BELIEF_PRESENT || is_present(b, e) ? (enum belief)e->belief : BELIEF_NONE;
}

/* A free entry, or the one that ends first; one whose time is over ends before any other. */
static struct entry *choose_victim(struct entry *set) {
    struct entry *victim = set;

    for (int i = 0; i < WAYS; i++) {
        if (set[i].belief == BELIEF_NONE) return &set[i];
        if (set[i].until_us < victim->until_us) victim = &set[i];
    }
    return victim;
}

void beliefs_set(struct beliefs *b, const struct unit_key *key, enum belief belief, uint64_t now_us,
                 uint64_t until_us) {
    struct entry *e = find_entry(b, key);

    if (until_us <= now_us) belief = BELIEF_NONE;
    if (!e && belief == BELIEF_NONE) return;
    if (!e) e = choose_victim(set_of(b, key));
    b->n_present -= is_present(b, e);
    *e = (struct entry){.key = *key, .until_us = until_us, .belief = belief};
    b->n_present += is_present(b, e);
}

void beliefs_forget_present(struct beliefs *b, uint64_t until_us) {
    b->forgotten_us = MAX(b->forgotten_us, until_us);
    b->n_present = 0;
}

uint64_t beliefs_n_present(const struct beliefs *b) {
    return b->n_present;
}

void beliefs_check(const struct beliefs *b) {
    uint64_t n_present = 0;

    for (uint64_t i = 0; i < b->n_sets * WAYS; i++) {
        const struct entry *e = &b->entries[i];

        if (e->belief == BELIEF_NONE) continue;
        n_present += is_present(b, e);
        assert(e->belief <= BELIEF_SPOILED);
        assert(find_entry(b, &e->key) == e); /* in its set, and there once */
    }
    assert(n_present == b->n_present);
}

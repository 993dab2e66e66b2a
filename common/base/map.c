/* common/base/map.c - linear probing, twice: for numbers and for strings. */
#include "common/base/map.h"

#include <assert.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

#define MIN_SLOTS 16

/* The slot count that holds n entries at a load of 3/4 or less. */
static size_t slots_for(size_t n) {
    size_t slots = MIN_SLOTS;

    while (slots / 4 * 3 < n)
        slots *= 2;
    return slots;
}

static size_t home(const struct map *m, uint64_t key) {
    return rng_mix(key ^ m->seed) & (m->n_slots - 1);
}

/* The slot of `key`, or the empty slot where it would go. */
static struct map_slot *locate(const struct map *m, uint64_t key) {
    size_t i = home(m, key);

    while (m->slots[i].value && m->slots[i].key != key)
        i = (i + 1) & (m->n_slots - 1);
    return &m->slots[i];
}

static void map_resize(struct map *m, size_t n_slots) {
    struct map old = *m;

    m->slots = mem_calloc(n_slots, sizeof(*m->slots));
    m->n_slots = n_slots;
    for (size_t i = 0; i < old.n_slots; i++) {
        if (old.slots[i].value) *locate(m, old.slots[i].key) = old.slots[i];
    }
    mem_free(old.slots);
}

void map_init(struct map *m, uint64_t seed) {
    *m = (struct map){.seed = seed};
}

void map_fini(struct map *m) {
    mem_free(m->slots);
    map_init(m, m->seed);
}

void map_clear(struct map *m) {
    if (m->n) memset(m->slots, 0, m->n_slots * sizeof(*m->slots));
    m->n = 0;
}

void map_reserve(struct map *m, size_t n) {
    size_t n_slots = slots_for(n);

    if (n_slots > m->n_slots) map_resize(m, n_slots);
}

void *map_find(const struct map *m, uint64_t key) {
    return m->n ? locate(m, key)->value : NULL;
}

void *map_insert(struct map *m, uint64_t key, void *value) {
    struct map_slot *slot;
    void *before;

    assert(value);
    map_reserve(m, m->n + 1);
    slot = locate(m, key);
    before = slot->value;
    if (!before) m->n++;
    *slot = (struct map_slot){key, value};
    return before;
}

void *map_erase(struct map *m, uint64_t key) {
    size_t mask = m->n_slots - 1, hole, i;
    struct map_slot *slot;
    void *value;

    if (m->n == 0) return NULL;
    slot = locate(m, key);
    value = slot->value;
    if (!value) return NULL;
    hole = (size_t)(slot - m->slots);
    for (i = (hole + 1) & mask; m->slots[i].value; i = (i + 1) & mask) {
        /* It may move into the hole unless its home lies after the hole. */
        if (((i - home(m, m->slots[i].key)) & mask) < ((i - hole) & mask)) continue;
        m->slots[hole] = m->slots[i];
        hole = i;
    }
    m->slots[hole].value = NULL;
    m->n--;
    return value;
}

const struct map_slot *map_next(const struct map *m, size_t *cursor) {
    while (*cursor < m->n_slots) {
        const struct map_slot *slot = &m->slots[(*cursor)++];

        if (slot->value) return slot;
    }
    return NULL;
}

void map_check(const struct map *m) {
    size_t n = 0;

    assert((m->n_slots & (m->n_slots - 1)) == 0);
    assert(m->n <= m->n_slots / 4 * 3);
    for (size_t i = 0; i < m->n_slots; i++) {
        if (!m->slots[i].value) continue;
        n++;
        assert(locate(m, m->slots[i].key) == &m->slots[i]); /* reachable, and only once */
    }
    assert(n == m->n);
}

static size_t strmap_home(const struct strmap *m, uint64_t hash) {
    return hash & (m->n_slots - 1);
}

static struct strmap_slot *strmap_locate(const struct strmap *m, struct str key, uint64_t hash) {
    size_t i = strmap_home(m, hash);

    while (m->slots[i].value && (m->slots[i].hash != hash || !str_eq(m->slots[i].key, key))) {
        i = (i + 1) & (m->n_slots - 1);
    }
    return &m->slots[i];
}

static uint64_t strmap_hash(const struct strmap *m, struct str key) {
    return hash_64(key.ptr, key.len, m->seed);
}

static void strmap_grow(struct strmap *m) {
    struct strmap old = *m;

    m->n_slots = slots_for(m->n + 1);
    m->slots = mem_calloc(m->n_slots, sizeof(*m->slots));
    for (size_t i = 0; i < old.n_slots; i++) {
        const struct strmap_slot *slot = &old.slots[i];

        if (slot->value) *strmap_locate(m, slot->key, slot->hash) = *slot;
    }
    mem_free(old.slots);
}

/* The copy of a key is ours to free; struct str holds it as const for its readers. */
static void key_free(struct str key) {
    mem_free((void *)(uintptr_t)key.ptr);
}

void strmap_init(struct strmap *m, uint64_t seed) {
    *m = (struct strmap){.seed = seed};
}

void strmap_fini(struct strmap *m) {
    strmap_clear(m);
    mem_free(m->slots);
    strmap_init(m, m->seed);
}

void strmap_clear(struct strmap *m) {
    for (size_t i = 0; i < m->n_slots; i++) {
        if (m->slots[i].value) key_free(m->slots[i].key);
        m->slots[i].value = NULL;
    }
    m->n = 0;
}

void *strmap_find(const struct strmap *m, struct str key) {
    return m->n ? strmap_locate(m, key, strmap_hash(m, key))->value : NULL;
}

void *strmap_insert(struct strmap *m, struct str key, void *value) {
    uint64_t hash = strmap_hash(m, key);
    struct strmap_slot *slot;
    void *before;

    assert(value);
    if (slots_for(m->n + 1) > m->n_slots) strmap_grow(m);
    slot = strmap_locate(m, key, hash);
    before = slot->value;
    slot->value = value;
    if (before) return before;
    slot->key = (struct str){mem_strndup(key.ptr, key.len), key.len};
    slot->hash = hash;
    m->n++;
    return NULL;
}

void *strmap_erase(struct strmap *m, struct str key) {
    size_t mask = m->n_slots - 1, hole, i;
    struct strmap_slot *slot;
    void *value;

    if (m->n == 0) return NULL;
    slot = strmap_locate(m, key, strmap_hash(m, key));
    value = slot->value;
    if (!value) return NULL;
    key_free(slot->key);
    hole = (size_t)(slot - m->slots);
    for (i = (hole + 1) & mask; m->slots[i].value; i = (i + 1) & mask) {
        if (((i - strmap_home(m, m->slots[i].hash)) & mask) < ((i - hole) & mask)) continue;
        m->slots[hole] = m->slots[i];
        hole = i;
    }
    m->slots[hole].value = NULL;
    m->n--;
    return value;
}

const struct strmap_slot *strmap_next(const struct strmap *m, size_t *cursor) {
    while (*cursor < m->n_slots) {
        const struct strmap_slot *slot = &m->slots[(*cursor)++];

        if (slot->value) return slot;
    }
    return NULL;
}

void strmap_check(const struct strmap *m) {
    size_t n = 0;

    assert((m->n_slots & (m->n_slots - 1)) == 0);
    assert(m->n <= m->n_slots / 4 * 3);
    for (size_t i = 0; i < m->n_slots; i++) {
        const struct strmap_slot *slot = &m->slots[i];

        if (!slot->value) continue;
        n++;
        assert(slot->hash == strmap_hash(m, slot->key));
        assert(slot->key.ptr[slot->key.len] == '\0');
        assert(strmap_locate(m, slot->key, slot->hash) == slot);
    }
    assert(n == m->n);
}

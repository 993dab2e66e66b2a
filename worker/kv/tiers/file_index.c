/* worker/kv/tiers/file_index.c - open addressing in shards; erasing moves the followers back. */
#include "worker/kv/tiers/file_index.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"

#define FIRST_SLOTS 16

struct shard {
    struct file_entry *slots;
    uint32_t n_slots; /* 0 or a power of two */
    uint32_t n;
};

struct file_index {
    struct shard shards[FILE_INDEX_SHARDS];
};

_Static_assert(sizeof(struct file_entry) == 24, "the memory that the header states");

struct file_index *file_index_create(void) {
    return mem_zalloc(sizeof(struct file_index));
}

void file_index_destroy(struct file_index *index) {
    if (!index) return;
    for (uint32_t i = 0; i < FILE_INDEX_SHARDS; i++)
        mem_free(index->shards[i].slots);
    mem_free(index);
}

static uint32_t shard_of(const struct unit_key *key) {
    return (uint32_t)(key->bytes[0] | key->bytes[1] << 8) % FILE_INDEX_SHARDS;
}

static uint32_t home_of(const struct shard *s, const struct unit_key *key) {
    uint32_t word;

    memcpy(&word, key->bytes + 8, sizeof(word));
    return word & (s->n_slots - 1);
}

/* The slot of the key, or the empty one where it would go. */
static struct file_entry *slot_of(const struct shard *s, const struct unit_key *key) {
    uint32_t i = home_of(s, key);

    while (s->slots[i].segment != 0 && memcmp(&s->slots[i].key, key, sizeof(*key)) != 0)
        i = (i + 1) & (s->n_slots - 1);
    return &s->slots[i];
}

struct file_entry *file_index_find(struct file_index *index, const struct unit_key *key) {
    struct shard *s = &index->shards[shard_of(key)];
    struct file_entry *e;

    if (s->n == 0) return NULL;
    e = slot_of(s, key);
    return e->segment != 0 ? e : NULL;
}

static bool grow(struct shard *s) {
    struct shard old = *s;
    uint32_t n_slots = s->n_slots ? 2 * s->n_slots : FIRST_SLOTS;
    struct file_entry *slots = mem_try_zalloc(n_slots * sizeof(*slots));

    if (!slots) return false;
    s->slots = slots;
    s->n_slots = n_slots;
    for (uint32_t i = 0; i < old.n_slots; i++)
        if (old.slots[i].segment != 0) *slot_of(s, &old.slots[i].key) = old.slots[i];
    mem_free(old.slots);
    return true;
}

struct file_entry *file_index_insert(struct file_index *index, const struct unit_key *key) {
    struct shard *s = &index->shards[shard_of(key)];
    struct file_entry *e;

    if ((s->n + 1) * 4ull > s->n_slots * 3ull && !grow(s)) return NULL;
    e = slot_of(s, key);
    assert(e->segment == 0);
    e->key = *key;
    e->segment = UINT32_MAX; /* the caller's to set; never 0 */
    e->place = e->hits = 0;
    s->n++;
    return e;
}

void file_index_erase(struct file_index *index, struct file_entry *entry) {
    struct shard *s = &index->shards[shard_of(&entry->key)];
    uint32_t mask = s->n_slots - 1, hole = (uint32_t)(entry - s->slots);

    assert(entry->segment != 0 && hole < s->n_slots);
    for (uint32_t i = (hole + 1) & mask; s->slots[i].segment != 0; i = (i + 1) & mask) {
        uint32_t home = home_of(s, &s->slots[i].key);

        if (((i - home) & mask) < ((i - hole) & mask)) continue; /* its home is behind the hole */
        s->slots[hole] = s->slots[i];
        hole = i;
    }
    s->slots[hole].segment = 0;
    s->n--;
}

void file_index_sweep(struct file_index *index, uint32_t shard,
                      bool (*is_gone)(const void *arg, uint32_t segment), const void *arg) {
    struct shard *s = &index->shards[shard];

    /* What erasing moves comes to slot i or to one behind it, so nothing is passed over. */
    for (uint32_t i = 0; i < s->n_slots;) {
        if (s->slots[i].segment != 0 && is_gone(arg, s->slots[i].segment - 1))
            file_index_erase(index, &s->slots[i]);
        else
            i++;
    }
}

void file_index_check(const struct file_index *index,
                      void (*visit)(void *arg, const struct file_entry *entry), void *arg) {
    for (uint32_t k = 0; k < FILE_INDEX_SHARDS; k++) {
        const struct shard *s = &index->shards[k];
        uint32_t n_here = 0;

        assert(s->n * 4ull <= s->n_slots * 3ull);
        for (uint32_t i = 0; i < s->n_slots; i++) {
            if (s->slots[i].segment == 0) continue;
            assert(shard_of(&s->slots[i].key) == k);
            assert(slot_of(s, &s->slots[i].key) == &s->slots[i]);
            if (visit) visit(arg, &s->slots[i]);
            n_here++;
        }
        assert(n_here == s->n);
    }
}

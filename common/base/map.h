/* common/base/map.h - hash maps from a 64-bit number, or from a string, to a pointer.
 *
 * Open addressing with linear probing; erasing moves the followers back, so there are no tombstones
 * and a lookup ends at the first empty slot. At most 3/4 full, doubling. A value is never NULL:
 * NULL marks an empty slot. The string map copies its keys.
 *
 *      home(key) = mix(key, seed) & mask      an entry is at its home or in the run after it
 *
 * The caller provides the seed: where a peer chooses the keys, take it from hash_random, so that
 * collisions cannot be constructed. Memory: mem_alloc, so bound the number of entries. One
 * thread. */
#ifndef COMMON_BASE_MAP_H
#define COMMON_BASE_MAP_H

#include "common/base/base.h"
#include "common/base/buf.h"

struct map_slot {
    uint64_t key;
    void *value; /* NULL: empty */
};

struct map {
    struct map_slot *slots;
    size_t n_slots; /* 0 or a power of two */
    size_t n;
    uint64_t seed;
};

void map_init(struct map *m, uint64_t seed); /* allocates nothing */
void map_fini(struct map *m);                /* the values stay the caller's */
void map_clear(struct map *m);               /* keeps the memory */
void map_reserve(struct map *m, size_t n);   /* up to n entries then need no allocation */

void *map_find(const struct map *m, uint64_t key); /* NULL when absent */

/* Enters key -> value. Returns the value it replaces, NULL when the key is new. */
void *map_insert(struct map *m, uint64_t key, void *value);
void *map_erase(struct map *m, uint64_t key); /* the value that was there, or NULL */

/* Visits entries in no order: for (size_t i = 0; (e = map_next(m, &i));). No insert or erase
 * meanwhile. */
const struct map_slot *map_next(const struct map *m, size_t *cursor);
void map_check(const struct map *m); /* asserts the invariants; O(n) */

struct strmap_slot {
    struct str key; /* owned, terminated */
    uint64_t hash;
    void *value; /* NULL: empty */
};

struct strmap {
    struct strmap_slot *slots;
    size_t n_slots;
    size_t n;
    uint64_t seed;
};

void strmap_init(struct strmap *m, uint64_t seed);
void strmap_fini(struct strmap *m);
void strmap_clear(struct strmap *m);
void *strmap_find(const struct strmap *m, struct str key);
void *strmap_insert(struct strmap *m, struct str key, void *value); /* as map_insert */
void *strmap_erase(struct strmap *m, struct str key);
const struct strmap_slot *strmap_next(const struct strmap *m, size_t *cursor);
void strmap_check(const struct strmap *m);

#endif

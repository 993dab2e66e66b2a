/* worker/kv/block/prefix_cache.c - buckets of first copies, rings of duplicates. */
#include "worker/kv/block/prefix_cache.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"

#define NONE PREFIX_CACHE_NONE

struct prefix_entry {
    struct block_hash hash;
    struct block_hash extra; /* zeros: no extra keys */
    uint64_t prefix;         /* 0: not published */
    uint64_t parent;
    uint32_t bucket_next;          /* of a first copy */
    uint32_t ring_prev, ring_next; /* itself when there is one copy */
    uint16_t group;
    bool is_first; /* in the bucket */
};

static const struct block_hash no_extra;

static uint32_t *bucket_of(const struct prefix_cache *cache, const struct block_hash *hash) {
    uint64_t x;

    memcpy(&x, hash->bytes, sizeof(x));
    return &cache->buckets[x & cache->bucket_mask];
}

static uint32_t *tokens_of(const struct prefix_cache *cache, uint32_t block) {
    return cache->tokens + (size_t)block * cache->block_size;
}

static bool entry_holds(const struct prefix_cache *cache, uint32_t block,
                        const struct prefix_key *key) {
    const struct prefix_entry *e = &cache->entries[block];
    const struct block_hash *extra = key->extra ? key->extra : &no_extra;

    return memcmp(&e->hash, key->hash, sizeof(e->hash)) == 0 && e->parent == key->parent &&
           e->group == key->group && memcmp(&e->extra, extra, sizeof(e->extra)) == 0 &&
           memcmp(tokens_of(cache, block), key->tokens, cache->block_size * sizeof(*key->tokens)) ==
               0;
}

void prefix_cache_init(struct prefix_cache *cache, uint32_t n_blocks, uint32_t block_size) {
    size_t n_buckets = 16;

    while (n_buckets < (size_t)n_blocks * 2)
        n_buckets *= 2; /* load at most one half */
    *cache = (struct prefix_cache){
        .entries = mem_calloc(n_blocks, sizeof(*cache->entries)),
        .tokens = mem_calloc(n_blocks, block_size * sizeof(*cache->tokens)),
        .buckets = mem_alloc(n_buckets * sizeof(*cache->buckets)),
        .bucket_mask = (uint32_t)(n_buckets - 1),
        .n_blocks = n_blocks,
        .block_size = block_size,
    };
    memset(cache->buckets, 0xff, n_buckets * sizeof(*cache->buckets));
}

void prefix_cache_fini(struct prefix_cache *cache) {
    mem_free(cache->entries);
    mem_free(cache->tokens);
    mem_free(cache->buckets);
    *cache = (struct prefix_cache){0};
}

uint32_t prefix_cache_find(const struct prefix_cache *cache, const struct prefix_key *key) {
    uint32_t block = *bucket_of(cache, key->hash);

    while (block != NONE && !entry_holds(cache, block, key)) {
        block = cache->entries[block].bucket_next;
    }
    return block;
}

/* Behind the last copy, which is the one before the first in the ring. */
static void ring_append(struct prefix_cache *cache, uint32_t first, uint32_t block) {
    struct prefix_entry *e = &cache->entries[block], *f = &cache->entries[first];

    e->ring_prev = f->ring_prev;
    e->ring_next = first;
    cache->entries[f->ring_prev].ring_next = block;
    f->ring_prev = block;
}

void prefix_cache_insert(struct prefix_cache *cache, uint32_t block, const struct prefix_key *key,
                         uint64_t prefix) {
    struct prefix_entry *e = &cache->entries[block];
    uint32_t first = prefix_cache_find(cache, key);
    uint32_t *bucket = bucket_of(cache, key->hash);

    assert(e->prefix == 0 && key->group <= UINT16_MAX);
    e->hash = *key->hash;
    e->extra = key->extra ? *key->extra : no_extra;
    e->parent = key->parent;
    e->group = (uint16_t)key->group;
    memcpy(tokens_of(cache, block), key->tokens, cache->block_size * sizeof(*key->tokens));
    e->is_first = first == NONE;
    cache->n_cached++;
    if (!e->is_first) {
        e->prefix = cache->entries[first].prefix;
        assert(prefix == 0 || prefix == e->prefix);
        e->bucket_next = NONE;
        ring_append(cache, first, block);
        return;
    }
    e->prefix = prefix ? prefix : cache->last_prefix + 1;
    cache->last_prefix = MAX(cache->last_prefix, e->prefix);
    e->ring_prev = e->ring_next = block;
    e->bucket_next = *bucket;
    *bucket = block;
    cache->n_keys++;
}

uint64_t prefix_cache_new_number(struct prefix_cache *cache) {
    return ++cache->last_prefix;
}

/* The link in the bucket that names `block`. */
static uint32_t *bucket_link(struct prefix_cache *cache, uint32_t block) {
    uint32_t *link = bucket_of(cache, &cache->entries[block].hash);

    while (*link != block)
        link = &cache->entries[*link].bucket_next;
    return link;
}

bool prefix_cache_erase(struct prefix_cache *cache, uint32_t block) {
    struct prefix_entry *e = &cache->entries[block];

    if (e->prefix == 0) return false;
    if (e->is_first && e->ring_next == block) {
        *bucket_link(cache, block) = e->bucket_next;
        cache->n_keys--;
    } else if (e->is_first) {
        struct prefix_entry *heir = &cache->entries[e->ring_next];

        *bucket_link(cache, block) = e->ring_next;
        heir->bucket_next = e->bucket_next;
        heir->is_first = true;
    }
    cache->entries[e->ring_prev].ring_next = e->ring_next;
    cache->entries[e->ring_next].ring_prev = e->ring_prev;
    e->prefix = 0;
    cache->n_cached--;
    return true;
}

void prefix_cache_clear(struct prefix_cache *cache) {
    for (uint32_t i = 0; i < cache->n_blocks; i++)
        cache->entries[i].prefix = 0;
    memset(cache->buckets, 0xff, ((size_t)cache->bucket_mask + 1) * sizeof(*cache->buckets));
    cache->n_cached = cache->n_keys = 0;
}

bool prefix_cache_contains(const struct prefix_cache *cache, uint32_t block) {
    return cache->entries[block].prefix != 0;
}

const struct block_hash *prefix_cache_hash(const struct prefix_cache *cache, uint32_t block) {
    return prefix_cache_contains(cache, block) ? &cache->entries[block].hash : NULL;
}

struct prefix_key prefix_cache_key(const struct prefix_cache *cache, uint32_t block) {
    const struct prefix_entry *e = &cache->entries[block];

    assert(e->prefix != 0);
    return (struct prefix_key){&e->hash, e->parent, tokens_of(cache, block), &e->extra, e->group};
}

uint64_t prefix_cache_prefix(const struct prefix_cache *cache, uint32_t block) {
    assert(prefix_cache_contains(cache, block));
    return cache->entries[block].prefix;
}

uint64_t prefix_cache_parent(const struct prefix_cache *cache, uint32_t block) {
    assert(prefix_cache_contains(cache, block));
    return cache->entries[block].parent;
}

uint32_t prefix_cache_copies(const struct prefix_cache *cache, uint32_t block) {
    uint32_t n = 1;

    assert(prefix_cache_contains(cache, block));
    for (uint32_t b = cache->entries[block].ring_next; b != block; b = cache->entries[b].ring_next)
        n++;
    return n;
}

bool prefix_cache_is_only_copy(const struct prefix_cache *cache, uint32_t block) {
    assert(prefix_cache_contains(cache, block));
    return cache->entries[block].ring_next == block;
}

bool prefix_cache_is_only_of_hash(const struct prefix_cache *cache, uint32_t block) {
    const struct prefix_entry *e = &cache->entries[block];

    if (!prefix_cache_is_only_copy(cache, block)) return false;
    for (uint32_t b = *bucket_of(cache, &e->hash); b != NONE; b = cache->entries[b].bucket_next) {
        const struct prefix_entry *other = &cache->entries[b];

        if (b != block && other->group == e->group &&
            memcmp(&other->hash, &e->hash, sizeof(e->hash)) == 0)
            return false;
    }
    return true;
}

/* One ring: a single first copy, the same content and prefix number all around. */
static uint32_t check_ring(const struct prefix_cache *cache, uint32_t first) {
    const struct prefix_entry *f = &cache->entries[first];
    struct prefix_key key = prefix_cache_key(cache, first);
    uint32_t n = 0, b = first;

    assert(f->is_first && f->prefix <= cache->last_prefix);
    do {
        const struct prefix_entry *e = &cache->entries[b];

        assert(e->prefix == f->prefix && e->is_first == (b == first));
        assert(entry_holds(cache, b, &key));
        assert(cache->entries[e->ring_next].ring_prev == b);
        b = e->ring_next;
        assert(++n <= cache->n_cached);
    } while (b != first);
    return n;
}

void prefix_cache_check(const struct prefix_cache *cache) {
    uint32_t n_published = 0, n_reached = 0, n_keys = 0;

    for (uint32_t i = 0; i < cache->n_blocks; i++)
        n_published += prefix_cache_contains(cache, i);
    for (size_t b = 0; b <= cache->bucket_mask; b++) {
        for (uint32_t i = cache->buckets[b]; i != NONE; i = cache->entries[i].bucket_next) {
            assert(bucket_of(cache, &cache->entries[i].hash) == &cache->buckets[b]);
            n_reached += check_ring(cache, i);
            assert(++n_keys <= cache->n_keys);
        }
    }
    assert(n_published == cache->n_cached && n_reached == cache->n_cached);
    assert(n_keys == cache->n_keys);
}

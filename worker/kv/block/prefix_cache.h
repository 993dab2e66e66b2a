/* worker/kv/block/prefix_cache.h - from block hash to the physical blocks that hold that prefix.
 *
 * Each physical block has one entry; a published block is linked into a bucket of a hash table by
 * its hash. Blocks with the same content (two requests computed it side by side) form a ring of
 * duplicates in order of insertion; only the first is in the bucket:
 *
 *      bucket -> entry A (prefix 7) -> entry B (prefix 9)          next in bucket
 *                  |  ring: A, A', A''
 *
 * A hash alone is not trusted. An entry keeps its tokens, the digest of its extra keys and the
 * *prefix number* of its parent, and a lookup compares all of them. A prefix number names one exact
 * token prefix for as long as a block of it is cached: it is given at insertion and shared by
 * duplicates. So by induction from the root a found block holds the KV of exactly the requested
 * tokens, even if hashes collide.
 *
 * Thread: engine. Nothing is allocated after init. */
#ifndef WORKER_KV_BLOCK_PREFIX_CACHE_H
#define WORKER_KV_BLOCK_PREFIX_CACHE_H

#include "common/base/base.h"
#include "worker/kv/block/block_hash.h"

#define PREFIX_CACHE_NONE UINT32_MAX
#define PREFIX_ROOT       0u /* the prefix number of the empty prefix */

/* The content of one block: a query, or published. */
struct prefix_key {
    const struct block_hash *hash;
    uint64_t parent;                /* prefix number of the block before it, or PREFIX_ROOT */
    const uint32_t *tokens;         /* (block_size) */
    const struct block_hash *extra; /* digest of the extra keys, NULL for none */
    uint32_t group;                 /* attention group whose KV it is; 0 when there is one */
};

struct prefix_entry;
struct prefix_cache {
    struct prefix_entry *entries; /* (n_blocks) */
    uint32_t *tokens;             /* (n_blocks, block_size) */
    uint32_t *buckets;            /* (bucket_mask + 1) first entry, or PREFIX_CACHE_NONE */
    uint32_t bucket_mask, n_blocks, block_size;
    uint32_t n_cached; /* blocks published */
    uint32_t n_keys;   /* distinct contents among them */
    uint64_t last_prefix;
};

void prefix_cache_init(struct prefix_cache *cache, uint32_t n_blocks, uint32_t block_size);
void prefix_cache_fini(struct prefix_cache *cache);

/* The first inserted of the blocks with this content, or PREFIX_CACHE_NONE. */
uint32_t prefix_cache_find(const struct prefix_cache *cache, const struct prefix_key *key);

/* Publishes `block`, which must not be published yet (asserted). Never replaces: equal content
 * becomes a duplicate behind the first. `prefix`: the number of this content in another cache (of
 * host or device memory), by which a chain continues from one to the other; 0: the cache assigns
 * one. Only one of two caches assigns numbers. */
void prefix_cache_insert(struct prefix_cache *cache, uint32_t block, const struct prefix_key *key,
                         uint64_t prefix);

/* A number for a content that is in the other cache first. Of the cache that assigns them. */
uint64_t prefix_cache_new_number(struct prefix_cache *cache);

/* Forgets this one copy. False, and nothing done, when the block is not published. */
bool prefix_cache_erase(struct prefix_cache *cache, uint32_t block);

void prefix_cache_clear(struct prefix_cache *cache); /* O(n_blocks) */

bool prefix_cache_contains(const struct prefix_cache *cache, uint32_t block);
/* The hash a block is published under, or NULL. */
const struct block_hash *prefix_cache_hash(const struct prefix_cache *cache, uint32_t block);

/* The content of a published block; points into the cache. */
struct prefix_key prefix_cache_key(const struct prefix_cache *cache, uint32_t block);

/* Of a published block: its own prefix number, its parent's, and how many copies there are. */
uint64_t prefix_cache_prefix(const struct prefix_cache *cache, uint32_t block);
uint64_t prefix_cache_parent(const struct prefix_cache *cache, uint32_t block);
uint32_t prefix_cache_copies(const struct prefix_cache *cache, uint32_t block);
bool prefix_cache_is_only_copy(const struct prefix_cache *cache, uint32_t block); /* O(1) */
/* No other block of its group is published under its hash, copies and other contents included. */
bool prefix_cache_is_only_of_hash(const struct prefix_cache *cache, uint32_t block);

void prefix_cache_check(const struct prefix_cache *cache); /* O(n_blocks) */

#endif

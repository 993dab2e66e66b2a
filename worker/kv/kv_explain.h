/* worker/kv/kv_explain.h - why a prompt's prefix was not found any further.
 *
 * Explains why a prompt hit no further. The evidence is in the cache at the lookup and gone a
 * little later, so the explanation is computed then, and cheaply:
 *
 *      first block not found
 *        ├─ its key is among those evicted lately          evicted, and when    (ghosts)
 *        ├─ first block: the same tokens, another adapter  adapter              (roots by content)
 *        ├─ the block before it has other children         differs, at token t  (children)
 *        └─ none of these                                  never seen
 *
 * Ghosts are the hashes of the contents that left the cache last, with their time (in 16 ms), in
 * sets of five, one cache line each; a new one replaces the oldest of its set. Children are lists
 * through the physical blocks: a published block hangs on the block that its sequence holds before
 * it; first blocks hang on a bucket by their first token, and on one by all their tokens. All of
 * this is O(1) per block published or evicted, on memory that those operations touch anyway. A walk
 * visits at most the KV_EXPLAIN_WALK youngest members of a list.
 *
 * A list may lose members: when a block is evicted while a duplicate stays, the children linked to
 * the evicted one are no longer found. A member is never wrong.
 *
 * Only the first group, and only when it is a full one, has children: a window keeps no chains.
 * Thread: engine. No clock: the time of an eviction is given. Nothing is allocated after init. */
#ifndef WORKER_KV_KV_EXPLAIN_H
#define WORKER_KV_KV_EXPLAIN_H

#include "worker/kv/block/block_pool.h"

#define KV_EXPLAIN_WALK                                                                            \
    256 /* members of a list looked at; enough to find the nearest in practice */

enum kv_miss {
    KV_MISS_NONE,       /* all that could be found was */
    KV_MISS_NEVER_SEEN, /* nothing like it is cached, nor was lately */
    KV_MISS_SHORT,      /* no full block before the last token */
    KV_MISS_DIFFERS,    /* the nearest cached prompt has other tokens from here on */
    KV_MISS_EVICTED,    /* it was there, and had to make room */
    KV_MISS_SALT,       /* it is there under another cache_salt: counted, never explained */
    KV_MISS_ADAPTER,    /* it is there for another adapter */
    KV_MISS_MEDIA,      /* the same tokens stand for another image or sound */
    KV_MISS_OFF,        /* prefix caching is switched off */
    KV_MISS_LOGPROBS,   /* prompt_logprobs: everything has to be computed */
    KV_MISS_COUNT
};
const char *kv_miss_name(enum kv_miss cause); /* "never_seen"; a label of a metric */

struct kv_explanation {
    enum kv_miss cause;
    uint32_t n_tokens, n_hit_tokens;
    uint32_t n_host_tokens; /* of the hit, brought back from host memory */
    uint32_t block_size;
    uint32_t block;           /* the first that was not found, when there is one */
    uint32_t token;           /* DIFFERS, NEVER_SEEN: the first token that is nowhere cached here */
    uint32_t cached_token_id; /* DIFFERS: what the nearest prompt has there */
    uint32_t n_other_tokens;  /* ADAPTER: tokens that the other adapter's prompt would hit */
    uint64_t evicted_us;      /* EVICTED: when, on the clock that evictions were given ... */
    uint64_t now_us;          /* ... and the time of this answer */
};

/* What first blocks of equal tokens differ by: hashes of adapter and salt; 0 for none. */
struct kv_origin {
    uint64_t lora, salt;
};
struct kv_origin kv_origin_of(const struct block_extras *extras);

struct kv_explain;

struct kv_explain *kv_explain_create(uint32_t n_blocks, uint32_t block_size);
void kv_explain_destroy(struct kv_explain *x); /* NULL is fine */

/* `id` of the pool `cache` is about was just published, behind block `parent` of its sequence
 * (BLOCK_NONE: it is the first; then `origin` counts). */
void kv_explain_published(struct kv_explain *x, const struct prefix_cache *cache, block_id id,
                          block_id parent, struct kv_origin origin);

/* Called before it is forgotten, while its content can still be queried. */
void kv_explain_forgotten(struct kv_explain *x, const struct prefix_cache *cache, block_id id);

/* The last block with this hash has left the cache. */
void kv_explain_evicted(struct kv_explain *x, const struct block_hash *hash, uint64_t now_us);

/* Everything was forgotten at once; ghosts stay. */
void kv_explain_reset(struct kv_explain *x);

/* A lookup that ended before full block `block`, which exists. */
struct kv_miss_query {
    const struct prefix_cache *cache;
    const struct block_hash *hash; /* of that block */
    const uint32_t *tokens;        /* of the whole sequence */
    uint32_t block, n_blocks;      /* n_blocks: full ones that could have hit */
    block_id parent; /* the device's block before it; BLOCK_NONE: first, or elsewhere */
    struct kv_origin origin;
};

/* The cause alone, for operators' counters: a few lookups, no walk. DIFFERS when there is any
 * sibling. */
enum kv_miss kv_explain_cause(const struct kv_explain *x, const struct kv_miss_query *q);

/* The full explanation, for the client that sent the prompt; walks the lists. Blocks of other salts
 * are ignored: the explanation is the same as if they did not exist. */
void kv_explain_miss(const struct kv_explain *x, const struct kv_miss_query *q,
                     struct kv_explanation *out);

void kv_explain_check(const struct kv_explain *x, const struct prefix_cache *cache);

#endif

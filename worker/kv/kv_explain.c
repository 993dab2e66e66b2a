/* worker/kv/kv_explain.c - ghosts, and lists of children through the blocks. */
#include "worker/kv/kv_explain.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"

#define NONE BLOCK_NONE

#define MULTIPLIER 0x9E3779B97F4A7C15ull /* of Fibonacci hashing */

/* Ghosts per block of the pool, and their limits: at 16 tokens a block, those of 4 M tokens at
 * most, in 3 MiB. */
#define GHOSTS_PER_BLOCK 2
#define GHOSTS_MIN       1024u
#define GHOSTS_MAX       (1u << 18)
#define GHOST_WAYS       5
#define GHOST_TIME_SHIFT 14 /* times are kept in 16 ms */

struct sibling {
    uint32_t prev, next; /* among the children of one block, or in one bucket; NONE: end */
};

/* Of one physical block. */
struct node {
    uint32_t parent;      /* the block it hangs on; NONE: a first block, it hangs on a bucket */
    uint32_t first_child; /* the youngest */
    struct sibling link;
    bool is_in;
};

/* Buckets of doubly linked lists through one array of links. */
struct buckets {
    uint32_t *heads; /* (mask + 1) */
    uint32_t mask;
};

/* A cache line of ghosts. The oldest is replaced, so an eviction touches one line. */
struct ghost_set {
    uint64_t key[GHOST_WAYS];  /* of the hash; 0: empty */
    uint32_t time[GHOST_WAYS]; /* of the eviction, in 16 ms */
    uint32_t unused;
};
_Static_assert(sizeof(struct ghost_set) == 64, "a cache line");

struct kv_explain {
    uint32_t n_blocks, block_size;
    struct node *nodes;            /* (n_blocks) */
    struct sibling *content_links; /* (n_blocks) of first blocks */
    struct kv_origin *origins;     /* (n_blocks) of first blocks */
    struct buckets by_first_token, by_content;
    struct ghost_set *ghosts; /* (ghost_mask + 1) */
    uint32_t ghost_mask;
};

const char *kv_miss_name(enum kv_miss cause) {
    static const char *const names[KV_MISS_COUNT] = {
        "none",    "never_seen", "shorter_than_block", "differs",        "evicted", "salt",
        "adapter", "media",      "caching_off",        "prompt_logprobs"};

    return names[cause];
}

struct kv_origin kv_origin_of(const struct block_extras *x) {
    struct kv_origin o = {0, 0};

    if (!x) return o;
    if (x->lora.len > 0) o.lora = hash_64(x->lora.ptr, x->lora.len, 1) | 1;
    if (x->cache_salt.len > 0) {
        o.salt = hash_64(x->cache_salt.ptr, x->cache_salt.len, 2) | 1;
    }
    return o;
}

/* --- creation --------------------------------------------------------------------------------- */

static uint32_t power_of_two(uint32_t at_least) {
    uint32_t n = 16;

    while (n < at_least)
        n *= 2;
    return n;
}

static void buckets_init(struct buckets *b, uint32_t n) {
    b->heads = mem_alloc(n * sizeof(*b->heads));
    b->mask = n - 1;
    memset(b->heads, 0xff, n * sizeof(*b->heads));
}

static void clear_nodes(struct kv_explain *x) {
    for (uint32_t i = 0; i < x->n_blocks; i++)
        x->nodes[i] = (struct node){NONE, NONE, {NONE, NONE}, false};
}

struct kv_explain *kv_explain_create(uint32_t n_blocks, uint32_t block_size) {
    struct kv_explain *x = mem_zalloc(sizeof(*x));
    uint32_t n_ghosts = (uint32_t)MIN((uint64_t)n_blocks * GHOSTS_PER_BLOCK, GHOSTS_MAX);
    uint32_t n_buckets = power_of_two(n_blocks);

    x->n_blocks = n_blocks;
    x->block_size = block_size;
    x->nodes = mem_calloc(n_blocks, sizeof(*x->nodes));
    x->content_links = mem_calloc(n_blocks, sizeof(*x->content_links));
    x->origins = mem_calloc(n_blocks, sizeof(*x->origins));
    buckets_init(&x->by_first_token, n_buckets);
    buckets_init(&x->by_content, n_buckets);
    x->ghost_mask = power_of_two(MAX(n_ghosts, GHOSTS_MIN) / GHOST_WAYS) - 1;
    x->ghosts = mem_calloc((size_t)x->ghost_mask + 1, sizeof(*x->ghosts));
    clear_nodes(x);
    return x;
}

void kv_explain_destroy(struct kv_explain *x) {
    if (!x) return;
    mem_free(x->nodes);
    mem_free(x->content_links);
    mem_free(x->origins);
    mem_free(x->by_first_token.heads);
    mem_free(x->by_content.heads);
    mem_free(x->ghosts);
    mem_free(x);
}

/* --- children --------------------------------------------------------------------------------- */

static uint32_t *first_token_head(const struct kv_explain *x, const uint32_t *tokens,
                                  struct kv_origin origin) {
    uint64_t mixed = (tokens[0] ^ origin.lora ^ origin.salt) * MULTIPLIER;

    return &x->by_first_token.heads[(mixed >> 32) & x->by_first_token.mask];
}

static uint32_t *content_head(const struct kv_explain *x, const uint32_t *tokens) {
    uint64_t hash = hash_64(tokens, x->block_size * sizeof(*tokens), 0);

    return &x->by_content.heads[hash & x->by_content.mask];
}

/* The link of a block in one kind of list. */
static struct sibling *node_link(struct kv_explain *x, uint32_t id) {
    return &x->nodes[id].link;
}

static struct sibling *content_link(struct kv_explain *x, uint32_t id) {
    return &x->content_links[id];
}

typedef struct sibling *link_fn(struct kv_explain *x, uint32_t id);

static void push(struct kv_explain *x, link_fn *link, uint32_t *head, uint32_t id) {
    *link(x, id) = (struct sibling){NONE, *head};
    if (*head != NONE) link(x, *head)->prev = id;
    *head = id;
}

/* `head` may belong to another list by now (its block was evicted and reused): then the entry is
 * not in this list. */
static void unlink_from(struct kv_explain *x, link_fn *link, uint32_t *head, uint32_t id) {
    struct sibling *l = link(x, id);

    if (*head == id) *head = l->next;
    if (l->prev != NONE) link(x, l->prev)->next = l->next;
    if (l->next != NONE) link(x, l->next)->prev = l->prev;
}

void kv_explain_published(struct kv_explain *x, const struct prefix_cache *cache, block_id id,
                          block_id parent, struct kv_origin origin) {
    struct node *n = &x->nodes[id];

    n->parent = parent;
    n->first_child = NONE;
    n->is_in = true;
    if (parent != NONE) {
        push(x, node_link, &x->nodes[parent].first_child, id);
        return;
    }
    x->origins[id] = origin;
    push(x, node_link, first_token_head(x, prefix_cache_key(cache, id).tokens, x->origins[id]), id);
    push(x, content_link, content_head(x, prefix_cache_key(cache, id).tokens), id);
}

void kv_explain_forgotten(struct kv_explain *x, const struct prefix_cache *cache, block_id id) {
    struct node *n = &x->nodes[id];

    if (!n->is_in) return;
    n->is_in = false;
    if (n->parent != NONE) {
        unlink_from(x, node_link, &x->nodes[n->parent].first_child, id);
    } else {
        unlink_from(x, node_link,
                    first_token_head(x, prefix_cache_key(cache, id).tokens, x->origins[id]), id);
        unlink_from(x, content_link, content_head(x, prefix_cache_key(cache, id).tokens), id);
    }
    n->first_child = NONE;
}

void kv_explain_reset(struct kv_explain *x) {
    clear_nodes(x);
    memset(x->by_first_token.heads, 0xff,
           ((size_t)x->by_first_token.mask + 1) * sizeof(*x->by_first_token.heads));
    memset(x->by_content.heads, 0xff,
           ((size_t)x->by_content.mask + 1) * sizeof(*x->by_content.heads));
}

/* --- ghosts ----------------------------------------------------------------------------------- */

static uint64_t ghost_key(const struct block_hash *hash) {
    uint64_t key;

    memcpy(&key, hash->bytes, sizeof(key));
    return key ? key : 1;
}

static struct ghost_set *ghost_set_of(const struct kv_explain *x, uint64_t key) {
    return &x->ghosts[(key * MULTIPLIER >> 32) & x->ghost_mask];
}

/* When the content with this hash was evicted. False: not lately. */
static bool find_ghost(const struct kv_explain *x, const struct block_hash *hash,
                       uint64_t *evicted_us) {
    uint64_t key = ghost_key(hash);
    const struct ghost_set *set = ghost_set_of(x, key);

    for (int i = 0; i < GHOST_WAYS; i++) {
        if (set->key[i] != key) continue;
        *evicted_us = (uint64_t)set->time[i] << GHOST_TIME_SHIFT;
        return true;
    }
    return false;
}

void kv_explain_evicted(struct kv_explain *x, const struct block_hash *hash, uint64_t now_us) {
    uint64_t key = ghost_key(hash);
    struct ghost_set *set = ghost_set_of(x, key);
    int oldest = 0;

    for (int i = 0; i < GHOST_WAYS; i++) {
        if (set->key[i] == key || set->key[i] == 0) {
            oldest = i;
            break;
        }
        if (set->time[i] < set->time[oldest]) oldest = i;
    }
    set->key[oldest] = key;
    set->time[oldest] = (uint32_t)(now_us >> GHOST_TIME_SHIFT);
}

/* --- answers ---------------------------------------------------------------------------------- */

static const uint32_t *tokens_of(const struct prefix_cache *cache, block_id id) {
    return prefix_cache_key(cache, id).tokens;
}

static uint32_t common_tokens(const struct kv_explain *x, const uint32_t *a, const uint32_t *b) {
    uint32_t n = 0;

    while (n < x->block_size && a[n] == b[n])
        n++;
    return n;
}

static bool is_same_origin(struct kv_origin a, struct kv_origin b) {
    return a.lora == b.lora && a.salt == b.salt;
}

/* A first block with these tokens and another origin; `is_own`: of the same salt. */
static block_id find_elsewhere(const struct kv_explain *x, const struct kv_miss_query *q,
                               bool is_own) {
    uint32_t n_left = KV_EXPLAIN_WALK;

    for (uint32_t id = *content_head(x, q->tokens); id != NONE && n_left-- > 0;
         id = x->content_links[id].next) {
        if (is_own && x->origins[id].salt != q->origin.salt) continue;
        if (!is_same_origin(x->origins[id], q->origin) &&
            common_tokens(x, tokens_of(q->cache, id), q->tokens) == x->block_size) {
            return id;
        }
    }
    return NONE;
}

/* The list in which a sibling of the missing block would be, youngest first. */
static uint32_t first_sibling(const struct kv_explain *x, const struct kv_miss_query *q) {
    if (q->block == 0) return *first_token_head(x, q->tokens, q->origin);
    return q->parent != NONE ? x->nodes[q->parent].first_child : NONE;
}

/* First blocks share a bucket with others, and other origins' prompts are none of ours. */
static bool is_sibling(const struct kv_explain *x, const struct kv_miss_query *q, block_id id) {
    return q->block > 0 || (is_same_origin(x->origins[id], q->origin) &&
                            tokens_of(q->cache, id)[0] == q->tokens[0]);
}

/* The one with the longest beginning in common, *n_common tokens. */
static block_id nearest_sibling(const struct kv_explain *x, const struct kv_miss_query *q,
                                uint32_t walk, uint32_t *n_common) {
    const uint32_t *tokens = q->tokens + (size_t)q->block * x->block_size;
    block_id best = NONE;

    *n_common = 0;
    for (uint32_t id = first_sibling(x, q); id != NONE && walk > 0; id = x->nodes[id].link.next) {
        uint32_t n;

        walk--;
        if (!is_sibling(x, q, id)) continue;
        n = common_tokens(x, tokens_of(q->cache, id), tokens);
        if (best != NONE && n <= *n_common) continue;
        best = id;
        *n_common = n;
    }
    return best;
}

static enum kv_miss cause_elsewhere(const struct kv_explain *x, const struct kv_miss_query *q,
                                    block_id elsewhere) {
    return x->origins[elsewhere].lora != q->origin.lora ? KV_MISS_ADAPTER : KV_MISS_SALT;
}

enum kv_miss kv_explain_cause(const struct kv_explain *x, const struct kv_miss_query *q) {
    block_id elsewhere;
    uint64_t evicted_us;
    uint32_t n_common;

    if (find_ghost(x, q->hash, &evicted_us)) return KV_MISS_EVICTED;
    elsewhere = q->block == 0 ? find_elsewhere(x, q, false) : NONE;
    if (elsewhere != NONE) return cause_elsewhere(x, q, elsewhere);
    if (nearest_sibling(x, q, 8, &n_common) == NONE) return KV_MISS_NEVER_SEEN;
    return n_common == x->block_size ? KV_MISS_MEDIA : KV_MISS_DIFFERS;
}

/* How far the chain under `id` continues the request's tokens. */
static uint32_t follow(const struct kv_explain *x, const struct kv_miss_query *q, block_id id) {
    uint32_t n = 1;

    for (; n < q->n_blocks; n++) {
        const uint32_t *tokens = q->tokens + (size_t)n * x->block_size;
        uint32_t walk = KV_EXPLAIN_WALK;

        id = x->nodes[id].first_child;
        while (id != NONE && walk > 0 &&
               common_tokens(x, tokens_of(q->cache, id), tokens) < x->block_size) {
            id = x->nodes[id].link.next;
            walk--;
        }
        if (id == NONE || walk == 0) break;
    }
    return n;
}

/* Among what has the same extra keys. */
static void explain_own(const struct kv_explain *x, const struct kv_miss_query *q,
                        struct kv_explanation *out) {
    uint32_t n_common;
    block_id nearest = nearest_sibling(x, q, KV_EXPLAIN_WALK, &n_common);

    out->cause = KV_MISS_NEVER_SEEN;
    if (nearest == NONE) return;
    out->cause = n_common == x->block_size ? KV_MISS_MEDIA : KV_MISS_DIFFERS;
    if (out->cause == KV_MISS_MEDIA) return;
    out->token += n_common;
    out->cached_token_id = tokens_of(q->cache, nearest)[n_common];
}

void kv_explain_miss(const struct kv_explain *x, const struct kv_miss_query *q,
                     struct kv_explanation *out) {
    block_id other = NONE;

    out->block = q->block;
    out->token = q->block * x->block_size;
    if (find_ghost(x, q->hash, &out->evicted_us)) {
        out->cause = KV_MISS_EVICTED;
    } else {
        explain_own(x, q, out);
        if (q->block == 0) other = find_elsewhere(x, q, true);
    }
    if (other == NONE) return;
    out->cause = KV_MISS_ADAPTER;
    out->token = q->block * x->block_size;
    out->n_other_tokens = follow(x, q, other) * x->block_size;
}

/* --- check ------------------------------------------------------------------------------------ */

static uint32_t check_list(const struct kv_explain *x, uint32_t head) {
    uint32_t n = 0, prev = NONE;

    for (uint32_t id = head; id != NONE; prev = id, id = x->nodes[id].link.next) {
        assert(x->nodes[id].is_in && x->nodes[id].link.prev == prev);
        assert(++n <= x->n_blocks);
    }
    return n;
}

static uint32_t check_content_list(const struct kv_explain *x, uint32_t head) {
    uint32_t n = 0;

    for (uint32_t id = head; id != NONE; id = x->content_links[id].next) {
        assert(x->nodes[id].is_in && x->nodes[id].parent == NONE);
        assert(++n <= x->n_blocks);
    }
    return n;
}

void kv_explain_check(const struct kv_explain *x, const struct prefix_cache *cache) {
    uint32_t n_roots = 0, n_by_token = 0, n_by_content = 0;

    for (uint32_t id = 0; id < x->n_blocks; id++) {
        const struct node *n = &x->nodes[id];

        if (!n->is_in) continue;
        assert(prefix_cache_contains(cache, id));
        n_roots += n->parent == NONE;
        check_list(x, n->first_child);
        for (uint32_t child = n->first_child; child != NONE; child = x->nodes[child].link.next) {
            assert(x->nodes[child].parent == id);
            assert(prefix_cache_parent(cache, child) == prefix_cache_prefix(cache, id));
        }
    }
    for (uint32_t b = 0; b <= x->by_first_token.mask; b++)
        n_by_token += check_list(x, x->by_first_token.heads[b]);
    for (uint32_t b = 0; b <= x->by_content.mask; b++)
        n_by_content += check_content_list(x, x->by_content.heads[b]);
    assert(n_roots == n_by_token && n_roots == n_by_content);
}

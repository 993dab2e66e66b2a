/* worker/kv/kv_group.c - four kinds of attention over one kind of table. */
#include "worker/kv/kv_group.h"

#include <assert.h>
#include <string.h>

/* --- what is needed -------------------------------------------------------------------------- */

struct kv_range kv_group_skipped(const struct kv_group *g, uint32_t n_computed, uint32_t n_prompt) {
    uint32_t bs = g->block_size, window = g->config.window;
    struct kv_range none = {0, 0}, gap;

    switch (g->config.kind) {
    case KV_FULL: return none;
    case KV_SLIDING: /* position n_computed sees itself and window - 1 before it */
        return (struct kv_range){0, n_computed < window ? 0 : (n_computed - window + 1) / bs};
    case KV_CHUNKED: return (struct kv_range){0, n_computed / window * window / bs};
    case KV_REFERENCE:
        gap.from = CEIL_DIV(n_prompt, bs);
        gap.to = n_computed < window ? 0 : (n_computed - window) / bs;
        return n_prompt > 0 && gap.to > gap.from ? gap : none;
    }
    return none;
}

/* Leading blocks that nothing from n_computed on needs. */
static uint32_t n_skipped(const struct kv_group *g, uint32_t n_computed) {
    return g->config.kind == KV_REFERENCE ? 0 : kv_group_skipped(g, n_computed, 0).to;
}

uint32_t kv_group_most_blocks(const struct kv_group_config *config, uint32_t block_size,
                              uint32_t n_tokens, uint32_t step_tokens) {
    uint32_t all = CEIL_DIV(n_tokens, block_size);
    uint64_t live;

    if (config->kind == KV_FULL || config->kind == KV_REFERENCE) return all;
    /* The window behind the step's first token, and the step; it may begin inside a block. */
    live = CEIL_DIV((uint64_t)config->window - 1 + step_tokens, block_size) + 1;
    return (uint32_t)MIN(live, all);
}

/* --- lookup ---------------------------------------------------------------------------------- */

/* Group by group and block by block: queried or published. */
struct prefix_key kv_group_key(const struct kv_group *g, const struct kv_chain *chain,
                               uint32_t index, uint64_t parent) {
    struct prefix_key key = {
        .hash = &chain->hashes[index],
        .parent = parent,
        .tokens = chain->tokens + (size_t)index * g->block_size,
        .extra = chain->extras ? &chain->extras[index] : NULL,
        .group = g->number,
    };

    if (g->config.kind != KV_FULL) {
        key.parent = PREFIX_ROOT;
        key.extra = &chain->witnesses[index];
    }
    return key;
}

static block_id find_block(const struct kv_group *g, const struct kv_chain *chain, uint32_t index,
                           uint64_t parent) {
    struct prefix_key key = kv_group_key(g, chain, index, parent);

    return block_pool_find(g->pool, &key);
}

/* Left to right to the first miss, each block through the one before it. */
static uint32_t find_from_start(const struct kv_group *g, const struct kv_chain *chain,
                                uint32_t n_max, block_id *ids) {
    const struct prefix_cache *cache = block_pool_cache(g->pool);
    uint64_t parent = PREFIX_ROOT;
    uint32_t n = 0;

    for (; n < n_max; n++) {
        ids[n] = find_block(g, chain, n, parent);
        if (ids[n] == BLOCK_NONE) break;
        parent = prefix_cache_prefix(cache, ids[n]);
    }
    return n;
}

/* Right to left: a hit that ends at `end` needs all blocks from the first one its next token sees.
 * A hole at i rules out every end behind it, for an earlier end never needs a later block. */
static uint32_t find_window(const struct kv_group *g, const struct kv_chain *chain, uint32_t n_max,
                            block_id *ids) {
    uint32_t end = n_max, i = n_max, first = n_skipped(g, end * g->block_size);

    while (i > first) {
        ids[i - 1] = find_block(g, chain, i - 1, PREFIX_ROOT);
        if (ids[--i] != BLOCK_NONE) continue;
        end = i;
        first = n_skipped(g, end * g->block_size);
    }
    memset(ids, 0, MIN(first, end) * sizeof(*ids)); /* BLOCK_NULL */
    return end;
}

uint32_t kv_group_find(const struct kv_group *g, const struct kv_chain *chain, uint32_t n_max,
                       block_id *ids) {
    if (g->config.kind == KV_FULL || g->config.kind == KV_REFERENCE)
        return find_from_start(g, chain, n_max, ids);
    return find_window(g, chain, n_max, ids);
}

/* --- the table ------------------------------------------------------------------------------- */

bool kv_group_is_shared(const struct kv_group *g, const struct block_table *t, uint32_t index) {
    return block_pool_ref_cnt(g->pool, t->ids[index]) > 1 ||
           (index < t->n_inherited &&
            prefix_cache_contains(block_pool_cache(g->pool), t->ids[index]));
}

struct kv_need kv_group_need(const struct kv_group *g, const struct block_table *t,
                             const block_id *hits, uint32_t n_hits, uint32_t n_before,
                             uint32_t n_slots) {
    uint32_t bs = g->block_size, n_required = CEIL_DIV(n_slots, bs);
    uint32_t skipped = n_skipped(g, n_before), n_covered = MAX(t->n_blocks + n_hits, skipped);
    struct kv_need need = {.n_new = n_required > n_covered ? n_required - n_covered : 0};

    for (uint32_t i = skipped; i < n_hits; i++) /* a table with blocks has no hits to come */
        need.n_revived += block_pool_ref_cnt(g->pool, hits[i]) == 0;
    for (uint32_t i = n_before / bs; g->has_forked && i < MIN(n_required, t->n_blocks); i++)
        need.n_copies += kv_group_is_shared(g, t, i);
    return need;
}

struct kv_need kv_group_need_whole(const struct kv_group *g, const struct block_table *t,
                                   const block_id *hits, uint32_t n_hits, uint32_t n_before,
                                   uint32_t n_tokens, uint32_t step_tokens) {
    struct kv_need need = kv_group_need(g, t, hits, n_hits, n_before, MAX(n_before, n_tokens));
    uint32_t most = kv_group_most_blocks(&g->config, g->block_size, n_tokens, step_tokens);
    uint32_t skipped = n_skipped(g, n_before), n_have = MAX(t->n_blocks + n_hits, skipped);

    most -= MIN(most, n_have - skipped); /* of these it has some */
    need.n_new = MIN(need.n_new, most);
    return need;
}

void kv_group_attach(const struct kv_group *g, struct block_table *t, const block_id *hits,
                     uint32_t n_hits, uint32_t n_before) {
    static const block_id null = BLOCK_NULL;
    uint32_t skipped = n_skipped(g, n_before);

    assert(t->n_blocks == 0 || n_hits == 0);
    while (t->n_blocks < skipped)
        block_table_append(t, &null, 1);
    if (n_hits <= skipped) return;
    block_pool_touch(g->pool, hits + skipped, n_hits - skipped);
    block_table_append(t, hits + skipped, n_hits - skipped);
}

void kv_group_drop_skipped(const struct kv_group *g, struct block_table *t, uint32_t n_computed,
                           uint32_t n_prompt, block_id *scratch) {
    struct kv_range gone = kv_group_skipped(g, n_computed, n_prompt);
    uint32_t n = 0;

    for (uint32_t i = MIN(gone.to, t->n_blocks); i > gone.from; i--) {
        if (t->ids[i - 1] == BLOCK_NULL) break; /* and so is everything before it */
        scratch[n++] = t->ids[i - 1];
        block_table_drop(t, i - 1);
    }
    block_pool_release(g->pool, scratch, n);
}

void kv_group_release(const struct kv_group *g, struct block_table *t, block_id *scratch) {
    uint32_t n = t->n_blocks;

    for (uint32_t i = 0; i < n; i++)
        scratch[i] = t->ids[n - 1 - i];
    block_pool_release(g->pool, scratch, n);
    block_table_clear(t);
}

/* --- publish --------------------------------------------------------------------------------- */

/* The block another sequence has for this content takes the place of ours. */
static void switch_block(const struct kv_group *g, struct block_table *t, uint32_t index,
                         block_id canonical) {
    block_id ours = t->ids[index];

    block_pool_touch(g->pool, &canonical, 1);
    block_pool_release(g->pool, &ours, 1);
    block_table_replace(t, index, canonical);
}

/* The number that this content has in host memory; 0: it is not there. */
static uint64_t number_on_host(const struct kv_group *g, const struct prefix_key *key) {
    block_id id = g->host ? kv_host_find(g->host, key) : BLOCK_NONE;

    return id == BLOCK_NONE ? 0 : prefix_cache_prefix(kv_host_cache(g->host), id);
}

bool kv_group_publish(const struct kv_group *g, struct block_table *t, const struct kv_chain *chain,
                      uint32_t index, bool dedup) {
    const struct prefix_cache *cache = block_pool_cache(g->pool);
    block_id canonical = BLOCK_NONE, id = t->ids[index];
    bool is_full = g->config.kind == KV_FULL;
    uint64_t parent = PREFIX_ROOT;
    struct prefix_key key;

    if (id == BLOCK_NULL && !is_full) return false;
    if (is_full && index > 0) parent = prefix_cache_prefix(cache, t->ids[index - 1]);
    key = kv_group_key(g, chain, index, parent);
    if (prefix_cache_contains(cache, id)) {
        assert(memcmp(prefix_cache_hash(cache, id), key.hash, sizeof(*key.hash)) == 0);
        return false;
    }
    /* A block that a fork holds too stays, because blocks published behind it need their parent in
     * use. */
    if (dedup && block_pool_ref_cnt(g->pool, id) == 1) canonical = block_pool_find(g->pool, &key);
    if (canonical != BLOCK_NONE) {
        switch_block(g, t, index, canonical);
        return false;
    }
    block_pool_publish(g->pool, id, &key, number_on_host(g, &key));
    if (is_full && index > 0) block_pool_link(g->pool, id, t->ids[index - 1]);
    return true;
}

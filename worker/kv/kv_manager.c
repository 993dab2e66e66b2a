/* worker/kv/kv_manager.c - lookup, allocate, publish, free. */
#include "worker/kv/kv_manager.h"

#include "common/mem.h"

#include <assert.h>

#define FULL_ATTENTION_GROUP 0u

struct kv_manager {
    struct kv_manager_config config;
    struct block_pool *pool;
    struct block_hasher *hasher;
    struct list holders; /* sequences with blocks, through kv_seq.link */
    uint32_t n_holders;
    uint32_t watermark_blocks;
    block_id *hit_ids;    /* (n_blocks) result of the last lookup */
    block_id *moving_ids; /* (n_blocks) blocks on their way in or out of a table */
    uint8_t *extra_bytes; /* (BLOCK_EXTRAS_MAX_BYTES) extra keys of the block being hashed */
    struct kv_stats stats;
};

struct kv_manager *kv_manager_create(const struct kv_manager_config *config) {
    struct kv_manager *mgr = mem_zalloc(sizeof(*mgr));

    assert(config->max_model_len >= 1);
    assert(config->watermark >= 0.0 && config->watermark < 1.0);
    mgr->config = *config;
    mgr->pool = block_pool_create(&(struct block_pool_config){
        .n_blocks = config->n_blocks,
        .block_size = config->block_size,
        .order = config->order,
        .no_null = config->no_null,
    });
    mgr->hasher = block_hasher_create(&(struct block_hasher_config){
        .algo = config->hash_algo,
        .block_size = config->block_size,
        .seed = config->hash_seed,
        .truncate_bits = config->hash_truncate_bits,
    });
    mgr->config.hash_seed = STR_NULL; /* borrowed for the call only */
    list_init(&mgr->holders);
    mgr->watermark_blocks = (uint32_t)(config->watermark * config->n_blocks);
    mgr->hit_ids = mem_calloc(config->n_blocks, sizeof(*mgr->hit_ids));
    mgr->moving_ids = mem_calloc(config->n_blocks, sizeof(*mgr->moving_ids));
    mgr->extra_bytes = mem_alloc(BLOCK_EXTRAS_MAX_BYTES);
    hit_window_init(&mgr->stats.window, KV_STATS_WINDOW);
    return mgr;
}

void kv_manager_destroy(struct kv_manager *mgr) {
    if (!mgr) return;
    assert(list_is_empty(&mgr->holders));
    block_pool_destroy(mgr->pool);
    block_hasher_destroy(mgr->hasher);
    hit_window_fini(&mgr->stats.window);
    mem_free(mgr->hit_ids);
    mem_free(mgr->moving_ids);
    mem_free(mgr->extra_bytes);
    mem_free(mgr);
}

/* --- the sequence and its chain -------------------------------------------------------------- */

enum status kv_seq_init(struct kv_seq *seq, const struct kv_manager *mgr, uint32_t max_tokens,
                        const struct block_extras *extras, bool skip_reading, struct error *err) {
    uint32_t n_blocks =
        CEIL_DIV(MIN(max_tokens, mgr->config.max_model_len), mgr->config.block_size);
    enum status st;

    *seq = (struct kv_seq){.skip_reading = skip_reading};
    if (!block_extras_is_empty(extras)) {
        st = block_extras_validate(extras, err);
        if (st != ST_OK) return st;
        seq->extras = extras;
    }
    st = block_table_init(&seq->table, n_blocks);
    seq->hashes = mem_try(MAX(n_blocks, 1) * sizeof(*seq->hashes));
    if (seq->extras) seq->extra_digests = mem_try(MAX(n_blocks, 1) * sizeof(*seq->extra_digests));
    if (st == ST_OK && seq->hashes && (seq->extra_digests || !seq->extras)) return ST_OK;
    kv_seq_fini(seq);
    return error_set(err, ST_NOMEM, "no memory for the block table of %u tokens", max_tokens);
}

void kv_seq_fini(struct kv_seq *seq) {
    assert(!list_is_linked(&seq->link));
    block_table_fini(&seq->table);
    mem_free(seq->hashes);
    mem_free(seq->extra_digests);
    *seq = (struct kv_seq){0};
}

static void hash_with_extras(struct kv_manager *mgr, struct kv_seq *seq,
                             const struct block_hash *parent, const uint32_t *tokens,
                             uint32_t index) {
    uint32_t start = index * mgr->config.block_size;
    size_t n_extra = block_extras_encode(seq->extras, start, start + mgr->config.block_size,
                                         &seq->extra_cursor, mgr->extra_bytes);

    seq->extra_digests[index] = (struct block_hash){0};
    if (n_extra > 0) {
        block_hasher_digest(mgr->hasher, mgr->extra_bytes, n_extra, &seq->extra_digests[index]);
    }
    block_hasher_next(mgr->hasher, parent, tokens + start, mgr->extra_bytes, n_extra,
                      &seq->hashes[index]);
}

void kv_seq_extend_hashes(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                          uint32_t n_tokens) {
    uint32_t bs = mgr->config.block_size, first = seq->n_hashes;
    uint32_t n_full = MIN(n_tokens / bs, seq->table.capacity);
    const struct block_hash *parent = block_hasher_root(mgr->hasher);

    if (mgr->config.no_caching || n_full <= first) return;
    if (first > 0) parent = &seq->hashes[first - 1];
    if (seq->extras) {
        for (uint32_t i = first; i < n_full; parent = &seq->hashes[i++]) {
            hash_with_extras(mgr, seq, parent, tokens, i);
        }
    } else {
        block_hasher_run(mgr->hasher, parent, tokens + (size_t)first * bs, n_full - first,
                         &seq->hashes[first]);
    }
    seq->n_hashes = n_full;
}

static struct prefix_key key_of(const struct kv_manager *mgr, const struct kv_seq *seq,
                                const uint32_t *tokens, uint32_t index, uint64_t parent) {
    return (struct prefix_key){
        .hash = &seq->hashes[index],
        .parent = parent,
        .tokens = tokens + (size_t)index * mgr->config.block_size,
        .extra = seq->extra_digests ? &seq->extra_digests[index] : NULL,
        .group = FULL_ATTENTION_GROUP,
    };
}

/* --- lookup ---------------------------------------------------------------------------------- */

struct kv_hit kv_manager_lookup(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                                uint32_t n_tokens) {
    const struct prefix_cache *cache = block_pool_cache(mgr->pool);
    struct kv_hit hit = {.ids = mgr->hit_ids};
    uint64_t parent = PREFIX_ROOT;
    uint32_t n_max;

    assert(n_tokens >= 1);
    if (mgr->config.no_caching || seq->skip_reading) return hit;
    kv_seq_extend_hashes(mgr, seq, tokens, n_tokens);
    n_max = MIN((n_tokens - 1) / mgr->config.block_size, seq->n_hashes);
    while (hit.n_blocks < n_max) {
        struct prefix_key key = key_of(mgr, seq, tokens, hit.n_blocks, parent);
        block_id id = block_pool_find(mgr->pool, &key);

        if (id == BLOCK_NONE) break;
        parent = prefix_cache_prefix(cache, id);
        mgr->hit_ids[hit.n_blocks++] = id;
    }
    hit.n_tokens = hit.n_blocks * mgr->config.block_size;
    return hit;
}

/* --- publish --------------------------------------------------------------------------------- */

/* The block another sequence has for this content takes the place of ours. */
static void switch_block(struct kv_manager *mgr, struct kv_seq *seq, uint32_t index,
                         block_id canonical) {
    block_id ours = seq->table.ids[index];

    block_pool_touch(mgr->pool, &canonical, 1);
    block_pool_release(mgr->pool, &ours, 1);
    block_table_replace(&seq->table, index, canonical);
}

static void publish_block(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                          uint32_t index) {
    const struct prefix_cache *cache = block_pool_cache(mgr->pool);
    uint64_t parent = PREFIX_ROOT;
    struct prefix_key key;
    block_id canonical = BLOCK_NONE;

    if (index > 0) parent = prefix_cache_prefix(cache, seq->table.ids[index - 1]);
    key = key_of(mgr, seq, tokens, index, parent);
    if (mgr->config.dedup) canonical = block_pool_find(mgr->pool, &key);
    if (canonical != BLOCK_NONE)
        switch_block(mgr, seq, index, canonical);
    else
        block_pool_publish(mgr->pool, seq->table.ids[index], &key);
}

void kv_manager_publish(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                        uint32_t n_tokens, uint32_t n_ready) {
    uint32_t n_full = MIN(n_tokens, n_ready) / mgr->config.block_size;

    if (mgr->config.no_caching) return;
    assert(n_full <= seq->table.n_blocks);
    kv_seq_extend_hashes(mgr, seq, tokens, n_tokens);
    for (; seq->n_published < n_full; seq->n_published++) {
        publish_block(mgr, seq, tokens, seq->n_published);
    }
}

/* --- allocate and free ----------------------------------------------------------------------- */

/* Hits that nobody uses: taking them shortens the free queue. */
static uint32_t count_revived(const struct kv_manager *mgr, const struct kv_hit *hit) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < hit->n_blocks; i++) {
        n += block_pool_ref_cnt(mgr->pool, hit->ids[i]) == 0;
    }
    return n;
}

/* Blocks that n_slots tokens need beyond `n_have`. */
static uint32_t blocks_missing(const struct kv_manager *mgr, uint64_t n_slots, uint32_t n_have) {
    uint64_t capped = MIN(n_slots, mgr->config.max_model_len);
    uint32_t n = (uint32_t)CEIL_DIV(capped, mgr->config.block_size);

    return n > n_have ? n - n_have : 0;
}

static void attach_hits(struct kv_manager *mgr, struct kv_seq *seq, const struct kv_hit *hit) {
    if (hit->n_blocks == 0) return;
    assert(seq->table.n_blocks == 0);
    block_pool_touch(mgr->pool, hit->ids, hit->n_blocks);
    block_table_append(&seq->table, hit->ids, hit->n_blocks);
    seq->n_published = hit->n_blocks;
}

enum status kv_manager_allocate(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                                uint32_t n_tokens, const struct kv_alloc *a) {
    uint64_t n_before =
        MIN((uint64_t)a->n_computed + a->hit.n_tokens + a->n_external, mgr->config.max_model_len);
    uint64_t n_ready = n_before + a->n_new;
    uint32_t n_have = seq->table.n_blocks + a->hit.n_blocks;
    uint32_t n_missing = blocks_missing(mgr, n_ready + a->n_lookahead, n_have);
    uint32_t n_revived = count_revived(mgr, &a->hit);
    uint64_t n_free = block_pool_n_free(mgr->pool);
    uint64_t n_kept = a->has_scheduled && seq->table.n_blocks == 0 ? mgr->watermark_blocks : 0;

    assert(a->n_new > 0 || a->n_external > 0);
    assert(n_have + n_missing <= seq->table.capacity);
    if (a->full_sequence_must_fit &&
        blocks_missing(mgr, n_tokens, n_have) + n_revived + n_kept > n_free) {
        return ST_BUSY;
    }
    if (n_missing + n_revived + n_kept + a->reserved_blocks > n_free) return ST_BUSY;

    attach_hits(mgr, seq, &a->hit); /* before anything is taken: the taking could evict them */
    if (block_pool_acquire(mgr->pool, mgr->moving_ids, n_missing) != ST_OK) {
        assert(!"the need was counted wrongly");
    }
    block_table_append(&seq->table, mgr->moving_ids, n_missing);
    if (!list_is_linked(&seq->link)) {
        list_push_back(&mgr->holders, &seq->link);
        mgr->n_holders++;
    }
    if (!a->delay_publish) {
        kv_manager_publish(mgr, seq, tokens, n_tokens,
                           (uint32_t)MIN(n_ready, mgr->config.max_model_len));
    }
    return ST_OK;
}

void kv_manager_free(struct kv_manager *mgr, struct kv_seq *seq) {
    uint32_t n = seq->table.n_blocks;

    if (!list_is_linked(&seq->link)) return;
    for (uint32_t i = 0; i < n; i++)
        mgr->moving_ids[i] = seq->table.ids[n - 1 - i];
    block_pool_release(mgr->pool, mgr->moving_ids, n);
    block_table_clear(&seq->table);
    seq->n_published = 0;
    list_remove(&seq->link);
    mgr->n_holders--;
}

/* --- the rest -------------------------------------------------------------------------------- */

uint32_t kv_manager_common_prefix_blocks(const struct kv_manager *mgr, const struct kv_seq *seq) {
    uint32_t n = 0;

    while (n < seq->table.n_blocks &&
           block_pool_ref_cnt(mgr->pool, seq->table.ids[n]) == mgr->n_holders) {
        n++;
    }
    return n;
}

enum status kv_manager_reset_prefix_cache(struct kv_manager *mgr) {
    enum status st = block_pool_reset(mgr->pool);

    if (st == ST_OK) hit_window_reset(&mgr->stats.window);
    return st;
}

void kv_manager_record_admission(struct kv_manager *mgr, uint32_t n_tokens, uint32_t n_hit_tokens,
                                 bool was_preempted) {
    struct kv_counts *c = was_preempted ? &mgr->stats.preempted : &mgr->stats.admitted;

    if (mgr->config.no_stats) return;
    c->requests++;
    c->queries += n_tokens;
    c->hits += n_hit_tokens;
    if (!was_preempted) {
        hit_window_add(&mgr->stats.window, (struct kv_counts){1, n_tokens, n_hit_tokens});
    }
}

const struct kv_stats *kv_manager_stats(const struct kv_manager *mgr) {
    return mgr->config.no_stats ? NULL : &mgr->stats;
}

double kv_manager_usage(const struct kv_manager *mgr) {
    return block_pool_usage(mgr->pool);
}

uint32_t kv_manager_block_size(const struct kv_manager *mgr) {
    return mgr->config.block_size;
}

const struct block_pool *kv_manager_pool(const struct kv_manager *mgr) {
    return mgr->pool;
}

enum status kv_manager_plan_blocks(uint64_t memory_bytes, uint64_t block_bytes, uint32_t block_size,
                                   uint32_t max_model_len, uint32_t *n_blocks, struct error *err) {
    uint64_t n = MIN(memory_bytes / block_bytes, (uint64_t)INT32_MAX);
    uint64_t n_needed = (uint64_t)CEIL_DIV((uint64_t)max_model_len, block_size) + 1;

    if (n >= n_needed) {
        *n_blocks = (uint32_t)n;
        return ST_OK;
    }
    return error_set(err, ST_NOMEM,
                     "one sequence of max-model-len %u needs %llu bytes of KV cache and there are "
                     "%llu: the longest that fits is %llu; lower max-model-len or give more memory",
                     max_model_len, (unsigned long long)(n_needed * block_bytes),
                     (unsigned long long)memory_bytes,
                     (unsigned long long)(n > 1 ? (n - 1) * block_size : 0));
}

/* --- check ----------------------------------------------------------------------------------- */

/* The published part of a table is one chain from the root; the rest is not findable. */
static void check_seq(const struct kv_manager *mgr, const struct kv_seq *seq) {
    const struct prefix_cache *cache = block_pool_cache(mgr->pool);
    uint64_t parent = PREFIX_ROOT;

    assert(seq->table.n_blocks >= 1 && seq->table.n_blocks <= seq->table.capacity);
    assert(seq->table.dirty_from <= seq->table.n_blocks);
    assert(seq->n_published <= seq->table.n_blocks && seq->n_published <= seq->n_hashes);
    for (uint32_t i = 0; i < seq->table.n_blocks; i++) {
        block_id id = seq->table.ids[i];

        assert(prefix_cache_contains(cache, id) == (i < seq->n_published));
        if (i >= seq->n_published) continue;
        assert(prefix_cache_parent(cache, id) == parent);
        parent = prefix_cache_prefix(cache, id);
    }
}

void kv_manager_check(const struct kv_manager *mgr) {
    uint32_t *n_refs = mem_calloc(mgr->config.n_blocks, sizeof(*n_refs));
    uint32_t n_holders = 0;

    block_pool_check(mgr->pool);
    LIST_FOR_EACH(it, &mgr->holders) {
        const struct kv_seq *seq = LIST_ENTRY(it, struct kv_seq, link);

        check_seq(mgr, seq);
        n_holders++;
        for (uint32_t i = 0; i < seq->table.n_blocks; i++)
            n_refs[seq->table.ids[i]]++;
    }
    assert(n_holders == mgr->n_holders);
    for (block_id id = 0; id < mgr->config.n_blocks; id++) {
        assert(n_refs[id] == block_pool_ref_cnt(mgr->pool, id));
    }
    mem_free(n_refs);
}

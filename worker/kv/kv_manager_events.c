/* worker/kv/kv_manager_events.c - what others learn of the cache: events, causes of misses.
 *
 * A hash enters the cache with its first block and leaves it with its last; blocks in between are
 * duplicates, or equal tokens behind a prefix that was evicted and recomputed, and cause no event.
 * All calls here follow or precede a change by their neighbours in kv_manager.c; none changes what
 * is cached. */
#include <stdlib.h>

#include "common/base/mem.h"
#include "worker/kv/block/block_reuse.h"
#include "worker/kv/kv_manager_internal.h"

#define EVENTS_PER_BATCH 512 /* about 100 KB at 16 tokens a block */

/* --- published -------------------------------------------------------------------------------- */

void kv_manager_note_published(struct kv_manager *mgr, const struct kv_seq *seq, uint32_t g,
                               uint32_t index) {
    const struct prefix_cache *cache = block_pool_cache(mgr->pool);
    const block_id *ids = seq->table[g].ids;
    block_id id = ids[index];

    if (mgr->published_step) mgr->published_step[id] = mgr->step;
    kv_manager_name(mgr, seq, index);
    if (mgr->explain && g == 0 && mgr->group[0].config.kind == KV_FULL) {
        struct kv_origin origin = {0, 0};

        if (index == 0) origin = kv_origin_of(seq->extras);
        kv_explain_published(mgr->explain, cache, id, index > 0 ? ids[index - 1] : BLOCK_NONE,
                             origin);
    }
    if (mgr->config.events && prefix_cache_is_only_of_hash(cache, id)) {
        kv_event_log_count(mgr->config.events, KV_MEDIUM_GPU, g, &seq->hashes[index]);
    }
}

void kv_manager_report_stored(struct kv_manager *mgr, const struct kv_seq *seq,
                              const uint32_t *tokens, uint32_t g, uint32_t from, uint32_t to) {
    if (!mgr->config.events || from >= to) return;
    kv_event_log_stored(mgr->config.events, &(struct kv_event_stored){
                                                .medium = KV_MEDIUM_GPU,
                                                .group = g,
                                                .hashes = &seq->hashes[from],
                                                .n_blocks = to - from,
                                                .parent = from > 0 ? &seq->hashes[from - 1] : NULL,
                                                .tokens = tokens,
                                                .extras = seq->extras,
                                                .first_block = from,
                                                .lora_id = -1,
                                            });
}

/* --- evicted ---------------------------------------------------------------------------------- */

void kv_manager_on_evict(void *arg, block_id id) {
    struct kv_manager *mgr = arg;
    const struct prefix_cache *cache = block_pool_cache(mgr->pool);
    struct prefix_key key;
    bool is_kept;

    if (mgr->explain) kv_explain_forgotten(mgr->explain, cache, id);
    if (mgr->holds && !kv_manager_has_tier(mgr)) block_holds_evicted(mgr->holds, id);
    if (!prefix_cache_is_only_copy(cache, id)) return;
    key = prefix_cache_key(cache, id);
    is_kept = mgr->host && kv_manager_keep_on_host(mgr, id, &key);
    if (mgr->explain && !is_kept) kv_explain_evicted(mgr->explain, key.hash, mgr->now_us);
    if (mgr->config.events && prefix_cache_is_only_of_hash(cache, id)) {
        kv_event_log_removed(mgr->config.events, KV_MEDIUM_GPU, key.group, key.hash);
    }
}

/* Its tokens and parent were published when the device stored it. */
void kv_manager_on_host_store(void *arg, block_id id) {
    struct kv_manager *mgr = arg;
    const struct prefix_cache *cache = kv_host_cache(mgr->host);
    struct prefix_key key = prefix_cache_key(cache, id);

    if (!mgr->config.events) return;
    if (prefix_cache_is_only_of_hash(cache, id))
        kv_event_log_count(mgr->config.events, KV_MEDIUM_CPU, key.group, key.hash);
    kv_event_log_stored(mgr->config.events, &(struct kv_event_stored){.medium = KV_MEDIUM_CPU,
                                                                      .group = key.group,
                                                                      .hashes = key.hash,
                                                                      .n_blocks = 1,
                                                                      .lora_id = -1});
}

void kv_manager_on_host_evict(void *arg, block_id id) {
    struct kv_manager *mgr = arg;
    struct prefix_key key = prefix_cache_key(kv_host_cache(mgr->host), id);

    kv_manager_forget_host_name(mgr, id);
    if (mgr->explain && block_pool_find(mgr->pool, &key) == BLOCK_NONE) {
        kv_explain_evicted(mgr->explain, key.hash, mgr->now_us);
    }
    if (mgr->config.events && prefix_cache_is_only_of_hash(kv_host_cache(mgr->host), id)) {
        kv_event_log_removed(mgr->config.events, KV_MEDIUM_CPU, key.group, key.hash);
    }
}

void kv_manager_note_reset(struct kv_manager *mgr) {
    const struct prefix_cache *cache = block_pool_cache(mgr->pool);

    if (mgr->explain) {
        for (block_id id = 0; id < mgr->config.n_blocks; id++) {
            const struct block_hash *hash = prefix_cache_hash(cache, id);

            if (hash) kv_explain_evicted(mgr->explain, hash, mgr->now_us);
        }
        kv_explain_reset(mgr->explain);
    }
    if (mgr->config.events) kv_event_log_cleared(mgr->config.events);
}

void kv_manager_set_now(struct kv_manager *mgr, uint64_t now_us) {
    mgr->now_us = now_us;
    if (mgr->ages) block_ages_set_now(mgr->ages, now_us);
    if (mgr->reuse) block_reuse_set_now(mgr->reuse, now_us);
    if (mgr->holds) block_holds_set_now(mgr->holds, now_us);
    block_pool_set_now(mgr->pool, now_us); /* last: what it lets go has the time of the others */
}

/* --- not found -------------------------------------------------------------------------------- */

/* The part of the answer that needs no cache; KV_MISS_COUNT: a block has to be looked up. */
static enum kv_miss plain_cause(const struct kv_manager *mgr, const struct kv_seq *seq,
                                uint32_t n_full, const struct kv_hit *hit) {
    if (mgr->config.no_caching) return KV_MISS_OFF;
    if (seq->skip_reading) return KV_MISS_LOGPROBS;
    if (n_full == 0) return KV_MISS_SHORT;
    return hit->n_blocks >= n_full ? KV_MISS_NONE : KV_MISS_COUNT;
}

static struct kv_miss_query query_of(const struct kv_manager *mgr, const struct kv_seq *seq,
                                     const uint32_t *tokens, uint32_t n_full,
                                     const struct kv_hit *hit) {
    struct kv_miss_query q = {
        .cache = block_pool_cache(mgr->pool),
        .hash = &seq->hashes[hit->n_blocks],
        .tokens = tokens,
        .block = hit->n_blocks,
        .n_blocks = n_full,
        .parent = BLOCK_NONE,
        .origin = kv_origin_of(seq->extras),
    };

    if (hit->n_blocks > 0 && hit->n_host_blocks == 0 && hit->ids[0][hit->n_blocks - 1] != 0) {
        q.parent = hit->ids[0][hit->n_blocks - 1];
    }
    return q;
}

static uint32_t n_full_blocks(const struct kv_manager *mgr, const struct kv_seq *seq,
                              uint32_t n_tokens) {
    return MIN((n_tokens - 1) / mgr->config.block_size, seq->n_hashes);
}

void kv_manager_explain(struct kv_manager *mgr, const struct kv_seq *seq, const uint32_t *tokens,
                        uint32_t n_tokens, const struct kv_hit *hit, struct kv_explanation *out) {
    uint32_t n_full = n_full_blocks(mgr, seq, n_tokens);

    *out = (struct kv_explanation){
        .cause = plain_cause(mgr, seq, n_full, hit),
        .n_tokens = n_tokens,
        .n_hit_tokens = hit->n_tokens,
        .n_host_tokens = hit->n_host_blocks * mgr->config.block_size,
        .block_size = mgr->config.block_size,
        .block = hit->n_blocks,
        .token = hit->n_tokens,
        .now_us = mgr->now_us,
    };
    if (out->cause != KV_MISS_COUNT) return;
    out->cause = KV_MISS_NEVER_SEEN;
    if (mgr->explain) {
        struct kv_miss_query q = query_of(mgr, seq, tokens, n_full, hit);

        kv_explain_miss(mgr->explain, &q, out);
    }
}

void kv_manager_note_admission(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                               uint32_t n_tokens, const struct kv_hit *hit) {
    enum kv_miss cause;
    uint32_t n_full;

    if (mgr->host && !mgr->config.no_host_cache && !seq->skip_reading) {
        uint32_t n_host = hit->n_host_blocks * mgr->config.block_size;

        mgr->stats.host.requests++;
        mgr->stats.host.queries += n_tokens - (hit->n_tokens - n_host);
        mgr->stats.host.hits += n_host;
    }
    if (seq->is_explained || mgr->config.no_explain) return;
    seq->is_explained = true;
    kv_seq_extend_hashes(mgr, seq, tokens, n_tokens); /* requested without a lookup */
    n_full = n_full_blocks(mgr, seq, n_tokens);
    cause = plain_cause(mgr, seq, n_full, hit);
    if (cause == KV_MISS_COUNT) {
        struct kv_miss_query q = query_of(mgr, seq, tokens, n_full, hit);

        cause = kv_explain_cause(mgr->explain, &q);
    }
    mgr->stats.misses[cause]++;
    if (seq->explanation) kv_manager_explain(mgr, seq, tokens, n_tokens, hit, seq->explanation);
}

/* --- all of it again -------------------------------------------------------------------------- */

/* For a subscriber that missed events: it discards its state and continues from here. For the
 * others the events repeat known blocks and change nothing. Parents come before children, because a
 * prefix gets its number after the one it continues. */
struct row {
    uint64_t prefix;
    block_id id;
};

static int by_prefix(const void *a, const void *b) {
    const struct row *x = a, *y = b;

    return (x->prefix > y->prefix) - (x->prefix < y->prefix);
}

/* One row per content, by number. */
static uint32_t list_contents(const struct prefix_cache *cache, struct row *rows) {
    uint32_t n = 0, n_kept = 0;

    for (block_id id = 0; id < cache->n_blocks; id++) {
        if (prefix_cache_contains(cache, id))
            rows[n++] = (struct row){prefix_cache_prefix(cache, id), id};
    }
    qsort(rows, n, sizeof(*rows), by_prefix);
    for (uint32_t i = 0; i < n; i++) {
        if (i == 0 || rows[i].prefix != rows[n_kept - 1].prefix) rows[n_kept++] = rows[i];
    }
    return n_kept;
}

static const struct block_hash *hash_of(const struct prefix_cache *cache, const struct row *rows,
                                        uint32_t n, uint64_t prefix) {
    struct row wanted = {.prefix = prefix}, *found;

    if (prefix == PREFIX_ROOT) return NULL;
    found = bsearch(&wanted, rows, n, sizeof(*rows), by_prefix);
    return found ? prefix_cache_hash(cache, found->id) : NULL;
}

static void report(struct kv_manager *mgr, const struct prefix_cache *cache, enum kv_medium medium,
                   uint64_t wall_us) {
    struct row *rows = mem_calloc((size_t)cache->n_cached + 1, sizeof(*rows));
    uint32_t n = list_contents(cache, rows);

    for (uint32_t i = 0; i < n; i++) {
        struct prefix_key key = prefix_cache_key(cache, rows[i].id);
        struct kv_event_stored stored = {
            .medium = medium, .group = key.group, .hashes = key.hash, .n_blocks = 1, .lora_id = -1};

        if (medium == KV_MEDIUM_GPU) {
            stored.parent = hash_of(cache, rows, n, key.parent);
            stored.tokens = key.tokens;
        }
        kv_event_log_stored(mgr->config.events, &stored);
        if ((i + 1) % EVENTS_PER_BATCH == 0) {
            kv_event_log_commit(mgr->config.events, wall_us, true);
        }
    }
    mem_free(rows);
}

void kv_manager_report_all(struct kv_manager *mgr, uint64_t wall_us) {
    if (!mgr->config.events) return;
    report(mgr, block_pool_cache(mgr->pool), KV_MEDIUM_GPU, wall_us);
    if (mgr->host) report(mgr, kv_host_cache(mgr->host), KV_MEDIUM_CPU, wall_us);
    kv_event_log_commit(mgr->config.events, wall_us, true);
}

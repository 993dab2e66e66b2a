/* worker/kv/kv_manager_snapshot.c - publishes all cached blocks again.
 *
 * For a subscriber that missed events: it discards its state and continues from here. For the
 * others the events repeat known blocks and change nothing. Parents come before children, because a
 * prefix gets its number after the one it continues. */
#include <stdlib.h>

#include "common/base/mem.h"
#include "worker/kv/kv_manager_internal.h"

#define EVENTS_PER_BATCH 512 /* about 100 KB at 16 tokens a block */

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

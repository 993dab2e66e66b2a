/* worker/kv/kv_manager_tiers.c - contents on their way to tiers below host memory and back.
 *
 *      down   named when the device's cache gets it; a wanted one goes to host memory when it is
 *             evicted, or when a sequence with it ends; there a tier acquires and reads it
 *      up     a tier fills a reserved host block; the content is published under the key and the
 *             prefix number that it would have had, and the ordinary lookup finds it
 *
 * A name is good for as long as its block is published. */
#include <assert.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "worker/kv/kv_manager_internal.h"

#define EARLY_MOST 512u /* blocks of an ending sequence that go to host memory at once */

static bool has_names(const struct kv_manager *mgr) {
    return mgr->names.device != NULL;
}

/* --- down ------------------------------------------------------------------------------------- */

void kv_manager_name(struct kv_manager *mgr, const struct kv_seq *seq, uint32_t index) {
    const block_id *ids = seq->table[0].ids;
    uint64_t end = (index + 1ull) * mgr->config.block_size;
    bool is_behind = seq->prefix_tokens > 0 && end > seq->prefix_tokens;
    struct prefix_key key;

    if (!has_names(mgr)) return;
    key = prefix_cache_key(block_pool_cache(mgr->pool), ids[index]);
    kv_names_computed(&mgr->names, ids[index], index > 0 ? ids[index - 1] : KV_NAMES_ROOT, index,
                      key.tokens, seq->extras != NULL || is_behind);
}

void kv_manager_name_host(struct kv_manager *mgr, block_id device, block_id host, bool was_there) {
    struct kv_name *before, name;
    bool was_wanted;

    if (!has_names(mgr)) return;
    before = &mgr->names.host[host];
    was_wanted = was_there && before->is_named && before->is_wanted;
    name = mgr->names.device[device];
    name.is_wanted |= was_wanted;
    kv_names_set_host(&mgr->names, host, &name);
    if (name.is_named && name.is_wanted && !was_wanted)
        mgr->names.config.on_host(mgr->names.config.arg, host);
}

void kv_manager_forget_host_name(struct kv_manager *mgr, block_id host) {
    if (!has_names(mgr) || !mgr->names.host[host].is_named) return;
    mgr->names.config.on_host_evict(mgr->names.config.arg, host);
    mgr->names.host[host].is_named = false;
}

void kv_manager_want_hits(struct kv_manager *mgr, const struct kv_hit *hit) {
    uint32_t n_device = hit->n_blocks - hit->n_host_blocks;

    if (!has_names(mgr)) return;
    for (uint32_t i = 0; i < n_device; i++)
        mgr->names.device[hit->ids[0][i]].is_wanted = true;
    for (uint32_t i = 0; i < hit->n_host_blocks; i++) {
        struct kv_name *name = &mgr->names.host[mgr->host_hit_ids[i]];

        if (!name->is_named || name->is_wanted) continue;
        name->is_wanted = true;
        mgr->names.config.on_host(mgr->names.config.arg, mgr->host_hit_ids[i]);
    }
}

/* The leading blocks that are named and wanted; their keys are in names.keys. */
static uint32_t count_wanted(struct kv_manager *mgr, const struct kv_seq *seq) {
    uint32_t n = 0;

    for (; n < seq->n_published; n++) {
        const struct kv_name *name = &mgr->names.device[seq->table[0].ids[n]];

        if (!name->is_named || !name->is_wanted) break;
        mgr->names.keys[n] = name->key;
    }
    return n;
}

void kv_manager_keep_ended(struct kv_manager *mgr, const struct kv_seq *seq) {
    const struct prefix_cache *cache = block_pool_cache(mgr->pool);
    uint32_t n, n_below, n_moved = 0;

    if (!has_names(mgr) || (n = count_wanted(mgr, seq)) == 0) return;
    n_below = mgr->names.config.count_below(mgr->names.config.arg, mgr->names.keys, n);
    for (uint32_t i = n_below; i < n && n_moved < EARLY_MOST; i++) {
        block_id id = seq->table[0].ids[i], there;
        struct prefix_key key = prefix_cache_key(cache, id);

        there = kv_host_find(mgr->host, &key);
        if (there != BLOCK_NONE) {
            kv_manager_name_host(mgr, id, there, true);
            continue;
        }
        if (kv_moves_room(&mgr->moves) <= mgr->moves.capacity / 2) return; /* admissions need it */
        if (!kv_manager_keep_on_host(mgr, id, &key)) return;
        n_moved++;
    }
}

/* --- aside ------------------------------------------------------------------------------------ */

static block_id find_named_host(const struct kv_manager *mgr, const struct unit_key *key) {
    const struct prefix_cache *cache = kv_host_cache(mgr->host);
    block_id id = kv_names_find_host(&mgr->names, key, KV_NAMES_ROOT);

    while (id != KV_NAMES_ROOT &&
           !(mgr->names.host[id].is_named && prefix_cache_contains(cache, id)))
        id = kv_names_find_host(&mgr->names, key, id);
    return id == KV_NAMES_ROOT ? BLOCK_NONE : id;
}

block_id kv_manager_bring_named(struct kv_manager *mgr, const struct unit_key *key) {
    const struct prefix_cache *cache = block_pool_cache(mgr->pool);
    block_id host = find_named_host(mgr, key);
    block_id id = kv_names_find_device(&mgr->names, key, KV_NAMES_ROOT);
    struct prefix_key content;

    if (host != BLOCK_NONE) return host;
    while (id != KV_NAMES_ROOT &&
           !(mgr->names.device[id].is_named && prefix_cache_contains(cache, id)))
        id = kv_names_find_device(&mgr->names, key, id);
    if (id == KV_NAMES_ROOT || kv_moves_room(&mgr->moves) <= mgr->moves.capacity / 2)
        return BLOCK_NONE;
    content = prefix_cache_key(cache, id);
    return kv_manager_keep_on_host(mgr, id, &content) ? kv_host_find(mgr->host, &content)
                                                      : BLOCK_NONE;
}

/* --- the end of the worker -------------------------------------------------------------------- */

/* An entry of the list, in the order of its bits:  met once | index in its chain | host | id  */
#define LEAVING_ONCE      (UINT64_C(1) << 63)
#define LEAVING_HOST      (UINT64_C(1) << 31)
#define LEAVING_INDEX_BIT 32

static int by_rank(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void list_cached(struct kv_manager *mgr, const struct prefix_cache *cache,
                        const struct kv_name *names, uint64_t tier) {
    for (uint32_t id = 0; id < cache->n_blocks; id++) {
        if (!prefix_cache_contains(cache, id) || !names[id].is_named) continue;
        mgr->leaving[mgr->n_leaving++] = (names[id].is_wanted ? 0 : LEAVING_ONCE) |
                                         (uint64_t)names[id].index << LEAVING_INDEX_BIT | tier | id;
    }
}

static void list_leaving(struct kv_manager *mgr) {
    const struct prefix_cache *device = block_pool_cache(mgr->pool);
    const struct prefix_cache *host = kv_host_cache(mgr->host);

    mgr->leaving = mem_calloc(device->n_blocks + host->n_blocks, sizeof(*mgr->leaving));
    list_cached(mgr, device, mgr->names.device, 0);
    list_cached(mgr, host, mgr->names.host, LEAVING_HOST);
    qsort(mgr->leaving, mgr->n_leaving, sizeof(*mgr->leaving), by_rank);
}

static void leave_host(struct kv_manager *mgr, block_id id) {
    struct kv_name *name = &mgr->names.host[id];

    if (!prefix_cache_contains(kv_host_cache(mgr->host), id)) return;
    if (!name->is_named || name->is_wanted) return;
    name->is_wanted = true;
    mgr->names.config.on_host(mgr->names.config.arg, id);
}

/* True: it is on its way to host memory, or need not go. */
static bool leave_device(struct kv_manager *mgr, block_id id, uint32_t *n_moved) {
    struct kv_name *name = &mgr->names.device[id];
    struct prefix_key key;
    block_id there;

    if (!prefix_cache_contains(block_pool_cache(mgr->pool), id) || !name->is_named) return true;
    if (mgr->names.config.count_below(mgr->names.config.arg, &name->key, 1) == 1) return true;
    key = prefix_cache_key(block_pool_cache(mgr->pool), id);
    name->is_wanted = true;
    there = kv_host_find(mgr->host, &key);
    if (there != BLOCK_NONE) {
        kv_manager_name_host(mgr, id, there, true);
        return true;
    }
    if (!kv_manager_keep_on_host(mgr, id, &key)) return false;
    ++*n_moved;
    return true;
}

bool kv_manager_leave(struct kv_manager *mgr, uint32_t n, bool also_once) {
    uint32_t n_moved = 0;

    assert(has_names(mgr));
    if (!mgr->leaving) list_leaving(mgr);
    for (; mgr->next_leaving < mgr->n_leaving; mgr->next_leaving++) {
        uint64_t entry = mgr->leaving[mgr->next_leaving];
        block_id id = (block_id)(entry & (LEAVING_HOST - 1));

        if ((entry & LEAVING_ONCE) && !also_once) return false;
        if (n_moved == n) return true;
        if (entry & LEAVING_HOST) {
            leave_host(mgr, id);
        } else if (!leave_device(mgr, id, &n_moved)) {
            return true;
        }
    }
    return false;
}

/* --- up --------------------------------------------------------------------------------------- */

bool kv_manager_keys_behind(const struct kv_manager *mgr, const struct kv_seq *seq,
                            const struct kv_hit *hit, struct unit_key *parent, uint64_t *number) {
    const struct kv_name *name = NULL;

    if (!has_names(mgr) || seq->extras || seq->skip_reading) return false;
    if (hit->n_host_blocks > 0) {
        block_id last = mgr->host_hit_ids[hit->n_host_blocks - 1];

        name = &mgr->names.host[last];
        *number = prefix_cache_prefix(kv_host_cache(mgr->host), last);
    } else if (hit->n_blocks > 0) {
        block_id last = hit->ids[0][hit->n_blocks - 1];

        name = &mgr->names.device[last];
        *number = prefix_cache_prefix(block_pool_cache(mgr->pool), last);
    } else {
        *number = PREFIX_ROOT;
        *parent = mgr->names.config.root;
        return true;
    }
    *parent = name->key;
    return name->is_named;
}

const struct kv_names *kv_manager_names(const struct kv_manager *mgr) {
    return has_names(mgr) ? &mgr->names : NULL;
}

void kv_manager_set_root(struct kv_manager *mgr, const struct unit_key *root) {
    assert(has_names(mgr));
    mgr->names.config.root = *root;
}

static void report_restored(struct kv_manager *mgr, const struct kv_seq *seq,
                            const uint32_t *tokens, uint32_t index, block_id id) {
    struct kv_event_log *log = mgr->config.events;

    if (!log) return;
    if (prefix_cache_is_only_of_hash(kv_host_cache(mgr->host), id))
        kv_event_log_count(log, KV_MEDIUM_CPU, 0, &seq->hashes[index]);
    kv_event_log_stored(log, &(struct kv_event_stored){
                                 .medium = KV_MEDIUM_CPU,
                                 .hashes = &seq->hashes[index],
                                 .n_blocks = 1,
                                 .parent = index > 0 ? &seq->hashes[index - 1] : NULL,
                                 .tokens = tokens + (size_t)index * mgr->config.block_size,
                                 .first_block = index,
                                 .lora_id = -1,
                             });
}

bool kv_manager_restored(struct kv_manager *mgr, const struct kv_seq *seq, const uint32_t *tokens,
                         uint32_t index, const struct kv_name *name, block_id id,
                         uint64_t *number) {
    struct kv_chain chain = kv_seq_chain(seq, tokens);
    struct prefix_key key;
    block_id there;

    assert(index < seq->n_hashes && !seq->extras);
    key = kv_group_key(&mgr->group[0], &chain, index, *number);
    there = kv_host_find(mgr->host, &key);
    if (there != BLOCK_NONE) {
        *number = prefix_cache_prefix(kv_host_cache(mgr->host), there);
        return false;
    }
    there = block_pool_find(mgr->pool, &key);
    *number = there == BLOCK_NONE ? block_pool_new_number(mgr->pool)
                                  : prefix_cache_prefix(block_pool_cache(mgr->pool), there);
    kv_host_publish(mgr->host, id, &key, *number);
    kv_names_set_host(&mgr->names, id, name);
    report_restored(mgr, seq, tokens, index, id);
    return true;
}

/* worker/kv/kv_manager_check.c - every invariant of the manager, asserted; for tests. */
#include <assert.h>

#include "common/base/mem.h"
#include "worker/kv/kv_manager_internal.h"

/* The published part of a full table is one chain from the root. The rest is not findable, unless
 * a relative that shares it made it so. */
static void check_full_table(const struct kv_manager *mgr, const struct kv_seq *seq,
                             const struct block_table *t) {
    const struct prefix_cache *cache = block_pool_cache(mgr->pool);
    uint64_t parent = PREFIX_ROOT;

    for (uint32_t i = 0; i < t->n_blocks; i++) {
        if (i >= seq->n_published) {
            assert(mgr->group[0].has_forked || !prefix_cache_contains(cache, t->ids[i]));
            continue;
        }
        assert(prefix_cache_parent(cache, t->ids[i]) == parent);
        parent = prefix_cache_prefix(cache, t->ids[i]);
    }
}

static void check_window_table(const struct kv_manager *mgr, const struct kv_seq *seq,
                               const struct block_table *t) {
    const struct prefix_cache *cache = block_pool_cache(mgr->pool);

    for (uint32_t i = 0; i < t->n_blocks; i++) {
        if (t->ids[i] == BLOCK_NULL) continue;
        if (i < seq->n_published)
            assert(prefix_cache_parent(cache, t->ids[i]) == PREFIX_ROOT);
        else
            assert(mgr->group[0].has_forked || !prefix_cache_contains(cache, t->ids[i]));
    }
}

static uint64_t check_seq(const struct kv_manager *mgr, const struct kv_seq *seq,
                          uint32_t *n_refs) {
    bool is_full;

    assert(seq->n_groups == mgr->n_groups && seq->n_published <= seq->n_hashes);
    for (uint32_t g = 0; g < mgr->n_groups; g++) {
        const struct block_table *t = &seq->table[g];

        is_full = mgr->group[g].config.kind == KV_FULL;
        assert(t->n_blocks >= 1 && t->n_blocks <= t->capacity);
        assert(t->n_blocks == seq->table[0].n_blocks);
        assert(t->dirty_from <= t->n_blocks && seq->n_published <= t->n_blocks);
        is_full ? check_full_table(mgr, seq, t) : check_window_table(mgr, seq, t);
        for (uint32_t i = 0; i < t->n_blocks; i++) {
            if (is_full || t->ids[i] != BLOCK_NULL) n_refs[t->ids[i]]++;
        }
    }
    return seq->n_idle_slots;
}

void kv_manager_check(const struct kv_manager *mgr) {
    uint32_t *n_refs = mem_calloc(mgr->config.n_blocks, sizeof(*n_refs));
    uint64_t n_idle_slots = 0;
    uint32_t n_holders = 0;

    block_pool_check(mgr->pool);
    LIST_FOR_EACH(it, &mgr->holders) {
        n_idle_slots += check_seq(mgr, LIST_ENTRY(it, struct kv_seq, link), n_refs);
        n_holders++;
    }
    assert(n_holders == mgr->n_holders && n_idle_slots == mgr->n_idle_slots);
    assert(mgr->moves.n <= mgr->moves.capacity);
    if (mgr->host) kv_host_check(mgr->host);
    if (mgr->names.device)
        kv_names_check(&mgr->names, mgr->config.n_blocks, mgr->config.n_host_blocks);
    kv_manager_check_holds(mgr);
    if (mgr->explain) kv_explain_check(mgr->explain, block_pool_cache(mgr->pool));
    for (block_id id = 0; id < mgr->config.n_blocks; id++)
        assert(n_refs[id] == block_pool_ref_cnt(mgr->pool, id));
    mem_free(n_refs);
}

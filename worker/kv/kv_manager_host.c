/* worker/kv/kv_manager_host.c - blocks on their way to host memory and back.
 *
 * Two ways out: a content whose last device block is evicted, and a whole sequence. Both read
 * device blocks whose KV lies in steps that are submitted already; a block that was published for
 * the step being put together has no content yet and is let go. Every move stands in the step's
 * list before any move or write that overwrites its source. */
#include <assert.h>

#include "worker/kv/kv_manager_internal.h"

struct kv_host *kv_manager_host(const struct kv_manager *mgr) {
    return mgr->host;
}

static void move_out(struct kv_manager *mgr, block_id device, block_id host) {
    kv_moves_push(&mgr->moves, KV_MOVE_OUT, device, host);
    mgr->stats.moved_out++;
}

static void move_in(struct kv_manager *mgr, block_id host, block_id device) {
    kv_moves_push(&mgr->moves, KV_MOVE_IN, host, device);
    mgr->stats.moved_in++;
}

/* --- the second tier -------------------------------------------------------------------------- */

bool kv_manager_has_tier(const struct kv_manager *mgr) {
    return mgr->host && !mgr->config.no_host_cache && mgr->n_groups == 1 && !mgr->has_windows;
}

bool kv_manager_keep_on_host(struct kv_manager *mgr, block_id id, const struct prefix_key *key) {
    uint64_t prefix = prefix_cache_prefix(block_pool_cache(mgr->pool), id);
    bool is_there, must_move;
    block_id kept;

    if (!kv_manager_has_tier(mgr)) return false;
    is_there = kv_host_find(mgr->host, key) != BLOCK_NONE;
    if (!is_there && (mgr->published_step[id] == mgr->step ||
                      kv_moves_room(&mgr->moves) <= mgr->n_reserved_moves)) {
        return false;
    }
    kept = kv_host_keep(mgr->host, key, prefix, &must_move);
    if (kept == BLOCK_NONE) return false;
    if (must_move) move_out(mgr, id, kept);
    kv_manager_name_host(mgr, id, kept, !must_move);
    return true;
}

void kv_manager_find_on_host(struct kv_manager *mgr, const struct kv_chain *chain, uint32_t n_max,
                             struct kv_hit *hit) {
    const struct prefix_cache *cache;
    uint64_t parent = PREFIX_ROOT;

    if (!kv_manager_has_tier(mgr)) return;
    cache = kv_host_cache(mgr->host);
    if (hit->n_blocks > 0) {
        parent = prefix_cache_prefix(block_pool_cache(mgr->pool), hit->ids[0][hit->n_blocks - 1]);
    }
    for (; hit->n_blocks < n_max; hit->n_blocks++) {
        struct prefix_key key = kv_group_key(&mgr->group[0], chain, hit->n_blocks, parent);
        block_id id = kv_host_find(mgr->host, &key);

        if (id == BLOCK_NONE) return;
        parent = prefix_cache_prefix(cache, id);
        mgr->host_hit_ids[hit->n_host_blocks++] = id;
    }
}

/* The sequence's table has the device's hits, and behind them blocks for those of the host. */
void kv_manager_bring_in(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                         const struct kv_hit *hit) {
    const struct prefix_cache *cache;
    uint32_t first = hit->n_blocks - hit->n_host_blocks;

    if (hit->n_host_blocks == 0) return;
    cache = kv_host_cache(mgr->host);
    for (uint32_t i = 0; i < hit->n_host_blocks; i++) {
        block_id from = mgr->host_hit_ids[i], to = seq->table[0].ids[first + i];
        struct prefix_key key = prefix_cache_key(cache, from);

        move_in(mgr, from, to);
        block_pool_publish(mgr->pool, to, &key, prefix_cache_prefix(cache, from));
        if (first + i > 0) block_pool_link(mgr->pool, to, seq->table[0].ids[first + i - 1]);
        kv_manager_note_published(mgr, seq, 0, first + i);
    }
    seq->n_published = hit->n_blocks;
    kv_manager_report_stored(mgr, seq, tokens + (size_t)first * mgr->config.block_size, 0, first,
                             hit->n_blocks);
}

/* --- swapping --------------------------------------------------------------------------------- */

static block_id *host_ids_of(const struct kv_seq *seq, uint32_t g) {
    return seq->host_ids + (size_t)g * seq->table[0].capacity;
}

/* A slot for each block that has KV of the first n_computed tokens; returns how many. A block that
 * is published goes by its name, if it is one of this sequence's: what a fork has of its parent's
 * last block may be published with tokens that the fork does not have. */
static uint32_t fill_slots(struct kv_manager *mgr, const struct kv_seq *seq, uint32_t n_computed) {
    const struct prefix_cache *cache = block_pool_cache(mgr->pool);
    uint32_t n_blocks = CEIL_DIV(n_computed, mgr->config.block_size), n = 0;
    uint32_t n_named = MIN(n_computed / mgr->config.block_size, seq->n_hashes);

    if (mgr->config.no_host_cache) n_named = 0;
    for (uint32_t g = 0; g < mgr->n_groups; g++) {
        for (uint32_t i = 0; i < n_blocks; i++) {
            block_id id = seq->table[g].ids[i];
            struct kv_host_slot *s = &mgr->slots[n];

            if (id == BLOCK_NULL && !mgr->config.no_null) continue;
            *s = (struct kv_host_slot){.key = NULL};
            if (i < n_named && prefix_cache_contains(cache, id)) {
                mgr->slot_keys[n] = prefix_cache_key(cache, id);
                s->key = &mgr->slot_keys[n];
                s->prefix = prefix_cache_prefix(cache, id);
            }
            n++;
        }
    }
    return n;
}

enum status kv_manager_swap_out(struct kv_manager *mgr, struct kv_seq *seq, uint32_t n_computed) {
    uint32_t n_blocks = CEIL_DIV(n_computed, mgr->config.block_size), n_slots, at = 0;

    assert(n_computed > 0 && n_blocks <= seq->table[0].n_blocks && !kv_seq_is_swapped(seq));
    if (!mgr->host) return ST_BUSY;
    n_slots = fill_slots(mgr, seq, n_computed);
    if (kv_moves_room(&mgr->moves) < n_slots) return ST_BUSY;
    if (kv_host_hold(mgr->host, mgr->slots, n_slots) != ST_OK) return ST_BUSY;
    for (uint32_t g = 0; g < mgr->n_groups; g++) {
        for (uint32_t i = 0; i < n_blocks; i++) {
            block_id id = seq->table[g].ids[i];
            const struct kv_host_slot *s = &mgr->slots[at];

            host_ids_of(seq, g)[i] = BLOCK_NONE;
            if (id == BLOCK_NULL && !mgr->config.no_null) continue;
            at++;
            host_ids_of(seq, g)[i] = s->id;
            if (!s->must_move) continue;
            move_out(mgr, id, s->id);
            if (s->key) kv_manager_name_host(mgr, id, s->id, false);
        }
    }
    seq->n_swapped_blocks = n_blocks;
    seq->n_swapped_tokens = n_computed;
    kv_manager_set_kinds(mgr, seq);
    kv_manager_retain(mgr, seq);
    for (uint32_t g = 0; g < mgr->n_groups; g++)
        kv_group_release(&mgr->group[g], &seq->table[g], mgr->moving_ids);
    kv_manager_remove_holder(mgr, seq);
    return ST_OK;
}

/* The device's block with the content of a named host block, or BLOCK_NONE. */
static block_id find_on_device(const struct kv_manager *mgr, block_id host_id) {
    const struct prefix_cache *cache = kv_host_cache(mgr->host);
    struct prefix_key key;

    if (host_id == BLOCK_NONE || !prefix_cache_contains(cache, host_id)) return BLOCK_NONE;
    key = prefix_cache_key(cache, host_id);
    return block_pool_find(mgr->pool, &key);
}

uint32_t kv_manager_swap_in_need(const struct kv_manager *mgr, const struct kv_seq *seq) {
    uint32_t n = 0;

    for (uint32_t g = 0; g < mgr->n_groups; g++) {
        for (uint32_t i = 0; i < seq->n_swapped_blocks; i++) {
            block_id host_id = host_ids_of(seq, g)[i], id = find_on_device(mgr, host_id);

            if (host_id == BLOCK_NONE) continue;
            n += id == BLOCK_NONE || block_pool_ref_cnt(mgr->pool, id) == 0;
        }
    }
    return n;
}

/* The table's entries: what the device has, with a reference; elsewhere BLOCK_NONE, to be taken. */
static uint32_t share_what_is_there(struct kv_manager *mgr, struct kv_seq *seq, uint32_t g) {
    uint32_t n_missing = 0;

    for (uint32_t i = 0; i < seq->n_swapped_blocks; i++) {
        block_id host_id = host_ids_of(seq, g)[i], id = find_on_device(mgr, host_id);

        if (host_id == BLOCK_NONE) id = BLOCK_NULL;
        n_missing += id == BLOCK_NONE;
        if (id != BLOCK_NONE) block_pool_touch(mgr->pool, &id, 1);
        block_table_append(&seq->table[g], &id, 1);
    }
    return n_missing;
}

static void fetch_what_is_missing(struct kv_manager *mgr, struct kv_seq *seq, uint32_t g,
                                  const block_id *fresh) {
    const struct prefix_cache *cache = kv_host_cache(mgr->host);

    for (uint32_t i = 0; i < seq->n_swapped_blocks; i++) {
        block_id host_id = host_ids_of(seq, g)[i];
        struct prefix_key key;

        if (seq->table[g].ids[i] != BLOCK_NONE) continue;
        block_table_replace(&seq->table[g], i, *fresh);
        move_in(mgr, host_id, *fresh);
        if (prefix_cache_contains(cache, host_id)) {
            key = prefix_cache_key(cache, host_id);
            block_pool_publish(mgr->pool, *fresh, &key, prefix_cache_prefix(cache, host_id));
            if (i > 0) block_pool_link(mgr->pool, *fresh, seq->table[g].ids[i - 1]);
            kv_manager_note_published(mgr, seq, g, i);
            kv_manager_report_stored(mgr, seq, key.tokens, g, i, i + 1);
        }
        fresh++;
    }
}

/* Leading blocks that are findable, or null, in every group. */
static uint32_t count_published(const struct kv_manager *mgr, const struct kv_seq *seq) {
    const struct prefix_cache *cache = block_pool_cache(mgr->pool);
    uint32_t n = 0;

    for (; n < MIN(seq->n_swapped_blocks, seq->n_hashes); n++) {
        for (uint32_t g = 0; g < mgr->n_groups; g++) {
            block_id id = seq->table[g].ids[n];

            if ((id != BLOCK_NULL || mgr->config.no_null) && !prefix_cache_contains(cache, id))
                return n;
        }
    }
    return n;
}

void kv_manager_drop_swapped(struct kv_manager *mgr, struct kv_seq *seq) {
    uint32_t n = 0;

    for (uint32_t g = 0; g < mgr->n_groups; g++) {
        for (uint32_t i = 0; i < seq->n_swapped_blocks; i++) {
            block_id id = host_ids_of(seq, g)[i];

            if (id != BLOCK_NONE) host_ids_of(seq, 0)[n++] = id; /* closes up: never overtakes */
        }
    }
    kv_host_release(mgr->host, seq->host_ids, n);
    seq->n_swapped_blocks = seq->n_swapped_tokens = 0;
}

enum status kv_manager_swap_in(struct kv_manager *mgr, struct kv_seq *seq) {
    uint32_t n_need = kv_manager_swap_in_need(mgr, seq);
    uint32_t n_missing[KV_GROUPS_MAX];

    assert(kv_seq_is_swapped(seq) && !list_is_linked(&seq->link));
    if (n_need > block_pool_n_free(mgr->pool) || n_need > kv_moves_room(&mgr->moves))
        return ST_BUSY;
    for (uint32_t g = 0; g < mgr->n_groups; g++) /* all before anything is taken */
        n_missing[g] = share_what_is_there(mgr, seq, g);
    mgr->n_reserved_moves = n_need;
    for (uint32_t g = 0; g < mgr->n_groups; g++) {
        if (block_pool_acquire(mgr->pool, mgr->moving_ids, n_missing[g]) != ST_OK)
            assert(!"the need was counted wrongly");
        fetch_what_is_missing(mgr, seq, g, mgr->moving_ids);
        seq->table[g].n_inherited = seq->n_swapped_blocks;
    }
    mgr->n_reserved_moves = 0;
    seq->n_published = count_published(mgr, seq);
    kv_manager_add_holder(mgr, seq);
    kv_manager_count_idle(mgr, seq, seq->n_swapped_tokens);
    kv_manager_drop_swapped(mgr, seq);
    return ST_OK;
}

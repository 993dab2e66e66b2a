/* worker/kv/kv_manager.c - lookup, allocate, publish, fork, free. */
#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "worker/kv/block/block_reuse.h"
#include "worker/kv/kv_coordinator.h"
#include "worker/kv/kv_manager_internal.h"

/* Moves of one step: each block is the target of a copy once, and of a swap once. With host memory
 * a block may be emptied and filled more than once, when sequences preempt each other. */
#define MOVES_PER_BLOCK      2
#define MOVES_PER_BLOCK_HOST 4

static void create_groups(struct kv_manager *mgr) {
    const struct kv_manager_config *c = &mgr->config;

    assert(c->n_groups <= KV_GROUPS_MAX);
    mgr->n_groups = MAX(c->n_groups, 1u);
    for (uint32_t g = 0; g < mgr->n_groups; g++) {
        mgr->group[g] = (struct kv_group){
            .config = c->n_groups > 0 ? c->group[g] : (struct kv_group_config){.kind = KV_FULL},
            .number = g,
            .block_size = c->block_size,
            .pool = mgr->pool,
            .host = mgr->host,
        };
        mgr->has_windows |= mgr->group[g].config.kind != KV_FULL;
        assert(mgr->group[g].config.kind == KV_FULL || mgr->group[g].config.window >= 1);
        mgr->hit_ids[g] = mem_calloc(mgr->table_capacity, sizeof(**mgr->hit_ids));
    }
    assert(!mgr->has_windows || !c->no_null);
    if (mgr->has_windows)
        mgr->witness_bytes =
            mem_alloc(2 * sizeof(struct block_hash) + c->block_size * sizeof(uint32_t));
}

static void create_host(struct kv_manager *mgr) {
    const struct kv_manager_config *c = &mgr->config;
    size_t n_slots = (size_t)mgr->table_capacity * MAX(c->n_groups, 1u);

    mgr->host = kv_host_create(&(struct kv_host_config){
        .n_blocks = c->n_host_blocks,
        .block_size = c->block_size,
        .max_reserved = c->max_reserved,
        .no_cache = c->no_host_cache || c->no_caching,
        .generations = c->host_generations,
        .on_evict = kv_manager_on_host_evict,
        .on_store = kv_manager_on_host_store,
        .arg = mgr,
    });
    mgr->host_hit_ids = mem_calloc(mgr->table_capacity, sizeof(*mgr->host_hit_ids));
    mgr->slots = mem_calloc(n_slots, sizeof(*mgr->slots));
    mgr->slot_keys = mem_calloc(n_slots, sizeof(*mgr->slot_keys));
    mgr->published_step = mem_calloc(c->n_blocks, sizeof(*mgr->published_step));
}

struct kv_manager *kv_manager_create(const struct kv_manager_config *config) {
    struct kv_manager *mgr = mem_zalloc(sizeof(*mgr));

    assert(config->max_model_len >= 1);
    assert(config->watermark >= 0.0 && config->watermark < 1.0);
    mgr->config = *config;
    if (mgr->config.max_step_tokens == 0) mgr->config.max_step_tokens = config->max_model_len;
    if (config->hash_block_size == 0) mgr->config.hash_block_size = config->block_size;
    assert(config->block_size % mgr->config.hash_block_size == 0);
    mgr->n_links = config->block_size / mgr->config.hash_block_size;
    mgr->links = mem_calloc(2 * (size_t)mgr->n_links, sizeof(*mgr->links));
    mgr->step = 1; /* 0 is before any */
    if (config->ages.share > 0) mgr->ages = block_ages_create(config->n_blocks, &config->ages);
    if (config->order == FREE_ORDER_REUSE) mgr->reuse = block_reuse_create();
    mgr->pool = block_pool_create(&(struct block_pool_config){
        .n_blocks = config->n_blocks,
        .block_size = config->block_size,
        .order = config->order,
        .no_null = config->no_null,
        .max_retained = (uint32_t)(config->retained_share * config->n_blocks),
        .can_hold = kv_manager_can_hold(config),
        .on_evict = kv_manager_on_evict,
        .arg = mgr,
        .ages = mgr->ages,
        .reuse = mgr->reuse,
    });
    if (!config->no_caching && !config->no_explain)
        mgr->explain = kv_explain_create(config->n_blocks, config->block_size);
    mgr->hasher = block_hasher_create(&(struct block_hasher_config){
        .algo = config->hash_algo,
        .block_size = mgr->config.hash_block_size,
        .seed = config->hash_seed,
        .kind = config->hash_kind,
        .truncate_bits = config->hash_truncate_bits,
    });
    mgr->config.hash_seed = mgr->config.hash_kind = STR_NULL; /* borrowed for the call only */
    list_init(&mgr->holders);
    mgr->watermark_blocks = (uint32_t)(config->watermark * config->n_blocks);
    mgr->table_capacity = CEIL_DIV(config->max_model_len, config->block_size);
    if (config->n_host_blocks > 0) create_host(mgr);
    create_groups(mgr);
    kv_manager_create_holds(mgr);
    if (config->names) {
        assert(mgr->host && mgr->n_groups == 1 && !mgr->has_windows && !config->no_host_cache);
        kv_names_init(&mgr->names, config->names, config->n_blocks, config->n_host_blocks,
                      config->block_size, mgr->table_capacity);
    }
    mgr->moving_ids =
        mem_calloc(MAX(config->n_blocks, mgr->table_capacity), sizeof(*mgr->moving_ids));
    mgr->extra_bytes = mem_alloc(BLOCK_EXTRAS_MAX_BYTES);
    kv_moves_init(&mgr->moves,
                  (mgr->host ? MOVES_PER_BLOCK_HOST : MOVES_PER_BLOCK) * config->n_blocks);
    hit_window_init(&mgr->stats.window, KV_STATS_WINDOW);
    return mgr;
}

void kv_manager_destroy(struct kv_manager *mgr) {
    if (!mgr) return;
    assert(list_is_empty(&mgr->holders));
    block_pool_destroy(mgr->pool);
    block_ages_destroy(mgr->ages);
    block_reuse_destroy(mgr->reuse);
    block_hasher_destroy(mgr->hasher);
    hit_window_fini(&mgr->stats.window);
    kv_moves_fini(&mgr->moves);
    kv_host_destroy(mgr->host);
    kv_explain_destroy(mgr->explain);
    kv_names_fini(&mgr->names);
    mem_free(mgr->leaving);
    block_holds_destroy(mgr->holds);
    mem_free(mgr->held_ids);
    mem_free(mgr->held_names);
    mem_free(mgr->host_hit_ids);
    mem_free(mgr->slots);
    mem_free(mgr->slot_keys);
    mem_free(mgr->published_step);
    for (uint32_t g = 0; g < mgr->n_groups; g++)
        mem_free(mgr->hit_ids[g]);
    mem_free(mgr->moving_ids);
    mem_free(mgr->links);
    mem_free(mgr->extra_bytes);
    mem_free(mgr->witness_bytes);
    mem_free(mgr);
}

/* --- holders --------------------------------------------------------------------------------- */

void kv_manager_add_holder(struct kv_manager *mgr, struct kv_seq *seq) {
    if (list_is_linked(&seq->link)) return;
    list_push_back(&mgr->holders, &seq->link);
    mgr->n_holders++;
}

void kv_manager_remove_holder(struct kv_manager *mgr, struct kv_seq *seq) {
    mgr->n_idle_slots -= seq->n_idle_slots;
    seq->n_idle_slots = seq->n_published = 0;
    list_remove(&seq->link);
    mgr->n_holders--;
}

void kv_manager_count_idle(struct kv_manager *mgr, struct kv_seq *seq, uint64_t n_filled) {
    uint64_t n = 0;

    for (uint32_t g = 0; g < mgr->n_groups; g++) {
        uint64_t n_slots = (uint64_t)seq->table[g].n_blocks * mgr->config.block_size;

        n += n_slots > n_filled ? n_slots - n_filled : 0;
    }
    mgr->n_idle_slots += n - seq->n_idle_slots;
    seq->n_idle_slots = (uint32_t)n;
}

/* --- lookup ---------------------------------------------------------------------------------- */

struct kv_hit kv_manager_lookup(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                                uint32_t n_tokens) {
    struct kv_chain chain = kv_seq_chain(seq, tokens);
    struct kv_hit hit = {.n_blocks = 0};
    uint32_t n_max;

    assert(n_tokens >= 1);
    for (uint32_t g = 0; g < mgr->n_groups; g++)
        hit.ids[g] = mgr->hit_ids[g];
    if (mgr->config.no_caching || seq->skip_reading) return hit;
    kv_seq_extend_hashes(mgr, seq, tokens, n_tokens);
    n_max = MIN((n_tokens - 1) / mgr->config.block_size, seq->n_hashes);
    hit.n_blocks = kv_coordinator_find(mgr->group, mgr->n_groups, &chain, n_max, mgr->hit_ids);
    if (mgr->host) kv_manager_find_on_host(mgr, &chain, n_max, &hit);
    hit.n_tokens = hit.n_blocks * mgr->config.block_size;
    return hit;
}

/* --- publish --------------------------------------------------------------------------------- */

/* Publishes block i of each group. Consecutive published blocks of a group form one event: run[g]
 * is where the open one began. */
static void publish_block(struct kv_manager *mgr, struct kv_seq *seq, const struct kv_chain *chain,
                          uint32_t i, uint32_t *run) {
    uint32_t bs = mgr->config.block_size;

    for (uint32_t g = 0; g < mgr->n_groups; g++) {
        if (kv_group_publish(&mgr->group[g], &seq->table[g], chain, i, mgr->config.dedup)) {
            kv_manager_note_published(mgr, seq, g, i);
            continue;
        }
        kv_manager_report_stored(mgr, seq, chain->tokens + (size_t)run[g] * bs, g, run[g], i);
        run[g] = i + 1;
    }
}

void kv_manager_publish(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                        uint32_t n_tokens, uint32_t n_ready) {
    uint32_t n_full = MIN(n_tokens, n_ready) / mgr->config.block_size, run[KV_GROUPS_MAX];
    struct kv_chain chain;

    if (mgr->config.no_caching || n_full <= seq->n_published) return;
    assert(n_full <= seq->table[0].n_blocks);
    kv_seq_extend_hashes(mgr, seq, tokens, n_tokens);
    chain = kv_seq_chain(seq, tokens);
    for (uint32_t g = 0; g < mgr->n_groups; g++)
        run[g] = seq->n_published;
    for (; seq->n_published < n_full; seq->n_published++)
        publish_block(mgr, seq, &chain, seq->n_published, run);
    for (uint32_t g = 0; g < mgr->n_groups; g++)
        kv_manager_report_stored(mgr, seq, tokens + (size_t)run[g] * mgr->config.block_size, g,
                                 run[g], seq->n_published);
}

/* --- kinds of blocks ------------------------------------------------------------------------- */

static void find_kind(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                      uint32_t n_tokens, const struct kv_hit *hit) {
    uint32_t n_prompt = seq->n_prompt > 0 ? MIN(seq->n_prompt, n_tokens) : n_tokens;

    kv_seq_extend_hashes(mgr, seq, tokens, n_tokens);
    seq->n_prompt_blocks = MIN(n_prompt / mgr->config.block_size, seq->n_hashes);
    seq->kind = (uint16_t)block_reuse_arrived(mgr->reuse, seq->hashes, seq->n_prompt_blocks,
                                              MIN(hit->n_blocks, seq->n_prompt_blocks));
    seq->has_kind = true;
}

void kv_manager_set_kinds(struct kv_manager *mgr, struct kv_seq *seq) {
    uint32_t n = seq->n_prompt_blocks, n_full = seq->n_published;

    if (!mgr->reuse || !seq->has_kind) return;
    for (uint32_t g = 0; g < mgr->n_groups; g++) {
        const struct block_table *t = &seq->table[g];
        uint32_t n_of_prompt = MIN(n, t->n_blocks);

        block_pool_set_kind(mgr->pool, t->ids, n_of_prompt, seq->kind);
        block_pool_set_kind(mgr->pool, t->ids + n_of_prompt, t->n_blocks - n_of_prompt,
                            REUSE_GENERATED);
    }
    if (seq->has_ended) return;
    seq->has_ended = true;
    block_reuse_ended(mgr->reuse, seq->kind, n > 0 && n <= n_full ? &seq->hashes[n - 1] : NULL,
                      n_full > n ? &seq->hashes[n_full - 1] : NULL);
}

void kv_manager_retain(struct kv_manager *mgr, const struct kv_seq *seq) {
    for (uint32_t i = 0; i < seq->n_retain; i++) {
        const struct kv_retain *keep = &seq->retain[i];
        uint32_t n = MIN(keep->n_tokens / mgr->config.block_size, seq->n_published);

        for (uint32_t g = 0; g < mgr->n_groups; g++)
            block_pool_retain(mgr->pool, seq->table[g].ids, n, keep->time, seq->tenant);
    }
}

/* --- allocate -------------------------------------------------------------------------------- */

/* One call's token counts: computed or remote, then with this step's, then with slots. */
struct demand {
    uint32_t n_before, n_ready, n_slots;
    struct kv_need need[KV_GROUPS_MAX];
    uint64_t n_take; /* blocks off the free queue, all groups together */
    uint32_t n_copies, n_moves_in;
};

/* Hits that are blocks of the device. */
static uint32_t n_device_hits(const struct kv_alloc *a) {
    return a->hit.n_blocks - a->hit.n_host_blocks;
}

static void count_need(const struct kv_manager *mgr, const struct kv_seq *seq,
                       const struct kv_alloc *a, struct demand *d) {
    uint64_t longest = mgr->config.max_model_len;

    d->n_before = (uint32_t)MIN((uint64_t)a->n_computed + a->hit.n_tokens + a->n_external, longest);
    d->n_ready = (uint32_t)MIN((uint64_t)d->n_before + a->n_new, longest);
    d->n_slots = (uint32_t)MIN((uint64_t)d->n_before + a->n_new + a->n_lookahead, longest);
    d->n_take = d->n_copies = 0;
    d->n_moves_in = a->hit.n_host_blocks;
    for (uint32_t g = 0; g < mgr->n_groups; g++) {
        struct kv_need n = kv_group_need(&mgr->group[g], &seq->table[g], a->hit.ids[g],
                                         n_device_hits(a), d->n_before, d->n_slots);

        d->need[g] = n;
        d->n_copies += n.n_copies;
        d->n_take += (uint64_t)n.n_new + n.n_copies + n.n_revived;
    }
}

/* What the sequence would take until all its known tokens are there. */
static uint64_t count_whole(const struct kv_manager *mgr, const struct kv_seq *seq,
                            const struct kv_alloc *a, uint32_t n_before, uint32_t n_tokens) {
    uint32_t n_slots = MIN(n_tokens, mgr->config.max_model_len);
    uint64_t n_take = 0;

    for (uint32_t g = 0; g < mgr->n_groups; g++) {
        struct kv_need n =
            kv_group_need_whole(&mgr->group[g], &seq->table[g], a->hit.ids[g], n_device_hits(a),
                                n_before, n_slots, mgr->config.max_step_tokens);

        n_take += (uint64_t)n.n_new + n.n_copies + n.n_revived;
    }
    return n_take;
}

static bool is_room(const struct kv_manager *mgr, const struct kv_seq *seq, uint32_t n_tokens,
                    const struct kv_alloc *a, const struct demand *d) {
    uint64_t n_free = block_pool_n_free(mgr->pool);
    bool has_blocks = list_is_linked(&seq->link);
    uint64_t n_kept = a->has_scheduled && !has_blocks ? mgr->watermark_blocks : 0;

    if (a->full_sequence_must_fit &&
        count_whole(mgr, seq, a, d->n_before, n_tokens) + n_kept > n_free)
        return false;
    return d->n_take + n_kept + a->reserved_blocks <= n_free &&
           d->n_copies + d->n_moves_in <= kv_moves_room(&mgr->moves);
}

static void attach_hits(struct kv_manager *mgr, struct kv_seq *seq, const struct kv_alloc *a,
                        uint32_t n_before) {
    if (a->hit.n_blocks == 0 && !mgr->has_windows) return; /* a window may have nulls to put */
    for (uint32_t g = 0; g < mgr->n_groups; g++)
        kv_group_attach(&mgr->group[g], &seq->table[g], a->hit.ids[g], n_device_hits(a), n_before);
    kv_manager_want_hits(mgr, &a->hit);
    if (n_device_hits(a) > 0) seq->n_published = n_device_hits(a);
    if (a->hit.n_host_blocks > 0) kv_host_read(mgr->host, mgr->host_hit_ids, a->hit.n_host_blocks);
}

/* A fresh block for each shared one this step writes to. The old ones lose a reference, the last
 * first, as in a release; `fresh` has their ids afterwards. */
static void replace_shared(struct kv_manager *mgr, const struct kv_group *group,
                           struct block_table *t, uint32_t first, block_id *fresh, uint32_t n) {
    uint32_t n_done = 0;

    for (uint32_t i = first; n_done < n; i++) {
        block_id old = t->ids[i];

        if (!kv_group_is_shared(group, t, i)) continue;
        kv_moves_push(&mgr->moves, KV_MOVE_COPY, old, fresh[n_done]);
        block_table_replace(t, i, fresh[n_done]);
        fresh[n_done++] = old;
    }
    while (n_done > 0)
        block_pool_release(mgr->pool, &fresh[--n_done], 1);
}

static void take_blocks(struct kv_manager *mgr, const struct kv_group *group, struct block_table *t,
                        const struct kv_need *need, uint32_t n_before) {
    uint32_t n = need->n_copies + need->n_new;

    if (n == 0) return;
    if (block_pool_acquire(mgr->pool, mgr->moving_ids, n) != ST_OK)
        assert(!"the need was counted wrongly");
    replace_shared(mgr, group, t, n_before / group->block_size, mgr->moving_ids, need->n_copies);
    block_table_append(t, mgr->moving_ids + need->n_copies, need->n_new);
}

enum status kv_manager_allocate(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                                uint32_t n_tokens, const struct kv_alloc *a) {
    struct demand d;

    assert(a->n_new > 0 || a->n_external > 0 || a->hit.n_host_blocks > 0);
    for (uint32_t g = 0; mgr->has_windows && g < mgr->n_groups; g++)
        kv_group_drop_skipped(&mgr->group[g], &seq->table[g], a->n_computed - a->n_unsettled,
                              seq->n_prompt, mgr->moving_ids);
    count_need(mgr, seq, a, &d);
    if (!is_room(mgr, seq, n_tokens, a, &d)) return ST_BUSY;

    if (!list_is_linked(&seq->link)) {
        kv_manager_note_admission(mgr, seq, tokens, n_tokens, &a->hit);
        kv_manager_note_hold_hits(mgr, seq, &a->hit);
        if (mgr->reuse && !seq->has_kind) find_kind(mgr, seq, tokens, n_tokens, &a->hit);
    }
    attach_hits(mgr, seq, a, d.n_before); /* all groups', before anything is taken: the taking
                                           * could evict them */
    mgr->n_reserved_moves = d.n_copies + d.n_moves_in;
    for (uint32_t g = 0; g < mgr->n_groups; g++)
        take_blocks(mgr, &mgr->group[g], &seq->table[g], &d.need[g], d.n_before);
    mgr->n_reserved_moves = 0;
    if (a->hit.n_host_blocks > 0) kv_manager_bring_in(mgr, seq, tokens, &a->hit);
    kv_manager_add_holder(mgr, seq);
    kv_manager_count_idle(mgr, seq, d.n_ready);
    if (!a->delay_publish) kv_manager_publish(mgr, seq, tokens, n_tokens, d.n_ready);
    return ST_OK;
}

void kv_manager_free(struct kv_manager *mgr, struct kv_seq *seq) {
    if (kv_seq_is_swapped(seq)) kv_manager_drop_swapped(mgr, seq);
    if (!list_is_linked(&seq->link)) return;
    kv_manager_keep_ended(mgr, seq);
    kv_manager_set_kinds(mgr, seq);
    kv_manager_retain(mgr, seq);
    for (uint32_t g = 0; g < mgr->n_groups; g++)
        kv_group_release(&mgr->group[g], &seq->table[g], mgr->moving_ids);
    kv_manager_remove_holder(mgr, seq);
}

/* --- fork ------------------------------------------------------------------------------------ */

/* The blocks of the table that token n_computed looks back at, all there? */
static bool has_needed(const struct kv_group *group, const struct block_table *t,
                       uint32_t n_computed, uint32_t n_prompt) {
    struct kv_range skipped = kv_group_skipped(group, n_computed, n_prompt);

    if (group->config.kind == KV_FULL) return true;
    for (uint32_t i = 0; i < CEIL_DIV(n_computed, group->block_size); i++) {
        if (t->ids[i] == BLOCK_NULL && (i < skipped.from || i >= skipped.to)) return false;
    }
    return true;
}

/* The chain of the parent as far as both go. The cursor over the extra keys stays where it is: it
 * may lag behind, but not be ahead. */
static void share_hashes(struct kv_seq *child, const struct kv_seq *parent, uint32_t n_full) {
    uint32_t n = MIN(n_full, parent->n_hashes);
    size_t n_bytes = n * sizeof(*child->hashes);

    assert(!child->extra_digests == !parent->extra_digests);
    if (child->n_hashes >= n) return;
    memcpy(child->hashes, parent->hashes, n_bytes);
    if (child->witnesses) memcpy(child->witnesses, parent->witnesses, n_bytes);
    if (child->extra_digests) memcpy(child->extra_digests, parent->extra_digests, n_bytes);
    child->n_hashes = n;
}

enum status kv_manager_fork(struct kv_manager *mgr, struct kv_seq *child,
                            const struct kv_seq *parent, uint32_t n_computed) {
    uint32_t bs = mgr->config.block_size, n_blocks = CEIL_DIV(n_computed, bs);

    assert(!list_is_linked(&child->link) && list_is_linked(&parent->link));
    assert(n_computed >= 1 && n_blocks <= parent->table[0].n_blocks);
    for (uint32_t g = 0; g < mgr->n_groups; g++) {
        if (!has_needed(&mgr->group[g], &parent->table[g], n_computed, parent->n_prompt))
            return ST_NOT_FOUND;
    }
    for (uint32_t g = 0; g < mgr->n_groups; g++) {
        block_pool_touch(mgr->pool, parent->table[g].ids, n_blocks);
        block_table_append(&child->table[g], parent->table[g].ids, n_blocks);
        child->table[g].n_inherited = n_blocks;
        mgr->group[g].has_forked = true;
        kv_group_drop_skipped(&mgr->group[g], &child->table[g], n_computed, parent->n_prompt,
                              mgr->moving_ids);
    }
    share_hashes(child, parent, n_computed / bs);
    child->n_prompt = parent->n_prompt;
    child->n_published = MIN(parent->n_published, n_computed / bs);
    kv_manager_add_holder(mgr, child);
    return ST_OK;
}

const struct kv_move *kv_manager_moves(const struct kv_manager *mgr, uint32_t *n) {
    *n = mgr->moves.n;
    return mgr->moves.list;
}

void kv_manager_clear_moves(struct kv_manager *mgr) {
    mgr->moves.n = 0;
    mgr->step++;
    if (mgr->host) kv_host_end_step(mgr->host);
}

/* --- the rest -------------------------------------------------------------------------------- */

enum status kv_manager_reset_prefix_cache(struct kv_manager *mgr) {
    if (!list_is_empty(&mgr->holders)) return ST_BUSY;
    kv_manager_note_reset(mgr);
    if (mgr->holds) block_holds_reset(mgr->holds);
    if (mgr->host) kv_host_reset(mgr->host);
    hit_window_reset(&mgr->stats.window);
    return block_pool_reset(mgr->pool);
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

uint64_t kv_manager_most_blocks(const struct kv_manager *mgr, uint32_t n_tokens) {
    uint64_t n = 0;

    for (uint32_t g = 0; g < mgr->n_groups; g++)
        n += kv_group_most_blocks(&mgr->group[g].config, mgr->config.block_size, n_tokens,
                                  mgr->config.max_step_tokens);
    return n;
}

uint64_t kv_manager_idle_slots(const struct kv_manager *mgr) {
    return mgr->n_idle_slots;
}

double kv_manager_waste(const struct kv_manager *mgr) {
    uint64_t n_used = block_pool_n_usable(mgr->pool) - block_pool_n_free(mgr->pool);

    return n_used ? (double)mgr->n_idle_slots / (double)(n_used * mgr->config.block_size) : 0;
}

bool kv_manager_shares_prefixes(const struct kv_manager *mgr) {
    return !mgr->config.no_caching && mgr->n_groups == 1 && mgr->group[0].config.kind == KV_FULL;
}

uint32_t kv_manager_block_size(const struct kv_manager *mgr) {
    return mgr->config.block_size;
}

const struct block_pool *kv_manager_pool(const struct kv_manager *mgr) {
    return mgr->pool;
}

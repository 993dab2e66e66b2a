/* worker/kv/kv_host.c - a block pool, and the list of what this step has pinned in it. */
#include "worker/kv/kv_host.h"

#include <assert.h>

#include "common/base/mem.h"

struct kv_host {
    struct kv_host_config config;
    struct block_pool *pool;
    bool *is_pinned; /* (n_blocks) one reference is ours until the step ends */
    block_id *pins;  /* (n_blocks) the same as a list: what should be reused first is first */
    uint32_t n_pins;
    uint64_t *moved;          /* (n_blocks) the last step with a move of it; 0: none */
    uint64_t step, n_settled; /* the step under way, from 1; moves of steps below are done */
    bool *is_reserved;        /* (n_blocks) */
    uint32_t n_reserved;
};

struct kv_host *kv_host_create(const struct kv_host_config *config) {
    struct kv_host *host = mem_zalloc(sizeof(*host));

    host->config = *config;
    host->pool = block_pool_create(&(struct block_pool_config){
        .n_blocks = config->n_blocks,
        .block_size = config->block_size,
        .no_null = true,
        .on_evict = config->on_evict,
        .arg = config->arg,
    });
    host->is_pinned = mem_calloc(config->n_blocks, sizeof(*host->is_pinned));
    host->pins = mem_calloc(config->n_blocks, sizeof(*host->pins));
    host->moved = mem_calloc(config->n_blocks, sizeof(*host->moved));
    host->is_reserved = mem_calloc(config->n_blocks, sizeof(*host->is_reserved));
    host->step = host->n_settled = 1;
    return host;
}

void kv_host_destroy(struct kv_host *host) {
    if (!host) return;
    block_pool_destroy(host->pool);
    mem_free(host->is_pinned);
    mem_free(host->pins);
    mem_free(host->moved);
    mem_free(host->is_reserved);
    mem_free(host);
}

/* --- pins ------------------------------------------------------------------------------------- */

/* Takes over one reference of the caller's. */
static void pin_taken(struct kv_host *host, block_id id) {
    if (host->is_pinned[id]) {
        block_pool_release(host->pool, &id, 1);
        return;
    }
    host->is_pinned[id] = true;
    host->pins[host->n_pins++] = id;
}

/* Of a block that this step's moves read or write. */
static void pin_moved(struct kv_host *host, block_id id) {
    host->moved[id] = host->step;
    pin_taken(host, id);
}

static void pin(struct kv_host *host, block_id id) {
    block_pool_touch(host->pool, &id, 1);
    pin_taken(host, id);
}

void kv_host_end_step(struct kv_host *host) {
    for (uint32_t i = 0; i < host->n_pins; i++)
        host->is_pinned[host->pins[i]] = false;
    block_pool_release(host->pool, host->pins, host->n_pins);
    host->n_pins = 0;
    host->step++;
}

/* A free block, for another content. */
static enum status take(struct kv_host *host, block_id *id) {
    enum status st = block_pool_acquire(host->pool, id, 1);

    if (st == ST_OK && host->config.generations) generation_raise(&host->config.generations[*id]);
    return st;
}

static void store(struct kv_host *host, block_id id, const struct prefix_key *key,
                  uint64_t prefix) {
    block_pool_publish(host->pool, id, key, prefix);
    if (host->config.on_store) host->config.on_store(host->config.arg, id);
}

/* --- the tier --------------------------------------------------------------------------------- */

block_id kv_host_find(const struct kv_host *host, const struct prefix_key *key) {
    return block_pool_find(host->pool, key);
}

void kv_host_read(struct kv_host *host, const block_id *ids, uint32_t n) {
    for (uint32_t i = n; i-- > 0;) {
        host->moved[ids[i]] = host->step;
        pin(host, ids[i]);
    }
}

block_id kv_host_keep(struct kv_host *host, const struct prefix_key *key, uint64_t prefix,
                      bool *must_move) {
    block_id id;

    *must_move = false;
    if (host->config.no_cache) return BLOCK_NONE;
    id = block_pool_find(host->pool, key);
    if (id != BLOCK_NONE) {
        pin(host, id);
        return id;
    }
    if (take(host, &id) != ST_OK) return BLOCK_NONE;
    store(host, id, key, prefix);
    pin_moved(host, id);
    *must_move = true;
    return id;
}

/* --- swapped sequences ------------------------------------------------------------------------ */

/* Fills in the slots whose content is here. Returns how many free blocks the rest and the reviving
 * of these will take. */
static uint32_t find_held(const struct kv_host *host, struct kv_host_slot *slots, uint32_t n) {
    uint32_t n_needed = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct kv_host_slot *s = &slots[i];

        s->id = s->key ? block_pool_find(host->pool, s->key) : BLOCK_NONE;
        s->must_move = s->id == BLOCK_NONE;
        n_needed += s->must_move || block_pool_ref_cnt(host->pool, s->id) == 0;
    }
    return n_needed;
}

enum status kv_host_hold(struct kv_host *host, struct kv_host_slot *slots, uint32_t n) {
    if (find_held(host, slots, n) > block_pool_n_free(host->pool)) return ST_BUSY;
    for (uint32_t i = 0; i < n; i++) { /* before anything is taken: the taking could evict them */
        if (!slots[i].must_move) block_pool_touch(host->pool, &slots[i].id, 1);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct kv_host_slot *s = &slots[i];

        if (!s->must_move) continue;
        if (take(host, &s->id) != ST_OK) {
            assert(!"the need was counted wrongly");
        }
        host->moved[s->id] = host->step;
        if (s->key && !host->config.no_cache) store(host, s->id, s->key, s->prefix);
    }
    return ST_OK;
}

void kv_host_release(struct kv_host *host, const block_id *ids, uint32_t n) {
    for (uint32_t i = n; i-- > 0;)
        pin_moved(host, ids[i]);
}

/* --- lower tiers ------------------------------------------------------------------------------ */

block_id kv_host_reserve(struct kv_host *host) {
    block_id id = block_pool_next_free(host->pool, BLOCK_NONE);

    if (id == BLOCK_NONE || host->n_reserved >= host->config.max_reserved ||
        !kv_host_is_quiet(host, id))
        return BLOCK_NONE;
    if (take(host, &id) != ST_OK) assert(!"a free block is not free");
    host->is_reserved[id] = true;
    host->n_reserved++;
    return id;
}

void kv_host_publish(struct kv_host *host, block_id id, const struct prefix_key *key,
                     uint64_t prefix) {
    assert(host->is_reserved[id] && block_pool_find(host->pool, key) == BLOCK_NONE);
    block_pool_publish(host->pool, id, key, prefix);
}

void kv_host_acquire(struct kv_host *host, block_id id) {
    assert(prefix_cache_contains(block_pool_cache(host->pool), id));
    block_pool_touch(host->pool, &id, 1);
}

void kv_host_drop(struct kv_host *host, const block_id *ids, uint32_t n) {
    for (uint32_t i = n; i-- > 0;) {
        host->n_reserved -= host->is_reserved[ids[i]];
        host->is_reserved[ids[i]] = false;
        block_pool_release(host->pool, &ids[i], 1);
    }
}

uint64_t kv_host_step(const struct kv_host *host) {
    return host->step;
}

void kv_host_settle(struct kv_host *host, uint64_t step) {
    assert(step >= host->n_settled && step <= host->step);
    host->n_settled = step;
}

bool kv_host_is_quiet(const struct kv_host *host, block_id id) {
    return host->moved[id] < host->n_settled;
}

/* --- all ------------------------------------------------------------------------------------- */

void kv_host_reset(struct kv_host *host) {
    for (block_id id = 0; id < host->config.n_blocks; id++)
        block_pool_unpublish(host->pool, id);
}

const struct prefix_cache *kv_host_cache(const struct kv_host *host) {
    return block_pool_cache(host->pool);
}

uint32_t kv_host_n_blocks(const struct kv_host *host) {
    return host->config.n_blocks;
}

uint32_t kv_host_n_held(const struct kv_host *host) {
    return host->config.n_blocks - block_pool_n_free(host->pool);
}

uint32_t kv_host_n_cached(const struct kv_host *host) {
    return block_pool_n_cached(host->pool);
}

uint32_t kv_host_n_reserved(const struct kv_host *host) {
    return host->n_reserved;
}

void kv_host_check(const struct kv_host *host) {
    uint32_t n_pinned = 0, n_reserved = 0;

    block_pool_check_parts(host->pool);
    for (block_id id = 0; id < host->config.n_blocks; id++) {
        n_pinned += host->is_pinned[id];
        n_reserved += host->is_reserved[id];
        assert(!host->is_reserved[id] || block_pool_ref_cnt(host->pool, id) > 0);
        assert(host->moved[id] <= host->step);
    }
    assert(n_pinned == host->n_pins);
    assert(n_reserved == host->n_reserved && n_reserved <= host->config.max_reserved);
    assert(host->n_settled <= host->step);
    for (uint32_t i = 0; i < host->n_pins; i++) {
        assert(host->is_pinned[host->pins[i]]);
        assert(block_pool_ref_cnt(host->pool, host->pins[i]) > 0);
    }
}

/* worker/kv/kv_manager_hold.c - prefixes that clients hold, in the last place that has them.
 *
 * With host memory that is where a hold's blocks are: copied there at once, with a reference each,
 * so that no content of other prompts, no swapped sequence and no restore takes them. On the device
 * they are cached like others. A tier that can hold gets them too, as all that is wanted below;
 * once it has them all, host memory may go to another hold. Without host memory the device is the
 * last place: there the blocks are free, and the last to be taken, so that no allocation fails for
 * them. */
#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "worker/kv/kv_manager_internal.h"

static void take_on_host(void *arg, block_id id, bool is_first) {
    struct kv_manager *mgr = arg;

    if (is_first) kv_host_acquire(mgr->host, id);
}

static void give_on_host(void *arg, block_id id) {
    struct kv_manager *mgr = arg;

    kv_host_drop(mgr->host, &id, 1);
}

/* Each time, so that a chain lies as a whole behind what was held before. */
static void take_on_device(void *arg, block_id id, bool is_first) {
    struct kv_manager *mgr = arg;

    (void)is_first;
    block_pool_hold(mgr->pool, id);
}

static void give_on_device(void *arg, block_id id) {
    struct kv_manager *mgr = arg;

    block_pool_unhold(mgr->pool, id);
}

/* Names are keys, as bytes. */
static_assert(sizeof(struct block_name) == sizeof(struct unit_key), "a name is a key");

static void keep_below(void *arg, const struct block_name *names, uint32_t n, bool is_kept) {
    const struct kv_names_config *below = &((struct kv_manager *)arg)->names.config;

    below->hold_below(below->arg, (const struct unit_key *)names, n, is_kept);
}

static uint32_t count_below(void *arg, const struct block_name *names, uint32_t n) {
    const struct kv_names_config *below = &((struct kv_manager *)arg)->names.config;

    return below->count_held(below->arg, (const struct unit_key *)names, n);
}

bool kv_manager_holds_on_host(const struct kv_manager *mgr) {
    return kv_manager_has_tier(mgr);
}

void kv_manager_create_holds(struct kv_manager *mgr) {
    bool is_on_host = kv_manager_has_tier(mgr);

    if (!kv_manager_can_hold(&mgr->config)) return;
    mgr->holds = block_holds_create(&(struct block_holds_config){
        .n_blocks = is_on_host ? mgr->config.n_host_blocks : mgr->config.n_blocks,
        .max_blocks = mgr->config.max_held_blocks,
        .take = is_on_host ? take_on_host : take_on_device,
        .give = is_on_host ? give_on_host : give_on_device,
        .keep_below = keep_below,
        .count_below = count_below,
        .arg = mgr,
    });
    mgr->held_ids = mem_calloc(mgr->table_capacity, sizeof(*mgr->held_ids));
    mgr->held_names = mem_calloc(mgr->table_capacity, sizeof(*mgr->held_names));
}

/* --- one hold --------------------------------------------------------------------------------- */

/* The leading blocks of the hit that are in host memory afterwards, with a reference each, in
 * held_ids. */
static uint32_t bring_to_host(struct kv_manager *mgr, const struct kv_hit *hit) {
    uint32_t n_device = hit->n_blocks - hit->n_host_blocks, n = 0;

    kv_manager_want_hits(mgr, hit);
    for (uint32_t i = 0; i < hit->n_host_blocks; i++) /* before others come, and evict them */
        kv_host_acquire(mgr->host, mgr->held_ids[n_device + i] = mgr->host_hit_ids[i]);
    for (; n < n_device; n++) {
        struct prefix_key key = prefix_cache_key(block_pool_cache(mgr->pool), hit->ids[0][n]);

        if (!kv_manager_keep_on_host(mgr, hit->ids[0][n], &key)) break;
        mgr->held_ids[n] = kv_host_find(mgr->host, &key);
        kv_host_acquire(mgr->host, mgr->held_ids[n]);
    }
    if (n == n_device) return hit->n_blocks;
    kv_host_drop(mgr->host, mgr->held_ids + n_device, hit->n_host_blocks);
    return n;
}

static uint32_t collect(struct kv_manager *mgr, const struct kv_hit *hit) {
    if (kv_manager_has_tier(mgr)) return bring_to_host(mgr, hit);
    for (uint32_t i = 0; i < hit->n_blocks; i++)
        mgr->held_ids[i] = hit->ids[0][i];
    return hit->n_blocks;
}

static void let_go(struct kv_manager *mgr, uint32_t n) {
    if (kv_manager_has_tier(mgr)) kv_host_drop(mgr->host, mgr->held_ids, n);
}

/* NULL: some of them have none. */
static struct block_name *name_all(struct kv_manager *mgr, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const struct kv_name *name = mgr->names.host ? &mgr->names.host[mgr->held_ids[i]] : NULL;

        if (!name || !name->is_named) return NULL;
        memcpy(mgr->held_names[i].bytes, name->key.bytes, sizeof(name->key.bytes));
    }
    return mgr->held_names;
}

static enum status hold_new(struct kv_manager *mgr, const struct kv_seq *seq,
                            const struct kv_hit *hit, const struct kv_hold *ask,
                            const struct block_hold **out, struct error *err) {
    enum status st = block_holds_make_room(mgr->holds, ask->holder, hit->n_blocks, err);
    struct block_name *names;
    uint32_t n;

    if (st != ST_OK) return st;
    n = collect(mgr, hit);
    names = name_all(mgr, n);
    if (n == 0)
        return error_set(err, ST_BUSY,
                         "host memory has no room for the prefix, because sequences in it are "
                         "swapped out: retry later");
    *out = block_holds_insert(mgr->holds, &(struct block_hold){.id = ask->id,
                                                               .owner = ask->owner,
                                                               .holder = ask->holder,
                                                               .ttl_s = ask->ttl_s,
                                                               .n_blocks = n,
                                                               .ids = mgr->held_ids,
                                                               .names = names,
                                                               .hashes = seq->hashes});
    let_go(mgr, n);
    return ST_OK;
}

enum status kv_manager_hold(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                            uint32_t n_tokens, const struct kv_hold *ask,
                            const struct block_hold **out, struct error *err) {
    struct block_hold *twin;
    struct kv_hit hit;

    if (!mgr->holds)
        return error_set(err, ST_UNSUPPORTED,
                         "this worker cannot hold prefixes: it needs prefix caching, --hold-bytes "
                         "of at least a block, and a model whose layers all keep their KV");
    block_holds_set_now(mgr->holds, mgr->now_us); /* this step may have evicted some */
    if (mgr->names.host)
        block_holds_set_below(mgr->holds, mgr->names.config.max_held(mgr->names.config.arg));
    hit = kv_manager_lookup(mgr, seq, tokens, n_tokens + 1);
    if (hit.n_blocks == 0)
        return error_set(err, ST_INVALID,
                         "nothing of the prompt's first %u tokens is cached: only full blocks of "
                         "%u tokens are, so hold more of them, or retry if these are more",
                         n_tokens, mgr->config.block_size);
    twin = block_holds_twin(mgr->holds, ask->owner, seq->hashes, hit.n_blocks);
    if (!twin) return hold_new(mgr, seq, &hit, ask, out, err);
    block_holds_renew(mgr->holds, twin, ask->ttl_s);
    *out = twin;
    return ST_OK;
}

enum status kv_manager_release_hold(struct kv_manager *mgr, uint64_t id, uint64_t owner) {
    return mgr->holds ? block_holds_release(mgr->holds, id, owner) : ST_NOT_FOUND;
}

const struct block_holds *kv_manager_holds(const struct kv_manager *mgr) {
    return mgr->holds;
}

/* --- of the others ---------------------------------------------------------------------------- */

void kv_manager_note_hold_hits(struct kv_manager *mgr, struct kv_seq *seq,
                               const struct kv_hit *hit) {
    if (!mgr->holds || seq->has_used_holds || hit->n_blocks == 0) return;
    seq->has_used_holds = true;
    block_holds_note(mgr->holds, seq->hashes, hit->n_blocks);
}

void kv_manager_check_holds(const struct kv_manager *mgr) {
    if (!mgr->holds) return;
    block_holds_check(mgr->holds);
    for (uint32_t i = 0; i < block_holds_stats(mgr->holds).n_holds; i++) {
        const struct block_hold *hold = block_holds_at(mgr->holds, i);
        const struct prefix_cache *cache = block_pool_cache(mgr->pool);

        if (kv_manager_has_tier(mgr)) cache = kv_host_cache(mgr->host);
        for (uint32_t k = 0; hold->is_in[HOLD_HERE] && k < hold->n_blocks; k++)
            assert(hold->ids[k] == BLOCK_NONE || prefix_cache_contains(cache, hold->ids[k]));
    }
}

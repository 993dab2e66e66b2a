/* worker/kv/kv_host.h - KV blocks in host memory: a second tier of the cache, and room for
 * sequences that were swapped out. Both take from one pool of blocks.
 *
 *      device pool ── evicted, content computed ──▶ cached here, coldest first to go
 *                  ◀── found where the device's hits end ──
 *      a sequence  ── swapped out, all or nothing ──▶ held here (ref_cnt > 0), safe from eviction
 *                  ◀── swapped in ──
 *      lower tier  ── reserved, filled, verified, published ──▶ cached here
 *                  ◀── acquired, read ──
 *
 * It is a block_pool of its own: held blocks have references, cached ones wait on the free queue,
 * and a lookup compares tokens and the number of the exact prefix, never a hash alone. The numbers
 * are the device pool's: a content that both tiers have has one number in both, so a chain that
 * begins on the device continues here. Copies stay after a swap-in: a block evicted a second time
 * need not move again. A held block with a published content is found and shared like a cached one:
 * sequences that shared a prefix on the device share it here.
 *
 * Nothing moves here; this decides which block goes where, and the caller adds the move to the
 * step's list. What a move of this step reads or writes is *pinned* until kv_host_end_step, so no
 * later decision of the same step takes it for something else, in whatever order the moves run.
 *
 * A lower tier reads and fills blocks by their address, while the device moves others. So a block
 * is *quiet* once every move of it is done (kv_host_settle); only quiet blocks are reserved, and
 * only those may be read. A reserved block has no name: nothing finds it before it is published.
 *
 * Another process may read blocks at any time, without a reference (tiers/generation.h): each block
 * has a number for it, which is raised before the block is taken for another content.
 *
 * Order of eviction: chains are pinned last block first, as they are released on the device, so a
 * parent is always warmer than its children and a chain is evicted from its end. A block whose
 * parent is in neither tier can no longer be hit, and cools down until it is reused.
 *
 * Thread: engine. Nothing is allocated after creation. */
#ifndef WORKER_KV_KV_HOST_H
#define WORKER_KV_KV_HOST_H

#include "worker/kv/block/block_pool.h"
#include "worker/kv/tiers/generation.h"

struct kv_host_config {
    uint32_t n_blocks; /* >= 1 */
    uint32_t block_size;
    uint32_t max_reserved;                    /* blocks reserved for lower tiers at a time */
    bool no_cache;                            /* only for swapping: nothing is kept on eviction */
    struct generation *generations;           /* (n_blocks) raised before a reuse; may be NULL */
    void (*on_evict)(void *arg, block_id id); /* as in block_pool; may be NULL */
    void (*on_store)(void *arg, block_id id); /* right after a block got a content; may be NULL */
    void *arg;
};
struct kv_host;

struct kv_host *kv_host_create(const struct kv_host_config *config);
void kv_host_destroy(struct kv_host *host); /* NULL is fine */

/* --- the tier --------------------------------------------------------------------------------- */

/* The block with this content, or BLOCK_NONE. Changes nothing. */
block_id kv_host_find(const struct kv_host *host, const struct prefix_key *key);

/* Pins the blocks of a chain, first to last, that this step brings to the device. */
void kv_host_read(struct kv_host *host, const block_id *ids, uint32_t n);

/* Called before the device forgets this content. Returns the host block that keeps it, pinned;
 * *must_move: the content has to be copied there first. BLOCK_NONE when there is no room, or
 * nothing is kept. */
block_id kv_host_keep(struct kv_host *host, const struct prefix_key *key, uint64_t prefix,
                      bool *must_move);

/* --- swapped sequences ------------------------------------------------------------------------ */

/* One block of a sequence on its way out; the caller holds a reference until kv_host_release. */
struct kv_host_slot {
    const struct prefix_key *key; /* of a published block; NULL: its content has no name */
    uint64_t prefix;
    block_id id;    /* out: where it goes */
    bool must_move; /* out: false when the content is there already */
};

/* A place for each, or ST_BUSY and nothing done. Evicts cached blocks, never held or pinned
 * ones. */
MUST_USE enum status kv_host_hold(struct kv_host *host, struct kv_host_slot *slots, uint32_t n);

/* Gives them back, pinned for this step: they may be being read. First to last. */
void kv_host_release(struct kv_host *host, const block_id *ids, uint32_t n);

/* --- lower tiers ------------------------------------------------------------------------------ */

/* A quiet block for bytes to come, the caller's until kv_host_drop; evicts the coldest. BLOCK_NONE
 * when max_reserved are reserved, or the coldest is held or not quiet. */
block_id kv_host_reserve(struct kv_host *host);

/* The bytes of a reserved block are there and verified: it is found from now on. Its content must
 * not be here under another block. It stays the caller's; on_store is not called. */
void kv_host_publish(struct kv_host *host, block_id id, const struct prefix_key *key,
                     uint64_t prefix);

/* One more reference to a published block, so that it keeps its bytes until kv_host_drop. */
void kv_host_acquire(struct kv_host *host, block_id id);

/* Gives reserved or acquired blocks back, and forgets those that were not published. Pass a chain
 * first to last: it is evicted from its end. */
void kv_host_drop(struct kv_host *host, const block_id *ids, uint32_t n);

/* The number of the step that is being put together; the device has done all moves of the steps
 * before `step`. */
uint64_t kv_host_step(const struct kv_host *host);
void kv_host_settle(struct kv_host *host, uint64_t step);
bool kv_host_is_quiet(const struct kv_host *host, block_id id);

/* --- all -------------------------------------------------------------------------------------- */

/* The step's moves are with the device: pins end. */
void kv_host_end_step(struct kv_host *host);

/* Forgets all cached content; held blocks stay with their holders, nameless. */
void kv_host_reset(struct kv_host *host);

const struct prefix_cache *kv_host_cache(const struct kv_host *host); /* what is published */
uint32_t kv_host_n_blocks(const struct kv_host *host);
uint32_t kv_host_n_held(const struct kv_host *host); /* by swapped sequences, pins, lower tiers */
uint32_t kv_host_n_reserved(const struct kv_host *host);
uint32_t kv_host_n_cached(const struct kv_host *host);
void kv_host_check(const struct kv_host *host);

#endif

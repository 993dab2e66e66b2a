/* worker/kv/kv_events.h - what happens to cached blocks, as a sequence others can follow.
 *
 * A router or an indexer that knows which blocks a worker holds can send a prompt to where its
 * prefix is. The KV manager writes here what it publishes and forgets; once a step the engine
 * commits that as one *batch* with the next sequence number. Batches wait in a ring of fixed size
 * until they are overwritten; a subscriber reads them by number; one that is too late gets
 * ST_NOT_FOUND and starts over.
 *
 *      KV manager ──stored, removed, cleared──▶ open batch ──commit──▶ | 17 | 18 | 19 | 20 |
 *      (engine thread)                                                   oldest       next = 21
 *                                                                       ▲ read(from), any thread
 *
 * A batch is MessagePack, encoded once, byte for byte what vLLM's publisher sends:
 *
 *      [ts, [event, ...], rank]
 *      ["BlockStored", [hash, ...], parent | nil, [token, ...], block_size, lora_id | nil, medium,
 *       lora_name | nil, (extra_keys, group_idx, kv_cache_spec_kind, sliding_window)]
 *      ["BlockRemoved", [hash], medium, (group_idx)]
 *      ["AllBlocksCleared"]
 *
 * (fields in brackets are optional). To follow: keep a set of hashes per medium and group; stored
 * adds, removed erases, cleared empties all sets. Stored may repeat a member. Removed comes with
 * the last copy only. Hashes are binary, or, by an option of the log, their last 8 bytes as an
 * unsigned number.
 *
 * The *digest* describes the sets after batch `sequence`: the number of hashes in each, and their
 * XOR. Equal digests prove that the subscriber's sets are right.
 *
 * Threads: stored, removed, cleared and commit are the engine's; the rest is for any thread. One
 * lock, held for the copy of one batch; nothing is taken under it, and a commit that would have to
 * wait for it leaves the batch open for the next step instead. */
#ifndef WORKER_KV_KV_EVENTS_H
#define WORKER_KV_KV_EVENTS_H

#include "common/base/buf.h"
#include "worker/kv/block/block_hash.h"

#define KV_EVENT_GROUPS_MAX 8
#define KV_EVENT_HEAD_BYTES 12 /* of a frame: u32 length of the payload, u64 sequence */

enum kv_medium { KV_MEDIUM_GPU, KV_MEDIUM_CPU, KV_MEDIUM_COUNT };
const char *kv_medium_name(enum kv_medium medium); /* "GPU" is the device's pool, also on a CPU */

struct kv_event_group {
    const char *kind; /* "full_attention", "sliding_window", "chunked_local_attention" */
    uint32_t window;  /* of sliding_window, tokens; else 0 */
};

struct kv_event_config {
    uint32_t max_batches; /* kept for replay; >= 1 */
    uint64_t max_bytes;   /* that they may take together */
    uint32_t block_size;
    uint32_t hash_bytes;    /* of the algorithm: 16 or 32 */
    bool has_number_hashes; /* send the last 8 bytes as a number */
    uint32_t rank;          /* last field of a batch */
    uint32_t n_groups;      /* 0: events name no group */
    struct kv_event_group groups[KV_EVENT_GROUPS_MAX];
};
struct kv_event_log;

/* ST_NOMEM when the ring does not fit into memory. */
MUST_USE enum status kv_event_log_create(struct kv_event_log **out,
                                         const struct kv_event_config *config, struct error *err);
void kv_event_log_destroy(struct kv_event_log *log); /* NULL is fine */

/* --- the engine's side ------------------------------------------------------------------------ */

/* A run of full blocks, one behind the other. */
struct kv_event_stored {
    enum kv_medium medium;
    uint32_t group;
    const struct block_hash *hashes;   /* (n_blocks) */
    uint32_t n_blocks;                 /* 0: no event */
    const struct block_hash *parent;   /* of the block before; NULL: the run begins the sequence */
    const uint32_t *tokens;            /* (n_blocks * block_size); NULL: not published */
    const struct block_extras *extras; /* NULL: none */
    uint32_t first_block;              /* number of the run's first block in its sequence */
    int64_t lora_id;                   /* -1: none */
};
void kv_event_log_stored(struct kv_event_log *log, const struct kv_event_stored *e);

/* For the digest: a hash that was in no block of this medium and group now is. */
void kv_event_log_count(struct kv_event_log *log, enum kv_medium medium, uint32_t group,
                        const struct block_hash *hash);

/* The last block with that hash is gone: publishes the removal and updates the digest. */
void kv_event_log_removed(struct kv_event_log *log, enum kv_medium medium, uint32_t group,
                          const struct block_hash *hash);
void kv_event_log_cleared(struct kv_event_log *log);

/* Ends the batch, if there is anything in it. True when subscribers have something new: wake them.
 * `may_wait`: for the lock, because no step will follow soon. wall_us: Unix time. */
bool kv_event_log_commit(struct kv_event_log *log, uint64_t wall_us, bool may_wait);

/* --- the readers' side ------------------------------------------------------------------------ */

/* Appends to `out` the frames from sequence `from` on, whole ones, until `max_bytes` are in it or
 * there are no more; at least one when there is one. *next is the sequence to read next. A frame is
 * KV_EVENT_HEAD_BYTES of head (big-endian), then the payload.
 *
 * ST_OK; ST_AGAIN when the sequence does not exist yet; ST_NOT_FOUND when it was overwritten or is
 * not of this log: *next is then the number of the next batch. */
MUST_USE enum status kv_event_log_read(struct kv_event_log *log, uint64_t from, size_t max_bytes,
                                       struct buf *out, uint64_t *next);

struct kv_event_set {
    enum kv_medium medium;
    uint32_t group;
    uint64_t n_keys;
    struct block_hash xor_of; /* of the first hash_bytes, or 8 */
};
struct kv_event_digest {
    uint64_t sequence; /* the last committed batch; meaningless while next is 0 */
    uint64_t next, oldest;
    uint64_t n_events, n_lost_batches; /* since the start */
    uint32_t n_sets, hash_bytes;
    struct kv_event_set sets[KV_MEDIUM_COUNT * (KV_EVENT_GROUPS_MAX + 1)];
};
void kv_event_log_digest(struct kv_event_log *log, struct kv_event_digest *out);

#endif

/* router/kv/kv_batch.h - reads batches of KV events as vLLM and SGLang publish them.
 *
 * A batch is MessagePack. Its shape has changed over the years, and a fleet may have all of them:
 *
 *      batch   [ts, [event, ...]]  or  [ts, [event, ...], rank]  or  {"ts": , "events": [ ... ], ...}
 *      event   ["BlockStored", hashes, parent, token_ids, block_size, ...]         array, tag first
 *              {"type": "BlockStored", "block_hashes": [ ... ], ...}                            map
 *
 * Trailing fields of arrays may be missing, and any field of a map. Unknown fields and unknown tags
 * are stepped over. An event with a field of the wrong type is ignored, and counted; only bytes
 * that are no MessagePack spoil the rest of the batch.
 *
 * A hash is an integer of 64 bits (SGLang's are signed), or a string of bytes, whose last eight
 * count. Nothing is allocated, and nothing recurses: an event points into the bytes of the batch.
 * Pure; any thread. Follows: vllm/distributed/kv_events.py, sglang/srt/disaggregation/kv_events.py.
 */
#ifndef ROUTER_KV_KV_BATCH_H
#define ROUTER_KV_KV_BATCH_H

#include "common/base/buf.h"
#include "common/text/msgpack.h"

/* Where a block lies. */
enum kv_tier { KV_DEVICE, KV_HOST, KV_DISK, KV_REMOTE, KV_TIER_COUNT };
extern const char *const kv_tier_names[KV_TIER_COUNT]; /* "device", "host", "disk", "remote" */

/* Of a medium's name in events; KV_TIER_COUNT: not known. */
enum kv_tier kv_tier_of(struct str medium);

enum kv_event_kind { KV_STORED, KV_REMOVED, KV_CLEARED, KV_EVENT_KINDS };
enum kv_hash_kind { KV_HASH_INTEGER = 1, KV_HASH_BYTES = 2 };

#define KV_BLOCK_TOKENS_MAX 65535u
#define KV_GROUP_NONE       (-1)

struct kv_event {
    enum kv_event_kind kind;
    struct msgpack_reader hashes; /* for kv_event_hash */
    uint32_t n_hashes;
    uint32_t hash_kinds;   /* bits of enum kv_hash_kind */
    uint32_t block_tokens; /* of each block; 0: not given */
    enum kv_tier tier;     /* KV_TIER_COUNT: of a name that is not known */
    int64_t group;         /* of a model with several kinds of attention; KV_GROUP_NONE: one kind */
    bool is_full;          /* blocks of full attention, as far as is known */
    bool has_pairs;        /* its tokens are pairs: of a speculative decoder's own cache */
    struct msgpack_reader copies; /* of a removal: per hash, how many copies are left */
    uint32_t n_copies;            /* 0: none is */
};

struct kv_batch {
    struct msgpack_reader at;
    uint32_t n_left; /* events */
    uint32_t n_unknown,
        n_malformed; /* events ignored so far: of an unknown tag; with a bad field */
};

/* ST_INVALID: no batch; *out is untouched. */
MUST_USE enum status kv_batch_open(struct kv_batch *out, struct str payload);

/* The next event that is understood. ST_NOT_FOUND: the end. ST_INVALID: the rest is unreadable. */
MUST_USE enum status kv_batch_next(struct kv_batch *b, struct kv_event *out);

/* The next hash of an event; false: the last was taken. *is_gone: of a removal, no copy is left. */
bool kv_event_hash(struct kv_event *e, uint64_t *hash, bool *is_gone);

#endif

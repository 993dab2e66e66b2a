/* router/kv/kv_frame.h - reads frames of an Incipit worker's GET /kv_events?format=msgpack.
 *
 *      u32 length, u64 number (both big-endian), payload
 *
 * The payload of a number is a batch (kv_batch.h). Frames of the number 2^64 - 1 are about the
 * stream: {"gap" | "digest" | "closed": JSON}. Nothing is read before its frame is whole.
 *
 * Pure; any thread. Follows: worker/api/kv_events.c. */
#ifndef ROUTER_KV_KV_FRAME_H
#define ROUTER_KV_KV_FRAME_H

#include "common/protocol/wire.h"
#include "router/kv/kv_batch.h"

#define KV_FRAME_HEAD     12u
#define KV_FRAME_MAX      (UINT64_C(8) << 20) /* of a payload */
#define KV_FRAME_SETS_MAX 18u

enum kv_frame_kind {
    KV_FRAME_BATCH,
    KV_FRAME_GAP,    /* what is known is worth nothing: batches from `next` on hold all of it */
    KV_FRAME_DIGEST, /* what the worker holds behind batch next - 1 */
    KV_FRAME_CLOSED, /* the stream ends */
    KV_FRAME_OTHER   /* of a newer worker */
};

/* Blocks of one medium and group. */
struct kv_frame_set {
    enum kv_tier tier; /* KV_TIER_COUNT: of a name that is not known */
    int64_t group;     /* KV_GROUP_NONE: none */
    uint64_t n_blocks, digest;
};

struct kv_frame {
    enum kv_frame_kind kind;
    uint64_t number;                      /* of a batch */
    struct str batch;                     /* lies in the bytes that were read */
    uint64_t next;                        /* gap, digest */
    char generation[WIRE_GENERATION_MAX]; /* gap, digest: the run of the worker; "": not given */
    char why[128];                        /* closed */
    uint32_t n_sets;                      /* digest */
    struct kv_frame_set sets[KV_FRAME_SETS_MAX];
};

/* The first frame in `bytes`. *n_bytes is its length, and *out is set if it is whole; else *n_bytes
 * is what is needed to know more. ST_INVALID: it is no frame of such a stream. */
MUST_USE enum status kv_frame_read(struct str bytes, struct kv_frame *out, size_t *n_bytes,
                                   struct error *err);

#endif

/* common/protocol/request_events.h - what a worker tells every router of the requests it was given.
 *
 * Routers side by side in front of the same workers must act as one, or each believes the workers idle
 * and their caches empty of what the others sent. They do not talk to each other. The workers tell
 * all of them: each numbers what happens to the requests it accepts, keeps the last of it, and every
 * router follows (GET /request_events, worker/api/events/request_log.h):
 *
 *      router A ──request, x-incipit-chain──▶ worker ──events──▶ router A, B, C ...
 *
 *      accepted   a request came: who routed it, how long its prompt is, its hash chain
 *      first      its first token exists: prompt tokens, and how many of them were cached
 *      ended      it is over
 *      load       the worker's own figures, when they have changed, every 100 ms at most
 *      cleared    its prefix cache was emptied
 *
 *      GET /request_events?from=SEQ|oldest|now[&generation=ID][&origin=ID][&format=json]
 *
 * begins with a hello; origin is the follower's own, whose requests are no news to it. Whoever comes
 * back names the number behind its last event and the generation that it is from; of another one, or
 * overwritten, the hello says is_gap and all from the oldest on follows. There is a load event every
 * 5 s even if nothing changed: longer silence is a fault.
 *
 * Whoever replays all of it from the beginning has, but for what the ring no longer holds, the books of
 * a router that was always there: that is how a restarted one gets them back.
 *
 * On the wire an event is a frame: u32 length of the payload, u64 sequence (both big-endian), then a
 * MessagePack array [kind, t_us, ...]. Arrays may be longer than what is known here, kinds that are
 * not known are passed over, and a reader never fails on a newer writer: one minor version of skew.
 *
 * The chain header, from the router:
 *
 *      x-incipit-chain: 1 ORIGIN SCHEME BYTES BLOCKS
 *
 * origin: 16 hexadecimal digits, the router's life; scheme: 16 digits, what must be equal for two
 * routers' hashes to mean the same (secret, block size, version of the hashing); the prompt's bytes;
 * then the chain, 48 bits of each block, high ones first, in base64url: 8 characters a block.
 * Pure; any thread. */
#ifndef COMMON_PROTOCOL_REQUEST_EVENTS_H
#define COMMON_PROTOCOL_REQUEST_EVENTS_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/protocol/wire.h"

#define WIRE_CHAIN            "x-incipit-chain"
#define REQUEST_EVENTS_PATH   "/request_events"
#define CHAIN_HASH_BYTES      6    /* the high 48 bits of a block's hash; the low 16 are zero */
#define CHAIN_BLOCKS_MAX      3584 /* of a prompt, 28 KiB of a head's 32; the rest is counted */
#define REQUEST_EVENT_HEAD    12   /* bytes before the payload of a frame */
#define REQUEST_EVENT_CONTROL UINT64_MAX /* sequence of a frame that is not an event */

struct request_chain {
    uint64_t origin, scheme; /* 0 and 0: not routed by a router of ours */
    uint64_t prompt_bytes;   /* all of the prompt */
    uint32_t n_blocks;
    const uint64_t *blocks; /* (n_blocks), the low 16 bits zero */
};

enum request_event_kind {
    REQUEST_ACCEPTED = 1,
    REQUEST_FIRST = 2,
    REQUEST_ENDED = 3,
    REQUEST_LOAD = 4,
    REQUEST_CLEARED = 5,
    REQUEST_HELLO = 100 /* control: the first frame of a stream, and after a gap */
};

struct request_event {
    enum request_event_kind kind;
    uint64_t t_us;    /* the worker's monotonic clock */
    uint64_t request; /* accepted, first, ended: its number, never used twice by one generation */
    struct request_chain chain;           /* accepted */
    int64_t prompt_tokens, cached_tokens; /* first; -1: unknown */
    int64_t output_tokens;                /* ended; -1: unknown */
    bool is_aborted;                      /* ended: not answered in full */
    struct wire_load load;                /* load */
    /* hello: which life of the worker, what comes next, what is the oldest that can be had, and
     * whether what the reader knew is worth nothing (it was too far behind, or of another life) */
    char generation[WIRE_GENERATION_MAX];
    uint64_t next, oldest;
    bool is_gap;
};

/* Appends the frame of `e` under `sequence`. Errors are the buf's. */
void request_event_put(struct buf *out, uint64_t sequence, const struct request_event *e);

/* Reads the frame at the beginning of `bytes`. *used: its length, 0 while it has not come whole.
 * ST_OK with *used > 0: *e is filled; kind 0: one that is not known. The chain's blocks are written to
 * `blocks`, which has room for CHAIN_BLOCKS_MAX. ST_INVALID: not such a stream; ST_TOO_LARGE. */
MUST_USE enum status request_event_read(struct str bytes, uint64_t *blocks, struct request_event *e,
                                        uint64_t *sequence, size_t *used, struct error *err);

/* The header's value. put writes at most request_chain_text_max(n_blocks) bytes and returns the end. */
size_t request_chain_text_max(uint32_t n_blocks);
char *request_chain_put(char *to, const struct request_chain *chain);
/* ST_INVALID: malformed, or a version that is not known: the request is served all the same. */
MUST_USE enum status request_chain_parse(struct str value, uint64_t *blocks,
                                         struct request_chain *out);

#endif

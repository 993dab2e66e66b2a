/* common/protocol/request_events.h - the events of a worker's requests, for every router.
 *
 * Routers in front of the same workers must act as one; otherwise each assumes that the workers are
 * idle and their caches empty of what the others sent. Routers do not talk to each other: each
 * worker numbers the events of the requests it accepts, keeps the latest in a ring, and every
 * router follows them (GET /request_events, worker/api/events/request_log.h):
 *
 *      router A ──request, x-incipit-chain──▶ worker ──events──▶ router A, B, C ...
 *
 *      accepted   a request arrived: its router, prompt length and hash chain
 *      first      its first token exists: prompt tokens, and how many of them were cached
 *      ended      it is over
 *      load       the worker's own figures, when they have changed, every 100 ms at most
 *      cleared    its prefix cache was emptied
 *
 *      GET /request_events?from=SEQ|oldest|now[&generation=ID][&origin=ID][&format=json]
 *
 * begins with a hello; `origin` is the follower's own, whose requests are left out. A returning
 * follower gives the sequence after its last event and that event's generation; if the generation
 * has changed or the event was overwritten, the hello has is_gap and all events from the oldest on
 * follow. A load event comes every 5 s even without a change: longer silence is a fault.
 *
 * A full replay reconstructs the state of a router that was always there, except for events that
 * have fallen out of the ring. A restarted router restores its state that way.
 *
 * On the wire an event is a frame: u32 length of the payload, u64 sequence (both big-endian), then
 * a MessagePack array [kind, t_us, ...]. Readers ignore further elements and unknown kinds, so one
 * minor version of skew works.
 *
 * The chain header, from the router:
 *
 *      x-incipit-chain: 1 ORIGIN SCHEME BYTES BLOCKS TENANT SESSION SYSTEM FLAGS
 *
 * origin: 16 hexadecimal digits, new at each start of the router; scheme: 16 digits, equal for
 * routers with comparable hashes (secret, block size, version of the hashing); the prompt's bytes;
 * then the chain, 48 bits of each block, high ones first, in base64url: 8 characters a block, none
 * for an empty chain. The last four words are the mark, which is left out where nothing is known
 * and read only where it is whole: 16 digits each, and two numbers. Pure; any thread. */
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

/* What other routers need, beside the load, to account for the request as its own router does.
 * Names are hashes with the secret of the scheme: worth nothing to routers of another. */
#define REQUEST_PRIORITY_LEAST (-8)
#define REQUEST_PRIORITY_MOST  7
#define REQUEST_WEIGHT_MOST    16383 /* percent */
#define REQUEST_WAIT_MOST      4095  /* s */
struct request_mark {
    uint64_t tenant;          /* 0: nothing here is known */
    uint64_t session;         /* its name; 0: the client gave none */
    uint32_t n_system;        /* blocks that the system prompt touches; 0: unknown */
    uint32_t weight_percent;  /* of the tenant's share; 0: unknown */
    int32_t priority;         /* as the queue's; clamped to the two bounds above */
    bool is_turn;             /* of a session: its router admits whole sessions */
    bool is_last;             /* of its session, by the client */
    bool has_waited;          /* for a worker, in its router's queue */
    uint32_t held_s;          /* until its session might go, at least 1; 0: it was not */
    uint32_t sessions_wait_s; /* its router's session that has waited longest; 0: none waits */
    uint64_t origin;          /* of its router; only where an event was read */
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
    uint64_t t_us;              /* the worker's monotonic clock */
    uint64_t request;           /* accepted, first, ended: its number, unique in one generation */
    struct request_chain chain; /* accepted */
    struct request_mark mark;   /* accepted; tenant 0: of an old writer, or no router */
    int64_t prompt_tokens, cached_tokens; /* first; -1: unknown */
    int64_t below_tokens;  /* first: of the cached ones, below the device; the same */
    int64_t output_tokens; /* ended; -1: unknown */
    bool is_aborted;       /* ended: the answer is incomplete */
    struct wire_load load; /* load */
    /* hello: the worker's generation, the next sequence, the oldest available, and whether the
     * follower's position was lost (overwritten, or of another generation) */
    char generation[WIRE_GENERATION_MAX];
    uint64_t next, oldest;
    bool is_gap;
};

/* Appends the frame of `e` under `sequence`. Errors are the buf's. */
void request_event_put(struct buf *out, uint64_t sequence, const struct request_event *e);

/* Reads the frame at the beginning of `bytes`. *used: its length, 0 while it has not come whole.
 * ST_OK with *used > 0: *e is filled; kind 0: one that is not known. The chain's blocks are written
 * to `blocks`, which has room for CHAIN_BLOCKS_MAX. ST_INVALID: not such a stream; ST_TOO_LARGE. */
MUST_USE enum status request_event_read(struct str bytes, uint64_t *blocks, struct request_event *e,
                                        uint64_t *sequence, size_t *used, struct error *err);

/* The header's value. put writes at most request_chain_text_max(n_blocks) bytes and returns the
 * end. */
size_t request_chain_text_max(uint32_t n_blocks);
char *request_chain_put(char *to, const struct request_chain *chain,
                        const struct request_mark *mark);
/* ST_INVALID: malformed, or an unknown version; the request is served all the same. *mark is zero
 * when there is none, or not one of ours. */
MUST_USE enum status request_chain_parse(struct str value, uint64_t *blocks,
                                         struct request_chain *out, struct request_mark *mark);

#endif

/* worker/kv/tiers/peer/peer_frame.h - incipit-kv/1, the protocol between two workers: its frames,
 * what is in them, and the proof that both have the fleet's key.
 *
 *      | length, 4 | type, 1 | flags, 1 | stream, 2 | body |       length: of all of it
 *
 *      the sink, which asks                                        the source, which has blocks
 *      GET /kv/blocks, Upgrade: incipit-kv/1 ──────────────────▶
 *                                            ◀────────────────── 101
 *      HELLO ──────────────────────────────────────────────────▶  compared with its own:
 *                                            ◀────────────────── HELLO, or REFUSE with the field
 *      AUTH ───────────────────────────────────────────────────▶
 *                                            ◀────────────────── AUTH, or REFUSE
 *      WANT keys, credit ──────────────────────────────────────▶  blocks are found and pinned
 *                                            ◀────────────────── HAVE n
 *      CREDIT ─────────────────────────────────────────────────▶
 *                                            ◀────────────────── UNIT, n times
 *                                            ◀────────────────── END, exactly one for each WANT
 *
 *      between processes of one host, where both share memory (peer_pass.h), instead of the last:
 *      WANT keys, PEER_FLAG_PLACES ────────────────────────────▶
 *                                            ◀────────────────── PLACES of the run
 *      copies them                           ◀────────────────── END
 *
 * A stream is a WANT and all that follows it until its END, with its number in each frame; the
 * sink picks numbers. What the source has is a run from the first key on; END has the reason why
 * there is no more. A unit (tiers/unit.h) longer than a frame comes in parts, one behind the other.
 * CANCEL ends a stream behind the unit that is being sent. Either side answers a PING.
 *
 * AUTH is an HMAC under the fleet's key of who speaks and of both HELLOs, in which are a random
 * number and the generation of each process: it proves the key for one connection of two processes,
 * and neither a recorded proof nor one's own sent back does. Without a key both have a fixed one,
 * which proves nothing.
 *
 * PLACES has where blocks lie in the source's memory, their numbers (tiers/generation.h) and sums.
 * It ends in an HMAC of these, of the connection and stream, and of each block's whole identity
 * (unit_add_identity), which the sink makes of the identities that it expects: a place is of that
 * block or of none.
 *
 * Pure except for the random numbers of peer_hello_make. All numbers are little endian. */
#ifndef WORKER_KV_TIERS_PEER_PEER_FRAME_H
#define WORKER_KV_TIERS_PEER_PEER_FRAME_H

#include "common/base/buf.h"
#include "worker/kv/tiers/tier.h"

#define PEER_PATH           "/kv/blocks"
#define PEER_PROTOCOL       "incipit-kv/1"
#define PEER_VERSION        1
#define PEER_HEAD_BYTES     8u
#define PEER_PART_BYTES     (1u << 20) /* of a unit, in one frame */
#define PEER_FRAME_MAX      (PEER_PART_BYTES + 64u)
#define PEER_NONCE_BYTES    32
#define PEER_PROOF_BYTES    32
#define PEER_KEYS_MAX       TIER_JOB_UNITS
#define PEER_CREDIT_MAX     (256u << 20) /* of a stream */
#define PEER_FLAG_CONTINUES 1u           /* of a UNIT: another part follows */
#define PEER_FLAG_ANSWER    1u           /* of a PING: it is the answer to one */
#define PEER_FLAG_PLACES    1u           /* of a WANT: places will do */
#define PEER_SUM_BYTES      16

enum peer_type {
    PEER_HELLO = 1,
    PEER_REFUSE,
    PEER_AUTH,
    PEER_WANT,
    PEER_HAVE,
    PEER_UNIT,
    PEER_END,
    PEER_CREDIT,
    PEER_CANCEL,
    PEER_PING,
    PEER_PLACES,
    PEER_N_TYPES,
};

struct peer_frame {
    enum peer_type type;
    uint8_t flags;
    uint16_t stream;
    struct str body; /* in the input */
    size_t n_taken;  /* of the whole frame */
};

/* The frame at the beginning of `in`. ST_AGAIN: it needs *wanted bytes. ST_INVALID: it has a length
 * that no frame of its type has, or an unknown type; err names it. Its body has been checked for
 * size, and for nothing else. */
MUST_USE enum status peer_frame_read(struct str in, struct peer_frame *out, size_t *wanted,
                                     struct error *err);

/* The head of a frame whose body of n_body bytes follows. */
void peer_frame_head(enum peer_type type, uint8_t flags, uint16_t stream, size_t n_body,
                     uint8_t out[PEER_HEAD_BYTES]);

/* --- bodies ----------------------------------------------------------------------------------- */

#define PEER_CAN_SHARE 1u /* of a HELLO: blocks may go through shared memory */

/* As it is sent. */
struct peer_hello {
    uint32_t version, block_tokens;
    uint64_t block_bytes, generation;
    uint8_t fingerprint[UNIT_DIGEST_BYTES];
    uint8_t nonce[PEER_NONCE_BYTES];
    uint32_t is_sealed; /* 1: units are encrypted */
    uint32_t flags;     /* PEER_CAN_SHARE; others are of later versions */
};

/* The first is for equal ones. */
enum peer_refusal {
    PEER_WELCOME,
    PEER_DIFFERS_VERSION,
    PEER_DIFFERS_ENCRYPTION,
    PEER_DIFFERS_BLOCK_SIZE,
    PEER_DIFFERS_BLOCK_BYTES,
    PEER_DIFFERS_FINGERPRINT,
    PEER_SAME_GENERATION, /* it is the process itself */
    PEER_DIFFERS_KEY,     /* AUTH is no proof */
    PEER_HAS_NO_ROOM,
    PEER_N_REFUSALS,
};
const char *peer_refusal_name(enum peer_refusal refusal); /* "fingerprint" */

/* A HELLO of this process, with a new random number. */
void peer_hello_make(const struct unit_codec_config *codec, uint64_t generation,
                     struct peer_hello *out);

/* Why the blocks of the one are none for the other. */
enum peer_refusal peer_hello_compare(const struct peer_hello *mine,
                                     const struct peer_hello *theirs);

/* fleet_key: 32 bytes, NULL: the fixed one. */
void peer_prove(const uint8_t *fleet_key, bool is_source, const struct peer_hello *sink,
                const struct peer_hello *source, uint8_t out[PEER_PROOF_BYTES]);

/* The same for the two messages by which memory is passed. */
void peer_prove_pass(const uint8_t *fleet_key, bool is_source, const struct peer_hello *sink,
                     const struct peer_hello *source, uint8_t out[PEER_PROOF_BYTES]);

/* As it is sent. */
struct peer_place {
    uint64_t number; /* of the block, while it has these bytes */
    uint32_t block, zero;
    uint8_t sum[PEER_SUM_BYTES]; /* hash_128 of its payload */
};
#define PEER_PLACES_BYTES(n) ((size_t)(n) * sizeof(struct peer_place) + PEER_PROOF_BYTES)

/* identities: SHA-256 of what unit_add_identity adds for each of the n blocks. */
void peer_prove_places(const uint8_t *fleet_key, const struct peer_hello *sink,
                       const struct peer_hello *source, uint16_t stream,
                       const struct peer_place *places, uint32_t n,
                       const uint8_t identities[UNIT_DIGEST_BYTES], uint8_t out[PEER_PROOF_BYTES]);

struct peer_asked {
    uint64_t patience_us; /* nothing need be sent after that */
    uint32_t credit_bytes, n;
    struct unit_key keys[PEER_KEYS_MAX]; /* (n) consecutive blocks of a chain */
};
#define PEER_ASKED_BYTES(n) (16 + (size_t)(n) * sizeof(struct unit_key))

/* Bodies of frames that peer_frame_read gave. ST_INVALID: a number in it is out of bounds. */
void peer_read_hello(const struct peer_frame *f, struct peer_hello *out);
MUST_USE enum status peer_read_asked(const struct peer_frame *f, struct peer_asked *out,
                                     struct error *err);
MUST_USE enum status peer_read_places(const struct peer_frame *f,
                                      struct peer_place out[PEER_KEYS_MAX], uint32_t *n,
                                      uint8_t proof[PEER_PROOF_BYTES], struct error *err);
/* Of HAVE, END, CREDIT and REFUSE. */
uint32_t peer_read_number(const struct peer_frame *f);

#endif

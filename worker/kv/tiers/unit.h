/* worker/kv/tiers/unit.h - the form in which a KV block leaves this process, and the proof that
 * what comes back is it.
 *
 *      | header, UNIT_HEADER_BYTES | token ids, padded | payload |
 *        whole key, sums or tag      4 bytes each        the block as it lies in memory
 *
 * A block in a file, a store or a peer's memory goes by an outer key: a chain of HMAC-SHA-256 under
 * the fleet's key (a fixed one where none is set), cut to 16 bytes. The key only leads to bytes.
 * Before one of them is used, unit_open compares everything that the KV of a block depends on with
 * what the request expects: the fingerprint of model and kernels, the parent's key,
 * position, salt, extra keys and the token ids themselves; then the sum of the payload, or with
 * encryption its tag. The first difference is the cause, and the block is computed instead.
 *
 * With a fleet key the token ids and the payload are sealed by AES-256-GCM (they are the prompt);
 * the header is authenticated. Each process and salt has a key of its own (HKDF), nonces are random
 * numbers of 96 bits. Without one, XXH3-128 finds accidents, not forgers.
 *
 * Pure except for the random numbers of a codec; a codec belongs to one thread. All numbers are
 * little endian. The names of causes are a metric's labels. */
#ifndef WORKER_KV_TIERS_UNIT_H
#define WORKER_KV_TIERS_UNIT_H

#include "common/base/hash.h"
#include "common/base/status.h"

#define UNIT_KEY_BYTES    16
#define UNIT_DIGEST_BYTES 32
#define UNIT_HEADER_BYTES 256
#define UNIT_MAX_TOKENS   1024        /* of one block */
#define UNIT_MAX_PAYLOAD  (64u << 20) /* bytes of one block */

struct unit_key {
    uint8_t bytes[UNIT_KEY_BYTES];
};

/* What must be equal. Everything is borrowed. */
struct unit_identity {
    struct unit_key key, parent;  /* of this block and of the one before it; the root's key first */
    uint8_t salt[UNIT_KEY_BYTES]; /* zeros: none */
    uint8_t extras[UNIT_DIGEST_BYTES]; /* SHA-256 of adapter and items; zeros: none */
    uint32_t position;                 /* of its first token */
    uint32_t n_tokens;
    uint32_t group; /* kind of attention */
    const uint32_t *tokens;
};

/* In the order in which they are looked for, except that a sealed unit's token ids come last. */
enum unit_cause {
    UNIT_FINE,
    UNIT_MAGIC,
    UNIT_VERSION, /* of a later version: another process may read it */
    UNIT_TORN,    /* ends too early, or the header is not as it was written */
    UNIT_FINGERPRINT,
    UNIT_POSITION, /* or the kind of attention */
    UNIT_TOKENS,
    UNIT_PARENT, /* or a key that does not follow from it: another chain */
    UNIT_SALT,
    UNIT_EXTRAS,
    UNIT_SIZE,
    UNIT_CHECKSUM,
    UNIT_AUTH, /* its tag, or plain where it should be sealed, or the other way round */
    UNIT_N_CAUSES,
};
const char *unit_cause_name(enum unit_cause cause);

struct unit_codec_config {
    uint8_t fingerprint[UNIT_DIGEST_BYTES];
    uint32_t block_tokens;
    uint64_t block_bytes;
    /* 32 bytes each; the first seals, all open. NULL: plain, and sealed units are UNIT_AUTH. */
    const uint8_t (*fleet_keys)[32];
    uint32_t n_fleet_keys; /* <= 2 */
};
struct unit_codec;

MUST_USE enum status unit_codec_create(struct unit_codec **out, const struct unit_codec_config *c,
                                       struct error *err);
void unit_codec_destroy(struct unit_codec *codec); /* NULL is fine */

/* Bytes of one unit; the payload begins at unit_payload_at, which is a multiple of 64. */
size_t unit_bytes(const struct unit_codec *codec);
size_t unit_payload_at(const struct unit_codec *codec);

/* Writes header, token ids and payload to out, which has unit_bytes. `payload` has block_bytes and
 * may be out + unit_payload_at. ST_INVALID: the identity does not have block_tokens. */
MUST_USE enum status unit_seal(struct unit_codec *codec, const struct unit_identity *id,
                               const void *payload, void *out);

/* The first unit_payload_at bytes of what unit_seal would write, for a payload that goes out from
 * where it lies. ST_UNSUPPORTED: this codec encrypts. */
MUST_USE enum status unit_seal_head(struct unit_codec *codec, const struct unit_identity *id,
                                    const void *payload, void *out);

/* Verifies the n bytes at `in` and puts the payload into `out` (block_bytes, no overlap). On every
 * cause but UNIT_FINE `out` holds no content of a unit: it is zeroed. Reads nothing behind n, and
 * bytes that change meanwhile (memory of a peer) at worst fail. */
enum unit_cause unit_open(struct unit_codec *codec, const struct unit_identity *expected,
                          const void *in, size_t n, void *out);

/* Adds all that an identity is made of, and what this codec adds to it (fingerprint, sizes), token
 * ids included, to a digest: two are equal exactly if a unit of the one opens as the other. */
void unit_add_identity(struct unit_codec *codec, const struct unit_identity *id,
                       struct sha256 *digest);

/* What a store or a scan can learn of a unit without the request: false where the header does not
 * stand for itself (magic, version, sum, fingerprint) or has another size. n: at least
 * unit_payload_at, or all there is. */
struct unit_summary {
    struct unit_key key, parent;
    uint32_t position, n_tokens;
    uint64_t n_bytes; /* of the whole unit */
};
bool unit_peek(const struct unit_codec *codec, const void *in, size_t n, struct unit_summary *out);

/* --- the chain of outer keys ------------------------------------------------------------------ */

/* The last bytes of a key are those of its group: neighbours in a chain, UNIT_GROUP_BLOCKS in the
 * mean. A place that keeps blocks on several servers keeps a group on one. The first block of a
 * chain begins one, and then one block in UNIT_GROUP_BLOCKS does, by its digest: chains with a
 * common part have common groups. Zeros in a root. */
#define UNIT_GROUP_AT     12
#define UNIT_GROUP_BYTES  4
#define UNIT_GROUP_BLOCKS 64

/* The root of all chains of this fingerprint and salt (zeros: none). fleet_key: 32 bytes, NULL: the
 * fixed one. */
void unit_chain_root(const uint8_t *fleet_key, const uint8_t fingerprint[UNIT_DIGEST_BYTES],
                     const uint8_t salt[UNIT_KEY_BYTES], struct unit_key *out);
void unit_chain_next(const uint8_t *fleet_key, const struct unit_key *parent,
                     const uint32_t *tokens, uint32_t n_tokens,
                     const uint8_t extras[UNIT_DIGEST_BYTES], struct unit_key *out);

#endif

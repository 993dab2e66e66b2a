/* worker/kv/block/block_hash.h - the hash chain of a token sequence.
 *
 *      h_i = H(h_{i-1}, tokens of block i, extra keys of block i)         h_{-1} = root
 *
 * Only full blocks are hashed. Because each hash contains the one before it, equal hashes mean
 * equal prefixes, not merely equal blocks: DCAB|EFGH and ABCD|EFGH share nothing.
 *
 * Three algorithms. `xxh3_128` (default): XXH3-128 under a secret key over parent, tokens and
 * extra keys; fast, private to this process, and backed by the comparison of tokens in
 * prefix_cache, so that a collision costs a miss and never an answer. `sha256_cbor` and
 * `xxhash_cbor`: the digest of the canonical CBOR of [parent, [tokens], null | [extra keys]], bit
 * for bit what vLLM computes under these names, for routers and indexers outside.
 *
 * Extra keys are what makes equal tokens mean different KV, in this order: the LoRA name (every
 * block); each multimodal item that overlaps the block, as [identifier, item offset - block
 * start]; the cache salt (first block only). They are encoded as a CBOR array in every algorithm.
 *
 * Thread: a hasher belongs to one (it holds a scratch buffer); no clock, no I/O. */
#ifndef WORKER_KV_BLOCK_BLOCK_HASH_H
#define WORKER_KV_BLOCK_BLOCK_HASH_H

#include "common/base/buf.h"
#include "common/base/status.h"

enum block_hash_algo { BLOCK_HASH_XXH3_128, BLOCK_HASH_SHA256_CBOR, BLOCK_HASH_XXHASH_CBOR };

const char *block_hash_algo_name(enum block_hash_algo algo);

#define BLOCK_HASH_BYTES 32
struct block_hash {
    uint8_t bytes[BLOCK_HASH_BYTES]; /* the digest; a 16-byte one is followed by zeros */
};

struct block_mm_item {
    struct str id;             /* content identifier, from the front-end */
    uint32_t offset, n_tokens; /* the placeholder's place in the prompt */
};

/* What a request's blocks depend on besides tokens. Borrowed: it must outlive its users. */
struct block_extras {
    struct str lora;                   /* adapter name, STR_NULL for none */
    struct str cache_salt;             /* STR_NULL for none */
    const struct block_mm_item *items; /* sorted by offset */
    uint32_t n_items;
};

/* Most bytes the extra keys of one request may take, all items together. */
#define BLOCK_EXTRAS_MAX_BYTES (64u << 10)

/* ST_TOO_LARGE over that limit, ST_INVALID when items are not sorted by offset or have no id. */
MUST_USE enum status block_extras_validate(const struct block_extras *extras, struct error *err);
bool block_extras_is_empty(const struct block_extras *extras);

/* Writes the CBOR array of the extra keys of tokens [start, end); returns its bytes, 0 when the
 * block has none. `out` holds BLOCK_EXTRAS_MAX_BYTES. *cursor is the first item that may still
 * matter: 0 at first, then advanced, so that a walk over the blocks looks at each item once. */
size_t block_extras_encode(const struct block_extras *extras, uint32_t start, uint32_t end,
                           uint32_t *cursor, uint8_t *out);

struct block_hasher_config {
    enum block_hash_algo algo;
    uint32_t block_size; /* tokens, >= 1 */
    /* Text that the root (and the key of xxh3_128) is derived from. STR_NULL: sha256_cbor takes
     * "vllm-none-hash", as vLLM does; the others draw one at random. */
    struct str seed;
    /* How the blocks keep K and V, where hashes of other kinds of blocks must differ: "fp8_e4m3.2".
     * The seed is then SEED+KIND. Empty: the seed alone. */
    struct str kind;
    uint32_t truncate_bits; /* tests: the number of bits kept of each hash, 1..8; 0: all */
};
struct block_hasher;

struct block_hasher *block_hasher_create(const struct block_hasher_config *config);
void block_hasher_destroy(struct block_hasher *hasher); /* NULL is fine */

const struct block_hash *block_hasher_root(const struct block_hasher *hasher);

/* Digest of encoded extra keys that a cached block keeps to be compared with (SHA-256, so that
 * equal digests may be taken for equal keys). */
void block_hasher_digest(struct block_hasher *hasher, const uint8_t *extra, size_t n,
                         struct block_hash *out);

/* The hashes of n consecutive full blocks without extra keys. */
void block_hasher_run(struct block_hasher *hasher, const struct block_hash *parent,
                      const uint32_t *tokens, uint32_t n_blocks, struct block_hash *out);

/* The hash of one full block: `tokens` has block_size ids, `extra` is encoded as above; n_extra 0:
 * the block has none. */
void block_hasher_next(struct block_hasher *hasher, const struct block_hash *parent,
                       const uint32_t *tokens, const uint8_t *extra, size_t n_extra,
                       struct block_hash *out);

#endif

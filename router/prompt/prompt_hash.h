/* router/prompt/prompt_hash.h - the hash chain of a prompt's opening bytes.
 *
 *     seed = H(secret, model, adapter, tools, cache salt, tenant)
 *     h    = seed
 *     for each block of block_bytes:
 *         for each piece of it, 128 bytes or the rest:
 *             h = mix(h xor XXH3(piece, key from seed))
 *         chain[i] = h with its low 16 bits zero
 *
 * So chain[i] identifies the whole opening up to block i, in its scope: equal hashes mean equal
 * bytes from the start. The pieces are hashed independently; only the mixing, a bijection of some
 * ten cycles, is sequential. The 48 bits are what other routers receive
 * (common/protocol/request_events.h), and more than the index compares. Without the secret it is
 * infeasible to construct colliding pieces. The bytes are the raw JSON of the prompt, roles and
 * tool calls included (prompt_text.h). A last block shorter than block_bytes is hashed as it is.
 * Bytes beyond max_blocks are not hashed. Pure; any thread. */
#ifndef ROUTER_PROMPT_PROMPT_HASH_H
#define ROUTER_PROMPT_PROMPT_HASH_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/hash.h"

struct body_scan;
struct prompt_text;

/* Everything beside the prompt that must be equal for a cached block to be usable. Raw spans of the
 * body, or empty. */
struct prompt_scope {
    struct str model, adapter, tools, cache_salt, tenant;
};

/* The scope of a scanned body; the caller adds the tenant. */
struct prompt_scope prompt_scope_of(const struct body_scan *scan);

/* `secret` is --prefix-hash-seed: equal on replicas that should agree. */
uint64_t prompt_hash_seed(const struct prompt_scope *scope, uint64_t secret);

/* As prompt_hash_seed with one secret: caches the seed of the last scope that was a model alone, as
 * most are. */
#define PROMPT_MEMO_MODEL_MAX 64
struct prompt_seed_memo { /* zero before use */
    bool is_set;
    size_t model_len;
    char model[PROMPT_MEMO_MODEL_MAX];
    uint64_t seed;
};
uint64_t prompt_hash_seed_memo(struct prompt_seed_memo *memo, const struct prompt_scope *scope,
                               uint64_t secret);

/* The published bits of a hash; the low bits are zero. */
#define PROMPT_HASH_MASK (~UINT64_C(0xFFFF))

/* The scheme of x-incipit-chain: equal schemes mean comparable hashes. */
uint64_t prompt_hash_scheme(uint64_t secret, uint32_t block_bytes);

/* Blocks of a prompt of n bytes: at most max_blocks. */
uint32_t prompt_hash_n_blocks(size_t n, uint32_t block_bytes, uint32_t max_blocks);

/* Writes prompt_hash_n_blocks() hashes to `chain`. */
void prompt_hash_chain(struct str prompt, uint64_t seed, uint32_t block_bytes, uint64_t *chain,
                       uint32_t n_blocks);

/* The chain of bytes that come in pieces: the same as of all of them at once. `chain` has room for
 * n_max blocks, those of the bytes or fewer; end returns how many there are. */
#define PROMPT_PIECE_BYTES 128u /* the longest that XXH3 hashes in one straight line */
struct prompt_hasher {
    size_t n_bytes; /* of all pieces */
    /* Private. */
    struct hash_key key;
    uint64_t hash, *chain;
    uint32_t n_max, n_blocks, block_bytes;
    uint32_t n_in_block, n_kept; /* bytes of the block at hand: hashed, and not yet */
    char kept[PROMPT_PIECE_BYTES];
};
void prompt_hasher_init(struct prompt_hasher *c, uint64_t seed, uint32_t block_bytes,
                        uint64_t *chain, uint32_t n_max);
void prompt_hasher_add(struct prompt_hasher *c, struct str bytes);
uint32_t prompt_hasher_end(struct prompt_hasher *c);

/* Of a body's prompt. `chain` has room for n_max blocks, at least prompt_hash_n_blocks() of
 * prompt_text_max(). */
struct prompt_hashed {
    size_t n_bytes, n_system; /* of the prompt; of these, as prompt_text_read has them */
    uint32_t n_blocks;
};
void prompt_hash_text(const struct prompt_text *text, uint64_t seed, uint32_t block_bytes,
                      uint64_t *chain, uint32_t n_max, struct prompt_hashed *out);

#endif

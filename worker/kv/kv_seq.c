/* worker/kv/kv_seq.c - the KV side of one request: its tables, and the chain of its hashes. */
#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "worker/kv/kv_manager_internal.h"

/* The chain's arrays; false when one was refused. */
static bool chain_init(struct kv_seq *seq, const struct kv_manager *mgr, uint32_t n_blocks) {
    size_t n_bytes = MAX(n_blocks, 1) * sizeof(struct block_hash);

    seq->hashes = mem_try(n_bytes);
    if (seq->extras) seq->extra_digests = mem_try(n_bytes);
    if (mgr->has_windows) seq->witnesses = mem_try(n_bytes);
    if (mgr->host) seq->host_ids = mem_try(MAX(n_blocks, 1) * mgr->n_groups * sizeof(block_id));
    return (seq->host_ids || !mgr->host) && seq->hashes && (seq->extra_digests || !seq->extras) &&
           (seq->witnesses || !mgr->has_windows);
}

enum status kv_seq_init(struct kv_seq *seq, const struct kv_manager *mgr, uint32_t max_tokens,
                        const struct block_extras *extras, bool skip_reading, struct error *err) {
    uint32_t n_blocks =
        CEIL_DIV(MIN(max_tokens, mgr->config.max_model_len), mgr->config.block_size);
    enum status st = ST_OK;

    *seq = (struct kv_seq){.skip_reading = skip_reading, .n_groups = (uint8_t)mgr->n_groups};
    if (!block_extras_is_empty(extras)) {
        st = block_extras_validate(extras, err);
        if (st != ST_OK) return st;
        seq->extras = extras;
    }
    for (uint32_t g = 0; g < mgr->n_groups && st == ST_OK; g++)
        st = block_table_init(&seq->table[g], n_blocks);
    if (st == ST_OK && chain_init(seq, mgr, n_blocks)) return ST_OK;
    kv_seq_fini(seq);
    return error_set(err, ST_NOMEM, "out of memory for the block table of %u tokens", max_tokens);
}

void kv_seq_fini(struct kv_seq *seq) {
    assert(!list_is_linked(&seq->link) && !kv_seq_is_swapped(seq));
    for (uint32_t g = 0; g < seq->n_groups; g++)
        block_table_fini(&seq->table[g]);
    mem_free(seq->hashes);
    mem_free(seq->extra_digests);
    mem_free(seq->witnesses);
    mem_free(seq->host_ids);
    *seq = (struct kv_seq){0};
}

/* One link of the chain: the hash of tokens [start, start + hash_block_size), and the digest of
 * their extra keys. */
static void hash_link(struct kv_manager *mgr, struct kv_seq *seq, const struct block_hash *parent,
                      const uint32_t *tokens, uint32_t start, struct block_hash *out,
                      struct block_hash *extra_digest) {
    size_t n_extra = block_extras_encode(seq->extras, start, start + mgr->config.hash_block_size,
                                         &seq->extra_cursor, mgr->extra_bytes);

    *extra_digest = (struct block_hash){0};
    if (n_extra > 0) block_hasher_digest(mgr->hasher, mgr->extra_bytes, n_extra, extra_digest);
    block_hasher_next(mgr->hasher, parent, tokens + start, mgr->extra_bytes, n_extra, out);
}

/* All links of one block. With several, the digest of their digests stands for their extra keys;
 * zeros if none has any. */
static void hash_with_extras(struct kv_manager *mgr, struct kv_seq *seq,
                             const struct block_hash *parent, const uint32_t *tokens,
                             uint32_t index) {
    static const struct block_hash nothing;
    uint32_t n_links = mgr->n_links, start = index * mgr->config.block_size;
    struct block_hash *digests = mgr->links + n_links;
    bool has_extra = false;

    for (uint32_t i = 0; i < n_links; i++) {
        hash_link(mgr, seq, parent, tokens, start + i * mgr->config.hash_block_size, &mgr->links[i],
                  &digests[i]);
        has_extra |= memcmp(&digests[i], &nothing, sizeof(nothing)) != 0;
        parent = &mgr->links[i];
    }
    seq->hashes[index] = mgr->links[n_links - 1];
    seq->extra_digests[index] = digests[0];
    if (n_links > 1 && has_extra)
        block_hasher_digest(mgr->hasher, (const uint8_t *)digests, n_links * sizeof(*digests),
                            &seq->extra_digests[index]);
}

/* Blocks [first, to) without extra keys: all at once, or the last link of each. */
static void hash_plain(struct kv_manager *mgr, struct kv_seq *seq, const struct block_hash *parent,
                       const uint32_t *tokens, uint32_t first, uint32_t to) {
    size_t bs = mgr->config.block_size;

    if (mgr->n_links == 1) {
        block_hasher_run(mgr->hasher, parent, tokens + first * bs, to - first, &seq->hashes[first]);
        return;
    }
    for (uint32_t i = first; i < to; parent = &seq->hashes[i++]) {
        block_hasher_run(mgr->hasher, parent, tokens + i * bs, mgr->n_links, mgr->links);
        seq->hashes[i] = mgr->links[mgr->n_links - 1];
    }
}

/* SHA-256 over the witness before it, the digest of the extra keys, and the tokens. */
static void make_witness(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                         uint32_t index) {
    static const struct block_hash nothing;
    const struct block_hash *before = index > 0 ? &seq->witnesses[index - 1] : &nothing;
    const struct block_hash *extra = seq->extra_digests ? &seq->extra_digests[index] : &nothing;
    size_t n_token_bytes = mgr->config.block_size * sizeof(*tokens);
    uint8_t *p = mgr->witness_bytes;

    memcpy(p, before, sizeof(*before));
    memcpy(p + sizeof(*before), extra, sizeof(*extra));
    memcpy(p + sizeof(*before) + sizeof(*extra), tokens + (size_t)index * mgr->config.block_size,
           n_token_bytes);
    block_hasher_digest(mgr->hasher, p, sizeof(*before) + sizeof(*extra) + n_token_bytes,
                        &seq->witnesses[index]);
}

void kv_seq_forget_hashes(struct kv_seq *seq) {
    assert(!list_is_linked(&seq->link));
    seq->n_hashes = seq->extra_cursor = 0;
}

void kv_seq_extend_hashes(struct kv_manager *mgr, struct kv_seq *seq, const uint32_t *tokens,
                          uint32_t n_tokens) {
    uint32_t first = seq->n_hashes;
    uint32_t n_full = MIN(n_tokens / mgr->config.block_size, seq->table[0].capacity);
    const struct block_hash *parent = block_hasher_root(mgr->hasher);

    if (mgr->config.no_caching || n_full <= first) return;
    if (first > 0) parent = &seq->hashes[first - 1];
    if (seq->extras) {
        for (uint32_t i = first; i < n_full; parent = &seq->hashes[i++]) {
            hash_with_extras(mgr, seq, parent, tokens, i);
        }
    } else {
        hash_plain(mgr, seq, parent, tokens, first, n_full);
    }
    for (uint32_t i = first; mgr->has_windows && i < n_full; i++)
        make_witness(mgr, seq, tokens, i);
    seq->n_hashes = n_full;
}

struct kv_chain kv_seq_chain(const struct kv_seq *seq, const uint32_t *tokens) {
    return (struct kv_chain){.hashes = seq->hashes,
                             .extras = seq->extra_digests,
                             .witnesses = seq->witnesses,
                             .tokens = tokens,
                             .n_prompt = seq->n_prompt};
}

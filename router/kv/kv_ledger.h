/* router/kv/kv_ledger.h - the blocks that one worker holds, and in which tiers.
 *
 *      hash ──▶ { tiers: device, host ..., tokens }        open addressing, 16 bytes a block
 *
 * A block is held while any tier has it. Storing what a tier has already, and removing what it has
 * not, change nothing: engines repeat themselves, and a replay overlaps the stream.
 *
 * Hashes come from outside: their places in the table depend on a seed, so that none can be chosen
 * to collide. Memory is limited for one ledger and, by a budget, for all of them together; a block
 * that finds no room is not entered. Thread: that of its owner. */
#ifndef ROUTER_KV_KV_LEDGER_H
#define ROUTER_KV_KV_LEDGER_H

#include "router/kv/kv_batch.h"

#define KV_LEDGER_SLOTS_MAX (UINT32_C(1) << 22) /* 64 MiB: 2.6 million blocks */

/* Bytes that ledgers may take together; shared by all of one thread. */
struct kv_budget {
    uint64_t used, max;
};

struct kv_slot {
    uint64_t hash;
    uint32_t tokens; /* of the block */
    uint32_t tiers;  /* a bit per enum kv_tier; 0: free */
};

struct kv_ledger {
    struct kv_slot *slots;
    uint32_t n_slots; /* 0 or a power of two */
    uint32_t n;       /* blocks, in whichever tier */
    uint64_t tokens;  /* of them */
    uint64_t seed;
    struct kv_budget *budget;
    uint64_t n_blocks[KV_TIER_COUNT], n_tokens[KV_TIER_COUNT];
    uint64_t digest[KV_TIER_COUNT]; /* XOR of the hashes: to compare with an engine's */
};

void kv_ledger_init(struct kv_ledger *l, struct kv_budget *budget, uint64_t seed);
void kv_ledger_fini(struct kv_ledger *l);

/* False: there is no room for a block more. */
MUST_USE bool kv_ledger_store(struct kv_ledger *l, uint64_t hash, enum kv_tier tier,
                              uint32_t tokens);
bool kv_ledger_remove(struct kv_ledger *l, uint64_t hash,
                      enum kv_tier tier); /* false: it had not */
bool kv_ledger_has(const struct kv_ledger *l, uint64_t hash, enum kv_tier tier);
void kv_ledger_clear(struct kv_ledger *l); /* gives the memory back */

void kv_ledger_check(const struct kv_ledger *l); /* asserts the invariants; O(size) */

#endif

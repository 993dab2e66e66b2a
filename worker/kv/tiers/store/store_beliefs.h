/* worker/kv/tiers/store/store_beliefs.h - what a shared store is assumed to hold, in bounded
 * memory.
 *
 * A table of sets of eight entries: a key is in its set or unknown. A belief has a time at which it
 * ends, and a full set forgets the one that ends first, so what is absent goes before what is
 * present, and old beliefs before new ones. A belief may be wrong: the reader of the value finds
 * out.
 *
 *      NONE --looked up--> ASKED --answer--> PRESENT --read: gone--> ABSENT
 *        ^                   |                  `-----read: no unit----> SPOILED, to be overwritten
 *        `---time ends-------+-- ...
 *
 * Time is the caller's. One thread, or a lock of the caller's. */
#ifndef WORKER_KV_TIERS_STORE_STORE_BELIEFS_H
#define WORKER_KV_TIERS_STORE_STORE_BELIEFS_H

#include "worker/kv/tiers/unit.h"

enum belief {
    BELIEF_NONE,
    BELIEF_ASKED, /* the answer is on its way */
    BELIEF_ABSENT,
    BELIEF_PRESENT,
    BELIEF_SPOILED, /* something is there that is not what it should be */
};

struct beliefs;

#define BELIEFS_BYTES 24 /* of each key */

/* Room for n_keys, rounded up to a power of two. NULL: no memory. */
struct beliefs *beliefs_create(uint32_t n_keys, uint64_t seed);
void beliefs_destroy(struct beliefs *b); /* NULL is fine */

enum belief beliefs_find(const struct beliefs *b, const struct unit_key *key, uint64_t now_us);

/* Replaces what was assumed of the key; BELIEF_NONE forgets it. */
void beliefs_set(struct beliefs *b, const struct unit_key *key, enum belief belief, uint64_t now_us,
                 uint64_t until_us);

/* No key is assumed present any more, if all that were are so until until_us at most; those that
 * are set later must be so for longer. */
void beliefs_forget_present(struct beliefs *b, uint64_t until_us);

/* Keys that are entered as present, those whose time has ended included. */
uint64_t beliefs_n_present(const struct beliefs *b);

void beliefs_check(const struct beliefs *b); /* asserts the invariants; O(n) */

#endif

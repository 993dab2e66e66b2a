/* worker/kv/tiers/generation.h - the number by which a reader without a pin learns that a block of
 * host memory was reused while it read.
 *
 *      owner                                      reader, perhaps another process
 *      fills the block                            got "block b at number g" when it was filled
 *      ...                                        is it g? then copies, then: is it still g?
 *      raises the number, then writes again
 *
 * A sequence lock with one difference: no reader waits for the writer, for a number is never used
 * again. The owner raises it before the first byte changes, and gives it out once the last byte is
 * there. So a reader that finds g behind its copy has copied no byte that was written later: had
 * one of its loads seen such a byte, its later load would have seen the raised number, which was
 * visible before. A reader that finds another has copied nothing of use, and forgets it.
 *
 * The writer may be another thread or a device: to start it orders what follows behind the raise.
 * ThreadSanitizer knows no fences, and sees no other process; it is built without them. */
#ifndef WORKER_KV_TIERS_GENERATION_H
#define WORKER_KV_TIERS_GENERATION_H

#include <stdatomic.h>

#include "common/base/base.h"

struct generation {
    atomic_uint_least64_t number;
};

static inline void generation_fence(void) {
#ifndef __SANITIZE_THREAD__
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* Before a byte of the block changes. */
static inline void generation_raise(struct generation *g) {
    atomic_fetch_add_explicit(&g->number, 1, memory_order_seq_cst);
    generation_fence();
}

/* Before and behind the copy. */
static inline bool generation_is(const struct generation *g, uint64_t number) {
    bool is_same;

    generation_fence();
    is_same = atomic_load_explicit(&g->number, memory_order_acquire) == number;
    generation_fence();
    return is_same;
}

#endif

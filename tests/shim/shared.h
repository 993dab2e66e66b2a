/* tests/shim/shared.h - the shared memory of the block that runs.
 *
 * One arena: SHARED arrays as a launch's threads ask for them, each known by a key, then
 * SHARED_DYNAMIC. Before each block all of it is 0xFF, NaN in every type; behind each array lies a
 * tail of the same, looked at after the block. */
#ifndef TESTS_SHIM_SHARED_H
#define TESTS_SHIM_SHARED_H

#include "common/base/base.h"

enum {
    SHARED_UNASKED = 48 << 10, /* what a kernel may have that has not asked for more */
    SHARED_ARRAYS = 32,
    SHARED_MOST = 1 << 20 /* of SHARED_DYNAMIC; more than any device has */
};

struct shared {
    unsigned char *arena;
    uint32_t n_arrays, fixed_bytes; /* fixed: SHARED's, tails included */
    uint64_t dynamic_bytes;
    struct {
        const void *key;
        uint32_t at;
        uint64_t n_bytes;
    } arrays[SHARED_ARRAYS];
};

void shared_open(struct shared *m);
void shared_close(struct shared *m);
void shared_clear(struct shared *m, uint64_t dynamic_bytes); /* for a launch */
void shared_poison(struct shared *m);                        /* for a block */
/* The memory that `key` names; NULL when there are too many of them, or too much. */
void *shared_array(struct shared *m, const void *key, uint64_t n_bytes);
void *shared_dynamic(const struct shared *m);
/* Do 16 bytes from p lie in one of the block's arrays? */
bool shared_holds16(const struct shared *m, const void *p);
/* Was a tail written? Behind an array of *n_bytes. */
bool shared_is_overrun(const struct shared *m, uint64_t *n_bytes);
uint64_t shared_bytes(const struct shared *m); /* both kinds */

#endif

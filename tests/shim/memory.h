/* tests/shim/memory.h - the memory of a pretended device, and the pinned memory of its host.
 *
 * Allocations lie in one mapping, each followed by a guard zone that is looked at when it is freed;
 * new and freed memory is full of 0xFF, a NaN in every type. A device's memory can be locked while
 * the host runs, so that host code which follows a device's pointer dies on the spot. */
#ifndef TESTS_SHIM_MEMORY_H
#define TESTS_SHIM_MEMORY_H

#include "common/base/base.h"

struct memory_range;

struct memory {
    unsigned char *base; /* the mapping */
    uint64_t map_bytes, size, used;
    struct memory_range *ranges; /* by rising address */
    bool is_locked;
};

bool memory_open(struct memory *m, uint64_t size);
void memory_close(struct memory *m);
/* At a multiple of 256; NULL when there is no room. `what` is for messages. */
void *memory_alloc(struct memory *m, uint64_t n_bytes, const char *what);
/* false: it was never allocated. Aborts when a guard zone was written. */
bool memory_free(struct memory *m, void *p);
/* Do n_bytes from p lie inside one allocation? */
bool memory_holds(const struct memory *m, const void *p, uint64_t n_bytes);
/* The allocation behind `r`, lowest first, and where it lies; NULL: of the first, and behind the
 * last. */
const struct memory_range *memory_next(const struct memory *m, const struct memory_range *r,
                                       unsigned char **start, uint64_t *n_bytes);
void memory_lock(struct memory *m);
void memory_unlock(struct memory *m);

#endif

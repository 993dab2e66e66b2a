/* tests/shim/fiber.c - see fiber.h.
 *
 * A stack is mapped with a page before it that cannot be touched, so that a kernel with too much on
 * its stack dies at once. */
#include "tests/shim/fiber.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
_Thread_local struct fiber *fiber_left_;
#endif

enum { PAGE_BYTES = 4096, STACK_BYTES = 31 * PAGE_BYTES };

/* Stacks lie a power of two apart, and all are used at their tops: beginning each at lines of its
 * own keeps them from pushing one another out of the cache. It doubles the speed of kernels that
 * shuffle. */
enum { COLOURS = 61, COLOUR_BYTES = 5 * CACHE_LINE };

void fiber_open(struct fiber *f, uint32_t index, void (*entry)(void)) {
    char *map = mmap(NULL, PAGE_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint64_t *top;

    if (map == MAP_FAILED || mprotect(map, PAGE_BYTES, PROT_NONE)) {
        fprintf(stderr, "shim: no memory for the stack of a fiber\n");
        abort();
    }
    memset(f, 0, sizeof(*f));
    f->stack = map;
    f->bottom = map + PAGE_BYTES;
    f->size = STACK_BYTES;
    top = (uint64_t *)(void *)(map + PAGE_BYTES + STACK_BYTES - index % COLOURS * COLOUR_BYTES);
#if defined(__x86_64__)
    *--top = 0; /* where entry would return to: rsp is 8 more than a multiple of 16 */
    *--top = (uint64_t)(uintptr_t)entry;
#else
    *--top = (uint64_t)(uintptr_t)entry;
    *--top = 0; /* the frame before the first */
#endif
    f->sp = top;
}

void fiber_close(struct fiber *f) {
    if (f->stack) munmap(f->stack, PAGE_BYTES + STACK_BYTES);
    f->stack = NULL;
}

/* kernels/shim/fiber.h - stacks to switch between, without a system call.
 *
 * A switch saves what the calling convention says a callee saves and nothing more: some nanoseconds
 * on x86-64 and aarch64, by a few lines of assembly. AddressSanitizer is told of each switch.
 * A fiber stays on the thread that made it. */
#ifndef KERNELS_SHIM_FIBER_H
#define KERNELS_SHIM_FIBER_H

#include "common/base.h"

struct fiber {
    void *sp;         /* where it stands, while it does not run */
    void *stack;      /* NULL: a thread's own */
    void *fake_stack; /* AddressSanitizer's */
    const void *bottom;
    size_t size;
};

/* `entry` never returns: it ends by switching away for good. */
void fiber_open(struct fiber *f, void (*entry)(void));
void fiber_close(struct fiber *f);
/* Stops here, in `from`, and goes on in `to`; returns when someone switches back to `from`. */
void fiber_switch(struct fiber *from, struct fiber *to);
/* The first thing that an entry function calls. */
void fiber_began(struct fiber *self);

#endif

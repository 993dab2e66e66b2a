/* tests/shim/fiber.h - stacks to switch between, without a system call.
 *
 * A switch is a few instructions of assembly, for x86-64 and aarch64, inlined where it happens: the
 * compiler saves what it needs there and no more, and the processor can foresee the jump, as it
 * cannot foresee a return to another stack. AddressSanitizer is notified of each switch.
 * A fiber stays on the thread that made it. */
#ifndef TESTS_SHIM_FIBER_H
#define TESTS_SHIM_FIBER_H

#include "common/base/base.h"

struct fiber {
    void *sp;         /* where it stands, while it does not run */
    void *stack;      /* NULL: a thread's own */
    void *fake_stack; /* AddressSanitizer's */
    const void *bottom;
    size_t size;
};

/* `entry` never returns: it ends by switching away for good. `index` is the fiber's among those
 * that take turns. */
void fiber_open(struct fiber *f, uint32_t index, void (*entry)(void));
void fiber_close(struct fiber *f);

/* Stops here, at *sp_here, and goes on at sp_there. */
static inline void fiber_jump(void **sp_here, void *sp_there) {
#if defined(__x86_64__)
    __asm__ volatile("lea -128(%%rsp), %%rsp\n\t" /* leaves the red zone alone */
                     "push %%rbp\n\t"
                     "lea 1f(%%rip), %%rax\n\t"
                     "push %%rax\n\t"
                     "mov %%rsp, (%%rdi)\n\t"
                     "mov %%rsi, %%rsp\n\t"
                     "pop %%rax\n\t"
                     "jmp *%%rax\n"
                     "1:\n\t"
                     "pop %%rbp\n\t"
                     "lea 128(%%rsp), %%rsp"
                     : "+D"(sp_here), "+S"(sp_there)
                     :
                     : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
                       "r15", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                       "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
                       "memory", "cc");
#elif defined(__aarch64__)
    register void **here __asm__("x0") = sp_here;
    register void *there __asm__("x1") = sp_there;

    __asm__ volatile("adr x9, 1f\n\t"
                     "stp x29, x9, [sp, #-16]!\n\t"
                     "mov x9, sp\n\t"
                     "str x9, [x0]\n\t"
                     "mov sp, x1\n\t"
                     "ldp x29, x9, [sp], #16\n\t"
                     "br x9\n"
                     "1:"
                     : "+r"(here), "+r"(there)
                     :
                     : "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13",
                       "x14", "x15", "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24",
                       "x25", "x26", "x27", "x28", "x30", "v0", "v1", "v2", "v3", "v4", "v5", "v6",
                       "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17",
                       "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28",
                       "v29", "v30", "v31", "memory", "cc");
#else
#error "fiber.h: write fiber_jump for this processor"
#endif
}

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>

extern _Thread_local struct fiber *fiber_left_; /* the one that was switched away from */

/* The first thing that an entry function calls. */
static inline void fiber_began(struct fiber *self) {
    __sanitizer_finish_switch_fiber(self->fake_stack, &fiber_left_->bottom, &fiber_left_->size);
}
static inline void fiber_switch(struct fiber *from, struct fiber *to) {
    fiber_left_ = from;
    __sanitizer_start_switch_fiber(&from->fake_stack, to->bottom, to->size);
    fiber_jump(&from->sp, to->sp);
    fiber_began(from);
}
#else
static inline void fiber_began(struct fiber *self) {
    (void)self;
}
/* Stops here, in `from`, and goes on in `to`; returns when someone switches back to `from`. */
static inline void fiber_switch(struct fiber *from, struct fiber *to) {
    fiber_jump(&from->sp, to->sp);
}
#endif

#endif

/* kernels/shim/fiber.c - see fiber.h.
 *
 * A stack is mapped with a page before it that cannot be touched, so that a kernel with too much on
 * its stack dies at once. */
#include "kernels/shim/fiber.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/mem.h"

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#ifdef HAS_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

enum { PAGE_BYTES = 4096, STACK_BYTES = 31 * PAGE_BYTES };

#if defined(__x86_64__)
/* rdi: where to keep our stack pointer; rsi: the stack pointer to go on with. */
__asm__(".text\n"
        ".type shim_fiber_jump, @function\n"
        "shim_fiber_jump:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n"
        "    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n"
        "    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size shim_fiber_jump, .-shim_fiber_jump\n");
enum { N_SAVED = 6 };
#elif defined(__aarch64__)
__asm__(".text\n"
        ".type shim_fiber_jump, %function\n"
        "shim_fiber_jump:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n    str x9, [x0]\n    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n    ret\n"
        ".size shim_fiber_jump, .-shim_fiber_jump\n");
#else
#error "fiber.c: write shim_fiber_jump for this processor"
#endif
void shim_fiber_jump(void **keep, void *sp);

void fiber_open(struct fiber *f, void (*entry)(void)) {
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
    top = (uint64_t *)(void *)(map + PAGE_BYTES + STACK_BYTES);
#if defined(__x86_64__)
    top -= 2; /* at entry, the return address included, rsp is 8 more than a multiple of 16 */
    *top = (uint64_t)(uintptr_t)entry;
    f->sp = top - N_SAVED;
#else
    top -= 20;
    top[11] = (uint64_t)(uintptr_t)entry; /* x30 */
    f->sp = top;
#endif
}

void fiber_close(struct fiber *f) {
    if (f->stack) munmap(f->stack, PAGE_BYTES + STACK_BYTES);
    f->stack = NULL;
}

#ifdef HAS_ASAN
static _Thread_local struct fiber *left; /* the one that was switched away from */

static void arrived(struct fiber *self) {
    __sanitizer_finish_switch_fiber(self->fake_stack, &left->bottom, &left->size);
}
void fiber_began(struct fiber *self) {
    arrived(self);
}
void fiber_switch(struct fiber *from, struct fiber *to) {
    left = from;
    __sanitizer_start_switch_fiber(&from->fake_stack, to->bottom, to->size);
    shim_fiber_jump(&from->sp, to->sp);
    arrived(from);
}
#else
void fiber_began(struct fiber *self) {
    (void)self;
}
void fiber_switch(struct fiber *from, struct fiber *to) {
    shim_fiber_jump(&from->sp, to->sp);
}
#endif

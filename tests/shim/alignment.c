/* tests/shim/alignment.c - a misaligned access of a kernel, reported in a sentence.
 *
 * A GPU refuses an int4 that is not at a multiple of 16; this processor does not mind. So the .cu
 * files are compiled with -fsanitize=alignment, whose run-time library is not linked: this is the
 * one function that it would call. In a build with the sanitizer itself, its own message is as
 * good. */
#include <stdio.h>

#include "common/base/base.h"
#include "tests/shim/internal.h"

#ifndef HAS_UBSAN

/* As the compiler lays them out: "type mismatch", version 1. */
struct ubsan_place {
    const char *file;
    uint32_t line, column;
};
struct ubsan_type {
    uint16_t kind, info;
    char name[];
};
struct ubsan_mismatch {
    struct ubsan_place place;
    const struct ubsan_type *type;
    uint8_t log_alignment, access;
};
NORETURN void __ubsan_handle_type_mismatch_v1_abort(const struct ubsan_mismatch *m, uintptr_t at);

void __ubsan_handle_type_mismatch_v1_abort(const struct ubsan_mismatch *m, uintptr_t at) {
    char what[240];

    snprintf(what, sizeof(what), "%s at %#llx, which is not a multiple of %u (%s)", m->type->name,
             (unsigned long long)at, 1u << m->log_alignment, m->place.file);
    shim_fault_here((int)m->place.line, what);
}

#endif

/* common/base/isa.c - the lists of the Makefile (ISA_*), as questions to the processor. */
#include "common/base/isa.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <stdatomic.h>

/* Older compilers have no name for it. Asked once: under a hypervisor CPUID costs microseconds, and
 * the router asks for each request. */
static bool has_f16c(void) {
    enum { UNKNOWN, NO, YES };
    static atomic_uchar known;
    unsigned char it = atomic_load_explicit(&known, memory_order_relaxed);
    unsigned a, b, c, d;

    if (LIKELY(it != UNKNOWN)) return it == YES;
    it = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) ? YES : NO;
    atomic_store_explicit(&known, it, memory_order_relaxed);
    return it == YES;
}

bool isa_has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi2") && has_f16c();
}

bool isa_has_avx512(void) {
    return isa_has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}

bool isa_has_avx512bf16(void) {
    return isa_has_avx512() && __builtin_cpu_supports("avx512bf16") &&
           __builtin_cpu_supports("avx512vbmi");
}

bool isa_has_avx512vnni(void) {
    return __builtin_cpu_supports("avx512vnni");
}

/* CPUID 7.1: compilers of today have no name for it. */
bool isa_has_avxvnni(void) {
    enum { UNKNOWN, NO, YES };
    static atomic_uchar known;
    unsigned char it = atomic_load_explicit(&known, memory_order_relaxed);
    unsigned a, b, c, d;

    if (LIKELY(it != UNKNOWN)) return it == YES;
    it = __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4) ? YES : NO;
    atomic_store_explicit(&known, it, memory_order_relaxed);
    return it == YES;
}
#else
bool isa_has_avx2(void) {
    return false;
}

bool isa_has_avx512(void) {
    return false;
}

bool isa_has_avx512bf16(void) {
    return false;
}

bool isa_has_avx512vnni(void) {
    return false;
}

bool isa_has_avxvnni(void) {
    return false;
}
#endif

/* common/base/isa.h - can this machine run what is in a file named after an instruction set?
 *
 * Such a file (x_avx2.c, x_avx512.c) is compiled for all the extensions that ISA_* in the Makefile
 * lists for the name, and the compiler may use each of them anywhere in it. A machine that has the
 * one we think of need not have the others: a virtual one may hide any of them. So each name is
 * asked for here, once, with all of its list; and the answer is in no such file itself. Pure; any
 * thread, a few instructions. */
#ifndef COMMON_BASE_ISA_H
#define COMMON_BASE_ISA_H

#include "common/base/base.h"

bool isa_has_avx2(void);
bool isa_has_avx512(void);
bool isa_has_avx512bf16(void);
/* Single instructions that such a file writes by itself, where the machine has them. */
bool isa_has_avx512vnni(void);
bool isa_has_avxvnni(void);

#endif

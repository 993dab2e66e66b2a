/* tests/support/support.h - what several test binaries share. */
#ifndef TESTS_SUPPORT_SUPPORT_H
#define TESTS_SUPPORT_SUPPORT_H

#include "common/base/base.h"

/* The seed of random tests: TEST_SEED from the environment, else 1. */
uint64_t support_seed(void);

#endif

/* tests/support/support.h - what several test binaries share. */
#ifndef TESTS_SUPPORT_SUPPORT_H
#define TESTS_SUPPORT_SUPPORT_H

#include "common/base/base.h"

/* The seed of random tests: TEST_SEED from the environment, else 1. */
uint64_t support_seed(void);

/* Waits until another thread makes `condition` true; fails the test after a minute. For conditions
 * that have no event. */
#define WAIT_UNTIL(condition)                                                                      \
    for (uint64_t end_us_ = 0; !(condition);)                                                      \
    assert_true(support_pause(&end_us_))

/* One pause of WAIT_UNTIL, of 100 us. False: a minute has passed since *end_us was 0. */
bool support_pause(uint64_t *end_us);

#endif

/* tests/support/support.c - what several test binaries share. */
#include "tests/support/support.h"

#include <stdlib.h>

uint64_t support_seed(void) {
    const char *s = getenv("TEST_SEED");

    return s ? strtoull(s, NULL, 10) : 1;
}

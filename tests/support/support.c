/* tests/support/support.c - what several test binaries share. */
#include "tests/support/support.h"

#include <stdlib.h>
#include <time.h>

#include "common/base/clock.h"

uint64_t support_seed(void) {
    const char *s = getenv("TEST_SEED");

    return s ? strtoull(s, NULL, 10) : 1;
}

bool support_pause(uint64_t *end_us) {
    uint64_t now_us = clock_now_us();

    if (!*end_us) *end_us = now_us + 60000000;
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    return now_us < *end_us;
}

/* common/base/clock.c - monotonic and wall time. */
#include "common/base/clock.h"

#include <time.h>

static uint64_t read_us(clockid_t id) {
    struct timespec ts;

    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

uint64_t clock_now_us(void) {
    return read_us(CLOCK_MONOTONIC);
}

uint64_t clock_now_ns(void) {
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t clock_wall_us(void) {
    return read_us(CLOCK_REALTIME);
}

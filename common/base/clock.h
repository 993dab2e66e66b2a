/* common/base/clock.h - the only place that reads a clock.
 *
 * Modules take `now_us` as an argument and never call these: the loops and threads at the top do,
 * once per turn. So tests never sleep. */
#ifndef COMMON_BASE_CLOCK_H
#define COMMON_BASE_CLOCK_H

#include "common/base/base.h"

uint64_t clock_now_us(void);  /* monotonic microseconds; for intervals and timeouts */
uint64_t clock_now_ns(void);  /* the same clock, to measure what takes less than that */
uint64_t clock_wall_us(void); /* microseconds since 1970; for log lines and `created` fields */

#endif

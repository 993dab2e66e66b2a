/* common/net/timer_wheel.h - timers by the thousand, started and stopped far more often than they
 * expire.
 *
 * Every request has a timeout and hardly any is reached: a heap sorts what will be thrown away. A
 * hierarchical timing wheel sorts a timer no finer than it must be just then. Time is cut into
 * ticks of a millisecond, a tick is a number of TIMER_WHEEL_LEVELS digits of six bits, and each
 * digit has a row of 64 slots. A timer lies in the row of the highest digit in which its tick
 * differs from now, in the slot of its own digit there:
 *
 *      now = 1.07.33    due 1.07.40  ->  row 0, slot 40      in 7 ticks
 *                       due 1.09.02  ->  row 1, slot  9      some time after 1.09.00
 *                       due 2.00.00  ->  row 2, slot  2
 *
 * When now reaches the beginning of a slot of a higher row, its timers are sorted into lower rows;
 * each timer moves at most once per row in its life, and only if it lives that long. Starting and
 * stopping are a few instructions, allocate nothing and make no system call.
 *
 * Between now and the next slot with a timer in it nothing happens, so nothing ticks: the wheel
 * returns the time of the next look, and jumps there.
 *
 * Knows no clock: time comes as an argument, and early or late is by that. Follows: Varghese and
 * Lauck, Hashed and Hierarchical Timing Wheels, SOSP 1987, scheme 7; the choice of the row by
 * differing bits is that of tickless wheels since. */
#ifndef COMMON_NET_TIMER_WHEEL_H
#define COMMON_NET_TIMER_WHEEL_H

#include "common/base/list.h"

#define TIMER_WHEEL_TICK_US 1000u /* timers are late by less than this, and never early */
#define TIMER_WHEEL_LEVELS  7     /* 2^42 ms: longer than any clock that counts from the start */
#define TIMER_WHEEL_SLOTS   64    /* per row: one bit each of a word */
#define TIMER_WHEEL_NEVER   UINT64_MAX

struct timer_wheel {
    uint64_t now_tick;
    uint64_t occupied[TIMER_WHEEL_LEVELS]; /* a bit may outlive the last timer of its slot */
    struct list slots[TIMER_WHEEL_LEVELS][TIMER_WHEEL_SLOTS];
    struct list due; /* their tick has come; not yet popped */
};

/* Embedded; zeroed: not running. Runs exactly while it is linked. */
struct timer_wheel_entry {
    struct list link;
    uint64_t due_tick;
};

void timer_wheel_init(struct timer_wheel *wheel, uint64_t now_us);

/* A running one is restarted. What is due in the past comes at the next tick. */
void timer_wheel_start(struct timer_wheel *wheel, struct timer_wheel_entry *e, uint64_t due_us);
void timer_wheel_stop(struct timer_wheel_entry *e); /* fine when it is not running */

/* When timer_wheel_pop is to be called next: when the next timer is due, or, where several lie in
 * its slot, before that at most once per row. TIMER_WHEEL_NEVER without timers. */
uint64_t timer_wheel_next_us(struct timer_wheel *wheel);

/* One timer that is due, no longer running, in the order of their ticks; NULL: no more. Between two
 * calls any timer may be started and stopped. A time before that of an earlier call is taken for
 * it. */
struct timer_wheel_entry *timer_wheel_pop(struct timer_wheel *wheel, uint64_t now_us);

void timer_wheel_check(const struct timer_wheel *wheel); /* for tests: asserts what must hold */

#endif

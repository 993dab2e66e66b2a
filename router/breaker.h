/* router/breaker.h - passive failure counting: when to stop sending to a worker, and when to try.
 *
 *                 failed                    time is up                 a request was sent
 *      CLOSED ------------> OPEN (1 s, 2 s, ... 60 s) ------> HALF_OPEN ------------> TRYING
 *         ^                  ^                                    ^                    | | |
 *         +--- succeeded ----|------------------------------------|--------------------+ | |
 *                            +------------------------------------|------- failed -------+ |
 *                                                                 +---- neither (cancelled)+
 *
 * Half open lets exactly one request through; the others wait for what becomes of it. Pure: time is
 * an argument. Owner: registry, under its lock. */
#ifndef ROUTER_BREAKER_H
#define ROUTER_BREAKER_H

#include "common/base.h"

#define BREAKER_MIN_US 1000000ull  /* first ejection */
#define BREAKER_MAX_US 60000000ull /* longest; it doubles in between */

enum breaker_state { BREAKER_CLOSED, BREAKER_OPEN, BREAKER_HALF_OPEN, BREAKER_TRYING };

struct breaker {
    enum breaker_state state;
    uint32_t n_failures; /* in a row */
    uint64_t until_us;   /* OPEN: when it becomes half open */
};

static inline bool breaker_admits(const struct breaker *b) {
    return b->state == BREAKER_CLOSED || b->state == BREAKER_HALF_OPEN;
}

void breaker_failed(struct breaker *b, uint64_t now_us);
void breaker_succeeded(struct breaker *b);
void breaker_undecided(struct breaker *b); /* the request ended without saying anything */
void breaker_sent(struct breaker *b);
void breaker_tick(struct breaker *b, uint64_t now_us);

#endif

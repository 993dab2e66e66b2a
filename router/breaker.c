/* router/breaker.c - four states, five events. */
#include "router/breaker.h"

void breaker_failed(struct breaker *b, uint64_t now_us) {
    uint32_t doublings = MIN(b->n_failures, 6u);

    if (b->state == BREAKER_OPEN) return; /* others that were under way fail too: one event */
    b->n_failures++;
    b->state = BREAKER_OPEN;
    b->until_us = now_us + MIN(BREAKER_MIN_US << doublings, BREAKER_MAX_US);
}

void breaker_succeeded(struct breaker *b) {
    if (b->state == BREAKER_OPEN) return; /* an answer from before the failure */
    b->state = BREAKER_CLOSED;
    b->n_failures = 0;
}

void breaker_undecided(struct breaker *b) {
    if (b->state == BREAKER_TRYING) b->state = BREAKER_HALF_OPEN;
}

void breaker_sent(struct breaker *b) {
    if (b->state == BREAKER_HALF_OPEN) b->state = BREAKER_TRYING;
}

void breaker_tick(struct breaker *b, uint64_t now_us) {
    if (b->state == BREAKER_OPEN && now_us >= b->until_us) b->state = BREAKER_HALF_OPEN;
}

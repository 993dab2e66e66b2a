/* router/access/token_bucket.c - see token_bucket.h. */
#include "router/access/token_bucket.h"

#include <math.h>

#define ROUNDING   1e-9
#define WAIT_MAX_S 86400.0 /* longest reported wait */

static void refill(struct token_bucket *b, double rate, uint64_t now_us) {
    if (now_us <= b->at_us) return;
    b->used = fmax(b->used - (double)(now_us - b->at_us) * 1e-6 * rate, 0);
    b->at_us = now_us;
}

uint64_t token_bucket_wait_us(struct token_bucket *b, double rate, double burst, double amount,
                              uint64_t now_us) {
    double missing;

    refill(b, rate, now_us);
    missing = b->used + fmin(amount, burst) - burst;
    if (missing <= ROUNDING * burst) return 0;
    return (uint64_t)ceil(fmin(missing / rate, WAIT_MAX_S) * 1e6 - ROUNDING * 1e6);
}

void token_bucket_take(struct token_bucket *b, double amount) {
    b->used = fmax(b->used + amount, 0);
}

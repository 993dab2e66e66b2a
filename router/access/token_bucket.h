/* router/access/token_bucket.h - a rate limit: `rate` per second, and up to `burst` at once.
 *
 * An amount larger than the bucket passes when the bucket is full and leaves a debt: a long prompt
 * is delayed by its length, not refused for ever. Asking and taking are separate, so that a caller
 * with several buckets takes from all or from none. Time is an argument; a time that goes backwards
 * (loops differ by a turn) is ignored. Pure; the owner locks. */
#ifndef ROUTER_ACCESS_TOKEN_BUCKET_H
#define ROUTER_ACCESS_TOKEN_BUCKET_H

#include "common/base/base.h"

struct token_bucket { /* all zero: full */
    double used;      /* of the burst; above it: a debt */
    uint64_t at_us;
};

/* Microseconds until `amount` may be taken; 0: now. */
uint64_t token_bucket_wait_us(struct token_bucket *b, double rate, double burst, double amount,
                              uint64_t now_us);

/* Takes it unconditionally; a negative amount gives back. */
void token_bucket_take(struct token_bucket *b, double amount);

#endif

/* router/access/token_bucket.h - a rate limit: `rate` per second, and up to `burst` at once.
 *
 * A bucket fills steadily and is taken from. What is larger than the bucket is let through when it is
 * full, and leaves a debt that later fills repay: a long prompt is delayed by its length, not refused
 * for ever. Two steps, so that one who needs several buckets takes from all or from none. Time is an
 * argument; one that goes backwards (loops differ by a turn) is ignored. Pure; the owner locks. */
#ifndef ROUTER_ACCESS_TOKEN_BUCKET_H
#define ROUTER_ACCESS_TOKEN_BUCKET_H

#include "common/base/base.h"

struct token_bucket { /* all zero: full */
    double used;      /* of the burst; more than that: a debt */
    uint64_t at_us;
};

/* Microseconds until `amount` may be taken: 0 when it may be now. */
uint64_t token_bucket_wait_us(struct token_bucket *b, double rate, double burst, double amount,
                              uint64_t now_us);

/* Takes it, whether it may be or not; negative gives back. */
void token_bucket_take(struct token_bucket *b, double amount);

#endif

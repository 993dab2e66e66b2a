/* router/routing/fetch_rate.h - how long workers take to bring KV from one another, learned.
 *
 *     seconds = latency + bytes x s_per_byte
 *
 * Both come from what sinks report, by least squares with a prior: latency is within some
 * milliseconds of the first guess, and the rate is hardly known, so that a first slow answer is
 * taken for a slow network and not for a slow start. A sample weighs by its relative error; samples
 * lose 1 - FETCH_RATE_KEEP of their weight with each later one, and half of it in
 * FETCH_RATE_HALF_LIFE_S: a network that was slow is tried again after a while. Time is an
 * argument; pure. */
#ifndef ROUTER_ROUTING_FETCH_RATE_H
#define ROUTER_ROUTING_FETCH_RATE_H

#include "common/base/base.h"

#define FETCH_RATE_KEEP        0.9
#define FETCH_RATE_HALF_LIFE_S 300.0

struct fetch_rate {
    double latency_s, s_per_byte;             /* what is expected now */
    double first_latency_s, first_s_per_byte; /* the guesses that it began with */
    double n, b, bb, t, bt;                   /* weighted sums over samples: 1, bytes, seconds */
    uint64_t as_of_us;
};

void fetch_rate_init(struct fetch_rate *r, double latency_s, double bytes_per_s);

/* A transfer of so many bytes, without what it waited for others, took so long. Ignores what is not
 * positive. */
void fetch_rate_learn(struct fetch_rate *r, double bytes, double seconds, uint64_t now_us);

/* Forgets by time: the owner calls it before it asks for the seconds. */
void fetch_rate_forget(struct fetch_rate *r, uint64_t now_us);

static inline double fetch_rate_s(const struct fetch_rate *r, double bytes) {
    return r->latency_s + bytes * r->s_per_byte;
}

void fetch_rate_check(const struct fetch_rate *r); /* asserts the ranges */

#endif

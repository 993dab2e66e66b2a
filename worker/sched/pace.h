/* worker/sched/pace.h - how long a step takes: declared by the device, then learned from its steps.
 *
 *      seconds of a step = base(rows that decode) + work / rate
 *      work of prompt tokens [first, last) = sum of 1 + position / attn_context
 *
 * Work is counted in tokens at short context. `base` is a moving average of steps without prompts,
 * one for each power of two of rows. The rate is work over seconds of the steps with prompts, less
 * their base, both sums forgotten with a half-life of PACE_HALF_LIFE_S of such steps; the device's
 * estimate counts as one second of them.
 *
 * Pure; one thread. LIMITS: contexts of decoding rows are not looked at, only their number. */
#ifndef WORKER_SCHED_PACE_H
#define WORKER_SCHED_PACE_H

#include "common/base/base.h"

#define PACE_HALF_LIFE_S 10.0
#define PACE_BASES       14u /* powers of two of rows: 0, 1, 2-3, 4-7, ... */

struct pace {
    double attn_context;       /* tokens of context that double a token's work; 0: none do */
    double work, work_s;       /* sums that forget; the device's estimate is in them at first */
    double base_s[PACE_BASES]; /* 0: not seen yet */
};

/* tokens_per_s 0: unknown, and PACE_UNKNOWN until steps were seen. */
void pace_init(struct pace *p, double tokens_per_s, double attn_context);
#define PACE_UNKNOWN 10000.0

double pace_work(const struct pace *p, uint32_t first, uint32_t last);
double pace_rate(const struct pace *p);                        /* tokens/s at short context, > 0 */
double pace_base_s(const struct pace *p, uint32_t n_decoding); /* 0: unknown */

/* Seconds for prompt tokens [first, last), beside a base. */
static inline double pace_prefill_s(const struct pace *p, uint32_t first, uint32_t last) {
    return pace_work(p, first, last) / pace_rate(p);
}

/* Most prompt tokens from `first` on that take at most `seconds`. */
uint32_t pace_tokens_within(const struct pace *p, uint32_t first, double seconds);

/* A step with so many decoding rows and so much work of prompts has taken `seconds`. */
void pace_learn(struct pace *p, uint32_t n_decoding, double work, double seconds);

#endif

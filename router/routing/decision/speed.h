/* router/routing/decision/speed.h - how fast each worker prefills, learned from its first tokens.
 *
 * Per worker two sums that forget with a half-life of SPEED_HALF_LIFE_S of busy time:
 *
 *     W += prefill seconds, at the reference speed, of what first tokens report as computed
 *     A += seconds in which a prompt worth measuring is pending there, ours or mirrored
 *
 *     speed(w) = (W + P m d(w)) / (A + P),   m = sum W / sum (A d) of the fleet
 *
 * d is the declared speed and P a prior: SPEED_PRIOR_S, or SPEED_DECLARED_PRIOR_S when the worker
 * publishes its speed. Nothing is assumed of the order in which a worker computes. Decoding
 * meanwhile slows fast and slow workers alike, and is part of what is learned: that is the speed to
 * plan with.
 *
 * A worker within SPEED_ALIKE of an earlier one is taken for as fast: what equal workers declare
 * and measure is 1 to 3 % apart, and such noise must not decide where a prompt has its home.
 *
 * A and W grow together, at a first token, by what has passed since the one before. Prompts of
 * fewer than SPEED_TOKENS_MIN new tokens are not measured: they take a step however few they are.
 * An interval whose oldest prompt is aborted, or that leaves nothing pending, is dropped, as is
 * that of a worker that went away. Time is an argument; no lock, no allocation. */
#ifndef ROUTER_ROUTING_DECISION_SPEED_H
#define ROUTER_ROUTING_DECISION_SPEED_H

#include "common/base/base.h"

#define SPEED_TOKENS_MIN       256
#define SPEED_HALF_LIFE_S      60.0
#define SPEED_PRIOR_S          3.0
#define SPEED_DECLARED_PRIOR_S 30.0
#define SPEED_ALIKE            0.1

struct speed {
    double work_s, busy_s; /* W, A */
    double declared;       /* d: prefill tokens/s by those of the reference */
    bool is_declared;      /* published by the worker */
    bool is_void;          /* the interval that runs is not counted */
    uint32_t n_pending;    /* prompts worth measuring without a first token */
    uint64_t from_us;      /* when the interval that runs began */
    double open_work_s;    /* of first tokens in it */
};

/* `new_tokens`: predicted. True: the ticket is measured; give that to the calls below. */
bool speed_sent(struct speed *s, double new_tokens, uint64_t now_us);

/* A first token: new_tokens and work_s (at the reference speed) as reported. is_seen false: it is
 * a prediction and proves nothing. */
void speed_first_token(struct speed *s, bool is_measured, double new_tokens, double work_s,
                       bool is_seen, uint64_t now_us);

/* Ended without a first token. is_oldest: no other has been pending for longer. */
void speed_aborted(struct speed *s, bool is_measured, bool is_oldest, uint64_t now_us);

/* Forgets all but the pending prompts, whose end proves nothing. */
void speed_reset(struct speed *s);

/* m of n workers; 1 before anything is known. *level: the same with a prior of SPEED_PRIOR_S at 1,
 * so that a first, slow answer does not move what all workers are taken for. */
double speed_mean(const struct speed *workers, uint32_t n, double *level);

/* Speeds that workers have so far: speed_join returns the one to take for the next. Begins
 * zeroed. */
struct speed_groups {
    double of[64];
    uint32_t n;
};
double speed_join(struct speed_groups *g, double speed);

/* Learned by declared speed of one worker: m while nothing is known of it. */
double speed_ratio(const struct speed *s, double mean);

#endif

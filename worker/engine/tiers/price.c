/* worker/engine/tiers/price.c - see the header. */
#include "worker/engine/tiers/price.h"

#include <math.h>

#define SHARE             0.1 /* of a new load in an average */
#define LATENCY_GUESS_S   1e-3
#define BYTES_GUESS_PER_S 500e6
#define VARIANCE_MOST     100.0 /* one load that hung must not make the deadline useless for long */

/* Loads of so many bytes weigh a quarter of those of few: an error of theirs is as much longer. */
#define LARGE_BYTES 1e6

/* What the guess of latency weighs beside small loads: enough to stay where all have one size. Any
 * load gives a rate, so that its guess weighs nothing. */
#define GUESSED_LATENCY 0.002

void price_init(struct price *p) {
    *p = (struct price){
        .latency_s = LATENCY_GUESS_S, .s_per_byte = 1 / BYTES_GUESS_PER_S, .variance = 1};
}

double price_expect_s(const struct price *p, uint64_t n_bytes, double *sigma_s) {
    double s = p->wait_s + p->latency_s + (double)n_bytes * p->s_per_byte;

    if (sigma_s) *sigma_s = s * sqrt(p->variance);
    return s;
}

static void mix(double *average, double x, double share) {
    *average += share * (x - *average);
}

/* Least squares in the differences from the guesses; neither is below zero. */
static void solve(struct price *p) {
    double guess_s = 1 / BYTES_GUESS_PER_S;
    double ll = p->n + GUESSED_LATENCY, ss = p->bb, ls = p->b;
    double l = p->t - LATENCY_GUESS_S * p->n - guess_s * p->b;
    double s = p->bt - LATENCY_GUESS_S * p->b - guess_s * p->bb;

    p->latency_s = fmax(LATENCY_GUESS_S + (l * ss - s * ls) / (ll * ss - ls * ls), 0);
    p->s_per_byte = fmax(guess_s + (s - ls * (p->latency_s - LATENCY_GUESS_S)) / ss, 0);
}

void price_learn(struct price *p, uint64_t n_bytes, double waited_s, double worked_s) {
    double bytes = (double)n_bytes;
    double off = (waited_s + worked_s) / price_expect_s(p, n_bytes, NULL) - 1;
    double share = p->n_seen++ == 0 ? 1 : SHARE;
    double weight = 1 / ((1 + bytes / LARGE_BYTES) * (1 + bytes / LARGE_BYTES));

    mix(&p->wait_s, waited_s, SHARE);
    mix(&p->n, weight, share);
    mix(&p->b, weight * bytes, share);
    mix(&p->bb, weight * bytes * bytes, share);
    mix(&p->t, weight * worked_s, share);
    mix(&p->bt, weight * bytes * worked_s, share);
    solve(p);
    if (p->n_seen > 1) mix(&p->variance, fmin(off * off, VARIANCE_MOST), SHARE);
}

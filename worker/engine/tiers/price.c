/* worker/engine/tiers/price.c - see the header. */
#include "worker/engine/tiers/price.h"

#include <math.h>

#define SHARE             0.1 /* of a new job in an average */
#define LATENCY_GUESS_S   1e-3
#define BYTES_GUESS_PER_S 500e6
#define VARIANCE_MOST     100.0 /* one job that hung must not make the deadline useless for long */

void price_init(struct price *p) {
    *p = (struct price){
        .latency_s = LATENCY_GUESS_S, .s_per_byte = 1 / BYTES_GUESS_PER_S, .variance = 1};
}

double price_expect_s(const struct price *p, uint64_t n_bytes, double *sigma_s) {
    double s = p->latency_s + (double)n_bytes * p->s_per_byte;

    if (sigma_s) *sigma_s = s * sqrt(p->variance);
    return s;
}

static void mix(double *average, double x, double share) {
    *average += share * (x - *average);
}

void price_learn(struct price *p, uint64_t n_bytes, double waited_s, double worked_s) {
    double off = (waited_s + worked_s) / price_expect_s(p, n_bytes, NULL) - 1;
    double share = p->n_seen++ == 0 ? 1 : SHARE;

    mix(&p->latency_s, waited_s, share);
    if (n_bytes > 0) mix(&p->s_per_byte, worked_s / (double)n_bytes, share);
    if (p->n_seen > 1) mix(&p->variance, fmin(off * off, VARIANCE_MOST), SHARE);
}

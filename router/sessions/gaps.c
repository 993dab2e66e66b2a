/* router/sessions/gaps.c - see gaps.h. */
#include "router/sessions/gaps.h"

#include <math.h>

#define BINS_PER_OCTAVE 4

static uint32_t bin_of(double gap_s) {
    double bin = gap_s < GAPS_LEAST_S ? 0 : 1 + BINS_PER_OCTAVE * log2(gap_s / GAPS_LEAST_S);

    return (uint32_t)fmin(bin, GAPS_BINS - 1);
}

/* Where the bin begins. */
static double begin_s(uint32_t bin) {
    return GAPS_LEAST_S * exp2((bin - 1.0) / BINS_PER_OCTAVE);
}

/* Within its bin a quantile is taken to lie in proportion. */
static double quantile_s(const struct gaps *g) {
    double before = 0, wanted = GAPS_SHARE * g->n_all;

    for (uint32_t i = 0; i < GAPS_BINS; i++) {
        if (before + g->n[i] >= wanted) {
            double share = g->n[i] ? (wanted - before) / g->n[i] : 0;

            return i ? begin_s(i) + share * (begin_s(i + 1) - begin_s(i)) : GAPS_LEAST_S;
        }
        before += g->n[i];
    }
    return GAPS_MOST_S;
}

static void halve(struct gaps *g) {
    g->n_all = 0;
    for (uint32_t i = 0; i < GAPS_BINS; i++)
        g->n_all += g->n[i] /= 2;
}

void gaps_add(struct gaps *g, double gap_s) {
    g->n[bin_of(gap_s)]++;
    if (++g->n_all >= GAPS_MAX) halve(g);
    if (g->n_all >= GAPS_MIN || g->long_s > 0)
        g->long_s = fmin(fmax(quantile_s(g), GAPS_LEAST_S), GAPS_MOST_S);
}

double gaps_long_s(const struct gaps *g) {
    return g->long_s > 0 ? g->long_s : GAPS_FIRST_S;
}

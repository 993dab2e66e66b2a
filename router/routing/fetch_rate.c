/* router/routing/fetch_rate.c - a line through weighted samples, and a prior. */
#include "router/routing/fetch_rate.h"

#include <assert.h>
#include <math.h>

/* Standard deviations: of the guesses, and of a sample by its seconds. */
#define LATENCY_SD_S       5e-3
#define S_PER_BYTE_SD      1e-7 /* 10 MB/s: all that networks have is likely */
#define SAMPLE_RELATIVE_SD 0.2
#define SAMPLE_SD_MIN_S    1e-3

#define S_PER_BYTE_MIN 1e-13
#define SECONDS_MAX    3600.0
#define BYTES_MAX      1e15
#define FORGET_STEP_S  1.0

/* Least squares in the differences from the guesses. */
static void solve(struct fetch_rate *r) {
    double l0 = r->first_latency_s, s0 = r->first_s_per_byte;
    double ll = r->n + 1 / (LATENCY_SD_S * LATENCY_SD_S);
    double ss = r->bb + 1 / (S_PER_BYTE_SD * S_PER_BYTE_SD), ls = r->b;
    double l = r->t - l0 * r->n - s0 * r->b, s = r->bt - l0 * r->b - s0 * r->bb;
    double det = ll * ss - ls * ls;

    r->latency_s = MAX(l0 + (l * ss - s * ls) / det, 0);
    /* with that latency, which may have been cut off at 0 */
    r->s_per_byte = MAX(s0 + (s - ls * (r->latency_s - l0)) / ss, S_PER_BYTE_MIN);
}

static void scale(struct fetch_rate *r, double keep) {
    r->n *= keep;
    r->b *= keep;
    r->bb *= keep;
    r->t *= keep;
    r->bt *= keep;
}

void fetch_rate_init(struct fetch_rate *r, double latency_s, double bytes_per_s) {
    assert(latency_s >= 0 && bytes_per_s > 0);
    *r = (struct fetch_rate){.first_latency_s = latency_s, .first_s_per_byte = 1 / bytes_per_s};
    solve(r);
}

void fetch_rate_forget(struct fetch_rate *r, uint64_t now_us) {
    double age_s = now_us > r->as_of_us ? (double)(int64_t)(now_us - r->as_of_us) * 1e-6 : 0;

    if (!(r->n > 0) || age_s < FORGET_STEP_S) return;
    scale(r, exp2(-age_s / FETCH_RATE_HALF_LIFE_S));
    r->as_of_us = now_us;
    solve(r);
}

void fetch_rate_learn(struct fetch_rate *r, double bytes, double seconds, uint64_t now_us) {
    double sd_s, weight;

    if (!(bytes > 0 && bytes <= BYTES_MAX && seconds > 0 && seconds <= SECONDS_MAX)) return;
    fetch_rate_forget(r, now_us);
    r->as_of_us = MAX(r->as_of_us, now_us);
    sd_s = MAX(SAMPLE_RELATIVE_SD * seconds, SAMPLE_SD_MIN_S);
    weight = 1 / (sd_s * sd_s);
    scale(r, FETCH_RATE_KEEP);
    r->n += weight;
    r->b += weight * bytes;
    r->bb += weight * bytes * bytes;
    r->t += weight * seconds;
    r->bt += weight * bytes * seconds;
    solve(r);
}

void fetch_rate_check(const struct fetch_rate *r) {
    assert(isfinite(r->latency_s) && r->latency_s >= 0);
    assert(isfinite(r->s_per_byte) && r->s_per_byte > 0);
    assert(r->n >= 0 && r->b >= 0 && r->bb >= 0 && r->t >= 0 && r->bt >= 0);
    (void)r;
}

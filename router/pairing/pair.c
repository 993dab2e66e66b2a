/* router/pairing/pair.c - the price of a pair, and the line of its fetch. */
#include "router/pairing/pair.h"

#include <math.h>

/* The prior: a second leg without a prompt takes 20 ms, one of 32,768 tokens 0.2 s more (165 ms
 * were published for a pull of that many tokens over RDMA; networks of 100 Gb/s take longer). */
#define PRIOR_NONE_S 0.020
#define PRIOR_TOKENS 32768.0
#define PRIOR_LONG_S 0.220
#define FETCH_MAX_S  60.0 /* of one observation */
#define FETCH_SHARE  0.5  /* of u(d): above, never apart */

static double kept(const struct pair_fetch *f, uint64_t now_us) {
    double s = now_us > f->as_of_us ? (double)(int64_t)(now_us - f->as_of_us) * 1e-6 : 0;

    return exp2(-s / PAIR_HALF_LIFE_S);
}

double pair_fetch_s(const struct pair_fetch *f, double tokens, uint64_t now_us) {
    double keep = kept(f, now_us);
    double n = f->n * keep + 2, x = f->x * keep + PRIOR_TOKENS;
    double xx = f->xx * keep + PRIOR_TOKENS * PRIOR_TOKENS;
    double y = f->y * keep + PRIOR_NONE_S + PRIOR_LONG_S;
    double xy = f->xy * keep + PRIOR_TOKENS * PRIOR_LONG_S;
    double slope = MAX((n * xy - x * y) / (n * xx - x * x), 0); /* the prior makes it > 0 */

    return MAX((y - slope * x) / n, 0) + slope * tokens;
}

void pair_fetch_learn(struct pair_fetch *f, double tokens, double seconds, uint64_t now_us) {
    double keep = kept(f, now_us);

    if (!(tokens >= 0) || !(seconds >= 0)) return;
    seconds = MIN(seconds, FETCH_MAX_S);
    f->n = f->n * keep + 1;
    f->x = f->x * keep + tokens;
    f->xx = f->xx * keep + tokens * tokens;
    f->y = f->y * keep + seconds;
    f->xy = f->xy * keep + tokens * seconds;
    f->as_of_us = MAX(f->as_of_us, now_us);
}

double pair_together_s(const struct pair_price *p) {
    return p->wait_d_s + p->work_d_s + p->work_d_s * p->decodes * p->delta;
}

double pair_apart_s(const struct pair_price *p) {
    return p->wait_p_s + p->work_p_s + p->work_p_s * p->decodes_p * p->delta + p->fetch_s;
}

bool pair_is_dear(const struct pair_price *p) {
    return p->fetch_s >= FETCH_SHARE * p->work_d_s;
}

bool pair_pays(const struct pair_price *p) {
    return !pair_is_dear(p) && pair_together_s(p) > pair_apart_s(p);
}

/* router/routing/decision/speed.c - work done by time taken. */
#include "router/routing/decision/speed.h"

#include <math.h>

/* Bounds of speed_ratio: the default of a worker that declares nothing may be far off. */
#define RATIO_MAX 1024.0

static void begin(struct speed *s, uint64_t now_us) {
    s->from_us = now_us;
    s->open_work_s = 0;
    s->is_void = false;
}

static void commit(struct speed *s, uint64_t now_us) {
    double took_s = now_us > s->from_us ? (double)(int64_t)(now_us - s->from_us) * 1e-6 : 0;
    double keep = exp2(-took_s / SPEED_HALF_LIFE_S);

    if (!s->is_void) {
        s->work_s = s->work_s * keep + s->open_work_s;
        s->busy_s = s->busy_s * keep + took_s;
    }
    begin(s, now_us);
}

bool speed_sent(struct speed *s, double new_tokens, uint64_t now_us) {
    if (!(new_tokens >= SPEED_TOKENS_MIN)) return false;
    if (!s->n_pending++) begin(s, now_us);
    return true;
}

void speed_first_token(struct speed *s, bool is_measured, double new_tokens, double work_s,
                       bool is_seen, uint64_t now_us) {
    s->open_work_s += s->n_pending && is_seen ? work_s : 0;
    if (!is_measured) return;
    s->n_pending--;
    if (!is_seen)
        begin(s, now_us);
    else if (new_tokens >= SPEED_TOKENS_MIN)
        commit(s, now_us);
}

void speed_aborted(struct speed *s, bool is_measured, bool is_oldest, uint64_t now_us) {
    if (!is_measured) return;
    s->n_pending--;
    if (is_oldest) begin(s, now_us);
}

void speed_reset(struct speed *s) {
    s->work_s = s->busy_s = 0;
    s->is_void = true;
}

double speed_mean(const struct speed *workers, uint32_t n, double *level) {
    double work_s = 0, declared_s = 0;

    for (uint32_t i = 0; i < n; i++) {
        work_s += workers[i].work_s;
        declared_s += workers[i].busy_s * workers[i].declared;
    }
    *level = (work_s + SPEED_PRIOR_S) / (declared_s + SPEED_PRIOR_S);
    return work_s > 0 && declared_s > 0 ? work_s / declared_s : 1;
}

double speed_join(struct speed_groups *g, double speed) {
    for (uint32_t i = 0; i < g->n; i++) {
        if (fabs(speed - g->of[i]) <= SPEED_ALIKE * g->of[i]) return g->of[i];
    }
    if (g->n < ARRAY_LEN(g->of)) g->of[g->n++] = speed;
    return speed;
}

double speed_ratio(const struct speed *s, double mean) {
    double prior_s = s->is_declared ? SPEED_DECLARED_PRIOR_S : SPEED_PRIOR_S;
    double expected = mean * s->declared;
    double ratio = (s->work_s + prior_s * expected) / ((s->busy_s + prior_s) * s->declared);

    return fmin(fmax(ratio, 1 / RATIO_MAX), RATIO_MAX);
}

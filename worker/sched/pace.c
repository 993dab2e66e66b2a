/* worker/sched/pace.c - see the header. */
#include "worker/sched/pace.h"

#include <math.h>

#define BASE_SHARE 0.1 /* of a new step in the moving average of a base */
#define LEAST_WORK 64  /* of a step that the rate is learned from: less is lost in the base */
#define LEAST_MARK 0.1 /* share of a step that its prompts take at least, whatever the base is */

void pace_init(struct pace *p, double tokens_per_s, double attn_context) {
    *p = (struct pace){.attn_context = attn_context > 0 ? attn_context : 0};
    if (!(tokens_per_s > 0)) return;
    p->work = tokens_per_s;
    p->work_s = 1;
}

double pace_work(const struct pace *p, uint32_t first, uint32_t last) {
    double n = (double)last - first;

    return p->attn_context > 0 ? n * (1 + ((double)first + last) / (2 * p->attn_context)) : n;
}

double pace_rate(const struct pace *p) {
    return p->work_s > 0 ? p->work / p->work_s : PACE_UNKNOWN;
}

static uint32_t base_of(uint32_t n_decoding) {
    uint32_t i = n_decoding ? 32 - (uint32_t)__builtin_clz(n_decoding) : 0;

    return MIN(i, PACE_BASES - 1);
}

/* Of the nearest number of rows that was seen, fewer ones first. */
double pace_base_s(const struct pace *p, uint32_t n_decoding) {
    uint32_t at = base_of(n_decoding);

    for (uint32_t i = at + 1; i-- > 0;)
        if (p->base_s[i] > 0) return p->base_s[i];
    for (uint32_t i = at + 1; i < PACE_BASES; i++)
        if (p->base_s[i] > 0) return p->base_s[i];
    return 0;
}

/* n (1 + (2 first + n) / 2c) = work, solved for n. */
uint32_t pace_tokens_within(const struct pace *p, uint32_t first, double seconds) {
    double work = seconds * pace_rate(p), c = p->attn_context, n = work;

    if (!(work > 0)) return 0;
    if (c > 0) n = sqrt((c + first) * (c + first) + 2 * c * work) - (c + first);
    return n < (double)UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

void pace_learn(struct pace *p, uint32_t n_decoding, double work, double seconds) {
    double *base_s = &p->base_s[base_of(n_decoding)], kept;

    if (!(seconds > 0)) return;
    if (!(work > 0)) {
        *base_s = *base_s > 0 ? *base_s + BASE_SHARE * (seconds - *base_s) : seconds;
        return;
    }
    if (work < LEAST_WORK) return;
    seconds = MAX(seconds - pace_base_s(p, n_decoding), LEAST_MARK * seconds);
    kept = exp2(-seconds / PACE_HALF_LIFE_S);
    p->work = p->work * kept + work;
    p->work_s = p->work_s * kept + seconds;
}

/* router/pairing/pair.h - is it cheaper to prefill a prompt on one worker and decode on another?
 *
 * Together, on d, a prompt waits for those before it and is computed, and every sequence that
 * decodes there meanwhile is held up by a share `delta` of that time. Apart, p computes it and d
 * fetches its KV:
 *
 *      wait(d) + u(d) + u(d) x decodes(d) x delta   >
 *                                wait(p) + u(p) + u(p) x decodes(p) x delta + fetch(n)
 *
 * u is the prefill of what each lacks of the prompt, so a short or cached prompt stays together: a
 * fetch takes longer than it holds others up. A fetch that takes half of u(d) or more is never
 * worth its risk.
 *
 * delta is learned from ended requests (load_speed): the share of its speed that decoding loses
 * while its worker prefills. fetch is learned from the second legs: a line over the tokens that
 * were handed over, by decayed sums, which forget with a half-life of PAIR_HALF_LIFE_S so that a
 * network that was slow once is tried again. Two observations that never decay are the prior.
 * Pure: time is an argument. */
#ifndef ROUTER_PAIRING_PAIR_H
#define ROUTER_PAIRING_PAIR_H

#include "common/base/base.h"

#define PAIR_HALF_LIFE_S 60.0

/* Seconds from sending a second leg to its first token, by tokens handed over. */
struct pair_fetch {
    double n, x, xx, y, xy; /* decayed sums: of 1, tokens, tokens^2, seconds, tokens x seconds */
    uint64_t as_of_us;
};

double pair_fetch_s(const struct pair_fetch *f, double tokens, uint64_t now_us);
void pair_fetch_learn(struct pair_fetch *f, double tokens, double seconds, uint64_t now_us);

struct pair_price {
    double wait_d_s, work_d_s, decodes, delta;     /* together */
    double wait_p_s, work_p_s, decodes_p, fetch_s; /* apart */
};

double pair_together_s(const struct pair_price *p);
double pair_apart_s(const struct pair_price *p);
bool pair_pays(const struct pair_price *p);
bool pair_is_dear(const struct pair_price *p); /* by its fetch alone: never apart */

#endif

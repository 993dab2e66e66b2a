/* tests/replay/workload/generator.h - workloads made from a seed: equal seeds, equal workloads.
 *
 *     conversations  an hour of a production chat service by its published statistics (below)
 *     documents      questions about 100 long texts, the k-th 1/k as often as the first
 *     few_shot       a question behind one of 256 templates of 1,000 to 4,000 tokens
 *     samples        one question 8 to 32 times within half a second
 *     chats          conversations behind 64 system prompts, six turns on average
 *     tree           a search over thoughts, four levels deep: five drafts of each of two thoughts,
 *                    each draft scored, two kept
 *     tenants        single questions behind 500 system prompts of about 2,500 tokens
 *     agents         coding agents in a closed loop, and a tenth of single chats (agents.c)
 *
 * Which of several templates, prompts or texts is drawn follows Zipf's law; lengths and pauses are
 * uniform or lognormal; arrivals are a Poisson process. Those from few_shot to tenants have
 * blocks of 64 tokens, and each of their prompts begins with the same one, as behind a chat
 * template.
 *
 * `conversations` is fitted to the statistics of the Mooncake conversation trace (FAST 2025), which
 * is not part of this repository:
 *
 *                                      published          made here, seed 7
 *     prompt tokens   mean, median     12,035  6,909      12,270  6,760
 *                     99 %, most       85,399  126,195    87,600  126,195
 *     output tokens   mean, median        343  350           355  336
 *     chats, and requests of one         7,373  1.63        7,630  1.54
 *     pause between turns, median         123 s             123 s
 *     found by an infinite cache         37.4 %            38.7 %
 *
 * First prompts, what a turn adds and pauses are lognormal; outputs too, except the 15 % that are
 * a few words; the longer a chat is, the likelier it goes on. A turn's prompt opens with all of the
 * turn before, and every prompt with the same block. */
#ifndef TESTS_REPLAY_WORKLOAD_GENERATOR_H
#define TESTS_REPLAY_WORKLOAD_GENERATOR_H

#include "common/base/rng.h"
#include "tests/replay/workload/workload.h"

struct generator {
    const char *name;
    uint32_t block_tokens;
    double rate; /* for 16 workers: of chats, of searches, else of requests, per second; of agents
                  * the sessions that are live at a time, or that arrive per second */
    double duration_s, warm_share; /* the usual ones */
    void (*make)(struct workload *w, struct rng *r, double duration_s, double rate);
};

extern const struct generator generators[]; /* the last has no name */

const struct generator *generator_find(const char *name); /* NULL when there is none */

/* Requests that arrive within duration_s. */
void generate(struct workload *w, const struct generator *g, uint64_t seed, double duration_s,
              double rate);

#endif

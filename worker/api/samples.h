/* worker/api/samples.h - the requests of a call: which there are, and which of them are shown.
 *
 *      n = 3                     three requests; two share what the first computes of the prompt
 *      n = 1, best_of = 3        the same three; the one with the highest mean logprob is shown
 *      use_beam_search, n = 3    three answers of one search (sched/beam_group.h), best first
 *
 * Equal seed, equal answer: a sample's seed is that of its request drawn at its number. Thread:
 * worker loop. */
#ifndef WORKER_API_SAMPLES_H
#define WORKER_API_SAMPLES_H

#include "worker/api/call.h"

/* Once all prompts are tokenized: creates the choices and submits their requests. After a failure
 * some may be submitted: call_fail cancels them. */
MUST_USE enum status samples_start(struct call *c, struct error *err);

/* All choices have ended: decides which are shown, and numbers them. */
void samples_rank(struct call *c);

/* The choices of the answer, in its order. */
static inline uint32_t samples_n_shown(const struct call *c) {
    return c->n_prompts * c->params.n_shown;
}
static inline struct choice *samples_shown(const struct call *c, uint32_t i) {
    return &c->choices[c->shown ? c->shown[i] : i];
}

#endif

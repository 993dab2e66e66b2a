/* worker/sched/beam.h - the choices of a beam search.
 *
 * The search keeps `width` live beams and the `width` best finished hypotheses. In each step every
 * live beam offers its likeliest next tokens; the best n_candidates of all are considered:
 *
 *      offers of all beams ──best n_candidates──▶  c0  c1  c2 | c3  c4  c5      falling scores
 *                                                   │   end     │
 *          live next: the best `width` that do not end         ─┴── an end beyond the first `width`
 *          finished:  ends among the first `width`, if they        is dropped: better beams live on
 *                     beat the worst finished one
 *
 * The score of a live beam is the sum of its tokens' logprobs; that of a finished one is divided by
 * length ^ length_penalty, the length in generated tokens, the end included. With at least
 * 1 + (number of tokens that end) candidates per beam, `width` beams always live on.
 *
 * Computes scores and choices only: no sequence, no device memory. The caller numbers its beams
 * 0..width-1; the result names the beam that each next one continues, and which of `width` slots
 * keeps a finished one. Results are those of transformers' generate(num_beams=width,
 * do_sample=False, length_penalty=, early_stopping=), in the same single-precision arithmetic; ties
 * go to the smaller beam, then to the smaller token. Follows: Wu et al., Google's NMT, 2016,
 * section 7; transformers' _beam_search. Thread: engine. */
#ifndef WORKER_SCHED_BEAM_H
#define WORKER_SCHED_BEAM_H

#include "common/base/base.h"

enum beam_stopping {
    BEAM_STOP_HOPELESS, /* when the best live beam, were it to end now, beats no finished one */
    BEAM_STOP_EARLY,    /* as soon as `width` have finished */
    BEAM_STOP_NEVER,    /* when no live beam can win, at any length */
};

struct beam_options {
    uint32_t width;        /* live beams, and finished ones kept; >= 1 */
    uint32_t n_candidates; /* offers looked at in each step: beam_candidates() */
    uint32_t max_tokens;   /* maximum length in generated tokens */
    float length_penalty;  /* above 0 favours long answers, below 0 short ones */
    enum beam_stopping stopping;
};

/* Offers to look at when n_ends different tokens end a beam; each beam must offer as many, if it
 * has them. */
static inline uint32_t beam_candidates(uint32_t width, uint32_t n_ends) {
    return MAX(2u, 1 + n_ends) * width;
}

/* One offer: beam `beam` with `token` behind it. */
struct beam_choice {
    uint32_t beam, token;
    uint32_t alternative; /* the caller's number of the offer */
    uint32_t slot;        /* of a finished one: where it is kept, in place of what was there */
    float score;          /* live: sum of logprobs; finished: penalised */
    bool is_end;          /* its token ends it; else it is finished by its length */
};

struct beam_finished {
    float score;
    uint32_t slot;
};

struct beam_search {
    struct beam_options options;
    uint32_t n_tokens; /* generated so far */
    uint32_t n_live, n_kept;
    float *score;               /* (width) of the live beams, falling */
    struct beam_finished *kept; /* (n_kept, room for width) best first */
    /* The step. */
    struct beam_choice *candidate; /* (n_candidates) best first */
    uint32_t n_candidates;
    struct beam_choice *live; /* (width) the next live beams, best first */
    struct beam_choice *done; /* (width) newly finished ones, to be copied to their slots */
    uint32_t n_done;
};

void beam_init(struct beam_search *b, const struct beam_options *o); /* one live beam: beam 0 */
void beam_fini(struct beam_search *b);                               /* a zeroed one is fine */

/* Offers of a live beam: the logprob of `token` behind it, best first. False when it is not among
 * the best; later offers of this beam are then not either. */
bool beam_offer(struct beam_search *b, uint32_t beam, uint32_t token, uint32_t alternative,
                float logprob, bool is_end);

/* After all live beams have offered: fills live, n_live, done and n_done. Renumbers the beams:
 * live[i] is beam i from now on. True when the search is over: then `kept` has the answers, and the
 * live beams are to be dropped. */
bool beam_step(struct beam_search *b);

#endif

/* worker/sched/beam_group.h - the requests of one beam search, and which of them compute.
 *
 *      the creator's            the search's own
 *      answer[0..n)             beam[0..width)              kept[0..width)
 *      wait, REQUEST_SEARCHING    run like any request:       hold finished hypotheses:
 *      until the search ends,   blocks, a row, preemption   tokens and logprobs, never run
 *      then are filled
 *
 * Beam 0 reads the prompt. From then on each step of the search is: every live beam's outputs have
 * come; worker/sched/beam.h chooses; a beam with several children is forked (its blocks are shared,
 * and copied on write), one without is dropped and its blocks are freed at once. The group waits
 * for a preempted beam, so its beams always have the same length. Only alternatives of raw logits
 * are read, so the batch does not change the result of a search.
 *
 * A group lives as long as one of its answers, or as one of its outputs is under way. The search
 * begins when all have been submitted, so that it cannot end before. Thread: the creator until the
 * first answer is submitted, then the engine.
 *
 * LIMITS: beam search ranks by the model's own logprobs: no penalties, no biases, no temperature,
 * no logprobs of the prompt. 2 * width candidates (more with several tokens that end an answer)
 * must not exceed BEAM_CANDIDATES_MAX. */
#ifndef WORKER_SCHED_BEAM_GROUP_H
#define WORKER_SCHED_BEAM_GROUP_H

#include <stdatomic.h>

#include "worker/sched/beam.h"
#include "worker/sched/request.h"

#define BEAM_ANSWER         0x80000000u /* in request.beam, beside the number of an answer */
#define BEAM_CANDIDATES_MAX 256u

struct beam_params {
    uint32_t width;
    uint32_t n; /* answers wanted, the best first; at most width */
    float length_penalty;
    enum beam_stopping stopping;
};

struct beam_group {
    struct beam_search search;
    uint32_t width, n_answers;
    uint32_t n_alternatives; /* wanted of each output: candidates, and tokens that may be banned */
    struct request **beam;   /* (width) the first search.n_live of them live */
    struct request **next;   /* (width) scratch of a step */
    struct request **kept;   /* (width) by slot */
    struct request **answer; /* (n_answers) those that wait for the end, or NULL */
    int32_t *alt_token;      /* (width, n_alternatives) what the beams offer; -1 past the end */
    float *alt_logprob;      /* (width, n_alternatives) */
    uint32_t n_awaited;      /* live beams whose outputs have not come */
    uint32_t n_added;        /* answers submitted; the search begins with the last */
    uint32_t n_open;         /* of these, not ended */
    atomic_uint refs;        /* one per answer, and per output under way */
};

/* The n answers of one search, with equal parameters; each with one reference, the caller's, to be
 * submitted in this order. ST_INVALID names the parameter, ST_NOMEM; then there are none. */
MUST_USE enum status beam_group_create(struct request **answers,
                                       const struct request_params *params,
                                       const struct beam_params *beams,
                                       const struct request_limits *limits, struct error *err);
void beam_group_ref(struct beam_group *g);
void beam_group_unref(struct beam_group *g);

/* The request is computed for a search, not for a client. */
static inline bool request_is_beam(const struct request *r) {
    return r->group && !(r->beam & BEAM_ANSWER);
}

/* --- for the scheduler ------------------------------------------------------------------------ */

/* What the output of a live beam offers: tokens and logprobs (n_alternatives), best first. True
 * when all live beams have offered. */
bool beam_group_offer(struct beam_group *g, const struct request *beam, const int32_t *token,
                      const float *logprob);

/* Chooses; then group->search.live names the parent of each next beam. Finished ones are copied to
 * `kept`. True when the search is over. */
bool beam_group_choose(struct beam_group *g, const uint32_t *eos_ids, uint32_t n_eos);

/* Appends the chosen token to `r`, which has the tokens of the beam it continues. */
void beam_group_extend(const struct beam_group *g, struct request *r, const struct beam_choice *c);

/* Fills answer i from the hypotheses kept, its end and its reason included. */
void beam_group_fill(const struct beam_group *g, uint32_t i, uint64_t now_us);

#endif

/* worker/engine/constrain.h - the constraint of a request, a grammar or a limit on its reasoning,
 * step by step: its mask, then its token.
 *
 * A request with a grammar has a matcher from its submission to its end, wherever it waits
 * meanwhile: preemption and swapping do not touch it. Before each of its outputs the mask of the
 * place is put into the step; behind it the chosen token is taken. A mask that is known is a copy;
 * a new one takes some ten microseconds, beside the device (masks.h).
 *
 * Where one token alone may follow, sampling could choose no other. Such tokens are taken behind
 * the sampled one, up to ENGINE_MAX_FORCED, and the next step computes all of them at once. The
 * answer is the same to the bit as one that samples each of them, for a draw depends on its
 * position and on no draw before it.
 *
 * End tokens (EOS, stop ids) are allowed exactly where the answer may end, and no EOS at all with
 * ignore_eos. When nothing but the end may follow, the request ends without a step for it. Before
 * min_tokens the ends are banned where anything else is allowed. Tokens that the client bans or
 * leaves out are taken from the mask; if none is left, the request ends with an error that names
 * the field.
 *
 * Where the budget of a request's reasoning is used up, its mask is the next token of the marker
 * that ends reasoning, whatever else would be allowed (sched/thinking.h).
 *
 * LIMITS. A request that wants logprobs has a step for each of its tokens. Tokens that are forced
 * behind the prompt wait for the first that is sampled. A constrained request is not computed ahead
 * of its sampled token (scheduler.h): where fewer than one in eight rows are constrained, they take
 * part in every second step of a device that has two in flight.
 * Thread: engine; constrain_fill on any, if one at a time uses the grammar. */
#ifndef WORKER_ENGINE_CONSTRAIN_H
#define WORKER_ENGINE_CONSTRAIN_H

#include "common/base/status.h"
#include "worker/sched/request.h"

struct metric;

struct constrain_ends {
    const uint32_t *eos_ids; /* (n_eos) */
    uint32_t n_eos;
};

struct constrain_stats {
    uint64_t n_new, n_known; /* masks */
    struct metric *seconds;  /* histogram of new ones, or NULL */
};

void constrain_begin(struct request *r); /* at its submission; nothing without a grammar */
void constrain_end(struct request *r);   /* once it has ended */

/* Is there a mask for its next token? */
bool constrain_has_mask(const struct request *r);

/* Does constrain_fill only copy? */
bool constrain_is_known(const struct request *r);

/* The mask of the request's next token. On a failure the mask is empty and r->error set: the
 * request ends with the outcome of this step. */
void constrain_fill(struct request *r, const struct constrain_ends *ends, uint32_t *mask,
                    uint32_t vocab, struct constrain_stats *stats);

/* The token that must come next, whatever the device would compute: it need not be sampled. False:
 * there is none, or a step is needed for its logprobs. */
bool constrain_forced(struct request *r, uint32_t *token);

/* The chosen token, or the forced one, which is not appended yet. Sets r->is_complete when nothing
 * can follow. On a failure r->error is set. */
MUST_USE enum status constrain_take(struct request *r, const struct constrain_ends *ends,
                                    uint32_t token);

#endif

/* worker/api/truncation.h - "truncation": "auto" of Responses: what does not fit loses its oldest
 * items.
 *
 *      system  user  call  output  call  output  message  user  call  output  user
 *                    ▲             ▲             ▲        ▲     ▲             ▲
 *                    └ cuts: what precedes one is left out, except
 *                        messages of the system or developer, additional_tools
 *                        the message of the user in whose turn the cut is
 *
 * So a call keeps its output, reasoning keeps what follows it, the rest begins with a user's
 * message, and the last step is always there. The text thread has found that the prompt is too
 * long; there shorter ones are rendered and tokenized until the longest that fits is known: a
 * bisection over at most TRUNCATION_MAX_CUTS cuts, multiples of a power of two of steps. Where less
 * than two such steps fit, cuts of a smaller power are tried there: a conversation of a hundred
 * contexts fills its context too. What is tried then is at most 1/4 of what was tried before.
 *
 *      fits     ··············|  a  b  c  d  e  f  g
 *      is left  ·····················|  c  d  e  f  g       multiples of 2, as 2 fits twice, 4 does not
 *
 * Then the cut is moved up to a multiple of a power of two, the largest that fits twice. Half or
 * more of what fits is left. As a conversation grows by as much, its beginning, and what the cache
 * has of it, stays the same. A cut just where the rest fits would move each turn, and each move
 * computes the whole context again. Of contexts of 16 turns the beginning moves in every seventh
 * turn, and 78 % of what fits is left, as a mean.
 *
 * What is left has room for max_output_tokens; without them an eighth of the context is left free.
 * If the last step alone does not fit, the request is refused as without truncation. */
#ifndef WORKER_API_TRUNCATION_H
#define WORKER_API_TRUNCATION_H

#include "common/base/base.h"

struct call;
struct json;
struct truncation;

#define TRUNCATION_MAX_CUTS 15u

/* For the one prompt of the call, before call_start. Takes `earlier`: the items that precede the
 * input, or NULL. */
struct truncation *truncation_create(struct call *c, struct json *earlier);
void truncation_destroy(struct truncation *x); /* no thread holds the prompt's job; NULL is fine */

/* Tokens of the whole prompt from which on it is truncated. */
uint32_t truncation_most_tokens(const struct truncation *x);

/* The prompt is tokenized: the call's is the one that fits, if there is one. */
void truncation_finish(struct truncation *x);

/* --- pure ------------------------------------------------------------------------------------- */

/* Writes to `cut` (room for n) the places, ascending, at which the conversation may begin. Returns
 * their number. */
size_t truncation_find_cuts(const struct json *const *item, size_t n, size_t *cut);

/* Which items are left out by a cut. */
void truncation_drop(const struct json *const *item, size_t n, size_t cut, bool *is_dropped);

#endif

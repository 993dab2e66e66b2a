/* kernels/sim/sim_text.h - the text that the simulated backend writes.
 *
 * Output tokens are bytes: words of lower-case letters with spaces and full stops between them,
 * so any prefix is valid UTF-8 and a person can see that a stream is complete. The byte at an
 * offset of the answer is a function of (key, offset) alone: recomputed after a preemption, or on
 * another worker, a request gets the same text. Never a special token: only max_tokens or a stop
 * ends it. */
#ifndef KERNELS_SIM_SIM_TEXT_H
#define KERNELS_SIM_SIM_TEXT_H

#include "common/base/base.h"

#define SIM_MIN_VOCAB 128u /* bytes it may write */

/* The key of a request: its prompt, and its seed when it is sampled. */
uint64_t sim_text_key(const uint32_t *prompt, uint32_t n_prompt);

/* The token at `offset` of the answer: ' ', '.' or 'a' to 'z'. */
uint32_t sim_text_token(uint64_t key, uint32_t offset);

#endif

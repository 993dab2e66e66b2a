/* tests/replay/conversations.h - made-up traffic with the shape of a production chat service.
 *
 * Fitted to the published statistics of an hour of such traffic (Mooncake, FAST 2025, the
 * conversation trace: 12,031 requests), which is nowhere included:
 *
 *                                      published          made here, seed 7
 *     prompt tokens   mean, median     12,035  6,909      12,300  6,500
 *                     99 %, most       85,399  126,195    91,000  126,195
 *     output tokens   mean, median        343  350           353  337
 *     chats, and requests of one         7,373  1.63        7,300  1.52
 *     pause between turns, median         123 s             123 s
 *     found by an infinite cache         37.4 %            40 %
 *
 * First prompts, what a turn adds and pauses are lognormal; outputs too, but for the 15 % that are
 * a few words; the longer a chat is, the likelier it goes on. A turn's prompt opens with all of
 * the turn before, and every prompt with the same block. Chats arrive as a Poisson process. */
#ifndef TESTS_REPLAY_CONVERSATIONS_H
#define TESTS_REPLAY_CONVERSATIONS_H

#include "common/base/base.h"

#define CONVERSATION_BLOCK 512 /* tokens named by one hash of a chain */

struct conversation_request {
    double arrival_s;
    uint64_t session;            /* one per chat, not 0 */
    uint32_t n_prompt, n_output; /* tokens, at least one each */
    uint32_t n_blocks;           /* full blocks of the prompt */
    const uint64_t *chain;       /* (n_blocks): equal hashes mean equal prompts up to there */
};

struct conversations {
    struct conversation_request *requests; /* in order of arrival */
    uint32_t n;
    uint64_t **chains; /* one per chat; each turn's chain is the beginning of it */
    uint32_t n_chats;
};

/* Chats that begin within `duration_s`, `chats_per_s` on average; turns after it are cut off. */
void conversations_make(struct conversations *c, uint64_t seed, double duration_s,
                        double chats_per_s);
/* Other traffic: questions about `n_documents` texts of 60,000 to 140,000 tokens, some asked for far
 * more often than others (the k-th 1/k as often as the first); each question has its own last words. */
void documents_make(struct conversations *c, uint64_t seed, double duration_s,
                    double questions_per_s, uint32_t n_documents);
void conversations_free(struct conversations *c);

#endif

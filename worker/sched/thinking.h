/* worker/sched/thinking.h - a limit on the tokens of an answer's reasoning.
 *
 *      before ── its begin marker ──▶ inside ── its end marker ──▶ after
 *                                       │                            ▲
 *                                       └ budget is used: the tokens of the end marker must come ┘
 *
 * Markers are runs of tokens; between them every token counts. Reasoning that the prompt has opened
 * is inside from the first token on. There is one stretch of reasoning: behind its end nothing is
 * counted. Which tokens are forced depends on the tokens before and nothing else, so an answer is
 * the same under every schedule.
 *
 * Follows: the budgets of vLLM's thinking_token_budget.
 * LIMITS. A marker spelt otherwise than by its run of tokens is not one. Thread: engine. */
#ifndef WORKER_SCHED_THINKING_H
#define WORKER_SCHED_THINKING_H

#include "common/base/base.h"

#define THINKING_MARKER_MAX 24u /* tokens; a marker that is text takes a few */

struct thinking_limit { /* zero: none */
    uint32_t budget;    /* tokens between the markers */
    bool is_open;       /* the prompt has the begin marker, and not the end */
    bool has_other_end; /* a token that ends it too and is never forced: a call begins */
    uint32_t other_end;
    uint32_t n_begin, n_end;
    uint32_t begin[THINKING_MARKER_MAX], end[THINKING_MARKER_MAX]; /* n_end 0: no limit */
};

struct thinking {                                                    /* where an answer is */
    enum { THINKING_AFTER, THINKING_BEFORE, THINKING_INSIDE } phase; /* AFTER: no limit any more */
    uint32_t n_tokens;                                               /* inside so far */
    uint32_t n_matched; /* of the marker that ends the phase: tokens that the output ends with */
};

void thinking_init(struct thinking *t, const struct thinking_limit *limit);

/* Must one token come next? */
bool thinking_forces(const struct thinking *t, const struct thinking_limit *limit, uint32_t *token);
void thinking_take(struct thinking *t, const struct thinking_limit *limit, uint32_t token);

#endif

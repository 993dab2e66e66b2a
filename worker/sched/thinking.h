/* worker/sched/thinking.h - a limit on the tokens of an answer's reasoning.
 *
 *      before ── its begin marker ──▶ inside ── its end marker ──▶ after
 *                                       │                            ▲
 *                                       └ budget is used ─▶ forced ──┘
 *
 * Markers are runs of tokens, or text that any tokens may spell: the one that ends a marker may
 * have the line's end too. Between them every token counts. Reasoning that the prompt has opened
 * is inside from the first token on. Once the budget is used, the tokens that end reasoning must
 * come: the end marker, and what a template has around it; where the marker has begun already, the
 * rest of it. There is one stretch of reasoning:
 * behind its end nothing is counted. Which tokens are forced depends on the tokens before and
 * nothing else, so an answer is the same under every schedule.
 *
 * Follows: the budgets of vLLM's thinking_token_budget.
 * LIMITS. A marker that is text begins reasoning at the beginning of the answer alone, behind
 * blanks. Thread: engine. */
#ifndef WORKER_SCHED_THINKING_H
#define WORKER_SCHED_THINKING_H

#include "common/base/base.h"
#include "common/base/buf.h"

#define THINKING_MARKER_MAX 32u /* tokens; a marker that is text takes a few */

struct thinking_run {
    uint32_t n;
    uint32_t token[THINKING_MARKER_MAX];
};

struct thinking_limit { /* zero: none */
    uint32_t budget;    /* tokens between the markers */
    bool is_open;       /* the prompt has the begin marker, and not the end */
    bool has_other_end; /* a token that ends it too and is never forced: a call begins */
    uint32_t other_end;
    struct thinking_run begin, end;
    struct thinking_run forced; /* empty: no limit */
    /* Of markers that are text; they live as long as the limit, and so does `arg`. */
    struct str begin_text, end_text;
    struct str (*bytes)(const void *arg, uint32_t token);
    const void *arg;
};

struct thinking { /* where an answer is */
    enum {
        THINKING_AFTER, /* no limit any more */
        THINKING_BEFORE,
        THINKING_INSIDE,
        THINKING_FORCED, /* what ends it comes */
        THINKING_ENDING  /* the end marker has begun by itself: the rest of it comes */
    } phase;
    uint32_t n_tokens;  /* inside so far */
    uint32_t n_matched; /* of the marker that ends the phase, that the output ends with; of what is
                         * forced, that have come */
    uint32_t n_spelt;   /* bytes of the text of that marker */
};

void thinking_init(struct thinking *t, const struct thinking_limit *limit);

/* Must one token come next? */
bool thinking_forces(const struct thinking *t, const struct thinking_limit *limit, uint32_t *token);
void thinking_take(struct thinking *t, const struct thinking_limit *limit, uint32_t token);

#endif

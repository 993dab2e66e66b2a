/* router/proxy/sse_usage.h - what an answer says of itself while it passes by.
 *
 * The router never holds an answer, yet it wants to know three things of it: when the first token
 * came, about how many there were, and what the worker counted. So this reads along, in whatever
 * pieces the network makes, keeping a few bytes of each piece for the next:
 *
 *      : ping                                     a comment: nothing
 *      data: {"choices":[{"delta":...}]}          an event: the first one is the first token
 *      data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":5,
 *             "prompt_tokens_details":{"cached_tokens":8}}}         three numbers
 *      data: [DONE]
 *
 * The numbers are found by name wherever they stand, in events and in whole JSON answers alike: in
 * `usage` (OpenAI, vLLM) and in `meta_info` (SGLang); of several the last counts. A name inside a
 * text cannot be mistaken for one, because its quotes are escaped there.
 *
 * Per byte this costs two or three memchr, and nothing is allocated. Pure; one loop.
 *
 * LIMITS. At most 4 blanks on each side of a number's colon; numbers stop at 2^31 - 1. Lines end
 * with \n or \r\n, not with \r alone. */
#ifndef ROUTER_PROXY_SSE_USAGE_H
#define ROUTER_PROXY_SSE_USAGE_H

#include "common/base/buf.h"

#define SSE_USAGE_CARRY_BYTES 48 /* longest name, colon, blanks and number together, and to spare */
#define SSE_USAGE_HEAD_BYTES  32 /* of a line: enough to tell its kind */

struct sse_usage {
    uint64_t n_events;         /* with data, comments and [DONE] aside: about one per token */
    int64_t prompt_tokens;     /* as reported; -1: not seen */
    int64_t cached_tokens;     /* likewise */
    int64_t completion_tokens; /* likewise */
    bool has_done;             /* [DONE] was seen: nothing is missing */
    bool has_error;            /* an event was an error, not a token */

    /* Its own. */
    bool is_stream;
    bool has_lines, has_data, is_error; /* of the event at hand: since the last blank line */
    uint8_t n_head, n_carry;
    char head[SSE_USAGE_HEAD_BYTES];   /* of a line that is not complete yet */
    char carry[SSE_USAGE_CARRY_BYTES]; /* what came last: a number may be cut in two */
};

/* `is_stream`: server-sent events; otherwise only numbers are looked for. */
void sse_usage_init(struct sse_usage *t, bool is_stream);
void sse_usage_feed(struct sse_usage *t, struct str payload);

/* Tokens of the answer: as reported, else about as many as there were events; -1: nothing says. */
int64_t sse_usage_tokens(const struct sse_usage *t);

/* True while an event is half said: something must end it before another can begin. */
bool sse_usage_is_amid_event(const struct sse_usage *t);

#endif

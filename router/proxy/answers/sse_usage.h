/* router/proxy/answers/sse_usage.h - events and token counts of an answer, read while it passes.
 *
 * The router keeps no answer, but needs the time of the first token, the number of tokens, and the
 * worker's own counts. So each payload is read in whatever pieces the network makes, and a few
 * bytes of each are kept for the next:
 *
 *      : ping                                     a comment: ignored
 *      data: {"choices":[{"delta":...}]}          an event: the first one is the first token
 *      data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":5,
 *             "prompt_tokens_details":{"cached_tokens":8}}}         three numbers
 *      data: [DONE]
 *
 * Numbers are found by name, in events and whole JSON answers: in `usage` (OpenAI, vLLM) and in
 * `meta_info` (SGLang); the last of several counts. A name inside a text has escaped quotes.
 *
 * Two or three memchr per byte, no allocation. Pure; one loop.
 *
 * LIMITS. At most 4 blanks on each side of a number's colon; numbers stop at 2^31 - 1. Lines end
 * with \n or \r\n, not with \r alone. */
#ifndef ROUTER_PROXY_SSE_USAGE_H
#define ROUTER_PROXY_SSE_USAGE_H

#include "common/base/buf.h"

#define SSE_USAGE_CARRY_BYTES 48 /* longest name, colon, blanks and number together, and to spare */
#define SSE_USAGE_HEAD_BYTES  32 /* of a line: enough for its kind */

struct sse_usage {
    uint64_t n_events;         /* with data, comments and [DONE] aside: about one per token */
    int64_t prompt_tokens;     /* as reported; -1: not seen */
    int64_t cached_tokens;     /* as reported; -1: not seen */
    int64_t completion_tokens; /* as reported; -1: not seen */
    bool has_done;             /* [DONE] was seen: nothing is missing */
    bool has_error;            /* an event was an error, not a token */

    /* Private. */
    bool is_stream;
    bool has_fields;                    /* a line that is neither blank nor a comment */
    bool has_lines, has_data, is_error; /* of the event at hand: since the last blank line */
    uint8_t n_head, n_carry;
    char head[SSE_USAGE_HEAD_BYTES];   /* of a line that is not complete yet */
    char carry[SSE_USAGE_CARRY_BYTES]; /* what came last: a number may be cut in two */
};

/* `is_stream`: server-sent events; otherwise only numbers are looked for. */
void sse_usage_init(struct sse_usage *t, bool is_stream);
void sse_usage_feed(struct sse_usage *t, struct str payload);

/* Tokens of the answer: as reported, else the number of events, else -1. */
int64_t sse_usage_tokens(const struct sse_usage *t);

/* An event is incomplete: a blank line must end it before another can begin. */
bool sse_usage_is_amid_event(const struct sse_usage *t);

/* Anything but comments and blank lines has come, or has begun to. */
bool sse_usage_has_begun(const struct sse_usage *t);

#endif

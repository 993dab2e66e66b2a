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
 * Messages and Responses name their events. Those whose name ends in "delta" have tokens, but
 * message_delta; those before (message_start, response.created) say that the request has arrived.
 * message_stop, response.completed, .incomplete and .failed end the stream. A prompt's tokens are
 * input_tokens, in Messages with cache_read_input_tokens and cache_creation_input_tokens beside
 * them; the output_tokens of message_start are none of the answer's. Responses repeat the tools of
 * the request, in which a client may write any name and number: `usage` must follow them.
 *
 * Two or three memchr per byte, no allocation. Pure; one loop.
 *
 * LIMITS. At most 4 blanks on each side of a number's colon; numbers stop at 2^31 - 1. Lines end
 * with \n or \r\n, not with \r alone. */
#ifndef ROUTER_PROXY_SSE_USAGE_H
#define ROUTER_PROXY_SSE_USAGE_H

#include "common/base/buf.h"
#include "common/protocol/api.h"

#define SSE_USAGE_CARRY_BYTES 64 /* longest name, colon, blanks and number together, and to spare */
#define SSE_USAGE_HEAD_BYTES  64 /* of a line: enough for its kind */
#define SSE_USAGE_ID_MAX      64 /* of a response; a longer one is not kept */

struct sse_usage {
    uint64_t n_events;         /* with data, comments and [DONE] aside */
    uint64_t n_token_events;   /* of these, with a part of the answer: about one per token */
    int64_t prompt_tokens;     /* as reported; -1: not seen */
    int64_t cached_tokens;     /* as reported; -1: not seen */
    int64_t completion_tokens; /* as reported; -1: not seen */
    bool has_done;             /* [DONE] or its like was seen: nothing is missing */
    bool has_error;            /* an event was an error, not a token */
    int64_t sequence;          /* of Responses' last event; -1: not seen */
    uint8_t n_id;
    char id[SSE_USAGE_ID_MAX]; /* of the response, n_id bytes */

    /* Private. */
    enum api_form api;
    int64_t input_tokens, cache_read_tokens, cache_creation_tokens;
    bool is_stream;
    bool has_fields;          /* a line that is neither blank nor a comment */
    bool has_lines, has_data; /* of the event at hand: since the last blank line */
    bool is_error, is_token, is_end;
    uint8_t n_head, n_carry;
    char head[SSE_USAGE_HEAD_BYTES];   /* of a line that is not complete yet */
    char carry[SSE_USAGE_CARRY_BYTES]; /* what came last: a number may be cut in two */
};

/* `is_stream`: server-sent events; otherwise only numbers are looked for. */
void sse_usage_init(struct sse_usage *t, enum api_form api, bool is_stream);
void sse_usage_feed(struct sse_usage *t, struct str payload);

/* Tokens of the answer: as reported, else the number of events with tokens, else -1. */
int64_t sse_usage_tokens(const struct sse_usage *t);

/* An event is incomplete: a blank line must end it before another can begin. */
bool sse_usage_is_amid_event(const struct sse_usage *t);

/* Anything but comments and blank lines has come, or has begun to. */
bool sse_usage_has_begun(const struct sse_usage *t);

#endif

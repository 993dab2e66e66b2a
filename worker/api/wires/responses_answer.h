/* worker/api/wires/responses_answer.h - an answer as Responses has it: whole, or as events.
 *
 *      response.created, response.in_progress
 *          output_item.added
 *              reasoning, text   content_part.added, deltas, done, content_part.done
 *              a call            deltas, done
 *          output_item.done      the whole item
 *      response.completed or response.incomplete, with the whole response
 *
 * Parts are items: reasoning `reasoning`, text `message`, calls `function_call` or, where the tool
 * is custom, `custom_tool_call` with the one string that its function has. Without any there is one
 * empty message. An item's id follows from the response's and its place: what is streamed, what
 * stands in the last event and what GET returns name the same items.
 *
 * Each event has a name, `event: TYPE`, and a sequence number; no [DONE] follows the last. LIMITS.
 * The input of a custom tool comes in one delta; where it is cut it is what the model wrote, JSON.
 * Pure. */
#ifndef WORKER_API_WIRES_RESPONSES_ANSWER_H
#define WORKER_API_WIRES_RESPONSES_ANSWER_H

#include "common/base/buf.h"
#include "worker/output/answer.h"

struct json;
struct prompt_diagnosis;

struct responses_answer {
    const char *id, *model;
    const struct json *asked; /* the body: its fields are repeated */
    const struct answer *answer;
    uint64_t created_s, prompt_tokens, cached_tokens, output_tokens, reasoning_tokens;
    const struct prompt_diagnosis *diagnosis; /* NULL: none was asked for */
    bool is_limited;                          /* it ended at max_output_tokens */
    bool is_stored;
};

struct responses_stream {
    struct answer_mark *mark; /* of the answer; moves on */
    uint32_t n_items;         /* begun so far */
    uint64_t sequence;        /* of the next event */
};

/* Each appends whole events. */
void responses_put_start(const struct responses_answer *r, struct responses_stream *s,
                         struct buf *out);
void responses_put_more(const struct responses_answer *r, struct responses_stream *s,
                        struct buf *out);
/* After the last of these. */
void responses_put_end(const struct responses_answer *r, struct responses_stream *s,
                       struct buf *out);

/* Appends its items: elements of a JSON array. */
void responses_put_output(const struct responses_answer *r, struct buf *out);

/* Appends the response, in one line. */
void responses_put_whole(const struct responses_answer *r, struct buf *out);

#endif

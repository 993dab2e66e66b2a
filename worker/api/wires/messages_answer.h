/* worker/api/wires/messages_answer.h - an answer as Messages has it: whole, or as events.
 *
 *      message_start
 *          content_block_start  content_block_delta ...  content_block_stop     for each part
 *      message_delta            the reason and the usage
 *      message_stop
 *
 * One block is open at a time. Each event has a name, `event: TYPE`; no [DONE] follows the last.
 * Parts are blocks: reasoning `thinking`, text `text`, calls `tool_use`; without any there is one
 * empty text. A thinking block ends in a signature, for clients send back those with one alone; any
 * is accepted.
 *
 * The reason to stop is the first of these that holds:
 *
 *      max_tokens      the limit, even where calls before it are whole
 *      tool_use        the last call is whole
 *      stop_sequence   a stop sequence, even inside of a call: what is cut must not run
 *      end_turn
 *
 * LIMITS. The input of a call whose arguments are no JSON object is {}; a call that is cut is left
 * out of a whole answer, while its pieces were sent to a stream. Pure. */
#ifndef WORKER_API_WIRES_MESSAGES_ANSWER_H
#define WORKER_API_WIRES_MESSAGES_ANSWER_H

#include "common/base/buf.h"
#include "worker/output/answer.h"

struct prompt_diagnosis;

struct messages_answer {
    const char *id, *model;
    const struct answer *answer;
    uint64_t prompt_tokens, cached_tokens, output_tokens;
    bool is_limited;                          /* it ended at max_tokens */
    struct str stop;                          /* the stop sequence that ended it; STR_NULL: none */
    const struct prompt_diagnosis *diagnosis; /* NULL: the request has no `diagnostics` */
};

struct messages_stream {
    struct answer_mark *mark; /* of the answer; moves on */
    uint32_t n_blocks;        /* begun so far */
};

/* Each appends whole events. */
void messages_put_start(const struct messages_answer *m, struct buf *out);
void messages_put_more(const struct messages_answer *m, struct messages_stream *s, struct buf *out);
/* After the last of these. */
void messages_put_end(const struct messages_answer *m, struct messages_stream *s, struct buf *out);

/* Appends the message. */
void messages_put_whole(const struct messages_answer *m, struct buf *out);

#endif

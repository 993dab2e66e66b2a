/* worker/api/shapes/chat_answer.h - an answer as chat has it: a message, or the deltas of a stream.
 *
 * A client appends what deltas have: text to `content` and `reasoning`, arguments to the call of
 * that index. Of text and reasoning there is no beginning and no end; a call has a delta for its
 * beginning; of a custom tool's call the input comes at once, with its end. Pure. */
#ifndef WORKER_API_SHAPES_CHAT_ANSWER_H
#define WORKER_API_SHAPES_CHAT_ANSWER_H

#include "common/text/json.h"
#include "worker/output/answer_events.h"

struct tool_fields;

struct chat_answer {
    const struct answer *answer;
    const struct tool_fields *tools; /* which are custom */
    struct str role, echo;           /* echo: before the text of the whole */
    bool hides_reasoning;
};

/* The next event that a client sees, as answer_next. */
bool chat_next(const struct chat_answer *a, struct answer_mark *mark, struct answer_event *e);

/* "delta" of that event; NULL: nothing. */
void chat_put_delta(struct json_writer *w, const struct chat_answer *a,
                    const struct answer_event *e);

/* "message": the whole. */
void chat_put_message(struct json_writer *w, const struct chat_answer *a);

#endif

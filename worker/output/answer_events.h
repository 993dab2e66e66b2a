/* worker/output/answer_events.h - an answer as the events of a stream.
 *
 *      each part:  BEGIN, TEXT as often as something has come, END
 *
 * Whatever the moments at which a sender asks, its texts join to the part's, and parts do not
 * interleave. */
#ifndef WORKER_OUTPUT_ANSWER_EVENTS_H
#define WORKER_OUTPUT_ANSWER_EVENTS_H

#include "worker/output/answer.h"

enum answer_event_kind { ANSWER_BEGIN, ANSWER_TEXT, ANSWER_END };

struct answer_event {
    enum answer_event_kind kind;
    const struct answer_part *part; /* name and id are there from BEGIN on */
    uint32_t index;                 /* of the part in the answer */
    struct str text;                /* of TEXT: what is new; holds until the answer grows */
};

/* The next event behind the mark, which moves on. False: there is none yet. */
bool answer_next(const struct answer *a, struct answer_mark *mark, struct answer_event *out);
bool answer_has_more(const struct answer *a, const struct answer_mark *mark);

#endif

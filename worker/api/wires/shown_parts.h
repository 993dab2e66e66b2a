/* worker/api/wires/shown_parts.h - the parts of an answer that are blocks of Messages and items of
 * Responses: all but text that is blank, which models write between reasoning and calls.
 *
 * A text that begins blank is held back until more of it has come, or it is whole: so what is shown
 * of an answer in pieces is what is shown of it whole. Pure. */
#ifndef WORKER_API_WIRES_SHOWN_PARTS_H
#define WORKER_API_WIRES_SHOWN_PARTS_H

#include "worker/output/answer_events.h"

/* As answer_next. */
bool shown_next(const struct answer *a, struct answer_mark *mark, struct answer_event *out);

bool shown_is_blank(const struct answer_part *part);

#endif

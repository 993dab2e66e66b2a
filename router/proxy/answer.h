/* router/proxy/answer.h - whether what came with status 200 is an answer at all.
 *
 * A broken engine, or what is in front of one, says 200 and then nothing, half a document, or an error.
 * Here is judged only what can be seen without parsing: how a document begins and ends, and whether it
 * has what every completion has. An answer that passes may still be nonsense. Pure. */
#ifndef ROUTER_PROXY_ANSWER_H
#define ROUTER_PROXY_ANSWER_H

#include "common/base/buf.h"

enum answer_fault {
    ANSWER_FINE,
    ANSWER_EMPTY, /* no bytes, or no choices in a completion */
    ANSWER_CUT,   /* a JSON document without its end */
    ANSWER_ERROR, /* an error object in place of an answer */
};

/* `body`: a JSON answer from its first to its last byte. `wants_choices`: of a completion. */
enum answer_fault answer_judge(struct str body, bool wants_choices);

/* Whether a JSON document, of which this is the beginning, is an error object. */
bool answer_is_error(struct str beginning);

/* Whether an error that begins so blames the request (its code is 4xx), not the worker. */
bool answer_blames_request(struct str error);

#endif

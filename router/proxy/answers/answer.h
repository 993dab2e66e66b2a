/* router/proxy/answers/answer.h - whether a response with status 200 is an answer.
 *
 * A broken engine, or a proxy before it, sends 200 and then nothing, half a document, or an error.
 * This checks only what shows without parsing: how a document begins and ends, and that a
 * completion has choices. Pure. */
#ifndef ROUTER_PROXY_ANSWER_H
#define ROUTER_PROXY_ANSWER_H

#include "common/base/buf.h"

enum answer_fault {
    ANSWER_FINE,
    ANSWER_EMPTY, /* no bytes, or no choices in a completion */
    ANSWER_CUT,   /* a JSON document without its end */
    ANSWER_ERROR, /* an error object in place of an answer */
};

/* `body`: a whole JSON answer. `wants_choices`: it answers a completion. */
enum answer_fault answer_judge(struct str body, bool wants_choices);

/* Whether a JSON document that begins so is an error object. */
bool answer_is_error(struct str beginning);

/* Whether an error that begins so blames the request (its code is 4xx), not the worker. */
bool answer_blames_request(struct str error);

#endif

/* worker/api/wires/call_arguments.h - the arguments of a call, as an object that clients can send
 * back.
 *
 * What a model writes may be JSON that no request can hold (json.h): a NUL or half of a surrogate
 * pair, as an escape. Each such character becomes U+FFFD, so that the rest is not lost. Pure. */
#ifndef WORKER_API_WIRES_CALL_ARGUMENTS_H
#define WORKER_API_WIRES_CALL_ARGUMENTS_H

#include "common/base/buf.h"

struct json;

/* Appends the arguments. Returns the object that they are, which json_destroy frees; NULL: they are
 * none, and *out is as before. */
struct json *call_arguments_read(struct str arguments, struct buf *out);

/* Appends what a custom tool gets: the string "input" of the arguments; where they are cut, the
 * arguments as they are. */
void call_arguments_append_input(struct str arguments, struct buf *out);

#endif

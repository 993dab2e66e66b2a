/* common/protocol/openai.h - the error body, in the shape that clients parse.
 *
 * Every error body of router and worker is
 *
 *      {"error":{"message":"...","type":"BadRequestError","param":"prompt","code":400}}
 *
 * with param null when no field is at fault. One place writes it. Pure; any thread. */
#ifndef COMMON_PROTOCOL_OPENAI_H
#define COMMON_PROTOCOL_OPENAI_H

#include "common/base/buf.h"
#include "common/base/status.h"

#define OPENAI_JSON "application/json"

/* Appends the body. The type and, when `code` is 0, the code come from `st`; the message from `err`
 * (NULL: the status's name). Invalid UTF-8 in the message is replaced. */
void openai_append_error(struct buf *out, enum status st, int code, const struct error *err);

/* The end of every event stream: "data: [DONE]". */
#define OPENAI_DONE STR("[DONE]")

#endif

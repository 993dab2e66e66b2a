/* worker/api/wires/sealed_text.h - text that a client keeps for us and does not read.
 *
 * Agents drop the text of reasoning from their history and send back `encrypted_content`. A
 * template that prints reasoning inside of a tool loop would then print another prompt than the
 * cached one. So the field has the text: a mark, which that of other engines does not have, and
 * base64url. It is no secret: the client has seen the text in the answer; and it proves nothing: a
 * client may write any history. Pure. */
#ifndef WORKER_API_WIRES_SEALED_TEXT_H
#define WORKER_API_WIRES_SEALED_TEXT_H

#include "common/base/buf.h"

void sealed_text_put(struct buf *out, struct str text);

/* Appends the text. False, and nothing is appended, if `sealed` is not ours. */
bool sealed_text_open(struct str sealed, struct buf *out);

#endif

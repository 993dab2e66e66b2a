/* worker/api/wires/sealed_text.h - text that a client keeps for us and does not read.
 *
 * Agents drop the text of reasoning from their history and send back `encrypted_content`. A template
 * that prints reasoning inside of a tool loop would then print another prompt than the cached one.
 * So it has the text: a mark, by which ours is told from others', and base64url. It is no secret
 * from the client, to whom the answer has shown it, and proves nothing: a client may write any
 * history. Pure. */
#ifndef WORKER_API_WIRES_SEALED_TEXT_H
#define WORKER_API_WIRES_SEALED_TEXT_H

#include "common/base/buf.h"

void sealed_text_put(struct buf *out, struct str text);

/* Appends the text. False, and nothing is appended, if `sealed` is not ours. */
bool sealed_text_open(struct str sealed, struct buf *out);

#endif

/* worker/api/wires/conversation.h - writes a conversation as the messages of a chat body.
 *
 * Messages has it in blocks, Responses in items; both put in one message what chat has in several,
 * and in several what chat has in one. Here the pieces come one by one, and become:
 *
 *      system      one message of all that comes before the user. What comes later stays where it
 *                  is, so that the prompt of a turn is a prefix of the next turn's; where the
 *                  template has no place for it, as text of the user
 *      user        a message `tool` for each result, as templates want them right behind the calls;
 *                  then one message of all text
 *      assistant   one message: reasoning, text, calls
 *
 * Pieces of text of one message are joined by line ends, as chat joins the parts of a content.
 * Pure. */
#ifndef WORKER_API_WIRES_CONVERSATION_H
#define WORKER_API_WIRES_CONVERSATION_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/text/json.h"

#define CONVERSATION_MAX 10000u /* messages */

enum speaker { SPEAKER_SYSTEM, SPEAKER_USER, SPEAKER_ASSISTANT };

struct conversation { /* private */
    struct json_writer *w;
    bool takes_late_system, has_begun, is_open;
    enum speaker speaker;       /* of the message that is open */
    struct buf text, reasoning; /* of it */
    struct buf calls;           /* of it: elements of an array */
    uint32_t n_texts, n_calls, n_results;
    uint32_t n_messages; /* of all */
};

/* Writes "messages" and its value into the object that is open in `w`, until conversation_end.
 * `takes_late_system`: the template prints a message of the system behind one of the user. */
void conversation_begin(struct conversation *c, struct json_writer *w, bool takes_late_system);
/* Ends the array and frees. ST_NOMEM if a piece was lost; ST_INVALID, which names `field`, if there
 * are more than CONVERSATION_MAX messages. To be called once, after an error in the body too. */
MUST_USE enum status conversation_end(struct conversation *c, const char *field, struct error *err);

/* Begins the speaker's message. One that stays empty is written, without text. */
void conversation_turn(struct conversation *c, enum speaker speaker);
void conversation_text(struct conversation *c, enum speaker speaker, struct str text);
void conversation_reasoning(struct conversation *c, struct str text);
/* `arguments`: JSON text. */
void conversation_call(struct conversation *c, struct str id, struct str name,
                       struct str arguments);
void conversation_result(struct conversation *c, struct str id, struct str text);

/* So far the last word is text of the assistant. */
bool conversation_ends_in_answer(const struct conversation *c);

#endif

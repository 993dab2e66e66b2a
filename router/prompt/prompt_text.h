/* router/prompt/prompt_text.h - the bytes of a prompt that are hashed, in the order in which
 * engines render them.
 *
 *      OpenAI      `system` if there is one, then messages, prompt, text or input_ids: as they are
 *      Messages    `system`, then `messages`
 *      Responses   `instructions`, then `input`
 *
 * Clients of Messages and Responses write one message differently in later requests: the marker
 * cache_control moves on to the last block, a string becomes an array of one block, a lone input
 * becomes the first item. So of a message its role and its content are taken, of a text block its
 * text, of another block or item its members without cache_control:
 *
 *      {"role":"user","content":"hi"}                                            {"user""hi"
 *      {"content":[{"type":"text","text":"hi","cache_control":{}}],"role":"user"}    the same
 *      [{"type":"tool_use","id":"t","input":{}}]                {"type""tool_use""id""t""input"{}
 *
 * The prompt of a turn is then a prefix of the next turn's, as in the chat form, where clients
 * write a message once. Messages stay in their order, those of the system too. What clients write
 * differently in each request (client_noise.h) is left out in all forms. What is no message of its
 * API is taken as it is. Pure, allocates nothing; any thread. */
#ifndef ROUTER_PROMPT_PROMPT_TEXT_H
#define ROUTER_PROMPT_PROMPT_TEXT_H

#include "common/protocol/api.h"
#include "router/prompt/body_scan.h"
#include "router/prompt/client_noise.h"

struct prompt_text {
    const struct body_scan *scan;
    const struct client_noise *noise;
    enum api_form api;
};

/* No less than the bytes of the text; close to them. */
size_t prompt_text_max(const struct body_scan *scan, enum api_form api);

/* Passes the text to `take` in pieces, none of them empty. Returns how many of its bytes are of the
 * system prompt, if that has a field of its own; else 0. */
typedef void prompt_take_fn(void *arg, struct str piece);
size_t prompt_text_read(const struct prompt_text *text, prompt_take_fn *take, void *arg);

/* Of a body whose path is not known, by its fields. */
enum api_form prompt_api_of(const struct body_scan *scan);

#endif

/* worker/api/shapes/logprobs.h - logprobs as the two APIs write them.
 *
 * Both take output tokens [first, end) of a choice, and the number of alternatives wanted. */
#ifndef WORKER_API_SHAPES_LOGPROBS_H
#define WORKER_API_SHAPES_LOGPROBS_H

#include "common/base/base.h"

struct choice;
struct json_writer;

/* {"tokens","token_logprobs","top_logprobs","text_offset"}; with `echo` the prompt's tokens come
 * first. *offset, in characters of the choice's text, is where the first token begins, and where
 * the next one will. */
void logprobs_put_completion(struct json_writer *w, const struct choice *ch, uint32_t first,
                             uint32_t end, bool echo, size_t *offset);

/* "prompt_logprobs": [null, {"17": {"logprob","rank","decoded_token"}, ...}, ...]: of each prompt
 * token, and its likeliest alternatives; null when not requested by that name. */
void logprobs_put_prompt(struct json_writer *w, const struct choice *ch);

/* {"content":[{"token","logprob","bytes","top_logprobs"}]} */
void logprobs_put_chat(struct json_writer *w, const struct choice *ch, uint32_t first,
                       uint32_t end);

#endif

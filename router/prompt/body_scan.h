/* router/prompt/body_scan.h - finds the parts of a request in its raw JSON, without a tree.
 *
 * One pass. Finds the values of the top-level keys that routing needs, and rejects bodies that no
 * worker can read: broken structure, nesting deeper than 64, control bytes in strings, bad UTF-8, a
 * repeated top-level key. The grammar of numbers, literals and escapes inside values is left to the
 * worker, which parses the same bytes. Pure, allocates nothing; any thread. */
#ifndef ROUTER_PROMPT_BODY_SCAN_H
#define ROUTER_PROMPT_BODY_SCAN_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/protocol/wire.h"

#define BODY_DEPTH_MAX 64
#define BODY_KEYS_MAX  256 /* top-level keys; requests have about ten */

enum body_key {
    BODY_MODEL,
    BODY_MESSAGES,
    BODY_SYSTEM, /* of /v1/messages: a string or blocks */
    BODY_PROMPT,
    BODY_TEXT,
    BODY_INPUT_IDS,
    BODY_INPUT, /* of /v1/responses: a string or items; so is the next one: a string */
    BODY_INSTRUCTIONS,
    BODY_PREVIOUS_RESPONSE_ID,
    BODY_TOOLS,
    BODY_CACHE_SALT,
    BODY_LORA_PATH,
    BODY_ADAPTER,
    BODY_STREAM,
    BODY_MAX_TOKENS,
    BODY_MAX_COMPLETION_TOKENS,
    BODY_MAX_OUTPUT_TOKENS,
    BODY_SAMPLING_PARAMS,
    BODY_PROMPT_CACHE_KEY,
    BODY_SESSION_ID,
    BODY_USER,
    BODY_METADATA,
    BODY_EXTRA_KEY,
    BODY_PRIORITY,
    BODY_CACHE_EXPLAIN,
    BODY_KV_TRANSFER_PARAMS, /* these and the following are for workers, not for clients:
                              * forward.h */
    BODY_EC_TRANSFER_PARAMS,
    BODY_BOOTSTRAP_HOST,
    BODY_SESSION_PARAMS,
    BODY_CUSTOM_LOGIT_PROCESSOR,
    BODY_KEY_COUNT
};

struct body_scan {
    /* Raw values, quotes and brackets included; {NULL, 0} when absent. */
    struct str spans[BODY_KEY_COUNT];
    /* "stream": true */
    bool is_stream;
    /* max_completion_tokens, max_tokens, max_output_tokens or sampling_params.max_new_tokens, the
     * first that is a plain number above 0; else 0. */
    uint32_t max_output_tokens;
    /* The model's name, escapes resolved; STR_NULL when it is absent or null. Points into the body
     * or to model_text: a copy of this struct points to the original's. */
    struct str model;
    char model_text[WIRE_MODEL_MAX];
};

/* ST_INVALID: the message has what was found at which byte. */
MUST_USE enum status body_scan(struct str body, struct body_scan *out, struct error *err);

/* OpenAI's prompt: messages, prompt, text or input_ids, the first that is there; or empty. */
struct str body_scan_prompt(const struct body_scan *scan);

/* The inside of a raw JSON string: without its quotes, escapes as they are; other values whole. */
struct str body_unquote(struct str raw);

#endif

/* worker/api/fields/params.h - the generation parameters of a request, read and checked.
 *
 * One struct for all three calls; what differs between them (the prompt, the shape of the answer)
 * is in completions.c, chat.c and generate.c. Every field is checked here, against the limits of
 * model and engine, before anything is queued; the message names the field. Unknown fields are
 * ignored, as in other engines. Known ones that would change the answer and are unsupported are
 * refused. Thread: worker loop. */
#ifndef WORKER_API_FIELDS_PARAMS_H
#define WORKER_API_FIELDS_PARAMS_H

#include "common/base/buf.h"
#include "worker/api/fields/grammar_fields.h"
#include "worker/sched/beam_group.h"
#include "worker/sched/request.h"

struct generation_config;
struct json;
struct rng;
struct stop_set;
struct tokenizer;

#define PARAMS_MAX_N 128 /* samples of one prompt */

struct call_params {
    struct request_params request; /* prompt not filled in; the arrays are in this struct */
    struct token_bias bias[REQUEST_BIAS_MAX];
    uint32_t stop_ids[REQUEST_STOP_IDS_MAX];
    uint32_t *allowed, *bad_words; /* owned, as request_params has them; NULL: none */
    struct stop_set *stops;        /* owned; NULL: none */
    struct grammar_fields grammar; /* owned; request.grammar once it is compiled */
    uint32_t n, n_shown;           /* samples of each prompt; the best of them, for the answer */
    bool is_beam;                  /* use_beam_search: n answers of one search */
    struct beam_params beams;
    bool stream, include_usage, continuous_usage;
    uint32_t prefix_messages; /* of a chat, that others share: prefix_pos; 0: it names none */
    bool include_stop;        /* stop strings stay in the text */
    bool echo, is_echo_only;  /* only: max_tokens 0; one token is computed, and not shown */
    bool skip_special;
    bool return_token_ids;
    bool tokens_as_ids;         /* logprobs name tokens as "token_id:17" */
    int32_t prompt_logprobs;    /* requested by that name, shown apart; -1: not requested */
    uint32_t max_prompt_tokens; /* a longer prompt is cut; 0: none is */
    bool keeps_beginning;       /* when it is cut, or else its end */
    bool has_max_tokens, has_seed;
};

/* What the fields are read against. */
struct params_context {
    const struct generation_config *defaults; /* what the model's makers recommend */
    const struct request_limits *limits;
    const struct tokenizer *tokenizer;
    bool tokens_as_ids; /* in logprobs, where the request is silent */
    struct rng *seeds;  /* draws the seed when none is given */
    bool computes_only; /* the call shows no token: max_tokens may be 0 */
    bool reads_answer;  /* reasoning is read from answers: its fields are not refused */
};

MUST_USE enum status call_params_parse(struct call_params *out, const struct json *body,
                                       const struct params_context *ctx, struct error *err);

/* The same from SGLang's body and its sampling_params object (NULL: all defaults). */
MUST_USE enum status call_params_parse_sglang(struct call_params *out, const struct json *body,
                                              const struct json *sampling,
                                              const struct params_context *ctx, struct error *err);
void call_params_fini(struct call_params *p);

#endif

/* worker/api/fields/params.c - one reader per group of fields. */
#include "worker/api/fields/params.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/text/json.h"
#include "worker/api/fields/token_rules.h"
#include "worker/model/config.h"
#include "worker/text/stop.h"

#define TEMPERATURE_MAX 100.0 /* beyond it everything is uniform */
#define PENALTY_MAX     100.0

static enum status get_float(const struct json *o, const char *name, double min, double max,
                             float *out, struct error *err) {
    double v = (double)*out;
    enum status st = json_get_f64(o, name, min, max, &v, NULL, err);

    if (st == ST_OK) *out = (float)v;
    return st;
}

/* top_k: 0 and -1 both mean all. */
static enum status get_top_k(const struct json *o, uint32_t *out, struct error *err) {
    int64_t k = (int64_t)*out;
    enum status st = json_get_i64(o, "top_k", -1, UINT32_MAX, &k, NULL, err);

    if (st == ST_OK) *out = k < 0 ? 0 : (uint32_t)k;
    return st;
}

static enum status get_sampling(struct call_params *p, const struct json *o,
                                const struct generation_config *defaults, struct error *err) {
    struct request_params *r = &p->request;
    enum status st;

    if (defaults->has_temperature) r->temperature = (float)defaults->temperature;
    if (defaults->has_top_p) r->top_p = (float)defaults->top_p;
    if (defaults->has_top_k) r->top_k = defaults->top_k;
    if (defaults->has_min_p) r->min_p = (float)defaults->min_p;
    if (defaults->has_repetition_penalty) {
        r->repetition_penalty = (float)defaults->repetition_penalty;
    }
    st = get_float(o, "temperature", 0, TEMPERATURE_MAX, &r->temperature, err);
    if (st == ST_OK) st = get_float(o, "top_p", DBL_MIN, 1, &r->top_p, err);
    if (st == ST_OK) st = get_float(o, "min_p", 0, 1, &r->min_p, err);
    if (st == ST_OK) st = get_top_k(o, &r->top_k, err);
    if (st == ST_OK) {
        st = get_float(o, "repetition_penalty", DBL_MIN, PENALTY_MAX, &r->repetition_penalty, err);
    }
    if (st == ST_OK) {
        st = get_float(o, "frequency_penalty", -2, 2, &r->frequency_penalty, err);
    }
    if (st == ST_OK) st = get_float(o, "presence_penalty", -2, 2, &r->presence_penalty, err);
    return st;
}

static enum status get_seed(struct call_params *p, const struct json *o, const char *name,
                            struct rng *rng, struct error *err) {
    int64_t seed;
    enum status st = json_get_i64(o, name, INT64_MIN, INT64_MAX, &seed, &p->has_seed, err);

    if (st == ST_OK) p->request.seed = p->has_seed ? (uint64_t)seed : rng_u64(rng);
    return st;
}

static enum status get_stop(struct call_params *p, const struct json *o, struct error *err) {
    const struct json *stop = json_get(o, "stop");
    struct str strings[STOP_MAX_STRINGS];
    size_t n = 0;

    if (json_is_null(stop)) return ST_OK;
    if (json_type(stop) == JSON_STRING) {
        if (json_to_str(stop, &strings[0]) == ST_OK) n = 1;
    } else if (json_type(stop) == JSON_ARRAY) {
        JSON_FOR_EACH(it, stop) {
            if (n == STOP_MAX_STRINGS) {
                return error_set_param(err, ST_INVALID, "stop",
                                       "stop has more than %u strings: send fewer",
                                       STOP_MAX_STRINGS);
            }
            if (json_to_str(it, &strings[n]) != ST_OK) {
                return error_set_param(err, ST_INVALID, "stop",
                                       "stop must be a string or an array of strings, but holds %s",
                                       json_type_name(it));
            }
            n++;
        }
    } else {
        return error_set_param(err, ST_INVALID, "stop",
                               "stop must be a string or an array of strings, not %s",
                               json_type_name(stop));
    }
    return n ? stop_set_create(&p->stops, strings, n, err) : ST_OK;
}

/* null, false or empty: requests nothing. */
static bool is_unset(const struct json *v) {
    struct str text;
    bool flag;

    switch (json_type(v)) {
    case JSON_BOOL: return json_to_bool(v, &flag) == ST_OK && !flag;
    case JSON_STRING: return json_to_str(v, &text) == ST_OK && text.len == 0;
    case JSON_NUMBER: return false;
    default: return json_count(v) == 0;
    }
}

/* The older form of tool_choice. Nothing forces the model to call a function. */
static enum status check_function_call(const struct json *o, struct error *err) {
    const struct json *choice = json_get(o, "function_call");
    struct str name = STR("an object");

    if (json_is_null(choice)) return ST_OK;
    if (json_to_str(choice, &name) == ST_OK &&
        (str_eq(name, STR("auto")) || str_eq(name, STR("none")))) {
        return ST_OK;
    }
    return error_set_param(err, ST_INVALID, "function_call",
                           "unsupported function_call %.*s: supported are \"auto\" and \"none\"",
                           (int)MIN(name.len, 40), name.ptr);
}

/* Fields that would change the answer and are unsupported. */
static enum status refuse_unsupported(const struct json *o, bool reads_answer, struct error *err) {
    static const char *const fields[] = {
        "prompt_embeds",        "input_embeds",      "suffix",
        "image_data",           "audio_data",        "video_data",
        "logprob_token_ids",    "token_ids_logprob", "return_hidden_states",
        "repetition_detection", "functions",         "audio",
        "kv_transfer_params",   "lora_request",      "thinking_token_budget"};

    for (size_t i = 0; i < ARRAY_LEN(fields) - reads_answer; i++) { /* the last: of reasoning */
        if (is_unset(json_get(o, fields[i]))) continue;
        return error_set_param(err, ST_INVALID, fields[i],
                               "%s is not supported by this worker: leave it out", fields[i]);
    }
    return check_function_call(o, err);
}

/* `name`: "cache_salt", or what SGLang calls it. */
static enum status get_salt(struct call_params *p, const struct json *o, const char *name,
                            struct error *err) {
    struct str salt;
    bool is_present;
    enum status st = json_get_str(o, name, REQUEST_SALT_MAX, &salt, &is_present, err);

    if (st != ST_OK || !is_present) return st;
    if (salt.len == 0) {
        return error_set_param(
            err, ST_INVALID, name,
            "%s must be a non-empty string: leave it out to share the cache with all clients",
            name);
    }
    if (p->request.cache_salt) {
        return error_set_param(err, ST_INVALID, name, "send either cache_salt or %s, not both",
                               name);
    }
    p->request.cache_salt = salt.ptr; /* lives with the body until the request was created */
    p->request.cache_salt_len = salt.len;
    return ST_OK;
}

static enum status get_adapter(const struct json *o, struct error *err) {
    const char *const names[] = {"lora_path", "lora_name"};

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (json_is_null(json_get(o, names[i]))) continue;
        return error_set_param(
            err, ST_INVALID, names[i],
            "%s is not supported: this worker serves no adapters; merge the adapter into the model",
            names[i]);
    }
    return ST_OK;
}

static enum status get_stream(struct call_params *p, const struct json *o, struct error *err) {
    const struct json *options;
    enum status st = json_get_bool(o, "stream", &p->stream, NULL, err);

    if (st == ST_OK) st = json_get_object(o, "stream_options", &options, err);
    if (st != ST_OK || !options) return st;
    if (!p->stream) {
        return error_set_param(err, ST_INVALID, "stream_options",
                               "stream_options requires \"stream\": true");
    }
    st = json_get_bool(options, "include_usage", &p->include_usage, NULL, err);
    if (st == ST_OK) {
        st = json_get_bool(options, "continuous_usage_stats", &p->continuous_usage, NULL, err);
    }
    p->continuous_usage = p->continuous_usage && p->include_usage;
    return error_within(err, st, "stream_options");
}

static enum status get_common(struct call_params *p, const struct json *o,
                              const struct params_context *ctx, struct error *err) {
    enum status st = refuse_unsupported(o, ctx->reads_answer, err);

    if (st == ST_OK) st = grammar_fields_parse(&p->grammar, o, err);
    if (st == ST_OK) st = get_sampling(p, o, ctx->defaults, err);
    if (st == ST_OK) st = get_stop(p, o, err);
    if (st == ST_OK) st = token_rules_parse(p, o, ctx->limits->vocab, ctx->tokenizer, err);
    if (st == ST_OK) st = json_get_u32(o, "n", 1, PARAMS_MAX_N, &p->n, NULL, err);
    if (st == ST_OK) {
        st = json_get_bool(o, "ignore_eos", &p->request.ignore_eos, NULL, err);
    }
    if (st == ST_OK) {
        st = json_get_bool(o, "skip_special_tokens", &p->skip_special, NULL, err);
    }
    return st;
}

static void params_init(struct call_params *p) {
    memset(p, 0, sizeof(*p));
    p->request = request_params_default;
    p->n = 1;
    p->skip_special = true;
    p->prompt_logprobs = -1;
}

/* How much may be generated: max_tokens, or max_completion_tokens, which wins. 0 needs an echo, or
 * a call that shows no token. */
static enum status get_lengths(struct call_params *p, const struct json *o, bool computes_only,
                               struct error *err) {
    struct request_params *r = &p->request;
    uint32_t least;
    bool has_newer = false;
    enum status st = json_get_bool(o, "echo", &p->echo, NULL, err);

    least = p->echo || computes_only ? 0 : 1;
    if (st == ST_OK) {
        st = json_get_u32(o, "max_tokens", least, UINT32_MAX, &r->max_tokens, &p->has_max_tokens,
                          err);
    }
    if (st == ST_OK) {
        st = json_get_u32(o, "max_completion_tokens", least, UINT32_MAX, &r->max_tokens, &has_newer,
                          err);
    }
    if (st == ST_OK) st = json_get_u32(o, "min_tokens", 0, UINT32_MAX, &r->min_tokens, NULL, err);
    if (st != ST_OK) return st;
    p->has_max_tokens = p->has_max_tokens || has_newer;
    if (p->has_max_tokens && r->min_tokens > r->max_tokens) {
        return error_set_param(err, ST_INVALID, "min_tokens",
                               "min_tokens %u is above max_tokens %u: lower min_tokens",
                               r->min_tokens, r->max_tokens);
    }
    p->is_echo_only = p->has_max_tokens && r->max_tokens == 0;
    if (p->is_echo_only) r->max_tokens = 1;
    return ST_OK;
}

static enum status refuse_prefix_pos(struct error *err) {
    return error_set_param(err, ST_INVALID, "prefix_pos",
                           "prefix_pos must be a number of tokens of the prompt, at least 1, or "
                           "{\"message\": N} with the index of a chat's message, or an array of 1 "
                           "to %d of these",
                           KV_RETAIN_MAX);
}

/* A number of tokens, or {"message": N}: the messages up to that one. */
static enum status get_position(struct call_params *p, const struct json *v, struct error *err) {
    bool is_message = json_type(v) == JSON_OBJECT && json_count(v) == 1;
    uint64_t pos;

    if (json_to_u64(is_message ? json_get(v, "message") : v, &pos) != ST_OK)
        return refuse_prefix_pos(err);
    pos += is_message;
    if (pos < 1 || pos > UINT32_MAX) return refuse_prefix_pos(err);
    if (is_message) {
        p->prefix_messages = MAX(p->prefix_messages, (uint32_t)pos);
    } else {
        p->request.prefix_tokens = MAX(p->request.prefix_tokens, (uint32_t)pos);
    }
    return ST_OK;
}

/* Of several positions the last counts: the prefix up to it contains the others. */
static enum status get_prefix_pos(struct call_params *p, const struct json *o, struct error *err) {
    const struct json *v = json_get(o, "prefix_pos");
    size_t n = json_count(v);
    enum status st = ST_OK;

    if (json_is_null(v)) return ST_OK;
    if (json_type(v) != JSON_ARRAY) return get_position(p, v, err);
    if (n < 1 || n > KV_RETAIN_MAX) return refuse_prefix_pos(err);
    for (const struct json *it = json_first(v); it && st == ST_OK; it = json_next(it))
        st = get_position(p, it, err);
    return st;
}

/* n of the best_of samples are shown. */
static enum status get_best_of(struct call_params *p, const struct json *o, struct error *err) {
    uint32_t best_of = p->n;
    enum status st = json_get_u32(o, "best_of", 1, PARAMS_MAX_N, &best_of, NULL, err);

    if (st != ST_OK) return st;
    if (best_of < p->n) {
        return error_set_param(err, ST_INVALID, "best_of",
                               "best_of %u is below n %u: raise best_of to at least n", best_of,
                               p->n);
    }
    if (best_of > p->n && p->stream) {
        return error_set_param(
            err, ST_INVALID, "best_of",
            "best_of %u above n %u cannot be streamed: leave out \"stream\", or set best_of to n",
            best_of, p->n);
    }
    p->beams.width = best_of;
    p->beams.n = p->n;
    if (!p->is_beam) p->n = best_of;
    return ST_OK;
}

/* true, false, or "never": continue until no live beam can win. */
static enum status get_early_stopping(struct call_params *p, const struct json *o,
                                      struct error *err) {
    const struct json *v = json_get(o, "early_stopping");
    struct str text;
    bool is_early = false;

    if (json_to_str(v, &text) == ST_OK && str_eq(text, STR("never"))) {
        p->beams.stopping = BEAM_STOP_NEVER;
    } else if (json_is_null(v) || json_to_bool(v, &is_early) == ST_OK) {
        p->beams.stopping = is_early ? BEAM_STOP_EARLY : BEAM_STOP_HOPELESS;
    } else {
        return error_set_param(err, ST_INVALID, "early_stopping",
                               "early_stopping must be true, false or \"never\", not %s",
                               json_type_name(v));
    }
    return ST_OK;
}

/* The model's recommended sampling does not apply to a beam search; parameters of the client must
 * not be ignored. */
static enum status check_unsampled(struct call_params *p, const struct json *o, struct error *err) {
    const struct request_params neutral = request_params_default;
    struct request_params *r = &p->request;
    const struct {
        const char *name;
        float *value, neutral;
    } fields[] = {{"temperature", &r->temperature, 1},
                  {"top_p", &r->top_p, neutral.top_p},
                  {"min_p", &r->min_p, neutral.min_p},
                  {"repetition_penalty", &r->repetition_penalty, neutral.repetition_penalty}};

    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        bool is_greedy = i == 0 && *fields[i].value == 0;

        if (json_is_null(json_get(o, fields[i].name))) *fields[i].value = fields[i].neutral;
        if (*fields[i].value == fields[i].neutral || is_greedy) continue;
        return error_set_param(err, ST_INVALID, fields[i].name,
                               "%s %g has no effect on a beam search: leave it out", fields[i].name,
                               (double)*fields[i].value);
    }
    if (json_is_null(json_get(o, "top_k"))) r->top_k = 0;
    if (r->top_k == 0) return ST_OK;
    return error_set_param(err, ST_INVALID, "top_k",
                           "top_k %u has no effect on a beam search: leave it out", r->top_k);
}

static enum status get_beam(struct call_params *p, const struct json *o, struct error *err) {
    enum status st = json_get_bool(o, "use_beam_search", &p->is_beam, NULL, err);

    if (st != ST_OK || !p->is_beam) return st;
    if (p->stream) {
        return error_set_param(err, ST_INVALID, "stream",
                               "a beam search cannot be streamed: leave out \"stream\"");
    }
    if (p->stops) {
        return error_set_param(
            err, ST_INVALID, "stop",
            "stop strings are not supported in a beam search: use stop_token_ids");
    }
    if (p->grammar.field) {
        return error_set_param(err, ST_INVALID, p->grammar.field,
                               "%s has no effect on a beam search, which ranks by raw logprobs: "
                               "leave it out",
                               p->grammar.field);
    }
    p->beams.length_penalty = 1;
    st = get_float(o, "length_penalty", -100, 100, &p->beams.length_penalty, err);
    if (st == ST_OK) st = get_early_stopping(p, o, err);
    return st == ST_OK ? check_unsampled(p, o, err) : st;
}

/* The side that a prompt is cut on. */
static enum status get_truncation_side(struct call_params *p, const struct json *o,
                                       struct error *err) {
    struct str side;
    bool is_present;
    enum status st = json_get_str(o, "truncation_side", 64, &side, &is_present, err);

    if (st != ST_OK || !is_present) return st;
    p->keeps_beginning = str_eq(side, STR("right"));
    if (p->keeps_beginning || str_eq(side, STR("left"))) return ST_OK;
    return error_set_param(err, ST_INVALID, "truncation_side",
                           "unsupported truncation_side \"%.*s\": supported are \"left\", which "
                           "keeps the end of a long prompt, and \"right\"",
                           STR_ARG(side));
}

/* The prompt's parameters: its logprobs, and truncation. */
static enum status get_prompt_fields(struct call_params *p, const struct json *o,
                                     const struct request_limits *limits, struct error *err) {
    int64_t n = 0, keep = 0;
    bool has_n, has_keep;
    enum status st = json_get_i64(o, "prompt_logprobs", -1, limits->max_logprobs, &n, &has_n, err);

    if (st == ST_OK && has_n && n < 0) {
        st = error_set_param(err, ST_INVALID, "prompt_logprobs",
                             "prompt_logprobs -1 means the whole vocabulary: send at most %u",
                             limits->max_logprobs);
    }
    if (st == ST_OK && has_n && p->stream) {
        st = error_set_param(err, ST_INVALID, "prompt_logprobs",
                             "prompt_logprobs cannot be streamed: leave out \"stream\"");
    }
    if (st == ST_OK) {
        st = json_get_i64(o, "truncate_prompt_tokens", -1, UINT32_MAX, &keep, &has_keep, err);
    }
    if (st == ST_OK) st = get_truncation_side(p, o, err);
    if (st != ST_OK) return st;
    if (has_n) p->prompt_logprobs = p->request.prompt_logprobs = (int32_t)n;
    if (has_keep) p->max_prompt_tokens = keep < 0 ? limits->max_model_len - 1 : (uint32_t)keep;
    if (has_keep && p->max_prompt_tokens == 0) {
        return error_set_param(err, ST_INVALID, "truncate_prompt_tokens",
                               "truncate_prompt_tokens 0 leaves no prompt: send at least 1, or -1 "
                               "for the model's maximum");
    }
    return ST_OK;
}

enum status call_params_parse(struct call_params *p, const struct json *o,
                              const struct params_context *ctx, struct error *err) {
    int64_t priority = 0;
    enum status st;

    params_init(p);
    st = get_common(p, o, ctx, err);
    p->n_shown = p->n;
    if (st == ST_OK) st = get_stream(p, o, err);
    if (st == ST_OK) st = get_beam(p, o, err);
    if (st == ST_OK) st = get_best_of(p, o, err);
    if (st == ST_OK) st = get_salt(p, o, "cache_salt", err);
    if (st == ST_OK) st = get_adapter(o, err);
    if (st == ST_OK) st = get_seed(p, o, "seed", ctx->seeds, err);
    if (st == ST_OK) st = get_lengths(p, o, ctx->computes_only, err);
    if (st == ST_OK) st = get_prefix_pos(p, o, err);
    if (st == ST_OK) st = json_get_i64(o, "priority", INT32_MIN, INT32_MAX, &priority, NULL, err);
    if (st == ST_OK) {
        st = json_get_bool(o, "include_stop_str_in_output", &p->include_stop, NULL, err);
    }
    if (st == ST_OK) st = get_prompt_fields(p, o, ctx->limits, err);
    if (st == ST_OK) st = json_get_bool(o, "return_token_ids", &p->return_token_ids, NULL, err);
    p->tokens_as_ids = ctx->tokens_as_ids;
    if (st == ST_OK) {
        st = json_get_bool(o, "return_tokens_as_token_ids", &p->tokens_as_ids, NULL, err);
    }
    if (st == ST_OK) {
        st = json_get_bool(o, "cache_explain", &p->request.explains_cache, NULL, err);
    }
    p->request.priority = (int32_t)priority;
    if (st != ST_OK) call_params_fini(p);
    return st;
}

enum status call_params_parse_sglang(struct call_params *p, const struct json *body,
                                     const struct json *sampling, const struct params_context *ctx,
                                     struct error *err) {
    int64_t priority = 0;
    enum status st;

    params_init(p);
    p->request.max_tokens = 128;
    st = refuse_unsupported(body, false, err);
    if (st == ST_OK)
        st = grammar_fields_parse(&p->grammar, body, err); /* there too: never ignored */
    if (st == ST_OK) st = get_common(p, sampling, ctx, err);
    p->n_shown = p->n;
    if (st == ST_OK) st = json_get_bool(body, "stream", &p->stream, NULL, err);
    if (st == ST_OK) st = get_salt(p, body, "cache_salt", err);
    if (st == ST_OK) st = get_salt(p, body, "extra_key", err);
    if (st == ST_OK) st = get_adapter(body, err);
    if (st == ST_OK) st = get_seed(p, sampling, "sampling_seed", ctx->seeds, err);
    if (st == ST_OK) {
        st = json_get_i64(body, "priority", INT32_MIN, INT32_MAX, &priority, NULL, err);
    }
    if (st == ST_OK) {
        st = json_get_u32(sampling, "max_new_tokens", 1, UINT32_MAX, &p->request.max_tokens,
                          &p->has_max_tokens, err);
    }
    if (st == ST_OK) {
        st = json_get_u32(sampling, "min_new_tokens", 0, UINT32_MAX, &p->request.min_tokens, NULL,
                          err);
    }
    if (st == ST_OK) {
        st = json_get_bool(sampling, "no_stop_trim", &p->include_stop, NULL, err);
    }
    p->request.priority = (int32_t)priority;
    if (st != ST_OK) call_params_fini(p);
    return st;
}

void call_params_fini(struct call_params *p) {
    stop_set_destroy(p->stops);
    p->stops = NULL;
    grammar_fields_fini(&p->grammar);
    mem_free(p->allowed);
    mem_free(p->bad_words);
    p->allowed = p->bad_words = NULL;
}

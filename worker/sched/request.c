/* worker/sched/request.c - a request is one allocation: the struct, then its arrays, in the order
 * of their alignment. What is large and mostly unused (the room for output up to the model's
 * length) costs address space, not memory: untouched pages are never there. */
#include "worker/sched/request.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "worker/sched/beam_group.h"

const struct request_params request_params_default = {
    .max_tokens = 16,
    .temperature = 1.0f,
    .top_p = 1.0f,
    .repetition_penalty = 1.0f,
    .n_logprobs = -1,
    .prompt_logprobs = -1,
};

static const char *const finish_names[] = {
    [FINISH_NONE] = "none",   [FINISH_STOP] = "stop",   [FINISH_LENGTH] = "length",
    [FINISH_ABORT] = "abort", [FINISH_ERROR] = "error",
};

const char *finish_reason_name(enum finish_reason reason) {
    return finish_names[reason];
}

/* --- checks ----------------------------------------------------------------------------------- */

static enum status check_range(const char *name, double value, double min, double max,
                               struct error *err) {
    if (value >= min && value <= max) return ST_OK; /* NaN is not */
    return error_set_param(err, ST_INVALID, name, "%s is %g: use %g to %g", name, value, min, max);
}

static enum status check_token(const char *name, uint32_t token, uint32_t vocab,
                               struct error *err) {
    if (token < vocab) return ST_OK;
    return error_set_param(err, ST_INVALID, name,
                           "%s holds token id %u, but the model's largest is %u", name, token,
                           vocab - 1);
}

static enum status check_length(const struct request_params *p, const struct request_limits *l,
                                struct error *err) {
    uint64_t total = (uint64_t)p->n_prompt + MAX(p->max_tokens, 1u);
    uint32_t room;

    if (p->n_prompt == 0)
        return error_set_param(err, ST_INVALID, "prompt",
                               "the prompt has no tokens: send at least one");
    if (total > l->max_model_len) {
        if (p->n_prompt >= l->max_model_len)
            return error_set_param(err, ST_INVALID, "prompt",
                                   "the prompt has %u tokens, but the model's maximum length is %u "
                                   "tokens, output included: shorten the prompt",
                                   p->n_prompt, l->max_model_len);
        return error_set_param(
            err, ST_INVALID, "max_tokens",
            "the prompt has %u tokens and max_tokens is %u, together %llu, but the model's maximum "
            "length is %u: shorten the prompt or lower max_tokens",
            p->n_prompt, p->max_tokens, (unsigned long long)total, l->max_model_len);
    }
    room = p->max_tokens ? p->max_tokens : l->max_model_len - p->n_prompt;
    if (p->min_tokens > room)
        return error_set_param(
            err, ST_INVALID, "min_tokens",
            "min_tokens is %u, but the output may have at most %u tokens: lower min_tokens",
            p->min_tokens, room);
    return ST_OK;
}

static enum status check_logprobs(const char *name, int32_t n, const struct request_limits *l,
                                  struct error *err) {
    if (n <= (int32_t)l->max_logprobs && n >= -1) return ST_OK;
    return error_set_param(err, ST_INVALID, name, "%s is %d: use at most %u", name, n,
                           l->max_logprobs);
}

static enum status check_sampling(const struct request_params *p, const struct request_limits *l,
                                  struct error *err) {
    enum status st;

    if ((st = check_range("temperature", p->temperature, 0, 100, err)) != ST_OK) return st;
    if (!(p->top_p > 0 && p->top_p <= 1))
        return error_set_param(err, ST_INVALID, "top_p",
                               "top_p is %g: use a number above 0 and at most 1", p->top_p);
    if ((st = check_range("min_p", p->min_p, 0, 1, err)) != ST_OK) return st;
    if (!(p->repetition_penalty > 0 && p->repetition_penalty <= 100))
        return error_set_param(err, ST_INVALID, "repetition_penalty",
                               "repetition_penalty is %g: use a number above 0 and at most 100",
                               p->repetition_penalty);
    if ((st = check_range("frequency_penalty", p->frequency_penalty, -2, 2, err)) != ST_OK)
        return st;
    if ((st = check_range("presence_penalty", p->presence_penalty, -2, 2, err)) != ST_OK) return st;
    if ((st = check_logprobs("logprobs", p->n_logprobs, l, err)) != ST_OK) return st;
    return check_logprobs("prompt_logprobs", p->prompt_logprobs, l, err);
}

static enum status check_bad_words(const struct request_params *p, const struct request_limits *l,
                                   struct error *err) {
    uint32_t at = 0;
    enum status st;

    if (p->n_bad_words > REQUEST_BAD_WORDS_MAX)
        return error_set_param(err, ST_INVALID, "bad_words",
                               "bad_words have %u tokens, their lengths included: send at most %u",
                               p->n_bad_words, REQUEST_BAD_WORDS_MAX);
    while (at < p->n_bad_words) {
        uint32_t n = p->bad_words[at++];

        if (n == 0 || n > p->n_bad_words - at)
            return error_set_param(
                err, ST_INVALID, "bad_words",
                "bad_words declare a run of %u tokens where %u are left: send complete runs", n,
                p->n_bad_words - at);
        for (; n > 0; n--, at++)
            if ((st = check_token("bad_words", p->bad_words[at], l->vocab, err)) != ST_OK)
                return st;
    }
    return ST_OK;
}

static enum status check_lists(const struct request_params *p, const struct request_limits *l,
                               struct error *err) {
    enum status st;

    if (p->n_stop_ids > REQUEST_STOP_IDS_MAX)
        return error_set_param(err, ST_INVALID, "stop_token_ids",
                               "stop_token_ids has %u entries: send at most %u", p->n_stop_ids,
                               REQUEST_STOP_IDS_MAX);
    if (p->n_bias > REQUEST_BIAS_MAX)
        return error_set_param(err, ST_INVALID, "logit_bias",
                               "logit_bias has %u entries: send at most %u", p->n_bias,
                               REQUEST_BIAS_MAX);
    if (p->cache_salt_len > REQUEST_SALT_MAX)
        return error_set_param(err, ST_INVALID, "cache_salt",
                               "cache_salt has %zu bytes: send at most %u", p->cache_salt_len,
                               REQUEST_SALT_MAX);
    for (uint32_t i = 0; i < p->n_prompt; i++)
        if ((st = check_token("prompt", p->prompt[i], l->vocab, err)) != ST_OK) return st;
    for (uint32_t i = 0; i < p->n_stop_ids; i++)
        if ((st = check_token("stop_token_ids", p->stop_ids[i], l->vocab, err)) != ST_OK) return st;
    for (uint32_t i = 0; i < p->n_bias; i++) {
        if ((st = check_token("logit_bias", p->bias[i].token, l->vocab, err)) != ST_OK) return st;
        if ((st = check_range("logit_bias", p->bias[i].bias, -100, 100, err)) != ST_OK) return st;
    }
    return ST_OK;
}

static enum status check(const struct request_params *p, const struct request_limits *l,
                         struct error *err) {
    enum status st;

    if ((st = check_length(p, l, err)) != ST_OK) return st;
    if ((st = check_sampling(p, l, err)) != ST_OK) return st;
    if ((st = check_bad_words(p, l, err)) != ST_OK) return st;
    return check_lists(p, l, err);
}

/* --- creation --------------------------------------------------------------------------------- */

/* Lays out arrays one after the other. The first pass, without memory, only measures. */
struct layout {
    char *base; /* NULL while measuring */
    size_t used;
};

static void *layout_take(struct layout *l, size_t n, size_t size) {
    size_t at = ALIGN_UP(l->used, sizeof(uint64_t));

    l->used = at + n * size; /* n and size are bounded by the limits: no overflow */
    return l->base && n > 0 ? l->base + at : NULL;
}

static void lay_out(struct request *r, struct layout *l, const struct request_params *p,
                    uint32_t n_max, uint32_t vocab) {
    uint32_t n_out = n_max - p->n_prompt;
    uint32_t n_top = p->n_logprobs > 0 ? (uint32_t)p->n_logprobs : 0;
    uint32_t n_scored = p->prompt_logprobs >= 0 ? p->n_prompt : 0;
    uint32_t n_prompt_top = p->prompt_logprobs > 0 ? (uint32_t)p->prompt_logprobs : 0;

    if (p->n_logprobs < 0) n_out = 0;
    layout_take(l, 1, sizeof(*r));
    r->params.bias = layout_take(l, p->n_bias, sizeof(*p->bias));
    r->params.stop_ids = layout_take(l, p->n_stop_ids, sizeof(*p->stop_ids));
    r->params.allowed = layout_take(l, p->allowed ? CEIL_DIV(vocab, 32) : 0, sizeof(*p->allowed));
    r->params.bad_words = layout_take(l, p->n_bad_words, sizeof(*p->bad_words));
    r->params.cache_salt = layout_take(l, p->cache_salt_len, 1);
    r->params.lora_name = layout_take(l, p->lora_name ? strlen(p->lora_name) + 1 : 0, 1);
    r->prompt_logprob = layout_take(l, n_scored, sizeof(float));
    r->prompt_rank = layout_take(l, n_scored, sizeof(uint32_t));
    r->prompt_top_token = layout_take(l, (size_t)n_scored * n_prompt_top, sizeof(int32_t));
    r->prompt_top_logprob = layout_take(l, (size_t)n_scored * n_prompt_top, sizeof(float));
    r->tokens = layout_take(l, n_max, sizeof(uint32_t));
    r->logprob = layout_take(l, n_out, sizeof(float));
    r->rank = layout_take(l, n_out, sizeof(uint32_t));
    r->top_token = layout_take(l, (size_t)n_out * n_top, sizeof(int32_t));
    r->top_logprob = layout_take(l, (size_t)n_out * n_top, sizeof(float));
}

/* memcpy that leaves the constness of the destination to us, and takes n = 0. */
static void fill(const void *dst, const void *src, size_t n_bytes) {
    if (n_bytes > 0) memcpy((void *)(uintptr_t)dst, src, n_bytes);
}

static void copy_params(struct request *r, const struct request_params *p, uint32_t vocab) {
    fill(r->tokens, p->prompt, p->n_prompt * sizeof(*p->prompt));
    fill(r->params.bias, p->bias, p->n_bias * sizeof(*p->bias));
    fill(r->params.stop_ids, p->stop_ids, p->n_stop_ids * sizeof(*p->stop_ids));
    if (p->allowed) fill(r->params.allowed, p->allowed, CEIL_DIV(vocab, 32) * sizeof(*p->allowed));
    fill(r->params.bad_words, p->bad_words, p->n_bad_words * sizeof(*p->bad_words));
    fill(r->params.cache_salt, p->cache_salt, p->cache_salt_len);
    if (p->lora_name) fill(r->params.lora_name, p->lora_name, strlen(p->lora_name) + 1);
    if (p->grammar) r->params.grammar = grammar_ref(p->grammar);
    r->params.prompt = r->tokens;
    r->extras.cache_salt = (struct str){r->params.cache_salt, p->cache_salt_len};
    r->extras.lora = r->params.lora_name ? str_of(r->params.lora_name) : STR_NULL;
}

enum status request_create(struct request **out, const struct request_params *params,
                           const struct request_limits *limits, struct error *err) {
    enum status st = check(params, limits, err);
    struct layout measure = {0}, place = {0};
    struct request probe, *r;
    uint32_t n_max;

    if (st != ST_OK) return st;
    n_max = params->max_tokens ? params->n_prompt + params->max_tokens : limits->max_model_len;
    probe.params = *params;
    lay_out(&probe, &measure, params, n_max, limits->vocab);
    r = mem_try(measure.used);
    if (!r)
        return error_set(err, ST_NOMEM,
                         "out of memory for a request of up to %u tokens (%zu bytes): retry later",
                         n_max, measure.used);
    memset(r, 0, sizeof(*r));
    r->params = *params;
    place.base = (char *)r;
    lay_out(r, &place, params, n_max, limits->vocab);
    copy_params(r, params, limits->vocab);
    r->n_prompt = r->n_tokens = params->n_prompt;
    r->n_max = n_max;
    r->params.max_tokens = n_max - r->n_prompt;
    r->row = REQUEST_NO_ROW;
    r->beam = REQUEST_NO_ROW;
    r->stop_token = REQUEST_NO_TOKEN;
    thinking_init(&r->thinking, &params->thinking);
    atomic_init(&r->refs, 1);
    st = kv_seq_init(&r->kv, limits->kv, n_max,
                     block_extras_is_empty(&r->extras) ? NULL : &r->extras, request_is_scored(r),
                     err);
    if (st != ST_OK) {
        request_unref(r);
        return st;
    }
    if (params->explains_cache) r->kv.explanation = &r->explanation;
    r->kv.retain = r->params.retain;
    r->kv.n_retain = params->n_retain;
    r->kv.tenant = params->tenant;
    r->kv.prefix_tokens = params->prefix_tokens;
    r->kv.has_used_holds = params->is_for_cache;
    *out = r;
    return ST_OK;
}

struct request *request_ref(struct request *r) {
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    return r;
}

void request_unref(struct request *r) {
    if (!r || atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1) return;
    assert(r->state == REQUEST_NEW || r->state == REQUEST_DONE);
    request_drop_parent(r);
    grammar_unref(r->params.grammar);
    kv_seq_fini(&r->kv);
    if (r->group && !request_is_beam(r)) beam_group_unref(r->group);
    mem_free(r);
}

void request_set_parent(struct request *r, struct request *parent) {
    assert(r->state == REQUEST_NEW && !r->fork_of && r->n_prompt == parent->n_prompt);
    r->is_child = true;
    if (request_is_scored(r) || r->n_prompt < 2) return;
    r->fork_of = request_ref(parent);
    r->n_fork = r->n_prompt - 1;
}

/* --- engine side ------------------------------------------------------------------------------ */

void request_append(struct request *r, uint32_t token) {
    assert(r->n_tokens < r->n_max);
    r->tokens[r->n_tokens++] = token;
}

void request_copy_output(struct request *dst, const struct request *src) {
    size_t n = request_n_output(src), n_top = (size_t)MAX(src->params.n_logprobs, 0);

    dst->n_tokens = src->n_tokens;
    memcpy(dst->tokens + dst->n_prompt, src->tokens + src->n_prompt, n * sizeof(*dst->tokens));
    if (src->params.n_logprobs < 0) return;
    memcpy(dst->logprob, src->logprob, n * sizeof(*dst->logprob));
    memcpy(dst->rank, src->rank, n * sizeof(*dst->rank));
    if (n_top == 0) return;
    memcpy(dst->top_token, src->top_token, n * n_top * sizeof(*dst->top_token));
    memcpy(dst->top_logprob, src->top_logprob, n * n_top * sizeof(*dst->top_logprob));
}

void request_drop_parent(struct request *r) {
    request_unref(r->fork_of);
    r->fork_of = NULL;
}

static bool holds(const uint32_t *ids, uint32_t n, uint32_t token) {
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == token) return true;
    return false;
}

bool request_is_end(const struct request_params *p, const uint32_t *eos_ids, uint32_t n_eos,
                    uint32_t token) {
    return (!p->ignore_eos && holds(eos_ids, n_eos, token)) ||
           holds(p->stop_ids, p->n_stop_ids, token);
}

bool request_check_stop(struct request *r, const uint32_t *eos_ids, uint32_t n_eos) {
    const struct request_params *p = &r->params;
    uint32_t token = r->tokens[r->n_tokens - 1];

    if (request_n_output(r) < p->min_tokens) return false;
    if (!p->ignore_eos && holds(eos_ids, n_eos, token)) {
        r->finish = FINISH_STOP;
    } else if (holds(p->stop_ids, p->n_stop_ids, token)) {
        r->finish = FINISH_STOP;
        r->stop_token = token;
    } else if (r->n_tokens >= r->n_max) {
        r->finish = FINISH_LENGTH;
    }
    return r->finish != FINISH_NONE;
}

void request_publish(struct request *r) {
    atomic_store_explicit(&r->published, request_n_output(r) * 2 + (r->finish != FINISH_NONE),
                          memory_order_release);
}

/* --- creator's side --------------------------------------------------------------------------- */

bool request_take_progress(struct request *r, struct request_progress *out) {
    uint32_t published = atomic_load_explicit(&r->published, memory_order_acquire);

    *out = (struct request_progress){.first = r->n_read, .n = published / 2 - r->n_read};
    out->is_first = out->first == 0 && out->n > 0;
    out->is_finished = (published & 1) && !r->is_end_read;
    r->n_read = published / 2;
    r->is_end_read |= out->is_finished;
    return out->n > 0 || out->is_finished;
}

bool request_next_banned(const struct request *r, uint32_t *at, uint32_t *token) {
    const struct request_params *p = &r->params;
    uint32_t n_output = request_n_output(r);

    while (*at < p->n_bad_words) {
        const uint32_t *run = p->bad_words + *at + 1;
        uint32_t n_before = p->bad_words[*at] - 1;

        *at += n_before + 2;
        *token = run[n_before];
        if (n_before <= n_output &&
            memcmp(r->tokens + r->n_tokens - n_before, run, n_before * sizeof(*run)) == 0)
            return true;
    }
    return false;
}

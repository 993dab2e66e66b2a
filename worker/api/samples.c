/* worker/api/samples.c - see samples.h. */
#include "worker/api/samples.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/sched/beam_group.h"

/* --- to the engine ---------------------------------------------------------------------------- */

/* Clients find "maximum context length is" in the sentences and shorten the conversation by
 * themselves. */
static enum status check_length(const struct call *c, uint32_t n_prompt, uint32_t *max_tokens,
                                struct error *err) {
    uint32_t limit = engine_info(c->api->engine)->max_model_len;

    if (n_prompt == 0) {
        return error_set_param(err, ST_INVALID, c->shape->prompt_field,
                               "the prompt has no tokens: send at least one");
    }
    if (n_prompt >= limit) {
        return error_set_param(err, ST_INVALID, c->shape->prompt_field,
                               "this model's maximum context length is %u tokens, output included, "
                               "but the prompt has %u tokens: shorten the prompt",
                               limit, n_prompt);
    }
    if (c->params.has_max_tokens && *max_tokens > limit - n_prompt) {
        return error_set_param(
            err, ST_INVALID, "max_tokens",
            "this model's maximum context length is %u tokens, but max_tokens %u and the "
            "prompt's %u tokens are %llu together: ask for at most %u",
            limit, *max_tokens, n_prompt, (unsigned long long)*max_tokens + n_prompt,
            limit - n_prompt);
    }
    *max_tokens = MIN(*max_tokens, limit - n_prompt);
    return ST_OK;
}

/* What the requests of one prompt have in common. */
static enum status prompt_params(const struct call *c, const struct token_list *prompt,
                                 struct request_params *out, struct error *err) {
    *out = c->params.request;
    out->prompt = prompt->ids;
    out->n_prompt = (uint32_t)prompt->n;
    if (c->params.n_shown < c->params.n) out->n_logprobs = MAX(out->n_logprobs, 0);
    return check_length(c, out->n_prompt, &out->max_tokens, err);
}

static void choice_init(struct call *c, struct choice *ch, uint32_t index) {
    ch->call = c;
    ch->index = ch->shown = index;
    detokenizer_init_after(&ch->detokenizer, c->api->tokenizer, c->params.skip_special);
    stop_matcher_init(&ch->stop, c->params.stops, c->params.include_stop);
    buf_init(&ch->text, CALL_OUT_LIMIT);
    buf_init(&ch->delta, CALL_OUT_LIMIT);
    answer_init(&ch->answer, CALL_OUT_LIMIT);
    if (c->shape->reads_answer) ch->reader = reader_create(&c->output, &ch->answer);
    ch->is_engine_done = true; /* it has not got it yet */
}

static enum status submit(struct call *c, struct choice *ch, struct error *err) {
    enum status st;

    ch->request->owner = ch;
    ch->request->arrival_us = c->arrival_us;
    st = engine_submit(c->api->engine, ch->request, err);
    ch->is_engine_done = st != ST_OK;
    return st;
}

/* Sample number k of a prompt; the first one is the parent of the others. */
static enum status start_sample(struct call *c, struct choice *first, uint32_t k,
                                const struct request_params *common, struct error *err) {
    struct choice *ch = &first[k];
    struct request_params params = *common;
    /* Equal seed, equal answer, alone or in a list of prompts; without one all samples differ. */
    uint32_t sample = c->params.has_seed ? k : ch->index;
    enum status st;

    if (sample > 0) params.seed = rng_at(params.seed, sample);
    if (k > 0) params.prompt_logprobs = -1; /* shown from the first */
    st = request_create(&ch->request, &params, &engine_info(c->api->engine)->limits, err);
    if (st != ST_OK) return st;
    if (k > 0) request_set_parent(ch->request, first->request);
    if (!c->is_dry_run) return submit(c, ch, err);
    ch->is_engine_done = true; /* it never has it */
    ch->request->owner = ch;
    engine_explain(c->api->engine, ch->request);
    return ST_OK;
}

static enum status start_search(struct call *c, struct choice *first,
                                const struct request_params *params, struct error *err) {
    struct request *answers[PARAMS_MAX_N];
    enum status st;

    st = beam_group_create(answers, params, &c->params.beams, &engine_info(c->api->engine)->limits,
                           err);
    for (uint32_t k = 0; k < c->params.n && st == ST_OK; k++)
        first[k].request = answers[k];
    for (uint32_t k = 0; k < c->params.n && st == ST_OK; k++)
        st = submit(c, &first[k], err);
    return st;
}

static enum status start_prompt(struct call *c, uint32_t i, struct error *err) {
    struct choice *first = &c->choices[i * c->params.n];
    struct request_params params;
    enum status st = prompt_params(c, &c->prompts[i].job.tokens, &params, err);

    if (st == ST_OK && c->params.is_beam) return start_search(c, first, &params, err);
    for (uint32_t k = 0; k < c->params.n && st == ST_OK; k++)
        st = start_sample(c, first, k, &params, err);
    return st;
}

enum status samples_start(struct call *c, struct error *err) {
    uint32_t n = c->n_prompts * c->params.n;
    enum status st = ST_OK;

    c->choices = mem_try_zalloc(n * sizeof(*c->choices));
    if (!c->choices) return error_set(err, ST_NOMEM, "out of memory for %u samples", n);
    c->n_choices = c->n_open = n;
    for (uint32_t i = 0; i < n; i++)
        choice_init(c, &c->choices[i], i);
    for (uint32_t i = 0; i < c->n_prompts && st == ST_OK; i++)
        st = start_prompt(c, i, err);
    return st;
}

/* --- the best of them ------------------------------------------------------------------------- */

/* The mean logprob of the tokens that the answer shows. */
static double quality(const struct choice *ch) {
    double sum = 0;

    for (uint32_t i = 0; i < ch->n_used; i++)
        sum += (double)ch->request->logprob[i];
    return ch->n_used > 0 ? sum / ch->n_used : 0;
}

/* Ties go to the earlier sample. */
static void rank_prompt(struct call *c, uint32_t prompt) {
    uint32_t n = c->params.n, n_shown = c->params.n_shown, n_ranked = 0;
    uint32_t *best = c->shown + prompt * n_shown;

    for (uint32_t i = prompt * n; i < (prompt + 1) * n; i++) {
        uint32_t at = n_ranked;

        while (at > 0 && quality(&c->choices[i]) > quality(&c->choices[best[at - 1]]))
            at--;
        if (at == n_shown) continue;
        if (n_ranked < n_shown) n_ranked++;
        for (uint32_t k = n_ranked - 1; k > at; k--)
            best[k] = best[k - 1];
        best[at] = i;
    }
    for (uint32_t k = 0; k < n_shown; k++)
        c->choices[best[k]].shown = prompt * n_shown + k;
}

void samples_rank(struct call *c) {
    if (c->params.n_shown == c->params.n) return;
    c->shown = mem_calloc(samples_n_shown(c), sizeof(*c->shown));
    for (uint32_t i = 0; i < c->n_prompts; i++)
        rank_prompt(c, i);
}

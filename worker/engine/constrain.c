/* worker/engine/constrain.c - masks into a step, tokens out of it. */
#include "worker/engine/constrain.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/telemetry/metrics.h"

void constrain_begin(struct request *r) {
    if (r->params.grammar) grammar_matcher_init(&r->matcher, r->params.grammar);
}

void constrain_end(struct request *r) {
    grammar_matcher_fini(&r->matcher);
}

static void set(uint32_t *mask, uint32_t vocab, uint32_t token) {
    if (token < vocab) mask[token / 32] |= 1u << (token % 32);
}

static void clear(uint32_t *mask, uint32_t vocab, uint32_t token) {
    if (token < vocab) mask[token / 32] &= ~(1u << (token % 32));
}

static bool is_empty(const uint32_t *mask, uint32_t vocab) {
    for (uint32_t i = 0; i < CEIL_DIV(vocab, 32); i++)
        if (mask[i] != 0) return false;
    return true;
}

/* --- the mask --------------------------------------------------------------------------------- */

static void too_much(struct request *r, enum status st) {
    if (st == ST_BUSY) {
        error_set(&r->error, ST_BUSY,
                  "the grammars of requests take too much memory for another token of this one: "
                  "retry later");
        return;
    }
    error_set(&r->error, ST_INVALID,
              "the grammar took more than the limit of work or memory at output token %u: make it "
              "simpler",
              request_n_output(r));
}

static void none_left(struct request *r, const char *field) {
    error_set_param(&r->error, ST_INVALID, field,
                    "%s leaves no token that the grammar allows at output token %u", field,
                    request_n_output(r));
}

static enum status copy_mask(struct request *r, uint32_t *out, uint32_t vocab,
                             struct constrain_stats *stats) {
    uint64_t began_ns = clock_now_ns();
    const uint32_t *mask;
    bool is_new;
    enum status st = grammar_mask(&r->matcher, &mask, &is_new);

    if (st != ST_OK) return st;
    memcpy(out, mask, CEIL_DIV(vocab, 32) * sizeof(*mask));
    stats->n_new += is_new;
    stats->n_known += !is_new;
    if (is_new && stats->seconds)
        metric_observe(stats->seconds, (double)(clock_now_ns() - began_ns) * 1e-9);
    return ST_OK;
}

/* Where the answer may end, the tokens that end it; not before min_tokens, unless they are all. */
static void add_ends(const struct request *r, const struct constrain_ends *ends, uint32_t *mask,
                     uint32_t vocab) {
    const struct request_params *p = &r->params;
    bool is_early = request_n_output(r) < p->min_tokens;

    for (uint32_t i = 0; is_early && i < p->n_stop_ids; i++)
        clear(mask, vocab, p->stop_ids[i]);
    if (!grammar_is_accepting(&r->matcher) || (is_early && !is_empty(mask, vocab))) return;
    for (uint32_t i = 0; i < ends->n_eos && !(p->ignore_eos && grammar_continues(&r->matcher)); i++)
        set(mask, vocab, ends->eos_ids[i]);
    for (uint32_t i = 0; i < p->n_stop_ids; i++)
        set(mask, vocab, p->stop_ids[i]);
}

static void clear_bad_words(const struct request *r, uint32_t *mask, uint32_t vocab) {
    uint32_t at = 0, token;

    while (request_next_banned(r, &at, &token))
        clear(mask, vocab, token);
}

bool constrain_has_mask(const struct request *r) {
    uint32_t token;

    return r->params.grammar || thinking_forces(&r->thinking, &r->params.thinking, &token);
}

bool constrain_is_known(const struct request *r) {
    uint32_t token;

    return thinking_forces(&r->thinking, &r->params.thinking, &token) ||
           grammar_mask_is_known(&r->matcher);
}

void constrain_fill(struct request *r, const struct constrain_ends *ends, uint32_t *mask,
                    uint32_t vocab, struct constrain_stats *stats) {
    const struct request_params *p = &r->params;
    uint32_t token;
    enum status st;

    if (thinking_forces(&r->thinking, &p->thinking, &token)) {
        memset(mask, 0, CEIL_DIV(vocab, 32) * sizeof(*mask));
        set(mask, vocab, token);
        return;
    }
    st = copy_mask(r, mask, vocab, stats);
    if (st != ST_OK) {
        memset(mask, 0, CEIL_DIV(vocab, 32) * sizeof(*mask));
        too_much(r, st);
        return;
    }
    add_ends(r, ends, mask, vocab);
    for (uint32_t i = 0; p->allowed && i < CEIL_DIV(vocab, 32); i++)
        mask[i] &= p->allowed[i];
    if (p->allowed && is_empty(mask, vocab)) none_left(r, "allowed_token_ids");
    clear_bad_words(r, mask, vocab);
    if (p->n_bad_words > 0 && r->error.status == ST_OK && is_empty(mask, vocab))
        none_left(r, "bad_words");
}

/* Has the mask this token of a grammar still, without all that may be taken from it? */
static bool is_left(const struct request *r, uint32_t token) {
    const struct request_params *p = &r->params;
    uint32_t at = 0, banned;

    if (p->allowed && !(p->allowed[token / 32] >> (token % 32) & 1)) return false;
    for (uint32_t i = 0; request_n_output(r) < p->min_tokens && i < p->n_stop_ids; i++)
        if (p->stop_ids[i] == token) return false;
    while (request_next_banned(r, &at, &banned))
        if (banned == token) return false;
    return true;
}

bool constrain_forced(struct request *r, uint32_t *token) {
    if (r->params.n_logprobs >= 0) return false;
    if (thinking_forces(&r->thinking, &r->params.thinking, token)) return true;
    return r->params.grammar && grammar_forced_token(&r->matcher, token) && is_left(r, *token);
}

/* --- the token -------------------------------------------------------------------------------- */

enum status constrain_take(struct request *r, const struct constrain_ends *ends, uint32_t token) {
    uint32_t forced;
    bool is_forced = thinking_forces(&r->thinking, &r->params.thinking, &forced);
    enum status st;

    if (r->error.status != ST_OK) return r->error.status; /* since its mask was filled */
    thinking_take(&r->thinking, &r->params.thinking, token);
    if (!r->params.grammar) return ST_OK;
    st = grammar_take(&r->matcher, token);
    if (st == ST_TOO_LARGE || st == ST_BUSY) {
        too_much(r, st);
        return r->error.status;
    }
    if (st == ST_OK) {
        r->is_complete = grammar_is_accepting(&r->matcher) && !grammar_continues(&r->matcher);
        return ST_OK;
    }
    if (request_is_end(&r->params, ends->eos_ids, ends->n_eos, token)) return ST_OK;
    if (is_forced)
        return error_set_param(&r->error, ST_INVALID, "thinking_token_budget",
                               "thinking_token_budget ends reasoning at output token %u, where the "
                               "grammar does not allow that: raise it, or leave it out",
                               request_n_output(r));
    return error_set(&r->error, ST_INTERNAL,
                     "the device chose token %u, which the grammar of this "
                     "request does not allow: retry",
                     token);
}

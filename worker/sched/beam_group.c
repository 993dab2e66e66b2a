/* worker/sched/beam_group.c - memory of a search, and its bookkeeping between two steps. All of it
 * is taken at creation; the requests are ordinary ones, made by request_create. */
#include "worker/sched/beam_group.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/mem.h"

/* --- creation --------------------------------------------------------------------------------- */

static enum status check_width(const struct beam_params *b, uint32_t n_candidates,
                               const struct request_limits *l, struct error *err) {
    if (b->n == 0 || b->n > b->width)
        return error_set_param(err, ST_INVALID, "n",
                               "n is %u, but a beam search of width %u returns 1 to %u answers",
                               b->n, b->width, b->width);
    if (b->width > l->max_num_seqs)
        return error_set_param(err, ST_INVALID, "n",
                               "a beam search of width %u needs that many sequences at once, but "
                               "this worker runs at most %u: lower n",
                               b->width, l->max_num_seqs);
    if (n_candidates > l->max_beam_candidates || n_candidates > l->vocab)
        return error_set_param(err, ST_INVALID, "n",
                               "a beam search of width %u with these stop tokens needs %u "
                               "candidates per step, but the device returns at most %u: lower n",
                               b->width, n_candidates, MIN(l->max_beam_candidates, l->vocab));
    if (!isfinite(b->length_penalty) || fabsf(b->length_penalty) > 100)
        return error_set_param(err, ST_INVALID, "length_penalty",
                               "length_penalty is %g: use -100 to 100", (double)b->length_penalty);
    return ST_OK;
}

static enum status check_ranking(const struct request_params *p, struct error *err) {
    const char *name = p->repetition_penalty != 1  ? "repetition_penalty"
                       : p->frequency_penalty != 0 ? "frequency_penalty"
                       : p->presence_penalty != 0  ? "presence_penalty"
                       : p->n_bias > 0             ? "logit_bias"
                       : p->allowed                ? "allowed_token_ids"
                       : p->n_bad_words > 0        ? "bad_words"
                                                   : NULL;

    if (name)
        return error_set_param(
            err, ST_INVALID, name,
            "%s has no effect on a beam search, which ranks by raw logprobs: leave it out", name);
    if (p->prompt_logprobs >= 0)
        return error_set_param(
            err, ST_INVALID, "prompt_logprobs",
            "a beam search returns no prompt logprobs: request them without the beam search");
    return ST_OK;
}

static void group_destroy(struct beam_group *g) {
    for (uint32_t i = 0; i < g->width; i++) {
        request_unref(g->beam[i]);
        request_unref(g->kept[i]);
    }
    beam_fini(&g->search);
    mem_free(g->beam);
    mem_free(g->next);
    mem_free(g->kept);
    mem_free(g->answer);
    mem_free(g->alt_token);
    mem_free(g->alt_logprob);
    mem_free(g);
}

void beam_group_ref(struct beam_group *g) {
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
}

void beam_group_unref(struct beam_group *g) {
    if (atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) == 1) group_destroy(g);
}

/* One more member, which counts no reference on the group. */
static enum status add_member(struct beam_group *g, struct request **out, uint32_t number,
                              const struct request_params *p, const struct request_limits *limits,
                              struct error *err) {
    enum status st = request_create(out, p, limits, err);

    if (st != ST_OK) return st;
    (*out)->group = g;
    (*out)->beam = number;
    return ST_OK;
}

static enum status add_members(struct beam_group *g, const struct request_params *p,
                               const struct request_limits *limits, struct error *err) {
    enum status st = ST_OK;

    for (uint32_t i = 0; i < g->width && st == ST_OK; i++) {
        st = add_member(g, &g->beam[i], i, p, limits, err);
        if (st == ST_OK) st = add_member(g, &g->kept[i], i, p, limits, err);
    }
    return st;
}

static struct beam_group *group_create(const struct beam_params *beams, uint32_t n_candidates,
                                       uint32_t n_alternatives) {
    struct beam_group *g = mem_zalloc(sizeof(*g));
    size_t n_alt = (size_t)beams->width * n_alternatives;

    g->width = beams->width;
    g->n_answers = beams->n;
    g->n_alternatives = n_alternatives;
    g->n_awaited = 1;
    g->beam = mem_calloc(g->width, sizeof(struct request *));
    g->next = mem_calloc(g->width, sizeof(struct request *));
    g->kept = mem_calloc(g->width, sizeof(struct request *));
    g->answer = mem_calloc(g->n_answers, sizeof(struct request *));
    g->alt_token = mem_calloc(n_alt, sizeof(*g->alt_token));
    g->alt_logprob = mem_calloc(n_alt, sizeof(*g->alt_logprob));
    beam_init(&g->search, &(struct beam_options){.width = g->width,
                                                 .n_candidates = n_candidates,
                                                 .max_tokens = 1,
                                                 .length_penalty = beams->length_penalty,
                                                 .stopping = beams->stopping});
    return g;
}

enum status beam_group_create(struct request **answers, const struct request_params *params,
                              const struct beam_params *beams, const struct request_limits *limits,
                              struct error *err) {
    uint32_t n_ends = params->n_stop_ids + (params->ignore_eos ? 0 : limits->n_eos);
    uint32_t n_candidates = beam_candidates(beams->width, n_ends), n_made = 0;
    uint32_t n_banned = params->min_tokens > 0 ? n_ends : 0;
    enum status st = check_width(beams, n_candidates, limits, err);
    struct beam_group *g;

    if (st == ST_OK) st = check_ranking(params, err);
    if (st != ST_OK) return st;
    g = group_create(beams, n_candidates,
                     MIN(n_candidates + n_banned, MIN(limits->max_beam_candidates, limits->vocab)));
    st = add_members(g, params, limits, err);
    for (; n_made < beams->n && st == ST_OK; n_made += st == ST_OK)
        st = add_member(g, &answers[n_made], BEAM_ANSWER | n_made, params, limits, err);
    if (st == ST_OK) {
        g->search.options.max_tokens = g->beam[0]->params.max_tokens; /* what the length leaves */
        atomic_init(&g->refs, beams->n);
        return ST_OK;
    }
    atomic_init(&g->refs, n_made + 1);
    while (n_made > 0)
        request_unref(answers[--n_made]);
    beam_group_unref(g);
    return st;
}

/* --- between two steps ------------------------------------------------------------------------ */

bool beam_group_offer(struct beam_group *g, const struct request *beam, const int32_t *token,
                      const float *logprob) {
    size_t at = (size_t)beam->beam * g->n_alternatives;

    assert(beam->beam < g->search.n_live && g->n_awaited > 0);
    memcpy(g->alt_token + at, token, g->n_alternatives * sizeof(*token));
    memcpy(g->alt_logprob + at, logprob, g->n_alternatives * sizeof(*logprob));
    return --g->n_awaited == 0;
}

static void offer_beam(struct beam_group *g, uint32_t beam, const uint32_t *eos_ids,
                       uint32_t n_eos) {
    const struct request *r = g->beam[beam];
    bool may_end = request_n_output(r) >= r->params.min_tokens;
    size_t at = (size_t)beam * g->n_alternatives;

    for (uint32_t i = 0; i < g->n_alternatives && g->alt_token[at + i] >= 0; i++) {
        uint32_t token = (uint32_t)g->alt_token[at + i];
        bool is_end = request_is_end(&r->params, eos_ids, n_eos, token);

        if (is_end && !may_end) continue;
        if (!beam_offer(&g->search, beam, token, i, g->alt_logprob[at + i], is_end)) return;
    }
}

bool beam_group_choose(struct beam_group *g, const uint32_t *eos_ids, uint32_t n_eos) {
    bool is_over;

    for (uint32_t i = 0, n = g->search.n_live; i < n; i++)
        offer_beam(g, i, eos_ids, n_eos);
    is_over = beam_step(&g->search);
    for (uint32_t i = 0; i < g->search.n_done; i++) {
        const struct beam_choice *c = &g->search.done[i];
        struct request *kept = g->kept[c->slot];

        request_copy_output(kept, g->beam[c->beam]);
        beam_group_extend(g, kept, c);
        kept->finish = c->is_end ? FINISH_STOP : FINISH_LENGTH;
        kept->stop_token = REQUEST_NO_TOKEN;
        if (c->is_end && (kept->params.ignore_eos ||
                          !request_is_end(&(struct request_params){0}, eos_ids, n_eos, c->token)))
            kept->stop_token = c->token;
        kept->beam_score = c->score;
    }
    g->n_awaited = is_over ? 0 : g->search.n_live;
    return is_over;
}

void beam_group_extend(const struct beam_group *g, struct request *r, const struct beam_choice *c) {
    size_t at = (size_t)c->beam * g->n_alternatives, n = request_n_output(r);
    size_t n_top = (size_t)MAX(r->params.n_logprobs, 0);

    if (r->params.n_logprobs >= 0) {
        r->logprob[n] = g->alt_logprob[at + c->alternative];
        r->rank[n] = c->alternative + 1;
    }
    for (size_t i = 0; i < n_top; i++) {
        r->top_token[n * n_top + i] = i < g->n_alternatives ? g->alt_token[at + i] : -1;
        r->top_logprob[n * n_top + i] = i < g->n_alternatives ? g->alt_logprob[at + i] : 0;
    }
    request_append(r, c->token);
}

void beam_group_fill(const struct beam_group *g, uint32_t i, uint64_t now_us) {
    const struct request *kept;
    struct request *r = g->answer[i];

    if (i >= g->search.n_kept) { /* a vocabulary of a handful of tokens, all of them ends */
        r->finish = FINISH_ERROR;
        error_set(&r->error, ST_INTERNAL, "the beam search found only %u answers: lower n",
                  g->search.n_kept);
        return;
    }
    kept = g->kept[g->search.kept[i].slot];
    request_copy_output(r, kept);
    r->finish = kept->finish;
    r->stop_token = kept->stop_token;
    r->beam_score = kept->beam_score;
    r->first_token_us = now_us; /* nothing is known of an answer before all is */
}

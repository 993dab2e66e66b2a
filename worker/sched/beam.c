/* worker/sched/beam.c - two sorted short lists: the candidates of a step, and the finished ones.
 *
 * Sums, penalties and comparisons are those of single precision, in the order in which the model
 * whose answers ours must equal makes them. */
#include "worker/sched/beam.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/mem.h"

void beam_init(struct beam_search *b, const struct beam_options *o) {
    assert(o->width >= 1 && o->n_candidates >= o->width && o->max_tokens >= 1);
    *b = (struct beam_search){.options = *o, .n_live = 1};
    b->score = mem_calloc(o->width, sizeof(*b->score));
    b->kept = mem_calloc(o->width, sizeof(*b->kept));
    b->candidate = mem_calloc(o->n_candidates, sizeof(*b->candidate));
    b->live = mem_calloc(o->width, sizeof(*b->live));
    b->done = mem_calloc(o->width, sizeof(*b->done));
}

void beam_fini(struct beam_search *b) {
    mem_free(b->score);
    mem_free(b->kept);
    mem_free(b->candidate);
    mem_free(b->live);
    mem_free(b->done);
    *b = (struct beam_search){0};
}

static bool is_better(const struct beam_choice *a, const struct beam_choice *b) {
    if (a->score != b->score) return a->score > b->score;
    return a->beam != b->beam ? a->beam < b->beam : a->token < b->token;
}

bool beam_offer(struct beam_search *b, uint32_t beam, uint32_t token, uint32_t alternative,
                float logprob, bool is_end) {
    struct beam_choice c = {.beam = beam,
                            .token = token,
                            .alternative = alternative,
                            .score = logprob + b->score[beam],
                            .is_end = is_end};
    uint32_t at = b->n_candidates;

    assert(beam < b->n_live);
    while (at > 0 && is_better(&c, &b->candidate[at - 1]))
        at--;
    if (at == b->options.n_candidates) return false;
    if (b->n_candidates < b->options.n_candidates) b->n_candidates++;
    memmove(&b->candidate[at + 1], &b->candidate[at],
            (b->n_candidates - 1 - at) * sizeof(*b->candidate));
    b->candidate[at] = c;
    return true;
}

/* A finished one into the list of the best, if it is one. Its slot is a new one, or that of the
 * one it drives out. */
static void keep(struct beam_search *b, const struct beam_choice *c, float score) {
    uint32_t width = b->options.width, slot = b->n_kept, at;

    if (b->n_kept == width) {
        if (!(score > b->kept[width - 1].score)) return;
        slot = b->kept[--b->n_kept].slot;
    }
    for (at = b->n_kept++; at > 0 && score > b->kept[at - 1].score; at--)
        b->kept[at] = b->kept[at - 1];
    b->kept[at] = (struct beam_finished){score, slot};
    b->done[b->n_done] = *c;
    b->done[b->n_done].slot = slot;
    b->done[b->n_done++].score = score;
}

static float penalty_of(const struct beam_search *b, uint32_t n_tokens) {
    return (float)pow((double)n_tokens, (double)b->options.length_penalty);
}

/* Could the best live beam still rank above a finished one? */
static bool can_still_win(const struct beam_search *b) {
    uint32_t n = b->n_tokens, width = b->options.width;

    if (b->n_kept < width) return true;
    if (b->options.stopping == BEAM_STOP_EARLY) return false;
    if (b->options.stopping == BEAM_STOP_NEVER && b->options.length_penalty > 0)
        n = b->options.max_tokens;
    return b->live[0].score / penalty_of(b, n) > b->kept[width - 1].score;
}

bool beam_step(struct beam_search *b) {
    bool is_last = ++b->n_tokens == b->options.max_tokens;
    float penalty = penalty_of(b, b->n_tokens);

    b->n_live = b->n_done = 0;
    for (uint32_t i = 0; i < b->n_candidates; i++) {
        const struct beam_choice *c = &b->candidate[i];

        if (!c->is_end && !is_last) {
            if (b->n_live < b->options.width) b->live[b->n_live++] = *c;
        } else if (i < b->options.width) {
            keep(b, c, c->score / penalty);
        }
    }
    for (uint32_t i = 0; i < b->n_live; i++)
        b->score[i] = b->live[i].score;
    b->n_candidates = 0;
    return b->n_live == 0 || !can_still_win(b);
}

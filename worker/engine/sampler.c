/* worker/engine/sampler.c - translation between struct request_params and struct backend_output. */
#include "worker/engine/sampler.h"

#include <string.h>

#include "worker/sched/beam_group.h"

#define BAN_BIAS     (-1e30f) /* finite, so that sums and quotients with it stay finite */
#define SHARED_MASKS 8u       /* that a new one is compared with */
#define GREEDY_BELOW 1e-5f    /* a temperature that only greedy decoding can mean */

static void add_bias(struct batch_step *b, uint32_t output, uint32_t token, float bias) {
    b->stage.bias[b->counts.n_bias++] = (struct backend_bias){output, token, bias};
}

static void ban_words(struct batch_step *b, const struct request *r, uint32_t output) {
    uint32_t at = 0, token;

    while (request_next_banned(r, &at, &token))
        add_bias(b, output, token, BAN_BIAS);
}

/* The number of a mask behind the others of the step, or of an equal one among the last few: places
 * like the inside of a string are common, and each mask is copied to the device. */
static uint32_t share_mask(const struct batch_step *b, size_t n_words) {
    uint32_t n = b->counts.n_masks, first = n > SHARED_MASKS ? n - SHARED_MASKS : 0;
    const uint32_t *mask = b->stage.mask + n * n_words;

    for (uint32_t i = n; i > first; i--)
        if (memcmp(b->stage.mask + (i - 1) * n_words, mask, n_words * sizeof(*mask)) == 0)
            return i - 1;
    return n;
}

/* A copy of the request's set of tokens among the masks of the step, if it is known. */
static void fill_mask(struct batch_step *b, struct request *r, uint32_t output,
                      struct masks *masks) {
    size_t n_words = CEIL_DIV(masks->vocab, 32);
    uint32_t *mask = b->stage.mask + b->counts.n_masks * n_words;

    if (constrain_has_mask(r)) {
        if (!masks_fill(masks, r, mask)) return;
    } else if (r->params.allowed) {
        memcpy(mask, r->params.allowed, n_words * sizeof(*mask));
    } else {
        return;
    }
    b->stage.output[output].mask = share_mask(b, n_words);
    b->counts.n_masks += b->stage.output[output].mask == b->counts.n_masks;
}

/* Places for masks that are to be computed, behind all that others may share. */
static void add_late_masks(struct batch_step *b, struct masks *masks) {
    size_t n_words = CEIL_DIV(masks->vocab, 32);

    for (uint32_t i = 0; i < b->counts.n_rows; i++) {
        const struct schedule_entry *e = b->row[i].entry;
        struct backend_output *o = &b->stage.output[b->row[i].first_output + e->n_scores];

        if (!e->is_sampled || request_is_beam(e->request)) continue;
        if (o->mask != BACKEND_NO_MASK || !constrain_has_mask(e->request)) continue;
        o->mask = b->counts.n_masks++;
        masks_add(masks, e->request, b->stage.mask + o->mask * n_words);
    }
}

static void fill_biases(struct batch_step *b, const struct schedule_entry *e, uint32_t output,
                        const struct constrain_ends *ends) {
    const struct request_params *p = &e->request->params;

    for (uint32_t i = 0; i < p->n_bias; i++)
        add_bias(b, output, p->bias[i].token, p->bias[i].bias);
    if (p->grammar) return; /* its mask leaves out what is banned */
    ban_words(b, e->request, output);
    if (e->first + e->n_tokens - e->request->n_prompt >= p->min_tokens) return;
    for (uint32_t i = 0; i < ends->n_eos && !p->ignore_eos; i++)
        add_bias(b, output, ends->eos_ids[i], BAN_BIAS);
    for (uint32_t i = 0; i < p->n_stop_ids; i++)
        add_bias(b, output, p->stop_ids[i], BAN_BIAS);
}

static void fill_sample(struct backend_output *o, const struct request_params *p) {
    o->seed = p->seed;
    o->temperature = p->temperature < GREEDY_BELOW ? 0 : p->temperature;
    o->top_k = p->top_k;
    o->top_p = p->top_p;
    o->min_p = p->min_p;
    o->repetition_penalty = p->repetition_penalty;
    o->frequency_penalty = p->frequency_penalty;
    o->presence_penalty = p->presence_penalty;
    o->n_logprobs = p->n_logprobs > 0 ? (uint32_t)p->n_logprobs : 0;
}

void sampler_fill(struct batch_step *b, struct masks *masks) {
    for (uint32_t i = 0; i < b->counts.n_rows; i++) {
        const struct schedule_entry *e = b->row[i].entry;
        const struct request_params *p = &e->request->params;
        uint32_t output = b->row[i].first_output;

        for (uint32_t k = 0; k < e->n_scores; k++, output++)
            b->stage.output[output].n_logprobs = (uint32_t)p->prompt_logprobs;
        if (!e->is_sampled) continue;
        if (request_is_beam(e->request)) { /* it wants no token, but what there is to choose from */
            b->stage.output[output].n_logprobs = e->request->group->n_alternatives;
            continue;
        }
        fill_sample(&b->stage.output[output], p);
        fill_biases(b, e, output, &masks->ends);
        fill_mask(b, e->request, output, masks);
    }
    add_late_masks(b, masks);
}

static void take_scores(const struct batch_step *b, const struct batch_row *row,
                        uint32_t max_logprobs) {
    const struct backend_stage *s = &b->stage;
    struct request *r = row->entry->request;
    size_t n_top = (size_t)r->params.prompt_logprobs;

    for (uint32_t i = 0; i < row->entry->n_scores; i++) {
        uint32_t o = row->first_output + i, token = row->entry->score_first + i + 1;

        r->prompt_logprob[token] = s->out_logprob[o];
        r->prompt_rank[token] = s->out_rank[o];
        if (n_top == 0) continue;
        memcpy(r->prompt_top_token + token * n_top, s->out_top_token + (size_t)o * max_logprobs,
               n_top * sizeof(int32_t));
        memcpy(r->prompt_top_logprob + token * n_top, s->out_top_logprob + (size_t)o * max_logprobs,
               n_top * sizeof(float));
    }
}

static void take_logprobs(const struct backend_stage *s, struct request *r, uint32_t o,
                          uint32_t max_logprobs) {
    uint32_t at = request_n_output(r);
    size_t n_top = (size_t)MAX(r->params.n_logprobs, 0);

    if (r->params.n_logprobs < 0) return;
    r->logprob[at] = s->out_logprob[o];
    r->rank[at] = s->out_rank[o];
    if (n_top == 0) return;
    memcpy(r->top_token + at * n_top, s->out_top_token + (size_t)o * max_logprobs,
           n_top * sizeof(int32_t));
    memcpy(r->top_logprob + at * n_top, s->out_top_logprob + (size_t)o * max_logprobs,
           n_top * sizeof(float));
}

enum status sampler_take(const struct batch_step *b, const struct batch_row *row,
                         uint32_t max_logprobs, uint32_t *token) {
    const struct schedule_entry *e = row->entry;
    uint32_t n_outputs = e->n_scores + e->is_sampled, last = row->first_output + e->n_scores;

    for (uint32_t i = 0; i < n_outputs; i++)
        if (b->stage.out_flags[row->first_output + i] & OUT_NOT_FINITE) return ST_INTERNAL;
    take_scores(b, row, max_logprobs);
    *token = 0;
    if (!e->is_sampled || request_is_beam(e->request)) return ST_OK;
    take_logprobs(&b->stage, e->request, last, max_logprobs);
    *token = (uint32_t)b->stage.out_token[last];
    return ST_OK;
}

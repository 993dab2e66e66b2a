/* kernels/host/host_step.c - see host.h: rows, the checks of a step, its outputs.
 *
 * The engine is trusted to schedule well, not to be free of mistakes: everything that becomes an
 * address is compared with its limit here, once per step, so that a wrong number is a sentence and
 * not a torn pool. */
#include <inttypes.h>
#include <string.h>

#include "kernels/host/host.h"

void host_stage(struct backend_model *m, uint32_t slot, struct backend_stage *out) {
    struct host_model *h = (struct host_model *)m;

    *out = h->slot[slot < h->limits.n_slots ? slot : 0];
}

static uint32_t *history_of(const struct host_model *h, uint32_t row) {
    return h->history + row * (h->g.max_context + 1ull);
}

static bool all_in_vocab(const struct host_model *h, const uint32_t *tokens, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (tokens[i] >= h->g.vocab) return false;
    }
    return true;
}

enum status host_row_take(struct host_model *h, uint32_t row, const uint32_t *prompt,
                          uint32_t n_prompt, const uint32_t *output, uint32_t n_output) {
    if (row >= h->limits.max_rows || (uint64_t)n_prompt + n_output > h->g.max_context)
        return ST_INVALID;
    if (!all_in_vocab(h, prompt, n_prompt) || !all_in_vocab(h, output, n_output)) return ST_INVALID;
    h->rows[row] = (struct host_row){n_prompt, n_prompt + n_output, true};
    return ST_OK;
}

enum status host_row_bind(struct backend_model *m, uint32_t row, const uint32_t *prompt,
                          uint32_t n_prompt, const uint32_t *output, uint32_t n_output) {
    struct host_model *h = (struct host_model *)m;
    enum status st = host_row_take(h, row, prompt, n_prompt, output, n_output);

    if (st != ST_OK) return st;
    if (h->history && n_prompt) memcpy(history_of(h, row), prompt, n_prompt * sizeof(*prompt));
    if (h->history && n_output)
        memcpy(history_of(h, row) + n_prompt, output, n_output * sizeof(*output));
    return ST_OK;
}

void host_row_free(struct backend_model *m, uint32_t row) {
    struct host_model *h = (struct host_model *)m;

    if (row < h->limits.max_rows) h->rows[row] = (struct host_row){0};
}

#define AT_MOST(count, limit)                                                                      \
    do {                                                                                           \
        if ((count) > (limit))                                                                     \
            return error_set(err, ST_INVALID, "a step with %s = %u: %u are allowed", #count,       \
                             (count), (limit));                                                    \
    } while (0)

static enum status check_counts(const struct host_model *h, const struct backend_step *step,
                                struct error *err) {
    const struct backend_limits *l = &h->limits;

    AT_MOST(step->n_tokens, l->max_step_tokens);
    AT_MOST(step->n_rows, l->max_rows);
    AT_MOST(step->n_outputs, l->max_outputs);
    AT_MOST(step->n_bias, l->max_bias);
    AT_MOST(step->n_masks, l->max_masks);
    if (step->n_updates > (uint64_t)l->max_rows * l->max_blocks_per_row)
        return error_set(err, ST_INVALID, "a step with %u block table updates", step->n_updates);
    return ST_OK;
}

static enum status check_tokens(const struct host_model *h, const struct backend_stage *s,
                                const struct backend_step *step, struct error *err) {
    uint64_t context = (uint64_t)h->limits.max_blocks_per_row * h->limits.block_size;
    int64_t n_slots = (int64_t)((uint64_t)h->n_blocks * h->limits.block_size);

    for (uint32_t i = 0; i < step->n_tokens; i++) {
        int64_t id = s->token[i], reference = -1 - id;

        if (id >= 0 ? id >= h->g.vocab : reference >= h->previous_outputs)
            return error_set(err, ST_INVALID,
                             "token %u of a step is %" PRId64 ": the vocabulary has %u, the step "
                             "before had %u outputs",
                             i, id, h->g.vocab, h->previous_outputs);
        if (s->position[i] >= context || s->position[i] >= h->g.max_context)
            return error_set(err, ST_INVALID, "position %u: the longest sequence has %u tokens",
                             s->position[i], (uint32_t)MIN(context, h->g.max_context));
        if (s->kv_slot[i] < -1 || s->kv_slot[i] >= n_slots)
            return error_set(err, ST_INVALID, "KV slot %" PRId64 ": the pool has %" PRId64,
                             s->kv_slot[i], n_slots);
    }
    return ST_OK;
}

static enum status check_rows(const struct host_model *h, const struct backend_stage *s,
                              const struct backend_step *step, struct error *err) {
    uint64_t next = 0;

    for (uint32_t i = 0; i < step->n_rows; i++) {
        const struct backend_row *r = &s->row[i];

        if (r->row >= h->limits.max_rows || r->first_token != next || r->n_tokens == 0)
            return error_set(
                err, ST_INVALID,
                "row %u of a step: row %u, tokens from %u, %u of them; rows follow each "
                "other without gaps",
                i, r->row, r->first_token, r->n_tokens);
        next += r->n_tokens;
        if (next > step->n_tokens) break;
        for (uint32_t t = r->first_token; t < next; t++) {
            if (s->position[t] + (next - t) != r->context_len)
                return error_set(
                    err, ST_INVALID,
                    "token %u of a step has position %u, in a row whose %u tokens end a "
                    "context of %u",
                    t, s->position[t], r->n_tokens, r->context_len);
        }
    }
    if (next > step->n_tokens)
        return error_set(err, ST_INVALID, "rows claim %" PRIu64 " tokens of %u", next,
                         step->n_tokens);
    for (uint32_t i = 0; i < step->n_updates; i++) {
        const struct backend_table_update *u = &s->update[i];

        if (u->row >= h->limits.max_rows || u->index >= h->limits.max_blocks_per_row ||
            u->block >= h->n_blocks)
            return error_set(err, ST_INVALID, "block table update (%u, %u) = %u is out of range",
                             u->row, u->index, u->block);
    }
    return ST_OK;
}

static enum status check_outputs(const struct host_model *h, const struct backend_stage *s,
                                 const struct backend_step *step, struct error *err) {
    for (uint32_t i = 0; i < step->n_outputs; i++) {
        const struct backend_output *o = &s->output[i];

        if (o->row >= h->limits.max_rows || o->token_index >= step->n_tokens ||
            (o->want == WANT_SCORE && o->score_token >= h->g.vocab) || o->want > WANT_SCORE ||
            (o->mask != BACKEND_NO_MASK && o->mask >= step->n_masks) ||
            o->n_logprobs > h->limits.max_logprobs)
            return error_set(
                err, ST_INVALID,
                "output %u: row %u, token %u, want %u, score %u, mask %u, %u logprobs: "
                "one of them is out of range",
                i, o->row, o->token_index, o->want, o->score_token, o->mask, o->n_logprobs);
    }
    for (uint32_t i = 0; i < step->n_bias; i++) {
        if (s->bias[i].token >= h->g.vocab || (i && s->bias[i].output < s->bias[i - 1].output))
            return error_set(err, ST_INVALID, "bias %u: token %u of output %u: sort them by output",
                             i, s->bias[i].token, s->bias[i].output);
    }
    return ST_OK;
}

enum status host_step_check(const struct host_model *h, uint32_t slot,
                            const struct backend_step *step, struct error *err) {
    const struct backend_stage *s = &h->slot[slot & 1];
    enum status st;

    if (slot >= h->limits.n_slots)
        return error_set(err, ST_INVALID, "slot %u: there are %u", slot, h->limits.n_slots);
    if (h->n_blocks == 0) return error_set(err, ST_INVALID, "a step before kv_alloc");
    if ((st = check_counts(h, step, err)) != ST_OK) return st;
    if ((st = check_tokens(h, s, step, err)) != ST_OK) return st;
    if ((st = check_rows(h, s, step, err)) != ST_OK) return st;
    return check_outputs(h, s, step, err);
}

enum status host_step_begin(struct host_model *h, uint32_t slot, const struct backend_step *step,
                            struct error *err) {
    struct backend_stage *s = &h->slot[slot & 1];
    enum status st = host_step_check(h, slot, step, err);

    if (st != ST_OK) return st;
    if (step->fill_masks) step->fill_masks(step->fill_arg);
    for (uint32_t i = 0; i < step->n_updates; i++) {
        const struct backend_table_update *u = &s->update[i];

        h->table[(uint64_t)u->row * h->limits.max_blocks_per_row + u->index] = u->block;
    }
    for (uint32_t i = 0; i < step->n_tokens; i++) {
        int32_t id = s->token[i];

        h->ids[i] = (uint32_t)(id >= 0 ? id : h->slot[h->previous_slot].out_token[-1 - id]);
    }
    return ST_OK;
}

void host_step_sample(struct host_model *h, uint32_t slot, const struct backend_step *step,
                      uint32_t i, const float *logits, struct sample_scratch *scratch) {
    struct backend_stage *s = &h->slot[slot];
    const struct backend_output *o = &s->output[i];
    uint64_t n_top = h->limits.max_logprobs;
    struct sample_result result = {.top_token = s->out_top_token + i * n_top,
                                   .top_logprob = s->out_top_logprob + i * n_top};
    struct sample_input in = {
        .logits = logits,
        .output = o,
        .history = history_of(h, o->row),
        .n_prompt = h->rows[o->row].n_prompt,
        .n_history = h->rows[o->row].n_history,
        .mask = o->mask == BACKEND_NO_MASK ? NULL
                                           : s->mask + (uint64_t)o->mask * CEIL_DIV(h->g.vocab, 32),
        .n_top = (uint32_t)n_top,
    };
    uint32_t b = 0;

    while (b < step->n_bias && s->bias[b].output < i)
        b++;
    in.bias = s->bias + b;
    while (b < step->n_bias && s->bias[b].output == i)
        b++;
    in.n_bias = (uint32_t)(s->bias + b - in.bias);
    sample(&in, scratch, &result);
    s->out_token[i] = result.token;
    s->out_logprob[i] = result.logprob;
    s->out_rank[i] = result.rank;
    s->out_flags[i] = result.flags;
}

enum status host_share_tokens(struct host_model *h, uint32_t slot, uint32_t first, uint32_t n) {
    struct tp_group *group = h->dev->group;
    int32_t *token = h->slot[slot].out_token + first;

    return h->shard.size == 1 ? ST_OK
                              : group->share(group, h->shard.rank, token, n * sizeof(*token));
}

enum status host_rank_lost(struct error *err) {
    return error_set(err, ST_CLOSED, "another rank of the model has failed");
}

void host_step_end(struct host_model *h, uint32_t slot, const struct backend_step *step) {
    const struct backend_stage *s = &h->slot[slot];

    for (uint32_t i = 0; i < step->n_outputs; i++) {
        struct host_row *r = &h->rows[s->output[i].row];

        if (s->output[i].want != WANT_SAMPLE || !r->is_bound) continue;
        if (r->n_history > h->g.max_context) continue;
        if (h->history) history_of(h, s->output[i].row)[r->n_history] = (uint32_t)s->out_token[i];
        r->n_history++;
    }
    h->previous_slot = slot;
    h->previous_outputs = step->n_outputs;
}

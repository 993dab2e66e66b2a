/* worker/sched/batch.c - two passes over the schedule: one-token rows, then the others, as backends
 * want them. What a row holds at the device is remembered by (order of arrival, number of
 * times it got a row or other tokens), which no two stays share, so a request that left and whose
 * memory was reused is never mistaken. */
#include "worker/sched/batch.h"

#include <assert.h>

#include "common/base/mem.h"

struct batch_binding {
    uint64_t seq;
    uint32_t n_binds;     /* 0: nothing is bound */
    uint32_t last_output; /* of the step laid out last in which the row was sampled */
};

void batch_init(struct batch *b, const struct backend_ops *ops, struct backend_model *model,
                uint32_t max_rows, uint32_t block_size) {
    *b = (struct batch){.ops = ops, .model = model, .max_rows = max_rows, .block_size = block_size};
    b->bound = mem_calloc(max_rows, sizeof(*b->bound));
    for (uint32_t i = 0; i < ARRAY_LEN(b->slot); i++)
        b->slot[i].row = mem_calloc(max_rows, sizeof(*b->slot[i].row));
}

void batch_fini(struct batch *b) {
    for (uint32_t i = 0; i < b->max_rows; i++)
        if (b->bound[i].n_binds > 0) b->ops->row_free(b->model, i);
    for (uint32_t i = 0; i < ARRAY_LEN(b->slot); i++)
        mem_free(b->slot[i].row);
    mem_free(b->bound);
    *b = (struct batch){0};
}

static enum status bind_row(struct batch *b, const struct request *r) {
    struct batch_binding *bound = &b->bound[r->row];

    if (bound->n_binds == r->n_binds && bound->seq == r->seq) return ST_OK;
    if (bound->n_binds > 0) b->ops->row_free(b->model, r->row);
    *bound = (struct batch_binding){.seq = r->seq, .n_binds = r->n_binds};
    return b->ops->row_bind(b->model, r->row, r->tokens, r->n_prompt, r->tokens + r->n_prompt,
                            request_n_output(r));
}

static void lay_out_tokens(struct batch *b, struct batch_step *s, const struct schedule_entry *e) {
    const struct request *r = e->request;
    const struct block_table *t = &r->kv.table[0];
    uint32_t at = s->counts.n_tokens;

    for (uint32_t i = 0; i < e->n_tokens; i++) {
        uint32_t position = e->first + i;

        s->stage.token[at + i] =
            e->is_ahead ? -1 - (int32_t)b->bound[r->row].last_output : (int32_t)r->tokens[position];
        s->stage.position[at + i] = position;
        s->stage.kv_slot[at + i] = block_table_slot(t, position, b->block_size);
    }
    s->counts.n_tokens += e->n_tokens;
}

static void lay_out_table(struct batch_step *s, const struct schedule_entry *e) {
    struct block_table *t = &e->request->kv.table[0];

    for (uint32_t i = block_table_take_dirty(t); i < t->n_blocks; i++)
        s->stage.update[s->counts.n_updates++] =
            (struct backend_table_update){e->request->row, i, t->ids[i]};
}

static void add_output(struct batch_step *s, const struct schedule_entry *e, uint32_t first_token,
                       uint32_t position, enum backend_want want) {
    const struct request *r = e->request;
    struct backend_output *o = &s->stage.output[s->counts.n_outputs++];

    *o = (struct backend_output){.row = r->row,
                                 .token_index = first_token + position - e->first,
                                 .want = want,
                                 .position = position + 1,
                                 .top_p = 1,
                                 .repetition_penalty = 1,
                                 .mask = BACKEND_NO_MASK};
    if (want == WANT_SCORE) o->score_token = r->tokens[position + 1];
}

static enum status lay_out_row(struct batch *b, struct batch_step *s,
                               const struct schedule_entry *e) {
    const struct request *r = e->request;
    uint32_t first_token = s->counts.n_tokens;
    enum status st = bind_row(b, r);

    if (st != ST_OK) return st;
    s->stage.row[s->counts.n_rows] =
        (struct backend_row){r->row, first_token, e->n_tokens, e->first + e->n_tokens};
    s->row[s->counts.n_rows++] = (struct batch_row){e, s->counts.n_outputs};
    lay_out_tokens(b, s, e);
    lay_out_table(s, e);
    for (uint32_t i = 0; i < e->n_scores; i++)
        add_output(s, e, first_token, e->score_first + i, WANT_SCORE);
    if (!e->is_sampled) return ST_OK;
    b->bound[r->row].last_output = s->counts.n_outputs;
    add_output(s, e, first_token, e->first + e->n_tokens - 1, WANT_SAMPLE);
    return ST_OK;
}

enum status batch_lay_out(struct batch *b, const struct schedule *sched, uint32_t slot) {
    struct batch_step *s = &b->slot[slot];
    enum status st;

    s->counts = (struct backend_step){0};
    b->ops->stage(b->model, slot, &s->stage);
    for (int wants_long = 0; wants_long <= 1; wants_long++)
        for (uint32_t i = 0; i < sched->n_entries; i++)
            if ((sched->entry[i].n_tokens > 1) == wants_long &&
                (st = lay_out_row(b, s, &sched->entry[i])) != ST_OK)
                return st;
    assert(s->counts.n_tokens == sched->n_tokens && s->counts.n_outputs == sched->n_outputs);
    return ST_OK;
}

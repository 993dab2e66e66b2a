/* kernels/cuda/stage.c - the arrays of a step: as the engine fills them, and packed for one copy.
 *
 * A slot's arrays are as long as the limits; of most of them a step uses little. What is used goes,
 * each array at a multiple of 64 bytes, into one pinned buffer, and from there to the device in one
 * copy:
 *
 *      token | position | kv_slot | attention's list or two | output | pieces | updates | biases
 *
 * In a bucket the first four have the bucket's lengths, and in one of rows the outputs too, so that
 * they lie where its graph was recorded; those of any length come last. Grammar masks, large and
 * rare, are sent from where they are.
 *
 * The head runs over pieces of m->head_rows outputs, whose logits fit their buffer. Sampling looks
 * at a piece as if it were a step: each has its struct backend_step, and biases count outputs from
 * the piece's first. */
#include <string.h>

#include "common/base/mem.h"
#include "kernels/cuda/cuda_internal.h"

#define STAGE_ALIGN 64u

/* --- slots ------------------------------------------------------------------------------------ */

struct carver {
    uint8_t *base; /* NULL: only counts */
    uint64_t at;
};

static void *carve(struct carver *c, uint64_t n_bytes) {
    uint64_t at = c->at;

    c->at += ALIGN_UP(n_bytes, STAGE_ALIGN);
    return c->base ? c->base + at : NULL;
}

/* The out arrays of one word lie together: token, logprob, rank, flags. */
static void carve_slot(const struct backend_model *m, struct carver *c, struct backend_stage *s,
                       struct cuda_slot *slot) {
    const struct backend_limits *l = &m->host.limits;
    uint64_t T = l->max_step_tokens, n_out = l->max_outputs;
    uint64_t n_updates = (uint64_t)l->max_rows * l->max_blocks_per_row;

    s->token = carve(c, T * sizeof(*s->token));
    s->position = carve(c, T * sizeof(*s->position));
    s->kv_slot = carve(c, T * sizeof(*s->kv_slot));
    s->row = carve(c, l->max_rows * sizeof(*s->row));
    s->update = carve(c, n_updates * sizeof(*s->update));
    s->output = carve(c, n_out * sizeof(*s->output));
    s->bias = carve(c, l->max_bias * sizeof(*s->bias));
    s->mask = carve(c, (uint64_t)l->max_masks * CEIL_DIV(m->g.vocab, 32) * sizeof(*s->mask));
    slot->packed = carve(c, m->packed_bytes);
    slot->out = carve(c, 4 * n_out * sizeof(int32_t));
    s->out_top_token = carve(c, n_out * l->max_logprobs * sizeof(*s->out_top_token));
    s->out_top_logprob = carve(c, n_out * l->max_logprobs * sizeof(*s->out_top_logprob));
    if (!c->base) return;
    s->out_token = slot->out;
    s->out_logprob = (float *)slot->out + n_out;
    s->out_rank = (uint32_t *)slot->out + 2 * n_out;
    s->out_flags = (uint32_t *)slot->out + 3 * n_out;
}

static uint64_t most_packed_bytes(const struct backend_model *m) {
    const struct backend_limits *l = &m->host.limits;
    struct carver c = {0};

    carve(&c, CEIL_DIV(l->max_outputs, m->head_rows) * sizeof(struct backend_step));
    carve(&c, l->max_step_tokens * sizeof(int32_t));
    carve(&c, l->max_step_tokens * sizeof(uint32_t));
    carve(&c, l->max_step_tokens * sizeof(int64_t));
    carve(&c, (uint64_t)MAX(l->max_outputs, l->max_rows) * sizeof(struct backend_output));
    carve(&c, attend_list_bytes(m->planner));
    carve(&c, attend_list_bytes(m->planner));
    carve(&c, (uint64_t)l->max_rows * l->max_blocks_per_row * sizeof(struct backend_table_update));
    carve(&c, l->max_bias * sizeof(struct backend_bias));
    return c.at;
}

enum status cuda_stage_init(struct backend_model *m, struct error *err) {
    enum status st = ST_OK;

    m->packed_bytes = most_packed_bytes(m);
    for (uint32_t i = 0; i < m->host.limits.n_slots && st == ST_OK; i++) {
        struct carver c = {0};

        carve_slot(m, &c, &m->host.slot[i], &m->slot[i]);
        st = cuda_take_pinned(m, &c.base, c.at, "the arrays of a step", err);
        if (st != ST_OK) return st;
        memset(c.base, 0, c.at);
        c.at = 0;
        carve_slot(m, &c, &m->host.slot[i], &m->slot[i]);
    }
    if (st == ST_OK) st = cuda_take(m, &m->staged, m->packed_bytes, "the arrays of a step", err);
    if (st == ST_OK)
        st = cuda_take(m, &m->mask,
                       (uint64_t)m->host.limits.max_masks * CEIL_DIV(m->g.vocab, 32) * 4,
                       "grammar masks", err);
    return st;
}

/* --- packing ---------------------------------------------------------------------------------- */

/* n elements of `size` copied; those up to n_padded are zero. Returns where they will be on
 * the device. */
static const void *put(const struct backend_model *m, struct carver *c, const void *array,
                       uint32_t n, uint32_t n_padded, size_t size) {
    uint64_t at = c->at;
    uint8_t *p = carve(c, (uint64_t)n_padded * size);

    if (n) memcpy(p, array, n * size);
    if (n_padded > n) memset(p + n * size, 0, (n_padded - n) * size);
    return m->staged + at;
}

static const void *put_slots(const struct backend_model *m, struct carver *c, const int64_t *slot,
                             uint32_t n, uint32_t n_padded) {
    int64_t *p = (int64_t *)(void *)(c->base + c->at);
    const void *at = put(m, c, slot, n, n_padded, sizeof(*slot));

    for (uint32_t i = n; i < n_padded; i++)
        p[i] = -1;
    return at;
}

static const void *put_list(struct backend_model *m, struct carver *c,
                            const struct backend_stage *s, const struct backend_step *step,
                            uint32_t n_tokens, struct cuda_bucket bucket, uint32_t window,
                            struct attend_grid *grid) {
    uint64_t at = c->at;
    void *list = c->base + at;

    if (bucket.kind == CUDA_EXACT)
        attend_plan(m->planner, s->row, step->n_rows, n_tokens, n_tokens, 0, window, list, grid);
    else if (bucket.kind == CUDA_ROWS)
        attend_plan(m->planner, s->row, step->n_rows, n_tokens, bucket.n, bucket.n, window, list,
                    grid);
    else
        attend_plan_mixed(m->planner, s->row, step->n_rows, n_tokens, bucket.n,
                          bucket.kind == CUDA_MIXED, window, list, grid);
    carve(c, grid->n_bytes);
    return m->staged + at;
}

uint32_t cuda_biases_before(const struct backend_bias *bias, uint32_t n_bias, uint32_t output) {
    uint32_t n = 0;

    while (n < n_bias && bias[n].output < output)
        n++;
    return n;
}

static const void *put_pieces(const struct backend_model *m, struct carver *c,
                              const struct backend_bias *bias, const struct backend_step *step) {
    uint64_t at = c->at;
    uint32_t n_pieces = MAX(CEIL_DIV(step->n_outputs, m->head_rows), 1u);
    struct backend_step *piece = carve(c, n_pieces * sizeof(*piece));

    for (uint32_t i = 0; i < n_pieces; i++) {
        uint32_t first = i * m->head_rows, n = MIN(m->head_rows, step->n_outputs - first);

        piece[i] = *step;
        piece[i].n_outputs = n;
        piece[i].n_bias = cuda_biases_before(bias, step->n_bias, first + n) -
                          cuda_biases_before(bias, step->n_bias, first);
    }
    return m->staged + at;
}

static const void *put_biases(const struct backend_model *m, struct carver *c,
                              const struct backend_bias *bias, uint32_t n) {
    struct backend_bias *p = (struct backend_bias *)(void *)(c->base + c->at);
    const void *at = put(m, c, bias, n, n, sizeof(*bias));

    for (uint32_t i = 0; i < n; i++)
        p[i].output %= m->head_rows;
    return at;
}

void cuda_pack(struct backend_model *m, uint32_t slot, const struct backend_step *step,
               struct cuda_bucket bucket, struct cuda_packed *out) {
    static const struct backend_step nothing;
    const struct backend_stage *s = &m->host.slot[slot];
    struct carver c = {.base = m->slot[slot].packed};
    struct cuda_forward *f = &out->forward;
    uint32_t n_tokens, n_padded;
    const struct backend_row *last;

    if (!step) step = &nothing;
    last = step->n_rows ? &s->row[step->n_rows - 1] : NULL;
    n_tokens =
        last ? last->first_token + last->n_tokens : 0; /* what belongs to no row is dropped */
    n_padded = bucket.kind == CUDA_EXACT ? n_tokens : bucket.n;
    *out = (struct cuda_packed){0};
    f->n_tokens = n_padded;
    f->n_outputs = bucket.kind == CUDA_ROWS ? bucket.n : step->n_outputs;
    f->token = put(m, &c, s->token, n_tokens, n_padded, sizeof(*s->token));
    f->position = put(m, &c, s->position, n_tokens, n_padded, sizeof(*s->position));
    f->kv_slot = put_slots(m, &c, s->kv_slot, n_tokens, n_padded);
    for (int i = 0; i < 2; i++) {
        if (m->has_kind[i])
            f->list[i] = put_list(m, &c, s, step, n_tokens, bucket, i ? m->g.sliding_window : 0,
                                  &f->grid[i]);
    }
    f->output = put(m, &c, s->output, step->n_outputs, f->n_outputs, sizeof(*s->output));
    out->piece = put_pieces(m, &c, s->bias, step);
    out->update = put(m, &c, s->update, step->n_updates, step->n_updates, sizeof(*s->update));
    out->bias = put_biases(m, &c, s->bias, step->n_bias);
    out->n_bytes = c.at;
}

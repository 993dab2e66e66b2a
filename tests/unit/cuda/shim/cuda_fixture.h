/* tests/unit/cuda/shim/cuda_fixture.h - the whole CUDA backend on the shim, beside ref, fed with
 * the same steps.
 *
 * Sequences live in rows; a step is planned (cuda_fixture_plan), laid out for both sides and run
 * (cuda_fixture_step). Both results of each output must agree within the rounding of bf16: logprobs
 * of the best five within CUDA_FIXTURE_BOUND, and the tokens chosen, unless the reference finds
 * them nearly equal. The sequences go on with the reference's tokens, so that one rounding does not
 * end a comparison. */
#ifndef TESTS_UNIT_CUDA_SHIM_CUDA_FIXTURE_H
#define TESTS_UNIT_CUDA_SHIM_CUDA_FIXTURE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/cuda/cuda_internal.h"
#include "tests/shim/shim_control.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "tests/support/tiny_model.h"

#define CUDA_FIXTURE_CONTEXT 128u
#define CUDA_FIXTURE_BLOCK   16u
#define CUDA_FIXTURE_TABLE   (CUDA_FIXTURE_CONTEXT / CUDA_FIXTURE_BLOCK)
#define CUDA_FIXTURE_ROWS    12u
#define CUDA_FIXTURE_BLOCKS  128u
#define CUDA_FIXTURE_TOP     5u
#define CUDA_FIXTURE_BOUND   0.10  /* of a logprob: a layer rounds a dozen times to 8 bits */
#define CUDA_FIXTURE_MEAN    0.015 /* of the root mean square: a mistake moves all */
#define CUDA_FIXTURE_E4M3    2.0   /* times as much: bf16 that differ may become other codes */
#define CUDA_FIXTURE_I8      1.5

struct cuda_fixture_side {
    const struct backend_ops *ops;
    struct backend_device *dev;
    struct backend_model *model;
    struct backend_stage stage[2];
    uint64_t block_bytes;
    uint8_t *host_pool;
};

struct cuda_fixture_seq {
    bool is_live;
    uint32_t n, n_prompt, n_computed;
    uint32_t token[CUDA_FIXTURE_CONTEXT + 1];
    uint32_t block[CUDA_FIXTURE_TABLE], n_blocks,
        n_sent; /* n_sent: of the table, to the backends */
};

struct cuda_fixture_setup {
    uint32_t max_rows, max_step_tokens, max_outputs, n_blocks, n_host_blocks, n_slots;
    uint32_t tp_size; /* 0: one device; else so many ranks, by way of backend_tp */
    bool is_deterministic, gives_room;
};

struct cuda_fixture {
    struct tiny_shape shape;
    struct cuda_fixture_setup setup;
    struct cuda_fixture_side ref, cuda;
    struct rng rng;
    struct cuda_fixture_seq seq[CUDA_FIXTURE_ROWS];
    uint32_t users[CUDA_FIXTURE_BLOCKS]; /* of a block */
    struct {
        uint32_t seq, n;
    } plan[CUDA_FIXTURE_ROWS];
    uint32_t n_plan;
    struct backend_output how; /* of every output, except its position */
    struct backend_step step;  /* that ran last */
    double worst, sum_squares; /* of the differences met, */
    uint32_t n_compared;       /* so many */
    double scale;              /* of logits: 1, or more where the embedding is the head; and of
                                * quantised caches */
};

static const struct tiny_shape UNUSED cuda_fixture_llama = {.n_layers = 2,
                                                            .d_model = 64,
                                                            .n_heads = 2,
                                                            .n_kv_heads = 1,
                                                            .head_dim = 64,
                                                            .d_ff = 96,
                                                            .vocab = 300,
                                                            .max_context = CUDA_FIXTURE_CONTEXT,
                                                            .weight_dtype = DTYPE_BF16,
                                                            .kv_dtype = DTYPE_BF16};

static UNUSED void cuda_fixture_must(enum status st, const struct error *err, const char *what) {
    if (st != ST_OK) fail_msg("%s: %s: %s", what, status_name(st), err->message);
}

static struct backend_limits cuda_fixture_limits(const struct cuda_fixture_setup *u,
                                                 const struct tiny_shape *s) {
    return (struct backend_limits){.max_rows = u->max_rows,
                                   .max_step_tokens = u->max_step_tokens,
                                   .max_blocks_per_row =
                                       CEIL_DIV(s->max_context, CUDA_FIXTURE_BLOCK),
                                   .max_outputs = u->max_outputs ? u->max_outputs : u->max_rows,
                                   .max_logprobs = CUDA_FIXTURE_TOP,
                                   .n_slots = u->n_slots ? u->n_slots : 1,
                                   .block_size = CUDA_FIXTURE_BLOCK,
                                   .max_bias = 64,
                                   .max_masks = 4,
                                   .is_deterministic = u->is_deterministic};
}

/* Once; what it gives is free then. */
static void cuda_fixture_give_room(struct cuda_fixture_side *side) {
    struct backend_info before, after;

    side->ops->info(side->dev, &before);
    assert_true(side->ops->give_room(side->model));
    side->ops->info(side->dev, &after);
    assert_true(after.memory_free > before.memory_free);
    assert_false(side->ops->give_room(side->model));
}

static void cuda_fixture_open_side(struct cuda_fixture_side *side, const struct backend_ops *ops,
                                   const struct cuda_fixture_setup *u,
                                   const struct tiny_shape *shape, uint64_t seed,
                                   struct error *err) {
    float inv_freq[128];
    uint8_t layer_kind[64];
    struct geometry g = tiny_geometry(shape, inv_freq, layer_kind);
    struct backend_limits limits = cuda_fixture_limits(u, shape);
    struct backend_config config = {.ranks = &backend_cuda, .tp_size = u->tp_size};
    struct backend_kv_info kv;

    side->ops = ops;
    if (ops != &backend_tp) config = (struct backend_config){0};
    cuda_fixture_must(ops->open(&side->dev, &config, err), err, "open");
    cuda_fixture_must(ops->load_begin(side->dev, &side->model, &g, &limits, err), err,
                      "load_begin");
    cuda_fixture_must(tiny_load(ops, side->model, shape, seed, ROLE_COUNT, err), err,
                      "load_tensor");
    cuda_fixture_must(ops->load_end(side->model, err), err, "load_end");
    if (u->gives_room && ops != &backend_ref) cuda_fixture_give_room(side);
    cuda_fixture_must(ops->kv_alloc(side->model, u->n_blocks, u->n_host_blocks, &kv, err), err,
                      "kv_alloc");
    side->block_bytes = kv.block_bytes;
    side->host_pool = kv.host_pool;
    for (uint32_t i = 0; i < limits.n_slots; i++)
        ops->stage(side->model, i, &side->stage[i]);
}

static void cuda_fixture_close_side(struct cuda_fixture_side *side) {
    side->ops->unload(side->model);
    side->ops->close(side->dev);
}

/* Every byte of the pool a NaN: what is read without having been written shows. */
static UNUSED void cuda_fixture_poison(struct cuda_fixture_side *side, uint32_t n_blocks) {
    uint8_t *block = mem_alloc(side->block_bytes);

    memset(block, 0xFF, side->block_bytes);
    for (uint32_t i = 0; i < n_blocks; i++)
        assert_int_equal(side->ops->kv_write(side->model, i, block, side->block_bytes), ST_OK);
    mem_free(block);
}

/* Without ref: the sequences go on with the backend's own tokens. */
static UNUSED struct cuda_fixture *cuda_fixture_open_alone(const struct tiny_shape *shape,
                                                           const struct cuda_fixture_setup *setup,
                                                           uint64_t seed) {
    struct cuda_fixture *s = mem_zalloc(sizeof(*s));
    struct error err = {0};

    s->shape = *shape;
    s->scale = shape->is_tied ? 0.3 * sqrt((double)shape->d_model) : 1;
    if (shape->kv_dtype == DTYPE_F8E4M3) s->scale *= CUDA_FIXTURE_E4M3;
    if (shape->kv_dtype == DTYPE_I8) s->scale *= CUDA_FIXTURE_I8;
    s->setup = *setup;
    if (s->setup.n_blocks == 0) s->setup.n_blocks = setup->max_rows * CUDA_FIXTURE_TABLE + 1;
    rng_seed(&s->rng, seed);
    s->users[0] = 1; /* the null block */
    shim_set(seed, seed % 2 ? SHIM_COPIES_LATE : SHIM_COPIES_EARLY);
    s->how = (struct backend_output){.top_p = 1,
                                     .repetition_penalty = 1,
                                     .n_logprobs = CUDA_FIXTURE_TOP,
                                     .mask = BACKEND_NO_MASK};
    if (setup->tp_size) shim_set_devices(setup->tp_size);
    cuda_fixture_open_side(&s->cuda, setup->tp_size ? &backend_tp : &backend_cuda, &s->setup, shape,
                           seed, &err);
    return s;
}

static UNUSED struct cuda_fixture *cuda_fixture_open(const struct tiny_shape *shape,
                                                     const struct cuda_fixture_setup *setup,
                                                     uint64_t seed) {
    struct cuda_fixture *s = cuda_fixture_open_alone(shape, setup, seed);
    struct error err = {0};

    cuda_fixture_open_side(&s->ref, &backend_ref, &s->setup, shape, seed, &err);
    return s;
}

static UNUSED void cuda_fixture_close(struct cuda_fixture *s) {
    double mean = sqrt(s->sum_squares / MAX(s->n_compared, 1u));

    if (!(mean <= CUDA_FIXTURE_MEAN * s->scale))
        fail_msg("logprobs differ by %g in the mean", mean);
    if (s->ref.ops) cuda_fixture_close_side(&s->ref);
    cuda_fixture_close_side(&s->cuda);
    mem_free(s);
}

/* --- sequences */

static uint32_t cuda_fixture_take_block(struct cuda_fixture *s) {
    uint32_t at = (uint32_t)rng_below(&s->rng, s->setup.n_blocks);

    for (uint32_t i = 0; i < s->setup.n_blocks; i++) {
        uint32_t block = (at + i) % s->setup.n_blocks;

        if (s->users[block]++ == 0) return block;
        s->users[block]--;
    }
    fail_msg("no block is free");
    return 0;
}

static void cuda_fixture_bind(struct cuda_fixture *s, uint32_t row) {
    struct cuda_fixture_seq *q = &s->seq[row];
    struct cuda_fixture_side *sides[] = {&s->cuda, &s->ref};

    for (int i = 0; i < 2 && sides[i]->ops; i++)
        assert_int_equal(sides[i]->ops->row_bind(sides[i]->model, row, q->token, q->n_prompt,
                                                 q->token + q->n_prompt, q->n - q->n_prompt),
                         ST_OK);
}

static void cuda_fixture_unbind(struct cuda_fixture *s, uint32_t row) {
    if (s->ref.ops) s->ref.ops->row_free(s->ref.model, row);
    s->cuda.ops->row_free(s->cuda.model, row);
}

static UNUSED void cuda_fixture_start(struct cuda_fixture *s, uint32_t row, uint32_t n_prompt) {
    struct cuda_fixture_seq *q = &s->seq[row];

    *q = (struct cuda_fixture_seq){.is_live = true, .n = n_prompt, .n_prompt = n_prompt};
    for (uint32_t i = 0; i < n_prompt; i++)
        q->token[i] = (uint32_t)rng_below(&s->rng, s->shape.vocab);
    cuda_fixture_bind(s, row);
}

static void cuda_fixture_drop_blocks(struct cuda_fixture *s, uint32_t row) {
    struct cuda_fixture_seq *q = &s->seq[row];

    while (q->n_blocks > 0)
        s->users[q->block[--q->n_blocks]]--;
    q->n_sent = 0;
}

static UNUSED void cuda_fixture_end(struct cuda_fixture *s, uint32_t row) {
    cuda_fixture_drop_blocks(s, row);
    cuda_fixture_unbind(s, row);
    s->seq[row].is_live = false;
}

/* Its KV is gone; it is computed again, under the same row, with what it has put out as its own. */
static UNUSED void cuda_fixture_preempt(struct cuda_fixture *s, uint32_t row) {
    cuda_fixture_drop_blocks(s, row);
    s->seq[row].n_computed = 0;
    cuda_fixture_unbind(s, row);
    cuda_fixture_bind(s, row);
}

/* --- steps */

static UNUSED void cuda_fixture_plan(struct cuda_fixture *s, uint32_t seq, uint32_t n) {
    s->plan[s->n_plan].seq = seq;
    s->plan[s->n_plan++].n = n;
}

static void cuda_fixture_lay_out(struct cuda_fixture *s, uint32_t row, uint32_t n,
                                 struct backend_stage *t, struct backend_step *step) {
    struct cuda_fixture_seq *q = &s->seq[row];
    uint32_t end = q->n_computed + n;

    while (q->n_blocks * CUDA_FIXTURE_BLOCK < end)
        q->block[q->n_blocks++] = cuda_fixture_take_block(s);
    for (; q->n_sent < q->n_blocks; q->n_sent++)
        t->update[step->n_updates++] =
            (struct backend_table_update){row, q->n_sent, q->block[q->n_sent]};
    t->row[step->n_rows++] = (struct backend_row){row, step->n_tokens, n, end};
    for (uint32_t i = q->n_computed; i < end; i++) {
        t->token[step->n_tokens] = (int32_t)q->token[i];
        t->position[step->n_tokens] = i;
        t->kv_slot[step->n_tokens++] =
            (int64_t)q->block[i / CUDA_FIXTURE_BLOCK] * CUDA_FIXTURE_BLOCK + i % CUDA_FIXTURE_BLOCK;
    }
    q->n_computed = end;
    if (end < q->n) return;
    t->output[step->n_outputs] = s->how;
    t->output[step->n_outputs].row = row;
    t->output[step->n_outputs].token_index = step->n_tokens - 1;
    t->output[step->n_outputs++].position = end;
}

static void cuda_fixture_copy_stage(struct backend_stage *to, const struct backend_stage *from,
                                    const struct backend_step *step) {
    memcpy(to->token, from->token, step->n_tokens * sizeof(*to->token));
    memcpy(to->position, from->position, step->n_tokens * sizeof(*to->position));
    memcpy(to->kv_slot, from->kv_slot, step->n_tokens * sizeof(*to->kv_slot));
    memcpy(to->row, from->row, step->n_rows * sizeof(*to->row));
    memcpy(to->update, from->update, step->n_updates * sizeof(*to->update));
    memcpy(to->output, from->output, step->n_outputs * sizeof(*to->output));
}

static void cuda_fixture_run_side(struct cuda_fixture_side *side, uint32_t slot,
                                  const struct backend_step *step) {
    backend_fence fence;
    struct error err = {0};

    cuda_fixture_must(side->ops->submit(side->model, slot, step, &fence, &err), &err, "submit");
    cuda_fixture_must(side->ops->wait(side->dev, fence, 60000000), &err, "wait");
}

/* The reference's logprob of a token, among its best; far below when it is none of them. */
static double cuda_fixture_ref_logprob(const struct backend_stage *r, uint32_t i, int32_t token) {
    for (uint32_t j = 0; j < CUDA_FIXTURE_TOP; j++) {
        if (r->out_top_token[i * CUDA_FIXTURE_TOP + j] == token)
            return (double)r->out_top_logprob[i * CUDA_FIXTURE_TOP + j];
    }
    return -1e9;
}

static void cuda_fixture_compare(struct cuda_fixture *s, uint32_t i) {
    const struct backend_stage *r = &s->ref.stage[0], *c = &s->cuda.stage[0];
    uint32_t row = r->output[i].row, at = i * CUDA_FIXTURE_TOP;
    double best = (double)r->out_top_logprob[at];

    if (c->out_flags[i]) fail_msg("row %u: flags %u", row, c->out_flags[i]);
    for (uint32_t j = 0; j < CUDA_FIXTURE_TOP; j++) {
        double d = fabs((double)c->out_top_logprob[at + j] - (double)r->out_top_logprob[at + j]);

        s->worst = MAX(s->worst, d);
        s->sum_squares += d * d;
        s->n_compared++;
        if (!(d <= CUDA_FIXTURE_BOUND * s->scale))
            fail_msg("row %u, position %u: logprob %u is %g, reference %g", row,
                     r->output[i].position, j, (double)c->out_top_logprob[at + j],
                     (double)r->out_top_logprob[at + j]);
    }
    if (best - cuda_fixture_ref_logprob(r, i, c->out_token[i]) > 2 * CUDA_FIXTURE_BOUND * s->scale)
        fail_msg("row %u, position %u: token %d, reference %d", row, r->output[i].position,
                 c->out_token[i], r->out_token[i]);
}

/* Lays the plan out in the slot of one side. */
static UNUSED void cuda_fixture_lay_out_plan(struct cuda_fixture *s, struct backend_stage *t,
                                             struct backend_step *step) {
    *step = (struct backend_step){0};
    for (int is_long = 0; is_long < 2; is_long++) {
        for (uint32_t i = 0; i < s->n_plan; i++) {
            if ((s->plan[i].n > 1) == is_long)
                cuda_fixture_lay_out(s, s->plan[i].seq, s->plan[i].n, t, step);
        }
    }
    s->n_plan = 0;
}

/* Runs the plan on both sides, compares, and lets the sequences grow. */
static UNUSED void cuda_fixture_step(struct cuda_fixture *s) {
    struct cuda_fixture_side *lead = s->ref.ops ? &s->ref : &s->cuda;
    const struct backend_stage *t = &lead->stage[0];

    cuda_fixture_lay_out_plan(s, &lead->stage[0], &s->step);
    if (lead != &s->cuda) {
        cuda_fixture_copy_stage(&s->cuda.stage[0], t, &s->step);
        cuda_fixture_run_side(&s->ref, 0, &s->step);
    }
    cuda_fixture_run_side(&s->cuda, 0, &s->step);
    for (uint32_t i = 0; i < s->step.n_outputs; i++) {
        struct cuda_fixture_seq *q = &s->seq[t->output[i].row];

        if (lead != &s->cuda) cuda_fixture_compare(s, i);
        q->token[q->n++] = (uint32_t)t->out_token[i];
    }
}

/* Tokens that a sequence has still to compute. */
static UNUSED uint32_t cuda_fixture_left(const struct cuda_fixture *s, uint32_t seq) {
    return s->seq[seq].n - s->seq[seq].n_computed;
}

/* Runs steps on random models of one shape, over memory filled with NaN. */
static UNUSED void cuda_fixture_run_random_models(const struct tiny_shape *shape,
                                                  const struct cuda_fixture_setup *setup,
                                                  void (*steps)(struct cuda_fixture *s)) {
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct cuda_fixture *s = cuda_fixture_open(shape, setup, seed);

        cuda_fixture_poison(&s->cuda, s->setup.n_blocks);
        steps(s);
        cuda_fixture_close(s);
    }
}

#endif

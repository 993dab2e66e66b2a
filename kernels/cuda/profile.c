/* kernels/cuda/profile.c - the largest step there can be, run once before the pool is there.
 *
 * A driver takes memory behind the scenes: for kernels when they are first launched, for the
 * library of products, for local arrays. So every kernel runs here once, on the largest shapes;
 * what is free afterwards is free for KV. The step reads block 0 of a pool of one block, whatever
 * the position, and writes nowhere.
 *
 * A second run is timed: how fast prompts are computed. What part of that is attention is known
 * from its share of the multiply-adds, which it does at about half the speed of the products. */
#include "common/base/mem.h"
#include "kernels/cuda/cuda_internal.h"

#define ATTENTION_SPEED 0.5 /* of the products' multiply-adds per second */

/* Rows as long as there may be, until the tokens or the rows are used up. */
static void fill_prompts(struct backend_model *m, struct backend_step *step) {
    const struct backend_limits *l = &m->host.limits;
    struct backend_stage *s = &m->host.slot[0];
    uint64_t longest = MIN((uint64_t)l->max_blocks_per_row * OPS_BLOCK_SIZE, m->g.max_context);

    while (step->n_rows < l->max_rows && step->n_tokens < l->max_step_tokens) {
        uint32_t n = (uint32_t)MIN(longest, l->max_step_tokens - step->n_tokens);

        s->row[step->n_rows] = (struct backend_row){step->n_rows, step->n_tokens, n, n};
        step->n_rows++;
        for (uint32_t i = 0; i < n; i++, step->n_tokens++) {
            s->token[step->n_tokens] = 0;
            s->position[step->n_tokens] = i;
            s->kv_slot[step->n_tokens] = -1;
        }
    }
}

/* The first uses every parameter, so that all of sampling runs. */
static void fill_outputs(struct backend_model *m, struct backend_step *step) {
    struct backend_stage *s = &m->host.slot[0];

    step->n_outputs = MIN(m->head_rows, step->n_tokens);
    for (uint32_t i = 0; i < step->n_outputs; i++)
        s->output[i] = (struct backend_output){
            .token_index = i, .top_p = 1, .repetition_penalty = 1, .mask = BACKEND_NO_MASK};
    if (step->n_outputs == 0) return;
    s->output[0].temperature = 1;
    s->output[0].top_k = 2;
    s->output[0].top_p = 0.5f;
    s->output[0].repetition_penalty = 1.1f;
    s->output[0].n_logprobs = m->host.limits.max_logprobs;
}

/* The ranks meet first: the driver loads a kernel when it is first launched, which must not begin
 * while another rank's sum waits for this one. */
static enum status run(struct backend_model *m, const struct backend_step *step,
                       struct error *err) {
    backend_fence fence;
    enum status st = cuda_meet(m->dev, err);

    if (st == ST_OK) st = cuda_submit(m, 0, step, &fence, err);
    if (st != ST_OK) return st;
    return gpu_stream_wait(m->dev->compute, err);
}

/* Multiply-adds of one token in the products of all layers. */
static double product_work(const struct geometry *g) {
    double q = (double)g->n_heads * g->head_dim, kv = (double)g->n_kv_heads * g->head_dim;

    return (double)g->n_layers * g->d_model * (2 * q + 2 * kv + 3.0 * g->d_ff);
}

static void estimate(struct backend_model *m, const struct backend_step *step, double us) {
    const struct geometry *g = &m->g;
    double per_context = 2.0 * g->n_layers * g->n_heads * g->head_dim / ATTENTION_SPEED;
    double context = (double)m->host.slot[0].row[0].n_tokens / 2;

    m->dev->attn_context = product_work(g) / per_context;
    m->dev->prefill_tokens_per_s =
        step->n_tokens * 1e6 / MAX(us, 1.0) * (1 + context / m->dev->attn_context);
}

/* A step of one token, whose kernels are others. */
static enum status run_small(struct backend_model *m, struct error *err) {
    struct backend_step step = {.n_tokens = 1, .n_rows = 1, .n_updates = 1};
    struct backend_stage *s = &m->host.slot[0];

    s->row[0] = (struct backend_row){0, 0, 1, 1};
    s->position[0] = 0;
    s->update[0] = (struct backend_table_update){0, 0, 0};
    fill_outputs(m, &step);
    return run(m, &step, err);
}

static enum status run_all(struct backend_model *m, struct error *err) {
    struct backend_step step = {0};
    enum status st;

    fill_prompts(m, &step);
    fill_outputs(m, &step);
    if ((st = run(m, &step, err)) != ST_OK) return st;
    if ((st = run(m, &step, err)) != ST_OK) return st;
    estimate(m, &step, cuda_step_us(m, 0));
    return run_small(m, err);
}

enum status cuda_profile(struct backend_model *m, struct error *err) {
    enum status st = cuda_take(m, &m->kv, m->host.block_bytes, "a KV block", err);

    if (st != ST_OK) return st;
    gpu_fill(m->dev->compute, m->kv, 0, m->host.block_bytes);
    m->host.n_blocks = 1;
    st = run_all(m, err);
    m->host.n_blocks = 0;
    m->host.previous_outputs = 0;
    gpu_fill(m->dev->compute, m->row, 0, m->host.limits.max_rows * sizeof(*m->row));
    cuda_give_back(m, m->kv, m->host.block_bytes);
    m->kv = NULL;
    return st;
}

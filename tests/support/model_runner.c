/* tests/support/model_runner.c - see model_runner.h. */
#include "tests/support/model_runner.h"

#include <string.h>

#include "common/base/mem.h"
#include "kernels/dtype.h"

static enum status poison_null_block(struct model_runner *r, uint64_t block_bytes) {
    uint8_t *nan = mem_alloc(block_bytes);
    enum status st;

    memset(nan, 0xFF, block_bytes); /* a NaN as bf16 and as f32 */
    st = r->config.ops->kv_write(r->loaded, 0, nan, block_bytes);
    mem_free(nan);
    return st;
}

static bool slides_everywhere(const struct geometry *g) {
    return g->layer_kind && !memchr(g->layer_kind, 0, g->n_layers);
}

enum status model_runner_open(struct model_runner *r, const char *folder,
                              const struct model_runner_config *config, uint32_t max_tokens,
                              struct error *err) {
    const struct backend_ops *ops = config->ops;
    struct backend_config device = {.path = config->path, .n_threads = 1};
    struct backend_kv_info kv;
    enum status st;

    *r = (struct model_runner){.config = *config};
    if (!r->config.block_size) r->config.block_size = 16;
    if (!r->config.n_step_tokens) r->config.n_step_tokens = 24;
    if ((st = model_open(&r->model, folder, err)) != ST_OK) return st;
    model_geometry(r->model, &r->g);
    r->g.weight_dtype = config->weight_dtype;
    r->g.kv_dtype = config->kv_dtype;
    r->g.max_context = MIN(r->g.max_context, max_tokens);
    r->all_slide = slides_everywhere(&r->g);
    r->limits = (struct backend_limits){
        .max_rows = 1,
        .max_step_tokens = r->config.n_step_tokens,
        .max_blocks_per_row = CEIL_DIV(max_tokens, r->config.block_size),
        .max_outputs = r->g.vocab,
        .n_slots = 1,
        .block_size = r->config.block_size,
    };
    if ((st = ops->open(&r->dev, &device, err)) != ST_OK) return st;
    st = model_load(r->model, ops, r->dev, &r->g, &r->limits, NULL, NULL, NULL, &r->loaded, err);
    if (st != ST_OK) return st;
    st = ops->kv_alloc(r->loaded, r->limits.max_blocks_per_row + 1, 0, &kv, err);
    if (st == ST_OK) st = poison_null_block(r, kv.block_bytes);
    ops->stage(r->loaded, 0, &r->stage);
    model_runner_reset(r);
    return st;
}

void model_runner_close(struct model_runner *r) {
    if (r->loaded) r->config.ops->unload(r->loaded);
    if (r->dev) r->config.ops->close(r->dev);
    model_close(r->model);
}

void model_runner_reset(struct model_runner *r) {
    r->n_done = 0;
    (void)r->config.ops->row_bind(r->loaded, 0, NULL, 0, NULL,
                                  0); /* an empty one is always right */
}

/* Blocks stand in the pool in falling order, so that neighbours in the sequence are none there. */
static uint32_t block_at(const struct model_runner *r, uint32_t index) {
    return r->limits.max_blocks_per_row - index;
}

static void put_table(struct model_runner *r, struct backend_step *step) {
    uint32_t size = r->config.block_size, first = 0;

    if (r->all_slide && r->n_done >= r->g.sliding_window)
        first = (r->n_done - r->g.sliding_window + 1) / size;
    for (uint32_t i = 0; i < r->limits.max_blocks_per_row; i++)
        r->stage.update[step->n_updates++] =
            (struct backend_table_update){0, i, i < first ? 0 : block_at(r, i)};
}

static void put_tokens(struct model_runner *r, struct backend_step *step, const uint32_t *tokens,
                       uint32_t n) {
    uint32_t size = r->config.block_size;

    put_table(r, step);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t position = r->n_done + i;

        r->stage.token[i] = (int32_t)tokens[i];
        r->stage.position[i] = position;
        r->stage.kv_slot[i] = (int64_t)block_at(r, position / size) * size + position % size;
    }
    r->stage.row[0] = (struct backend_row){0, 0, n, r->n_done + n};
    step->n_rows = 1;
    step->n_tokens = n;
    r->n_done += n;
}

static enum status run(struct model_runner *r, const struct backend_step *step, struct error *err) {
    backend_fence fence;
    enum status st = r->config.ops->submit(r->loaded, 0, step, &fence, err);

    if (st == ST_OK) st = r->config.ops->wait(r->dev, fence, UINT64_MAX);
    for (uint32_t i = 0; i < step->n_outputs && st == ST_OK; i++) {
        if (r->stage.out_flags[i])
            st = error_set(err, ST_INTERNAL, "output %u of a step has flags %u (1: not finite)", i,
                           r->stage.out_flags[i]);
    }
    return st;
}

enum status model_runner_score(struct model_runner *r, const uint32_t *tokens, uint32_t n,
                               uint32_t n_scored, float *out, struct error *err) {
    uint32_t vocab = r->g.vocab, taken;

    for (uint32_t at = 0; at < n; at += taken) {
        bool is_scored = at >= n - n_scored;
        struct backend_step step = {0};
        enum status st;

        taken = is_scored ? 1 : MIN(n - n_scored - at, r->config.n_step_tokens);
        put_tokens(r, &step, tokens + at, taken);
        for (uint32_t id = 0; id < vocab && is_scored; id++)
            r->stage.output[step.n_outputs++] = (struct backend_output){.want = WANT_SCORE,
                                                                        .score_token = id,
                                                                        .position = r->n_done,
                                                                        .top_p = 1,
                                                                        .repetition_penalty = 1,
                                                                        .mask = BACKEND_NO_MASK};
        if ((st = run(r, &step, err)) != ST_OK) return st;
        if (!is_scored) continue;
        memcpy(out, r->stage.out_logprob, vocab * sizeof(*out));
        out += vocab;
    }
    return ST_OK;
}

enum status model_runner_next(struct model_runner *r, uint32_t token, uint32_t *next,
                              struct error *err) {
    struct backend_step step = {0};
    enum status st;

    put_tokens(r, &step, &token, 1);
    r->stage.output[step.n_outputs++] = (struct backend_output){
        .position = r->n_done, .top_p = 1, .repetition_penalty = 1, .mask = BACKEND_NO_MASK};
    st = run(r, &step, err);
    *next = (uint32_t)r->stage.out_token[0];
    return st;
}

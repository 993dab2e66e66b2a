/* kernels/cuda/step.c - a step, from the engine's arrays to its fence.
 *
 *      engine fills slot k ─▶ checks ─▶ packed in pinned memory (stage.c)
 *                                                                         │ compute stream:
 *                     moves that this step must come after (kv.c) ───────▶│
 *                                            staged arrays, block tables  │ a kernel that reads packed
 *                                                          decoder, head  │ a graph, or call by call
 *                                                          sampling       │ one to eight launches
 *                     slot k's out arrays ◀───────────────────────── out  │ a kernel that writes them
 *                                                                         ▼ ended, fence
 *
 * Nothing waits: while the device runs one step the engine fills the other slot and submits it. Its
 * tokens may be references to outputs of the step before, which are read on the device where
 * sampling left them (`out`), after that step and before this one overwrites them.
 *
 * Graphs. A step runs the graph of the smallest bucket that holds it (graph.c), recorded once for
 * padded shapes: of one-token rows decoder and head, of a few hundred tokens the decoder. What
 * depends on contents is in the staged arrays; what depends on the settings of the outputs,
 * sampling, is launched behind it. Larger steps are launched one by one: hundreds of calls, but the
 * device has many milliseconds of work.
 *
 * On the path of a step are no allocation, no lock, and no call that waits unless the engine
 * submits a slot whose step has not ended. */
#include <string.h>

#include "common/base/mem.h"
#include "kernels/cuda/cuda_internal.h"

/* --- what is there before the first step ------------------------------------------------------ */

struct attend_shape cuda_attend_shape(const struct geometry *g, const struct backend_limits *l,
                                      uint32_t n_sm) {
    return (struct attend_shape){.n_heads = g->n_heads,
                                 .n_kv_heads = g->n_kv_heads,
                                 .head_dim = g->head_dim,
                                 .max_rows = l->max_rows,
                                 .max_step_tokens = l->max_step_tokens,
                                 .n_sm = n_sm,
                                 .is_deterministic = l->is_deterministic};
}

static enum status alloc_attention(struct backend_model *m, struct error *err) {
    const struct geometry *g = &m->g;
    struct attend_shape shape =
        cuda_attend_shape(g, &m->host.limits, gpu_properties(m->dev->gpu)->n_sm);
    uint64_t n, n_ended;
    enum status st = attend_check(&shape, err);

    if (st != ST_OK) return st;
    m->planner = attend_planner_create(&shape);
    n = (uint64_t)attend_max_partials(m->planner) * g->n_heads;
    st = cuda_take(m, &m->partial, n * g->head_dim * sizeof(float), "parts of attention", err);
    if (st == ST_OK)
        st = cuda_take(m, &m->partial_state, n * 2 * sizeof(float), "parts of attention", err);
    n_ended = (uint64_t)attend_max_partials(m->planner) * g->n_kv_heads * sizeof(*m->ended);
    if (st == ST_OK) st = cuda_take(m, &m->ended, n_ended, "parts of attention", err);
    if (st == ST_OK) gpu_fill(m->dev->compute, m->ended, 0, n_ended);
    return st;
}

static enum status alloc_outputs(struct backend_model *m, struct error *err) {
    const struct backend_limits *l = &m->host.limits;
    uint64_t n_top = (uint64_t)l->max_outputs * l->max_logprobs;
    uint64_t n_scratch = sampling_scratch_bytes(m->head_rows, m->g.vocab);
    uint64_t n_table = (uint64_t)l->max_rows * l->max_blocks_per_row * sizeof(*m->table);
    enum status st = cuda_take(m, &m->out, 4ull * l->max_outputs * 4, "outputs", err);

    if (st == ST_OK) st = cuda_take(m, &m->out_top_token, n_top * 4, "alternatives", err);
    if (st == ST_OK) st = cuda_take(m, &m->out_top_logprob, n_top * 4, "alternatives", err);
    if (st == ST_OK) st = cuda_take(m, &m->table, n_table, "block tables", err);
    if (st == ST_OK)
        st = cuda_take(m, &m->sampling_scratch, n_scratch, "working memory of sampling", err);
    if (st != ST_OK) return st;
    m->host.table = mem_zalloc(n_table); /* a copy, for kv.c */
    gpu_fill(m->dev->compute, m->out, 0, 4ull * l->max_outputs * 4);
    gpu_fill(m->dev->compute, m->table, 0, n_table);
    gpu_fill(m->dev->compute, m->sampling_scratch, 0, n_scratch);
    return ST_OK;
}

enum status cuda_step_init(struct backend_model *m, struct error *err) {
    enum status st = alloc_attention(m, err);

    if (st == ST_OK) st = cuda_stage_init(m, err);
    if (st == ST_OK) st = alloc_outputs(m, err);
    if (st == ST_OK) st = cuda_rows_init(m, err);
    for (uint32_t i = 0; i < m->host.limits.n_slots && st == ST_OK; i++) {
        st = gpu_event_open(m->dev->gpu, &m->slot[i].started, err);
        if (st == ST_OK) st = gpu_event_open(m->dev->gpu, &m->slot[i].ended, err);
    }
    cuda_graphs_init(m);
    return st;
}

void cuda_step_fini(struct backend_model *m) {
    cuda_graphs_fini(m);
    for (int i = 0; i < 2; i++) {
        gpu_event_close(m->slot[i].started);
        gpu_event_close(m->slot[i].ended);
        m->host.slot[i] = (struct backend_stage){0}; /* pinned, not host_fini's to free */
    }
    cuda_rows_fini(m);
    attend_planner_destroy(m->planner);
}

/* --- the parts of a step ---------------------------------------------------------------------- */

static void send(struct backend_model *m, uint32_t slot, const struct backend_step *step,
                 const struct cuda_packed *p) {
    const uint8_t *packed = m->slot[slot].packed;
    uint64_t updates_at = (uint64_t)((const uint8_t *)p->update - m->staged);

    ops_stage(m->dev->compute,
              &(struct stage_args){.from = packed,
                                   .to = m->staged,
                                   .n_bytes = p->n_bytes,
                                   .table = m->table,
                                   .update = (const void *)(packed + updates_at),
                                   .n_updates = step->n_updates,
                                   .table_stride = m->host.limits.max_blocks_per_row});
}

/* The device computes meanwhile what was launched before. */
static void send_masks(struct backend_model *m, uint32_t slot, const struct backend_step *step) {
    if (step->fill_masks) step->fill_masks(step->fill_arg);
    if (step->n_masks)
        gpu_copy(m->dev->compute, m->mask, m->host.slot[slot].mask,
                 (uint64_t)step->n_masks * CEIL_DIV(m->g.vocab, 32) * sizeof(*m->mask));
}

static void sample_piece(struct backend_model *m, uint32_t slot, const struct backend_step *step,
                         const struct cuda_packed *p, uint32_t first, uint32_t n) {
    const struct backend_stage *s = &m->host.slot[slot];
    uint64_t n_out = m->host.limits.max_outputs,
             top = (uint64_t)first * m->host.limits.max_logprobs;
    uint32_t first_bias = cuda_biases_before(s->bias, step->n_bias, first);
    uint32_t n_bias = cuda_biases_before(s->bias, step->n_bias, first + n) - first_bias;
    struct sampling_args a = {.vocab = m->g.vocab,
                              .vocab_stride = m->vocab_stride,
                              .max_context = m->g.max_context,
                              .max_logprobs = m->host.limits.max_logprobs,
                              .max_outputs = m->head_rows,
                              .n_bucket = n,
                              .step = p->piece + first / m->head_rows,
                              .logits = m->logits,
                              .output = p->forward.output + first,
                              .bias = p->bias + first_bias,
                              .mask = m->mask,
                              .history = m->history,
                              .row = m->row,
                              .out_token = m->out + first,
                              .out_logprob = (float *)m->out + n_out + first,
                              .out_rank = (uint32_t *)m->out + 2 * n_out + first,
                              .out_flags = (uint32_t *)m->out + 3 * n_out + first,
                              .out_top_token = m->out_top_token + top,
                              .out_top_logprob = m->out_top_logprob + top,
                              .scratch = m->sampling_scratch};

    sampling_launch(m->dev->compute, &a, sampling_needs(s->output + first, n, n_bias));
}

/* What the graph does not hold is launched here. */
static void compute(struct backend_model *m, uint32_t slot, const struct backend_step *step,
                    const struct cuda_packed *p, struct gpu_graph *graph, bool has_head) {
    if (graph) {
        gpu_graph_launch(graph, m->dev->compute);
    } else {
        cuda_decode(m, &p->forward);
    }
    send_masks(m, slot, step);
    for (uint32_t first = 0; first < step->n_outputs; first += m->head_rows) {
        uint32_t n = MIN(m->head_rows, step->n_outputs - first);

        if (!has_head) cuda_head(m, &p->forward, first, n);
        sample_piece(m, slot, step, p, first, n);
    }
}

static bool wants_alternatives(const struct backend_stage *s, const struct backend_step *step) {
    for (uint32_t i = 0; i < step->n_outputs; i++) {
        if (s->output[i].n_logprobs) return true;
    }
    return false;
}

static void add_piece(struct fetch_args *a, const void *from, void *to, uint32_t n) {
    a->piece[a->n_pieces++] = (struct fetch_piece){from, to, n};
}

static void fetch(struct backend_model *m, uint32_t slot, const struct backend_step *step) {
    const struct backend_stage *s = &m->host.slot[slot];
    uint32_t pitch = m->host.limits.max_outputs, n = step->n_outputs;
    struct fetch_args a = {.n_pieces = 0};

    if (n == 0) return;
    for (uint32_t i = 0; i < 4; i++)
        add_piece(&a, m->out + i * pitch, (int32_t *)m->slot[slot].out + i * pitch, n);
    if (wants_alternatives(s, step)) {
        add_piece(&a, m->out_top_token, s->out_top_token, n * m->host.limits.max_logprobs);
        add_piece(&a, m->out_top_logprob, s->out_top_logprob, n * m->host.limits.max_logprobs);
    }
    ops_fetch(m->dev->compute, &a);
}

/* --- submit ----------------------------------------------------------------------------------- */

/* Tokens that belong to no row are not computed. */
static enum status check_padding(const struct backend_stage *s, const struct backend_step *step,
                                 struct error *err) {
    const struct backend_row *last = step->n_rows ? &s->row[step->n_rows - 1] : NULL;
    uint32_t n = last ? last->first_token + last->n_tokens : 0;

    for (uint32_t i = 0; i < step->n_outputs; i++) {
        if (s->output[i].token_index >= n)
            return error_set(err, ST_INVALID, "output %u: token %u belongs to no row", i,
                             s->output[i].token_index);
    }
    return ST_OK;
}

static enum status check(struct backend_model *m, uint32_t slot, const struct backend_step *step,
                         struct error *err) {
    enum status st = gpu_status(m->dev->gpu, err);

    if (st == ST_CLOSED && err) error_prefix(err, "the device is lost");
    if (st == ST_OK) st = host_step_check(&m->host, slot, step, err);
    if (st == ST_OK) st = check_padding(&m->host.slot[slot], step, err);
    if (st != ST_OK) return st;
    /* the engine waits for a slot before it fills it: this polls, and does not wait */
    st = gpu_event_wait(m->slot[slot].ended, CUDA_PATIENCE_US);
    return st == ST_OK ? ST_OK
                       : error_set(err, st, "the step before in slot %u does not end", slot);
}

/* What the host remembers of a step that is under way. */
static void remember(struct backend_model *m, uint32_t slot, const struct backend_step *step) {
    host_step_end(&m->host, slot, step);
    m->slot[slot].is_timed = true;
}

static void update_table_copy(struct backend_model *m, const struct backend_stage *s,
                              const struct backend_step *step) {
    for (uint32_t i = 0; i < step->n_updates; i++) {
        const struct backend_table_update *u = &s->update[i];

        m->host.table[(uint64_t)u->row * m->host.limits.max_blocks_per_row + u->index] = u->block;
    }
}

enum status cuda_submit(struct backend_model *m, uint32_t slot, const struct backend_step *step,
                        backend_fence *out, struct error *err) {
    struct cuda_packed p;
    struct gpu_graph *graph;
    struct cuda_bucket bucket;
    enum status st = check(m, slot, step, err);

    if (st != ST_OK) return st;
    (void)cuda_step_us(m, slot); /* before its events are recorded again */
    update_table_copy(m, &m->host.slot[slot], step);
    graph = cuda_graph_of(m, slot, step, &bucket);
    cuda_pack(m, slot, step, bucket, &p);
    cuda_kv_before_step(m, &m->host.slot[slot], step);
    gpu_event_record(m->slot[slot].started, m->dev->compute);
    send(m, slot, step, &p);
    compute(m, slot, step, &p, graph, bucket.kind == CUDA_ROWS);
    fetch(m, slot, step);
    gpu_event_record(m->slot[slot].ended, m->dev->compute);
    remember(m, slot, step);
    st = cuda_fence(m->dev, m->dev->compute, out);
    return st == ST_OK ? ST_OK : error_set(err, st, "the device is lost: its work does not end");
}

double cuda_step_us(struct backend_model *m, uint32_t slot) {
    struct cuda_slot *s = &m->slot[slot & 1];

    if (!s->is_timed || gpu_event_poll(s->ended) != ST_OK) return s->us;
    s->us = gpu_event_elapsed_us(s->started, s->ended);
    s->is_timed = false;
    return s->us;
}

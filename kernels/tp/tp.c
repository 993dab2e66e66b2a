/* kernels/tp/tp.c - see tp.h: each operation as an order to all ranks. */
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "kernels/tp/tp_internal.h"

/* --- loading --------------------------------------------------------------------------------- */

struct load_call {
    struct backend_model *m;
    const struct geometry *g;
    const struct backend_limits *limits;
    const struct backend_tensor *tensor;
};

static enum status begin_rank(uint32_t rank, void *arg, struct error *err) {
    struct load_call *c = arg;
    struct backend_device *dev = c->m->dev;

    return dev->ops->load_begin(dev->rank[rank], &c->m->rank[rank], c->g, c->limits, err);
}

static enum status tensor_rank(uint32_t rank, void *arg, struct error *err) {
    struct load_call *c = arg;

    return c->m->dev->ops->load_tensor(c->m->rank[rank], c->tensor, err);
}

static enum status end_rank(uint32_t rank, void *arg, struct error *err) {
    struct backend_model *m = arg;

    return m->dev->ops->load_end(m->rank[rank], err);
}

static enum status unload_rank(uint32_t rank, void *arg, struct error *err) {
    struct backend_model *m = arg;

    (void)err;
    m->dev->ops->unload(m->rank[rank]);
    return ST_OK;
}

static void tp_unload(struct backend_model *m) {
    if (!m) return;
    (void)!tp_ranks_call_apart(m->dev->ranks, unload_rank, m, NULL);
    mem_free(m);
}

static enum status tp_load_begin(struct backend_device *dev, struct backend_model **out,
                                 const struct geometry *g, const struct backend_limits *limits,
                                 struct error *err) {
    struct backend_model *m = mem_zalloc(sizeof(*m));
    struct load_call c = {.m = m, .g = g, .limits = limits};
    enum status st = ST_OK;

    m->dev = dev;
    m->g = *g;
    m->limits = *limits;
    for (uint32_t r = 0; r < dev->size && st == ST_OK; r++)
        st = tp_shard_init(&m->shard[r], g, r, dev->size, err);
    if (st == ST_OK) st = tp_ranks_call(dev->ranks, begin_rank, &c, err);
    if (st != ST_OK) {
        tp_unload(m);
        return st;
    }
    *out = m;
    return ST_OK;
}

static enum status tp_load_tensor(struct backend_model *m, const struct backend_tensor *t,
                                  struct error *err) {
    struct load_call c = {.m = m, .tensor = t};

    return tp_ranks_call(m->dev->ranks, tensor_rank, &c, err);
}

static enum status tp_load_end(struct backend_model *m, struct error *err) {
    return tp_ranks_call(m->dev->ranks, end_rank, m, err);
}

/* --- rows ------------------------------------------------------------------------------------ */

struct row_call {
    struct backend_model *m;
    uint32_t row, n_prompt, n_output;
    const uint32_t *prompt, *output;
};

static enum status bind_rank(uint32_t rank, void *arg, struct error *err) {
    struct row_call *c = arg;

    (void)err;
    return c->m->dev->ops->row_bind(c->m->rank[rank], c->row, c->prompt, c->n_prompt, c->output,
                                    c->n_output);
}

static enum status free_rank(uint32_t rank, void *arg, struct error *err) {
    struct row_call *c = arg;

    (void)err;
    c->m->dev->ops->row_free(c->m->rank[rank], c->row);
    return ST_OK;
}

static enum status tp_row_bind(struct backend_model *m, uint32_t row, const uint32_t *prompt,
                               uint32_t n_prompt, const uint32_t *output, uint32_t n_output) {
    struct row_call c = {m, row, n_prompt, n_output, prompt, output};

    return tp_ranks_call_apart(m->dev->ranks, bind_rank, &c, NULL);
}

static void tp_row_free(struct backend_model *m, uint32_t row) {
    struct row_call c = {.m = m, .row = row};

    (void)!tp_ranks_call_apart(m->dev->ranks, free_rank, &c, NULL);
}

/* --- steps ----------------------------------------------------------------------------------- */

struct step_call {
    struct backend_model *m;
    uint32_t slot;
    const struct backend_step *step;
    backend_fence fence[TP_MAX_RANKS];
};

static enum status stage_rank(uint32_t rank, void *arg, struct error *err) {
    struct step_call *c = arg;

    (void)err;
    c->m->dev->ops->stage(c->m->rank[rank], c->slot, &c->m->stage[c->slot][rank]);
    return ST_OK;
}

static void tp_stage(struct backend_model *m, uint32_t slot, struct backend_stage *out) {
    struct step_call c = {.m = m, .slot = slot < m->limits.n_slots ? slot : 0};

    if (!m->has_stages[c.slot]) (void)!tp_ranks_call_apart(m->dev->ranks, stage_rank, &c, NULL);
    m->has_stages[c.slot] = true;
    *out = m->stage[c.slot][0];
}

/* Of a rank that has not ended what rank 0 has: longer, and it hangs. */
#define PATIENCE_US ((uint64_t)600 * 1000 * 1000)

/* What the engine has filled: counts are within the limits, or the array is left as it is and the
 * rank refuses the step by its counts. */
static void copy_stage(const struct backend_model *m, const struct backend_stage *to,
                       const struct backend_stage *from, const struct backend_step *step) {
    const struct backend_limits *l = &m->limits;
    uint64_t n_updates = (uint64_t)l->max_rows * l->max_blocks_per_row;
    uint64_t mask_words = CEIL_DIV(m->g.vocab, 32);
    struct {
        void *to;
        const void *from;
        uint64_t n, limit, size;
    } arrays[] = {
        {to->token, from->token, step->n_tokens, l->max_step_tokens, sizeof(*to->token)},
        {to->position, from->position, step->n_tokens, l->max_step_tokens, sizeof(*to->position)},
        {to->kv_slot, from->kv_slot, step->n_tokens, l->max_step_tokens, sizeof(*to->kv_slot)},
        {to->row, from->row, step->n_rows, l->max_rows, sizeof(*to->row)},
        {to->update, from->update, step->n_updates, n_updates, sizeof(*to->update)},
        {to->output, from->output, step->n_outputs, l->max_outputs, sizeof(*to->output)},
        {to->bias, from->bias, step->n_bias, l->max_bias, sizeof(*to->bias)},
        {to->mask, from->mask, step->n_masks, l->max_masks, mask_words * sizeof(*to->mask)},
    };

    for (size_t i = 0; i < ARRAY_LEN(arrays); i++) {
        if (arrays[i].n > 0 && arrays[i].n <= arrays[i].limit)
            memcpy(arrays[i].to, arrays[i].from, arrays[i].n * arrays[i].size);
    }
}

/* A device may still read what it staged for the step before; rank 0's the engine has waited
 * for. */
static enum status fill_stage(struct step_call *c, uint32_t rank, struct error *err) {
    struct backend_model *m = c->m;
    const struct backend_stage *stages = m->stage[c->slot];
    backend_fence used = m->used[c->slot][rank];
    enum status st = ST_OK;

    if (rank == 0) return ST_OK;
    if (used) st = m->dev->ops->wait(m->dev->rank[rank], used, PATIENCE_US);
    if (st != ST_OK) return error_set(err, st, "the step before is lost: %s", status_name(st));
    copy_stage(m, &stages[rank], &stages[0], c->step);
    return ST_OK;
}

static enum status submit_rank(uint32_t rank, void *arg, struct error *err) {
    struct step_call *c = arg;
    struct backend_model *m = c->m;
    uint64_t began_us = clock_now_us();
    enum status st = fill_stage(c, rank, err);

    if (st == ST_OK)
        st = m->dev->ops->submit(m->rank[rank], c->slot, c->step, &c->fence[rank], err);
    if (st != ST_OK) return st;
    m->used[c->slot][rank] = c->fence[rank];
    m->submit_us[c->slot][rank] = (double)(clock_now_us() - began_us);
    return ST_OK;
}

static enum status tp_submit(struct backend_model *m, uint32_t slot,
                             const struct backend_step *step, backend_fence *out,
                             struct error *err) {
    struct backend_step filled = *step; /* the ranks copy masks: all are there first */
    struct step_call c = {.m = m, .slot = slot, .step = &filled};
    struct backend_stage unused;
    enum status st;

    if (slot >= m->limits.n_slots)
        return error_set(err, ST_INVALID, "slot %u: there are %u", slot, m->limits.n_slots);
    tp_stage(m, slot, &unused); /* the places of all ranks are known */
    if (step->fill_masks) step->fill_masks(step->fill_arg);
    filled.fill_masks = NULL;
    st = tp_ranks_call(m->dev->ranks, submit_rank, &c, err);
    if (st != ST_OK) return st;
    for (uint32_t r = 1; r < m->dev->size; r++) {
        if (c.fence[r] != c.fence[0])
            return error_set(err, ST_INTERNAL, "rank %u is at step %llu, rank 0 at %llu", r,
                             (unsigned long long)c.fence[r], (unsigned long long)c.fence[0]);
    }
    *out = c.fence[0];
    return ST_OK;
}

/* How long ranks wait before they hear what has become of the others. */
#define LOOK_UP_US ((uint64_t)1000 * 1000)

struct fence_call {
    struct backend_device *dev;
    backend_fence fence;
    uint64_t timeout_us;
    bool is_first_late;
    enum status status[TP_MAX_RANKS];
};

/* Rank 0 decides whether the outputs are there; the others report whether they are lost. */
static enum status poll_rank(uint32_t rank, void *arg, struct error *err) {
    struct fence_call *c = arg;
    enum status st = c->dev->ops->poll(c->dev->rank[rank], c->fence);

    (void)err;
    if (rank == 0) c->is_first_late = st == ST_AGAIN;
    return st == ST_AGAIN ? ST_OK : st;
}

static enum status wait_rank(uint32_t rank, void *arg, struct error *err) {
    struct fence_call *c = arg;

    (void)err;
    c->status[rank] = c->dev->ops->wait(c->dev->rank[rank], c->fence, c->timeout_us);
    return ST_OK;
}

/* One that is lost outweighs those that are late: they may be waiting for it. */
static enum status worst(const struct fence_call *c) {
    enum status st = ST_OK;

    for (uint32_t r = 0; r < c->dev->size; r++) {
        if (c->status[r] != ST_OK && (st == ST_OK || st == ST_TIMEOUT)) st = c->status[r];
    }
    return st;
}

static enum status tp_poll(struct backend_device *dev, backend_fence f) {
    struct fence_call c = {.dev = dev, .fence = f};
    enum status st = tp_ranks_call_apart(dev->ranks, poll_rank, &c, NULL);

    return st == ST_OK && c.is_first_late ? ST_AGAIN : st;
}

/* The sums of a device whose neighbour has died never end, so no wait is long. */
static enum status tp_wait(struct backend_device *dev, backend_fence f, uint64_t timeout_us) {
    struct fence_call c = {.dev = dev, .fence = f};
    enum status st;

    do {
        c.timeout_us = MIN(timeout_us, LOOK_UP_US);
        timeout_us -= c.timeout_us;
        (void)!tp_ranks_call_apart(dev->ranks, wait_rank, &c, NULL);
        st = worst(&c);
    } while (st == ST_TIMEOUT && timeout_us > 0);
    return st;
}

struct fault_call {
    struct backend_device *dev;
    const char *fault[TP_MAX_RANKS];
};

static enum status fault_rank(uint32_t rank, void *arg, struct error *err) {
    struct fault_call *c = arg;

    (void)err;
    c->fault[rank] = c->dev->ops->fault(c->dev->rank[rank]);
    return ST_OK;
}

/* Of the first rank that has one. */
static const char *tp_fault(struct backend_device *dev) {
    struct fault_call c = {.dev = dev};

    if (!dev->ops->fault) return NULL;
    (void)!tp_ranks_call_apart(dev->ranks, fault_rank, &c, NULL);
    for (uint32_t r = 0; r < dev->size; r++)
        if (c.fault[r]) return c.fault[r];
    return NULL;
}

struct time_call {
    struct backend_model *m;
    uint32_t slot;
    double us;
};

static enum status step_us_rank(uint32_t rank, void *arg, struct error *err) {
    struct time_call *c = arg;

    (void)err;
    c->us = c->m->dev->ops->step_us(c->m->rank[rank], c->slot);
    return ST_OK;
}

/* Rank 0's. Of host ranks, whose submit is the step: the longest of them. */
static double tp_step_us(struct backend_model *m, uint32_t slot) {
    struct time_call c = {.m = m, .slot = slot < m->limits.n_slots ? slot : 0};

    if (m->dev->ops->step_us) {
        (void)!tp_ranks_call_first(m->dev->ranks, step_us_rank, &c, NULL);
        return c.us;
    }
    for (uint32_t r = 0; r < m->dev->size; r++)
        c.us = MAX(c.us, m->submit_us[c.slot][r]);
    return c.us;
}

/* --- the rest -------------------------------------------------------------------------------- */

struct op_call {
    struct backend_device *dev;
    const char *name;
    const struct backend_tensor *in;
    struct backend_tensor *out;
    uint32_t n_in, n_out;
};

static enum status op_rank(uint32_t rank, void *arg, struct error *err) {
    struct op_call *c = arg;

    return c->dev->ops->op(c->dev->rank[rank], c->name, c->in, c->n_in, c->out, c->n_out, err);
}

static enum status tp_op(struct backend_device *dev, const char *name,
                         const struct backend_tensor *in, uint32_t n_in, struct backend_tensor *out,
                         uint32_t n_out, struct error *err) {
    struct op_call c = {dev, name, in, out, n_in, n_out};

    return tp_ranks_call_first(dev->ranks, op_rank, &c, err);
}

const struct backend_ops backend_tp = {
    .abi = BACKEND_ABI,
    .struct_size = sizeof(struct backend_ops),
    .name = "tp",
    .probe = tp_probe,
    .open = tp_open,
    .close = tp_close,
    .info = tp_info,
    .check = tp_check,
    .load_begin = tp_load_begin,
    .load_tensor = tp_load_tensor,
    .load_end = tp_load_end,
    .unload = tp_unload,
    .kv_block_bytes = tp_kv_block_bytes,
    .kv_alloc = tp_kv_alloc,
    .kv_copy = tp_kv_copy,
    .kv_swap_out = tp_kv_swap_out,
    .kv_swap_in = tp_kv_swap_in,
    .kv_read = tp_kv_read,
    .kv_write = tp_kv_write,
    .row_bind = tp_row_bind,
    .row_free = tp_row_free,
    .stage = tp_stage,
    .submit = tp_submit,
    .poll = tp_poll,
    .wait = tp_wait,
    .event_fd = tp_event_fd,
    .step_us = tp_step_us,
    .op = tp_op,
    .fault = tp_fault,
    .give_room = tp_give_room,
};

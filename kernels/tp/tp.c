/* kernels/tp/tp.c - see tp.h: each operation as an order to all ranks. */
#include "kernels/tp/tp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/mem.h"
#include "kernels/dtype.h"
#include "kernels/tp/group.h"
#include "kernels/tp/ranks.h"
#include "kernels/tp/shard.h"

struct backend_device {
    const struct backend_ops *ops; /* of the ranks */
    struct tp_ranks *ranks;
    uint32_t size;
    int event_fd;
    struct backend_config config; /* as given; pointers are used in open only */
    struct backend_device *rank[TP_MAX_RANKS];
};

struct backend_model {
    struct backend_device *dev;
    struct geometry g; /* whole; its pointers are not kept */
    struct backend_limits limits;
    struct tp_shard shard[TP_MAX_RANKS];
    struct backend_model *rank[TP_MAX_RANKS];
    bool has_stages[2];
    struct backend_stage stage[2][TP_MAX_RANKS];
    backend_fence used[2][TP_MAX_RANKS]; /* when the slot was submitted last */
    double submit_us[2][TP_MAX_RANKS];   /* how long that took */
};

const struct backend_ops *tp_computing(const struct backend_ops *ops,
                                       const struct backend_config *config) {
    return ops == &backend_tp && config->ranks ? config->ranks : ops;
}

/* --- device ---------------------------------------------------------------------------------- */

/* Name `rank` of a list with commas into `name`; false when there are fewer. */
static bool nth_name(char *name, size_t size, const char *list, uint32_t rank) {
    for (; rank > 0 && list; rank--) {
        list = strchr(list, ',');
        if (list) list++;
    }
    if (!list || *list == '\0' || *list == ',') return false;
    snprintf(name, size, "%.*s", (int)strcspn(list, ","), list);
    return true;
}

/* "3" or "cuda:3", as against a UUID. */
static bool read_ordinal(const char *name, uint32_t *ordinal) {
    const char *colon = strrchr(name, ':'), *digits = colon ? colon + 1 : name;
    size_t n = strspn(digits, "0123456789");

    if (n == 0 || n > 4 || digits[n] != '\0') return false;
    *ordinal = (uint32_t)strtoul(digits, NULL, 10);
    return true;
}

/* What rank `rank` opens; `name` holds its device_id. */
static enum status config_of(struct backend_config *out, char *name, size_t name_size,
                             const struct backend_config *config, uint32_t rank,
                             struct error *err) {
    *out = *config;
    out->tp_rank = rank;
    out->ordinal = config->ordinal + rank;
    out->ranks = NULL;
    if (!config->device_id) return ST_OK;
    if (!nth_name(name, name_size, config->device_id, rank))
        return error_set(err, ST_INVALID,
                         "%u ranks, and the devices are \"%s\": name one for each, with commas",
                         config->tp_size, config->device_id);
    out->device_id = read_ordinal(name, &out->ordinal) ? NULL : name;
    return ST_OK;
}

static enum status check_config(const struct backend_config *config, struct error *err) {
    if (!config->ranks) return error_set(err, ST_INVALID, "tensor parallel over no backend");
    if (config->ranks->abi != BACKEND_ABI)
        return error_set(err, ST_UNSUPPORTED, "backend %s has ABI %u, this program needs %u",
                         config->ranks->name, config->ranks->abi, BACKEND_ABI);
    if (config->tp_size < 1 || config->tp_size > TP_MAX_RANKS)
        return error_set(err, ST_INVALID, "%u ranks: 1 to %u are possible", config->tp_size,
                         TP_MAX_RANKS);
    return ST_OK;
}

/* One rank's figures into those of all, which begin as rank 0's. */
static void add_info(struct backend_info *all, const struct backend_info *one) {
    all->flags &= one->flags;
    all->n_threads += one->n_threads;
    all->memory_total = MIN(all->memory_total, one->memory_total);
    all->memory_free = MIN(all->memory_free, one->memory_free);
    all->prefill_tokens_per_s = MIN(all->prefill_tokens_per_s, one->prefill_tokens_per_s);
}

static void finish_info(struct backend_info *all, uint32_t size) {
    char device[sizeof(all->device)];

    if (all->flags & BACKEND_OWN_MEMORY) {
        all->memory_total *= size;
        all->memory_free *= size;
    }
    snprintf(device, sizeof(device), "%u x %.56s", size, all->device);
    memcpy(all->device, device, sizeof(device));
}

/* Is the device of the last rank in `of` there, and nobody else's? */
static enum status check_device(const struct backend_config *config, const struct backend_info *of,
                                uint32_t rank, struct error *err) {
    const struct backend_info *one = &of[rank];

    if (one->n_devices && !config->device_id && config->ordinal + config->tp_size > one->n_devices)
        return error_set(err, ST_UNSUPPORTED,
                         "%u ranks from device %u on: this machine has %u devices", config->tp_size,
                         config->ordinal, one->n_devices);
    for (uint32_t r = 0; r < rank && one->uuid[0]; r++) {
        if (strcmp(of[r].uuid, one->uuid) == 0)
            return error_set(err, ST_INVALID,
                             "ranks %u and %u would share the device %s: name another for each", r,
                             rank, one->uuid);
    }
    return ST_OK;
}

static void sum_info(struct backend_info *all, const struct backend_info *of, uint32_t size) {
    *all = of[0];
    for (uint32_t r = 1; r < size; r++)
        add_info(all, &of[r]);
    finish_info(all, size);
}

static enum status tp_probe(const struct backend_config *config, struct backend_info *info,
                            struct error *err) {
    struct backend_info of[TP_MAX_RANKS];
    struct backend_config own;
    char name[64];
    enum status st = check_config(config, err);

    for (uint32_t r = 0; st == ST_OK && r < config->tp_size; r++) {
        st = config_of(&own, name, sizeof(name), config, r, err);
        if (st == ST_OK) st = config->ranks->probe(&own, &of[r], err);
        if (st == ST_OK) st = check_device(config, of, r, err);
    }
    if (st == ST_OK) sum_info(info, of, config->tp_size);
    return st;
}

static enum status open_rank(uint32_t rank, void *arg, struct error *err) {
    struct backend_device *dev = arg;
    struct backend_config own;
    char name[64];
    enum status st = config_of(&own, name, sizeof(name), &dev->config, rank, err);

    own.group = tp_ranks_group(dev->ranks);
    if (st == ST_OK) st = dev->ops->open(&dev->rank[rank], &own, err);
    if (st == ST_OK && rank == 0) dev->event_fd = dev->ops->event_fd(dev->rank[0]);
    return st;
}

static enum status close_rank(uint32_t rank, void *arg, struct error *err) {
    struct backend_device *dev = arg;

    (void)err;
    dev->ops->close(dev->rank[rank]);
    return ST_OK;
}

static void tp_close(struct backend_device *dev) {
    if (!dev) return;
    if (dev->ranks) (void)!tp_ranks_call_apart(dev->ranks, close_rank, dev, NULL);
    tp_ranks_destroy(dev->ranks);
    mem_free(dev);
}

static enum status tp_open(struct backend_device **out, const struct backend_config *config,
                           struct error *err) {
    struct backend_device *dev;
    enum status st = check_config(config, err);

    if (st != ST_OK) return st;
    dev = mem_zalloc(sizeof(*dev));
    dev->ops = config->ranks;
    dev->size = config->tp_size;
    dev->config = *config;
    st = tp_ranks_create(&dev->ranks, dev->size, err);
    if (st == ST_OK) st = tp_ranks_call(dev->ranks, open_rank, dev, err);
    if (st != ST_OK) {
        tp_close(dev);
        return st;
    }
    *out = dev;
    return ST_OK;
}

struct info_call {
    struct backend_device *dev;
    struct backend_info of[TP_MAX_RANKS];
};

static enum status info_rank(uint32_t rank, void *arg, struct error *err) {
    struct info_call *c = arg;

    (void)err;
    c->dev->ops->info(c->dev->rank[rank], &c->of[rank]);
    return ST_OK;
}

static void tp_info(struct backend_device *dev, struct backend_info *info) {
    struct info_call c = {.dev = dev};

    (void)!tp_ranks_call_apart(dev->ranks, info_rank, &c, NULL);
    sum_info(info, c.of, dev->size);
}

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

/* --- the pool -------------------------------------------------------------------------------- */

/* (block_size, head_dim) of K or V, and a whole block of them. */
static uint64_t head_bytes(const struct backend_model *m) {
    return (uint64_t)m->limits.block_size * m->g.head_dim * dtype_bytes(m->g.kv_dtype);
}

static uint64_t block_bytes(const struct backend_model *m) {
    return 2ull * m->g.n_layers * m->g.n_kv_heads * head_bytes(m);
}

/* What it takes on all ranks together: more than a block when they hold the same KV heads. */
static uint64_t tp_kv_block_bytes(const struct backend_model *m) {
    uint64_t n_bytes = 0;

    for (uint32_t r = 0; r < m->dev->size; r++)
        n_bytes += m->dev->ops->kv_block_bytes(m->rank[r]);
    return n_bytes;
}

struct pool_call {
    struct backend_model *m;
    uint32_t n_blocks, n_host_blocks;
    struct backend_kv_info of[TP_MAX_RANKS];
};

static enum status alloc_rank(uint32_t rank, void *arg, struct error *err) {
    struct pool_call *c = arg;

    return c->m->dev->ops->kv_alloc(c->m->rank[rank], c->n_blocks, c->n_host_blocks, &c->of[rank],
                                    err);
}

static enum status tp_kv_alloc(struct backend_model *m, uint32_t n_blocks, uint32_t n_host_blocks,
                               struct backend_kv_info *out, struct error *err) {
    struct pool_call c = {.m = m, .n_blocks = n_blocks, .n_host_blocks = n_host_blocks};
    enum status st = tp_ranks_call(m->dev->ranks, alloc_rank, &c, err);

    if (st != ST_OK) return st;
    *out = c.of[0];
    out->block_bytes = block_bytes(m);
    for (uint32_t r = 1; r < m->dev->size; r++) {
        out->n_blocks = MIN(out->n_blocks, c.of[r].n_blocks);
        out->n_host_blocks = MIN(out->n_host_blocks, c.of[r].n_host_blocks);
    }
    return ST_OK;
}

typedef enum status kv_move(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                            backend_fence *out);

struct move_call {
    struct backend_model *m;
    kv_move *move;
    const struct backend_copy *pairs;
    uint32_t n;
    backend_fence fence[TP_MAX_RANKS];
};

static enum status move_rank(uint32_t rank, void *arg, struct error *err) {
    struct move_call *c = arg;

    (void)err;
    return c->move(c->m->rank[rank], c->pairs, c->n, &c->fence[rank]);
}

static enum status move_blocks(struct backend_model *m, kv_move *move,
                               const struct backend_copy *pairs, uint32_t n, backend_fence *out) {
    struct move_call c = {.m = m, .move = move, .pairs = pairs, .n = n};
    enum status st = tp_ranks_call_apart(m->dev->ranks, move_rank, &c, NULL);

    if (st == ST_OK) *out = c.fence[0];
    return st;
}

static enum status tp_kv_copy(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                              backend_fence *out) {
    return move_blocks(m, m->dev->ops->kv_copy, pairs, n, out);
}

static enum status tp_kv_swap_out(struct backend_model *m, const struct backend_copy *pairs,
                                  uint32_t n, backend_fence *out) {
    return move_blocks(m, m->dev->ops->kv_swap_out, pairs, n, out);
}

static enum status tp_kv_swap_in(struct backend_model *m, const struct backend_copy *pairs,
                                 uint32_t n, backend_fence *out) {
    return move_blocks(m, m->dev->ops->kv_swap_in, pairs, n, out);
}

struct block_call {
    struct backend_model *m;
    uint32_t block;
    uint8_t *bytes;      /* the whole block */
    uint64_t head_bytes; /* (block_size, head_dim) */
    bool is_write;
};

/* Between a rank's block and its heads' place in the whole: (layer * K|V, kv_head, head_bytes). */
static void copy_heads(const struct block_call *c, uint32_t rank, uint8_t *own) {
    const struct tp_shard *s = &c->m->shard[rank];
    uint64_t n_bytes = s->n_kv_heads * c->head_bytes;

    for (uint64_t plane = 0; plane < 2ull * c->m->g.n_layers; plane++) {
        uint64_t head = plane * c->m->g.n_kv_heads + s->first_kv_head;
        uint8_t *whole = c->bytes + head * c->head_bytes, *part = own + plane * n_bytes;

        memcpy(c->is_write ? part : whole, c->is_write ? whole : part, n_bytes);
    }
}

static enum status block_rank(uint32_t rank, void *arg, struct error *err) {
    struct block_call *c = arg;
    const struct tp_shard *s = &c->m->shard[rank];
    const struct backend_ops *ops = c->m->dev->ops;
    uint64_t n_bytes = 2ull * c->m->g.n_layers * s->n_kv_heads * c->head_bytes;
    uint8_t *own;
    enum status st;

    (void)err;
    if (!c->is_write && rank % s->kv_copies) return ST_OK; /* a neighbour has the same */
    own = mem_alloc(n_bytes);
    if (c->is_write) {
        copy_heads(c, rank, own);
        st = ops->kv_write(c->m->rank[rank], c->block, own, n_bytes);
    } else {
        st = ops->kv_read(c->m->rank[rank], c->block, own, n_bytes);
        if (st == ST_OK) copy_heads(c, rank, own);
    }
    mem_free(own);
    return st;
}

static enum status move_heads(struct backend_model *m, uint32_t block, void *bytes,
                              uint64_t n_bytes, bool is_write) {
    struct block_call c = {.m = m, .block = block, .bytes = bytes, .is_write = is_write};

    c.head_bytes = head_bytes(m);
    if (n_bytes != block_bytes(m)) return ST_INVALID;
    return tp_ranks_call_apart(m->dev->ranks, block_rank, &c, NULL);
}

static enum status tp_kv_read(struct backend_model *m, uint32_t block, void *dst,
                              uint64_t n_bytes) {
    return move_heads(m, block, dst, n_bytes, false);
}

static enum status tp_kv_write(struct backend_model *m, uint32_t block, const void *src,
                               uint64_t n_bytes) {
    return move_heads(m, block, (void *)(uintptr_t)src, n_bytes, true); /* only read */
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
        {to->lora, from->lora, step->n_tokens, l->max_step_tokens, sizeof(*to->lora)},
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

/* A device may still read what it staged for the step before; rank 0's the engine has waited for. */
static enum status fill_stage(struct step_call *c, uint32_t rank, struct error *err) {
    struct backend_model *m = c->m;
    const struct backend_stage *stages = m->stage[c->slot];
    backend_fence used = m->used[c->slot][rank];
    enum status st = ST_OK;

    if (rank == 0) return ST_OK;
    if (used) st = m->dev->ops->wait(m->dev->rank[rank], used, UINT64_MAX);
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
    struct step_call c = {.m = m, .slot = slot, .step = step};
    struct backend_stage unused;
    enum status st;

    if (slot >= m->limits.n_slots)
        return error_set(err, ST_INVALID, "slot %u: there are %u", slot, m->limits.n_slots);
    tp_stage(m, slot, &unused); /* the places of all ranks are known */
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

struct fence_call {
    struct backend_device *dev;
    backend_fence fence;
    uint64_t timeout_us;
    bool is_first_late;
};

/* Rank 0 says whether the outputs are there; the others are asked whether they are lost. */
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
    return c->dev->ops->wait(c->dev->rank[rank], c->fence, c->timeout_us);
}

static enum status tp_poll(struct backend_device *dev, backend_fence f) {
    struct fence_call c = {.dev = dev, .fence = f};
    enum status st = tp_ranks_call_apart(dev->ranks, poll_rank, &c, NULL);

    return st == ST_OK && c.is_first_late ? ST_AGAIN : st;
}

static enum status tp_wait(struct backend_device *dev, backend_fence f, uint64_t timeout_us) {
    struct fence_call c = {.dev = dev, .fence = f, .timeout_us = timeout_us};

    return tp_ranks_call_apart(dev->ranks, wait_rank, &c, NULL);
}

static int tp_event_fd(struct backend_device *dev) {
    return dev->event_fd;
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

struct lora_call {
    struct backend_model *m;
    uint32_t index, n;
    const struct backend_tensor *tensors;
    float scale;
};

static enum status lora_load_rank(uint32_t rank, void *arg, struct error *err) {
    struct lora_call *c = arg;

    return c->m->dev->ops->lora_load(c->m->rank[rank], c->index, c->tensors, c->n, c->scale, err);
}

static enum status lora_drop_rank(uint32_t rank, void *arg, struct error *err) {
    struct lora_call *c = arg;

    (void)err;
    c->m->dev->ops->lora_drop(c->m->rank[rank], c->index);
    return ST_OK;
}

static enum status tp_lora_load(struct backend_model *m, uint32_t index,
                                const struct backend_tensor *tensors, uint32_t n, float scale,
                                struct error *err) {
    struct lora_call c = {m, index, n, tensors, scale};

    return tp_ranks_call_apart(m->dev->ranks, lora_load_rank, &c, err);
}

static void tp_lora_drop(struct backend_model *m, uint32_t index) {
    struct lora_call c = {.m = m, .index = index};

    (void)!tp_ranks_call_apart(m->dev->ranks, lora_drop_rank, &c, NULL);
}

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
    .lora_load = tp_lora_load,
    .lora_drop = tp_lora_drop,
    .op = tp_op,
    .fault = tp_fault,
};

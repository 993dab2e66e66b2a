/* kernels/tp/tp_kv.c - see tp.h: the pool: each rank holds its KV heads. */
#include <string.h>

#include "common/base/mem.h"
#include "kernels/kv_layout.h"
#include "kernels/tp/tp_internal.h"

static uint64_t block_bytes(const struct backend_model *m) {
    return kv_layout_block_bytes(&m->g, m->limits.block_size);
}

/* What it takes on all ranks together: more than a block when they hold the same KV heads. */
uint64_t tp_kv_block_bytes(const struct backend_model *m) {
    uint64_t n_bytes = 0;

    for (uint32_t r = 0; r < m->dev->size; r++)
        n_bytes += m->dev->ops->kv_block_bytes(m->rank[r]);
    return n_bytes;
}

struct room_call {
    struct backend_model *m;
    bool has_given[TP_MAX_RANKS];
};

static enum status room_of_rank(uint32_t rank, void *arg, struct error *err) {
    struct room_call *c = arg;

    (void)err;
    c->has_given[rank] = c->m->dev->ops->give_room(c->m->rank[rank]);
    return ST_OK;
}

bool tp_give_room(struct backend_model *m) {
    struct room_call c = {.m = m};
    bool has_given = false;

    if (!m->dev->ops->give_room) return false;
    if (tp_ranks_call_apart(m->dev->ranks, room_of_rank, &c, NULL) != ST_OK) return false;
    for (uint32_t r = 0; r < m->dev->size; r++)
        has_given |= c.has_given[r];
    return has_given;
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

enum status tp_kv_alloc(struct backend_model *m, uint32_t n_blocks, uint32_t n_host_blocks,
                        struct backend_kv_info *out, struct error *err) {
    struct pool_call c = {.m = m, .n_blocks = n_blocks, .n_host_blocks = n_host_blocks};
    enum status st = tp_ranks_call(m->dev->ranks, alloc_rank, &c, err);

    if (st != ST_OK) return st;
    *out = c.of[0];
    out->block_bytes = block_bytes(m);
    out->host_pool = NULL; /* each rank has a part of a block */
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

enum status tp_kv_copy(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                       backend_fence *out) {
    return move_blocks(m, m->dev->ops->kv_copy, pairs, n, out);
}

enum status tp_kv_swap_out(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                           backend_fence *out) {
    return move_blocks(m, m->dev->ops->kv_swap_out, pairs, n, out);
}

enum status tp_kv_swap_in(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                          backend_fence *out) {
    return move_blocks(m, m->dev->ops->kv_swap_in, pairs, n, out);
}

struct block_call {
    struct backend_model *m;
    uint32_t block;
    uint8_t *bytes; /* the whole block */
    bool is_write;
};

static void copy_part(const struct block_call *c, uint64_t whole, uint8_t *own, uint64_t n_bytes) {
    uint8_t *bytes = c->bytes + whole;

    memcpy(c->is_write ? own : bytes, c->is_write ? bytes : own, n_bytes);
}

/* Between a rank's block and its heads' place in the whole: of each layer the tiles of K, those of
 * V, and the scales of both. */
static void copy_heads(const struct block_call *c, uint32_t rank, uint8_t *own) {
    const struct geometry *g = &c->m->g;
    const struct tp_shard *s = &c->m->shard[rank];
    struct geometry part = tp_shard_geometry(s, g);
    uint32_t size = c->m->limits.block_size, first = s->first_kv_head;
    uint64_t tiles = s->n_kv_heads * kv_tile_bytes(g, size);
    uint64_t scales = 2ull * s->n_kv_heads * size * kv_scale_bytes(g->kv_dtype);

    for (uint32_t i = 0; i < g->n_layers; i++) {
        for (uint32_t which = 0; which < 2; which++)
            copy_part(c, kv_tile_at(g, size, i, which, first),
                      own + kv_tile_at(&part, size, i, which, 0), tiles);
        if (scales)
            copy_part(c, kv_scales_at(g, size, i, 0, first),
                      own + kv_scales_at(&part, size, i, 0, 0), scales);
    }
}

static enum status block_rank(uint32_t rank, void *arg, struct error *err) {
    struct block_call *c = arg;
    const struct tp_shard *s = &c->m->shard[rank];
    const struct backend_ops *ops = c->m->dev->ops;
    struct geometry part = tp_shard_geometry(s, &c->m->g);
    uint64_t n_bytes = kv_layout_block_bytes(&part, c->m->limits.block_size);
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

    if (n_bytes != block_bytes(m)) return ST_INVALID;
    return tp_ranks_call_apart(m->dev->ranks, block_rank, &c, NULL);
}

enum status tp_kv_read(struct backend_model *m, uint32_t block, void *dst, uint64_t n_bytes) {
    return move_heads(m, block, dst, n_bytes, false);
}

enum status tp_kv_write(struct backend_model *m, uint32_t block, const void *src,
                        uint64_t n_bytes) {
    return move_heads(m, block, (void *)(uintptr_t)src, n_bytes, true); /* only read */
}

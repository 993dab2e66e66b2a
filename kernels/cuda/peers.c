/* kernels/cuda/peers.c - sums over the ranks of a model: through the devices' own memory
 * (ops/sum.cu) where every device reaches every other's, and there are 2, 4 or 8; else by NCCL.
 *
 * What a sum takes is then one launch instead of the library's two or three, and its order is
 * fixed. Longer sums than OPS_SUM_MOST go to NCCL, which needs less of the links between the
 * devices; in deterministic mode they are cut, so that the order stays.
 *
 *      rank r's memory     slots | flags, set by the others | epochs
 *
 * Each rank takes one piece of memory, fills it with zeros, and hands its address round.
 *
 * The same answer over any number of ranks. A sum over K that one rank makes as one chain cannot
 * be made of the chains of several. So in deterministic mode o and down are computed in four slices
 * of K, whatever the number of ranks, each as a product of its own in fp32, and added by pairs:
 *
 *      1 rank    (s0 + s1) + (s2 + s3)     the pairs by a product that adds to its output
 *      2 ranks   (s0 + s1) | (s2 + s3)     each a part in fp32
 *      4 ranks   s0 | s1 | s2 | s3
 *
 * The bits are then equal where a product's are equal for narrower matrices too: those of own
 * kernels and of the shim. cuBLASLt may choose another algorithm for another width. */
#include <string.h>

#include "kernels/cuda/cuda_internal.h"

#define SLOTS_BYTES (2 * OPS_SUM_SLOT_BYTES)
#define FLAGS_BYTES (OPS_SUM_RANKS * OPS_SUM_BLOCKS * sizeof(uint32_t))
#define BYTES       (SLOTS_BYTES + FLAGS_BYTES + OPS_SUM_BLOCKS * sizeof(uint32_t))
#define N_SLICES    4u                        /* of K in deterministic mode */
#define TIMEOUT_NS  (CUDA_PATIENCE_US * 1000) /* of a rank that should have come long ago */

/* What a rank hands round. */
struct offer {
    uint32_t status, ordinal;
    unsigned char *memory;
};

static void set_args(struct cuda_peers *p, const struct offer *offers, uint32_t rank,
                     uint32_t size) {
    p->args = (struct sum_args){.rank = rank, .size = size, .timeout_ns = TIMEOUT_NS};
    for (uint32_t r = 0; r < size; r++) {
        p->args.slots[r] = offers[r].memory;
        p->args.flag[r] = (uint32_t *)(void *)(offers[r].memory + SLOTS_BYTES);
    }
    p->args.epoch = (uint32_t *)(void *)(offers[rank].memory + SLOTS_BYTES + FLAGS_BYTES);
}

/* Memory, zeroed: it is handed round only then. */
static enum status take(struct backend_device *dev, void **memory, struct error *err) {
    enum status st = gpu_alloc(dev->gpu, memory, BYTES, "room for sums over the ranks", err);

    if (st != ST_OK) return st;
    gpu_fill(dev->compute, *memory, 0, BYTES);
    return gpu_stream_wait(dev->compute, err);
}

static bool reaches_all(struct backend_device *dev, const struct offer *offers) {
    bool reaches = true;

    for (uint32_t r = 0; r < dev->tp_size; r++)
        if (r != dev->tp_rank) reaches &= gpu_reach(dev->gpu, offers[r].ordinal);
    return reaches;
}

/* Does every rank reach all others? They must agree on the way. */
static enum status agree(struct backend_device *dev, const struct offer *offers) {
    uint32_t mine = reaches_all(dev, offers), all[TP_MAX_RANKS];
    enum status st = dev->group->gather(dev->group, dev->tp_rank, &mine, all, sizeof(mine));

    dev->peers.is_there = true;
    for (uint32_t r = 0; r < dev->tp_size && st == ST_OK; r++)
        dev->peers.is_there &= all[r] != 0;
    return st;
}

enum status cuda_peers_open(struct backend_device *dev, uint32_t ordinal, struct error *err) {
    struct offer mine = {.ordinal = ordinal}, offers[TP_MAX_RANKS];
    void *memory = NULL;
    enum status st;

    if (!ops_can_sum(dev->tp_size)) return ST_OK;
    mine.status = (uint32_t)take(dev, &memory, err);
    mine.memory = memory;
    dev->peers.memory = memory;
    st = dev->group->gather(dev->group, dev->tp_rank, &mine, offers, sizeof(mine));
    if (mine.status != ST_OK) return (enum status)mine.status;
    for (uint32_t r = 0; r < dev->tp_size && st == ST_OK; r++)
        if (offers[r].status != ST_OK)
            return error_set(err, (enum status)offers[r].status,
                             "rank %u of the model has no memory for sums", r);
    if (st == ST_OK) st = agree(dev, offers);
    if (st != ST_OK) return error_set(err, st, "another rank of the model has ended");
    set_args(&dev->peers, offers, dev->tp_rank, dev->tp_size);
    return ST_OK;
}

void cuda_peers_close(struct backend_device *dev) {
    if (dev->peers.memory) gpu_free(dev->gpu, dev->peers.memory);
    dev->peers = (struct cuda_peers){0};
}

uint32_t cuda_sum_slices(const struct backend_model *m) {
    const struct geometry *g = &m->host.g; /* of the whole model */
    uint32_t size = m->dev->tp_size, unit = 8 * N_SLICES;

    if (!m->is_deterministic || g->quant_types || N_SLICES % size) return 0;
    if (g->n_heads * g->head_dim % unit || g->d_ff % unit) return 0;
    return size == 1 || m->dev->peers.is_there ? N_SLICES / size : 0;
}

void cuda_sum_parts(struct backend_model *m, uint16_t *y, uint64_t n) {
    struct sum_args a = m->dev->peers.args;

    if (m->dev->tp_size == 1) {
        ops_sum_parts(m->dev->compute, &(struct sum_parts_args){{m->parts[0], m->parts[1]}, y, n});
        return;
    }
    a.is_f32 = true;
    for (uint64_t at = 0; at < n; at += OPS_SUM_MOST) {
        a.x = m->parts[0] + at;
        a.y = y + at;
        a.n = (uint32_t)MIN(n - at, OPS_SUM_MOST);
        ops_sum(m->dev->compute, &a);
    }
}

void cuda_sum_ranks(struct backend_model *m, uint16_t *y, uint64_t n) {
    struct backend_device *dev = m->dev;
    struct sum_args a = dev->peers.args;

    if (dev->tp_size == 1) return;
    if (!dev->peers.is_there || (n > OPS_SUM_MOST && !m->is_deterministic)) {
        comm_sum(dev->comm, dev->compute, y, n);
        return;
    }
    for (uint64_t at = 0; at < n; at += OPS_SUM_MOST) {
        a.x = a.y = y + at;
        a.n = (uint32_t)MIN(n - at, OPS_SUM_MOST);
        ops_sum(dev->compute, &a);
    }
}

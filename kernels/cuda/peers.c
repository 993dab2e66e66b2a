/* kernels/cuda/peers.c - sums over the ranks of a model: through the devices' own memory
 * (ops/sum.cu) where every device reaches every other's, and there are 2, 4 or 8; else by NCCL.
 *
 * What a sum takes is then one launch instead of the library's two or three, and its order is
 * fixed. Longer sums than OPS_SUM_MOST go to NCCL, which needs less of the links between the
 * devices; in deterministic mode they are cut, so that the order stays.
 *
 *      rank r's memory     slots | flags, set by the others | epochs
 *
 * Each rank takes one piece of memory, fills it with zeros, and hands its address round. Devices
 * may announce access that they do not have (an IOMMU, a virtual machine): words arrive late or
 * never, or old ones are read. So sums of known numbers are tried first, through both slots, each
 * used again; where one fails, NCCL makes all sums.
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_internal.h"
#include "kernels/dtype.h"

#define SLOTS_BYTES (2 * OPS_SUM_SLOT_BYTES)
#define FLAGS_BYTES (OPS_SUM_RANKS * OPS_SUM_BLOCKS * sizeof(uint32_t))
#define EPOCH_BYTES (OPS_SUM_BLOCKS * sizeof(uint32_t))
#define TRIAL_AT    (SLOTS_BYTES + FLAGS_BYTES + EPOCH_BYTES)
#define N_SLICES    4u                        /* of K in deterministic mode */
#define TIMEOUT_NS  (CUDA_PATIENCE_US * 1000) /* of a rank that should have come long ago */

#define N_TRIALS     4u                         /* each slot twice */
#define TRIAL_MOST   (3 * OPS_SUM_PIECE)        /* elements */
#define TRIAL_NS     (UINT64_C(5) * 1000000000) /* of ranks that have just met */
#define TRIAL_NUMBER 29u                        /* at most: eight of them are exact in bf16 */

/* What a trial takes, beside `memory` and pinned. */
struct trial {
    uint8_t x[TRIAL_MOST * sizeof(float)];
    uint16_t y[TRIAL_MOST];
    uint32_t late, pad[3];
};

/* What a rank hands round. */
struct offer {
    uint32_t status, ordinal;
    unsigned char *memory;
};

/* How a rank found the memory of the others; the greatest of all ranks' counts. */
enum verdict { IS_SOUND, IS_OFF, IS_UNREACHED, IS_WRONG, IS_LATE, HAS_FAILED };

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
static enum status take(struct backend_device *dev, struct error *err) {
    uint64_t n_bytes = TRIAL_AT + sizeof(struct trial);
    void *memory = NULL, *pinned = NULL;
    enum status st = gpu_alloc(dev->gpu, &memory, n_bytes, "room for sums over the ranks", err);

    dev->peers.memory = memory;
    if (st == ST_OK)
        st = gpu_alloc_pinned(dev->gpu, &pinned, sizeof(struct trial), "a trial of sums", err);
    dev->peers.trial = pinned;
    if (st != ST_OK) return st;
    gpu_fill(dev->compute, memory, 0, n_bytes);
    return gpu_stream_wait(dev->compute, err);
}

/* --- may the others' memory be used? ---------------------------------------------------------- */

/* INCIPIT_CUDA_PEERS=0: where a trial ends the device, or to see what they are worth. */
static bool are_peers_off(void) {
    const char *value = getenv("INCIPIT_CUDA_PEERS");

    return value && !strcmp(value, "0");
}

static enum verdict reaches_all(struct backend_device *dev, const struct offer *offers) {
    bool reaches = true;

    if (are_peers_off()) return IS_OFF;
    for (uint32_t r = 0; r < dev->tp_size; r++)
        if (r != dev->tp_rank) reaches &= gpu_reach(dev->gpu, offers[r].ordinal);
    return reaches ? IS_SOUND : IS_UNREACHED;
}

/* Whole numbers, other ones in each trial, at each rank and beside each other. */
static uint32_t trial_number(uint32_t trial, uint32_t rank, uint32_t i) {
    return 1 + (7 * i + 11 * trial + 5 * rank) % TRIAL_NUMBER;
}

static void fill_trial(struct trial *t, const struct sum_args *a, uint32_t trial) {
    for (uint32_t i = 0; i < a->n; i++)
        dtype_put(a->is_f32 ? DTYPE_F32 : DTYPE_BF16, t->x, i,
                  (float)trial_number(trial, a->rank, i));
}

static bool is_trial_right(const struct trial *t, const struct sum_args *a, uint32_t trial) {
    for (uint32_t i = 0; i < a->n; i++) {
        uint32_t sum = 0;

        for (uint32_t r = 0; r < a->size; r++)
            sum += trial_number(trial, r, i);
        if (t->y[i] != bf16_of_f32((float)sum)) return false;
    }
    return true;
}

static enum verdict try_sum(struct backend_device *dev, uint32_t trial) {
    struct trial *host = (struct trial *)(void *)dev->peers.trial;
    struct trial *there = (struct trial *)(void *)(dev->peers.memory + TRIAL_AT);
    struct sum_args a = dev->peers.args;

    a.n = trial % 2 ? OPS_SUM_PIECE + 3 : TRIAL_MOST - 5;
    a.is_f32 = trial >= N_TRIALS / 2;
    a.x = there->x;
    a.y = there->y;
    a.late = &there->late;
    a.timeout_ns = TRIAL_NS;
    memset(host, 0, sizeof(*host));
    fill_trial(host, &a, trial);
    gpu_copy(dev->compute, there, host, sizeof(*host));
    ops_sum(dev->compute, &a);
    gpu_copy(dev->compute, host, there, sizeof(*host));
    if (gpu_stream_wait(dev->compute, NULL) != ST_OK) return HAS_FAILED;
    if (host->late) return IS_LATE;
    return is_trial_right(host, &a, trial) ? IS_SOUND : IS_WRONG;
}

static void explain(struct backend_device *dev, const struct offer *offers, uint32_t rank,
                    enum verdict verdict) {
    static const char *const why[] = {
        [IS_OFF] = "does as INCIPIT_CUDA_PEERS=0 asks",
        [IS_UNREACHED] = "does not reach the memory of the others",
        [IS_WRONG] = "reads other numbers there than were written, though its driver announces "
                     "access",
        [IS_LATE] = "has waited 5 s for a word from another, though its driver announces access",
        [HAS_FAILED] = "has failed in a trial"};
    char all[TP_MAX_RANKS * 12] = "";
    size_t n = 0;

    for (uint32_t r = 0; r < dev->tp_size; r++)
        n += (size_t)snprintf(all + n, sizeof(all) - n, "%s%u", r ? ", " : "", offers[r].ordinal);
    (void)error_set(&dev->peers.why_not, ST_OK,
                    "NCCL sums over GPUs %s, not their own memory: GPU %u %s", all,
                    offers[rank].ordinal, why[verdict]);
}

/* The same decision at every rank. */
static enum status agree(struct backend_device *dev, const struct offer *offers,
                         enum verdict mine) {
    uint32_t own = mine, all[TP_MAX_RANKS] = {IS_SOUND}, worst = 0;
    enum status st = dev->group->gather(dev->group, dev->tp_rank, &own, all, sizeof(own));

    if (st != ST_OK) return st;
    for (uint32_t r = 0; r < dev->tp_size; r++)
        if (all[r] > all[worst]) worst = r;
    dev->peers.is_there = all[worst] == IS_SOUND;
    if (!dev->peers.is_there) explain(dev, offers, worst, (enum verdict)all[worst]);
    return ST_OK;
}

/* Ranks meet before each trial, so one that is late is so for another reason. */
static enum status try_peers(struct backend_device *dev, const struct offer *offers,
                             struct error *err) {
    enum verdict verdict = reaches_all(dev, offers);
    struct error why = {0};
    enum status st;

    for (uint32_t trial = 0;; trial++) {
        st = agree(dev, offers, verdict);
        if (st != ST_OK) return error_set(err, st, "another rank of the model has ended");
        if (!dev->peers.is_there || trial == N_TRIALS) break;
        verdict = try_sum(dev, trial);
    }
    if (verdict != HAS_FAILED) return ST_OK;
    st = gpu_status(dev->gpu, &why);
    return error_set(err, st,
                     "a sum over the GPUs' own memory failed: %s; set INCIPIT_CUDA_PEERS=0 in the "
                     "environment, and NCCL makes the sums",
                     why.message);
}

enum status cuda_peers_open(struct backend_device *dev, uint32_t ordinal, struct error *err) {
    struct offer mine = {.ordinal = ordinal}, offers[TP_MAX_RANKS];
    enum status st;

    if (!ops_can_sum(dev->tp_size)) return ST_OK;
    mine.status = (uint32_t)take(dev, err);
    mine.memory = dev->peers.memory;
    st = dev->group->gather(dev->group, dev->tp_rank, &mine, offers, sizeof(mine));
    if (mine.status != ST_OK) return (enum status)mine.status;
    if (st != ST_OK) return error_set(err, st, "another rank of the model has ended");
    for (uint32_t r = 0; r < dev->tp_size; r++)
        if (offers[r].status != ST_OK)
            return error_set(err, (enum status)offers[r].status,
                             "rank %u of the model has no memory for sums", r);
    set_args(&dev->peers, offers, dev->tp_rank, dev->tp_size);
    return try_peers(dev, offers, err);
}

void cuda_peers_close(struct backend_device *dev) {
    gpu_free(dev->gpu, dev->peers.memory);
    gpu_free(dev->gpu, dev->peers.trial);
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

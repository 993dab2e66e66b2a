/* kernels/cuda/device/comm.c - sums and gathers between the GPUs of a tensor-parallel model, by
 * NCCL.
 *
 * NCCL is opened only when there is more than one rank, and its header is not needed: the seven
 * functions used here have had the same shape since NCCL 2.10. Rank 0 makes the name of the
 * communicator; the group hands it to the others, threads of this process.
 *
 *      rank 0: open, make name -+- share -- gather "who is ready" -- ncclCommInitRank (all meet)
 *      rank 1: open ------------+
 *
 * A rank that could not open the library would leave the others waiting in ncclCommInitRank for
 * ever; so ranks first exchange whether they are ready, and either all go in or all return.
 *
 * A rank that dies later leaves sums that never come: the engine's own time limit on a step ends
 * the process, which is why there is none here. */
#include "kernels/cuda/device/comm.h"

#include <string.h>

#include "common/base/mem.h"
#include "kernels/cuda/device/gpu_internal.h"

/* From nccl.h. */
struct nccl_name {
    char bytes[128];
};
enum { NCCL_OK = 0, NCCL_UINT8 = 1, NCCL_BFLOAT16 = 9, NCCL_SUM = 0 };
#define NCCL_OLDEST 21000 /* 2.10, the first with bf16 */

struct nccl {
    int (*get_version)(int *version);
    const char *(*error_string)(int code);
    int (*make_name)(struct nccl_name *out);
    int (*init_rank)(void **out, int size, struct nccl_name name, int rank);
    int (*destroy)(void *comm);
    int (*sum)(const void *from, void *to, size_t n, int type, int op, void *comm, void *stream);
    int (*gather)(const void *mine, void *all, size_t n, int type, void *comm, void *stream);
};

struct comm {
    struct gpu *gpu;
    struct nccl nccl;
    void *ranks; /* ncclComm_t; NULL: a group of one */
};

static enum status nccl_open(struct nccl *n, struct error *err) {
    static const char *const names[] = {"libnccl.so.2", "libnccl.so", NULL};
    void *library = NULL;
    int version = 0;
    enum status st = gpu_library_open(
        &library, names, "NCCL, which the GPUs of one model need to exchange sums,",
        "install it (package libnccl2), name its folder in LD_LIBRARY_PATH, or use "
        "--tensor-parallel-size 1",
        err);

    if (st == ST_OK) st = gpu_library_find(library, &n->get_version, "ncclGetVersion", err);
    if (st == ST_OK) st = gpu_library_find(library, &n->error_string, "ncclGetErrorString", err);
    if (st == ST_OK) st = gpu_library_find(library, &n->make_name, "ncclGetUniqueId", err);
    if (st == ST_OK) st = gpu_library_find(library, &n->init_rank, "ncclCommInitRank", err);
    if (st == ST_OK) st = gpu_library_find(library, &n->destroy, "ncclCommDestroy", err);
    if (st == ST_OK) st = gpu_library_find(library, &n->sum, "ncclAllReduce", err);
    if (st == ST_OK) st = gpu_library_find(library, &n->gather, "ncclAllGather", err);
    if (st != ST_OK) return st;
    if (n->get_version(&version) == NCCL_OK && version < NCCL_OLDEST)
        return error_set(err, ST_UNSUPPORTED, "NCCL is too old (%d): install 2.10 or newer",
                         version);
    return ST_OK;
}

static enum status refused(const struct nccl *n, int code, const char *doing, struct error *err) {
    return error_set(err, ST_UNAVAILABLE,
                     "NCCL failed while %s: %s (set NCCL_DEBUG=INFO for its own log)", doing,
                     n->error_string(code));
}

/* Rank 0's name at every rank. */
static enum status agree_on_name(const struct comm *c, struct tp_group *group, uint32_t rank,
                                 enum status mine, struct nccl_name *name, struct error *err) {
    uint32_t statuses[TP_MAX_RANKS], ready = (uint32_t)mine, i;
    int code;
    enum status st;

    memset(name, 0, sizeof(*name));
    if (mine == ST_OK && rank == 0) {
        code = c->nccl.make_name(name);
        if (code != NCCL_OK) ready = (uint32_t)refused(&c->nccl, code, "naming its group", err);
    }
    st = group->share(group, rank, name, sizeof(*name));
    if (st == ST_OK) st = group->gather(group, rank, &ready, statuses, sizeof(ready));
    if (ready != ST_OK) return (enum status)ready;
    if (st != ST_OK) return error_set(err, st, "another rank of the model has ended");
    for (i = 0; i < group->size; i++)
        if (statuses[i] != ST_OK)
            return error_set(err, (enum status)statuses[i], "rank %u of the model has no NCCL", i);
    return ST_OK;
}

enum status comm_open(struct comm **out, struct gpu *gpu, struct tp_group *group, uint32_t rank,
                      struct error *err) {
    struct comm *c = mem_zalloc(sizeof(*c));
    struct nccl_name name;
    enum status st;
    int code;

    c->gpu = gpu;
    if (!group || group->size < 2) {
        *out = c;
        return ST_OK;
    }
    st = agree_on_name(c, group, rank, nccl_open(&c->nccl, err), &name, err);
    if (st != ST_OK) goto fail;
    code = c->nccl.init_rank(&c->ranks, (int)group->size, name, (int)rank);
    if (code != NCCL_OK) {
        c->ranks = NULL;
        st = refused(&c->nccl, code, "joining the GPUs of the model", err);
        goto fail;
    }
    *out = c;
    return ST_OK;
fail:
    comm_close(c);
    return st;
}

void comm_close(struct comm *c) {
    if (!c) return;
    if (c->ranks) (void)c->nccl.destroy(c->ranks);
    mem_free(c);
}

static void note(struct comm *c, int code, const char *doing) {
    if (UNLIKELY(code != NCCL_OK))
        gpu_fail(c->gpu, "NCCL failed while %s: %s", doing, c->nccl.error_string(code));
}

void comm_sum(struct comm *c, struct gpu_stream *s, uint16_t *x, uint64_t n) {
    if (!c->ranks || n == 0) return;
    note(c, c->nccl.sum(x, x, n, NCCL_BFLOAT16, NCCL_SUM, c->ranks, gpu_stream_handle(s)),
         "summing over the ranks");
}

void comm_gather(struct comm *c, struct gpu_stream *s, const void *mine, void *all,
                 uint64_t n_bytes) {
    if (!c->ranks) {
        gpu_copy(s, all, mine, n_bytes);
        return;
    }
    if (n_bytes == 0) return;
    note(c, c->nccl.gather(mine, all, n_bytes, NCCL_UINT8, c->ranks, gpu_stream_handle(s)),
         "gathering from the ranks");
}

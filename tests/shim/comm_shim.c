/* tests/shim/comm_shim.c - kernels/cuda/device/comm.h between pretended devices of one process.
 *
 * The ranks share one table with a place for each. A rank's call, when its turn on the stream has
 * come, writes down at its place what it wants; the last to come does it for all; each then finds
 * itself served and goes on. All under the devices' one lock (gpu_shim.c). Sums are taken in fp32
 * in the order of ranks and rounded once. Calls that do not fit together fail all devices. */
#include <string.h>

#include "common/base/mem.h"
#include "kernels/cuda/device/comm.h"
#include "kernels/dtype.h"
#include "tests/shim/device.h"

enum place_state { AWAY, WAITS, SERVED };
enum call_kind { SUM, GATHER };

struct call {
    struct comm *comm;
    enum call_kind kind;
    uint16_t *x;
    const void *mine;
    void *all;
    uint64_t n; /* elements; bytes */
};
struct table {
    uint32_t size, n_open;
    struct {
        struct gpu *gpu;
        enum place_state state;
        struct call call;
    } places[TP_MAX_RANKS];
};
struct comm {
    struct table *table;
    struct gpu *gpu;
    uint32_t rank;
};

enum status comm_open(struct comm **out, struct gpu *gpu, struct tp_group *group, uint32_t rank,
                      struct error *err) {
    struct table *t = NULL;
    enum status st;

    if (!rank) {
        t = mem_zalloc(sizeof(*t));
        t->size = t->n_open = group->size;
    }
    st = group->share(group, rank, &t, sizeof(t));
    if (st == ST_OK) {
        t->places[rank].gpu = gpu;
        st = group->meet(group, rank);
    }
    if (st != ST_OK) {
        if (!rank) mem_free(t);
        return error_set(err, st, "rank %u of %u: the others have stopped", rank, group->size);
    }
    *out = mem_zalloc(sizeof(**out));
    **out = (struct comm){t, gpu, rank};
    return ST_OK;
}
void comm_close(struct comm *c) {
    if (!c) return;
    if (!__atomic_sub_fetch(&c->table->n_open, 1, __ATOMIC_ACQ_REL)) mem_free(c->table);
    mem_free(c);
}

/* --- serving all, by the last to come */
static void sum_all(struct table *t) {
    uint64_t n = t->places[0].call.n;

    for (uint64_t i = 0; i < n; i++) {
        float sum = 0;

        for (uint32_t r = 0; r < t->size; r++)
            sum += f32_of_bf16(t->places[r].call.x[i]);
        for (uint32_t r = 0; r < t->size; r++)
            t->places[r].call.x[i] = bf16_of_f32(sum);
    }
}
static void gather_all(struct table *t) {
    uint64_t n = t->places[0].call.n;

    for (uint32_t to = 0; to < t->size; to++)
        for (uint32_t from = 0; from < t->size; from++)
            memmove((char *)t->places[to].call.all + from * n, t->places[from].call.mine, n);
}
static bool is_any_failed(const struct table *t) {
    for (uint32_t r = 0; r < t->size; r++)
        if (shim_has_failed(t->places[r].gpu)) return true;
    return false;
}
static bool have_all_come(const struct table *t) {
    for (uint32_t r = 0; r < t->size; r++)
        if (t->places[r].state != WAITS) return false;
    return true;
}
static bool do_calls_fit(const struct table *t) {
    const struct call *first = &t->places[0].call;

    for (uint32_t r = 1; r < t->size; r++)
        if (t->places[r].call.kind != first->kind || t->places[r].call.n != first->n) return false;
    return true;
}
static void serve(struct table *t) {
    for (uint32_t r = 0; r < t->size; r++) {
        shim_memory_enter(t->places[r].gpu);
        t->places[r].state = SERVED;
        if (!do_calls_fit(t)) shim_fail(t->places[r].gpu, "the ranks ask for different sums");
    }
    if (is_any_failed(t)) return;
    if (t->places[0].call.kind == SUM)
        sum_all(t);
    else
        gather_all(t);
}
static bool run_call(struct gpu *gpu, void *p) {
    const struct call *call = p;
    struct table *t = call->comm->table;
    uint32_t rank = call->comm->rank;

    if (is_any_failed(t)) {
        shim_fail(gpu, "rank %u: another rank's device has failed", rank);
        return true;
    }
    if (t->places[rank].state == AWAY) {
        t->places[rank].state = WAITS;
        t->places[rank].call = *call;
        if (have_all_come(t)) serve(t);
    }
    if (t->places[rank].state != SERVED) return false;
    t->places[rank].state = AWAY;
    return true;
}

void comm_sum(struct comm *c, struct gpu_stream *s, uint16_t *x, uint64_t n) {
    struct call call = {.comm = c, .kind = SUM, .x = x, .n = n};

    shim_check_range(c->gpu, x, n * 2, "comm_sum");
    shim_put(s, "sum", run_call, &call, sizeof(call));
}
void comm_gather(struct comm *c, struct gpu_stream *s, const void *mine, void *all,
                 uint64_t n_bytes) {
    struct call call = {.comm = c, .kind = GATHER, .mine = mine, .all = all, .n = n_bytes};

    shim_check_range(c->gpu, mine, n_bytes, "comm_gather from");
    shim_check_range(c->gpu, all, n_bytes * c->table->size, "comm_gather to");
    shim_put(s, "gather", run_call, &call, sizeof(call));
}

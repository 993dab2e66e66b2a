/* kernels/cuda/memory.c - what a model takes of its device and of pinned host memory.
 *
 * A model owns a short list of large pieces, all of them taken before its first step; unload frees
 * what is on the list. Device memory is counted against the limit that the device was opened
 * with. */
#include <string.h>

#include "common/base/mem.h"
#include "kernels/cuda/cuda_internal.h"

static void own(struct backend_model *m, void *p) {
    if (m->n_owned == m->owned_room) {
        m->owned_room = MAX(2 * m->owned_room, 64u);
        m->owned = mem_realloc(m->owned, m->owned_room * sizeof(*m->owned));
    }
    m->owned[m->n_owned++] = p;
}

enum status cuda_take(struct backend_model *m, void *out, uint64_t n_bytes, const char *what,
                      struct error *err) {
    struct backend_device *dev = m->dev;
    uint64_t left = dev->host.memory_limit - MIN(dev->bytes, dev->host.memory_limit);
    void *p;
    enum status st;

    if (n_bytes > left)
        return error_set(
            err, ST_NOMEM,
            "%s: %.1f MiB wanted, %.1f MiB left of the %.1f MiB allowed: use a smaller "
            "model, pool or step, or allow more",
            what, CUDA_MIB(n_bytes), CUDA_MIB(left), CUDA_MIB(dev->host.memory_limit));
    if ((st = gpu_alloc(dev->gpu, &p, MAX(n_bytes, 1u), what, err)) != ST_OK) return st;
    own(m, p);
    m->host.bytes += n_bytes;
    dev->bytes += n_bytes;
    memcpy(out, &p, sizeof(p));
    return ST_OK;
}

enum status cuda_take_pinned(struct backend_model *m, void *out, uint64_t n_bytes, const char *what,
                             struct error *err) {
    void *p;
    enum status st = gpu_alloc_pinned(m->dev->gpu, &p, MAX(n_bytes, 1u), what, err);

    if (st != ST_OK) return st;
    own(m, p);
    memcpy(out, &p, sizeof(p));
    return ST_OK;
}

void cuda_give_back(struct backend_model *m, void *p, uint64_t n_bytes) {
    for (uint32_t i = 0; p && i < m->n_owned; i++) {
        if (m->owned[i] != p) continue;
        gpu_free(m->dev->gpu, p);
        m->owned[i] = m->owned[--m->n_owned];
        m->host.bytes -= n_bytes;
        m->dev->bytes -= n_bytes;
        return;
    }
}

/* kernels/cuda/cuda.c - the CUDA backend's table of operations, its devices, and its fences.
 *
 * A device has three streams: `compute` runs the steps and the copies of blocks, in order;
 * `copy_in` and `copy_out` move blocks between the pool and pinned host memory beside it (see kv.c
 * for how they wait for each other). Everything put on a stream ends in an event. A fence is a
 * number; the event behind it lies in a ring, and a fence so old that its event serves another has
 * come long ago.
 *
 * Where to look: model.c brings weights to the device, step.c takes a step apart and starts it,
 * forward.c is the decoder, kv.c moves blocks, op.c runs single operators. Thread:
 * the engine's; with tensor parallelism one thread per rank, each with a device of its own. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/base/mem.h"
#include "kernels/cuda/cuda_internal.h"

#define OLDEST_SM 80u

/* --- which device ----------------------------------------------------------------------------- */

/* "GPU-" may be left away, as nvidia-smi and people do. */
static bool is_called(const struct gpu_properties *p, const char *id) {
    size_t n = strlen(id);

    if (strncasecmp(id, "GPU-", MIN(n, 4u)) == 0 && n >= 4) return strncasecmp(p->uuid, id, n) == 0;
    return strlen(p->uuid) > 4 && strncasecmp(p->uuid + 4, id, n) == 0;
}

static enum status find_by_id(const char *id, uint32_t n_devices, uint32_t *ordinal,
                              struct error *err) {
    struct gpu_properties p;
    uint32_t n_found = 0;
    enum status st;

    for (uint32_t i = 0; i < n_devices; i++) {
        if ((st = gpu_describe(i, &p, err)) != ST_OK) return st;
        if (!is_called(&p, id)) continue;
        *ordinal = i;
        n_found++;
    }
    if (n_found == 0)
        return error_set(
            err, ST_NOT_FOUND,
            "no GPU has a UUID that begins with %s: `incipit-worker devices` lists the "
            "%u there are",
            id, n_devices);
    if (n_found > 1)
        return error_set(err, ST_INVALID,
                         "%u GPUs have a UUID that begins with %s: give more of it", n_found, id);
    return ST_OK;
}

static enum status find_device(const struct backend_config *config, uint32_t *ordinal,
                               uint32_t *n_devices, struct gpu_properties *p, struct error *err) {
    enum status st = gpu_count(n_devices, err);

    if (st != ST_OK) return st;
    *ordinal = config->ordinal;
    if (config->device_id && config->device_id[0]) {
        st = find_by_id(config->device_id, *n_devices, ordinal, err);
    } else if (*ordinal >= *n_devices) {
        st = error_set(err, ST_NOT_FOUND, "no GPU %u: there are %u, counted from 0", *ordinal,
                       *n_devices);
    }
    if (st == ST_OK) st = gpu_describe(*ordinal, p, err);
    if (st != ST_OK) return st;
    if (p->sm < OLDEST_SM)
        return error_set(
            err, ST_UNSUPPORTED,
            "%s has compute capability %u.%u: the cuda backend needs 8.0 (Ampere) or newer, "
            "for bf16 products and asynchronous copies; use the cpu backend",
            p->name, p->sm / 10, p->sm % 10);
    return ST_OK;
}

static void describe(struct backend_info *info, const struct gpu_properties *p) {
    memset(info, 0, sizeof(*info));
    snprintf(info->device, sizeof(info->device), "%s", p->name);
    snprintf(info->path, sizeof(info->path), "sm_%u", p->sm);
    snprintf(info->uuid, sizeof(info->uuid), "%s", p->uuid);
    info->flags = BACKEND_OWN_MEMORY | BACKEND_BF16_ONLY;
    info->memory_total = p->memory_total;
    info->memory_free = p->memory_free;
}

static enum status cuda_probe(const struct backend_config *config, struct backend_info *info,
                              struct error *err) {
    struct gpu_properties p;
    uint32_t ordinal, n_devices;
    enum status st = find_device(config, &ordinal, &n_devices, &p, err);

    if (st != ST_OK) return st;
    describe(info, &p);
    info->n_devices = n_devices;
    if (config->memory_bytes) info->memory_free = MIN(info->memory_free, config->memory_bytes);
    return ST_OK;
}

static enum status cuda_check(const struct backend_config *config, const struct geometry *g,
                              const struct backend_limits *limits, struct error *err) {
    struct gpu_properties p;
    uint32_t ordinal, n_devices;
    enum status st = find_device(config, &ordinal, &n_devices, &p, err);

    return st == ST_OK ? cuda_check_model(config, g, limits, p.n_sm, err) : st;
}

/* --- opening ---------------------------------------------------------------------------------- */

static void cuda_close(struct backend_device *dev) {
    if (!dev) return;
    for (uint32_t i = 0; i < CUDA_FENCES; i++)
        gpu_event_close(dev->fence[i]);
    gpu_event_close(dev->compute_now);
    gpu_event_close(dev->parted);
    gpu_event_close(dev->joined);
    cuda_peers_close(dev);
    comm_close(dev->comm);
    gpu_stream_close(dev->compute);
    gpu_stream_close(dev->beside);
    gpu_stream_close(dev->copy_in);
    gpu_stream_close(dev->copy_out);
    gpu_close(dev->gpu);
    mem_free(dev);
}

static enum status open_streams(struct backend_device *dev, struct error *err) {
    struct gpu_stream **streams[] = {&dev->compute, &dev->copy_in, &dev->copy_out, &dev->beside};
    struct gpu_event **events[] = {&dev->compute_now, &dev->parted, &dev->joined};
    enum status st = ST_OK;

    for (size_t i = 0; i < ARRAY_LEN(streams) && st == ST_OK; i++)
        st = gpu_stream_open(dev->gpu, streams[i], err);
    for (size_t i = 0; i < ARRAY_LEN(events) && st == ST_OK; i++)
        st = gpu_event_open(dev->gpu, events[i], err);
    for (size_t i = 0; i < CUDA_FENCES && st == ST_OK; i++)
        st = gpu_event_open(dev->gpu, &dev->fence[i], err);
    return st;
}

static enum status cuda_open(struct backend_device **out, const struct backend_config *config,
                             struct error *err) {
    struct backend_device *dev = mem_zalloc(sizeof(*dev));
    struct gpu_properties p;
    uint32_t ordinal;
    enum status st = find_device(config, &ordinal, &dev->n_devices, &p, err);

    dev->tp_rank = config->tp_rank;
    dev->tp_size = MAX(config->tp_size, 1u);
    dev->host.memory_limit = config->memory_bytes ? config->memory_bytes : UINT64_MAX;
    if (st == ST_OK && dev->tp_size > 1 && !config->group)
        st = error_set(err, ST_INVALID, "%u tensor-parallel ranks, but no group they meet in",
                       dev->tp_size);
    if (st == ST_OK) st = gpu_open(&dev->gpu, ordinal, err);
    if (st == ST_OK) st = open_streams(dev, err);
    if (st == ST_OK) attend_prepare();
    if (st == ST_OK) st = gpu_status(dev->gpu, err); /* has the object kernels for it at all? */
    if (st == ST_OK && dev->tp_size > 1) {
        dev->group = config->group;
        st = comm_open(&dev->comm, dev->gpu, config->group, dev->tp_rank, err);
        if (st == ST_OK) st = cuda_peers_open(dev, ordinal, err);
    }
    if (st != ST_OK) {
        cuda_close(dev);
        return st;
    }
    *out = dev;
    return ST_OK;
}

enum status cuda_meet(struct backend_device *dev, struct error *err) {
    enum status st = dev->group ? dev->group->meet(dev->group, dev->tp_rank) : ST_OK;

    return st == ST_OK ? ST_OK : error_set(err, st, "another rank of the model has ended");
}

static void note(const struct backend_device *dev, struct backend_info *info) {
    const char *why[] = {dev->peers.why_not.message, dev->why_own.message};

    snprintf(info->note, sizeof(info->note), "%s%s%s", why[0], *why[0] && *why[1] ? "; " : "",
             why[1]);
}

/* Of a device that is limited, what is left of the limit. */
static void cuda_info(struct backend_device *dev, struct backend_info *info) {
    uint64_t left;

    describe(info, gpu_properties(dev->gpu));
    left = dev->host.memory_limit - MIN(dev->bytes, dev->host.memory_limit);
    info->memory_free = MIN(gpu_memory_free(dev->gpu), left);
    info->n_devices = dev->n_devices;
    snprintf(info->path, sizeof(info->path), "sm_%u%s%s", gpu_properties(dev->gpu)->sm,
             dev->has_own_products ? "+own" : "", dev->has_f8_products ? "+f8" : "");
    if (dev->is_invariant) info->flags |= BACKEND_INVARIANT;
    info->prefill_tokens_per_s = dev->prefill_tokens_per_s;
    info->attn_context = dev->attn_context;
    note(dev, info);
}

/* --- fences ----------------------------------------------------------------------------------- */

/* The ring is longer than steps in flight and their moves; should it be full nevertheless, the
 * oldest is waited for. */
enum status cuda_fence(struct backend_device *dev, struct gpu_stream *s, backend_fence *out) {
    struct gpu_event *e = dev->fence[(dev->host.last + 1) % CUDA_FENCES];
    enum status st = gpu_event_wait(e, CUDA_PATIENCE_US);

    if (st != ST_OK) return st;
    gpu_event_record(e, s);
    if (dev->is_watched) gpu_event_announce(e);
    *out = ++dev->host.last;
    return ST_OK;
}

enum status cuda_settle(struct backend_device *dev, struct error *err) {
    struct gpu_stream *all[] = {dev->compute, dev->beside, dev->copy_in, dev->copy_out};
    enum status st = ST_OK;

    for (size_t i = 0; i < ARRAY_LEN(all) && st == ST_OK; i++)
        st = gpu_stream_wait(all[i], err);
    return st;
}

static struct gpu_event *event_of(const struct backend_device *dev, backend_fence f) {
    return f + CUDA_FENCES > dev->host.last && f > 0 ? dev->fence[f % CUDA_FENCES] : NULL;
}

static enum status cuda_poll(struct backend_device *dev, backend_fence f) {
    struct gpu_event *e = event_of(dev, f);

    if (f > dev->host.last) return ST_INVALID;
    return e ? gpu_event_poll(e) : gpu_status(dev->gpu, NULL);
}

static enum status cuda_wait(struct backend_device *dev, backend_fence f, uint64_t timeout_us) {
    struct gpu_event *e = event_of(dev, f);

    dev->is_watched = false;
    if (f > dev->host.last) return ST_INVALID;
    return e ? gpu_event_wait(e, timeout_us) : gpu_status(dev->gpu, NULL);
}

/* From now on the ends of steps are announced, those under way included, until the engine waits
 * instead: a thread woken for each step would cost it more. */
static int cuda_event_fd(struct backend_device *dev) {
    int fd = gpu_event_fd(dev->gpu);
    struct gpu_event *e;

    for (backend_fence f = dev->host.last; fd >= 0 && !dev->is_watched; f--) {
        e = event_of(dev, f);
        if (!e || gpu_event_poll(e) != ST_AGAIN) break;
        gpu_event_announce(e);
    }
    dev->is_watched = fd >= 0;
    return fd;
}

static const char *cuda_fault(struct backend_device *dev) {
    return gpu_status(dev->gpu, &dev->fault) == ST_OK ? NULL : dev->fault.message;
}

const struct backend_ops backend_cuda = {
    .abi = BACKEND_ABI,
    .struct_size = sizeof(struct backend_ops),
    .name = "cuda",
    .probe = cuda_probe,
    .open = cuda_open,
    .close = cuda_close,
    .info = cuda_info,
    .check = cuda_check,
    .load_begin = cuda_load_begin,
    .load_tensor = cuda_load_tensor,
    .load_end = cuda_load_end,
    .unload = cuda_unload,
    .kv_block_bytes = host_kv_block_bytes,
    .kv_alloc = cuda_kv_alloc,
    .kv_copy = cuda_kv_copy,
    .kv_swap_out = cuda_kv_swap_out,
    .kv_swap_in = cuda_kv_swap_in,
    .kv_read = cuda_kv_read,
    .kv_write = cuda_kv_write,
    .row_bind = cuda_row_bind,
    .row_free = cuda_row_free,
    .stage = host_stage,
    .submit = cuda_submit,
    .poll = cuda_poll,
    .wait = cuda_wait,
    .event_fd = cuda_event_fd,
    .step_us = cuda_step_us,
    .op = cuda_op,
    .fault = cuda_fault,
    .give_room = cuda_give_room,
};

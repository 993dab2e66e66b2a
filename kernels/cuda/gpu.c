/* kernels/cuda/gpu.c - a device through the CUDA runtime.
 *
 * A thin layer: one call of the runtime for each of ours, and three things the runtime lacks.
 *
 * Sentences. The runtime says "driver version is insufficient" of a machine without a driver, of one
 * whose driver is old, and of a container that was started without its GPUs. why_no_device tells
 * them apart and names the remedy.
 *
 * One mistake sticks. Calls that put work on a stream return nothing; what the runtime answers is
 * kept by `check` until gpu_status or an event asks. Launches of kernels leave their mistake with
 * the runtime (cudaGetLastError), where gpu_status fetches it.
 *
 * A file descriptor for events. The runtime can call a function of the host from within a stream, but
 * holds the stream up while it does. Instead a thread, the watcher, waits for the announced events
 * in their order, asleep in the driver, and writes to an eventfd after each. The list of announced
 * events is all that it shares with the owner.
 *
 *      owner: announce -> [e1, e2] -> watcher: cudaEventSynchronize(e1), write(fd), (e2), ...
 *
 * An event recorded anew before the watcher came to it is waited for as recorded last: its fd speaks
 * once, for both. */
#include "kernels/cuda/gpu_internal.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "common/mem.h"

#if CUDART_VERSION < 12080
#error "the CUDA toolkit is older than 12.8: install a newer one"
#endif

#define COPIES_AT_ONCE 256u   /* sizes handed to the driver in one call */
#define BATCH_DRIVER   12080u /* the first driver that takes many copies in one call */
#define SPIN_US        100u   /* a wait this short is not worth a sleep */
#define SLEEP_US       40u    /* between two looks at an event; a decode step takes 700 and more */

struct gpu_block {
    struct gpu_block *next;
    void *memory;
    bool is_pinned;
};

struct gpu_watcher {
    pthread_t thread;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t change;
    struct gpu_event *first, *last; /* announced, in order */
    struct gpu_event *current;      /* the one it waits for now */
    bool has_thread, is_ending;
    int fd;
};

struct gpu {
    uint32_t ordinal;
    struct gpu_properties properties;
    struct gpu_block *blocks;
    struct gpu_watcher watcher;
    bool has_batch_copy;
    bool has_failed;
    char failure[ERROR_MESSAGE_MAX];
};

struct gpu_stream {
    struct gpu *gpu;
    cudaStream_t stream;
    bool is_capturing;
};

struct gpu_event {
    struct gpu *gpu;
    cudaEvent_t event;
    struct gpu_event *next; /* on the watcher's list */
    bool is_announced;
};

struct gpu_graph {
    struct gpu *gpu;
    cudaGraphExec_t exec;
};

/* --- sentences ---------------------------------------------------------------------------------- */

static enum status why_no_driver(struct error *err) {
    int driver = 0, runtime = 0;

    (void)cudaRuntimeGetVersion(&runtime);
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return error_set(err, ST_UNSUPPORTED,
                         "no CUDA driver is installed (the loader finds no libcuda.so.1): install "
                         "NVIDIA's driver, or start the container with its GPUs (--gpus all)");
    return error_set(err, ST_UNSUPPORTED,
                     "the CUDA driver is too old: it knows CUDA %d.%d and this build needs %d.%d: "
                     "update the driver, or build with an older toolkit",
                     driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

static enum status why_no_device(cudaError_t code, struct error *err) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");

    switch (code) {
    case cudaErrorInsufficientDriver: return why_no_driver(err);
    case cudaErrorStubLibrary:
        return error_set(err, ST_UNSUPPORTED,
                         "libcuda.so.1 is the toolkit's stub, made for linking only: install "
                         "NVIDIA's driver, and take the stubs out of LD_LIBRARY_PATH");
    case cudaErrorNoDevice:
        if (visible && *visible)
            return error_set(
                err, ST_UNSUPPORTED,
                "CUDA_VISIBLE_DEVICES=%.64s names no GPU of this machine: unset it, or "
                "name one that nvidia-smi -L lists",
                visible);
        if (visible)
            return error_set(err, ST_UNSUPPORTED,
                             "CUDA_VISIBLE_DEVICES is set and empty, which hides every GPU: unset "
                             "it");
        return error_set(err, ST_UNSUPPORTED,
                         "the CUDA driver is there and sees no GPU: look at nvidia-smi, and start "
                         "the container with its GPUs (--gpus all)");
    case cudaErrorSystemNotReady:
        return error_set(err, ST_UNSUPPORTED,
                         "the GPUs of this machine are not ready: start nvidia-fabricmanager "
                         "(machines with NVSwitch need it)");
    case cudaErrorSystemDriverMismatch:
        return error_set(err, ST_UNSUPPORTED,
                         "the driver's module in the kernel and its libraries are of different "
                         "versions: restart the machine, or reload the module");
    default:
        return error_set(err, ST_UNSUPPORTED, "the CUDA driver does not work: %s",
                         cudaGetErrorString(code));
    }
}

static enum status why_not_opened(uint32_t ordinal, cudaError_t code, struct error *err) {
    switch (code) {
    case cudaErrorDevicesUnavailable:
        return error_set(err, ST_UNAVAILABLE,
                         "GPU %u is busy or closed to this process: another one holds it in "
                         "exclusive mode, or its compute mode is 'prohibited' (nvidia-smi -c 0)",
                         ordinal);
    case cudaErrorMemoryAllocation:
        return error_set(err, ST_NOMEM,
                         "GPU %u has no memory left even for a context: see with nvidia-smi who "
                         "holds it",
                         ordinal);
    case cudaErrorInvalidDevice:
        return error_set(err, ST_NOT_FOUND, "there is no GPU %u: nvidia-smi -L lists them",
                         ordinal);
    default:
        return error_set(err, ST_UNAVAILABLE, "GPU %u cannot be opened: %s", ordinal,
                         cudaGetErrorString(code));
    }
}

/* --- the mistake that sticks -------------------------------------------------------------------- */

void gpu_fail(struct gpu *gpu, const char *fmt, ...) {
    va_list args;

    if (gpu->has_failed) return;
    va_start(args, fmt);
    (void)vsnprintf(gpu->failure, sizeof(gpu->failure), fmt, args);
    va_end(args);
    gpu->has_failed = true;
}

/* An object built for other devices, or by a toolkit that the driver does not know. */
static bool is_foreign(cudaError_t code) {
    return code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidKernelImage ||
           code == cudaErrorUnsupportedPtxVersion || code == cudaErrorInvalidDeviceFunction;
}

/* Whether the call went well; if not, the device has failed. */
static bool check(struct gpu *gpu, cudaError_t code, const char *doing) {
    if (LIKELY(code == cudaSuccess)) return true;
    (void)cudaGetLastError();
    if (is_foreign(code))
        gpu_fail(gpu,
                 "incipit_cuda.so has no kernels that GPU %u (sm_%u) and its driver can run (%s): "
                 "build it with CUDA_ARCHS=\"%u\", or update the driver",
                 gpu->ordinal, gpu->properties.sm, cudaGetErrorName(code), gpu->properties.sm);
    gpu_fail(gpu, "GPU %u failed while %s: %s (%s)", gpu->ordinal, doing, cudaGetErrorString(code),
             cudaGetErrorName(code));
    return false;
}

static _Thread_local uint32_t entered; /* ordinal + 1 of this thread's device; 0: not known */

/* Makes the device the one that this thread's calls mean. The runtime keeps one per thread, device 0 at
 * first; usually there is nothing to do. Before whatever looks at it: allocations, new streams and
 * events, launches. */
static void enter(struct gpu *gpu) {
    if (LIKELY(entered == gpu->ordinal + 1)) return;
    if (check(gpu, cudaSetDevice((int)gpu->ordinal), "being chosen")) entered = gpu->ordinal + 1;
}

enum status gpu_status(struct gpu *gpu, struct error *err) {
    (void)check(gpu, cudaPeekAtLastError(), "running a kernel");
    return gpu->has_failed ? error_set(err, ST_CLOSED, "%s", gpu->failure) : ST_OK;
}

/* --- devices ------------------------------------------------------------------------------------ */

enum status gpu_count(uint32_t *n_devices, struct error *err) {
    int n = 0;
    cudaError_t code = cudaGetDeviceCount(&n);

    if (code != cudaSuccess) (void)cudaGetLastError();
    if (code == cudaSuccess && n == 0) code = cudaErrorNoDevice;
    if (code != cudaSuccess) return why_no_device(code, err);
    *n_devices = (uint32_t)n;
    return ST_OK;
}

static void format_uuid(char out[48], const cudaUUID_t *uuid) {
    unsigned char b[16];

    memcpy(b, uuid->bytes, sizeof(b));
    (void)snprintf(out, 48,
                   "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                   b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                   b[14], b[15]);
}

/* The memory free on a device that this process has not opened, from the driver's management
 * library: asking the runtime would take a context of half a gigabyte there. 0: it cannot say. The
 * library stays open: on a machine of many GPUs it is slow to start, and it is asked for each. */
static uint64_t managed_memory_free(const char *uuid) {
    struct {
        unsigned long long total, free, used;
    } memory = {0, 0, 0};
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*init)(void), (*by_uuid)(const char *, void **), (*get)(void *, void *);
    void *device = NULL;

    if (!library) return 0;
    *(void **)&init = dlsym(library, "nvmlInit_v2");
    *(void **)&by_uuid = dlsym(library, "nvmlDeviceGetHandleByUUID");
    *(void **)&get = dlsym(library, "nvmlDeviceGetMemoryInfo");
    if (!init || !by_uuid || !get || init() != 0) return 0;
    return by_uuid(uuid, &device) == 0 && get(device, &memory) == 0 ? memory.free : 0;
}

enum status gpu_describe(uint32_t ordinal, struct gpu_properties *out, struct error *err) {
    struct gpu_properties p = {.sm = 0};
    struct cudaDeviceProp prop;
    int driver = 0, runtime = 0;
    cudaError_t code = cudaGetDeviceProperties(&prop, (int)ordinal);

    if (code != cudaSuccess) {
        (void)cudaGetLastError();
        return why_not_opened(ordinal, code, err);
    }
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    (void)snprintf(p.name, sizeof(p.name), "%.63s", prop.name);
    format_uuid(p.uuid, &prop.uuid);
    p.sm = (uint32_t)(prop.major * 10 + prop.minor);
    p.n_sm = (uint32_t)prop.multiProcessorCount;
    p.driver = (uint32_t)driver;
    p.runtime = (uint32_t)runtime;
    p.max_shared_bytes = (uint32_t)prop.sharedMemPerBlockOptin;
    p.l2_bytes = (uint64_t)prop.l2CacheSize;
    p.memory_total = prop.totalGlobalMem;
    p.memory_free = managed_memory_free(p.uuid);
    p.is_timed = true;
    *out = p;
    return ST_OK;
}

const struct gpu_properties *gpu_properties(const struct gpu *gpu) {
    return &gpu->properties;
}

uint64_t gpu_memory_free(struct gpu *gpu) {
    size_t n_free = 0, n_total = 0;

    enter(gpu);
    return check(gpu, cudaMemGetInfo(&n_free, &n_total), "asking for its memory") ? n_free : 0;
}

enum status gpu_open(struct gpu **out, uint32_t ordinal, struct error *err) {
    struct gpu *gpu;
    uint32_t n = 0;
    cudaError_t code;
    enum status st = gpu_count(&n, err);

    if (st != ST_OK) return st;
    if (ordinal >= n) return why_not_opened(ordinal, cudaErrorInvalidDevice, err);
    entered = 0;
    code = cudaSetDevice((int)ordinal); /* makes the context */
    if (code == cudaSuccess) code = cudaFree(NULL);
    if (code != cudaSuccess) {
        (void)cudaGetLastError();
        return why_not_opened(ordinal, code, err);
    }
    gpu = mem_zalloc(sizeof(*gpu));
    gpu->ordinal = ordinal;
    gpu->watcher.fd = -1;
    st = gpu_describe(ordinal, &gpu->properties, err);
    if (st != ST_OK) goto fail;
    gpu->has_batch_copy = gpu->properties.driver >= BATCH_DRIVER;
    gpu->properties.memory_free = gpu_memory_free(gpu);
    st = gpu_status(gpu, err);
    if (st != ST_OK) goto fail;
    *out = gpu;
    return ST_OK;
fail:
    gpu_close(gpu);
    return st;
}

/* --- memory ------------------------------------------------------------------------------------- */

static double gib(uint64_t n_bytes) {
    return (double)n_bytes / (1024.0 * 1024.0 * 1024.0);
}

static enum status keep(struct gpu *gpu, void *memory, bool is_pinned, void **out) {
    struct gpu_block *block = mem_alloc(sizeof(*block));

    *block = (struct gpu_block){gpu->blocks, memory, is_pinned};
    gpu->blocks = block;
    *out = memory;
    return ST_OK;
}

enum status gpu_alloc(struct gpu *gpu, void **out, uint64_t n_bytes, const char *what,
                      struct error *err) {
    void *memory = NULL;
    cudaError_t code;

    enter(gpu);
    code = cudaMalloc(&memory, MAX(n_bytes, 1));
    if (code == cudaSuccess) return keep(gpu, memory, false, out);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return error_set(err, ST_NOMEM, "%s takes %.3f GiB of GPU %u, which has %.3f GiB free",
                         what, gib(n_bytes), gpu->ordinal, gib(gpu_memory_free(gpu)));
    }
    (void)check(gpu, code, "allocating memory");
    return gpu_status(gpu, err);
}

enum status gpu_alloc_pinned(struct gpu *gpu, void **out, uint64_t n_bytes, const char *what,
                             struct error *err) {
    void *memory = NULL;
    cudaError_t code;

    enter(gpu);
    code = cudaHostAlloc(&memory, MAX(n_bytes, 1), cudaHostAllocDefault);
    if (code == cudaSuccess) return keep(gpu, memory, true, out);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return error_set(err, ST_NOMEM,
                         "%s takes %.3f GiB of pinned host memory, which the system refuses: ask "
                         "for less, or raise the limit on locked memory (ulimit -l)",
                         what, gib(n_bytes));
    }
    (void)check(gpu, code, "allocating pinned memory");
    return gpu_status(gpu, err);
}

static void release(struct gpu *gpu, struct gpu_block *block) {
    cudaError_t code = block->is_pinned ? cudaFreeHost(block->memory) : cudaFree(block->memory);

    (void)check(gpu, code, "freeing memory");
    mem_free(block);
}

void gpu_free(struct gpu *gpu, void *p) {
    struct gpu_block **at = &gpu->blocks, *block;

    if (!p) return;
    while (*at && (*at)->memory != p)
        at = &(*at)->next;
    block = *at;
    if (!block) {
        gpu_fail(gpu, "GPU %u: freed memory that it has not given", gpu->ordinal);
        return;
    }
    *at = block->next;
    release(gpu, block);
}

/* --- streams ------------------------------------------------------------------------------------ */

enum status gpu_stream_open(struct gpu *gpu, struct gpu_stream **out, struct error *err) {
    cudaStream_t stream = NULL;

    enter(gpu);
    if (!check(gpu, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "opening a stream"))
        return gpu_status(gpu, err);
    *out = mem_zalloc(sizeof(**out));
    (*out)->gpu = gpu;
    (*out)->stream = stream;
    return ST_OK;
}

void gpu_stream_close(struct gpu_stream *s) {
    if (!s) return;
    (void)check(s->gpu, cudaStreamSynchronize(s->stream), "finishing a stream");
    (void)check(s->gpu, cudaStreamDestroy(s->stream), "closing a stream");
    mem_free(s);
}

struct gpu *gpu_stream_gpu(struct gpu_stream *s) {
    return s->gpu;
}

void *gpu_stream_handle(struct gpu_stream *s) {
    if (!s) return NULL; /* the default stream: tests of kernels */
    enter(s->gpu);
    return s->stream;
}

void gpu_copy(struct gpu_stream *s, void *dst, const void *src, uint64_t n_bytes) {
    if (n_bytes == 0) return;
    (void)check(s->gpu, cudaMemcpyAsync(dst, src, n_bytes, cudaMemcpyDefault, s->stream),
                "starting a copy");
}

void gpu_copy_2d(struct gpu_stream *s, void *dst, uint64_t dst_pitch, const void *src,
                 uint64_t src_pitch, uint64_t row_bytes, uint64_t n_rows) {
    if (row_bytes == 0 || n_rows == 0) return;
    (void)check(s->gpu,
                cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, row_bytes, n_rows,
                                  cudaMemcpyDefault, s->stream),
                "starting a copy of rows");
}

static cudaError_t copy_batch(struct gpu_stream *s, void *const *dst, const void *const *src,
                              uint64_t n_bytes, uint32_t n) {
    struct cudaMemcpyAttributes in_order = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream,
                                            .flags = cudaMemcpyFlagPreferOverlapWithCompute};
    size_t sizes[COPIES_AT_ONCE], first = 0;
    uint32_t i;

    for (i = 0; i < n; i++)
        sizes[i] = n_bytes;
#if CUDART_VERSION >= 13000
    return cudaMemcpyBatchAsync(dst, src, sizes, n, &in_order, &first, 1, s->stream);
#else
    {
        void *to[COPIES_AT_ONCE], *from[COPIES_AT_ONCE];
        size_t failed;

        memcpy(to, dst, n * sizeof(*to));
        memcpy(from, src, n * sizeof(*from));
        return cudaMemcpyBatchAsync(to, from, sizes, n, &in_order, &first, 1, &failed, s->stream);
    }
#endif
}

/* Whether the driver took them. One that cannot is not asked again. */
static bool copied_at_once(struct gpu_stream *s, void *const *dst, const void *const *src,
                           uint64_t n_bytes, uint32_t n) {
    struct gpu *gpu = s->gpu;
    cudaError_t code;

    if (!gpu->has_batch_copy || s->is_capturing || n < 2) return false;
    code = copy_batch(s, dst, src, n_bytes, n);
    if (code == cudaErrorNotSupported || code == cudaErrorCallRequiresNewerDriver) {
        (void)cudaGetLastError();
        gpu->has_batch_copy = false;
        return false;
    }
    (void)check(gpu, code, "starting copies");
    return true;
}

void gpu_copy_many(struct gpu_stream *s, void *const *dst, const void *const *src, uint64_t n_bytes,
                   uint32_t n) {
    uint32_t first, count, i;

    if (n_bytes == 0) return;
    for (first = 0; first < n; first += count) {
        count = MIN(n - first, COPIES_AT_ONCE);
        if (copied_at_once(s, dst + first, src + first, n_bytes, count)) continue;
        for (i = first; i < first + count; i++)
            gpu_copy(s, dst[i], src[i], n_bytes);
    }
}

void gpu_fill(struct gpu_stream *s, void *dst, uint8_t value, uint64_t n_bytes) {
    if (n_bytes == 0) return;
    (void)check(s->gpu, cudaMemsetAsync(dst, value, n_bytes, s->stream), "filling memory");
}

enum status gpu_stream_wait(struct gpu_stream *s, struct error *err) {
    (void)check(s->gpu, cudaPeekAtLastError(), "running a kernel");
    (void)check(s->gpu, cudaStreamSynchronize(s->stream), "finishing a stream");
    return gpu_status(s->gpu, err);
}

/* --- events ------------------------------------------------------------------------------------- */

enum status gpu_event_open(struct gpu *gpu, struct gpu_event **out, struct error *err) {
    cudaEvent_t event = NULL;

    enter(gpu);
    if (!check(gpu, cudaEventCreateWithFlags(&event, cudaEventBlockingSync), "making an event"))
        return gpu_status(gpu, err);
    *out = mem_zalloc(sizeof(**out));
    (*out)->gpu = gpu;
    (*out)->event = event;
    return ST_OK;
}

void gpu_event_record(struct gpu_event *e, struct gpu_stream *s) {
    (void)check(e->gpu, cudaEventRecord(e->event, s->stream), "recording an event");
}

void gpu_stream_wait_event(struct gpu_stream *s, struct gpu_event *e) {
    (void)check(s->gpu, cudaStreamWaitEvent(s->stream, e->event, cudaEventWaitDefault),
                "waiting for an event");
}

enum status gpu_event_poll(struct gpu_event *e) {
    cudaError_t code = cudaPeekAtLastError(); /* a query would cover up what a launch left */

    if (check(e->gpu, code, "running a kernel")) code = cudaEventQuery(e->event);
    if (code == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return ST_AGAIN;
    }
    (void)check(e->gpu, code, "running a step");
    return e->gpu->has_failed ? ST_CLOSED : ST_OK;
}

static uint64_t clock_us(void) {
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

enum status gpu_event_wait(struct gpu_event *e, uint64_t timeout_us) {
    const struct timespec nap = {0, SLEEP_US * 1000L};
    const uint64_t start_us = clock_us();
    uint64_t waited_us;
    enum status st;

    while ((st = gpu_event_poll(e)) == ST_AGAIN) {
        waited_us = clock_us() - start_us;
        if (waited_us >= timeout_us) return ST_TIMEOUT;
        if (waited_us >= SPIN_US) (void)nanosleep(&nap, NULL);
    }
    return st;
}

double gpu_event_elapsed_us(struct gpu_event *from, struct gpu_event *to) {
    float ms = 0;

    return check(from->gpu, cudaEventElapsedTime(&ms, from->event, to->event), "reading its clock")
               ? (double)ms * 1000.0
               : 0;
}

/* --- the watcher -------------------------------------------------------------------------------- */

static struct gpu_event *pop_announced(struct gpu_watcher *w) {
    struct gpu_event *e = w->first;

    w->first = e->next;
    if (!w->first) w->last = NULL;
    e->next = NULL;
    e->is_announced = false;
    return e;
}

static void *watch(void *arg) {
    struct gpu *gpu = arg;
    struct gpu_watcher *w = &gpu->watcher;
    const uint64_t one = 1;

    (void)cudaSetDevice((int)gpu->ordinal);
    (void)pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->first && !w->is_ending)
            (void)pthread_cond_wait(&w->change, &w->lock);
        if (w->is_ending) break;
        w->current = pop_announced(w);
        (void)pthread_mutex_unlock(&w->lock);
        (void)cudaEventSynchronize(w->current->event); /* a failure is the owner's to find */
        (void)!write(w->fd, &one, sizeof(one));
        (void)pthread_mutex_lock(&w->lock);
        w->current = NULL;
        (void)pthread_cond_broadcast(&w->change); /* someone may wait to close it */
    }
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

int gpu_event_fd(struct gpu *gpu) {
    struct gpu_watcher *w = &gpu->watcher;

    if (w->has_thread) return w->fd;
    w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->fd < 0) return -1;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->change, NULL);
    if (pthread_create(&w->thread, NULL, watch, gpu) == 0) {
        w->has_thread = true;
        return w->fd;
    }
    (void)pthread_cond_destroy(&w->change);
    (void)pthread_mutex_destroy(&w->lock);
    (void)close(w->fd);
    return w->fd = -1;
}

void gpu_event_announce(struct gpu_event *e) {
    struct gpu_watcher *w = &e->gpu->watcher;

    if (!w->has_thread) return;
    (void)pthread_mutex_lock(&w->lock);
    if (!e->is_announced) {
        e->is_announced = true;
        if (w->last)
            w->last->next = e;
        else
            w->first = e;
        w->last = e;
        (void)pthread_cond_broadcast(&w->change);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

/* Takes an event from the watcher, which may be waiting for it. */
static void withdraw(struct gpu_event *e) {
    struct gpu_watcher *w = &e->gpu->watcher;
    struct gpu_event **at, *before = NULL;

    if (!w->has_thread) return;
    (void)pthread_mutex_lock(&w->lock);
    for (at = &w->first; *at && *at != e; at = &(*at)->next)
        before = *at;
    if (*at) {
        *at = e->next;
        if (w->last == e) w->last = before;
    }
    while (w->current == e)
        (void)pthread_cond_wait(&w->change, &w->lock);
    (void)pthread_mutex_unlock(&w->lock);
}

static void watcher_stop(struct gpu_watcher *w) {
    if (!w->has_thread) return;
    (void)pthread_mutex_lock(&w->lock);
    w->is_ending = true;
    (void)pthread_cond_broadcast(&w->change);
    (void)pthread_mutex_unlock(&w->lock);
    (void)pthread_join(w->thread, NULL);
    (void)pthread_cond_destroy(&w->change);
    (void)pthread_mutex_destroy(&w->lock);
    (void)close(w->fd);
    w->has_thread = false;
}

void gpu_event_close(struct gpu_event *e) {
    if (!e) return;
    withdraw(e);
    (void)check(e->gpu, cudaEventDestroy(e->event), "closing an event");
    mem_free(e);
}

/* --- graphs ------------------------------------------------------------------------------------- */

/* Only this thread's calls are watched: the watcher, and other ranks, go on meanwhile. */
void gpu_capture_begin(struct gpu_stream *s) {
    s->is_capturing = check(
        s->gpu, cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal), "recording");
}

enum status gpu_capture_end(struct gpu_stream *s, struct gpu_graph **out, struct error *err) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t code;

    if (!s->is_capturing) {
        gpu_fail(s->gpu, "GPU %u: a recording ended that had not begun", s->gpu->ordinal);
        return gpu_status(s->gpu, err);
    }
    s->is_capturing = false;
    (void)check(s->gpu, cudaPeekAtLastError(), "recording a kernel"); /* before the end covers it */
    code = cudaStreamEndCapture(s->stream, &graph);
    if (code == cudaSuccess) code = cudaGraphInstantiate(&exec, graph, 0);
    if (graph) (void)cudaGraphDestroy(graph);
    if (code == cudaSuccess) code = cudaGraphUpload(exec, s->stream);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        if (exec) (void)cudaGraphExecDestroy(exec);
        return error_set(err, ST_NOMEM,
                         "a recorded step does not fit into the %.3f GiB free on GPU %u: lower "
                         "--gpu-memory-utilization",
                         gib(gpu_memory_free(s->gpu)), s->gpu->ordinal);
    }
    if (!check(s->gpu, code, "making a graph") || s->gpu->has_failed) {
        if (exec) (void)cudaGraphExecDestroy(exec);
        return gpu_status(s->gpu, err);
    }
    *out = mem_zalloc(sizeof(**out));
    (*out)->gpu = s->gpu;
    (*out)->exec = exec;
    return ST_OK;
}

void gpu_graph_launch(struct gpu_graph *g, struct gpu_stream *s) {
    enter(s->gpu);
    (void)check(s->gpu, cudaGraphLaunch(g->exec, s->stream), "launching a graph");
}

void gpu_graph_close(struct gpu_graph *g) {
    if (!g) return;
    (void)check(g->gpu, cudaGraphExecDestroy(g->exec), "closing a graph");
    mem_free(g);
}

void gpu_close(struct gpu *gpu) {
    struct gpu_block *block;

    if (!gpu) return;
    enter(gpu);
    (void)cudaDeviceSynchronize(); /* before the watcher: an announced event comes, or fails */
    watcher_stop(&gpu->watcher);
    while ((block = gpu->blocks)) {
        gpu->blocks = block->next;
        release(gpu, block);
    }
    mem_free(gpu);
}

/* --- libraries ---------------------------------------------------------------------------------- */

/* Where the toolkit puts its libraries when the loader's own list does not have them. */
static const char *const folders[] = {"", "/usr/local/cuda/lib64/",
                                      "/usr/local/cuda/targets/x86_64-linux/lib/",
                                      "/usr/local/cuda/targets/sbsa-linux/lib/"};

enum status gpu_library_open(void **out, const char *const *names, const char *what,
                             const char *remedy, struct error *err) {
    char path[256];
    size_t i;

    for (; *names; names++)
        for (i = 0; i < ARRAY_LEN(folders); i++) {
            (void)snprintf(path, sizeof(path), "%s%s", folders[i], *names);
            *out = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (*out) return ST_OK;
        }
    return error_set(err, ST_UNSUPPORTED, "%s cannot be opened (%.200s): %s", what, dlerror(),
                     remedy);
}

enum status gpu_library_find(void *library, void *function, const char *name, struct error *err) {
    void *address = dlsym(library, name);

    if (!address)
        return error_set(err, ST_UNSUPPORTED, "the library has no function %s: install a newer one",
                         name);
    memcpy(function, &address, sizeof(address)); /* a function pointer of any type */
    return ST_OK;
}

/* kernels/cuda/device/gpu.c - a device through the CUDA runtime.
 *
 * A thin layer: one call of the runtime for each of ours, and two things the runtime lacks; a
 * third, an fd for events, is in gpu_events.c.
 *
 * Errors. The runtime reports "driver version is insufficient" on a machine without a driver, on
 * one whose driver is old, and in a container that was started without its GPUs. why_no_device
 * distinguishes these and names the remedy.
 *
 * One mistake sticks. Calls that put work on a stream return nothing; what the runtime answers is
 * kept by gpu_check until gpu_status or an event reads it. Launches of kernels leave their mistake
 * with the runtime (cudaGetLastError), where gpu_status fetches it. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/cuda/device/gpu_runtime.h"

#if CUDART_VERSION < 12080
#error "the CUDA toolkit is older than 12.8: install a newer one"
#endif

#define OVERLAPPING_SM 90     /* the oldest that can begin a kernel before the last one ends */
#define COPIES_AT_ONCE 256u   /* sizes handed to the driver in one call */
#define BATCH_DRIVER   12080u /* the first driver that takes many copies in one call */

struct gpu_graph {
    struct gpu *gpu;
    cudaGraphExec_t exec;
};

/* --- sentences -------------------------------------------------------------------------------- */

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

/* --- the mistake that sticks ------------------------------------------------------------------ */

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

bool gpu_check(struct gpu *gpu, cudaError_t code, const char *doing) {
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

void gpu_enter(struct gpu *gpu) {
    if (LIKELY(entered == gpu->ordinal + 1)) return;
    if (gpu_check(gpu, cudaSetDevice((int)gpu->ordinal), "being chosen"))
        entered = gpu->ordinal + 1;
}

enum status gpu_status(struct gpu *gpu, struct error *err) {
    (void)gpu_check(gpu, cudaPeekAtLastError(), "running a kernel");
    return gpu->has_failed ? error_set(err, ST_CLOSED, "%s", gpu->failure) : ST_OK;
}

/* --- devices ---------------------------------------------------------------------------------- */

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
 * library: the runtime would take a context of half a gigabyte for it. 0: unknown. The
 * library stays open: on a machine of many GPUs it is slow to start, and each device needs it. */
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

    gpu_enter(gpu);
    return gpu_check(gpu, cudaMemGetInfo(&n_free, &n_total), "asking for its memory") ? n_free : 0;
}

/* INCIPIT_CUDA_OVERLAP=0: to see what it is worth, or whether a fault is due to it. */
static bool is_overlap_off(void) {
    const char *value = getenv("INCIPIT_CUDA_OVERLAP");

    return value && !strcmp(value, "0");
}

static struct gpu_kernel *kernels; /* complete before main */

void gpu_list_kernel(struct gpu_kernel *kernel) {
    kernel->next = kernels;
    kernels = kernel;
}

/* A kernel that was compiled for an older card does not wait for the one before it (simt.h), so
 * none may then begin early. The driver runs such code where the object has no newer. */
static void load_kernels(struct gpu *gpu) {
    struct cudaFuncAttributes a;

    for (const struct gpu_kernel *k = kernels; k; k = k->next) {
        if (!gpu_check(gpu, cudaFuncGetAttributes(&a, k->address), "loading its kernels")) return;
        gpu->overlaps &= a.ptxVersion >= OVERLAPPING_SM && a.binaryVersion >= OVERLAPPING_SM;
    }
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
    gpu->overlaps = gpu->properties.sm >= OVERLAPPING_SM && !is_overlap_off();
    load_kernels(gpu);
    gpu->properties.memory_free = gpu_memory_free(gpu);
    st = gpu_status(gpu, err);
    if (st != ST_OK) goto fail;
    *out = gpu;
    return ST_OK;
fail:
    gpu_close(gpu);
    return st;
}

bool gpu_reach(struct gpu *gpu, uint32_t ordinal) {
    int can_access = 0;
    cudaError_t code;

    gpu_enter(gpu);
    if (ordinal == gpu->ordinal) return false;
    code = cudaDeviceCanAccessPeer(&can_access, (int)gpu->ordinal, (int)ordinal);
    if (code == cudaSuccess && can_access) code = cudaDeviceEnablePeerAccess((int)ordinal, 0);
    if (code != cudaSuccess) (void)cudaGetLastError(); /* not a mistake that sticks */
    return can_access && (code == cudaSuccess || code == cudaErrorPeerAccessAlreadyEnabled);
}

/* --- memory ----------------------------------------------------------------------------------- */

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

    gpu_enter(gpu);
    code = cudaMalloc(&memory, MAX(n_bytes, 1));
    if (code == cudaSuccess) return keep(gpu, memory, false, out);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return error_set(err, ST_NOMEM, "%s takes %.3f GiB of GPU %u, which has %.3f GiB free",
                         what, gib(n_bytes), gpu->ordinal, gib(gpu_memory_free(gpu)));
    }
    (void)gpu_check(gpu, code, "allocating memory");
    return gpu_status(gpu, err);
}

enum status gpu_alloc_pinned(struct gpu *gpu, void **out, uint64_t n_bytes, const char *what,
                             struct error *err) {
    void *memory = NULL;
    cudaError_t code;

    gpu_enter(gpu);
    code = cudaHostAlloc(&memory, MAX(n_bytes, 1), cudaHostAllocDefault);
    if (code == cudaSuccess) return keep(gpu, memory, true, out);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return error_set(err, ST_NOMEM,
                         "%s takes %.3f GiB of pinned host memory, which the system refuses: ask "
                         "for less, or raise the limit on locked memory (ulimit -l)",
                         what, gib(n_bytes));
    }
    (void)gpu_check(gpu, code, "allocating pinned memory");
    return gpu_status(gpu, err);
}

static void release(struct gpu *gpu, struct gpu_block *block) {
    cudaError_t code = block->is_pinned ? cudaFreeHost(block->memory) : cudaFree(block->memory);

    (void)gpu_check(gpu, code, "freeing memory");
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

/* --- streams ---------------------------------------------------------------------------------- */

enum status gpu_stream_open(struct gpu *gpu, struct gpu_stream **out, struct error *err) {
    cudaStream_t stream = NULL;

    gpu_enter(gpu);
    if (!gpu_check(gpu, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                   "opening a stream"))
        return gpu_status(gpu, err);
    *out = mem_zalloc(sizeof(**out));
    (*out)->gpu = gpu;
    (*out)->stream = stream;
    return ST_OK;
}

void gpu_stream_close(struct gpu_stream *s) {
    if (!s) return;
    (void)gpu_check(s->gpu, cudaStreamSynchronize(s->stream), "finishing a stream");
    (void)gpu_check(s->gpu, cudaStreamDestroy(s->stream), "closing a stream");
    mem_free(s);
}

struct gpu *gpu_stream_gpu(struct gpu_stream *s) {
    return s->gpu;
}

void *gpu_stream_handle(struct gpu_stream *s) {
    if (!s) return NULL; /* the default stream: tests of kernels */
    gpu_enter(s->gpu);
    s->has_kernel_last = false; /* a library may end with anything */
    return s->stream;
}

void *gpu_stream_launches(struct gpu_stream *s, bool *overlaps) {
    *overlaps = s && s->has_kernel_last && s->gpu->overlaps;
    if (!s) return NULL;
    gpu_enter(s->gpu);
    s->has_kernel_last = true;
    return s->stream;
}

void gpu_copy(struct gpu_stream *s, void *dst, const void *src, uint64_t n_bytes) {
    if (n_bytes == 0) return;
    s->has_kernel_last = false;
    (void)gpu_check(s->gpu, cudaMemcpyAsync(dst, src, n_bytes, cudaMemcpyDefault, s->stream),
                    "starting a copy");
}

void gpu_copy_2d(struct gpu_stream *s, void *dst, uint64_t dst_pitch, const void *src,
                 uint64_t src_pitch, uint64_t row_bytes, uint64_t n_rows) {
    if (row_bytes == 0 || n_rows == 0) return;
    s->has_kernel_last = false;
    (void)gpu_check(s->gpu,
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

/* Whether the driver took them. One that cannot is not tried again. */
static bool copied_at_once(struct gpu_stream *s, void *const *dst, const void *const *src,
                           uint64_t n_bytes, uint32_t n) {
    struct gpu *gpu = s->gpu;
    cudaError_t code;

    if (!gpu->has_batch_copy || s->is_capturing || n < 2) return false;
    s->has_kernel_last = false;
    code = copy_batch(s, dst, src, n_bytes, n);
    if (code == cudaErrorNotSupported || code == cudaErrorCallRequiresNewerDriver) {
        (void)cudaGetLastError();
        gpu->has_batch_copy = false;
        return false;
    }
    (void)gpu_check(gpu, code, "starting copies");
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
    s->has_kernel_last = false;
    (void)gpu_check(s->gpu, cudaMemsetAsync(dst, value, n_bytes, s->stream), "filling memory");
}

enum status gpu_stream_wait(struct gpu_stream *s, struct error *err) {
    (void)gpu_check(s->gpu, cudaPeekAtLastError(), "running a kernel");
    (void)gpu_check(s->gpu, cudaStreamSynchronize(s->stream), "finishing a stream");
    return gpu_status(s->gpu, err);
}

/* --- graphs ----------------------------------------------------------------------------------- */

/* Only this thread's calls are watched: the watcher, and other ranks, go on meanwhile. */
void gpu_capture_begin(struct gpu_stream *s) {
    s->has_kernel_last = false;
    s->is_capturing = gpu_check(
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
    s->is_capturing = s->has_kernel_last = false;
    (void)gpu_check(s->gpu, cudaPeekAtLastError(),
                    "recording a kernel"); /* before the end covers it */
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
    if (!gpu_check(s->gpu, code, "making a graph") || s->gpu->has_failed) {
        if (exec) (void)cudaGraphExecDestroy(exec);
        return gpu_status(s->gpu, err);
    }
    *out = mem_zalloc(sizeof(**out));
    (*out)->gpu = s->gpu;
    (*out)->exec = exec;
    return ST_OK;
}

void gpu_graph_launch(struct gpu_graph *g, struct gpu_stream *s) {
    gpu_enter(s->gpu);
    s->has_kernel_last = false;
    (void)gpu_check(s->gpu, cudaGraphLaunch(g->exec, s->stream), "launching a graph");
}

void gpu_graph_close(struct gpu_graph *g) {
    if (!g) return;
    (void)gpu_check(g->gpu, cudaGraphExecDestroy(g->exec), "closing a graph");
    mem_free(g);
}

void gpu_close(struct gpu *gpu) {
    struct gpu_block *block;

    if (!gpu) return;
    gpu_enter(gpu);
    (void)cudaDeviceSynchronize(); /* before the watcher: an announced event comes, or fails */
    gpu_watcher_stop(&gpu->watcher);
    while ((block = gpu->blocks)) {
        gpu->blocks = block->next;
        release(gpu, block);
    }
    mem_free(gpu);
}

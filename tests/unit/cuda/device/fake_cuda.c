/* tests/unit/cuda/device/fake_cuda.c - see fake_cuda.h. */
#include "tests/unit/cuda/device/fake_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#define MAX_RECORDED 64

struct fake_cuda fake_cuda;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static bool is_held;
static _Thread_local cudaError_t last_error;
static _Thread_local int current_device;

struct block {
    uint64_t n_bytes;
    uint64_t pad[31]; /* what follows is aligned to 256 bytes */
};

struct operation {
    void *dst;
    const void *src; /* NULL: fill */
    size_t n_bytes;
    int value;
};

struct recording {
    struct operation operation[MAX_RECORDED];
    uint32_t n;
};

struct CUstream_st {
    struct recording *recording;
};

struct CUevent_st {
    bool is_held;
    double us;
};

void fake_cuda_reset(void) {
    fake_cuda = (struct fake_cuda){.n_devices = 1,
                                   .driver = 13000,
                                   .sm = 90,
                                   .memory_bytes = 1 << 28,
                                   .ptx_version = 90,
                                   .has_cublaslt = true,
                                   .has_nccl = true};
    last_error = cudaSuccess;
    is_held = false;
}

void fake_cuda_hold(void) {
    (void)pthread_mutex_lock(&lock);
    is_held = true;
    (void)pthread_mutex_unlock(&lock);
}

void fake_cuda_let_go(void) {
    (void)pthread_mutex_lock(&lock);
    is_held = false;
    (void)pthread_cond_broadcast(&change);
    (void)pthread_mutex_unlock(&lock);
}

static cudaError_t answer(cudaError_t code) {
    if (code != cudaSuccess) last_error = code;
    return code;
}

/* The error that a test asked for, once. */
static cudaError_t once(int *error) {
    int code = *error;

    *error = 0;
    return answer((cudaError_t)code);
}

/* --- devices ---------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count) {
    *count = fake_cuda.n_devices;
    return answer((cudaError_t)fake_cuda.count_error);
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = fake_cuda.driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error) {
    static _Thread_local char text[32];

    snprintf(text, sizeof(text), "error number %d", (int)error);
    return text;
}

const char *cudaGetErrorName(cudaError_t error) {
    (void)error;
    return "cudaErrorX";
}

cudaError_t cudaPeekAtLastError(void) {
    if (fake_cuda.launch_error) (void)once(&fake_cuda.launch_error);
    return last_error;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t code = last_error;

    last_error = cudaSuccess;
    return code;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attr, const void *func) {
    if (func == fake_cuda.foreign_kernel) return answer(cudaErrorNoKernelImageForDevice);
    fake_cuda.n_loaded++;
    *attr = (struct cudaFuncAttributes){.binaryVersion = 90, .ptxVersion = fake_cuda.ptx_version};
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    if (device >= fake_cuda.n_devices) return answer(cudaErrorInvalidDevice);
    memset(prop, 0, sizeof(*prop));
    strcpy(prop->name, "Pretended GPU");
    for (int i = 0; i < 16; i++)
        prop->uuid.bytes[i] = (char)(0xA0 + i);
    prop->major = fake_cuda.sm / 10;
    prop->minor = fake_cuda.sm % 10;
    prop->multiProcessorCount = 132;
    prop->sharedMemPerBlockOptin = 232448;
    prop->l2CacheSize = 1 << 16;
    prop->totalGlobalMem = fake_cuda.memory_bytes;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    current_device = device;
    return answer((cudaError_t)fake_cuda.open_error);
}

cudaError_t cudaDeviceCanAccessPeer(int *can_access, int device, int peer) {
    *can_access = !fake_cuda.has_no_peers && device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    bool is_enabled = fake_cuda.peers_enabled >> peer & 1;

    (void)flags;
    fake_cuda.peers_enabled |= 1u << peer;
    return answer(is_enabled ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void) {
    return cudaSuccess;
}

/* --- memory ----------------------------------------------------------------------------------- */

cudaError_t cudaMemGetInfo(size_t *n_free, size_t *n_total) {
    *n_free = fake_cuda.memory_bytes - fake_cuda.allocated_bytes;
    *n_total = fake_cuda.memory_bytes;
    return cudaSuccess;
}

static cudaError_t allocate(void **out, size_t n_bytes) {
    struct block *b = aligned_alloc(256, ALIGN_UP(sizeof(*b) + n_bytes, 256));

    b->n_bytes = n_bytes;
    fake_cuda.allocated_on = current_device;
    fake_cuda.allocated_bytes += n_bytes;
    *out = b + 1;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t n_bytes) {
    if (n_bytes > fake_cuda.memory_bytes - fake_cuda.allocated_bytes)
        return answer(cudaErrorMemoryAllocation);
    return allocate(out, n_bytes);
}

cudaError_t cudaHostAlloc(void **out, size_t n_bytes, unsigned flags) {
    (void)flags;
    return n_bytes > fake_cuda.memory_bytes ? answer(cudaErrorMemoryAllocation)
                                            : allocate(out, n_bytes);
}

cudaError_t cudaFree(void *p) {
    if (!p) return cudaSuccess;
    fake_cuda.allocated_bytes -= ((struct block *)p - 1)->n_bytes;
    free((struct block *)p - 1);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p) {
    return cudaFree(p);
}

/* --- streams ---------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    (void)flags;
    *out = calloc(1, sizeof(**out));
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    (void)s;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s) {
    free(s);
    return cudaSuccess;
}

static void perform(const struct operation *o) {
    if (o->src)
        memmove(o->dst, o->src, o->n_bytes);
    else
        memset(o->dst, o->value, o->n_bytes);
}

static cudaError_t operate(cudaStream_t s, struct operation o) {
    if (!s->recording)
        perform(&o);
    else if (s->recording->n < MAX_RECORDED)
        s->recording->operation[s->recording->n++] = o;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n_bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s) {
    (void)kind;
    fake_cuda.n_copies++;
    if (fake_cuda.copy_error) return once(&fake_cuda.copy_error);
    return operate(s, (struct operation){dst, src, n_bytes, 0});
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t row_bytes, size_t n_rows, enum cudaMemcpyKind kind,
                              cudaStream_t s) {
    (void)kind;
    for (size_t i = 0; i < n_rows; i++)
        (void)operate(s, (struct operation){(char *)dst + i * dst_pitch,
                                            (const char *)src + i * src_pitch, row_bytes, 0});
    return cudaSuccess;
}

#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpyBatchAsync(void *const *dst, const void *const *src, const size_t *sizes,
                                 size_t n, struct cudaMemcpyAttributes *attributes, size_t *first,
                                 size_t n_attributes, cudaStream_t s) {
#else
cudaError_t cudaMemcpyBatchAsync(void **dst, void **src, size_t *sizes, size_t n,
                                 struct cudaMemcpyAttributes *attributes, size_t *first,
                                 size_t n_attributes, size_t *failed, cudaStream_t s) {
    (void)failed;
#endif
    if (fake_cuda.batch_error) return answer((cudaError_t)fake_cuda.batch_error);
    if (n_attributes != 1 || *first != 0 || s->recording ||
        attributes->srcAccessOrder != cudaMemcpySrcAccessOrderStream)
        return answer(cudaErrorInvalidValue);
    fake_cuda.n_batches++;
    fake_cuda.n_batched += (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        memcpy(dst[i], src[i], sizes[i]);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t n_bytes, cudaStream_t s) {
    return operate(s, (struct operation){dst, NULL, n_bytes, value});
}

/* --- events ----------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    (void)flags;
    *out = calloc(1, sizeof(**out));
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e) {
    free(e);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    (void)s;
    (void)pthread_mutex_lock(&lock);
    e->is_held = is_held;
    e->us = fake_cuda.clock_us;
    (void)pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    (void)s, (void)e, (void)flags;
    return cudaSuccess;
}

static bool has_come(cudaEvent_t e) {
    return !e->is_held || !is_held;
}

cudaError_t cudaEventQuery(cudaEvent_t e) {
    bool come;

    (void)pthread_mutex_lock(&lock);
    come = has_come(e);
    (void)pthread_mutex_unlock(&lock);
    return answer(come ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    (void)pthread_mutex_lock(&lock);
    while (!has_come(e))
        (void)pthread_cond_wait(&change, &lock);
    (void)pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    *ms = (float)((to->us - from->us) / 1000.0);
    return cudaSuccess;
}

/* --- graphs ----------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    if (mode != cudaStreamCaptureModeThreadLocal) return answer(cudaErrorInvalidValue);
    s->recording = calloc(1, sizeof(*s->recording));
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out) {
    *out = (cudaGraph_t)(void *)s->recording;
    s->recording = NULL;
    return once(&fake_cuda.capture_error);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph,
                                 unsigned long long flags) {
    (void)flags;
    *out = malloc(sizeof(struct recording));
    memcpy(*out, graph, sizeof(struct recording));
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t s) {
    (void)graph, (void)s;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s) {
    struct recording *r = (struct recording *)(void *)graph;

    (void)s;
    fake_cuda.n_graph_launches++;
    for (uint32_t i = 0; i < r->n; i++)
        perform(&r->operation[i]);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    free(graph);
    return cudaSuccess;
}

/* kernels/cuda/device/gpu_runtime.h - what gpu.c and gpu_events.c share: the objects behind
 * gpu.h. */
#ifndef KERNELS_CUDA_DEVICE_GPU_RUNTIME_H
#define KERNELS_CUDA_DEVICE_GPU_RUNTIME_H

#include <pthread.h>

#include <cuda_runtime_api.h>

#include "kernels/cuda/device/gpu_internal.h"

struct gpu_block {
    struct gpu_block *next;
    void *memory;
    bool is_pinned;
};

/* See gpu_events.c. */
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
    bool overlaps; /* kernels may begin before the one before has ended */
    bool has_failed;
    char failure[ERROR_MESSAGE_MAX];
};

struct gpu_stream {
    struct gpu *gpu;
    cudaStream_t stream;
    bool is_capturing;
    bool has_kernel_last; /* what was put there last is a kernel */
};

struct gpu_event {
    struct gpu *gpu;
    cudaEvent_t event;
    struct gpu_event *next; /* on the watcher's list */
    bool is_announced;
};

/* Whether the call went well; if not, the device has failed. */
bool gpu_check(struct gpu *gpu, cudaError_t code, const char *doing);

/* Makes the device the one that this thread's calls mean. The runtime keeps one per thread, device
 * 0 at first; usually there is nothing to do. Before whatever looks at it: allocations, new streams
 * and events, launches. */
void gpu_enter(struct gpu *gpu);

/* Ends the watcher's thread, if there is one; no event may be announced afterwards. */
void gpu_watcher_stop(struct gpu_watcher *w);

#endif

/* kernels/cuda/device/gpu.h - what this backend uses of a device: memory, streams, events, graphs.
 *
 * The only door to the CUDA runtime. Two implementations stand behind it: gpu.c and gpu_events.c
 * call libcudart; tests/shim/gpu_shim.c is a device made of host memory, on which the same kernels
 * run thread by thread as fibers. All that is not a kernel or behind this header, gemm.h or comm.h
 * is plain C11 and the same object code in both, so that the whole backend is tested where there is
 * no GPU.
 *
 * Work on a stream is done in the order it was put there, some time after the call. A call on a
 * stream cannot fail by itself: the first mistake, the driver's or a kernel's, sticks to the
 * device, and gpu_status returns ST_CLOSED with a sentence from then on. Nothing on a device that
 * has failed can be trusted; the process is expected to end.
 *
 * Threads: a device, and all that was made from it, belongs to the thread that opened it; the event
 * fd may be watched by another. */
#ifndef KERNELS_CUDA_DEVICE_GPU_H
#define KERNELS_CUDA_DEVICE_GPU_H

#include "common/base/base.h"
#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpu;        /* one device, opened */
struct gpu_stream; /* work in order */
struct gpu_event;  /* a point in a stream */
struct gpu_graph;  /* recorded work, put on a stream in one call */

struct gpu_properties {
    char name[64];
    char uuid[48];             /* "GPU-8-4-4-4-12" */
    uint32_t sm;               /* compute capability, 90 for 9.0 */
    uint32_t n_sm;             /* multiprocessors */
    uint32_t driver, runtime;  /* 13000 for 13.0 */
    uint32_t max_shared_bytes; /* of one thread block, opted in */
    uint64_t l2_bytes;
    uint64_t memory_total, memory_free; /* free: at the time of the call; 0: unknown */
    bool is_timed;                      /* its clock can compare two ways */
};

/* How many devices there are. Never aborts, never prints; ST_UNSUPPORTED with a sentence when the
 * driver is absent, too old or broken, or has no device. */
MUST_USE enum status gpu_count(uint32_t *n_devices, struct error *err);
MUST_USE enum status gpu_describe(uint32_t ordinal, struct gpu_properties *out, struct error *err);

MUST_USE enum status gpu_open(struct gpu **out, uint32_t ordinal, struct error *err);
void gpu_close(struct gpu *gpu); /* waits for its streams; NULL is fine */
const struct gpu_properties *gpu_properties(const struct gpu *gpu); /* as gpu_open found them */
uint64_t gpu_memory_free(struct gpu *gpu);
/* Lets kernels of `gpu` read and write what gpu_alloc gives on another device of this process.
 * false: they cannot, or it is the same device. */
bool gpu_reach(struct gpu *gpu, uint32_t ordinal);
/* A kernel of this object. simt.h lists each that a LAUNCH names, before main; gpu_open loads them
 * all. Else the driver loads a kernel at its first launch, and waits for all devices meanwhile,
 * which never ends if one of them waits for this one in a sum. */
struct gpu_kernel {
    const void *address;
    struct gpu_kernel *next;
};
void gpu_list_kernel(struct gpu_kernel *kernel);

/* ST_OK, or the first mistake that stuck. */
MUST_USE enum status gpu_status(struct gpu *gpu, struct error *err);

/* --- memory: freed one by one, or by gpu_close. Aligned to 256 bytes, contents undefined. ST_NOMEM
 * names `what`, both figures, and the memory free. */
MUST_USE enum status gpu_alloc(struct gpu *gpu, void **out, uint64_t n_bytes, const char *what,
                               struct error *err);
/* Host memory that copies can read and write while the host goes on. */
MUST_USE enum status gpu_alloc_pinned(struct gpu *gpu, void **out, uint64_t n_bytes,
                                      const char *what, struct error *err);
void gpu_free(struct gpu *gpu, void *p); /* of either kind; NULL is fine */

/* --- streams */
MUST_USE enum status gpu_stream_open(struct gpu *gpu, struct gpu_stream **out, struct error *err);
void gpu_stream_close(struct gpu_stream *s); /* NULL is fine */
struct gpu *gpu_stream_gpu(struct gpu_stream *s);
/* What a kernel launch needs: the cudaStream_t, or the shim's stream; of NULL the default one, on
 * which tests of kernels run. */
void *gpu_stream_handle(struct gpu_stream *s);
/* The same for what puts kernels alone on the stream. *overlaps: may the next one begin while the
 * one before it ends? On sm_90 and newer, where a kernel, and no copy or event, came last. */
void *gpu_stream_launches(struct gpu_stream *s, bool *overlaps);

/* Any direction; host memory must be pinned and stay as it is until the copy is done. */
void gpu_copy(struct gpu_stream *s, void *dst, const void *src, uint64_t n_bytes);
void gpu_copy_2d(struct gpu_stream *s, void *dst, uint64_t dst_pitch, const void *src,
                 uint64_t src_pitch, uint64_t row_bytes, uint64_t n_rows);
/* n copies of n_bytes each, in one call where the driver can (cudaMemcpyBatchAsync). */
void gpu_copy_many(struct gpu_stream *s, void *const *dst, const void *const *src, uint64_t n_bytes,
                   uint32_t n);
void gpu_fill(struct gpu_stream *s, void *dst, uint8_t value, uint64_t n_bytes);
/* Blocks until everything put on the stream is done. */
MUST_USE enum status gpu_stream_wait(struct gpu_stream *s, struct error *err);

/* --- events */
MUST_USE enum status gpu_event_open(struct gpu *gpu, struct gpu_event **out, struct error *err);
void gpu_event_close(struct gpu_event *e);
void gpu_event_record(struct gpu_event *e, struct gpu_stream *s);
/* What is put on `s` from now on waits until the event, as recorded last, has come. */
void gpu_stream_wait_event(struct gpu_stream *s, struct gpu_event *e);
/* Has it come? ST_OK, ST_AGAIN, or ST_CLOSED. A new event has. */
MUST_USE enum status gpu_event_poll(struct gpu_event *e);
MUST_USE enum status gpu_event_wait(struct gpu_event *e, uint64_t timeout_us); /* or ST_TIMEOUT */
/* Microseconds between two events that have come, as the device's clock saw them. */
double gpu_event_elapsed_us(struct gpu_event *from, struct gpu_event *to);

/* An fd that becomes readable when an event that was announced has come; -1 when there is none.
 * A thread of this module waits in the caller's stead; reading 8 bytes takes the signal away. */
int gpu_event_fd(struct gpu *gpu);
void gpu_event_announce(struct gpu_event *e);

/* --- graphs: between begin and end, work put on `s` (and on streams that wait for its events) is
 * recorded, not run. Nothing may be allocated meanwhile, and no host memory read: pointers are
 * recorded, not contents. */
void gpu_capture_begin(struct gpu_stream *s);
MUST_USE enum status gpu_capture_end(struct gpu_stream *s, struct gpu_graph **out,
                                     struct error *err);
void gpu_graph_launch(struct gpu_graph *g, struct gpu_stream *s);
void gpu_graph_close(struct gpu_graph *g); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif

/* tests/shim/gpu_shim_internal.h - what the pretended device is made of. */
#ifndef TESTS_SHIM_GPU_SHIM_INTERNAL_H
#define TESTS_SHIM_GPU_SHIM_INTERNAL_H

#include "kernels/cuda/device/gpu.h"
#include "tests/shim/block.h"
#include "tests/shim/device.h"
#include "tests/shim/memory.h"

enum { SHIM_BRANCHES = 4 }; /* streams of one graph */
struct op {
    struct op *next;
    uint32_t branch;               /* of a graph: the stream, by when it joined, */
    uint64_t after[SHIM_BRANCHES]; /* and how much of each must be done before */
    const char *what;
    shim_work *run;
    uint32_t args_bytes;
    _Alignas(16) unsigned char args[];
};
struct op_list {
    struct op *head, **tail;
};

struct gpu {
    struct gpu *next; /* of the process */
    struct gpu_properties properties;
    struct memory memory, pinned;
    struct gpu_stream *streams;
    uint32_t n_streams;
    struct gpu_graph *capture; /* being recorded */
    bool has_failed;
    char failure[ERROR_MESSAGE_MAX];
    int event_fd; /* -1 until asked for */
    uint64_t us;  /* its clock, if a product takes time */
    uint32_t product_us;
};
struct gpu_stream {
    struct gpu_stream *next;
    struct gpu *gpu;
    struct op_list ops;
    bool has_kernel_last; /* what was put there last is a kernel or a product */
    struct gpu_graph *capture;
    uint64_t n_captured, n_joined; /* of this capture: work recorded; of that, waited for */
    uint32_t branch;
    uint64_t after[SHIM_BRANCHES]; /* of each branch: what its next work comes after */
};
struct gpu_event {
    struct gpu *gpu;
    uint64_t n_recorded, n_come; /* tickets */
    uint64_t come_us;
    uint32_t n_held; /* by work that is queued */
    bool is_closed, is_announced;
    struct gpu_graph *capture; /* recorded in it, */
    struct gpu_stream *stream; /* here, */
    uint64_t n_captured;       /* after this much */
    uint64_t after[SHIM_BRANCHES];
};
struct gpu_graph {
    struct gpu *gpu;
    struct gpu_stream *origin;
    uint32_t n_branches;
    struct op_list ops;
    const char *fault; /* what must not be done while recording, and was */
};

/* The devices' one lock. */
void shim_lock(void);
void shim_unlock(void);

/* Under the lock. One piece of work of the device's, or when it is stuck of another's; with seed 0
 * of stream `first`, if it can go on. false: nothing can be done. */
bool shim_run_any(struct gpu *gpu, struct gpu_stream *first);
/* Work until is_done(what). ST_CLOSED: the device has failed; ST_TIMEOUT: other ranks have held it
 * up for too long. */
enum { STUCK_US = 60 * 1000000 };
enum status shim_run_until(struct gpu *gpu, struct gpu_stream *first, bool (*is_done)(void *what),
                           void *what, uint64_t timeout_us);
void shim_memory_leave(struct gpu *gpu); /* the host goes on: see memory.h */

void shim_list_init(struct op_list *l);
void shim_list_clear(struct op_list *l);

/* Is it memory of one of the devices, or pinned? Takes the lock. */
bool shim_is_device_address(const void *p);
/* Ends the process when an argument of a launch points to memory that a GPU cannot read, or when
 * gpu_open has not loaded the kernel. */
void shim_check_launch(struct gpu_stream *s, const struct shim_launch *launch);

/* Is it the launch that shim_fail_launch asked for? The device has then failed. */
bool shim_launch_fails(struct gpu *gpu, const struct shim_launch *launch);

/* gang.c: a launch that waits for the other ranks'; a device closes, under the lock. */
shim_work shim_run_together;
void shim_forget_places(const struct gpu *gpu);
bool shim_has_any_failed(void); /* of the devices of the process */

/* Around a kernel behind which another runs ahead: overlap.c. */
void shim_veil_before(struct gpu *gpu);
struct shim_veil *shim_veil_after(void);

/* A graph's work is put on a stream: shim_put, without being a call of the host's. */
void shim_put_again(struct gpu_stream *s, const char *what, shim_work *run, const void *args,
                    uint32_t args_bytes);
void shim_count_graph(uint64_t n_nodes);

/* While a graph is recorded this must not be done: its end will report it. */
void shim_not_while_recording(struct gpu *gpu, const char *what);
NORETURN void shim_fault(const char *fmt, ...) PRINTF_LIKE(1, 2);
/* The nth of these is refused: shim_control.h. */
MUST_USE enum status shim_call_may_fail(const char *what, struct error *err);

#endif

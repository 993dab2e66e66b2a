/* kernels/shim/gpu_shim.c - kernels/cuda/gpu.h as a device made of host memory.
 *
 * A stream is a queue. Nothing on it is done when it is put there, but for a little by chance:
 * everything waits until the host waits, or looks. Then work is taken from the heads of the device's
 * streams, in any order that their events allow, drawn from the seed of shim_control.h; with seed 0
 * as little as the host waits for, in order. So what forgets a wait, or writes to pinned memory that a
 * copy is still to read, is wrong under some seed or all of them. Host code that follows a pointer
 * into a device's memory dies of it, most of the time (memory.h).
 *
 * What ends the process with a sentence: copies from or to what is not wholly inside one allocation;
 * freeing what was not allocated; closing a device whose streams are open.
 *
 * A graph is a list of work, replayed in the order in which it was recorded. LIMIT: a graph made from
 * several streams keeps that one order; that every stream comes back to the first is checked.
 *
 * One lock over all devices of the process: a rank that waits for the others' sums runs their streams
 * too, if they have put work there, so that no rank needs a thread to be driven by. */
#include "kernels/cuda/gpu.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/mem.h"
#include "kernels/shim/device.h"
#include "kernels/shim/internal.h"
#include "kernels/shim/memory.h"
#include "kernels/shim/shim_control.h"

enum {
    MEMORY_DEFAULT = 256 << 20,
    PINNED_MAX = 1 << 30,
    STUCK_US = 60 * 1000000,
};

struct op {
    struct op *next;
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
};
struct gpu_stream {
    struct gpu_stream *next;
    struct gpu *gpu;
    struct op_list ops;
    struct gpu_graph *capture;
    uint64_t n_captured, n_joined; /* of this capture: work recorded; of that, waited for */
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
};
struct gpu_graph {
    struct gpu *gpu;
    struct gpu_stream *origin;
    struct op_list ops;
    const char *fault; /* what must not be done while recording, and was */
};

static pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
static struct gpu *gpus_;
static uint32_t n_devices_ = 1;
static uint64_t memory_bytes_ = MEMORY_DEFAULT;
static uint64_t fail_launch_, fail_call_; /* how many more until one fails; 0: none will */

static void lock(void) {
    pthread_mutex_lock(&lock_);
}
static void unlock(void) {
    pthread_mutex_unlock(&lock_);
}

/* --- what tests set: shim_control.h */
static void set(uint64_t *field, uint64_t value) {
    lock();
    *field = value;
    unlock();
}
void shim_set_devices(uint32_t n) {
    lock();
    n_devices_ = n;
    unlock();
}
void shim_set_memory(uint64_t n_bytes) {
    set(&memory_bytes_, n_bytes);
}
void shim_fail_launch(uint64_t nth) {
    set(&fail_launch_, nth);
}
void shim_fail_call(uint64_t nth) {
    set(&fail_call_, nth);
}
/* The count comes to its end: this is the one. */
static bool is_turn(uint64_t *count) {
    return *count && !--*count;
}
static enum status call_may_fail(const char *what, struct error *err) {
    bool is_failing;

    lock();
    is_failing = is_turn(&fail_call_);
    unlock();
    return is_failing ? error_set(err, ST_NOMEM, "%s: refused, as asked for", what) : ST_OK;
}

/* --- mistakes */
static NORETURN PRINTF_LIKE(1, 2) void fault(const char *fmt, ...) {
    va_list ap;

    fputs("shim: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    fflush(NULL);
    abort();
}
void shim_fail(struct gpu *gpu, const char *fmt, ...) {
    va_list ap;

    if (gpu->has_failed) return;
    gpu->has_failed = true;
    va_start(ap, fmt);
    vsnprintf(gpu->failure, sizeof(gpu->failure), fmt, ap);
    va_end(ap);
}
bool shim_has_failed(const struct gpu *gpu) {
    return gpu->has_failed;
}
static void not_while_recording(struct gpu *gpu, const char *what) {
    if (gpu->capture && !gpu->capture->fault) gpu->capture->fault = what;
}
void shim_check_range(struct gpu *gpu, const void *p, uint64_t n_bytes, const char *what) {
    if (!memory_holds(&gpu->memory, p, n_bytes) && !memory_holds(&gpu->pinned, p, n_bytes))
        fault("%s: %llu bytes at %p are not inside one allocation of the device's, nor pinned",
              what, (unsigned long long)n_bytes, p);
}
void shim_memory_enter(struct gpu *gpu) {
    memory_unlock(&gpu->memory);
}
/* Now and then, because it costs a system call and a walk over the pages. */
static void memory_leave(struct gpu *gpu) {
    if (!shim_is_shuffled() || shim_chance() % 8 == 0) memory_lock(&gpu->memory);
}

/* --- queues */
static void list_init(struct op_list *l) {
    l->head = NULL;
    l->tail = &l->head;
}
static void list_push(struct op_list *l, struct op *op) {
    op->next = NULL;
    *l->tail = op;
    l->tail = &op->next;
}
static void list_pop(struct op_list *l) {
    struct op *op = l->head;

    l->head = op->next;
    if (!l->head) l->tail = &l->head;
    mem_free(op);
}
static void list_clear(struct op_list *l) {
    while (l->head)
        list_pop(l);
}
static struct op *op_new(const char *what, shim_work *run, const void *args, uint32_t args_bytes) {
    struct op *op = mem_zalloc(sizeof(*op) + args_bytes);

    op->what = what;
    op->run = run;
    op->args_bytes = args_bytes;
    memcpy(op->args, args, args_bytes);
    return op;
}

/* Does what stands first on a stream. What must be done even on a device that has failed, the
 * bookkeeping of events, sees to it itself. */
static bool run_head(struct gpu_stream *s) {
    struct op *op = s->ops.head;

    if (!op) return false;
    shim_memory_enter(s->gpu);
    if (!op->run(s->gpu, op->args)) return false;
    list_pop(&s->ops);
    return true;
}
/* One piece of work of the device's, any that can be done; seed 0: of `first`, if there is some. */
static bool run_one(struct gpu *gpu, struct gpu_stream *first) {
    struct gpu_stream *s = gpu->streams;

    if (!shim_is_shuffled() && first && run_head(first)) return true;
    if (!s) return false;
    for (uint64_t skip = shim_is_shuffled() ? shim_chance() % gpu->n_streams : 0; skip; skip--)
        s = s->next;
    for (uint32_t i = 0; i < gpu->n_streams; i++, s = s->next ? s->next : gpu->streams)
        if (run_head(s)) return true;
    return false;
}
/* The same; when the device is stuck, of another, which may be what it waits for. */
static bool run_any(struct gpu *gpu, struct gpu_stream *first) {
    if (run_one(gpu, first)) return true;
    for (struct gpu *other = gpus_; other; other = other->next)
        if (other != gpu && run_one(other, NULL)) return true;
    return false;
}
/* Until is_done(what). Locked. ST_TIMEOUT when ranks that have not come hold it up too long. */
static enum status run_until(struct gpu *gpu, struct gpu_stream *first, bool (*is_done)(void *what),
                             void *what, uint64_t timeout_us) {
    uint64_t end_us = 0;

    while (!is_done(what)) {
        if (run_any(gpu, first)) {
            end_us = 0;
            continue;
        }
        if (!end_us) end_us = clock_now_us() + timeout_us;
        if (clock_now_us() >= end_us) break;
        unlock();
        usleep(50);
        lock();
    }
    memory_leave(gpu);
    return gpu->has_failed ? ST_CLOSED : is_done(what) ? ST_OK : ST_TIMEOUT;
}

void shim_put(struct gpu_stream *s, const char *what, shim_work *run, const void *args,
              uint32_t args_bytes) {
    struct op *op = op_new(what, run, args, args_bytes);

    lock();
    if (s->capture) {
        list_push(&s->capture->ops, op);
        s->n_captured++;
    } else {
        list_push(&s->ops, op);
        if (shim_is_shuffled() && shim_chance() % 8 == 0) {
            for (uint64_t n = 1 + shim_chance() % 4; n; n--)
                run_one(s->gpu, NULL);
            memory_leave(s->gpu);
        }
    }
    unlock();
}

/* --- launches */
struct launch_args {
    _Alignas(16) struct shim_launch launch; /* the kernel's arguments follow */
};
static bool run_launch(struct gpu *gpu, void *p) {
    struct launch_args *args = p;

    if (gpu->has_failed) return true;
    args->launch.args = args + 1;
    if (is_turn(&fail_launch_))
        shim_fail(gpu, "kernel %s: an illegal memory access, as asked for", args->launch.name);
    else
        shim_run(&args->launch);
    return true;
}
void shim_launch_on(struct gpu_stream *s, const struct shim_launch *launch) {
    union {
        struct launch_args args;
        unsigned char bytes[sizeof(struct launch_args) + SHIM_MAX_ARGS];
    } packed;
    const char *wrong = shim_launch_fault(launch);

    if (!s) {
        shim_run(launch);
        return;
    }
    if (wrong) {
        lock();
        shim_fail(s->gpu, "kernel %s cannot be launched: %s", launch->name, wrong);
        unlock();
        return;
    }
    packed.args.launch = *launch;
    memcpy(packed.bytes + sizeof(packed.args), launch->args, launch->args_bytes);
    shim_put(s, launch->name, run_launch, &packed,
             (uint32_t)(sizeof(packed.args) + launch->args_bytes));
}

/* --- devices */
enum status gpu_count(uint32_t *n_devices, struct error *err) {
    lock();
    *n_devices = n_devices_;
    unlock();
    if (!*n_devices)
        return error_set(err, ST_UNSUPPORTED, "no device: the shim was told to have none");
    return ST_OK;
}
enum status gpu_describe(uint32_t ordinal, struct gpu_properties *out, struct error *err) {
    uint32_t n;
    enum status st = gpu_count(&n, err);

    if (st != ST_OK) return st;
    if (ordinal >= n)
        return error_set(err, ST_NOT_FOUND, "device %u does not exist: there are %u", ordinal, n);
    memset(out, 0, sizeof(*out));
    snprintf(out->name, sizeof(out->name), "shim");
    snprintf(out->uuid, sizeof(out->uuid), "GPU-00000000-0000-0000-0000-%012x", ordinal);
    out->sm = 90;
    out->n_sm = 4;
    out->driver = out->runtime = 13000;
    out->max_shared_bytes = shim_max_shared();
    out->l2_bytes = 1 << 20;
    lock();
    out->memory_total = out->memory_free = memory_bytes_;
    unlock();
    return ST_OK;
}
enum status gpu_open(struct gpu **out, uint32_t ordinal, struct error *err) {
    struct gpu_properties properties;
    struct gpu *gpu;
    enum status st = gpu_describe(ordinal, &properties, err);

    if (st == ST_OK) st = call_may_fail("gpu_open", err);
    if (st != ST_OK) return st;
    gpu = mem_zalloc(sizeof(*gpu));
    gpu->properties = properties;
    gpu->event_fd = -1;
    if (!memory_open(&gpu->memory, properties.memory_total) ||
        !memory_open(&gpu->pinned, PINNED_MAX)) {
        memory_close(&gpu->memory);
        mem_free(gpu);
        return error_set(err, ST_NOMEM, "no address space for a device of %llu bytes",
                         (unsigned long long)properties.memory_total);
    }
    lock();
    gpu->next = gpus_;
    gpus_ = gpu;
    unlock();
    *out = gpu;
    return ST_OK;
}
static bool is_idle(void *what) {
    const struct gpu *gpu = what;

    for (const struct gpu_stream *s = gpu->streams; s; s = s->next)
        if (s->ops.head) return false;
    return true;
}
void gpu_close(struct gpu *gpu) {
    struct gpu **link = &gpus_;

    if (!gpu) return;
    lock();
    if (gpu->streams) fault("gpu_close: %u streams are still open", gpu->n_streams);
    while (*link != gpu)
        link = &(*link)->next;
    *link = gpu->next;
    unlock();
    memory_close(&gpu->memory);
    memory_close(&gpu->pinned);
    if (gpu->event_fd >= 0) close(gpu->event_fd);
    mem_free(gpu);
}
const struct gpu_properties *gpu_properties(const struct gpu *gpu) {
    return &gpu->properties;
}
uint64_t gpu_memory_free(struct gpu *gpu) {
    return gpu->memory.size - gpu->memory.used;
}
enum status gpu_status(struct gpu *gpu, struct error *err) {
    enum status st = ST_OK;

    lock();
    if (gpu->has_failed) st = error_set(err, ST_CLOSED, "%s", gpu->failure);
    unlock();
    return st;
}

/* --- memory */
static enum status alloc_in(struct gpu *gpu, struct memory *m, void **out, uint64_t n_bytes,
                            const char *what, struct error *err) {
    enum status st = call_may_fail(what, err);
    void *p;

    if (st != ST_OK) return st;
    lock();
    not_while_recording(gpu, "memory was allocated");
    p = memory_alloc(m, n_bytes, what);
    unlock();
    if (!p)
        return error_set(err, ST_NOMEM, "%s: %llu bytes do not fit: %llu of %llu are free", what,
                         (unsigned long long)n_bytes, (unsigned long long)(m->size - m->used),
                         (unsigned long long)m->size);
    *out = p;
    return ST_OK;
}
enum status gpu_alloc(struct gpu *gpu, void **out, uint64_t n_bytes, const char *what,
                      struct error *err) {
    return alloc_in(gpu, &gpu->memory, out, n_bytes, what, err);
}
enum status gpu_alloc_pinned(struct gpu *gpu, void **out, uint64_t n_bytes, const char *what,
                             struct error *err) {
    return alloc_in(gpu, &gpu->pinned, out, n_bytes, what, err);
}
/* As cudaFree does, it waits for all that is under way. */
void gpu_free(struct gpu *gpu, void *p) {
    if (!p) return;
    lock();
    not_while_recording(gpu, "memory was freed");
    (void)run_until(gpu, NULL, is_idle, gpu, STUCK_US);
    if (!memory_free(&gpu->memory, p) && !memory_free(&gpu->pinned, p))
        fault("gpu_free: %p was not allocated, or was freed before", p);
    unlock();
}

/* --- streams */
enum status gpu_stream_open(struct gpu *gpu, struct gpu_stream **out, struct error *err) {
    enum status st = call_may_fail("gpu_stream_open", err);
    struct gpu_stream *s;

    if (st != ST_OK) return st;
    s = mem_zalloc(sizeof(*s));
    s->gpu = gpu;
    list_init(&s->ops);
    lock();
    s->next = gpu->streams;
    gpu->streams = s;
    gpu->n_streams++;
    unlock();
    *out = s;
    return ST_OK;
}
static bool is_drained(void *what) {
    const struct gpu_stream *s = what;

    return s->ops.head == NULL;
}
void gpu_stream_close(struct gpu_stream *s) {
    struct gpu_stream **link;

    if (!s) return;
    lock();
    if (s->capture) fault("gpu_stream_close: the stream is being recorded");
    (void)run_until(s->gpu, s, is_drained, s, STUCK_US);
    list_clear(&s->ops); /* a device that is stuck */
    for (link = &s->gpu->streams; *link != s;)
        link = &(*link)->next;
    *link = s->next;
    s->gpu->n_streams--;
    unlock();
    mem_free(s);
}
struct gpu *gpu_stream_gpu(struct gpu_stream *s) {
    return s->gpu;
}
void *gpu_stream_handle(struct gpu_stream *s) {
    return s;
}
enum status gpu_stream_wait(struct gpu_stream *s, struct error *err) {
    enum status st;

    lock();
    not_while_recording(s->gpu, "the host waited for a stream");
    st = s->capture ? ST_INTERNAL : run_until(s->gpu, s, is_drained, s, STUCK_US);
    if (st == ST_TIMEOUT) shim_fail(s->gpu, "a rank has not come for %u s", STUCK_US / 1000000);
    unlock();
    if (st == ST_INTERNAL) return error_set(err, st, "gpu_stream_wait while recording");
    return gpu_status(s->gpu, err);
}

/* --- copies */
struct copy_args {
    unsigned char *dst;
    const unsigned char *src;
    uint64_t dst_pitch, src_pitch, row_bytes, n_rows;
};
static bool run_copy(struct gpu *gpu, void *p) {
    const struct copy_args *a = p;

    for (uint64_t i = 0; !gpu->has_failed && i < a->n_rows; i++)
        memmove(a->dst + i * a->dst_pitch, a->src + i * a->src_pitch, a->row_bytes);
    return true;
}
void gpu_copy_2d(struct gpu_stream *s, void *dst, uint64_t dst_pitch, const void *src,
                 uint64_t src_pitch, uint64_t row_bytes, uint64_t n_rows) {
    struct copy_args a = {dst, src, dst_pitch, src_pitch, row_bytes, n_rows};

    if (!row_bytes || !n_rows) return;
    lock();
    if (row_bytes > dst_pitch || row_bytes > src_pitch)
        fault("gpu_copy_2d: rows of %llu bytes are wider than a pitch",
              (unsigned long long)row_bytes);
    shim_check_range(s->gpu, dst, (n_rows - 1) * dst_pitch + row_bytes, "gpu_copy to");
    shim_check_range(s->gpu, src, (n_rows - 1) * src_pitch + row_bytes, "gpu_copy from");
    unlock();
    shim_put(s, "copy", run_copy, &a, sizeof(a));
}
void gpu_copy(struct gpu_stream *s, void *dst, const void *src, uint64_t n_bytes) {
    gpu_copy_2d(s, dst, n_bytes, src, n_bytes, n_bytes, 1);
}
void gpu_copy_many(struct gpu_stream *s, void *const *dst, const void *const *src, uint64_t n_bytes,
                   uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        gpu_copy(s, dst[i], src[i], n_bytes);
}

struct fill_args {
    void *dst;
    uint64_t n_bytes;
    uint8_t value;
};
static bool run_fill(struct gpu *gpu, void *p) {
    const struct fill_args *a = p;

    if (!gpu->has_failed) memset(a->dst, a->value, a->n_bytes);
    return true;
}
void gpu_fill(struct gpu_stream *s, void *dst, uint8_t value, uint64_t n_bytes) {
    struct fill_args a = {dst, n_bytes, value};

    if (!n_bytes) return;
    lock();
    shim_check_range(s->gpu, dst, n_bytes, "gpu_fill");
    unlock();
    shim_put(s, "fill", run_fill, &a, sizeof(a));
}

/* --- events */
struct event_args {
    struct gpu_event *event;
    uint64_t ticket;
};
enum status gpu_event_open(struct gpu *gpu, struct gpu_event **out, struct error *err) {
    enum status st = call_may_fail("gpu_event_open", err);

    if (st != ST_OK) return st;
    *out = mem_zalloc(sizeof(**out));
    (*out)->gpu = gpu;
    return ST_OK;
}
/* Work that is queued still names the event: the last of it frees it. */
static void let_go(struct gpu_event *e) {
    if (!--e->n_held && e->is_closed) mem_free(e);
}
void gpu_event_close(struct gpu_event *e) {
    if (!e) return;
    lock();
    e->is_closed = true;
    e->n_held++;
    let_go(e);
    unlock();
}
static bool run_record(struct gpu *gpu, void *p) {
    const struct event_args *a = p;

    (void)gpu;
    a->event->n_come = MAX(a->event->n_come, a->ticket);
    a->event->come_us = clock_now_us();
    let_go(a->event);
    return true;
}
static bool run_wait(struct gpu *gpu, void *p) {
    const struct event_args *a = p;

    if (a->event->n_come < a->ticket && !gpu->has_failed) return false;
    let_go(a->event);
    return true;
}
static void put_event(struct gpu_stream *s, const char *what, shim_work *run, struct gpu_event *e) {
    struct event_args a = {e, e->n_recorded};

    e->n_held++;
    unlock();
    shim_put(s, what, run, &a, sizeof(a));
    lock();
}
void gpu_event_record(struct gpu_event *e, struct gpu_stream *s) {
    lock();
    e->capture = s->capture;
    e->is_announced = false;
    if (s->capture) {
        e->stream = s;
        e->n_captured = s->n_captured;
    } else {
        e->n_recorded++;
        put_event(s, "record", run_record, e);
    }
    unlock();
}
/* A stream that waits for recorded work is recorded from then on. */
static void join_capture(struct gpu_stream *s, struct gpu_event *e) {
    if (!s->capture) {
        s->capture = e->capture;
        s->n_captured = s->n_joined = 0;
    }
    e->stream->n_joined = MAX(e->stream->n_joined, e->n_captured);
}
void gpu_stream_wait_event(struct gpu_stream *s, struct gpu_event *e) {
    lock();
    if (e->capture && e->capture == s->gpu->capture)
        join_capture(s, e);
    else if (s->capture)
        not_while_recording(s->gpu, "a stream waited for an event that was recorded before");
    else
        put_event(s, "wait", run_wait, e);
    unlock();
}
static bool has_come(void *what) {
    const struct gpu_event *e = what;

    return e->n_come >= e->n_recorded;
}
/* Looking makes the device go on by some work; all of it, when the event was announced: its fd has
 * said that it has come. */
enum status gpu_event_poll(struct gpu_event *e) {
    enum status st;
    uint64_t n_left = 1 + shim_chance() % 16;

    lock();
    not_while_recording(e->gpu, "the host asked for an event");
    while (!has_come(e) && (e->is_announced || !shim_is_shuffled() || n_left--))
        if (!run_any(e->gpu, NULL)) break;
    memory_leave(e->gpu);
    st = e->gpu->has_failed ? ST_CLOSED : has_come(e) ? ST_OK : ST_AGAIN;
    if (st == ST_AGAIN && e->is_announced) (void)!write(e->gpu->event_fd, &(uint64_t){1}, 8);
    unlock();
    return st;
}
enum status gpu_event_wait(struct gpu_event *e, uint64_t timeout_us) {
    enum status st;

    lock();
    not_while_recording(e->gpu, "the host waited for an event");
    st = run_until(e->gpu, NULL, has_come, e, timeout_us);
    unlock();
    return st;
}
double gpu_event_elapsed_us(struct gpu_event *from, struct gpu_event *to) {
    return (double)to->come_us - (double)from->come_us;
}
int gpu_event_fd(struct gpu *gpu) {
    lock();
    if (gpu->event_fd < 0) gpu->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    unlock();
    return gpu->event_fd;
}
void gpu_event_announce(struct gpu_event *e) {
    int fd = gpu_event_fd(e->gpu);

    e->is_announced = true;
    (void)!write(fd, &(uint64_t){1}, 8);
}

/* --- graphs */
void gpu_capture_begin(struct gpu_stream *s) {
    struct gpu_graph *g = mem_zalloc(sizeof(*g));

    lock();
    if (s->gpu->capture) fault("gpu_capture_begin: the device records already");
    list_init(&g->ops);
    g->gpu = s->gpu;
    g->origin = s;
    s->capture = s->gpu->capture = g;
    s->n_captured = s->n_joined = 0;
    unlock();
}
static void end_capture(struct gpu_stream *s) {
    struct gpu_graph *g = s->capture;

    for (struct gpu_stream *o = s->gpu->streams; o; o = o->next) {
        if (o->capture != g) continue;
        if (o != s && o->n_joined < o->n_captured && !g->fault)
            g->fault = "the first stream does not wait for another";
        o->capture = NULL;
    }
    s->gpu->capture = NULL;
}
enum status gpu_capture_end(struct gpu_stream *s, struct gpu_graph **out, struct error *err) {
    enum status st = call_may_fail("gpu_capture_end", err);
    struct gpu_graph *g = s->capture;

    lock();
    if (!g || g->origin != s) fault("gpu_capture_end: the stream has not begun to record");
    end_capture(s);
    unlock();
    if (st == ST_OK && g->fault)
        st = error_set(err, ST_INTERNAL, "recording a graph: %s", g->fault);
    if (st != ST_OK) {
        gpu_graph_close(g);
        return st;
    }
    *out = g;
    return ST_OK;
}
void gpu_graph_launch(struct gpu_graph *g, struct gpu_stream *s) {
    if (s->capture) fault("gpu_graph_launch: into a stream that is being recorded");
    for (const struct op *op = g->ops.head; op; op = op->next)
        shim_put(s, op->what, op->run, op->args, op->args_bytes);
}
void gpu_graph_close(struct gpu_graph *g) {
    if (!g) return;
    list_clear(&g->ops);
    mem_free(g);
}

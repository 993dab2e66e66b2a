/* tests/shim/gpu_shim.c - kernels/cuda/device/gpu.h as a device made of host memory.
 *
 * A stream is a queue. Nothing on it is done when it is put there, except a little by chance:
 * everything waits until the host waits, or looks. Then work is taken from the heads of the
 * device's streams, in any order that their events allow, drawn from the seed of shim_control.h;
 * with seed 0 as little as the host waits for, in order. So what forgets a wait, or writes to
 * pinned memory that a copy is still to read, is wrong under some seed or all of them. Host code
 * that follows a pointer into a device's memory dies of it, most of the time (memory.h).
 *
 * What ends the process with a sentence: copies from or to what is not wholly inside one
 * allocation; freeing what was not allocated; closing a device whose streams are open.
 *
 * Events and graphs: gpu_shim_events.c.
 *
 * One lock over all devices of the process: a rank that waits for the others' sums runs their
 * streams too, if they have put work there, so that no rank needs a thread to be driven by. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "kernels/cuda/device/gpu.h"
#include "tests/shim/gpu_shim_internal.h"
#include "tests/shim/internal.h"
#include "tests/shim/shim_control.h"

enum {
    MEMORY_DEFAULT = 256 << 20,
    PINNED_MAX = 1 << 30,
};

static pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
static struct gpu *gpus_;
static uint32_t n_devices_ = 1, sm_ = 90;
static volatile bool has_no_peers_;
static uint64_t memory_bytes_ = MEMORY_DEFAULT;
static uint32_t product_us_, slow_kernel_us_;
static const char *slow_kernel_;
static struct shim_calls calls_;
static bool overlaps_always_;
static struct shim_veil *veil_;           /* of the kernel that runs next */
static uint64_t fail_launch_, fail_call_; /* how many more until one fails; 0: none will */

void shim_lock(void) {
    pthread_mutex_lock(&lock_);
}
void shim_unlock(void) {
    pthread_mutex_unlock(&lock_);
}

/* --- what tests set: shim_control.h */
static void set(uint64_t *field, uint64_t value) {
    shim_lock();
    *field = value;
    shim_unlock();
}
void shim_set_devices(uint32_t n) {
    shim_lock();
    n_devices_ = n;
    shim_unlock();
}
void shim_set_peers(bool are_reached) {
    has_no_peers_ = !are_reached;
}
void shim_set_sm(uint32_t sm) {
    shim_lock();
    sm_ = sm;
    shim_unlock();
}
void shim_set_memory(uint64_t n_bytes) {
    set(&memory_bytes_, n_bytes);
}
void shim_set_kernel_us(const char *name, uint32_t us) {
    slow_kernel_ = name;
    slow_kernel_us_ = us;
}
void shim_set_product_us(uint32_t us) {
    shim_lock();
    product_us_ = us;
    shim_unlock();
}
void shim_fail_launch(uint64_t nth) {
    set(&fail_launch_, nth);
}
void shim_fail_call(uint64_t nth) {
    set(&fail_call_, nth);
}
void shim_set_overlap(bool is_always) {
    shim_lock();
    overlaps_always_ = is_always;
    shim_unlock();
}
void shim_calls_clear(void) {
    shim_lock();
    calls_ = (struct shim_calls){0};
    shim_unlock();
}
void shim_calls(struct shim_calls *out) {
    shim_lock();
    *out = calls_;
    shim_unlock();
}
void shim_count_graph(uint64_t n_nodes) {
    shim_lock();
    calls_.n_graphs++;
    calls_.n_nodes += n_nodes;
    shim_unlock();
}
/* The count comes to its end: this is the one. */
static bool is_turn(uint64_t *count) {
    return *count && !--*count;
}
enum status shim_call_may_fail(const char *what, struct error *err) {
    bool is_failing;

    shim_lock();
    is_failing = is_turn(&fail_call_);
    shim_unlock();
    return is_failing ? error_set(err, ST_NOMEM, "%s: refused, as asked for", what) : ST_OK;
}

/* --- mistakes */
void shim_fault(const char *fmt, ...) {
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
bool shim_has_any_failed(void) {
    for (const struct gpu *gpu = gpus_; gpu; gpu = gpu->next)
        if (gpu->has_failed) return true;
    return false;
}
void shim_not_while_recording(struct gpu *gpu, const char *what) {
    if (gpu->capture && !gpu->capture->fault) gpu->capture->fault = what;
}
void shim_check_range(struct gpu *gpu, const void *p, uint64_t n_bytes, const char *what) {
    if (!memory_holds(&gpu->memory, p, n_bytes) && !memory_holds(&gpu->pinned, p, n_bytes))
        shim_fault("%s: %llu bytes at %p are not inside one allocation of the device's, nor pinned",
                   what, (unsigned long long)n_bytes, p);
}
/* Freed memory and guard zones count: memory.c finds their misuse. */
static bool is_within(const struct memory *m, const void *p) {
    const unsigned char *at = p;

    return at >= m->base && at <= m->base + m->map_bytes;
}
bool shim_is_device_address(const void *p) {
    bool is_found = false;

    shim_lock();
    for (const struct gpu *gpu = gpus_; gpu && !is_found; gpu = gpu->next)
        is_found = is_within(&gpu->memory, p) || is_within(&gpu->pinned, p);
    shim_unlock();
    return is_found;
}
void shim_memory_enter(struct gpu *gpu) {
    memory_unlock(&gpu->memory);
}
/* Now and then, because it costs a system call and a walk over the pages. */
void shim_memory_leave(struct gpu *gpu) {
    if (!shim_is_shuffled() || shim_chance() % 8 == 0) memory_lock(&gpu->memory);
}

static bool run_launch(struct gpu *gpu, void *p);
static bool is_early(const struct op *op);

/* --- queues */
void shim_list_init(struct op_list *l) {
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
void shim_list_clear(struct op_list *l) {
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

static bool is_product(const struct op *op) {
    return strcmp(op->what, "gemm") == 0;
}
static uint32_t us_of(const struct gpu *gpu, const struct op *op) {
    if (is_product(op)) return gpu->product_us;
    return slow_kernel_ && strncmp(op->what, slow_kernel_, strlen(slow_kernel_)) == 0
               ? slow_kernel_us_
               : 10;
}
static void finish_head(struct gpu_stream *s) {
    if (s->gpu->product_us) s->gpu->us += us_of(s->gpu, s->ops.head);
    list_pop(&s->ops);
}
/* Does the kernel behind this work begin before its end? */
static bool is_overtaken(const struct gpu *gpu, const struct op *op) {
    if (gpu->has_failed || (op->run != run_launch && !is_product(op)) || !is_early(op->next))
        return false;
    return overlaps_always_ || (shim_is_shuffled() && shim_chance() % 8 == 0);
}
/* Does what stands first on a stream, and the kernel behind it too where the two overlap. What must
 * be done even on a device that has failed, the bookkeeping of events, sees to it itself. */
static bool run_head(struct gpu_stream *s) {
    struct op *op = s->ops.head;
    bool is_veiled;

    if (!op) return false;
    shim_memory_enter(s->gpu);
    is_veiled = is_overtaken(s->gpu, op);
    if (is_veiled) shim_veil_before(s->gpu);
    if (!op->run(s->gpu, op->args)) return false;
    finish_head(s);
    if (!is_veiled) return true;
    veil_ = shim_veil_after();
    (void)s->ops.head->run(s->gpu, s->ops.head->args);
    veil_ = NULL;
    finish_head(s);
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
bool shim_run_any(struct gpu *gpu, struct gpu_stream *first) {
    if (run_one(gpu, first)) return true;
    for (struct gpu *other = gpus_; other; other = other->next)
        if (other != gpu && run_one(other, NULL)) return true;
    return false;
}
/* Until is_done(what). Locked. ST_TIMEOUT when ranks that have not come hold it up too long. */
enum status shim_run_until(struct gpu *gpu, struct gpu_stream *first, bool (*is_done)(void *what),
                           void *what, uint64_t timeout_us) {
    uint64_t end_us = 0;

    while (!is_done(what)) {
        if (shim_run_any(gpu, first)) {
            end_us = 0;
            continue;
        }
        if (!end_us) end_us = clock_now_us() + timeout_us;
        if (clock_now_us() >= end_us) break;
        shim_unlock();
        usleep(50);
        shim_lock();
    }
    shim_memory_leave(gpu);
    return gpu->has_failed ? ST_CLOSED : is_done(what) ? ST_OK : ST_TIMEOUT;
}

static void count_call(const char *what, shim_work *run) {
    if (run == run_launch || run == shim_run_together)
        calls_.n_kernels++;
    else if (!strcmp(what, "gemm"))
        calls_.n_products++;
    else if (!strcmp(what, "record") || !strcmp(what, "wait"))
        calls_.n_events++;
    else
        calls_.n_copies++;
}
void shim_put(struct gpu_stream *s, const char *what, shim_work *run, const void *args,
              uint32_t args_bytes) {
    shim_lock();
    count_call(what, run);
    s->has_kernel_last = run == run_launch || strcmp(what, "gemm") == 0;
    shim_unlock();
    shim_put_again(s, what, run, args, args_bytes);
}
/* Without being counted: of a graph. */
void shim_put_again(struct gpu_stream *s, const char *what, shim_work *run, const void *args,
                    uint32_t args_bytes) {
    struct op *op = op_new(what, run, args, args_bytes);

    shim_lock();
    if (s->capture) {
        op->branch = s->branch;
        memcpy(op->after, s->after, sizeof(op->after));
        list_push(&s->capture->ops, op);
        s->after[s->branch] = ++s->n_captured;
    } else {
        list_push(&s->ops, op);
        if (shim_is_shuffled() && shim_chance() % 8 == 0) {
            for (uint64_t n = 1 + shim_chance() % 4; n; n--)
                run_one(s->gpu, NULL);
            shim_memory_leave(s->gpu);
        }
    }
    shim_unlock();
}

/* --- launches */
struct launch_args {
    _Alignas(16) struct shim_launch launch; /* the kernel's arguments follow */
};
static bool is_early(const struct op *op) {
    return op && op->run == run_launch && ((const struct launch_args *)op->args)->launch.is_early;
}
bool shim_launch_fails(struct gpu *gpu, const struct shim_launch *launch) {
    if (!is_turn(&fail_launch_)) return false;
    shim_fail(gpu, "kernel %s: an illegal memory access, as asked for", launch->name);
    return true;
}
static bool run_launch(struct gpu *gpu, void *p) {
    struct launch_args *args = p;

    if (gpu->has_failed) return true;
    args->launch.args = args + 1;
    if (!shim_launch_fails(gpu, &args->launch) &&
        !(veil_ ? shim_run_veiled(&args->launch, veil_) : shim_run(&args->launch)))
        shim_fail(gpu, "kernel %s has given up waiting", args->launch.name);
    return true;
}
void shim_launch_on(struct gpu_stream *s, const struct shim_launch *launch) {
    union {
        struct launch_args args;
        unsigned char bytes[sizeof(struct launch_args) + SHIM_MAX_ARGS];
    } packed;
    const char *wrong = shim_launch_fault(launch);

    shim_check_launch(s, launch);
    if (!s) {
        if (!shim_run(launch)) shim_fault("kernel %s has given up waiting", launch->name);
        return;
    }
    if (wrong) {
        shim_lock();
        shim_fail(s->gpu, "kernel %s cannot be launched: %s", launch->name, wrong);
        shim_unlock();
        return;
    }
    packed.args.launch = *launch;
    (void)gpu_stream_launches(s, &packed.args.launch.is_early);
    packed.args.launch.is_early &= launch->waits;
    memcpy(packed.bytes + sizeof(packed.args), launch->args, launch->args_bytes);
    shim_put(s, launch->name, run_launch, &packed,
             (uint32_t)(sizeof(packed.args) + launch->args_bytes));
}

/* --- devices */
enum status gpu_count(uint32_t *n_devices, struct error *err) {
    shim_lock();
    *n_devices = n_devices_;
    shim_unlock();
    if (!*n_devices)
        return error_set(err, ST_UNSUPPORTED, "no device: the test has disabled the shim's device");
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
    out->sm = sm_;
    out->n_sm = 4;
    out->driver = out->runtime = 13000;
    out->max_shared_bytes = shim_max_shared();
    out->l2_bytes = 1 << 20;
    shim_lock();
    out->is_timed = product_us_ > 0;
    out->memory_total = out->memory_free = memory_bytes_;
    shim_unlock();
    return ST_OK;
}
enum status gpu_open(struct gpu **out, uint32_t ordinal, struct error *err) {
    struct gpu_properties properties;
    struct gpu *gpu;
    enum status st = gpu_describe(ordinal, &properties, err);

    if (st == ST_OK) st = shim_call_may_fail("gpu_open", err);
    if (st != ST_OK) return st;
    gpu = mem_zalloc(sizeof(*gpu));
    gpu->properties = properties;
    gpu->product_us = product_us_;
    gpu->event_fd = -1;
    if (!memory_open(&gpu->memory, properties.memory_total) ||
        !memory_open(&gpu->pinned, PINNED_MAX)) {
        memory_close(&gpu->memory);
        mem_free(gpu);
        return error_set(err, ST_NOMEM, "no address space for a device of %llu bytes",
                         (unsigned long long)properties.memory_total);
    }
    shim_lock();
    gpu->next = gpus_;
    gpus_ = gpu;
    shim_unlock();
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
    shim_lock();
    if (gpu->streams) shim_fault("gpu_close: %u streams are still open", gpu->n_streams);
    while (*link != gpu)
        link = &(*link)->next;
    *link = gpu->next;
    shim_forget_places(gpu);
    shim_unlock();
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
bool gpu_reach(struct gpu *gpu, uint32_t ordinal) {
    (void)gpu, (void)ordinal; /* all memory is the host's */
    return !has_no_peers_;
}
enum status gpu_status(struct gpu *gpu, struct error *err) {
    enum status st = ST_OK;

    shim_lock();
    if (gpu->has_failed) st = error_set(err, ST_CLOSED, "%s", gpu->failure);
    shim_unlock();
    return st;
}

/* --- memory */
static enum status alloc_in(struct gpu *gpu, struct memory *m, void **out, uint64_t n_bytes,
                            const char *what, struct error *err) {
    enum status st = shim_call_may_fail(what, err);
    void *p;

    if (st != ST_OK) return st;
    shim_lock();
    shim_not_while_recording(gpu, "memory was allocated");
    p = memory_alloc(m, n_bytes, what);
    shim_unlock();
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
    shim_lock();
    shim_not_while_recording(gpu, "memory was freed");
    (void)shim_run_until(gpu, NULL, is_idle, gpu, STUCK_US);
    if (!memory_free(&gpu->memory, p) && !memory_free(&gpu->pinned, p))
        shim_fault("gpu_free: %p was not allocated, or was freed before", p);
    shim_unlock();
}

/* --- streams */
enum status gpu_stream_open(struct gpu *gpu, struct gpu_stream **out, struct error *err) {
    enum status st = shim_call_may_fail("gpu_stream_open", err);
    struct gpu_stream *s;

    if (st != ST_OK) return st;
    s = mem_zalloc(sizeof(*s));
    s->gpu = gpu;
    shim_list_init(&s->ops);
    shim_lock();
    s->next = gpu->streams;
    gpu->streams = s;
    gpu->n_streams++;
    shim_unlock();
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
    shim_lock();
    if (s->capture) shim_fault("gpu_stream_close: the stream is being recorded");
    (void)shim_run_until(s->gpu, s, is_drained, s, STUCK_US);
    shim_list_clear(&s->ops); /* a device that is stuck */
    for (link = &s->gpu->streams; *link != s;)
        link = &(*link)->next;
    *link = s->next;
    s->gpu->n_streams--;
    shim_unlock();
    mem_free(s);
}
struct gpu *gpu_stream_gpu(struct gpu_stream *s) {
    return s->gpu;
}
void *gpu_stream_handle(struct gpu_stream *s) {
    return s;
}
void *gpu_stream_launches(struct gpu_stream *s, bool *overlaps) {
    *overlaps = s->has_kernel_last && s->gpu->properties.sm >= 90;
    return s;
}
enum status gpu_stream_wait(struct gpu_stream *s, struct error *err) {
    enum status st;

    shim_lock();
    shim_not_while_recording(s->gpu, "the host waited for a stream");
    st = s->capture ? ST_INTERNAL : shim_run_until(s->gpu, s, is_drained, s, STUCK_US);
    if (st == ST_TIMEOUT) shim_fail(s->gpu, "a rank has not come for %u s", STUCK_US / 1000000);
    shim_unlock();
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
    shim_lock();
    if (row_bytes > dst_pitch || row_bytes > src_pitch)
        shim_fault("gpu_copy_2d: rows of %llu bytes are wider than a pitch",
                   (unsigned long long)row_bytes);
    shim_check_range(s->gpu, dst, (n_rows - 1) * dst_pitch + row_bytes, "gpu_copy to");
    shim_check_range(s->gpu, src, (n_rows - 1) * src_pitch + row_bytes, "gpu_copy from");
    shim_unlock();
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
    shim_lock();
    shim_check_range(s->gpu, dst, n_bytes, "gpu_fill");
    shim_unlock();
    shim_put(s, "fill", run_fill, &a, sizeof(a));
}

/* kernels/cuda/device/gpu_events.c - events, and a file descriptor for them; see gpu.h.
 *
 * The runtime can call a function of the host from within a stream, but
 * holds the stream up while it does. Instead a thread, the watcher, waits for the announced events
 * in their order, asleep in the driver, and writes to an eventfd after each. The list of announced
 * events is all that it shares with the owner.
 *
 *      owner: announce -> [e1, e2] -> watcher: cudaEventSynchronize(e1), write(fd), (e2), ...
 *
 * An event recorded again before the watcher came to it is waited for as recorded last: its fd
 * speaks once, for both. */
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "kernels/cuda/device/gpu_runtime.h"

#define SPIN_US  100u /* a wait this short is not worth a sleep */
#define SLEEP_US 40u  /* between two looks at an event; a decode step takes 700 and more */

enum status gpu_event_open(struct gpu *gpu, struct gpu_event **out, struct error *err) {
    cudaEvent_t event = NULL;

    gpu_enter(gpu);
    if (!gpu_check(gpu, cudaEventCreateWithFlags(&event, cudaEventBlockingSync), "making an event"))
        return gpu_status(gpu, err);
    *out = mem_zalloc(sizeof(**out));
    (*out)->gpu = gpu;
    (*out)->event = event;
    return ST_OK;
}

void gpu_event_record(struct gpu_event *e, struct gpu_stream *s) {
    s->has_kernel_last = false;
    (void)gpu_check(e->gpu, cudaEventRecord(e->event, s->stream), "recording an event");
}

void gpu_stream_wait_event(struct gpu_stream *s, struct gpu_event *e) {
    s->has_kernel_last = false;
    (void)gpu_check(s->gpu, cudaStreamWaitEvent(s->stream, e->event, cudaEventWaitDefault),
                    "waiting for an event");
}

enum status gpu_event_poll(struct gpu_event *e) {
    cudaError_t code = cudaPeekAtLastError(); /* a query would cover up what a launch left */

    if (gpu_check(e->gpu, code, "running a kernel")) code = cudaEventQuery(e->event);
    if (code == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return ST_AGAIN;
    }
    (void)gpu_check(e->gpu, code, "running a step");
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

    return gpu_check(from->gpu, cudaEventElapsedTime(&ms, from->event, to->event),
                     "reading its clock")
               ? (double)ms * 1000.0
               : 0;
}

/* --- the watcher ------------------------------------------------------------------------------ */

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

void gpu_watcher_stop(struct gpu_watcher *w) {
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
    (void)gpu_check(e->gpu, cudaEventDestroy(e->event), "closing an event");
    mem_free(e);
}

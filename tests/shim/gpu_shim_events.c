/* tests/shim/gpu_shim_events.c - events and graphs of the pretended device (gpu_shim.c).
 *
 * An event counts how often it was recorded, and how far that has come; what waits for it holds the
 * count of when it was put there. Looking at an event makes the device go on, by a little.
 *
 * A graph is a list of work, replayed in the order in which it was recorded, or, made from several
 * streams and under a seed, in any order that the streams' waits allow. That every stream comes
 * back to the first is checked. */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/shim/gpu_shim_internal.h"
#include "tests/shim/internal.h"

/* --- events */
struct event_args {
    struct gpu_event *event;
    uint64_t ticket;
};
enum status gpu_event_open(struct gpu *gpu, struct gpu_event **out, struct error *err) {
    enum status st = shim_call_may_fail("gpu_event_open", err);

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
    shim_lock();
    e->is_closed = true;
    e->n_held++;
    let_go(e);
    shim_unlock();
}
static bool run_record(struct gpu *gpu, void *p) {
    const struct event_args *a = p;

    a->event->n_come = MAX(a->event->n_come, a->ticket);
    a->event->come_us = gpu->product_us ? gpu->us : clock_now_us();
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
    shim_unlock();
    shim_put(s, what, run, &a, sizeof(a));
    shim_lock();
}
void gpu_event_record(struct gpu_event *e, struct gpu_stream *s) {
    shim_lock();
    s->has_kernel_last = false;
    e->capture = s->capture;
    e->is_announced = false;
    if (s->capture) {
        e->stream = s;
        e->n_captured = s->n_captured;
        memcpy(e->after, s->after, sizeof(e->after));
    } else {
        e->n_recorded++;
        put_event(s, "record", run_record, e);
    }
    shim_unlock();
}
/* A stream that waits for recorded work is recorded from then on. */
static void join_capture(struct gpu_stream *s, struct gpu_event *e) {
    if (!s->capture) {
        if (e->capture->n_branches == SHIM_BRANCHES) shim_fault("a graph of over 4 streams");
        s->capture = e->capture;
        s->n_captured = s->n_joined = 0;
        s->branch = s->capture->n_branches++;
        memset(s->after, 0, sizeof(s->after));
    }
    for (uint32_t i = 0; i < SHIM_BRANCHES; i++)
        s->after[i] = MAX(s->after[i], e->after[i]);
    e->stream->n_joined = MAX(e->stream->n_joined, e->n_captured);
}
void gpu_stream_wait_event(struct gpu_stream *s, struct gpu_event *e) {
    shim_lock();
    s->has_kernel_last = false;
    if (e->capture && e->capture == s->gpu->capture)
        join_capture(s, e);
    else if (s->capture)
        shim_not_while_recording(s->gpu, "a stream waited for an event that was recorded before");
    else
        put_event(s, "wait", run_wait, e);
    shim_unlock();
}
static bool has_come(void *what) {
    const struct gpu_event *e = what;

    return e->n_come >= e->n_recorded;
}
/* Looking makes the device go on by some work; all of it, when the event was announced: its fd has
 * reported that it has come. */
enum status gpu_event_poll(struct gpu_event *e) {
    enum status st;
    uint64_t n_left = 1 + shim_chance() % 16;

    shim_lock();
    shim_not_while_recording(e->gpu, "the host asked for an event");
    while (!has_come(e) && (e->is_announced || !shim_is_shuffled() || n_left--))
        if (!shim_run_any(e->gpu, NULL)) break;
    shim_memory_leave(e->gpu);
    st = e->gpu->has_failed ? ST_CLOSED : has_come(e) ? ST_OK : ST_AGAIN;
    if (st == ST_AGAIN && e->is_announced) (void)!write(e->gpu->event_fd, &(uint64_t){1}, 8);
    shim_unlock();
    return st;
}
enum status gpu_event_wait(struct gpu_event *e, uint64_t timeout_us) {
    enum status st;

    shim_lock();
    shim_not_while_recording(e->gpu, "the host waited for an event");
    st = shim_run_until(e->gpu, NULL, has_come, e, timeout_us);
    shim_unlock();
    return st;
}
double gpu_event_elapsed_us(struct gpu_event *from, struct gpu_event *to) {
    return (double)to->come_us - (double)from->come_us;
}
int gpu_event_fd(struct gpu *gpu) {
    shim_lock();
    if (gpu->event_fd < 0) gpu->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    shim_unlock();
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

    shim_lock();
    if (s->gpu->capture) shim_fault("gpu_capture_begin: the device records already");
    shim_list_init(&g->ops);
    g->gpu = s->gpu;
    g->origin = s;
    s->capture = s->gpu->capture = g;
    s->has_kernel_last = false;
    s->n_captured = s->n_joined = 0;
    g->n_branches = 1;
    s->branch = 0;
    memset(s->after, 0, sizeof(s->after));
    shim_unlock();
}
static void end_capture(struct gpu_stream *s) {
    struct gpu_graph *g = s->capture;

    for (struct gpu_stream *o = s->gpu->streams; o; o = o->next) {
        if (o->capture != g) continue;
        if (o != s && o->n_joined < o->n_captured && !g->fault)
            g->fault = "the first stream does not wait for another";
        o->capture = NULL;
        o->has_kernel_last = false;
    }
    s->gpu->capture = NULL;
}
enum status gpu_capture_end(struct gpu_stream *s, struct gpu_graph **out, struct error *err) {
    enum status st = shim_call_may_fail("gpu_capture_end", err);
    struct gpu_graph *g = s->capture;

    shim_lock();
    if (!g || g->origin != s) shim_fault("gpu_capture_end: the stream has not begun to record");
    end_capture(s);
    shim_unlock();
    if (st == ST_OK && g->fault)
        st = error_set(err, ST_INTERNAL, "recording a graph: %s", g->fault);
    if (st != ST_OK) {
        gpu_graph_close(g);
        return st;
    }
    *out = g;
    return ST_OK;
}
/* Where each branch of a graph stands that is being put on a stream. */
struct replay {
    const struct op *next[SHIM_BRANCHES];
    uint64_t n_done[SHIM_BRANCHES];
    uint32_t n_branches;
};
static const struct op *of_branch(const struct op *op, uint32_t branch) {
    while (op && op->branch != branch)
        op = op->next;
    return op;
}
static bool is_ready(const struct replay *r, const struct op *op) {
    for (uint32_t i = 0; op && i < r->n_branches; i++)
        if (r->n_done[i] < op->after[i]) return false;
    return op != NULL;
}
/* The next of a branch that may go on, from a random one on; NULL: all is done. */
static const struct op *replay_next(struct replay *r) {
    uint32_t first = (uint32_t)(shim_chance() % r->n_branches);

    for (uint32_t i = 0; i < r->n_branches; i++) {
        uint32_t b = (first + i) % r->n_branches;
        const struct op *op = r->next[b];

        if (!is_ready(r, op)) continue;
        r->next[b] = of_branch(op->next, b);
        r->n_done[b]++;
        return op;
    }
    return NULL;
}
void gpu_graph_launch(struct gpu_graph *g, struct gpu_stream *s) {
    struct replay r = {.n_branches = g->n_branches};
    bool is_mixed = g->n_branches > 1 && shim_is_shuffled();
    const struct op *op = g->ops.head;
    uint64_t n = 0;

    s->has_kernel_last = false;
    if (s->capture) shim_fault("gpu_graph_launch: into a stream that is being recorded");
    for (uint32_t b = 0; b < r.n_branches; b++)
        r.next[b] = of_branch(g->ops.head, b);
    for (op = is_mixed ? replay_next(&r) : op; op; op = is_mixed ? replay_next(&r) : op->next, n++)
        shim_put_again(s, op->what, op->run, op->args, op->args_bytes);
    shim_count_graph(n);
}
void gpu_graph_close(struct gpu_graph *g) {
    if (!g) return;
    shim_list_clear(&g->ops);
    mem_free(g);
}

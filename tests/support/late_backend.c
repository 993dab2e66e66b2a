/* tests/support/late_backend.c - a queue in front of backend_ref. */
#include "tests/support/late_backend.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/base/rng.h"

#define MAX_JOBS 4096u /* between two looks: row binds, copies, two steps */

static const char lost_sentence[] = "the late device fell off its bus: restart the machine";

enum job_kind { JOB_STEP, JOB_BIND, JOB_FREE, JOB_COPY, JOB_OUT, JOB_IN };

struct job {
    enum job_kind kind;
    backend_fence fence; /* 0: no waiter */
    uint32_t row, slot, n, n_prompt;
    uint32_t *tokens;           /* JOB_BIND: prompt, then output */
    struct backend_copy *pairs; /* (n) */
    struct backend_step step;
};

struct backend_device {
    struct backend_device *inner;
    struct backend_model *model; /* the one that is loaded */
    struct late_plan plan;
    struct rng rng;
    struct job *jobs; /* (MAX_JOBS) a ring */
    uint32_t first, n_jobs;
    backend_fence last, done;
    int event_fd;
    bool is_lost;
};

/* What the engine sees as outputs; the others are the inner model's. */
struct backend_model {
    struct backend_model *inner;
    struct backend_device *dev;
    struct backend_limits limits;
    struct backend_stage shown[2]; /* the out_* alone */
    uint32_t n_outputs[2];
    backend_fence fence[2]; /* of the step in the slot; 0: its outputs were shown */
    bool is_queued[2], is_spoiled[2];
};

/* --- the test's side -------------------------------------------------------------------------- */

static struct late_plan next_plan;
static atomic_bool is_held; /* written under hold_lock */
static pthread_mutex_t hold_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;
static atomic_int bell = -1; /* the event fd of the device opened last */
static atomic_uint_fast64_t n_submitted, n_done, n_behind, n_references;

void late_plan_set(const struct late_plan *plan) {
    next_plan = *plan;
}

static void ring(int fd) {
    const uint64_t one = 1;

    if (fd >= 0) (void)!write(fd, &one, sizeof(one));
}

void late_hold(bool hold) {
    pthread_mutex_lock(&hold_lock);
    atomic_store(&is_held, hold);
    pthread_cond_broadcast(&released);
    pthread_mutex_unlock(&hold_lock);
    if (!hold) ring(atomic_load(&bell));
}

static void wait_released(void) {
    pthread_mutex_lock(&hold_lock);
    while (atomic_load(&is_held))
        pthread_cond_wait(&released, &hold_lock);
    pthread_mutex_unlock(&hold_lock);
}

struct late_counts late_counts(void) {
    return (struct late_counts){n_submitted, n_done, n_behind, n_references};
}

/* --- the queue -------------------------------------------------------------------------------- */

static struct job *add_job(struct backend_device *dev, enum job_kind kind) {
    struct job *job = &dev->jobs[(dev->first + dev->n_jobs) % MAX_JOBS];

    assert(dev->n_jobs < MAX_JOBS);
    dev->n_jobs++;
    *job = (struct job){.kind = kind};
    return job;
}

static enum status run_step(struct backend_model *m, const struct job *job) {
    backend_fence ignored;

    m->is_queued[job->slot] = false;
    m->is_spoiled[job->slot] = atomic_fetch_add(&n_done, 1) + 1 == m->dev->plan.spoiled;
    return backend_ref.submit(m->inner, job->slot, &job->step, &ignored, NULL);
}

static enum status run_job(struct backend_device *dev, const struct job *job) {
    struct backend_model *m = dev->model;
    backend_fence ignored;

    switch (job->kind) {
    case JOB_STEP: return run_step(m, job);
    case JOB_BIND:
        return backend_ref.row_bind(m->inner, job->row, job->tokens, job->n_prompt,
                                    job->tokens + job->n_prompt, job->n - job->n_prompt);
    case JOB_FREE: backend_ref.row_free(m->inner, job->row); return ST_OK;
    case JOB_COPY: return backend_ref.kv_copy(m->inner, job->pairs, job->n, &ignored);
    case JOB_OUT: return backend_ref.kv_swap_out(m->inner, job->pairs, job->n, &ignored);
    case JOB_IN: return backend_ref.kv_swap_in(m->inner, job->pairs, job->n, &ignored);
    }
    return ST_INTERNAL;
}

static void run_next(struct backend_device *dev) {
    struct job *job = &dev->jobs[dev->first];

    if (!dev->is_lost && run_job(dev, job) != ST_OK) dev->is_lost = true;
    if (dev->plan.lost_at > 0 && atomic_load(&n_done) >= dev->plan.lost_at) dev->is_lost = true;
    if (job->fence && !dev->is_lost) dev->done = job->fence;
    mem_free(job->tokens);
    mem_free(job->pairs);
    dev->first = (dev->first + 1) % MAX_JOBS;
    dev->n_jobs--;
}

/* Some time passes. */
static void let_pass(struct backend_device *dev) {
    uint32_t done_percent = dev->plan.done_percent ? dev->plan.done_percent : 50;

    while (dev->n_jobs > 0 && !atomic_load(&is_held) && rng_below(&dev->rng, 100) < done_percent)
        run_next(dev);
}

static void let_all_pass(struct backend_device *dev) {
    while (dev->n_jobs > 0) {
        wait_released();
        run_next(dev);
    }
}

/* --- the device ------------------------------------------------------------------------------- */

static enum status late_probe(const struct backend_config *config, struct backend_info *info,
                              struct error *err) {
    return backend_ref.probe(config, info, err);
}

static void late_close(struct backend_device *dev) {
    if (!dev) return;
    assert(dev->n_jobs == 0 || dev->is_lost);
    while (dev->n_jobs > 0)
        run_next(dev);
    backend_ref.close(dev->inner);
    atomic_store(&bell, -1);
    close(dev->event_fd);
    mem_free(dev->jobs);
    mem_free(dev);
}

static enum status late_open(struct backend_device **out, const struct backend_config *config,
                             struct error *err) {
    struct backend_device *dev = mem_zalloc(sizeof(*dev));

    dev->plan = next_plan;
    rng_seed(&dev->rng, dev->plan.seed);
    dev->jobs = mem_calloc(MAX_JOBS, sizeof(*dev->jobs));
    dev->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    assert(dev->event_fd >= 0);
    atomic_store(&bell, dev->event_fd);
    atomic_store(&n_submitted, 0);
    atomic_store(&n_done, 0);
    atomic_store(&n_behind, 0);
    atomic_store(&n_references, 0);
    *out = dev;
    return backend_ref.open(&dev->inner, config, err);
}

static void late_info(struct backend_device *dev, struct backend_info *info) {
    backend_ref.info(dev->inner, info);
}

static const char *late_fault(struct backend_device *dev) {
    return dev->is_lost ? lost_sentence : NULL;
}

/* --- the model -------------------------------------------------------------------------------- */

static enum status late_load_begin(struct backend_device *dev, struct backend_model **out,
                                   const struct geometry *g, const struct backend_limits *limits,
                                   struct error *err) {
    struct backend_model *m = mem_zalloc(sizeof(*m));
    size_t n_out = limits->max_outputs, n_top = n_out * limits->max_logprobs;
    enum status st = backend_ref.load_begin(dev->inner, &m->inner, g, limits, err);

    if (st != ST_OK) {
        mem_free(m);
        return st;
    }
    m->dev = dev;
    m->limits = *limits;
    dev->model = m;
    for (uint32_t i = 0; i < 2; i++) {
        struct backend_stage *s = &m->shown[i];

        s->out_token = mem_calloc(n_out, sizeof(*s->out_token));
        s->out_logprob = mem_calloc(n_out, sizeof(*s->out_logprob));
        s->out_rank = mem_calloc(n_out, sizeof(*s->out_rank));
        s->out_top_token = mem_calloc(n_top, sizeof(*s->out_top_token));
        s->out_top_logprob = mem_calloc(n_top, sizeof(*s->out_top_logprob));
        s->out_flags = mem_calloc(n_out, sizeof(*s->out_flags));
    }
    *out = m;
    return ST_OK;
}

static enum status late_load_tensor(struct backend_model *m, const struct backend_tensor *t,
                                    struct error *err) {
    return backend_ref.load_tensor(m->inner, t, err);
}

static enum status late_load_end(struct backend_model *m, struct error *err) {
    return backend_ref.load_end(m->inner, err);
}

static void late_unload(struct backend_model *m) {
    if (!m) return;
    let_all_pass(m->dev);
    backend_ref.unload(m->inner);
    for (uint32_t i = 0; i < 2; i++) {
        mem_free(m->shown[i].out_token);
        mem_free(m->shown[i].out_logprob);
        mem_free(m->shown[i].out_rank);
        mem_free(m->shown[i].out_top_token);
        mem_free(m->shown[i].out_top_logprob);
        mem_free(m->shown[i].out_flags);
    }
    mem_free(m);
}

static uint64_t late_kv_block_bytes(const struct backend_model *m) {
    return backend_ref.kv_block_bytes(m->inner);
}

static enum status late_kv_alloc(struct backend_model *m, uint32_t n_blocks, uint32_t n_host_blocks,
                                 struct backend_kv_info *out, struct error *err) {
    return backend_ref.kv_alloc(m->inner, n_blocks, n_host_blocks, out, err);
}

static void late_kv_lend(struct backend_model *m, void *memory) {
    backend_ref.kv_lend(m->inner, memory);
}

static enum status queue_copy(struct backend_model *m, enum job_kind kind,
                              const struct backend_copy *pairs, uint32_t n, backend_fence *out) {
    struct backend_device *dev = m->dev;
    struct job *job;

    if (dev->is_lost) return ST_CLOSED;
    job = add_job(dev, kind);
    job->pairs = mem_calloc(n, sizeof(*pairs));
    memcpy(job->pairs, pairs, n * sizeof(*pairs));
    job->n = n;
    *out = job->fence = ++dev->last;
    return ST_OK;
}

static enum status late_kv_copy(struct backend_model *m, const struct backend_copy *pairs,
                                uint32_t n, backend_fence *out) {
    return queue_copy(m, JOB_COPY, pairs, n, out);
}

static enum status late_kv_swap_out(struct backend_model *m, const struct backend_copy *pairs,
                                    uint32_t n, backend_fence *out) {
    return queue_copy(m, JOB_OUT, pairs, n, out);
}

static enum status late_kv_swap_in(struct backend_model *m, const struct backend_copy *pairs,
                                   uint32_t n, backend_fence *out) {
    return queue_copy(m, JOB_IN, pairs, n, out);
}

static enum status late_row_bind(struct backend_model *m, uint32_t row, const uint32_t *prompt,
                                 uint32_t n_prompt, const uint32_t *output, uint32_t n_output) {
    struct job *job = add_job(m->dev, JOB_BIND);

    job->row = row;
    job->n_prompt = n_prompt;
    job->n = n_prompt + n_output;
    job->tokens = mem_calloc(job->n, sizeof(*prompt));
    memcpy(job->tokens, prompt, n_prompt * sizeof(*prompt));
    if (n_output) memcpy(job->tokens + n_prompt, output, n_output * sizeof(*output));
    return ST_OK;
}

static void late_row_free(struct backend_model *m, uint32_t row) {
    add_job(m->dev, JOB_FREE)->row = row;
}

/* --- steps ------------------------------------------------------------------------------------ */

/* Outputs that must not be used. */
static void poison(struct backend_model *m, uint32_t slot) {
    struct backend_stage *s = &m->shown[slot];

    memset(s->out_token, 0x7F, m->limits.max_outputs * sizeof(*s->out_token));
    memset(s->out_logprob, 0xFF, m->limits.max_outputs * sizeof(*s->out_logprob));
    for (uint32_t i = 0; i < m->limits.max_outputs; i++)
        s->out_flags[i] = OUT_NOT_FINITE;
}

/* The pointers stay the same; inputs are the inner slot's, which reads them when the step runs. */
static void late_stage(struct backend_model *m, uint32_t slot, struct backend_stage *out) {
    const struct backend_stage *shown = &m->shown[slot];

    assert(slot < m->limits.n_slots && !m->is_queued[slot]);
    assert(m->fence[slot] == 0 || m->dev->is_lost); /* its outputs were never looked at */
    backend_ref.stage(m->inner, slot, out);
    out->out_token = shown->out_token;
    out->out_logprob = shown->out_logprob;
    out->out_rank = shown->out_rank;
    out->out_top_token = shown->out_top_token;
    out->out_top_logprob = shown->out_top_logprob;
    out->out_flags = shown->out_flags;
    poison(m, slot);
}

static void show(struct backend_model *m, uint32_t slot) {
    struct backend_stage in, *s = &m->shown[slot];
    size_t n = m->n_outputs[slot], n_top = n * m->limits.max_logprobs;

    m->fence[slot] = 0;
    if (n == 0) return;
    backend_ref.stage(m->inner, slot, &in);
    memcpy(s->out_token, in.out_token, n * sizeof(*in.out_token));
    memcpy(s->out_logprob, in.out_logprob, n * sizeof(*in.out_logprob));
    memcpy(s->out_rank, in.out_rank, n * sizeof(*in.out_rank));
    memcpy(s->out_flags, in.out_flags, n * sizeof(*in.out_flags));
    if (m->is_spoiled[slot]) s->out_flags[0] |= OUT_NOT_FINITE;
    if (n_top == 0) return;
    memcpy(s->out_top_token, in.out_top_token, n_top * sizeof(*in.out_top_token));
    memcpy(s->out_top_logprob, in.out_top_logprob, n_top * sizeof(*in.out_top_logprob));
}

static uint32_t count_references(struct backend_model *m, uint32_t slot, uint32_t n_tokens) {
    struct backend_stage in;
    uint32_t n = 0;

    backend_ref.stage(m->inner, slot, &in);
    for (uint32_t i = 0; i < n_tokens; i++)
        n += in.token[i] < 0;
    return n;
}

static enum status late_submit(struct backend_model *m, uint32_t slot,
                               const struct backend_step *step, backend_fence *out,
                               struct error *err) {
    struct backend_device *dev = m->dev;
    struct job *job;

    if (dev->is_lost) return error_set(err, ST_CLOSED, "%s", lost_sentence);
    assert(!m->is_queued[slot]);
    atomic_fetch_add(&n_references, count_references(m, slot, step->n_tokens));
    if (m->is_queued[!slot]) atomic_fetch_add(&n_behind, 1);
    m->is_queued[slot] = true;
    m->n_outputs[slot] = step->n_outputs;
    job = add_job(dev, JOB_STEP);
    job->slot = slot;
    job->step = *step;
    *out = job->fence = m->fence[slot] = ++dev->last;
    atomic_fetch_add(&n_submitted, 1);
    let_pass(dev);
    return ST_OK;
}

static enum status report(struct backend_device *dev, backend_fence f) {
    if (f > dev->last) return ST_INVALID;
    if (f > dev->done) return dev->is_lost ? ST_CLOSED : ST_AGAIN;
    for (uint32_t slot = 0; slot < 2; slot++)
        if (dev->model->fence[slot] == f) show(dev->model, slot);
    return ST_OK;
}

static enum status late_poll(struct backend_device *dev, backend_fence f) {
    let_pass(dev);
    return report(dev, f);
}

static enum status late_wait(struct backend_device *dev, backend_fence f, uint64_t timeout_us) {
    (void)timeout_us;
    while (dev->done < f && dev->n_jobs > 0 && !dev->is_lost) {
        wait_released();
        run_next(dev);
    }
    let_pass(dev);
    return report(dev, f);
}

/* Always ready unless held: time passes when the engine looks. */
static int late_event_fd(struct backend_device *dev) {
    if (dev->plan.no_event_fd) return -1;
    if (!atomic_load(&is_held)) ring(dev->event_fd);
    return dev->event_fd;
}

const struct backend_ops backend_late = {
    .abi = BACKEND_ABI,
    .struct_size = sizeof(struct backend_ops),
    .name = "late",
    .probe = late_probe,
    .open = late_open,
    .close = late_close,
    .info = late_info,
    .load_begin = late_load_begin,
    .load_tensor = late_load_tensor,
    .load_end = late_load_end,
    .unload = late_unload,
    .kv_block_bytes = late_kv_block_bytes,
    .kv_alloc = late_kv_alloc,
    .kv_lend = late_kv_lend,
    .kv_copy = late_kv_copy,
    .kv_swap_out = late_kv_swap_out,
    .kv_swap_in = late_kv_swap_in,
    .row_bind = late_row_bind,
    .row_free = late_row_free,
    .stage = late_stage,
    .submit = late_submit,
    .poll = late_poll,
    .wait = late_wait,
    .event_fd = late_event_fd,
    .fault = late_fault,
};

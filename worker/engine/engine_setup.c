/* worker/engine/engine_setup.c - from options to a ready engine, and back.
 *
 * The KV pool is what is left of the device's memory when the weights are in. The sum is made
 * twice: from the geometry before the weights are read, so that a model that cannot fit is refused
 * at once and not after minutes; and from the backend's own figures afterwards.
 *
 *      a device of its own    |----------------------- fraction of all ------------------|........|
 *                             | others' | weights | activations, plans, graphs |  KV     |
 *                             |---------------- taken, asked after load_end ---|
 *
 *      the host's memory      | others' |------ fraction of what was free at the start ---|........|
 *                                       | weights |                  KV                   |
 */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/telemetry/log.h"
#include "kernels/dtype.h"
#include "kernels/kv_quant.h"
#include "kernels/tp/tp.h"
#include "worker/engine/engine_internal.h"
#include "worker/engine/sampler.h"
#include "worker/kv/kv_plan.h"
#include "worker/sched/beam_group.h"

const struct engine_options engine_options_default = {
    .block_size = 16,
    .max_logprobs = REQUEST_LOGPROBS_MAX,
    .max_waiting = 4096,
    .memory_fraction = 0.9,
    .scheduler = SCHEDULER_OPTIONS_DEFAULT,
    .log_interval_us = 10 * 1000 * 1000,
};

#define GIB (1024.0 * 1024.0 * 1024.0)

/* --- checks ----------------------------------------------------------------------------------- */

static enum status check_length(struct engine *e, struct error *err) {
    uint32_t longest = e->options.geometry.max_context;

    if (e->options.max_model_len == 0) e->options.max_model_len = longest;
    if (e->options.max_model_len <= longest && e->options.max_model_len >= 2) return ST_OK;
    return error_set_param(err, ST_INVALID, "max-model-len",
                           "max-model-len is %u: use 2 to %u tokens for this model",
                           e->options.max_model_len, longest);
}

static enum status check_options(struct engine *e, struct error *err) {
    const struct engine_options *o = &e->options;

    if (o->block_size == 0)
        return error_set_param(err, ST_INVALID, "block-size", "block-size is 0: use 16");
    if (o->kv.hash_block_size > 0 && o->block_size % o->kv.hash_block_size != 0)
        return error_set_param(err, ST_INVALID, "hash-block-size",
                               "hash-block-size %u does not divide block-size %u: use a divisor, "
                               "or 0 for one hash per block",
                               o->kv.hash_block_size, o->block_size);
    if (o->max_logprobs > REQUEST_LOGPROBS_MAX)
        return error_set_param(err, ST_INVALID, "max-logprobs",
                               "max-logprobs is %u: use at most %u", o->max_logprobs,
                               REQUEST_LOGPROBS_MAX);
    if (!(o->memory_fraction > 0 && o->memory_fraction <= 1))
        return error_set_param(err, ST_INVALID, "gpu-memory-utilization",
                               "gpu-memory-utilization is %g: use a number above 0 and at most 1",
                               o->memory_fraction);
    return check_length(e, err);
}

/* --- memory ----------------------------------------------------------------------------------- */

static uint64_t expected_block_bytes(const struct engine *e) {
    return kv_layout_block_bytes(&e->options.geometry, e->options.block_size);
}

/* A part of each block's identity: a block of one kind is never taken for another's. Empty for
 * plain numbers, which every engine's hashes leave out. */
static struct str kv_kind(enum dtype kv_dtype, char *text, size_t size) {
    if (!kv_is_quantised(kv_dtype)) return STR_NULL;
    snprintf(text, size, "%s.%d", dtype_long_name(kv_dtype), KV_QUANT_VERSION);
    return str_of(text);
}

uint64_t engine_memory_budget(const struct backend_info *info, double fraction) {
    uint64_t taken = info->memory_total - MIN(info->memory_free, info->memory_total), share;

    if (!(info->flags & BACKEND_OWN_MEMORY))
        return (uint64_t)(fraction * (double)info->memory_free);
    share = (uint64_t)(fraction * (double)info->memory_total);
    return share - MIN(taken, share);
}

/* Of the memory that info speaks of: what the model takes yet. Nothing, once a device that counts
 * its own memory has it. */
static uint64_t weights_to_come(const struct engine *e) {
    return e->model && (e->info.device.flags & BACKEND_OWN_MEMORY) ? 0 : e->options.weight_bytes;
}

/* A size given in bytes or blocks may exceed the memory. */
static enum status check_room(const struct engine *e, uint64_t block_bytes, uint64_t kv_bytes,
                              struct error *err) {
    uint64_t free_bytes = e->info.device.memory_free;
    uint64_t left = free_bytes - MIN(weights_to_come(e), free_bytes);

    if (free_bytes == 0 || kv_bytes <= left) return ST_OK;
    return error_set(err, ST_NOMEM,
                     "a KV cache of %.2f GiB does not fit beside weights of %.2f GiB: %s has %.2f "
                     "GiB of memory left; lower --kv-cache-memory-bytes or "
                     "--num-gpu-blocks-override; %.2f GiB would fit and hold %llu tokens",
                     (double)kv_bytes / GIB, (double)e->options.weight_bytes / GIB,
                     e->info.device.device, (double)left / GIB, (double)left / GIB,
                     (unsigned long long)(left / block_bytes * e->options.block_size));
}

static enum status check_weights(const struct engine *e, struct error *err) {
    uint64_t free_bytes = e->info.device.memory_free;

    if (free_bytes == 0 || weights_to_come(e) <= free_bytes) return ST_OK;
    return error_set(err, ST_NOMEM,
                     "the model does not fit: its weights take %.2f GiB and %s has %.2f GiB of "
                     "memory free; use a smaller model or a device with more memory",
                     (double)e->options.weight_bytes / GIB, e->info.device.device,
                     (double)free_bytes / GIB);
}

/* Bytes for the pool; an option must give them when the device's memory is unknown. */
static enum status kv_budget(const struct engine *e, uint64_t block_bytes, uint64_t *bytes,
                             struct error *err) {
    const struct engine_options *o = &e->options;
    uint64_t budget = engine_memory_budget(&e->info.device, o->memory_fraction);
    enum status st = check_weights(e, err);

    if (st != ST_OK) return st;
    if (o->n_blocks > 0 || o->kv_bytes > 0) {
        *bytes = o->n_blocks > 0 ? o->n_blocks * block_bytes : o->kv_bytes;
        return check_room(e, block_bytes, *bytes, err);
    }
    if (e->info.device.memory_free == 0)
        return error_set_param(err, ST_INVALID, "kv-cache-memory-bytes",
                               "the memory of %s is unknown: set the size of the KV cache with "
                               "--kv-cache-memory-bytes",
                               e->info.device.device);
    *bytes = budget - MIN(weights_to_come(e), budget);
    return ST_OK;
}

/* How many blocks; refuses when one sequence of max_model_len does not fit. */
static enum status plan_blocks(const struct engine *e, uint64_t block_bytes, uint32_t *n_blocks,
                               struct error *err) {
    struct kv_rank rank;
    struct kv_plan plan = {.ranks = &rank,
                           .n_ranks = 1,
                           .block_size = e->options.block_size,
                           .max_model_len = e->options.max_model_len,
                           .max_step_tokens = e->options.scheduler.max_num_batched_tokens,
                           .n_groups = e->options.kv.n_groups};
    uint64_t bytes = 0;
    enum status st = kv_budget(e, block_bytes, &bytes, err);

    if (st != ST_OK) return st;
    memcpy(plan.group, e->options.kv.group, sizeof(plan.group));
    rank = (struct kv_rank){.memory_bytes = bytes, .block_bytes = block_bytes};
    st = kv_plan_blocks(&plan, n_blocks, err);
    if (st != ST_OK && err)
        error_prefix(err,
                     "not enough memory for the KV cache: %.2f GiB, beside weights of %.2f GiB, "
                     "with %.2f GiB free on %s: use a smaller model or a device with more memory",
                     (double)bytes / GIB, (double)e->options.weight_bytes / GIB,
                     (double)e->info.device.memory_free / GIB, e->info.device.device);
    return st;
}

/* Blocks of host memory for what is evicted or swapped out. */
static enum status plan_host_blocks(const struct engine *e, uint32_t *n_blocks, struct error *err) {
    uint64_t bytes = e->options.host_kv_bytes, n = bytes / e->info.block_bytes;

    if (bytes > 0 && n == 0)
        return error_set_param(err, ST_INVALID, "kv-offload-bytes",
                               "%llu bytes of host memory for KV are less than one block of %llu "
                               "bytes: set more, or 0 to disable",
                               (unsigned long long)bytes, (unsigned long long)e->info.block_bytes);
    *n_blocks = (uint32_t)MIN(n, (uint64_t)INT32_MAX);
    return ST_OK;
}

/* Blocks that clients may hold. Swapped sequences, restores and other prompts get the rest. */
static enum status plan_holds(const struct engine *e, uint32_t n_blocks, uint32_t n_host_blocks,
                              uint32_t *n_held, struct error *err) {
    bool is_on_host = n_host_blocks > 0 && !e->options.kv.no_host_cache;
    uint32_t n_all = is_on_host ? n_host_blocks : n_blocks;
    uint64_t n = e->options.hold_bytes / e->info.block_bytes;

    if (e->options.hold_bytes == 0) n = n_all / 4;
    if (n > n_all / 2)
        return error_set_param(err, ST_INVALID, "hold-bytes",
                               "hold-bytes is %llu: use at most %llu bytes, half of the KV memory "
                               "of %s",
                               (unsigned long long)e->options.hold_bytes,
                               (unsigned long long)(n_all / 2 * e->info.block_bytes),
                               is_on_host ? "the host" : "the device");
    *n_held = (uint32_t)n;
    return ST_OK;
}

/* --- opening ---------------------------------------------------------------------------------- */

static struct backend_limits limits_of(const struct engine_options *o) {
    return (struct backend_limits){
        .max_rows = o->scheduler.max_num_seqs,
        .max_step_tokens = o->scheduler.max_num_batched_tokens,
        .max_blocks_per_row = CEIL_DIV(o->max_model_len, o->block_size),
        .max_outputs = scheduler_max_outputs(&o->scheduler),
        .max_logprobs = MAX(o->max_logprobs, BEAM_CANDIDATES_MAX),
        .n_slots = o->async == ASYNC_ON ? 2 : 1, /* ASYNC_AUTO: see decide_slots */
        .is_deterministic = o->is_deterministic,
        .block_size = o->block_size,
        .max_bias = o->scheduler.max_num_seqs * sampler_max_bias(o->scheduler.n_eos),
        .max_masks = o->scheduler.max_num_seqs,
    };
}

enum status engine_check_model(const struct engine_options *o, struct error *err) {
    struct engine_options sized = *o;
    struct backend_limits limits;

    if (!o->backend->check) return ST_OK;
    if (o->max_model_len) sized.geometry.max_context = o->max_model_len;
    sized.max_model_len = sized.geometry.max_context;
    limits = limits_of(&sized);
    return o->backend->check(&o->device, &sized.geometry, &limits, err);
}

static void decide_slots(struct engine *e) {
    e->is_device_apart = e->options.backend->event_fd(e->dev) >= 0;
    if (e->options.async == ASYNC_AUTO && e->is_device_apart) e->limits.n_slots = 2;
    e->options.scheduler.async = e->limits.n_slots == 2;
}

/* The figures of a probe are stale, and an open device knows more. The host's free memory is read
 * once, before this process allocates. */
static void ask_memory(struct engine *e) {
    if (e->info.device.flags & BACKEND_OWN_MEMORY)
        e->options.backend->info(e->dev, &e->info.device);
}

/* Logs the pool before it is allocated: pinning a hundred GiB of host memory takes half a minute.
 * */
static void log_pool(const struct engine *e, uint32_t n_blocks, uint32_t n_host_blocks) {
    uint64_t block_bytes = e->info.block_bytes;

    log_event(e->options.log, LOG_INFO, "kv_pool", log_u64("kv_blocks", n_blocks),
              log_u64("kv_mib", n_blocks * block_bytes >> 20),
              log_u64("host_kv_mib", n_host_blocks * block_bytes >> 20),
              log_u64("free_mib", e->info.device.memory_free >> 20));
}

/* What only makes steps faster is not what a start fails for. */
static enum status plan_pool(struct engine *e, uint32_t *n_blocks, struct error *err) {
    const struct backend_ops *ops = e->options.backend;
    enum status st;

    ask_memory(e);
    st = plan_blocks(e, e->info.block_bytes, n_blocks, err);
    if (st != ST_NOMEM || !ops->give_room || !ops->give_room(e->model)) return st;
    ask_memory(e);
    return plan_blocks(e, e->info.block_bytes, n_blocks, err);
}

/* What cannot be shared is served over TCP. */
static void share_pool(struct engine *e, uint32_t n_host_blocks) {
    const struct engine_options *o = &e->options;
    struct error err = {0};

    if (!o->peers || !o->shares_host_pool || !o->backend->kv_lend || n_host_blocks == 0) return;
    if (shared_pool_create(&e->shared, n_host_blocks, e->info.block_bytes, &err) != ST_OK) {
        log_event(o->log, LOG_WARN, "kv_peer_not_shared", log_z("peer", "all"),
                  log_z("why", err.message));
        return;
    }
    o->backend->kv_lend(e->model, e->shared.blocks);
    e->options.kv.host_generations = e->shared.generations;
}

static enum status open_pool(struct engine *e, struct error *err) {
    const struct backend_ops *ops = e->options.backend;
    struct backend_kv_info kv_info;
    struct kv_manager_config *kv = &e->options.kv;
    uint32_t n_blocks, n_host_blocks = 0;
    char kind[32];
    enum status st;

    e->info.block_bytes = ops->kv_block_bytes(e->model);
    if ((st = plan_pool(e, &n_blocks, err)) != ST_OK) return st;
    if ((st = plan_host_blocks(e, &n_host_blocks, err)) != ST_OK) return st;
    if ((st = plan_holds(e, n_blocks, n_host_blocks, &kv->max_held_blocks, err)) != ST_OK)
        return st;
    log_pool(e, n_blocks, n_host_blocks);
    share_pool(e, n_host_blocks);
    if ((st = ops->kv_alloc(e->model, n_blocks, n_host_blocks, &kv_info, err)) != ST_OK) return st;
    kv->n_blocks = n_blocks;
    kv->n_host_blocks = n_host_blocks;
    kv->block_size = e->options.block_size;
    kv->max_model_len = e->options.max_model_len;
    kv->max_step_tokens = e->options.scheduler.max_num_batched_tokens;
    if ((st = engine_open_tiers(e, &kv_info, err)) != ST_OK) return st;
    kv->hash_kind = kv_kind(e->options.geometry.kv_dtype, kind, sizeof(kind));
    e->kv = kv_manager_create(kv);
    kv->hash_kind = STR_NULL;
    return ST_OK;
}

static void set_info(struct engine *e) {
    struct engine_info *i = &e->info;

    e->options.backend->info(e->dev, &i->device);
    i->backend = tp_computing(e->options.backend, &e->options.device)->name;
    i->n_ranks = MAX(e->options.device.tp_size, 1u);
    i->n_blocks = block_pool_n_usable(kv_manager_pool(e->kv));
    i->n_host_blocks = e->options.kv.n_host_blocks;
    i->n_cached_host_blocks = e->options.kv.no_host_cache ? 0 : i->n_host_blocks;
    i->n_slots = e->limits.n_slots;
    i->is_deterministic = e->limits.is_deterministic;
    i->block_size = e->options.block_size;
    i->max_model_len = e->options.max_model_len;
    i->weight_dtype = e->options.geometry.weight_dtype;
    i->kv_dtype = e->options.geometry.kv_dtype;
    i->weight_bytes = e->options.weight_bytes;
    i->generation = clock_wall_us();
    i->limits = (struct request_limits){.vocab = e->options.geometry.vocab,
                                        .max_model_len = i->max_model_len,
                                        .max_logprobs = e->options.max_logprobs,
                                        .max_beam_candidates = BEAM_CANDIDATES_MAX,
                                        .max_num_seqs = e->options.scheduler.max_num_seqs,
                                        .n_eos = e->options.scheduler.n_eos,
                                        .kv = e->kv};
    i->max_waiting = e->options.max_waiting;
    i->policy = e->options.scheduler.policy;
    i->is_by_priority = i->policy != POLICY_FCFS;
    i->chunk_tokens = e->options.scheduler.max_num_batched_tokens;
    i->itl_target_s = e->options.scheduler.itl_target_s;
}

/* Logs the planned memory before the weights are read, which may take minutes. */
static void log_plan(const struct engine *e, uint64_t block_bytes, uint32_t n_blocks) {
    const struct engine_options *o = &e->options;
    uint64_t kv_bytes = n_blocks * block_bytes, host_bytes = o->host_kv_bytes;
    uint64_t free_bytes = e->info.device.memory_free, taken = o->weight_bytes + kv_bytes;

    log_event(o->log, LOG_INFO, "memory_plan", log_z("device", e->info.device.device),
              log_u64("weights_mib", o->weight_bytes >> 20), log_u64("kv_mib", kv_bytes >> 20),
              log_u64("kv_blocks", n_blocks),
              log_u64("kv_tokens", (uint64_t)n_blocks * o->block_size),
              log_u64("max_model_len", o->max_model_len), log_u64("host_kv_mib", host_bytes >> 20),
              log_u64("free_mib", free_bytes >> 20),
              log_u64("left_mib", (free_bytes - MIN(taken, free_bytes)) >> 20));
}

static void log_path(const struct engine *e, const char *fastest) {
    if (strncmp(e->info.device.path, fastest, strlen(fastest)) == 0) return; /* or more */
    log_event(e->options.log, LOG_INFO, "path_replaced", log_z("fastest", fastest),
              log_z("used", e->info.device.path),
              log_z("dtype", dtype_long_name(e->info.weight_dtype)),
              log_z("why", "the fastest path rounds inputs to bfloat16, and takes no plain weights "
                           "but bfloat16: --dtype bfloat16 selects it"));
}

enum status engine_open_device(struct engine *e, struct error *err) {
    const struct backend_ops *ops = e->options.backend;
    char fastest[sizeof(e->info.device.path)];
    uint64_t began_us = clock_now_us();
    uint32_t n_blocks;
    enum status st;

    if ((st = ops->probe(&e->options.device, &e->info.device, err)) != ST_OK) return st;
    memcpy(fastest, e->info.device.path, sizeof(fastest));
    if ((st = engine_check_model(&e->options, err)) != ST_OK) return st;
    if ((st = ops->open(&e->dev, &e->options.device, err)) != ST_OK) return st;
    ask_memory(e);
    if ((st = plan_blocks(e, expected_block_bytes(e), &n_blocks, err)) != ST_OK) return st;
    log_plan(e, expected_block_bytes(e), n_blocks);
    decide_slots(e);
    engine_begin_digest(e);
    st = e->options.load(e->options.load_arg, ops, e->dev, &e->options.geometry, &e->limits,
                         &e->model, err);
    if (st != ST_OK) return st;
    if ((st = open_pool(e, err)) != ST_OK) return st;
    ops->info(e->dev, &e->info.device); /* with the model in, it estimates its speed */
    e->options.scheduler.prefill_tokens_per_s = e->info.device.prefill_tokens_per_s;
    e->options.scheduler.attn_context = e->info.device.attn_context;
    st = scheduler_create(&e->sched, &e->options.scheduler, e->kv, err);
    if (st != ST_OK) return st;
    if (e->lower) lower_start(e->lower, e->kv, e->sched);
    for (uint32_t i = 0; i < ARRAY_LEN(e->flight); i++)
        schedule_init(&e->flight[i].schedule, e->sched);
    batch_init(&e->batch, ops, e->model, e->limits.max_rows, e->options.block_size);
    st = masks_init(&e->masks, e->limits.max_masks, e->options.mask_threads, err);
    if (st != ST_OK) return st;
    set_info(e);
    log_path(e, fastest);
    if (e->info.device.note[0])
        log_event(e->options.log, LOG_WARN, "device_slowed", log_z("backend", e->info.backend),
                  log_z("why", e->info.device.note));
    log_event(e->options.log, LOG_INFO, "engine_ready", log_z("backend", e->info.backend),
              log_z("device", e->info.device.device), log_z("path", e->info.device.path),
              log_u64("ranks", e->info.n_ranks), log_u64("blocks", e->info.n_blocks),
              log_u64("block_size", e->info.block_size),
              log_u64("max_model_len", e->info.max_model_len),
              log_z("dtype", dtype_long_name(e->info.weight_dtype)),
              log_z("kv_cache_dtype", dtype_long_name(e->info.kv_dtype)),
              log_u64("weight_bytes", e->info.weight_bytes),
              log_u64("kv_bytes", e->info.n_blocks * e->info.block_bytes),
              log_u64("host_kv_bytes", e->info.n_host_blocks * e->info.block_bytes),
              log_f64("seconds", (double)(clock_now_us() - began_us) * 1e-6));
    return ST_OK;
}

void engine_close_device(struct engine *e) {
    const struct backend_ops *ops = e->options.backend;

    masks_fini(&e->masks);
    if (e->sched) {
        batch_fini(&e->batch);
        for (uint32_t i = 0; i < ARRAY_LEN(e->flight); i++)
            schedule_fini(&e->flight[i].schedule);
    }
    engine_close_tiers(e);
    scheduler_destroy(e->sched);
    kv_manager_destroy(e->kv);
    if (e->model) ops->unload(e->model);
    shared_pool_close(&e->shared);
    if (e->dev) ops->close(e->dev);
}

/* --- the creator's side ----------------------------------------------------------------------- */

static void copy_eos(struct engine *e) {
    struct scheduler_options *s = &e->options.scheduler;

    e->eos_ids = mem_calloc(MAX(s->n_eos, 1u), sizeof(*e->eos_ids));
    if (s->n_eos > 0) memcpy(e->eos_ids, s->eos_ids, s->n_eos * sizeof(*e->eos_ids));
    s->eos_ids = e->eos_ids;
    e->masks.ends = (struct constrain_ends){e->eos_ids, s->n_eos};
    e->masks.vocab = e->options.geometry.vocab;
}

static enum status start_thread(struct engine *e, struct error *err) {
    int code = pthread_create(&e->thread, NULL, engine_main, e);

    if (code != 0)
        return error_set(err, ST_IO, "cannot start the engine thread: %s", strerror(code));
    e->is_thread_started = true;
    while (sem_wait(&e->is_ready) != 0) {
    }
    if (e->start_status != ST_OK && err) *err = e->start_error;
    return e->start_status;
}

enum status engine_create(struct engine **out, const struct engine_options *options,
                          struct loop *loop, struct error *err) {
    struct engine *e = mem_zalloc(sizeof(*e));
    enum status st;

    e->options = *options;
    e->masks.stats.seconds = options->mask_seconds;
    sem_init(&e->is_ready, 0, 0);
    pthread_mutex_init(&e->stats_lock, NULL);
    copy_eos(e);
    if ((st = mailbox_open_polled(&e->inbox, err)) != ST_OK) goto fail;
    if ((st = check_options(e, err)) != ST_OK) goto fail;
    e->options.scheduler.max_model_len = e->options.max_model_len;
    e->options.geometry.max_context = e->options.max_model_len;
    if ((st = scheduler_check_options(&e->options.scheduler, err)) != ST_OK) goto fail;
    e->limits = limits_of(&e->options);
    if ((st = mailbox_open(&e->outbox, loop, engine_on_mail, e, err)) != ST_OK) goto fail;
    if ((st = start_thread(e, err)) != ST_OK) goto fail;
    *out = e;
    return ST_OK;
fail:
    engine_destroy(e);
    return st;
}

static void fail_reset(struct engine_reset *reset) {
    reset->is_ok = false;
    reset->on_done(reset);
}

static void fail_snapshot(struct engine_snapshot *s) {
    s->next = 0;
    s->on_done(s);
}

static void fail_hold(struct engine_hold_call *call) {
    call->status = error_set(&call->err, ST_UNAVAILABLE,
                             "the worker is shutting down: hold the prefix on another worker");
    call->on_done(call);
}

/* Mails about requests hold references; a reset belongs to its sender, which waits for it; the
 * others belong to the engine. */
static void drop_mails(struct mailbox *box) {
    struct list mails, *link;

    list_init(&mails);
    mailbox_take(box, &mails);
    while ((link = list_pop_front(&mails)) != NULL) {
        struct request_mail *m = CONTAINER_OF(mail_of(link), struct request_mail, mail);

        if (m->kind == MAIL_SUBMIT || m->kind == MAIL_EXPLAIN) {
            request_unref(CONTAINER_OF(m, struct request, submit_mail));
        } else if (m->kind == MAIL_CANCEL) {
            request_unref(CONTAINER_OF(m, struct request, cancel_mail));
        } else if (m->kind == MAIL_PROGRESS) {
            request_unref(CONTAINER_OF(m, struct request, progress_mail));
        } else if (m->kind == MAIL_SNAPSHOT) {
            fail_snapshot(CONTAINER_OF(m, struct engine_snapshot, mail));
        } else if (m->kind == MAIL_HOLD) {
            fail_hold(CONTAINER_OF(m, struct engine_hold_call, mail));
        } else if (m->kind == MAIL_RESET) {
            fail_reset(CONTAINER_OF(m, struct engine_reset, mail));
        }
    }
    mailbox_close(box);
}

void engine_destroy(struct engine *e) {
    if (!e) return;
    if (e->is_thread_started) {
        e->stop_mail.kind = MAIL_STOP;
        mailbox_push(e->inbox, &e->stop_mail.mail);
        pthread_join(e->thread, NULL);
    }
    if (e->inbox) drop_mails(e->inbox);
    if (e->outbox) drop_mails(e->outbox);
    pthread_mutex_destroy(&e->stats_lock);
    sem_destroy(&e->is_ready);
    mem_free(e->eos_ids);
    mem_free(e);
}

const struct engine_info *engine_info(const struct engine *e) {
    return &e->info;
}

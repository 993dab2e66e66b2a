/* worker/worker_device.c - a GPU belongs to this worker and takes large batches; host memory is
 * shared with other workers and the page cache. */
#include "worker/worker_device.h"

#include <string.h>

#include "common/telemetry/log.h"
#include "kernels/dtype.h"
#include "kernels/tp/tp.h"
#include "worker/engine/backend_load.h"
#include "worker/engine/engine.h"
#include "worker/model/model.h"
#include "worker/worker_options.h"

#define GPU_SEQS         256u
#define GPU_STEP_TOKENS  8192u /* more makes its activations larger, and hardly a step faster */
#define HOST_SEQS        64u
#define HOST_STEP_TOKENS 512u
#define HOST_KV_BYTES    (4ull << 30) /* of a cpu worker, by default ... */
#define HOST_KV_FRACTION 4            /* ... and at most this part of the free memory */

/* Ranks of what was chosen, where the model is to be divided. */
static enum status divide(const struct worker_options *o, const struct backend_ops **ops,
                          struct backend_config *config, struct error *err) {
    if (o->tp_size == 1 && config->device_id && strchr(config->device_id, ','))
        return error_set_param(
            err, ST_INVALID, "device",
            "--device %s names several devices: set --tensor-parallel-size to their number",
            config->device_id);
    if (o->tp_size == 1) return ST_OK;
    if (*ops == &backend_sim)
        return error_set_param(err, ST_UNSUPPORTED, "tensor-parallel-size",
                               "--tensor-parallel-size %u is not supported by the sim backend: use "
                               "a profile of the whole device group",
                               o->tp_size);
    config->ranks = *ops;
    config->tp_size = o->tp_size;
    *ops = &backend_tp;
    return ST_OK;
}

enum status worker_choose_device(const struct worker_options *o, const struct backend_ops **out,
                                 struct backend_config *config, struct log *log,
                                 struct error *err) {
    const struct backend_request request = {
        .name = worker_backend_name(o), .library = o->backend_library, .device = o->device};
    struct error why = {0};
    enum status st;

    *config = (struct backend_config){.n_threads = o->n_threads,
                                      .path = o->path,
                                      .sim_speed = o->sim_speed,
                                      .sim_profile = o->sim_profile};
    st = backend_choose(out, config, &request, &why, err);
    if (st == ST_OK && why.message[0] != '\0')
        log_event(log, LOG_INFO, "backend_chosen", log_z("backend", (*out)->name),
                  log_z("why", why.message));
    return st == ST_OK ? divide(o, out, config, err) : st;
}

#define CUDA_BLOCK_SIZE 16u /* its kernels read K and V in such pieces */

uint32_t worker_block_size(const struct worker_options *o, const struct backend_ops *backend,
                           const struct backend_config *config, struct log *log) {
    bool is_fixed = strcmp(tp_computing(backend, config)->name, "cuda") == 0;

    if (!is_fixed || o->block_size == CUDA_BLOCK_SIZE) return o->block_size;
    if (log)
        log_event(log, LOG_WARN, "block_size_replaced", log_u64("asked", o->block_size),
                  log_u64("used", CUDA_BLOCK_SIZE),
                  log_z("why", "the device supports only this block size"));
    return CUDA_BLOCK_SIZE;
}

static bool is_on_host(const struct backend_ops *ops) {
    return strcmp(ops->name, "cpu") == 0 || strcmp(ops->name, "ref") == 0;
}

/* An option that is set wins over a default: every sequence needs a token of the step. */
static void size_batch(const struct worker_options *o, bool is_gpu, struct scheduler_options *s) {
    uint32_t n_seqs = is_gpu ? GPU_SEQS : HOST_SEQS;
    uint32_t n_tokens = is_gpu ? GPU_STEP_TOKENS : HOST_STEP_TOKENS;

    if (o->max_num_batched_tokens) n_seqs = MIN(n_seqs, o->max_num_batched_tokens);
    s->max_num_seqs = o->max_num_seqs ? o->max_num_seqs : n_seqs;
    s->max_num_batched_tokens =
        o->max_num_batched_tokens ? o->max_num_batched_tokens : MAX(n_tokens, s->max_num_seqs);
}

/* The pool's type, where the matrices have `dtype`. Whether the device has it is for its check. */
static enum dtype kv_dtype(const struct worker_options *o, enum dtype dtype) {
    static const enum dtype types[] = {
        [WORKER_KV_BFLOAT16] = DTYPE_BF16, [WORKER_KV_FLOAT16] = DTYPE_F16,
        [WORKER_KV_FLOAT32] = DTYPE_F32,   [WORKER_KV_FP8] = DTYPE_F8E4M3,
        [WORKER_KV_INT8] = DTYPE_I8,
    };

    return o->kv_dtype == WORKER_KV_AUTO ? dtype : types[o->kv_dtype];
}

/* The types of weights and pool. */
static enum status choose_dtype(const struct worker_options *o, const struct model *m,
                                bool is_bf16_only, struct engine_options *e, struct error *err) {
    static const enum dtype types[] = {
        [WORKER_DTYPE_AUTO] = DTYPE_BF16,   [WORKER_DTYPE_BFLOAT16] = DTYPE_BF16,
        [WORKER_DTYPE_FLOAT16] = DTYPE_F16, [WORKER_DTYPE_FLOAT32] = DTYPE_F32,
        [WORKER_DTYPE_HALF] = DTYPE_F16,    [WORKER_DTYPE_FLOAT] = DTYPE_F32};
    enum dtype dtype = types[o->dtype];

    if (o->dtype == WORKER_DTYPE_AUTO && !is_bf16_only) dtype = model_dtype(m);
    if (is_bf16_only && dtype != DTYPE_BF16)
        return error_set_param(err, ST_UNSUPPORTED, "dtype",
                               "--dtype %s: the %s backend computes in bfloat16; use --dtype auto "
                               "or bfloat16, or --backend cpu",
                               dtype_long_name(dtype), tp_computing(e->backend, &e->device)->name);
    e->geometry.weight_dtype = dtype;
    e->geometry.kv_dtype = kv_dtype(o, dtype);
    e->weight_bytes = model_weight_bytes(m, dtype);
    return ST_OK;
}

/* What --quantization may be in vLLM and SGLang, and the method of a checkpoint that it asks for;
 * NULL: any. Some words ask for one of two. */
static const struct {
    const char *word, *method;
} quantizations[] = {{"auto", NULL},
                     {"none", NULL},
                     {"null", NULL},
                     {"unquant", NULL},
                     {"fp8", "fp8"},
                     {"compressed-tensors", "compressed-tensors"},
                     {"awq", "awq"},
                     {"awq_marlin", "awq"},
                     {"gptq", "gptq"},
                     {"gptq_marlin", "gptq"},
                     {"modelopt", "modelopt"},
                     {"modelopt_fp8", "modelopt"},
                     {"w8a8_fp8", "fp8"},
                     {"w8a8_fp8", "compressed-tensors"},
                     {"w8a8_int8", "compressed-tensors"}};

static enum status check_quantization(const struct worker_options *o, const struct model *m,
                                      struct error *err) {
    const char *has = model_quantization(m);
    bool is_known = false;

    for (size_t i = 0; i < ARRAY_LEN(quantizations); i++) {
        const char *method = quantizations[i].method;

        if (!str_eq_nocase(str_of(o->quantization), str_of(quantizations[i].word))) continue;
        if (!method || model_is_synthetic(m) || (has && strcmp(has, method) == 0)) return ST_OK;
        is_known = true;
    }
    if (!is_known)
        return error_set_param(err, ST_UNSUPPORTED, "quantization",
                               "--quantization %.60s would change the answers, and is not "
                               "supported: give auto, fp8, compressed-tensors, awq, gptq or "
                               "modelopt",
                               o->quantization);
    return error_set_param(err, ST_INVALID, "quantization",
                           "--quantization %s would change the answers: the checkpoint is %s%s, "
                           "and the worker quantises no weights; leave the flag out, or use a "
                           "checkpoint of that method",
                           o->quantization, has ? "quantised by " : "not quantised",
                           has ? has : "");
}

enum status worker_size_engine(const struct worker_options *o, const struct model *m,
                               struct engine_options *e, struct error *err) {
    const struct backend_ops *computing = tp_computing(e->backend, &e->device);
    struct scheduler_options *s = &e->scheduler;
    struct backend_info info = {0};
    bool is_gpu;
    enum status st = check_quantization(o, m, err);

    if (st != ST_OK) return st;
    if (e->backend->probe(&e->device, &info, NULL) != ST_OK) info = (struct backend_info){0};
    is_gpu = info.flags & BACKEND_OWN_MEMORY;
    e->kv_bytes = o->kv_bytes;
    e->n_blocks = o->n_blocks;
    if (o->memory_fraction > 0)
        e->memory_fraction = o->memory_fraction;
    else if (is_on_host(computing) && o->kv_bytes == 0)
        e->kv_bytes = MIN(HOST_KV_BYTES, info.memory_free / HOST_KV_FRACTION);
    size_batch(o, is_gpu, s);
    return choose_dtype(o, m, info.flags & BACKEND_BF16_ONLY, e, err);
}

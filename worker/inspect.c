/* worker/inspect.c - see inspect.h. */
#include "worker/inspect.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/buf.h"
#include "common/telemetry/log.h"
#include "common/text/json.h"
#include "kernels/dtype.h"
#include "kernels/tp/tp.h"
#include "worker/engine/engine.h"
#include "worker/loading.h"
#include "worker/model/architecture.h"
#include "worker/model/model.h"
#include "worker/text/template/chat_template.h"
#include "worker/text/tokenizer/tokenizer.h"
#include "worker/worker_defaults.h"
#include "worker/worker_device.h"
#include "worker/worker_options.h"

#define MIB (1024.0 * 1024.0)
#define GIB (1024.0 * MIB)

/* Of the layers; 0: the configuration leaves all of them plain. */
static uint32_t quantised_types(const struct model *m) {
    struct geometry g;

    model_geometry(m, &g);
    return g.quant_types;
}

static void print_quantization(const struct model *m) {
    uint32_t types = quantised_types(m);

    printf(", quantised by %s:", model_quantization(m));
    for (uint32_t t = 0; t < DTYPE_COUNT; t++) {
        if (types & 1u << t) printf(" %s", dtype_long_name((enum dtype)t));
    }
    printf(" weights of layers%s\n",
           model_n_kv_scales(m) ? "; its scales for a KV cache are not used" : "");
}

static void print_shape(const struct model *m, const struct model_config *c) {
    printf("architecture      %s\n", c->architecture->name);
    printf("parameters        %.2f M", (double)model_n_params(m) / 1e6);
    if (quantised_types(m))
        print_quantization(m);
    else
        printf(" in %s\n", dtype_long_name(model_dtype(m)));
    printf("layers            %u of width %u, %u heads, %u KV heads of %u, FFN %u\n", c->n_layers,
           c->d_model, c->n_heads, c->n_kv_heads, c->head_dim, c->d_ff);
    printf("vocabulary        %u%s\n", c->vocab, c->is_tied ? ", head tied to the embedding" : "");
    printf("extras            %s%s%s%s\n", c->has_qkv_bias ? "QKV bias  " : "",
           c->has_o_bias ? "O bias  " : "", c->has_qk_norm ? "QK norm  " : "",
           !c->has_qkv_bias && !c->has_o_bias && !c->has_qk_norm ? "none" : "");
}

static void print_positions(const struct model_config *c) {
    static const char *const kinds[] = {[ROPE_DEFAULT] = "default",
                                        [ROPE_LINEAR] = "linear",
                                        [ROPE_LLAMA3] = "llama3",
                                        [ROPE_YARN] = "yarn"};
    uint32_t n_sliding = 0;

    for (uint32_t i = 0; i < c->n_layers; i++)
        n_sliding += c->layer_kind[i];
    printf("context           %u tokens, RoPE %s, theta %g", c->max_context, kinds[c->rope.type],
           c->rope.theta);
    if (c->rope.type != ROPE_DEFAULT) printf(", factor %g", c->rope.factor);
    printf("\n");
    if (c->sliding_window > 0)
        printf("sliding window    %u tokens in %u of %u layers\n", c->sliding_window, n_sliding,
               c->n_layers);
}

static void print_token(const struct tokenizer *t, const char *what, uint32_t id) {
    struct str bytes = id == TOKEN_NONE ? STR_NULL : tokenizer_bytes(t, id);
    struct buf text;

    if (id == TOKEN_NONE) return;
    buf_init(&text, 4096);
    json_escape_visibly(&text, bytes); /* escaped: control characters would reach the terminal */
    printf("%s %u \"%.*s\"  ", what, id, STR_ARG(buf_str(&text)));
    buf_fini(&text);
}

static void print_text(const struct model_config *c, const struct tokenizer *t,
                       const char *fallback) {
    printf("tokenizer         %u tokens; ", tokenizer_vocab(t));
    print_token(t, "bos", tokenizer_bos(t));
    for (uint32_t i = 0; i < c->n_eos; i++)
        print_token(t, "eos", c->eos[i]);
    printf("\nchat template     %s%s\n", fallback ? fallback : "the folder's",
           fallback ? ", built in: the folder has none" : "");
}

/* The types are those that the device keeps. */
static void print_memory(const struct model *m, const struct worker_options *o, enum dtype dtype,
                         enum dtype kv_dtype) {
    uint64_t token = model_kv_bytes_per_token(m, kv_dtype), block = token * o->block_size;
    uint32_t context = o->max_model_len ? o->max_model_len : model_config(m)->max_context;

    printf("weights           %.1f MiB%s in %s\n", (double)model_weight_bytes(m, dtype) / MIB,
           quantised_types(m) ? ", those that are not quantised" : "", dtype_long_name(dtype));
    printf("KV per token      %" PRIu64 " bytes in %s; a block of %u tokens %.1f KiB\n", token,
           dtype_long_name(kv_dtype), o->block_size, (double)block / 1024);
    printf("KV of one request %.1f MiB at %u tokens\n", (double)token * context / MIB, context);
    if (o->kv_bytes > 0 && block > 0)
        printf("KV cache          %" PRIu64 " blocks of --kv-cache-memory-bytes: %" PRIu64
               " tokens\n",
               o->kv_bytes / block, o->kv_bytes / block * o->block_size);
}

static void print_fit(const struct engine_options *e, const struct backend_info *info,
                      uint64_t block_bytes, uint64_t context) {
    uint64_t budget = engine_memory_budget(info, e->memory_fraction), n_tokens;
    uint64_t kv_bytes = e->n_blocks ? e->n_blocks * block_bytes : e->kv_bytes;

    if (kv_bytes == 0) kv_bytes = budget - MIN(e->weight_bytes, budget);
    n_tokens = block_bytes ? kv_bytes / block_bytes * e->block_size : 0;
    if (info->memory_free > 0 && e->weight_bytes + kv_bytes > info->memory_free)
        printf("fits              no: weights and KV take %.2f GiB\n",
               (double)(e->weight_bytes + kv_bytes) / GIB);
    else if (n_tokens < context)
        printf("fits              no: %.2f GiB are left for KV, %" PRIu64
               " tokens; one request may take %" PRIu64 ": lower --max-model-len\n",
               (double)kv_bytes / GIB, n_tokens, context);
    else
        printf("fits              yes: %.2f GiB for KV, %" PRIu64 " tokens, %" PRIu64
               " requests of %" PRIu64 "\n",
               (double)kv_bytes / GIB, n_tokens, n_tokens / context, context);
}

/* What a worker with these options would compute on, and how. */
static enum status size_engine(struct engine_options *e, struct backend_info *info,
                               const struct model *m, const struct worker_options *o,
                               struct log *log, struct error *err) {
    enum status st = worker_choose_device(o, &e->backend, &e->device, log, err);

    if (st == ST_OK) st = e->backend->probe(&e->device, info, err);
    if (st != ST_OK) return st;
    engine_options_set_model(e, m);
    e->block_size = worker_block_size(o, e->backend, &e->device, NULL);
    e->max_model_len = o->max_model_len;
    return worker_size_engine(o, m, e, err);
}

/* Whether the model fits the device, and the memory left for KV, before the working memory, which
 * is known only after loading. */
static void print_device(const struct model *m, const struct worker_options *o,
                         const struct engine_options *e, const struct backend_info *info) {
    struct error why = {0};

    printf("device            %s: %s, %s%s%s; memory %.1f GiB, %.1f free\n",
           tp_computing(e->backend, &e->device)->name, info->device, info->path,
           info->uuid[0] ? ", " : "", info->uuid, (double)info->memory_total / GIB,
           (double)info->memory_free / GIB);
    if (engine_check_model(e, &why) != ST_OK)
        printf("fits              no: %s\n", why.message);
    else
        print_fit(e, info, model_kv_bytes_per_token(m, e->geometry.kv_dtype) * e->block_size,
                  o->max_model_len ? o->max_model_len : e->geometry.max_context);
}

static void print_defaults(const struct generation_config *g) {
    if (!g->has_temperature && !g->has_top_p && !g->has_top_k && !g->has_min_p &&
        !g->has_repetition_penalty)
        return;
    printf("sampling defaults");
    if (g->has_temperature) printf("  temperature %g", g->temperature);
    if (g->has_top_p) printf("  top_p %g", g->top_p);
    if (g->has_top_k) printf("  top_k %u", g->top_k);
    if (g->has_min_p) printf("  min_p %g", g->min_p);
    if (g->has_repetition_penalty) printf("  repetition_penalty %g", g->repetition_penalty);
    printf("\n");
}

/* A missing device does not suppress the rest of the output. */
static enum status print_model(const struct model *m, const struct worker_options *o,
                               const char *text_folder, struct log *log, struct error *err) {
    struct engine_options e = engine_options_default;
    struct backend_info info = {0};
    struct tokenizer *tokenizer = NULL;
    struct chat_template *chat_template = NULL;
    struct generation_config generation;
    struct error why = {0};
    const char *fallback = NULL;
    enum status sized = size_engine(&e, &info, m, o, log, &why), st;

    print_shape(m, model_config(m));
    print_positions(model_config(m));
    print_memory(m, o, sized == ST_OK ? e.geometry.weight_dtype : model_dtype(m),
                 sized == ST_OK ? e.geometry.kv_dtype : model_dtype(m));
    st = worker_generation_defaults(o, model_config(m), log, &generation, err);
    if (st == ST_OK) print_defaults(&generation);
    if (st == ST_OK) st = tokenizer_open(&tokenizer, text_folder, err);
    if (st == ST_OK)
        st = chat_template_open(&chat_template, text_folder, o->chat_template, &fallback, err);
    if (st == ST_OK) {
        print_text(model_config(m), tokenizer, fallback);
        if (sized == ST_OK)
            print_device(m, o, &e, &info);
        else if (err)
            *err = why;
        st = sized;
    }
    chat_template_destroy(chat_template);
    tokenizer_destroy(tokenizer);
    return st;
}

enum status inspect_model(struct worker_options *o, struct error *err) {
    struct model *model = NULL;
    struct log_config log_config = {.fd = 2, .level = LOG_INFO};
    struct log *log = NULL;
    struct loading loading;
    char folder[HUB_PATH_MAX] = "", text_folder[HUB_PATH_MAX] = "";
    bool is_hubs;
    enum status st;

    if (!o->model) {
        return error_set(
            err, ST_INVALID,
            "no model is given: name its folder, as in incipit-worker inspect deploy/demo/model");
    }
    log = log_create(&log_config);
    loading_init(&loading, log);
    st = loading_find(&loading, o, o->model, folder, &is_hubs, err);
    if (st == ST_OK)
        st = loading_find(&loading, o, o->tokenizer ? o->tokenizer : folder, text_folder, &is_hubs,
                          err);
    if (st == ST_OK) st = model_open(&model, folder, err);
    if (st == ST_OK) st = print_model(model, o, text_folder, log, err);
    model_close(model);
    log_destroy(log);
    return st;
}

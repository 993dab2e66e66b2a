/* worker/worker.c - creates and connects all objects of the worker.
 *
 *      main thread = worker loop                 text, grammar threads    engine thread
 *      -------------------------                 ---------------------    ----------------------
 *      http_server, api, calls  <--mailboxes-->  tokenizer, compiler      scheduler, KV, backend
 *
 * Start to end: listen (a port in use fails before the weights are read), open the model, engine,
 * serve, a signal, drain, exit. While it drains the server still listens: probes read 503 and
 * "draining", new requests get a 503 that sends them elsewhere (api/drain.c). It stops when all
 * accepted requests are answered and sent, and the event streams have delivered their ends. */
#include "worker/worker.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/http/body_budget.h"
#include "common/http/http_server.h"
#include "common/net/loop.h"
#include "common/net/tls.h"
#include "common/options/process_limits.h"
#include "common/telemetry/log.h"
#include "common/text/json.h"
#include "kernels/dtype.h"
#include "worker/api/access.h"
#include "worker/api/api.h"
#include "worker/api/events/request_feed.h"
#include "worker/api/stores/prompt_history.h"
#include "worker/api/stores/responses_store.h"
#include "worker/engine/engine.h"
#include "worker/loading.h"
#include "worker/metrics/worker_metrics.h"
#include "worker/model/model.h"
#include "worker/text/template/chat_template.h"
#include "worker/text/text_thread.h"
#include "worker/text/tokenizer/tokenizer.h"
#include "worker/worker_defaults.h"
#include "worker/worker_device.h"
#include "worker/worker_grammars.h"
#include "worker/worker_kv.h"
#include "worker/worker_options.h"
#include "worker/worker_reload.h"

#define FINAL_FLUSH_US          1000000u /* for errors to reach those that are not waited for */
#define MAX_DEFAULT_BODY_MEMORY (UINT64_C(1) << 30)
#define CLOSING_US              10000u /* between two looks at whether all is sent */
#define DESCRIPTORS             64u    /* that clients may not take: the device, logs, the model */
#define LEAST_CLIENTS           4u
#define LOST_DEVICE_S           20u /* for a device that failed to be closed */

struct worker {
    const struct worker_options *options;
    struct options *live; /* fills `options`; NULL: they stay */
    struct loop *loop;
    struct log *log;
    struct metrics *metrics;
    struct http_server *server;
    struct body_budget *bodies; /* what request bodies may hold */
    struct tls *tls;            /* NULL: plain HTTP */
    struct model *model;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template;
    struct text_thread *text_thread;
    struct grammar_thread *grammar_thread;
    struct worker_tokens tokens; /* for grammars */
    struct engine *engine;
    struct kv_event_log *kv_events; /* the engine writes it, the API reads it; NULL: off */
    struct peer_server *peers;      /* the engine runs it, the API brings connections; NULL: off */
    struct api api;
    struct access *access; /* NULL: everything is open */
    struct generation_config generation;
    struct json *template_kwargs;
    struct loop_timer deadline, closing;
    void (*first_signal)(void *arg); /* NULL: a signal drains */
    void *first_signal_arg;
    struct loading loading;
    bool is_hubs_model; /* --model is a name on the hub, and what clients call it */
    bool is_stopping_now;
    enum status outcome; /* of worker_run */
    struct error *why;   /* of `outcome`; the caller's */
};

/* --- stopping --------------------------------------------------------------------------------- */

static void on_http_drained(void *arg) {
    struct worker *w = arg;

    loop_stop(w->loop);
}

/* Everything is answered, though not all of it sent. */
static void close_when_sent(void *arg) {
    struct worker *w = arg;

    if (http_server_is_sending(w->server)) {
        loop_timer_start(&w->closing, CLOSING_US);
    } else {
        http_server_drain_idle(w->server, CLOSING_US, on_http_drained, w);
    }
}

static void on_engine_drained(void *arg) {
    struct worker *w = arg;

    if (w->is_stopping_now) return;
    request_feed_end(w->api.request_feed);
    close_when_sent(w);
}

/* Ends all streams and waits only until that is sent. */
static void stop_now(struct worker *w) {
    if (w->is_stopping_now) {
        loop_stop(w->loop);
        return;
    }
    w->is_stopping_now = true;
    loop_timer_stop(&w->closing);
    http_server_drain(w->server, on_http_drained,
                      w); /* first: responses from now on close their connections */
    api_end_calls(&w->api);
    request_feed_end(w->api.request_feed);
    loop_timer_start(&w->deadline, FINAL_FLUSH_US);
}

static void on_deadline(void *arg) {
    struct worker *w = arg;

    if (!w->is_stopping_now) log_event(w->log, LOG_WARN, "drain_timeout");
    stop_now(w);
}

void worker_stop(struct worker *w) {
    if (w->api.is_draining) {
        stop_now(w); /* requested twice */
        return;
    }
    log_event(w->log, LOG_INFO, "worker_draining");
    loop_timer_start(&w->deadline, (uint64_t)w->options->drain_timeout_ms * 1000);
    http_server_announce_close(w->server); /* no connection is chosen again whose end is near */
    api_end_kv_streams(&w->api, "the worker is shutting down");
    api_drain(&w->api);
    request_feed_load(w->api.request_feed); /* which reports the failure */
}

static void on_drain_asked(void *arg) {
    worker_stop(arg);
}

static void on_signal(int signo, void *arg) {
    struct worker *w = arg;
    void (*fn)(void *) = w->first_signal;

    (void)signo;
    w->first_signal = NULL;
    if (fn) {
        fn(w->first_signal_arg);
    } else {
        worker_stop(w);
    }
}

void worker_on_signal(struct worker *w, void (*fn)(void *arg), void *arg) {
    w->first_signal = fn;
    w->first_signal_arg = arg;
}

static void reload_keys(struct worker *w) {
    struct error err = {0};

    if (access_reload(w->access, &err) == ST_OK) {
        log_event(w->log, LOG_INFO, "api_keys_reloaded");
    } else {
        log_event(w->log, LOG_ERROR, "api_keys_not_reloaded", log_z("why", err.message));
    }
}

/* New certificates lose no connection; invalid ones change nothing. */
static void reload_certificates(struct worker *w) {
    struct error err = {0};

    if (tls_reload(w->tls, &err) == ST_OK) {
        log_event(w->log, LOG_INFO, "certificates_reloaded");
    } else {
        log_event(w->log, LOG_ERROR, "certificates_not_reloaded", log_z("why", err.message));
    }
}

static uint32_t client_connections(const struct worker *w) {
    uint32_t all = process_descriptors(), most = all > DESCRIPTORS ? all - DESCRIPTORS : 0;

    return MIN(MAX(most, LEAST_CLIENTS), w->options->max_connections);
}

static uint64_t body_memory(const struct worker_options *o) {
    if (o->max_body_memory) return o->max_body_memory;
    return body_budget_default(process_memory_limit(""), MAX_DEFAULT_BODY_MEMORY);
}

static struct http_limits limits_of(const struct worker *w) {
    return (struct http_limits){.max_connections = client_connections(w),
                                .max_body_bytes = w->options->max_body_bytes,
                                .budget = w->bodies};
}

/* The parts take the values of options that have changed: of rows that are live. */
static void apply_options(struct worker *w) {
    const struct worker_options *o = w->options;
    struct http_limits limits;

    body_budget_set_total(w->bodies, body_memory(o));
    limits = limits_of(w);
    http_server_set_limits(w->server, &limits);
    log_set_level(w->log, (enum log_level)o->log_level);
    engine_set_max_waiting(w->engine, o->max_waiting);
    w->api.tokens_as_ids = o->tokens_as_ids;
    w->api.max_kv_streams = o->kv_event_subscribers;
    w->api.cache_explain = (enum cache_explain)o->cache_explain;
    api_keep_alive_set(&w->api, o->sse_keepalive_s);
}

/* SIGHUP without files to reload (from a log rotator) does not end the process. */
static void on_hangup(int signo, void *arg) {
    struct worker *w = arg;
    bool has_changed = false;
    enum status st = w->live ? worker_reload_options(w->live, w->log, &has_changed) : ST_NOT_FOUND;

    (void)signo;
    if (has_changed) apply_options(w);
    if (w->options->api_key_file) reload_keys(w);
    if (w->tls) reload_certificates(w);
    if (st == ST_OK || w->options->api_key_file || w->tls) return;
    log_event(w->log, LOG_INFO, "reload_ignored",
              log_z("why", "none of --config, --ssl-certfile and --api-key-file is set"));
}

/* All requests have failed. Only a new process can open the device again, so this one exits with an
 * error. Freeing the memory of a hung device may block: the alarm, which has no handler, ends the
 * process then. */
static void on_engine_failed(void *arg, const struct error *err) {
    struct worker *w = arg;

    log_event(w->log, LOG_ERROR, "device_lost", log_z("why", err->message));
    w->outcome = error_set(w->why, ST_INTERNAL, "the device was lost: %s", err->message);
    (void)alarm(LOST_DEVICE_S);
    stop_now(w);
}

/* --- building --------------------------------------------------------------------------------- */

static void on_request(struct http_request *req, void *arg) {
    struct worker *w = arg;

    api_handle(&w->api, req);
}

static enum status on_head(struct http_request *req, void *arg, struct error *err) {
    struct worker *w = arg;

    return api_admit(&w->api, req, err);
}

static void on_progress(void *arg, struct request *r, const struct request_progress *progress) {
    struct worker *w = arg;

    api_on_progress(&w->api, r, progress);
}

static void on_explained(void *arg, struct request *r) {
    struct worker *w = arg;

    api_on_explained(&w->api, r);
}

static void on_kv_events(void *arg) {
    struct worker *w = arg;

    api_on_kv_events(&w->api);
}

static enum status listen_first(struct worker *w, struct error *err) {
    static const struct http_server_events events = {.on_request = on_request, .on_head = on_head};
    const struct worker_options *o = w->options;
    struct http_limits limits;
    const struct tls_config tls = {
        .cert = o->ssl_certfile, .key = o->ssl_keyfile, .ca = o->ssl_ca_certs, .is_server = true};

    if ((tls.cert || tls.key || tls.ca) && tls_create(&w->tls, &tls, err) != ST_OK) {
        return error_prefix(err, "--ssl-certfile, --ssl-keyfile, --ssl-ca-certs");
    }
    w->bodies = body_budget_create(body_memory(o), 1);
    limits = limits_of(w);
    if (o->trust_router) body_budget_without_shares(w->bodies);
    w->server = http_server_create(w->loop, &limits, &events, w);
    if (http_server_listen_tls(w->server, w->tls, o->host, (uint16_t)o->port, false, err) != ST_OK)
        return error_prefix(err, "--host, --port");
    return ST_OK;
}

static enum status open_model(struct worker *w, bool is_synthetic, struct error *err) {
    const struct worker_options *o = w->options;
    char folder[HUB_PATH_MAX] = "", text[HUB_PATH_MAX]; /* of the model, of its tokenizer */
    const char *fallback = NULL;
    bool is_hubs;
    enum status st;

    if (is_synthetic && !o->model) {
        w->model = model_create_synthetic(o->max_model_len);
        w->tokenizer = tokenizer_create_bytes();
        w->chat_template = chat_template_builtin("chatml");
        return ST_OK;
    }
    if (!o->model) {
        return error_set(
            err, ST_INVALID,
            "no model is given: name its folder, as in incipit-worker deploy/demo/model, or a "
            "model of the Hugging Face hub, or use --backend sim");
    }
    st = loading_find(&w->loading, o, o->model, folder, &w->is_hubs_model, err);
    if (st == ST_OK && o->tokenizer)
        st = loading_find(&w->loading, o, o->tokenizer, text, &is_hubs, err);
    else
        snprintf(text, sizeof(text), "%s", folder);
    if (st == ST_OK) st = model_open(&w->model, folder, err);
    if (st == ST_OK) st = tokenizer_open(&w->tokenizer, text, err);
    if (st == ST_OK)
        st = chat_template_open(&w->chat_template, text, o->chat_template, &fallback, err);
    if (st != ST_OK) return st;
    if (tokenizer_vocab(w->tokenizer) > model_config(w->model)->vocab) {
        return error_set(
            err, ST_INVALID,
            "%s: the tokenizer has %u tokens, but the model only %u: download both from one model",
            text, tokenizer_vocab(w->tokenizer), model_config(w->model)->vocab);
    }
    if (fallback) {
        log_event(w->log, LOG_WARN, "chat_template_missing", log_z("folder", text),
                  log_z("built_in", fallback));
    }
    return ST_OK;
}

/* The table's choice of hash, with the names that other engines use for what is not portable. */
static enum block_hash_algo hash_algo(struct worker *w) {
    static const enum block_hash_algo algos[] = {BLOCK_HASH_XXH3_128, BLOCK_HASH_SHA256_CBOR,
                                                 BLOCK_HASH_XXHASH_CBOR, BLOCK_HASH_SHA256_CBOR,
                                                 BLOCK_HASH_XXHASH_CBOR};
    int i = w->options->hash_algo;

    if (i >= 3) {
        log_event(w->log, LOG_INFO, "hash_algo_mapped",
                  log_z("to", block_hash_algo_name(algos[i])));
    }
    return algos[i];
}

static const char *quantization_of(const struct model *m) {
    const char *method = model_quantization(m);

    return method ? method : "none";
}

/* Logs rounded weights, as a warning unless --dtype requested the type. */
static void log_types(const struct worker *w, const struct geometry *g,
                      const struct model_rounding *rounding) {
    bool is_asked = w->options->dtype != WORKER_DTYPE_AUTO;

    log_event(w->log, rounding->n_rounded > 0 && !is_asked ? LOG_WARN : LOG_INFO, "weights_loaded",
              log_z("dtype", dtype_long_name(g->weight_dtype)),
              log_z("checkpoint", dtype_long_name(model_dtype(w->model))),
              log_z("kv_cache", dtype_long_name(g->kv_dtype)),
              log_z("quantization", quantization_of(w->model)),
              log_u64("weights", rounding->n_weights), log_u64("rounded", rounding->n_rounded));
    if (model_n_kv_scales(w->model) > 0)
        log_event(w->log, LOG_INFO, "kv_scales_unused",
                  log_u64("tensors", model_n_kv_scales(w->model)));
    if (rounding->n_wrapped_zeros > 0)
        log_event(w->log, LOG_WARN, "gptq_zeros_wrapped", log_z("model", model_name(w->model)),
                  log_u64("zeros", rounding->n_wrapped_zeros));
}

static enum status load(void *arg, const struct backend_ops *ops, struct backend_device *dev,
                        const struct geometry *g, const struct backend_limits *limits,
                        struct backend_model **out, struct error *err) {
    struct worker *w = arg;

    struct model_rounding rounding = {0};
    enum status st;

    loading_begin_weights(&w->loading);
    st = model_load(w->model, ops, dev, g, limits, loading_on_weights, &w->loading, &rounding, out,
                    err);
    if (st == ST_OK) log_types(w, g, &rounding);
    return st;
}

/* Half of the processors, for the backend or the engine's thread wants the others. */
static uint32_t choose_text_threads(void) {
    cpu_set_t set;
    uint32_t n = 2;

    if (sched_getaffinity(0, sizeof(set), &set) == 0) n = (uint32_t)CPU_COUNT(&set);
    return MIN(MAX(n / 2, 1u), 4u);
}

static enum status start_text(struct worker *w, struct error *err) {
    const struct worker_options *o = w->options;
    struct text_thread_config config = {.n_threads = o->tokenizer_threads,
                                        .max_queue_bytes = o->tokenizer_queue_bytes};

    if (config.n_threads == 0) config.n_threads = choose_text_threads();
    return text_thread_start(&w->text_thread, w->loop, w->tokenizer, &config, err);
}

static enum status start_engine(struct worker *w, const struct backend_ops *backend,
                                const struct backend_config *device, struct error *err) {
    const struct worker_options *o = w->options;
    struct engine_options e = engine_options_default;
    struct worker_kv kv;
    enum status st;

    e.backend = backend;
    e.device = *device;
    engine_options_set_model(&e, w->model);
    if ((st = worker_size_engine(o, w->model, &e, err)) != ST_OK) return st;
    if (e.load) {
        e.load = load; /* the same, with progress lines */
        e.load_arg = w;
    }
    e.max_model_len = o->max_model_len;
    e.block_size = worker_block_size(o, backend, device, w->log);
    e.max_logprobs = o->max_logprobs;
    e.max_waiting = o->max_waiting;
    e.async = o->async ? ASYNC_AUTO : ASYNC_OFF;
    e.is_deterministic = o->deterministic;
    e.kv.watermark = o->watermark;
    e.kv.order = (enum free_order)o->free_order;
    e.kv.hash_algo = hash_algo(w);
    e.kv.hash_seed = str_of(o->hash_seed);
    e.kv.hash_block_size = o->hash_block_size;
    e.kv.no_caching = !o->prefix_caching;
    e.kv.dedup = o->dedup;
    e.kv.retained_share = o->retained_share;
    e.log = w->log;
    st = worker_kv_configure(o, &e, &w->kv_events, &kv, err);
    w->peers = kv.peers;
    if (st != ST_OK) return st;
    e.scheduler.long_prefill_token_threshold = o->long_prefill_token_threshold;
    e.scheduler.chunked_prefill = o->chunked_prefill;
    e.scheduler.full_sequence_must_fit = o->reserve_full_isl;
    e.scheduler.policy = (enum scheduler_policy)o->policy;
    e.scheduler.itl_target_s = 1e-3 * o->itl_target_ms;
    e.scheduler.preemption =
        (enum preemption_mode[]){PREEMPT_AUTO, PREEMPT_RECOMPUTE, PREEMPT_SWAP}[o->preemption];
    e.log_interval_us = (uint64_t)o->log_interval_ms * 1000;
    if (o->kv_cache_metrics) {
        e.kv.ages = (struct block_ages_config){.share = o->kv_cache_metrics_sample,
                                               .on_age = worker_metrics_on_block_age,
                                               .arg = w->metrics};
    }
    e.mask_seconds = metrics_at(w->metrics, WORKER_grammar_mask_seconds);
    e.token_gap =
        metric_part(w->metrics, metrics_at(w->metrics, WORKER_inter_token_latency_seconds));
    e.step_tokens = metrics_at(w->metrics, WORKER_iteration_tokens_total);
    e.step_host = metrics_at(w->metrics, WORKER_step_host_seconds);
    e.step_device = metrics_at(w->metrics, WORKER_step_device_seconds);
    e.callbacks = (struct engine_callbacks){.on_progress = on_progress,
                                            .on_drained = on_engine_drained,
                                            .on_failed = on_engine_failed,
                                            .on_explained = on_explained,
                                            .on_kv_events = on_kv_events,
                                            .arg = w};
    return engine_create(&w->engine, &e, w->loop, err);
}

/* Without the slash at its end. */
static struct str root_of(const char *path) {
    struct str root = str_of(path);

    while (root.len && root.ptr[root.len - 1] == '/')
        root.len--;
    return root;
}

static void on_collect(void *arg) {
    struct worker *w = arg;

    http_metrics_of_budget(w->metrics, WORKER_http_connections, w->bodies);
}

static void report_http(struct worker *w) {
    const struct http_report report = {w->metrics, WORKER_http_connections, w->log, "client"};

    http_server_report(w->server, &report);
    metrics_on_collect(w->metrics, on_collect, w);
}

/* How the model writes tool calls and reasoning. */
static enum status find_formats(struct worker *w, struct error *err) {
    struct str source = chat_template_source(w->chat_template);
    enum status st = ST_OK;

    w->api.output_model = worker_output_model(w->tokenizer, source);
    if (w->options->keep_reasoning)
        st = worker_keep_reasoning(&w->template_kwargs, source, w->log, err);
    worker_output_formats(w->options, &w->api.output_model, w->log, &w->api.call_format,
                          &w->api.reasoning_format);
    return st;
}

static void build_api(struct worker *w, const char *name) {
    const struct option_list names = w->options->served_model_names;
    uint64_t seed, first_seed = w->options->seed;

    hash_random(&seed, sizeof(seed));
    if (first_seed == WORKER_SEED_RANDOM) hash_random(&first_seed, sizeof(first_seed));
    w->api.loop = w->loop;
    w->api.log = w->log;
    w->api.metrics = w->metrics;
    w->api.engine = w->engine;
    w->api.tokenizer = w->tokenizer;
    w->api.chat_template = w->chat_template;
    w->api.takes_late_system = chat_template_takes_late_system(w->chat_template);
    w->api.text_thread = w->text_thread;
    w->api.grammar_thread = w->grammar_thread;
    w->api.defaults = &w->generation;
    w->api.template_kwargs = w->template_kwargs;
    w->api.model_name = name;
    w->api.quantization = quantization_of(w->model);
    w->api.other_names = names;
    if (names.n) w->api.other_names = (struct option_list){names.items + 1, names.n - 1};
    w->api.tokens_as_ids = w->options->tokens_as_ids;
    w->api.access = w->access;
    w->api.root_path = root_of(w->options->root_path);
    w->api.model_root = w->options->model ? w->options->model : name;
    w->api.created_s = clock_wall_us() / 1000000;
    w->api.max_num_seqs = worker_max_num_seqs(w);
    w->api.trusts_router = w->options->trust_router;
    rng_seed(&w->api.rng, seed);
    rng_seed(&w->api.seeds, first_seed);
    list_init(&w->api.calls);
    list_init(&w->api.kv_streams);
    w->api.kv_events = w->kv_events;
    w->api.peers = w->peers;
    w->api.is_peer_sealed = w->options->kv_key_file != NULL;
    w->api.role = worker_role_name(w->options);
    w->api.max_kv_streams = w->options->kv_event_subscribers;
    w->api.cache_explain = (enum cache_explain)w->options->cache_explain;
    api_keep_alive_init(&w->api);
    api_keep_alive_set(&w->api, w->options->sse_keepalive_s);
    w->api.on_drain_asked = on_drain_asked;
    w->api.on_drain_asked_arg = w;
}

#define RESPONSES_TTL_US (24ull * 3600 * 1000000) /* what clients continue, they do within a day */

/* Of prompts to compare with: 160 of 50,000 tokens. */
#define PROMPT_HISTORY_BYTES (4u << 20)

static void open_prompts(struct worker *w) {
    uint64_t seed;

    hash_random(&seed, sizeof(seed));
    w->api.prompts = prompt_history_create(PROMPT_HISTORY_BYTES, seed);
}

static void open_responses(struct worker *w) {
    uint64_t seed, mark;

    if (w->options->responses_store_bytes == 0) return;
    hash_random(&seed, sizeof(seed));
    hash_random(&mark, sizeof(mark));
    snprintf(w->api.response_mark, sizeof(w->api.response_mark), "%0*llx", API_MARK_CHARS,
             (unsigned long long)(mark >> (64 - 4 * API_MARK_CHARS)));
    w->api.responses =
        responses_store_create(w->options->responses_store_bytes, RESPONSES_TTL_US, seed);
}

static void read_load(void *arg, struct wire_load *out) {
    api_load(arg, out);
}

/* Last: the load that it publishes comes from the parts above. */
static enum status start_request_feed(struct worker *w, struct error *err) {
    const struct worker_options *o = w->options;
    struct request_feed_config config;

    if (o->request_events_bytes == 0) return ST_OK;
    config = (struct request_feed_config){
        .loop = w->api.loop,
        .generation = engine_info(w->engine)->generation,
        .read_load = read_load,
        .arg = &w->api,
        .buffer_bytes = o->request_events_bytes,
        .max_followers = o->request_events_subscribers,
    };
    return request_feed_create(&w->api.request_feed, &config, err);
}

static void log_ready(struct worker *w, uint64_t began_us) {
    const struct engine_info *info = engine_info(w->engine);

    log_event(w->log, LOG_INFO, "worker_ready", log_z("model", w->api.model_name),
              log_z("host", w->options->host), log_u64("port", http_server_port(w->server)),
              log_z("backend", info->backend), log_z("device", info->device.device),
              log_z("path", info->device.path), log_z("uuid", info->device.uuid),
              log_u64("ranks", info->n_ranks), log_u64("threads", info->device.n_threads),
              log_u64("steps_in_flight", info->n_slots),
              log_bool("deterministic",
                       info->is_deterministic || (info->device.flags & BACKEND_INVARIANT)),
              log_u64("weight_mib", info->weight_bytes >> 20),
              log_u64("block_size", info->block_size), log_u64("blocks", info->n_blocks),
              log_u64("kv_mib", (info->n_blocks * info->block_bytes) >> 20),
              log_u64("max_model_len", info->max_model_len),
              log_z("tool_calls", call_format_name(w->api.call_format)),
              log_z("reasoning", reasoning_format_name(w->api.reasoning_format)),
              log_f64("after_s", (double)(clock_now_us() - began_us) * 1e-6));
}

/* These go with the next version. */
static const struct log_renamed renamed[] = {
    {"reload_ignored", "nothing_to_reload"},
    {"weights_loaded", "weights_kept"},
    {"download_started", "download_begins"},
    {NULL, NULL},
};

enum status worker_create(struct worker **out, const struct worker_options *options,
                          struct options *live, struct error *err) {
    struct worker *w = mem_zalloc(sizeof(*w));
    struct log_config log = {.fd = 2,
                             .level = (enum log_level)options->log_level,
                             .format = (enum log_format)options->log_format,
                             .renamed = renamed};
    const struct backend_ops *backend;
    struct backend_config device;
    const char *name;
    uint64_t began_us = clock_now_us();
    enum status st;

    *out = NULL;
    w->options = options;
    w->live = live;
    w->log = log_create(&log);
    loading_init(&w->loading, w->log);
    st = loop_create(&w->loop, err);
    if (st != ST_OK) goto fail;
    loop_timer_init(&w->deadline, w->loop, on_deadline, w);
    loop_timer_init(&w->closing, w->loop, close_when_sent, w);
    st = access_create(&w->access, &options->api_keys, options->api_key_file, err);
    if (st == ST_OK) st = worker_template_defaults(options, &w->template_kwargs, err);
    if (st == ST_OK) st = listen_first(w, err);
    if (st == ST_OK) st = worker_choose_device(options, &backend, &device, w->log, err);
    if (st == ST_OK) st = open_model(w, backend == &backend_sim, err);
    if (st == ST_OK) st = find_formats(w, err);
    if (st == ST_OK)
        st = worker_generation_defaults(options, model_config(w->model), w->log, &w->generation,
                                        err);
    if (st != ST_OK) goto fail;
    name = options->served_model_names.n ? options->served_model_names.items[0]
           : w->is_hubs_model            ? options->model
                                         : model_name(w->model);
    w->metrics = worker_metrics_create(name);
    report_http(w);
    st = start_engine(w, backend, &device, err);
    if (st == ST_OK) st = start_text(w, err);
    w->tokens = (struct worker_tokens){w->tokenizer, model_config(w->model)};
    if (st == ST_OK) st = worker_start_grammars(&w->grammar_thread, w->loop, &w->tokens, err);
    /* Not earlier: until the loop runs these should just end the process; main ignores SIGHUP. */
    if (st == ST_OK) st = loop_on_signal(w->loop, SIGTERM, on_signal, w, err);
    if (st == ST_OK) st = loop_on_signal(w->loop, SIGINT, on_signal, w, err);
    if (st == ST_OK) st = loop_on_signal(w->loop, SIGHUP, on_hangup, w, err);
    if (st != ST_OK) goto fail;
    worker_metrics_describe(w->metrics, w->engine,
                            dtype_long_name(engine_info(w->engine)->kv_dtype),
                            options->prefix_caching);
    build_api(w, name);
    open_prompts(w);
    open_responses(w);
    if ((st = start_request_feed(w, err)) != ST_OK) goto fail;
    log_ready(w, began_us);
    *out = w;
    return ST_OK;
fail:
    worker_destroy(w);
    return st;
}

enum status worker_run(struct worker *w, struct error *err) {
    w->why = err;
    loop_run(w->loop);
    return w->outcome;
}

void worker_destroy(struct worker *w) {
    if (!w) return;
    if (w->api.loop) api_end_calls(&w->api);
    http_server_destroy(w->server);
    request_feed_destroy(w->api.request_feed);
    responses_store_destroy(w->api.responses);
    prompt_history_destroy(w->api.prompts);
    tls_destroy(w->tls);
    engine_destroy(w->engine);
    (void)alarm(0);
    peer_server_destroy(w->peers);
    kv_event_log_destroy(w->kv_events);
    text_thread_stop(w->text_thread);
    grammar_thread_stop(w->grammar_thread);
    chat_template_destroy(w->chat_template);
    tokenizer_destroy(w->tokenizer);
    model_close(w->model);
    json_destroy(w->template_kwargs);
    access_destroy(w->access);
    metrics_destroy(w->metrics);
    api_keep_alive_fini(&w->api);
    loop_timer_fini(&w->deadline);
    loop_timer_fini(&w->closing);
    loop_destroy(w->loop);
    body_budget_destroy(w->bodies);
    log_destroy(w->log);
    mem_free(w);
}

struct loop *worker_loop(struct worker *w) {
    return w->loop;
}

struct log *worker_log(struct worker *w) {
    return w->log;
}

uint16_t worker_port(const struct worker *w) {
    return http_server_port(w->server);
}

uint32_t worker_max_num_seqs(const struct worker *w) {
    return engine_info(w->engine)->limits.max_num_seqs;
}

uint64_t worker_generated_tokens(struct worker *w) {
    struct engine_stats stats;

    engine_stats(w->engine, &stats);
    return stats.generated_tokens;
}

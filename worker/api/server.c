/* worker/api/server.c - the table of paths, and the answers that need no engine step. */
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/protocol/api.h"
#include "common/protocol/openai.h"
#include "common/protocol/wire.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "common/telemetry/process_stats.h"
#include "common/text/json.h"
#include "kernels/dtype.h"
#include "worker/api/access.h"
#include "worker/api/api.h"
#include "worker/api/events/request_feed.h"
#include "worker/api/handlers.h"
#include "worker/api/stores/responses_store.h"
#include "worker/kv/tiers/peer/peer_server.h"
#include "worker/metrics/worker_metrics.h"

static void health_get(struct http_request *req, void *arg) {
    const struct api *api = arg;
    struct engine_stats stats;
    struct error err = {0};

    engine_stats(api->engine, &stats);
    if (!api->is_draining && !stats.is_failed) {
        http_reply(req, 200, NULL, STR(""));
        return;
    }
    error_set(&err, ST_UNAVAILABLE, "%s",
              stats.is_failed ? "the device was lost: this worker must be restarted"
                              : "this worker is draining and accepts no new requests");
    http_add_header(req, STR("retry-after"), STR("1"));
    http_reply_error(req, ST_UNAVAILABLE, &err);
}

/* Unlike /health, a worker that drains is alive: restarting it would lose what it still
 * finishes. */
static void live_get(struct http_request *req, void *arg) {
    const struct api *api = arg;
    struct engine_stats stats;
    struct error err = {0};

    engine_stats(api->engine, &stats);
    if (!stats.is_failed) {
        http_reply(req, 200, NULL, STR(""));
        return;
    }
    error_set(&err, ST_UNAVAILABLE, "the device was lost: this worker must be restarted");
    http_reply_error(req, ST_UNAVAILABLE, &err);
}

static void version_get(struct http_request *req, void *arg) {
    (void)arg;
    http_reply(req, 200, OPENAI_JSON, STR("{\"version\":\"" INCIPIT_VERSION "\"}"));
}

static void collect_request_events(const struct api *api) {
    struct request_feed_stats s = request_feed_stats(api->request_feed);
    struct metrics *m = api->metrics;

    metric_reach(metrics_at(m, WORKER_request_events_total), s.log.n_appended);
    metric_reach(metrics_at(m, WORKER_request_events_sent_bytes_total), s.sent_bytes);
    metric_reach(metrics_at(m, WORKER_request_events_gaps_total), s.n_gaps);
    metric_set(metrics_at(m, WORKER_request_events_kept_bytes), (double)s.log.bytes);
    metric_set(metrics_at(m, WORKER_request_events_subscribers), s.n_followers);
}

static void collect_responses(const struct api *api) {
    struct responses_store_stats s = {0};
    struct metrics *m = api->metrics;

    if (api->responses) s = responses_store_stats(api->responses);
    metric_set(metrics_at(m, WORKER_responses_stored), (double)s.n);
    metric_set(metrics_at(m, WORKER_responses_stored_bytes), (double)s.bytes);
    metric_reach(metrics_at(m, WORKER_responses_evicted_total), s.n_evicted);
}

static void collect_peers(const struct api *api) {
    struct peer_server_stats s;
    struct metrics *m = api->metrics;

    peer_server_stats(api->peers, &s);
    for (int r = 0; r < TIER_N_RESULTS; r++)
        metric_reach(
            METRICS_GET(m, WORKER_kv_peer_served_total, tier_result_name((enum tier_result)r)),
            s.wants[r]);
    metric_reach(metrics_at(m, WORKER_kv_peer_served_bytes_total), s.sent_bytes);
    metric_reach(metrics_at(m, WORKER_kv_peer_placed_bytes_total), s.placed_bytes);
    metric_reach(metrics_at(m, WORKER_kv_peer_refused_total), s.n_refused);
    metric_set(metrics_at(m, WORKER_kv_peer_connections), (double)s.n_clients);
}

static void metrics_get_page(struct http_request *req, void *arg) {
    const struct api *api = arg;
    struct buf page;

    buf_init(&page, 0);
    worker_metrics_collect(api->metrics, api->engine);
    worker_metrics_collect_text(api->metrics, api->text_thread);
    worker_metrics_collect_grammars(api->metrics, api->grammar_thread);
    collect_request_events(api);
    collect_responses(api);
    if (api->peers) collect_peers(api);
    metrics_write(api->metrics, &page);
    process_stats_write(&page);
    http_reply(req, 200, METRICS_CONTENT_TYPE, buf_str(&page));
    buf_fini(&page);
}

static void load_get(struct http_request *req, void *arg) {
    const struct api *api = arg;
    struct engine_stats stats;
    char body[64];
    int n;

    engine_stats(api->engine, &stats);
    n = snprintf(body, sizeof(body), "{\"server_load\":%u}", stats.running + stats.waiting);
    http_reply(req, 200, OPENAI_JSON, (struct str){body, (size_t)n});
}

bool api_serves(const struct api *api, struct str name) {
    if (str_eq(name, str_of(api->model_name))) return true;
    for (uint32_t i = 0; i < api->other_names.n; i++) {
        if (str_eq(name, str_of(api->other_names.items[i]))) return true;
    }
    return false;
}

static void put_model(struct json_writer *w, const struct api *api, const char *name) {
    json_begin_object(w);
    json_field_z(w, "id", name);
    json_field_z(w, "object", "model");
    json_field_u64(w, "created", api->created_s);
    json_field_z(w, "owned_by", "incipit");
    json_field_z(w, "root", api->model_root);
    json_field_null(w, "parent");
    json_field_u64(w, "max_model_len", engine_info(api->engine)->max_model_len);
    json_end_object(w);
}

/* /v1/models/NAME */
static void model_get(struct http_request *req, void *arg) {
    const struct api *api = arg;
    size_t skip = sizeof("/v1/models/") - 1;
    char asked[WIRE_MODEL_MAX];
    struct error err = {0};
    struct json_writer w;
    struct buf body;

    if (str_percent_decode((struct str){req->path.ptr + skip, req->path.len - skip}, asked,
                           sizeof(asked)) != ST_OK ||
        !api_serves(api, str_of(asked))) {
        error_set_param(&err, ST_NOT_FOUND, "model",
                        "the model '%.*s' does not exist: this worker serves '%s'",
                        (int)MIN(req->path.len - skip, 100), req->path.ptr + skip, api->model_name);
        http_reply_error(req, ST_NOT_FOUND, &err);
        return;
    }
    buf_init(&body, 0);
    json_writer_init(&w, &body);
    put_model(&w, api, asked);
    http_reply(req, 200, OPENAI_JSON, buf_str(&body));
    buf_fini(&body);
}

void models_get(struct http_request *req, void *arg) {
    const struct api *api = arg;
    struct json_writer w;
    struct buf body;

    buf_init(&body, 0);
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_field_z(&w, "object", "list");
    json_put_key(&w, "data");
    json_begin_array(&w);
    put_model(&w, api, api->model_name);
    for (uint32_t i = 0; i < api->other_names.n; i++)
        put_model(&w, api, api->other_names.items[i]);
    json_end_array(&w);
    json_end_object(&w);
    http_reply(req, 200, OPENAI_JSON, buf_str(&body));
    buf_fini(&body);
}

static void fill_kv_peer(const struct api *api, const struct engine_info *info,
                         struct wire_kv_peer *out) {
    snprintf(out->generation, sizeof(out->generation), "%016llx",
             (unsigned long long)peer_server_generation(api->peers));
    for (size_t i = 0; i < sizeof(info->kv_fingerprint); i++)
        snprintf(out->fingerprint + 2 * i, 3, "%02x", info->kv_fingerprint[i]);
    out->bytes_per_token = info->block_bytes / info->block_size;
    out->is_encrypted = api->is_peer_sealed;
}

static void server_info_get(struct http_request *req, void *arg) {
    const struct api *api = arg;
    const struct engine_info *info = engine_info(api->engine);
    struct engine_stats stats;
    struct wire_server_info wire = {
        .wire = WIRE_VERSION,
        .tensor_parallel_size = info->n_ranks,
        .block_size = info->block_size,
        .n_blocks = info->n_blocks,
        .max_model_len = info->max_model_len,
        .max_num_seqs = api->max_num_seqs,
        .trusts_router = api->trusts_router,
        .publishes_events = api->request_feed != NULL,
        .attn_context = info->device.attn_context,
        .kv_bytes_per_token = info->block_size ? info->block_bytes / info->block_size : 0,
        .chunk_tokens = info->chunk_tokens,
        .itl_target_ms = info->itl_target_s * 1e3,
    };
    struct buf body;

    engine_stats(api->engine, &stats);
    wire.prefill_tokens_per_s = stats.prefill_rate;
    if (info->n_cached_host_blocks) {
        wire.tiers[wire.n_tiers++] = (struct wire_tier){.name = "host",
                                                        .n_blocks = info->n_cached_host_blocks,
                                                        .restore_tokens_per_s = stats.restore_rate,
                                                        .is_inclusive = true};
    }
    snprintf(wire.model, sizeof(wire.model), "%s", api->model_name);
    for (uint32_t i = 0; i < api->other_names.n; i++)
        wire_names_add(wire.other_names, str_of(api->other_names.items[i]));
    snprintf(wire.backend, sizeof(wire.backend), "%s", info->backend);
    snprintf(wire.schedule_policy, sizeof(wire.schedule_policy), "%s",
             scheduler_policy_name(info->policy));
    snprintf(wire.tool_calls, sizeof(wire.tool_calls), "%s", call_format_name(api->call_format));
    snprintf(wire.reasoning, sizeof(wire.reasoning), "%s",
             reasoning_format_name(api->reasoning_format));
    snprintf(wire.path, sizeof(wire.path), "%s", info->device.path);
    snprintf(wire.dtype, sizeof(wire.dtype), "%s", dtype_long_name(info->weight_dtype));
    snprintf(wire.quantization, sizeof(wire.quantization), "%s", api->quantization);
    snprintf(wire.kv_dtype, sizeof(wire.kv_dtype), "%s", dtype_long_name(info->kv_dtype));
    snprintf(wire.device, sizeof(wire.device), "%s", info->device.device);
    snprintf(wire.uuid, sizeof(wire.uuid), "%s", info->device.uuid);
    snprintf(wire.response_mark, sizeof(wire.response_mark), "%s", api->response_mark);
    snprintf(wire.generation, sizeof(wire.generation), "%016llx",
             (unsigned long long)info->generation);
    if (api->peers) {
        fill_kv_peer(api, info, &wire.kv_peer);
        snprintf(wire.role, sizeof(wire.role), "%s", api->role);
    }
    buf_init(&body, 0);
    wire_append_server_info(&body, &wire);
    http_reply(req, 200, OPENAI_JSON, buf_str(&body));
    buf_fini(&body);
}

/* --- POST /reset_prefix_cache ----------------------------------------------------------------- */

struct reset {
    struct engine_reset engine;
    struct api *api;
    struct http_request *req; /* NULL when the client left */
    char client[HTTP_ADDRESS_MAX];
};

void api_log_change(const struct api *api, const char *call, struct str client, int code) {
    log_always(api->log, LOG_INFO, "admin_change", log_z("call", call), log_i64("code", code),
               log_str("client", client));
}

static void on_reset_abort(struct http_request *req) {
    struct reset *reset = req->user;

    reset->req = NULL;
}

static void on_reset_done(struct engine_reset *engine) {
    struct reset *reset = CONTAINER_OF(engine, struct reset, engine);
    struct error err = {0};

    api_log_change(reset->api, "reset_prefix_cache", str_of(reset->client),
                   engine->is_ok ? 200 : 429);
    if (engine->is_ok) request_feed_cleared(reset->api->request_feed);
    if (reset->req && engine->is_ok) {
        http_reply(reset->req, 200, OPENAI_JSON, STR("{\"success\":true}"));
    } else if (reset->req) {
        error_set(&err, ST_BUSY,
                  "the cache was not reset, because running requests use its blocks: retry, or add "
                  "?reset_running_requests=true");
        http_add_header(reset->req, STR("retry-after"), STR("1"));
        http_reply_error(reset->req, ST_BUSY, &err);
    }
    mem_free(reset);
}

static void reset_post(struct http_request *req, void *arg) {
    struct api *api = arg;
    struct reset *reset = mem_zalloc(sizeof(*reset));
    struct buf value;

    buf_init(&value, 64);
    reset->engine.reset_running =
        http_query_param(req->query, STR("reset_running_requests"), &value) &&
        str_eq_nocase(buf_str(&value), STR("true"));
    buf_fini(&value);
    reset->engine.on_done = on_reset_done;
    reset->api = api;
    reset->req = req;
    snprintf(reset->client, sizeof(reset->client), STR_FMT, STR_ARG(http_request_client(req)));
    req->user = reset;
    req->on_abort = on_reset_abort;
    engine_reset_prefix_cache(api->engine, &reset->engine);
}

/* --- GET /kv/blocks: a connection of another worker, for the peer server ---------------------- */

static const char switching[] = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n"
                                "upgrade: " PEER_PROTOCOL "\r\n\r\n";

static enum status check_upgrade(const struct api *api, const struct http_request *req,
                                 struct error *err) {
    struct str upgrade = http_request_header(req, STR("upgrade"));

    if (!api->peers)
        return error_set(err, ST_NOT_FOUND,
                         "this worker gives no KV blocks: start it with --kv-peers");
    if (!str_eq_nocase(upgrade, STR(PEER_PROTOCOL)))
        return error_set(err, ST_INVALID,
                         "the upgrade '%.*s' is not supported: send \"Upgrade: " PEER_PROTOCOL "\"",
                         (int)MIN(upgrade.len, 50), upgrade.ptr ? upgrade.ptr : "");
    return ST_OK;
}

static void kv_blocks_get(struct http_request *req, void *arg) {
    struct api *api = arg;
    struct error err = {0};
    enum status st = check_upgrade(api, req, &err);
    int fd;

    if (st == ST_OK) st = http_request_take_socket(req, str_of(switching), &fd, &err);
    if (st != ST_OK) {
        http_reply_error(req, st, &err);
    } else if (fd >= 0) {
        peer_server_take(api->peers, fd);
    }
}

static void request_events_get(struct http_request *req, void *arg) {
    struct api *api = arg;

    request_feed_follow(api->request_feed, req);
}

static const struct http_route routes[] = {
    {HTTP_POST, "/v1/completions", completions_post},
    {HTTP_POST, "/v1/chat/completions", chat_post},
    {HTTP_POST, API_MESSAGES_PATH, messages_post},
    {HTTP_POST, API_COUNT_TOKENS_PATH, count_tokens_post},
    {HTTP_POST, API_RESPONSES_PATH, responses_post},
    {HTTP_GET, API_RESPONSES_PATH "/*", response_get},
    {HTTP_DELETE, API_RESPONSES_PATH "/*", response_delete},
    {HTTP_POST, "/generate", generate_post},
    {HTTP_POST, "/tokenize", tokenize_post},
    {HTTP_POST, "/detokenize", detokenize_post},
    {HTTP_GET, "/v1/models", models_get},
    {HTTP_GET, "/v1/models/*", model_get},
    {HTTP_GET, "/health", health_get},
    {HTTP_GET, "/ping", health_get},
    {HTTP_GET, "/readyz", health_get},
    {HTTP_GET, "/livez", live_get},
    {HTTP_GET, "/version", version_get},
    {HTTP_GET, "/load", load_get},
    {HTTP_GET, "/metrics", metrics_get_page},
    {HTTP_GET, WIRE_INFO_PATH, server_info_get},
    {HTTP_POST, "/reset_prefix_cache", reset_post},
    {HTTP_POST, "/flush_cache", reset_post},
    {HTTP_POST, "/cache/explain", cache_explain_post},
    {HTTP_POST, "/cache/prewarm", cache_prewarm_post},
    {HTTP_POST, "/cache/hold", cache_hold_post},
    {HTTP_POST, "/cache/release", cache_release_post},
    {HTTP_GET, "/cache", cache_get},
    {HTTP_GET, REQUEST_EVENTS_PATH, request_events_get},
    {HTTP_POST, "/admin/drain", admin_drain_post},
    {HTTP_GET, "/kv_events", kv_events_get},
    {HTTP_GET, "/kv_events/digest", kv_events_digest_get},
    {HTTP_GET, PEER_PATH, kv_blocks_get},
    {HTTP_GET, "/health_generate", health_generate_get},
    {HTTP_GET, "/get_model_info", model_info_get},
    {HTTP_GET, "/model_info", model_info_get},
    {HTTP_GET, "/get_server_info", sglang_server_info_get},
    {HTTP_POST, "/abort_request", abort_request_post},
    {0, NULL, NULL},
};

struct str api_request_name(const struct http_request *req) {
    struct str name = http_request_header(req, STR("x-request-id"));

    if (!name.ptr || name.len == 0 || name.len > API_NAME_MAX) return STR_NULL;
    for (size_t i = 0; i < name.len; i++)
        if (name.ptr[i] <= ' ' || name.ptr[i] > '~') return STR_NULL;
    return name;
}

/* The path without --root-path, which a proxy may have left at its beginning. */
static struct str path_of(const struct api *api, struct str path) {
    size_t n = api->root_path.len;

    if (n == 0 || !str_starts(path, api->root_path)) return path;
    if (path.len > n && path.ptr[n] != '/') return path;
    return path.len == n ? STR("/") : (struct str){path.ptr + n, path.len - n};
}

/* Calls that change the worker for all of its clients. */
static bool is_change(struct str path) {
    static const char *const paths[] = {"/admin/drain",   "/reset_prefix_cache", "/flush_cache",
                                        "/abort_request", "/cache/prewarm",      "/cache/hold",
                                        "/cache/release"};

    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        if (str_eq(path, str_of(paths[i]))) return true;
    }
    return false;
}

/* A browser on this machine reaches a port of loopback, and sends no key. */
static enum status refuse_page(struct api *api, const struct http_request *req, struct error *err) {
    log_event(api->log, LOG_WARN, "web_page_refused", log_str("path", req->path),
              log_str("origin", http_request_header(req, STR("origin"))),
              log_str("client", http_request_client(req)));
    return error_set(err, ST_FORBIDDEN,
                     STR_FMT
                     " changes this worker and is not accepted from a web page of another origin "
                     "or of an unverified host name: send the request without the header Origin",
                     STR_ARG(req->path));
}

enum status api_admit(struct api *api, struct http_request *req, struct error *err) {
    struct str path = path_of(api, req->path);
    enum status st = access_check(api->access, req, path, err);

    if (st == ST_OK && req->method == HTTP_POST && is_change(path) &&
        http_is_from_another_page(req))
        return refuse_page(api, req, err);
    if (st == ST_OK) return ST_OK;
    metric_add(metrics_at(api->metrics, WORKER_requests_denied_total), 1);
    log_event(api->log, LOG_WARN, "request_denied", log_str("client", http_request_client(req)),
              log_str("path", req->path), log_z("why", err ? err->message : ""));
    http_add_header(req, STR("www-authenticate"), STR("Bearer"));
    return st;
}

void api_handle(struct api *api, struct http_request *req) {
    struct str name = api_request_name(req);

    if (name.len) http_add_header(req, STR("x-request-id"), name);
    req->path = path_of(api, req->path);
    http_route_request(routes, req, api);
}

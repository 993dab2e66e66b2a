/* router/admin/admin.c - access rules, one table of paths, and one writer for each. */
#include "router/admin/admin.h"

#include <stdio.h>
#include <string.h>

#include "common/http/http_server.h"
#include "common/net/loop.h"
#include "common/protocol/openai.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "common/text/json.h"
#include "router/access/keys.h"
#include "router/access/refusals.h"
#include "router/admin/admin_commands.h"
#include "router/admin/metrics_page.h"
#include "router/registry/registry_view.h"

struct place { /* the port of a request */
    const struct admin *admin;
    struct mailbox *home; /* NULL: the admin port */
};

static const struct admin *admin_of(void *arg) {
    return ((const struct place *)arg)->admin;
}

/* --- who changes what ------------------------------------------------------------------------- */

static struct str key_of(const struct http_request *req) {
    return keys_from_headers(http_request_header(req, STR("authorization")),
                             http_request_header(req, STR("x-api-key")));
}

/* The name of the admitted caller. */
static void admin_ask(const struct admin *admin, const struct http_request *req,
                      struct admin_asker *out) {
    keys_name(admin->keys, key_of(req), out->name);
    snprintf(out->address, sizeof(out->address), STR_FMT, STR_ARG(http_request_client(req)));
}

void admin_log_change(struct log *log, const struct admin_asker *asker, const char *call,
                      const char *worker, int code) {
    log_always(log, LOG_INFO, "admin_change", log_z("call", call), log_z("worker", worker),
               log_i64("code", code), log_z("key", asker->name), log_z("client", asker->address));
}

/* Replies with `body` and frees it. */
static void reply(struct http_request *req, const char *content_type, struct buf *body) {
    struct error err = {0};

    if (buf_status(body) == ST_OK) {
        http_reply(req, 200, content_type, buf_str(body));
    } else {
        error_set(&err, ST_NOMEM, "out of memory for the response: retry later");
        http_reply_error(req, ST_NOMEM, &err);
    }
    buf_fini(body);
}

static void get_live(struct http_request *req, void *arg) {
    (void)arg;
    http_reply(req, 200, "text/plain", STR(""));
}

static void get_ready(struct http_request *req, void *arg) {
    const struct admin *admin = admin_of(arg);
    struct registry_totals totals;
    struct error err = {0};

    if (admin->is_draining) {
        error_set(&err, ST_UNAVAILABLE,
                  "the router is draining and takes no new requests: use another router");
        http_reply_error(req, ST_UNAVAILABLE, &err);
        return;
    }
    if (admin->is_synced && !admin->is_synced(admin->sources)) {
        error_set(&err, ST_UNAVAILABLE, "worker discovery has not completed: see the log");
        http_reply_error(req, ST_UNAVAILABLE, &err);
        return;
    }
    registry_totals(admin->registry, &totals);
    if (totals.n_eligible > 0 || totals.may_wait) {
        http_reply(req, 200, "text/plain", STR(""));
        return;
    }
    error_set(&err, ST_UNAVAILABLE,
              "none of %u workers can take requests: see GET /workers for the reasons",
              totals.n_workers);
    http_reply_error(req, ST_UNAVAILABLE, &err);
}

static void get_version(struct http_request *req, void *arg) {
    (void)arg;
    http_reply(req, 200, OPENAI_JSON, STR("{\"version\":\"" INCIPIT_VERSION "\"}"));
}

/* Keeps another router from using this one as a worker. */
static void get_server_info(struct http_request *req, void *arg) {
    const struct admin *admin = admin_of(arg);
    struct json_writer w;
    struct buf body;

    buf_init(&body, 0);
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_field_z(&w, WIRE_ROUTER, admin->name ? admin->name : "");
    json_end_object(&w);
    reply(req, OPENAI_JSON, &body);
}

static void get_metrics(struct http_request *req, void *arg) {
    const struct admin *admin = admin_of(arg);
    struct buf page;

    buf_init(&page, 0);
    metrics_page_write(admin->metrics, admin->registry, admin->log, &page);
    reply(req, METRICS_CONTENT_TYPE, &page);
}

static void post_debug_route(struct http_request *req, void *arg) {
    dry_run_answer(&admin_of(arg)->dry_run, req);
}

static void put_model(struct json_writer *w, const struct admin *admin, const char *name,
                      uint32_t max_model_len) {
    json_begin_object(w);
    json_field_z(w, "id", name);
    json_field_z(w, "object", "model");
    json_field_u64(w, "created", admin->started_wall_s);
    json_field_z(w, "owned_by", "incipit");
    json_field_z(w, "root", name);
    json_field_null(w, "parent");
    json_field_u64(w, "max_model_len", max_model_len);
    json_end_object(w);
}

/* /v1/models/NAME */
static void get_model(struct http_request *req, void *arg) {
    const struct admin *admin = admin_of(arg);
    size_t skip = sizeof("/v1/models/") - 1;
    char name[WIRE_MODEL_MAX], asked[WIRE_MODEL_MAX] = "";
    uint32_t max_model_len;
    struct error err = {0};

    if (str_percent_decode((struct str){req->path.ptr + skip, req->path.len - skip}, asked,
                           sizeof(asked)) != ST_OK)
        asked[0] = '\0'; /* matches no model */
    for (uint32_t i = 0; registry_model(admin->registry, i, name, &max_model_len); i++) {
        struct json_writer w;
        struct buf body;

        if (strcmp(name, asked) != 0) continue;
        buf_init(&body, 0);
        json_writer_init(&w, &body);
        put_model(&w, admin, name, max_model_len);
        reply(req, OPENAI_JSON, &body);
        return;
    }
    error_set_param(&err, ST_NOT_FOUND, "model",
                    "the model '%.*s' does not exist here: GET /v1/models lists those that do",
                    (int)MIN(req->path.len - skip, 100), req->path.ptr + skip);
    http_reply_error(req, ST_NOT_FOUND, &err);
}

static void get_models(struct http_request *req, void *arg) {
    const struct admin *admin = admin_of(arg);
    char name[WIRE_MODEL_MAX];
    uint32_t max_model_len;
    struct json_writer w;
    struct buf body;

    buf_init(&body, 0);
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_field_z(&w, "object", "list");
    json_put_key(&w, "data");
    json_begin_array(&w);
    for (uint32_t i = 0; registry_model(admin->registry, i, name, &max_model_len); i++)
        put_model(&w, admin, name, max_model_len);
    json_end_array(&w);
    json_end_object(&w);
    reply(req, OPENAI_JSON, &body);
}

static void put_state(struct json_writer *w, const struct registry_view *view) {
    static const struct {
        enum worker_reason reason;
        const char *name;
    } names[] = {{WORKER_STARTING, "starting"},
                 {WORKER_DRAINING, "draining"},
                 {WORKER_UNHEALTHY, "unhealthy"},
                 {WORKER_EJECTED, "ejected"},
                 {WORKER_DISABLED, "disabled"}};

    json_put_key(w, "reasons");
    json_begin_array(w);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (view->reasons & names[i].reason) json_put_str(w, str_of(names[i].name));
    }
    json_end_array(w);
}

/* SGLang's call; describes the first model. */
static void get_model_info(struct http_request *req, void *arg) {
    const struct admin *admin = admin_of(arg);
    char name[WIRE_MODEL_MAX];
    uint32_t max_model_len;
    struct error err = {0};
    struct json_writer w;
    struct buf body;

    if (!registry_model(admin->registry, 0, name, &max_model_len)) {
        error_set(&err, ST_UNAVAILABLE, "no worker has reported its model yet: retry in a moment");
        http_reply_error(req, ST_UNAVAILABLE, &err);
        return;
    }
    buf_init(&body, 0);
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_field_z(&w, "model_path", name);
    json_field_z(&w, "served_model_name", name);
    json_field_bool(&w, "is_generation", true);
    json_field_u64(&w, "max_model_len", max_model_len);
    json_end_object(&w);
    reply(req, OPENAI_JSON, &body);
}

/* "zone=a rack=7" as an object. */
static void put_labels(struct json_writer *w, const char *labels) {
    json_put_key(w, "labels");
    json_begin_object(w);
    while (*labels) {
        size_t n_key = strcspn(labels, "="), n = strcspn(labels, " ");

        json_put_key_str(w, (struct str){labels, n_key});
        json_put_str(w, (struct str){labels + n_key + 1, n - n_key - 1});
        labels += n + (labels[n] == ' ');
    }
    json_end_object(w);
}

static void put_load(struct json_writer *w, const struct wire_load *load) {
    json_put_key(w, "reported");
    json_begin_object(w);
    json_field_u64(w, "running", load->running);
    json_field_u64(w, "waiting", load->waiting);
    json_field_u64(w, "queued_tokens", load->queued_tokens);
    json_field_u64(w, "kv_free", load->kv_free);
    json_field_u64(w, "kv_total", load->kv_total);
    json_field_bool(w, "draining", load->draining);
    json_end_object(w);
}

static void put_tiers(struct json_writer *w, const char *name, const uint64_t *values) {
    static const char *const tiers[REGISTRY_KV_TIERS] = {"device", "host", "disk", "remote"};

    json_put_key(w, name);
    json_begin_object(w);
    for (uint32_t i = 0; i < REGISTRY_KV_TIERS; i++)
        json_field_u64(w, tiers[i], values[i]);
    json_end_object(w);
}

static void put_kv(struct json_writer *w, const struct registry_kv *kv) {
    char digest[17];

    snprintf(digest, sizeof(digest), "%016llx", (unsigned long long)kv->digest);
    json_put_key(w, "kv_events");
    json_begin_object(w);
    json_field_bool(w, "is_followed", kv->is_followed);
    json_field_bool(w, "is_complete", kv->is_complete);
    put_tiers(w, "blocks", kv->n_blocks);
    put_tiers(w, "tokens", kv->n_tokens);
    json_field_f64(w, "capacity_tokens", kv->capacity_tokens);
    json_field_z(w, "digest", digest);
    json_field_u64(w, "events", kv->n_events);
    json_field_u64(w, "gaps", kv->n_gaps);
    json_field_u64(w, "restarts", kv->n_restarts);
    json_end_object(w);
}

/* smg's words for it. */
static const char *status_of(const struct registry_view *view) {
    if (view->reasons & WORKER_DRAINING) return "draining";
    if (!view->is_described) return "pending";
    return view->reasons ? "not_ready" : "ready";
}

static const char *type_of(const struct registry_view *view) {
    return view->part.role == WORKER_BOTH ? "regular" : worker_role_names[view->part.role];
}

void admin_put_worker(struct json_writer *w, const struct registry_view *view) {
    bool is_healthy = view->is_described && view->reasons == 0;
    char worker_id[32];

    snprintf(worker_id, sizeof(worker_id), "%u-%u", view->id, view->incarnation);
    json_begin_object(w);
    json_field_u64(w, "id", view->id);
    json_field_z(w, "worker_id", worker_id);
    json_field_z(w, "url", view->url);
    json_field_z(w, "model_id", view->info.model);
    json_field_z(w, "address", view->address);
    json_field_z(w, "worker_type", type_of(view));
    json_field_z(w, "status", status_of(view));
    json_field_bool(w, "is_healthy", is_healthy);
    put_state(w, view);
    json_field_u64(w, "load", view->in_flight);
    json_field_u64(w, "shared_load", view->n_remote);
    json_field_bool(w, "is_followed", view->is_followed);
    json_field_u64(w, "requests_total", view->n_sent);
    json_field_u64(w, "failures_total", view->n_failed);
    if (view->has_load) put_load(w, &view->load);
    if (view->kv.is_followed || view->kv.n_events) put_kv(w, &view->kv);
    json_field_u64(w, "max_in_flight", view->max_in_flight);
    put_labels(w, view->labels);
    json_field_z(w, "connection_mode", "http");
    json_field_bool(w, "is_third_party", view->is_third_party);
    json_field_bool(w, "is_foreign", view->is_third_party); /* the older name, for one version */
    json_field_z(w, "backend", view->info.backend);
    json_field_z(w, "path", view->info.path);
    json_field_u64(w, "block_size", view->info.block_size);
    json_field_u64(w, "n_blocks", view->info.n_blocks);
    wire_put_tiers(w, &view->info);
    json_field_u64(w, "max_model_len", view->info.max_model_len);
    json_field_f64(w, "prefill_tokens_per_s", view->info.prefill_tokens_per_s);
    json_field_f64(w, "learned_tokens_per_s", view->routing.tokens_per_s);
    json_field_z(w, "generation", view->info.generation);
    json_end_object(w);
}

static void get_workers(struct http_request *req, void *arg) {
    const struct admin *admin = admin_of(arg);
    struct registry_totals totals;
    struct registry_view view;
    struct json_writer w;
    struct buf body;

    registry_totals(admin->registry, &totals);
    buf_init(&body, 0);
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_put_key(&w, "workers");
    json_begin_array(&w);
    for (uint32_t id = 0; id < registry_n_ids(admin->registry); id++) {
        if (registry_get(admin->registry, id, &view)) admin_put_worker(&w, &view);
    }
    json_end_array(&w);
    json_field_u64(&w, "total", totals.n_workers);
    json_put_key(&w, "stats");
    json_begin_object(&w);
    json_field_u64(&w, "total_workers", totals.n_workers);
    json_field_u64(&w, "healthy_workers", totals.n_eligible);
    json_field_u64(&w, "total_load", totals.n_open + totals.n_remote);
    json_field_u64(&w, "index_bytes", totals.index_bytes);
    json_field_u64(&w, "index_entries", totals.n_entries);
    json_end_object(&w);
    json_end_object(&w);
    reply(req, OPENAI_JSON, &body);
}

static void get_list_workers(struct http_request *req, void *arg) {
    const struct admin *admin = admin_of(arg);
    struct registry_view view;
    struct json_writer w;
    struct buf body;

    buf_init(&body, 0);
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_put_key(&w, "urls");
    json_begin_array(&w);
    for (uint32_t id = 0; id < registry_n_ids(admin->registry); id++) {
        if (registry_get(admin->registry, id, &view)) json_put_str(&w, str_of(view.url));
    }
    json_end_array(&w);
    json_end_object(&w);
    reply(req, OPENAI_JSON, &body);
}

/* Load of each worker, as counted by the router and as reported by the worker. */
static void get_loads(struct http_request *req, void *arg) {
    const struct admin *admin = admin_of(arg);
    struct registry_view view;
    uint32_t n_workers = 0;
    struct json_writer w;
    struct buf body;

    buf_init(&body, 0);
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_put_key(&w, "workers");
    json_begin_array(&w);
    for (uint32_t id = 0; id < registry_n_ids(admin->registry); id++) {
        if (!registry_get(admin->registry, id, &view)) continue;
        n_workers++;
        json_begin_object(&w);
        json_field_z(&w, "worker", view.url);
        json_field_u64(&w, "load", view.in_flight);
        if (view.has_load) put_load(&w, &view.load);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_field_u64(&w, "total_workers", n_workers);
    json_end_object(&w);
    reply(req, OPENAI_JSON, &body);
}

/* As SIGTERM, over HTTP. */
static void post_drain(struct http_request *req, void *arg) {
    struct admin_asker asker;

    admin_ask(admin_of(arg), req, &asker);
    admin_log_change(admin_of(arg)->log, &asker, "POST /drain", "", 202);
    *admin_of(arg)->wants_drain = true;
    http_reply(req, 202, OPENAI_JSON, STR("{\"status\":\"draining\"}"));
}

static void to_commands(struct http_request *req, void *arg) {
    const struct place *place = arg;
    struct admin_asker asker;

    admin_ask(place->admin, req, &asker);
    admin_commands_take(place->admin->commands, req, &asker, place->home);
}

/* --- who may -----------------------------------------------------------------------------------*/

enum access {
    ACCESS_OPEN,   /* on the client port: as for any client */
    ACCESS_METRIC, /* open on the admin port */
    ACCESS_ADMIN,
};

static enum access access_of(struct str path) {
    static const char *const open[] = {
        "/health",          "/livez",   "/readyz",    "/liveness",       "/readiness",
        "/health_generate", "/version", "/v1/models", "/get_model_info", WIRE_INFO_PATH};
    static const char *const admin[] = {
        "/workers",     "/list_workers", "/get_loads", "/add_worker", "/remove_worker",
        "/flush_cache", "/drain",        "/ui",        "/config",     "/cache/holds"};

    for (size_t i = 0; i < ARRAY_LEN(open); i++)
        if (str_eq(path, str_of(open[i]))) return ACCESS_OPEN;
    for (size_t i = 0; i < ARRAY_LEN(admin); i++)
        if (str_eq(path, str_of(admin[i]))) return ACCESS_ADMIN;
    if (str_eq(path, STR("/metrics"))) return ACCESS_METRIC;
    return str_starts(path, STR("/workers/")) || str_starts(path, STR("/debug/")) ? ACCESS_ADMIN
                                                                                  : ACCESS_OPEN;
}

bool admin_guards(const struct admin *admin, struct str path) {
    return keys_are_needed(admin->keys) && access_of(path) != ACCESS_OPEN;
}

static void count_refusal(const struct admin *admin, const struct http_request *req,
                          enum refusal reason) {
    refusals_note(admin->refusals, reason, http_request_client(req),
                  loop_now_us(http_request_loop(req)));
}

enum status admin_check(const struct admin *admin, struct http_request *req,
                        const struct mailbox *home, struct error *err) {
    bool is_change = req->method != HTTP_GET && req->method != HTTP_HEAD;
    enum access access = access_of(req->path);

    if (access == ACCESS_OPEN || (access == ACCESS_METRIC && !home)) return ST_OK;
    if (req->method == HTTP_OPTIONS) return ST_OK;
    if (is_change && home && !admin->is_on_main) {
        count_refusal(admin, req, REFUSAL_ADMIN_PORT);
        return error_set(err, ST_FORBIDDEN,
                         "workers are changed on the admin port alone: send the request there, or "
                         "start the router with --admin-on-main");
    }
    if (keys_are_needed(admin->keys)) {
        struct str key = key_of(req);

        if (keys_check(admin->keys, key, NULL) == ST_OK) return ST_OK;
        count_refusal(admin, req, key.len ? REFUSAL_ADMIN_KEY_UNKNOWN : REFUSAL_ADMIN_KEY_MISSING);
        http_add_header(req, STR("www-authenticate"), STR("Bearer"));
        return error_set(err, ST_DENIED,
                         "an admin key is required: send it as Authorization: Bearer KEY");
    }
    if (home && !admin->is_on_main) {
        return error_set(err, ST_FORBIDDEN,
                         "%.*s is served on the admin port: send the request there, or start the "
                         "router with an admin key (INCIPIT_ADMIN_API_KEY) and send it",
                         (int)MIN(req->path.len, 100), req->path.ptr);
    }
    if (is_change && http_is_from_another_page(req)) {
        count_refusal(admin, req, REFUSAL_ADMIN_PAGE);
        return error_set(err, ST_FORBIDDEN,
                         "changes from a web page of another origin are rejected: set an admin "
                         "key, or use a client that is no browser");
    }
    return ST_OK;
}

/* --- the paths ---------------------------------------------------------------------------------*/

static const struct http_route routes[] = {
    {HTTP_GET, "/health", get_ready},
    {HTTP_GET, "/readyz", get_ready},
    {HTTP_GET, "/readiness", get_ready},
    {HTTP_GET, "/health_generate", get_ready},
    {HTTP_GET, "/livez", get_live},
    {HTTP_GET, "/liveness", get_live},
    {HTTP_GET, "/version", get_version},
    {HTTP_GET, WIRE_INFO_PATH, get_server_info},
    {HTTP_GET, "/metrics", get_metrics},
    {HTTP_POST, "/debug/route", post_debug_route},
    {HTTP_GET, "/v1/models", get_models},
    {HTTP_GET, "/v1/models/*", get_model},
    {HTTP_GET, "/get_model_info", get_model_info},
    {HTTP_GET, "/workers", get_workers},
    {HTTP_POST, "/workers", to_commands},
    {HTTP_GET, "/workers/*", to_commands},
    {HTTP_PUT, "/workers/*", to_commands},
    {HTTP_PATCH, "/workers/*", to_commands},
    {HTTP_DELETE, "/workers/*", to_commands},
    {HTTP_GET, "/list_workers", get_list_workers},
    {HTTP_GET, "/get_loads", get_loads},
    {HTTP_POST, "/add_worker", to_commands},
    {HTTP_POST, "/remove_worker", to_commands},
    {HTTP_POST, "/flush_cache", to_commands},
    {HTTP_GET, "/cache/holds", to_commands},
    {HTTP_GET, "/config", to_commands},
    {HTTP_PUT, "/config", to_commands},
    {HTTP_POST, "/drain", post_drain},
    {0, NULL, NULL},
};

void admin_handle(const struct admin *admin, struct http_request *req, struct mailbox *home) {
    struct place place = {admin, home};
    struct error err = {0};
    enum status st = admin_check(admin, req, home, &err);

    if (st == ST_OK) {
        if (req->method != HTTP_OPTIONS && !http_route_serves(routes, req))
            count_refusal(admin, req, REFUSAL_PATH);
        http_route_request(routes, req, &place);
    } else {
        http_reply_error(req, st, &err);
    }
}

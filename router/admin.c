/* router/admin.c - one table of paths, one small writer for each. */
#include "router/admin.h"

#include "common/http_server.h"
#include "common/json.h"
#include "common/metrics.h"
#include "common/openai.h"
#include "router/registry.h"
#include "router/router_metrics.h"

/* Answers with what was written to `body`, and frees it. */
static void reply(struct http_request *req, const char *content_type, struct buf *body) {
    struct error err = {0};

    if (buf_status(body) == ST_OK) {
        http_reply(req, 200, content_type, buf_str(body));
    } else {
        error_set(&err, ST_NOMEM, "out of memory for the answer");
        http_reply_error(req, ST_NOMEM, &err);
    }
    buf_fini(body);
}

static void get_live(struct http_request *req, void *arg) {
    (void)arg;
    http_reply(req, 200, "text/plain", STR(""));
}

static void get_ready(struct http_request *req, void *arg) {
    const struct admin *admin = arg;
    struct registry_totals totals;
    struct error err = {0};

    if (admin->is_draining) {
        error_set(&err, ST_UNAVAILABLE, "the router is draining: it finishes what is open");
        http_reply_error(req, ST_UNAVAILABLE, &err);
        return;
    }
    registry_totals(admin->registry, &totals);
    if (totals.n_eligible > 0) {
        http_reply(req, 200, "text/plain", STR(""));
        return;
    }
    error_set(&err, ST_UNAVAILABLE,
              "none of %u workers can take requests now: GET /workers says why", totals.n_workers);
    http_reply_error(req, ST_UNAVAILABLE, &err);
}

static void get_version(struct http_request *req, void *arg) {
    (void)arg;
    http_reply(req, 200, OPENAI_JSON, STR("{\"version\":\"" INCIPIT_VERSION "\"}"));
}

static void get_metrics(struct http_request *req, void *arg) {
    const struct admin *admin = arg;
    struct buf page;

    buf_init(&page, 0);
    router_metrics_collect(admin->metrics, admin->registry);
    metrics_write(admin->metrics, &page);
    reply(req, METRICS_CONTENT_TYPE, &page);
}

static void get_models(struct http_request *req, void *arg) {
    const struct admin *admin = arg;
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
    for (uint32_t i = 0; registry_model(admin->registry, i, name, &max_model_len); i++) {
        json_begin_object(&w);
        json_field_z(&w, "id", name);
        json_field_z(&w, "object", "model");
        json_field_u64(&w, "created", admin->started_wall_s);
        json_field_z(&w, "owned_by", "incipit");
        json_field_z(&w, "root", name);
        json_field_null(&w, "parent");
        json_field_u64(&w, "max_model_len", max_model_len);
        json_end_object(&w);
    }
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

static void put_worker(struct json_writer *w, const struct registry_view *view) {
    bool is_healthy = view->is_described && view->reasons == 0;

    json_begin_object(w);
    json_field_u64(w, "id", view->id);
    json_field_z(w, "url", view->url);
    json_field_z(w, "model_id", view->info.model);
    json_field_bool(w, "is_healthy", is_healthy);
    put_state(w, view);
    json_field_u64(w, "load", view->in_flight);
    json_field_u64(w, "requests_total", view->n_sent);
    json_field_u64(w, "failures_total", view->n_failed);
    json_field_z(w, "connection_mode", "http");
    json_field_bool(w, "is_foreign", view->is_foreign);
    json_field_z(w, "backend", view->info.backend);
    json_field_z(w, "path", view->info.path);
    json_field_u64(w, "block_size", view->info.block_size);
    json_field_u64(w, "n_blocks", view->info.n_blocks);
    json_field_u64(w, "max_model_len", view->info.max_model_len);
    json_field_f64(w, "prefill_tokens_per_s", view->info.prefill_tokens_per_s);
    json_field_z(w, "generation", view->info.generation);
    json_end_object(w);
}

static void get_workers(struct http_request *req, void *arg) {
    const struct admin *admin = arg;
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
        if (registry_get(admin->registry, id, &view)) put_worker(&w, &view);
    }
    json_end_array(&w);
    json_field_u64(&w, "total", totals.n_workers);
    json_put_key(&w, "stats");
    json_begin_object(&w);
    json_field_u64(&w, "total_workers", totals.n_workers);
    json_field_u64(&w, "healthy_workers", totals.n_eligible);
    json_field_u64(&w, "total_load", totals.n_open);
    json_field_u64(&w, "index_bytes", totals.index_bytes);
    json_field_u64(&w, "index_entries", totals.n_entries);
    json_end_object(&w);
    json_end_object(&w);
    reply(req, OPENAI_JSON, &body);
}

static void get_list_workers(struct http_request *req, void *arg) {
    const struct admin *admin = arg;
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

static const struct http_route routes[] = {
    {HTTP_GET, "/health", get_ready},
    {HTTP_GET, "/readyz", get_ready},
    {HTTP_GET, "/readiness", get_ready},
    {HTTP_GET, "/livez", get_live},
    {HTTP_GET, "/liveness", get_live},
    {HTTP_GET, "/version", get_version},
    {HTTP_GET, "/metrics", get_metrics},
    {HTTP_GET, "/v1/models", get_models},
    {HTTP_GET, "/workers", get_workers},
    {HTTP_GET, "/list_workers", get_list_workers},
    {0, NULL, NULL},
};

void admin_handle(const struct admin *admin, struct http_request *req) {
    http_route_request(routes, req, (void *)(uintptr_t)admin);
}

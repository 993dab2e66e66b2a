/* router/proxy/proxy_permit.c - what a request may use, with any key.
 *
 *      head    this router's own name in Via          508   it has come back to this router
 *              a path on no list                      404   forward.h
 *              x-incipit-route                        403   unless the operator explains to clients
 *      body    cache_explain                          403   unless the operator explains to clients
 *              a field by which workers are steered   403   forward.h
 *      target  a path not on its kind's list          404
 *              a call whose engine reads no salt      403   while tenants are isolated; or a stored
 *                                                           response, where a worker reads none
 *
 * Explanations reveal the load of workers, and what other tenants sent if they share caches: they
 * need an admin key in x-incipit-admin-key, or --explain-to-clients. Refusals are counted and
 * logged. */
#include "common/protocol/wire.h"
#include "common/telemetry/log.h"
#include "router/metrics/router_metrics.h"
#include "router/proxy/forward.h"
#include "router/proxy/proxy_internal.h"

static const struct forward lists_alone = {{NULL, 0}, {NULL, 0}};

static const struct forward *lists_of(const struct exchange *x) {
    const struct forward *f = x->proxy->config.forward;

    return f ? f : &lists_alone;
}

/* Counts and logs a refusal whose sentence is in *err. */
static enum status forbid(struct exchange *x, const char *why, enum status st) {
    proxy_count_refusal(x, st == ST_NOT_FOUND ? REFUSAL_PATH : REFUSAL_FORBIDDEN);
    metric_inc(METRICS_GET(x->proxy->metrics, ROUTER_requests_forbidden_total, why));
    log_event(x->proxy->log, LOG_WARN, "request_forbidden", log_z("id", x->request_id),
              log_z("why", why), log_str("path", x->req->path));
    return st;
}

static bool has_passed_here(const struct exchange *x) {
    const struct http_head *head = http_request_head(x->req);
    const char *name = x->proxy->config.name;

    if (!name || !(head->names & HTTP_NAME_BIT(HTTP_NAME_VIA))) return false;
    for (uint16_t i = 0; i < head->n_headers; i++) {
        if (head->headers[i].id != HTTP_NAME_VIA) continue;
        if (str_find(http_request_header_at(x->req, i).value, str_of(name)) >= 0) return true;
    }
    return false;
}

static bool may_explain(const struct exchange *x) {
    const struct proxy_config *config = &x->proxy->config;

    if (config->explains_to_clients) return true;
    return keys_are_needed(config->admin_keys) &&
           keys_check(config->admin_keys, http_request_header(x->req, STR(WIRE_ADMIN_KEY)), NULL) ==
               ST_OK;
}

static enum status refuse_explanation(struct exchange *x, const char *what, struct error *err) {
    error_set_param(err, ST_FORBIDDEN, what,
                    "%s is for operators: leave it out, send an admin key in " WIRE_ADMIN_KEY
                    ", or start the router with --explain-to-clients",
                    what);
    return forbid(x, "explanation", ST_FORBIDDEN);
}

enum status proxy_permit_call(struct exchange *x, struct error *err) {
    struct str route = http_request_header(x->req, STR(WIRE_ROUTE));
    struct forward_call call = {.kinds = WORKER_KIND_BIT(WORKER_OURS), .work = WORK_TOKENS};

    if (!x->is_lookup) call = forward_find(lists_of(x), x->req->path);
    x->wants_explanation = route.ptr && !str_eq(route, STR("0"));
    x->api = api_of(x->req->path);
    x->kinds = call.kinds;
    x->kinds_unsalted = x->proxy->config.isolation ? call.kinds_unsalted : 0;
    x->is_generation = call.work == WORK_PROMPT;
    x->is_light = call.work == WORK_TOKENS;
    x->is_safe = call.is_listed;
    if (has_passed_here(x)) {
        error_set(
            err, ST_LOOP,
            "this request has come back to the router that forwarded it: remove the router, or "
            "a proxy in front of it, from the addresses or selectors of its workers");
        return forbid(x, "loop", ST_LOOP);
    }
    if (!x->kinds) return forbid(x, "path", forward_refuse_path(x->req->path, err));
    if (x->wants_explanation && !may_explain(x)) return refuse_explanation(x, WIRE_ROUTE, err);
    return ST_OK;
}

static bool wants_explain(struct str value) {
    return value.ptr && !str_eq(value, STR("false")) && !str_eq(value, STR("null"));
}

enum status proxy_permit_body(struct exchange *x, struct error *err) {
    enum status st = forward_check_fields(lists_of(x), &x->scan, err);

    if (st != ST_OK) return forbid(x, "field", st);
    if (wants_explain(x->scan.spans[BODY_CACHE_EXPLAIN]) && !may_explain(x)) {
        return refuse_explanation(x, "cache_explain", err);
    }
    return ST_OK;
}

enum status proxy_permit_target(struct exchange *x, struct error *err) {
    uint32_t kind = WORKER_KIND_BIT(x->try.target.kind);

    if (!(x->kinds & kind)) {
        return forbid(x, "path", forward_refuse_kind(x->req->path, x->try.target.kind, err));
    }
    if (x->is_salted && (x->kinds_unsalted & kind)) {
        return forbid(x, "path", forward_refuse_unsalted(x->req->path, err));
    }
    if (x->is_salted && x->is_lookup && !x->try.target.trusts_router)
        return forbid(x, "path", forward_refuse_unsalted_stored(err));
    return ST_OK;
}

/* worker/api/drain.c - refuses new requests while accepted ones finish, and POST /admin/drain.
 *
 *      SIGTERM, POST /admin/drain ──▶ /health 503, request events and x-incipit-load: draining
 *                                     new requests: 503, x-incipit-reason: draining, Retry-After: 0
 *      what was accepted ends     ──▶ streams of events end, the port closes, exit code 0
 *
 * A router sends a request that is refused this way to another worker, at once and without a
 * penalty for this one. The port stays open to the end, so no connection is refused by the system.
 *
 * /admin/drain ends the process, so only connections from loopback may call it: the same machine,
 * or the same pod (a preStop hook). Thread: worker loop. */
#include <stdio.h>

#include "common/http/http_server.h"
#include "common/protocol/openai.h"
#include "common/protocol/wire.h"
#include "worker/api/api.h"
#include "worker/api/handlers.h"

void api_drain(struct api *api) {
    api->is_draining = true;
    api->awaits_tokenized = api->n_tokenizing > 0; /* the last of them comes here again */
    if (!api->awaits_tokenized) engine_drain(api->engine);
}

void api_load(struct api *api, struct wire_load *out) {
    struct engine_stats stats;

    engine_stats(api->engine, &stats);
    *out = (struct wire_load){.running = stats.running,
                              .waiting = stats.waiting,
                              .queued_tokens = stats.queued_tokens,
                              .kv_free = stats.kv_free,
                              .kv_total = stats.kv_total,
                              .draining = api->is_draining};
}

void api_add_retry(const struct api *api, struct http_request *req, enum status st) {
    int code = status_http_code(st);

    if (code == 503 && api->is_draining) {
        http_add_header(req, STR(WIRE_REASON), STR(WIRE_DRAINING));
        http_add_header(req, STR("retry-after"), STR("0"));
    } else if (code == 429 || code == 503) {
        http_add_header(req, STR("retry-after"), STR("1"));
    }
}

bool api_refuses_new(const struct api *api, struct http_request *req) {
    struct error err = {0};

    if (!api->is_draining) return false;
    error_set(
        &err, ST_UNAVAILABLE,
        "this worker is draining and accepts no new requests: send the request to another worker");
    api_add_retry(api, req, ST_UNAVAILABLE);
    http_reply_error(req, ST_UNAVAILABLE, &err);
    return true;
}

/* 127.0.0.0/8, ::1, and the former as the latter's kind of socket shows it. */
bool api_is_loopback(struct str address) {
    if (str_starts(address, STR("::ffff:"))) {
        address.ptr += 7;
        address.len -= 7;
    }
    return str_starts(address, STR("127.")) || str_eq(address, STR("::1"));
}

/* Asking again changes nothing; a signal then ends what is open. */
void admin_drain_post(struct http_request *req, void *arg) {
    struct api *api = arg;
    struct str client = http_request_client(req);
    struct error err = {0};
    struct wire_load load;
    char body[96];
    int n;

    if (!api_is_loopback(client)) {
        error_set(&err, ST_FORBIDDEN,
                  "/admin/drain is accepted from loopback only, not from " STR_FMT
                  ": send SIGTERM to the worker, or call it on its own machine",
                  STR_ARG(client));
        api_log_change(api, "drain", client, 403);
        http_reply_error(req, ST_FORBIDDEN, &err);
        return;
    }
    api_log_change(api, "drain", client, 202);
    if (!api->is_draining) api->on_drain_asked(api->on_drain_asked_arg);
    api_load(api, &load);
    n = snprintf(body, sizeof(body), "{\"draining\":true,\"running\":%u,\"waiting\":%u}",
                 load.running, load.waiting);
    http_reply(req, 202, OPENAI_JSON, (struct str){body, (size_t)n});
}

/* router/proxy/proxy_poison.c - an exchange whose request may be what its workers die of: see poison.h.
 *
 * It is known by its tenant; where nobody says whose a request is, by its client's address. Behind a
 * gateway that names no tenants all of its clients are one, and share a refusal of the same body. */
#include "router/proxy/proxy_internal.h"

#include "common/http/http_server.h"
#include "common/protocol/openai.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "router/metrics/router_metrics.h"
#include "router/proxy/poison.h"

static struct str client_of(const struct exchange *x) {
    return x->tenant.len ? x->tenant : http_request_client(x->req);
}

bool proxy_is_poison(struct exchange *x) {
    struct poison *poison = x->proxy->config.poison;
    enum poison_verdict verdict;

    if (poison_is_empty(poison)) return false;
    verdict = poison_judge(poison, client_of(x), x->req->body, x->start_us);
    if (verdict == POISON_SEEN_ELSEWHERE) x->max_lost = 1;
    return verdict == POISON_SUSPECT;
}

/* Clients of OpenAI's kind are asked not to try again. */
static void answer(struct exchange *x, const char *stage) {
    struct str body =
        STR("{\"error\":{\"message\":\"Workers were lost while they worked on this request: it is "
            "not tried again, and refused for a while (--poison-memory). Change it, or look at "
            "the workers' logs.\",\"type\":\"ServiceUnavailableError\",\"param\":null,\"code\":"
            "\"poison_suspected\"}}");
    struct http_request *req = x->req;

    log_event(x->proxy->log, LOG_ERROR, "poison_suspected", log_z("id", x->request_id),
              log_u64("body_bytes", req->body.len), log_u64("lost", x->n_lost));
    metric_inc(METRICS_GET(x->proxy->metrics, ROUTER_poison_suspected_total, stage));
    proxy_drop_upstream(x);
    proxy_account(x, true, OUTCOME_UNKNOWN);
    http_add_header(req, STR("x-request-id"), proxy_request_id(x));
    http_add_header(req, STR("x-should-retry"), STR("false"));
    proxy_close(x, 503);
    http_reply(req, 503, OPENAI_JSON, body);
}

void proxy_refuse_poison(struct exchange *x) {
    proxy_count_refusal(x, REFUSAL_POISON);
    answer(x, "refused");
}

void proxy_fail_poison(struct exchange *x) {
    poison_add(x->proxy->config.poison, client_of(x), x->req->body, loop_now_us(x->proxy->loop));
    answer(x, "found");
}

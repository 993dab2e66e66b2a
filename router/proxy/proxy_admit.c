/* router/proxy/proxy_admit.c - key, tenant, limits and poison of a request, between scan and hash.
 *
 * A prompt is charged by its bytes at arrival; the charge is corrected when its worker has counted
 * the tokens, or when it was sent to no worker. */
#include <stdio.h>

#include "common/http/http_server.h"
#include "common/protocol/openai.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "router/metrics/router_metrics.h"
#include "router/poison/poison.h"
#include "router/prompt/prompt_text.h"
#include "router/proxy/proxy_internal.h"

#define GUESSED_BYTES_PER_TOKEN 4.0

struct str proxy_key_of(const struct http_request *req) {
    return keys_from_headers(http_request_header(req, STR("authorization")),
                             http_request_header(req, STR("x-api-key")));
}

void proxy_count_refusal(struct exchange *x, enum refusal reason) {
    x->is_refused = true;
    refusals_note(x->proxy->config.refusals, reason, http_request_client(x->req),
                  loop_now_us(x->proxy->loop));
}

/* For failures that were not counted where they were found. */
void proxy_count_failure(struct exchange *x, enum status st) {
    static const enum refusal reasons[ST_COUNT] = {
        [ST_DENIED] = REFUSAL_KEY_UNKNOWN, [ST_NOT_FOUND] = REFUSAL_MODEL,
        [ST_INVALID] = REFUSAL_BODY,       [ST_TOO_LARGE] = REFUSAL_BODY,
        [ST_UNSUPPORTED] = REFUSAL_BODY,   [ST_UNAVAILABLE] = REFUSAL_NO_WORKER};

    if (x->is_refused) return;
    proxy_count_refusal(x, reasons[st] ? reasons[st] : REFUSAL_MEMORY);
}

static enum status enter_by_key(struct exchange *x, struct error *err) {
    struct proxy *p = x->proxy;
    double tokens = (double)prompt_text_max(&x->scan, x->api) / GUESSED_BYTES_PER_TOKEN;
    enum status st = keys_enter(p->config.keys, proxy_key_of(x->req), tokens, loop_now_us(p->loop),
                                &x->key, &x->retry_after_us, err);

    if (st == ST_BUSY) proxy_count_refusal(x, REFUSAL_KEY_LIMIT);
    if (st == ST_OK) x->tenant = key_tenant(x->key.key);
    return st;
}

static uint32_t count_headers(const struct http_request *req, struct str name) {
    uint32_t n = 0;

    for (uint16_t i = 0; i < req->n_headers; i++)
        n += str_eq_nocase(http_request_header_at(req, i).name, name);
    return n;
}

/* Two headers: the gateway added its own and kept the client's, so neither can be trusted. */
static enum status tenant_from_header(struct exchange *x, struct error *err) {
    struct str header = str_of(x->proxy->config.tenant_header);

    if (count_headers(x->req, header) > 1) {
        return error_set(err, ST_INVALID, "header %s appears more than once: send it once",
                         x->proxy->config.tenant_header);
    }
    x->tenant = http_request_header(x->req, header);
    if (x->tenant.len <= KEY_TENANT_MAX) return ST_OK;
    return error_set(err, ST_INVALID, "header %s has %zu bytes: use at most %d for a tenant's name",
                     x->proxy->config.tenant_header, x->tenant.len, KEY_TENANT_MAX);
}

static void isolate(struct exchange *x) {
    bool is_generate = str_eq(x->req->path, STR("/generate"));
    struct str given = x->scan.spans[is_generate ? BODY_EXTRA_KEY : BODY_CACHE_SALT];

    isolation_salt(x->proxy->config.isolation, x->tenant, given, x->salt);
    if (!x->is_lookup) isolation_splice(&x->splice, x->req->body, &x->scan, is_generate, x->salt);
    x->is_salted = true;
}

enum status proxy_admit(struct exchange *x, struct error *err) {
    const struct proxy_config *config = &x->proxy->config;
    enum status st = ST_OK;

    if (keys_are_needed(config->keys)) {
        st = enter_by_key(x, err);
    } else if (config->tenant_header) {
        st = tenant_from_header(x, err);
        if (st != ST_OK) proxy_count_refusal(x, REFUSAL_TENANT);
    }
    if (st == ST_OK && config->isolation && (x->is_generation || x->is_lookup)) isolate(x);
    return st;
}

/* --- requests that killed workers: see poison.h ----------------------------------------------- */

/* Its tenant; without one its client's address. Behind a gateway that names no tenants, all clients
 * share one address, and the refusal of a body. */
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

void proxy_fail_poison(struct exchange *x, bool is_found) {
    struct str body = STR("{\"error\":{\"message\":\"" POISON_MESSAGE
                          "\",\"type\":\"ServiceUnavailableError\",\"param\":null,\"code\":"
                          "\"poison_suspected\"}}");
    struct error err = {0};
    struct http_request *req = x->req;

    if (is_found) {
        poison_add(x->proxy->config.poison, client_of(x), req->body, loop_now_us(x->proxy->loop));
    } else {
        proxy_count_refusal(x, REFUSAL_POISON);
    }
    log_event(x->proxy->log, LOG_ERROR, "poison_suspected", log_z("id", x->request_id),
              log_u64("body_bytes", req->body.len), log_u64("lost", x->n_lost));
    metric_inc(METRICS_GET(x->proxy->metrics, ROUTER_poison_suspected_total,
                           is_found ? "found" : "refused"));
    proxy_drop_upstream(x);
    proxy_account(x, true, OUTCOME_UNKNOWN);
    if (x->has_early_head) {
        proxy_fail_stream_json(x, 503, body);
        return;
    }
    http_add_header(req, STR("x-request-id"), proxy_request_id(x));
    http_add_header(req, STR("x-should-retry"), STR("false")); /* for OpenAI's clients */
    proxy_close(x, 503);
    if (x->api == API_MESSAGES) {
        error_set(&err, ST_UNAVAILABLE, POISON_MESSAGE);
        http_reply_error(req, ST_UNAVAILABLE, &err);
    } else {
        http_reply(req, 503, OPENAI_JSON, body);
    }
}

/* --- the end ---------------------------------------------------------------------------------- */

void proxy_release_key(struct exchange *x) {
    double tokens = x->n_attempts > 0 ? (double)x->try.feedback.prompt_tokens : 0;

    if (x->key.key) keys_leave(x->proxy->config.keys, &x->key, tokens);
}

void proxy_add_retry_after(struct exchange *x) {
    uint64_t after_us = x->retry_after_us ? x->retry_after_us : 1000000;
    char text[24];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)CEIL_DIV(after_us, 1000000));
    http_add_header(x->req, STR("retry-after"), str_of(text));
    snprintf(text, sizeof(text), "%llu", (unsigned long long)CEIL_DIV(after_us, 1000));
    http_add_header(x->req, STR("retry-after-ms"), str_of(text));
}

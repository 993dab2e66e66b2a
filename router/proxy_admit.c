/* router/proxy_admit.c - who asks, and whether there is room.
 *
 *      body scanned ──▶ proxy_enter ──▶ hash chain ──▶ route ...            ──▶ proxy_leave
 *                        401 unknown                                          once, at the end
 *                        429 a limit of the key
 *
 * A prompt's tokens are charged by its bytes when it comes, and put right when its worker has
 * counted them. */
#include "router/proxy_internal.h"

#include <stdio.h>

#include "router/router_metrics.h"

#define GUESSED_BYTES_PER_TOKEN 4.0

struct str proxy_key_of(const struct http_request *req) {
    return keys_from_headers(http_request_header(req, STR("authorization")),
                             http_request_header(req, STR("x-api-key")));
}

enum status proxy_enter(struct exchange *x, struct error *err) {
    struct proxy *p = x->proxy;
    double tokens = (double)body_scan_prompt(&x->scan).len / GUESSED_BYTES_PER_TOKEN;
    enum status st;

    if (!keys_are_needed(p->config.keys)) return ST_OK;
    st = keys_enter(p->config.keys, proxy_key_of(x->req), tokens, loop_now_us(p->loop), &x->key,
                    &x->retry_after_us, err);
    if (st == ST_BUSY) metric_inc(METRICS_GET(p->metrics, ROUTER_requests_refused_total, "key"));
    return st;
}

void proxy_leave(struct exchange *x) {
    if (!x->key.key) return;
    keys_leave(x->proxy->config.keys, &x->key, (double)x->feedback.prompt_tokens);
}

void proxy_add_retry_after(struct exchange *x) {
    uint64_t after_us = x->retry_after_us ? x->retry_after_us : 1000000;
    char text[24];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)CEIL_DIV(after_us, 1000000));
    http_add_header(x->req, STR("retry-after"), str_of(text));
    snprintf(text, sizeof(text), "%llu", (unsigned long long)CEIL_DIV(after_us, 1000));
    http_add_header(x->req, STR("retry-after-ms"), str_of(text));
}

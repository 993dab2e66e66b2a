/* tests/support/proxy_fixture.h - a proxy between clients and scripted workers, all on one loop. */
#ifndef TESTS_SUPPORT_PROXY_FIXTURE_H
#define TESTS_SUPPORT_PROXY_FIXTURE_H

#include <stdio.h>

#include "common/base/clock.h"
#include "common/net/loop.h"
#include "router/metrics/router_metrics.h"
#include "router/proxy/proxy.h"
#include "router/registry/registry.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"
#include "tests/support/fake_worker.h"
#include "tests/support/registry_fixture.h"
#include "tests/support/routing_defaults.h"
#include "tests/support/support.h"

#define JSON_OK                                                                                    \
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-incipit-prompt-tokens: 9\r\n"          \
    "x-incipit-cached-tokens: 4\r\ncontent-length: 11\r\n\r\n{\"ok\":true}"
#define SSE_HEAD                                                                                   \
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
#define CHUNKED_HEAD                                                                               \
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
#define BUSY(code) "HTTP/1.1 " code " Busy\r\nretry-after: 7\r\ncontent-length: 8\r\n\r\nnot now!"
#define BODY       "{\"prompt\":\"Gallia est omnis divisa in partes tres\"}"
#define ASK        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 51\r\n\r\n" BODY
#define ASK_1_0    "POST /v1/completions HTTP/1.0\r\nContent-Length: 51\r\n\r\n" BODY

_Static_assert(sizeof(BODY) - 1 == 51, "the Content-Length of ASK");

struct fixture {
    struct loop *loop;
    struct fake_script fake;
    struct registry *registry;
    struct metrics *metrics;
    struct proxy *proxy;
    struct http_server *server;
    uint16_t port;
};

static inline void on_request(struct http_request *req, void *arg) {
    proxy_start(((struct fixture *)arg)->proxy, req);
}

static inline void add_worker(struct fixture *fx, uint32_t i, bool is_third_party) {
    struct wire_server_info info = {
        .wire = 1, .model = "m", .block_size = 16, .n_blocks = 1000, .prefill_tokens_per_s = 1e4};
    char url[64];
    uint32_t id;

    snprintf(url, sizeof(url), "http://127.0.0.1:%u", fx->fake.workers[i].port);
    assert_int_equal(registry_add(fx->registry, url, &id, NULL), ST_OK);
    assert_int_equal(id, i);
    snprintf(info.generation, sizeof(info.generation), "g%u", i);
    assert_int_equal(registry_describe(fx->registry, id, &info, is_third_party, NULL), ST_OK);
    registry_set_reason(fx->registry, id, WORKER_STARTING, false);
}

static inline void start_with(struct fixture *fx, uint32_t n_workers, struct proxy_config config,
                              bool is_third_party) {
    static const struct http_server_events events = {.on_request = on_request};
    struct registry_config rc = {0};

    memset(fx, 0, sizeof(*fx));
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    fake_start(&fx->fake, fx->loop, n_workers);
    routing_options_default(&rc.routing);
    rc.routing.policy = policy_find(STR("round_robin"));
    rc.routing.max_index_bytes = 1 << 20;
    rc.routing.max_workers = 8;
    rc.hold.queue_size = 4;
    assert_int_equal(registry_create(&fx->registry, &rc, NULL), ST_OK);
    for (uint32_t i = 0; i < n_workers; i++)
        add_worker(fx, i, is_third_party);
    fx->metrics = router_metrics_create();
    config.max_workers = 8;
    fx->proxy = proxy_create(fx->loop, fx->registry, fx->metrics, NULL, &config);
    fx->server = http_server_create(fx->loop, NULL, &events, fx);
    assert_int_equal(http_server_listen(fx->server, "127.0.0.1", 0, false, NULL), ST_OK);
    fx->port = http_server_port(fx->server);
}

static const struct proxy_config usual = {.prefix_block_bytes = 16,
                                          .max_prefix_blocks = 64,
                                          .request_timeout_us = 60000000,
                                          .connect_timeout_us = 250000,
                                          .upstream_idle_us = 60000000,
                                          .max_attempts = 3};

static inline void start(struct fixture *fx, uint32_t n_workers) {
    start_with(fx, n_workers, usual, false);
}

static inline uint32_t n_open(struct fixture *fx) {
    struct registry_totals totals;

    registry_totals(fx->registry, &totals);
    return totals.n_open;
}

static inline double counted(struct fixture *fx, const char *code) {
    return metric_value(METRICS_GET(fx->metrics, ROUTER_requests_total, "/v1/completions", code));
}

static inline double retries(struct fixture *fx, const char *reason) {
    return metric_value(METRICS_GET(fx->metrics, ROUTER_retries_total, reason));
}

/* Whatever happened, nothing is left behind. */
static inline void finish(struct fixture *fx) {
    TURN_UNTIL(fx->loop, n_open(fx) == 0);
    http_server_destroy(fx->server);
    loop_turn(fx->loop, 0);
    proxy_destroy(fx->proxy);
    fake_stop(&fx->fake);
    registry_destroy(fx->registry);
    metrics_destroy(fx->metrics);
    loop_destroy(fx->loop);
}

#define PLAY(fx, ...)                                                                              \
    fake_play(&(fx)->fake, (const struct fake_step[]){__VA_ARGS__},                                \
              sizeof((const struct fake_step[]){__VA_ARGS__}) / sizeof(struct fake_step))

/* One request on a connection of its own, until `needle` has come. */
static inline void ask(struct fixture *fx, struct client *c, const char *request,
                       const char *needle) {
    client_open(c, fx->port);
    client_send(c, fx->loop, str_of(request));
    client_expect(c, fx->loop, needle);
}

#endif

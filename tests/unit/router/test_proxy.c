/* tests/unit/router/test_proxy.c - whole exchanges: client, proxy and scripted workers on one loop. */
#include "tests/support/cm.h"

#include "common/clock.h"
#include "common/loop.h"
#include "common/mem.h"
#include "common/rng.h"
#include "router/keys.h"
#include "router/poison.h"
#include "router/proxy.h"
#include "router/registry.h"
#include "router/router_metrics.h"
#include "tests/support/client.h"
#include "tests/support/fake_worker.h"
#include "tests/support/support.h"

#include <signal.h>
#include <stdio.h>

#define JSON_OK                                                                                    \
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-incipit-prompt-tokens: 9\r\n"          \
    "x-incipit-cached-tokens: 4\r\ncontent-length: 11\r\n\r\n{\"ok\":true}"
#define SSE_HEAD                                                                                   \
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
#define CHUNKED_HEAD                                                                               \
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
#define BODY    "{\"prompt\":\"Gallia est omnis divisa in partes tres\"}"
#define ASK     "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 51\r\n\r\n" BODY
#define ASK_1_0 "POST /v1/completions HTTP/1.0\r\nContent-Length: 51\r\n\r\n" BODY

_Static_assert(sizeof(BODY) - 1 == 51, "ASK says so");

struct fixture {
    struct loop *loop;
    struct fake_script fake;
    struct registry *registry;
    struct metrics *metrics;
    struct proxy *proxy;
    struct http_server *server;
    uint16_t port;
};

static void on_request(struct http_request *req, void *arg) {
    proxy_start(((struct fixture *)arg)->proxy, req);
}

static void add_worker(struct fixture *fx, uint32_t i, bool is_foreign) {
    struct wire_server_info info = {
        .wire = 1, .model = "m", .block_size = 16, .n_blocks = 1000, .prefill_tokens_per_s = 1e4};
    char url[64];
    uint32_t id;

    snprintf(url, sizeof(url), "http://127.0.0.1:%u", fx->fake.workers[i].port);
    assert_int_equal(registry_add(fx->registry, url, &id, NULL), ST_OK);
    assert_int_equal(id, i);
    snprintf(info.generation, sizeof(info.generation), "g%u", i);
    assert_int_equal(registry_describe(fx->registry, id, &info, is_foreign, NULL), ST_OK);
    registry_set_reason(fx->registry, id, WORKER_STARTING, false);
}

static void start_with(struct fixture *fx, uint32_t n_workers, struct proxy_config config,
                       bool is_foreign) {
    static const struct http_server_events events = {.on_request = on_request};
    struct registry_config rc = {0};

    memset(fx, 0, sizeof(*fx));
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    fake_start(&fx->fake, fx->loop, n_workers);
    routing_options_default(&rc.routing);
    rc.routing.policy = policy_find(STR("round_robin"));
    rc.routing.max_index_bytes = 1 << 20;
    rc.routing.max_workers = 8;
    rc.admission.queue_size = 4;
    assert_int_equal(registry_create(&fx->registry, &rc, NULL), ST_OK);
    for (uint32_t i = 0; i < n_workers; i++)
        add_worker(fx, i, is_foreign);
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

static void start(struct fixture *fx, uint32_t n_workers) {
    start_with(fx, n_workers, usual, false);
}

static uint32_t n_open(struct fixture *fx) {
    struct registry_totals totals;

    registry_totals(fx->registry, &totals);
    return totals.n_open;
}

static double counted(struct fixture *fx, const char *code) {
    return metric_value(METRICS_GET(fx->metrics, ROUTER_requests_total, "/v1/completions", code));
}

static double retries(struct fixture *fx, const char *reason) {
    return metric_value(METRICS_GET(fx->metrics, ROUTER_retries_total, reason));
}

/* Whatever happened, nothing is left behind. */
static void finish(struct fixture *fx) {
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
static void ask(struct fixture *fx, struct client *c, const char *request, const char *needle) {
    client_open(c, fx->port);
    client_send(c, fx->loop, str_of(request));
    client_expect(c, fx->loop, needle);
}

/* --- answers -------------------------------------------------------------------------------------*/

static void an_answer_is_relayed_and_accounted(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 2);
    PLAY(&fx, {JSON_OK});
    ask(&fx, &c, ASK ASK ASK, "");
    TURN_UNTIL(fx.loop, (client_read(&c), client_count(&c, "{\"ok\":true}") == 3));
    assert_int_equal(client_count(&c, "HTTP/1.1 200 OK\r\n"), 3);
    assert_int_equal(client_count(&c, "content-length: 11\r\n"), 3);
    assert_int_equal(client_count(&c, "x-incipit"), 0);
    assert_int_equal(client_count(&c, "x-request-id: req-"), 3);
    assert_int_equal(n_open(&fx), 0);
    assert_true(counted(&fx, "200") == 3);
    assert_int_equal(metric_count(metrics_at(fx.metrics, ROUTER_ttft_seconds)), 3);
    assert_true(metric_value(metrics_at(fx.metrics, ROUTER_cached_tokens_total)) == 12);
    assert_int_equal(fx.fake.n_accepted, 2); /* round robin, the third on a kept connection */
    client_close(&c);
    finish(&fx);
}

static void every_framing_is_made_anew(void **state) {
    static const struct {
        const char *request;
        struct fake_step step;
        const char *wanted, *not_wanted;
        bool is_closed;
    } cases[] = {
        {ASK,
         {CHUNKED_HEAD "2\r\n{}\r\n0\r\n\r\n"},
         "\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
         "close",
         false},
        {ASK, {"HTTP/1.1 200 OK\r\n\r\nto the end", FAKE_CLOSE}, "0\r\n\r\n", "close", false},
        {ASK, {"HTTP/1.1 204 No Content\r\n\r\n"}, "204 No Content", "content-length", false},
        {ASK,
         {"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"},
         "content-length: 0",
         "chunk",
         false},
        {ASK,
         {"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" JSON_OK},
         "{\"ok\":true}",
         "link",
         false},
        {ASK, {"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}"}, "\r\n\r\n{}", "close", false},
        {ASK_1_0, {CHUNKED_HEAD "2\r\n{}\r\n0\r\n\r\n"}, "close\r\n\r\n{}", "chunked", true},
        {ASK_1_0, {JSON_OK}, "{\"ok\":true}", "chunked", true},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fixture fx;
        struct client c;

        start(&fx, 1);
        fake_play(&fx.fake, &cases[i].step, 1);
        ask(&fx, &c, cases[i].request, cases[i].wanted);
        if (cases[i].is_closed) client_expect_close(&c, fx.loop);
        assert_false(c.was_reset);
        assert_int_equal(client_count(&c, "HTTP/1.1 "), 1);
        if (client_count(&c, cases[i].not_wanted)) fail_msg("case %zu: %s", i, buf_ptr(&c.got));
        client_close(&c);
        finish(&fx);
    }
}

static void an_error_of_a_worker_teaches_nothing(void **state) {
    struct registry_totals totals;
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 2);
    PLAY(&fx, {"HTTP/1.1 400 Bad Request\r\ncontent-length: 3\r\n\r\nbad"});
    ask(&fx, &c, ASK, "\r\n\r\nbad");
    registry_totals(fx.registry, &totals);
    assert_int_equal(totals.n_entries, 0);
    assert_int_equal(metric_count(metrics_at(fx.metrics, ROUTER_ttft_seconds)), 0);
    assert_int_equal(fx.fake.n_requests, 1);
    client_close(&c);
    finish(&fx);
}

static void a_tokenize_call_fills_no_cache(void **state) {
    struct registry_totals totals;
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 1);
    PLAY(&fx, {JSON_OK});
    ask(&fx, &c, "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 51\r\n\r\n" BODY, "true}");
    registry_totals(fx.registry, &totals);
    assert_int_equal(totals.n_entries, 0);
    client_close(&c);
    finish(&fx);
}

/* --- failures ------------------------------------------------------------------------------------*/

static void a_worker_that_cannot_be_reached_is_replaced(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 2);
    fake_deafen(&fx.fake, 0);
    PLAY(&fx, {JSON_OK});
    for (int i = 0; i < 4; i++) {
        ask(&fx, &c, ASK, "{\"ok\":true}");
        client_close(&c);
    }
    assert_true(counted(&fx, "200") == 4);
    assert_true(retries(&fx, "refused") == 1); /* then it is ejected */
    finish(&fx);
}

static void with_no_other_worker_it_is_said(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 1);
    fake_deafen(&fx.fake, 0);
    ask(&fx, &c, ASK, "no other can take the request now");
    assert_int_equal(client_count(&c, "HTTP/1.1 503"), 1);
    assert_int_equal(client_count(&c, "retry-after: 1"), 1);
    assert_int_equal(client_count(&c, "x-request-id: "), 1);
    client_close(&c);
    finish(&fx);
}

static void a_connection_that_died_idle_costs_nothing(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 1);
    PLAY(&fx, {JSON_OK}, {NULL, FAKE_RESET}, {JSON_OK});
    ask(&fx, &c, ASK ASK, "");
    TURN_UNTIL(fx.loop, (client_read(&c), client_count(&c, "{\"ok\":true}") == 2));
    assert_int_equal(fx.fake.n_requests, 3);
    assert_true(counted(&fx, "200") == 2 && counted(&fx, "502") == 0);
    client_close(&c);
    finish(&fx);
}

/* What comes before a request was sent, in the very turn in which it is to be sent, is not for it. */
static void a_worker_that_speaks_unasked_is_not_taken_for_an_answer(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 1);
    PLAY(&fx, {JSON_OK});
    ask(&fx, &c, ASK, "{\"ok\":true}");
    loop_turn(fx.loop, 0);
    client_send(&c, fx.loop, STR(ASK));
    fake_say(&fx.fake, STR("HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{\"ok\":false}"));
    TURN_UNTIL(fx.loop, (client_read(&c), client_count(&c, "{\"ok\":true}") == 2));
    assert_int_equal(client_count(&c, "false"), 0);
    assert_int_equal(fx.fake.n_requests, 2);
    assert_int_equal(fx.fake.n_accepted, 2);
    assert_true(counted(&fx, "200") == 2 && counted(&fx, "502") == 0);
    client_close(&c);
    finish(&fx);
}

static void a_large_body_goes_whole(void **state) {
    static char request[200000];
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 1);
    PLAY(&fx, {JSON_OK});
    for (size_t bytes = 2000; bytes < 190000;
         bytes *= 3) { /* copied, gathered, not taken at once */
        int head = snprintf(
            request, sizeof(request),
            "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %zu\r\n\r\n", bytes);
        char *body = request + head;

        memset(body, ' ', bytes);
        memcpy(body, "{\"prompt\":\"abc", 14);
        memset(body + 14, 'x', bytes - 16);
        memcpy(body + bytes - 2, "\"}", 2);
        client_open(&c, fx.port);
        client_send(&c, fx.loop, (struct str){request, (size_t)head + bytes});
        client_expect(&c, fx.loop, "{\"ok\":true}");
        assert_true(buf_len(&fx.fake.last_request) > bytes);
        assert_memory_equal(buf_ptr(&fx.fake.last_request) + buf_len(&fx.fake.last_request) - bytes,
                            body, bytes);
        client_close(&c);
    }
    finish(&fx);
}

static void a_held_head_can_still_be_replaced(void **state) {
    static const char *const heads[] = {CHUNKED_HEAD, SSE_HEAD,
                                        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n"
                                        "x-incipit-prompt-tokens: 9\r\n\r\n"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
        struct fixture fx;
        struct client c;

        start(&fx, 2);
        PLAY(&fx, {heads[i], FAKE_RESET}, {JSON_OK});
        ask(&fx, &c, ASK, "{\"ok\":true}");
        assert_int_equal(client_count(&c, "HTTP/1.1"), 1);
        assert_int_equal(fx.fake.n_requests, 2);
        assert_true(fx.fake.served_by[0] != fx.fake.served_by[1]);
        assert_int_equal(metric_count(metrics_at(fx.metrics, ROUTER_ttft_seconds)), 1);
        client_close(&c);
        finish(&fx);
    }
}

static void a_stream_that_breaks_ends_with_an_error_event(void **state) {
    static const struct {
        const char *bytes, *wanted;
    } cases[] = {
        {SSE_HEAD "9\r\ndata: 1\n\n\r\n", "data: 1\n\n\r\n"},
        {SSE_HEAD "6\r\ndata: \r\n", "data: \r\n2\r\n\n\n\r\n"}, /* the half event is ended first */
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fixture fx;
        struct client c;

        start(&fx, 2);
        PLAY(&fx, {cases[i].bytes, FAKE_RESET});
        ask(&fx, &c, ASK, "\"code\":\"worker_lost\"");
        client_expect_close(&c, fx.loop);
        assert_int_equal(client_count(&c, cases[i].wanted), 1);
        assert_true(str_ends(buf_str(&c.got), STR("}}\n\n\r\n0\r\n\r\n")));
        assert_int_equal(client_count(&c, "[DONE]"), 0);
        assert_int_equal(fx.fake.n_requests, 1);
        assert_true(counted(&fx, "502") == 1);
        client_close(&c);
        finish(&fx);
    }
}

static void a_body_that_ends_early_cannot_be_taken_for_complete(void **state) {
    static const struct {
        const char *request, *bytes;
        bool is_reset;
    } cases[] = {
        {ASK, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", false},
        {ASK, CHUNKED_HEAD "4\r\nhalf\r\n", false},
        {ASK, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9\r\n\r\nhalf",
         false},
        {ASK_1_0, CHUNKED_HEAD "4\r\nhalf\r\n", true},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fixture fx;
        struct client c;

        start(&fx, 2);
        PLAY(&fx, {cases[i].bytes, FAKE_CLOSE});
        client_open(&c, fx.port);
        client_send(&c, fx.loop, str_of(cases[i].request));
        client_expect_close(&c, fx.loop);
        assert_int_equal(c.was_reset, cases[i].is_reset);
        if (!c.was_reset) assert_int_equal(client_count(&c, "half"), 1);
        assert_int_equal(client_count(&c, "0\r\n\r\n"), 0);
        assert_int_equal(client_count(&c, "error"), 0);
        client_close(&c);
        finish(&fx);
    }
}

static void a_request_that_kills_workers_is_not_tried_for_ever(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 4);
    PLAY(&fx, {NULL, FAKE_RESET});
    ask(&fx, &c, ASK, "poison_suspected");
    client_expect(&c, fx.loop, "x-should-retry: false");
    assert_int_equal(fx.fake.n_requests, 2);
    assert_true(counted(&fx, "503") == 1);
    client_close(&c);
    PLAY(&fx, {JSON_OK});
    ask(&fx, &c, ASK, "{\"ok\":true}"); /* nothing is remembered here: see below */
    client_close(&c);
    finish(&fx);
}

static void a_request_that_killed_workers_is_refused_at_the_door(void **state) {
    struct proxy_config config = usual;
    struct fixture fx;
    struct client c;

    (void)state;
    config.poison = poison_create(60000000);
    start_with(&fx, 4, config, false);
    PLAY(&fx, {NULL, FAKE_RESET});
    ask(&fx, &c, ASK, "poison_suspected");
    client_close(&c);
    PLAY(&fx, {JSON_OK});
    ask(&fx, &c, ASK, "poison_suspected");
    assert_int_equal(fx.fake.n_requests, 0);
    client_close(&c);
    ask(&fx, &c,
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"b\"}",
        "{\"ok\":true}"); /* another request is not */
    client_close(&c);
    finish(&fx);
    poison_destroy(config.poison);
}

#define ASK_AS(tenant)                                                                             \
    "POST /v1/completions HTTP/1.1\r\nHost: a\r\nx-tenant: " tenant                                \
    "\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"a\"}"

static void a_request_that_killed_workers_of_another_is_tried_on_one(void **state) {
    struct proxy_config config = usual;
    struct fixture fx;
    struct client c;

    (void)state;
    config.poison = poison_create(60000000);
    config.tenant_header = "x-tenant";
    start_with(&fx, 4, config, false);
    PLAY(&fx, {NULL, FAKE_RESET});
    ask(&fx, &c, ASK_AS("one"), "poison_suspected");
    assert_int_equal(fx.fake.n_requests, 2);
    client_close(&c);
    PLAY(&fx, {JSON_OK});
    ask(&fx, &c, ASK_AS("one"), "poison_suspected");
    client_close(&c);
    ask(&fx, &c, ASK_AS("two"), "{\"ok\":true}"); /* its own is as good as any */
    client_close(&c);
    PLAY(&fx, {NULL, FAKE_RESET});
    ask(&fx, &c, ASK_AS("two"), "poison_suspected"); /* but the first loss is the last */
    assert_int_equal(fx.fake.n_requests, 1);
    client_close(&c);
    PLAY(&fx, {JSON_OK});
    ask(&fx, &c, ASK_AS("two"), "poison_suspected");
    assert_int_equal(fx.fake.n_requests, 0);
    client_close(&c);
    assert_true(metric_value(METRICS_GET(fx.metrics, ROUTER_poison_suspected_total, "found")) == 2);
    assert_true(metric_value(METRICS_GET(fx.metrics, ROUTER_poison_suspected_total, "refused")) ==
                2);
    finish(&fx);
    poison_destroy(config.poison);
}

/* --- silence -------------------------------------------------------------------------------------*/

static void what_waits_for_a_hung_worker_goes_to_another(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 2);
    PLAY(&fx, {NULL, FAKE_KEEP}, {JSON_OK});
    client_open(&c, fx.port);
    client_send(&c, fx.loop, STR(ASK));
    TURN_UNTIL(fx.loop, fx.fake.n_requests == 1);
    proxy_worker_hung(fx.proxy, 1 - fx.fake.served_by[0], 1); /* another one */
    proxy_worker_hung(fx.proxy, fx.fake.served_by[0], 77);    /* an earlier one at its place */
    for (int i = 0; i < 20; i++)
        loop_turn(fx.loop, 1000);
    assert_int_equal(fx.fake.n_requests, 1);
    proxy_worker_hung(fx.proxy, fx.fake.served_by[0], 1);
    client_expect(&c, fx.loop, "{\"ok\":true}");
    assert_int_not_equal(fx.fake.served_by[0], fx.fake.served_by[1]);
    assert_true(retries(&fx, "worker_hung") == 1);
    client_close(&c);
    finish(&fx);
}

static void many_leave_a_hung_worker_at_once(void **state) {
    struct client c[40];
    struct fixture fx;

    (void)state;
    start(&fx, 2);
    registry_set_reason(fx.registry, 1, WORKER_DISABLED, true);
    PLAY(&fx, {NULL, FAKE_KEEP});
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        client_open(&c[i], fx.port);
        client_send(&c[i], fx.loop, STR(ASK));
    }
    TURN_UNTIL(fx.loop, fx.fake.n_requests == ARRAY_LEN(c));
    PLAY(&fx, {JSON_OK});
    proxy_worker_hung(fx.proxy, 0, 1); /* nobody else is there: they stay */
    for (int i = 0; i < 20; i++)
        loop_turn(fx.loop, 1000);
    assert_int_equal(fx.fake.n_requests, 0);
    assert_int_equal(n_open(&fx), ARRAY_LEN(c));
    registry_set_reason(fx.registry, 1, WORKER_DISABLED, false);
    proxy_worker_hung(fx.proxy, 0, 1);
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        client_expect(&c[i], fx.loop, "{\"ok\":true}");
        client_close(&c[i]);
    }
    finish(&fx);
}

static void what_a_client_has_begun_to_read_stays(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 2);
    PLAY(&fx, {SSE_HEAD "8\r\ndata: a\n\r\n"});
    ask(&fx, &c, ASK, "data: a");
    proxy_worker_hung(fx.proxy, fx.fake.served_by[0], 1);
    for (int i = 0; i < 10; i++)
        loop_turn(fx.loop, 1000);
    fake_say(&fx.fake, STR("8\r\ndata: b\n\r\n0\r\n\r\n"));
    client_expect(&c, fx.loop, "data: b");
    assert_int_equal(fx.fake.n_requests, 1);
    client_close(&c);
    finish(&fx);
}

static void no_first_byte_in_time_is_a_failure(void **state) {
    struct proxy_config config = usual;
    struct fixture fx;
    struct client c;

    (void)state;
    config.first_byte_timeout_us = 50000;
    start_with(&fx, 2, config, false);
    PLAY(&fx, {NULL, FAKE_KEEP}, {JSON_OK});
    ask(&fx, &c, ASK, "{\"ok\":true}");
    assert_int_equal(fx.fake.n_requests, 2);
    assert_true(retries(&fx, "first_byte_timeout") == 1);
    client_close(&c);
    finish(&fx);
}

static void a_stream_that_falls_silent_is_ended(void **state) {
    struct proxy_config config = usual;
    struct fixture fx;
    struct client c;

    (void)state;
    config.stream_idle_timeout_us = 400000;
    start_with(&fx, 2, config, false);
    PLAY(&fx, {SSE_HEAD "8\r\ndata: a\n\r\n"});
    ask(&fx, &c, ASK, "data: a");
    client_expect(&c, fx.loop, "worker_silent");
    client_expect_close(&c, fx.loop);
    client_close(&c);
    finish(&fx);
}

static void a_stream_of_a_worker_that_hangs_is_ended_sooner(void **state) {
    struct proxy_config config = usual;
    struct fixture fx;
    struct client c;

    (void)state;
    config.stream_idle_timeout_us = 10 * CLIENT_PATIENCE_US / 5;
    start_with(&fx, 2, config, false);
    PLAY(&fx, {SSE_HEAD "8\r\ndata: a\n\r\n"});
    ask(&fx, &c, ASK, "data: a");
    proxy_worker_hung(fx.proxy, fx.fake.served_by[0], 1);
    client_expect(&c, fx.loop, "worker_silent"); /* the usual time is beyond our patience */
    client_expect_close(&c, fx.loop);
    client_close(&c);
    finish(&fx);
}

static void at_the_end_all_clients_are_told(void **state) {
    struct client streaming, waiting;
    struct fixture fx;

    (void)state;
    start(&fx, 2);
    PLAY(&fx, {SSE_HEAD "8\r\ndata: a\n\r\n"}, {NULL, FAKE_KEEP});
    ask(&fx, &streaming, ASK, "data: a");
    client_open(&waiting, fx.port);
    client_send(&waiting, fx.loop, STR(ASK));
    TURN_UNTIL(fx.loop, fx.fake.n_requests == 2);
    proxy_end_all(fx.proxy);
    client_expect(&streaming, fx.loop, "shutting_down");
    client_expect_close(&streaming, fx.loop);
    client_expect(&waiting, fx.loop, "HTTP/1.1 503");
    assert_true(n_open(&fx) == 0);
    client_close(&streaming);
    client_close(&waiting);
    finish(&fx);
}

static void a_worker_that_says_it_drains_gets_no_more(void **state) {
    struct registry_view view;
    struct fixture fx;
    struct client c;
    uint32_t w;

    (void)state;
    start(&fx, 2);
    PLAY(&fx,
         {"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nx-incipit-load: running=3 waiting=1 "
          "queued_tokens=7 kv_free=8 kv_total=9 draining=1\r\n\r\nx"},
         {JSON_OK});
    ask(&fx, &c, ASK, "\r\n\r\nx");
    client_close(&c);
    w = fx.fake.served_by[0];
    assert_true(registry_get(fx.registry, w, &view));
    assert_int_equal(view.reasons, WORKER_DRAINING);
    assert_true(view.has_load);
    assert_int_equal(view.load.running, 3);
    assert_int_equal(view.load.kv_total, 9);
    for (int i = 1; i < 4; i++) {
        ask(&fx, &c, ASK, "{\"ok\":true}");
        assert_int_not_equal(fx.fake.served_by[i], w);
        client_close(&c);
    }
    registry_set_draining(fx.registry, w, DRAIN_WORKER, false);
    assert_true(registry_get(fx.registry, w, &view));
    assert_int_equal(view.reasons, 0);
    finish(&fx);
}

static void what_is_not_http_is_replaced(void **state) {
    static const char *const bytes[] = {"220 smtp ready\r\n", "HTTP/1.1 101 Switching\r\n\r\n",
                                        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: "
                                        "1\r\n\r\nx",
                                        CHUNKED_HEAD "zz\r\n"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bytes); i++) {
        struct fixture fx;
        struct client c;

        start(&fx, 2);
        PLAY(&fx, {bytes[i]}, {JSON_OK});
        ask(&fx, &c, ASK, "{\"ok\":true}");
        assert_true(retries(&fx, "malformed") == 1);
        client_close(&c);
        finish(&fx);
    }
}

#define BUSY(code) "HTTP/1.1 " code " Busy\r\nretry-after: 7\r\ncontent-length: 8\r\n\r\nnot now!"

static void a_refusal_is_passed_on_only_when_nobody_else_is_there(void **state) {
    static const char *const refusals[] = {BUSY("503"), BUSY("429")};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
        struct fixture fx;
        struct client c;

        start(&fx, 2);
        PLAY(&fx, {refusals[i]}, {JSON_OK}, {refusals[i]});
        ask(&fx, &c, ASK, "{\"ok\":true}");
        assert_true(retries(&fx, "refused_by_worker") == 1);
        client_close(&c);
        ask(&fx, &c, ASK, "retry-after: 7\r\n"); /* both say so now */
        client_expect(&c, fx.loop, "not now!");
        assert_int_equal(fx.fake.n_requests, 4);
        client_close(&c);
        finish(&fx);
    }
}

static void a_silent_worker_ends_in_a_timeout(void **state) {
    struct proxy_config config = usual;
    struct fixture fx;
    struct client c;

    (void)state;
    config.request_timeout_us = 50000;
    start_with(&fx, 1, config, false);
    PLAY(&fx, {NULL}, {SSE_HEAD "9\r\ndata: 1\n\n\r\n"});
    ask(&fx, &c, ASK, "HTTP/1.1 504");
    client_close(&c);
    ask(&fx, &c, ASK, "\"code\":\"timeout\"");
    client_expect_close(&c, fx.loop);
    assert_true(counted(&fx, "504") == 2);
    client_close(&c);
    finish(&fx);
}

static void a_foreign_worker_leaves_the_waiting_sum_by_prediction(void **state) {
    struct registry_view view;
    struct fixture fx;
    struct client c;

    (void)state;
    start_with(&fx, 1, usual, true);
    PLAY(&fx, {NULL});
    client_open(&c, fx.port);
    client_send(&c, fx.loop, STR(ASK));
    TURN_UNTIL(fx.loop, fx.fake.n_requests == 1);
    for (int i = 0; i < 20; i++)
        loop_turn(fx.loop, 2000); /* 51 bytes are predicted to take 1.3 ms */
    assert_true(registry_get(fx.registry, 0, &view) && view.in_flight == 1);
    fake_say(&fx.fake, STR("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"));
    client_expect(&c, fx.loop, "\r\n\r\n{}");
    assert_int_equal(metric_count(metrics_at(fx.metrics, ROUTER_ttft_seconds)), 1);
    client_close(&c);
    finish(&fx);
}

static void the_first_event_of_a_foreign_stream_is_its_first_token(void **state) {
    static const struct {
        struct fake_step step;
        uint64_t n_first_tokens;
    } cases[] = {{{SSE_HEAD "8\r\n: ping\n\n\r\n"}, 0},
                 {{SSE_HEAD "1c\r\ndata: {\"error\":{}}\n\n: ping\n\n\r\n"}, 0},
                 {{SSE_HEAD "11\r\ndata: x\n\n: ping\n\n\r\n"}, 1}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fixture fx;
        struct client c;

        start_with(&fx, 1, usual, true);
        fake_play(&fx.fake, &cases[i].step, 1);
        ask(&fx, &c, ASK, ": ping\n\n");
        client_close(&c);
        TURN_UNTIL(fx.loop, n_open(&fx) == 0);
        assert_int_equal(metric_count(metrics_at(fx.metrics, ROUTER_ttft_seconds)),
                         cases[i].n_first_tokens);
        finish(&fx);
    }
}

static void numbers_cut_in_two_are_learned(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start_with(&fx, 1, usual, true);
    PLAY(&fx, {SSE_HEAD "31\r\ndata: {\"prompt_tokens\":12,\"cached_tokens\":8,\"cach\r\n"});
    ask(&fx, &c, ASK, "\"cach\r\n");
    fake_say(&fx.fake, STR("c\r\ned_tokens\":1\r\n"));
    client_expect(&c, fx.loop, "ed_tokens\":1\r\n");
    fake_say(&fx.fake, STR("4\r\n0}\n\n\r\n0\r\n\r\n"));
    client_expect(&c, fx.loop, "\r\n0\r\n\r\n");
    assert_true(metric_value(metrics_at(fx.metrics, ROUTER_prompt_tokens_total)) == 12);
    assert_true(metric_value(metrics_at(fx.metrics, ROUTER_cached_tokens_total)) == 10);
    client_close(&c);
    finish(&fx);
}

/* --- clients -------------------------------------------------------------------------------------*/

static void a_client_that_leaves_frees_the_worker(void **state) {
    static const char *const bytes[] = {NULL, CHUNKED_HEAD, SSE_HEAD "9\r\ndata: 1\n\n\r\n"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bytes); i++) {
        struct fixture fx;
        struct client c;

        start(&fx, 2);
        PLAY(&fx, {bytes[i]});
        client_open(&c, fx.port);
        client_send(&c, fx.loop, STR(ASK));
        TURN_UNTIL(fx.loop, fx.fake.n_requests == 1);
        for (int k = 0; k < 5; k++)
            loop_turn(fx.loop, 1000);
        client_close(&c);
        TURN_UNTIL(fx.loop, n_open(&fx) == 0);
        TURN_UNTIL(fx.loop, fx.fake.n_open == 0); /* that is how the worker hears of it */
        assert_true(counted(&fx, "499") == 1);
        finish(&fx);
    }
}

static void a_client_that_leaves_while_a_retry_waits_is_forgotten(void **state) {
    struct fixture fx;
    struct client c[8];

    (void)state;
    start(&fx, 2);
    fake_deafen(&fx.fake, 0);
    PLAY(&fx, {NULL}); /* so the budget of 3 retries stays used */
    registry_set_reason(fx.registry, 1, WORKER_DISABLED, true);
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        client_open(&c[i], fx.port);
        client_send(&c[i], fx.loop, STR(ASK));
    }
    registry_set_reason(fx.registry, 1, WORKER_DISABLED, false);
    for (int k = 0; k < 20; k++)
        loop_turn(fx.loop, 2000);
    for (size_t i = 0; i < ARRAY_LEN(c); i++)
        client_close(&c[i]);
    TURN_UNTIL(fx.loop, n_open(&fx) == 0);
    for (int k = 0; k < 20; k++)
        loop_turn(fx.loop, 2000); /* a timer left behind would show itself now */
    finish(&fx);
}

static void a_slow_reader_holds_back_its_worker(void **state) {
    const uint64_t total = 64u << 20;
    char head[128];
    struct fixture fx;
    struct client c;
    uint64_t before = 1, got = 0, until_us = clock_now_us() + 20 * CLIENT_PATIENCE_US;

    (void)state;
    start(&fx, 1);
    snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\ncontent-length: %llu\r\n\r\n",
             (unsigned long long)total);
    PLAY(&fx, {head, FAKE_KEEP, total});
    client_open(&c, fx.port);
    client_send(&c, fx.loop, STR(ASK));
    while (before != fx.fake.sent_bytes) { /* until nothing moves any more */
        before = fx.fake.sent_bytes;
        for (int i = 0; i < 50; i++)
            loop_turn(fx.loop, 1000);
    }
    assert_true(before > 0 && before < total / 2); /* what the kernel's buffers hold */
    while (got < total) {
        size_t n = client_read(&c);

        got += n;
        buf_clear(&c.got);
        loop_turn(fx.loop, 0);
        if (clock_now_us() > until_us) fail_msg("%llu of the body came", (unsigned long long)got);
    }
    assert_true(fx.fake.sent_bytes == total);
    client_close(&c);
    finish(&fx);
}

static void bodies_that_cannot_be_read_cost_no_worker(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 1);
    PLAY(&fx, {JSON_OK});
    ask(&fx, &c, "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n[]", "400");
    client_close(&c);
    ask(&fx, &c,
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 24\r\n\r\n"
        "{\"model\":\"x\",\"prompt\":1}",
        "404");
    assert_int_equal(fx.fake.n_requests, 0);
    client_close(&c);
    finish(&fx);
}

/* --- everything at once --------------------------------------------------------------------------*/

static void whatever_happens_load_is_given_back(void **state) {
    static const struct fake_step all[] = {{JSON_OK},
                                           {JSON_OK, FAKE_CLOSE},
                                           {NULL, FAKE_RESET},
                                           {CHUNKED_HEAD, FAKE_CLOSE},
                                           {CHUNKED_HEAD "4\r\nhalf\r\n", FAKE_RESET},
                                           {SSE_HEAD "9\r\ndata: 1\n\n\r\n", FAKE_CLOSE},
                                           {SSE_HEAD "9\r\ndata: 1\n\n\r\n0\r\n\r\n"},
                                           {BUSY("503")},
                                           {"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"},
                                           {NULL},
                                           {JSON_OK "trailing"}};
    struct fake_step script[400];
    struct client c[12] = {0};
    bool is_open[12] = {false};
    struct fixture fx;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    start(&fx, 3);
    for (size_t i = 0; i < ARRAY_LEN(script); i++)
        script[i] = all[rng_below(&rng, ARRAY_LEN(all))];
    fake_play(&fx.fake, script, ARRAY_LEN(script));
    for (int step = 0; step < 4000; step++) {
        size_t i = rng_below(&rng, ARRAY_LEN(c));

        if (!is_open[i]) {
            client_open(&c[i], fx.port);
            client_send(&c[i], fx.loop, STR(ASK));
            is_open[i] = true;
        } else if (rng_below(&rng, 10) == 0 || (client_read(&c[i]), c[i].is_closed)) {
            client_close(&c[i]);
            is_open[i] = false;
        } else if (rng_below(&rng, 3) == 0) {
            client_send(&c[i], fx.loop, STR(ASK)); /* pipelined, perhaps */
        }
        if (rng_below(&rng, 50) == 0) fake_drop_all(&fx.fake);
        if (rng_below(&rng, 20) == 0) registry_tick(fx.registry, clock_now_us() + 100000000);
        loop_turn(fx.loop, 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(c); i++)
        if (is_open[i]) client_close(&c[i]);
    TURN_UNTIL(fx.loop, n_open(&fx) == 0);
    finish(&fx);
}

/* --- what is said of who asks --------------------------------------------------------------------*/

static void what_a_client_says_of_its_way_here_is_not_passed_on(void **state) {
    static const char *const said[] = {"forwarded: for=9", "x-real-ip", "x-forwarded-for: 9",
                                       "x-forwarded-port", "x-forwarded-host"};
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 1);
    PLAY(&fx, {JSON_OK});
    ask(&fx, &c,
        "POST /v1/completions HTTP/1.1\r\nforwarded: for=9\r\nx-real-ip: 9\r\n"
        "x-forwarded-for: 9\r\nx-forwarded-port: 9\r\nx-forwarded-host: 9\r\nx-other: 9\r\n"
        "Host: a\r\nContent-Length: 51\r\n\r\n" BODY,
        "{\"ok\":true}");
    buf_append_char(&fx.fake.last_request, '\0');
    for (size_t i = 0; i < ARRAY_LEN(said); i++)
        assert_null(strstr(buf_ptr(&fx.fake.last_request), said[i]));
    assert_non_null(strstr(buf_ptr(&fx.fake.last_request), "x-forwarded-for: 127.0.0.1\r\n"));
    assert_non_null(strstr(buf_ptr(&fx.fake.last_request), "x-other: 9\r\n"));
    client_close(&c);
    finish(&fx);
}

static void a_tenant_named_twice_is_refused(void **state) {
    struct proxy_config config = usual;
    struct fixture fx;
    struct client c;

    (void)state;
    config.tenant_header = "x-tenant";
    start_with(&fx, 1, config, false);
    PLAY(&fx, {JSON_OK});
    ask(&fx, &c,
        "POST /v1/completions HTTP/1.1\r\nX-Tenant: victim\r\nx-tenant: me\r\nHost: a\r\n"
        "Content-Length: 51\r\n\r\n" BODY,
        "HTTP/1.1 400");
    client_close(&c);
    ask(&fx, &c,
        "POST /v1/completions HTTP/1.1\r\nX-Tenant: me\r\nHost: a\r\nContent-Length: "
        "51\r\n\r\n" BODY,
        "HTTP/1.1 200");
    client_close(&c);
    assert_int_equal(fx.fake.n_requests, 1);
    finish(&fx);
}

static void what_was_never_sent_costs_no_tokens(void **state) {
    static const char unknown[] =
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer k\r\n"
        "Content-Length: 54\r\n\r\n"
        "{\"model\":\"none\",\"prompt\":\"Gallia est omnis divisa in\"}";
    struct proxy_config config = usual;
    struct keys *keys = NULL;
    struct fixture fx;
    struct client c;

    (void)state;
    assert_int_equal(keys_create(&keys, NULL, "another", NULL), ST_OK);
    assert_int_equal(keys_load(keys, STR("k tokens_per_s=1\n"), "keys", NULL), ST_OK);
    config.keys = keys;
    start_with(&fx, 1, config, false);
    for (int i = 0; i < 10; i++) { /* 7 tokens each, where 10 may come at once */
        ask(&fx, &c, unknown, "HTTP/1.1 404");
        client_close(&c);
    }
    finish(&fx);
    keys_destroy(keys);
}

/* --- waiting --------------------------------------------------------------------------------------*/

static uint32_t n_waiting(struct fixture *fx) {
    struct registry_totals totals;

    registry_totals(fx->registry, &totals);
    return totals.n_waiting;
}

/* One worker that takes one request at a time and has one; another waits. */
static void start_full_with(struct fixture *fx, struct proxy_config config, struct client *first,
                            struct client *second) {
    static const struct fake_step steps[] = {{NULL}, {JSON_OK}};

    config.queue_timeout_us = 60000000;
    start_with(fx, 1, config, false);
    registry_configure(fx->registry, 0, 1, "");
    fake_play(&fx->fake, steps, 2);
    ask(fx, first, ASK, "");
    TURN_UNTIL(fx->loop, fx->fake.n_requests == 1);
    ask(fx, second, ASK, "");
    TURN_UNTIL(fx->loop, n_waiting(fx) == 1);
    assert_int_equal(n_open(fx), 1);
}

static void start_full(struct fixture *fx, struct client *first, struct client *second) {
    start_full_with(fx, usual, first, second);
}

/* Who gives a place looks at a clock of its own, which may be ahead. */
static void a_place_from_the_future_is_not_overdue(void **state) {
    static const struct fake_step silent[] = {{NULL}};
    struct proxy_config config = usual;
    struct fixture fx;
    struct client first, second;

    (void)state;
    config.first_byte_timeout_us = 400000;
    start_full_with(&fx, config, &first, &second);
    fake_play(&fx.fake, silent, 1);
    registry_configure(fx.registry, 0, 2, "");
    registry_tick(fx.registry, loop_now_us(fx.loop) + 10000000);
    TURN_UNTIL(fx.loop, n_open(&fx) == 2 && fx.fake.n_requests == 1);
    client_expect(&first, fx.loop, "HTTP/1.1 503"); /* all have been looked at */
    assert_int_equal(n_open(&fx), 1);
    fake_say(&fx.fake, STR(JSON_OK));
    client_expect(&second, fx.loop, "{\"ok\":true}");
    client_close(&first);
    client_close(&second);
    finish(&fx);
}

static void a_request_waits_for_the_end_of_another(void **state) {
    struct fixture fx;
    struct client first, second;

    (void)state;
    start_full(&fx, &first, &second);
    fake_say(&fx.fake, STR(JSON_OK));
    client_expect(&second, fx.loop, "{\"ok\":true}");
    client_expect(&first, fx.loop, "{\"ok\":true}");
    assert_int_equal(fx.fake.n_requests, 2);
    assert_int_equal(metric_count(metrics_at(fx.metrics, ROUTER_queue_wait_seconds)), 1);
    client_close(&first);
    client_close(&second);
    finish(&fx);
}

/* A client leaves before, with or after the place that it waited for. */
static void who_leaves_while_a_place_is_given_gives_it_back(void **state) {
    (void)state;
    for (int turns = 0; turns < 4; turns++) {
        struct fixture fx;
        struct client first, second, third;

        start_full(&fx, &first, &second);
        fake_say(&fx.fake, STR(JSON_OK));
        for (int i = 0; i < turns; i++)
            loop_turn(fx.loop, 1000);
        client_close(&second);
        client_expect(&first, fx.loop, "{\"ok\":true}");
        TURN_UNTIL(fx.loop, n_waiting(&fx) == 0 && n_open(&fx) == 0);
        ask(&fx, &third, ASK, "{\"ok\":true}");
        client_close(&first);
        client_close(&third);
        finish(&fx);
    }
}

static void an_end_of_all_finds_those_who_wait(void **state) {
    struct fixture fx;
    struct client first, second;

    (void)state;
    start_full(&fx, &first, &second);
    http_server_destroy(
        fx.server); /* the first gives its place to the second, which ends as well */
    fx.server = NULL;
    assert_int_equal(n_waiting(&fx), 0);
    client_close(&first);
    client_close(&second);
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_relayed_and_accounted),
        cmocka_unit_test(a_request_waits_for_the_end_of_another),
        cmocka_unit_test(who_leaves_while_a_place_is_given_gives_it_back),
        cmocka_unit_test(an_end_of_all_finds_those_who_wait),
        cmocka_unit_test(a_place_from_the_future_is_not_overdue),
        cmocka_unit_test(what_a_client_says_of_its_way_here_is_not_passed_on),
        cmocka_unit_test(a_tenant_named_twice_is_refused),
        cmocka_unit_test(what_was_never_sent_costs_no_tokens),
        cmocka_unit_test(every_framing_is_made_anew),
        cmocka_unit_test(an_error_of_a_worker_teaches_nothing),
        cmocka_unit_test(a_tokenize_call_fills_no_cache),
        cmocka_unit_test(a_worker_that_cannot_be_reached_is_replaced),
        cmocka_unit_test(with_no_other_worker_it_is_said),
        cmocka_unit_test(a_connection_that_died_idle_costs_nothing),
        cmocka_unit_test(a_worker_that_speaks_unasked_is_not_taken_for_an_answer),
        cmocka_unit_test(a_large_body_goes_whole),
        cmocka_unit_test(a_held_head_can_still_be_replaced),
        cmocka_unit_test(a_stream_that_breaks_ends_with_an_error_event),
        cmocka_unit_test(a_body_that_ends_early_cannot_be_taken_for_complete),
        cmocka_unit_test(a_request_that_kills_workers_is_not_tried_for_ever),
        cmocka_unit_test(a_request_that_killed_workers_is_refused_at_the_door),
        cmocka_unit_test(a_request_that_killed_workers_of_another_is_tried_on_one),
        cmocka_unit_test(what_waits_for_a_hung_worker_goes_to_another),
        cmocka_unit_test(many_leave_a_hung_worker_at_once),
        cmocka_unit_test(what_a_client_has_begun_to_read_stays),
        cmocka_unit_test(no_first_byte_in_time_is_a_failure),
        cmocka_unit_test(a_stream_that_falls_silent_is_ended),
        cmocka_unit_test(a_stream_of_a_worker_that_hangs_is_ended_sooner),
        cmocka_unit_test(at_the_end_all_clients_are_told),
        cmocka_unit_test(a_worker_that_says_it_drains_gets_no_more),
        cmocka_unit_test(what_is_not_http_is_replaced),
        cmocka_unit_test(a_refusal_is_passed_on_only_when_nobody_else_is_there),
        cmocka_unit_test(a_silent_worker_ends_in_a_timeout),
        cmocka_unit_test(a_foreign_worker_leaves_the_waiting_sum_by_prediction),
        cmocka_unit_test(the_first_event_of_a_foreign_stream_is_its_first_token),
        cmocka_unit_test(numbers_cut_in_two_are_learned),
        cmocka_unit_test(a_client_that_leaves_frees_the_worker),
        cmocka_unit_test(a_client_that_leaves_while_a_retry_waits_is_forgotten),
        cmocka_unit_test(a_slow_reader_holds_back_its_worker),
        cmocka_unit_test(bodies_that_cannot_be_read_cost_no_worker),
        cmocka_unit_test(whatever_happens_load_is_given_back),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

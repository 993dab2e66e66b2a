/* tests/unit/router/proxy/test_proxy_retry.c - attempts that fail: what is tried elsewhere, and
 * which error is sent. */
#include <signal.h>

#include "router/poison/poison.h"
#include "router/proxy/forward.h"
#include "router/proxy/retry.h"
#include "tests/support/cm.h"
#include "tests/support/proxy_fixture.h"

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

static void without_another_worker_the_error_is_sent(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 2);
    registry_set_reason(fx.registry, 0, WORKER_DISABLED, true);
    PLAY(&fx, {NULL, FAKE_RESET});
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

/* What comes before a request was sent, in the very turn in which it is to be sent, is not for
 * it. */
static void unsolicited_bytes_are_not_an_answer(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 1);
    PLAY(&fx, {JSON_OK});
    ask(&fx, &c, ASK, "{\"ok\":true}");
    loop_turn(fx.loop, 0);
    client_send(&c, fx.loop, STR(ASK));
    fake_send(&fx.fake, STR("HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{\"ok\":false}"));
    TURN_UNTIL(fx.loop, (client_read(&c), client_count(&c, "{\"ok\":true}") == 2));
    assert_int_equal(client_count(&c, "false"), 0);
    assert_int_equal(fx.fake.n_requests, 2);
    assert_int_equal(fx.fake.n_accepted, 2);
    assert_true(counted(&fx, "200") == 2 && counted(&fx, "502") == 0);
    client_close(&c);
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

/* An error behind the end would tell clients that a whole answer has failed. */
static void a_stream_that_breaks_behind_its_end_is_whole(void **state) {
    static const char *const cases[] = {
        SSE_HEAD "9\r\ndata: 1\n\n\r\ne\r\ndata: [DONE]\n\n\r\n",
        SSE_HEAD "9\r\ndata: 1\n\n\r\n1e\r\nevent: message_stop\ndata: {}\n\n\r\n",
        SSE_HEAD "9\r\ndata: 1\n\n\r\n24\r\nevent: response.completed\ndata: {}\n\n\r\n",
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fixture fx;
        struct client c;

        start(&fx, 2);
        PLAY(&fx, {cases[i], FAKE_RESET});
        ask(&fx, &c, ASK, "data: 1");
        client_expect_close(&c, fx.loop);
        assert_int_equal(client_count(&c, "error"), 0);
        assert_true(str_ends(buf_str(&c.got), STR("\n\n\r\n0\r\n\r\n")));
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

static void a_worker_that_reports_draining_gets_no_more(void **state) {
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

static void an_answer_that_is_not_http_is_replaced(void **state) {
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

static void a_refusal_is_passed_on_only_without_another_worker(void **state) {
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
        ask(&fx, &c, ASK, "retry-after: 7\r\n"); /* both are draining now */
        client_expect(&c, fx.loop, "not now!");
        assert_int_equal(fx.fake.n_requests, 4);
        client_close(&c);
        finish(&fx);
    }
}

#define DRAINING                                                                                   \
    "HTTP/1.1 503 Service Unavailable\r\nx-incipit-reason: draining\r\nretry-after: 0\r\n"         \
    "content-length: 8\r\n\r\nI leave!"

/* Not even where nothing is tried again. */
static void a_worker_that_drains_costs_no_attempt_and_no_strike(void **state) {
    struct proxy_config config = usual;
    struct registry_view view;
    struct fixture fx;
    struct client c;

    (void)state;
    config.max_attempts = 1;
    start_with(&fx, 4, config, false);
    PLAY(&fx, {DRAINING}, {DRAINING}, {DRAINING}, {JSON_OK});
    ask(&fx, &c, ASK, "{\"ok\":true}");
    assert_int_equal(fx.fake.n_requests, 4);
    assert_true(retries(&fx, "worker_draining") == 3);
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(registry_get(fx.registry, i, &view));
        assert_int_equal(view.n_failed, 0);
        assert_int_equal(view.draining, i == fx.fake.served_by[3] ? 0 : DRAIN_WORKER);
    }
    client_close(&c);
    ask(&fx, &c, ASK, "{\"ok\":true}"); /* the others are not asked again */
    assert_int_equal(fx.fake.n_requests, 5);
    client_close(&c);
    finish(&fx);
}

static void when_all_drain_the_refusal_is_passed_on(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 2);
    PLAY(&fx, {DRAINING}, {DRAINING});
    ask(&fx, &c, ASK, "I leave!");
    assert_int_equal(client_count(&c, "HTTP/1.1 503"), 1);
    assert_int_equal(fx.fake.n_requests, 2);
    client_close(&c);
    finish(&fx);
}

static double waiting(struct fixture *fx) {
    struct registry_totals totals;

    registry_totals(fx->registry, &totals);
    return totals.n_waiting;
}

/* It reached no worker: it costs no attempt, and waits for the first worker that is back. */
static void unreached_request_waits_until_a_worker_is_back(void **state) {
    struct proxy_config config = usual;
    struct fixture fx;
    struct client c;

    (void)state;
    config.max_attempts = 1;
    config.queue_timeout_us = 60000000;
    start_with(&fx, 2, config, false);
    fake_deafen(&fx.fake, 0);
    registry_set_reason(fx.registry, 1, WORKER_UNHEALTHY, true);
    PLAY(&fx, {JSON_OK});
    client_open(&c, fx.port);
    client_send(&c, fx.loop, STR(ASK));
    TURN_UNTIL(fx.loop, waiting(&fx) == 1);
    registry_set_reason(fx.registry, 1, WORKER_UNHEALTHY, false);
    registry_tick(fx.registry, clock_now_us());
    client_expect(&c, fx.loop, "{\"ok\":true}");
    assert_true(retries(&fx, "refused") == 1 && counted(&fx, "200") == 1);
    client_close(&c);
    finish(&fx);
}

static void no_worker_in_time_is_an_error(void **state) {
    struct fixture fx; /* with short waits */
    struct client c;

    (void)state;
    start(&fx, 1);
    fake_deafen(&fx.fake, 0);
    ask(&fx, &c, ASK, "no worker could start the request");
    assert_int_equal(client_count(&c, "HTTP/1.1 503"), 1);
    assert_int_equal(client_count(&c, "retry-after: 1"), 1);
    client_close(&c);
    finish(&fx);
}

#define FAILED(code) "HTTP/1.1 " code " Oops\r\ncontent-length: 6\r\n\r\nbroken"

static void error_before_first_byte_is_retried(void **state) {
    static const char *const codes[] = {"500", "502", "504"};
    static const char *const answers[] = {FAILED("500"), FAILED("502"), FAILED("504")};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        struct registry_view view;
        struct fixture fx;
        struct client c;

        start(&fx, 2);
        PLAY(&fx, {answers[i]}, {JSON_OK});
        ask(&fx, &c, ASK, "{\"ok\":true}");
        assert_int_equal(client_count(&c, "broken"), 0);
        assert_true(fx.fake.served_by[0] != fx.fake.served_by[1]);
        assert_true(retries(&fx, codes[i]) == 1);
        assert_true(registry_get(fx.registry, fx.fake.served_by[0], &view));
        assert_int_equal(view.n_failed, 1);
        assert_int_equal(view.reasons, 0); /* one is no reason */
        client_close(&c);
        finish(&fx);
    }
}

static void error_of_all_attempts_is_passed_on_and_ejects_none(void **state) {
    struct registry_view view;
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 4);
    PLAY(&fx, {FAILED("500")});
    for (int i = 1; i <= 8; i++) {
        ask(&fx, &c, ASK, "broken");
        assert_int_equal(client_count(&c, "HTTP/1.1 500"), 1);
        assert_int_equal(fx.fake.n_requests, 3 * i);
        client_close(&c);
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(registry_get(fx.registry, i, &view));
        assert_int_equal(view.reasons, 0);
    }
    finish(&fx);
}

static void failures_that_are_not_named_are_passed_on(void **state) {
    struct proxy_config config = usual;
    struct fixture fx;
    struct client c;

    (void)state;
    config.never_retried = RETRY_500;
    start_with(&fx, 2, config, false);
    PLAY(&fx, {FAILED("500")}, {JSON_OK});
    ask(&fx, &c, ASK, "broken");
    assert_int_equal(fx.fake.n_requests, 1);
    client_close(&c);
    finish(&fx);
}

static void answer_that_is_none_is_retried(void **state) {
    static const char *const answers[] = {
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        CHUNKED_HEAD "0\r\n\r\n",
        CHUNKED_HEAD "8\r\n{\"cut\":1\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 8\r\n\r\n{\"cut\":1",
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 24\r\n\r\n"
        "{\"error\":{\"code\":500} } ",
        SSE_HEAD "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",
        SSE_HEAD "0\r\n\r\n",
        SSE_HEAD "1d\r\ndata: {\"error\":\"a is sick\"}\n\n\r\n",
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        struct fixture fx;
        struct client c;

        start(&fx, 2);
        PLAY(&fx, {answers[i]}, {JSON_OK});
        ask(&fx, &c, ASK, "{\"ok\":true}");
        assert_int_equal(client_count(&c, "HTTP/1.1"), 1);
        assert_true(retries(&fx, "empty_answer") == 1);
        assert_int_equal(metric_count(metrics_at(fx.metrics, ROUTER_ttft_seconds)), 1);
        client_close(&c);
        finish(&fx);
    }
}

/* Some engines end the object, and its line in a chunk of its own. */
static void blanks_behind_an_answer_are_no_fault(void **state) {
    struct registry_view view;
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 1);
    PLAY(&fx, {CHUNKED_HEAD "5\r\n{\"ok\"\r\n6\r\n:true}\r\n1\r\n\n\r\n2\r\n \n\r\n0\r\n\r\n"});
    ask(&fx, &c, ASK, ":true}");
    client_close(&c);
    TURN_UNTIL(fx.loop, n_open(&fx) == 0);
    assert_int_equal(fx.fake.n_requests, 1);
    assert_true(registry_get(fx.registry, 0, &view));
    assert_int_equal(view.n_failed, 0);
    finish(&fx);
}

static void error_that_blames_the_request_is_passed_on(void **state) {
    static const char *const answers[] = {
        "HTTP/1.1 400 Bad\r\ncontent-length: 3\r\n\r\nno!",
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 31\r\n\r\n"
        "{\"error\":{\"no!\":1,\"code\": 404}}",
        SSE_HEAD "26\r\ndata: {\"error\":{\"no!\":1,\"code\":400}}\n\n\r\n0\r\n\r\n",
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        struct registry_view view;
        struct fixture fx;
        struct client c;

        start(&fx, 2);
        PLAY(&fx, {answers[i]});
        for (int k = 1; k < 10; k++) {
            ask(&fx, &c, ASK, "no!");
            client_close(&c);
            TURN_UNTIL(fx.loop, n_open(&fx) == 0);
            assert_int_equal(fx.fake.n_requests, k);
        }
        for (uint32_t w = 0; w < 2; w++) {
            assert_true(registry_get(fx.registry, w, &view));
            assert_true(view.n_failed == 0 && view.reasons == 0);
        }
        finish(&fx);
    }
}

static void request_that_may_leave_something_behind_is_sent_once(void **state) {
    static const char *const added[] = {"/v1/files"};
    const struct forward forward = {.paths = {added, 1}};
    struct proxy_config config = usual;
    struct fixture fx;
    struct client c;

    (void)state;
    config.forward = &forward;
    start_with(&fx, 2, config, false);
    PLAY(&fx, {NULL, FAKE_RESET});
    ask(&fx, &c, "POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
        "HTTP/1.1 502");
    assert_int_equal(fx.fake.n_requests, 1);
    client_close(&c);
    finish(&fx);
}

static double n_beyond_budget(const struct fixture *fx, const char *outcome) {
    return metric_value(METRICS_GET(fx->metrics, ROUTER_retry_budget_exhausted_total, outcome));
}

/* All that it had, be that all there is. */
static void share_of_a_lost_worker_moves_at_once(void **state) {
    struct fixture fx;
    struct client c[6];

    (void)state;
    start(&fx, 2);
    registry_set_reason(fx.registry, 1, WORKER_DISABLED, true);
    PLAY(&fx, {NULL});
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        client_open(&c[i], fx.port);
        client_send(&c[i], fx.loop, STR(ASK));
    }
    TURN_UNTIL(fx.loop, fx.fake.n_requests == ARRAY_LEN(c));
    registry_set_reason(fx.registry, 1, WORKER_DISABLED, false);
    PLAY(&fx, {JSON_OK});
    fake_drop_all(&fx.fake);
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        client_expect(&c[i], fx.loop, "{\"ok\":true}");
        client_close(&c[i]);
    }
    assert_true(n_beyond_budget(&fx, "waited") == 0);
    finish(&fx);
}

static void a_client_that_leaves_while_a_retry_waits_is_forgotten(void **state) {
    struct fixture fx;
    struct client c[24]; /* of four workers: 12 retries at once, as one of them may have had */

    (void)state;
    start(&fx, 4);
    for (uint32_t i = 1; i < 4; i++)
        registry_set_reason(fx.registry, i, WORKER_DISABLED, true);
    PLAY(&fx, {NULL}); /* so the budget stays used */
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        client_open(&c[i], fx.port);
        client_send(&c[i], fx.loop, STR(ASK));
    }
    TURN_UNTIL(fx.loop, fx.fake.n_requests == ARRAY_LEN(c));
    for (uint32_t i = 1; i < 4; i++)
        registry_set_reason(fx.registry, i, WORKER_DISABLED, false);
    fake_drop_all(&fx.fake);
    TURN_UNTIL(fx.loop, n_beyond_budget(&fx, "waited") >= 1);
    for (int k = 0; k < 20; k++)
        loop_turn(fx.loop, 2000);
    assert_true(n_beyond_budget(&fx, "waited") <= 12); /* however often each looks again */
    assert_true(n_beyond_budget(&fx, "given_up") == 0);
    for (size_t i = 0; i < ARRAY_LEN(c); i++)
        client_close(&c[i]);
    TURN_UNTIL(fx.loop, n_open(&fx) == 0);
    for (int k = 0; k < 20; k++)
        loop_turn(fx.loop, 2000); /* a timer left behind would show itself now */
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_that_cannot_be_reached_is_replaced),
        cmocka_unit_test(without_another_worker_the_error_is_sent),
        cmocka_unit_test(unreached_request_waits_until_a_worker_is_back),
        cmocka_unit_test(no_worker_in_time_is_an_error),
        cmocka_unit_test(error_before_first_byte_is_retried),
        cmocka_unit_test(error_of_all_attempts_is_passed_on_and_ejects_none),
        cmocka_unit_test(failures_that_are_not_named_are_passed_on),
        cmocka_unit_test(answer_that_is_none_is_retried),
        cmocka_unit_test(blanks_behind_an_answer_are_no_fault),
        cmocka_unit_test(error_that_blames_the_request_is_passed_on),
        cmocka_unit_test(request_that_may_leave_something_behind_is_sent_once),
        cmocka_unit_test(a_connection_that_died_idle_costs_nothing),
        cmocka_unit_test(unsolicited_bytes_are_not_an_answer),
        cmocka_unit_test(a_held_head_can_still_be_replaced),
        cmocka_unit_test(a_stream_that_breaks_ends_with_an_error_event),
        cmocka_unit_test(a_stream_that_breaks_behind_its_end_is_whole),
        cmocka_unit_test(a_body_that_ends_early_cannot_be_taken_for_complete),
        cmocka_unit_test(a_request_that_kills_workers_is_not_tried_for_ever),
        cmocka_unit_test(a_request_that_killed_workers_is_refused_at_the_door),
        cmocka_unit_test(a_request_that_killed_workers_of_another_is_tried_on_one),
        cmocka_unit_test(a_worker_that_reports_draining_gets_no_more),
        cmocka_unit_test(an_answer_that_is_not_http_is_replaced),
        cmocka_unit_test(a_refusal_is_passed_on_only_without_another_worker),
        cmocka_unit_test(a_worker_that_drains_costs_no_attempt_and_no_strike),
        cmocka_unit_test(when_all_drain_the_refusal_is_passed_on),
        cmocka_unit_test(share_of_a_lost_worker_moves_at_once),
        cmocka_unit_test(a_client_that_leaves_while_a_retry_waits_is_forgotten),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

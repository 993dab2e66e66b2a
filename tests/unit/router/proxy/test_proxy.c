/* tests/unit/router/proxy/test_proxy.c - whole exchanges: client, proxy and scripted workers on one
 * loop. */
#include <signal.h>

#include "common/base/rng.h"
#include "common/protocol/request_events.h"
#include "router/access/keys.h"
#include "router/prompt/prompt_hash.h"
#include "tests/support/cm.h"
#include "tests/support/proxy_fixture.h"

/* --- answers ---------------------------------------------------------------------------------- */

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

static void every_framing_is_rewritten(void **state) {
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

/* The tokens that a worker counts are none that it computes. */
static void counted_tokens_are_no_prompt(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 1);
    PLAY(&fx, {"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 18\r\n\r\n"
               "{\"input_tokens\":7}"});
    ask(&fx, &c,
        "POST /v1/messages/count_tokens HTTP/1.1\r\nHost: a\r\nContent-Length: 51\r\n\r\n" BODY,
        "tokens\":7}");
    TURN_UNTIL(fx.loop, n_open(&fx) == 0);
    assert_true(metric_value(metrics_at(fx.metrics, ROUTER_prompt_tokens_total)) == 0);
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
    fake_send(&fx.fake, STR("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"));
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

static uint32_t n_without_first_token(struct fixture *fx) {
    struct registry_view view;

    assert_true(registry_get(fx->registry, 0, &view));
    return view.n_pending;
}

/* An end within reach reports it too; else it is reported at once, for any outcome. */
static void a_first_token_is_reported_before_a_distant_end(void **state) {
    static const struct fake_step half = {
        "HTTP/1.1 200 OK\r\nx-incipit-prompt-tokens: 9\r\ncontent-length: 11\r\n\r\n{\"ok\""};
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx, 1);
    fake_play(&fx.fake, &half, 1);
    ask(&fx, &c, ASK, "{\"ok\"");
    assert_int_equal(n_open(&fx), 1);
    assert_int_equal(n_without_first_token(&fx), 0);
    fake_send(&fx.fake, STR(":true}"));
    client_expect(&c, fx.loop, "{\"ok\":true}");
    assert_int_equal(n_open(&fx), 0);
    client_close(&c);
    finish(&fx);
}

static void numbers_cut_in_two_are_learned(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start_with(&fx, 1, usual, true);
    PLAY(&fx, {SSE_HEAD "31\r\ndata: {\"prompt_tokens\":12,\"cached_tokens\":8,\"cach\r\n"});
    ask(&fx, &c, ASK, "\"cach\r\n");
    fake_send(&fx.fake, STR("c\r\ned_tokens\":1\r\n"));
    client_expect(&c, fx.loop, "ed_tokens\":1\r\n");
    fake_send(&fx.fake, STR("4\r\n0}\n\n\r\n0\r\n\r\n"));
    client_expect(&c, fx.loop, "\r\n0\r\n\r\n");
    assert_true(metric_value(metrics_at(fx.metrics, ROUTER_prompt_tokens_total)) == 12);
    assert_true(metric_value(metrics_at(fx.metrics, ROUTER_cached_tokens_total)) == 10);
    client_close(&c);
    finish(&fx);
}

/* --- clients ---------------------------------------------------------------------------------- */

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
        TURN_UNTIL(fx.loop, fx.fake.n_open == 0); /* the worker sees the close */
        assert_true(counted(&fx, "499") == 1);
        finish(&fx);
    }
}

static void a_slow_reader_holds_back_its_worker(void **state) {
    const uint64_t total = 64u << 20;
    char head[128];
    struct fixture fx;
    struct client c;
    uint64_t before = 1, got = 0, until_us = clock_now_us() + 20 * CLIENT_TIMEOUT_US;

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

/* --- everything at once ----------------------------------------------------------------------- */

static void every_outcome_gives_load_back(void **state) {
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

/* --- headers about the client ----------------------------------------------------------------- */

static void forwarding_headers_of_a_client_are_dropped(void **state) {
    static const char *const headers[] = {"forwarded: for=9", "x-real-ip", "x-forwarded-for: 9",
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
    for (size_t i = 0; i < ARRAY_LEN(headers); i++)
        assert_null(strstr(buf_ptr(&fx.fake.last_request), headers[i]));
    assert_non_null(strstr(buf_ptr(&fx.fake.last_request), "x-forwarded-for: 127.0.0.1\r\n"));
    assert_non_null(strstr(buf_ptr(&fx.fake.last_request), "x-other: 9\r\n"));
    client_close(&c);
    finish(&fx);
}

/* --- events for other routers ----------------------------------------------------------------- */

static const char *last_request(struct fixture *fx) {
    buf_append_char(&fx->fake.last_request, '\0');
    return buf_ptr(&fx->fake.last_request);
}

static void describe_as_publishing(struct fixture *fx, bool has_events) {
    struct registry_view view;

    assert_true(registry_get(fx->registry, 0, &view));
    view.info.publishes_events = has_events;
    assert_int_equal(registry_describe(fx->registry, 0, &view.info, false, NULL), ST_OK);
}

/* The chain in the head that a worker got; false when there is none. Its mark is that of a tenant
 * without a name, at the usual priority. */
static bool chain_received(struct fixture *fx, uint64_t *blocks, struct request_chain *chain) {
    struct request_mark mark;
    const char *at = strstr(last_request(fx), WIRE_CHAIN ": ");

    if (!at) return false;
    at += sizeof(WIRE_CHAIN ": ") - 1;
    assert_int_equal(request_chain_parse((struct str){at, strcspn(at, "\r")}, blocks, chain, &mark),
                     ST_OK);
    assert_true(mark.tenant);
    assert_true(!mark.priority && !mark.session && !mark.is_turn && !mark.has_waited);
    return true;
}

static void a_worker_with_request_events_gets_the_chain(void **state) {
    static uint64_t blocks[CHAIN_BLOCKS_MAX];
    struct proxy_config config = usual;
    struct request_chain chain;
    uint64_t expected[8];
    struct fixture fx;
    struct client c;

    (void)state;
    config.origin = 0xABC;
    config.scheme = 0xDEF;
    config.hash_secret = 5;
    start_with(&fx, 1, config, false);
    PLAY(&fx, {JSON_OK});
    ask(&fx, &c, ASK, "{\"ok\":true}");
    client_close(&c);
    assert_false(chain_received(&fx, blocks, &chain)); /* an older one would not know what it is */
    describe_as_publishing(&fx, true);
    ask(&fx, &c,
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\n" WIRE_CHAIN
        ": 1 0000000000000bad 0000000000000bad 9\r\nContent-Length: 51\r\n\r\n" BODY,
        "{\"ok\":true}");
    client_close(&c);
    assert_true(chain_received(&fx, blocks, &chain));     /* ours, not the client's */
    assert_null(strstr(last_request(&fx), "0000000bad")); /* not the id, which is random */
    assert_int_equal(chain.origin, 0xABC);
    assert_int_equal(chain.scheme, 0xDEF);
    assert_int_equal(chain.prompt_bytes, 40); /* with its quotes */
    assert_int_equal(chain.n_blocks, 3);
    prompt_hash_chain(STR("\"Gallia est omnis divisa in partes tres\""),
                      prompt_hash_seed(&(struct prompt_scope){0}, 5), 16, expected, 3);
    assert_memory_equal(blocks, expected, 3 * sizeof(*blocks));
    ask(&fx, &c, "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 51\r\n\r\n" BODY,
        "{\"ok\":true}");
    client_close(&c);
    assert_false(chain_received(&fx, blocks, &chain)); /* it computes nothing */
    finish(&fx);
}

/* The head stays below what a worker reads of one, whatever the client sends and the prompt is. */
static void a_long_chain_is_cut_where_the_head_would_be_too_long(void **state) {
    static uint64_t blocks[CHAIN_BLOCKS_MAX];
    static char request[256 << 10], padding[20000];
    struct proxy_config config = usual;
    struct request_chain chain;

    (void)state;
    config.origin = 1;
    config.max_prefix_blocks = 4096;
    memset(padding, 'p', sizeof(padding) - 1);
    for (int has_long_head = 0; has_long_head < 2; has_long_head++) {
        struct fixture fx;
        struct client c;
        const char *end;
        int n = sprintf(request,
                        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nx-a: %s\r\nContent-Length: "
                        "100013\r\n\r\n{\"prompt\":\"",
                        has_long_head ? padding : "");

        memset(request + n, 'x', 100000);
        strcpy(request + n + 100000, "\"}");
        start_with(&fx, 1, config, false);
        describe_as_publishing(&fx, true);
        PLAY(&fx, {JSON_OK});
        ask(&fx, &c, request, "{\"ok\":true}");
        client_close(&c);
        assert_true(chain_received(&fx, blocks, &chain));
        assert_int_equal(chain.prompt_bytes, 100002);
        if (has_long_head)
            assert_in_range(chain.n_blocks, 500, 1500);
        else
            assert_int_equal(chain.n_blocks, CHAIN_BLOCKS_MAX);
        end = strstr(buf_ptr(&fx.fake.last_request), "\r\n\r\n");
        assert_true(end - buf_ptr(&fx.fake.last_request) < 31 << 10);
        finish(&fx);
    }
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

static void an_unsent_request_costs_no_tokens(void **state) {
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

static void reason_phrase_is_that_of_the_standard_or_the_workers(void **state) {
    static const struct {
        const char *headers, *wanted;
    } cases[] = {
        {"205 Whatever", "HTTP/1.1 205 Reset Content\r\n"},
        {"451 No", "HTTP/1.1 451 Unavailable For Legal Reasons\r\n"},
        {"299 Fine by me", "HTTP/1.1 299 Fine by me\r\n"},
        {"499 ", "HTTP/1.1 499 \r\n"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char answer[256];
        struct fixture fx;
        struct client c;

        start(&fx, 1);
        snprintf(answer, sizeof(answer), "HTTP/1.1 %s\r\ncontent-length: 4\r\n\r\nbody",
                 cases[i].headers);
        PLAY(&fx, {answer});
        ask(&fx, &c, ASK, "body");
        assert_int_equal(client_count(&c, cases[i].wanted), 1);
        client_close(&c);
        finish(&fx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reason_phrase_is_that_of_the_standard_or_the_workers),
        cmocka_unit_test(an_answer_is_relayed_and_accounted),
        cmocka_unit_test(forwarding_headers_of_a_client_are_dropped),
        cmocka_unit_test(a_worker_with_request_events_gets_the_chain),
        cmocka_unit_test(a_long_chain_is_cut_where_the_head_would_be_too_long),
        cmocka_unit_test(a_tenant_named_twice_is_refused),
        cmocka_unit_test(an_unsent_request_costs_no_tokens),
        cmocka_unit_test(every_framing_is_rewritten),
        cmocka_unit_test(an_error_of_a_worker_teaches_nothing),
        cmocka_unit_test(a_tokenize_call_fills_no_cache),
        cmocka_unit_test(counted_tokens_are_no_prompt),
        cmocka_unit_test(a_large_body_goes_whole),
        cmocka_unit_test(a_foreign_worker_leaves_the_waiting_sum_by_prediction),
        cmocka_unit_test(the_first_event_of_a_foreign_stream_is_its_first_token),
        cmocka_unit_test(a_first_token_is_reported_before_a_distant_end),
        cmocka_unit_test(numbers_cut_in_two_are_learned),
        cmocka_unit_test(a_client_that_leaves_frees_the_worker),
        cmocka_unit_test(a_slow_reader_holds_back_its_worker),
        cmocka_unit_test(bodies_that_cannot_be_read_cost_no_worker),
        cmocka_unit_test(every_outcome_gives_load_back),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

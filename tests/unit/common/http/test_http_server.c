/* tests/unit/common/http/test_http_server.c - requests, answers and streams over real loopback
 * sockets.
 *
 * Server and clients share one thread: the test turns the loop until what it waits for is there. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/http/http_server.h"
#include "common/net/conn.h"
#include "common/net/loop.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "tests/unit/common/http/http_fixture.h"

/* --- requests and answers --------------------------------------------------------------------- */

static void one_connection_serves_many_requests(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    for (int i = 0; i < 3; i++) {
        buf_clear(&c.got);
        client_send(&c, fx.loop, STR(POST_ABC));
        client_expect(&c, fx.loop, "content-length: 3\r\n\r\nabc");
        assert_true(str_starts(buf_str(&c.got), STR("HTTP/1.1 200 OK\r\ndate: ")));
        assert_int_equal(client_count(&c, "connection:"), 0);
    }
    assert_int_equal(http_server_stats(fx.server).requests_total, 3);
    assert_int_equal(http_server_stats(fx.server).connections_total, 1);
    assert_int_equal(http_server_stats(fx.server).open_requests, 0);
    client_close(&c);
    finish(&fx);
}

static void pipelined_requests_are_answered_in_order(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop,
                STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n1"
                    "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\ntwo"
                    "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nthree"));
    TURN_UNTIL(fx.loop, fx.n_kept == 1);
    loop_turn(fx.loop, 1000);
    assert_int_equal(http_server_stats(fx.server).requests_total, 1);
    http_reply(fx.kept[0], 200, "text/plain", STR("one"));
    client_expect(&c, fx.loop, "three");
    assert_true(str_find(buf_str(&c.got), STR("one")) < str_find(buf_str(&c.got), STR("two")));
    assert_int_equal(client_count(&c, "HTTP/1.1 200"), 3);
    client_close(&c);
    finish(&fx);
}

static void a_kept_request_keeps_its_strings_while_more_arrives(void **state) {
    struct fixture fx;
    struct client c;
    struct buf more;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    buf_init(&more, 0);
    client_send(&c, fx.loop,
                STR("POST /keep?q=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"));
    TURN_UNTIL(fx.loop, fx.n_kept == 1);
    for (int i = 0; i < 3000; i++)
        buf_append_str(&more, STR(POST_ABC)); /* 165 KB */
    client_send(&c, fx.loop, (struct str){buf_ptr(&more), 100000});
    for (int i = 0; i < 10; i++)
        loop_turn(fx.loop, 1000);
    assert_true(str_eq(fx.kept[0]->body, STR("body")));
    assert_true(str_eq(fx.kept[0]->query, STR("q=1")));
    assert_true(str_eq(http_request_header(fx.kept[0], STR("HOST")), STR("a")));
    http_reply(fx.kept[0], 200, NULL, STR(""));
    client_send(&c, fx.loop, (struct str){buf_ptr(&more) + 100000, buf_len(&more) - 100000});
    TURN_UNTIL(fx.loop, (client_read(&c), http_server_stats(fx.server).requests_total == 3001));
    TURN_UNTIL(fx.loop, (client_read(&c), client_count(&c, "\r\n\r\nabc") == 3000));
    buf_fini(&more);
    client_close(&c);
    finish(&fx);
}

static void bodies_are_equal_however_they_are_framed_and_cut(void **state) {
    static const char *const forms[] = {
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nhello world",
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        "5\r\nhello\r\n1;x=y\r\n \r\n5\r\nworld\r\n0\r\nTrailer: dropped\r\n\r\n",
    };
    struct fixture fx;

    (void)state;
    start(&fx);
    for (size_t form = 0; form < ARRAY_LEN(forms); form++) {
        for (size_t piece = 1; piece < 200; piece += 33) {
            struct str rest = str_of(forms[form]);
            struct client c;

            client_open(&c, http_server_port(fx.server));
            while (rest.len) {
                size_t n = MIN(piece, rest.len);

                client_send(&c, fx.loop, (struct str){rest.ptr, n});
                rest = (struct str){rest.ptr + n, rest.len - n};
                loop_turn(fx.loop, 100);
            }
            client_expect(&c, fx.loop, "content-length: 11\r\n\r\nhello world");
            client_close(&c);
        }
    }
    finish(&fx);
}

static void large_bodies_arrive_intact(void **state) {
    const size_t sizes[] = {4000, 4096, 65500, 65536, 70000, 1u << 20, 5u << 20};
    struct fixture fx;

    (void)state;
    start(&fx);
    for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
        size_t n = sizes[s], head, answer;
        struct client c;
        struct buf sent;
        uint64_t until_us = clock_now_us() + CLIENT_TIMEOUT_US;

        buf_init(&sent, 0);
        client_open(&c, http_server_port(fx.server));
        buf_appendf(&sent, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", n);
        head = buf_len(&sent);
        for (size_t i = 0; i < n; i++)
            buf_append_char(&sent, (char)('a' + (i * 7 + i / 251) % 26));
        client_send(&c, fx.loop, buf_str(&sent));
        client_expect(&c, fx.loop, "\r\n\r\n");
        answer = (size_t)str_find(buf_str(&c.got), STR("\r\n\r\n")) + 4 + n;
        while (buf_len(&c.got) < answer && clock_now_us() < until_us) {
            loop_turn(fx.loop, 100);
            client_read(&c);
        }
        assert_int_equal(buf_len(&c.got), answer);
        assert_memory_equal(buf_ptr(&c.got) + buf_len(&c.got) - n, buf_ptr(&sent) + head, n);
        buf_fini(&sent);
        client_close(&c);
    }
    finish(&fx);
}

static void head_is_answered_without_body(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("HEAD /sse HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_expect(&c, fx.loop, "transfer-encoding: chunked\r\n\r\n");
    client_send(&c, fx.loop, STR("HEAD /nowhere HTTP/1.1\r\nHost: a\r\n\r\n" POST_ABC));
    client_expect(&c, fx.loop, "\r\n\r\nabc");
    assert_int_equal(client_count(&c, "{"), 0);
    assert_int_equal(client_count(&c, "404 Not Found"), 1);
    client_close(&c);
    finish(&fx);
}

static void answers_without_content_have_no_length(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("GET /none HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_expect(&c, fx.loop, "HTTP/1.1 204 No Content\r\n");
    client_expect(&c, fx.loop, "x-test: yes\r\n\r\n");
    assert_int_equal(client_count(&c, "content-length"), 0);
    client_close(&c);
    finish(&fx);
}

static void unknown_paths_and_methods_are_refused_with_what_exists(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_expect(&c, fx.loop, "no such path: /nowhere");
    client_send(&c, fx.loop, STR("DELETE /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_expect(&c, fx.loop, "HTTP/1.1 405 Method Not Allowed");
    client_expect(&c, fx.loop, "allow: POST, GET, HEAD\r\n");
    client_send(&c, fx.loop, STR("OPTIONS /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_expect(&c, fx.loop, "HTTP/1.1 204");
    client_close(&c);
    finish(&fx);
}

static void expect_continue_is_answered_before_the_body(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop,
                STR("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: "
                    "100-continue\r\n\r\n"));
    client_expect(&c, fx.loop, "HTTP/1.1 100 Continue\r\n\r\n");
    client_send(&c, fx.loop, STR("abc"));
    client_expect(&c, fx.loop, "HTTP/1.1 200 OK");
    client_expect(&c, fx.loop, "abc");
    client_close(&c);
    finish(&fx);
}

static void old_clients_get_old_answers(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("GET /sse HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    client_expect_close(&c, fx.loop);
    assert_false(c.was_reset);
    assert_int_equal(client_count(&c, "chunked"), 0);
    assert_int_equal(client_count(&c, "connection: close\r\n"), 1);
    assert_true(str_ends(buf_str(&c.got), STR("\r\n\r\ndata: {\"n\":1}\n\ndata: {\"n\":2}\n\n"
                                              "data: [DONE]\n\n")));
    client_close(&c);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    client_expect(&c, fx.loop, "connection: keep-alive\r\n");
    client_send(&c, fx.loop, STR("GET /echo HTTP/1.0\r\n\r\n"));
    client_expect(&c, fx.loop, "connection: close\r\n");
    client_expect_close(&c, fx.loop);
    client_close(&c);
    finish(&fx);
}

/* --- streams ---------------------------------------------------------------------------------- */

static void writes_of_one_turn_leave_in_one_send(void **state) {
    struct fixture fx;
    struct client c;
    size_t n;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("GET /sse HTTP/1.1\r\nHost: a\r\n\r\n"));
    do {
        loop_turn(fx.loop, 1000);
        n = client_read(&c);
    } while (n == 0);
    assert_true(str_ends(buf_str(&c.got), STR("\r\n\r\nf\r\ndata: {\"n\":1}\n\n\r\n"
                                              "f\r\ndata: {\"n\":2}\n\n\r\n"
                                              "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")));
    client_close(&c);
    finish(&fx);
}

static void a_stream_arrives_as_it_is_written(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    TURN_UNTIL(fx.loop, fx.n_kept == 1);
    http_stream_begin(fx.kept[0], 200, HTTP_SSE);
    client_expect(&c, fx.loop, "\r\n\r\n");
    for (int i = 0; i < 5; i++) {
        char json[16];

        snprintf(json, sizeof(json), "%d", i);
        http_sse_event(fx.kept[0], str_of(json));
        client_expect(&c, fx.loop, json);
    }
    http_stream_end(fx.kept[0]);
    client_expect(&c, fx.loop, "0\r\n\r\n");
    client_send(&c, fx.loop, STR(POST_ABC));
    client_expect(&c, fx.loop, "abc");
    assert_int_equal(fx.n_aborted, 0);
    client_close(&c);
    finish(&fx);
}

static void a_client_that_leaves_aborts_its_request_once(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    for (int i = 0; i < 2; i++) {
        client_open(&c, http_server_port(fx.server));
        client_send(&c, fx.loop,
                    STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
        TURN_UNTIL(fx.loop, fx.n_kept == i + 1);
        if (i == 1) http_stream_begin(fx.kept[1], 200, HTTP_SSE);
        client_close(&c);
        TURN_UNTIL(fx.loop, fx.n_aborted == i + 1);
    }
    TURN_UNTIL(fx.loop, http_server_stats(fx.server).open_connections == 0);
    assert_int_equal(http_server_stats(fx.server).aborted_total, 2);
    assert_int_equal(http_server_stats(fx.server).open_requests, 0);
    finish(&fx);
}

static void count_drain(struct http_request *req) {
    struct fixture *fx = req->user;

    fx->n_drained++;
}

static void a_slow_reader_is_waited_for(void **state) {
    static char piece[10000];
    struct fixture fx;
    struct client c;
    size_t written = 0;

    (void)state;
    start(&fx);
    memset(piece, 'x', sizeof(piece));
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    TURN_UNTIL(fx.loop, fx.n_kept == 1);
    fx.kept[0]->on_drain = count_drain;
    http_stream_begin(fx.kept[0], 200, "text/plain");
    while (http_pending_bytes(fx.kept[0]) < 200000) {
        http_stream_write(fx.kept[0], (struct str){piece, sizeof(piece)});
        loop_turn(fx.loop, 0); /* sends */
        written += sizeof(piece);
        assert_true(written < 100u << 20);
    }
    loop_turn(fx.loop, 1000);
    assert_int_equal(fx.n_drained, 0);
    TURN_UNTIL(fx.loop, (client_read(&c), fx.n_drained == 1));
    assert_true(http_pending_bytes(fx.kept[0]) <= CONN_LOW_WATER_BYTES);
    http_stream_end(fx.kept[0]);
    client_expect(&c, fx.loop, "\r\n0\r\n\r\n");
    assert_int_equal(client_count(&c, "\r\n2710\r\n"), written / sizeof(piece));
    client_close(&c);
    finish(&fx);
}

static void a_broken_stream_has_no_end(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    TURN_UNTIL(fx.loop, fx.n_kept == 1);
    http_stream_begin(fx.kept[0], 200, HTTP_SSE);
    http_sse_event(fx.kept[0], STR("{}"));
    http_stream_break(fx.kept[0]);
    client_expect_close(&c, fx.loop);
    assert_true(str_ends(buf_str(&c.got), STR("data: {}\n\n\r\n")));
    client_close(&c);
    finish(&fx);
}

static void raw_answers_are_passed_through(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    for (int i = 0; i < 2; i++) {
        client_send(&c, fx.loop,
                    STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
        TURN_UNTIL(fx.loop, fx.n_kept == i + 1);
        assert_false(http_wants_close(fx.kept[i]));
        http_raw_write(fx.kept[i], STR("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"));
        http_raw_write(fx.kept[i], STR("raw!"));
        http_raw_end(fx.kept[i], i == 0);
    }
    client_expect_close(&c, fx.loop);
    assert_true(str_eq(buf_str(&c.got), STR("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nraw!"
                                            "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nraw!")));
    client_close(&c);
    finish(&fx);
}

/* --- chance ----------------------------------------------------------------------------------- */

/* Random valid requests, cut at random, pipelined at random: every answer comes, in order. */
static void random_traffic_is_answered_in_order(void **state) {
    struct rng rng;
    struct fixture fx;
    struct client c;
    struct buf sent, wanted;

    (void)state;
    rng_seed(&rng, support_seed());
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    buf_init(&sent, 0);
    buf_init(&wanted, 0);
    for (int i = 0; i < 300; i++) {
        size_t n = rng_below(&rng, rng_below(&rng, 10) == 0 ? 90000 : 300);
        struct buf body;

        buf_init(&body, 0);
        buf_appendf(&body, "<%d>", i);
        for (size_t k = 0; k < n; k++)
            buf_append_char(&body, (char)('a' + k % 26));
        if (rng_below(&rng, 2)) {
            buf_appendf(&sent, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n",
                        buf_len(&body));
            buf_append_str(&sent, buf_str(&body));
        } else {
            struct str rest = buf_str(&body);

            buf_append_str(&sent, STR("POST /echo HTTP/1.1\r\nHost: a\r\n"
                                      "Transfer-Encoding: chunked\r\n\r\n"));
            while (rest.len) {
                size_t part = 1 + rng_below(&rng, rest.len);

                buf_appendf(&sent, "%zX\r\n", part);
                buf_append(&sent, rest.ptr, part);
                buf_append_str(&sent, STR("\r\n"));
                rest = (struct str){rest.ptr + part, rest.len - part};
            }
            buf_append_str(&sent, STR("0\r\n\r\n"));
        }
        buf_append_str(&wanted, buf_str(&body));
        buf_fini(&body);
    }
    for (struct str rest = buf_str(&sent); rest.len;) {
        size_t n = MIN(rest.len, 1 + (size_t)rng_below(&rng, 20000));

        client_send(&c, fx.loop, (struct str){rest.ptr, n});
        rest = (struct str){rest.ptr + n, rest.len - n};
        if (rng_below(&rng, 2)) loop_turn(fx.loop, 200);
        client_read(&c);
    }
    TURN_UNTIL(fx.loop, (client_read(&c), http_server_stats(fx.server).requests_total == 300));
    client_expect(&c, fx.loop, "<299>");
    for (int i = 0; i < 50; i++) {
        loop_turn(fx.loop, 100);
        client_read(&c);
    }
    for (struct str rest = buf_str(&c.got), want = buf_str(&wanted); rest.len;) {
        ptrdiff_t end = str_find(rest, STR("\r\n\r\n")), at = str_find(rest, STR("length: "));
        size_t n = strtoul(rest.ptr + at + 8, NULL, 10);

        assert_true(end > 0 && at > 0 && rest.len >= (size_t)end + 4 + n && want.len >= n);
        assert_memory_equal(rest.ptr + end + 4, want.ptr, n);
        rest = (struct str){rest.ptr + end + 4 + n, rest.len - (size_t)end - 4 - n};
        want = (struct str){want.ptr + n, want.len - n};
        if (!rest.len) assert_int_equal(want.len, 0);
    }
    buf_fini(&sent);
    buf_fini(&wanted);
    client_close(&c);
    finish(&fx);
}

/* --- leaving HTTP ----------------------------------------------------------------------------- */

static void a_socket_that_was_taken_is_its_new_owners(void **state) {
    struct fixture fx;
    struct client c;
    char byte;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("GET /take HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_expect(&c, fx.loop, "101 Switching Protocols\r\n\r\n");
    assert_int_equal(http_server_stats(fx.server).open_connections, 0);
    assert_int_equal(http_server_stats(fx.server).open_requests, 0);
    client_send(&c, fx.loop, STR("x"));
    assert_int_equal(recv(fx.taken, &byte, 1, 0), 1);
    assert_int_equal(send(fx.taken, "y", 1, 0), 1);
    client_expect(&c, fx.loop, "\r\n\r\ny");
    close(fx.taken);
    client_expect_close(&c, fx.loop);
    client_close(&c);
    finish(&fx);
}

static void a_socket_with_bytes_behind_the_request_is_not_handed_over(void **state) {
    struct fixture fx;
    struct client c;

    (void)state;
    start(&fx);
    client_open(&c, http_server_port(fx.server));
    client_send(&c, fx.loop, STR("GET /take HTTP/1.1\r\nHost: a\r\n\r\n" POST_ABC));
    client_expect(&c, fx.loop, "\r\n\r\nabc");
    assert_int_equal(client_count(&c, "HTTP/1.1 400"), 1);
    client_close(&c);
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_connection_serves_many_requests),
        cmocka_unit_test(pipelined_requests_are_answered_in_order),
        cmocka_unit_test(a_kept_request_keeps_its_strings_while_more_arrives),
        cmocka_unit_test(bodies_are_equal_however_they_are_framed_and_cut),
        cmocka_unit_test(large_bodies_arrive_intact),
        cmocka_unit_test(head_is_answered_without_body),
        cmocka_unit_test(answers_without_content_have_no_length),
        cmocka_unit_test(unknown_paths_and_methods_are_refused_with_what_exists),
        cmocka_unit_test(expect_continue_is_answered_before_the_body),
        cmocka_unit_test(old_clients_get_old_answers),
        cmocka_unit_test(writes_of_one_turn_leave_in_one_send),
        cmocka_unit_test(a_stream_arrives_as_it_is_written),
        cmocka_unit_test(a_client_that_leaves_aborts_its_request_once),
        cmocka_unit_test(a_slow_reader_is_waited_for),
        cmocka_unit_test(a_broken_stream_has_no_end),
        cmocka_unit_test(raw_answers_are_passed_through),
        cmocka_unit_test(random_traffic_is_answered_in_order),
        cmocka_unit_test(a_socket_that_was_taken_is_its_new_owners),
        cmocka_unit_test(a_socket_with_bytes_behind_the_request_is_not_handed_over),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

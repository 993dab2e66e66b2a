/* tests/unit/common/http/test_http_client.c - control-plane calls against our own server, one
 * loop. */
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/http/http_client.h"
#include "common/http/http_server.h"
#include "common/net/loop.h"
#include "common/net/tls.h"
#include "tests/support/certs.h"
#include "tests/support/cm.h"

#define PATIENCE_US 60000000u /* for what comes at once on an idle machine */

struct fixture {
    struct loop *loop;
    struct http_server *server;
    struct http_client *client;
    struct http_request *kept;
    char url[64];
    /* The last answer. */
    int n_answers;
    enum status status;
    int code;
    uint32_t retry_after_s;
    struct buf body, content_type, pieces;
    struct http_call *stream;
    bool cancels; /* the stream, when it has delivered a piece */
    char message[200];
};

/* --- the system's resolver, which knows one name that takes its time -------------------------- */

#define SLOW_NAME "slow.test"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n_asked, n_answered; /* about the slow name */
    bool may_answer;
} lookups = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

int getaddrinfo(const char *restrict node, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict found) {
    int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    struct timespec until;

    *(void **)&next = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!node || strcmp(node, SLOW_NAME) != 0) return next(node, service, hints, found);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 5; /* a bound for each wait */
    pthread_mutex_lock(&lookups.lock);
    lookups.n_asked++;
    pthread_cond_broadcast(&lookups.changed);
    while (!lookups.may_answer &&
           pthread_cond_timedwait(&lookups.changed, &lookups.lock, &until) != ETIMEDOUT) {
    }
    lookups.n_answered++;
    pthread_cond_broadcast(&lookups.changed);
    pthread_mutex_unlock(&lookups.lock);
    return EAI_AGAIN;
}

static void await_lookup(void) {
    pthread_mutex_lock(&lookups.lock);
    while (lookups.n_asked == lookups.n_answered)
        pthread_cond_wait(&lookups.changed, &lookups.lock);
    pthread_mutex_unlock(&lookups.lock);
}

/* Returns how many were answered before this. */
static uint32_t end_lookups(void) {
    uint32_t n;

    pthread_mutex_lock(&lookups.lock);
    n = lookups.n_answered;
    lookups.may_answer = true;
    pthread_cond_broadcast(&lookups.changed);
    while (lookups.n_asked > lookups.n_answered)
        pthread_cond_wait(&lookups.changed, &lookups.lock);
    lookups.may_answer = false;
    lookups.n_asked = lookups.n_answered = 0;
    pthread_mutex_unlock(&lookups.lock);
    return n;
}

/* --- the server and the client ---------------------------------------------------------------- */

static void on_request(struct http_request *req, void *arg) {
    struct fixture *fx = arg;
    static char large[100000];

    if (str_eq(req->path, STR("/echo"))) {
        struct str type = http_request_header(req, STR("X-Type"));

        http_add_header(req, STR("x-seen"), type.ptr ? type : STR("none"));
        http_reply(req, 200, "text/x-echo", req->body);
    } else if (str_eq(req->path, STR("/never"))) {
        fx->kept = req;
    } else if (str_eq(req->path, STR("/large"))) {
        http_reply(req, 200, "text/plain", (struct str){large, sizeof(large)});
    } else if (str_eq(req->path, STR("/moved"))) {
        http_add_header(req, STR("location"), STR("/echo"));
        http_reply(req, 302, NULL, STR(""));
    } else if (str_eq(req->path, STR("/stream"))) {
        fx->kept = req;
        http_stream_begin(req, 200, "text/plain");
    } else {
        http_add_header(req, STR("retry-after"), STR("7"));
        http_reply_error(req, ST_UNAVAILABLE, NULL);
    }
}

static const struct http_server_events events = {.on_request = on_request};

static void start(struct fixture *fx) {
    struct error err = {0};

    memset(fx, 0, sizeof(*fx));
    buf_init(&fx->body, 0);
    buf_init(&fx->content_type, 0);
    buf_init(&fx->pieces, 0);
    assert_int_equal(loop_create(&fx->loop, &err), ST_OK);
    fx->server = http_server_create(fx->loop, NULL, &events, fx);
    assert_int_equal(http_server_listen(fx->server, "127.0.0.1", 0, false, &err), ST_OK);
    assert_int_equal(http_client_create(&fx->client, fx->loop, &err), ST_OK);
}

static void finish(struct fixture *fx) {
    http_client_destroy(fx->client);
    http_server_destroy(fx->server);
    loop_destroy(fx->loop);
    buf_fini(&fx->body);
    buf_fini(&fx->content_type);
    buf_fini(&fx->pieces);
}

static void on_answer(const struct http_client_response *r, void *arg) {
    struct fixture *fx = arg;

    fx->n_answers++;
    fx->status = r->status;
    fx->code = r->code;
    fx->retry_after_s = r->retry_after_s;
    buf_clear(&fx->body);
    buf_clear(&fx->content_type);
    buf_append_str(&fx->body, r->body);
    buf_append_str(&fx->content_type, r->content_type);
    snprintf(fx->message, sizeof(fx->message), "%s", r->message);
}

static const char *url_of(struct fixture *fx, const char *path) {
    snprintf(fx->url, sizeof(fx->url), "http://127.0.0.1:%u%s", http_server_port(fx->server), path);
    return fx->url;
}

/* Starts the call and turns until it has been answered. */
static void call(struct fixture *fx, const struct http_client_request *r) {
    uint64_t until_us = clock_now_us() + PATIENCE_US;
    int before = fx->n_answers;
    struct error err = {0};

    assert_int_equal(http_client_start(fx->client, r, on_answer, fx, NULL, &err), ST_OK);
    assert_int_equal(fx->n_answers, before);
    while (fx->n_answers == before) {
        loop_turn(fx->loop, 10000);
        assert_true(clock_now_us() < until_us);
    }
    assert_int_equal(fx->n_answers, before + 1);
}

static void calls_carry_method_headers_and_body(void **state) {
    const char *const headers[] = {"X-Type: seven", "Content-Type: text/plain", NULL};
    struct fixture fx;

    (void)state;
    start(&fx);
    call(&fx, &(struct http_client_request){
                  .url = url_of(&fx, "/echo"), .headers = headers, .body = STR("hello")});
    assert_int_equal(fx.status, ST_OK);
    assert_int_equal(fx.code, 200);
    assert_true(str_eq(buf_str(&fx.body), STR("hello")));
    assert_true(str_eq(buf_str(&fx.content_type), STR("text/x-echo")));
    call(&fx, &(struct http_client_request){.url = url_of(&fx, "/echo"), .method = "PUT"});
    assert_int_equal(fx.code, 200);
    call(&fx, &(struct http_client_request){.url = url_of(&fx, "/large"), .method = "HEAD"});
    assert_int_equal(fx.code, 200);
    assert_int_equal(buf_len(&fx.body), 0);
    assert_int_equal(http_server_stats(fx.server).connections_total, 1);
    finish(&fx);
}

static void any_code_is_an_answer_and_redirects_are_not_followed(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx);
    call(&fx, &(struct http_client_request){.url = url_of(&fx, "/other")});
    assert_int_equal(fx.status, ST_OK);
    assert_int_equal(fx.code, 503);
    assert_int_equal(fx.retry_after_s, 7);
    call(&fx, &(struct http_client_request){.url = url_of(&fx, "/moved")});
    assert_int_equal(fx.code, 302);
    finish(&fx);
}

static void on_piece(int code, struct str bytes, void *arg) {
    struct fixture *fx = arg;

    assert_int_equal(code, 200);
    assert_int_equal(fx->n_answers, 0); /* the end comes after the last piece */
    buf_append_str(&fx->pieces, bytes);
    if (fx->cancels) http_call_cancel(fx->stream);
}

static void begin_stream(struct fixture *fx, uint32_t silence_ms) {
    struct error err = {0};

    assert_int_equal(http_client_start(fx->client,
                                       &(struct http_client_request){.url = url_of(fx, "/stream"),
                                                                     .on_data = on_piece,
                                                                     .max_body_bytes = 4 << 20,
                                                                     .silence_ms = silence_ms},
                                       on_answer, fx, &fx->stream, &err),
                     ST_OK);
    while (!fx->kept)
        loop_turn(fx->loop, 10000);
}

static void expect_pieces(struct fixture *fx, struct str what) {
    uint64_t until_us = clock_now_us() + PATIENCE_US;

    while (!str_eq(buf_str(&fx->pieces), what)) {
        loop_turn(fx->loop, 10000);
        assert_true(clock_now_us() < until_us);
    }
}

static void a_stream_is_delivered_as_it_arrives(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx);
    begin_stream(&fx, 0);
    while (http_call_code(fx.stream) == 0)
        loop_turn(fx.loop, 10000);
    assert_int_equal(http_call_code(fx.stream), 200); /* known before the body */
    assert_int_equal(buf_len(&fx.pieces), 0);
    http_stream_write(fx.kept, STR("one "));
    expect_pieces(&fx, STR("one "));
    http_stream_write(fx.kept, STR("two "));
    expect_pieces(&fx, STR("one two "));
    http_stream_write(fx.kept, STR("three"));
    http_stream_end(fx.kept);
    while (!fx.n_answers)
        loop_turn(fx.loop, 10000);
    assert_true(str_eq(buf_str(&fx.pieces), STR("one two three")));
    assert_int_equal(fx.status, ST_OK);
    assert_int_equal(buf_len(&fx.body), 0);
    finish(&fx);
}

/* Far more than the sockets and a piece or two can hold. */
static void a_stream_that_is_held_holds_its_sender(void **state) {
    static char bytes[32 << 20];
    uint64_t until_us = clock_now_us() + PATIENCE_US;
    struct fixture fx;
    size_t n_delivered;

    (void)state;
    start(&fx);
    begin_stream(&fx, 0);
    http_call_pause(fx.stream, true);
    http_stream_write(fx.kept, (struct str){bytes, sizeof(bytes)});
    for (int i = 0; i < 100; i++)
        loop_turn(fx.loop, 1000);
    n_delivered = buf_len(&fx.pieces);
    assert_true(n_delivered < 4 << 20 && http_pending_bytes(fx.kept) > 8 << 20);
    http_call_pause(fx.stream, false);
    while (buf_len(&fx.pieces) < sizeof(bytes)) {
        loop_turn(fx.loop, 10000);
        assert_true(clock_now_us() < until_us);
    }
    assert_int_equal(buf_len(&fx.pieces), sizeof(bytes));
    finish(&fx);
}

static void a_stalled_stream_ends(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx);
    begin_stream(&fx, 50);
    http_stream_write(fx.kept, STR("word"));
    while (!fx.n_answers)
        loop_turn(fx.loop, 10000);
    assert_true(str_eq(buf_str(&fx.pieces), STR("word")));
    assert_int_equal(fx.status, ST_TIMEOUT);
    assert_non_null(strstr(fx.message, "nothing was heard"));
    finish(&fx);
}

/* It is we who do not listen. */
static void a_held_stream_is_not_stalled(void **state) {
    uint64_t until_us;
    struct fixture fx;

    (void)state;
    start(&fx);
    begin_stream(&fx, 50);
    http_call_pause(fx.stream, true);
    http_stream_write(fx.kept, STR("word"));
    for (until_us = clock_now_us() + 150000; clock_now_us() < until_us;)
        loop_turn(fx.loop, 10000);
    assert_int_equal(fx.n_answers, 0);
    http_call_pause(fx.stream, false);
    expect_pieces(&fx, STR("word"));
    while (!fx.n_answers)
        loop_turn(fx.loop, 10000);
    assert_int_equal(fx.status, ST_TIMEOUT);
    finish(&fx);
}

static void a_stream_may_be_cancelled_by_its_own_piece(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx);
    begin_stream(&fx, 0);
    fx.cancels = true;
    http_stream_write(fx.kept, STR("enough"));
    expect_pieces(&fx, STR("enough"));
    for (int i = 0; i < 10; i++)
        loop_turn(fx.loop, 1000);
    assert_int_equal(fx.n_answers, 0);
    finish(&fx);
}

static void failures_are_distinguished(void **state) {
    struct fixture fx;
    uint16_t port;

    (void)state;
    start(&fx);
    call(&fx, &(struct http_client_request){.url = url_of(&fx, "/never"), .timeout_ms = 60});
    assert_int_equal(fx.status, ST_TIMEOUT);
    call(&fx, &(struct http_client_request){.url = url_of(&fx, "/large"), .max_body_bytes = 99999});
    assert_int_equal(fx.status, ST_TOO_LARGE);
    call(&fx,
         &(struct http_client_request){.url = url_of(&fx, "/large"), .max_body_bytes = 100000});
    assert_int_equal(fx.status, ST_OK);
    assert_int_equal(buf_len(&fx.body), 100000);

    port = http_server_port(fx.server);
    http_server_destroy(fx.server);
    fx.server = NULL;
    snprintf(fx.url, sizeof(fx.url), "http://127.0.0.1:%u/echo", port);
    call(&fx, &(struct http_client_request){.url = fx.url});
    assert_int_equal(fx.status, ST_IO);
    assert_true(fx.message[0]);
    finish(&fx);
}

static void a_piece_that_is_too_long_ends_its_stream(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx);
    call(&fx, &(struct http_client_request){
                  .url = url_of(&fx, "/large"), .on_data = on_piece, .max_body_bytes = 10});
    assert_int_equal(fx.status, ST_TOO_LARGE);
    assert_non_null(strstr(fx.message, "longer than allowed"));
    assert_int_equal(buf_len(&fx.pieces), 0);
    finish(&fx);
}

static void malformed_calls_are_refused(void **state) {
    const char *const split[] = {"X: a\r\nY: b", NULL};
    const struct http_client_request requests[] = {
        {.url = "file:///etc/passwd"},
        {.url = "127.0.0.1:80"},
        {.url = "http://127.0.0.1:1/\r\nX: y"},
        {.url = "http://127.0.0.1:1/", .method = "GET /"},
        {.url = "http://127.0.0.1:1/", .headers = split},
    };
    struct fixture fx;

    (void)state;
    start(&fx);
    for (size_t i = 0; i < ARRAY_LEN(requests); i++) {
        struct error err = {0};

        assert_int_equal(http_client_start(fx.client, &requests[i], on_answer, &fx, NULL, &err),
                         ST_INVALID);
        assert_true(err.message[0]);
    }
    assert_int_equal(fx.n_answers, 0);
    finish(&fx);
}

static void cancelled_calls_are_not_reported(void **state) {
    struct http_client_request r = {0};
    struct http_call *pending, *other;
    struct fixture fx;

    (void)state;
    start(&fx);
    r.url = url_of(&fx, "/never");
    assert_int_equal(http_client_start(fx.client, &r, on_answer, &fx, &pending, NULL), ST_OK);
    assert_int_equal(http_client_start(fx.client, &r, on_answer, &fx, &other, NULL), ST_OK);
    while (!fx.kept)
        loop_turn(fx.loop, 10000);
    http_call_cancel(pending);
    for (int i = 0; i < 10; i++)
        loop_turn(fx.loop, 1000);
    assert_int_equal(fx.n_answers, 0);
    finish(&fx); /* drops the other */
    assert_int_equal(fx.n_answers, 0);
}

static void a_call_goes_to_its_address_and_names_its_host(void **state) {
    struct http_client_request request = {.url = "http://no-such-name.invalid:80/echo"};
    struct fixture fx;
    char address[32];

    (void)state;
    start(&fx);
    snprintf(address, sizeof(address), "127.0.0.1:%u", http_server_port(fx.server));
    request.connect_to = address;
    call(&fx, &request);
    assert_int_equal(fx.status, ST_OK);
    assert_int_equal(fx.code, 200);
    finish(&fx);
}

/* A thread that asks a name server cannot be cancelled: no caller waits for it. */
static void a_name_server_that_is_slow_holds_nothing_up(void **state) {
    struct http_client_request request = {.url = "http://" SLOW_NAME ":1/", .timeout_ms = 100};
    struct http_call *pending;
    struct fixture fx;

    (void)state;
    start(&fx);
    call(&fx, &request);
    assert_int_equal(fx.status, ST_TIMEOUT);
    assert_int_equal(end_lookups(), 0);

    request.timeout_ms = 10000;
    assert_int_equal(http_client_start(fx.client, &request, on_answer, &fx, &pending, NULL), ST_OK);
    loop_turn(fx.loop, 10000);
    await_lookup();
    http_call_cancel(pending);
    assert_int_equal(end_lookups(), 0);

    assert_int_equal(http_client_start(fx.client, &request, on_answer, &fx, &pending, NULL), ST_OK);
    loop_turn(fx.loop, 10000);
    await_lookup();
    finish(&fx);
    assert_int_equal(end_lookups(), 0);
}

static struct str text_of_file(const char *path, char **text) {
    size_t n = 0;

    if (!path) return STR_NULL;
    assert_int_equal(file_read(path, 100000, text, &n, NULL), ST_OK);
    return (struct str){*text, n};
}

static void take_as_text(struct http_client_trust *trust, char *texts[3]) {
    trust->ca_pem = text_of_file(trust->ca, &texts[0]);
    trust->cert_pem = text_of_file(trust->cert, &texts[1]);
    trust->key_pem = text_of_file(trust->key, &texts[2]);
    trust->ca = "/nowhere"; /* not looked at */
    if (trust->cert) trust->cert = trust->key = "/nowhere";
}

/* Trust is looked at with each connection, so each case has a client of its own. */
static void https_calls_verify_and_show_certificates(void **state) {
    static const struct {
        const char *server_ca, *ca, *cert, *key, *host;
        bool is_insecure, is_good, is_text;
    } cases[] = {
        {NULL, "ca.pem", NULL, NULL, "127.0.0.1", false, true},
        {NULL, "hashed", NULL, NULL, "localhost", false, true},
        {NULL, "ca.pem", NULL, NULL, "127.0.0.2", false, false},
        {NULL, "other.pem", NULL, NULL, "127.0.0.1", false, false},
        {NULL, NULL, NULL, NULL, "127.0.0.1", false, false},
        {NULL, NULL, NULL, NULL, "127.0.0.1", true, true},
        {"ca.pem", "ca.pem", NULL, NULL, "127.0.0.1", false, false},
        {"ca.pem", "ca.pem", "a.pem", "a.key", "127.0.0.1", false, true},
        {"ca.pem", "ca.pem", "other.pem", "other.key", "127.0.0.1", false, false},
        {NULL, "ca.pem", NULL, NULL, "127.0.0.1", false, true, .is_text = true},
        {NULL, "other.pem", NULL, NULL, "127.0.0.1", false, false, .is_text = true},
        {"ca.pem", "ca.pem", "a.pem", "a.key", "127.0.0.1", false, true, .is_text = true},
        {"ca.pem", "ca.pem", "other.pem", "other.key", "127.0.0.1", false, false, .is_text = true},
    };
    struct certs certs;

    (void)state;
    certs_init(&certs);
    certs_hashed_folder(&certs, "hashed");
    certs_make(&certs,
               &(struct certs_spec){.name = "a", .host = "localhost", .address = "127.0.0.1"});
    certs_make(&certs, &(struct certs_spec){.name = "other", .is_self_signed = true});
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char paths[4][160] = {"", "", "", ""}, to[32], *texts[3] = {NULL, NULL, NULL};
        const char *const names[] = {cases[i].server_ca, cases[i].ca, cases[i].cert, cases[i].key};
        struct tls_config config = {.cert = certs_path(&certs, "a.pem"),
                                    .key = certs_path(&certs, "a.key"),
                                    .is_server = true};
        struct http_client_trust trust = {.is_insecure = cases[i].is_insecure};
        struct tls *tls = NULL;
        struct fixture fx;

        for (int k = 0; k < 4; k++) {
            if (names[k]) snprintf(paths[k], 160, "%s", certs_path(&certs, names[k]));
        }
        config.ca = names[0] ? paths[0] : NULL;
        trust.ca = names[1] ? paths[1] : NULL;
        trust.cert = names[2] ? paths[2] : NULL;
        trust.key = names[3] ? paths[3] : NULL;
        if (cases[i].is_text) take_as_text(&trust, texts);
        start(&fx);
        http_server_destroy(fx.server);
        fx.server = http_server_create(fx.loop, NULL, &events, &fx);
        assert_int_equal(tls_create(&tls, &config, NULL), ST_OK);
        assert_int_equal(http_server_listen_tls(fx.server, tls, "127.0.0.1", 0, false, NULL),
                         ST_OK);
        http_client_trust(fx.client, &trust);
        snprintf(fx.url, sizeof(fx.url), "https://%s:%u/echo", cases[i].host,
                 http_server_port(fx.server));
        snprintf(to, sizeof(to), "127.0.0.1:%u", http_server_port(fx.server));
        call(&fx,
             &(struct http_client_request){.url = fx.url, .connect_to = to, .body = STR("secret")});
        assert_int_equal(fx.status, cases[i].is_good ? ST_OK : ST_IO);
        assert_int_equal(http_server_stats(fx.server).requests_total, cases[i].is_good);
        if (!cases[i].is_good) assert_true(fx.message[0] != '\0');
        finish(&fx);
        tls_destroy(tls);
        for (int k = 0; k < 3; k++)
            mem_free(texts[k]);
    }
    certs_fini(&certs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_carry_method_headers_and_body),
        cmocka_unit_test(any_code_is_an_answer_and_redirects_are_not_followed),
        cmocka_unit_test(a_stream_is_delivered_as_it_arrives),
        cmocka_unit_test(a_stream_that_is_held_holds_its_sender),
        cmocka_unit_test(a_stalled_stream_ends),
        cmocka_unit_test(a_held_stream_is_not_stalled),
        cmocka_unit_test(a_stream_may_be_cancelled_by_its_own_piece),
        cmocka_unit_test(failures_are_distinguished),
        cmocka_unit_test(a_piece_that_is_too_long_ends_its_stream),
        cmocka_unit_test(malformed_calls_are_refused),
        cmocka_unit_test(cancelled_calls_are_not_reported),
        cmocka_unit_test(a_call_goes_to_its_address_and_names_its_host),
        cmocka_unit_test(a_name_server_that_is_slow_holds_nothing_up),
        cmocka_unit_test(https_calls_verify_and_show_certificates),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

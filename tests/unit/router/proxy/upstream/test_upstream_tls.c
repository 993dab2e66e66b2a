/* tests/unit/router/proxy/upstream/test_upstream_tls.c - connections to a worker with https://,
 * verified by
 * the name in its URL, kept like the others, and resumed. */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/http/http_server.h"
#include "common/net/loop.h"
#include "common/net/tls.h"
#include "router/proxy/upstream/upstream.h"
#include "router/registry/registry_route.h"
#include "tests/support/certs.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"

static struct certs certs;

struct fixture {
    struct loop *loop;
    struct http_server *worker;
    struct upstream_pool *pool;
    struct registry_target target;
    struct tls *worker_tls, *tls;
};

struct user {
    struct upstream *up;
    int n_data, n_closed;
    enum conn_end end;
};

static void on_request(struct http_request *req, void *arg) {
    (void)arg;
    http_reply(req, 200, NULL, STR("ok"));
}

static void on_data(void *arg) {
    struct user *u = arg;

    u->n_data++;
    conn_consume(&u->up->conn, conn_input(&u->up->conn).len);
}

static void on_closed(enum conn_end end, void *arg) {
    struct user *u = arg;

    u->n_closed++;
    u->end = end;
    upstream_discard(u->up);
}

static const struct upstream_user user = {.on_data = on_data, .on_closed = on_closed};

static void start(struct fixture *fx, const char *host) {
    static const struct http_server_events events = {.on_request = on_request};
    const struct tls_config worker = {
        .cert = certs_path(&certs, "a.pem"), .key = certs_path(&certs, "a.key"), .is_server = true};
    const struct tls_config ours = {.ca = certs_path(&certs, "ca.pem")};
    struct upstream_pool_config config = {.max_workers = 4,
                                          .max_idle_per_worker = 2,
                                          .idle_timeout_us = 1000000000,
                                          .connect_timeout_us = 1000000};
    struct sockaddr_in *addr = (struct sockaddr_in *)&fx->target.addr;
    uint16_t port;

    memset(fx, 0, sizeof(*fx));
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    assert_int_equal(tls_create(&fx->worker_tls, &worker, NULL), ST_OK);
    assert_int_equal(tls_create(&fx->tls, &ours, NULL), ST_OK);
    fx->worker = http_server_create(fx->loop, NULL, &events, fx);
    assert_int_equal(
        http_server_listen_tls(fx->worker, fx->worker_tls, "127.0.0.1", 0, false, NULL), ST_OK);
    port = http_server_port(fx->worker);
    config.tls = fx->tls;
    fx->pool = upstream_pool_create(fx->loop, &config);
    addr->sin_family = AF_INET;
    addr->sin_port = htons(port);
    addr->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fx->target.addr_len = sizeof(*addr);
    fx->target.is_tls = true;
    snprintf(fx->target.authority, sizeof(fx->target.authority), "%s:%u", host, port);
}

static void finish(struct fixture *fx) {
    upstream_pool_destroy(fx->pool);
    http_server_destroy(fx->worker);
    tls_destroy(fx->worker_tls);
    tls_destroy(fx->tls);
    loop_destroy(fx->loop);
}

static void acquire(struct fixture *fx, struct user *u, bool is_fresh) {
    *u = (struct user){0};
    assert_int_equal(upstream_acquire(fx->pool, &fx->target, is_fresh, &user, u, &u->up, NULL),
                     ST_OK);
    conn_write(&u->up->conn, "GET / HTTP/1.1\r\nhost: h\r\n\r\n", 27);
}

static void the_certificate_is_for_the_host_of_the_url(void **state) {
    static const struct {
        const char *host;
        bool is_good;
    } cases[] = {
        {"localhost", true}, {"127.0.0.1", true},  {"[::1]", true},
        {"[::2]", false},    {"127.0.0.2", false}, {"elsewhere", false},
    };
    struct fixture fx;
    struct user u;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        start(&fx, cases[i].host);
        acquire(&fx, &u, false);
        TURN_UNTIL(fx.loop, u.n_data || u.n_closed);
        assert_int_equal(u.n_data, cases[i].is_good);
        if (!cases[i].is_good) assert_int_equal(u.end, CONN_TLS);
        if (cases[i].is_good) upstream_discard(u.up);
        assert_int_equal(http_server_stats(fx.worker).requests_total, cases[i].is_good);
        finish(&fx);
    }
}

static void connections_are_kept_and_new_ones_resumed(void **state) {
    struct fixture fx;
    struct user a, b;

    (void)state;
    start(&fx, "localhost");
    acquire(&fx, &a, false);
    TURN_UNTIL(fx.loop, a.n_data);
    assert_false(tls_was_resumed(&a.up->conn));
    acquire(&fx, &b, false);
    TURN_UNTIL(fx.loop, b.n_data);
    assert_true(tls_was_resumed(&b.up->conn));
    upstream_release(b.up);
    upstream_discard(a.up);
    for (int i = 0; i < 5; i++)
        loop_turn(fx.loop, 0);
    acquire(&fx, &a, false);
    assert_true(a.up->is_reused);
    TURN_UNTIL(fx.loop, a.n_data);
    assert_int_equal(http_server_stats(fx.worker).connections_total, 2);
    assert_int_equal(tls_reload(fx.tls, NULL), ST_OK); /* what was verified then is not now */
    acquire(&fx, &b, true);
    TURN_UNTIL(fx.loop, b.n_data);
    assert_false(tls_was_resumed(&b.up->conn));
    upstream_discard(a.up);
    upstream_discard(b.up);
    finish(&fx);
}

static int make_certs(void **state) {
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    certs_init(&certs);
    certs_make(&certs, &(struct certs_spec){
                           .name = "a", .host = "localhost", .address = "127.0.0.1,IP:::1"});
    return 0;
}

static int remove_certs(void **state) {
    (void)state;
    certs_fini(&certs);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_certificate_is_for_the_host_of_the_url),
        cmocka_unit_test(connections_are_kept_and_new_ones_resumed),
    };

    return cmocka_run_group_tests(tests, make_certs, remove_certs);
}

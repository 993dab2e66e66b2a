/* tests/unit/router/test_frontend.c - router loops begin, answer, drain and end, in every order. */
#include <signal.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "common/net/mailbox.h"
#include "router/admin/admin.h"
#include "router/frontend.h"
#include "router/metrics/router_metrics.h"
#include "router/registry/registry.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"
#include "tests/support/routing_defaults.h"

struct fixture {
    struct loop *loop; /* the control thread's */
    struct mailbox *box;
    struct registry *registry;
    struct metrics *metrics;
    struct admin admin;
    struct frontend_config config;
    int n_ended;
};

static void on_mail(struct mail *mail, void *arg) {
    ((struct fixture *)arg)->n_ended++;
    mem_free(mail);
}

static void start(struct fixture *fx) {
    struct registry_config config = {0};

    memset(fx, 0, sizeof(*fx));
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    assert_int_equal(mailbox_open(&fx->box, fx->loop, on_mail, fx, NULL), ST_OK);
    routing_options_default(&config.routing);
    config.routing.max_index_bytes = 1 << 20;
    assert_int_equal(registry_create(&fx->registry, &config, NULL), ST_OK);
    fx->metrics = router_metrics_create();
    fx->admin.registry = fx->registry;
    fx->admin.metrics = fx->metrics;
    fx->config = (struct frontend_config){.host = "127.0.0.1",
                                          .share_port = true,
                                          .proxy = {.prefix_block_bytes = 128,
                                                    .max_prefix_blocks = 8,
                                                    .max_workers = 4,
                                                    .request_timeout_us = 60000000,
                                                    .connect_timeout_us = 250000,
                                                    .upstream_idle_us = 60000000,
                                                    .max_attempts = 2},
                                          .control = fx->box};
}

static void finish(struct fixture *fx) {
    mailbox_close(fx->box);
    loop_destroy(fx->loop);
    registry_destroy(fx->registry);
    metrics_destroy(fx->metrics);
}

static struct frontend *create(struct fixture *fx) {
    struct frontend *f = NULL;

    assert_int_equal(
        frontend_create(&f, &fx->config, fx->registry, fx->metrics, NULL, &fx->admin, NULL), ST_OK);
    return f;
}

static void a_frontend_that_never_ran_can_drain(void **state) {
    struct fixture fx;
    struct frontend *f;

    (void)state;
    start(&fx);
    f = create(&fx);
    frontend_drain(f, 0, 0);
    frontend_drain(f, 0, 0);
    frontend_destroy(f);
    finish(&fx);
}

static void several_share_a_port_and_end_when_they_are_drained(void **state) {
    struct frontend *f[3];
    struct client idle;
    struct fixture fx;

    (void)state;
    start(&fx);
    for (int i = 0; i < 3; i++) {
        f[i] = create(&fx);
        fx.config.port = frontend_port(f[0]);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(frontend_start(f[i], NULL), ST_OK);
    for (int i = 0; i < 8; i++) {
        client_open(&idle, fx.config.port);
        client_send(&idle, fx.loop,
                    STR("GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
                        "POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
                        "Content-Length: 14\r\n\r\n{\"prompt\":\"a\"}"
                        "GET /v1/completions HTTP/1.1\r\nHost: a\r\n\r\n"));
        client_expect(&idle, fx.loop, "HTTP/1.1 405");
        assert_int_equal(client_count(&idle, "HTTP/1.1 200"), 1);
        assert_int_equal(client_count(&idle, "HTTP/1.1 503"), 1);
        if (i < 7) client_close(&idle);
    }
    for (int i = 0; i < 3; i++)
        frontend_drain(f[i], 0, 60000000);
    client_expect_close(&idle, fx.loop); /* kept alive, but idle */
    TURN_UNTIL(fx.loop, fx.n_ended == 3);
    client_close(&idle);
    for (int i = 0; i < 3; i++) {
        frontend_drain(f[i], 0, 0); /* too late */
        frontend_destroy(f[i]);
    }
    finish(&fx);
}

static void a_second_call_shortens_the_first(void **state) {
    struct frontend *f;
    struct client c;
    struct fixture fx;

    (void)state;
    start(&fx);
    f = create(&fx);
    assert_int_equal(frontend_start(f, NULL), ST_OK);
    client_open(&c, frontend_port(f));
    client_send(&c, fx.loop, STR("GET /livez HTTP/1.1\r\nHost: a\r\n\r\nGET /half"));
    client_expect(&c, fx.loop, "HTTP/1.1 200");
    frontend_drain(f, 0, 60000000);
    for (int i = 0; i < 5; i++)
        loop_turn(fx.loop, 2000);
    frontend_drain(f, 0, 0);
    TURN_UNTIL(fx.loop, fx.n_ended == 1);
    frontend_destroy(f);
    client_expect_close(&c, fx.loop);
    client_close(&c);
    finish(&fx);
}

static void while_settling_it_serves_and_closes_connections(void **state) {
    struct client kept, fresh;
    struct frontend *f;
    struct fixture fx;
    uint16_t port;
    int n_closing;

    (void)state;
    start(&fx);
    f = create(&fx);
    port = frontend_port(f);
    assert_int_equal(frontend_start(f, NULL), ST_OK);
    client_open(&kept, port);
    client_send(&kept, fx.loop, STR("GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_expect(&kept, fx.loop, "HTTP/1.1 200");
    assert_int_equal(client_count(&kept, "connection: close"), 0);
    frontend_drain(f, 60000000, 60000000);
    do { /* until the mail has arrived */
        client_open(&fresh, port);
        client_send(&fresh, fx.loop, STR("GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"));
        client_expect(&fresh, fx.loop, "HTTP/1.1 200");
        n_closing = client_count(&fresh, "connection: close");
        client_close(&fresh);
    } while (n_closing == 0);
    client_send(&kept, fx.loop, STR("GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_expect(&kept, fx.loop, "connection: close");
    client_expect_close(&kept, fx.loop);
    client_close(&kept);
    assert_int_equal(fx.n_ended, 0);
    frontend_drain(f, 0, 0);
    TURN_UNTIL(fx.loop, fx.n_ended == 1);
    frontend_destroy(f);
    finish(&fx);
}

static void other_limits_hold_for_requests_to_come(void **state) {
    static const char request[] = "POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
                                  "Content-Length: 14\r\n\r\n{\"prompt\":\"a\"}";
    struct http_limits limits = {.max_body_bytes = 8};
    struct fixture fx;
    struct frontend *f, *never_run;
    struct client client;
    int n = 0;

    (void)state;
    start(&fx);
    f = create(&fx);
    never_run = create(&fx);
    fx.config.port = frontend_port(f);
    assert_int_equal(frontend_start(f, NULL), ST_OK);
    client_open(&client, fx.config.port);
    client_send(&client, fx.loop, str_of(request));
    client_expect(&client, fx.loop, "HTTP/1.1 503"); /* there are no workers */
    client_close(&client);
    fx.config.proxy.worker_key = STR("key");
    frontend_configure(f, &limits, &fx.config.proxy);
    frontend_configure(never_run, &limits, &fx.config.proxy);
    frontend_destroy(never_run);
    do {
        client_open(&client, fx.config.port);
        client_send(&client, fx.loop, str_of(request));
        client_expect(&client, fx.loop, "HTTP/1.1 ");
        n = client_count(&client, "HTTP/1.1 413");
        client_close(&client);
    } while (n == 0);
    frontend_drain(f, 0, 0);
    TURN_UNTIL(fx.loop, fx.n_ended == 1);
    frontend_destroy(f);
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frontend_that_never_ran_can_drain),
        cmocka_unit_test(several_share_a_port_and_end_when_they_are_drained),
        cmocka_unit_test(a_second_call_shortens_the_first),
        cmocka_unit_test(while_settling_it_serves_and_closes_connections),
        cmocka_unit_test(other_limits_hold_for_requests_to_come),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/router/proxy/upstream/test_upstream.c - connections, kept and let go. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "router/proxy/upstream/upstream.h"
#include "router/registry/registry_route.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"
#include "tests/support/fake_worker.h"

struct fixture {
    struct loop *loop;
    struct fake_script fake;
    struct upstream_pool *pool;
    struct registry_target target;
};

struct user {
    struct upstream *up;
    int n_data, n_closed;
    enum conn_end end;
    bool discards_in_data, releases_in_data;
};

static void on_data(void *arg) {
    struct user *u = arg;

    u->n_data++;
    conn_consume(&u->up->conn, conn_input(&u->up->conn).len);
    if (u->discards_in_data) upstream_discard(u->up);
    if (u->releases_in_data) upstream_release(u->up);
}

static void on_closed(enum conn_end end, void *arg) {
    struct user *u = arg;

    u->n_closed++;
    u->end = end;
    upstream_discard(u->up);
}

static const struct upstream_user user = {.on_data = on_data, .on_closed = on_closed};

static void start(struct fixture *fx, uint64_t idle_timeout_us) {
    const struct upstream_pool_config config = {.max_workers = 4,
                                                .max_idle_per_worker = 2,
                                                .idle_timeout_us = idle_timeout_us,
                                                .connect_timeout_us = 250000};
    static const struct fake_step step = {"answer"};
    struct sockaddr_in *addr = (struct sockaddr_in *)&fx->target.addr;

    memset(fx, 0, sizeof(*fx));
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    fake_start(&fx->fake, fx->loop, 1);
    fake_play(&fx->fake, &step, 1);
    fx->pool = upstream_pool_create(fx->loop, &config);
    addr->sin_family = AF_INET;
    addr->sin_port = htons(fx->fake.workers[0].port);
    addr->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fx->target.addr_len = sizeof(*addr);
    fx->target.worker = 3;
}

static void finish(struct fixture *fx) {
    upstream_pool_destroy(fx->pool);
    TURN_UNTIL(fx->loop, fx->fake.n_open == 0);
    fake_stop(&fx->fake);
    loop_destroy(fx->loop);
}

static void acquire(struct fixture *fx, struct user *u, bool is_fresh) {
    *u = (struct user){0};
    assert_int_equal(upstream_acquire(fx->pool, &fx->target, is_fresh, &user, u, &u->up, NULL),
                     ST_OK);
}

/* A request and its answer. */
static void use(struct fixture *fx, struct user *u) {
    int n = u->n_data;

    conn_write(&u->up->conn, "POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n", 38);
    TURN_UNTIL(fx->loop, u->n_data == n + 1);
}

static void the_one_used_last_is_taken_first(void **state) {
    struct user a, b, c;
    struct fixture fx;

    (void)state;
    start(&fx, 60000000);
    acquire(&fx, &a, false);
    acquire(&fx, &b, false);
    assert_false(a.up->is_reused);
    use(&fx, &a);
    use(&fx, &b);
    upstream_release(a.up);
    upstream_release(b.up);
    assert_int_equal(upstream_pool_n_idle(fx.pool), 2);
    acquire(&fx, &c, false);
    assert_ptr_equal(c.up, b.up);
    assert_true(c.up->is_reused);
    use(&fx, &c);
    acquire(&fx, &a, true);
    assert_false(a.up->is_reused);
    use(&fx, &a);
    upstream_discard(a.up);
    upstream_discard(c.up);
    assert_int_equal(fx.fake.n_accepted, 3);
    finish(&fx);
}

static void an_idle_connection_that_closes_or_sends_is_dropped(void **state) {
    struct fixture fx;
    struct user u;

    (void)state;
    start(&fx, 60000000);
    for (int i = 0; i < 2; i++) {
        acquire(&fx, &u, false);
        use(&fx, &u);
        upstream_release(u.up);
        assert_int_equal(upstream_pool_n_idle(fx.pool), 1);
        if (i == 0) {
            fake_drop_all(&fx.fake);
        } else {
            fake_send(&fx.fake, STR("HTTP/1.1 408 Timeout\r\n\r\n"));
        }
        TURN_UNTIL(fx.loop, upstream_pool_n_idle(fx.pool) == 0);
        assert_int_equal(u.n_closed, 0); /* no owner left */
    }
    finish(&fx);
}

static void unread_input_and_too_many_are_not_kept(void **state) {
    struct user u[3];
    struct fixture fx;

    (void)state;
    start(&fx, 60000000);
    for (int i = 0; i < 3; i++) {
        acquire(&fx, &u[i], false);
        use(&fx, &u[i]);
    }
    for (int i = 0; i < 3; i++)
        upstream_release(u[i].up);
    assert_int_equal(upstream_pool_n_idle(fx.pool), 2);
    upstream_pool_drop(fx.pool, 3);
    assert_int_equal(upstream_pool_n_idle(fx.pool), 0);
    finish(&fx);
}

static void it_may_be_given_up_inside_its_own_callback(void **state) {
    struct fixture fx;
    struct user u;

    (void)state;
    start(&fx, 60000000);
    acquire(&fx, &u, false);
    u.discards_in_data = true;
    use(&fx, &u);
    acquire(&fx, &u, false);
    u.releases_in_data = true;
    use(&fx, &u);
    assert_int_equal(upstream_pool_n_idle(fx.pool), 1);
    fake_deafen(&fx.fake, 0);
    acquire(&fx, &u, true);
    TURN_UNTIL(fx.loop, u.n_closed == 1); /* discards itself there */
    assert_int_equal(u.end, CONN_REFUSED);
    finish(&fx);
}

static void an_id_that_was_given_to_another_keeps_nothing_of_the_first(void **state) {
    struct fixture fx;
    struct user u;

    (void)state;
    start(&fx, 60000000);
    acquire(&fx, &u, false);
    use(&fx, &u);
    upstream_release(u.up);
    fx.target.incarnation++;
    acquire(&fx, &u, false);
    assert_false(u.up->is_reused);
    assert_int_equal(upstream_pool_n_idle(fx.pool), 0);
    use(&fx, &u);
    upstream_release(u.up);
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_one_used_last_is_taken_first),
        cmocka_unit_test(an_idle_connection_that_closes_or_sends_is_dropped),
        cmocka_unit_test(unread_input_and_too_many_are_not_kept),
        cmocka_unit_test(it_may_be_given_up_inside_its_own_callback),
        cmocka_unit_test(an_id_that_was_given_to_another_keeps_nothing_of_the_first),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

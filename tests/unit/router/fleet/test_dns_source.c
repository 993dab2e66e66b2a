/* tests/unit/router/fleet/test_dns_source.c - the addresses of a name, over a resolver that is ours
 * to play. */
#include <netinet/in.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/net/loop.h"
#include "common/net/resolver.h"
#include "router/fleet/discovery.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"

static struct {
    uint32_t n_started;
    bool is_busy;
    char host[ADDRESS_HOST_MAX + 16];
    resolver_all_fn *fn;
    void *arg;
} played;

enum status resolver_create(struct resolver **out, struct loop *loop, struct error *err) {
    (void)loop, (void)err;
    *out = (struct resolver *)&played;
    return ST_OK;
}

void resolver_destroy(struct resolver *r) {
    (void)r;
}

enum status resolver_start(struct resolver *r, const struct address_url *url,
                           const struct address_guard *guard, resolver_fn *fn, void *arg,
                           struct error *err) {
    (void)r, (void)url, (void)guard, (void)fn, (void)arg, (void)err;
    return ST_BUSY;
}

enum status resolver_start_all(struct resolver *r, const struct address_url *url, uint32_t max,
                               resolver_all_fn *fn, void *arg, struct error *err) {
    (void)r;
    assert_true(max >= 1000);
    if (played.is_busy) return error_set(err, ST_BUSY, "too many");
    played.n_started++;
    snprintf(played.host, sizeof(played.host), "%s:%u", url->host, url->port);
    played.fn = fn;
    played.arg = arg;
    return ST_OK;
}

/* "10.0.0.N" for each N, at the port 8000; none: the name is not found. */
static void answer(const uint8_t *last, uint32_t n) {
    struct address found[16];
    struct error err = {0};

    memset(found, 0, sizeof(found));
    for (uint32_t i = 0; i < n; i++) {
        struct sockaddr_in *in = (struct sockaddr_in *)&found[i].addr;

        in->sin_family = AF_INET;
        in->sin_port = htons(8000);
        in->sin_addr.s_addr = htonl(0x0a000000u | last[i]);
        found[i].len = sizeof(*in);
    }
    if (n == 0) (void)error_set(&err, ST_NOT_FOUND, "no such name");
    played.fn(n ? ST_OK : ST_NOT_FOUND, found, n, &err, played.arg);
}

#define ANSWER(...) answer((const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}))

struct fixture {
    struct loop *loop;
    struct discovery *source;
    uint32_t n_updates;
    char reported[512];
};

static void on_set(const struct discovery_set *set, void *arg) {
    struct fixture *fx = arg;
    size_t n = 0;

    fx->n_updates++;
    fx->reported[0] = '\0';
    for (uint32_t i = 0; i < set->n; i++)
        n += (size_t)snprintf(fx->reported + n, sizeof(fx->reported) - n, "%s%s", i ? " " : "",
                              set->workers[i].url.authority);
}

static void start(struct fixture *fx, uint32_t max_workers) {
    memset(fx, 0, sizeof(*fx));
    memset(&played, 0, sizeof(played));
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    assert_int_equal(discovery_dns_create(&fx->source, "W.llm.svc:8000", max_workers, 1000,
                                          fx->loop, NULL, on_set, fx, NULL),
                     ST_OK);
}

static void finish(struct fixture *fx) {
    discovery_destroy(fx->source);
    loop_destroy(fx->loop);
}

static struct discovery_stats stats_of(struct fixture *fx) {
    struct discovery_stats stats;

    discovery_stats(fx->source, &stats);
    return stats;
}

static void an_answer_is_a_set_in_one_order(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, 10);
    TURN_UNTIL(fx.loop, played.n_started == 1);
    assert_string_equal(played.host, "w.llm.svc:8000");
    assert_false(stats_of(&fx).is_synced);
    ANSWER(3, 1, 2, 1);
    assert_string_equal(fx.reported, "10.0.0.1:8000 10.0.0.2:8000 10.0.0.3:8000");
    assert_true(stats_of(&fx).is_synced);
    TURN_UNTIL(fx.loop, played.n_started == 2);
    ANSWER(2);
    assert_string_equal(fx.reported, "10.0.0.2:8000");
    finish(&fx);
}

static void the_last_answer_holds_while_there_is_no_other(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, 10);
    TURN_UNTIL(fx.loop, played.n_started == 1);
    ANSWER(1);
    for (uint32_t i = 2; i < 6; i++) {
        TURN_UNTIL(fx.loop, played.n_started == i);
        answer(NULL, 0);
    }
    played.is_busy = true; /* not even a thread: it is tried again all the same */
    loop_turn(fx.loop, 5000);
    loop_turn(fx.loop, 5000);
    assert_int_equal(fx.n_updates, 1);
    assert_true(stats_of(&fx).is_synced);
    assert_true(stats_of(&fx).stale_s > 0);
    assert_true(stats_of(&fx).n_refused >= 4);
    played.is_busy = false;
    TURN_UNTIL(fx.loop, played.n_started == 6);
    ANSWER(1, 2);
    assert_string_equal(fx.reported, "10.0.0.1:8000 10.0.0.2:8000");
    assert_true(stats_of(&fx).stale_s == 0);
    finish(&fx);
}

static void more_than_there_is_room_for_are_left_out(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, 2);
    TURN_UNTIL(fx.loop, played.n_started == 1);
    ANSWER(5, 4, 3, 2);
    assert_string_equal(fx.reported, "10.0.0.2:8000 10.0.0.3:8000");
    assert_int_equal(stats_of(&fx).n_left_out, 2);
    finish(&fx);
}

static void an_invalid_name_or_port_is_refused(void **state) {
    static const char *const names[] = {"",        "name",       "name:",          ":80",
                                        "name:0",  "name:65536", "http://name:80", "name:80/path",
                                        "na me:80"};
    struct loop *loop;

    (void)state;
    assert_int_equal(loop_create(&loop, NULL), ST_OK);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct discovery *source = NULL;
        struct error err = {0};

        if (discovery_dns_create(&source, names[i], 2, 1000, loop, NULL, on_set, NULL, &err) ==
            ST_OK)
            fail_msg("accepted '%s'", names[i]);
        assert_non_null(strstr(err.message, "NAME:PORT"));
    }
    loop_destroy(loop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_a_set_in_one_order),
        cmocka_unit_test(the_last_answer_holds_while_there_is_no_other),
        cmocka_unit_test(more_than_there_is_room_for_are_left_out),
        cmocka_unit_test(an_invalid_name_or_port_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

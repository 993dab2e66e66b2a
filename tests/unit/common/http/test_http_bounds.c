/* tests/unit/common/http/test_http_bounds.c - what all requests together may hold, and who gives
 * way. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/http/body_budget.h"
#include "common/http/http_metrics.h"
#include "common/http/http_server.h"
#include "common/net/loop.h"
#include "common/telemetry/metrics.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "tests/unit/common/http/http_fixture.h"

#define MIB (1u << 20)

#define AS_ROW(kind_, name_, labels_, help_, ...)                                                  \
    {.kind = METRIC_##kind_, .name = "incipit_" #name_, .labels = labels_, .help = help_},
static const struct metric_def rows[] = {HTTP_METRICS(AS_ROW)};

struct bounded {
    struct fixture fx;
    struct body_budget *budget;
    struct metrics *metrics;
};

static void start_bounded(struct bounded *b, struct http_limits limits, uint64_t budget_bytes) {
    struct http_report report = {.port = "client"};

    b->budget = budget_bytes ? body_budget_create(budget_bytes, 1) : NULL;
    b->metrics = report.metrics = metrics_create(rows, ARRAY_LEN(rows));
    limits.budget = b->budget;
    start_with(&b->fx, &limits);
    http_server_report(b->fx.server, &report);
}

static void finish_bounded(struct bounded *b) {
    finish(&b->fx);
    body_budget_destroy(b->budget);
    metrics_destroy(b->metrics);
}

static double counted(struct bounded *b, int place, const char *reason) {
    const char *const values[] = {"client", reason};

    return metric_value(metrics_get(b->metrics, (uint32_t)place, values, reason ? 2 : 1));
}

static uint64_t long_bytes(struct bounded *b) {
    return body_budget_stats(b->budget).large_bytes;
}

static void open_from(struct bounded *b, struct client *c, uint8_t source) {
    client_open_from(c, http_server_port(b->fx.server), source);
}

/* So that it is accepted, and in this order. */
static void open_now(struct bounded *b, struct client *c, uint8_t source) {
    uint64_t n = http_server_stats(b->fx.server).connections_total;

    open_from(b, c, source);
    TURN_UNTIL(b->fx.loop, http_server_stats(b->fx.server).connections_total > n);
}

static void send_head(struct bounded *b, struct client *c, const char *path, size_t length) {
    char head[128];

    snprintf(head, sizeof(head), "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", path,
             length);
    client_send(c, b->fx.loop, str_of(head));
}

static void send_zeros(struct bounded *b, struct client *c, size_t n) {
    static char zeros[16 * MIB];

    assert_true(n <= sizeof(zeros));
    client_send(c, b->fx.loop, (struct str){zeros, n});
}

/* What the kernel takes at once; returns how much that is. */
static size_t push_zeros(struct client *c, size_t n) {
    static char zeros[MIB];
    ssize_t sent = send(c->fd, zeros, MIN(n, sizeof(zeros)), MSG_NOSIGNAL);

    assert_true(sent > 0);
    return (size_t)sent;
}

static bool is_gone(struct client *c) {
    client_read(c);
    return c->is_closed;
}

static void expect_gone(struct bounded *b, struct client *c) {
    TURN_UNTIL(b->fx.loop, is_gone(c));
}

/* --- connections ------------------------------------------------------------------------------ */

static void a_connection_without_a_byte_falls_under_the_head_timeout(void **state) {
    const struct http_limits limits = {.head_timeout_ms = 60, .idle_timeout_ms = 60000};
    struct bounded b;
    struct client silent, kept;

    (void)state;
    start_bounded(&b, limits, 0);
    open_now(&b, &kept, 1);
    client_send(&kept, b.fx.loop, STR(POST_ABC));
    client_expect(&kept, b.fx.loop, "abc");
    open_now(&b, &silent, 1);
    expect_gone(&b, &silent);
    assert_false(silent.was_reset);
    assert_false(is_gone(&kept));
    assert_true(counted(&b, HTTP_AT_http_closed_total, "silent") == 1);
    client_close(&silent);
    client_close(&kept);
    finish_bounded(&b);
}

static void at_the_limit_unused_connections_close_before_idle_ones(void **state) {
    const struct http_limits limits = {.max_connections = 3};
    struct bounded b;
    struct client kept, silent[2], fresh[3];

    (void)state;
    start_bounded(&b, limits, 0);
    open_now(&b, &kept, 1);
    client_send(&kept, b.fx.loop, STR(POST_ABC));
    client_expect(&kept, b.fx.loop, "abc");
    open_now(&b, &silent[0], 1);
    open_now(&b, &silent[1], 1);
    for (int i = 0; i < 3; i++) {
        open_from(&b, &fresh[i], 1);
        client_send(&fresh[i], b.fx.loop, STR(POST_ABC));
        client_expect(&fresh[i], b.fx.loop, "abc");
        if (i == 0) assert_false(is_gone(&silent[1])); /* the older one first */
        if (i < 2) expect_gone(&b, &silent[i]);
    }
    expect_gone(&b, &kept); /* when none is silent, the one that is idle for longest */
    assert_true(counted(&b, HTTP_AT_http_closed_total, "room") == 3);
    assert_true(counted(&b, HTTP_AT_http_accept_pauses_total, "connections") == 0);
    assert_true(counted(&b, HTTP_AT_http_connections, NULL) == 3);
    client_close(&kept);
    for (int i = 0; i < 3; i++)
        client_close(&fresh[i]);
    client_close(&silent[0]);
    client_close(&silent[1]);
    finish_bounded(&b);
}

static void at_the_limit_the_address_with_the_most_gives_way(void **state) {
    const struct http_limits limits = {.max_connections = 4};
    struct bounded b;
    struct client one, many[3], fresh;

    (void)state;
    start_bounded(&b, limits, 0);
    open_now(&b, &one, 2); /* the oldest, and silent like the others */
    for (int i = 0; i < 3; i++)
        open_now(&b, &many[i], 3);
    open_from(&b, &fresh, 4);
    client_send(&fresh, b.fx.loop, STR(POST_ABC));
    client_expect(&fresh, b.fx.loop, "abc");
    expect_gone(&b, &many[0]);
    assert_false(is_gone(&one));
    client_close(&one);
    client_close(&fresh);
    for (int i = 0; i < 3; i++)
        client_close(&many[i]);
    finish_bounded(&b);
}

static void an_answer_makes_room_for_a_waiting_connection(void **state) {
    const struct http_limits limits = {.max_connections = 1};
    struct bounded b;
    struct client busy, next;

    (void)state;
    start_bounded(&b, limits, 0);
    open_now(&b, &busy, 1);
    send_head(&b, &busy, "/keep", 0);
    TURN_UNTIL(b.fx.loop, b.fx.n_kept == 1);
    open_from(&b, &next, 1);
    client_send(&next, b.fx.loop, STR(POST_ABC));
    TURN_UNTIL(b.fx.loop, counted(&b, HTTP_AT_http_accept_pauses_total, "connections") == 1);
    http_reply(b.fx.kept[0], 200, NULL, STR("done")); /* its connection stays open, and is idle */
    client_expect(&next, b.fx.loop, "abc");
    client_expect(&busy, b.fx.loop, "done");
    expect_gone(&b, &busy);
    assert_false(busy.was_reset);
    client_close(&busy);
    client_close(&next);
    finish_bounded(&b);
}

/* --- bodies ----------------------------------------------------------------------------------- */

/* The first bytes buy no time. */
static void a_body_that_stops_is_refused(void **state) {
    const struct http_limits limits = {.body_grace_ms = 100};
    struct bounded b;
    struct client c;

    (void)state;
    start_bounded(&b, limits, 0);
    open_from(&b, &c, 1);
    send_head(&b, &c, "/echo", 4 * MIB);
    send_zeros(&b, &c, 3 * MIB);
    client_expect(&c, b.fx.loop, "HTTP/1.1 408");
    client_expect(&c, b.fx.loop, "less than 1024 bytes per second for 100 ms");
    client_expect_close(&c, b.fx.loop);
    assert_true(counted(&b, HTTP_AT_http_refused_total, "body_timeout") == 1);
    client_close(&c);
    finish_bounded(&b);
}

static void hold_5_mib(struct bounded *b, struct client *c) {
    int n = b->fx.n_kept;

    open_from(b, c, 2);
    send_head(b, c, "/keep", 5 * MIB);
    send_zeros(b, c, 5 * MIB);
    TURN_UNTIL(b->fx.loop, b->fx.n_kept == n + 1);
}

static void a_long_body_waits_for_memory(void **state) {
    static const char *const framings[] = {"Content-Length: 2097152\r\n\r\n",
                                           "Transfer-Encoding: chunked\r\n\r\n200000\r\n"};
    const struct http_limits limits = {.body_wait_ms = 60000};
    struct bounded b;

    (void)state;
    start_bounded(&b, limits, 8 * MIB); /* 6 MiB for long ones */
    for (int is_chunked = 0; is_chunked < 2; is_chunked++) {
        struct client first, second, small;
        size_t n;

        hold_5_mib(&b, &first);
        open_from(&b, &second, 3);
        client_send(&second, b.fx.loop, STR("POST /echo HTTP/1.1\r\nHost: a\r\n"));
        client_send(&second, b.fx.loop, str_of(framings[is_chunked]));
        n = push_zeros(&second, MIB);
        TURN_UNTIL(b.fx.loop, body_budget_stats(b.budget).n_waiting == 1);
        open_from(&b, &small, 4); /* what is short passes */
        client_send(&small, b.fx.loop, STR(POST_ABC));
        client_expect(&small, b.fx.loop, "abc");
        assert_true(long_bytes(&b) <= 6 * MIB);
        assert_true(counted(&b, HTTP_AT_http_body_waits_total, NULL) == is_chunked + 1);
        http_reply(b.fx.kept[is_chunked], 200, NULL, STR("done"));
        client_expect(&first, b.fx.loop, "done");
        send_zeros(&b, &second, 2 * MIB - n);
        if (is_chunked) client_send(&second, b.fx.loop, STR("\r\n0\r\n\r\n" POST_ABC));
        client_expect(&second, b.fx.loop, "content-length: 2097152");
        if (is_chunked) client_expect(&second, b.fx.loop, "\r\n\r\nabc");
        client_close(&first);
        client_close(&second);
        client_close(&small);
        TURN_UNTIL(b.fx.loop, http_server_stats(b.fx.server).open_connections == 0);
        assert_int_equal(long_bytes(&b) + body_budget_stats(b.budget).small_bytes, 0);
    }
    finish_bounded(&b);
}

static void a_wait_that_is_too_long_ends_with_503(void **state) {
    const struct http_limits limits = {.body_wait_ms = 50};
    struct bounded b;
    struct client first, second;

    (void)state;
    start_bounded(&b, limits, 8 * MIB);
    hold_5_mib(&b, &first);
    open_from(&b, &second, 3);
    send_head(&b, &second, "/echo", 2 * MIB);
    client_expect(&second, b.fx.loop, "HTTP/1.1 503");
    client_expect(&second, b.fx.loop, "retry-after: 1\r\n");
    client_expect(&second, b.fx.loop, "fill --max-body-memory of 8388608 bytes");
    client_expect_close(&second, b.fx.loop);
    assert_true(counted(&b, HTTP_AT_http_refused_total, "body_memory") == 1);
    client_close(&first);
    client_close(&second);
    finish_bounded(&b);
}

/* A claim of a whole body that does not come gives no other connection room. */
static void a_body_that_stands_still_gives_way_to_one_that_waits(void **state) {
    const struct http_limits limits = {.body_wait_ms = 60000};
    struct bounded b;
    struct client still, next;

    (void)state;
    start_bounded(&b, limits, 8 * MIB);
    open_from(&b, &still, 2);
    send_head(&b, &still, "/echo", 5 * MIB);
    send_zeros(&b, &still, 4 * MIB);
    TURN_UNTIL(b.fx.loop, long_bytes(&b) > 5 * MIB - 1);
    open_from(&b, &next, 3);
    send_head(&b, &next, "/echo", 2 * MIB);
    send_zeros(&b, &next, 2 * MIB);
    client_expect(&next, b.fx.loop, "content-length: 2097152");
    client_expect(&still, b.fx.loop, "HTTP/1.1 503");
    client_expect(&still, b.fx.loop, "arrived too slowly while other requests waited");
    assert_true(counted(&b, HTTP_AT_http_refused_total, "body_slow") == 1);
    client_close(&still);
    client_close(&next);
    finish_bounded(&b);
}

static void one_address_gets_half(void **state) {
    const struct http_limits limits = {.body_wait_ms = 60000};
    struct bounded b;
    struct client many[4], other;

    (void)state;
    start_bounded(&b, limits, 8 * MIB); /* 6 for long ones, 4 for an address */
    for (int i = 0; i < 4; i++) {
        open_from(&b, &many[i], 2);
        send_head(&b, &many[i], "/keep", MIB);
        send_zeros(&b, &many[i], MIB - 1);
        TURN_UNTIL(b.fx.loop, i == 3 || long_bytes(&b) >= (uint64_t)(i + 1) * MIB);
    }
    TURN_UNTIL(b.fx.loop, body_budget_stats(b.budget).n_waiting == 1); /* heads count as well */
    open_from(&b, &other, 3);
    send_head(&b, &other, "/echo", 2 * MIB);
    send_zeros(&b, &other, 2 * MIB);
    client_expect(&other, b.fx.loop, "content-length: 2097152");
    client_close(&other);
    for (int i = 0; i < 4; i++)
        client_close(&many[i]);
    finish_bounded(&b);
}

/* What a client holds is added up over the servers of all loops. */
static void one_address_gets_half_on_all_servers_together(void **state) {
    const struct http_limits limits = {.body_wait_ms = 60000};
    struct bounded b, other;
    struct client first, second;

    (void)state;
    start_bounded(&b, limits, 8 * MIB); /* 6 for long ones, 4 for an address */
    other = (struct bounded){.budget = b.budget, .metrics = b.metrics};
    start_with(&other.fx, &(struct http_limits){.body_wait_ms = 60000, .budget = b.budget});
    open_from(&b, &first, 2);
    send_head(&b, &first, "/keep", 5 * MIB / 2);
    send_zeros(&b, &first, 5 * MIB / 2);
    TURN_UNTIL(b.fx.loop, b.fx.n_kept == 1);
    open_from(&other, &second, 2);
    send_head(&other, &second, "/echo", 2 * MIB);
    TURN_UNTIL(other.fx.loop, body_budget_stats(b.budget).n_waiting == 1);
    assert_true(long_bytes(&b) < 3 * MIB);
    client_close(&first);
    client_close(&second);
    finish(&other.fx);
    finish_bounded(&b);
}

/* Many requests that are each short and never finished: 256 KiB of them would fill the pool. */
static void unfinished_short_requests_give_way_to_whole_ones(void **state) {
    const struct http_limits limits = {.body_wait_ms = 60000};
    struct bounded b;
    struct client hog, unfinished[8], whole;

    (void)state;
    start_bounded(&b, limits, MIB); /* 256 KiB for short ones, 768 for long ones */
    open_from(&b, &hog, 2);
    send_head(&b, &hog, "/keep", 700000);
    send_zeros(&b, &hog, 700000);
    TURN_UNTIL(b.fx.loop, b.fx.n_kept == 1);
    for (int i = 0; i < 8; i++) {
        open_from(&b, &unfinished[i], 3);
        send_head(&b, &unfinished[i], "/echo", 60000);
        send_zeros(&b, &unfinished[i], 59999);
    }
    for (int i = 0; i < 4; i++) {
        open_from(&b, &whole, 4);
        send_head(&b, &whole, "/echo", 30000);
        send_zeros(&b, &whole, 30000);
        client_expect(&whole, b.fx.loop, "HTTP/1.1 200");
        client_close(&whole);
    }
    assert_true(counted(&b, HTTP_AT_http_refused_total, "body_slow") >= 4);
    assert_true(body_budget_stats(b.budget).small_bytes <= MIB / 4);
    client_close(&hog);
    for (int i = 0; i < 8; i++)
        client_close(&unfinished[i]);
    TURN_UNTIL(b.fx.loop, http_server_stats(b.fx.server).open_connections == 0);
    assert_int_equal(body_budget_stats(b.budget).small_bytes + long_bytes(&b), 0);
    finish_bounded(&b);
}

static void unfinished_heads_are_paid_for(void **state) {
    static char head[20000];
    struct bounded b;
    struct client c[20];

    (void)state;
    memset(head, 'a', sizeof(head));
    memcpy(head, "GET / HTTP/1.1\r\nx: ", 19);
    start_bounded(&b, (struct http_limits){0}, MIB);
    for (int i = 0; i < 20; i++) {
        open_from(&b, &c[i], 2);
        client_send(&c[i], b.fx.loop, (struct str){head, sizeof(head)});
        loop_turn(b.fx.loop, 1000);
    }
    TURN_UNTIL(b.fx.loop, counted(&b, HTTP_AT_http_refused_total, "body_slow") > 0);
    assert_true(body_budget_stats(b.budget).small_bytes <= MIB / 4);
    for (int i = 0; i < 20; i++)
        client_close(&c[i]);
    finish_bounded(&b);
}

/* While the pool is full a head is paid for like a long body, before its key has been read. */
static void a_head_paid_for_before_its_key_leaves_nothing_behind(void **state) {
    struct bounded b;
    struct client full[4], c;
    static char value[20000];

    (void)state;
    memset(value, 'a', sizeof(value));
    start_bounded(&b, (struct http_limits){0}, MIB); /* 256 KiB for short ones */
    b.fx.owner = 7;
    for (int i = 0; i < 4; i++) {
        open_from(&b, &full[i], 2);
        send_head(&b, &full[i], "/keep", 61000);
        send_zeros(&b, &full[i], 61000);
        TURN_UNTIL(b.fx.loop, b.fx.n_kept == i + 1);
    }
    open_from(&b, &c, 3);
    client_send(&c, b.fx.loop, STR("POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nx: "));
    client_send(&c, b.fx.loop, (struct str){value, sizeof(value)});
    TURN_UNTIL(b.fx.loop, long_bytes(&b) > 0);
    client_send(&c, b.fx.loop, STR("\r\n\r\nabc"));
    TURN_UNTIL(b.fx.loop, b.fx.n_kept == 5);
    body_budget_check(b.budget);
    client_close(&c);
    for (int i = 0; i < 4; i++)
        client_close(&full[i]);
    TURN_UNTIL(b.fx.loop, http_server_stats(b.fx.server).open_connections == 0);
    assert_int_equal(body_budget_stats(b.budget).n_owners, 0);
    finish_bounded(&b);
}

static void a_body_longer_than_all_together_is_too_large(void **state) {
    struct bounded b;
    struct client c;

    (void)state;
    start_bounded(&b, (struct http_limits){0}, 8 * MIB);
    open_from(&b, &c, 1);
    send_head(&b, &c, "/echo", 7 * MIB);
    client_expect(&c, b.fx.loop, "HTTP/1.1 413");
    client_expect_close(&c, b.fx.loop);
    assert_true(counted(&b, HTTP_AT_http_refused_total, "too_large") == 1);
    client_close(&c);
    finish_bounded(&b);
}

/* Sends what it can until the connection is ended; how much was taken, by us and the system's
 * buffers. */
static size_t send_until_ended(struct bounded *b, struct client *c) {
    static char zeros[65536];
    size_t taken = 0;

    for (;;) {
        ssize_t sent = send(c->fd, zeros, sizeof(zeros), MSG_NOSIGNAL);

        if (sent > 0) taken += (size_t)sent;
        if (sent < 0 && errno != EAGAIN) return taken;
        assert_true(taken < 256 * MIB);
        loop_turn(b->fx.loop, 1000);
    }
}

/* What is sent behind a refusal is read to its end, or not at all: 200 MB would not be. The
 * system's buffers take 16 MiB at most. */
static void a_rest_too_long_to_be_read_is_not_begun(void **state) {
    struct bounded b;
    struct client c;

    (void)state;
    start_bounded(&b, (struct http_limits){.max_body_bytes = 1000}, 0);
    open_from(&b, &c, 1);
    send_head(&b, &c, "/echo", 200 * MIB);
    client_expect(&c, b.fx.loop, "HTTP/1.1 413");
    assert_true(send_until_ended(&b, &c) <= 16 * MIB);
    client_close(&c);
    finish_bounded(&b);
}

/* Connections that are due together are ended over several turns, so that others wait for none. */
static void of_many_that_are_due_a_turn_ends_a_few(void **state) {
    enum { N = 300, MOST = 64 };
    static struct client c[N];
    struct bounded b;
    size_t n_open = N;

    (void)state;
    start_bounded(&b, (struct http_limits){.head_timeout_ms = 60}, 0);
    for (int i = 0; i < N; i++)
        open_from(&b, &c[i], 1);
    TURN_UNTIL(b.fx.loop, http_server_stats(b.fx.server).open_connections == N);
    while (n_open) { /* their own side stays open: each is ended when it has lingered */
        size_t before = n_open;

        loop_turn(b.fx.loop, 10000);
        n_open = http_server_stats(b.fx.server).open_connections;
        assert_true(before - n_open <= MOST);
    }
    assert_true(counted(&b, HTTP_AT_http_closed_total, "silent") == N);
    for (int i = 0; i < N; i++)
        client_close(&c[i]);
    finish_bounded(&b);
}

/* Of many only little is read, however much they announce. */
static void of_many_that_are_refused_little_is_read(void **state) {
    enum { N = 300 };
    static struct client c[N];
    struct bounded b;

    (void)state;
    start_bounded(&b, (struct http_limits){.max_body_bytes = 1000}, 0);
    for (int i = 0; i < N; i++) {
        open_from(&b, &c[i], 1);
        send_head(&b, &c[i], "/echo", 64 * MIB);
    }
    TURN_UNTIL(b.fx.loop, counted(&b, HTTP_AT_http_refused_total, "too_large") == N);
    assert_true(send_until_ended(&b, &c[N - 1]) < 32 * MIB);
    for (int i = 0; i < N; i++)
        client_close(&c[i]);
    finish_bounded(&b);
}

/* --- anything, in any order ------------------------------------------------------------------- */

#define N_RANDOM 24

struct random_client {
    struct client c;
    bool is_open;
    size_t left; /* of the body */
    bool is_chunked;
};

static void begin_random(struct bounded *b, struct random_client *r, struct rng *rng) {
    static const uint32_t sizes[] = {10, 5000, 60000, 70000, 300000, 900000};
    char head[160];

    if (!r->is_open) open_from(b, &r->c, (uint8_t)(1 + rng_below(rng, 4)));
    r->is_open = true;
    r->is_chunked = rng_below(rng, 3) == 0;
    r->left = sizes[rng_below(rng, ARRAY_LEN(sizes))];
    snprintf(head, sizeof(head),
             r->is_chunked
                 ? "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%zx\r\n"
                 : "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n",
             r->left);
    (void)send(r->c.fd, head, rng_below(rng, 8) ? strlen(head) : 20, MSG_NOSIGNAL);
}

static void go_on_random(struct bounded *b, struct random_client *r, struct rng *rng) {
    static char zeros[262144];
    ssize_t sent;

    if (!r->is_open || r->left == 0) {
        begin_random(b, r, rng);
        return;
    }
    sent = send(r->c.fd, zeros, MIN(r->left, 1 + rng_below(rng, sizeof(zeros))), MSG_NOSIGNAL);
    if (sent > 0) r->left -= (size_t)sent;
    if (sent > 0 && r->left == 0 && r->is_chunked)
        (void)send(r->c.fd, "\r\n0\r\n\r\n", 7, MSG_NOSIGNAL);
}

static void end_random(struct random_client *r) {
    if (r->is_open) client_close(&r->c);
    *r = (struct random_client){0};
}

/* Whatever clients do, the limits hold, each request that was handed over ends, and nothing is
 * left. */
static void random_clients_leave_nothing_behind(void **state) {
    const struct http_limits limits = {
        .max_connections = 16, .body_wait_ms = 30, .head_timeout_ms = 200, .body_grace_ms = 300};
    struct random_client r[N_RANDOM] = {{{0}, false, 0, false}};
    struct bounded b;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    start_bounded(&b, limits, 2 * MIB);
    for (int step = 0; step < 20000; step++) {
        int i = (int)rng_below(&rng, N_RANDOM);
        uint64_t what = rng_below(&rng, 100);

        if (what < 60) {
            go_on_random(&b, &r[i], &rng);
        } else if (what < 63) {
            end_random(&r[i]);
        } else if (r[i].is_open) {
            (void)client_read(&r[i].c);
            if (r[i].c.is_closed) end_random(&r[i]);
        }
        if (what % 4 == 0) loop_turn(b.fx.loop, step % 64 == 0 ? 1000 : 0);
        body_budget_check(b.budget);
        assert_true(body_budget_stats(b.budget).small_bytes <= MIB / 2);
        assert_true(http_server_stats(b.fx.server).open_connections <= 16);
    }
    for (int i = 0; i < N_RANDOM; i++)
        end_random(&r[i]);
    TURN_UNTIL(b.fx.loop, http_server_stats(b.fx.server).open_connections == 0);
    assert_int_equal(http_server_stats(b.fx.server).open_requests, 0);
    assert_true(http_server_stats(b.fx.server).requests_total > 100);
    assert_true(counted(&b, HTTP_AT_http_body_waits_total, NULL) > 0);
    assert_true(counted(&b, HTTP_AT_http_connections, NULL) == 0);
    assert_int_equal(body_budget_stats(b.budget).small_bytes + long_bytes(&b), 0);
    assert_int_equal(body_budget_stats(b.budget).n_owners, 0);
    assert_int_equal(body_budget_stats(b.budget).n_waiting, 0);
    finish_bounded(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_connection_without_a_byte_falls_under_the_head_timeout),
        cmocka_unit_test(at_the_limit_unused_connections_close_before_idle_ones),
        cmocka_unit_test(at_the_limit_the_address_with_the_most_gives_way),
        cmocka_unit_test(an_answer_makes_room_for_a_waiting_connection),
        cmocka_unit_test(a_body_that_stops_is_refused),
        cmocka_unit_test(a_long_body_waits_for_memory),
        cmocka_unit_test(a_wait_that_is_too_long_ends_with_503),
        cmocka_unit_test(a_body_that_stands_still_gives_way_to_one_that_waits),
        cmocka_unit_test(one_address_gets_half),
        cmocka_unit_test(one_address_gets_half_on_all_servers_together),
        cmocka_unit_test(a_head_paid_for_before_its_key_leaves_nothing_behind),
        cmocka_unit_test(unfinished_short_requests_give_way_to_whole_ones),
        cmocka_unit_test(unfinished_heads_are_paid_for),
        cmocka_unit_test(a_body_longer_than_all_together_is_too_large),
        cmocka_unit_test(a_rest_too_long_to_be_read_is_not_begun),
        cmocka_unit_test(of_many_that_are_refused_little_is_read),
        cmocka_unit_test(of_many_that_are_due_a_turn_ends_a_few),
        cmocka_unit_test(random_clients_leave_nothing_behind),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

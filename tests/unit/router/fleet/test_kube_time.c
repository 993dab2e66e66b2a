/* tests/unit/router/fleet/test_kube_time.c - hours of a cluster's life, in moments.
 *
 * The watch with the intervals that it has in production, the scripted API server over TLS, and the
 * copy that is made of its events, on one loop whose clock is the test's (by the linker's
 * --wrap): each turn of the loop takes 20 ms, or 250 where minutes pass. What happens in a
 * turn happens in real time; what waits for time to pass does not wait. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/net/loop.h"
#include "common/telemetry/log.h"
#include "router/fleet/discovery/kube_client.h"
#include "router/fleet/discovery/kube_store.h"
#include "router/fleet/discovery/kube_watch.h"
#include "tests/support/api_server.h"
#include "tests/support/cm.h"

#define SECOND_US UINT64_C(1000000)
#define MINUTE_US (60 * SECOND_US)
#define TURN_US   UINT64_C(20000)
#define LONG_US   UINT64_C(250000) /* of a turn, where minutes pass */

static uint64_t virtual_us = SECOND_US;

uint64_t __wrap_clock_now_us(void);
uint64_t __wrap_clock_now_us(void) {
    return virtual_us;
}

/* The loop's alarm rings in every turn: the kernel would set it by another clock. */
int __real_timerfd_settime(int fd, int flags, const struct itimerspec *at, struct itimerspec *old);
int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *at, struct itimerspec *old);
int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *at, struct itimerspec *old) {
    struct itimerspec soon = {.it_value = {0, 1}};

    (void)flags;
    (void)at;
    return __real_timerfd_settime(fd, 0, &soon, old);
}

struct fixture {
    struct loop *loop;
    struct log *log;
    FILE *log_file;
    struct api_server *api;
    struct kube_client *client;
    struct kube_watch *watch;
    struct kube_store *store;
    uint32_t n_lists, n_updates;
    char token_file[96], ca_file[96];
    double most_stale_s;
};

/* --- the listener ----------------------------------------------------------------------------- */

static void on_begin(void *arg) {
    kube_store_begin(((struct fixture *)arg)->store);
}

static void on_object(struct str json, void *arg) {
    struct fixture *w = arg;

    w->n_updates++;
    assert_int_equal(kube_store_object(w->store, json, NULL), ST_OK);
}

static void on_gone(struct str json, void *arg) {
    struct fixture *w = arg;

    w->n_updates++;
    assert_int_equal(kube_store_gone(w->store, json, NULL), ST_OK);
}

static void on_end(void *arg) {
    struct fixture *w = arg;

    w->n_lists++;
    kube_store_end(w->store);
    kube_store_check(w->store);
}

static const struct kube_watch_events watch_events = {
    .begin = on_begin, .object = on_object, .gone = on_gone, .end = on_end};

/* "10.0.0.1 10.0.0.2", in order of age. */
static const char *used(const struct fixture *w) {
    static char text[1024];
    struct discovery_set set = {0};
    struct kube_store_stats stats;
    size_t n = 0;

    text[0] = '\0';
    kube_store_workers(w->store, 64, &set, &stats);
    for (uint32_t i = 0; i < set.n; i++) {
        if (set.workers[i].is_draining) continue;
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s", n ? " " : "",
                              set.workers[i].url.host);
    }
    discovery_set_fini(&set);
    return text;
}

/* --- time ------------------------------------------------------------------------------------- */

static void pass(struct fixture *w, uint64_t us) {
    uint64_t turn_us = us < MINUTE_US ? TURN_US : LONG_US;

    for (uint64_t end_us = virtual_us + us; virtual_us < end_us; virtual_us += turn_us) {
        loop_turn(w->loop, 0);
        if (kube_watch_is_synced(w->watch))
            w->most_stale_s = MAX(w->most_stale_s, kube_watch_stale_s(w->watch));
    }
}

/* How long it took, in seconds. */
static double until_used(struct fixture *w, const char *hosts, uint64_t most_us) {
    uint64_t began_us = virtual_us;

    while (strcmp(used(w), hosts) != 0) {
        if (virtual_us - began_us > most_us) assert_string_equal(used(w), hosts);
        pass(w, TURN_US);
    }
    return (double)(virtual_us - began_us) * 1e-6;
}

/* --- the server's side ------------------------------------------------------------------------ */

static void command(struct fixture *w, const char *text) {
    struct buf answer;

    buf_init(&answer, 0);
    api_server_do(w->api, str_of(text), &answer);
    if (str_find(buf_str(&answer), STR("\"ok\":true")) < 0)
        fail_msg("%s: " STR_FMT, text, STR_ARG(buf_str(&answer)));
    buf_fini(&answer);
}

static uint64_t stat_of(struct fixture *w, const char *name) {
    struct buf answer;
    char key[64];
    ptrdiff_t at;
    uint64_t value;

    buf_init(&answer, 0);
    snprintf(key, sizeof(key), "\"%s\":", name);
    api_server_do(w->api, STR("{\"do\":\"stats\"}"), &answer);
    at = str_find(buf_str(&answer), str_of(key));
    assert_true(at >= 0);
    value = strtoull(buf_ptr(&answer) + at + strlen(key), NULL, 10);
    buf_fini(&answer);
    return value;
}

/* Pods are called after their addresses and have their ages. */
static void come(struct fixture *w, int n) {
    char text[700];

    snprintf(text, sizeof(text),
             "{\"do\":\"put\",\"object\":{\"kind\":\"Pod\",\"metadata\":{\"name\":\"p%d\","
             "\"labels\":{\"app\":\"w\"},\"creationTimestamp\":\"2026-01-01T00:00:%02dZ\"},"
             "\"spec\":{\"containers\":[{\"name\":\"c\",\"ports\":[{\"containerPort\":8000}]}]},"
             "\"status\":{\"phase\":\"Running\",\"podIP\":\"10.0.0.%d\",\"conditions\":[{\"type\":"
             "\"Ready\",\"status\":\"True\"}]}}}",
             n, n, n);
    command(w, text);
}

static void go(struct fixture *w, int n) {
    char text[100];

    snprintf(text, sizeof(text), "{\"do\":\"force\",\"name\":\"p%d\"}", n);
    command(w, text);
}

static void write_token(struct fixture *w, const char *token) {
    FILE *f = fopen(w->token_file, "w");

    fputs(token, f);
    fclose(f);
}

/* --- both ------------------------------------------------------------------------------------- */

static void init(struct fixture *w) {
    struct log_config log_config = {.level = LOG_INFO, .max_per_s = 1000};
    char server[64];
    struct kube_config config = {.api_server = server};
    struct kube_watch_config watch = {.path = "/api/v1/namespaces/default/pods",
                                      .selector = "app=w",
                                      .field_selector = "",
                                      .what = "pods in namespace default",
                                      .resource = "pods",
                                      .group = "",
                                      .events = &watch_events,
                                      .arg = w};
    struct error err = {.message = ""};

    *w = (struct fixture){0};
    assert_int_equal(loop_create(&w->loop, NULL), ST_OK);
    w->log_file = tmpfile();
    log_config.fd = fileno(w->log_file);
    w->log = log_create(&log_config);
    w->api = api_server_create(w->loop, false);
    snprintf(w->token_file, sizeof(w->token_file), "%s/token", api_server_folder(w->api));
    snprintf(w->ca_file, sizeof(w->ca_file), "%s/ca.pem", api_server_folder(w->api));
    write_token(w, "one");
    command(w, "{\"do\":\"tokens\",\"tokens\":[\"one\"]}");
    for (int n = 1; n <= 3; n++)
        come(w, n);
    snprintf(server, sizeof(server), "https://127.0.0.1:%u", api_server_port(w->api));
    config.token_file = w->token_file;
    config.ca_file = w->ca_file;
    w->store = kube_store_create(KUBE_PODS, "incipit.dev/role");
    if (kube_client_create(&w->client, w->loop, w->log, &config, &err) != ST_OK ||
        kube_watch_create(&w->watch, w->client, &watch, &err) != ST_OK)
        fail_msg("%s", err.message);
    (void)until_used(w, "10.0.0.1 10.0.0.2 10.0.0.3", 5 * SECOND_US);
    while (stat_of(w, "open_watches") == 0)
        pass(w, TURN_US);
}

static void fini(struct fixture *w) {
    kube_watch_destroy(w->watch);
    kube_client_destroy(w->client);
    kube_store_destroy(w->store);
    api_server_destroy(w->api);
    log_destroy(w->log);
    fclose(w->log_file);
    loop_destroy(w->loop);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void ten_minutes_without_a_server_change_nothing_and_are_made_good_in_a_minute(
    void **state) {
    struct fixture w;
    uint32_t n_before;
    uint64_t connections;

    (void)state;
    init(&w);
    pass(&w, 2 * MINUTE_US);
    n_before = w.n_updates;
    command(&w, "{\"do\":\"die\"}");
    pass(&w, 5 * MINUTE_US);
    go(&w, 1);
    come(&w, 4);
    command(&w, "{\"do\":\"compact\"}"); /* missed events cannot be delivered any more */
    come(&w, 5);
    pass(&w, 5 * MINUTE_US);
    assert_int_equal(w.n_updates, n_before);
    assert_string_equal(used(&w), "10.0.0.1 10.0.0.2 10.0.0.3");
    assert_true(kube_watch_is_synced(w.watch));
    assert_in_range((uint64_t)kube_watch_stale_s(w.watch), 599, 602);

    connections = stat_of(&w, "connections");
    command(&w, "{\"do\":\"listen\",\"on\":true}");
    /* Two pauses at most: for the server, and, when it has forgotten our version, for the list. */
    (void)until_used(&w, "10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.5", 62 * SECOND_US);
    assert_in_range(stat_of(&w, "connections"), connections + 1, connections + 4);
    pass(&w, SECOND_US);
    assert_true(kube_watch_stale_s(w.watch) == 0);
    fini(&w);
}

static void a_server_that_stalls_for_ten_minutes_is_asked_with_backoff(void **state) {
    struct fixture w;
    uint64_t connections;

    (void)state;
    init(&w);
    connections = stat_of(&w, "connections");
    command(&w, "{\"do\":\"accept\",\"how\":\"stall\"}");
    command(&w, "{\"do\":\"watches\",\"act\":\"reset\"}");
    pass(&w, 10 * MINUTE_US);
    assert_string_equal(used(&w), "10.0.0.1 10.0.0.2 10.0.0.3");
    assert_in_range(stat_of(&w, "connections") - connections, 2, 200);
    command(&w, "{\"do\":\"accept\",\"how\":\"serve\"}");
    go(&w, 2);
    (void)until_used(&w, "10.0.0.1 10.0.0.3", 2 * MINUTE_US);
    fini(&w);
}

static void a_watch_without_any_data_is_ended_after_150_s(void **state) {
    struct fixture w;
    double took_s;

    (void)state;
    init(&w);
    command(&w, "{\"do\":\"watches\",\"act\":\"hold\"}"); /* its machine is gone: not even a FIN */
    go(&w, 3);
    took_s = until_used(&w, "10.0.0.1 10.0.0.2", 160 * SECOND_US);
    assert_true(took_s > 100);
    fini(&w);
}

static void a_blind_watch_is_corrected_by_the_list_of_every_ten_minutes(void **state) {
    struct fixture w;

    (void)state;
    init(&w);
    command(&w, "{\"do\":\"rewind\",\"rv\":900}");
    command(&w, "{\"do\":\"watches\",\"act\":\"cut\"}");
    pass(&w, SECOND_US);
    go(&w, 3); /* a watch from the future does not see them */
    pass(&w, 10 * SECOND_US);
    assert_string_equal(used(&w), "10.0.0.1 10.0.0.2 10.0.0.3");
    (void)until_used(&w, "10.0.0.1 10.0.0.2", 12 * MINUTE_US);
    fini(&w);
}

static void three_idle_hours_cost_a_list_every_ten_minutes_and_few_connections(void **state) {
    struct fixture w;

    (void)state;
    init(&w);
    pass(&w, 180 * MINUTE_US);
    assert_in_range(stat_of(&w, "lists"), 15, 24);
    assert_in_range(stat_of(&w, "watches"), 15, 60);
    assert_true(stat_of(&w, "connections") <= 2 * stat_of(&w, "lists"));
    assert_true(w.most_stale_s < 2);
    come(&w, 4);
    assert_true(until_used(&w, "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4", SECOND_US) < 0.5);
    fini(&w);
}

static void a_role_that_is_given_later_is_noticed_within_half_a_minute(void **state) {
    struct fixture w;
    uint64_t requests;

    (void)state;
    init(&w);
    command(&w, "{\"do\":\"forbid\",\"verb\":\"list\"}");
    command(&w, "{\"do\":\"forbid\",\"verb\":\"watch\"}");
    command(&w, "{\"do\":\"watches\",\"act\":\"gone\"}");
    requests = stat_of(&w, "requests");
    pass(&w, 5 * MINUTE_US);
    assert_in_range(stat_of(&w, "requests") - requests, 10, 120); /* often at first */
    requests = stat_of(&w, "requests");
    pass(&w, 10 * MINUTE_US);
    assert_in_range(stat_of(&w, "requests") - requests, 19, 80); /* 0 to 30 s apart */
    command(&w, "{\"do\":\"forbid\",\"verb\":\"list\",\"on\":false}");
    command(&w, "{\"do\":\"forbid\",\"verb\":\"watch\",\"on\":false}");
    go(&w, 1);
    (void)until_used(&w, "10.0.0.2 10.0.0.3", 31 * SECOND_US);
    fini(&w);
}

/* A real server that begins refuses connections, then answers 403 until it has read its Roles. */
static void a_server_that_is_started_again_and_forbids_at_first_is_followed_in_two_seconds(
    void **state) {
    static const char *const hosts[] = {"10.0.0.1 10.0.0.2 10.0.0.3",
                                        "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4"};
    double longest_s = 0, took_s;
    struct fixture w;

    (void)state;
    init(&w);
    for (int i = 0; i < 20; i++) {
        pass(&w, 2 * MINUTE_US);
        command(&w, "{\"do\":\"die\"}");
        pass(&w, 2 * SECOND_US);
        command(&w, "{\"do\":\"forbid\",\"verb\":\"list\"}");
        command(&w, "{\"do\":\"forbid\",\"verb\":\"watch\"}");
        command(&w, "{\"do\":\"listen\",\"on\":true}");
        pass(&w, SECOND_US);
        command(&w, "{\"do\":\"forbid\",\"verb\":\"list\",\"on\":false}");
        command(&w, "{\"do\":\"forbid\",\"verb\":\"watch\",\"on\":false}");
        if (i % 2 == 0) {
            come(&w, 4);
        } else {
            go(&w, 4);
        }
        took_s = until_used(&w, hosts[i % 2 == 0], 2 * SECOND_US);
        longest_s = MAX(longest_s, took_s);
    }
    print_message("event to effect after a restart: %.2f s at most\n", longest_s);
    fini(&w);
}

static void tokens_of_an_hour_are_followed_for_three(void **state) {
    struct fixture w;
    static const char *const tokens[] = {"one", "two", "three", "four"};

    (void)state;
    init(&w);
    for (int hour = 0; hour < 3; hour++) {
        char text[96];

        pass(&w, 48 * MINUTE_US); /* the kubelet swaps it at 80 % of its life */
        snprintf(text, sizeof(text), "{\"do\":\"tokens\",\"tokens\":[\"%s\",\"%s\"]}", tokens[hour],
                 tokens[hour + 1]);
        command(&w, text);
        write_token(&w, tokens[hour + 1]);
        pass(&w, 12 * MINUTE_US);
        snprintf(text, sizeof(text), "{\"do\":\"tokens\",\"tokens\":[\"%s\"]}", tokens[hour + 1]);
        command(&w, text); /* the one before has expired */
    }
    assert_int_equal(stat_of(&w, "unauthorized"), 0);
    command(&w, "{\"do\":\"watches\",\"act\":\"cut\"}");
    come(&w, 4);
    (void)until_used(&w, "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4", 2 * SECOND_US);
    fini(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_minutes_without_a_server_change_nothing_and_are_made_good_in_a_minute),
        cmocka_unit_test(a_server_that_stalls_for_ten_minutes_is_asked_with_backoff),
        cmocka_unit_test(a_watch_without_any_data_is_ended_after_150_s),
        cmocka_unit_test(a_blind_watch_is_corrected_by_the_list_of_every_ten_minutes),
        cmocka_unit_test(three_idle_hours_cost_a_list_every_ten_minutes_and_few_connections),
        cmocka_unit_test(a_role_that_is_given_later_is_noticed_within_half_a_minute),
        cmocka_unit_test(
            a_server_that_is_started_again_and_forbids_at_first_is_followed_in_two_seconds),
        cmocka_unit_test(tokens_of_an_hour_are_followed_for_three),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

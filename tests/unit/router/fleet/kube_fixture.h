/* tests/unit/router/fleet/kube_fixture.h - a small API server, a listener that keeps each
 * report, and the watch between them, on one loop. Objects are called "a" to "z". */
#ifndef TESTS_UNIT_ROUTER_FLEET_KUBE_FIXTURE_H
#define TESTS_UNIT_ROUTER_FLEET_KUBE_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/net/loop.h"
#include "common/telemetry/log.h"
#include "router/fleet/discovery/kube_client.h"
#include "router/fleet/discovery/kube_json.h"
#include "router/fleet/discovery/kube_watch.h"
#include "tests/support/cm.h"

#define MAX_REQUESTS 64

struct answer {
    int code;         /* 0: 200 that goes on until the test ends it */
    const char *body; /* of one that goes on: its beginning */
    const char *retry_after;
};

struct fixture {
    struct loop *loop;
    struct http_server *server;
    struct kube_client *client;
    struct kube_watch *watch;
    struct log *log;
    FILE *log_file;
    char log_text[16384];
    uint16_t port;

    /* The server's side: answers in order, then ones that go on. */
    struct answer answers[MAX_REQUESTS];
    int n_answers, n_requests;
    char targets[MAX_REQUESTS][700], tokens[MAX_REQUESTS][100], agent[100];
    struct http_request *open; /* the answer that goes on; NULL: none */
    void (*on_request)(struct fixture *fx, struct http_request *req); /* instead of answers */

    /* The listener's side. */
    uint32_t round_of[26], round; /* 0: not held */
    int n_begun, n_ended, n_objects, n_gone, n_changes, n_missing, n_forbidden;
    bool gives_up; /* on a collection that is missing, and destroys the watch */
    size_t object_bytes;
};

/* --- the listener ----------------------------------------------------------------------------- */

static UNUSED int name_of(struct str object) {
    struct str name = kube_json_plain(kube_json_get(kube_json_get(object, "metadata"), "name"));

    assert_int_equal(name.len, 1);
    assert_in_range(name.ptr[0], 'a', 'z');
    return name.ptr[0] - 'a';
}

static void on_begin(void *arg) {
    struct fixture *fx = arg;

    fx->n_begun++;
    fx->round++;
}

static void on_object(struct str json, void *arg) {
    struct fixture *fx = arg;

    fx->n_objects++;
    fx->object_bytes += json.len;
    fx->round_of[name_of(json)] = fx->round;
}

static void on_gone(struct str json, void *arg) {
    struct fixture *fx = arg;

    fx->n_gone++;
    fx->round_of[name_of(json)] = 0;
}

static void on_end(void *arg) {
    struct fixture *fx = arg;

    fx->n_ended++;
    for (int i = 0; i < 26; i++) {
        if (fx->round_of[i] != fx->round) fx->round_of[i] = 0;
    }
}

static void on_change(void *arg) {
    struct fixture *fx = arg;

    fx->n_changes++;
}

static bool on_missing(void *arg) {
    struct fixture *fx = arg;

    fx->n_missing++;
    if (!fx->gives_up) return true;
    kube_watch_destroy(fx->watch);
    fx->watch = NULL;
    return false;
}

static bool on_forbidden(void *arg) {
    struct fixture *fx = arg;

    fx->n_forbidden++;
    return true;
}

static const struct kube_watch_events watch_events = {.begin = on_begin,
                                                      .object = on_object,
                                                      .gone = on_gone,
                                                      .end = on_end,
                                                      .change = on_change,
                                                      .missing = on_missing,
                                                      .forbidden = on_forbidden};

/* The names held, in order. */
static UNUSED const char *held(const struct fixture *fx) {
    static char names[27];
    int n = 0;

    for (int i = 0; i < 26; i++) {
        if (fx->round_of[i]) names[n++] = (char)('a' + i);
    }
    names[n] = '\0';
    return names;
}

/* --- the server ------------------------------------------------------------------------------- */

static void forget_open(struct http_request *req) {
    struct fixture *fx = req->user;

    if (fx->open == req) fx->open = NULL;
}

static UNUSED void go_on(struct fixture *fx, struct http_request *req, const char *beginning) {
    req->user = fx;
    req->on_abort = forget_open;
    fx->open = req;
    http_stream_begin(req, 200, "application/json");
    if (beginning) http_stream_write(req, str_of(beginning));
}

static void on_server_request(struct http_request *req, void *arg) {
    struct fixture *fx = arg;
    const struct answer *a = &fx->answers[fx->n_requests];
    int i = fx->n_requests++;

    assert_true(i < MAX_REQUESTS);
    snprintf(fx->targets[i], sizeof(fx->targets[i]), STR_FMT, STR_ARG(req->target));
    snprintf(fx->tokens[i], sizeof(fx->tokens[i]), STR_FMT,
             STR_ARG(http_request_header(req, STR("authorization"))));
    snprintf(fx->agent, sizeof(fx->agent), STR_FMT,
             STR_ARG(http_request_header(req, STR("user-agent"))));
    if (fx->on_request) {
        fx->on_request(fx, req);
    } else if (i >= fx->n_answers || a->code == 0) {
        go_on(fx, req, i < fx->n_answers ? a->body : NULL);
    } else {
        if (a->retry_after) http_add_header(req, STR("retry-after"), str_of(a->retry_after));
        http_reply(req, a->code, "application/json", str_of(a->body ? a->body : ""));
    }
}

static const struct http_server_events server_events = {.on_request = on_server_request};

static UNUSED void start_server(struct fixture *fx) {
    struct http_limits limits = {.head_timeout_ms = 60000};

    fx->server = http_server_create(fx->loop, &limits, &server_events, fx);
    assert_int_equal(http_server_listen(fx->server, "127.0.0.1", fx->port, false, NULL), ST_OK);
    fx->port = http_server_port(fx->server);
}

/* --- both ------------------------------------------------------------------------------------- */

static UNUSED void init(struct fixture *fx) {
    struct log_config config = {.level = LOG_DEBUG, .max_per_s = 1000};

    memset(fx, 0, sizeof(*fx));
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    fx->log_file = tmpfile();
    config.fd = fileno(fx->log_file);
    fx->log = log_create(&config);
    start_server(fx);
}

static UNUSED void expect(struct fixture *fx, const struct answer *answer) {
    fx->answers[fx->n_answers++] = *answer;
}

/* `config` without a server: this one. Delays are next to nothing, unless `config` sets them. */
static UNUSED void start(struct fixture *fx, struct kube_config config) {
    struct error err = {0};
    char server[64];

    snprintf(server, sizeof(server), "http://127.0.0.1:%u", fx->port);
    if (!config.api_server) config.api_server = server;
    if (!config.intervals.backoff_ms) config.intervals.backoff_ms = 1;
    if (!config.intervals.backoff_max_ms) config.intervals.backoff_max_ms = 2;
    assert_int_equal(kube_client_create(&fx->client, fx->loop, fx->log, &config, &err), ST_OK);
    assert_int_equal(
        kube_watch_create(&fx->watch, fx->client,
                          &(struct kube_watch_config){.path = "/api/v1/namespaces/prod/pods",
                                                      .selector = "app=vllm,tier in (a, b)",
                                                      .what = "pods in namespace prod",
                                                      .resource = "pods",
                                                      .group = "",
                                                      .events = &watch_events,
                                                      .arg = fx},
                          &err),
        ST_OK);
    assert_int_equal(fx->n_begun, 0);
}

static UNUSED void finish(struct fixture *fx) {
    kube_watch_destroy(fx->watch);
    kube_client_destroy(fx->client);
    http_server_destroy(fx->server);
    log_destroy(fx->log);
    fclose(fx->log_file);
    loop_destroy(fx->loop);
}

/* Turns the loop until `holds`, at most some seconds. */
#define UNTIL(fx, holds)                                                                           \
    do {                                                                                           \
        uint64_t until_us_ = clock_now_us() + 10000000u;                                           \
        while (!(holds)) {                                                                         \
            loop_turn((fx)->loop, 5000);                                                           \
            assert_true(clock_now_us() < until_us_);                                               \
        }                                                                                          \
    } while (0)

static UNUSED void turn_idly(struct fixture *fx) {
    for (int i = 0; i < 30; i++)
        loop_turn(fx->loop, 1000);
}

static UNUSED void watch_write(struct fixture *fx, const char *text) {
    assert_non_null(fx->open);
    http_stream_write(fx->open, str_of(text));
}

static UNUSED void end_watch(struct fixture *fx) {
    http_stream_end(fx->open);
    fx->open = NULL;
}

static UNUSED const char *log_text(struct fixture *fx) {
    size_t n;

    rewind(fx->log_file);
    n = fread(fx->log_text, 1, sizeof(fx->log_text) - 1, fx->log_file);
    fx->log_text[n] = '\0';
    return fx->log_text;
}

#define POD(name, version)                                                                         \
    "{\"metadata\":{\"name\":\"" name "\",\"resourceVersion\":\"" version "\"}}"
#define LISTED(version, items)                                                                     \
    "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"" version     \
    "\"},\"items\":[" items "]}"
#define PAGE(version, next, items)                                                                 \
    "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"" version     \
    "\",\"continue\":\"" next "\"},\"items\":[" items "]}"
#define EVENT(type, name, version) "{\"type\":\"" type "\",\"object\":" POD(name, version) "}\n"
#define BOOKMARK(version)                                                                          \
    "{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{"     \
    "\"resourceVersion\":\"" version "\",\"creationTimestamp\":null},\"spec\":{\"containers\":"    \
    "null},\"status\":{}}}\n"
#define STATUS(code, reason, message)                                                              \
    "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\","           \
    "\"message\":\"" message "\",\"reason\":\"" reason "\",\"code\":" #code "}"
#define GONE                                                                                       \
    "{\"type\":\"ERROR\",\"object\":" STATUS(410, "Expired", "too old resource version") "}\n"

/* --- what was asked --------------------------------------------------------------------------- */

#define LIST_PATH                                                                                  \
    "/api/v1/namespaces/prod/pods?labelSelector=app%3Dvllm%2Ctier%20in%20%28a%2C%20b%29"

static UNUSED bool is_watch(const struct fixture *fx, int i, const char *version) {
    char want[200];

    snprintf(want, sizeof(want),
             "&watch=true&allowWatchBookmarks=true&resourceVersion=%s&timeoutSeconds=", version);
    return strstr(fx->targets[i], want) != NULL;
}

static UNUSED bool is_new_list(const struct fixture *fx, int i) {
    return strcmp(fx->targets[i], LIST_PATH "&limit=500") == 0;
}

#define NEVER 3600000u /* an hour: a test does not see it pass */

#endif

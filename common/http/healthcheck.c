/* common/http/healthcheck.c - see healthcheck.h. A loop of its own turns until the one call is
 * over. */
#include "common/http/healthcheck.h"

#include <stdio.h>
#include <string.h>

#include "common/http/http_client.h"
#include "common/net/loop.h"

#define TIMEOUT_MS 2000

struct asked {
    struct loop *loop;
    const char *url;
    int code;
    enum status st;
    struct error *err;
};

static void on_answer(const struct http_client_response *response, void *arg) {
    struct asked *a = arg;

    if (response->status != ST_OK) {
        a->st = error_set(a->err, ST_UNAVAILABLE, "%s: %s", a->url, response->message);
    } else if (response->code != a->code) {
        a->st = error_set(a->err, ST_UNAVAILABLE, "%s returned status %d", a->url, response->code);
    }
    loop_stop(a->loop);
}

static const char *host_to_ask(const char *host) {
    if (strcmp(host, "0.0.0.0") == 0) return "127.0.0.1";
    return strcmp(host, "::") == 0 ? "::1" : host;
}

enum status healthcheck_ask(const struct healthcheck *check, struct error *err) {
    const char *host = host_to_ask(check->host), *is_v6 = strchr(host, ':');
    char url[512];
    const char *const headers[] = {check->header, NULL};
    struct http_client_request request = {
        .method = check->method, .url = url, .headers = headers, .timeout_ms = TIMEOUT_MS};
    const struct http_client_trust trust = {.is_insecure = true};
    struct asked a = {.url = url, .code = check->code ? check->code : 200, .err = err};
    struct http_client *client = NULL;
    enum status st;

    snprintf(url, sizeof(url), "%s://%s%s%s:%u%s", check->is_tls ? "https" : "http",
             is_v6 ? "[" : "", host, is_v6 ? "]" : "", check->port, check->path);
    st = loop_create(&a.loop, err);
    if (st == ST_OK) st = http_client_create(&client, a.loop, err);
    if (st == ST_OK) {
        http_client_trust(client, &trust);
        st = http_client_start(client, &request, on_answer, &a, NULL, err);
    }
    if (st == ST_OK) {
        loop_run(a.loop);
        st = a.st;
    }
    http_client_destroy(client);
    loop_destroy(a.loop);
    return st;
}

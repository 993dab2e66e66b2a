/* router/fleet/discovery/kube_client.c - calls to one API server, each with the current
 * credentials. */
#include "router/fleet/discovery/kube_client.h"

#include <stdio.h>

#include "common/base/mem.h"
#include "common/net/loop.h"
#include "router/fleet/discovery/kube_auth.h"

#define CONNECT_TIMEOUT_MS 5000u
#define MAX_PIECE_BYTES    (4u << 20) /* a watch that has fallen behind */
#define CALL_TIMEOUT_MS    30000u

struct kube_client {
    struct loop *loop;
    struct log *log;
    struct http_client *http;
    struct kube_auth *auth;
    struct kube_intervals intervals;
    struct loop_timer look;
};

static void set_default(uint32_t *value, uint32_t to) {
    if (*value == 0) *value = to;
}

static struct kube_intervals with_defaults(struct kube_intervals i) {
    set_default(&i.relist_ms, 600000);
    set_default(&i.silence_ms, 150000);
    set_default(&i.watch_ms, 300000);
    set_default(&i.backoff_ms, 500);
    set_default(&i.backoff_max_ms, 30000);
    set_default(&i.healthy_ms, 60000);
    set_default(&i.look_ms, 60000);
    return i;
}

static void on_look(void *arg) {
    struct kube_client *c = arg;

    loop_timer_start(&c->look, (uint64_t)c->intervals.look_ms * 1000);
    kube_auth_look(c->auth, false);
}

enum status kube_client_create(struct kube_client **out, struct loop *loop, struct log *log,
                               const struct kube_config *config, struct error *err) {
    struct kube_client *c = mem_zalloc(sizeof(*c));
    struct http_client_trust trust;
    enum status st;

    c->loop = loop;
    c->log = log;
    c->intervals = with_defaults(config->intervals);
    loop_timer_init(&c->look, loop, on_look, c);
    st = kube_auth_create(&c->auth, config, log, err);
    if (st == ST_OK) st = http_client_create(&c->http, loop, err);
    if (st != ST_OK) {
        kube_client_destroy(c);
        return st;
    }
    trust = kube_auth_trust(c->auth);
    http_client_trust(c->http, &trust);
    loop_timer_start(&c->look, (uint64_t)c->intervals.look_ms * 1000);
    *out = c;
    return ST_OK;
}

void kube_client_destroy(struct kube_client *c) {
    if (!c) return;
    loop_timer_fini(&c->look);
    http_client_destroy(c->http);
    kube_auth_destroy(c->auth);
    mem_free(c);
}

const char *kube_client_namespace(const struct kube_client *c) {
    return kube_auth_namespace(c->auth);
}

const char *kube_client_server(const struct kube_client *c) {
    return kube_auth_server(c->auth);
}

const struct kube_intervals *kube_client_intervals(const struct kube_client *c) {
    return &c->intervals;
}

struct loop *kube_client_loop(const struct kube_client *c) {
    return c->loop;
}

struct log *kube_client_log(const struct kube_client *c) {
    return c->log;
}

void kube_client_refused(struct kube_client *c) {
    kube_auth_look(c->auth, true);
}

/* --- calls ------------------------------------------------------------------------------------ */

/* Fills in where and who. Requests of every kind may share a connection with a watch: it is
 * probed. */
static enum status start(struct kube_client *c, struct http_client_request *request,
                         const char *path, const char *content_type, http_client_fn *fn, void *arg,
                         struct http_call **call, struct error *err) {
    const char *headers[5] = {"Accept: application/json",
                              "User-Agent: incipit/" INCIPIT_VERSION " (router)"};
    const char *server = kube_auth_server(c->auth), *token;
    struct buf url, type;
    enum status st;
    int n = 2;

    kube_auth_look(c->auth, false);
    token = kube_auth_header(c->auth);
    buf_init(&url, 0);
    buf_init(&type, 0);
    buf_appendf(&url, "%s%s%c", server, path, '\0');
    if (content_type) {
        buf_appendf(&type, "Content-Type: %s%c", content_type, '\0');
        headers[n++] = buf_ptr(&type);
    }
    if (token) headers[n++] = token;
    request->url = buf_ptr(&url);
    request->connect_to = kube_auth_connect_to(c->auth);
    request->headers = headers;
    request->connect_timeout_ms = CONNECT_TIMEOUT_MS;
    request->is_probed = true;
    st = http_client_start(c->http, request, fn, arg, call, err);
    buf_fini(&url);
    buf_fini(&type);
    return st;
}

enum status kube_client_call(struct kube_client *c, const char *method, const char *path,
                             const char *content_type, struct str body, http_client_fn *fn,
                             void *arg, struct http_call **call, struct error *err) {
    struct http_client_request request = {
        .method = method, .body = body, .timeout_ms = CALL_TIMEOUT_MS};

    return start(c, &request, path, content_type, fn, arg, call, err);
}

enum status kube_client_stream(struct kube_client *c, const char *path, uint32_t silence_ms,
                               http_client_data_fn *on_data, http_client_fn *fn, void *arg,
                               struct http_call **call, struct error *err) {
    struct http_client_request request = {
        .on_data = on_data, .silence_ms = silence_ms, .max_body_bytes = MAX_PIECE_BYTES};

    return start(c, &request, path, NULL, fn, arg, call, err);
}

void kube_client_encode(struct buf *out, struct str s) {
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                        (c >= 'A' && c <= 'Z') || (c && strchr("-._~", c));

        if (is_plain) {
            buf_append_char(out, (char)c);
        } else {
            buf_appendf(out, "%%%02X", c);
        }
    }
}

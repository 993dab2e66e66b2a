/* deploy/portable/no_http.c - the portable worker's HTTP client: none.
 *
 * libcurl cannot be linked whole: a distribution's is built upon a dozen libraries, some without a
 * static form. What a worker needs it for is little: downloads from a model hub, and batch files
 * sent to a server. Both answer with this sentence. */
#include <stdio.h>

#include "common/http/http_client.h"
#include "common/http/http_fetch.h"

static enum status none(struct error *err) {
    return error_set(err, ST_UNSUPPORTED,
                     "this worker was built without libcurl, so that it runs on any machine: give "
                     "--model a folder that is already there, or use the ordinary incipit-worker");
}

enum status http_client_create(struct http_client **out, struct loop *loop, struct error *err) {
    (void)out, (void)loop;
    return none(err);
}

void http_client_destroy(struct http_client *client) {
    (void)client;
}

void http_client_trust(struct http_client *client, const struct http_client_trust *trust) {
    (void)client, (void)trust;
}

enum status http_client_start(struct http_client *client, const struct http_client_request *request,
                              http_client_fn *fn, void *arg, struct http_call **call,
                              struct error *err) {
    (void)client, (void)request, (void)fn, (void)arg, (void)call;
    return none(err);
}

void http_call_cancel(struct http_call *call) {
    (void)call;
}

enum status http_fetch_create(struct http_fetch **out, struct error *err) {
    (void)out;
    return none(err);
}

void http_fetch_destroy(struct http_fetch *f) {
    (void)f;
}

enum status http_fetch_run(struct http_fetch *f, const struct http_fetch_request *request,
                           int *code, struct error *err) {
    (void)f, (void)request, (void)code;
    return none(err);
}

const char *http_fetch_header(struct http_fetch *f, const char *name) {
    (void)f, (void)name;
    return NULL;
}

const char *http_fetch_location(struct http_fetch *f) {
    (void)f;
    return NULL;
}

/* Never used for a connection: the sentence above comes first. */
enum status http_origin_of(struct http_origin *out, const char *url, struct error *err) {
    (void)err;
    *out = (struct http_origin){.is_https = true};
    (void)snprintf(out->text, sizeof(out->text), "%s", url);
    return ST_OK;
}

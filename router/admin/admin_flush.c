/* router/admin/admin_flush.c - POST /flush_cache: flushes all workers at once and collects the
 * results.
 *
 * SGLang and ours have /flush_cache, vLLM /reset_prefix_cache. A worker's part of the index is
 * dropped when the worker has confirmed its flush, not before: otherwise the index would hold less
 * than the cache. */
#include <stdio.h>

#include "common/base/mem.h"
#include "common/http/http_client.h"
#include "router/admin/admin_commands_internal.h"
#include "router/registry/registry.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"

#define FLUSH_TIMEOUT_MS 5000

struct flush_one { /* the call to one worker */
    struct list link;
    struct admin_call *call;
    struct registry_view view;
    bool is_second; /* second try, by vLLM's path */
};

static bool flush_ask(struct flush_one *one, const char *path);

static void flush_done(struct admin_call *c) {
    struct json_writer *w = &c->writer;
    bool is_all = c->n_flushed == c->n_asked;

    json_end_array(w);
    json_field_z(w, "status", is_all ? "success" : "partial_success");
    json_field_u64(w, "workers_flushed", c->n_flushed);
    json_field_u64(w, "total_workers", c->n_asked);
    json_end_object(w);
    admin_call_done(c, is_all ? 200 : 207);
}

/* `why` NULL: it has flushed. */
static void flush_end(struct flush_one *one, const char *why) {
    struct admin_call *c = one->call;
    struct json_writer *w = &c->writer;

    json_begin_object(w);
    json_field_z(w, "worker", one->view.url);
    json_field_bool(w, "flushed", !why);
    if (why) json_field_z(w, "why", why);
    json_end_object(w);
    if (!why) {
        c->n_flushed++;
        registry_forget_cache(c->commands->registry, one->view.id);
    }
    list_remove(&one->link);
    mem_free(one);
    if (list_is_empty(&c->asked)) flush_done(c);
}

static void on_flushed(const struct http_client_response *r, void *arg) {
    struct flush_one *one = arg;
    char why[64];

    if (r->status != ST_OK) {
        flush_end(one, r->message);
    } else if (r->code / 100 == 2) {
        flush_end(one, NULL);
    } else if (r->code == 404 && !one->is_second) {
        one->is_second = true;
        if (!flush_ask(one, "/reset_prefix_cache")) flush_end(one, "cannot be asked");
    } else {
        snprintf(why, sizeof(why), "it answered %d", r->code);
        flush_end(one, why);
    }
}

static bool flush_ask(struct flush_one *one, const char *path) {
    char url[REGISTRY_URL_MAX + 32];
    struct http_client_request request = {.method = "POST",
                                          .url = url,
                                          .connect_to = one->view.address,
                                          .body = STR(""),
                                          .max_body_bytes = 65536,
                                          .timeout_ms = FLUSH_TIMEOUT_MS};

    snprintf(url, sizeof(url), "%s%s", one->view.url, path);
    return http_client_start(one->call->commands->client, &request, on_flushed, one, NULL, NULL) ==
           ST_OK;
}

void admin_flush(struct admin_call *c) {
    struct registry_view view;
    struct list refused, *link;

    list_init(&refused);
    json_writer_init(&c->writer, &c->answer);
    json_begin_object(&c->writer);
    json_put_key(&c->writer, "workers");
    json_begin_array(&c->writer);
    for (uint32_t id = 0; id < registry_n_ids(c->commands->registry); id++) {
        struct flush_one *one;

        if (!registry_get(c->commands->registry, id, &view)) continue;
        one = mem_zalloc(sizeof(*one));
        one->call = c;
        one->view = view;
        c->n_asked++;
        list_push_back(flush_ask(one, "/flush_cache") ? &c->asked : &refused, &one->link);
    }
    if (c->n_asked == 0) {
        error_set(&c->err, ST_UNAVAILABLE,
                  "no worker has a cache that can be flushed: GET /workers lists the workers");
        admin_call_failed(c);
        return;
    }
    while ((link = list_pop_front(&refused)) != NULL) {
        struct flush_one *one = LIST_ENTRY(link, struct flush_one, link);

        list_push_back(&c->asked, &one->link);
        flush_end(one, "it cannot be asked"); /* the last one frees c */
    }
}

void admin_flush_drop(struct admin_call *c) {
    struct list *link;

    while ((link = list_pop_front(&c->asked)) != NULL)
        mem_free(LIST_ENTRY(link, struct flush_one, link));
}

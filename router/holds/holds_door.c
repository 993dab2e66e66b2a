/* router/holds/holds_door.c - requests on their way in, on any loop, and their answers back. */
#include <stdio.h>
#include <string.h>

#include "common/http/http_server.h"
#include "common/protocol/openai.h"
#include "common/telemetry/log.h"
#include "router/holds/holds_internal.h"
#include "router/poison/poison.h"

#define BYTES_PER_TOKEN 4.0

static void on_abort(struct http_request *req) {
    struct holds_call *c = req->user;

    c->req = NULL;
    atomic_fetch_add(&c->n_refs, 1);
    mailbox_push(c->holds->left, &c->leave);
}

static enum status read_tenant(struct holds_call *c, const struct http_request *req,
                               struct error *err) {
    const char *name = c->holds->config.tenant_header;
    struct str value = name ? http_request_header(req, str_of(name)) : STR_NULL;
    uint32_t n = 0;

    for (uint16_t i = 0; name && i < req->n_headers; i++)
        n += str_eq_nocase(http_request_header_at(req, i).name, str_of(name));
    if (n > 1)
        return error_set(err, ST_INVALID, "header %s appears more than once: send it once", name);
    if (value.len > KEY_TENANT_MAX)
        return error_set(err, ST_INVALID,
                         "header %s has %zu bytes: use at most %d for a tenant's name", name,
                         value.len, KEY_TENANT_MAX);
    snprintf(c->tenant, sizeof(c->tenant), STR_FMT, STR_ARG(value));
    snprintf(c->holder, sizeof(c->holder), STR_FMT, STR_ARG(value));
    return ST_OK;
}

/* Charges the key, as for any prompt. */
static enum status admit(struct holds_call *c, struct http_request *req, struct error *err) {
    struct keys *keys = c->holds->config.keys;
    struct str key = keys_from_headers(http_request_header(req, STR("authorization")),
                                       http_request_header(req, STR("x-api-key")));
    uint64_t wait_us = 0;
    enum status st;

    if (http_is_from_another_page(req) && c->op != HOLDS_LIST)
        return error_set(err, ST_FORBIDDEN,
                         STR_FMT " is not accepted from a web page of another origin: send the "
                                 "request without the header Origin",
                         STR_ARG(req->path));
    if (!keys_are_needed(keys)) return read_tenant(c, req, err);
    st = keys_enter(keys, key, (double)req->body.len / BYTES_PER_TOKEN,
                    loop_now_us(http_request_loop(req)), &c->key, &wait_us, err);
    if (st != ST_OK) return st;
    snprintf(c->tenant, sizeof(c->tenant), STR_FMT, STR_ARG(key_tenant(c->key.key)));
    keys_name(keys, key, c->holder);
    return ST_OK;
}

/* Of a prompt that killed workers, from this client or another. */
static enum status judge(struct holds_call *c, const struct http_request *req, struct error *err) {
    struct poison *poison = c->holds->config.poison;
    enum poison_verdict verdict;
    struct str client = c->tenant[0] ? str_of(c->tenant) : http_request_client(req);

    snprintf(c->client, sizeof(c->client), STR_FMT, STR_ARG(client));
    if (poison_is_empty(poison)) return ST_OK;
    verdict =
        poison_judge(poison, str_of(c->client), req->body, loop_now_us(http_request_loop(req)));
    if (verdict == POISON_SEEN_ELSEWHERE) c->max_lost = 1;
    return verdict == POISON_SUSPECT ? error_set(err, ST_UNAVAILABLE, "%s", POISON_MESSAGE) : ST_OK;
}

static void reply_error(struct http_request *req, const struct error *err) {
    if (err->status == ST_BUSY || err->status == ST_UNAVAILABLE)
        http_add_header(req, STR("retry-after"), STR("1"));
    http_reply_error(req, err->status, err);
}

static void take(struct holds *h, struct http_request *req, struct mailbox *home,
                 enum holds_op op) {
    struct holds_call *c = holds_call_create(h, op);
    struct error err = {0};

    c->home = home;
    if (atomic_fetch_add(&h->n_calls, 1) >= HOLDS_CALLS_MAX) {
        error_set(&err, ST_BUSY, "%u calls of /cache are open, the most of a router: retry later",
                  HOLDS_CALLS_MAX);
    } else if (admit(c, req, &err) == ST_OK && judge(c, req, &err) == ST_OK) {
        buf_append_str(&c->body, req->body);
        if (buf_status(&c->body) != ST_OK)
            error_set(&err, ST_NOMEM, "out of memory for the body: retry later");
    }
    if (err.status != ST_OK) {
        holds_call_free(c);
        reply_error(req, &err);
        return;
    }
    c->req = req;
    req->user = c;
    req->on_abort = on_abort;
    mailbox_push(h->box, &c->mail);
}

/* A request's way in. */
struct door {
    struct holds *holds;
    struct mailbox *home;
};

static void take_hold(struct http_request *req, void *arg) {
    take(((struct door *)arg)->holds, req, ((struct door *)arg)->home, HOLDS_HOLD);
}

static void take_release(struct http_request *req, void *arg) {
    take(((struct door *)arg)->holds, req, ((struct door *)arg)->home, HOLDS_RELEASE);
}

static void take_prewarm(struct http_request *req, void *arg) {
    take(((struct door *)arg)->holds, req, ((struct door *)arg)->home, HOLDS_PREWARM);
}

static void take_list(struct http_request *req, void *arg) {
    take(((struct door *)arg)->holds, req, ((struct door *)arg)->home, HOLDS_LIST);
}

static const struct http_route routes[] = {
    {HTTP_POST, "/cache/hold", take_hold},
    {HTTP_POST, "/cache/release", take_release},
    {HTTP_POST, "/cache/prewarm", take_prewarm},
    {HTTP_GET, "/cache", take_list},
    {0, NULL, NULL},
};

bool holds_serves(struct str path) {
    for (const struct http_route *r = routes; r->path; r++)
        if (str_eq(path, str_of(r->path))) return true;
    return false;
}

void holds_take(struct holds *h, struct http_request *req, struct mailbox *home) {
    struct door door = {h, home};

    http_route_request(routes, req, &door);
}

void holds_reply(struct mail *mail) {
    struct holds_call *c = CONTAINER_OF(mail, struct holds_call, mail);
    struct http_request *req = c->req;

    if (req && !c->code) {
        reply_error(req, &c->err);
    } else if (req) {
        if (c->code == 429 || c->code == 503) http_add_header(req, STR("retry-after"), STR("1"));
        http_reply(req, c->code, OPENAI_JSON, buf_str(&c->answer));
    }
    log_event(c->holds->config.log, LOG_INFO, "cache_call", log_z("call", holds_op_names[c->op]),
              log_z("holder", c->holder),
              log_i64("code", c->code ? c->code : status_http_code(c->err.status)));
    holds_call_free(c);
}

void holds_drop(struct mail *mail) {
    holds_call_free(CONTAINER_OF(mail, struct holds_call, mail));
}

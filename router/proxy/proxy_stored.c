/* router/proxy/proxy_stored.c - GET and DELETE of a response that a worker has stored.
 *
 * One worker has it, which the response's id names (api.h): the request goes there at once, takes
 * no place, and goes to no other. Key, tenant and salt are those of a POST, so that a tenant sees
 * its own responses. */
#include "common/protocol/api.h"
#include "router/proxy/forward.h"
#include "router/proxy/proxy_internal.h"

static enum status route_to_store(struct exchange *x, struct error *err) {
    struct proxy *p = x->proxy;
    struct str id = forward_stored_id(x->req->method, x->req->path);
    enum status st;

    x->rq = (struct route_request){.is_light = true, .now_us = loop_now_us(p->loop)};
    st = registry_route_stored(p->registry, api_mark_of(id), x->rq.now_us, &x->try.ticket,
                               &x->try.target, err);
    if (st == ST_OK) exchange_move(x, EXCHANGE_SENDING);
    if (st != ST_NOT_FOUND) return st;
    proxy_count_refusal(x, REFUSAL_PATH);
    return error_set(err, ST_NOT_FOUND,
                     "the response '%.*s' is not stored by any worker here: send the whole input",
                     (int)MIN(id.len, 100), id.ptr);
}

void proxy_look_up(struct exchange *x) {
    struct error err = {0};
    enum status st;

    x->scan = (struct body_scan){0}; /* not that of an earlier request */
    st = proxy_permit_call(x, &err);
    if (st == ST_OK && x->proxy->identifies_clients) st = proxy_admit(x, &err);
    if (st == ST_OK) st = route_to_store(x, &err);
    if (st == ST_OK) {
        proxy_attempt(x, false);
        return;
    }
    proxy_count_failure(x, st);
    proxy_fail(x, st, &err);
}

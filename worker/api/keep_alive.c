/* worker/api/keep_alive.c - comments for streams whose prompt takes long.
 *
 * Balancers and clients end a connection on which nothing comes for a while. A comment of
 * server-sent events is a line that begins with a colon, which readers skip. It stands before the
 * first event alone: between tokens a silent engine is to be noticed. One timer looks at all open
 * calls, so that a call costs nothing. */
#include "common/http/http_server.h"
#include "worker/api/call.h"

#define TICK_MIN_US 10000u
#define TICK_MAX_US 250000u

static uint64_t tick_us(const struct api *api) {
    return MIN(MAX(api->keepalive_us / 4, TICK_MIN_US), TICK_MAX_US);
}

static void keep_alive(struct call *c, uint64_t now_us) {
    uint64_t since_us = MAX(c->arrival_us, c->comment_us);

    if (!call_awaits_first_token(c) || now_us < since_us + c->api->keepalive_us) return;
    if (http_pending_bytes(c->req) == 0) call_comment(c);
}

static void on_tick(void *arg) {
    struct api *api = arg;
    uint64_t now_us = loop_now_us(api->loop);

    LIST_FOR_EACH(it, &api->calls) {
        keep_alive(LIST_ENTRY(it, struct call, link), now_us);
    }
    loop_timer_start(&api->keep_alive, tick_us(api));
}

void api_keep_alive_init(struct api *api) {
    loop_timer_init(&api->keep_alive, api->loop, on_tick, api);
}

void api_keep_alive_set(struct api *api, double s) {
    api->keepalive_us = (uint64_t)(s * 1e6);
    if (api->keepalive_us) {
        loop_timer_start(&api->keep_alive, tick_us(api));
    } else {
        loop_timer_stop(&api->keep_alive);
    }
}

void api_keep_alive_fini(struct api *api) {
    loop_timer_fini(&api->keep_alive);
}

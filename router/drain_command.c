/* router/drain_command.c - one POST, then GETs until they are refused. */
#include "router/drain_command.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/http/healthcheck.h"
#include "router/access/keys.h"

#define LOOK_NS  200000000
#define SLACK_US 10000000u /* time between the last request and the exit */
#define BEARER   "authorization: Bearer "

/* Until connections are refused. */
static enum status wait_for_end(const struct healthcheck *alive, uint64_t until_us,
                                struct error *err) {
    const struct timespec pause = {.tv_nsec = LOOK_NS};

    while (healthcheck_ask(alive, NULL) == ST_OK) {
        if (clock_now_us() > until_us) {
            return error_set(err, ST_TIMEOUT,
                             "the router still answers after --drain-settle and --drain-timeout: "
                             "look at its log, or stop the process");
        }
        nanosleep(&pause, NULL);
    }
    return ST_OK;
}

enum status drain_command(const struct router_options *o, struct error *err) {
    struct healthcheck ask = {
        .host = o->admin_host,
        .port = o->admin_port,
        .path = "/livez",
        .is_tls = o->tls_cert_path && !router_is_loopback(o->admin_host),
    };
    const struct healthcheck alive = ask;
    uint64_t most_us =
        2 * (uint64_t)o->drain_settle_ms * 1000 + (uint64_t)o->drain_timeout_ms * 1000 + SLACK_US;
    char key[KEYS_TEXT_MAX] = "", header[KEYS_TEXT_MAX + sizeof(BEARER)];
    enum status st = ST_OK;

    if (o->admin_api_key) {
        snprintf(key, sizeof(key), "%s", o->admin_api_key);
    } else if (o->admin_api_key_file) {
        st = keys_read_first(o->admin_api_key_file, key, err);
    }
    snprintf(header, sizeof(header), BEARER "%s", key);
    ask.path = "/drain";
    ask.method = "POST";
    ask.code = 202;
    ask.header = key[0] ? header : NULL;
    if (st == ST_OK) st = healthcheck_ask(&ask, err);
    return st == ST_OK ? wait_for_end(&alive, clock_now_us() + most_us, err) : st;
}

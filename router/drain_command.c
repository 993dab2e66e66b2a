/* router/drain_command.c - one POST, then GETs until they are refused. */
#include "router/drain_command.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/file.h"
#include "common/healthcheck.h"
#include "common/mem.h"

#define LOOK_NS  200000000
#define SLACK_US 10000000u /* for what comes after the last request */
#define KEY_MAX  1024
#define KEYS_MAX (1u << 20)
#define BEARER   "authorization: Bearer "

/* The first key of a file of keys, which has a comment or one key on each line. */
static enum status read_key(const char *path, char out[KEY_MAX], struct error *err) {
    char *text = NULL, *rest;
    size_t n;
    enum status st = file_read(path, KEYS_MAX, &text, &n, err);

    if (st != ST_OK) return st;
    out[0] = '\0';
    for (char *line = strtok_r(text, "\r\n", &rest); line && !out[0];
         line = strtok_r(NULL, "\r\n", &rest)) {
        line += strspn(line, " \t");
        if (*line != '#') snprintf(out, KEY_MAX, "%.*s", (int)strcspn(line, " \t#"), line);
    }
    mem_free(text);
    return out[0] ? ST_OK : error_set(err, ST_INVALID, "%s has no key", path);
}

/* Until nobody answers. */
static enum status wait_for_end(const struct healthcheck *alive, uint64_t until_us,
                                struct error *err) {
    const struct timespec pause = {.tv_nsec = LOOK_NS};

    while (healthcheck_ask(alive, NULL) == ST_OK) {
        if (clock_now_us() > until_us) {
            return error_set(err, ST_TIMEOUT,
                             "the router still answers after --drain-settle and --drain-timeout");
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
    char key[KEY_MAX] = "", header[KEY_MAX + sizeof(BEARER)];
    enum status st = ST_OK;

    if (o->admin_api_key) {
        snprintf(key, sizeof(key), "%s", o->admin_api_key);
    } else if (o->admin_api_key_file) {
        st = read_key(o->admin_api_key_file, key, err);
    }
    snprintf(header, sizeof(header), BEARER "%s", key);
    ask.path = "/drain";
    ask.method = "POST";
    ask.code = 202;
    ask.header = key[0] ? header : NULL;
    if (st == ST_OK) st = healthcheck_ask(&ask, err);
    return st == ST_OK ? wait_for_end(&alive, clock_now_us() + most_us, err) : st;
}

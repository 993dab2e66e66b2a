/* router/router_refusals.c - options that are right one by one and wrong together.
 *
 * Each is refused at start with a sentence that names the remedy: what would leave a port open, a
 * tenant unprotected or the router without work is better told before the first request. */
#include <string.h>
#include <strings.h>

#include "common/http_parse.h"
#include "router/health.h"
#include "router/router_options.h"

bool router_is_loopback(const char *host) {
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

static bool has_admin_key(const struct router_options *o) {
    return o->admin_api_key || o->admin_api_key_file;
}

enum status router_options_check(const struct router_options *o, struct error *err) {
    bool is_auto = o->launch == LAUNCH_AUTO;

    if (o->launch == 0 && o->worker_urls.n == 0 && !o->worker_file && !has_admin_key(o)) {
        return error_set(err, ST_INVALID,
                         "no workers: name them with --worker-urls http://host:port ... or "
                         "--worker-file FILE, or start some here with --launch 2 --model DIR");
    }
    if (o->launch > 0 && !o->model && o->worker_args.n == 0) {
        return error_set(err, ST_INVALID,
                         "--launch needs to know what to serve: add --model DIR, a Hugging Face "
                         "model folder");
    }
    if ((is_auto ? 1 : o->launch) + o->worker_urls.n > o->max_workers) {
        return error_set(err, ST_INVALID, "%u workers are more than --max-workers %u",
                         (is_auto ? 1 : o->launch) + o->worker_urls.n, o->max_workers);
    }
    if (o->isolate_by == ISOLATE_TENANT && !o->api_keys_file && !o->api_key &&
        !o->trust_tenant_header) {
        return error_set(err, ST_INVALID,
                         "--isolate-by tenant, but nothing says who is who: name tenants in "
                         "--api-keys-file, or add --trust-tenant-header behind a gateway that sets "
                         "%s",
                         o->tenant_header);
    }
    if (o->probe_path[0] != '/' || strlen(o->probe_path) > HEALTH_PATH_MAX) {
        return error_set(err, ST_INVALID,
                         "--probe-path '%.80s' is not a path: it begins with '/', such as /health, "
                         "and has at most %d bytes",
                         o->probe_path, HEALTH_PATH_MAX);
    }
    if (o->trust_tenant_header && !http_is_token(str_of(o->tenant_header))) {
        return error_set(err, ST_INVALID, "--tenant-header-name '%s' is not the name of a header",
                         o->tenant_header);
    }
    if (o->trust_tenant_header && (strcasecmp(o->tenant_header, "authorization") == 0 ||
                                   strcasecmp(o->tenant_header, "x-api-key") == 0)) {
        return error_set(err, ST_INVALID,
                         "--tenant-header-name '%s' carries keys, and tenants are named in logs: "
                         "use another header",
                         o->tenant_header);
    }
    if (!router_is_loopback(o->admin_host) && !has_admin_key(o)) {
        return error_set(err, ST_INVALID,
                         "--admin-host %s is not a loopback address, so that other machines could "
                         "change the fleet: set INCIPIT_ADMIN_API_KEY or --admin-api-key-file, or "
                         "use 127.0.0.1 or ::1",
                         o->admin_host);
    }
    if (o->is_admin_on_main && !has_admin_key(o) &&
        (!router_is_loopback(o->host) || o->api_key || o->api_keys_file)) {
        return error_set(err, ST_INVALID,
                         "--admin-on-main lets every client of %s change the fleet: set "
                         "INCIPIT_ADMIN_API_KEY or --admin-api-key-file",
                         o->host);
    }
    return ST_OK;
}

/* router/options/router_options_check.c - options that are right one by one and wrong together.
 *
 * Each is refused at start with the remedy, before the first request: options that would leave a
 * port open, a tenant unprotected or the router without work. */
#include <string.h>
#include <strings.h>

#include "common/http/http_parse.h"
#include "router/fleet/discovery/kube_store.h"
#include "router/fleet/health.h"
#include "router/options/router_options.h"
#include "router/proxy/retry.h"
#include "router/sharing/redis_stream.h"

bool router_is_loopback(const char *host) {
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

bool router_discovers_kube(const struct router_options *o) {
    return o->service_discovery == DISCOVER_K8S || o->inference_pool;
}

/* A Kubernetes flag without a Kubernetes source, or NULL. */
static const char *find_idle_flag(const struct router_options *o) {
    if (o->k8s_selector.n) return "--k8s-selector";
    if (o->k8s_service) return "--k8s-service";
    if (o->k8s_all_namespaces) return "--k8s-all-namespaces";
    if (o->k8s_write_deletion_cost) return "--k8s-write-deletion-cost";
    return NULL;
}

static enum status check_kube(const struct router_options *o, struct error *err) {
    bool is_of_slices = o->k8s_resource == KUBE_ENDPOINTSLICES;

    if (o->inference_pool && (o->k8s_selector.n || is_of_slices || o->k8s_all_namespaces)) {
        return error_set(err, ST_INVALID,
                         "--inference-pool %s selects the pods itself: leave out --k8s-selector, "
                         "--k8s-resource and --k8s-all-namespaces",
                         o->inference_pool);
    }
    if (!is_of_slices && o->k8s_service) {
        return error_set(
            err, ST_INVALID,
            "--k8s-service %s needs endpoint slices: add --k8s-resource endpointslices",
            o->k8s_service);
    }
    if (is_of_slices && o->k8s_write_deletion_cost) {
        return error_set(
            err, ST_INVALID,
            "--k8s-write-deletion-cost needs pods: leave out --k8s-resource endpointslices");
    }
    if (!o->inference_pool && !o->k8s_selector.n && !o->k8s_service) {
        return error_set(err, ST_INVALID,
                         "--service-discovery k8s without a selector matches every pod: add "
                         "--k8s-selector app=... or --inference-pool NAME");
    }
    return ST_OK;
}

static enum status check_discovery(const struct router_options *o, struct error *err) {
    const char *idle = find_idle_flag(o);

    if (router_discovers_kube(o)) return check_kube(o, err);
    if (idle) {
        return error_set(err, ST_INVALID, "%s has no effect alone: add --service-discovery k8s",
                         idle);
    }
    if (o->service_discovery == DISCOVER_DNS && !o->worker_dns) {
        return error_set(
            err, ST_INVALID,
            "--service-discovery dns has no name to resolve: add --worker-dns NAME:PORT");
    }
    return ST_OK;
}

static uint32_t n_urls(const struct option_list *list) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < list->n; i++)
        n += strchr(list->items[i], ':') != NULL;
    return n;
}

uint32_t router_n_listed(const struct router_options *o) {
    return n_urls(&o->worker_urls) + n_urls(&o->prefill) + n_urls(&o->decode);
}

static bool has_source(const struct router_options *o) {
    return o->launch || router_n_listed(o) || o->worker_file || o->worker_dns ||
           router_discovers_kube(o) || o->service_discovery == DISCOVER_DNS;
}

bool router_has_tenants(const struct router_options *o) {
    return o->api_keys_file || o->trust_tenant_header;
}

bool router_isolates(const struct router_options *o) {
    return o->isolate_by == ISOLATE_TENANT ||
           (o->isolate_by == ISOLATE_AUTO && router_has_tenants(o));
}

static bool has_admin_key(const struct router_options *o) {
    return o->admin_api_key || o->admin_api_key_file;
}

enum status router_options_check(const struct router_options *o, struct error *err) {
    bool is_auto = o->launch == LAUNCH_AUTO;

    if (!has_source(o) && !has_admin_key(o)) {
        return error_set(err, ST_INVALID,
                         "no workers: list some with --worker-urls http://host:port ... or "
                         "--worker-file FILE, find some with --service-discovery k8s, or start "
                         "some here with --launch 2 --model DIR");
    }
    if (check_discovery(o, err) != ST_OK) return ST_INVALID;
    if (o->launch > 0 && !o->model && o->worker_args.n == 0) {
        return error_set(err, ST_INVALID,
                         "--launch has no model to serve: add --model DIR or --model org/name");
    }
    if ((is_auto ? 1 : o->launch) + router_n_listed(o) > o->max_workers) {
        return error_set(err, ST_INVALID,
                         "%u workers are more than --max-workers %u: raise --max-workers",
                         (is_auto ? 1 : o->launch) + router_n_listed(o), o->max_workers);
    }
    if (o->isolate_by == ISOLATE_TENANT && !o->api_keys_file && !o->api_key &&
        !o->trust_tenant_header) {
        return error_set(
            err, ST_INVALID,
            "--isolate-by tenant has no tenants: name tenants in --api-keys-file, or add "
            "--trust-tenant-header behind a gateway that sets %s",
            o->tenant_header);
    }
    if (o->share_redis && !o->prefix_hash_seed) {
        return error_set(err, ST_INVALID,
                         "--share-redis needs one hash seed for all routers: set "
                         "INCIPIT_PREFIX_HASH_SEED to one "
                         "value in all of them");
    }
    if (o->share_redis && redis_stream_check_url(o->share_redis, err) != ST_OK) {
        return error_prefix(err, "--share-redis");
    }
    if (retry_check(&o->retry_on, err) != ST_OK) return ST_INVALID;
    if (o->probe_path[0] != '/' || strlen(o->probe_path) > HEALTH_PATH_MAX) {
        return error_set(
            err, ST_INVALID,
            "--probe-path '%.80s' is not a path: write '/' and at most %d bytes in all, "
            "such as /health",
            o->probe_path, HEALTH_PATH_MAX);
    }
    if (o->trust_tenant_header && !http_is_token(str_of(o->tenant_header))) {
        return error_set(
            err, ST_INVALID,
            "--tenant-header-name '%s' is not a header name: use letters, digits and '-'",
            o->tenant_header);
    }
    if (o->trust_tenant_header && (strcasecmp(o->tenant_header, "authorization") == 0 ||
                                   strcasecmp(o->tenant_header, "x-api-key") == 0)) {
        return error_set(
            err, ST_INVALID,
            "--tenant-header-name '%s' carries API keys, and tenants are written to the "
            "log: use another header",
            o->tenant_header);
    }
    if (forward_check_options(&o->forward, err) != ST_OK) return ST_INVALID;
    if (o->handover && o->launch) {
        return error_set(
            err, ST_INVALID,
            "--handover excludes --launch, because launched workers end with the router "
            "that started them: start the workers apart, and list them in "
            "--worker-urls");
    }
    if (!router_is_loopback(o->admin_host) && !has_admin_key(o)) {
        return error_set(
            err, ST_INVALID,
            "--admin-host %s is no loopback address and lets other machines change the fleet "
            "without a key: set INCIPIT_ADMIN_API_KEY or --admin-api-key-file, or use "
            "127.0.0.1",
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

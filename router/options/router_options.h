/* router/options/router_options.h - what can be set, as the program sees it; the table is in the
 * .c. */
#ifndef ROUTER_OPTIONS_ROUTER_OPTIONS_H
#define ROUTER_OPTIONS_ROUTER_OPTIONS_H

#include "common/options/options.h"
#include "common/options/options_manual.h"
#include "common/telemetry/log.h"
#include "router/proxy/forward.h"
#include "router/routing/policy.h"

enum router_share { SHARE_NONE, SHARE_WORKERS };
enum router_discovery { DISCOVER_NONE, DISCOVER_K8S, DISCOVER_DNS };
enum router_isolation { ISOLATE_NONE, ISOLATE_TENANT, ISOLATE_AUTO };

#define LAUNCH_MAX  256u
#define LAUNCH_AUTO UINT32_MAX /* --launch auto: one for each GPU */
#define HOLD_AUTO   UINT32_MAX /* --hold-ms auto: by the workers' order */
#define QUEUE_AUTO  UINT32_MAX /* --queue-size auto: by whether requests are held */

enum kv_connector { KV_CONNECTOR_NIXL, KV_CONNECTOR_MOONCAKE };
enum session_admission { SESSION_ADMISSION_AUTO, SESSION_ADMISSION_OFF };

struct router_options {
    const char *host, *admin_host;
    uint32_t port, admin_port, n_threads;

    const char *tls_cert_path, *tls_key_path; /* for clients */
    const char *worker_ca, *worker_cert, *worker_key;
    const char *worker_api_key, *worker_api_key_file;
    bool worker_tls_insecure;

    struct option_list worker_urls, prefill, decode, worker_allow_cidr;
    int kv_connector; /* enum kv_connector */
    const char *worker_file, *admin_api_key, *admin_api_key_file;
    bool is_admin_on_main;

    int service_discovery; /* enum router_discovery */
    int k8s_resource;      /* enum kube_resource */
    struct option_list k8s_selector;
    const char *k8s_namespace, *k8s_service, *k8s_role_label, *inference_pool, *worker_dns;
    uint32_t k8s_port; /* 0: the pod's */
    bool k8s_all_namespaces, k8s_write_deletion_cost;
    const char *k8s_api_server, *k8s_token_file, *k8s_ca_file, *kubeconfig, *kube_context;

    uint32_t max_workers;
    uint32_t launch; /* or LAUNCH_AUTO */
    const char *model, *worker_program, *ready_message;
    struct option_list worker_args;
    uint32_t worker_base_port, worker_threads;

    int policy; /* index in policy_names */
    struct policy_options policy_options;
    struct option_list session_headers;
    uint32_t prefix_block_bytes;
    uint64_t max_prefix_bytes, max_index_bytes;
    const char *prefix_hash_seed;
    const char *state_dir, *handover;
    uint32_t handover_wait_ms;
    int share; /* enum router_share */
    const char *share_redis, *share_redis_password, *share_redis_key;
    uint32_t share_redis_entries;

    uint32_t probe_interval_ms, probe_timeout_ms, probe_misses, probe_hits;
    const char *probe_path;
    uint32_t engine_metrics_interval_ms;
    int kv_events; /* enum kv_events_mode */
    uint64_t kv_events_memory;
    uint32_t max_retries, connect_timeout_ms, request_timeout_ms;
    struct option_list retry_on; /* words of retry.h */
    uint32_t first_byte_timeout_ms, stream_idle_timeout_ms, poison_memory_ms;
    double sse_keepalive_s;
    uint32_t slow_start_ms, drain_settle_ms;

    const char *api_keys_file, *api_key, *tenant_header;
    int isolate_by; /* enum router_isolation: ask router_isolates */
    const char *isolation_secret_file, *isolation_secret;
    bool trust_tenant_header;

    uint32_t max_worker_requests, max_concurrent_requests, queue_timeout_ms;
    uint32_t queue_size; /* or QUEUE_AUTO */
    uint32_t hold_ms;    /* or HOLD_AUTO */
    uint64_t max_body_bytes, max_body_memory;
    uint32_t max_connections, head_timeout_ms, idle_timeout_ms, drain_timeout_ms;
    bool expose_worker_headers, forward_authorization, explains_to_clients;
    int session_admission; /* enum session_admission */
    uint32_t session_timeout_ms;
    int strip_client_noise; /* enum client_noise_rule */
    struct forward forward;

    int log_level, log_format;
    uint32_t log_requests, log_requests_rate, log_rate;
    const char *decision_log, *decision_log_secret_file;
};

/* To serve; to check whether the router is live; to drain it. */
extern const struct option_program router_program, router_healthcheck_program, router_drain_program;
/* router_manual.c */
extern const struct option_manual router_manual;
extern const struct option_entry_of_manual router_examples[];

/* ST_INVALID with a sentence when they do not go together (router_options_check.c). */
MUST_USE enum status router_options_check(const struct router_options *o, struct error *err);
bool router_is_loopback(const char *host);
bool router_discovers_kube(const struct router_options *o);
uint32_t router_n_listed(const struct router_options *o); /* workers of the command line */

/* Can there be several tenants: keys of a file, or a gateway that names them? */
bool router_has_tenants(const struct router_options *o);
bool router_isolates(const struct router_options *o); /* tenants share no cached blocks */

/* compat_flags.c; ends with NULL flags. */
extern const struct option_compat router_compat_flags[];

#endif

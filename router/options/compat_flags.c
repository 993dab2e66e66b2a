/* router/options/compat_flags.c - flags of sglang-router, smg and production-stack that are none of
 * ours.
 *
 * A start script of another router should start this one, or fail with the reason. Flags that tune
 * something that works differently here have no effect; flags that would change where requests go
 * or who may send them are refused. Flags with the meaning of one of ours are aliases in
 * router_options.c, which win over a row here. MIGRATING.md is made from both tables. */
#include "router/options/router_options.h"

#define NO_TOKENIZER                                                                               \
    "prompts are matched as bytes; the workers apply tokenizer, template and parsers"
#define NO_PD_LABELS                                                                               \
    "list the workers in --prefill and --decode, or label their pods: see --k8s-role-label"
#define OWN_PAIRS    "the workers' roles decide: see --prefill and --decode"
#define NO_MESH      "the workers connect the routers: see --share"
#define NO_TRACE     "there is no trace exporter; x-request-id is forwarded and logged"
#define ONE_LIST     "models are read from each worker's /v1/models"
#define OWN_PROBES   "workers are always probed: see --probe-interval"
#define OWN_EVICTION "the oldest entries are evicted when their memory is needed"
#define USE_PREFIX   "use --policy prefix, which weighs cache, queue and memory"
#define USE_SESSION  "use --policy session: a session's worker follows from the hash of its key"
#define NO_ALIAS     "models have the names that their workers give them"
#define OWN_BREAKER  "a failing worker is ejected, and tried again after --probe-interval"
#define ELSEWHERE    "a retry goes to another worker at once"
#define IN_KEYS_FILE "set tenants, rates and priorities beside the keys in --api-keys-file"
#define NO_STATS     "load is counted as requests pass: see /metrics on the admin port"
#define ANY_WORKER   "any worker with an OpenAI-compatible API is accepted"
#define NO_PLUGINS   "there are no plug-ins"

const struct option_compat router_compat_flags[] = {
    COMPAT_STANDS_FOR("disable-retries", "max-retries", "0"),
    COMPAT_STANDS_FOR("log-json", "log-format", "json"),

    COMPAT_IGNORED("tokenizer-path=,chat-template=,tokenizer-cache-enable-l0,"
                   "tokenizer-cache-enable-l1,tokenizer-cache-*=,reasoning-parser=,"
                   "tool-call-parser=",
                   NO_TOKENIZER),
    COMPAT_IGNORED("block-size=,cache-boundaries=", "see --prefix-block-bytes"),
    COMPAT_IGNORED("eviction-interval=,cache-ttl-secs=", OWN_EVICTION),
    COMPAT_IGNORED("max-idle-secs=,sticky-key-idle-secs=,assignment-mode=,sticky-sessions",
                   USE_SESSION),
    COMPAT_IGNORED("routing-key-override=", "see --routing-key-headers"),
    COMPAT_IGNORED("prefix-token-count=", "use --chwbl-prefix-bytes: about four bytes a token"),
    COMPAT_IGNORED("prefix-hash-balance-abs-threshold=", "see --prefix-hash-load-factor"),
    COMPAT_IGNORED("balance-token-usage-threshold=,overload-token-usage-threshold=,least-load-*=,"
                   "kv-aware-threshold=,lmcache-controller-port=,overlap-decay=,"
                   "selection-temperature=,worker-overload-protection,worker-overload-*=",
                   USE_PREFIX),
    COMPAT_IGNORED("load-monitor-interval=,engine-stats-interval=,request-stats-window=,log-stats,"
                   "log-stats-interval=,engine-metrics",
                   NO_STATS),
    COMPAT_IGNORED("log-dir=", "the log goes to stderr"),
    COMPAT_IGNORED("enable-igw", "several models are always served"),
    COMPAT_IGNORED("backend=,runtime=", ANY_WORKER),
    COMPAT_IGNORED("history-backend=", "conversations are not stored"),
    COMPAT_IGNORED("static-models=,static-model-types=,static-model-labels=", ONE_LIST),
    COMPAT_IGNORED("static-backend-health-checks,static-backend-health-check-*=,"
                   "backend-health-check-timeout-seconds=,disable-health-check,"
                   "remove-unhealthy-workers,worker-startup-*=",
                   OWN_PROBES),
    COMPAT_IGNORED("cb-*=,disable-circuit-breaker", OWN_BREAKER),
    COMPAT_IGNORED("retry-initial-backoff-ms=,retry-max-backoff-ms=,retry-backoff-multiplier=,"
                   "retry-jitter-factor=",
                   ELSEWHERE),
    COMPAT_IGNORED("cache-index=", "there is one kind of index"),
    COMPAT_IGNORED("prometheus-duration-buckets=*", "the buckets are fixed"),
    COMPAT_IGNORED("request-id-headers=*", "the header is x-request-id"),
    COMPAT_IGNORED("otel-service-name=", NO_TRACE),
    COMPAT_IGNORED("sentry-dsn=", "errors are in the log"),
    COMPAT_IGNORED("k8s-watcher-timeout-seconds=", "a silent watch is restarted"),

    COMPAT_IGNORED("pd-disaggregation,prefill-policy=,decode-policy=", OWN_PAIRS),
    COMPAT_REFUSED("prefill-model-labels=,decode-model-labels=,prefill-selector=*,"
                   "decode-selector=*,encode-selector=*",
                   NO_PD_LABELS),
    COMPAT_REFUSED("enable-mesh,mesh-peer-urls=*,mesh-*=,router-selector=*,kv-indexer-url=",
                   NO_MESH),
    COMPAT_REFUSED("model-id-from=", ONE_LIST),
    COMPAT_REFUSED("model-alias=*,static-aliases=", NO_ALIAS),
    COMPAT_REFUSED("cors-allowed-origins=*", "set CORS headers in the proxy before this router"),
    COMPAT_REFUSED("root-path=", "strip the prefix in the proxy before this router"),
    COMPAT_REFUSED("health-check-port=", "probe /livez and /readyz on --admin-port"),
    COMPAT_REFUSED("dynamic-config-yaml=,dynamic-config-json=",
                   "use --config FILE, whose keys are the flags of incipit-router"),
    COMPAT_REFUSED("enable-batch-api", "run batches with incipit-worker batch"),
    COMPAT_REFUSED("external-providers-config=", "list the workers in --worker-urls"),
    COMPAT_REFUSED("feature-gates=", "there are no feature gates"),
    COMPAT_REFUSED("tenant-api-key=,tenant-rate-limit-enabled,tenant-rate-limit-config=,"
                   "rate-limit-tokens-per-second=,priority-scheduler-enabled,"
                   "priority-scheduler-config=",
                   IN_KEYS_FILE),
    COMPAT_REFUSED("control-plane-api-keys=*", "use --admin-api-key-file"),
    COMPAT_REFUSED("dp-aware", "run one worker per rank and list each in --worker-urls"),
    COMPAT_REFUSED("enable-trace,otlp-traces-endpoint=,otel-endpoint=", NO_TRACE),
    COMPAT_REFUSED("enable-wasm,callbacks=", NO_PLUGINS),
    COMPAT_REFUSED("mcp-config-path=", "clients run the tools"),
    COMPAT_REFUSED("request-rewriter=", "requests are forwarded unchanged"),
    COMPAT_REFUSED("jwt-*=", "only API keys are supported: use --api-keys-file"),
    {.flags = NULL},
};

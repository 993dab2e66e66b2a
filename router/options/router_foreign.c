/* router/options/router_foreign.c - flags of sglang-router, smg and production-stack that are none of ours.
 *
 * A start script that ran another router should run this one, or say why not: what merely tunes
 * something that works another way here is passed over with a line on stderr, what would change
 * where requests go or who may send them is refused. Flags of the same meaning are aliases in
 * router_options.c; an option there wins over a row here. MIGRATING.md is the same for people. */
#include "router/options/router_options.h"

#define FOREIGN_BOOL  ""
#define FOREIGN_VALUE "="
#define FOREIGN_MANY  "=*"

#define IGNORED(flag, takes, why)                                                                  \
    { .flags = flag takes, .remark = why }
#define STANDS_FOR(flag, ours, with)                                                               \
    { .flags = flag, .as = ours, .value = with }
#define REFUSED(flag, takes, why)                                                                  \
    { .flags = flag takes, .is_refused = true, .remark = why }

#define NO_TOKENIZER "prompts are matched as bytes, and the workers apply tokenizer and template"
#define NO_PD        "prefill and decode run on the same worker here: list all in --worker-urls"
#define NO_MESH      "replicas need not know each other: the workers tell all of them, see --share"
#define NO_TRACE     "there is no trace exporter; x-request-id is passed on and logged"
#define ONE_LIST     "the model of a worker is what its /v1/models says"
#define OWN_PROBES   "workers are probed always, see --probe-interval"
#define AT_ONCE      "what is too old goes when its place is needed"
#define USE_PREFIX   "use --policy prefix, which weighs cache, queue and memory"
#define UNTIL_UP     "workers are probed until they answer"
#define NO_ALIAS     "models go by the names that their workers give them"
#define OWN_BREAKER                                                                                \
    "a worker that fails is left out, and one request tries it after --probe-interval or more"
#define ELSEWHERE    "a retry goes to another worker, and need not wait"
#define IN_KEYS_FILE "tenants, rates and priorities go beside the keys in --api-keys-file"
#define NO_STATS     "load is counted as requests pass, not scraped"

const struct option_foreign router_foreign[] = {
    STANDS_FOR("disable-retries", "max-retries", "0"),
    STANDS_FOR("log-json", "log-format", "json"),

    IGNORED("tokenizer-path", FOREIGN_VALUE, NO_TOKENIZER),
    IGNORED("chat-template", FOREIGN_VALUE, NO_TOKENIZER),
    IGNORED("tokenizer-cache-enable-l0", FOREIGN_BOOL, NO_TOKENIZER),
    IGNORED("tokenizer-cache-enable-l1", FOREIGN_BOOL, NO_TOKENIZER),
    IGNORED("tokenizer-cache-l0-max-entries", FOREIGN_VALUE, NO_TOKENIZER),
    IGNORED("tokenizer-cache-l1-max-memory", FOREIGN_VALUE, NO_TOKENIZER),
    IGNORED("reasoning-parser", FOREIGN_VALUE, "answers are passed on as the worker wrote them"),
    IGNORED("tool-call-parser", FOREIGN_VALUE, "answers are passed on as the worker wrote them"),
    IGNORED("block-size", FOREIGN_VALUE, "see --prefix-block-bytes"),
    IGNORED("eviction-interval", FOREIGN_VALUE, AT_ONCE),
    IGNORED("max-idle-secs", FOREIGN_VALUE, "sessions have a home by hash and are not remembered"),
    IGNORED("sticky-key-idle-secs", FOREIGN_VALUE,
            "sessions have a home by hash and are not remembered"),
    IGNORED("assignment-mode", FOREIGN_VALUE, "the home of a session follows from its hash"),
    IGNORED("prefix-token-count", FOREIGN_VALUE,
            "use --chwbl-prefix-bytes, about four times as much"),
    IGNORED("balance-token-usage-threshold", FOREIGN_VALUE, USE_PREFIX),
    IGNORED("overload-token-usage-threshold", FOREIGN_VALUE, USE_PREFIX),
    IGNORED("least-load-kv-pressure-weight", FOREIGN_VALUE, USE_PREFIX),
    IGNORED("least-load-default-throughput", FOREIGN_VALUE, USE_PREFIX),
    IGNORED("least-load-mean-prefill-tokens", FOREIGN_VALUE, USE_PREFIX),
    IGNORED("load-monitor-interval", FOREIGN_VALUE, NO_STATS),
    IGNORED("engine-stats-interval", FOREIGN_VALUE, NO_STATS),
    IGNORED("request-stats-window", FOREIGN_VALUE, NO_STATS),
    IGNORED("log-stats", FOREIGN_BOOL, "see /metrics on the admin port"),
    IGNORED("log-stats-interval", FOREIGN_VALUE, "see /metrics on the admin port"),
    IGNORED("log-dir", FOREIGN_VALUE, "the log goes to stderr"),
    IGNORED("enable-igw", FOREIGN_BOOL, "several models are always served"),
    IGNORED("backend", FOREIGN_VALUE, "any worker with an OpenAI-compatible API will do"),
    IGNORED("runtime", FOREIGN_VALUE, "any worker with an OpenAI-compatible API will do"),
    IGNORED("history-backend", FOREIGN_VALUE, "conversations are not stored"),
    IGNORED("static-models", FOREIGN_VALUE, ONE_LIST),
    IGNORED("static-model-types", FOREIGN_VALUE, ONE_LIST),
    IGNORED("static-backend-health-checks", FOREIGN_BOOL, OWN_PROBES),
    IGNORED("kv-aware-threshold", FOREIGN_VALUE, USE_PREFIX),
    IGNORED("lmcache-controller-port", FOREIGN_VALUE, USE_PREFIX),

    IGNORED("cb-failure-threshold", FOREIGN_VALUE, OWN_BREAKER),
    IGNORED("cb-success-threshold", FOREIGN_VALUE, OWN_BREAKER),
    IGNORED("cb-timeout-duration-secs", FOREIGN_VALUE, OWN_BREAKER),
    IGNORED("cb-window-duration-secs", FOREIGN_VALUE, OWN_BREAKER),
    IGNORED("disable-circuit-breaker", FOREIGN_BOOL, OWN_BREAKER),
    IGNORED("retry-initial-backoff-ms", FOREIGN_VALUE, ELSEWHERE),
    IGNORED("retry-max-backoff-ms", FOREIGN_VALUE, ELSEWHERE),
    IGNORED("retry-backoff-multiplier", FOREIGN_VALUE, ELSEWHERE),
    IGNORED("retry-jitter-factor", FOREIGN_VALUE, ELSEWHERE),
    IGNORED("cache-index", FOREIGN_VALUE, "there is one kind of index"),
    IGNORED("cache-ttl-secs", FOREIGN_VALUE, AT_ONCE),
    IGNORED("cache-boundaries", FOREIGN_VALUE, "see --prefix-block-bytes"),
    IGNORED("overlap-decay", FOREIGN_VALUE, USE_PREFIX),
    IGNORED("selection-temperature", FOREIGN_VALUE, USE_PREFIX),
    IGNORED("prefix-hash-balance-abs-threshold", FOREIGN_VALUE, "see --prefix-hash-load-factor"),
    IGNORED("worker-overload-protection", FOREIGN_BOOL, USE_PREFIX),
    IGNORED("worker-overload-waiting-requests", FOREIGN_VALUE, USE_PREFIX),
    IGNORED("worker-overload-token-usage", FOREIGN_VALUE, USE_PREFIX),
    IGNORED("least-load-max-waiting-requests", FOREIGN_VALUE, USE_PREFIX),
    IGNORED("routing-key-override", FOREIGN_VALUE, "see --routing-key-headers"),
    IGNORED("sticky-sessions", FOREIGN_BOOL, "use --policy session"),
    IGNORED("engine-metrics", FOREIGN_BOOL, "see /metrics on the admin port"),
    IGNORED("prometheus-duration-buckets", FOREIGN_MANY, "the buckets are fixed"),
    IGNORED("request-id-headers", FOREIGN_MANY, "the header is x-request-id"),
    IGNORED("otel-service-name", FOREIGN_VALUE, NO_TRACE),
    IGNORED("sentry-dsn", FOREIGN_VALUE, "errors are in the log"),
    IGNORED("static-model-labels", FOREIGN_VALUE, ONE_LIST),
    IGNORED("static-backend-health-check-interval", FOREIGN_VALUE, OWN_PROBES),
    IGNORED("static-backend-health-check-timeout-seconds", FOREIGN_VALUE, OWN_PROBES),
    IGNORED("backend-health-check-timeout-seconds", FOREIGN_VALUE, OWN_PROBES),
    IGNORED("disable-health-check", FOREIGN_BOOL, OWN_PROBES),
    IGNORED("remove-unhealthy-workers", FOREIGN_BOOL, "they stay listed and may come back"),
    IGNORED("worker-startup-timeout-secs", FOREIGN_VALUE, UNTIL_UP),
    IGNORED("worker-startup-check-interval", FOREIGN_VALUE, UNTIL_UP),
    IGNORED("worker-startup-delay", FOREIGN_VALUE, UNTIL_UP),
    IGNORED("k8s-watcher-timeout-seconds", FOREIGN_VALUE, "a silent watch is begun anew"),

    REFUSED("pd-disaggregation", FOREIGN_BOOL, NO_PD),
    REFUSED("prefill", FOREIGN_MANY, NO_PD),
    REFUSED("decode", FOREIGN_MANY, NO_PD),
    REFUSED("prefill-policy", FOREIGN_VALUE, NO_PD),
    REFUSED("decode-policy", FOREIGN_VALUE, NO_PD),
    REFUSED("prefill-model-labels", FOREIGN_VALUE, NO_PD),
    REFUSED("decode-model-labels", FOREIGN_VALUE, NO_PD),
    REFUSED("prefill-selector", FOREIGN_MANY, NO_PD),
    REFUSED("decode-selector", FOREIGN_MANY, NO_PD),
    REFUSED("encode-selector", FOREIGN_MANY, NO_PD),
    REFUSED("router-selector", FOREIGN_MANY, NO_MESH),
    REFUSED("model-id-from", FOREIGN_VALUE, ONE_LIST),
    REFUSED("mesh-server-name", FOREIGN_VALUE, NO_MESH),
    REFUSED("mesh-host", FOREIGN_VALUE, NO_MESH),
    REFUSED("mesh-advertise-host", FOREIGN_VALUE, NO_MESH),
    REFUSED("mesh-port", FOREIGN_VALUE, NO_MESH),
    REFUSED("model-alias", FOREIGN_MANY, NO_ALIAS),
    REFUSED("static-aliases", FOREIGN_VALUE, NO_ALIAS),
    REFUSED("cors-allowed-origins", FOREIGN_MANY, "set CORS headers in the proxy before this one"),
    REFUSED("root-path", FOREIGN_VALUE,
            "paths are not rewritten: strip the prefix before this one"),
    REFUSED("health-check-port", FOREIGN_VALUE, "probe /livez and /readyz on --admin-port"),
    REFUSED("dynamic-config-yaml", FOREIGN_VALUE,
            "use --config FILE, whose keys are the flags here"),
    REFUSED("dynamic-config-json", FOREIGN_VALUE,
            "use --config FILE, whose keys are the flags here"),
    REFUSED("enable-batch-api", FOREIGN_BOOL, "run batches with incipit-worker"),
    REFUSED("external-providers-config", FOREIGN_VALUE, "name the workers in --worker-urls"),
    REFUSED("feature-gates", FOREIGN_VALUE, "there are none"),
    REFUSED("tenant-api-key", FOREIGN_VALUE, IN_KEYS_FILE),
    REFUSED("tenant-rate-limit-enabled", FOREIGN_BOOL, IN_KEYS_FILE),
    REFUSED("tenant-rate-limit-config", FOREIGN_VALUE, IN_KEYS_FILE),
    REFUSED("rate-limit-tokens-per-second", FOREIGN_VALUE, IN_KEYS_FILE),
    REFUSED("priority-scheduler-enabled", FOREIGN_BOOL, IN_KEYS_FILE),
    REFUSED("priority-scheduler-config", FOREIGN_VALUE, IN_KEYS_FILE),
    REFUSED("control-plane-api-keys", FOREIGN_MANY, "use --admin-api-key-file"),
    REFUSED("dp-aware", FOREIGN_BOOL, "run one worker per rank and name each in --worker-urls"),
    REFUSED("enable-mesh", FOREIGN_BOOL, NO_MESH),
    REFUSED("mesh-peer-urls", FOREIGN_MANY, NO_MESH),
    REFUSED("kv-indexer-url", FOREIGN_VALUE, NO_MESH),
    REFUSED("enable-trace", FOREIGN_BOOL, NO_TRACE),
    REFUSED("otlp-traces-endpoint", FOREIGN_VALUE, NO_TRACE),
    REFUSED("otel-endpoint", FOREIGN_VALUE, NO_TRACE),
    REFUSED("enable-wasm", FOREIGN_BOOL, "there are no plug-ins"),
    REFUSED("mcp-config-path", FOREIGN_VALUE, "tools are run by the client"),
    REFUSED("callbacks", FOREIGN_VALUE, "there are no plug-ins"),
    REFUSED("request-rewriter", FOREIGN_VALUE, "requests are forwarded as they came"),
    REFUSED("jwt-issuer", FOREIGN_VALUE, "only API keys are understood"),
    REFUSED("jwt-audience", FOREIGN_VALUE, "only API keys are understood"),
    REFUSED("jwt-jwks-uri", FOREIGN_VALUE, "only API keys are understood"),
    {.flags = NULL},
};

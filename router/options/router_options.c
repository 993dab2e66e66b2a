/* router/options/router_options.c - the table of the router's options. Names of sglang-router and smg where
 * they have one; ours where they do not. */
#include "router/options/router_options.h"

#include "router/proxy/retry.h"
#include "router/registry/registry.h"

#define FIELD(member) OPTION_FIELD(struct router_options, member)

#define POLICY(member) FIELD(policy_options.member)

/* What others call these policies. */
static const char *const policy_aliases[] = {
    /* smg, sglang-router */
    "prefix_hash", "chwbl", "consistent_hashing", "session", "manual", "session",
    /* production-stack */
    "roundrobin", "round_robin", "prefixaware", "hash_trie", "kvaware", "prefix",
    /* KubeAI */
    "PrefixHash", "chwbl", "LeastLoad", "least_load",
    /* AIBrix */
    "prefix-cache", "aibrix", "least-request", "least_load", "session-affinity", "session",
    /* haproxy, nginx, Envoy */
    "leastconn", "least_load", "least_conn", "least_load", "maglev", "session", NULL};

static const char *const level_aliases[] = {"warning", "warn", NULL};

/* sglang-router and smg write -1 where there is no limit. */
static const char *const no_limit[] = {"-1", "0", NULL};

static const char *const share_names[] = {"none", "workers", NULL};
static const char *const discovery_names[] = {"none", "k8s", "dns", NULL};
static const char *const discovery_aliases[] = {"static", "none", "kubernetes", "k8s", NULL};
static const char *const resource_names[] = {"pods", "endpointslices", NULL}; /* kube_resource */
static const char *const resource_aliases[] = {"pod-ip", "pods", NULL};       /* production-stack */

static const char *const isolation_names[] = {"none", "tenant", "auto", NULL};

static const char *const launch_words[] = {"auto", "4294967295", NULL}; /* LAUNCH_AUTO */

static const struct option_def rows[] = {
    {"host", OPT_STR, FIELD(host), .def = "127.0.0.1", .group = "Listening",
     .help = "Address for clients. 0.0.0.0 lets other machines in."},
    {"port", OPT_U32, FIELD(port), .def = "30000", .max = "65535", .group = "Listening",
     .help = "Port for clients. 0 lets the system choose."},
    {"admin-host", OPT_STR, FIELD(admin_host), .def = "127.0.0.1", .aliases = "prometheus-host",
     .group = "Listening",
     .help = "Address of the admin port. Other than loopback it needs an admin key."},
    {"admin-port", OPT_U32, FIELD(admin_port), .def = "29000", .max = "65535",
     .aliases = "prometheus-port", .group = "Listening",
     .help = "Port for /metrics, /workers, /livez and /readyz. 0 lets the system choose."},
    {"threads", OPT_U32, FIELD(n_threads), .def = "0", .max = "256", .group = "Listening",
     .help = "Event loops. 0 takes one per core, at most 8; more carry more requests per second."},

    {"tls-cert-path", OPT_STR, FIELD(tls_cert_path), .aliases = "ssl-certfile", .group = "TLS",
     .metavar = "FILE",
     .help = "PEM certificate and chain: clients then use https. Reloaded when it changes."},
    {"tls-key-path", OPT_STR, FIELD(tls_key_path), .aliases = "ssl-keyfile", .group = "TLS",
     .metavar = "FILE",
     .help = "PEM key of --tls-cert-path, without a passphrase. Reloaded when it changes."},
    {"worker-ca", OPT_STR, FIELD(worker_ca), .group = "TLS", .metavar = "PATH",
     .help = "PEM file, or folder made by 'openssl rehash', of the authorities that https:// "
             "workers are verified against. Default: the system's."},
    {"worker-cert", OPT_STR, FIELD(worker_cert), .group = "TLS", .metavar = "FILE",
     .help = "PEM certificate shown to workers that ask for one."},
    {"worker-key", OPT_STR, FIELD(worker_key), .group = "TLS", .metavar = "FILE",
     .help = "PEM key of --worker-cert, without a passphrase."},
    {"worker-tls-insecure", OPT_BOOL, FIELD(worker_tls_insecure), .group = "TLS",
     .help = "Accept any certificate of a worker. An attacker who can take over its address reads "
             "all prompts: for trials alone."},

    {"worker-urls", OPT_LIST, FIELD(worker_urls), .takes_many = true, .aliases = "static-backends",
     .group = "Workers", .metavar = "URL",
     .help = "Workers to route to: http://host:port or https://host:port, several."},
    {"worker-file", OPT_STR, FIELD(worker_file), .group = "Workers", .metavar = "FILE",
     .help = "Workers, one a line: URL [max_in_flight=N] [label=text ...]; '#' begins a comment. "
             "Read again when it changes and on SIGHUP; a worker that is gone from it is drained."},
    {"worker-allow-cidr", OPT_LIST, FIELD(worker_allow_cidr), .takes_many = true,
     .group = "Workers", .metavar = "CIDR",
     .help = "Networks from which workers may be added over the admin API. Default: loopback and "
             "private ones. Link-local and metadata addresses are refused whatever is allowed."},
    {"max-workers", OPT_U32, FIELD(max_workers), .def = "256", .min = "1", .max = "1024",
     .group = "Workers", .help = "Most workers at once. Raising it costs memory per model."},
    {"launch", OPT_U32, FIELD(launch), .def = "0", .max = "256", .name_aliases = launch_words,
     .aliases = "dp-size", .group = "Workers", .metavar = "N|auto",
     .help = "Start this many workers here, restart them when they die, stop them with the "
             "router. Each is pinned to one GPU, in turn when there are fewer GPUs; without GPUs "
             "they share the cores. auto starts one for each GPU, or one on the CPU."},
    {"model", OPT_STR, FIELD(model), .aliases = "model-path", .group = "Workers", .metavar = "DIR",
     .help = "Model of launched workers: a folder, or org/name on the Hugging Face hub."},
    {"worker-base-port", OPT_U32, FIELD(worker_base_port), .def = "31000", .min = "1",
     .max = "65535", .group = "Workers",
     .help = "First port of launched workers; ports in use are skipped."},
    {"worker-threads", OPT_U32, FIELD(worker_threads), .def = "0", .max = "1024",
     .group = "Workers", .help = "CPU threads of each launched worker. 0 divides the cores."},
    {"worker-program", OPT_STR, FIELD(worker_program), .group = "Workers", .metavar = "FILE",
     .help = "The incipit-worker to launch. Default: the one beside this program."},
    {"worker-arg", OPT_LIST, FIELD(worker_args), .group = "Workers", .metavar = "ARG",
     .help = "Passed to launched workers as it is, e.g. --worker-arg=--block-size=32; repeatable."},

    {"ready-message", OPT_STR, FIELD(ready_message), .group = "Workers", .metavar = "FILE",
     .help = "Text printed once every launched worker is ready; {url} and {model} are replaced. "
             "Default: a request to try."},

    {"service-discovery", OPT_ENUM, FIELD(service_discovery), .def = "none",
     .names = discovery_names, .name_aliases = discovery_aliases, .alone = "k8s",
     .group = "Discovery",
     .help = "Find workers in addition to the named ones: k8s, the pods of a Kubernetes cluster, "
             "or dns, the addresses of a name. An empty value is k8s."},
    {"k8s-selector", OPT_LIST, FIELD(k8s_selector), .takes_many = true,
     .aliases = "selector,k8s-label-selector", .group = "Discovery", .metavar = "LABEL=VALUE",
     .help = "Labels of the pods that are workers; several must all match. Every matching pod is "
             "sent requests."},
    {"k8s-namespace", OPT_STR, FIELD(k8s_namespace), .aliases = "service-discovery-namespace",
     .group = "Discovery", .metavar = "NAME",
     .help = "Namespace of the workers. Default: the kubeconfig context's, or the router's own."},
    {"k8s-all-namespaces", OPT_BOOL, FIELD(k8s_all_namespaces), .group = "Discovery",
     .help = "Find workers in all namespaces. Needs a ClusterRole."},
    {"k8s-port", OPT_U32, FIELD(k8s_port), .def = "0", .max = "65535",
     .aliases = "service-discovery-port", .group = "Discovery",
     .help = "Port of workers that name none in incipit.dev/ports or smg.ai/worker-ports. 0 takes "
             "the container port called http, else the first."},
    {"k8s-resource", OPT_ENUM, FIELD(k8s_resource), .def = "pods", .names = resource_names,
     .name_aliases = resource_aliases, .aliases = "k8s-service-discovery-type",
     .group = "Discovery",
     .help = "Objects to watch. endpointslices of a service need no right to read pods, but carry "
             "none of their labels and annotations."},
    {"k8s-service", OPT_STR, FIELD(k8s_service), .group = "Discovery", .metavar = "NAME",
     .help = "The service whose endpoint slices are watched."},
    {"inference-pool", OPT_STR, FIELD(inference_pool), .group = "Discovery", .metavar = "NAME",
     .help = "Workers are the pods that this InferencePool selects, at its targetPorts, instead of "
             "--k8s-selector and --k8s-port. It is followed when it changes."},
    {"k8s-role-label", OPT_STR, FIELD(k8s_role_label), .def = "incipit.dev/role",
     .group = "Discovery", .metavar = "LABEL",
     .help = "Label that says what a pod computes: pods of role prefill, decode or encode alone "
             "are left out."},
    {"k8s-write-deletion-cost", OPT_BOOL, FIELD(k8s_write_deletion_cost), .group = "Discovery",
     .help = "Write controller.kubernetes.io/pod-deletion-cost to pods, so that scale-down "
             "removes the pod with the least in its cache first. Needs the right to patch pods."},
    {"k8s-api-server", OPT_STR, FIELD(k8s_api_server), .group = "Discovery", .metavar = "URL",
     .help = "URL of the Kubernetes API server. Default: the one of the cluster in which the "
             "router runs. http:// is accepted on loopback alone, as for kubectl proxy."},
    {"k8s-token-file", OPT_STR, FIELD(k8s_token_file), .group = "Discovery", .metavar = "FILE",
     .help = "File with the bearer token for the Kubernetes API server, reloaded when it changes. "
             "Default: the service account's."},
    {"k8s-ca-file", OPT_STR, FIELD(k8s_ca_file), .group = "Discovery", .metavar = "FILE",
     .help = "PEM authorities that verify the Kubernetes API server. Default: the service "
             "account's."},
    {"kubeconfig", OPT_STR, FIELD(kubeconfig), .group = "Discovery", .metavar = "FILE",
     .help = "Kubeconfig file with server and credentials: tokens and client certificates, no "
             "plug-ins."},
    {"kube-context", OPT_STR, FIELD(kube_context), .group = "Discovery", .metavar = "NAME",
     .help = "Context of --kubeconfig. Default: its current one."},
    {"worker-dns", OPT_STR, FIELD(worker_dns), .group = "Discovery", .metavar = "NAME:PORT",
     .help = "Name whose addresses are all workers, resolved every 5 s: a headless service, for "
             "example. Needs no rights. While the name does not resolve, the last answer stays."},

    {"policy", OPT_ENUM, FIELD(policy), .def = "prefix", .names = policy_names,
     .name_aliases = policy_aliases, .aliases = "routing-logic,routing-strategy",
     .group = "Routing",
     .help = "Policy that chooses a worker. Use 'prefix'; the others are for comparison."},
    {"cost-later-arrivals", OPT_F64, POLICY(cost_later_arrivals), .def = "3", .min = "0",
     .max = "100", .aliases = "beta", .env = "INCIPIT_BETA", .group = "Routing",
     .help = "Weight, in the cost of a second of new prefill, of the requests that arrive later. "
             "0 ignores them; 8 trades latency for throughput. Policy prefix."},
    {"cost-decoding", OPT_F64, POLICY(cost_decoding), .def = "0.12", .min = "0", .max = "10",
     .aliases = "kappa", .env = "INCIPIT_KAPPA", .group = "Routing",
     .help = "Weight, in the cost of a second of new prefill, of each request in flight on the "
             "worker, which decodes more slowly meanwhile. Higher spreads long prompts more. "
             "Policy prefix."},
    {"cost-queued", OPT_F64, POLICY(cost_queued), .def = "0.7", .min = "0", .max = "10",
     .aliases = "gamma", .env = "INCIPIT_GAMMA", .group = "Routing",
     .help = "Weight, in the cost of a second of new prefill, of each request that waits on the "
             "worker for its first token. Higher keeps long prompts away from queues: first "
             "tokens come sooner, whole answers later. Policy prefix."},
    {"cost-fleet-busy", OPT_F64, POLICY(cost_fleet_busy), .def = "0.3", .min = "0", .max = "10",
     .aliases = "lambda", .env = "INCIPIT_LAMBDA", .group = "Routing",
     .help = "Weight, in the cost of a second of new prefill, of each request in flight on the "
             "least busy worker. Higher keeps prompts where they are cached while the whole fleet "
             "is busy: more throughput, later first tokens. Policy prefix."},
    {"cost-batch-slot", OPT_F64, POLICY(cost_batch_slot_s), .def = "0.005", .min = "0", .max = "10",
     .aliases = "delta", .env = "INCIPIT_DELTA", .group = "Routing", .metavar = "SECONDS",
     .help = "Cost of each request in flight on the worker, in seconds. Higher evens out the "
             "number of requests per worker. Policy prefix."},
    {"home-weight", OPT_F64, POLICY(home_weight), .def = "0", .min = "0", .max = "10",
     .group = "Routing",
     .help = "Discount, in units of its prefill, for an uncached prompt on its home worker, which "
             "a hash chooses equally in all routers. For several routers that share nothing: 1 "
             "finds half as much again in the caches, and first tokens come a fifth later."},
    {"max-load-factor", OPT_F64, POLICY(max_load_factor), .def = "2", .max = "1000",
     .group = "Routing",
     .help = "A worker with more than this many times the mean requests in flight, plus "
             "--load-floor, is no candidate. Lower evens out load and costs cache hits; 0 turns "
             "the limit off."},
    {"load-floor", OPT_F64, POLICY(load_floor), .def = "16", .min = "0", .max = "100000",
     .group = "Routing",
     .help = "Requests in flight on a worker that never exclude it by --max-load-factor."},
    {"prefix-block-bytes", OPT_U32, FIELD(prefix_block_bytes), .def = "256", .min = "16",
     .max = "65536", .group = "Routing",
     .help = "Prompt bytes hashed into one prefix block. Smaller matches finer, costs memory."},
    {"max-prefix-bytes", OPT_BYTES, FIELD(max_prefix_bytes), .def = "8MiB", .min = "128",
     .max = "32MiB", .group = "Routing",
     .help = "Prompt bytes that are hashed. Prompts that differ only beyond them look equal to "
             "the router. Lower saves CPU and index memory for longer prompts, and nothing for "
             "others."},
    {"max-index-bytes", OPT_BYTES, FIELD(max_index_bytes), .def = "64MiB", .min = "1MiB",
     .group = "Routing",
     .help = "Most memory of the prefix index, per model; the index grows with what the workers "
             "hold. Less forgets sooner."},
    {"prefix-hash-seed", OPT_STR, FIELD(prefix_hash_seed), .is_secret = true, .group = "Routing",
     .help = "Secret seed of the prefix hashes. Default: random. Give replicas the same seed."},
    {"share", OPT_ENUM, FIELD(share), .def = "workers", .names = share_names, .group = "Routing",
     .help = "How routers in front of the same workers act as one. workers: each worker reports "
             "every request to all routers, which need the same --prefix-hash-seed. none: each "
             "router uses what it sent itself; four such routers get half the cache hits of one."},

    {"share-redis", OPT_STR, FIELD(share_redis), .metavar = "URL", .group = "Routing",
     .help = "redis://HOST[:PORT][/DATABASE] of Redis or Valkey, through which routers share what "
             "they sent to vLLM and SGLang workers. The routers need the same --prefix-hash-seed "
             "and the same worker URLs."},
    {"share-redis-password", OPT_STR, FIELD(share_redis_password), .is_secret = true,
     .group = "Routing", .help = "Password of the --share-redis server."},
    {"share-redis-key", OPT_STR, FIELD(share_redis_key), .def = "incipit:requests",
     .group = "Routing",
     .help = "Key of the stream on the --share-redis server. Use another one for each fleet."},
    {"share-redis-entries", OPT_U32, FIELD(share_redis_entries), .def = "20000", .min = "100",
     .max = "10000000", .group = "Routing",
     .help = "Approximate length of the --share-redis stream; a busy router adds a hundred "
             "entries a second. Longer lets a starting router learn more, and takes memory of the "
             "server."},

    {"routing-key-headers", OPT_LIST, FIELD(session_headers),
     .def = "x-smg-routing-key,x-session-id,x-aibrix-session-key",
     .aliases = "session-headers,session-key", .max = "8", .group = "Other policies",
     .metavar = "HEADER,...",
     .help = "Request headers that name a session; the first present one counts, before "
             "prompt_cache_key and session_id of the body. Policy session."},
    {"cache-threshold", OPT_F64, POLICY(cache_threshold), .def = "0.3", .min = "0", .max = "1",
     .aliases = "cache-match-threshold", .group = "Other policies",
     .help = "Share of a prompt that must be known for it to go where it is. Lower follows the "
             "cache, higher the load. Policy cache_aware."},
    {"balance-abs-threshold", OPT_U32, POLICY(balance_abs), .def = "64",
     .aliases = "spill-abs-threshold", .group = "Other policies",
     .help = "Difference in requests between the most and the least loaded worker above which "
             "load is balanced, if --balance-rel-threshold is exceeded too. Policy cache_aware."},
    {"balance-rel-threshold", OPT_F64, POLICY(balance_rel), .def = "1.5", .min = "0", .max = "1000",
     .aliases = "spill-rel-threshold", .group = "Other policies",
     .help = "Ratio of requests between the most and the least loaded worker above which load is "
             "balanced, if --balance-abs-threshold is exceeded too. Policy cache_aware."},
    {"max-tree-size", OPT_BYTES, POLICY(max_tree_bytes), .def = "67108864", .min = "1KiB",
     .max = "4GiB", .group = "Other policies",
     .help = "Bytes of prompt text that are remembered, at half as much memory. Policies "
             "cache_aware, hash_trie."},
    {"prefix-min-match-length", OPT_U64, POLICY(prefix_min_match), .def = "0",
     .group = "Other policies", .metavar = "BYTES",
     .help = "Shorter matches count as none. Policy hash_trie."},
    {"prefix-hash-load-factor", OPT_F64, POLICY(bounded_load), .def = "1.25", .min = "1",
     .max = "1000", .group = "Other policies",
     .help = "A worker with more than this times the mean in flight is passed over on the ring. "
             "Lower evens out load, higher keeps homes. Policies chwbl, simhash."},
    {"chwbl-replication", OPT_U32, POLICY(ring_replication), .def = "256", .min = "1",
     .max = "1024", .group = "Other policies",
     .help = "Points of a worker on the hash ring; more divide the keys more evenly. Policies "
             "chwbl, simhash."},
    {"chwbl-prefix-bytes", OPT_U32, POLICY(chwbl_prefix_bytes), .def = "100", .min = "1",
     .max = "1048576", .aliases = "prefix-char-length", .group = "Other policies",
     .help = "Opening of the prompt that chooses the home, up to the end of its block. Longer than "
             "a common system prompt, or all go to one home. Policy chwbl."},
    {"queue-scorer-weight", OPT_F64, POLICY(scorer_queue_weight), .def = "2", .min = "0",
     .max = "1000", .group = "Other policies",
     .help = "Weight of a short queue. Policy prefix_scorer."},
    {"kv-cache-utilization-scorer-weight", OPT_F64, POLICY(scorer_kv_weight), .def = "2",
     .min = "0", .max = "1000", .group = "Other policies",
     .help = "Weight of free KV memory. Policy prefix_scorer."},
    {"prefix-cache-scorer-weight", OPT_F64, POLICY(scorer_prefix_weight), .def = "3", .min = "0",
     .max = "1000", .group = "Other policies",
     .help = "Weight of the share of the prompt that is cached. Policy prefix_scorer."},
    {"max-prefix-blocks-to-match", OPT_U32, POLICY(scorer_max_blocks), .def = "256", .min = "1",
     .max = "1048576", .group = "Other policies",
     .help = "Blocks of 64 bytes at the beginning that are matched; prompts that differ only "
             "beyond look the same. Policy prefix_scorer."},
    {"aibrix-imbalance-abs-count", OPT_U32, POLICY(aibrix_imbalance_abs), .def = "8",
     .group = "Other policies",
     .help = "Difference in requests between the most and the least loaded worker above which "
             "only the least loaded are candidates. Policy aibrix."},
    {"aibrix-stddev-factor", OPT_F64, POLICY(aibrix_stddev_factor), .def = "1", .min = "0",
     .max = "1000", .group = "Other policies",
     .help = "A match counts up to the mean in flight and this many standard deviations. Policy "
             "aibrix."},
    {"aibrix-block-number", OPT_U32, POLICY(aibrix_table_blocks), .def = "200000", .min = "32",
     .max = "1000000000", .group = "Other policies",
     .help = "Blocks of 4 bytes that are remembered, of all workers. Policy aibrix."},
    {"aibrix-eviction-duration", OPT_MS, POLICY(aibrix_ttl_ms), .def = "20m", .min = "1s",
     .max = "24h", .group = "Other policies",
     .help = "Time after which a block that was not sent again is forgotten. Policy aibrix."},

    {"probe-interval", OPT_MS, FIELD(probe_interval_ms), .def = "500ms", .min = "10ms", .max = "1h",
     .aliases = "health-check-interval-secs", .group = "Failures",
     .help = "Time between health probes of one worker, and the shortest time until an ejected one "
             "is tried again. Shorter notices sooner."},
    {"probe-timeout", OPT_MS, FIELD(probe_timeout_ms), .def = "500ms", .min = "10ms", .max = "1m",
     .aliases = "health-check-timeout-secs", .group = "Failures",
     .help = "A probe without an answer after this long is a miss."},
    {"probe-misses", OPT_U32, FIELD(probe_misses), .def = "2", .min = "1", .max = "100",
     .aliases = "health-failure-threshold", .group = "Failures",
     .help = "Probes missed in a row that eject a worker."},
    {"probe-hits", OPT_U32, FIELD(probe_hits), .def = "2", .min = "1", .max = "100",
     .aliases = "health-success-threshold", .group = "Failures",
     .help = "Probes answered in a row that return an ejected worker to service; one is enough "
             "while no worker is in service."},
    {"probe-path", OPT_STR, FIELD(probe_path), .def = "/health", .aliases = "health-check-endpoint",
     .group = "Failures", .help = "Path of the health probe."},
    {"engine-metrics-interval", OPT_MS, FIELD(engine_metrics_interval_ms), .def = "1s", .max = "1h",
     .group = "Routing",
     .help = "How often /metrics of vLLM and SGLang workers are read, to learn their size and what "
             "they find in their caches. Shorter follows changes sooner; 0 turns it off."},
    {"slow-start", OPT_MS, FIELD(slow_start_ms), .def = "10s", .max = "1h", .group = "Failures",
     .help = "Time over which a new or returned worker goes from a tenth to all of its share. "
             "Longer is gentler to cold caches; 0 turns slow start off."},
    {"max-retries", OPT_U32, FIELD(max_retries), .def = "2", .max = "7",
     .aliases = "retry-max-retries,max-instance-failover-reroute-attempts", .group = "Failures",
     .help = "Other workers tried when an attempt fails before the first byte of an answer."},
    {"retry-on", OPT_LIST, FIELD(retry_on), .def = RETRY_ON_DEFAULT, .group = "Failures",
     .metavar = "CAUSE,...",
     .help =
         "Failures after which a request is sent to another worker, as long as its client has seen "
         "nothing: connect (no connection), reset (it broke), timeout (--first-byte-timeout), "
         "malformed (not HTTP), empty (200 without an answer), and 500, 502, 503, 504; or all, or "
         "none. Fewer show clients more of what workers do. Calls that --forward-path adds may "
         "leave "
         "something behind, and are retried after connect alone."},
    {"connect-timeout", OPT_MS, FIELD(connect_timeout_ms), .def = "250ms", .min = "1ms",
     .max = "1m", .group = "Failures", .help = "Time a worker has to accept a connection."},
    {"first-byte-timeout", OPT_MS, FIELD(first_byte_timeout_ms), .def = "0", .max = "24h",
     .group = "Failures",
     .help =
         "A worker that shows no first byte of an answer for so long is given up and the request "
         "sent to another. It holds for streams and for whole answers alike, and engines other "
         "than "
         "incipit-worker show nothing of a whole answer before its end: shorter than the longest "
         "prefill plus queueing, or than the longest whole answer of such an engine, loses good "
         "work. 0: none."},
    {"stream-idle-timeout", OPT_MS, FIELD(stream_idle_timeout_ms), .def = "5m", .max = "24h",
     .group = "Failures",
     .help = "An answer that has begun and whose worker has sent nothing for so long is ended, a "
             "stream with an error event. "
             "Shorter tells clients sooner, and cuts off those whose engine has preempted them or "
             "lets others go first. A worker that answers no probes either is given a tenth of "
             "it. 0: never."},
    {"poison-memory", OPT_MS, FIELD(poison_memory_ms), .def = "60s", .max = "24h",
     .group = "Failures",
     .help = "A client's request on which two workers were lost is refused for so long when it "
             "comes again: longer spares workers one that kills them, and punishes longer one "
             "that was twice in the wrong place. 0: it is tried each time."},
    {"request-timeout", OPT_MS, FIELD(request_timeout_ms), .def = "30m", .min = "10ms",
     .max = "24h", .aliases = "request-timeout-secs", .group = "Failures",
     .help = "Longest a request may take, answer included."},

    {"api-keys-file", OPT_STR, FIELD(api_keys_file), .group = "Access", .metavar = "FILE",
     .help = "API keys that clients must send, one a line: KEY [tenant=NAME] [rps=N] "
             "[tokens_per_s=N] [max_concurrent=N] [priority=N]. Read again when it changes."},
    {"api-key", OPT_STR, FIELD(api_key), .is_secret = true, .group = "Access",
     .help = "One more key beside --api-keys-file, without limits."},
    {"trust-tenant-header", OPT_BOOL, FIELD(trust_tenant_header), .group = "Access",
     .help = "Without API keys: take the tenant of a request from --tenant-header-name. Only "
             "behind a gateway that sets it."},
    {"tenant-header-name", OPT_STR, FIELD(tenant_header), .def = "x-smg-tenant-id",
     .group = "Access",
     .help = "Name of the header that carries the tenant, with --trust-tenant-header."},
    {"isolate-by", OPT_ENUM, FIELD(isolate_by), .def = "auto", .names = isolation_names,
     .group = "Access",
     .help = "tenant: prompts of different tenants share no cached blocks, at the cost of a "
             "separate cache for each. none: all share, and any client can find out, prefix by "
             "prefix, what others have sent. auto: tenant with --api-keys-file or "
             "--trust-tenant-header, else none."},
    {"isolation-secret-file", OPT_STR, FIELD(isolation_secret_file), .group = "Access",
     .metavar = "FILE",
     .help =
         "Secret behind the salts of --isolate-by. Default: made from --prefix-hash-seed if that "
         "has 16 characters, else from the seed in --state-dir, else random. Replicas with "
         "different secrets find nothing of each other's in the workers' caches."},
    {"isolation-secret", OPT_STR, FIELD(isolation_secret), .is_secret = true, .group = "Access",
     .help = "Secret of --isolation-secret-file, as text."},
    {"worker-api-key-file", OPT_STR, FIELD(worker_api_key_file), .group = "Access",
     .metavar = "FILE",
     .help = "File whose first line that is no comment is the key that workers were given as "
             "--api-key: sent to all of them as Authorization, in place of the client's."},
    {"worker-api-key", OPT_STR, FIELD(worker_api_key), .is_secret = true, .env = "VLLM_API_KEY",
     .group = "Access", .help = "The key of --worker-api-key-file, as text."},
    {"admin-api-key-file", OPT_STR, FIELD(admin_api_key_file), .group = "Access", .metavar = "FILE",
     .help = "Keys, one a line, that open the admin port. Reloaded when it changes."},
    {"admin-api-key", OPT_STR, FIELD(admin_api_key), .is_secret = true, .group = "Access",
     .help = "One more admin key beside --admin-api-key-file."},
    {"admin-on-main", OPT_BOOL, FIELD(is_admin_on_main), .group = "Access",
     .help = "Show and change the fleet on the client port too, as with sglang-router. Needs an "
             "admin key unless that port is on loopback and open to all."},

    {"explain-to-clients", OPT_BOOL, FIELD(explains_to_clients), .group = "Access",
     .help = "Explain to any client that asks, by the header x-incipit-route or the body field "
             "cache_explain, where its request went, what the workers are busy with and what was "
             "cached. Off: only to requests with an admin key in x-incipit-admin-key."},
    {"forward-path", OPT_LIST, FIELD(forward.paths), .group = "Access", .metavar = "PATH",
     .help = "Forward POST requests for this path to workers of any kind, besides the calls that "
             "each kind is known for; '/v1/*' forwards all that begins so; repeatable. Workers may "
             "serve calls there that change them for everybody."},
    {"forward-field", OPT_LIST, FIELD(forward.fields), .group = "Access", .metavar = "NAME",
     .help =
         "Forward bodies with this field, which is refused by default: kv_transfer_params, "
         "ec_transfer_params, bootstrap_host, session_params, custom_logit_processor; "
         "repeatable. With them a client steers a worker to other hosts or into other sessions."},

    {"max-worker-requests", OPT_U32, FIELD(max_worker_requests), .def = "0", .max = "1000000",
     .group = "Admission",
     .help =
         "Most requests in flight on one worker; what exceeds it waits in the router, where it "
         "can still go elsewhere. 0: a quarter more than a worker says it computes at once, and "
         "twice that of what is cached there; workers that do not say have none. Lower takes "
         "more requests away from where their prompts are cached."},
    {"max-concurrent-requests", OPT_U32, FIELD(max_concurrent_requests), .def = "0",
     .max = "10000000", .name_aliases = no_limit, .group = "Admission",
     .help = "Most requests in flight on all workers together. 0: any."},
    {"queue-size", OPT_U32, FIELD(queue_size), .def = "100", .max = "100000", .group = "Admission",
     .help =
         "Requests of one model that may wait when every worker is at its limit or out of service; "
         "beyond it 429, or 503 when all are out. "
         "Longer refuses less in a burst, and makes the last wait longer."},
    {"queue-timeout", OPT_MS, FIELD(queue_timeout_ms), .def = "60s", .min = "1ms", .max = "1h",
     .aliases = "queue-timeout-secs", .group = "Admission",
     .help = "Longest wait for a worker: then 503, or 429 at once when a longer wait can be "
             "predicted. Set it to the longest time to first token that your clients accept."},

    {"max-body-bytes", OPT_BYTES, FIELD(max_body_bytes), .def = "32MiB", .min = "1KiB",
     .max = "1GiB", .aliases = "max-payload-size", .group = "Limits",
     .help = "Largest request body; beyond it 413."},
    {"max-body-memory", OPT_BYTES, FIELD(max_body_memory), .def = "0", .max = "1TiB",
     .group = "Limits", .metavar = "BYTES",
     .help =
         "Memory for the bodies of all open requests together. A quarter is for bodies up to "
         "64 KiB; long ones of one address, or one key, get half; a body for which there is no "
         "room waits unread for 10 s and is then refused with 503. Higher takes more long bodies "
         "at once. 0: a quarter of what this process may use, at most 1 GiB."},
    {"max-connections", OPT_U32, FIELD(max_connections), .def = "16384", .min = "1",
     .max = "1000000", .group = "Limits",
     .help =
         "Client connections of each event loop, fewer where descriptors are short (ulimit -n). "
         "At the limit idle ones are closed for new ones, of the address with the most first; "
         "a connection with a request in flight never is."},
    {"head-timeout", OPT_MS, FIELD(head_timeout_ms), .def = "10s", .min = "10ms", .max = "10m",
     .group = "Limits",
     .help = "Time a client has to send a request's head, and a new connection to send its first "
             "byte."},
    {"idle-timeout", OPT_MS, FIELD(idle_timeout_ms), .def = "75s", .min = "10ms", .max = "1h",
     .group = "Limits", .help = "Time after which an idle client connection is closed."},
    {"drain-timeout", OPT_MS, FIELD(drain_timeout_ms), .def = "120s", .max = "1h",
     .aliases = "shutdown-grace-period-secs", .group = "Limits",
     .help = "Longest time for open requests to finish, on SIGTERM or when a worker is removed."},
    {"drain-settle", OPT_MS, FIELD(drain_settle_ms), .def = "5s", .max = "10m",
     .aliases = "drain-settle-secs", .group = "Limits",
     .help = "Time after SIGTERM in which new requests are still accepted while /readyz is 503 "
             "and each answer closes its connection, so that load balancers notice. SIGINT skips "
             "it."},
    {"state-dir", OPT_STR, FIELD(state_dir), .group = "Restarting", .metavar = "DIR",
     .help =
         "Folder of this router alone: at its end it writes there what its workers have cached, "
         "and reads it at its next start, so that conversations go on where they are; and a "
         "hash seed, unless --prefix-hash-seed is given."},
    {"handover", OPT_STR, FIELD(handover), .group = "Restarting", .metavar = "PATH",
     .help = "Unix socket through which a router that is started with the same options takes over "
             "from this one: sockets and index, without a failed request. Its folder must be "
             "writable by this user alone. Not with --launch."},
    {"handover-wait", OPT_MS, FIELD(handover_wait_ms), .def = "10s", .min = "100ms", .max = "10m",
     .group = "Restarting",
     .help = "Longest time that a starting router waits for every worker before it takes over "
             "through --handover. Longer waits for slow workers; the running router serves "
             "meanwhile."},

    {"expose-worker-headers", OPT_BOOL, FIELD(expose_worker_headers), .group = "Limits",
     .help = "Relay the x-incipit-* headers of workers to clients, which then see the load and the "
             "free KV blocks of the worker that answers."},
    {"forward-authorization", OPT_BOOL, FIELD(forward_authorization), .group = "Limits",
     .help = "Send the client's Authorization header on to workers."},

    {"log-level", OPT_ENUM, FIELD(log_level), .def = "info", .names = log_level_names,
     .name_aliases = level_aliases, .group = "Logging",
     .help = "Lowest level of lines that are written."},
    {"log-format", OPT_ENUM, FIELD(log_format), .def = "text", .names = log_format_names,
     .group = "Logging", .help = "Lines of key=value, or one JSON object a line."},
    {"log-requests", OPT_U32, FIELD(log_requests), .def = "1", .max = "1000000000",
     .group = "Logging", .metavar = "N",
     .help = "One in N requests has a line in the log, and each that failed with a 5xx. 1: all, as "
             "far as --log-requests-rate lets them; 0: none."},
    {"log-requests-rate", OPT_U32, FIELD(log_requests_rate), .def = "1000", .min = "1",
     .max = "1000000", .group = "Logging", .metavar = "N",
     .help =
         "Lines per second about requests; requests beyond are counted, and the count is on the "
         "next line (skipped=). Raise it to see every request of a busy router; a line has "
         "about 400 bytes."},
    {"decision-log", OPT_STR, FIELD(decision_log), .group = "Logging", .metavar = "FILE",
     .help = "Append one JSON line per routed request: its block hashes, what the candidates would "
             "have cost, what came of it; never its prompt. SIGHUP opens the file again."},
    {"decision-log-secret-file", OPT_STR, FIELD(decision_log_secret_file), .group = "Logging",
     .metavar = "FILE",
     .help =
         "At least 16 bytes that key the hashes in the decision log. Default: random at each "
         "start, so that the hashes of two runs do not compare; that takes a --prefix-hash-seed "
         "too."},
    {"log-rate", OPT_U32, FIELD(log_rate), .def = "50", .min = "1", .max = "1000000",
     .group = "Logging", .metavar = "N",
     .help =
         "Lines per second of each event; those beyond are counted and the count is on the next "
         "line (suppressed=). Lines about requests have --log-requests-rate; changes over the "
         "admin "
         "port (admin_change) are always written."},
};

const struct option_program router_program = {
    .name = "incipit-router",
    .summary = "Routes requests for language models to the worker that already holds most of "
               "their opening in its KV cache, and carries the answers back.",
    .usage = "(--worker-urls URL... | --launch N --model DIR | --service-discovery k8s) [options]\n"
             "       incipit-router healthcheck [options]\n"
             "       incipit-router drain [options]",
    .defs = rows,
    .n_defs = ARRAY_LEN(rows),
    .compat = router_compat_flags,
    .others = "sglang-router, smg and production-stack",
    .target_bytes = sizeof(struct router_options),
};

const struct option_program router_drain_program = {
    .name = "incipit-router drain",
    .summary = "Asks the router that runs on this machine with the same options, environment and "
               "file to end as on SIGTERM, and waits until it has. For those who have no pid.",
    .usage = "[the router's options]",
    .defs = rows,
    .n_defs = ARRAY_LEN(rows),
    .compat = router_compat_flags,
    .others = "sglang-router, smg and production-stack",
    .target_bytes = sizeof(struct router_options),
};

const struct option_program router_healthcheck_program = {
    .name = "incipit-router healthcheck",
    .summary = "Asks /livez of the router that runs on this machine with the same options, "
               "environment and file; exits with 0 when it is well, else with 1.",
    .usage = "[the router's options]",
    .defs = rows,
    .n_defs = ARRAY_LEN(rows),
    .compat = router_compat_flags,
    .others = "sglang-router, smg and production-stack",
    .target_bytes = sizeof(struct router_options),
};

/* router/options/router_options.c - the table of the router's options. Names of sglang-router and
 * smg where they have one; ours where they do not. */
#include "router/options/router_options.h"

#include "router/proxy/retry.h"
#include "router/registry/registry.h"

#define FIELD(member) OPTION_FIELD(struct router_options, member)

/* Rows that change while the router runs: what they change is in router_build.c. */
#define LIVE(member)        FIELD(member), .is_live = true
#define LIVE_POLICY(member) LIVE(policy_options.member)
#define PATH(member)        LIVE(member), .is_path = true

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

static const char *const kv_connector_names[] = {"NixlConnector", "MooncakeConnector", NULL};
static const char *const session_admission_names[] = {"auto", "off", NULL};
static const char *const order_aware_names[] = {"auto", "on", "off", NULL}; /* enum order_aware */
static const char *const kv_events_names[] = {"off", "auto", "on", NULL};   /* kv_events_mode */
static const char *const share_names[] = {"none", "workers", NULL};
static const char *const discovery_names[] = {"none", "k8s", "dns", NULL};
static const char *const discovery_aliases[] = {"static", "none", "kubernetes", "k8s", NULL};
static const char *const resource_names[] = {"pods", "endpointslices", NULL}; /* kube_resource */
static const char *const resource_aliases[] = {"pod-ip", "pods", NULL};       /* production-stack */

static const char *const noise_names[] = {"off", "messages", "all", NULL};
static const char *const isolation_names[] = {"none", "tenant", "auto", NULL};

static const char *const auto_words[] = {"auto", "4294967295", NULL};   /* HOLD_AUTO, QUEUE_AUTO */
static const char *const launch_words[] = {"auto", "4294967295", NULL}; /* LAUNCH_AUTO */

static const struct option_def rows[] = {
    {"host", OPT_STR, FIELD(host), .def = "127.0.0.1", .group = "Listening",
     .help = "Address to listen on for clients. 0.0.0.0 lets other machines in."},
    {"port", OPT_U32, FIELD(port), .def = "30000", .max = "65535", .group = "Listening",
     .help = "Port to listen on for clients. 0 lets the system choose."},
    {"admin-host", OPT_STR, FIELD(admin_host), .def = "127.0.0.1", .aliases = "prometheus-host",
     .group = "Listening",
     .help = "Address of the admin port. An address other than loopback needs an admin key."},
    {"admin-port", OPT_U32, FIELD(admin_port), .def = "29000", .max = "65535",
     .aliases = "prometheus-port", .group = "Listening",
     .help = "Port for metrics, health and the admin API. 0 lets the system choose."},
    {"threads", OPT_U32, FIELD(n_threads), .def = "0", .max = "256", .group = "Listening",
     .help = "Number of event loops. 0 takes one per core, at most 8. More loops carry more "
             "requests per second."},

    {"tls-cert-path", OPT_STR, FIELD(tls_cert_path), .aliases = "ssl-certfile", .group = "TLS",
     .metavar = "FILE",
     .help = "PEM certificate and chain shown to clients. The client port then uses https. "
             "Reloaded when the file changes."},
    {"tls-key-path", OPT_STR, FIELD(tls_key_path), .aliases = "ssl-keyfile", .group = "TLS",
     .metavar = "FILE",
     .help = "PEM key of --tls-cert-path, without a passphrase. Reloaded when the file changes."},
    {"worker-ca", OPT_STR, FIELD(worker_ca), .group = "TLS", .metavar = "PATH",
     .help = "PEM file, or folder made by 'openssl rehash', of the authorities that verify "
             "https:// workers. Default: the system's authorities."},
    {"worker-cert", OPT_STR, FIELD(worker_cert), .group = "TLS", .metavar = "FILE",
     .help = "PEM certificate shown to workers that require one."},
    {"worker-key", OPT_STR, FIELD(worker_key), .group = "TLS", .metavar = "FILE",
     .help = "PEM key of --worker-cert, without a passphrase."},
    {"worker-tls-insecure", OPT_BOOL, FIELD(worker_tls_insecure), .group = "TLS",
     .help = "Accept any certificate of a worker. An attacker who takes over a worker's address "
             "can then read all prompts: use for trials only."},

    {"worker-urls", OPT_LIST, FIELD(worker_urls), .takes_many = true, .aliases = "static-backends",
     .group = "Workers", .metavar = "URL",
     .help = "URLs of the workers to route to, one or more. Each is http://host:port or "
             "https://host:port."},
    {"prefill", OPT_LIST, FIELD(prefill), .takes_many = true, .group = "Workers",
     .metavar = "URL [PORT]",
     .help = "URLs of workers that compute prompts which workers of --decode answer (vLLM with "
             "NixlConnector or MooncakeConnector, SGLang with --disaggregation-mode prefill). "
             "PORT, behind a URL, is the bootstrap port of a worker with SGLang or "
             "MooncakeConnector; without it 8998. A vLLM worker of this list answers clients only "
             "while no other worker can."},
    {"decode", OPT_LIST, FIELD(decode), .takes_many = true, .group = "Workers", .metavar = "URL",
     .help = "URLs of workers that answer requests whose prompts workers of --prefill compute. "
             "vLLM workers compute a prompt themselves when that is cheaper."},
    {"kv-connector", OPT_ENUM, FIELD(kv_connector), .def = "NixlConnector",
     .names = kv_connector_names, .group = "Workers",
     .help = "Connector by which vLLM workers of role prefill or decode hand over KV, as in their "
             "--kv-transfer-config. A worker's label kv_connector takes precedence. The ids that "
             "MooncakeConnector needs are read every --engine-metrics-interval."},
    {"worker-file", OPT_STR, FIELD(worker_file), .group = "Workers", .metavar = "FILE",
     .help =
         "File of workers, one a line. A line is URL [max_in_flight=N] [label=text ...]; labels "
         "are shown by GET /workers; '#' begins a comment. Reloaded when the file changes and on "
         "SIGHUP; a worker that is no "
         "longer in the file is drained."},
    {"worker-allow-cidr", OPT_LIST, FIELD(worker_allow_cidr), .takes_many = true,
     .group = "Workers", .metavar = "CIDR",
     .help = "Networks from which the admin API may add workers. Default: loopback and private "
             "networks. Link-local and metadata addresses are always refused."},
    {"max-workers", OPT_U32, FIELD(max_workers), .def = "256", .min = "1", .max = "1024",
     .group = "Workers", .help = "Most workers at once. Higher needs more memory per model."},
    {"launch", OPT_U32, FIELD(launch), .def = "0", .max = "256", .name_aliases = launch_words,
     .aliases = "dp-size", .group = "Workers", .metavar = "N|auto",
     .help = "Number of workers to start on this machine. With auto, one for each GPU. The router "
             "restarts workers that fail, and stops all of them when it ends. Each worker is "
             "pinned to one GPU, and workers share GPUs when there are fewer; without GPUs the "
             "workers share the CPU cores, and auto starts one worker."},
    {"model", OPT_STR, FIELD(model), .aliases = "model-path", .group = "Workers", .metavar = "DIR",
     .help = "Model of launched workers: a folder, or ORG/NAME. The second form is a model of the "
             "Hugging Face hub."},
    {"worker-base-port", OPT_U32, FIELD(worker_base_port), .def = "31000", .min = "1",
     .max = "65535", .group = "Workers",
     .help = "First port of launched workers. Ports in use are skipped."},
    {"worker-threads", OPT_U32, FIELD(worker_threads), .def = "0", .max = "1024",
     .group = "Workers",
     .help = "CPU threads of each launched worker. 0 divides the cores among the workers."},
    {"worker-program", OPT_STR, FIELD(worker_program), .group = "Workers", .metavar = "FILE",
     .help =
         "Program to launch as worker. Default: the incipit-worker in the folder of this program."},
    {"worker-arg", OPT_LIST, FIELD(worker_args), .group = "Workers", .metavar = "ARG",
     .help =
         "Argument for launched workers, for example --worker-arg=--block-size=32; repeatable."},

    {"ready-message", OPT_STR, FIELD(ready_message), .group = "Workers", .metavar = "FILE",
     .help = "File with the text to print once every launched worker is ready; {url} and {model} "
             "in the text are replaced by their values. Default: an example request."},

    {"service-discovery", OPT_ENUM, FIELD(service_discovery), .def = "none",
     .names = discovery_names, .name_aliases = discovery_aliases, .alone = "k8s",
     .group = "Discovery",
     .help = "Where to find workers: k8s, dns or none. With k8s, the pods of a cluster are the "
             "workers, with dns the addresses of --worker-dns; --worker-urls and --worker-file may "
             "add others. An empty value is k8s."},
    {"k8s-selector", OPT_LIST, FIELD(k8s_selector), .takes_many = true,
     .aliases = "selector,k8s-label-selector", .group = "Discovery", .metavar = "LABEL=VALUE",
     .help = "Labels of the pods that are workers. Several labels must all match. Every matching "
             "pod receives requests."},
    {"k8s-namespace", OPT_STR, FIELD(k8s_namespace), .aliases = "service-discovery-namespace",
     .group = "Discovery", .metavar = "NAME",
     .help = "Namespace of the workers. Default: the namespace of the kubeconfig context, or the "
             "router's own."},
    {"k8s-all-namespaces", OPT_BOOL, FIELD(k8s_all_namespaces), .group = "Discovery",
     .help = "Find workers in all namespaces. Needs a ClusterRole."},
    {"k8s-port", OPT_U32, FIELD(k8s_port), .def = "0", .max = "65535",
     .aliases = "service-discovery-port", .group = "Discovery",
     .help = "Port of workers without the annotations incipit.dev/ports and smg.ai/worker-ports. 0 "
             "takes the container port called http, else the first container port."},
    {"k8s-resource", OPT_ENUM, FIELD(k8s_resource), .def = "pods", .names = resource_names,
     .name_aliases = resource_aliases, .aliases = "k8s-service-discovery-type",
     .group = "Discovery",
     .help = "Kubernetes objects to watch. The endpointslices of a service need no right to read "
             "pods, but carry none of the pods' labels and annotations."},
    {"k8s-service", OPT_STR, FIELD(k8s_service), .group = "Discovery", .metavar = "NAME",
     .help = "Service whose endpoint slices are watched, with --k8s-resource endpointslices."},
    {"inference-pool", OPT_STR, FIELD(inference_pool), .group = "Discovery", .metavar = "NAME",
     .help = "InferencePool whose selected pods are the workers, at the pool's targetPorts. Used "
             "instead of --k8s-selector and --k8s-port. Changes of the pool are followed."},
    {"k8s-role-label", OPT_STR, FIELD(k8s_role_label), .def = "incipit.dev/role",
     .group = "Discovery", .metavar = "LABEL", .is_hidden = true,
     .help = "Pod label that names the role of a pod: prefill, decode or both, as a worker's label "
             "role. Pods whose role is only encode are ignored."},
    {"k8s-write-deletion-cost", OPT_BOOL, FIELD(k8s_write_deletion_cost), .group = "Discovery",
     .help = "Write controller.kubernetes.io/pod-deletion-cost to pods, so that scale-down removes "
             "the pod with the smallest cache first. Needs the right to patch pods."},
    {"k8s-api-server", OPT_STR, FIELD(k8s_api_server), .group = "Discovery", .metavar = "URL",
     .help = "URL of the Kubernetes API server. Default: the API server of the cluster in which "
             "the router runs. http:// is accepted on loopback alone, as for kubectl proxy."},
    {"k8s-token-file", OPT_STR, FIELD(k8s_token_file), .group = "Discovery", .metavar = "FILE",
     .help = "File with the bearer token for the Kubernetes API server, reloaded when the file "
             "changes. Default: the service account's token."},
    {"k8s-ca-file", OPT_STR, FIELD(k8s_ca_file), .group = "Discovery", .metavar = "FILE",
     .help = "PEM authorities that verify the Kubernetes API server. Default: the service "
             "account's authorities."},
    {"kubeconfig", OPT_STR, FIELD(kubeconfig), .group = "Discovery", .metavar = "FILE",
     .help = "Kubeconfig file with the API server and credentials: tokens or client certificates; "
             "credential plug-ins are not supported."},
    {"kube-context", OPT_STR, FIELD(kube_context), .group = "Discovery", .metavar = "NAME",
     .help = "Context of --kubeconfig. Default: the current context of the file."},
    {"worker-dns", OPT_STR, FIELD(worker_dns), .group = "Discovery", .metavar = "NAME:PORT",
     .help = "DNS name whose addresses are all workers, for example a headless service. Resolved "
             "every 5 s, without special rights. While the name does not resolve, the last known "
             "addresses stay in use."},

    {"policy", OPT_ENUM, FIELD(policy), .def = "prefix", .names = policy_names,
     .name_aliases = policy_aliases, .aliases = "routing-logic,routing-strategy",
     .group = "Routing",
     .help = "Policy that chooses a worker. Use prefix unless you must match another router."},
    {"cost-later-arrivals", OPT_F64, LIVE_POLICY(cost_later_arrivals), .def = "3", .min = "0",
     .max = "100", .aliases = "beta", .env = "INCIPIT_BETA", .group = "Routing", .is_hidden = true,
     .help = "How much one more second of prefill on a worker costs the requests that arrive there "
             "later. 0 ignores later requests; 8 favours throughput over latency. Policy prefix."},
    {"cost-decoding", OPT_F64, LIVE_POLICY(cost_decoding), .def = "0.12", .min = "0", .max = "10",
     .aliases = "kappa", .env = "INCIPIT_KAPPA", .group = "Routing", .is_hidden = true,
     .help = "How much each request in flight on a worker raises the cost of sending it one more "
             "second of prefill. Higher spreads long prompts more. Policy prefix."},
    {"cost-queued", OPT_F64, LIVE_POLICY(cost_queued), .def = "0.7", .min = "0", .max = "10",
     .aliases = "gamma", .env = "INCIPIT_GAMMA", .group = "Routing", .is_hidden = true,
     .help =
         "How much each request that waits on a worker for its first token raises the cost of "
         "sending it one more second of prefill. Higher keeps long prompts away from queues: first "
         "tokens come sooner, whole answers later. Policy prefix."},
    {"cost-fleet-busy", OPT_F64, LIVE_POLICY(cost_fleet_busy), .def = "0.3", .min = "0",
     .max = "10", .aliases = "lambda", .env = "INCIPIT_LAMBDA", .group = "Routing",
     .is_hidden = true,
     .help = "How much each request in flight on the least busy worker raises the cost of one more "
             "second of prefill. Higher keeps prompts where they are cached while the whole fleet "
             "is busy: more throughput, later first tokens. Policy prefix."},
    {"cost-batch-slot", OPT_F64, LIVE_POLICY(cost_batch_slot_s), .def = "0.005", .min = "0",
     .max = "10", .aliases = "delta", .env = "INCIPIT_DELTA", .group = "Routing",
     .metavar = "SECONDS", .is_hidden = true,
     .help = "Cost that each request in flight on a worker adds to choosing the worker, in "
             "seconds. Higher evens out the number of requests per worker. Policy prefix."},
    {"order-aware", OPT_ENUM, LIVE_POLICY(order_aware), .def = "off", .names = order_aware_names,
     .group = "Routing",
     .help = "Whether the cost of a worker with --schedule-policy srpt counts shorter prompts as "
             "ahead and longer ones as passed. on: first tokens come sooner, whole answers later "
             "and tokens less often. auto: on while answers take less than half of the workers' "
             "time. "
             "Policy prefix."},
    {"home-weight", OPT_F64, LIVE_POLICY(home_weight), .def = "0", .min = "0", .max = "10",
     .group = "Routing", .is_hidden = true,
     .help = "Discount on the cost of an uncached prompt at its home worker, in multiples of the "
             "prompt's prefill time. The home worker is chosen by a hash, equally in all routers. "
             "For several routers with --share none: with four, 1 finds two fifths more cached "
             "tokens, and first tokens come a fifth later. Policy prefix."},
    {"max-load-factor", OPT_F64, LIVE_POLICY(max_load_factor), .def = "2", .max = "1000",
     .group = "Routing",
     .help = "Most requests in flight on a worker, as a multiple of the mean of all workers, with "
             "--load-floor added. A worker with more gets no new request. Lower evens out load and "
             "costs cache hits; 0 turns the limit off. Policies prefix, session."},
    {"load-floor", OPT_F64, LIVE_POLICY(load_floor), .def = "16", .min = "0", .max = "100000",
     .group = "Routing", .is_hidden = true,
     .help = "Requests in flight that every worker may have, in addition to those that "
             "--max-load-factor permits. Policies prefix, session."},
    {"prefix-block-bytes", OPT_U32, FIELD(prefix_block_bytes), .def = "256", .min = "16",
     .max = "65536", .group = "Routing",
     .help = "Prompt bytes hashed into one prefix block. Smaller blocks find more of what is "
             "cached and need more memory."},
    {"max-prefix-bytes", OPT_BYTES, FIELD(max_prefix_bytes), .def = "8MiB", .min = "128",
     .max = "32MiB", .group = "Routing",
     .help = "Most bytes of a prompt that are hashed. Prompts that differ only beyond this length "
             "look equal to the router. A lower value saves CPU and index memory only for prompts "
             "that are longer."},
    {"max-index-bytes", OPT_BYTES, FIELD(max_index_bytes), .def = "64MiB", .min = "1MiB",
     .group = "Routing",
     .help = "Most memory of the prefix index, which records the prompts that each worker has "
             "cached, per model. The index grows with the workers' caches. A smaller index forgets "
             "cached prompts sooner."},
    {"prefix-hash-seed", OPT_STR, FIELD(prefix_hash_seed), .is_secret = true, .group = "Routing",
     .help = "Secret seed of the prefix hashes. Default: random. Routers that share workers need "
             "equal seeds."},
    {"share", OPT_ENUM, FIELD(share), .def = "workers", .names = share_names, .group = "Routing",
     .help = "How several routers of the same workers share which requests they have sent. "
             "workers: each worker reports the requests of all routers to every router, and all "
             "routers need one --prefix-hash-seed. none: each router uses only its own requests; "
             "four such routers get half the cache hits of one."},

    {"share-redis", OPT_STR, FIELD(share_redis), .metavar = "URL", .group = "Routing",
     .help = "Redis or Valkey server, as redis://HOST[:PORT][/DATABASE], through which routers "
             "share which requests they have sent to vLLM and SGLang workers. All routers need one "
             "--prefix-hash-seed and equal worker URLs."},
    {"share-redis-password", OPT_STR, FIELD(share_redis_password), .is_secret = true,
     .group = "Routing", .help = "Password of the --share-redis server."},
    {"share-redis-key", OPT_STR, FIELD(share_redis_key), .def = "incipit:requests",
     .group = "Routing", .is_hidden = true,
     .help = "Key of the stream on the --share-redis server. Each set of workers needs a key of "
             "its own."},
    {"share-redis-entries", OPT_U32, FIELD(share_redis_entries), .def = "20000", .min = "100",
     .max = "10000000", .group = "Routing", .is_hidden = true,
     .help = "Approximate length of the --share-redis stream, in entries. A busy router adds a "
             "hundred entries a second. A longer stream lets a starting router learn more, and "
             "takes more memory on the server."},

    {"routing-key-headers", OPT_LIST, FIELD(session_headers),
     .def = "x-smg-routing-key,x-session-id,x-aibrix-session-key",
     .aliases = "session-headers,session-key", .max = "8", .group = "Other policies",
     .metavar = "HEADER,...",
     .help = "Request headers that name a session. The first header that is present is used, else "
             "prompt_cache_key, session_id or metadata.user_id of the body. Policy session."},
    {"cache-threshold", OPT_F64, LIVE_POLICY(cache_threshold), .def = "0.3", .min = "0", .max = "1",
     .aliases = "cache-match-threshold", .group = "Other policies",
     .help = "Least share of a prompt, 0 to 1, that a worker must hold cached to be chosen for it. "
             "Below, the least loaded worker is chosen. Lower favours cache hits, higher even "
             "load. Policy cache_aware."},
    {"balance-abs-threshold", OPT_U32, LIVE_POLICY(balance_abs), .def = "64",
     .aliases = "spill-abs-threshold", .group = "Other policies",
     .help = "Difference in requests in flight between the most and the least loaded worker above "
             "which the least loaded one is chosen, if --balance-rel-threshold is exceeded too. "
             "Policy cache_aware."},
    {"balance-rel-threshold", OPT_F64, LIVE_POLICY(balance_rel), .def = "1.5", .min = "0",
     .max = "1000", .aliases = "spill-rel-threshold", .group = "Other policies",
     .help = "Ratio of requests in flight between the most and the least loaded worker above which "
             "the least loaded one is chosen, if --balance-abs-threshold is exceeded too. Policy "
             "cache_aware."},
    {"max-tree-size", OPT_BYTES, FIELD(policy_options.max_tree_bytes), .def = "67108864",
     .min = "1KiB", .max = "4GiB", .group = "Other policies",
     .help = "Most bytes of prompt text that are remembered as cached on workers. The record takes "
             "half as much memory. Policies cache_aware, hash_trie."},
    {"prefix-min-match-length", OPT_U64, LIVE_POLICY(prefix_min_match), .def = "0",
     .group = "Other policies", .metavar = "BYTES", .is_hidden = true,
     .help = "Shortest common prefix of two prompts, in bytes, that counts as a match. Policy "
             "hash_trie."},
    {"prefix-hash-load-factor", OPT_F64, LIVE_POLICY(bounded_load), .def = "1.25", .min = "1",
     .max = "1000", .group = "Other policies",
     .help = "Most requests in flight on a worker, as a multiple of the mean of all workers. Above "
             "that, the next worker on the hash ring is chosen. Lower evens out load, higher keeps "
             "similar prompts on one worker. Policies chwbl, simhash."},
    {"chwbl-replication", OPT_U32, FIELD(policy_options.ring_replication), .def = "256", .min = "1",
     .max = "1024", .group = "Other policies", .is_hidden = true,
     .help = "Points of each worker on the hash ring. More points divide prompts among workers "
             "more evenly. Policies chwbl, simhash."},
    {"chwbl-prefix-bytes", OPT_U32, LIVE_POLICY(chwbl_prefix_bytes), .def = "100", .min = "1",
     .max = "1048576", .aliases = "prefix-char-length", .group = "Other policies",
     .help = "Bytes at the beginning of a prompt that choose its worker, rounded up to whole "
             "prefix blocks. Set more than a common system prompt has, or all requests go to one "
             "worker first. Policy chwbl."},
    {"queue-scorer-weight", OPT_F64, LIVE_POLICY(scorer_queue_weight), .def = "2", .min = "0",
     .max = "1000", .group = "Other policies", .is_hidden = true,
     .help =
         "Weight of a short queue in the score by which a worker is chosen. Policy prefix_scorer."},
    {"kv-cache-utilization-scorer-weight", OPT_F64, LIVE_POLICY(scorer_kv_weight), .def = "2",
     .min = "0", .max = "1000", .group = "Other policies", .is_hidden = true,
     .help = "Weight of free KV memory in the score by which a worker is chosen. Policy "
             "prefix_scorer."},
    {"prefix-cache-scorer-weight", OPT_F64, LIVE_POLICY(scorer_prefix_weight), .def = "3",
     .min = "0", .max = "1000", .group = "Other policies", .is_hidden = true,
     .help = "Weight of the cached share of the prompt in the score by which a worker is chosen. "
             "Policy prefix_scorer."},
    {"max-prefix-blocks-to-match", OPT_U32, LIVE_POLICY(scorer_max_blocks), .def = "256",
     .min = "1", .max = "1048576", .group = "Other policies", .is_hidden = true,
     .help =
         "Most blocks of 64 bytes at the beginning of a prompt that are compared with cached "
         "prompts. Prompts that differ only beyond these blocks look equal. Policy prefix_scorer."},
    {"aibrix-imbalance-abs-count", OPT_U32, LIVE_POLICY(aibrix_imbalance_abs), .def = "8",
     .group = "Other policies", .is_hidden = true,
     .help = "Difference in requests in flight between the most and the least loaded worker above "
             "which only the least loaded workers are candidates. Policy aibrix."},
    {"aibrix-stddev-factor", OPT_F64, LIVE_POLICY(aibrix_stddev_factor), .def = "1", .min = "0",
     .max = "1000", .group = "Other policies", .is_hidden = true,
     .help = "Standard deviations above the mean number of requests in flight that a worker may "
             "have and still be chosen for its cached prompts. Policy aibrix."},
    {"aibrix-block-number", OPT_U32, FIELD(policy_options.aibrix_table_blocks), .def = "200000",
     .min = "32", .max = "1000000000", .group = "Other policies", .is_hidden = true,
     .help =
         "Prompt blocks of 4 bytes that are remembered, for all workers together. Policy aibrix."},
    {"aibrix-eviction-duration", OPT_MS, LIVE_POLICY(aibrix_ttl_ms), .def = "20m", .min = "1s",
     .max = "24h", .group = "Other policies", .is_hidden = true,
     .help = "Time after which an unused prompt block is forgotten. Policy aibrix."},

    {"probe-interval", OPT_MS, LIVE(probe_interval_ms), .def = "500ms", .min = "10ms", .max = "1h",
     .aliases = "health-check-interval-secs", .group = "Failures",
     .help = "Time between health probes of one worker, and the shortest time until an ejected "
             "worker (taken out of service) is tried again. Shorter detects failures sooner."},
    {"probe-timeout", OPT_MS, LIVE(probe_timeout_ms), .def = "500ms", .min = "10ms", .max = "1m",
     .aliases = "health-check-timeout-secs", .group = "Failures",
     .help = "Time after which a health probe without an answer is a miss."},
    {"probe-misses", OPT_U32, LIVE(probe_misses), .def = "2", .min = "1", .max = "100",
     .aliases = "health-failure-threshold", .group = "Failures",
     .help =
         "Health probes missed in a row after which a worker is ejected (taken out of service)."},
    {"probe-hits", OPT_U32, LIVE(probe_hits), .def = "2", .min = "1", .max = "100",
     .aliases = "health-success-threshold", .group = "Failures",
     .help = "Health probes answered in a row that return an ejected worker to service. One is "
             "enough while no worker is in service."},
    {"probe-path", OPT_STR, LIVE(probe_path), .def = "/health", .aliases = "health-check-endpoint",
     .group = "Failures", .help = "Path of the health probe on each worker."},
    {"engine-metrics-interval", OPT_MS, LIVE(engine_metrics_interval_ms), .def = "1s", .max = "1h",
     .group = "Routing", .is_hidden = true,
     .help = "Time between reads of /metrics of vLLM and SGLang workers, which report their cache "
             "size and cache hits. Shorter follows changes sooner; 0 turns the reads off."},
    {"kv-events", OPT_ENUM, LIVE(kv_events), .def = "auto", .names = kv_events_names,
     .group = "Routing",
     .help = "Subscribes to the KV events of vLLM and SGLang workers (ZeroMQ): the size of a cache "
             "is counted, and a cache that was emptied is noticed at once. auto: workers with the "
             "setting kv_events=PORT (--worker-file, admin API, annotation incipit.dev/kv-events), "
             "and SGLang workers that report a port; on: also all others, at ports 5557 and 5558, "
             "and Incipit's workers (GET /kv_events), whose blocks are counted but not routed by; "
             "off: none."},
    {"kv-events-memory", OPT_BYTES, FIELD(kv_events_memory), .def = "256MiB", .min = "1MiB",
     .max = "64GiB", .group = "Routing", .is_hidden = true,
     .help = "Most memory for the blocks that KV events report, of all workers together; a block "
             "takes 26 to 51 bytes. Blocks beyond are not counted."},
    {"slow-start", OPT_MS, LIVE(slow_start_ms), .def = "10s", .max = "1h", .group = "Failures",
     .help =
         "Time over which a worker that is new or returned to service grows from a tenth to all of "
         "its share of requests. Longer is gentler to cold caches; 0 turns slow start off."},
    {"max-retries", OPT_U32, LIVE(max_retries), .def = "2", .max = "7",
     .aliases = "retry-max-retries,max-instance-failover-reroute-attempts", .group = "Failures",
     .help = "Other workers to try when a worker fails. A request is never sent again after the "
             "first byte of an answer."},
    {"retry-on", OPT_LIST, LIVE(retry_on), .def = RETRY_ON_DEFAULT, .group = "Failures",
     .metavar = "CAUSE,...",
     .help = "Failures after which a request is sent to another worker, while its client has "
             "received nothing: connect (no connection), reset (the connection broke), timeout "
             "(--first-byte-timeout), malformed (not HTTP), empty (200 without an answer), 500, "
             "502, 503, 504, all, or none. A shorter list lets more failures reach clients. "
             "Requests to --forward-path are retried after connect only, since a second one could "
             "repeat a side effect."},
    {"connect-timeout", OPT_MS, LIVE(connect_timeout_ms), .def = "250ms", .min = "1ms", .max = "1m",
     .group = "Failures", .help = "Time a worker has to accept a connection."},
    {"first-byte-timeout", OPT_MS, LIVE(first_byte_timeout_ms), .def = "0", .max = "24h",
     .group = "Failures",
     .help = "Time a worker has to send the first byte of an answer; then the request is sent to "
             "another worker. 0: no limit. Set more than the longest prefill plus queueing, or "
             "good work is lost. For engines other than incipit-worker, set more than the longest "
             "answer that is not streamed: they send nothing before its end."},
    {"stream-idle-timeout", OPT_MS, LIVE(stream_idle_timeout_ms), .def = "5m", .max = "24h",
     .group = "Failures",
     .help = "Time without a byte after which an answer that has begun is ended, a streamed one "
             "with an error event. Shorter reports a hung worker sooner, and ends answers that the "
             "engine has paused (preempted). A worker that also fails its health probes has a "
             "tenth of this time. 0: no limit."},
    {"sse-keepalive-s", OPT_F64, LIVE(sse_keepalive_s), .def = "15", .min = "0", .max = "3600",
     .group = "Failures", .metavar = "SECONDS",
     .help = "Time without a byte after which a streaming client gets a comment (: keep-alive), so "
             "that balancers and clients keep the connection open while a prompt is computed: as "
             "soon as the worker has begun to answer, or from the start for requests with "
             "x-incipit-queue-comments: 1. 0: no comments of the router."},
    {"poison-memory", OPT_MS, LIVE(poison_memory_ms), .def = "60s", .max = "24h",
     .group = "Failures", .is_hidden = true,
     .help = "Time for which a request is refused after two workers failed while serving the "
             "request. Longer protects workers from a harmful request, and punishes a harmless one "
             "longer. 0: such a request is always tried."},
    {"request-timeout", OPT_MS, LIVE(request_timeout_ms), .def = "30m", .min = "10ms", .max = "24h",
     .aliases = "request-timeout-secs", .group = "Failures",
     .help = "Longest time of a request, answer included."},

    {"api-keys-file", OPT_STR, PATH(api_keys_file), .group = "Access", .metavar = "FILE",
     .help =
         "File of the API keys that clients must send. One key a line: KEY [tenant=NAME] [rps=N] "
         "[tokens_per_s=N] [max_concurrent=N] [priority=N] [weight=N] [max_share=N]. Reloaded when "
         "the "
         "file changes."},
    {"api-key", OPT_STR, LIVE(api_key), .is_secret = true, .group = "Access",
     .help = "API key that clients may send, without limits, in addition to the keys of "
             "--api-keys-file."},
    {"trust-tenant-header", OPT_BOOL, FIELD(trust_tenant_header), .group = "Access",
     .help = "Take the tenant of a request from --tenant-header-name, without API keys. Only "
             "behind a gateway that sets the header."},
    {"tenant-header-name", OPT_STR, FIELD(tenant_header), .def = "x-smg-tenant-id",
     .group = "Access",
     .help = "Name of the header that carries the tenant, with --trust-tenant-header."},
    {"isolate-by", OPT_ENUM, FIELD(isolate_by), .def = "auto", .names = isolation_names,
     .group = "Access",
     .help = "Whether tenants share cached blocks. tenant: tenants share none, at the cost of a "
             "separate cache for each. none: all tenants share, and any client can find out, "
             "prefix by prefix, what others have sent. auto: tenant with --api-keys-file or "
             "--trust-tenant-header, else none."},
    {"isolation-secret-file", OPT_STR, FIELD(isolation_secret_file), .group = "Access",
     .metavar = "FILE",
     .help = "File with the secret that separates the tenants' caches, with --isolate-by. Default: "
             "derived from --prefix-hash-seed if the seed has 16 characters, else from the seed in "
             "--state-dir, else random. Routers with different secrets share no cached blocks."},
    {"isolation-secret", OPT_STR, FIELD(isolation_secret), .is_secret = true, .group = "Access",
     .help =
         "Secret that separates the tenants' caches, as text instead of --isolation-secret-file."},
    {"worker-api-key-file", OPT_STR, PATH(worker_api_key_file), .group = "Access",
     .metavar = "FILE",
     .help =
         "File with the API key for workers, on the first line that is not a comment. The router "
         "sends the key to all workers as Authorization, in place of the client's header."},
    {"worker-api-key", OPT_STR, LIVE(worker_api_key), .is_secret = true, .env = "VLLM_API_KEY",
     .group = "Access", .help = "API key for workers, as text instead of --worker-api-key-file."},
    {"admin-api-key-file", OPT_STR, PATH(admin_api_key_file), .group = "Access", .metavar = "FILE",
     .help =
         "File of the keys that open the admin port, one a line. Reloaded when the file changes."},
    {"admin-api-key", OPT_STR, LIVE(admin_api_key), .is_secret = true, .group = "Access",
     .help = "Key that opens the admin port, in addition to the keys of --admin-api-key-file."},
    {"admin-on-main", OPT_BOOL, FIELD(is_admin_on_main), .group = "Access",
     .help = "Serve the admin API on the client port too, as sglang-router does. Needs an admin "
             "key unless the client port is on loopback and asks for no API key."},

    {"explain-to-clients", OPT_BOOL, LIVE(explains_to_clients), .group = "Access",
     .help = "Explain routing to every client that sends the header x-incipit-route or the body "
             "field cache_explain: the chosen worker, the load of the workers and the cached "
             "blocks. Off: only to requests with an admin key in x-incipit-admin-key."},
    {"forward-path", OPT_LIST, FIELD(forward.paths), .group = "Access", .metavar = "PATH",
     .help = "Path whose POST requests are forwarded to workers, in addition to the paths that the "
             "router knows. '/v1/*' forwards all paths that begin with /v1/; repeatable. A "
             "forwarded request may change a worker for all clients."},
    {"forward-field", OPT_LIST, FIELD(forward.fields), .group = "Access", .metavar = "NAME",
     .help = "Body field to forward that is refused by default: kv_transfer_params, "
             "ec_transfer_params, bootstrap_host, session_params or custom_logit_processor; "
             "repeatable. With these fields a client steers a worker to other hosts or into other "
             "sessions."},

    {"max-worker-requests", OPT_U32, LIVE(max_worker_requests), .def = "0", .max = "1000000",
     .group = "Admission",
     .help = "Most requests in flight on one worker. The excess waits in the router, where it can "
             "still go to another worker. 0: a quarter more than the batch size that the worker "
             "reports, and twice that for requests whose prompts the worker has cached; a worker "
             "that reports no batch size has no limit. Lower sends more requests to workers "
             "without their cached prompts."},
    {"max-concurrent-requests", OPT_U32, LIVE(max_concurrent_requests), .def = "0",
     .max = "10000000", .name_aliases = no_limit, .group = "Admission",
     .help = "Most requests in flight on all workers together. 0: no limit."},
    {"hold-ms", OPT_MS, LIVE(hold_ms), .def = "auto", .max = "1h", .name_aliases = auto_words,
     .group = "Admission",
     .help =
         "Most prefill, in milliseconds, that the worker of a request may have to do before it. "
         "A request whose worker has more waits in the router, where short requests go first, "
         "tenants get equal shares, and the worker is chosen when it can start. auto: 400 for "
         "workers that prefill in order of arrival, 1000 for workers that publish "
         "schedule_policy srpt, and 0 with a --policy other than prefix. 0: requests wait only "
         "while every worker is full. Lower orders more requests by length and tenant; "
         "too low leaves workers idle between requests."},
    {"queue-size", OPT_U32, LIVE(queue_size), .def = "auto", .max = "100000",
     .name_aliases = auto_words, .group = "Admission",
     .help = "Requests of one model that may wait for a worker. The excess is answered 429, or 503 "
             "when all workers are out of service. auto: 10000, or 100 where --hold-ms is 0. A "
             "longer queue refuses fewer requests in a "
             "burst, and makes the last request wait longer."},
    {"queue-timeout", OPT_MS, LIVE(queue_timeout_ms), .def = "60s", .min = "1ms", .max = "1h",
     .aliases = "queue-timeout-secs", .group = "Admission",
     .help =
         "Longest wait of a request for a worker. Then the answer is 503, or 429 at once when a "
         "longer wait can be predicted. Set the longest time to first token that clients accept."},

    {"session-admission", OPT_ENUM, FIELD(session_admission), .def = "auto",
     .names = session_admission_names, .group = "Admission",
     .help =
         "Let whole sessions wait when the contexts of all active ones exceed what the workers' "
         "caches hold, so that those that run keep theirs. auto: with --policy prefix, when every "
         "worker of the model reports its KV memory, and while at least half of the prompt tokens "
         "repeat what their session sent before, as those of coding agents. off: none waits. "
         "Sessions are named by a header, or found by their prompts."},
    {"session-timeout", OPT_MS, LIVE(session_timeout_ms), .def = "10m", .min = "1ms", .max = "1h",
     .group = "Admission",
     .help = "Longest wait of a request for its session to be admitted; --queue-timeout where that "
             "is longer. Then the answer is 503, and the session keeps its place for a minute."},

    {"max-body-bytes", OPT_BYTES, LIVE(max_body_bytes), .def = "32MiB", .min = "1KiB",
     .max = "1GiB", .aliases = "max-payload-size", .group = "Limits",
     .help = "Largest request body; larger ones are answered 413."},
    {"max-body-memory", OPT_BYTES, LIVE(max_body_memory), .def = "0", .max = "1TiB",
     .group = "Limits", .metavar = "BYTES",
     .help =
         "Memory for the bodies of all open requests together. A quarter is reserved for bodies up "
         "to 64 KiB. Long bodies of one client address or API key may take at most half. A body "
         "without room waits unread for 10 s and is then refused with 503. Higher takes more long "
         "bodies at once. 0: a quarter of the memory that this process may use, at most 1 GiB."},
    {"max-connections", OPT_U32, LIVE(max_connections), .def = "16384", .min = "1",
     .max = "1000000", .group = "Limits",
     .help = "Most client connections of each event loop (--threads). The limit is lower where "
             "file descriptors are short (ulimit -n). At the limit, idle connections are closed to "
             "make room, first those of the client address with the most; a connection with a "
             "request in flight is never closed."},
    {"head-timeout", OPT_MS, LIVE(head_timeout_ms), .def = "10s", .min = "10ms", .max = "10m",
     .group = "Limits",
     .help = "Time a client has to send the request line and headers of a request. A new "
             "connection has the same time to send its first byte."},
    {"idle-timeout", OPT_MS, LIVE(idle_timeout_ms), .def = "75s", .min = "10ms", .max = "1h",
     .group = "Limits", .help = "Time after which an idle client connection is closed."},
    {"drain-timeout", OPT_MS, LIVE(drain_timeout_ms), .def = "120s", .max = "1h",
     .aliases = "shutdown-grace-period-secs", .group = "Limits",
     .help = "Time to finish open requests on shutdown. Applies on SIGTERM and when a worker is "
             "removed."},
    {"drain-settle", OPT_MS, LIVE(drain_settle_ms), .def = "5s", .max = "10m",
     .aliases = "drain-settle-secs", .group = "Limits",
     .help = "Time after SIGTERM in which new requests are still accepted, while /readyz is 503 "
             "and each answer closes its connection, so that load balancers notice. SIGINT skips "
             "this time."},
    {"state-dir", OPT_STR, FIELD(state_dir), .group = "Restarting", .metavar = "DIR",
     .help = "Folder for data kept across restarts. Each router needs a folder of its own. A "
             "router that ends writes there which prompt prefixes its workers have cached, and "
             "reads them when it starts again; the folder also keeps a hash seed, unless "
             "--prefix-hash-seed is set."},
    {"handover", OPT_STR, FIELD(handover), .group = "Restarting", .metavar = "PATH",
     .help = "Unix socket through which a router started with equal options takes over from the "
             "running router. The new router takes the listening sockets and the prefix index, "
             "without a failed request. The socket's folder must be writable by this user alone. "
             "Excludes --launch."},
    {"handover-wait", OPT_MS, FIELD(handover_wait_ms), .def = "10s", .min = "100ms", .max = "10m",
     .group = "Restarting", .is_hidden = true,
     .help = "Longest time that a starting router waits for its workers to become healthy before "
             "it takes over through --handover. Set more for slow workers; the running router "
             "serves meanwhile."},

    {"expose-worker-headers", OPT_BOOL, LIVE(expose_worker_headers), .group = "Limits",
     .help = "Relay the x-incipit-* headers of workers to clients, which reveal the load and the "
             "free KV blocks of the answering worker."},
    {"forward-authorization", OPT_BOOL, FIELD(forward_authorization), .group = "Limits",
     .help = "Forward the client's Authorization header to workers."},
    {"strip-client-noise", OPT_ENUM, LIVE(strip_client_noise), .def = "messages",
     .names = noise_names, .group = "Limits",
     .help = "Where to cut text from the system prompt that a client writes differently in each "
             "request "
             "and that defeats prefix caches: x-anthropic-billing-header of Claude Code, and "
             "<total_tokens>. messages: from the bodies of /v1/messages. all: also from those of "
             "/v1/chat/completions and others. The router ignores the text in prefix hashes in "
             "both cases. off: never, not even in hashes."},

    {"log-level", OPT_ENUM, LIVE(log_level), .def = "info", .names = log_level_names,
     .name_aliases = level_aliases, .group = "Logging",
     .help = "Lowest level of the lines in the log."},
    {"log-format", OPT_ENUM, FIELD(log_format), .def = "text", .names = log_format_names,
     .group = "Logging",
     .help = "Format of the log: text or json. Lines are key=value, or one JSON object each."},
    {"log-requests", OPT_U32, LIVE(log_requests), .def = "1", .max = "1000000000",
     .group = "Logging", .metavar = "N",
     .help = "One in N requests has a line in the log, besides each request that fails with a 5xx. "
             "1: all requests, within --log-requests-rate; 0: none."},
    {"log-requests-rate", OPT_U32, LIVE(log_requests_rate), .def = "1000", .min = "1",
     .max = "1000000", .group = "Logging", .metavar = "N",
     .help = "Most lines per second about requests in the log. Requests above this rate are "
             "counted, and the count is on the next line (skipped=). Raise to log every request of "
             "a busy router; a line has about 400 bytes."},
    {"decision-log", OPT_STR, FIELD(decision_log), .group = "Logging", .metavar = "FILE",
     .help = "File to which one JSON line per routed request is appended: the hashes of its prompt "
             "blocks, the cost of each candidate worker and the outcome, never the prompt. SIGHUP "
             "reopens the file."},
    {"decision-log-secret-file", OPT_STR, FIELD(decision_log_secret_file), .group = "Logging",
     .metavar = "FILE", .is_hidden = true,
     .help = "File with at least 16 bytes that key the hashes in the decision log. Default: random "
             "at each start, so that the hashes of two runs cannot be compared. Comparing needs an "
             "equal --prefix-hash-seed too."},
    {"log-rate", OPT_U32, LIVE(log_rate), .def = "50", .min = "1", .max = "1000000",
     .group = "Logging", .metavar = "N", .is_hidden = true,
     .help = "Most lines per second of each kind of event in the log. Lines above this rate are "
             "counted, and the count is on the next line (suppressed=). Lines about requests have "
             "--log-requests-rate; changes over the admin port (admin_change) are always written."},
};

#define ROUTER_TABLES                                                                              \
    .defs = rows, .n_defs = ARRAY_LEN(rows), .target_bytes = sizeof(struct router_options),        \
    .compat = router_compat_flags, .others = "sglang-router, smg and production-stack"

const struct option_program router_program = {
    .name = "incipit-router",
    .summary = "Routes requests for language models to the worker that already holds most of "
               "their opening in its KV cache, and carries the answers back.",
    .usage = "(--worker-urls URL... | --launch N --model DIR | --service-discovery k8s) [options]\n"
             "       incipit-router healthcheck [options]\n"
             "       incipit-router drain [options]",
    .most_used = "worker-urls,worker-file,launch,model,service-discovery,k8s-selector,host,port,"
                 "admin-port,tls-cert-path,tls-key-path,api-keys-file,policy,queue-size,"
                 "queue-timeout,max-retries,request-timeout,drain-timeout,state-dir,log-format",
    .examples = router_examples,
    ROUTER_TABLES,
};

const struct option_program router_drain_program = {
    .name = "incipit-router drain",
    .summary = "Drains the router that runs on this machine with these options, environment and "
               "file, as SIGTERM does, and waits until the router ends. Needs no process id.",
    .usage = "[options of incipit-router]",
    .most_used = "admin-host,admin-port",
    ROUTER_TABLES,
};

const struct option_program router_healthcheck_program = {
    .name = "incipit-router healthcheck",
    .summary = "Requests /livez of the router that runs on this machine with these options, "
               "environment and file. Exits with 0 when the router is live, else with 1.",
    .usage = "[options of incipit-router]",
    .most_used = "admin-host,admin-port",
    ROUTER_TABLES,
};

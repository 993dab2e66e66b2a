/* router/router_options.c - the table of the router's options. Names of sglang-router and smg where
 * they have one; ours where they do not. */
#include "router/router_options.h"

#include "router/registry.h"

#define FIELD(member) OPTION_FIELD(struct router_options, member)

static const char *const policy_names[] = {"prefix", "least_load", "round_robin", NULL};

static const struct option_def rows[] = {
    {"host", OPT_STR, FIELD(host), .def = "127.0.0.1", .group = "Listening",
     .help = "Address for clients. 0.0.0.0 lets other machines in."},
    {"port", OPT_U32, FIELD(port), .def = "30000", .max = "65535", .group = "Listening",
     .help = "Port for clients. 0 lets the system choose."},
    {"admin-host", OPT_STR, FIELD(admin_host), .def = "127.0.0.1", .aliases = "prometheus-host",
     .group = "Listening", .help = "Address of the admin port: loopback only, for now."},
    {"admin-port", OPT_U32, FIELD(admin_port), .def = "29000", .max = "65535",
     .aliases = "prometheus-port", .group = "Listening",
     .help = "Port for /metrics, /workers, /livez and /readyz. 0 lets the system choose."},
    {"threads", OPT_U32, FIELD(n_threads), .def = "0", .max = "256", .group = "Listening",
     .help = "Event loops. 0 takes one per core, at most 8; more carry more requests per second."},

    {"worker-urls", OPT_LIST, FIELD(worker_urls), .takes_many = true, .group = "Workers",
     .metavar = "URL", .help = "Workers to route to: http://host:port, several."},
    {"max-workers", OPT_U32, FIELD(max_workers), .def = "256", .min = "1", .max = "1024",
     .group = "Workers", .help = "Most workers at once. Raising it costs memory per model."},
    {"launch", OPT_U32, FIELD(launch), .def = "0", .max = "256", .aliases = "dp-size",
     .group = "Workers",
     .help = "Start this many workers here, restart them when they die, end them with the router."},
    {"model", OPT_STR, FIELD(model), .aliases = "model-path", .group = "Workers", .metavar = "DIR",
     .help = "Model folder for launched workers."},
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

    {"policy", OPT_ENUM, FIELD(policy), .def = "prefix", .names = policy_names, .group = "Routing",
     .help = "How a worker is chosen; all but 'prefix' are there to compare with."},
    {"beta", OPT_F64, FIELD(beta), .def = "2", .min = "0", .max = "100", .group = "Routing",
     .help = "What a second of new prefill costs those who come after. 0 is selfish; 8 trades "
             "latency for throughput."},
    {"kappa", OPT_F64, FIELD(kappa), .def = "0.05", .min = "0", .max = "10", .group = "Routing",
     .help = "What it costs each request that is decoding. Higher spreads long prompts more."},
    {"delta", OPT_F64, FIELD(delta_s), .def = "0.01", .min = "0", .max = "10", .group = "Routing",
     .metavar = "SECONDS",
     .help = "What one more request in a worker's batch costs. Higher evens out counts."},
    {"max-load-factor", OPT_F64, FIELD(max_load_factor), .def = "2", .max = "1000",
     .group = "Routing",
     .help = "A worker with more than this many times the mean requests in flight, plus the floor, "
             "is no candidate. Lower evens out load and costs cache hits; 0 turns it off."},
    {"load-floor", OPT_F64, FIELD(load_floor), .def = "16", .min = "0", .max = "100000",
     .group = "Routing", .help = "Requests in flight that never count as too many."},
    {"prefix-block-bytes", OPT_U32, FIELD(prefix_block_bytes), .def = "128", .min = "16",
     .max = "65536", .group = "Routing",
     .help = "Prompt bytes hashed into one prefix block. Smaller matches finer, costs memory."},
    {"max-prefix-bytes", OPT_BYTES, FIELD(max_prefix_bytes), .def = "256KiB", .min = "128",
     .max = "32MiB", .group = "Routing",
     .help = "Prompt bytes that are hashed; prompts that differ only beyond are not told apart."},
    {"max-index-bytes", OPT_BYTES, FIELD(max_index_bytes), .def = "64MiB", .min = "1MiB",
     .group = "Routing", .help = "Memory of the prefix index, per model, taken at start."},
    {"prefix-hash-seed", OPT_STR, FIELD(prefix_hash_seed), .is_secret = true, .group = "Routing",
     .help = "Secret behind the prefix hashes: random by default; give replicas the same."},

    {"probe-interval", OPT_MS, FIELD(probe_interval_ms), .def = "500ms", .min = "10ms", .max = "1h",
     .aliases = "health-check-interval-secs", .group = "Failures",
     .help = "Time between health probes of one worker. Shorter notices sooner."},
    {"probe-timeout", OPT_MS, FIELD(probe_timeout_ms), .def = "1s", .min = "10ms", .max = "1m",
     .aliases = "health-check-timeout-secs", .group = "Failures",
     .help = "A probe without an answer after this long is a miss."},
    {"probe-misses", OPT_U32, FIELD(probe_misses), .def = "2", .min = "1", .max = "100",
     .aliases = "health-failure-threshold", .group = "Failures",
     .help = "Misses in a row that take a worker out."},
    {"probe-hits", OPT_U32, FIELD(probe_hits), .def = "2", .min = "1", .max = "100",
     .aliases = "health-success-threshold", .group = "Failures",
     .help = "Answers in a row that bring it back."},
    {"probe-path", OPT_STR, FIELD(probe_path), .def = "/health", .aliases = "health-check-endpoint",
     .group = "Failures", .help = "What is probed."},
    {"max-retries", OPT_U32, FIELD(max_retries), .def = "2", .max = "7",
     .aliases = "retry-max-retries", .group = "Failures",
     .help = "Other workers tried when one fails before it has answered."},
    {"connect-timeout", OPT_MS, FIELD(connect_timeout_ms), .def = "250ms", .min = "1ms",
     .max = "1m", .group = "Failures", .help = "Time a worker has to accept a connection."},
    {"request-timeout", OPT_MS, FIELD(request_timeout_ms), .def = "30m", .min = "10ms",
     .max = "24h", .aliases = "request-timeout-secs", .group = "Failures",
     .help = "Longest a request may take, answer included."},

    {"api-keys-file", OPT_STR, FIELD(api_keys_file), .group = "Access", .metavar = "FILE",
     .help = "API keys that clients must send, one a line: KEY [tenant=NAME] [rps=N] "
             "[tokens_per_s=N] [max_concurrent=N] [priority=N]. Read again on SIGHUP."},
    {"api-key", OPT_STR, FIELD(api_key), .is_secret = true, .group = "Access",
     .help = "One more key, without limits."},

    {"max-body-bytes", OPT_BYTES, FIELD(max_body_bytes), .def = "32MiB", .min = "1KiB",
     .max = "1GiB", .aliases = "max-payload-size", .group = "Limits",
     .help = "Largest request body; beyond it 413."},
    {"max-connections", OPT_U32, FIELD(max_connections), .def = "16384", .min = "1",
     .max = "1000000", .group = "Limits", .help = "Client connections per event loop."},
    {"head-timeout", OPT_MS, FIELD(head_timeout_ms), .def = "10s", .min = "10ms", .max = "10m",
     .group = "Limits", .help = "Time a client has to send a request's head."},
    {"idle-timeout", OPT_MS, FIELD(idle_timeout_ms), .def = "75s", .min = "10ms", .max = "1h",
     .group = "Limits", .help = "Idle client connections are closed after it."},
    {"drain-timeout", OPT_MS, FIELD(drain_timeout_ms), .def = "120s", .max = "1h",
     .aliases = "shutdown-grace-period-secs", .group = "Limits",
     .help = "On SIGTERM: how long open requests may still take."},
    {"expose-worker-headers", OPT_BOOL, FIELD(expose_worker_headers), .group = "Limits",
     .help = "Relay the x-incipit-* headers of workers to clients."},
    {"forward-authorization", OPT_BOOL, FIELD(forward_authorization), .group = "Limits",
     .help = "Send the client's Authorization header on to workers."},

    {"log-level", OPT_ENUM, FIELD(log_level), .def = "info", .names = log_level_names,
     .group = "Logging", .help = "Least important lines that are written."},
    {"log-format", OPT_ENUM, FIELD(log_format), .def = "text", .names = log_format_names,
     .group = "Logging", .help = "Lines of key=value, or one JSON object a line."},
};

const struct option_program router_program = {
    .name = "incipit-router",
    .summary = "Routes requests for language models to the worker that already holds most of "
               "their opening in its KV cache, and carries the answers back.",
    .usage = "(--worker-urls URL... | --launch N --model DIR) [options]",
    .defs = rows,
    .n_defs = ARRAY_LEN(rows),
    .target_bytes = sizeof(struct router_options),
};

const char *router_policy_name(const struct router_options *o) {
    return policy_names[o->policy];
}

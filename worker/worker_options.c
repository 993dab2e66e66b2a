/* worker/worker_options.c - the table of the worker's options, under the names of vLLM (and, as
 * aliases, SGLang's) where they have one. */
#include "worker/worker_options.h"

#include "worker/engine/backend_load.h"

#define FIELD(member) OPTION_FIELD(struct worker_options, member)
/* Rows that SIGHUP changes while the worker runs: what they change is in worker.c,
 * apply_options. */
#define LIVE(member) FIELD(member), .is_live = true

static const char *const backend_names[] = {"auto", "cpu", "ref", "sim", "cuda", NULL};
static const char *const dtype_names[] = {"auto", "bfloat16", "float16", "float32",
                                          "half", "float",    NULL};
static const char *const hash_names[] = {"xxh3_128", "sha256_cbor", "xxhash_cbor",
                                         "sha256",   "xxhash",      NULL};
static const char *const order_names[] = {"fresh-first", "classic", NULL};
static const char *const explain_names[] = {"off", "own", "position", "full", NULL};
static const char *const preemption_names[] = {"auto", "recompute", "swap", NULL};
static const char *const policy_names[] = {"fcfs", "priority", NULL};

#define BACKEND_LIBRARY_ROW                                                                        \
    {                                                                                              \
        "backend-library", OPT_STR, FIELD(backend_library),                                        \
            .group = "Device", .metavar = "FILE",                                                  \
            .help = "Shared object of the cuda backend. Default: " BACKEND_OBJECT                  \
                    " beside the program, "                                                        \
                    "in ../lib/incipit from there, or where the system looks for libraries."       \
    }

/* Words of vLLM and SGLang for what is not set. */
static const char *const length_words[] = {"-1", "0", "auto", "0", "none", "0", NULL};
static const char *const unset_words[] = {"-1", "0", "none", "0", NULL};
static const char *const logprobs_words[] = {"-1", "20", NULL};
static const char *const seed_words[] = {
    "random", "18446744073709551615", "none", "18446744073709551615",
    "-1",     "18446744073709551615", NULL};
static const char *const level_words[] = {"warning", "warn",  "critical", "error", "trace",
                                          "debug",   "fatal", "error",    NULL};

#define N_BATCH_ROWS 2 /* the first ones, for `batch` alone */

static const struct option_def rows[] = {
    {"input-file", OPT_STR, FIELD(input_file), .group = "Batch", .metavar = "FILE",
     .help = "File of requests, one JSON object a line: {\"custom_id\", \"method\", \"url\", "
             "\"body\"}. All requests are checked before the first one runs."},
    {"output-file", OPT_STR, FIELD(output_file), .group = "Batch", .metavar = "FILE",
     .help = "File of answers, one JSON object a line, in the order in which they end. Requests "
             "with a line in the file are skipped: an ended run continues with the same command."},

    {"model", OPT_STR, FIELD(model), .aliases = "model-path", .is_positional = true,
     .group = "Model", .metavar = "MODEL",
     .help = "Model to serve: a folder, or org/name. A folder has config.json, tokenizer.json and "
             "*.safetensors. The second form is a model of the Hugging Face hub, taken from the "
             "local cache, or downloaded (HF_TOKEN, HF_ENDPOINT, HF_HOME and HF_HUB_CACHE are "
             "read). --backend sim needs no model."},
    {"revision", OPT_STR, FIELD(revision), .def = "main", .group = "Model",
     .help = "Branch, tag or commit of a model on the hub."},
    {"download-dir", OPT_STR, FIELD(download_dir), .group = "Model", .metavar = "DIR",
     .help = "Folder for models of the hub. Default: ~/.cache/huggingface/hub, the cache that "
             "other tools use too."},
    {"offline", OPT_BOOL, FIELD(offline), .group = "Model",
     .help = "Download nothing: a model of the hub must be in the cache. HF_HUB_OFFLINE=1 sets "
             "this option too."},
    {"served-model-name", OPT_LIST, FIELD(served_model_names), .takes_many = true, .group = "Model",
     .metavar = "NAME",
     .help = "Model name for clients. Several names are all accepted, and answers carry the first. "
             "Default: the last part of the model's path."},
    {"tokenizer", OPT_STR, FIELD(tokenizer), .aliases = "tokenizer-path", .group = "Model",
     .metavar = "MODEL",
     .help = "Folder, or org/name, of tokenizer and chat template. Default: the model's."},
    {"max-model-len", OPT_U32, FIELD(max_model_len), .def = "0", .aliases = "context-length",
     .name_aliases = length_words, .is_human = true, .group = "Model",
     .help = "Longest prompt and answer together, in tokens. 0 takes the model's limit; lower "
             "needs less memory. 32k is 32000, 32K is 32768."},
    {"chat-template", OPT_STR, FIELD(chat_template), .group = "Model", .metavar = "FILE",
     .help = "Jinja file of the chat template. Or the template itself in one line. Default: the "
             "model's."},
    {"default-chat-template-kwargs", OPT_STR, FIELD(chat_template_kwargs), .group = "Model",
     .metavar = "JSON",
     .help = "Variables for the chat template, as {\"enable_thinking\": false}. The "
             "chat_template_kwargs of a request win."},
    {"generation-config", OPT_STR, FIELD(generation_config), .def = "auto", .group = "Model",
     .metavar = "DIR",
     .help = "Sampling defaults for requests that set none: auto takes the model's "
             "generation_config.json, vllm takes no file, a folder is read for "
             "generation_config.json."},
    {"override-generation-config", OPT_STR, FIELD(generation_overrides),
     .aliases = "preferred-sampling-params", .group = "Model", .metavar = "JSON",
     .help = "Sampling defaults that win over --generation-config: temperature, top_p, top_k, "
             "min_p and repetition_penalty, as {\"temperature\": 0.6}."},
    {"seed", OPT_U64, FIELD(seed), .def = "random", .max = "18446744073709551614",
     .name_aliases = seed_words, .aliases = "random-seed", .group = "Model",
     .help = "Start of the seeds of requests that set none. With a number, equal requests in equal "
             "order get equal samples after each start."},

    {"host", OPT_STR, FIELD(host), .def = "127.0.0.1", .group = "Listening",
     .help = "Address to listen on. 0.0.0.0 lets other machines in."},
    {"port", OPT_U32, FIELD(port), .def = "31000", .max = "65535", .group = "Listening",
     .help = "Port to listen on. 0 lets the system choose."},
    {"trust-router", OPT_BOOL, FIELD(trust_router), .group = "Listening",
     .help = "Accept x-incipit-salt in requests: only requests with equal salts share cached "
             "blocks. Only for workers that routers alone can reach."},
    {"request-events-buffer-bytes", OPT_BYTES, FIELD(request_events_bytes), .def = "16MiB",
     .max = "16GiB", .group = "Listening",
     .help = "Memory for the latest request events, which routers follow at GET /request_events to "
             "act as one. More lets a restarted router recover more; each request takes 120 bytes "
             "and 6 for each block of its prompt. 0 turns request events off."},
    {"request-events-subscribers", OPT_U32, FIELD(request_events_subscribers), .def = "64",
     .min = "1", .max = "4096", .group = "Listening", .is_hidden = true,
     .help = "Most streams of request events at once, one for each router; the excess is answered "
             "503. Higher lets more routers in, each of which receives every event."},
    {"api-key", OPT_LIST, FIELD(api_keys), .is_secret = true, .is_shown = true, .is_verbatim = true,
     .takes_many = true, .env = "VLLM_API_KEY", .group = "Listening", .metavar = "KEY",
     .help = "API keys, one of which a request must send as Authorization: Bearer KEY. Other "
             "requests are answered 401. Health, /metrics, /version, /load and /server_info stay "
             "open. Prefer the environment or --api-key-file, which ps does not show."},
    {"api-key-file", OPT_STR, FIELD(api_key_file), .group = "Listening", .metavar = "FILE",
     .help = "File of API keys, one a line. # begins a comment. A request must send one of the "
             "keys, as for --api-key. Reloaded on SIGHUP."},
    {"root-path", OPT_STR, FIELD(root_path), .aliases = "fastapi-root-path", .group = "Listening",
     .metavar = "PATH",
     .help = "Beginning of paths that is ignored, for a proxy that does not remove PATH: with "
             "/llm, /llm/v1/models is answered too."},
    {"ssl-certfile", OPT_STR, FIELD(ssl_certfile), .aliases = "tls-cert-path", .group = "Listening",
     .metavar = "FILE",
     .help = "PEM certificate and chain: clients use https. Reloaded on SIGHUP."},
    {"ssl-keyfile", OPT_STR, FIELD(ssl_keyfile), .aliases = "tls-key-path", .group = "Listening",
     .metavar = "FILE",
     .help = "PEM key of --ssl-certfile, without a passphrase. Reloaded on SIGHUP."},
    {"ssl-ca-certs", OPT_STR, FIELD(ssl_ca_certs), .group = "Listening", .metavar = "PATH",
     .help = "PEM authorities of client certificates. Only clients with a certificate of one of "
             "the authorities are accepted."},
    {"max-body-bytes", OPT_BYTES, LIVE(max_body_bytes), .def = "32MiB", .min = "1KiB",
     .max = "1GiB", .group = "Listening",
     .help = "Largest request body; larger ones are answered 413. Higher admits longer prompts and "
             "needs more memory."},
    {"max-body-memory", OPT_BYTES, LIVE(max_body_memory), .def = "0", .max = "1TiB",
     .group = "Listening", .metavar = "BYTES",
     .help =
         "Memory for the bodies of all open requests together. A quarter is for bodies up to 64 "
         "KiB; without --trust-router, long bodies of one address, or one key, get half; a body "
         "without room waits unread for 10 s and is then refused with 503. Higher takes more long "
         "bodies at once. 0: a quarter of the memory that this process may use, at most 1 GiB."},
    {"max-connections", OPT_U32, LIVE(max_connections), .def = "16384", .min = "1",
     .max = "1000000", .group = "Listening",
     .help = "Most connections at once, fewer where descriptors are short (ulimit -n). At the "
             "limit idle connections are closed for new ones, of the address with the most first; "
             "a connection with a request in flight is never closed."},
    {"tokenizer-threads", OPT_U32, FIELD(tokenizer_threads), .def = "0", .max = "16",
     .group = "Listening",
     .help = "Threads that tokenize texts over 4 KiB. 0 takes half of the processors, at most 4. "
             "Texts over 1 MiB run on the first thread alone; more threads keep shorter texts from "
             "waiting behind long ones."},
    {"tokenizer-queue-bytes", OPT_BYTES, FIELD(tokenizer_queue_bytes), .def = "256MiB",
     .min = "1KiB", .max = "1TiB", .group = "Listening", .is_hidden = true,
     .help = "Bytes of text that may wait for a tokenizer thread; the excess is answered 503. "
             "Higher takes more requests at once and needs more memory."},
    {"drain-timeout", OPT_MS, LIVE(drain_timeout_ms), .def = "300s", .max = "1h",
     .group = "Listening",
     .help = "Time to finish open requests on shutdown. Applies on SIGTERM and POST /admin/drain; "
             "then open requests end with an error."},

    {"backend", OPT_ENUM, FIELD(backend), .def = "auto", .names = backend_names, .group = "Device",
     .help = "What computes: cuda, cpu, ref (slow reference) or sim (simulated). auto takes cuda "
             "where there is a usable GPU, else cpu. sim takes as long as a device and computes "
             "nothing; auto never takes sim."},
    {"device", OPT_STR, FIELD(device), .aliases = "device-id", .group = "Device",
     .metavar = "DEVICE",
     .help = "Device, and so the backend: cpu, cuda, or a GPU. A GPU is cuda:1, 1, or its UUID or "
             "the beginning of the UUID (GPU-...), which stays equal when GPUs are added; "
             "`incipit-worker devices` lists the GPUs. auto leaves the choice to --backend."},
    BACKEND_LIBRARY_ROW,
    {"dtype", OPT_ENUM, FIELD(dtype), .def = "auto", .names = dtype_names, .group = "Device",
     .help = "Type of weights and KV cache. One of auto, bfloat16, float16 (half) and float32 "
             "(float). auto takes the checkpoint's type, so that no weight is rounded; a narrower "
             "type needs less memory and answers faster. A GPU has bfloat16 only."},
    {"async-scheduling", OPT_BOOL, FIELD(async), .def = "true",
     .aliases = "!disable-overlap-schedule", .group = "Device",
     .help = "Schedule a step while the step before runs, on devices that run by themselves (cuda, "
             "sim). Off: the device waits for the host after each step."},
    {"deterministic", OPT_BOOL, FIELD(deterministic), .aliases = "enable-deterministic-inference",
     .group = "Device",
     .help =
         "Make answers on a GPU independent of the batch, to the bit: one plan for each product, "
         "fixed chunks in attention. Slower on a GPU. The cpu backend is always deterministic."},
    {"path", OPT_STR, FIELD(path), .def = "auto", .aliases = "isa", .group = "Device",
     .help = "Instruction path of the cpu backend: auto, avx512bf16, avx512, avx2, neon or plain. "
             "Answers are bit-identical within one path."},
    {"threads", OPT_U32, FIELD(n_threads), .def = "0", .max = "1024", .group = "Device",
     .help = "CPU threads that compute. 0 takes one per core."},
    {"tensor-parallel-size", OPT_U32, FIELD(tp_size), .def = "1", .min = "1", .max = "16",
     .aliases = "tp,tp-size", .group = "Device",
     .help = "Devices to divide the model over. They begin at --device, or are the devices that "
             "--device lists with commas. More hold larger models, and answer faster where the "
             "devices are well connected. On a CPU the answer is equal to the bit, and slower."},
    {"sim-speed", OPT_F64, FIELD(sim_speed), .def = "1", .min = "0.001", .max = "1000000",
     .group = "Device", .help = "Simulated seconds per real second of --backend sim."},
    {"sim-profile", OPT_STR, FIELD(sim_profile), .group = "Device",
     .help = "Device that --backend sim imitates. An unknown name lists the known ones."},

    {"block-size", OPT_U32, FIELD(block_size), .def = "16", .min = "1", .max = "128",
     .is_clamped = true, .aliases = "page-size", .group = "Cache",
     .help = "Tokens per KV block. Smaller matches prefixes finer and needs more bookkeeping."},
    {"num-gpu-blocks-override", OPT_U32, FIELD(n_blocks), .def = "0", .aliases = "num-blocks",
     .group = "Cache",
     .help = "KV blocks to allocate. 0: by --kv-cache-memory-bytes, or by the free memory."},
    {"kv-cache-memory-bytes", OPT_BYTES, FIELD(kv_bytes), .def = "0", .group = "Cache",
     .help = "Memory of the KV cache. 0: by --gpu-memory-utilization on a GPU; on a CPU 4 GiB, or "
             "a quarter of the free memory, whichever is less."},
    {"gpu-memory-utilization", OPT_F64, FIELD(memory_fraction), .def = "0", .min = "0",
     .max = "0.98", .is_clamped = true, .aliases = "mem-fraction-static,memory-fraction",
     .group = "Cache",
     .help = "Share of memory for weights and KV cache. On a GPU the share of all memory, on a CPU "
             "of the free memory. Higher keeps more prefixes. 0: 0.9 on a GPU, "
             "--kv-cache-memory-bytes on a CPU."},
    {"enable-prefix-caching", OPT_BOOL, FIELD(prefix_caching), .def = "true",
     .aliases = "!disable-radix-cache", .group = "Cache",
     .help = "Reuse the KV blocks of equal prefixes. Off: every prompt is computed whole."},
    {"prefix-caching-hash-algo", OPT_ENUM, FIELD(hash_algo), .def = "xxh3_128", .names = hash_names,
     .group = "Cache",
     .help = "Hash of the KV blocks. xxh3_128 is keyed and verified against the tokens; "
             "sha256_cbor and xxhash_cbor are equal to the hashes of other engines."},
    {"hash-seed", OPT_STR, FIELD(hash_seed), .is_secret = true, .group = "Cache",
     .help = "Text behind the root of the hash chain. Default: random, or vLLM's for sha256_cbor."},
    {"hash-block-size", OPT_U32, FIELD(hash_block_size), .def = "0", .max = "128", .group = "Cache",
     .is_hidden = true,
     .help = "Tokens per link of the hash chain, a divisor of --block-size; the last link is the "
             "hash of a block. Lower lets an index of smaller blocks recognise the blocks of this "
             "worker, and hashes more often. 0: --block-size."},
    {"block-dedup", OPT_BOOL, FIELD(dedup), .group = "Cache", .is_hidden = true,
     .help = "Switch a sequence that fills an already cached block to the cached block."},
    {"free-order", OPT_ENUM, FIELD(free_order), .def = "fresh-first", .names = order_names,
     .group = "Cache", .is_hidden = true,
     .help = "Order in which free blocks are reused: fresh-first takes blocks without content "
             "before evicting; classic is the plain queue."},
    {"kv-offload-bytes", OPT_BYTES, FIELD(kv_offload_bytes), .def = "0",
     .aliases = "kv-offloading-size", .group = "Cache",
     .help =
         "Host memory for evicted KV blocks. They return when a request needs their prefix. More "
         "keeps more prefixes; 0: evicted blocks are lost. A bare number up to 1024 is GiB."},
    {"swap-space", OPT_BYTES, FIELD(swap_bytes), .def = "0", .group = "Cache",
     .help = "Host memory for the KV blocks of preempted sequences, which are otherwise computed "
             "again. Shared with --kv-offload-bytes. A bare number up to 1024 is GiB."},
    {"kv-events", OPT_BOOL, FIELD(kv_events), .group = "Cache",
     .help = "Publish which blocks are cached: GET /kv_events streams blocks stored and removed, "
             "with tokens and salts. Only for workers that routers and indexers alone can reach."},
    {"kv-events-config", OPT_STR, FIELD(kv_events_config), .group = "Cache", .metavar = "JSON",
     .help = "Settings of KV events as vLLM writes them: {\"enable_kv_cache_events\": true, "
             "\"buffer_steps\": 10000}."},
    {"kv-events-buffer-steps", OPT_U32, FIELD(kv_event_batches), .def = "10000", .min = "1",
     .max = "10000000", .group = "Cache", .is_hidden = true,
     .help = "Batches of KV events kept for replay. More lets a subscriber be away longer."},
    {"kv-events-buffer-bytes", OPT_BYTES, FIELD(kv_event_bytes), .def = "16MiB", .min = "64KiB",
     .max = "16GiB", .group = "Cache", .is_hidden = true,
     .help = "Most memory of the batches kept by --kv-events-buffer-steps."},
    {"kv-events-subscribers", OPT_U32, LIVE(kv_event_subscribers), .def = "16", .min = "1",
     .max = "1024", .group = "Cache", .is_hidden = true,
     .help = "Most streams of KV events at once; the excess is answered 429."},
    {"kv-events-int-hashes", OPT_BOOL, FIELD(kv_event_number_hashes), .group = "Cache",
     .is_hidden = true,
     .help = "Write hashes in KV events as numbers, their last 8 bytes, as older indexers need."},
    {"cache-explain", OPT_ENUM, LIVE(cache_explain), .def = "own", .names = explain_names,
     .group = "Cache",
     .help = "Which requests may ask why their prompt was not cached. off: none. own: requests "
             "with a cache_salt or a router's salt, about blocks under that salt. position: "
             "requests without a salt too, which reveals others' unsalted prompts token by token: "
             "where the nearest one differs. full: also the differing token."},
    {"watermark", OPT_F64, FIELD(watermark), .def = "0", .min = "0", .max = "0.5", .group = "Cache",
     .is_hidden = true,
     .help = "Share of the KV blocks kept free when a request is admitted beside others. Higher "
             "preempts less and runs fewer requests at once."},
    {"kv-cache-metrics", OPT_BOOL, FIELD(kv_cache_metrics), .group = "Cache",
     .help =
         "Measure how long KV blocks live, lie idle, and wait for their next hit, for /metrics."},
    {"kv-cache-metrics-sample", OPT_F64, FIELD(kv_cache_metrics_sample), .def = "0.01",
     .min = "0.000001", .max = "1", .group = "Cache", .is_hidden = true,
     .help = "Share of the KV blocks that --kv-cache-metrics measures. Higher is more exact and "
             "costs time."},

    {"max-num-seqs", OPT_U32, FIELD(max_num_seqs), .def = "0", .max = "4096", .is_clamped = true,
     .name_aliases = unset_words, .aliases = "max-running-requests", .group = "Scheduling",
     .help = "Most sequences in one batch. Higher serves more at once, each more slowly. 0: 256 on "
             "a GPU, 64 elsewhere; at most --max-num-batched-tokens."},
    {"max-num-batched-tokens", OPT_U32, FIELD(max_num_batched_tokens), .def = "0", .max = "131072",
     .is_clamped = true, .is_human = true, .name_aliases = unset_words,
     .aliases = "chunked-prefill-size", .group = "Scheduling",
     .help = "Most tokens computed in one step. Higher shortens prefill and lengthens the pauses "
             "of other requests. 0: 8192 on a GPU, 512 elsewhere; at least --max-num-seqs."},
    {"enable-chunked-prefill", OPT_BOOL, FIELD(chunked_prefill), .def = "true",
     .group = "Scheduling",
     .help = "Compute a prompt over several steps. Off: a prompt waits for a step with room for "
             "all of it."},
    {"long-prefill-token-threshold", OPT_U32, FIELD(long_prefill_token_threshold), .def = "0",
     .group = "Scheduling",
     .help = "Most prompt tokens of one request in a step. Lower lets short prompts pass beside "
             "long ones. 0: no limit."},
    {"scheduler-reserve-full-isl", OPT_BOOL, FIELD(reserve_full_isl), .def = "true",
     .group = "Scheduling", .is_hidden = true,
     .help = "Admit a request only when there are blocks for its whole prompt. Off: requests are "
             "admitted sooner, with more preemptions."},
    {"scheduling-policy", OPT_ENUM, FIELD(policy), .def = "fcfs", .names = policy_names,
     .group = "Scheduling",
     .help = "Order of waiting requests: fcfs by arrival, priority by the request's `priority`, "
             "lower first."},
    {"preemption-mode", OPT_ENUM, FIELD(preemption), .def = "auto", .names = preemption_names,
     .group = "Scheduling",
     .help = "What happens when KV blocks run out: recompute drops the blocks of the latest "
             "request and computes the uncached ones again; swap keeps them in --swap-space, and "
             "admits no new request until all are back; auto swaps samples and beams that share "
             "blocks, and recomputes others."},
    {"max-waiting", OPT_U32, LIVE(max_waiting), .def = "1024", .min = "1", .max = "1000000",
     .group = "Scheduling",
     .help = "Requests that may wait. The excess is answered 429. Lower lets a router send the "
             "excess to other workers sooner."},
    {"max-logprobs", OPT_U32, FIELD(max_logprobs), .def = "20", .max = "20", .is_clamped = true,
     .name_aliases = logprobs_words, .group = "Scheduling",
     .help = "Most alternatives per token that a request may ask for."},
    {"return-tokens-as-token-ids", OPT_BOOL, LIVE(tokens_as_ids), .group = "Scheduling",
     .help = "Write tokens in logprobs as token_id:17 in every answer, without a request for it."},

    {"log-level", OPT_ENUM, LIVE(log_level), .def = "info", .names = log_level_names,
     .name_aliases = level_words, .group = "Logging",
     .help = "Lowest level of the lines in the log."},
    {"log-format", OPT_ENUM, FIELD(log_format), .def = "text", .names = log_format_names,
     .group = "Logging",
     .help = "Format of the log: text or json. Lines are key=value, or one JSON object each."},
    {"log-interval", OPT_MS, FIELD(log_interval_ms), .def = "10s", .max = "1h", .group = "Logging",
     .help = "Time between two lines of statistics while requests run. 0: none."},
};

#define WORKER_TABLES                                                                              \
    .target_bytes = sizeof(struct worker_options), .compat = worker_compat_flags,                  \
    .others = "vllm serve and sglang.launch_server", .takes_beginnings = true
#define SERVING_ROWS .defs = rows + N_BATCH_ROWS, .n_defs = ARRAY_LEN(rows) - N_BATCH_ROWS
#define MOST_USED                                                                                  \
    "model,served-model-name,max-model-len,device,dtype,tensor-parallel-size,"                     \
    "gpu-memory-utilization,kv-cache-memory-bytes,kv-offload-bytes,max-num-seqs,"                  \
    "max-num-batched-tokens"

const struct option_program worker_program = {
    .name = "incipit-worker",
    .summary = "Serves one language model from one device, behind an OpenAI-compatible API, and "
               "computes no prompt prefix twice.",
    .usage = "[serve] MODEL [options]\n"
             "       incipit-worker batch MODEL --input-file FILE --output-file FILE [options]\n"
             "       incipit-worker inspect MODEL [options]\n"
             "       incipit-worker devices [--json]\n"
             "       incipit-worker healthcheck [options]\n"
             "       incipit-worker drain [options]",
    .most_used = MOST_USED ",host,port,api-key-file,ssl-certfile,ssl-keyfile,chat-template,"
                           "max-waiting,drain-timeout,log-format",
    .examples = worker_examples,
    SERVING_ROWS,
    WORKER_TABLES,
};

const struct option_program worker_batch_program = {
    .name = "incipit-worker batch",
    .summary = "Answers a file of requests with one language model, then ends. An interrupted run "
               "continues with the same command.",
    .usage = "MODEL --input-file FILE --output-file FILE [options]",
    .most_used = "input-file,output-file," MOST_USED,
    .defs = rows,
    .n_defs = ARRAY_LEN(rows),
    WORKER_TABLES,
};

const struct option_program worker_inspect_program = {
    .name = "incipit-worker inspect",
    .summary = "Prints what a model folder holds and the memory the model needs, without loading "
               "the model.",
    .usage = "MODEL [options]",
    .most_used = MOST_USED,
    SERVING_ROWS,
    WORKER_TABLES,
};

static const struct option_def device_rows[] = {
    BACKEND_LIBRARY_ROW,
    {"json", OPT_BOOL, FIELD(json), .group = "Device",
     .help = "Print one JSON object, for programs."},
};

const struct option_program worker_devices_program = {
    .name = "incipit-worker devices",
    .summary =
        "Lists the GPUs that a worker could use here. Without a GPU it prints the reason and "
        "exits with 2.",
    .usage = "[--json]",
    .defs = device_rows,
    .n_defs = ARRAY_LEN(device_rows),
    .target_bytes = sizeof(struct worker_options),
};

const struct option_program worker_healthcheck_program = {
    .name = "incipit-worker healthcheck",
    .summary = "Requests /livez of the worker that runs on this machine with these options, "
               "environment and file. Exits with 0 when the worker is live, else with 1.",
    .usage = "[options of incipit-worker]",
    .most_used = "host,port",
    SERVING_ROWS,
    WORKER_TABLES,
};

const struct option_program worker_drain_program = {
    .name = "incipit-worker drain",
    .summary = "Drains the worker that runs on this machine with these options, environment and "
               "file: POST /admin/drain. The worker finishes its requests, accepts no more, and "
               "ends; this command does not wait.",
    .usage = "[options of incipit-worker]",
    .most_used = "host,port",
    SERVING_ROWS,
    WORKER_TABLES,
};

const char *worker_backend_name(const struct worker_options *o) {
    return backend_names[o->backend];
}

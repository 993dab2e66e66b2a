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
static const char *const kv_dtype_names[] = {"auto", "bfloat16", "float16", "float32",
                                             "fp8",  "int8",     NULL};
static const char *const hash_names[] = {"xxh3_128", "sha256_cbor", "xxhash_cbor",
                                         "sha256",   "xxhash",      NULL};
static const char *const role_names[] = {"both", "prefill", "decode", NULL};
static const char *const order_names[] = {"fresh-first", "classic", "reuse", NULL};
static const char *const explain_names[] = {"off", "own", "position", "full", NULL};
static const char *const preemption_names[] = {"auto", "recompute", "swap", NULL};
static const char *const policy_names[] = {"fcfs", "priority", "srpt", NULL};
/* SGLang's orders: those that look at what is cached; the others, which have none of ours. */
static const char *const policy_words[] = {"lpm", "srpt", "dfs-weight",  "srpt", "random", "fcfs",
                                           "lof", "fcfs", "routing-key", "fcfs", NULL};

#define BACKEND_LIBRARY_ROW                                                                        \
    {                                                                                              \
        "backend-library", OPT_STR, FIELD(backend_library),                                        \
            .group = "Device", .metavar = "FILE",                                                  \
            .help = "Shared object of the cuda backend. Default: " BACKEND_OBJECT                  \
                    " beside the program, "                                                        \
                    "in ../lib/incipit relative to it, or where the system looks for libraries."   \
    }

/* Words of vLLM and SGLang for what is not set. */
static const char *const length_words[] = {"-1", "0", "auto", "0", "none", "0", NULL};
static const char *const kv_dtype_words[] = {"fp8_e4m3",
                                             "fp8",
                                             "fp8_per_token_head",
                                             "fp8",
                                             "int8_per_token_head",
                                             "int8",
                                             "half",
                                             "float16",
                                             "float",
                                             "float32",
                                             NULL};
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
     .help = "File of answers, one JSON object a line, in the order in which the requests end. "
             "Requests that already have a line in the file are skipped: an interrupted run "
             "continues with the same command."},

    {"model", OPT_STR, FIELD(model), .aliases = "model-path", .is_positional = true,
     .group = "Model", .metavar = "MODEL",
     .help = "Model to serve: a folder, or org/name. A folder has config.json, tokenizer.json and "
             "*.safetensors. org/name is a model of the Hugging Face hub, taken from the local "
             "cache, or downloaded (the environment variables HF_TOKEN, HF_ENDPOINT, HF_HOME and "
             "HF_HUB_CACHE are read). --backend sim needs no model."},
    {"revision", OPT_STR, FIELD(revision), .def = "main", .group = "Model",
     .help = "Branch, tag or commit of a model on the Hugging Face hub."},
    {"download-dir", OPT_STR, FIELD(download_dir), .group = "Model", .metavar = "DIR",
     .help = "Folder for models of the Hugging Face hub. Default: ~/.cache/huggingface/hub, the "
             "cache that other tools use too."},
    {"offline", OPT_BOOL, FIELD(offline), .group = "Model",
     .help = "Download nothing: a model of the Hugging Face hub must be in the local cache. The "
             "environment variable HF_HUB_OFFLINE=1 sets this option too."},
    {"served-model-name", OPT_LIST, FIELD(served_model_names), .takes_many = true, .group = "Model",
     .metavar = "NAME",
     .help = "Model name that clients send in requests. Several names are all accepted, and "
             "answers carry the first name. Default: the last part of the model's path."},
    {"tokenizer", OPT_STR, FIELD(tokenizer), .aliases = "tokenizer-path", .group = "Model",
     .metavar = "MODEL",
     .help = "Folder, or org/name, with the tokenizer and the chat template. Default: those of "
             "--model."},
    {"max-model-len", OPT_U32, FIELD(max_model_len), .def = "0", .aliases = "context-length",
     .name_aliases = length_words, .is_human = true, .group = "Model",
     .help = "Longest prompt and answer together, in tokens. 0 takes the model's limit; a lower "
             "limit needs less memory. 32k is 32000, 32K is 32768."},
    {"chat-template", OPT_STR, FIELD(chat_template), .group = "Model", .metavar = "FILE",
     .help = "Jinja file of the chat template, which turns chat messages into a prompt. The "
             "template itself, in one line, is accepted too. Default: the model's template."},
    {"default-chat-template-kwargs", OPT_STR, FIELD(chat_template_kwargs), .group = "Model",
     .metavar = "JSON",
     .help = "Variables for the chat template, as {\"enable_thinking\": false}. The "
             "chat_template_kwargs of a request override these variables."},
    {"tool-call-parser", OPT_STR, FIELD(tool_call_parser), .def = "auto", .group = "Model",
     .metavar = "NAME",
     .help =
         "Format in which the model writes tool calls, as hermes or llama3_json. auto recognises "
         "it from the chat template and the "
         "vocabulary. none: tool calls stay in the text. An unknown name is logged with all names, "
         "and auto is used."},
    {"reasoning-parser", OPT_STR, FIELD(reasoning_parser), .def = "auto", .group = "Model",
     .metavar = "NAME",
     .help =
         "Format in which the model writes its reasoning, as qwen3 or deepseek_r1. auto recognises "
         "it from the chat template and the "
         "vocabulary. none: reasoning stays in the text. An unknown name is logged with all names, "
         "and auto is used."},
    {"keep-reasoning", OPT_BOOL, FIELD(keep_reasoning), .group = "Model",
     .help = "Keep the reasoning of earlier turns in the prompt where the chat template has a "
             "switch for it, so that the next turn finds the whole conversation in the cache. "
             "Many templates drop it, and every user turn then computes the last answer again."},
    {"generation-config", OPT_STR, FIELD(generation_config), .def = "auto", .group = "Model",
     .metavar = "DIR",
     .help = "Source of the default sampling parameters. auto: generation_config.json of the "
             "model; vllm: no file; a folder: generation_config.json in that folder."},
    {"override-generation-config", OPT_STR, FIELD(generation_overrides),
     .aliases = "preferred-sampling-params", .group = "Model", .metavar = "JSON",
     .help = "Default sampling parameters that override --generation-config: temperature, top_p, "
             "top_k, min_p and repetition_penalty, as {\"temperature\": 0.6}."},
    {"seed", OPT_U64, FIELD(seed), .def = "random", .max = "18446744073709551614",
     .name_aliases = seed_words, .aliases = "random-seed", .group = "Model",
     .help = "Base for the sampling seeds of requests that set no seed. With a number, equal "
             "requests in equal order get equal samples after each start of the worker."},

    {"host", OPT_STR, FIELD(host), .def = "127.0.0.1", .group = "Listening",
     .help = "Address to listen on. 0.0.0.0 accepts connections from other machines."},
    {"port", OPT_U32, FIELD(port), .def = "31000", .max = "65535", .group = "Listening",
     .help = "Port to listen on. 0 lets the system choose a free port."},
    {"trust-router", OPT_BOOL, FIELD(trust_router), .group = "Listening",
     .help =
         "Accept the header x-incipit-salt in requests: only requests with equal salts share "
         "cached KV blocks. Use this option only when nothing but routers can reach the worker."},
    {"request-events-buffer-bytes", OPT_BYTES, FIELD(request_events_bytes), .def = "16MiB",
     .max = "16GiB", .group = "Listening",
     .help = "Memory for recent events of requests (accepted, first token, ended), which several "
             "routers read at GET /request_events to know each other's load. More memory lets a "
             "restarted router recover more; each request takes 120 bytes, and 6 for each block of "
             "its prompt. 0 turns request events off."},
    {"request-events-subscribers", OPT_U32, FIELD(request_events_subscribers), .def = "64",
     .min = "1", .max = "4096", .group = "Listening", .is_hidden = true,
     .help = "Most open streams of GET /request_events, one for each router; further streams are "
             "answered 503. Higher admits more routers, each of which receives every event of a "
             "request."},
    {"responses-store-bytes", OPT_BYTES, FIELD(responses_store_bytes), .def = "64MiB",
     .max = "1TiB", .group = "Listening",
     .help = "Memory for answers of /v1/responses that clients may continue by "
             "previous_response_id, or get and delete by their id; those unused for longest go "
             "first, and all after a day. More memory keeps more of them. 0 stores none: clients "
             "then send the whole input."},
    {"api-key", OPT_LIST, FIELD(api_keys), .is_secret = true, .is_shown = true, .is_verbatim = true,
     .takes_many = true, .env = "VLLM_API_KEY", .group = "Listening", .metavar = "KEY",
     .help = "API keys, one of which a request must send as Authorization: Bearer KEY. Requests "
             "without a valid key are answered 401. Health, /metrics, /version, /load and "
             "/server_info need no key. Prefer an environment variable or --api-key-file, because "
             "ps shows options."},
    {"api-key-file", OPT_STR, FIELD(api_key_file), .group = "Listening", .metavar = "FILE",
     .help = "File of API keys, one a line. # begins a comment. A request must send one of the "
             "keys, as for --api-key. Reloaded on SIGHUP."},
    {"root-path", OPT_STR, FIELD(root_path), .aliases = "fastapi-root-path", .group = "Listening",
     .metavar = "PATH",
     .help = "Path prefix that is ignored, for a proxy that does not strip it: with /llm, "
             "/llm/v1/models is the same as /v1/models."},
    {"ssl-certfile", OPT_STR, FIELD(ssl_certfile), .aliases = "tls-cert-path", .group = "Listening",
     .metavar = "FILE",
     .help = "PEM file of the worker's certificate and chain; clients then use https. Reloaded on "
             "SIGHUP."},
    {"ssl-keyfile", OPT_STR, FIELD(ssl_keyfile), .aliases = "tls-key-path", .group = "Listening",
     .metavar = "FILE",
     .help = "PEM file of the private key of --ssl-certfile, without a passphrase. Reloaded on "
             "SIGHUP."},
    {"ssl-ca-certs", OPT_STR, FIELD(ssl_ca_certs), .group = "Listening", .metavar = "PATH",
     .help = "PEM certificates of the authorities that sign client certificates. Only clients with "
             "a certificate signed by one of the authorities are accepted."},
    {"max-body-bytes", OPT_BYTES, LIVE(max_body_bytes), .def = "32MiB", .min = "1KiB",
     .max = "1GiB", .group = "Listening",
     .help = "Largest request body; larger bodies are answered 413. Higher admits longer prompts "
             "and needs more memory."},
    {"max-body-memory", OPT_BYTES, LIVE(max_body_memory), .def = "0", .max = "1TiB",
     .group = "Listening", .metavar = "BYTES",
     .help = "Memory for the bodies of all open requests together. A quarter of the memory is for "
             "bodies up to 64 KiB; without --trust-router, the longer bodies of one client "
             "address, or one API key, get half; a body without room waits unread for 10 s and is "
             "then refused with 503. Higher takes more long bodies at once. 0: a quarter of the "
             "memory that this process may use, at most 1 GiB."},
    {"max-connections", OPT_U32, LIVE(max_connections), .def = "16384", .min = "1",
     .max = "1000000", .group = "Listening",
     .help =
         "Most client connections at once, fewer where ulimit -n allows fewer file descriptors. At "
         "the limit, idle connections are closed for new ones, first those of the client address "
         "with the most connections; a connection with a request in flight is never closed."},
    {"tokenizer-threads", OPT_U32, FIELD(tokenizer_threads), .def = "0", .max = "16",
     .group = "Listening",
     .help = "Threads that tokenize texts over 4 KiB. 0 takes half of the processors, at most 4. "
             "Texts over 1 MiB share one thread, so more threads keep shorter texts from waiting "
             "behind them."},
    {"tokenizer-queue-bytes", OPT_BYTES, FIELD(tokenizer_queue_bytes), .def = "256MiB",
     .min = "1KiB", .max = "1TiB", .group = "Listening", .is_hidden = true,
     .help = "Bytes of text that may wait for a tokenizer thread; requests beyond this size are "
             "answered 503. Higher takes more requests at once and needs more memory."},
    {"sse-keepalive-s", OPT_F64, LIVE(sse_keepalive_s), .def = "15", .min = "0", .max = "3600",
     .group = "Listening", .metavar = "SECONDS",
     .help = "Time after which a streaming client whose prompt is still being computed gets a "
             "comment (: keep-alive), so that balancers and clients keep the connection open. An "
             "error that comes later is an event of the stream. 0: no comments."},
    {"drain-timeout", OPT_MS, LIVE(drain_timeout_ms), .def = "300s", .max = "1h",
     .group = "Listening",
     .help = "Time to finish open requests on shutdown. Applies on SIGTERM and POST /admin/drain; "
             "requests still open after this time end with an error."},

    {"backend", OPT_ENUM, FIELD(backend), .def = "auto", .names = backend_names, .group = "Device",
     .help = "Backend that computes the model: cuda, cpu, ref (slow reference) or sim (simulated). "
             "auto takes cuda where there is a usable GPU, else cpu. sim takes as long as a device "
             "and computes nothing; auto never takes sim."},
    {"device", OPT_STR, FIELD(device), .aliases = "device-id", .group = "Device",
     .metavar = "DEVICE",
     .help = "Device to run on. It also sets the backend: cpu, cuda, or one GPU: cuda:1, 1, or the "
             "UUID or its beginning (GPU-...), which does not change when GPUs are added; "
             "`incipit-worker devices` lists the GPUs. auto leaves the choice to --backend."},
    BACKEND_LIBRARY_ROW,
    {"dtype", OPT_ENUM, FIELD(dtype), .def = "auto", .names = dtype_names, .group = "Device",
     .help =
         "Number type of the weights and the KV cache. One of auto, bfloat16, float16 (half) and "
         "float32 (float). auto takes the type of the model's files, so that no weight is rounded; "
         "a narrower type needs less memory and answers faster. GPUs support bfloat16 only."},
    {"quantization", OPT_STR, FIELD(quantization), .def = "auto", .group = "Device",
     .metavar = "METHOD", .is_hidden = true,
     .help = "Method that the model's files are quantised by: auto, fp8, compressed-tensors, awq, "
             "gptq or modelopt. auto takes any, and none; another method than that of the files "
             "ends the start. The worker quantises no weights."},
    {"kv-cache-dtype", OPT_ENUM, FIELD(kv_dtype), .def = "auto", .names = kv_dtype_names,
     .name_aliases = kv_dtype_words, .group = "Device",
     .help = "Number type of the KV cache. With auto it is that of --dtype. fp8 (e4m3) and int8 "
             "hold twice the tokens of bfloat16 in the same memory, each token with scales of its "
             "own; int8 is about six times closer to the unrounded answers than fp8."},
    {"async-scheduling", OPT_BOOL, FIELD(async), .def = "true",
     .aliases = "!disable-overlap-schedule", .group = "Device",
     .help = "Prepare the next step while the device computes the current step. Applies to devices "
             "that run asynchronously (cuda, sim). Off: the device waits for the host after each "
             "step."},
    {"deterministic", OPT_BOOL, FIELD(deterministic), .aliases = "enable-deterministic-inference",
     .group = "Device",
     .help = "Make answers on a GPU bit-identical whatever else is in the batch. Matrix products "
             "and attention are always divided in the same way, which is slower. The cpu backend "
             "is always deterministic."},
    {"path", OPT_STR, FIELD(path), .def = "auto", .aliases = "isa", .group = "Device",
     .help = "Instruction set that the cpu backend uses: auto, avx512bf16, avx512, avx2, neon or "
             "plain. Answers are bit-identical within one instruction set."},
    {"threads", OPT_U32, FIELD(n_threads), .def = "0", .max = "1024", .group = "Device",
     .help = "CPU threads that compute the model. 0 takes one per core."},
    {"tensor-parallel-size", OPT_U32, FIELD(tp_size), .def = "1", .min = "1", .max = "16",
     .aliases = "tp,tp-size", .group = "Device",
     .help = "Devices to divide the model over. They begin at --device, or are the devices that "
             "--device lists with commas. More devices hold larger models, and answer faster where "
             "they are well connected. On a CPU the answer is bit-identical, and slower."},
    {"sim-speed", OPT_F64, FIELD(sim_speed), .def = "1", .min = "0.001", .max = "1000000",
     .group = "Device", .help = "Simulated seconds per real second of --backend sim."},
    {"sim-profile", OPT_STR, FIELD(sim_profile), .group = "Device",
     .help = "Device that --backend sim imitates. The error for an unknown name lists the known "
             "names."},

    {"block-size", OPT_U32, FIELD(block_size), .def = "16", .min = "1", .max = "128",
     .is_clamped = true, .aliases = "page-size", .group = "Cache",
     .help = "Tokens per KV block, the unit of the prefix cache. Smaller blocks match prefixes "
             "more finely and need more bookkeeping."},
    {"num-gpu-blocks-override", OPT_U32, FIELD(n_blocks), .def = "0", .aliases = "num-blocks",
     .group = "Cache",
     .help = "KV blocks to allocate. 0: as many as fit into --kv-cache-memory-bytes, or into the "
             "free memory."},
    {"kv-cache-memory-bytes", OPT_BYTES, FIELD(kv_bytes), .def = "0", .group = "Cache",
     .help = "Memory of the KV cache. 0: set by --gpu-memory-utilization on a GPU; on a CPU 4 GiB, "
             "or a quarter of the free memory, whichever is less."},
    {"gpu-memory-utilization", OPT_F64, FIELD(memory_fraction), .def = "0", .min = "0",
     .max = "0.98", .is_clamped = true, .aliases = "mem-fraction-static,memory-fraction",
     .group = "Cache",
     .help = "Share of memory for weights and KV cache, 0 to 0.98. The share is of all memory on a "
             "GPU, of the free memory on a CPU. Higher keeps more prefixes cached. 0: 0.9 on a "
             "GPU; on a CPU --kv-cache-memory-bytes decides."},
    {"enable-prefix-caching", OPT_BOOL, FIELD(prefix_caching), .def = "true",
     .aliases = "!disable-radix-cache", .group = "Cache",
     .help = "Reuse the KV blocks of equal prompt prefixes. Off: every prompt is computed whole."},
    {"prefix-caching-hash-algo", OPT_ENUM, FIELD(hash_algo), .def = "xxh3_128", .names = hash_names,
     .group = "Cache",
     .help =
         "Hash that identifies KV blocks. xxh3_128 is keyed with --hash-seed and verified against "
         "the tokens; sha256_cbor and xxhash_cbor equal vLLM's hashes of these names."},
    {"hash-seed", OPT_STR, FIELD(hash_seed), .is_secret = true, .group = "Cache",
     .help = "Secret text from which the hashes of KV blocks begin. Default: random, or the text "
             "of vLLM for sha256_cbor."},
    {"hash-block-size", OPT_U32, FIELD(hash_block_size), .def = "0", .max = "128", .group = "Cache",
     .is_hidden = true,
     .help = "Tokens per hash, a divisor of --block-size; the last hash in a KV block is the hash "
             "of the block. Lower lets a cache index with smaller blocks recognise the blocks of "
             "this worker, and hashes more often. 0: --block-size."},
    {"block-dedup", OPT_BOOL, FIELD(dedup), .group = "Cache", .is_hidden = true,
     .help = "Keep equal KV blocks once: a sequence that fills an already cached block switches to "
             "the cached block."},
    {"free-order", OPT_ENUM, FIELD(free_order), .def = "fresh-first", .names = order_names,
     .group = "Cache", .is_hidden = true,
     .help = "Order in which free KV blocks are reused: fresh-first takes blocks without content "
             "before it evicts cached ones, least recently used first; classic takes all blocks in "
             "the order in which they were freed; reuse evicts the prompts that are least likely "
             "to return, by their turn in a conversation and the part that was not cached. A "
             "router in front predicts least recently used: use reuse for a worker of its own."},
    {"kv-offload-bytes", OPT_BYTES, FIELD(kv_offload_bytes), .def = "0", .is_gib = true,
     .aliases = "kv-offloading-size", .group = "Cache",
     .help = "Host memory for KV blocks evicted from the device. The blocks return when a request "
             "needs their prefix. More keeps more prefixes; 0: evicted blocks are lost. A number "
             "without a unit, up to 1024, is in GiB."},
    {"swap-space", OPT_BYTES, FIELD(swap_bytes), .def = "0", .is_gib = true, .group = "Cache",
     .help = "Host memory for the KV blocks of preempted sequences, which are otherwise computed "
             "again. It is added to --kv-offload-bytes: both use one pool. A number without a unit "
             "is in GiB up to 1024, else in bytes."},
    {"kv-file", OPT_STR, FIELD(kv_file), .group = "Cache", .metavar = "DIR",
     .help = "Folder that keeps KV blocks of prompts met twice, through restarts of the worker. A "
             "prompt whose blocks are there is read instead of computed where that is quicker. "
             "Each block is verified against the prompt, the model and the type of computation. "
             "Workers of one host may share the folder. Contents pass through host memory: set "
             "--kv-offload-bytes as well. Blocks hold prompts in a form that can be read back: "
             "only the owner of the process may open the folder."},
    {"kv-file-bytes", OPT_BYTES, FIELD(kv_file_bytes), .is_gib = true, .group = "Cache",
     .help = "Size of the folder of --kv-file, which all workers that share it keep to: 16 GiB "
             "unless set, and no more than the disk has. More keeps more prompts; the coldest go "
             "first. A number without a unit, up to 1024, is in GiB."},
    {"kv-store", OPT_STR, FIELD(kv_store), .group = "Cache", .metavar = "URL",
     .help = "Redis or Valkey that keeps KV blocks of prompts met twice for all workers of a "
             "model: redis://[USER@]HOST[:PORT][/DATABASE], rediss:// over TLS, or "
             "unix:///PATH; several servers, separated by commas, share the blocks; a cluster "
             "needs one of its servers. Blocks are encrypted with --kv-key-file. A server that is "
             "away counts as empty. Contents pass through host memory: set --kv-offload-bytes as "
             "well. Set maxmemory and maxmemory-policy allkeys-lru on the server."},
    {"kv-peers", OPT_BOOL, FIELD(kv_peers), .group = "Cache",
     .help = "Give KV blocks to other workers of the model that have it too, and ask the one that "
             "a router names in the header x-incipit-kv-source, where that is quicker than to "
             "compute. Blocks are encrypted, and workers prove themselves, with --kv-key-file. "
             "Contents pass through host memory: set --kv-offload-bytes as well. A client "
             "that reaches the port can have the worker connect to any address: let only routers "
             "and workers reach it."},
    {"role", OPT_ENUM, FIELD(role), .def = "both", .names = role_names, .group = "Cache",
     .help = "Part of a request that a router prefers this worker for: prefill computes long "
             "prompts, whose KV another worker takes over by --kv-peers and answers; decode takes "
             "it over, so that its streams are not held up by long prompts; both does all of each "
             "request. A worker of any role answers whatever it gets. Needs --kv-peers."},
    {"kv-peer-plain", OPT_BOOL, FIELD(kv_peer_plain), .group = "Cache",
     .help = "Exchange KV blocks by --kv-peers without --kv-key-file. Who reads the network reads "
             "prompts there, and who can answer on it changes answers."},
    {"kv-peer-shm", OPT_BOOL, FIELD(kv_peer_shm), .def = "true", .group = "Cache",
     .help =
         "With --kv-peers, workers of one host and one user that prove the same key read blocks "
         "from each other's memory instead of over TCP. Who has proved it can read all KV "
         "there, of every tenant and salt: turn it off where workers of one user serve tenants "
         "who must not see each other's KV. Workers that share no network namespace, "
         "and those on GPUs, use TCP anyway."},
    {"kv-key-file", OPT_STR, FIELD(kv_key_file), .group = "Cache", .metavar = "FILE",
     .help = "File with the key that encrypts KV blocks in --kv-file, --kv-store and --kv-peers "
             "(AES-256-GCM): 64 hexadecimal digits, as 'openssl rand -hex 32' prints. Workers that "
             "share blocks have the same. With another key earlier blocks are not found."},
    {"kv-store-plain", OPT_BOOL, FIELD(kv_store_plain), .group = "Cache",
     .help = "Keep KV blocks in --kv-store without --kv-key-file. Who can read the server reads "
             "prompts there, and who can write to it changes answers."},
    {"kv-store-ttl", OPT_MS, FIELD(kv_store_ttl_ms), .min = "1s", .max = "1000h", .group = "Cache",
     .help = "Time after which --kv-store forgets a KV block that was not written again: 24 hours "
             "unless set."},
    {"kv-store-bytes", OPT_BYTES, FIELD(kv_store_bytes), .def = "0", .group = "Cache",
     .help = "Memory of all servers of --kv-store up to which KV blocks are written; 0: what the "
             "servers allow."},
    {"kv-store-password-file", OPT_STR, FIELD(kv_store_password_file), .group = "Cache",
     .metavar = "FILE", .help = "File with the password of the servers of --kv-store."},
    {"kv-store-ca-file", OPT_STR, FIELD(kv_store_ca_file), .group = "Cache", .metavar = "FILE",
     .help = "Certificates (PEM) that verify servers of --kv-store over TLS; without it, those of "
             "the system."},
    {"kv-events", OPT_BOOL, FIELD(kv_events), .group = "Cache",
     .help = "Publish which KV blocks are cached: GET /kv_events streams blocks stored and "
             "removed, with tokens and salts. Use this option only when nothing but routers and "
             "indexers can reach the worker."},
    {"kv-events-config", OPT_STR, FIELD(kv_events_config), .group = "Cache", .metavar = "JSON",
     .help = "Settings of --kv-events as vLLM writes them: {\"enable_kv_cache_events\": true, "
             "\"buffer_steps\": 10000}."},
    {"kv-events-buffer-steps", OPT_U32, FIELD(kv_event_batches), .def = "10000", .min = "1",
     .max = "10000000", .group = "Cache", .is_hidden = true,
     .help = "Batches of KV events kept for replay. More lets a subscriber of GET /kv_events be "
             "disconnected longer."},
    {"kv-events-buffer-bytes", OPT_BYTES, FIELD(kv_event_bytes), .def = "16MiB", .min = "64KiB",
     .max = "16GiB", .group = "Cache", .is_hidden = true,
     .help = "Most memory for the KV events that --kv-events-buffer-steps keeps."},
    {"kv-events-subscribers", OPT_U32, LIVE(kv_event_subscribers), .def = "16", .min = "1",
     .max = "1024", .group = "Cache", .is_hidden = true,
     .help = "Most open streams of GET /kv_events; further streams are answered 429."},
    {"kv-events-int-hashes", OPT_BOOL, FIELD(kv_event_number_hashes), .group = "Cache",
     .is_hidden = true,
     .help = "Write the hashes of blocks in KV events as numbers. A number is the last 8 bytes of "
             "a hash; older indexers need it."},
    {"cache-explain", OPT_ENUM, LIVE(cache_explain), .def = "own", .names = explain_names,
     .group = "Cache",
     .help =
         "Which requests may ask why their prompt was not cached. off: none. own: requests with a "
         "cache_salt or a router's salt, about blocks under that salt. position: also requests "
         "without a salt, which learn where their prompt differs from the nearest cached one: that "
         "reveals others' unsalted prompts token by token. full: also the token that differs."},
    {"watermark", OPT_F64, FIELD(watermark), .def = "0", .min = "0", .max = "0.5", .group = "Cache",
     .is_hidden = true,
     .help = "Share of the KV blocks kept free when a request is admitted while others run. Higher "
             "preempts fewer requests and runs fewer at once."},
    {"retained-kv-share", OPT_F64, FIELD(retained_share), .def = "0.25", .min = "0", .max = "1",
     .group = "Cache",
     .help = "Share of the KV blocks that prompts may keep from eviction while they are unused: "
             "those that clients mark by cache_control, prompt_cache_options or "
             "prompt_cache_retention. Higher keeps more of them and less of other prompts. A "
             "tenant gets at most half of it. 0 ignores the marks."},
    {"hold-bytes", OPT_BYTES, FIELD(hold_bytes), .def = "0", .is_gib = true, .group = "Cache",
     .help = "KV that clients may hold with POST /cache/hold, of host memory with "
             "--kv-offload-bytes, else of the device. Higher holds more prefixes and leaves less "
             "for all others; at most half. A key or tenant gets at most half of it. 0: a quarter "
             "of that memory. With --kv-file up to half of the folder holds what host memory has "
             "no room for. A number without a unit, up to 1024, is in GiB."},
    {"kv-cache-metrics", OPT_BOOL, FIELD(kv_cache_metrics), .group = "Cache",
     .help = "Measure KV blocks for /metrics: their lifetime, their idle time before eviction, and "
             "the time between hits."},
    {"kv-cache-metrics-sample", OPT_F64, FIELD(kv_cache_metrics_sample), .def = "0.01",
     .min = "0.000001", .max = "1", .group = "Cache", .is_hidden = true,
     .help = "Share of the KV blocks that --kv-cache-metrics measures. Higher is more exact and "
             "takes more processor time in each step."},

    {"max-num-seqs", OPT_U32, FIELD(max_num_seqs), .def = "0", .max = "4096", .is_clamped = true,
     .name_aliases = unset_words, .aliases = "max-running-requests", .group = "Scheduling",
     .help = "Most sequences computed in one batch. Higher serves more requests at once, each more "
             "slowly. 0: 256 on a GPU, 64 elsewhere; at most --max-num-batched-tokens."},
    {"max-num-batched-tokens", OPT_U32, FIELD(max_num_batched_tokens), .def = "0", .max = "131072",
     .is_clamped = true, .is_human = true, .name_aliases = unset_words,
     .aliases = "chunked-prefill-size", .group = "Scheduling",
     .help = "Most tokens computed in one step. Higher computes prompts in fewer steps and "
             "lengthens the pauses between the tokens of other requests. 0: 8192 on a GPU, 512 "
             "elsewhere; at least --max-num-seqs."},
    {"enable-chunked-prefill", OPT_BOOL, FIELD(chunked_prefill), .def = "true",
     .group = "Scheduling",
     .help = "Compute a prompt over several steps. Off: a prompt waits for a step with room for "
             "all of it."},
    {"long-prefill-token-threshold", OPT_U32, FIELD(long_prefill_token_threshold), .def = "0",
     .group = "Scheduling",
     .help = "Most prompt tokens of one request computed in a step. Lower lets short prompts pass "
             "long ones. 0: no limit."},
    {"scheduler-reserve-full-isl", OPT_BOOL, FIELD(reserve_full_isl), .def = "true",
     .group = "Scheduling", .is_hidden = true,
     .help = "Admit a request only when there are KV blocks for its whole prompt. Off: requests "
             "are admitted sooner, with more preemptions."},
    {"schedule-policy", OPT_ENUM, FIELD(policy), .def = "srpt", .names = policy_names,
     .name_aliases = policy_words, .aliases = "scheduling-policy", .group = "Scheduling",
     .help = "Order of prompts. fcfs: by arrival. priority: by the field `priority` of each "
             "request, lower values first. srpt: by `priority`, then the shortest rest that is "
             "not cached, chunk by chunk, with aging and fair to tenants: short prompts pass long "
             "ones."},
    {"itl-target-ms", OPT_MS, FIELD(itl_target_ms), .def = "0", .max = "60s", .group = "Scheduling",
     .help = "Time that a step may take while requests generate: prompts are cut into smaller "
             "chunks, of at least 128 tokens. Lower gives steadier streams and later first tokens; "
             "below 1.2 times a full step it costs capacity. 0: no limit."},
    {"preemption-mode", OPT_ENUM, FIELD(preemption), .def = "auto", .names = preemption_names,
     .group = "Scheduling",
     .help = "What happens to the latest request when KV blocks run out. recompute: its blocks are "
             "dropped, and those that are not cached are computed again; swap: its blocks move to "
             "--swap-space, and no new request is admitted until all are back; auto: swap for "
             "samples and beams that share blocks, recompute for others."},
    {"max-waiting", OPT_U32, LIVE(max_waiting), .def = "1024", .min = "1", .max = "1000000",
     .group = "Scheduling",
     .help = "Requests that may wait to be scheduled. Further requests are answered 429. Lower "
             "lets a router send them to other workers sooner."},
    {"max-logprobs", OPT_U32, FIELD(max_logprobs), .def = "20", .max = "20", .is_clamped = true,
     .name_aliases = logprobs_words, .group = "Scheduling",
     .help =
         "Most alternative tokens per position with log probabilities that a request may ask for."},
    {"return-tokens-as-token-ids", OPT_BOOL, LIVE(tokens_as_ids), .group = "Scheduling",
     .help = "Write tokens in logprobs as token_id:17 in every answer, also when the request does "
             "not ask for it."},

    {"log-level", OPT_ENUM, LIVE(log_level), .def = "info", .names = log_level_names,
     .name_aliases = level_words, .group = "Logging",
     .help = "Lowest level of log lines that are written."},
    {"log-format", OPT_ENUM, FIELD(log_format), .def = "text", .names = log_format_names,
     .group = "Logging",
     .help = "Format of the log: text or json. Text is lines of key=value; json is one JSON object "
             "a line."},
    {"log-interval", OPT_MS, FIELD(log_interval_ms), .def = "10s", .max = "1h", .group = "Logging",
     .help = "Time between two log lines of statistics while requests run. 0: no such lines."},
};

#define WORKER_TABLES                                                                              \
    .target_bytes = sizeof(struct worker_options), .compat = worker_compat_flags,                  \
    .others = "vllm serve and sglang.launch_server", .takes_beginnings = true
#define SERVING_ROWS .defs = rows + N_BATCH_ROWS, .n_defs = ARRAY_LEN(rows) - N_BATCH_ROWS
#define MOST_USED                                                                                  \
    "model,served-model-name,max-model-len,device,dtype,kv-cache-dtype,tensor-parallel-size,"      \
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

const char *worker_role_name(const struct worker_options *o) {
    return role_names[o->role];
}

const char *worker_backend_name(const struct worker_options *o) {
    return backend_names[o->backend];
}

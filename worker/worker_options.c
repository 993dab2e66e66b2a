/* worker/worker_options.c - the table of the worker's options, under the names of vLLM (and, as
 * aliases, SGLang's) where they have one. */
#include "worker/worker_options.h"

#include "worker/engine/backend_load.h"

#define FIELD(member) OPTION_FIELD(struct worker_options, member)

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
     .help = "Requests, one JSON object a line: {\"custom_id\", \"method\", \"url\", \"body\"}. "
             "All are "
             "checked before the first is asked."},
    {"output-file", OPT_STR, FIELD(output_file), .group = "Batch", .metavar = "FILE",
     .help = "Answers, a line each as they end. Requests that have their line here already are not "
             "asked again: the same command goes on with a run that was ended."},

    {"model", OPT_STR, FIELD(model), .aliases = "model-path", .is_positional = true,
     .group = "Model", .metavar = "MODEL",
     .help =
         "Model folder with config.json, tokenizer.json and *.safetensors; or org/name on the "
         "Hugging Face hub, taken from its cache, or downloaded (HF_TOKEN, HF_ENDPOINT, HF_HOME "
         "and HF_HUB_CACHE are read). Not needed by --backend sim."},
    {"revision", OPT_STR, FIELD(revision), .def = "main", .group = "Model",
     .help = "Branch, tag or commit of a model on the hub."},
    {"download-dir", OPT_STR, FIELD(download_dir), .group = "Model", .metavar = "DIR",
     .help = "Where models of the hub are kept. Default: the cache that other tools use too, "
             "~/.cache/huggingface/hub."},
    {"offline", OPT_BOOL, FIELD(offline), .group = "Model",
     .help = "Download nothing: a model of the hub must be in the cache. HF_HUB_OFFLINE=1 does the "
             "same."},
    {"served-model-name", OPT_LIST, FIELD(served_model_names), .takes_many = true, .group = "Model",
     .metavar = "NAME",
     .help = "What clients call the model; several names are all accepted, and answers have the "
             "first. Default: the folder's last part."},
    {"tokenizer", OPT_STR, FIELD(tokenizer), .aliases = "tokenizer-path", .group = "Model",
     .metavar = "MODEL",
     .help = "Folder, or org/name, of tokenizer and chat template, if not the model's."},
    {"max-model-len", OPT_U32, FIELD(max_model_len), .def = "0", .aliases = "context-length",
     .name_aliases = length_words, .is_human = true, .group = "Model",
     .help = "Longest sequence, prompt and answer together. 0 takes the model's; lower needs less "
             "memory. 32k is 32000, 32K is 32768."},
    {"chat-template", OPT_STR, FIELD(chat_template), .group = "Model", .metavar = "FILE",
     .help = "Jinja file of the chat template, or the template itself in one line, instead of the "
             "model's."},
    {"default-chat-template-kwargs", OPT_STR, FIELD(chat_template_kwargs), .group = "Model",
     .metavar = "JSON",
     .help = "Variables for the chat template, as {\"enable_thinking\": false}; those that a "
             "request has in chat_template_kwargs win."},
    {"generation-config", OPT_STR, FIELD(generation_config), .def = "auto", .group = "Model",
     .metavar = "DIR",
     .help = "Sampling defaults for requests that are silent: auto takes the model's "
             "generation_config.json, vllm takes none, a folder is read for that file."},
    {"override-generation-config", OPT_STR, FIELD(generation_overrides),
     .aliases = "preferred-sampling-params", .group = "Model", .metavar = "JSON",
     .help =
         "Sampling defaults that win over --generation-config: temperature, top_p, top_k, min_p "
         "and repetition_penalty, as {\"temperature\": 0.6}."},
    {"seed", OPT_U64, FIELD(seed), .def = "random", .max = "18446744073709551614",
     .name_aliases = seed_words, .aliases = "random-seed", .group = "Model",
     .help =
         "Where the seeds of requests without one begin: with a number the same requests in the "
         "same order get the same samples after each start."},

    {"host", OPT_STR, FIELD(host), .def = "127.0.0.1", .group = "Listening",
     .help = "Address to listen on. 0.0.0.0 lets other machines in."},
    {"port", OPT_U32, FIELD(port), .def = "31000", .max = "65535", .group = "Listening",
     .help = "Port to listen on. 0 lets the system choose."},
    {"trust-router", OPT_BOOL, FIELD(trust_router), .group = "Listening",
     .help = "Take x-incipit-salt from requests: blocks are shared only between equal salts. Only "
             "for workers that nobody but the router can reach."},
    {"request-events-buffer-bytes", OPT_BYTES, FIELD(request_events_bytes), .def = "16MiB",
     .max = "16GiB", .group = "Listening",
     .help = "Memory for the latest request events, which routers follow at GET /request_events "
             "to act as one. More lets a restarted router recover more; each request takes 120 "
             "bytes and 6 for each block of its prompt. 0 turns request events off."},
    {"request-events-subscribers", OPT_U32, FIELD(request_events_subscribers), .def = "64",
     .min = "1", .max = "4096", .group = "Listening",
     .help = "Streams of request events at once, one for each router; beyond it 503. Higher lets "
             "more routers in, each of which is sent every event."},
    {"api-key", OPT_LIST, FIELD(api_keys), .is_secret = true, .is_shown = true, .is_verbatim = true,
     .takes_many = true, .env = "VLLM_API_KEY", .group = "Listening", .metavar = "KEY",
     .help = "Keys of which a request must have one, as Authorization: Bearer KEY; others get 401. "
             "Health, /metrics, /version, /load and /server_info stay open. Better in the "
             "environment or --api-key-file, which ps does not show."},
    {"api-key-file", OPT_STR, FIELD(api_key_file), .group = "Listening", .metavar = "FILE",
     .help = "File of keys like --api-key, one a line; # begins a comment. Reloaded on SIGHUP."},
    {"root-path", OPT_STR, FIELD(root_path), .aliases = "fastapi-root-path", .group = "Listening",
     .metavar = "PATH",
     .help = "Beginning of paths that is passed over, for a proxy that does not take it off: with "
             "/llm also /llm/v1/models is answered."},
    {"ssl-certfile", OPT_STR, FIELD(ssl_certfile), .aliases = "tls-cert-path", .group = "Listening",
     .metavar = "FILE",
     .help = "PEM certificate and chain: clients then use https. Reloaded on SIGHUP."},
    {"ssl-keyfile", OPT_STR, FIELD(ssl_keyfile), .aliases = "tls-key-path", .group = "Listening",
     .metavar = "FILE",
     .help = "PEM key of --ssl-certfile, without a passphrase. Reloaded on SIGHUP."},
    {"ssl-ca-certs", OPT_STR, FIELD(ssl_ca_certs), .group = "Listening", .metavar = "PATH",
     .help = "PEM authorities: only clients with a certificate of one of them are let in."},
    {"max-body-bytes", OPT_BYTES, FIELD(max_body_bytes), .def = "32MiB", .min = "1KiB",
     .max = "1GiB", .group = "Listening",
     .help = "Largest request body; beyond it 413. Higher admits longer prompts, costs memory."},
    {"max-body-memory", OPT_BYTES, FIELD(max_body_memory), .def = "0", .max = "1TiB",
     .group = "Listening", .metavar = "BYTES",
     .help =
         "Memory for the bodies of all open requests together. A quarter is for bodies up to "
         "64 KiB; long ones of one address, or one key, get half, without --trust-router; a body "
         "for which there is no room waits unread for 10 s and is then refused with 503. Higher "
         "takes more long bodies at once. 0: a quarter of what this process may use, at most 1 "
         "GiB."},
    {"max-connections", OPT_U32, FIELD(max_connections), .def = "16384", .min = "1",
     .max = "1000000", .group = "Listening",
     .help =
         "Most connections at once, fewer where descriptors are short (ulimit -n). At the limit "
         "idle ones are closed for new ones, of the address with the most first; a connection "
         "with a request in flight never is."},
    {"tokenizer-threads", OPT_U32, FIELD(tokenizer_threads), .def = "0", .max = "16",
     .group = "Listening",
     .help =
         "Threads that tokenize texts over 4 KiB. 0 takes half of the processors, at most 4. The "
         "first alone takes texts over 1 MiB; more keep shorter ones from waiting for those."},
    {"tokenizer-queue-bytes", OPT_BYTES, FIELD(tokenizer_queue_bytes), .def = "256MiB",
     .min = "1KiB", .max = "1TiB", .group = "Listening",
     .help =
         "Bytes of text that may wait for a tokenizer thread; what comes beyond is answered 503. "
         "Higher takes more requests at once, costs memory."},
    {"drain-timeout", OPT_MS, FIELD(drain_timeout_ms), .def = "300s", .max = "1h",
     .group = "Listening",
     .help =
         "On SIGTERM or POST /admin/drain: how long open requests may still take; then they end "
         "with an error."},

    {"backend", OPT_ENUM, FIELD(backend), .def = "auto", .names = backend_names, .group = "Device",
     .help = "What computes: cuda; cpu; ref, the slow definition; sim, which only takes as long. "
             "auto is cuda where there is a GPU that it can use, else cpu; sim is never chosen by "
             "itself."},
    {"device", OPT_STR, FIELD(device), .aliases = "device-id", .group = "Device",
     .metavar = "DEVICE",
     .help =
         "Which device, and so which backend: cpu; cuda; a GPU as cuda:1, 1, or its UUID or the "
         "beginning of it (GPU-...), which stays the same when GPUs are added. `incipit-worker "
         "devices` lists them. auto leaves it to --backend."},
    BACKEND_LIBRARY_ROW,
    {"dtype", OPT_ENUM, FIELD(dtype), .def = "auto", .names = dtype_names, .group = "Device",
     .help = "Type of the weights, and of K and V in the cache: auto, bfloat16, float16 (half) or "
             "float32 (float). auto takes the checkpoint's, so that no weight is rounded; a "
             "narrower type takes less memory and answers faster. A GPU has bfloat16 only."},
    {"async-scheduling", OPT_BOOL, FIELD(async), .def = "true",
     .aliases = "!disable-overlap-schedule", .group = "Device",
     .help = "Schedule a step while the one before runs, where the device works on its own (cuda, "
             "sim). Off: the device waits for the host after each step."},
    {"deterministic", OPT_BOOL, FIELD(deterministic), .aliases = "enable-deterministic-inference",
     .group = "Device",
     .help =
         "An answer does not depend on what else is in its batch, to the bit, on a GPU too: one "
         "plan for each product, fixed chunks in attention. Costs speed there. cpu is always "
         "so."},
    {"path", OPT_STR, FIELD(path), .def = "auto", .aliases = "isa", .group = "Device",
     .help = "Instruction path of the cpu backend: auto, avx512bf16, avx512, avx2, neon or plain. "
             "Answers are bit-identical within one path."},
    {"threads", OPT_U32, FIELD(n_threads), .def = "0", .max = "1024", .group = "Device",
     .help = "CPU threads that compute. 0 takes one per core."},
    {"tensor-parallel-size", OPT_U32, FIELD(tp_size), .def = "1", .min = "1", .max = "16",
     .aliases = "tp,tp-size", .group = "Device",
     .help = "Divide the model over so many devices of this machine: from --device on, or as many "
             "as it lists with commas. More hold larger models and answer faster where they are "
             "well connected. On a CPU the answer is the same to the bit, and slower."},
    {"sim-speed", OPT_F64, FIELD(sim_speed), .def = "1", .min = "0.001", .max = "1000000",
     .group = "Device", .help = "Simulated seconds per real second of --backend sim."},
    {"sim-profile", OPT_STR, FIELD(sim_profile), .group = "Device",
     .help = "Device that --backend sim imitates; a name that is not known lists those that are."},

    {"block-size", OPT_U32, FIELD(block_size), .def = "16", .min = "1", .max = "128",
     .is_clamped = true, .aliases = "page-size", .group = "Cache",
     .help = "Tokens per KV block. Smaller matches prefixes finer, costs bookkeeping."},
    {"num-gpu-blocks-override", OPT_U32, FIELD(n_blocks), .def = "0", .aliases = "num-blocks",
     .group = "Cache", .help = "KV blocks to allocate. 0: by --kv-cache-memory-bytes or memory."},
    {"kv-cache-memory-bytes", OPT_BYTES, FIELD(kv_bytes), .def = "0", .group = "Cache",
     .help =
         "Memory of the KV cache. 0: by --gpu-memory-utilization; on a CPU 4 GiB, or a quarter of "
         "the free memory if that is less."},
    {"gpu-memory-utilization", OPT_F64, FIELD(memory_fraction), .def = "0", .min = "0",
     .max = "0.98", .is_clamped = true, .aliases = "mem-fraction-static,memory-fraction",
     .group = "Cache",
     .help =
         "Share of the memory for weights and KV cache: of all a GPU has, so that workers beside "
         "each other take what they are told, or of what is free on a CPU. Higher keeps more "
         "prefixes. 0: 0.9 of a GPU; on a CPU as --kv-cache-memory-bytes says."},
    {"enable-prefix-caching", OPT_BOOL, FIELD(prefix_caching), .def = "true",
     .aliases = "!disable-radix-cache", .group = "Cache",
     .help = "Reuse the KV blocks of equal prefixes. Off: every prompt is computed whole."},
    {"prefix-caching-hash-algo", OPT_ENUM, FIELD(hash_algo), .def = "xxh3_128", .names = hash_names,
     .group = "Cache",
     .help = "Hash of the blocks. xxh3_128 is keyed and verified against the tokens; sha256_cbor "
             "and xxhash_cbor compute what other engines compute."},
    {"hash-seed", OPT_STR, FIELD(hash_seed), .is_secret = true, .group = "Cache",
     .help = "Text behind the root of the hash chain. Default: random, or vLLM's for sha256_cbor."},
    {"hash-block-size", OPT_U32, FIELD(hash_block_size), .def = "0", .max = "128", .group = "Cache",
     .help = "Tokens per link of the hash chain, a divisor of --block-size; a block goes by its "
             "last link. Lower lets an index of smaller blocks recognise ours, and hashes more "
             "often. 0: --block-size."},
    {"block-dedup", OPT_BOOL, FIELD(dedup), .group = "Cache",
     .help = "Switch a sequence that fills an already cached block to the cached one."},
    {"free-order", OPT_ENUM, FIELD(free_order), .def = "fresh-first", .names = order_names,
     .group = "Cache",
     .help = "Order in which free blocks are reused: fresh-first takes blocks without content "
             "before it evicts; classic is the plain queue."},
    {"kv-offload-bytes", OPT_BYTES, FIELD(kv_offload_bytes), .def = "0",
     .aliases = "kv-offloading-size", .group = "Cache",
     .help =
         "Host memory for evicted KV blocks, which come back when their prefix is asked for "
         "again. More keeps more prefixes; 0: evicted is lost. A bare number up to 1024 is GiB."},
    {"swap-space", OPT_BYTES, FIELD(swap_bytes), .def = "0", .group = "Cache",
     .help = "Host memory for the KV of sequences that give way to others, instead of computing it "
             "again; shared with --kv-offload-bytes. A bare number up to 1024 is GiB."},
    {"kv-events", OPT_BOOL, FIELD(kv_events), .group = "Cache",
     .help = "Publish which blocks are cached: GET /kv_events streams blocks stored and removed, "
             "with tokens and salts in it. Only where routers and indexers alone can reach the "
             "worker."},
    {"kv-events-config", OPT_STR, FIELD(kv_events_config), .group = "Cache", .metavar = "JSON",
     .help = "Settings of KV events as vLLM writes them: {\"enable_kv_cache_events\": true, "
             "\"buffer_steps\": 10000}."},
    {"kv-events-buffer-steps", OPT_U32, FIELD(kv_event_batches), .def = "10000", .min = "1",
     .max = "10000000", .group = "Cache",
     .help = "Batches of events kept for replay. More lets a subscriber be away longer."},
    {"kv-events-buffer-bytes", OPT_BYTES, FIELD(kv_event_bytes), .def = "16MiB", .min = "64KiB",
     .max = "16GiB", .group = "Cache",
     .help = "Most memory of the batches kept by --kv-events-buffer-steps."},
    {"kv-events-subscribers", OPT_U32, FIELD(kv_event_subscribers), .def = "16", .min = "1",
     .max = "1024", .group = "Cache", .help = "Streams of events at once; beyond it 429."},
    {"kv-events-int-hashes", OPT_BOOL, FIELD(kv_event_number_hashes), .group = "Cache",
     .help = "Hashes in events are numbers, the last 8 bytes, as older indexers want them."},
    {"cache-explain", OPT_ENUM, FIELD(cache_explain), .def = "own", .names = explain_names,
     .group = "Cache",
     .help =
         "Which requests may ask why their prompt was not cached. off: none. own: those with a "
         "cache_salt or a router's salt, of what is cached under that salt. position: also those "
         "without a salt, which reveals others' unsalted prompts token by token: where the nearest "
         "one differs. full: also the token that it has there."},
    {"watermark", OPT_F64, FIELD(watermark), .def = "0", .min = "0", .max = "0.5", .group = "Cache",
     .help = "Share of the blocks kept free when a request is admitted beside others. Higher "
             "preempts less, runs fewer at once."},
    {"kv-cache-metrics", OPT_BOOL, FIELD(kv_cache_metrics), .group = "Cache",
     .help = "Show in the metrics how long blocks live, lie idle, and wait for their next hit."},
    {"kv-cache-metrics-sample", OPT_F64, FIELD(kv_cache_metrics_sample), .def = "0.01",
     .min = "0.000001", .max = "1", .group = "Cache",
     .help = "Share of the blocks that --kv-cache-metrics measures. Higher is more exact, costs "
             "time."},

    {"max-num-seqs", OPT_U32, FIELD(max_num_seqs), .def = "0", .max = "4096", .is_clamped = true,
     .name_aliases = unset_words, .aliases = "max-running-requests", .group = "Scheduling",
     .help = "Sequences in one batch. Higher serves more at once, each more slowly. 0: 256 on a "
             "GPU, 64 elsewhere; at most --max-num-batched-tokens."},
    {"max-num-batched-tokens", OPT_U32, FIELD(max_num_batched_tokens), .def = "0", .max = "131072",
     .is_clamped = true, .is_human = true, .name_aliases = unset_words,
     .aliases = "chunked-prefill-size", .group = "Scheduling",
     .help =
         "Tokens computed in one step. Higher shortens prefill, lengthens the pauses of others. "
         "0: 8192 on a GPU, 512 elsewhere; at least --max-num-seqs."},
    {"enable-chunked-prefill", OPT_BOOL, FIELD(chunked_prefill), .def = "true",
     .group = "Scheduling",
     .help = "Let a prompt be computed over several steps. Off: it waits for a step that takes "
             "all of it."},
    {"long-prefill-token-threshold", OPT_U32, FIELD(long_prefill_token_threshold), .def = "0",
     .group = "Scheduling",
     .help = "Most prompt tokens of one request in a step. Lower lets short prompts pass beside "
             "long ones. 0: any."},
    {"scheduler-reserve-full-isl", OPT_BOOL, FIELD(reserve_full_isl), .def = "true",
     .group = "Scheduling",
     .help = "Admit a request only when its whole prompt finds blocks. Off: sooner, with more "
             "preemptions."},
    {"scheduling-policy", OPT_ENUM, FIELD(policy), .def = "fcfs", .names = policy_names,
     .group = "Scheduling",
     .help =
         "Order of waiting requests: as they came, or by the request's `priority`, lower first."},
    {"preemption-mode", OPT_ENUM, FIELD(preemption), .def = "auto", .names = preemption_names,
     .group = "Scheduling",
     .help =
         "When blocks run out: recompute gives up the latest request's and computes them again, "
         "what is cached excepted; swap keeps them in --swap-space, and admits nothing new until "
         "all are back; auto swaps samples and beams that share blocks, recomputes others."},
    {"max-waiting", OPT_U32, FIELD(max_waiting), .def = "1024", .min = "1", .max = "1000000",
     .group = "Scheduling",
     .help = "Requests that may wait; beyond it 429. Lower sends the excess elsewhere sooner."},
    {"max-logprobs", OPT_U32, FIELD(max_logprobs), .def = "20", .max = "20", .is_clamped = true,
     .name_aliases = logprobs_words, .group = "Scheduling",
     .help = "Most alternatives a request may ask for."},
    {"return-tokens-as-token-ids", OPT_BOOL, FIELD(tokens_as_ids), .group = "Scheduling",
     .help = "Name tokens in logprobs token_id:17 also where a request does not ask for it."},

    {"log-level", OPT_ENUM, FIELD(log_level), .def = "info", .names = log_level_names,
     .name_aliases = level_words, .group = "Logging",
     .help = "Lowest level of lines that are written."},
    {"log-format", OPT_ENUM, FIELD(log_format), .def = "text", .names = log_format_names,
     .group = "Logging", .help = "Lines of key=value, or one JSON object a line."},
    {"log-interval", OPT_MS, FIELD(log_interval_ms), .def = "10s", .max = "1h", .group = "Logging",
     .help = "Time between two lines of statistics while busy. 0: none."},
};

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
    .defs = rows + N_BATCH_ROWS,
    .n_defs = ARRAY_LEN(rows) - N_BATCH_ROWS,
    .target_bytes = sizeof(struct worker_options),
    .compat = worker_compat_flags,
    .others = WORKER_OTHERS,
    .takes_beginnings = true,
};

const struct option_program worker_batch_program = {
    .name = "incipit-worker batch",
    .summary = "Answers a file of requests with one language model, then ends. What was ended "
               "early goes on where it was.",
    .usage = "MODEL --input-file FILE --output-file FILE [options]",
    .defs = rows,
    .n_defs = ARRAY_LEN(rows),
    .target_bytes = sizeof(struct worker_options),
    .compat = worker_compat_flags,
    .others = WORKER_OTHERS,
    .takes_beginnings = true,
};

const struct option_program worker_inspect_program = {
    .name = "incipit-worker inspect",
    .summary = "Says what a model folder holds and what it would need, without loading it.",
    .usage = "MODEL [options]",
    .defs = rows + N_BATCH_ROWS,
    .n_defs = ARRAY_LEN(rows) - N_BATCH_ROWS,
    .target_bytes = sizeof(struct worker_options),
    .compat = worker_compat_flags,
    .others = WORKER_OTHERS,
    .takes_beginnings = true,
};

static const struct option_def device_rows[] = {
    BACKEND_LIBRARY_ROW,
    {"json", OPT_BOOL, FIELD(json), .group = "Device", .help = "One JSON object, for programs."},
};

const struct option_program worker_devices_program = {
    .name = "incipit-worker devices",
    .summary = "Lists the GPUs that a worker could use here; without one it says why, and exits "
               "with 2.",
    .usage = "[--json]",
    .defs = device_rows,
    .n_defs = ARRAY_LEN(device_rows),
    .target_bytes = sizeof(struct worker_options),
};

const struct option_program worker_healthcheck_program = {
    .name = "incipit-worker healthcheck",
    .summary = "Asks /livez of the worker that runs on this machine with the same options, "
               "environment and file; exits with 0 when it is well, else with 1.",
    .usage = "[the worker's options]",
    .defs = rows + N_BATCH_ROWS,
    .n_defs = ARRAY_LEN(rows) - N_BATCH_ROWS,
    .target_bytes = sizeof(struct worker_options),
    .compat = worker_compat_flags,
    .others = WORKER_OTHERS,
    .takes_beginnings = true,
};

const struct option_program worker_drain_program = {
    .name = "incipit-worker drain",
    .summary =
        "Asks the worker that runs on this machine with the same options, environment and "
        "file to finish what it has, take no more, and end: POST /admin/drain. Does not wait "
        "for that.",
    .usage = "[the worker's options]",
    .defs = rows + N_BATCH_ROWS,
    .n_defs = ARRAY_LEN(rows) - N_BATCH_ROWS,
    .target_bytes = sizeof(struct worker_options),
    .compat = worker_compat_flags,
    .others = WORKER_OTHERS,
    .takes_beginnings = true,
};

const char *worker_backend_name(const struct worker_options *o) {
    return backend_names[o->backend];
}

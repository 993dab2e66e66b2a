/* worker/worker_options.h - what can be set, as the program sees it; the table is in the .c. */
#ifndef WORKER_WORKER_OPTIONS_H
#define WORKER_WORKER_OPTIONS_H

#include "common/options/options.h"
#include "common/options/options_manual.h"
#include "common/telemetry/log.h"

#define WORKER_SEED_RANDOM UINT64_MAX

struct worker_options {
    const char *model, *tokenizer;
    struct option_list served_model_names;
    const char *chat_template, *chat_template_kwargs; /* a file or Jinja; JSON */
    const char *tool_call_parser, *reasoning_parser;  /* names, "auto" or "none" */
    bool keep_reasoning;
    const char *generation_config, *generation_overrides; /* auto, vllm or a folder; JSON */
    uint64_t seed;                                        /* WORKER_SEED_RANDOM: none is given */
    const char *revision, *download_dir;
    bool offline;
    const char *host;
    uint32_t port;
    struct option_list api_keys;
    const char *api_key_file, *root_path;
    const char *ssl_certfile, *ssl_keyfile, *ssl_ca_certs;

    int backend; /* index in the table's names */
    const char *backend_library, *device, *path;
    int dtype;    /* enum worker_dtype */
    int kv_dtype; /* enum worker_kv_dtype */
    const char *quantization;
    bool async, deterministic;
    uint32_t n_threads, tp_size, max_model_len;
    double sim_speed;
    const char *sim_profile;

    uint32_t block_size, hash_block_size, n_blocks;
    uint64_t kv_bytes;
    double memory_fraction, watermark, retained_share, kv_cache_metrics_sample;
    bool prefix_caching, dedup, kv_cache_metrics;
    uint64_t kv_offload_bytes, swap_bytes, hold_bytes;
    const char *kv_file; /* NULL: none */
    uint64_t kv_file_bytes;
    const char *kv_store, *kv_store_password_file, *kv_store_ca_file, *kv_key_file; /* or NULL */
    bool kv_peers, kv_peer_plain, kv_peer_shm;
    int role; /* worker_role_name */
    bool kv_store_plain;
    uint32_t kv_store_ttl_ms;
    uint64_t kv_store_bytes;
    bool kv_events, kv_event_number_hashes;
    const char *kv_events_config; /* vLLM's JSON */
    uint32_t kv_event_batches, kv_event_subscribers;
    uint64_t kv_event_bytes;
    int cache_explain;
    int hash_algo, free_order;
    const char *hash_seed;

    uint32_t max_num_seqs, max_num_batched_tokens, long_prefill_token_threshold, max_waiting;
    bool chunked_prefill, reserve_full_isl;
    int policy, preemption; /* policy: enum scheduler_policy */
    uint32_t itl_target_ms; /* 0: none */
    uint32_t max_logprobs;
    bool tokens_as_ids; /* in logprobs */

    bool trust_router;
    uint64_t request_events_bytes;  /* 0: off */
    uint64_t responses_store_bytes; /* 0: none are stored */
    uint32_t request_events_subscribers;
    uint64_t max_body_bytes, max_body_memory;
    uint32_t tokenizer_threads; /* 0: by the number of processors */
    uint64_t tokenizer_queue_bytes;
    uint32_t max_connections, drain_timeout_ms;
    double sse_keepalive_s;
    int log_level, log_format;
    uint32_t log_interval_ms;

    const char *input_file, *output_file; /* of `batch` */
    bool json;                            /* of `devices` */
};

/* To serve; to answer a file of requests; to inspect a model folder; to list devices; to check
 * whether a worker is live; to drain it. */
extern const struct option_program worker_program, worker_batch_program, worker_inspect_program,
    worker_devices_program, worker_healthcheck_program, worker_drain_program;

/* worker_manual.c */
extern const struct option_manual worker_manual;
extern const struct option_entry_of_manual worker_examples[];

/* compat_flags.c; ends with NULL flags. */
extern const struct option_compat worker_compat_flags[];

const char *worker_backend_name(const struct worker_options *o);
const char *worker_role_name(const struct worker_options *o);

/* --dtype, in the order of the table's names. */
enum worker_dtype {
    WORKER_DTYPE_AUTO,
    WORKER_DTYPE_BFLOAT16,
    WORKER_DTYPE_FLOAT16,
    WORKER_DTYPE_FLOAT32,
    WORKER_DTYPE_HALF, /* vLLM's other names of two of them */
    WORKER_DTYPE_FLOAT
};

/* --kv-cache-dtype, in that order too. */
enum worker_kv_dtype {
    WORKER_KV_AUTO,
    WORKER_KV_BFLOAT16,
    WORKER_KV_FLOAT16,
    WORKER_KV_FLOAT32,
    WORKER_KV_FP8,
    WORKER_KV_INT8
};

#endif

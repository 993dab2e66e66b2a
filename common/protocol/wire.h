/* common/protocol/wire.h - the protocol between router and workers. Public and versioned; see
 * WIRE_VERSION.
 *
 * In the head of a worker's response, sent when the first token exists:
 *
 *      x-incipit-cached-tokens: 1184       prompt tokens found in the prefix cache
 *      x-incipit-prompt-tokens: 1201       all prompt tokens
 *      x-incipit-cached-tiers: host=512    of the cached ones, found below the device: by tier
 *      x-incipit-restored-tokens: 512      brought for this request from tiers and other workers, in
 *      x-incipit-restore-us: 41000         so many microseconds
 *      x-incipit-load: running=3 waiting=0 queued_tokens=1200 kv_free=812 kv_total=1024 draining=0
 *
 * In the head of a refusal: x-incipit-reason: draining, when another worker should be used at once.
 *
 * From the router: x-incipit-chain (common/protocol/request_events.h), and x-incipit-salt, 64
 * hexadecimal digits, mixed into the first block's hash by workers that trust the router. And
 *
 *      x-incipit-kv-source: 10.0.0.7:8000;tokens=1184;computed=1100
 *
 * a worker that probably holds the KV of so many of the prompt's first tokens, for one that has a
 * kv_peer of the same fingerprint in /server_info; `computed`: so many of them, the last, it has
 * computed for this request alone, which are no hit. And
 *
 *      x-incipit-prefill: 1
 *
 * with a request that another worker will answer: its prompt is computed, and the answer has the
 * tokens of it in its head and no output. And GET /server_info.
 *
 * A reader ignores unknown parts and rejects malformed ones: a malformed load report counts as
 * none. Pure; any thread. */
#ifndef COMMON_PROTOCOL_WIRE_H
#define COMMON_PROTOCOL_WIRE_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/protocol/api.h"

struct json_writer;

#define WIRE_VERSION 1

/* All ours begin so: stripped from clients, not relayed from workers. In small letters, by which
 * http_name_of finds them in any. */
#define WIRE_PREFIX        "x-incipit-"
#define WIRE_CACHED_TOKENS "x-incipit-cached-tokens"
#define WIRE_PROMPT_TOKENS "x-incipit-prompt-tokens"
#define WIRE_CACHED_TIERS  "x-incipit-cached-tiers"
#define WIRE_RESTORED      "x-incipit-restored-tokens"
#define WIRE_RESTORE_US    "x-incipit-restore-us"
#define WIRE_KV_SOURCE     "x-incipit-kv-source"
#define WIRE_PREFILL       "x-incipit-prefill"
#define WIRE_LOAD          "x-incipit-load"
#define WIRE_SALT          "x-incipit-salt"
#define WIRE_SALT_CHARS    64
#define WIRE_REASON        "x-incipit-reason"
#define WIRE_DRAINING      "draining"
#define WIRE_ROUTE         "x-incipit-route"     /* to a router: why there? and its answer */
#define WIRE_ADMIN_KEY     "x-incipit-admin-key" /* to a router: an operator asks */
#define WIRE_INFO_PATH     "/server_info"

/* A router answers there {"router":"incipit-1f2e..."}, its name, and puts the name into Via. */
#define WIRE_ROUTER      "router"
#define WIRE_ROUTER_NAME "incipit-"

struct wire_load {
    uint32_t running, waiting;  /* requests */
    uint64_t queued_tokens;     /* prompt tokens accepted and not yet computed */
    uint64_t kv_free, kv_total; /* blocks; cached but unused ones count as free */
    bool draining;
};

/* "running=3 waiting=0 ...", terminated; returns its length. */
#define WIRE_LOAD_MAX 160
size_t wire_format_load(const struct wire_load *load, char out[WIRE_LOAD_MAX]);

/* Strict: name=number separated by single spaces, known names once, all but unknown ones required.
 * ST_INVALID leaves *out untouched. */
MUST_USE enum status wire_parse_load(struct str value, struct wire_load *out);

/* A token count header: decimal, at most 2^31 - 1. */
MUST_USE enum status wire_parse_tokens(struct str value, uint32_t *out);

/* The value of WIRE_CACHED_TIERS, NAME=TOKENS separated by single spaces: the sum of all tokens, at
 * most 2^31 - 1. */
MUST_USE enum status wire_parse_tiers(struct str value, uint32_t *out);

/* A salt: WIRE_SALT_CHARS lower-case hexadecimal digits. */
bool wire_is_salt(struct str value);

#define WIRE_MODEL_MAX       256
#define WIRE_NAMES_MAX       512
#define WIRE_BACKEND_MAX     32
#define WIRE_GENERATION_MAX  40
#define WIRE_DEVICE_MAX      64
#define WIRE_UUID_MAX        48
#define WIRE_DTYPE_MAX       16
#define WIRE_TIER_NAME_MAX   16
#define WIRE_POLICY_MAX      32
#define WIRE_FORMAT_MAX      32
#define WIRE_TIERS_MAX       4
#define WIRE_FINGERPRINT_MAX 80
#define WIRE_ROLE_MAX        16

/* Where a worker keeps KV blocks that have left its device: what is found there need not be
 * computed. In JSON also `medium`, which is the name, and `capacity_tokens`. */
struct wire_tier {
    char name[WIRE_TIER_NAME_MAX]; /* "host" */
    uint64_t n_blocks;             /* of block_size */
    double restore_tokens_per_s;   /* to the device, as measured; 0: unknown */
    bool is_inclusive;             /* what is restored stays here too */
};

/* A worker that exchanges KV blocks with others; `fingerprint` is "" without. */
struct wire_kv_peer {
    char generation[WIRE_GENERATION_MAX];
    char fingerprint[WIRE_FINGERPRINT_MAX]; /* equal for those that can use each other's blocks */
    uint64_t bytes_per_token;
    bool is_encrypted;
};

struct wire_server_info {
    uint32_t wire; /* the sender's WIRE_VERSION */
    char model[WIRE_MODEL_MAX];
    char other_names[WIRE_NAMES_MAX];       /* that clients may call it too: wire_names_next */
    char backend[WIRE_BACKEND_MAX];         /* "cpu", "cuda", "sim", "ref" */
    char path[WIRE_BACKEND_MAX];            /* instruction path: "avx512", "sm_90" */
    char device[WIRE_DEVICE_MAX];           /* its name, for people */
    char uuid[WIRE_UUID_MAX];               /* of a GPU, "GPU-..."; else "" */
    char dtype[WIRE_DTYPE_MAX];             /* of the weights: "bfloat16" */
    char quantization[WIRE_BACKEND_MAX];    /* of the checkpoint: "gptq", "none" */
    char kv_dtype[WIRE_DTYPE_MAX];          /* of K and V */
    uint32_t tensor_parallel_size;          /* devices that one model is divided over; 0: unknown */
    uint32_t block_size;                    /* tokens per KV block */
    uint64_t n_blocks;                      /* usable blocks on the device */
    struct wire_tier tiers[WIRE_TIERS_MAX]; /* below the device, nearest first */
    uint32_t n_tiers;
    uint32_t max_model_len;      /* tokens */
    uint32_t max_num_seqs;       /* requests in one batch; 0: unknown */
    bool trusts_router;          /* takes x-incipit-salt */
    bool publishes_events;       /* takes x-incipit-chain, and has request_events.h's stream */
    double prefill_tokens_per_s; /* measured or estimated; 0: unknown */
    double attn_context;         /* tokens at which attention doubles the cost of one; 0: unknown */
    uint64_t kv_bytes_per_token; /* 0: unknown */
    struct wire_kv_peer kv_peer;
    char role[WIRE_ROLE_MAX]; /* "prefill", "decode", "both"; "": it takes no x-incipit-prefill */
    char schedule_policy[WIRE_POLICY_MAX]; /* "fcfs", "priority", "srpt"; "": not reported */
    char tool_calls[WIRE_FORMAT_MAX];      /* how they are read: "hermes", "none"; "": unknown */
    char reasoning[WIRE_FORMAT_MAX];
    uint32_t chunk_tokens;                  /* most tokens of a step; 0: unknown */
    double itl_target_ms;                   /* that steps with decoding requests keep to; 0: none */
    char generation[WIRE_GENERATION_MAX];   /* new at each start of the worker */
    char response_mark[API_MARK_CHARS + 1]; /* of the responses that it stores (api.h); "": none */
};

/* Adds a name to a text of names; one that finds no room, or cannot stand in it, is left out. */
void wire_names_add(char names[WIRE_NAMES_MAX], struct str name);

/* The next of a text of names at *cursor, STR_NULL at the end. */
struct str wire_names_next(const char **cursor);

/* Blocks of all tiers below the device; the mean speed of bringing one of them back, 0 when no tier
 * reports its own. */
uint64_t wire_tier_blocks(const struct wire_server_info *info);
double wire_restore_tokens_per_s(const struct wire_server_info *info);

void wire_put_tiers(struct json_writer *w, const struct wire_server_info *info);    /* a member */
void wire_append_server_info(struct buf *out, const struct wire_server_info *info); /* JSON */

/* Reads what wire_append_server_info wrote; unknown members are ignored, `wire` is required, others
 * that are missing are zero, and tiers beyond WIRE_TIERS_MAX count as part of the last. ST_INVALID
 * leaves *out untouched. A higher `wire` is the caller's to warn about. */
MUST_USE enum status wire_parse_server_info(struct str json, struct wire_server_info *out,
                                            struct error *err);

#endif

/* worker/api/api.h - what every handler of the worker's API needs; built once by worker.c. */
#ifndef WORKER_API_API_H
#define WORKER_API_API_H

#include "common/base/buf.h"
#include "common/base/list.h"
#include "common/base/rng.h"
#include "common/net/loop.h"
#include "common/options/options.h"
#include "common/protocol/api.h"
#include "worker/engine/engine.h"
#include "worker/model/config.h"
#include "worker/output/output_format.h"

struct access;
struct chat_template;
struct grammar_thread;
struct http_request;
struct json;
struct log;
struct metrics;
struct peer_server;
struct request_feed;
struct prompt_history;
struct responses_store;
struct text_thread;
struct tokenizer;
struct wire_load;

/* What a client may learn of why its prompt was not cached. */
enum cache_explain { EXPLAIN_OFF, EXPLAIN_OWN, EXPLAIN_POSITION, EXPLAIN_FULL };

struct api {
    struct loop *loop;
    struct log *log;
    struct metrics *metrics;
    struct engine *engine;
    const struct tokenizer *tokenizer;
    const struct chat_template *chat_template;
    struct text_thread *text_thread;
    struct grammar_thread *grammar_thread;
    const struct generation_config *defaults;
    bool takes_late_system; /* by the template: a message of the system after the user */
    const struct json *template_kwargs;    /* variables of the chat template; NULL */
    struct output_model output_model;      /* what formats are found in */
    const struct call_format *call_format; /* how the model writes tool calls; NULL: as text */
    const struct reasoning_format *reasoning_format; /* and its reasoning; NULL: as text */
    const char *model_name;            /* as clients call it, and as answers have it */
    const char *quantization;          /* of the checkpoint: "gptq", "none" */
    struct option_list other_names;    /* that clients may call it too */
    bool tokens_as_ids;                /* in logprobs, where a request is silent */
    const struct access *access;       /* keys that requests must have; NULL: none */
    struct str root_path;              /* beginning of paths that is passed over */
    const char *model_root;            /* its folder, or the name again */
    uint64_t created_s;                /* of the model list */
    uint32_t max_num_seqs;             /* as reported to routers */
    bool trusts_router;                /* x-incipit-salt is trusted */
    struct rng rng;                    /* ids */
    struct rng seeds;                  /* of requests without one */
    bool is_draining;                  /* nothing new is accepted */
    bool is_ending;                    /* no call is started any more: api_end_calls */
    bool awaits_tokenized;             /* before the engine is drained: api_drain */
    uint32_t n_tokenizing;             /* calls that the engine has not got yet */
    void (*on_drain_asked)(void *arg); /* POST /admin/drain */
    void *on_drain_asked_arg;
    struct list calls;                      /* open ones */
    struct request_feed *request_feed;      /* publishes them to routers; NULL: disabled */
    struct kv_event_log *kv_events;         /* NULL: switched off */
    struct responses_store *responses;      /* stored ones; NULL: none are */
    char response_mark[API_MARK_CHARS + 1]; /* in their ids, for routers; else "" */
    struct prompt_history *prompts;         /* of Messages and Responses, to be compared */
    struct peer_server *peers;              /* gives other workers KV blocks; NULL: off */
    bool is_peer_sealed;                    /* they are encrypted */
    const char *role;                       /* that routers prefer it for: "both", "prefill" ... */
    struct list kv_streams;                 /* its streams */
    uint32_t n_kv_streams, max_kv_streams;
    enum cache_explain cache_explain;
    uint64_t keepalive_us;        /* of streams that wait for a first token; 0: none */
    struct loop_timer keep_alive; /* see keep_alive.c */
};

/* For the server's on_head: has the request a key, where one is needed? */
MUST_USE enum status api_admit(struct api *api, struct http_request *req, struct error *err);

/* The router of paths: answers every request. */
void api_handle(struct api *api, struct http_request *req);

/* What the client calls its request: the header x-request-id, of at most API_NAME_MAX visible
 * characters, or STR_NULL. Every answer repeats it. */
#define API_NAME_MAX 128
struct str api_request_name(const struct http_request *req);

/* For the engine's callback: progress of a request that a call has submitted. */
void api_on_progress(struct api *api, struct request *r, const struct request_progress *progress);

/* Comments for streams that have been silent for --sse-keepalive-s while their prompt is computed;
 * fini before the loop goes. `s` 0: none. */
void api_keep_alive_init(struct api *api);
void api_keep_alive_set(struct api *api, double s);
void api_keep_alive_fini(struct api *api);

/* For the engine's callback: a dry run has its answer. */
void api_on_explained(struct api *api, struct request *r);

/* For the engine's callback: the event log has new batches. */
void api_on_kv_events(struct api *api);
/* Ends the streams of events, each with a reason; before draining, which would wait for them. */
void api_end_kv_streams(struct api *api, const char *reason);

/* Refuses new requests from here on, with a reason that makes routers use another worker; accepted
 * requests are finished, also those still being tokenized. The engine then reports that it is
 * drained. */
void api_drain(struct api *api);

/* Ends every open call with an error; before the engine is destroyed. */
void api_end_calls(struct api *api);

/* --- for handlers ----------------------------------------------------------------------------- */

void api_load(struct api *api, struct wire_load *out); /* as routers read it */

/* Is that a name of the model? */
bool api_serves(const struct api *api, struct str name);

/* Adds Retry-After to a refusal by `st` that is about to be sent; nothing to other responses. */
void api_add_retry(const struct api *api, struct http_request *req, enum status st);

/* Is a client with that address (http_request_client) on this machine? */
bool api_is_loopback(struct str address);

/* True: the worker is draining, and the request, which is new, has been answered so. */
bool api_refuses_new(const struct api *api, struct http_request *req);

#endif

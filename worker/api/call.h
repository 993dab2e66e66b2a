/* worker/api/call.h - one client call: prompts in, samples out, whole or as a stream.
 *
 *      handler                call                                  engine
 *      parse, render ──▶ call_add_prompt ... call_start
 *                          tokenize (text thread when long); compile a grammar (grammar thread)
 *                          one request per prompt and sample ─────▶ submit
 *      shape->chunk  ◀──   detokenize, match stop strings   ◀──── progress
 *      shape->body   ◀──   all choices finished
 *
 * The response head leaves with the first token, stream or not: it carries how much of the prompt
 * was cached and how busy the worker is, and by it the router counts a first token. Until then an
 * error is an ordinary error answer. Where a grammar may fail at any token and nothing is streamed,
 * the head leaves with the whole. The head of a stream whose prompt takes longer than
 * --sse-keepalive-s leaves earlier, with comments behind it (keep_alive.c); the numbers then come
 * in a comment before the first event, and an error is an event:
 *
 *      : keep-alive
 *      : {"prompt_tokens":1201,"cached_tokens":1184}
 *      data: {"choices": ...
 *
 * A *shape* is how one kind of call writes its answers (shapes/). A call frees itself when it is
 * answered, or when the client left and the engine and the text thread have let go. Thread: worker
 * loop. */
#ifndef WORKER_API_CALL_H
#define WORKER_API_CALL_H

#include "common/base/buf.h"
#include "common/protocol/wire.h"
#include "worker/api/api.h"
#include "worker/api/fields/params.h"
#include "worker/api/fields/reasoning_fields.h"
#include "worker/api/fields/tool_fields.h"
#include "worker/api/stores/prompt_history.h"
#include "worker/grammar/grammar_thread.h"
#include "worker/output/answer.h"
#include "worker/output/reader.h"
#include "worker/text/detokenize.h"
#include "worker/text/stop.h"
#include "worker/text/text_thread.h"

struct call;
struct json;
struct truncation;

#define CALL_ID_MAX    (API_NAME_MAX + 32)
#define CALL_OUT_LIMIT (1u << 30) /* one answer; prompts and outputs are limited long before */

struct choice {
    struct call *call;
    uint32_t index;          /* prompt * n + sample */
    uint32_t shown;          /* as the answer numbers it; differs where the best of n are shown */
    struct request *request; /* one reference; NULL before submission */
    struct detokenizer detokenizer;
    struct stop_matcher stop;
    struct buf text;       /* all of it so far: whole answers, and cumulative streams */
    struct buf delta;      /* since the last chunk */
    struct reader *reader; /* of shapes with reads_answer, instead of text: into `answer` */
    struct answer answer;
    struct answer_mark sent; /* of the answer, to a stream */
    uint32_t n_used;         /* output tokens that count: up to a stop string */
    uint32_t n_reasoning;    /* of these, inside of reasoning; its markers aside */
    uint32_t n_reported;     /* of these, in earlier chunks (logprobs, ids) */
    size_t text_offset;      /* characters of prompt and output before the next logprob */
    bool is_done, is_engine_done, has_begun;
    bool is_echoed; /* an earlier chunk held the prompt */
    enum finish_reason finish;
};

struct prompt {
    struct call *call;
    struct text_job job;
    bool is_text;    /* or ids were given */
    struct buf text; /* owned copy of what is tokenized */
};

/* The beginning of the rendered prompt; SIZE_MAX bytes: all of it. */
struct call_keep {
    size_t n_bytes;
    uint32_t ttl_s;
};

struct call_shape {
    const char *id_prefix;                   /* "cmpl-" */
    const char *prompt_field, *length_field; /* as this kind of call names them, for errors */
    bool is_prewarm;                         /* the prompt is all that it is for */
    bool is_cumulative;                      /* chunks carry all text and tokens so far (SGLang) */
    bool reads_answer; /* choices have a reader, set up by call->output, and an answer */
    bool names_events; /* and writes the whole of them; no [DONE] follows */
    void (*open_stream)(
        struct call *c); /* sends what comes before the first chunks; NULL: nothing */
    /* Appends the JSON of one event for ch: its delta, and the finish reason when it is done. */
    void (*chunk)(struct call *c, struct choice *ch, struct buf *out);
    /* Instead of chunk: sends any number of events. The last call is for a choice that is done. */
    void (*send)(struct call *c, struct choice *ch);
    void (*usage_chunk)(struct call *c, struct buf *out); /* NULL: none */
    void (*body)(struct call *c, struct buf *out);        /* the whole answer */
    /* Instead of it, once all choices have ended; the head waits for it, and it releases the call
     * and answers c->req, or takes that over. NULL: the answer is `body`. */
    void (*computed)(struct call *c);
};

struct call {
    struct list link;              /* on api->calls */
    struct list followers, follow; /* of is_prewarm: calls with its prompt that wait until it is
                                    * computed; and the link of such a one */
    struct api *api;
    struct http_request *req; /* NULL once answered or abandoned */
    const struct call_shape *shape;
    struct call_shape prefill; /* what `shape` is, if another worker answers (prefill.c) */
    struct json *json;         /* the request; params point into it */
    struct json *asked; /* what the client sent, where `json` is its translation to chat; or NULL */
    struct call_keep keep[KV_RETAIN_MAX]; /* (n_keep) what of the prompt its client wants cached */
    uint32_t n_keep;
    size_t n_prefix_bytes; /* of the rendered prompt, that others share; 0: unknown */
    struct str compared;   /* the earlier request that its client compares the prompt with */
    struct prompt_diagnosis diagnosis; /* that comparison, once the prompt is computed */
    struct call_params params;
    char id[CALL_ID_MAX];
    uint64_t created_s, arrival_us;
    uint64_t
        event_id; /* of its request events (request_feed.h); 0: none, or the end is published */
    struct prompt *prompts;
    struct truncation *truncation; /* of a prompt that may be shortened (truncation.h); NULL */
    struct grammar_job grammar;    /* what constrains its answers, while it is compiled and then */
    struct tool_fields tools;      /* of shapes with reads_answer, as the next two */
    struct reasoning_fields reasoning;
    struct reader_setup output; /* of shapes with reads_answer */
    struct choice *choices;
    uint32_t *shown; /* the choices in the answer, in its order; NULL: all, in theirs */
    uint32_t n_prompts, n_choices, n_open;
    uint32_t n_unready; /* prompts that are tokenized, and a grammar that is compiled */
    struct buf out;
    uint64_t comment_us; /* of the latest comment */
    uint64_t n_events;   /* of names_events: sent so far, where they are numbered */
    uint32_t n_blocks;   /* of names_events: parts begun so far, as the stream numbers them */
    bool has_head;
    bool has_begun;                 /* its first token is there */
    bool is_incomplete;             /* out of memory: something of the answer is lost */
    char salt[WIRE_SALT_CHARS + 1]; /* the router's, behind params; else unused */
    bool is_dry_run;                /* /cache/explain: nothing is computed */
    bool is_list;                   /* the prompts came as an array */
    bool is_aborted;                /* /abort_request: what there is, is the answer */
    bool is_whole;                  /* it was answered, in full */
    int32_t n_logprobs;             /* -1: none wanted */
    struct str role, echo;          /* chat: of the answer, and what stands before it */
    uint32_t logprob_start;         /* SGLang: first prompt token whose logprob is shown */
};

/* Takes the request and its parsed body. The handler then fills in params and the flags, adds the
 * prompts and starts; on an error before that it calls call_fail. */
struct call *call_create(struct api *api, struct http_request *req, const struct call_shape *shape,
                         struct json *json);

/* What most handlers begin with: parses the body, creates the call, reads it. NULL when that was
 * answered with an error. */
typedef enum status call_read_fn(struct call *c, const struct json *root, struct error *err);
MUST_USE struct call *call_open(struct api *api, struct http_request *req,
                                const struct call_shape *shape, call_read_fn *read);

/* Reads the fields that all calls but SGLang's share. `reads_answer`: those of reasoning are the
 * caller's to read. */
MUST_USE enum status call_read_params(struct call *c, bool reads_answer, struct error *err);
struct params_context call_params_context(struct api *api);

/* ST_NOMEM, or ST_INVALID over the limit on prompts. Text is copied. */
#define CALL_MAX_PROMPTS 256
MUST_USE enum status call_set_prompts(struct call *c, uint32_t n, struct error *err);
MUST_USE enum status call_prompt_text(struct call *c, uint32_t i, struct str text, uint32_t flags,
                                      struct error *err);
MUST_USE enum status call_prompt_ids(struct call *c, uint32_t i, const struct json *ids,
                                     struct error *err);

/* Of calls with one prompt: OpenAI's fields by which a client asks to keep it. */
MUST_USE enum status call_read_ttl(struct call *c, const struct json *body, struct error *err);

/* The client of a request: the tenant that a router names by its salt; without one the holder of
 * the API key, where keys are required. 0: unknown. */
uint64_t call_holder(const struct api *api, const struct http_request *req);

/* Whose earlier requests a request may name: its holder's, of one salt. A router that is not
 * trusted isolates tenants by the field cache_salt. */
uint64_t call_owner(const struct call *c);
/* For a salt that the client gave: none makes one owner another, for it is not to be computed. */
uint64_t call_owner_of(const struct api *api, const struct http_request *req, struct str salt);

/* Of shapes with one prompt, once its first token is there: compares the prompt with that of
 * `compared`, and remembers it. */
void call_diagnose(struct call *c);

/* Ends the open calls of that id, or all: each answers with what it has, "abort" as its reason. */
uint32_t api_abort_calls(struct api *api, struct str id, bool all);

void call_start(struct call *c);
void call_fail(struct call *c, enum status st, const struct error *err); /* answers and frees */

/* Its prompt is computed, or waits for it, and its client reads a stream. */
bool call_awaits_first_token(const struct call *c);
void call_comment(struct call *c); /* ": keep-alive", and the head before the first */

void call_release(struct call *c); /* it is answered: frees it, at once or when others let go */

/* --- for shapes ------------------------------------------------------------------------------- */

struct call_usage {
    const struct call *explained; /* its cache explanation goes into the response; NULL: none */
    uint64_t prompt_tokens, completion_tokens, cached_tokens;
    uint64_t restored_tokens, restore_us; /* awaited from a tier below host memory or another
                                           * worker; for so long, at most. Of the cached ones, and
                                           * of those that were computed for this request there */
    uint64_t host_tokens;                 /* of the cached ones, brought back from host memory: */
    bool has_host;                        /* which this worker has */
    uint64_t reasoning_tokens;            /* of the completion */
    bool has_reasoning;                   /* which is read from these answers */
};
struct call_usage call_usage(const struct call *c);

/* Sends c->out as an event, or as the events that it is, and clears it. */
void call_send_event(struct call *c);
void call_send_events(struct call *c);

struct json_writer;
void call_put_usage(struct json_writer *w, const struct call_usage *usage); /* with its key */
void call_put_chunk_usage(struct json_writer *w, const struct call *c);     /* as requested */
const char *call_finish_name(const struct choice *ch); /* "stop", or NULL while it runs */
void call_put_stop_reason(struct json_writer *w, const struct choice *ch); /* the value */
struct prompt *call_prompt_of(const struct choice *ch);

/* "prompt_token_ids": those of the choice's prompt. */
void call_put_prompt_ids(struct json_writer *w, const struct choice *ch);

/* The text of the first n_prompt tokens of the choice's request, for echo. */
void call_append_prompt_text(const struct choice *ch, struct buf *out);

#endif

/* worker/api/call.c - a call from start to end; call.h has the drawing.
 *
 * Ownership: the http_request belongs to the call until it is answered or on_abort came. A request
 * of the engine may outlive the call (a cancel is under way): then its owner is NULL and the engine
 * holds it. The text thread may hold a job: then the call is freed when the last one has come back.
 * */
#include "worker/api/call.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/net/loop.h"
#include "common/protocol/openai.h"
#include "common/protocol/wire.h"
#include "common/telemetry/log.h"
#include "common/text/json.h"
#include "worker/api/body.h"
#include "worker/api/cache_explain.h"
#include "worker/api/events/request_feed.h"
#include "worker/api/samples.h"
#include "worker/metrics/worker_metrics.h"
#include "worker/text/tokenizer/tokenizer.h"

#define PENDING_MAX (256u << 10) /* bytes a reader may be behind before its events are merged */

static void call_free(struct call *c) {
    for (uint32_t i = 0; i < c->n_prompts; i++) {
        token_list_fini(&c->prompts[i].job.tokens);
        buf_fini(&c->prompts[i].text);
    }
    mem_free(c->prompts);
    mem_free(c->choices);
    mem_free(c->shown);
    json_destroy(c->json);
    grammar_unref(c->grammar.grammar);
    call_params_fini(&c->params);
    buf_fini(&c->out);
    mem_free(c);
}

static void choice_fini(struct choice *ch) {
    struct request *r = ch->request;

    stop_matcher_fini(&ch->stop);
    buf_fini(&ch->text);
    buf_fini(&ch->delta);
    ch->request = NULL;
    if (!r) return;
    r->owner = NULL;
    if (!ch->is_engine_done) engine_cancel(ch->call->api->engine, r);
    request_unref(r);
}

/* --- request events for routers --------------------------------------------------------------- */

/* One event for all prompts and samples. Ids are counted as four bytes each, about what text
 * has. */
static void publish_accepted(struct call *c) {
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < c->n_prompts; i++) {
        const struct prompt *p = &c->prompts[i];

        n_bytes += p->is_text ? buf_len(&p->text) : 4 * p->job.tokens.n;
    }
    c->event_id = request_feed_accepted(c->api->request_feed, c->req, n_bytes);
}

static void publish_ended(struct call *c) {
    uint64_t n_tokens = 0;

    for (uint32_t i = 0; i < c->n_choices; i++)
        n_tokens += c->choices[i].n_used;
    request_feed_ended(c->api->request_feed, c->event_id, n_tokens, !c->is_whole);
    c->event_id = 0;
}

/* One call less that the engine has not got. */
static void leave_unready(struct api *api) {
    api->n_tokenizing--;
    if (api->awaits_tokenized) api_drain(api);
}

/* The client is served or gone: releases everything that the engine or a text thread does not hold.
 * Every call ends here, once. */
void call_release(struct call *c) {
    if (list_is_linked(&c->link)) list_remove(&c->link);
    publish_ended(c);
    c->req = NULL;
    for (uint32_t i = 0; i < c->n_prompts; i++)
        atomic_store(&c->prompts[i].job.is_cancelled, true);
    for (uint32_t i = 0; i < c->n_choices; i++)
        choice_fini(&c->choices[i]);
    c->n_choices = 0;
    if (grammar_thread_cancel(&c->grammar) && --c->n_unready == 0) leave_unready(c->api);
    if (c->n_unready == 0) call_free(c);
}

static void on_abort(struct http_request *req) {
    call_release(req->user);
}

struct call *call_create(struct api *api, struct http_request *req, const struct call_shape *shape,
                         struct json *json) {
    struct call *c = mem_zalloc(sizeof(*c));

    c->api = api;
    c->req = req;
    c->shape = shape;
    c->json = json;
    c->n_logprobs = -1;
    c->created_s = clock_wall_us() / 1000000;
    c->arrival_us = loop_now_us(api->loop);
    snprintf(c->id, sizeof(c->id), "%s%016llx%016llx", shape->id_prefix,
             (unsigned long long)rng_u64(&api->rng), (unsigned long long)rng_u64(&api->rng));
    buf_init(&c->out, CALL_OUT_LIMIT);
    req->user = c;
    req->on_abort = on_abort;
    list_push_back(&api->calls, &c->link);
    return c;
}

void call_fail(struct call *c, enum status st, const struct error *err) {
    struct http_request *req = c->req;
    const struct api *api = c->api;

    call_release(c);
    api_add_retry(api, req, st);
    http_reply_error(req, st, err);
}

struct call *call_open(struct api *api, struct http_request *req, const struct call_shape *shape,
                       call_read_fn *read) {
    struct json *root;
    struct error err = {0};
    struct call *c;
    enum status st;

    if (api_refuses_new(api, req)) return NULL;
    st = body_parse(&root, api, req, &err);
    if (st != ST_OK) {
        http_reply_error(req, st, &err);
        return NULL;
    }
    c = call_create(api, req, shape, root);
    st = read(c, root, &err);
    if (st == ST_OK) return c;
    call_fail(c, st, &err);
    return NULL;
}

struct params_context call_params_context(struct api *api) {
    return (struct params_context){.defaults = api->defaults,
                                   .limits = &engine_info(api->engine)->limits,
                                   .tokenizer = api->tokenizer,
                                   .tokens_as_ids = api->tokens_as_ids,
                                   .seeds = &api->seeds};
}

/* A client that names its request finds the name again in the answer and in /abort_request: the
 * field request_id, or else the header x-request-id, which a router always sends. */
static enum status read_id(struct call *c, struct error *err) {
    struct str id;
    bool is_present;
    enum status st = json_get_str(c->json, "request_id", API_NAME_MAX, &id, &is_present, err);

    if (st != ST_OK) return st;
    if (!is_present) id = api_request_name(c->req);
    if (id.len > 0) snprintf(c->id, sizeof(c->id), "%s%.*s", c->shape->id_prefix, STR_ARG(id));
    return ST_OK;
}

enum status call_read_params(struct call *c, struct error *err) {
    struct params_context ctx = call_params_context(c->api);
    enum status st = call_params_parse(&c->params, c->json, &ctx, err);

    return st == ST_OK ? read_id(c, err) : st;
}

/* --- prompts ---------------------------------------------------------------------------------- */

static void on_tokenized(struct text_job *job);

enum status call_set_prompts(struct call *c, uint32_t n, struct error *err) {
    if (n == 0 || n > CALL_MAX_PROMPTS) {
        return error_set_param(err, ST_INVALID, c->shape->prompt_field,
                               "the request has %u prompts: send 1 to %u prompts in one request", n,
                               CALL_MAX_PROMPTS);
    }
    c->prompts = mem_try_zalloc(n * sizeof(*c->prompts));
    if (!c->prompts) return error_set(err, ST_NOMEM, "out of memory for %u prompts", n);
    c->n_prompts = n;
    for (uint32_t i = 0; i < n; i++) {
        c->prompts[i].call = c;
        c->prompts[i].job.on_done = on_tokenized;
        buf_init(&c->prompts[i].text, 0);
    }
    return ST_OK;
}

enum status call_prompt_text(struct call *c, uint32_t i, struct str text, uint32_t flags,
                             struct error *err) {
    struct prompt *p = &c->prompts[i];

    buf_append_str(&p->text, text);
    if (buf_status(&p->text) != ST_OK) {
        return error_set(err, ST_NOMEM, "out of memory for a prompt of %zu bytes", text.len);
    }
    p->is_text = true;
    p->job.text = buf_str(&p->text);
    p->job.flags = flags;
    return ST_OK;
}

enum status call_prompt_ids(struct call *c, uint32_t i, const struct json *ids, struct error *err) {
    uint32_t vocab = engine_info(c->api->engine)->limits.vocab;
    enum status st = ST_OK;
    uint64_t id;

    JSON_FOR_EACH(it, ids) {
        if (json_to_u64(it, &id) != ST_OK || id >= vocab) {
            return error_set_param(err, ST_INVALID, c->shape->prompt_field,
                                   "a prompt of token ids must hold integers below %u", vocab);
        }
        st = token_list_push(&c->prompts[i].job.tokens, (uint32_t)id);
        if (st != ST_OK) return error_set(err, st, "out of memory for the prompt");
    }
    return st;
}

/* --- to the engine ---------------------------------------------------------------------------- */

/* What no answer depends on, but whether there can be one. */
static enum status check_call(const struct call *c, struct error *err) {
    const struct engine_info *info = engine_info(c->api->engine);
    uint32_t n = c->n_prompts * c->params.n;

    if (n > info->max_waiting) {
        return error_set_param(err, ST_INVALID, "n",
                               "%u prompts with n = %u are %u sequences, more than the %u that may "
                               "wait on this worker: send several requests",
                               c->n_prompts, c->params.n, n, info->max_waiting);
    }
    if (c->params.request.priority != 0 && !info->is_by_priority) {
        return error_set_param(err, ST_INVALID, "priority",
                               "priority %d needs priority scheduling: leave it out, or start the "
                               "worker with --schedule-policy priority or srpt",
                               (int)c->params.request.priority);
    }
    return ST_OK;
}

/* Who shares the device fairly with others: the tenant that a router names by its salt; without one
 * the holder of the API key, where keys are required; else those of one cache_salt. 0: no one. */
static uint64_t tenant_of(const struct call *c) {
    const struct request_params *r = &c->params.request;
    struct str by = STR_NULL;

    if (c->api->trusts_router) by = http_request_header(c->req, STR(WIRE_SALT));
    if (!by.ptr && c->api->access) by = http_request_header(c->req, STR("authorization"));
    if (!by.ptr && r->cache_salt) by = (struct str){r->cache_salt, r->cache_salt_len};
    return by.len ? hash_64(by.ptr, by.len, 0) : 0;
}

/* The router isolates tenants by its salt, the client may add its own: both are hashed into one, so
 * that neither can imitate the other. */
static enum status take_router_salt(struct call *c, struct error *err) {
    static const char hex[] = "0123456789abcdef";
    struct request_params *r = &c->params.request;
    struct str given = http_request_header(c->req, STR(WIRE_SALT));
    uint8_t digest[SHA256_BYTES];

    if (!c->api->trusts_router || !given.ptr) return ST_OK;
    if (!wire_is_salt(given)) {
        return error_set(err, ST_INVALID, WIRE_SALT " must have %d hexadecimal digits",
                         WIRE_SALT_CHARS);
    }
    hash_hmac_sha256(given.ptr, given.len, r->cache_salt ? r->cache_salt : "", r->cache_salt_len,
                     digest);
    for (size_t i = 0; i < SHA256_BYTES; i++) {
        c->salt[2 * i] = hex[digest[i] >> 4];
        c->salt[2 * i + 1] = hex[digest[i] & 15];
    }
    r->cache_salt = c->salt;
    r->cache_salt_len = WIRE_SALT_CHARS;
    return ST_OK;
}

/* Truncates a prompt to the requested length; echo then shows the rest. */
static void truncate_prompt(struct prompt *p, const struct call_params *params) {
    struct token_list *tokens = &p->job.tokens;
    uint32_t max = params->max_prompt_tokens;

    if (max == 0 || tokens->n <= max) return;
    if (!params->keeps_beginning) {
        memmove(tokens->ids, tokens->ids + tokens->n - max, max * sizeof(*tokens->ids));
    }
    tokens->n = max;
    p->is_text = false;
}

/* Why a prompt is no list of tokens, or why it is one that is too long. */
static enum status check_tokenized(const struct call *c, const struct prompt *p,
                                   struct error *err) {
    *err = p->job.err;
    if (!p->job.has_too_many) return p->job.status;
    return error_set_param(err, ST_INVALID, c->shape->prompt_field,
                           "this model's maximum context length is %u tokens, output included, but "
                           "the prompt has more than %u tokens: shorten the prompt",
                           engine_info(c->api->engine)->max_model_len, p->job.max_tokens);
}

/* Why there is no grammar where one is asked for. */
static enum status check_grammar(struct call *c, struct error *err) {
    const char *field = c->params.grammar.field;
    const struct grammar_job *job = &c->grammar;

    if (!field) return ST_OK;
    c->params.request.grammar = job->grammar;
    if (job->status == ST_OK) return ST_OK;
    if (job->status != ST_INVALID) return error_set(err, job->status, "%s", job->err.message);
    log_event(c->api->log, LOG_INFO, "grammar_refused", log_z("id", c->id), log_z("field", field));
    return error_set_param(err, job->status, field, "%s: %s", field, job->err.message);
}

static void launch(struct call *c) {
    struct error err = {0};
    enum status st = check_call(c, &err);

    if (st == ST_OK && c->is_aborted) {
        st = error_set(&err, ST_UNAVAILABLE, "the request was aborted before it began");
    }

    c->params.request.tenant = tenant_of(c);
    if (st == ST_OK) st = check_grammar(c, &err);
    if (st == ST_OK) st = take_router_salt(c, &err);
    if (st == ST_OK) st = cache_explain_check(c, &err);
    for (uint32_t i = 0; i < c->n_prompts && st == ST_OK; i++) {
        st = check_tokenized(c, &c->prompts[i], &err);
        truncate_prompt(&c->prompts[i], &c->params);
    }
    if (st != ST_OK) {
        call_fail(c, st, &err);
        return;
    }
    st = samples_start(c, &err);
    if (st != ST_OK) call_fail(c, st, &err);
}

/* A prompt or the grammar is there. */
static void got_ready(struct call *c) {
    struct api *api = c->api;

    if (--c->n_unready > 0) return;
    if (c->req) {
        launch(c);
    } else {
        call_free(c);
    }
    leave_unready(api);
}

static void on_compiled(struct grammar_job *job) {
    got_ready(CONTAINER_OF(job, struct call, grammar));
}

static void on_tokenized(struct text_job *job) {
    struct call *c = CONTAINER_OF(job, struct prompt, job)->call;

    worker_metrics_observe_text(c->api->metrics, job->submitted_us, job->waited_us);
    got_ready(c);
}

/* What is cut to a length has any; the rest must leave room for one token of an answer. */
static uint32_t most_tokens(const struct call *c) {
    return c->params.max_prompt_tokens ? 0 : engine_info(c->api->engine)->max_model_len - 1;
}

void call_start(struct call *c) {
    c->n_unready = 1; /* ours, so that nothing starts before all jobs are on their way */
    c->api->n_tokenizing++;
    if (!c->is_dry_run) publish_accepted(c);
    for (uint32_t i = 0; i < c->n_prompts; i++) {
        if (!c->prompts[i].is_text) continue;
        c->n_unready++;
        c->prompts[i].job.max_tokens = most_tokens(c);
        text_thread_submit(c->api->text_thread, &c->prompts[i].job);
    }
    if (c->params.grammar.field && !c->is_dry_run) {
        c->n_unready++;
        c->grammar.on_done = on_compiled;
        grammar_thread_submit(c->api->grammar_thread, &c->grammar, &c->params.grammar.spec);
    }
    got_ready(c);
}

/* --- the answer ------------------------------------------------------------------------------- */

static void send_head(struct call *c) {
    struct wire_load now;
    char load[WIRE_LOAD_MAX];

    c->has_head = true;
    api_load(c->api, &now);
    http_add_header(c->req, STR(WIRE_LOAD), (struct str){load, wire_format_load(&now, load)});
    if (c->params.stream) http_add_header(c->req, STR("cache-control"), STR("no-cache"));
    http_stream_begin(c->req, 200, c->params.stream ? HTTP_SSE : OPENAI_JSON);
}

/* In the head, which the router takes for the first token, or behind it in a comment. */
static void send_usage(struct call *c, const struct call_usage *usage) {
    char cached[24], prompt[24], comment[128];

    snprintf(cached, sizeof(cached), "%llu", (unsigned long long)usage->cached_tokens);
    snprintf(prompt, sizeof(prompt), "%llu", (unsigned long long)usage->prompt_tokens);
    if (c->has_head) {
        snprintf(comment, sizeof(comment), ": {\"prompt_tokens\":%s,\"cached_tokens\":%s}\n\n",
                 prompt, cached);
        http_stream_write(c->req, str_of(comment));
        return;
    }
    http_add_header(c->req, STR(WIRE_CACHED_TOKENS), str_of(cached));
    http_add_header(c->req, STR(WIRE_PROMPT_TOKENS), str_of(prompt));
    if (usage->has_host) {
        snprintf(comment, sizeof(comment), "host=%llu", (unsigned long long)usage->host_tokens);
        http_add_header(c->req, STR(WIRE_CACHED_TIERS), str_of(comment));
    }
    send_head(c);
}

/* A grammar may end an answer with an error at any token, and that is the client's: where nothing
 * is streamed, the status waits for the whole. A head that came before would leave no more to do
 * than to break off, which a router takes for a worker that fails. */
static bool head_waits(const struct call *c) {
    return !c->params.stream && c->params.request.grammar;
}

/* The first token is there. */
static void begin_response(struct call *c) {
    struct call_usage usage;

    if (c->has_begun) return;
    c->has_begun = true;
    usage = call_usage(c);
    request_feed_first(c->api->request_feed, c->event_id, usage.prompt_tokens, usage.cached_tokens,
                       usage.has_host ? (int64_t)usage.host_tokens : -1);
    if (!head_waits(c)) send_usage(c, &usage);
    if (c->params.stream && c->shape->open_stream) c->shape->open_stream(c);
}

/* Once the engine has it: what is wrong with the request itself is answered with a status. */
bool call_awaits_first_token(const struct call *c) {
    return c->req && c->params.stream && !c->is_dry_run && !c->has_begun && c->n_open > 0;
}

void call_comment(struct call *c) {
    if (!c->has_head) send_head(c);
    http_stream_write(c->req, STR(": keep-alive\n\n"));
    c->comment_us = loop_now_us(c->api->loop);
}

/* A buf that could not grow has lost a part of the answer. */
static void note_status(struct call *c, const struct buf *b) {
    c->is_incomplete = c->is_incomplete || buf_status(b) != ST_OK;
}

static void send_chunk(struct call *c, struct choice *ch) {
    buf_clear(&c->out);
    c->shape->chunk(c, ch, &c->out);
    note_status(c, &c->out);
    if (c->is_incomplete) return;
    http_sse_event(c->req, buf_str(&c->out));
    buf_clear(&ch->delta);
    ch->n_reported = ch->n_used;
}

/* Is there something to send? A reader that is slow gets fewer and longer events. */
static bool wants_chunk(const struct call *c, const struct choice *ch) {
    if (!c->params.stream) return false;
    if (ch->is_done) return true;
    if (http_pending_bytes(c->req) > PENDING_MAX) return false;
    return buf_len(&ch->delta) || c->n_logprobs >= 0 || c->params.return_token_ids ||
           c->shape->is_cumulative;
}

/* An error at any time: an answer of its own while there is none, then an event of the stream. Half
 * a JSON answer must not look whole. */
static void end_with_error(struct call *c, enum status st, const struct error *err) {
    struct http_request *req = c->req;

    if (!c->has_head) {
        call_fail(c, st, err);
        return;
    }
    if (c->params.stream) {
        buf_clear(&c->out);
        openai_append_error(&c->out, st, 0, err);
        http_sse_event(req, buf_str(&c->out));
        http_sse_event(req, OPENAI_DONE);
        http_stream_end(req);
    } else {
        http_stream_break(req);
    }
    call_release(c);
}

static void fail_for_memory(struct call *c) {
    struct error err = {0};

    error_set(&err, ST_NOMEM, "out of memory for the response: retry later");
    end_with_error(c, ST_NOMEM, &err);
}

/* The engine gave up on it. What a lost device has left undone another worker can do. */
static void fail_by_engine(struct call *c, const struct request *r) {
    struct error err = r->error;
    struct engine_stats stats;

    engine_stats(c->api->engine, &stats);
    if (!err.message[0]) error_set(&err, ST_INTERNAL, "the engine aborted this request: retry");
    end_with_error(c, stats.is_failed ? ST_UNAVAILABLE : err.status, &err);
}

/* All choices have ended. */
static void finish(struct call *c) {
    struct http_request *req = c->req;

    samples_rank(c);
    buf_clear(&c->out);
    if (!c->params.stream) {
        c->shape->body(c, &c->out);
    } else if (c->params.include_usage && c->shape->usage_chunk) {
        c->shape->usage_chunk(c, &c->out);
    }
    note_status(c, &c->out);
    if (c->is_incomplete) {
        fail_for_memory(c);
        return;
    }
    if (!c->has_head) {
        struct call_usage usage = call_usage(c);

        send_usage(c, &usage);
    }
    if (!c->params.stream) {
        http_stream_write(req, buf_str(&c->out));
    } else {
        if (buf_len(&c->out)) http_sse_event(req, buf_str(&c->out));
        http_sse_event(req, OPENAI_DONE);
    }
    http_stream_end(req);
    c->is_whole = !c->is_aborted;
    worker_metrics_observe_call(c->api->metrics, c->params.n_shown,
                                c->choices[0].request->params.max_tokens);
    call_release(c);
}

static void choice_done(struct choice *ch, enum finish_reason reason) {
    ch->is_done = true;
    ch->finish = reason;
    ch->call->n_open--;
}

/* One more output token: its text, and whether a stop string ends here. */
static void consume(struct choice *ch, uint32_t i, bool is_silent) {
    struct call *c = ch->call;
    uint32_t token = request_output(ch->request)[i];
    bool may_stop = i + 1 > c->params.request.min_tokens;

    ch->n_used = i + 1;
    if (is_silent) return;
    buf_clear(&c->out);
    detokenizer_push(&ch->detokenizer, token, &c->out);
    note_status(c, &c->out);
    if (buf_len(&c->out) == 0) return;
    if (!may_stop) {
        stop_matcher_pass(&ch->stop, buf_str(&c->out), &ch->delta);
    } else if (stop_matcher_push(&ch->stop, buf_str(&c->out), &ch->delta)) {
        choice_done(ch, FINISH_STOP);
        if (!ch->is_engine_done) engine_complete(c->api->engine, ch->request);
    }
}

static void consume_progress(struct choice *ch, const struct request_progress *progress) {
    struct call *c = ch->call;
    struct request *r = ch->request;
    uint32_t end = c->params.is_echo_only ? progress->first : progress->first + progress->n;

    for (uint32_t i = progress->first; i < end && !ch->is_done; i++) {
        bool ends_here =
            progress->is_finished && i + 1 == end && r->finish == FINISH_STOP && !r->is_complete;

        consume(ch, i, ends_here && !c->params.include_stop); /* EOS and stop ids have no text */
    }
    if (progress->is_finished && !ch->is_done) {
        buf_clear(&c->out);
        detokenizer_finish(&ch->detokenizer, &c->out);
        note_status(c, &c->out);
        if (stop_matcher_push(&ch->stop, buf_str(&c->out), &ch->delta)) {
            choice_done(ch, FINISH_STOP);
        } else {
            stop_matcher_finish(&ch->stop, &ch->delta);
            choice_done(ch, r->finish);
        }
    }
    note_status(c, &ch->delta);
    if (c->params.stream && !c->shape->is_cumulative) return;
    buf_append_str(&ch->text, buf_str(&ch->delta));
    note_status(c, &ch->text);
    buf_clear(&ch->delta);
}

/* Times of what was answered; how often clients left is in request_success_total. */
static void count_finished(struct api *api, const struct request *r) {
    struct worker_request_times times = {
        .arrival_us = r->arrival_us,
        .scheduled_us = r->scheduled_us,
        .first_token_us = r->first_token_us,
        .finished_us = r->finished_us,
        .prompt_tokens = r->n_prompt,
        .cached_tokens = r->cached_tokens,
        .output_tokens = r->n_read,
        .max_tokens = r->n_max - r->n_prompt,
    };

    if (r->finish == FINISH_STOP || r->finish == FINISH_LENGTH) {
        worker_metrics_observe(api->metrics, &times);
    }
}

/* When its first token is there: what the order of prompts meant for it. */
static void log_order(const struct api *api, const struct call *c, const struct request *r) {
    enum scheduler_policy policy = engine_info(api->engine)->policy;

    if (policy == POLICY_FCFS || r->is_child || !log_is_on(api->log, LOG_INFO)) return;
    log_event(api->log, LOG_INFO, "prompt_computed", log_z("id", c->id),
              log_z("order", scheduler_policy_name(policy)), log_u64("prompt_tokens", r->n_prompt),
              log_u64("cached_tokens", r->cached_tokens), log_u64("ahead", r->n_ahead),
              log_u64("went_before", r->n_went_before), log_u64("passed_steps", r->n_passed),
              log_f64("waited_s", 1e-6 * (double)(r->scheduled_us - r->arrival_us)),
              log_f64("computed_s",
                      1e-6 * (double)(MAX(r->first_token_us, r->scheduled_us) - r->scheduled_us)));
}

void api_on_progress(struct api *api, struct request *r, const struct request_progress *progress) {
    struct choice *ch = r->owner;
    struct call *c;

    if (progress->is_finished) count_finished(api, r);
    if (!ch) return; /* the call is gone */
    c = ch->call;
    ch->is_engine_done = progress->is_finished;
    if (ch->is_done) return; /* a stop string ended it before the engine knew */
    if (progress->is_finished &&
        (r->finish == FINISH_ERROR || (r->finish == FINISH_ABORT && !c->is_aborted))) {
        fail_by_engine(c, r);
        return;
    }
    ch->has_begun = ch->has_begun || progress->is_first;
    if (progress->is_first) log_order(api, c, r);
    consume_progress(ch, progress);
    begin_response(c);
    if (wants_chunk(c, ch)) send_chunk(c, ch);
    if (c->is_incomplete) {
        fail_for_memory(c);
    } else if (c->n_open == 0) {
        finish(c);
    }
}

uint32_t api_abort_calls(struct api *api, struct str id, bool all) {
    uint32_t n = 0;

    LIST_FOR_EACH(it, &api->calls) {
        struct call *c = LIST_ENTRY(it, struct call, link);

        if (!all && !str_eq(id, str_of(c->id))) continue;
        c->is_aborted = true;
        for (uint32_t i = 0; i < c->n_choices; i++) {
            if (!c->choices[i].is_engine_done) engine_cancel(api->engine, c->choices[i].request);
        }
        n++;
    }
    return n;
}

void api_end_calls(struct api *api) {
    struct error err = {0};

    api->awaits_tokenized = false; /* the engine may be gone by then */
    error_set(&err, ST_UNAVAILABLE, "the worker is shutting down: retry on another worker");
    LIST_FOR_EACH(it, &api->calls) {
        end_with_error(LIST_ENTRY(it, struct call, link), ST_UNAVAILABLE, &err);
    }
}

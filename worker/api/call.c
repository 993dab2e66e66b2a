/* worker/api/call.c - a call from start to end; call.h has the drawing.
 *
 * Ownership: the http_request belongs to the call until it is answered or on_abort came. A request
 * of the engine may outlive the call (a cancel is under way): then its owner is NULL and the engine
 * holds it. The text thread may hold a job: then the call is freed when the last one has come back.
 * */
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/net/loop.h"
#include "common/protocol/api.h"
#include "common/protocol/openai.h"
#include "common/protocol/wire.h"
#include "common/telemetry/log.h"
#include "common/text/json.h"
#include "worker/api/body.h"
#include "worker/api/call_internal.h"
#include "worker/api/events/request_feed.h"
#include "worker/api/samples.h"
#include "worker/api/truncation.h"
#include "worker/metrics/worker_metrics.h"
#include "worker/output/answer_events.h"
#include "worker/text/tokenizer/tokenizer.h"

#define PENDING_MAX (256u << 10) /* bytes a reader may be behind before its events are merged */

void call_free(struct call *c) {
    for (uint32_t i = 0; i < c->n_prompts; i++) {
        token_list_fini(&c->prompts[i].job.tokens);
        buf_fini(&c->prompts[i].text);
    }
    truncation_destroy(c->truncation);
    mem_free(c->prompts);
    mem_free(c->choices);
    mem_free(c->shown);
    json_destroy(c->json);
    json_destroy(c->asked);
    grammar_unref(c->grammar.grammar);
    call_params_fini(&c->params);
    tool_fields_fini(&c->tools);
    buf_fini(&c->out);
    mem_free(c);
}

static void choice_fini(struct choice *ch) {
    struct request *r = ch->request;

    stop_matcher_fini(&ch->stop);
    buf_fini(&ch->text);
    buf_fini(&ch->delta);
    reader_destroy(ch->reader);
    answer_fini(&ch->answer);
    ch->request = NULL;
    if (!r) return;
    r->owner = NULL;
    if (!ch->is_engine_done) engine_cancel(ch->call->api->engine, r);
    request_unref(r);
}

/* --- request events for routers --------------------------------------------------------------- */

/* One event for all prompts and samples. Ids are counted as four bytes each, about what text
 * has. */
void call_publish_accepted(struct call *c) {
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
void call_leave_unready(struct api *api) {
    api->n_tokenizing--;
    if (api->awaits_tokenized) api_drain(api);
}

/* The client is served or gone: releases everything that the engine or a text thread does not hold.
 * Every call ends here, once. */
void call_release(struct call *c) {
    if (list_is_linked(&c->link)) list_remove(&c->link);
    call_leave_leader(c);
    publish_ended(c);
    c->req = NULL;
    for (uint32_t i = 0; i < c->n_prompts; i++)
        atomic_store(&c->prompts[i].job.is_cancelled, true);
    for (uint32_t i = 0; i < c->n_choices; i++)
        choice_fini(&c->choices[i]);
    c->n_choices = 0;
    call_start_followers(c);
    if (grammar_thread_cancel(&c->grammar) && --c->n_unready == 0) call_leave_unready(c->api);
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
    list_init(&c->followers);
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

enum status call_read_params(struct call *c, bool reads_answer, struct error *err) {
    struct params_context ctx = call_params_context(c->api);
    enum status st;

    ctx.reads_answer = reads_answer;
    ctx.computes_only = c->shape->is_prewarm;
    st = call_params_parse(&c->params, c->json, &ctx, err);

    return st == ST_OK ? read_id(c, err) : st;
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
    if (usage->restored_tokens) {
        char tokens[24], us[24];

        snprintf(tokens, sizeof(tokens), "%llu", (unsigned long long)usage->restored_tokens);
        snprintf(us, sizeof(us), "%llu", (unsigned long long)usage->restore_us);
        http_add_header(c->req, STR(WIRE_RESTORED), str_of(tokens));
        http_add_header(c->req, STR(WIRE_RESTORE_US), str_of(us));
    }
    send_head(c);
}

/* A grammar may end an answer with an error at any token, and that is the client's: where nothing
 * is streamed, the status waits for the whole. A head that came before would leave no more to do
 * than to break off, which a router takes for a worker that fails. */
static bool head_waits(const struct call *c) {
    return c->shape->computed || (!c->params.stream && c->params.request.grammar);
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

void call_send_event(struct call *c) {
    call_note_status(c, &c->out);
    if (!c->is_incomplete) http_sse_event(c->req, buf_str(&c->out));
    buf_clear(&c->out);
}

void call_send_events(struct call *c) {
    call_note_status(c, &c->out);
    if (!c->is_incomplete) http_stream_write(c->req, buf_str(&c->out));
    buf_clear(&c->out);
}

static void send_chunk(struct call *c, struct choice *ch) {
    if (c->shape->send) {
        c->shape->send(c, ch);
    } else {
        buf_clear(&c->out);
        c->shape->chunk(c, ch, &c->out);
        call_send_event(c);
    }
    buf_clear(&ch->delta);
    ch->n_reported = ch->n_used;
}

/* Is there something to send? A reader that is slow gets fewer and longer events. */
static bool wants_chunk(const struct call *c, const struct choice *ch) {
    if (!c->params.stream) return false;
    if (ch->is_done) return true;
    if (http_pending_bytes(c->req) > PENDING_MAX) return false;
    if (c->n_logprobs >= 0 || c->params.return_token_ids || c->shape->is_cumulative) return true;
    return ch->reader ? answer_has_more(&ch->answer, &ch->sent) : buf_len(&ch->delta) > 0;
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
        struct api_stream stream = {
            .api = api_of(req->path), .sequence = c->n_events, .id = str_of(c->id)};

        buf_clear(&c->out);
        api_append_error_event(&c->out, &stream, st, status_http_code(st), err);
        http_stream_write(req, buf_str(&c->out));
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
    if (c->shape->computed) {
        c->shape->computed(c);
        return;
    }
    if (!c->params.stream) {
        c->shape->body(c, &c->out);
    } else if (c->params.include_usage && c->shape->usage_chunk) {
        c->shape->usage_chunk(c, &c->out);
    }
    call_note_status(c, &c->out);
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
        if (!c->shape->names_events) http_sse_event(req, OPENAI_DONE);
    }
    http_stream_end(req);
    c->is_whole = !c->is_aborted;
    worker_metrics_observe_call(c->api->metrics, c->params.n_shown,
                                c->choices[0].request->params.max_tokens);
    call_release(c);
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
    choice_take_progress(ch, progress);
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
    api->is_ending = true;
    error_set(&err, ST_UNAVAILABLE, "the worker is shutting down: retry on another worker");
    LIST_FOR_EACH(it, &api->calls) {
        end_with_error(LIST_ENTRY(it, struct call, link), ST_UNAVAILABLE, &err);
    }
}

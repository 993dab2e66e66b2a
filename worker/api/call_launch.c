/* worker/api/call_launch.c - from the fields of a call to its requests: prompts are tokenized, a
 * grammar is compiled, and what was only known then is checked. */
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/telemetry/log.h"
#include "common/text/json.h"
#include "worker/api/access.h"
#include "worker/api/cache_explain.h"
#include "worker/api/call_internal.h"
#include "worker/api/samples.h"
#include "worker/api/truncation.h"
#include "worker/api/wires/members.h"
#include "worker/metrics/worker_metrics.h"
#include "worker/text/tokenizer/tokenizer.h"

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

uint64_t call_holder(const struct api *api, const struct http_request *req) {
    struct str by = STR_NULL;

    if (api->trusts_router) by = http_request_header(req, STR(WIRE_SALT));
    if (!by.len && api->access) by = access_key_of(req);
    return by.len ? hash_64(by.ptr, by.len, 0) : 0;
}

uint64_t call_owner_of(const struct api *api, const struct http_request *req, struct str salt) {
    uint64_t owner = call_holder(api, req);
    uint8_t digest[SHA256_BYTES];

    if (!salt.len) return owner;
    hash_hmac_sha256(&owner, sizeof(owner), salt.ptr, salt.len, digest);
    memcpy(&owner, digest, sizeof(owner));
    return owner;
}

uint64_t call_owner(const struct call *c) {
    return call_owner_of(c->api, c->req, member_text(c->asked, "cache_salt"));
}

/* Who shares the device fairly with others: its holder, or else those of one cache_salt. 0: no
 * one. */
static uint64_t tenant_of(const struct call *c) {
    const struct request_params *r = &c->params.request;
    uint64_t holder = call_holder(c->api, c->req);

    if (holder || !r->cache_salt) return holder;
    return hash_64(r->cache_salt, r->cache_salt_len, 0);
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

/* Who has KV of the prompt, as the router has it. */
static enum status take_kv_source(struct call *c, struct error *err) {
    struct str given = http_request_header(c->req, STR(WIRE_KV_SOURCE));

    if (!c->api->peers || !given.ptr) return ST_OK;
    return tier_source_parse(given, &c->params.request.kv_source, err);
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

/* --- what to keep ----------------------------------------------------------------------------- */

/* The tokens of the first n_bytes of the prompt's text; of the last one a part may be behind. */
static uint32_t tokens_within(const struct call *c, size_t n_bytes) {
    const struct token_list *tokens = &c->prompts[0].job.tokens;
    uint32_t n = 0;
    size_t used = 0;

    if (n_bytes == SIZE_MAX) return (uint32_t)tokens->n;
    for (; n < tokens->n && used < n_bytes; n++)
        used += tokenizer_bytes(c->api->tokenizer, tokens->ids[n]).len;
    return n;
}

static void set_retention(struct call *c) {
    struct request_params *r = &c->params.request;

    for (uint32_t i = 0; i < c->n_keep; i++)
        r->retain[i] = (struct kv_retain){tokens_within(c, c->keep[i].n_bytes),
                                          retention_of_seconds(c->keep[i].ttl_s)};
    r->n_retain = c->n_keep;
}

static void set_prefix(struct call *c) {
    struct request_params *r = &c->params.request;

    if (c->n_prefix_bytes > 0)
        r->prefix_tokens = MAX(r->prefix_tokens, tokens_within(c, c->n_prefix_bytes));
}

/* --- one computation for equal prompts -------------------------------------------------------- */

static bool is_same_prompt(const struct call *a, const struct call *b) {
    const struct token_list *x = &a->prompts[0].job.tokens, *y = &b->prompts[0].job.tokens;
    const struct request_params *p = &a->params.request, *q = &b->params.request;

    return x->n == y->n && memcmp(x->ids, y->ids, x->n * sizeof(*x->ids)) == 0 &&
           p->cache_salt_len == q->cache_salt_len &&
           (p->cache_salt_len == 0 || memcmp(p->cache_salt, q->cache_salt, p->cache_salt_len) == 0);
}

/* A call that computes this prompt for no one's answer, or NULL. */
static struct call *find_leader(const struct call *c) {
    LIST_FOR_EACH(it, &c->api->calls) {
        struct call *other = LIST_ENTRY(it, struct call, link);

        if (other != c && other->shape->is_prewarm && other->n_choices > 0 && other->n_open > 0 &&
            is_same_prompt(c, other))
            return other;
    }
    return NULL;
}

/* To the engine, or behind the call that computes its prompt already. */
static void start_requests(struct call *c) {
    struct call *leader = c->shape->is_prewarm ? find_leader(c) : NULL;
    struct error err = {0};
    enum status st = ST_OK;

    if (c->is_aborted)
        st = error_set(&err, ST_UNAVAILABLE, "the request was aborted before it began");
    if (st == ST_OK && leader) {
        list_push_back(&leader->followers, &c->follow);
        c->api->n_tokenizing++;
        return;
    }
    if (st == ST_OK) st = samples_start(c, &err);
    if (st != ST_OK) call_fail(c, st, &err);
}

void call_leave_leader(struct call *c) {
    if (!list_is_linked(&c->follow)) return;
    list_remove(&c->follow);
    call_leave_unready(c->api);
}

void call_start_followers(struct call *c) {
    struct list *link;

    while ((link = list_pop_front(&c->followers)) != NULL) {
        struct call *follower = LIST_ENTRY(link, struct call, follow);

        if (!c->api->is_ending) start_requests(follower);
        call_leave_unready(c->api);
    }
}

static void launch(struct call *c) {
    struct error err = {0};
    enum status st = check_call(c, &err);

    c->params.request.tenant = tenant_of(c);
    if (c->truncation) truncation_finish(c->truncation);
    if (st == ST_OK) st = check_grammar(c, &err);
    if (st == ST_OK) st = take_router_salt(c, &err);
    if (st == ST_OK) st = take_kv_source(c, &err);
    if (st == ST_OK) st = cache_explain_check(c, &err);
    for (uint32_t i = 0; i < c->n_prompts && st == ST_OK; i++) {
        st = check_tokenized(c, &c->prompts[i], &err);
        truncate_prompt(&c->prompts[i], &c->params);
    }
    if (st != ST_OK) {
        call_fail(c, st, &err);
        return;
    }
    set_retention(c);
    set_prefix(c);
    start_requests(c);
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
    call_leave_unready(api);
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
    if (c->truncation) return truncation_most_tokens(c->truncation);
    return c->params.max_prompt_tokens ? 0 : engine_info(c->api->engine)->max_model_len - 1;
}

void call_start(struct call *c) {
    call_take_prefill(c);
    c->n_unready = 1; /* ours, so that nothing starts before all jobs are on their way */
    c->api->n_tokenizing++;
    if (!c->is_dry_run) call_publish_accepted(c);
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

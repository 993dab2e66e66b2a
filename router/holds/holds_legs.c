/* router/holds/holds_legs.c - calls to workers: which workers, what they get, what came back.
 *
 * A prompt that is to be computed is routed like a request, with a ticket, so that its worker's
 * load counts it and the index learns that this worker has it. Where fetching its beginning from
 * another worker is sooner, the call names that one. Of several workers the first is the policy's
 * choice; for each further one all but the first by rendezvous are excluded. A hold that is asked
 * for again, byte for byte, goes to the workers that have it, whatever the policy would choose.
 * Further ones are asked when the first has answered: a prompt that kills workers is known before,
 * and those that exchange KV fetch it. */
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/text/json.h"
#include "router/access/isolation.h"
#include "router/holds/holds_internal.h"
#include "router/prompt/client_noise.h"
#include "router/prompt/prompt_hash.h"
#include "router/prompt/prompt_text.h"

#define RELEASE_MS  5000u
#define ANSWER_MAX  (1u << 20)
#define OWNER_SEED  3
#define NO_FEEDBACK ((struct route_feedback){-1, -1, 0, false})

/* --- the prompt ------------------------------------------------------------------------------- */

static void splice_salt(struct holds_call *c) {
    struct str body = buf_str(&c->body);
    struct isolation_splice s;

    isolation_splice(&s, body, &c->scan, false, c->salt);
    buf_append_str(&c->sent, (struct str){body.ptr, s.at});
    buf_append_str(&c->sent, (struct str){s.text, s.len});
    buf_append_str(&c->sent,
                   (struct str){body.ptr + s.at + s.removed, body.len - s.at - s.removed});
}

static enum status hash_prompt(struct holds_call *c) {
    const struct holds_config *config = &c->holds->config;
    enum api_form api = prompt_api_of(&c->scan);
    struct client_noise noise = {0};
    struct prompt_text prompt = {&c->scan, &noise, api};
    struct prompt_scope scope = prompt_scope_of(&c->scan);
    struct prompt_hashed hashed;
    uint32_t n_max = prompt_hash_n_blocks(prompt_text_max(&c->scan, api),
                                          config->prefix_block_bytes, config->max_prefix_blocks);

    if (c->salt[0]) scope.tenant = str_of(c->tenant);
    c->chain = mem_try(MAX(n_max, 1u) * sizeof(*c->chain));
    if (!c->chain)
        return error_set(&c->err, ST_NOMEM, "out of memory for the prompt's hash chain: retry");
    prompt_hash_text(&prompt, prompt_hash_seed(&scope, config->hash_secret),
                     config->prefix_block_bytes, c->chain, n_max, &hashed);
    c->rq = (struct route_request){.chain = c->chain,
                                   .n_blocks = hashed.n_blocks,
                                   .prompt_bytes = hashed.n_bytes,
                                   .max_output_tokens = 1};
    return ST_OK;
}

enum status holds_prepare(struct holds_call *c) {
    const struct holds_config *config = &c->holds->config;
    enum status st = body_scan(buf_str(&c->body), &c->scan, &c->err);
    struct str salt;

    if (st != ST_OK) return st;
    salt = c->scan.spans[BODY_CACHE_SALT];
    c->owner = hash_64(c->tenant, strlen(c->tenant), OWNER_SEED);
    c->owner = hash_64(salt.ptr, salt.len, c->owner);
    if (config->isolation) {
        isolation_salt(config->isolation, str_of(c->tenant), salt, c->salt);
        splice_salt(c);
    }
    return c->op == HOLDS_RELEASE ? ST_OK : hash_prompt(c);
}

/* --- one call --------------------------------------------------------------------------------- */

static void end_ticket(struct holds_leg *leg, enum registry_outcome outcome) {
    struct route_end end = {.is_aborted = outcome != OUTCOME_OK,
                            .output_tokens = 1,
                            .feedback = NO_FEEDBACK,
                            .now_us = holds_now_us(leg->call)};

    if (!leg->is_routed) return;
    if (leg->is_ok) {
        end.feedback.prompt_tokens = (int64_t)MIN(leg->prompt_tokens, INT64_MAX);
        end.feedback.cached_tokens = (int64_t)MIN(leg->cached_tokens, INT64_MAX);
        end.feedback.restored_tokens = (uint32_t)MIN(leg->restored_tokens, leg->prompt_tokens);
        end.feedback.restore_us = leg->restore_us;
        end.feedback = registry_bound_usage(&leg->target, end.feedback);
    }
    leg->is_routed = false;
    registry_ended(leg->call->holds->config.registry, &leg->target, &leg->ticket, &end, outcome);
}

static void end_leg(struct holds_leg *leg) {
    struct holds_call *c = leg->call;

    leg->http = NULL;
    if (--c->n_open == 0) holds_call_ended(c);
}

static bool ask(struct holds_leg *leg, const char *method, const char *path, struct str body,
                uint32_t timeout_ms, http_client_fn *fn) {
    struct holds_call *c = leg->call;
    char url[REGISTRY_URL_MAX + 32], salt[sizeof(WIRE_SALT ": ") + ISOLATION_SALT_CHARS];
    char source[sizeof(WIRE_KV_SOURCE ": ") + sizeof(leg->target.source) + 32];
    const char *headers[] = {"content-type: application/json", NULL, NULL, NULL};
    uint32_t n_headers = 1;
    struct http_client_request request = {.method = method,
                                          .url = url,
                                          .connect_to = leg->view.address,
                                          .headers = headers,
                                          .body = body,
                                          .timeout_ms = timeout_ms,
                                          .is_sent_once = body.len > 0,
                                          .max_body_bytes = ANSWER_MAX};

    snprintf(url, sizeof(url), "%s%s", leg->view.url, path);
    if (c->salt[0] && leg->view.info.trusts_router) {
        snprintf(salt, sizeof(salt), WIRE_SALT ": %s", c->salt);
        headers[n_headers++] = salt;
    }
    if (leg->is_routed && leg->target.source_len) {
        snprintf(source, sizeof(source), WIRE_KV_SOURCE ": %.*s;tokens=%u",
                 (int)leg->target.source_len, leg->target.source, leg->target.source_tokens);
        headers[n_headers] = source;
    }
    return http_client_start(c->holds->config.client, &request, fn, leg, &leg->http, NULL) == ST_OK;
}

/* --- hold and prewarm ------------------------------------------------------------------------- */

static bool start_prompt(struct holds_leg *leg, bool is_first);
static void start_others(struct holds_call *c);

/* Numbers that are not there stay 0. */
static bool read_copy(struct holds_leg *leg, const struct http_client_response *r) {
    const struct json_limits limits = {.max_bytes = ANSWER_MAX, .max_depth = 8};
    struct str id = STR_NULL, model = STR_NULL;
    struct json *root = NULL;
    enum status st = json_parse(&root, r->body, &limits, NULL);

    if (st == ST_OK) st = json_get_str(root, "id", HOLD_ID_MAX - 1, &id, NULL, NULL);
    (void)!json_get_str(root, "model", WIRE_MODEL_MAX - 1, &model, NULL, NULL);
    if (st == ST_OK) {
        snprintf(leg->model, sizeof(leg->model), STR_FMT, STR_ARG(model));
        (void)!json_to_u64(json_get(root, "tokens"), &leg->copy.tokens);
        (void)!json_to_u64(json_get(root, "bytes"), &leg->copy.bytes);
        (void)!json_to_u64(json_get(root, "prompt_tokens"), &leg->prompt_tokens);
        (void)!json_to_u64(json_get(root, "cached_tokens"), &leg->cached_tokens);
        (void)!json_to_u64(json_get(root, "restored_tokens"), &leg->restored_tokens);
        (void)!json_to_u64(json_get(root, "restore_us"), &leg->restore_us);
        snprintf(leg->copy.id, sizeof(leg->copy.id), STR_FMT, STR_ARG(id));
        leg->copy.made_us = holds_now_us(leg->call);
        leg->copy.worker = leg->target.worker;
        leg->copy.incarnation = leg->target.incarnation;
        memcpy(leg->copy.generation, leg->view.info.generation, sizeof(leg->copy.generation));
    }
    json_destroy(root);
    return st == ST_OK && (leg->call->op == HOLDS_PREWARM || id.len > 0);
}

/* Kept for a client whose hold no worker made: the first worker's refusal, as it is. */
static void note_refusal(struct holds_call *c, const struct http_client_response *r) {
    if (c->code || r->status != ST_OK || r->code < 400) return;
    c->code = r->code;
    buf_append_str(&c->answer, r->body);
}

static void on_prompt(const struct http_client_response *r, void *arg) {
    struct holds_leg *leg = arg;
    struct holds_call *c = leg->call;
    bool is_down = r->status != ST_OK || r->code == 503 || r->code == 502;

    leg->http = NULL;
    c->n_lost += r->status == ST_IO && r->was_sent;
    leg->is_ok = r->status == ST_OK && r->code == 200 && read_copy(leg, r);
    end_ticket(leg, leg->is_ok           ? OUTCOME_OK
                    : r->status != ST_OK ? OUTCOME_FAILED
                    : r->code / 100 != 4 ? OUTCOME_ERROR
                                         : OUTCOME_REFUSED);
    if (is_down && leg->n_attempts < HOLDS_ATTEMPTS && c->n_lost < c->max_lost &&
        start_prompt(leg, true))
        return; /* another worker, in its place */
    if (!leg->is_ok) note_refusal(c, r);
    start_others(c);
    end_leg(leg);
}

static uint64_t score_of(const struct holds_call *c, const struct registry_view *view) {
    uint64_t seed = c->rq.n_blocks ? c->chain[c->rq.n_blocks - 1] : 0;

    return hash_64(view->url, strlen(view->url), seed);
}

/* WORKER_NONE: there is none. */
static uint32_t first_by_rendezvous(const struct holds_call *c, uint32_t n_candidates) {
    const struct holds *h = c->holds;
    uint32_t best = WORKER_NONE;
    uint64_t best_score = 0;

    for (uint32_t i = 0; i < n_candidates; i++) {
        uint32_t worker = h->candidates[i].worker;
        struct registry_view view;
        uint64_t score;

        if (!registry_get(h->config.registry, worker, &view)) continue;
        score = score_of(c, &view);
        if (best != WORKER_NONE && score <= best_score) continue;
        best = worker;
        best_score = score;
    }
    return best;
}

/* The first of the candidates that has this hold already; WORKER_NONE: none does. */
static uint32_t first_holder(const struct holds_call *c, const struct hold_entry *e,
                             uint32_t n_candidates) {
    const struct holds *h = c->holds;

    for (uint32_t k = 0; e && k < e->n_copies; k++)
        for (uint32_t i = 0; i < n_candidates; i++)
            if (h->candidates[i].worker == e->copies[k].worker) return e->copies[k].worker;
    return WORKER_NONE;
}

/* Excludes all candidates but a holder or, for a further worker, the first by rendezvous, besides
 * the workers that were tried, which are no candidates. Nothing is excluded if the first worker is
 * the policy's choice. ST_NOT_FOUND: there is none. */
static enum status choose_worker(struct holds_call *c, bool is_first, struct route_request *rq,
                                 uint32_t *exclude) {
    struct holds *h = c->holds;
    struct hold_entry *held = NULL;
    uint32_t n = 0, choice, best;
    enum status st;

    if (c->op == HOLDS_HOLD) held = hold_table_find_body(h->table, c->owner, buf_str(&c->body));
    if (is_first && !held) return ST_OK;
    st = registry_explain(h->config.registry, c->scan.model, rq, h->candidates,
                          h->config.max_workers, &n, &choice, NULL);
    if (is_first && st != ST_OK) return ST_OK; /* registry_route has the reason */
    if (st != ST_OK) return st;
    best = first_holder(c, held, n);
    if (best == WORKER_NONE && is_first) return ST_OK;
    if (best == WORKER_NONE) best = first_by_rendezvous(c, n);
    if (best == WORKER_NONE) return ST_NOT_FOUND;
    memcpy(exclude, c->tried, c->n_tried * sizeof(*exclude));
    rq->exclude = exclude;
    for (uint32_t i = 0; i < n; i++)
        if (h->candidates[i].worker != best) exclude[rq->n_exclude++] = h->candidates[i].worker;
    return ST_OK;
}

static enum status route(struct holds_leg *leg, bool is_first) {
    struct holds_call *c = leg->call;
    struct holds *h = c->holds;
    uint32_t *exclude = mem_calloc(h->config.max_workers + HOLDS_TRIED_MAX, sizeof(*exclude));
    struct route_request rq = c->rq;
    enum status st;

    rq.now_us = holds_now_us(c);
    rq.exclude = c->tried;
    rq.n_exclude = c->n_tried;
    rq.may_fetch_from_excluded = true;
    st = choose_worker(c, is_first, &rq, exclude);
    if (st == ST_OK)
        st = registry_route(h->config.registry, c->scan.model, &rq, &leg->ticket, &leg->target,
                            c->n_tried == 0 ? &c->err : NULL);
    mem_free(exclude);
    return st;
}

/* Another vendor's worker holds nothing: on to the next. */
static bool start_prompt(struct holds_leg *leg, bool is_first) {
    struct holds_call *c = leg->call;
    const char *path = c->op == HOLDS_PREWARM ? "/cache/prewarm" : "/cache/hold";

    while (c->n_tried < HOLDS_TRIED_MAX && route(leg, is_first) == ST_OK) {
        struct str body = buf_str(&c->body);

        leg->is_routed = true;
        c->tried[c->n_tried++] = leg->target.worker;
        if (leg->target.kind == WORKER_OURS &&
            registry_get(c->holds->config.registry, leg->target.worker, &leg->view) &&
            leg->view.incarnation == leg->target.incarnation) {
            if (c->salt[0] && !leg->view.info.trusts_router) body = buf_str(&c->sent);
            leg->n_attempts++;
            if (ask(leg, "POST", path, body, c->holds->config.timeout_ms, on_prompt)) return true;
        }
        end_ticket(leg, OUTCOME_UNKNOWN);
    }
    return false;
}

static void make_legs(struct holds_call *c, uint32_t n) {
    c->legs = mem_calloc(MAX(n, 1u), sizeof(*c->legs));
    for (uint32_t i = 0; i < n; i++)
        c->legs[i].call = c;
}

static void start_leg(struct holds_call *c) {
    if (!start_prompt(&c->legs[c->n_legs], c->n_legs == 0 && c->op != HOLDS_REPEAT)) return;
    c->n_legs++;
    c->n_open++;
}

void holds_start_prompts(struct holds_call *c, uint32_t n) {
    make_legs(c, n);
    c->n_max_legs = n;
    start_leg(c);
}

/* Once the first worker shows that the prompt kills none, or if it did not compute it. */
static void start_others(struct holds_call *c) {
    uint32_t n = c->n_legs;

    if (n > 1 || (c->n_lost > 0 && !c->legs[0].is_ok)) return;
    for (; n < c->n_max_legs && c->n_legs == n; n++)
        start_leg(c);
}

/* --- release ---------------------------------------------------------------------------------- */

static void on_released(const struct http_client_response *r, void *arg) {
    struct holds_leg *leg = arg;

    leg->is_ok = r->status == ST_OK && r->code == 200;
    end_leg(leg);
}

/* The salt under which the worker knows the hold, if it stands in bodies. */
static struct str release_body(const struct holds_call *c, const struct holds_leg *leg,
                               const struct hold_copy *copy, struct buf *out) {
    struct str salt = c->scan.spans[BODY_CACHE_SALT];

    buf_appendf(out, "{\"id\":\"%s\"", copy->id);
    if (c->salt[0] && !leg->view.info.trusts_router)
        buf_appendf(out, ",\"cache_salt\":\"%s\"", c->salt);
    else if (salt.len)
        buf_appendf(out, ",\"cache_salt\":" STR_FMT, STR_ARG(salt));
    buf_append_str(out, STR("}"));
    return buf_str(out);
}

void holds_start_releases(struct holds_call *c, const struct hold_entry *e) {
    make_legs(c, e->n_copies);
    for (uint32_t i = 0; i < e->n_copies; i++) {
        const struct hold_copy *copy = &e->copies[i];
        struct holds_leg *leg = &c->legs[c->n_legs];
        struct buf body;

        if (!registry_get(c->holds->config.registry, copy->worker, &leg->view) ||
            leg->view.incarnation != copy->incarnation)
            continue;
        buf_init(&body, 0);
        if (ask(leg, "POST", "/cache/release", release_body(c, leg, copy, &body), RELEASE_MS,
                on_released)) {
            c->n_legs++;
            c->n_open++;
        }
        buf_fini(&body);
    }
}

/* --- what workers hold ------------------------------------------------------------------------ */

static void read_row(struct hold_copy *copy, const struct json *row, double *left_s,
                     uint64_t ttl_s) {
    double value = 0;

    (void)!json_to_u64(json_get(row, "tokens"), &copy->tokens);
    (void)!json_to_u64(json_get(row, "bytes"), &copy->bytes);
    (void)!json_to_u64(json_get(row, "hits"), &copy->hits);
    (void)!json_to_u64(json_get(row, "saved_tokens"), &copy->saved_tokens);
    (void)!json_to_f64(json_get(row, "saved_s"), &copy->saved_s);
    (void)!json_to_f64(json_get(row, "held_byte_s"), &copy->byte_s);
    if (json_to_f64(json_get(row, "left_s"), &value) == ST_OK)
        *left_s = MAX(*left_s, MIN(value, (double)ttl_s));
}

static const struct json *find_row(const struct json *root, const char *id) {
    JSON_FOR_EACH(row, json_get(root, "holds")) {
        struct str text;

        if (json_to_str(json_get(row, "id"), &text) == ST_OK && str_eq(text, str_of(id)))
            return row;
    }
    return NULL;
}

/* What this worker has ended, it does not hold. */
static void take_page(struct holds_leg *leg, const struct json *root) {
    struct hold_table *table = leg->call->holds->table;

    for (uint32_t i = 0; i < hold_table_n(table); i++) {
        struct hold_entry *e = hold_table_at(table, i);
        double left_s = 0;

        for (uint32_t k = e->n_copies; k-- > 0;) {
            struct hold_copy *copy = &e->copies[k];
            const struct json *row;

            if (copy->worker != leg->view.id || copy->incarnation != leg->view.incarnation)
                continue;
            row = find_row(root, copy->id);
            if (row) {
                read_row(copy, row, &left_s, e->ttl_s);
            } else if (copy->made_us < leg->call->asked_us) {
                hold_entry_drop(e, k);
                e->n_wanted -= e->n_wanted > 0;
            }
        }
        if (left_s > 0)
            e->expires_us = MAX(e->expires_us, holds_now_us(leg->call) + (uint64_t)(left_s * 1e6));
    }
}

static void on_page(const struct http_client_response *r, void *arg) {
    const struct json_limits limits = {.max_bytes = ANSWER_MAX, .max_depth = 8};
    struct holds_leg *leg = arg;
    struct json *root = NULL;

    if (r->status == ST_OK && r->code == 200 && json_parse(&root, r->body, &limits, NULL) == ST_OK)
        take_page(leg, root);
    json_destroy(root);
    end_leg(leg);
}

static bool holds_any(struct hold_table *table, const struct registry_view *view) {
    for (uint32_t i = 0; i < hold_table_n(table); i++) {
        const struct hold_entry *e = hold_table_at(table, i);

        for (uint32_t k = 0; k < e->n_copies; k++)
            if (e->copies[k].worker == view->id && e->copies[k].incarnation == view->incarnation)
                return true;
    }
    return false;
}

void holds_start_polls(struct holds_call *c) {
    struct registry *registry = c->holds->config.registry;
    uint32_t n = registry_n_ids(registry);

    c->asked_us = holds_now_us(c);
    make_legs(c, n);
    for (uint32_t id = 0; id < n; id++) {
        struct holds_leg *leg = &c->legs[c->n_legs];

        if (!registry_get(registry, id, &leg->view) || !holds_any(c->holds->table, &leg->view))
            continue;
        if (!ask(leg, "GET", "/cache", STR_NULL, RELEASE_MS, on_page)) continue;
        c->n_legs++;
        c->n_open++;
    }
}

void holds_cancel(struct holds_call *c) {
    for (uint32_t i = 0; i < c->n_legs; i++) {
        http_call_cancel(c->legs[i].http);
        c->legs[i].http = NULL;
        end_ticket(&c->legs[i], OUTCOME_UNKNOWN);
    }
}

/* router/registry/explain.c - see explain.h. */
#include "router/registry/explain.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/protocol/openai.h"
#include "common/text/json.h"
#include "router/prompt/body_scan.h"
#include "router/prompt/client_noise.h"
#include "router/prompt/prompt_hash.h"
#include "router/prompt/prompt_text.h"
#include "router/registry/registry_view.h"

#define TIE_MARGIN 0.01 /* as policy/prefix.c has it */

/* --- beside a request ------------------------------------------------------------------------- */

/* Inserts a candidate after the choice, cheapest first. */
static void add(struct explanation *e, const struct registry_candidate *c) {
    uint32_t at = e->n;

    while (at > 1 && e->top[at - 1].term.cost_s > c->term.cost_s)
        at--;
    if (at == EXPLANATION_TOP) return;
    if (e->n < EXPLANATION_TOP) e->n++;
    for (uint32_t i = e->n - 1; i > at; i--)
        e->top[i] = e->top[i - 1];
    e->top[at] = *c;
}

void explain(struct registry *registry, struct str model, const struct route_request *rq,
             struct registry_candidate *scratch, uint32_t max, struct explanation *out) {
    uint32_t n, choice;

    *out = (struct explanation){0};
    if (registry_explain(registry, model, rq, scratch, max, &n, &choice, NULL) != ST_OK) return;
    out->n_candidates = n;
    for (uint32_t i = 0; i < n; i++) {
        if (scratch[i].worker == choice) add(out, &scratch[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (scratch[i].worker != choice) add(out, &scratch[i]);
    }
}

/* The reason for the choice, from the costs. */
static const char *reason(const struct explanation *e, const struct registry_candidate *choice,
                          const struct registry_candidate *next) {
    if (e->n_candidates == 1) return "only";
    if (choice->term.cost_s <= 0) return "policy"; /* it has no costs */
    if (next->term.cost_s > choice->term.cost_s * (1 + TIE_MARGIN)) return "cheapest";
    return "tie";
}

static void append_term(struct buf *out, const char *prefix, const struct registry_candidate *c) {
    const struct policy_term *t = &c->term;

    buf_appendf(out,
                " %swait_s=%.4g %smem_s=%.4g %su_s=%.4g %sL=%u %scost_s=%.4g "
                "%smatched_tokens=%.0f",
                prefix, t->wait_s, prefix, t->memory_s, prefix, t->prefill_s, prefix, c->in_flight,
                prefix, t->cost_s, prefix, t->matched_tokens);
    if (t->fetch_tokens > 0)
        buf_appendf(out, " %sfetch_from=%u %sfetch_s=%.4g", prefix, t->source, prefix, t->fetch_s);
}

void explain_append(struct buf *out, const struct explanation *e, uint32_t worker) {
    const struct registry_candidate *choice = NULL, *next = NULL;

    for (uint32_t i = 0; i < e->n; i++) {
        if (e->top[i].worker == worker) {
            choice = &e->top[i];
        } else if (!next) {
            next = &e->top[i];
        }
    }
    if (!choice) return;
    buf_appendf(out, " candidates=%u why=%s", e->n_candidates, reason(e, choice, next));
    append_term(out, "", choice);
    if (!next) return;
    buf_appendf(out, " next=%u", next->worker);
    append_term(out, "next_", next);
}

/* --- /debug/route ----------------------------------------------------------------------------- */

static int by_cost(const void *a, const void *b) {
    const struct registry_candidate *x = a, *y = b;

    if (x->term.cost_s != y->term.cost_s) return x->term.cost_s < y->term.cost_s ? -1 : 1;
    return x->worker < y->worker ? -1 : x->worker > y->worker;
}

void explain_put_terms(struct json_writer *w, const struct registry_candidate *c) {
    json_field_f64(w, "cost_s", c->term.cost_s);
    json_field_f64(w, "wait_s", c->term.wait_s);
    json_field_f64(w, "mem_s", c->term.memory_s);
    json_field_f64(w, "u_s", c->term.prefill_s);
    json_field_u64(w, "L", c->in_flight);
    json_field_f64(w, "matched_tokens", c->term.matched_tokens);
    if (c->term.below_tokens > 0) json_field_f64(w, "below_tokens", c->term.below_tokens);
    if (!(c->term.fetch_tokens > 0)) return;
    json_field_u64(w, "fetch_from", c->term.source);
    json_field_f64(w, "fetch_tokens", c->term.fetch_tokens);
    json_field_f64(w, "fetch_s", c->term.fetch_s);
}

static void put_candidate(struct json_writer *w, struct registry *registry,
                          const struct registry_candidate *c) {
    struct registry_view view;

    json_begin_object(w);
    json_field_u64(w, "worker", c->worker);
    if (registry_get(registry, c->worker, &view)) json_field_z(w, "url", view.url);
    explain_put_terms(w, c);
    json_end_object(w);
}

static void put_answer(struct buf *out, struct registry *registry, const struct route_request *rq,
                       struct registry_candidate *c, uint32_t n, uint32_t choice) {
    struct json_writer w;

    qsort(c, n, sizeof(*c), by_cost);
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_u64(&w, "worker", choice);
    json_field_u64(&w, "prompt_bytes", rq->prompt_bytes);
    json_field_u64(&w, "blocks", rq->n_blocks);
    json_put_key(&w, "candidates");
    json_begin_array(&w);
    for (uint32_t i = 0; i < n; i++)
        put_candidate(&w, registry, &c[i]);
    json_end_array(&w);
    json_end_object(&w);
}

/* The route request of the body; the caller frees `chain`. */
static enum status prepare(const struct dry_run *d, struct http_request *req,
                           struct body_scan *scan, struct route_request *rq, uint64_t **chain,
                           struct error *err) {
    enum status st = body_scan(req->body, scan, err);
    struct prompt_scope scope;
    struct client_noise noise = {0};
    struct prompt_text prompt = {scan, &noise, API_OPENAI};
    struct prompt_hashed hashed;
    struct str session;
    uint32_t n_max;

    if (st != ST_OK) return st;
    scope = prompt_scope_of(scan);
    if (d->is_isolated) scope.tenant = http_request_header(req, STR("x-incipit-tenant"));
    if (!d->keeps_noise) client_noise_find(scan, &noise);
    prompt.api = prompt_api_of(scan);
    session = session_name(req, scan, &d->session_headers);
    n_max = prompt_hash_n_blocks(prompt_text_max(scan, prompt.api), d->prefix_block_bytes,
                                 d->max_prefix_blocks);
    *chain = mem_try(MAX(n_max, 1u) * sizeof(**chain));
    if (!*chain)
        return error_set(err, ST_NOMEM, "out of memory for the prompt's hash chain: retry later");
    prompt_hash_text(&prompt, prompt_hash_seed(&scope, d->hash_secret), d->prefix_block_bytes,
                     *chain, n_max, &hashed);
    *rq = (struct route_request){
        .chain = *chain,
        .n_blocks = hashed.n_blocks,
        .prompt_bytes = hashed.n_bytes,
        .max_output_tokens = scan->max_output_tokens,
        .session_key = session.len ? hash_64(session.ptr, session.len, d->hash_secret) : 0,
        .now_us = clock_now_us(),
    };
    return ST_OK;
}

void dry_run_answer(const struct dry_run *d, struct http_request *req) {
    struct registry_candidate *c = mem_try(d->max_workers * sizeof(*c));
    struct body_scan scan = {0};
    struct route_request rq;
    struct error err = {0};
    uint64_t *chain = NULL;
    uint32_t n, choice;
    enum status st;
    struct buf out;

    buf_init(&out, 0);
    st = c ? prepare(d, req, &scan, &rq, &chain, &err)
           : error_set(&err, ST_NOMEM, "out of memory for the table of workers: retry later");
    if (st == ST_OK) {
        st = registry_explain(d->registry, scan.model, &rq, c, d->max_workers, &n, &choice, &err);
    }
    if (st == ST_OK) {
        put_answer(&out, d->registry, &rq, c, n, choice);
        st = buf_status(&out);
    }
    if (st == ST_OK) {
        http_reply(req, 200, OPENAI_JSON, buf_str(&out));
    } else {
        http_reply_error(req, st, &err);
    }
    buf_fini(&out);
    mem_free(chain);
    mem_free(c);
}

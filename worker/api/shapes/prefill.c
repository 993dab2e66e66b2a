/* worker/api/shapes/prefill.c - a prompt that is computed here and answered by another worker.
 *
 *      router ──▶ this worker   the client's request, with x-incipit-prefill
 *                               any shape of call, any path: rendered and tokenized as ever
 *             ◀──               200, the tokens of the prompt in the head, no output
 *      router ──▶ the other     the request itself, with x-incipit-kv-source: this worker
 *      the other ──▶ here       takes the blocks over (worker/kv/tiers/peer)
 *
 * What is computed stays as ordinary cache: nothing is held for the other worker, and nothing is
 * lost when it never asks. The engine samples one token with the last step of a prompt, which is
 * not shown. Whatever an answer would need is left out: a grammar is not compiled, and a batch of
 * samples is one. */
#include "common/http/http_server.h"
#include "common/protocol/wire.h"
#include "common/text/json.h"
#include "worker/api/call_internal.h"

void call_show_nothing(struct call *c) {
    struct call_params *p = &c->params;

    p->n = p->n_shown = 1;
    p->is_beam = p->stream = p->echo = p->is_echo_only = false;
    p->has_max_tokens = true;
    p->request.max_tokens = 1;
    p->request.min_tokens = 0;
    p->request.prompt_logprobs = p->prompt_logprobs = -1;
}

void call_put_counts(struct json_writer *w, const struct call_usage *usage) {
    json_field_u64(w, "prompt_tokens", usage->prompt_tokens);
    json_field_u64(w, "cached_tokens", usage->cached_tokens);
    json_field_u64(w, "restored_tokens", usage->restored_tokens);
    json_field_u64(w, "restore_us", usage->restore_us);
}

void call_put_computed(struct json_writer *w, const struct call *c) {
    struct call_usage usage = call_usage(c);

    json_field_z(w, "model", c->api->model_name);
    call_put_counts(w, &usage);
}

static void put_prefilled(struct call *c, struct buf *out) {
    struct json_writer w;

    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_z(&w, "object", "prefill");
    call_put_computed(&w, c);
    json_end_object(&w);
}

/* Errors name the fields of the shape that the client has called. */
static void make_prefill(struct call *c) {
    c->prefill = (struct call_shape){.id_prefix = c->shape->id_prefix,
                                     .prompt_field = c->shape->prompt_field,
                                     .length_field = c->shape->length_field,
                                     .body = put_prefilled};
    c->shape = &c->prefill;
    call_show_nothing(c);
    c->params.grammar.field = NULL;
    c->params.request.n_logprobs = c->n_logprobs = -1;
    c->params.request.explains_cache = false;
    c->n_keep = 0; /* its client's wish is for the worker that answers */
}

void call_take_prefill(struct call *c) {
    struct str given = http_request_header(c->req, STR(WIRE_PREFILL));

    if (str_eq(given, STR("1")) && !c->is_dry_run && !c->shape->is_prewarm) make_prefill(c);
}

/* worker/api/call_parts.c - what answers of all shapes have in them: usage, why a choice ended, the
 * prompt's text, what changed in it. */
#include "common/text/json.h"
#include "worker/api/cache_explain.h"
#include "worker/api/call.h"
#include "worker/api/fields/cache_control.h"

struct call_usage call_usage(const struct call *c) {
    struct call_usage u = {.explained = c->params.request.explains_cache ? c : NULL,
                           .has_reasoning = c->output.reasoning != NULL,
                           .has_host = engine_info(c->api->engine)->n_cached_host_blocks > 0};
    const struct prompt *counted = NULL;

    for (uint32_t i = 0; i < c->n_choices; i++) {
        const struct choice *ch = &c->choices[i];

        u.completion_tokens += ch->n_used;
        u.reasoning_tokens += ch->n_reasoning;
        if (i % c->params.n == 0) u.prompt_tokens += ch->request->n_prompt;
        if (!ch->has_begun || call_prompt_of(ch) == counted) continue;
        counted = call_prompt_of(ch); /* samples share their prompt: the first to begin counts */
        u.cached_tokens += request_hit_tokens(ch->request);
        u.host_tokens += MIN(ch->request->host_tokens, request_hit_tokens(ch->request));
        u.restored_tokens += ch->request->restored_tokens;
        u.restore_us = MAX(u.restore_us, ch->request->restore_us);
    }
    return u;
}

void call_diagnose(struct call *c) {
    const struct request *r = c->choices[0].request;
    struct prompt_seen seen = {.chat = c->json,
                               .tokens = r->tokens,
                               .n_tokens = r->n_prompt,
                               .n_cached = r->cached_tokens,
                               .block_size = engine_info(c->api->engine)->block_size,
                               .tenant = c->params.request.tenant};

    c->diagnosis =
        prompt_history_add(c->api->prompts, str_of(c->id), c->compared, call_owner(c), &seen);
}

enum status call_read_ttl(struct call *c, const struct json *body, struct error *err) {
    uint32_t ttl_s;
    enum status st = cache_control_read_ttl(body, &ttl_s, err);

    if (st == ST_OK && ttl_s > 0) c->keep[c->n_keep++] = (struct call_keep){SIZE_MAX, ttl_s};
    return st;
}

void call_put_usage(struct json_writer *w, const struct call_usage *u) {
    json_put_key(w, "usage");
    json_begin_object(w);
    json_field_u64(w, "prompt_tokens", u->prompt_tokens);
    json_field_u64(w, "total_tokens", u->prompt_tokens + u->completion_tokens);
    json_field_u64(w, "completion_tokens", u->completion_tokens);
    json_put_key(w, "prompt_tokens_details");
    json_begin_object(w);
    json_field_u64(w, "cached_tokens", u->cached_tokens);
    if (u->has_host) json_field_u64(w, "host_tokens", u->host_tokens);
    if (u->explained) cache_explain_put(w, u->explained);
    json_end_object(w);
    if (u->has_reasoning) {
        json_put_key(w, "completion_tokens_details");
        json_begin_object(w);
        json_field_u64(w, "reasoning_tokens", u->reasoning_tokens);
        json_end_object(w);
    }
    json_end_object(w);
}

void call_put_chunk_usage(struct json_writer *w, const struct call *c) {
    struct call_usage usage = call_usage(c);

    if (c->params.continuous_usage) {
        call_put_usage(w, &usage);
    } else if (c->params.include_usage) {
        json_field_null(w, "usage");
    }
}

const char *call_finish_name(const struct choice *ch) {
    return ch->is_done ? finish_reason_name(ch->finish) : NULL;
}

void call_put_stop_reason(struct json_writer *w, const struct choice *ch) {
    if (ch->is_done && ch->stop.matched >= 0) {
        json_put_str(w, stop_set_string(ch->stop.set, (size_t)ch->stop.matched));
    } else if (ch->is_done && ch->finish == FINISH_STOP &&
               ch->request->stop_token != REQUEST_NO_TOKEN) {
        json_put_u64(w, ch->request->stop_token);
    } else {
        json_put_null(w);
    }
}

void call_put_prompt_ids(struct json_writer *w, const struct choice *ch) {
    const struct request *r = ch->request;

    json_put_key(w, "prompt_token_ids");
    json_begin_array(w);
    for (uint32_t i = 0; i < r->n_prompt; i++)
        json_put_u64(w, r->tokens[i]);
    json_end_array(w);
}

struct prompt *call_prompt_of(const struct choice *ch) {
    return &ch->call->prompts[ch->index / ch->call->params.n];
}

void call_append_prompt_text(const struct choice *ch, struct buf *out) {
    const struct prompt *p = call_prompt_of(ch);

    if (p->is_text) {
        buf_append_str(out, buf_str(&p->text));
        return;
    }
    detokenize(ch->call->api->tokenizer, ch->request->tokens, ch->request->n_prompt,
               ch->call->params.skip_special, out);
}

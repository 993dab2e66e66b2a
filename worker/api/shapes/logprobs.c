/* worker/api/shapes/logprobs.c - arrays of numbers into the clients' JSON. */
#include "worker/api/shapes/logprobs.h"

#include <stdio.h>

#include "common/text/json.h"
#include "worker/api/call.h"
#include "worker/text/detokenize.h"
#include "worker/text/tokenizer/tokenizer.h"

#define TOKEN_TEXT_MAX (1u << 20)

/* One position's numbers, wherever in the request they are. */
struct position {
    uint32_t token;
    bool has_logprob; /* the first prompt token has none */
    float logprob;
    const int32_t *top_token;
    const float *top_logprob;
};

static struct position output_at(const struct choice *ch, uint32_t i) {
    const struct request *r = ch->request;
    size_t n = (size_t)MAX(r->params.n_logprobs, 0);

    return (struct position){.token = request_output(r)[i],
                             .has_logprob = true,
                             .logprob = r->logprob[i],
                             .top_token = r->top_token + i * n,
                             .top_logprob = r->top_logprob + i * n};
}

/* Samples share their prompt: the first one's request has it scored. */
static const struct request *scored_request(const struct choice *ch) {
    const struct call *c = ch->call;

    return c->choices[ch->index - ch->index % c->params.n].request;
}

static struct position prompt_at(const struct choice *ch, uint32_t i) {
    const struct request *r = scored_request(ch);
    size_t n = (size_t)MAX(r->params.prompt_logprobs, 0);

    return (struct position){.token = r->tokens[i],
                             .has_logprob = i > 0,
                             .logprob = r->prompt_logprob[i],
                             .top_token = r->prompt_top_token + i * n,
                             .top_logprob = r->prompt_top_logprob + i * n};
}

static void token_text(const struct choice *ch, uint32_t token, struct buf *text) {
    buf_clear(text);
    if (ch->call->params.tokens_as_ids) {
        buf_appendf(text, "token_id:%u", token);
        return;
    }
    detokenize_one(ch->call->api->tokenizer, token, text);
}

/* One entry of a position of prompt_logprobs. */
static void put_ranked(struct json_writer *w, const struct choice *ch, uint32_t token,
                       float logprob, uint32_t rank, struct buf *text) {
    char key[12];

    snprintf(key, sizeof(key), "%u", token);
    json_put_key(w, key);
    json_begin_object(w);
    json_put_key(w, "logprob");
    json_put_f32(w, logprob);
    json_field_u64(w, "rank", rank);
    buf_clear(text);
    detokenize_one(ch->call->api->tokenizer, token, text);
    json_field_str(w, "decoded_token", buf_str(text));
    json_end_object(w);
}

void logprobs_put_prompt(struct json_writer *w, const struct choice *ch) {
    const struct request *r = scored_request(ch);
    uint32_t n = (uint32_t)MAX(ch->call->params.prompt_logprobs, 0);
    struct buf text;

    json_put_key(w, "prompt_logprobs");
    if (ch->call->params.prompt_logprobs < 0) {
        json_put_null(w);
        return;
    }
    buf_init(&text, TOKEN_TEXT_MAX);
    json_begin_array(w);
    json_put_null(w);
    for (uint32_t i = 1; i < r->n_prompt; i++) {
        struct position p = prompt_at(ch, i);
        uint32_t rank = r->prompt_rank[i];

        json_begin_object(w);
        if (rank > n) put_ranked(w, ch, p.token, p.logprob, rank, &text);
        for (uint32_t k = 0; k < n && p.top_token[k] >= 0; k++)
            put_ranked(w, ch, (uint32_t)p.top_token[k], p.top_logprob[k], k + 1, &text);
        json_end_object(w);
    }
    json_end_array(w);
    buf_fini(&text);
}

struct columns {
    struct json_writer *w;
    const struct choice *ch;
    uint32_t n_prompt, first, end; /* prompt positions before the outputs [first, end) */
    struct buf text, keys;
};

static uint32_t n_rows(const struct columns *c) {
    return c->n_prompt + c->end - c->first;
}

static struct position row_at(const struct columns *c, uint32_t i) {
    return i < c->n_prompt ? prompt_at(c->ch, i) : output_at(c->ch, c->first + i - c->n_prompt);
}

/* Characters that a row adds to the text. One that spans several tokens counts where it begins. */
static size_t width(const struct columns *c, uint32_t i) {
    const struct call *call = c->ch->call;
    uint32_t token = row_at(c, i).token;
    struct str bytes = tokenizer_bytes(call->api->tokenizer, token);
    bool is_shown = i < c->n_prompt && call_prompt_of(c->ch)->is_text;
    size_t n = 0;

    if (call->params.skip_special && !is_shown &&
        tokenizer_is_special(call->api->tokenizer, token)) {
        return 0;
    }
    for (size_t k = 0; k < bytes.len; k++)
        n += ((unsigned char)bytes.ptr[k] & 0xC0) != 0x80;
    return n;
}

/* How many of the n likeliest tokens there are, and whether the token itself is among them. */
static uint32_t n_top(const struct position *p, uint32_t n, bool *has_token) {
    uint32_t k;

    *has_token = false;
    for (k = 0; k < n && p->top_token[k] >= 0; k++)
        *has_token = *has_token || (uint32_t)p->top_token[k] == p->token;
    return k;
}

/* The texts that are keys of one object already. */
struct keys {
    struct buf *text; /* one after the other */
    size_t ends[REQUEST_LOGPROBS_MAX + 1];
    uint32_t n;
};

static bool has_key(const struct keys *keys, struct str text) {
    size_t begin = 0;

    for (uint32_t i = 0; i < keys->n; i++) {
        if (str_eq((struct str){buf_ptr(keys->text) + begin, keys->ends[i] - begin}, text))
            return true;
        begin = keys->ends[i];
    }
    return false;
}

/* Tokens that are parts of characters have equal texts: only the likeliest is written, because JSON
 * readers disagree about duplicate keys. */
static void put_top_entry(struct columns *c, struct keys *keys, uint32_t token, float logprob) {
    struct str text;

    token_text(c->ch, token, &c->text);
    text = buf_str(&c->text);
    if (has_key(keys, text)) return;
    buf_append_str(keys->text, text);
    keys->ends[keys->n++] = buf_str(keys->text).len;
    json_put_key_str(c->w, text);
    json_put_f32(c->w, logprob);
}

/* The token itself is always there: one more than requested, when it is not among the likeliest. */
static void put_top(struct columns *c, const struct position *p) {
    struct keys keys = {.text = &c->keys};
    bool has_token;
    uint32_t n = n_top(p, (uint32_t)MAX(c->ch->call->n_logprobs, 0), &has_token);

    if (!p->has_logprob) {
        json_put_null(c->w);
        return;
    }
    buf_clear(&c->keys);
    json_begin_object(c->w);
    for (uint32_t k = 0; k < n; k++)
        put_top_entry(c, &keys, (uint32_t)p->top_token[k], p->top_logprob[k]);
    if (!has_token) put_top_entry(c, &keys, p->token, p->logprob);
    json_end_object(c->w);
}

void logprobs_put_completion(struct json_writer *w, const struct choice *ch, uint32_t first,
                             uint32_t end, bool echo, size_t *offset) {
    struct columns c = {
        .w = w, .ch = ch, .n_prompt = echo ? ch->request->n_prompt : 0, .first = first, .end = end};

    buf_init(&c.text, TOKEN_TEXT_MAX);
    buf_init(&c.keys, (REQUEST_LOGPROBS_MAX + 1) * TOKEN_TEXT_MAX);
    json_begin_object(w);
    json_put_key(w, "tokens");
    json_begin_array(w);
    for (uint32_t i = 0; i < n_rows(&c); i++) {
        token_text(ch, row_at(&c, i).token, &c.text);
        json_put_str(w, buf_str(&c.text));
    }
    json_end_array(w);
    json_put_key(w, "token_logprobs");
    json_begin_array(w);
    for (uint32_t i = 0; i < n_rows(&c); i++) {
        struct position p = row_at(&c, i);

        if (p.has_logprob) {
            json_put_f32(w, p.logprob);
        } else {
            json_put_null(w);
        }
    }
    json_end_array(w);
    json_put_key(w, "top_logprobs");
    json_begin_array(w);
    for (uint32_t i = 0; i < n_rows(&c); i++) {
        struct position p = row_at(&c, i);

        put_top(&c, &p);
    }
    json_end_array(w);
    json_put_key(w, "text_offset");
    json_begin_array(w);
    for (uint32_t i = 0; i < n_rows(&c); i++) {
        json_put_u64(w, *offset);
        *offset += width(&c, i);
    }
    json_end_array(w);
    json_end_object(w);
    buf_fini(&c.keys);
    buf_fini(&c.text);
}

/* "token", "logprob", "bytes" of one token. */
static void put_chat_token(struct json_writer *w, const struct choice *ch, uint32_t token,
                           float logprob, struct buf *text) {
    struct str bytes = tokenizer_bytes(ch->call->api->tokenizer, token);

    token_text(ch, token, text);
    json_put_key(w, "token");
    json_put_str(w, buf_str(text));
    json_put_key(w, "logprob");
    json_put_f32(w, logprob);
    json_put_key(w, "bytes");
    json_begin_array(w);
    for (size_t i = 0; i < bytes.len; i++)
        json_put_u64(w, (unsigned char)bytes.ptr[i]);
    json_end_array(w);
}

static void put_chat_alternative(struct json_writer *w, const struct choice *ch, uint32_t token,
                                 float logprob, struct buf *text) {
    json_begin_object(w);
    put_chat_token(w, ch, token, logprob, text);
    json_end_object(w);
}

/* At most the requested number; the token itself is one of them, if any is. */
static void put_chat_top(struct json_writer *w, const struct choice *ch, const struct position *p,
                         struct buf *text) {
    bool has_token;
    uint32_t n = n_top(p, (uint32_t)MAX(ch->call->n_logprobs, 0), &has_token);

    for (uint32_t k = 0; k + !has_token < n; k++)
        put_chat_alternative(w, ch, (uint32_t)p->top_token[k], p->top_logprob[k], text);
    if (n && !has_token) put_chat_alternative(w, ch, p->token, p->logprob, text);
}

void logprobs_put_chat(struct json_writer *w, const struct choice *ch, uint32_t first,
                       uint32_t end) {
    struct buf text;

    buf_init(&text, TOKEN_TEXT_MAX);
    json_begin_object(w);
    json_put_key(w, "content");
    json_begin_array(w);
    for (uint32_t i = first; i < end; i++) {
        struct position p = output_at(ch, i);

        json_begin_object(w);
        put_chat_token(w, ch, p.token, p.logprob, &text);
        json_put_key(w, "top_logprobs");
        json_begin_array(w);
        put_chat_top(w, ch, &p, &text);
        json_end_array(w);
        json_end_object(w);
    }
    json_end_array(w);
    json_end_object(w);
    buf_fini(&text);
}

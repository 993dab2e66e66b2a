/* worker/api/shapes/chat_request.c - the body of a chat: its prompt, how answers are read, and what
 * constrains them. Calls of other kinds that have brought their body to chat's form read it here
 * too. */
#include <string.h>

#include "common/text/json.h"
#include "worker/api/body.h"
#include "worker/api/call.h"
#include "worker/api/handlers.h"
#include "worker/output/output_tag.h"
#include "worker/text/tokenizer/tokenizer.h"

#define RENDERED_MAX (64u << 20) /* bytes of a rendered conversation */

/* The role of the answer: assistant, or the role of a last message that is continued. With "echo",
 * that message's text comes before the answer if its role is the answer's. */
static void read_role(struct call *c, const struct json *root) {
    const struct json *last = NULL;
    bool is_new = true;
    struct str role = STR_NULL;

    JSON_FOR_EACH(message, json_get(root, "messages")) last = message;
    c->role = STR("assistant");
    if (json_to_str(json_get(last, "role"), &role) != ST_OK) return;
    if (json_to_bool(json_get(root, "add_generation_prompt"), &is_new) == ST_OK && !is_new) {
        c->role = role;
    }
    if (!c->params.echo || !str_eq(role, c->role)) return;
    if (json_to_str(json_get(last, "content"), &c->echo) != ST_OK) c->echo = STR_NULL;
}

/* Answers that would be more than text. */
static enum status refuse_media(const struct json *root, struct error *err) {
    const struct json *modalities;
    struct str kind;
    enum status st = json_get_array(root, "modalities", &modalities, err);

    if (st == ST_OK && !json_is_null(json_get(root, "web_search_options"))) {
        st = error_set_param(err, ST_INVALID, "web_search_options",
                             "web_search_options is not supported by this worker: leave it out");
    }
    for (const struct json *it = json_first(modalities); it && st == ST_OK; it = json_next(it)) {
        if (json_to_str(it, &kind) != ST_OK || !str_eq(kind, STR("text")))
            st = error_set_param(err, ST_INVALID, "modalities",
                                 "modalities must be [\"text\"], or left out: answers are text");
    }
    return st;
}

static enum status read_options(struct call *c, const struct json *root, struct error *err) {
    uint32_t limit = engine_info(c->api->engine)->limits.max_logprobs, n = 0;
    bool wants = false, has_top;
    enum status st = json_get_bool(root, "logprobs", &wants, NULL, err);

    if (st == ST_OK) st = refuse_media(root, err);
    if (st == ST_OK) st = json_get_u32(root, "top_logprobs", 0, limit, &n, &has_top, err);
    if (st != ST_OK) return st;
    if (has_top && n > 0 && !wants) {
        return error_set_param(err, ST_INVALID, "top_logprobs",
                               "top_logprobs requires \"logprobs\": true");
    }
    if (wants) c->n_logprobs = c->params.request.n_logprobs = (int32_t)n;
    if (!c->params.has_max_tokens) c->params.request.max_tokens = UINT32_MAX; /* what is left */
    return ST_OK;
}

static enum status read_messages(struct call *c, const struct json *root, struct error *err) {
    bool add_special = false; /* the template has written what the model wants */
    struct buf text;
    enum status st = call_set_prompts(c, 1, err);

    if (st == ST_OK) st = json_get_bool(root, "add_special_tokens", &add_special, NULL, err);
    if (st != ST_OK) return st;
    buf_init(&text, RENDERED_MAX);
    st = body_render_chat(c->api, root, &text, err);
    if (st == ST_OK && buf_status(&text) != ST_OK) {
        st = error_set(err, ST_NOMEM, "out of memory for the rendered conversation");
    }
    if (st == ST_OK)
        st = call_prompt_text(c, 0, buf_str(&text), add_special ? TOKENIZE_SPECIAL : 0, err);
    buf_fini(&text);
    return st;
}

/* What prefix_pos names by a message's index. */
static enum status read_prefix(struct call *c, const struct json *root, struct error *err) {
    size_t n = c->params.prefix_messages, n_messages = json_count(json_get(root, "messages"));

    if (n == 0) return ST_OK;
    if (n > n_messages)
        return error_set_param(err, ST_INVALID, "prefix_pos",
                               "prefix_pos names message %zu, and the request has %zu messages, "
                               "counted from 0: name one of them",
                               n - 1, n_messages);
    c->n_prefix_bytes = body_beginning_of_chat(c->api, root, n, buf_str(&c->prompts[0].text));
    if (c->n_prefix_bytes > 0) return ST_OK;
    return error_set_param(err, ST_INVALID, "prefix_pos",
                           "prefix_pos names message %zu, but the chat template does not write the "
                           "messages up to it alone: name a later one, or a number of tokens",
                           n - 1);
}

/* How the answers are read. */
static void set_up_readers(struct call *c, const struct json *root) {
    struct api *api = c->api;
    struct str prompt = buf_str(&c->prompts[0].text);

    c->output = (struct reader_setup){
        .calls = c->tools.choice == TOOLS_NONE ? NULL : api->call_format,
        .reasoning = c->reasoning.is_text ? NULL : api->reasoning_format,
        .model = &api->output_model,
        .tools = c->tools.tools,
        .begins_in_reasoning =
            api->reasoning_format && reader_begins_in_reasoning(api->reasoning_format, prompt),
        .is_single = c->tools.is_single,
        .n_earlier_calls = body_count_calls(root), /* some models go on numbering */
        .id_seed = rng_u64(&api->rng),
    };
}

/* A text of the format as the tokens that a model writes it with. *as_text: the text, unless it has
 * a token of its own; NULL: no one asks. */
static enum status encode_marker(const struct api *api, struct str text, struct thinking_run *out,
                                 struct str *as_text, struct error *err) {
    struct token_list list = {0};
    bool has_token = false;
    enum status st = tokenizer_encode(api->tokenizer, text, 0, &list, err);

    if (st == ST_OK && list.n > THINKING_MARKER_MAX) {
        st = error_set_param(err, ST_INVALID, "thinking_token_budget",
                             "thinking_token_budget is not supported for this model: its marker "
                             "\"%.*s\" has more than %u tokens",
                             STR_ARG(text), THINKING_MARKER_MAX);
    }
    if (st == ST_OK) {
        out->n = (uint32_t)list.n;
        if (list.n > 0) memcpy(out->token, list.ids, list.n * sizeof(*list.ids));
        for (size_t i = 0; i < list.n; i++)
            has_token |= tokenizer_is_added(api->tokenizer, list.ids[i]);
        if (as_text && !has_token) *as_text = text;
    }
    token_list_fini(&list);
    return st;
}

static struct str bytes_of(const void *arg, uint32_t token) {
    return tokenizer_bytes(arg, token);
}

static enum status limit_thinking(struct call *c, struct error *err) {
    static const char field[] = "thinking_token_budget";
    const struct api *api = c->api;
    const struct reasoning_format *format = api->reasoning_format;
    struct thinking_limit *limit = &c->params.request.thinking;
    enum status st;

    if (!c->reasoning.has_budget) return ST_OK;
    if (!format) {
        return error_set_param(
            err, ST_INVALID, field,
            "how this model ends its reasoning is unknown: leave out "
            "thinking_token_budget, or start the worker with --reasoning-parser");
    }
    if (c->params.is_beam) {
        return error_set_param(
            err, ST_INVALID, field,
            "thinking_token_budget has no effect on a beam search: leave it out");
    }
    limit->budget = c->reasoning.budget;
    limit->is_open = c->output.begins_in_reasoning;
    limit->has_other_end =
        c->output.calls &&
        call_format_begin_token(c->output.calls, &api->output_model, &limit->other_end);
    limit->bytes = bytes_of;
    limit->arg = api->tokenizer;
    st = encode_marker(api, reasoning_format_open(format), &limit->begin, &limit->begin_text, err);
    if (st == ST_OK) {
        st = encode_marker(api, reasoning_format_close(format), &limit->end, &limit->end_text, err);
    }
    if (st != ST_OK) return st;
    return encode_marker(api, reasoning_format_end(format), &limit->forced, NULL, err);
}

/* Does the prompt end with reasoning that is closed? Its template has turned reasoning off. */
static bool is_without_reasoning(const struct call *c) {
    struct str prompt = buf_str(&c->prompts[0].text);

    while (prompt.len > 0 && strchr(" \n", prompt.ptr[prompt.len - 1]))
        prompt.len--;
    return str_ends(prompt, reasoning_format_close(c->api->reasoning_format));
}

static bool must_call(const struct call *c) {
    return c->tools.choice == TOOLS_REQUIRED || c->tools.choice == TOOLS_NAMED;
}

static enum status check_forced_call(const struct call *c, struct error *err) {
    if (!must_call(c)) return ST_OK;
    if (c->params.grammar.field) {
        return error_set_param(err, ST_INVALID, "tool_choice",
                               "You can only either use constraints for structured outputs or "
                               "tools, not both: leave out %s, or set tool_choice to \"auto\"",
                               c->params.grammar.field);
    }
    if (c->output.calls) return ST_OK;
    return error_set_param(err, ST_INVALID, "tool_choice",
                           "how this model writes tool calls is unknown, so none can be forced: "
                           "start the worker with --tool-call-parser, or set tool_choice to "
                           "\"auto\"");
}

/* Forced calls, strict tools, and text that is constrained beside calls or behind reasoning are one
 * grammar. A structural tag of the client is that of the whole answer already. */
static enum status constrain(struct call *c, struct error *err) {
    struct grammar_fields *fields = &c->params.grammar;
    struct output_tag tag = {.calls = c->output.calls,
                             .reasoning = c->api->reasoning_format,
                             .tools = c->tools.callable,
                             .choice = c->tools.choice,
                             .is_single = c->tools.is_single,
                             .begins_in_reasoning = c->output.begins_in_reasoning};
    struct buf format, text;
    enum status st = check_forced_call(c, err);

    if (tag.reasoning && is_without_reasoning(c)) tag.reasoning = NULL;
    if (st != ST_OK || (!tag.calls && !tag.reasoning)) return st;
    if (fields->field && fields->spec.kind == GRAMMAR_TAG) return ST_OK;
    buf_init(&format, 0);
    buf_init(&text, 0);
    if (fields->field) {
        grammar_fields_put_format(fields, &format);
        tag.text_format = buf_str(&format);
    }
    if (output_tag_is_needed(&tag) || (tag.calls && c->tools.chosen)) {
        if (c->params.is_beam) {
            st = error_set_param(err, ST_INVALID, "use_beam_search",
                                 "a beam search has no tool calls that are forced or strict: leave "
                                 "it out");
        }
        if (st == ST_OK) st = output_tag_write(&tag, &text, err);
        if (st == ST_OK) st = grammar_fields_set_tag(fields, buf_str(&text), err);
    }
    buf_fini(&format);
    buf_fini(&text);
    return st;
}

enum status chat_read(struct call *c, const struct json *root, struct error *err) {
    enum status st = call_read_params(c, true, err);

    if (st == ST_OK) st = read_options(c, root, err);
    if (st == ST_OK) st = call_read_ttl(c, root, err);
    if (st == ST_OK) st = tool_fields_parse(&c->tools, root, err);
    if (st == ST_OK) st = reasoning_fields_parse(&c->reasoning, root, err);
    if (st == ST_OK) read_role(c, root);
    if (st == ST_OK) st = read_messages(c, root, err);
    if (st == ST_OK) st = read_prefix(c, root, err);
    if (st != ST_OK) return st;
    set_up_readers(c, root);
    st = limit_thinking(c, err);
    return st == ST_OK ? constrain(c, err) : st;
}

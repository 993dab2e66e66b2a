/* router/proxy/handover/nixl.c - vLLM's NixlConnector.
 *
 *      router ─▶ P   the body, max_tokens 1, no stream, kv_transfer_params {do_remote_decode: true}
 *      P ─▶ router   an answer whose kv_transfer_params has P's engine, blocks and address
 *      router ─▶ D   the body, with that object as it came, whatever members it has
 *      D ─▶ P        pulls the blocks, and releases them there
 *
 * P samples a token, which is discarded: D samples its own. So these bodies stay together: several
 * answers of one prompt (each would release the same blocks), log probabilities of the prompt (P
 * alone has them), a tool that must be called (P would parse one token as the call) and one token
 * of an answer.
 *
 * An address at which only P itself could reach P is replaced by the one at which the router does.
 *
 * Follows: vLLM 0.33, NixlConnector protocol 15, and its proxy for disaggregated prefilling. */
#include "common/text/json.h"
#include "router/prompt/raw_json.h"
#include "router/proxy/handover/handover.h"

#define PARAMS "kv_transfer_params"

static bool is_absent(struct str value) {
    return !value.ptr || str_eq(value, STR("null")) || str_eq(value, STR("false"));
}

static bool is_at_most_one(struct str value) {
    return is_absent(value) || str_eq(value, STR("1"));
}

static bool is_free_choice(struct str value) {
    return is_absent(value) || str_eq(value, STR("\"auto\"")) || str_eq(value, STR("\"none\""));
}

static bool fits(struct str path, struct str body) {
    struct str prompt = handover_member(body, "prompt");
    bool is_chat = str_eq(path, STR("/v1/chat/completions"));

    if (!is_chat && (!str_eq(path, STR("/v1/completions")) || !prompt.len || prompt.ptr[0] != '"'))
        return false;
    return is_at_most_one(handover_member(body, "n")) &&
           is_at_most_one(handover_member(body, "best_of")) &&
           is_absent(handover_member(body, "use_beam_search")) &&
           is_absent(handover_member(body, "prompt_logprobs")) &&
           is_absent(handover_member(body, "echo")) && is_absent(handover_member(body, PARAMS)) &&
           is_free_choice(handover_member(body, "tool_choice")) &&
           !str_eq(handover_member(body, "max_tokens"), STR("1")) &&
           !str_eq(handover_member(body, "max_completion_tokens"), STR("1"));
}

static void put_one(struct str body, const char *name, struct buf *out) {
    if (!is_absent(handover_member(body, name))) buf_appendf(out, ",\"%s\":1", name);
}

static void first_body(const struct handover *h, struct buf *out) {
    static const char *const dropped[] = {
        "stream",     "stream_options", "max_tokens", "max_completion_tokens",
        "min_tokens", PARAMS,           NULL};
    struct buf members;

    buf_init(&members, 0);
    buf_append_str(&members, STR(",\"max_tokens\":1"));
    put_one(h->body, "max_completion_tokens", &members);
    put_one(h->body, "min_tokens", &members);
    buf_append_str(&members,
                   STR(",\"stream\":false,\"" PARAMS "\":{\"do_remote_decode\":true,"
                       "\"do_remote_prefill\":false,\"remote_engine_id\":null,"
                       "\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}"));
    handover_rewrite(h->body, dropped, buf_str(&members), out);
    buf_fini(&members);
}

static bool is_near(struct str host) {
    return str_starts(host, STR("127.")) || str_eq(host, STR("localhost")) ||
           str_eq(host, STR("::1"));
}

/* At which only P itself reaches P. */
static bool is_own_address(struct str host, const struct handover *h) {
    bool is_any = str_eq(host, STR("0.0.0.0")) || str_eq(host, STR("::")) || !host.len;

    return is_any || (is_near(host) && !is_near(h->host));
}

static enum status second_members(const struct handover *h, struct str answer, struct buf *out) {
    struct str params, host, at;
    struct json *root = NULL;

    if (json_parse(&root, answer, NULL, NULL) != ST_OK) return ST_INVALID;
    json_destroy(root);
    params = handover_member(answer, PARAMS);
    if (!params.len || params.ptr[0] != '{' ||
        !str_eq(handover_member(params, "do_remote_prefill"), STR("true")))
        return ST_NOT_FOUND;
    buf_append_str(out, STR(",\"" PARAMS "\":"));
    at = handover_member(params, "remote_host");
    host = raw_text(at);
    if (!host.ptr || !is_own_address(host, h)) {
        buf_append_str(out, params);
        return buf_status(out);
    }
    buf_append_str(out, raw_between(params.ptr, host.ptr));
    buf_append_str(out, h->host);
    buf_append_str(out, raw_between(host.ptr + host.len, params.ptr + params.len));
    return buf_status(out);
}

const struct handover_ops handover_nixl = {
    .name = "nixl", .fits = fits, .first_body = first_body, .second_members = second_members};

/* router/proxy/handover/nixl.c - vLLM's NixlConnector.
 *
 *      router ─▶ P   the body, max_tokens 1, no stream, kv_transfer_params {do_remote_decode: true}
 *      P ─▶ router   an answer whose kv_transfer_params has P's engine, blocks and address
 *      router ─▶ D   the body, with that object as it came, whatever members it has
 *      D ─▶ P        pulls the blocks, and releases them there
 *
 * An address at which only P itself could reach P is replaced by the one at which the router does.
 *
 * Follows: vLLM 0.33, NixlConnector protocol 15, and its proxy for disaggregated prefilling. */
#include "common/text/json.h"
#include "router/prompt/raw_json.h"
#include "router/proxy/handover/handover.h"

static void first_members(const struct handover *h, struct buf *out) {
    handover_vllm_first_members(
        h->body,
        STR("{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_id\":null,"
            "\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}"),
        out);
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
    params = handover_member(answer, HANDOVER_PARAMS);
    if (!params.len || params.ptr[0] != '{' ||
        !str_eq(handover_member(params, "do_remote_prefill"), STR("true")))
        return ST_NOT_FOUND;
    buf_append_str(out, STR(",\"" HANDOVER_PARAMS "\":"));
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
    .name = "nixl",
    .holds_kv = true,
    .fits = handover_vllm_fits,
    .first_dropped = handover_vllm_dropped,
    .first_members = first_members,
    .second_members = second_members,
};

/* router/proxy/handover/mooncake.c - vLLM's MooncakeConnector.
 *
 *      router ─▶ P   the body, max_tokens 1, no stream, kv_transfer_params {do_remote_decode: true,
 *                    transfer_id}
 *      router ─▶ D   at once: the body, with {do_remote_prefill: true, transfer_id, the id of P's
 *                    engine, the address of P's bootstrap server}
 *      D ─▶ P        asks that server where the engine listens, and waits there for the transfer id
 *      P ─▶ D        writes the blocks when the prompt is computed
 *
 * The transfer id is random: a caller that knew another request's could take its blocks. D waits
 * 480 s for an id that never comes, so the router leaves D when P fails; an engine ends a request
 * whose client has left. The bootstrap server speaks http alone.
 *
 * Follows: vLLM 0.33, kv_connector/v1/mooncake, and its mooncake_connector_proxy.py. */
#include <string.h>

#include "router/proxy/handover/handover.h"

static void put_transfer(const struct handover *h, struct buf *out) {
    buf_appendf(out, "\"transfer_id\":\"%s\"", h->rid);
}

static void first_members(const struct handover *h, struct buf *out) {
    struct buf params;

    buf_init(&params, 0);
    buf_append_str(&params, STR("{\"do_remote_decode\":true,\"do_remote_prefill\":false,"));
    put_transfer(h, &params);
    buf_append_char(&params, '}');
    handover_vllm_first_members(h->body, buf_str(&params), out);
    buf_fini(&params);
}

static enum status second_members(const struct handover *h, struct str answer, struct buf *out) {
    bool is_v6 = h->host.len && memchr(h->host.ptr, ':', h->host.len);

    (void)answer;
    if (!h->engine.len) return ST_NOT_FOUND;
    buf_append_str(out, STR(",\"" HANDOVER_PARAMS "\":{\"do_remote_prefill\":true,"
                            "\"do_remote_decode\":false,"));
    put_transfer(h, out);
    buf_appendf(out, ",\"remote_engine_id\":\"" STR_FMT "\"", STR_ARG(h->engine));
    buf_appendf(out, ",\"remote_bootstrap_addr\":\"http://%s" STR_FMT "%s:%u\"}", is_v6 ? "[" : "",
                STR_ARG(h->host), is_v6 ? "]" : "", (unsigned)h->bootstrap_port);
    return buf_status(out);
}

const struct handover_ops handover_mooncake = {
    .name = "mooncake",
    .is_at_once = true,
    .needs_engine = true,
    .holds_kv = true,
    .fits = handover_vllm_fits,
    .first_dropped = handover_vllm_dropped,
    .first_members = first_members,
    .second_members = second_members,
};

/* router/proxy/handover/vllm.c - what connectors of vLLM share: which bodies may be split, and the
 * body of the first leg.
 *
 * P samples a token, which is discarded: D samples its own. So these bodies stay together: several
 * answers of one prompt (each would release the same blocks), log probabilities of the prompt (P
 * alone has them), a tool that must be called (P would parse one token as the call) and one token
 * of an answer.
 *
 * Follows: vLLM 0.33 and its proxies for disaggregated prefilling. */
#include "router/proxy/handover/handover.h"

static bool is_free_choice(struct str value) {
    return handover_is_absent(value) || str_eq(value, STR("\"auto\"")) ||
           str_eq(value, STR("\"none\""));
}

/* A value of these that is not absent keeps the request together. */
static bool has_own_wishes(struct str body) {
    static const char *const names[] = {"use_beam_search", "prompt_logprobs", "echo",
                                        HANDOVER_PARAMS};

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (!handover_is_absent(handover_member(body, names[i]))) return true;
    }
    return false;
}

bool handover_vllm_fits(struct str path, struct str body) {
    struct str prompt = handover_member(body, "prompt");
    bool is_chat = str_eq(path, STR("/v1/chat/completions"));

    if (is_chat) {
        if (!handover_member(body, "messages").len) return false;
    } else if (!str_eq(path, STR("/v1/completions")) || !prompt.len || prompt.ptr[0] != '"') {
        return false;
    }
    return handover_is_at_most_one(handover_member(body, "n")) &&
           handover_is_at_most_one(handover_member(body, "best_of")) && !has_own_wishes(body) &&
           is_free_choice(handover_member(body, "tool_choice")) &&
           !str_eq(handover_member(body, "max_tokens"), STR("1")) &&
           !str_eq(handover_member(body, "max_completion_tokens"), STR("1"));
}

static void put_one(struct str body, const char *name, struct buf *out) {
    if (!handover_is_absent(handover_member(body, name))) buf_appendf(out, ",\"%s\":1", name);
}

/* HANDOVER_PARAMS is among them where it is null: see has_own_wishes. */
const char *const handover_vllm_dropped[] = {
    "stream",     "stream_options", "max_tokens", "max_completion_tokens",
    "min_tokens", HANDOVER_PARAMS,  NULL};
_Static_assert(ARRAY_LEN(handover_vllm_dropped) - 1 <= HANDOVER_CUTS_MAX, "one cut each");

void handover_vllm_first_members(struct str body, struct str params, struct buf *out) {
    buf_append_str(out, STR(",\"max_tokens\":1"));
    put_one(body, "max_completion_tokens", out);
    put_one(body, "min_tokens", out);
    buf_append_str(out, STR(",\"stream\":false,\"" HANDOVER_PARAMS "\":"));
    buf_append_str(out, params);
}
